package load

import (
	"fmt"
	"math"

	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/internal/lib/stats"
)

// Distribution is a histogram of a Result in a few numbers, in seconds. A quantile is nil where the samples cannot
// carry it: by stats.MinBeyond, and in the histograms of undisturbed requests by Running.Tells.
type Distribution struct {
	// Count is the number of samples; of the weighted histograms of undisturbed requests, that many of average weight.
	Count int64    `json:"count"`
	Mean  float64  `json:"mean_seconds"`
	P50   *float64 `json:"p50_seconds,omitempty"`
	P90   *float64 `json:"p90_seconds,omitempty"`
	P99   *float64 `json:"p99_seconds,omitempty"`
	P999  *float64 `json:"p999_seconds,omitempty"`
	Max   float64  `json:"max_seconds"`
}

// Distributions are the histograms of the result by name, those without samples left out. The error is of a histogram
// that cannot be decoded.
func (r *Result) Distributions() (map[string]Distribution, error) {
	all := map[string]Distribution{}
	for name, text := range r.Histograms {
		h, err := stats.DecodeHistogram(text)
		if err != nil {
			return nil, fmt.Errorf("reading the %s histogram: %w", name, err)
		}
		if h.TotalCount() > 0 {
			all[name] = r.distribution(name, h)
		}
	}
	return all, nil
}

// weighted are the histograms whose counts are of weights (Running.Scale).
var weighted = map[string]bool{LatencyRunning: true, ServiceRunning: true, ConnectRunning: true, OwnLagRunning: true}

func (r *Result) distribution(name string, h *hdrhistogram.Histogram) Distribution {
	const second = 1e9 // histograms are in nanoseconds
	d := Distribution{Count: h.TotalCount(), Mean: h.Mean() / second, Max: float64(h.Max()) / second}
	if weighted[name] && r.Running != nil && r.Running.Scale > 0 {
		d.Count = int64(math.Round(float64(d.Count) / float64(r.Running.Scale)))
	}
	for _, q := range []struct {
		name string
		q    float64
		to   **float64
	}{{"p50", 0.5, &d.P50}, {"p90", 0.9, &d.P90}, {"p99", 0.99, &d.P99}, {"p999", 0.999, &d.P999}} {
		value, ok := stats.Quantile(h, q.q)
		if weighted[name] {
			tells, _ := r.Running.Tells(name, q.name, q.q, stats.MinBeyond(q.q))
			ok = ok && tells
		}
		if ok {
			value /= second
			*q.to = &value
		}
	}
	return d
}
