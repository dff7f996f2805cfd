package stats

import (
	"encoding/json"
	"testing"

	"github.com/HdrHistogram/hdrhistogram-go"
)

func histogram(t testing.TB, n int) *hdrhistogram.Histogram {
	t.Helper()
	h := hdrhistogram.New(1, 60_000_000_000, 3)
	for i := 1; i <= n; i++ {
		if err := h.RecordValue(int64(i) * 1000); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

func encode(t testing.TB, h *hdrhistogram.Histogram) string {
	t.Helper()
	b, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestQuantileIsWithheldWithoutSamplesBeyond(t *testing.T) {
	for _, c := range []struct {
		n    int
		q    float64
		want float64 // 0: withheld
	}{
		{0, 0.5, 0}, {19, 0.5, 0}, {20, 0.5, 10e3}, {99, 0.9, 0}, {100, 0.9, 90e3}, {999, 0.99, 0}, {1000, 0.99, 990e3},
		{99_999, 0.999, 0}, {100_000, 0.999, 99_900e3}, {100_000, 0.9999, 0}, {100, 0, 0}, {100, 1, 0}, {100, -1, 0},
	} {
		v, ok := Quantile(histogram(t, c.n), c.q)
		if ok != (c.want > 0) {
			t.Errorf("n=%d q=%g: given %t", c.n, c.q, ok)
		}
		near(t, "quantile", v, c.want, 0.001*c.want)
	}
}

func TestMergeHistograms(t *testing.T) {
	a, b := histogram(t, 100), histogram(t, 300)
	sum, err := MergeHistograms(a, b)
	if err != nil {
		t.Fatal(err)
	}
	if sum.TotalCount() != 400 || a.TotalCount() != 100 || b.TotalCount() != 300 {
		t.Errorf("sum %d, parts %d and %d", sum.TotalCount(), a.TotalCount(), b.TotalCount())
	}
	narrow := hdrhistogram.New(1, 1000, 3)
	if err := narrow.RecordValue(7); err != nil {
		t.Fatal(err)
	}
	if sum, err = MergeHistograms(narrow, a); err != nil || sum.TotalCount() != 101 {
		t.Errorf("narrow first: %v, %v", sum, err)
	}
	if _, err := MergeHistograms(); err == nil {
		t.Error("merged nothing")
	}
}

func FuzzDecodeHistogram(f *testing.F) {
	f.Add(encode(f, histogram(f, 1000)))
	f.Add(encode(f, histogram(f, 0)))
	f.Add("")
	f.Add("HISTFAAA")
	f.Add("HISTFAAAAAA=")
	f.Add("not base64!")
	f.Fuzz(func(t *testing.T, encoded string) {
		h, err := DecodeHistogram(encoded)
		if err != nil {
			return
		}
		for _, q := range []float64{0.5, 0.9, 0.99, 0.999} {
			if v, ok := Quantile(h, q); ok {
				if _, err := json.Marshal(v); err != nil {
					t.Errorf("q=%g: %v", q, err)
				}
			}
		}
		sum, err := MergeHistograms(h, histogram(t, 10))
		if err == nil && sum.TotalCount() != h.TotalCount()+10 {
			t.Errorf("merged %d and 10 into %d", h.TotalCount(), sum.TotalCount())
		}
	})
}
