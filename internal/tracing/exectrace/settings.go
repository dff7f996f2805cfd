package exectrace

import (
	"errors"

	"tare/internal/lib/param"
)

// Settings are the tracer's settings in specs. On the command line, the output can also be Table, which is for people;
// Tare cannot count its lines.
var Settings = []param.Setting{
	{Name: "output", Type: param.TypeWord, Default: JSON, Words: []string{JSON, Count},
		Doc: "`json`: a line for each exec, counted by Tare; `count`: only totals, as the tracer reports them"},
	{Name: "ring", Type: param.TypeBytes,
		Doc: "size of its ring buffer, a power of two"},
	{Name: "args", Type: param.TypeCount, Max: maxArgs, Doc: "bytes of an exec's arguments that it delivers"},
	{Name: "latency", Type: param.TypeDuration, Min: 0.001, Max: maxLatency.Seconds(),
		Doc: "longest time that an event waits in the ring before its process is woken"},
}

// OptionsOf converts settings to options. It returns an error if the size of the ring is invalid.
func OptionsOf(v param.Values) (Options, error) {
	o := Options{Output: v["output"], Ring: v.Int("ring"), Args: v.Int("args"), Latency: v.Duration("latency")}
	if v["args"] == "0" {
		o.Args = NoArgs // in Options, 0 means the default
	}
	if _, given := v["ring"]; given && !validRing(o.Ring) {
		return o, errors.New(`has a "ring" of ` + v["ring"] + ` bytes, which must be a power of two from 64KiB to 1GiB`)
	}
	return o, nil
}

func validRing(n int) bool { return n >= minRing && n <= maxRing && n&(n-1) == 0 }
