package cli

import (
	"strings"
	"testing"

	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/internal/fault"
	"tare/internal/load"
)

func TestCheckMode(t *testing.T) {
	for _, tt := range []struct {
		mode string
		rate float64
		ok   bool
	}{
		{"", 0, true}, {"", 5, true}, {"open", 5, true}, {"closed", 0, true},
		{"open", 0, false}, {"closed", 5, false}, {"both", 0, false},
	} {
		err := checkMode(tt.mode, tt.rate)
		if (err == nil) != tt.ok || err != nil && (fault.CodeOf(err) != fault.Usage || fault.MendOf(err) == "") {
			t.Errorf("mode %q with rate %g: %v", tt.mode, tt.rate, err)
		}
	}
}

func TestPrintLoad(t *testing.T) {
	r := &load.Result{
		Generator: "http", Mode: load.Open, Arrivals: "poisson", Seconds: 2, TargetRate: 1000, Rate: 990, Intended: 2000, Sent: 1990, Done: 1980,
		Late: 3, Unfinished: 4, Connections: 8, MaxConnections: 8, Opened: 5, Errors: map[string]int64{"timeout": 6}, CPUSeconds: 0.5, CPUs: 1,
	}
	h := hdrhistogram.New(1, 100e9, 3)
	for i := range int64(1980) {
		if err := h.RecordValue(i * 1000); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.SetHistogram(load.Latency, h); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := printLoad(&b, r); err != nil {
		t.Fatal(err)
	}
	const want = `open loop, poisson arrivals, 1000/s for 2s, 8 connections, 5 opened in the window
1980 of 2000 requests answered, 990/s, 3 of them after the end
10 were never sent: no connection was free
4 were still without an answer when the drain ended
6 failed: timeout
                  p50        p90        p99      p99.9        max
   latency     989 us    1.78 ms    1.96 ms          -    1.98 ms
generator: 0.50 CPU seconds, 25 % of 1 CPUs, 3960 requests per CPU second
`
	if b.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", b.String(), want)
	}
}
