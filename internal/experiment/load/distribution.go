package load

import (
	"fmt"
	"math"

	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/internal/lib/stats"
)

// Distribution summarizes a histogram of a Result, in seconds. A quantile is nil if there are too few samples for it,
// as decided by stats.MinBeyond, or by Running.Tells for histograms of undisturbed requests. In the latency histogram,
// requests without an answer count as the slowest, and a quantile that falls among them is nil; Count, Mean and Max
// cover only answered requests.
type Distribution struct {
	// Count is the number of samples. A weighted histogram (of undisturbed requests) stands for all answered requests of
	// the window, and its Count is their number.
	Count int64    `json:"count"`
	Mean  float64  `json:"mean_seconds"`
	P50   *float64 `json:"p50_seconds,omitempty"`
	P90   *float64 `json:"p90_seconds,omitempty"`
	P99   *float64 `json:"p99_seconds,omitempty"`
	P999  *float64 `json:"p999_seconds,omitempty"`
	Max   float64  `json:"max_seconds"`
}

// Distributions returns the histograms of the result by name, without empty ones. It returns an error if a histogram
// cannot be decoded.
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

// Quantiles are the named quantiles of a histogram of requests, from the lowest.
var Quantiles = []struct {
	Name string
	Q    float64
}{{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"p999", 0.999}}

// QuantileName returns the name of one of the Quantiles, or "" for any other.
func QuantileName(q float64) string {
	for _, one := range Quantiles {
		if one.Q == q {
			return one.Name
		}
	}
	return ""
}

// weighted are the histograms that count weights (Running.Scale).
var weighted = map[string]bool{LatencyRunning: true, ServiceRunning: true, ConnectRunning: true, OwnLagRunning: true}

func (r *Result) distribution(name string, h *hdrhistogram.Histogram) Distribution {
	const second = 1e9 // histograms are in nanoseconds
	d := Distribution{Count: h.TotalCount(), Mean: h.Mean() / second, Max: float64(h.Max()) / second}
	if weighted[name] && r.Running != nil && r.Running.Scale > 0 {
		d.Count = int64(math.Round(float64(d.Count) / float64(r.Running.Scale)))
	}
	for i, to := range []**float64{&d.P50, &d.P90, &d.P99, &d.P999} {
		q := Quantiles[i]
		value, ok := stats.QuantileWithout(h, r.Missing(name), q.Q)
		if weighted[name] {
			if ok, _ = r.Running.Tells(name, q.Name, q.Q, stats.MinBeyond(q.Q)); ok {
				value = float64(h.ValueAtQuantile(100 * r.Running.Rank(q.Q)))
			}
		}
		if ok {
			value /= second
			*to = &value
		}
	}
	return d
}
