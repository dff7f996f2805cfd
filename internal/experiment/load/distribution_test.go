package load

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/test/vm/guest"
)

// ramp sets a histogram of r with the values 1, 2, 3, ... microseconds, up to samples. The argument each says how often
// every value is recorded.
func ramp(t *testing.T, r *Result, name string, samples int, each int64) {
	t.Helper()
	h := hdrhistogram.New(1, 100e9, 3)
	for i := range samples {
		if err := h.RecordValues(int64(i+1)*1000, each); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.SetHistogram(name, h); err != nil {
		t.Fatal(err)
	}
}

// TestDistributions: every histogram gives its mean and largest value, and the quantiles for which it has enough
// samples.
func TestDistributions(t *testing.T) {
	guest.KernelFree(t)
	r := &Result{Running: &Running{Scale: 1000, Undisturbed: 2000,
		Beyond: map[string]map[string]float64{LatencyRunning: {"p50": 900, "p90": 100, "p99": 9}}}}
	ramp(t, r, Latency, 100_000, 1)
	ramp(t, r, Service, 1000, 1)
	ramp(t, r, Connect, 15, 1)
	ramp(t, r, LatencyRunning, 2000, 1000)
	ramp(t, r, Lag, 0, 1)
	all, err := r.Distributions()
	if err != nil {
		t.Fatal(err)
	}
	const no = -1
	for name, want := range map[string]struct {
		count                     int64
		mean, p50, p90, p99, p999 float64
		largest                   float64
	}{
		Latency:        {100_000, 50e-3, 50e-3, 90e-3, 99e-3, 99.9e-3, 100e-3},
		Service:        {1000, 0.5e-3, 0.5e-3, 0.9e-3, 0.99e-3, no, 1e-3},
		Connect:        {15, 8e-6, no, no, no, no, 15e-6},
		LatencyRunning: {2000, 1e-3, 1e-3, 1.8e-3, no, no, 2e-3}, // 9 samples of equal weight are too few for a p99
	} {
		d, ok := all[name]
		if !ok || d.Count != want.count {
			t.Errorf("%s: %d samples, want %d", name, d.Count, want.count)
		}
		for what, c := range map[string]struct {
			got  *float64
			want float64
		}{"mean": {&d.Mean, want.mean}, "p50": {d.P50, want.p50}, "p90": {d.P90, want.p90}, "p99": {d.P99, want.p99},
			"p99.9": {d.P999, want.p999}, "max": {&d.Max, want.largest}} {
			switch {
			case c.got == nil && c.want != no:
				t.Errorf("%s: the %s is absent, want %v", name, what, c.want)
			case c.got != nil && math.Abs(*c.got-c.want) > 2e-3*c.want: // three digits, and half a sample
				t.Errorf("%s: the %s is %v, want %v", name, what, *c.got, c.want)
			}
		}
	}
	if _, ok := all[Lag]; ok || len(all) != 4 {
		t.Errorf("there are %d distributions; that without samples is one of them: %t", len(all), ok)
	}
	text, err := json.Marshal(all[Connect])
	if err != nil || strings.Contains(string(text), "p50") || !strings.Contains(string(text), `"count":15`) {
		t.Errorf("as JSON: %s, %v", text, err)
	}
	r.Running = nil
	if all, err = r.Distributions(); err != nil || all[LatencyRunning].P50 != nil {
		t.Errorf("without a word on the undisturbed requests: %v, %+v", err, all[LatencyRunning])
	}
	r.Histograms["broken"] = "AAAA"
	if _, err := r.Distributions(); err == nil || !strings.Contains(err.Error(), "reading the broken histogram") {
		t.Errorf("a broken histogram: %v", err)
	}
}
