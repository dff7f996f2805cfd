package load

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
)

func TestTells(t *testing.T) {
	good := Running{Undisturbed: 500, Disturbed: 500,
		Beyond: map[string]map[string]float64{LatencyRunning: {"p50": 250, "p99": 12}}}
	with := func(change func(*Running)) *Running { r := good; change(&r); return &r }
	for name, c := range map[string]struct {
		r        *Running
		quantile string
		q        float64
		why      string // empty: the quantile is reported
	}{
		"p50":                 {&good, "p50", 0.5, ""},
		"p99":                 {&good, "p99", 0.99, ""},
		"not there":           {&good, "p999", 0.999, "0 undisturbed requests lie beyond it, and 10 are needed"},
		"nothing told apart":  {nil, "p50", 0.5, "does not distinguish"},
		"withheld":            {with(func(r *Running) { r.Withheld = "so it is" }), "p50", 0.5, "so it is"},
		"95 % disturbed, p50": {with(func(r *Running) { r.Disturbed = 9500 }), "p50", 0.5, ""},
		"95 % disturbed, p99": {with(func(r *Running) { r.Disturbed = 9500 }), "p99", 0.99,
			"95 % of the requests were disturbed"},
		"98 % disturbed": {with(func(r *Running) { r.Disturbed = 24500 }), "p50", 0.5,
			"98 % of the requests were disturbed"},
		"one in a hundred lost": {with(func(r *Running) { r.LostShare = 0.01 }), "p50", 0.5, ""},
		"and its tail": {with(func(r *Running) { r.LostShare = 0.01 }), "p99", 0.99,
			"about 1 % of the requests wait in queues"},
		"many lost": {with(func(r *Running) { r.LostShare = 0.51 }), "p50", 0.5,
			"about 51 % of the requests wait in queues"},
	} {
		ok, why := c.r.Tells(LatencyRunning, c.quantile, c.q, 10)
		if ok != (c.why == "") || !strings.Contains(why, c.why) {
			t.Errorf("%s: %t, %q", name, ok, why)
		}
	}
}

// TestRank: lost requests count as slower than all others.
func TestRank(t *testing.T) {
	for _, c := range []struct{ lost, q, want float64 }{{0, 0.9, 0.9}, {0.1, 0.9, 1}, {0.5, 0.25, 0.5}, {1, 0.5, 1}} {
		if got := (&Running{LostShare: c.lost}).Rank(c.q); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%g lost: rank of %g is %g, want %g", c.lost, c.q, got, c.want)
		}
	}
}

func TestTellsOf(t *testing.T) {
	some := func(bursts, lost, beyond float64) *Running {
		one := func(x float64) map[string]map[string]float64 {
			return map[string]map[string]float64{LatencyRunning: {"p99": x}}
		}
		return &Running{Undisturbed: 900, Disturbed: 100, LostShare: lost, Beyond: one(beyond), Bursts: one(bursts)}
	}
	good, rare, lossy, silent := some(8, 0, 12), some(1, 0, 12), some(8, 0.008, 12), some(8, 0, 3)
	old := some(1, 0, 3)
	old.Bursts = nil
	for name, c := range map[string]struct {
		level, arm []*Running
		why        string // empty: the quantile is reported
	}{
		"good":                  {[]*Running{good, good}, []*Running{good}, ""},
		"few bursts in all":     {[]*Running{rare, rare}, []*Running{rare}, "come in 1.0 bursts"},
		"few bursts in one arm": {[]*Running{rare, good, good}, []*Running{rare}, ""},
		"much is lost":          {[]*Running{lossy, lossy, good}, []*Running{good}, "about 0.53 % of the requests"},
		"half are silent":       {[]*Running{good, silent}, []*Running{good, silent}, "1 of 2 trials do not support it"},
		"others are silent":     {[]*Running{good, silent}, []*Running{good}, ""},
		"before bursts were":    {[]*Running{old}, []*Running{old}, ""},
	} {
		ok, why := TellsOf(c.level, c.arm, LatencyRunning, "p99", 0.99, 10, 0.25)
		if ok != (c.why == "") || !strings.Contains(why, c.why) {
			t.Errorf("%s: %t, %q", name, ok, why)
		}
	}
}

// TestMergeRunning: the figures of nodes are added up, and a node can send any numbers.
func TestMergeRunning(t *testing.T) {
	a := &Running{Method: "requests", Undisturbed: 60, Disturbed: 40, LostShare: 0.02, LargestWeight: 2, Scale: 1000,
		Beyond: map[string]map[string]float64{LatencyRunning: {"p50": 30}}}
	b := &Running{Method: "requests", Undisturbed: 300, LargestWeight: 1, Scale: 1000,
		Beyond: map[string]map[string]float64{LatencyRunning: {"p50": 150}}}
	sum := MergeRunning([]*Running{a, b})
	if share, ok := sum.Share(); !ok || share != 0.1 || sum.LostShare != 0.005 || sum.LargestWeight != 2 ||
		sum.Beyond[LatencyRunning]["p50"] != 180 || sum.Method != "requests" || sum.Scale != 1000 {
		t.Errorf("%+v", sum)
	}
	if a.Beyond[LatencyRunning]["p50"] != 30 {
		t.Error("a part was changed")
	}
	if MergeRunning(nil) != nil || MergeRunning([]*Running{a, nil}) != nil {
		t.Error("what some do not say is said of all")
	}
	if (&Running{}).Withheld != "" || MergeRunning([]*Running{a, {Withheld: "ill"}}).Withheld != "ill" {
		t.Error("what one withholds is not withheld")
	}
	huge := &Running{WatchedSeconds: math.MaxFloat64, Effective: math.MaxFloat64, LostShare: math.MaxFloat64, Disturbed: 2,
		Beyond: map[string]map[string]float64{"x": {"p50": math.MaxFloat64}}}
	if _, err := json.Marshal(MergeRunning([]*Running{huge, huge})); err != nil {
		t.Error(err)
	}
}
