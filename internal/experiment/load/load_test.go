package load

import (
	"testing"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// TestAnswers: if the load does not count the answers in the window, their number is Done, provided that nearly all of
// these came in time.
func TestAnswers(t *testing.T) {
	// Loads that start processes have no connections.
	execs := Result{Mode: Open, Seconds: 2, Intended: 40, Sent: 40, Done: 40, Late: 1}
	h := hdrhistogram.New(1, Longest, 3)
	for range 40 {
		Record(h, 30e6)
	}
	if err := execs.SetHistogram(Service, h); err != nil {
		t.Fatal(err)
	}
	grew, single := execs, execs
	grew.Late, single.Late, single.Connections = 4, 2, 1
	for _, c := range []struct {
		r     Result
		want  int64
		known bool
	}{
		{Result{Done: 20_000, Late: 5000, Finished: new(int64(16_000))}, 16_000, true},
		{Result{Done: 20_000, Late: 5000, Finished: new(int64(0))}, 0, true},
		{Result{Done: 20_000, Late: 200}, 20_000, true},
		{Result{Done: 20_000, Late: 201}, 20_000, false},
		{Result{Done: 20_000, Late: 201, Mode: Closed}, 20_000, true}, // as many were in flight at the beginning
		{Result{Intended: 2000, Sent: 1500, Done: 1500}, 1500, false}, // a load that sends nothing after the window
		{Result{}, 0, true},
		{execs, 40, true}, // one of 30 ms was in progress at the end
		{grew, 40, false},
		{single, 40, false}, // its connection carries one
	} {
		if n, known := c.r.Answers(); n != c.want || known != c.known {
			t.Errorf("%+v: %d, %v, want %d, %v", c.r, n, known, c.want, c.known)
		}
	}
	if r := Merge([]Result{{Finished: new(int64(1))}, {}}); r.Finished != nil {
		t.Errorf("%d answers of two nodes, one of which does not count them", *r.Finished)
	}
}

func TestCheck(t *testing.T) {
	for want, r := range map[string]Result{
		"":                                      {Slices: make([]Slice, Slices)},
		"sent is -1":                            {Sent: -1},
		"slices.1.done is -2":                   {Slices: []Slice{{}, {Done: -2}}},
		"it has 21 slices, and a window has 20": {Slices: make([]Slice, Slices+1)},
	} {
		if err := r.Check(); (err == nil) != (want == "") || err != nil && err.Error() != want {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
