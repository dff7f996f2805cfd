package main

import (
	"math"
	"os"
	"strings"
	"testing"

	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/test/vm/guest"
)

// TestTables: the command prints exactly testdata/tables.md for the recorded run.
func TestTables(t *testing.T) {
	guest.KernelFree(t)
	want, err := os.ReadFile("testdata/tables.md")
	if err != nil {
		t.Fatal(err)
	}
	var printed strings.Builder
	if err := evaluate(&printed, "testdata/run", "envoy"); err != nil {
		t.Fatal(err)
	}
	if printed.String() != string(want) {
		t.Errorf("testdata/tables.md is not what is printed:\n%s", printed.String())
	}
}

// TestHistogramQuantile: as in promql, values are evenly spread within a bucket, the first bucket begins at 0, and a
// quantile beyond the last bound is that bound.
func TestHistogramQuantile(t *testing.T) {
	guest.KernelFree(t)
	for _, c := range []struct {
		ms   []float64
		q    float64
		want float64
	}{
		{[]float64{0.1, 0.2, 0.3, 0.4}, 0.5, 0.25},
		{[]float64{0.1, 0.1, 2, 2}, 0.75, 3},
		{[]float64{0.1, 2, 2, 2}, 1, 5},
		{[]float64{4e6}, 0.99, 3.6e6},
	} {
		h := hdrhistogram.New(1, 1e16, 3)
		for _, ms := range c.ms {
			if err := h.RecordValue(int64(ms * 1e6)); err != nil {
				t.Fatal(err)
			}
		}
		if got := histogramQuantile(c.q, h); math.Abs(got-c.want) > 1e-9*c.want {
			t.Errorf("quantile %g of %v is %g, want %g", c.q, c.ms, got, c.want)
		}
	}
}

// TestDocument: the points of the document's chart lie on a line with a slope of 0.30 CPUs per 1,000 requests/s and
// almost no intercept, whereas the document's text gives 1.0.
func TestDocument(t *testing.T) {
	guest.KernelFree(t)
	var printed strings.Builder
	if err := document(&printed); err != nil {
		t.Fatal(err)
	}
	want := "slope of a line, **0.30** and -0.01 CPUs fixed"
	if !strings.Contains(printed.String(), want) {
		t.Errorf("it lacks %q:\n%s", want, printed.String())
	}
}
