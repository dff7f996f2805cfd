package exec

import (
	"tare/internal/experiment/load"
	"tare/internal/lib/param"
)

// Storm is the value of the setting rate for a load that makes execs as fast as it can.
const Storm = "storm"

// Settings are the load's settings in specs and on the command line.
var Settings = []param.Setting{
	{Name: "rate", Type: param.TypeNumber, Words: []string{Storm}, Default: Storm, Min: 0.1, Max: MaxRate,
		Phrase: map[string]string{"": "at {} execs/s", Storm: "in a storm"},
		Doc:    "execs per second of all workers; `storm`: as fast as they go"},
	{Name: "workers", Type: param.TypeCount, Min: 1, Max: 1024,
		Doc: "processes that exec, spread over the CPUs; one for each CPU when left out"},
}

// OptionsOf converts settings to options.
func OptionsOf(v param.Values) Options {
	o := Options{Workers: v.Int("workers"), Spin: load.SpinOf(v)}
	if v["rate"] != Storm {
		o.Rate = v.Float("rate")
	}
	return o
}
