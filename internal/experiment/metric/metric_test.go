package metric

import (
	"reflect"
	"testing"

	"tare/internal/lib/quantity"
)

func TestSet(t *testing.T) {
	s := NewSet([]Definition{{Name: "a_seconds", Rank: RankMemory}, {Name: "a_seconds", Rank: RankBPF, Better: Higher}})
	if d := s.Of("a_seconds"); d.Rank != RankBPF || d.Better != Higher {
		t.Errorf("the later definition is not the one: %+v", d)
	}
	// Only the unit of an undefined metric is known. Its name does not make it better, a sum or a cost.
	d := s.Of("throughput_per_second")
	if d.Unit != quantity.PerSecond || d.Better != Neither || d.Cost || d.Rank != RankOther {
		t.Errorf("%+v", d)
	}
	if s.Compare("a_seconds", "throughput_per_second") >= 0 || s.Compare("x", "y") != 0 {
		t.Error("not in the order of ranks")
	}
}

// TestCounterpart: a metric of all requests and the one of undisturbed requests are counterparts of each other.
func TestCounterpart(t *testing.T) {
	s := NewSet([]Definition{{Name: "a_seconds", Instead: "b_seconds"}, {Name: "b_seconds"}, {Name: "c_seconds"}})
	for name, want := range map[string]string{
		"a_seconds": "b_seconds", "b_seconds": "a_seconds", "c_seconds": "", "d": "", "": "",
	} {
		if got := s.Counterpart(name); got != want {
			t.Errorf("of %q it is %q, want %q", name, got, want)
		}
	}
}

// TestQuantiles: the definitions determine which metric is which quantile, whatever the metrics are called.
func TestQuantiles(t *testing.T) {
	s := NewSet([]Definition{
		{Name: "slow_seconds", Histogram: "latency", Quantile: 0.99},
		{Name: "middle_seconds", Histogram: "latency", Quantile: 0.5},
		{Name: "late_seconds", Histogram: "lag", Quantile: 0.5}, {Name: "latency_p90_seconds"},
	})
	all := s.Quantiles("latency")
	if len(all) != 2 || all[0].Name != "middle_seconds" || all[1].Name != "slow_seconds" {
		t.Errorf("%+v", all)
	}
	for q, want := range map[float64]string{0.5: "middle_seconds", 0.99: "slow_seconds", 0.9: "", 0: ""} {
		if got := s.QuantileOf("latency", q); got != want {
			t.Errorf("%g is %q, want %q", q, got, want)
		}
	}
	if f := s.FamilyOf("late_seconds"); f != "late_seconds" {
		t.Errorf("a metric without a family is in %q", f)
	}
}

// TestComplete: definitions of an earlier version are kept as they are; properties that did not exist then are taken
// from today's definitions.
func TestComplete(t *testing.T) {
	today := []Definition{
		{
			Name: "a_seconds", Rank: RankBPF, Family: "a", Histogram: "latency", Quantile: 0.5, Undisturbed: true,
			Clause: "takes {}", Answers: true, Rule: 1,
		},
		{Name: "b_seconds", Family: "b", What: "time", Per: "request", Limit: 3, Tally: "made", After: "a_seconds"},
	}
	written := []Definition{{Name: "a_seconds", Rank: RankOther}, {Name: "b_seconds", Family: "own"}, {Name: "c"}}
	got := Complete(written, today)
	want := []Definition{
		{Name: "a_seconds", Rank: RankOther, Family: "a", Histogram: "latency", Quantile: 0.5, Undisturbed: true,
			Answers: true},
		{Name: "b_seconds", Family: "own", Limit: 3, Tally: "made", After: "a_seconds"}, {Name: "c"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	got = Complete(nil, today)
	for i := range today {
		today[i].Rule, today[i].Assumed = 0, true
	}
	if !reflect.DeepEqual(got, today) {
		t.Errorf("without definitions those of today stand, by the first rule: %+v", got)
	}
}
