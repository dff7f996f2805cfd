package measured

import "tare/internal/lib/param"

// GateSettings are the limits of the gates. A setting has the name of the gates that it governs.
var GateSettings = []param.Setting{
	{Name: "rate", Type: param.TypeNumber, Default: "0.99", Max: 1,
		Doc: "part of the intended rate at which requests must be answered in the window"},
	{Name: "errors", Type: param.TypeNumber, Default: "0.001", Max: 1,
		Doc: "part of the intended requests that may fail or stay unanswered"},
	{Name: "generator_cpu", Type: param.TypeNumber, Default: "0.7", Max: 1,
		Doc: "part of its CPUs that a load generator may use"},
	{Name: "lag", Type: param.TypeDuration, Default: "25ms", Max: 60,
		Doc: "how late, by its own fault, the generator may start requests at the 99th percentile"},
	{Name: "drift", Type: param.TypeNumber, Default: "0.5", Max: 1000,
		Doc: "difference of the window's halves, as a part of the smaller: in median latency, or in throughput of a " +
			"closed load"},
	{Name: "throttled", Type: param.TypeDuration, Default: "0s", Max: 3600,
		Doc: "time that a group without its own CPU limit, or one around the trial, may be throttled"},
	{Name: "held", Type: param.TypeNumber, Default: "0", Max: 1,
		Doc: "part of a CPU-limited group's periods in which it must be throttled"},
	{Name: "connections", Type: param.TypeNumber, Default: "1", Max: 1,
		Doc: "part of the requested connections that must be open at once, of loads that hold them; on average, 0.02 " +
			"less"},
	{Name: "nodes", Type: param.TypeNumber, Default: "0.5", Max: 1,
		Doc: "part of its nodes at which a valid trial may fail"},
	{Name: "invalid", Type: param.TypeNumber, Default: "0.25", Max: 1,
		Doc: "part of an arm's trials at a level that a metric may lose"},
}
