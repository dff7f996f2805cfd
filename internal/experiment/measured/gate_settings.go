package measured

import "tare/internal/lib/param"

// GateSettings are how much of what each gate allows. A setting has the name of the gates that it governs.
var GateSettings = []param.Setting{
	{Name: "rate", Type: param.TypeNumber, Default: "0.99", Max: 1,
		Doc: "part of the intended requests that must be answered within the window"},
	{Name: "errors", Type: param.TypeNumber, Default: "0.001", Max: 1,
		Doc: "part of the intended requests that may fail or stay unanswered"},
	{Name: "generator_cpu", Type: param.TypeNumber, Default: "0.7", Max: 1,
		Doc: "part of its CPUs that a load generator may use"},
	{Name: "lag", Type: param.TypeDuration, Default: "25ms", Max: 60,
		Doc: "how late the generator may start the 99th percentile of requests by its own fault"},
	{Name: "drift", Type: param.TypeNumber, Default: "0.5", Max: 1000,
		Doc: "how far apart the halves of the window may be, as a part of the smaller: in median latency, or in " +
			"throughput when the load is closed"},
	{Name: "throttled", Type: param.TypeDuration, Default: "0s", Max: 3600,
		Doc: "time that a group without a CPU limit of its own, or one that holds the trial, may be throttled"},
	{Name: "held", Type: param.TypeNumber, Default: "0", Max: 1,
		Doc: "part of its periods in which a group with a CPU limit must be throttled, for experiments about the limit"},
	{Name: "connections", Type: param.TypeNumber, Default: "1", Max: 1,
		Doc: "part of the connections asked for that must be open at once, where the load holds them"},
	{Name: "nodes", Type: param.TypeNumber, Default: "0.5", Max: 1,
		Doc: "part of the nodes of a trial at which it may fail before it is invalid"},
	{Name: "invalid", Type: param.TypeNumber, Default: "0.25", Max: 1,
		Doc: "part of the trials of an arm at a level that a metric may lose before it is withheld"},
}
