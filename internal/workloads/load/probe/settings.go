package probe

import "tare/internal/lib/param"

// Settings are the settings of a probe, in specs and on the command line.
var Settings = []param.Setting{
	{Name: "interval", Type: param.TypeDuration, Default: "1ms", Min: MinInterval.Seconds(), Max: MaxInterval.Seconds(),
		Doc: "time between wake-ups on one CPU"},
}
