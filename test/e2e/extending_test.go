package e2e

import (
	"encoding/json"
	"go/format"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"tare/internal/experiment/record"
	"tare/internal/results/analysis"
	"tare/test/binary"
	"tare/test/browser"
)

// fenced matches a block of code whose first line names the file that it is: "// path" or "# path".
var fenced = regexp.MustCompile("(?ms)^```(?:go|yaml)\n((?://|#) ([a-z0-9_/.]+)\n.*?)^```$")

// TestExtending: the example of docs/extending.md is compiled with the tree and run. It is three folders and three
// lines, and gets metrics, an answer and a chart of its own. Nothing is written into the tree: go build takes the files
// from elsewhere.
func TestExtending(t *testing.T) {
	t.Parallel()
	needsRoot(t)
	leavesNothing(t)
	root, err := binary.Root()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "extending.md"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	e := extract(t, string(page), root, dir)
	want := []string{
		"internal/workloads/app/checksums", "internal/workloads/load/checksum", "internal/workloads/subject/ballast",
	}
	if slices.Sort(e.folders); !slices.Equal(e.folders, want) || e.lines != 3 {
		t.Errorf("the example is in the folders %v and %d lines", e.folders, e.lines)
	}
	built, err := binary.Build(dir, "-overlay", e.overlay)
	if err != nil {
		t.Fatal(err)
	}
	run := filepath.Join(dir, "run")
	o := command{binary: built, args: []string{"run", e.spec, "--out", run, "--seed", "1"}}.start(t).wait(t)
	if o.code != 0 {
		t.Fatal(o)
	}
	checkExample(t, run)
	t.Run("chart", func(t *testing.T) { checkChart(t, filepath.Join(run, record.ReportFile)) })
}

// example is the files of a page, written below a directory.
type example struct {
	overlay string   // for go build
	spec    string   // of the experiment
	folders []string // of new files, as paths in the tree
	lines   int      // that are added to a file of the tree
}

// extract writes the files of a page below dir, and an overlay that puts those of Go into the tree at root.
func extract(t *testing.T, page, root, dir string) (e example) {
	t.Helper()
	replace := map[string]string{}
	write := func(name, text string) string {
		path := filepath.Join(dir, strings.ReplaceAll(name, "/", "_"))
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, block := range fenced.FindAllStringSubmatch(page, -1) {
		text, name := block[1], block[2]
		if !strings.HasSuffix(name, ".go") {
			e.spec = write(name, text)
			continue
		}
		there := filepath.Join(root, name)
		if old, err := os.ReadFile(there); err == nil { // lines for its imports
			_, added, _ := strings.Cut(text, "\n")
			e.lines += strings.Count(added, "\n")
			text = strings.Replace(string(old), "import (\n", "import (\n"+added, 1)
		} else {
			if folder := filepath.Dir(name); !slices.Contains(e.folders, folder) {
				e.folders = append(e.folders, folder)
			}
			checkForm(t, name, text)
		}
		replace[there] = write(name, text)
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	e.overlay = write("overlay.json", string(text))
	if e.spec == "" || len(replace) < 3 {
		t.Fatalf("the page has the files %v and the spec %q", replace, e.spec)
	}
	return e
}

// checkForm: code on a page is formatted as in the tree.
func checkForm(t *testing.T, name, text string) {
	t.Helper()
	if formatted, err := format.Source([]byte(text)); err != nil || string(formatted) != text {
		t.Errorf("%s is not as gofmt has it: %v", name, err)
	}
	for line := range strings.Lines(text) {
		if len(strings.TrimRight(line, "\n")) > 120 {
			t.Errorf("%s has a line of more than 120 columns: %s", name, line)
		}
	}
}

// checkExample: the metrics of the example are there for every arm that has them, and its answer has its own words.
func checkExample(t *testing.T, run string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(run, record.SummaryFile))
	if err != nil {
		t.Fatal(err)
	}
	var s analysis.Summary
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	for metric, arms := range map[string][]string{
		"checksum_seconds": {record.Direct, record.AA, "ballast"}, "ballast_bytes": {"ballast"},
	} {
		for _, arm := range arms {
			if e := s.Find(metric, arm, nil); e == nil || e.Value <= 0 || metric == "ballast_bytes" && e.Value != 8<<20 {
				t.Errorf("the estimate of %s in %s is %+v", metric, arm, e)
			}
		}
		if e := s.Find("ballast_bytes", record.Direct, nil); e != nil {
			t.Errorf("the baseline has ballast: %+v", e)
		}
	}
	var answers []string
	for _, a := range s.Answers {
		answers = append(answers, a.Answer)
	}
	for _, want := range []string{`holds .{1,60} of ballast`, `checksums that take .{1,60}s\b`} {
		if !regexp.MustCompile(want).MatchString(strings.Join(answers, "\n")) {
			t.Errorf("no answer says %q: %q", want, answers)
		}
	}
}

// checkChart: a browser draws the metric of the example.
func checkChart(t *testing.T, report string) {
	chromium, err := browser.Start()
	if err != nil {
		t.Fatal(err)
	}
	if chromium == nil {
		t.Skip("needs Chromium: a chart is looked at in a browser")
	}
	t.Cleanup(func() {
		if err := chromium.Stop(); err != nil {
			t.Error(err)
		}
	})
	browser.NeedCharts(t)
	b := chromium.Page(t, 1280, 900)
	b.Open(report)
	var marks int
	b.Eval(`document.querySelectorAll("figure[data-chart='values'] svg[data-chart='checksum time by arm'] `+
		`[aria-label='dot'] > *").length`, &marks)
	if marks != 3 {
		var drawn []string
		b.Eval(`[...document.querySelectorAll("svg[data-chart]")].map(s => s.dataset.chart)`, &drawn)
		t.Errorf("the chart of checksums has %d marks, for 3 arms; drawn are %q", marks, drawn)
	}
}
