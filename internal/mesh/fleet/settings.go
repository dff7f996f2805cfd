package fleet

import (
	"math"
	"time"

	"tare/internal/lib/param"
)

// Kinds of work: what a fleet does in a trial.
const (
	OneChange = "change"  // services get other endpoints, one at a time
	Rollout   = "rollout" // all proxies connect at once, repeatedly
	Churn     = "churn"   // a tenth of them reconnects, repeatedly
	Leave     = "leave"   // nine tenths of them leave when the window begins
	Idle      = "idle"    // all are connected, and nothing changes
)

// still reports whether a kind of work consists of waiting, so that no pieces of work are counted in the window.
func still(work string) bool { return work == Idle || work == Leave }

// Works are the values of the setting work.
var Works = []string{OneChange, Rollout, Churn, Leave, Idle}

// The protocols.
const (
	protocolDelta = "delta"
	protocolWorld = "world"
)

// Names of the settings.
const (
	proxiesKey  = "proxies"
	workKey     = "work"
	protocolKey = "protocol"
	pauseKey    = "pause"
	slowKey     = "slow"
	refusingKey = "refusing"
	floodingKey = "flooding"
)

// Settings are the load's settings in specs and on the command line.
var Settings = []param.Setting{
	{Name: proxiesKey, Type: param.TypeCount, Default: "100", Min: 1, Max: MaxProxies,
		Phrase: map[string]string{"": "with {} proxies", "1": "with one proxy"},
		Doc:    "light proxies, each with its own connection"},
	{Name: workKey, Type: param.TypeWord, Default: OneChange, Words: Works,
		Phrase: map[string]string{OneChange: "while one service after the other changes",
			Rollout: "while all proxies connect at once, again and again",
			Churn:   "while one tenth of the proxies after the other leaves and comes back",
			Leave:   "after nine tenths of the proxies have left", Idle: "while nothing changes"},
		Doc: "change: endpoints of one service after the other; rollout: all proxies reconnect at once, repeatedly; " +
			"churn: a random tenth does; leave: nine tenths leave as the window begins; idle"},
	{Name: protocolKey, Type: param.TypeWord, Default: protocolDelta, Words: []string{protocolDelta, protocolWorld},
		Phrase: map[string]string{protocolWorld: "by state of the world"},
		Doc:    "variant of xDS: deltas, or the state of the world"},
	{Name: pauseKey, Type: param.TypeDuration, Default: "10ms", Max: 60,
		Doc: "pause after each change, rollout or reconnection, times a random 0.5 to 1.5"},
	{Name: slowKey, Type: param.TypePart, Default: "0%",
		Doc: "proxies that take a second to read a response"},
	{Name: refusingKey, Type: param.TypePart, Default: "0%",
		Doc: "proxies that refuse each response but the first of its type"},
	{Name: floodingKey, Type: param.TypePart, Default: "0%",
		Doc: "proxies that subscribe to endpoints that do not exist, as fast as they can"},
}

// slowBy is how long slow proxies take to read a response.
const slowBy = time.Second

// LoadOptions configures the load.
type LoadOptions struct {
	Proxies                  int
	Work                     string
	Delta                    bool
	Pause                    time.Duration
	Slow, Refusing, Flooding float64 // shares of the proxies
	Seed                     uint64
}

// OptionsOf converts settings to options.
func OptionsOf(v param.Values) (LoadOptions, error) {
	o := LoadOptions{Proxies: v.Int(proxiesKey), Work: v[workKey], Delta: v[protocolKey] == protocolDelta,
		Pause: v.Duration(pauseKey), Slow: v.Part(slowKey), Refusing: v.Part(refusingKey), Flooding: v.Part(floodingKey)}
	return o, v.Check(Settings)
}

// manner returns the manner of a proxy. Misbehaving proxies are spread evenly over the fleet.
func (o LoadOptions) manner(i int) Manner {
	at := 0.0
	_, place := math.Modf(float64(i) * math.Phi) // any run of consecutive proxies has about the same mix of manners
	for _, m := range []struct {
		part   float64
		manner Manner
	}{{o.Slow, Manner{Slow: slowBy}}, {o.Refusing, Manner{Refuses: true}}, {o.Flooding, Manner{Floods: true}}} {
		if place >= at && place < at+m.part {
			return m.manner
		}
		at += m.part
	}
	return Manner{}
}
