package report

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"tare/internal/results/analysis"
	"tare/internal/results/comparison"
)

func TestPercent(t *testing.T) {
	for ratio, want := range map[float64]string{
		1.14: "+14 %", 1.031: "+3.1 %", 25: "25 times", 11.5: "11.5 times", 1234.5: "1234 times",
		0.5: "-50 %", 0.006: "-99 %", 0.003: "-99.7 %",
		1e-300: "-100 %", 4e-5: "-99.996 %",
		0: "-100 %",
	} {
		if got := percent(ratio); got != want {
			t.Errorf("percent(%g) = %q, want %q", ratio, got, want)
		}
	}
}

func TestHeldOutError(t *testing.T) {
	for part, want := range map[float64]string{0.021: "2.1 %", 1.234: "123 %", 4e-16: "0.0 %"} {
		if got := heldOutError(part); got != want {
			t.Errorf("%g: %q, want %q", part, got, want)
		}
	}
}

func TestUCUM(t *testing.T) {
	for unit, want := range map[string]string{"bytes per second": "By/s", "per second": "1/s", "bytes": "By",
		"seconds per request": "s/{request}", "part": "1"} {
		if got := ucum(unit); got != want {
			t.Errorf("%s: %q, want %q", unit, got, want)
		}
	}
}

func TestFewerBlocks(t *testing.T) {
	for want, e := range map[string]analysis.Estimate{
		"":                        {Blocks: 8, Planned: 8},
		"7 of 8 blocks":           {Blocks: 7, Planned: 8},
		"withheld":                {Blocks: 8, Planned: 8, Withheld: "a reason"},
		"withheld: 4 of 8 blocks": {Blocks: 4, Planned: 8, Withheld: "a reason"},
	} {
		if got := fewerBlocks(e); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestHistoryEnds: the columns "first" and "last" are for the first and the last run of the history, even if those runs
// lack the metric.
func TestHistoryEnds(t *testing.T) {
	points := []comparison.Point{{Run: 0, Value: 1.1}, {Run: 1, Value: 1.2}, {Run: 2, Value: 1.3}}
	for _, tt := range []struct {
		points []comparison.Point
		want   string
	}{
		{points, "+10 % +30 % none"},
		{points[:2], "+10 % - none"},
		{points[1:], "- +30 % none"},
	} {
		c := &comparison.Course{Experiment: "test", Runs: make([]comparison.Ref, 3), Lines: []comparison.Line{{
			Of:     comparison.Of{Metric: "latency_p50_seconds", Arm: "new", Headline: true, Scale: comparison.Ratio},
			Points: tt.points,
		}}}
		var b bytes.Buffer
		if err := History(&b, c, Options{Width: 110}); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(b.String(), "\n")
		i := slices.IndexFunc(lines, func(line string) bool { return strings.Contains(line, "latency p50") })
		if i < 0 || !strings.HasSuffix(strings.Join(strings.Fields(lines[i]), " "), " "+tt.want) {
			t.Errorf("want %q in\n%s", tt.want, b.String())
		}
	}
}

// TestLeftOut: the text and the page of a history name the runs that a line leaves out.
func TestLeftOut(t *testing.T) {
	c := &comparison.Course{Experiment: "test", Runs: []comparison.Ref{{Dir: "a"}, {Dir: "b"}, {Dir: "c"}},
		Lines: []comparison.Line{{
			Of:     comparison.Of{Metric: "latency_p50_seconds", Arm: "new", Headline: true, Scale: comparison.Ratio},
			Points: []comparison.Point{{Run: 2, Value: 1.3}}, LeftOut: []int{0, 1},
		}}}
	var text, page bytes.Buffer
	if err := errors.Join(History(&text, c, Options{Width: 110}), HistoryHTML(&page, c)); err != nil {
		t.Fatal(err)
	}
	const want = "Left out: 2 of 3 runs, whose versions of Tare measured these in another way (a, b): latency p50 of new."
	for _, got := range []string{text.String(), page.String()} {
		if !strings.Contains(strings.Join(strings.Fields(got), " "), want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}
