package browser_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tare/internal/results/analysis"
	"tare/internal/results/comparison"
	"tare/internal/results/report"
	"tare/test/analysistest"
	"tare/test/browser"
)

// courseOf returns n runs, a day apart, of which the later half cost more.
func courseOf(t *testing.T, n int, experiment string) (sources []comparison.Source) {
	t.Helper()
	for i := range n {
		truth := truth
		truth.Day = uint64(i)
		if i >= n/2 {
			truth.BPF *= 2
		}
		run, trials := analysistest.Quickstart(truth)
		run.Experiment = experiment
		s, err := analysis.Summarize(run, trials)
		if err != nil {
			t.Fatal(err)
		}
		sources = append(sources, comparison.Source{Dir: fmt.Sprintf("run-%d", i), Run: run, Summary: s})
	}
	return sources
}

// openComparison writes a page and opens it.
func openComparison(t *testing.T, make func(*bytes.Buffer) error) (*browser.Browser, string) {
	t.Helper()
	var page bytes.Buffer
	if err := make(&page); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "comparison.html")
	if err := os.WriteFile(path, page.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	b := chromium.Page(t, 1280, 900)
	b.Open(path)
	return b, path
}

// TestComparisonPage: the page's table shows what changed between runs, and the page runs no script and fetches
// nothing.
func TestComparisonPage(t *testing.T) {
	all := courseOf(t, 8, "quickstart")
	c := comparison.Compare(all[:4], all[4:], nil)
	b, path := openComparison(t, func(w *bytes.Buffer) error { return report.ComparisonHTML(w, &c) })
	var rows, scripts, wide int
	b.Eval(`document.querySelectorAll("tbody tr").length`, &rows)
	b.Eval(`document.scripts.length`, &scripts)
	b.Eval(`document.documentElement.scrollWidth`, &wide)
	if rows != len(c.Changes) || rows == 0 || scripts != 0 || wide > 1280 {
		t.Errorf("%d rows of %d changes, %d scripts, %d pixels wide", rows, len(c.Changes), scripts, wide)
	}
	keep(t, b, "comparison.png")
	quiet(t, b, path)
}

// TestHistoryPage: a history draws each metric over the runs, with a mark where its level shifts. Markup and
// scripts in the experiment's name are shown as text.
func TestHistoryPage(t *testing.T) {
	const evil = `</title><script>window.ran=1</script>"'><img src=x onerror="window.ran=2">`
	const n = 24
	c := comparison.Over(courseOf(t, n, evil), 1)
	b, path := openComparison(t, func(w *bytes.Buffer) error { return report.HistoryHTML(w, &c) })
	var drawn, most, shifts, ran, images, outside int
	b.Eval(`[...document.querySelectorAll("svg.course")].filter(s => s.getBoundingClientRect().width > 100).length`,
		&drawn)
	b.Eval(`Math.max(...[...document.querySelectorAll("svg.course")].map(s => s.querySelectorAll("circle").length))`,
		&most)
	b.Eval(`document.querySelectorAll("svg.course .shift").length`, &shifts)
	b.Eval(`window.ran ?? 0`, &ran)
	b.Eval(`document.images.length + document.scripts.length`, &images)
	b.Eval(`[...document.querySelectorAll("svg.course circle")].filter(c => !(c.cx.baseVal.value >= 0 && c.cx.baseVal.value <= 320 &&
		c.cy.baseVal.value >= 0 && c.cy.baseVal.value <= 50)).length`, &outside)
	if drawn != len(c.Lines) || most != n || shifts == 0 || outside != 0 {
		t.Errorf("%d pictures of %d lines, at most %d points of %d, %d shifts, %d points outside", drawn, len(c.Lines),
			most, n,
			shifts, outside)
	}
	var answer string
	b.Eval(`document.querySelector("#answer .answer").textContent`, &answer)
	if !strings.Contains(answer, "eBPF per connection of candidate from") {
		t.Errorf("the answer is %q", answer)
	}
	if ran != 0 || images != 0 {
		t.Errorf("ran %d, with %d images and scripts", ran, images)
	}
	keep(t, b, "history.png")
	quiet(t, b, path)
}
