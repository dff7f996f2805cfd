package running

import (
	"math"
	"strings"
	"testing"

	"tare/internal/experiment/load"
	"tare/internal/experiment/role"
)

// TestFates: which requests a stall disturbs, determined by hand. Times are in ms.
func TestFates(t *testing.T) {
	const ms = int64(1e6)
	type request struct {
		due, done int64
		failed    bool
		want      fate
	}
	spans := [][2]int64{{100 * ms, 110 * ms}, {105 * ms, 120 * ms}, {500 * ms, 510 * ms}}
	watch := role.Stalls{From: 0, To: 1000 * ms, Spans: spans}
	for name, c := range map[string]struct {
		mode        string
		connections int
		requests    []request
	}{
		"open": {load.Open, 4, []request{
			{due: 10, done: 20, want: undisturbed},
			{due: 95, done: 99, want: undisturbed},   // ended before the stall came
			{due: 99, done: 130, want: disturbed},    // the stall overlaps it
			{due: 125, done: 140, want: disturbed},   // after the stall, in the queue that it left
			{due: 140, done: 145, want: undisturbed}, // found nothing in flight
			{due: 150, done: 200, want: undisturbed}, // long, and no stall
			{due: 160, done: 170, want: undisturbed},
			{due: 490, done: 495, want: undisturbed}, // its busy period is touched after it was answered
			{due: 492, done: 512, want: disturbed},
			{due: 505, done: 511, want: disturbed}, // due in the stall
			{due: 511, done: 513, want: disturbed},
			{due: 600, done: 700, failed: true, want: undisturbed}, // not counted, but in flight
			{due: 699, done: 720, want: undisturbed},
			{due: 990, done: 1005, want: unwatched}, // answered after the watch
			{due: 999, done: 999, want: undisturbed},
		}},
		"closed": {load.Closed, 2, []request{
			{due: 10, done: 20, want: undisturbed},
			{due: 12, done: 130, want: disturbed},
			{due: 20, done: 99, want: undisturbed},
			{due: 99, done: 125, want: disturbed},
			{due: 125, done: 135, want: disturbed}, // one that the stall touched was still in flight
			{due: 130, done: 140, want: undisturbed},
			{due: 135, done: 150, want: undisturbed},
		}},
	} {
		log := NewLog(100)
		for _, r := range c.requests {
			log.Add(r.due*ms, r.due*ms, r.done*ms, 0, -1, !r.failed)
		}
		r := &load.Result{Mode: c.mode, Connections: c.connections}
		k := classifier{run: &load.Running{}, end: 1000 * ms}
		k.gather([]*Log{log})
		k.watch(&watch)
		if len(k.stalls) != 4 || k.run.QuietSeconds != 0.97 || k.run.WatchedSeconds != 1 {
			t.Fatalf("%s: %d stalls and %g quiet seconds", name, len(k.stalls), k.run.QuietSeconds)
		}
		s := k.byBusyPeriod()
		if severalClosed(r) {
			s = k.byRequest()
		}
		for i, want := range c.requests {
			if got := s.fate(i, &k.requests[i]); got != want.want {
				t.Errorf("%s: the request due at %d ms is %d, want %d", name, want.due, got, want.want)
			}
		}
	}
}

// TestUntouched: the estimated probability that a history stays undisturbed, compared with the Kaplan-Meier estimate
// computed by hand.
func TestUntouched(t *testing.T) {
	s := &split{histories: []history{
		{from: 0, to: 10, stall: 100, requests: 1, watched: true},
		{from: 0, to: 50, stall: 20, requests: 1, watched: true}, // touched at 20, of 4 at risk
		{from: 0, to: 30, stall: 100, requests: 1, watched: true},
		{from: 0, to: 60, stall: 40, requests: 1, watched: true}, // touched at 40, of 2
		{from: 0, to: 70, stall: 100, requests: 1, watched: true},
		{from: 0, to: 70, stall: 1, requests: 1}, // began in a stall
	}}
	(&classifier{}).weigh(s)
	for age, want := range map[int64]float64{5: 1, 20: 1, 21: 0.75, 40: 0.75, 41: 0.375, 70: 0.375} {
		if got := s.untouched.at(age); math.Abs(got-want) > 1e-12 {
			t.Errorf("at age %d: %g, want %g", age, got, want)
		}
	}
}

// TestWithheld: if disturbed requests cannot be identified, the result says why, and has no distribution of undisturbed
// ones.
func TestWithheld(t *testing.T) {
	full := NewLog(1)
	full.Add(1, 1, 2, 0, -1, true)
	good := NewLog(1)
	good.Add(1e6, 1e6, 2e6, 0, -1, true)
	full.Add(1, 1, 2, 0, -1, true)
	for name, c := range map[string]struct {
		log    *Log
		stalls *role.Stalls
		want   string
	}{
		"the parent says nothing":   {good, nil, "stalls were not watched for"},
		"nothing is known":          {good, &role.Stalls{Unknown: "the witness is ill"}, "the witness is ill"},
		"too many":                  {full, &role.Stalls{To: 1e9}, "more than the"},
		"all of it was a stall":     {good, &role.Stalls{To: 1e9, Spans: [][2]int64{{0, 1e9}}}, "no request was undisturbed"},
		"nothing was asked":         {NewLog(1), &role.Stalls{To: 1e9}, "no request was answered"},
		"the watch was not of then": {good, &role.Stalls{From: 5e9, To: 6e9}, "no request was undisturbed"},
	} {
		r := &load.Result{Mode: load.Open}
		if err := Classify(r, []*Log{c.log}, c.stalls, 0, 1e9); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(r.Running.Withheld, c.want) || len(r.Histograms) != 0 {
			t.Errorf("%s: %q, %d histograms", name, r.Running.Withheld, len(r.Histograms))
		}
		if ok, why := r.Running.Tells(load.LatencyRunning, "p50", 0.5, 10); ok || why != r.Running.Withheld {
			t.Errorf("%s: the median is told: %t, %q", name, ok, why)
		}
	}
}

// TestQuietWindow: without a stall, the undisturbed requests are all requests, with equal weights.
func TestQuietWindow(t *testing.T) {
	log := NewLog(1000)
	for i := range int64(1000) {
		log.Add(i*1e6, i*1e6+1000, i*1e6+1000*(i+1), i, 7, true)
	}
	r := &load.Result{Mode: load.Open}
	if err := Classify(r, []*Log{log}, &role.Stalls{To: 2e9}, 0, 2e9); err != nil {
		t.Fatal(err)
	}
	run := r.Running
	if run.Undisturbed != 1000 || run.Disturbed+run.Unwatched != 0 || run.DoneQuiet != 1000 ||
		run.Effective != 1000 || run.LargestWeight != 1 || run.LostShare != 0 {
		t.Errorf("%+v", run)
	}
	for name, want := range map[string][2]int64{ // p50 and p99, in ns
		load.LatencyRunning: {500e3, 990e3}, load.ServiceRunning: {499e3, 989e3},
		load.ConnectRunning: {7, 7}, load.OwnLagRunning: {499, 989},
	} {
		h, err := r.Histogram(name)
		if err != nil || h == nil {
			t.Fatal(name, err)
		}
		if h.TotalCount() != 1000*run.Scale {
			t.Errorf("%s: %d counts", name, h.TotalCount())
		}
		for i, q := range []float64{50, 99} {
			if got := h.ValueAtQuantile(q); math.Abs(float64(got-want[i])) > 1+0.002*float64(want[i]) {
				t.Errorf("%s p%g: %d, want %d", name, q, got, want[i])
			}
		}
		if got := run.Beyond[name]["p99"]; math.Abs(got-10) > 1e-6 {
			t.Errorf("%s: %g requests beyond p99, want 10", name, got)
		}
	}
	if ok, why := run.Tells(load.LatencyRunning, "p99", 0.99, 10); !ok {
		t.Error(why)
	}
	if ok, _ := run.Tells(load.LatencyRunning, "p99", 0.99, 11); ok {
		t.Error("10 requests are told to be 11")
	}
}

// TestDoneQuiet: every answer in quiet time counts for its throughput, whenever the request began. Each of 1,000
// requests/s takes 100 ms, so 100 are in flight at either edge of the window.
func TestDoneQuiet(t *testing.T) {
	log := NewLog(2000)
	for at := int64(0.8e9); at < 2e9; at += 1e6 {
		log.Add(at, at, at+1e8, -1, -1, true)
	}
	for _, c := range []struct {
		spans [][2]int64
		want  int64
	}{{nil, 1000}, {[][2]int64{{0.9e9, 1.05e9}, {1.5e9, 1.7e9}}, 750}} {
		r := &load.Result{Mode: load.Closed, Connections: 100}
		if err := Classify(r, []*Log{log}, &role.Stalls{From: 1e9, To: 2e9, Spans: c.spans}, 1e9, 2e9); err != nil {
			t.Fatal(err)
		}
		if r.Running.DoneQuiet != c.want {
			t.Errorf("stalls %v: %d answers in the quiet time, want %d", c.spans, r.Running.DoneQuiet, c.want)
		}
	}
}

func BenchmarkAdd(b *testing.B) {
	log := NewLog(MostRequests)
	for i := 0; b.Loop(); i++ {
		if len(log.requests) == cap(log.requests) {
			log.requests = log.requests[:0]
		}
		log.Add(int64(i), int64(i)+1, int64(i)+2, 0, -1, true)
	}
}
