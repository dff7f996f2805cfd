package cli

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/internal/experiment/load"
	"tare/internal/lib/fault"
)

// TestLoadHTTPMode: an open loop has a rate and a closed one has none, as in a spec.
func TestLoadHTTPMode(t *testing.T) {
	for args, says := range map[string]string{
		"":                       `an open load needs a "rate"`,
		"--mode open":            `an open load needs a "rate"`,
		"--mode closed --rate 5": `"rate" has no meaning`,
		"--mode both":            `must be one of open, closed, not "both"`,
		"--rate 0":               "must be at least 0.1, not 0",
		"--connections 100001":   "must be at most 100000, not 100001",
	} {
		c := newRoot()
		c.SetArgs(append([]string{"load", "http", "--url", "http://127.0.0.1:1/"}, strings.Fields(args)...))
		err := c.ExecuteContext(t.Context())
		if fault.CodeOf(err) != fault.Usage || fault.MendOf(err) == "" || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", args, err, says)
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

// TestLoadJSON: quantiles stand in the JSON of a load as numbers, in seconds, beside the histograms; one that too few
// requests carry is left out, and not 0.
func TestLoadJSON(t *testing.T) {
	r := &load.Result{Generator: "http", Mode: load.Open}
	h := hdrhistogram.New(1, 100e9, 3)
	for i := range int64(2000) {
		if err := h.RecordValue((i + 1) * 1000); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.SetHistogram(load.Latency, h); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := encodeLoad(&b, r); err != nil {
		t.Fatal(err)
	}
	var got struct {
		load.Result
		Distributions map[string]map[string]float64 `json:"distributions"`
	}
	if err := json.Unmarshal([]byte(b.String()), &got); err != nil {
		t.Fatalf("%v: %s", err, b.String())
	}
	d := got.Distributions[load.Latency]
	for name, want := range map[string]float64{
		"p50_seconds": 1e-3, "p90_seconds": 1.8e-3, "p99_seconds": 1.98e-3, "max_seconds": 2e-3,
	} {
		if math.Abs(d[name]/want-1) > 0.01 {
			t.Errorf("%s is %v, want %v", name, d[name], want)
		}
	}
	if _, has := d["p999_seconds"]; has || d["count"] != 2000 {
		t.Errorf("of 2000 requests: %v", d)
	}
	if got.Histograms[load.Latency] == "" || got.Mode != load.Open {
		t.Errorf("got %s", b.String())
	}
}
