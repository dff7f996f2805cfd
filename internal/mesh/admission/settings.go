package admission

import (
	"time"

	"tare/internal/experiment/load"
	"tare/internal/lib/pace"
	"tare/internal/lib/param"
)

// Names of the settings.
const (
	modeKey     = "mode"
	rateKey     = "rate"
	arrivalsKey = "arrivals"
	atOnceKey   = "at-once"
	timeoutKey  = "timeout"
	drainKey    = "drain"
)

// Settings are the load's settings in specs and on the command line.
var Settings = []param.Setting{
	{Name: modeKey, Type: param.TypeWord, Default: load.Open, Words: []string{load.Open, load.Closed},
		Doc: "open: requests start on an absolute schedule; closed: each connection or worker sends the next when " +
			"one ends"},
	{Name: rateKey, Type: param.TypeNumber, Min: 0.1, Max: 100_000, Phrase: map[string]string{"": "at {} reviews/s"},
		Doc: "requests per second; required by open loads, which alone have it"},
	{Name: arrivalsKey, Type: param.TypeWord, Default: string(pace.Poisson),
		Words: []string{string(pace.Poisson), string(pace.Constant)}, Doc: "distribution of an open load's starts"},
	{Name: atOnceKey, Type: param.TypeCount, Default: "16", Min: 1, Max: 250,
		Phrase: map[string]string{"": "with {} reviews at once", "1": "one after the other"},
		Doc:    "reviews at once, at most, as streams of one HTTP/2 connection"},
	{Name: timeoutKey, Type: param.TypeDuration, Default: "10s", Min: 0.001, Max: 30,
		Doc: "time after which a review counts as failed"},
	{Name: drainKey, Type: param.TypeDuration, Default: "1s", Max: 600,
		Doc: "time after the window for what was due in it"},
}

// Options configures a Load.
type Options struct {
	Rate     float64 // reviews per second; 0: closed loop
	Arrivals pace.Arrivals
	AtOnce   int
	Timeout  time.Duration
	Drain    time.Duration
	Seed     uint64
}

// OptionsOf converts settings to options. It returns an error if settings contradict each other.
func OptionsOf(v param.Values) (Options, error) {
	o := Options{Rate: v.Float(rateKey), Arrivals: pace.Arrivals(v[arrivalsKey]), AtOnce: v.Int(atOnceKey),
		Timeout: v.Duration(timeoutKey), Drain: v.Duration(drainKey)}
	if err := load.CheckRate(v, "reviews"); err != nil {
		return o, err
	}
	return o, v.Check(Settings)
}
