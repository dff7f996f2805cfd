package load

import (
	"fmt"

	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/internal/stats"
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

// SetHistograms puts those that have values into the result, by their names.
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

// SetSlices puts the parts of the window into the result, by the latencies of the requests of each, in ns.
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

// SetUnfinished counts what was sent and neither answered nor failed.
func (r *Result) SetUnfinished() {
	r.Unfinished = r.Sent - r.Done
	for _, n := range r.Errors {
		r.Unfinished -= n
	}
}

// Histogram is the one called name, in nanoseconds; nil without error when the result has none.
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
