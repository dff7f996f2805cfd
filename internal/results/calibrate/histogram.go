package calibrate

import (
	"cmp"
	"math"
	"slices"

	"tare/internal/lib/lists"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// bar stands for count equal values, in seconds.
type bar struct {
	seconds float64
	count   int64
}

func bySize(a, b bar) int { return cmp.Compare(a.seconds, b.seconds) }

// histogram holds bars in ascending order.
type histogram []bar

// fromHDR converts a histogram of nanoseconds. The value of a bar is the middle of its bucket.
func fromHDR(h *hdrhistogram.Histogram) histogram {
	var out histogram
	for _, b := range h.Distribution() {
		if b.Count > 0 {
			out = append(out, bar{float64(b.From+b.To) / 2 / 1e9, b.Count})
		}
	}
	return out
}

func (h histogram) total() (n int64) {
	for _, b := range h {
		n += b.count
	}
	return n
}

func (h histogram) scaled(by float64) histogram {
	out := slices.Clone(h)
	for i := range out {
		out[i].seconds *= by
	}
	return out
}

// and returns a histogram with the values of both.
func (h histogram) and(other histogram) histogram {
	out := slices.Concat(h, other)
	slices.SortFunc(out, bySize)
	return out
}

// quantile returns the smallest value that a fraction q of all values does not exceed.
func (h histogram) quantile(q float64) float64 {
	want := int64(math.Ceil(q * float64(h.total())))
	for _, b := range h {
		if want -= b.count; want <= 0 {
			return b.seconds
		}
	}
	return math.NaN()
}

func (h histogram) longest() float64 {
	if len(h) == 0 {
		return math.NaN()
	}
	return h[len(h)-1].seconds
}

// atLeast returns how many values are at least the given seconds.
func (h histogram) atLeast(seconds float64) (n int64) {
	for _, b := range h {
		if b.seconds >= seconds {
			n += b.count
		}
	}
	return n
}

// points returns n values that represent the histogram: the middles of n equal parts of it.
func (h histogram) points(n int) []float64 {
	out := make([]float64, n)
	for i := range out {
		out[i] = h.quantile((float64(i) + 0.5) / float64(n))
	}
	return out
}

// plus returns the distribution of the sum of two independent times, on n x m points.
func (h histogram) plus(o histogram, n, m int) histogram {
	xs, ys := h.points(n), o.points(m)
	out := make(histogram, 0, n*m)
	for _, x := range xs {
		out = append(out, lists.Map(ys, func(y float64) bar { return bar{x + y, 1} })...)
	}
	slices.SortFunc(out, bySize)
	return out
}
