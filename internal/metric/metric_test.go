package metric

import (
	"strings"
	"testing"

	"tare/internal/quantity"
)

func TestCheck(t *testing.T) {
	good := Definition{
		Name: "flush_seconds", Unit: quantity.Seconds, Better: Lower, How: "It is timed.", Rank: RankWork, Pool: Merged, Cost: true, Needs: []Need{},
	}
	if err := good.Check(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		says  string
		spoil func(*Definition)
	}{
		{"has no name", func(d *Definition) { d.Name = "" }},
		{`is in "bytes", and its name ends in "seconds"`, func(d *Definition) { d.Unit = quantity.Bytes }},
		{`better when it is "more"`, func(d *Definition) { d.Better = "more" }},
		{`has the pool ""`, func(d *Definition) { d.Pool = "" }},
		{"has the rank 0", func(d *Definition) { d.Rank = 0 }},
		{"does not say what it needs", func(d *Definition) { d.Needs = nil }},
		{"does not say how", func(d *Definition) { d.How = "" }},
		{"is no cost", func(d *Definition) { d.Tail = true }},
		{"is no cost", func(d *Definition) { d.Name, d.Unit = "flush_share", quantity.Part }},
		{"is no cost", func(d *Definition) { d.Rank = RankLatency }},
	} {
		d := good
		c.spoil(&d)
		if err := d.Check(); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("got %v, want %q", err, c.says)
		}
	}
}

func TestSet(t *testing.T) {
	s := NewSet([]Definition{{Name: "a_seconds", Rank: RankMemory}, {Name: "a_seconds", Rank: RankBPF, Better: Higher}})
	if d := s.Of("a_seconds"); d.Rank != RankBPF || d.Better != Higher {
		t.Errorf("the later definition is not the one: %+v", d)
	}
	// Of what nobody defined only the unit is known. The name does not make it better, a sum or a cost.
	d := s.Of("throughput_per_second")
	if d.Unit != quantity.PerSecond || d.Better != Neither || d.Cost || d.Rank != RankOther {
		t.Errorf("%+v", d)
	}
	if s.Compare("a_seconds", "throughput_per_second") >= 0 || s.Compare("x", "y") != 0 {
		t.Error("not in the order of ranks")
	}
}
