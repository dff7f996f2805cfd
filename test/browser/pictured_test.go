package browser_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
	"tare/internal/lib/quantity"
)

// picture gives a run a ladder of two rungs, and the evidence of a guest that nobody has heard of something to show: a
// series in which the candidate has so many times as much of one part, where that is not 0.
func picture(ladder, places bool, series float64) func(*record.Run, []record.Trial) {
	f := func(v float64) *float64 { return &v }
	return func(run *record.Run, trials []record.Trial) {
		for _, rung := range []string{"nothing", "much"} {
			if ladder {
				run.Metrics = append(run.Metrics, metric.Definition{
					Name: "step_" + rung + "_seconds", Unit: quantity.Seconds, How: "x", Rank: metric.RankWork, Pool: metric.Mean,
					Needs: []metric.Need{}, Headline: true, Clause: "takes {} for " + rung, Ladder: "time of a step", Rung: rung,
				})
			}
		}
		for i := range trials {
			t := &trials[i]
			times, grown := 1.0, 1.0
			if t.Arm == "candidate" {
				times, grown = 40, series
			}
			noise := 1 + 0.01*float64(i%7)
			if ladder {
				t.Metrics["step_nothing_seconds"] = 200e-9 * times * noise
				t.Metrics["step_much_seconds"] = 1e-3 * noise
			}
			var p record.Pictured
			if places {
				p.Places = []record.Place{
					{Name: "pod", HardBytes: f(6e6 * times), SoftBytes: f(1e6), CPUs: f(0.2), Kubernetes: f(7e6 * times),
						Components: []record.PlacedComponent{{Component: "workload", Bytes: f(5e6), CPUs: f(0.2)}}},
					{Name: "outside", HardBytes: f(4e6), SoftBytes: f(0), CPUs: f(0.01)},
				}
			}
			if series > 0 {
				p.Series = []record.Series{{
					Name: "memory by kind", Unit: quantity.Bytes, Seconds: []float64{-0.1, 0, 0.1, 0.2},
					Parts: []record.SeriesPart{
						{Of: "workload", Kind: "anon", Values: []*float64{f(1e6), f(2e6), f(3e6 * grown), f(3e6 * grown)}},
						{Of: "helper", Kind: "shmem", Values: []*float64{f(5e6), nil, f(5e6), f(6e6)}},
					},
				}}
			}
			text, err := json.Marshal(p)
			if err != nil {
				panic(err)
			}
			t.Evidence = map[string]json.RawMessage{"stranger": text}
		}
	}
}

// TestPictured: what the record of any guest has to show is drawn, and stands in tables, each by itself.
func TestPictured(t *testing.T) {
	usual := []string{"differences", "values", "latency", "latency-difference", "cpu", "memory", "trials"}
	for _, c := range []struct {
		figure, section string
		ladder, places  bool
		course          float64
		table           []string // that its table has
	}{
		{"ladder", "ladder", true, false, 0, []string{"nothing", "much", "us"}},
		{"placed", "charged", false, true, 0, []string{"pod", "outside", "workload", "Kubernetes counts"}},
		{"courses", "course", false, false, 5, []string{"memory by kind", "helper", "anon", "shmem"}},
	} {
		t.Run(c.figure, func(t *testing.T) {
			path := page(t, truth, picture(c.ladder, c.places, c.course))
			b := chromium.Page(t, 1280, 900)
			b.Open(path)
			got := charts(b)
			if i := slices.Index(got, c.figure); i != 0 || !slices.Equal(got[1:], usual) {
				t.Errorf("figures %q, want %q before %q", got, c.figure, usual)
			}
			var text string
			b.Eval(fmt.Sprintf(`(document.getElementById(%q)?.textContent ?? "")`, c.section), &text)
			for _, want := range c.table {
				if !strings.Contains(strings.ToLower(text), strings.ToLower(want)) {
					t.Errorf("the section lacks %q", want)
				}
			}
			// Both arms have their marks, and what hovers tells which.
			var drawn, empty int
			b.Eval(fmt.Sprintf(`[...document.querySelectorAll("figure[data-chart='%s'] svg[data-chart]")].length`,
				c.figure), &drawn)
			b.Eval(fmt.Sprintf(`[...document.querySelectorAll("figure[data-chart='%s'] svg[data-chart]")].filter(s =>
				![...s.querySelectorAll("[aria-label='area'] path, [aria-label='bar'] rect, [aria-label='dot'] path, `+
				`[aria-label='dot'] circle")].some(e => e.getBoundingClientRect().width > 3)).length`, c.figure), &empty)
			want := map[string]int{"ladder": 1, "placed": 2, "courses": 2}[c.figure]
			if drawn != want || empty > 0 {
				t.Errorf("%d plots, %d of them empty; want %d", drawn, empty, want)
			}
			keep(t, b, c.figure+".png")
			quiet(t, b, path)
		})
	}
}

// TestStackedHeights: the parts of a course are stacked on each other, and a larger part is higher: on one scale for
// all arms, save where one is too low for it, which says so.
func TestStackedHeights(t *testing.T) {
	for _, c := range []struct {
		grown, least, most float64
		own                int
	}{
		{5, 4.9, 5.1, 0}, // 3 MB and 15 MB
		{40, 1, 5, 1},
	} {
		path := page(t, truth, picture(false, false, c.grown))
		b := chromium.Page(t, 1280, 900)
		b.Open(path)
		var heights []float64
		b.Eval(`[...document.querySelectorAll("figure[data-chart='courses'] svg[data-chart]")].flatMap(s =>
			[...s.querySelectorAll("[aria-label='area'] path")].map(p => p.getBBox().height))`, &heights)
		var own int
		b.Eval(`[...document.querySelectorAll("figure[data-chart='courses'] h4")].filter(h =>
			h.textContent.includes("own scale")).length`, &own)
		if len(heights) != 4 || heights[2] < c.least*heights[0] || heights[2] > c.most*heights[0] || own != c.own {
			t.Errorf("%g times as much: heights %v, %d scales of their own", c.grown, heights, own)
		}
		quiet(t, b, path)
	}
}
