package stats

import (
	"encoding/json"
	"math/rand/v2"
	"runtime"
	"strings"
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

// TestQuantileWithout: the largest of 100,000 samples, 1000 apart, are missing.
func TestQuantileWithout(t *testing.T) {
	for _, c := range []struct {
		missing int
		q       float64
		want    float64 // 0: withheld
	}{
		{90, 0.5, 50e6}, {90, 0.999, 99.9e6}, {100, 0.999, 99.9e6}, {101, 0.999, 0}, {1000, 0.99, 99e6}, {1001, 0.99, 0},
	} {
		v, ok := QuantileWithout(histogram(t, 100_000-c.missing), int64(c.missing), c.q)
		if ok != (c.want > 0) {
			t.Errorf("%d missing, q=%g: given %t", c.missing, c.q, ok)
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

// TestDecodeHistogramBoundsGeometry: a hundred bytes can ask for any number of counters. A histogram with more than
// Tare ever needs is refused before memory is allocated for it.
func TestDecodeHistogramBoundsGeometry(t *testing.T) {
	for name, c := range map[string]struct {
		lowest, highest int64
		digits          int
		ok              bool
	}{
		"Tare's own":       {1, 600_000_000_000, 3, true},
		"the largest":      {1, maxTrackable, maxDigits, true},
		"more digits":      {1, 1_000_000, 4, false},
		"as many as go":    {1, 1 << 62, 5, false},
		"a longer time":    {1, maxTrackable + 1, 3, false},
		"a coarse, longer": {1 << 40, 1 << 62, 1, false},
	} {
		h := hdrhistogram.New(c.lowest, c.highest, c.digits)
		if err := h.RecordValue(7); err != nil {
			t.Fatal(err)
		}
		text := encode(t, h)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := DecodeHistogram(text)
		runtime.ReadMemStats(&after)
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > 1<<20 {
			t.Errorf("%s: decoding %d characters took %d bytes", name, len(text), took)
		}
	}
	if _, err := DecodeHistogram(strings.Repeat("A", maxEncoded+1)); err == nil ||
		!strings.Contains(err.Error(), "more than 512 KiB") {
		t.Errorf("a long text: %v", err)
	}
}

// TestDecodeHistogramOfFullCounters: the text of a histogram in which every counter is as full as it can be is still
// within the limit.
func TestDecodeHistogramOfFullCounters(t *testing.T) {
	full := hdrhistogram.New(1, maxTrackable, maxDigits).Export()
	random := rand.New(rand.NewPCG(1, 2)) // random counts, so that nothing can be compressed
	for i := range full.Counts {
		full.Counts[i] = random.Int64N(maxCount >> 15)
	}
	h := hdrhistogram.Import(full)
	text := encode(t, h)
	got, err := DecodeHistogram(text)
	if err != nil || got.TotalCount() != h.TotalCount() {
		t.Errorf("%d characters: %v", len(text), err)
	}
}

// TestMergeEncoded: however many histograms there are, no more than two are held decoded at a time.
func TestMergeEncoded(t *testing.T) {
	if h, err := MergeEncoded(); h != nil || err != nil {
		t.Errorf("of none: %v, %v", h, err)
	}
	text := encode(t, histogram(t, 100))
	if h, err := MergeEncoded(text, text, text); err != nil || h.TotalCount() != 300 {
		t.Errorf("%v, %v", h, err)
	}
	if _, err := MergeEncoded(text, "broken"); err == nil {
		t.Error("no error of a broken one")
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
