package report

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"tare/internal/results/comparison"
)

// TestHistoryEnds: the first and the last run are those of the history, and not those that have the metric.
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
			Of: comparison.Of{Metric: "latency_p50_seconds", Arm: "new", Headline: true, Scale: comparison.Ratio},
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
