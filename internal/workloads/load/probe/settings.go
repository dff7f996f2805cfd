package probe

import "tare/internal/lib/param"

// Settings are what specs and the command line set of a probe.
var Settings = []param.Setting{
	{Name: "interval", Type: param.TypeDuration, Default: "1ms", Min: MinInterval.Seconds(), Max: MaxInterval.Seconds(),
		Doc: "time between wake-ups on one CPU"},
}
