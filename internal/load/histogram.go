package load

import (
	"fmt"

	"github.com/HdrHistogram/hdrhistogram-go"
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

// Histogram is the one called name, in nanoseconds; nil without error when the result has none.
func (r *Result) Histogram(name string) (*hdrhistogram.Histogram, error) {
	text, ok := r.Histograms[name]
	if !ok {
		return nil, nil
	}
	h, err := hdrhistogram.Decode([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("decoding the %s histogram: %w", name, err)
	}
	return h, nil
}
