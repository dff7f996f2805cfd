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
	"tare/test/browser"
)

// picture returns a function that makes a run look as if a guest had recorded evidence in it: a ladder of two rungs,
// places, and a series in which the candidate has the given multiple of one part, unless series is 0.
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

// pictured is a figure that the report must show for a guest's evidence.
type pictured struct {
	figure, section string
	plots           int
	table           []string // texts that the figure's table has
}

// TestPictured: whatever evidence a guest has recorded is drawn and listed in tables. Evidence that a run lacks has no
// figure.
func TestPictured(t *testing.T) {
	usual := []string{"differences", "values", "latency", "latency-difference", "cpu", "memory", "trials"}
	for _, c := range []struct {
		name           string
		ladder, places bool
		course         float64
		figures        []pictured
	}{
		{"ladder and places", true, true, 0, []pictured{
			{"ladder", "ladder", 1, []string{"nothing", "much", "us"}},
			{"placed", "charged", 2, []string{"pod", "outside", "workload", "Kubernetes counts"}},
		}},
		{"courses", false, false, 5, []pictured{
			{"courses", "course", 2, []string{"memory by kind", "helper", "anon", "shmem"}},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := page(t, truth, picture(c.ladder, c.places, c.course))
			b := chromium.Page(t, 1280, 900)
			b.Open(path)
			var want []string
			for _, p := range c.figures {
				want = append(want, p.figure)
				p.check(t, b)
			}
			if got := charts(b); !slices.Equal(got, append(want, usual...)) {
				t.Errorf("figures %q, want %q before %q", got, want, usual)
			}
			if c.course > 0 { // 3 MB and 15 MB, on one scale
				stacked(t, b, 4.9, 5.1, 0)
			}
			keep(t, b, strings.ReplaceAll(c.name, " ", "-")+".png")
			quiet(t, b, path)
		})
	}
}

func (p pictured) check(t *testing.T, b *browser.Browser) {
	t.Helper()
	var text string
	b.Eval(fmt.Sprintf(`(document.getElementById(%q)?.textContent ?? "")`, p.section), &text)
	for _, want := range p.table {
		if !strings.Contains(strings.ToLower(text), strings.ToLower(want)) {
			t.Errorf("the section %s lacks %q", p.section, want)
		}
	}
	// Every plot has marks that can be seen.
	var drawn, empty int
	b.Eval(fmt.Sprintf(`[...document.querySelectorAll("figure[data-chart='%s'] svg[data-chart]")].length`,
		p.figure), &drawn)
	b.Eval(fmt.Sprintf(`[...document.querySelectorAll("figure[data-chart='%s'] svg[data-chart]")].filter(s =>
		![...s.querySelectorAll("[aria-label='area'] path, [aria-label='bar'] rect, [aria-label='dot'] path, `+
		`[aria-label='dot'] circle")].some(e => e.getBoundingClientRect().width > 3)).length`, p.figure), &empty)
	if drawn != p.plots || empty > 0 {
		t.Errorf("%s: %d plots, %d of them empty; want %d", p.figure, drawn, empty, p.plots)
	}
}

// TestStackedHeights: a course that is far too low for the scale of the others gets a separate scale, and says so.
func TestStackedHeights(t *testing.T) {
	path := page(t, truth, picture(false, false, 40))
	b := chromium.Page(t, 1280, 900)
	b.Open(path)
	stacked(t, b, 1, 5, 1)
	quiet(t, b, path)
}

// stacked checks that each of two courses draws its two parts, that the first part of the candidate is between least
// and most times as high as that of the baseline, and that the given number of courses have their own scale.
func stacked(t *testing.T, b *browser.Browser, least, most float64, scales int) {
	t.Helper()
	var heights []float64
	b.Eval(`[...document.querySelectorAll("figure[data-chart='courses'] svg[data-chart]")].flatMap(s =>
		[...s.querySelectorAll("[aria-label='area'] path")].map(p => p.getBBox().height))`, &heights)
	var own int
	b.Eval(`[...document.querySelectorAll("figure[data-chart='courses'] h4")].filter(h =>
		h.textContent.includes("own scale")).length`, &own)
	if len(heights) != 4 || heights[2] < least*heights[0] || heights[2] > most*heights[0] || own != scales {
		t.Errorf("heights %v, %d scales of their own", heights, own)
	}
}
