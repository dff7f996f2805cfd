package load

import (
	"fmt"
	"maps"
	"slices"

	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/internal/lib/stats"
)

// SetHistogram puts h into the result under name.
func (r *Result) SetHistogram(name string, h *hdrhistogram.Histogram) error {
	b, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		return fmt.Errorf("encoding the %s histogram: %w", name, err)
	}
	if r.Histograms == nil {
		r.Histograms = map[string]string{}
	}
	r.Histograms[name] = string(b)
	return nil
}

// SetHistograms puts the histograms that have values into the result, by name.
func (r *Result) SetHistograms(all map[string]*hdrhistogram.Histogram) error {
	for name, h := range all {
		if h.TotalCount() == 0 {
			continue
		}
		if err := r.SetHistogram(name, h); err != nil {
			return err
		}
	}
	return nil
}

// SetSlices sets the result's slices of the window. parts holds the latencies of the requests in each slice, in ns.
func (r *Result) SetSlices(parts []*hdrhistogram.Histogram) {
	r.Slices = nil
	for _, h := range parts {
		s := Slice{Done: h.TotalCount()}
		if s.Done > 0 {
			s.P50 = float64(h.ValueAtQuantile(50)) / 1e9
		}
		r.Slices = append(r.Slices, s)
	}
}

// Missing returns how many values a histogram lacks because requests were not answered. For Latency that is one for
// each request that failed, stayed unanswered or was never sent, and these count as the slowest; for other histograms
// it is 0.
func (r *Result) Missing(histogram string) int64 {
	if _, has := r.Histograms[histogram]; !has || histogram != Latency {
		return 0
	}
	return max(r.Intended-r.Done, 0)
}

// Missing adds up Result.Missing over all loads.
func Missing(loads map[string]Result, histogram string) (n int64) {
	for _, r := range loads {
		n += r.Missing(histogram)
	}
	return n
}

// SetUnfinished counts the requests that were sent and neither answered nor failed.
func (r *Result) SetUnfinished() {
	r.Unfinished = r.Sent - r.Done - r.Failures()
}

// Failures returns the number of requests that failed, of all kinds.
func (r *Result) Failures() (n int64) {
	for _, of := range r.Errors {
		n += of
	}
	return n
}

// Check returns an error if the result has more slices than a window, or if a count, rate or time is negative, which no
// measurement can be.
func (r *Result) Check() error {
	if len(r.Slices) > Slices {
		return fmt.Errorf("it has %d slices, and a window has %d", len(r.Slices), Slices)
	}
	counts := map[string]int64{
		"intended": r.Intended, "sent": r.Sent, "done": r.Done, "late": r.Late,
		"connections": int64(r.Connections), "max_connections": int64(r.MaxConnections), "opened": r.Opened,
		"streams": int64(r.Streams),
	}
	if r.Finished != nil {
		counts["finished"] = *r.Finished
	}
	for kind, n := range r.Errors {
		counts["errors."+kind] = n
	}
	for i, s := range r.Slices {
		counts[fmt.Sprintf("slices.%d.done", i)] = s.Done
	}
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		if n := counts[name]; n < 0 {
			return fmt.Errorf("%s is %d", name, n)
		}
	}
	times := map[string]float64{"cpu_seconds": r.CPUSeconds, "cpus": r.CPUs, "mean_connections": r.MeanConnections,
		"rate": r.Rate, "seconds": r.Seconds, "target_rate": r.TargetRate}
	for _, name := range slices.Sorted(maps.Keys(times)) {
		if v := times[name]; !(v >= 0) {
			return fmt.Errorf("%s is %g", name, v)
		}
	}
	return nil
}

// Histogram returns the histogram called name, in nanoseconds, or nil without error if the result has none.
func (r *Result) Histogram(name string) (*hdrhistogram.Histogram, error) {
	text, ok := r.Histograms[name]
	if !ok {
		return nil, nil
	}
	h, err := stats.DecodeHistogram(text)
	if err != nil {
		return nil, fmt.Errorf("reading the %s histogram: %w", name, err)
	}
	return h, nil
}
