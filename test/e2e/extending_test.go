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
	"tare/test/long"
)

// fenced matches a block of code whose first line, or the one after "#!/bin/sh", names the file that it is: "// path"
// or "# path".
var fenced = regexp.MustCompile("(?ms)^```(?:go|yaml|sh)\n((?:#!/bin/sh\n)?(?://|#) ([a-z0-9_/.-]+)\n.*?)^```$")

// TestExtending: the examples of docs/extending.md are compiled with the tree and run. They are three folders and three
// lines, which bring metrics, an answer and a chart, and a file each for a report format and a sandbox runtime. Nothing
// is written into the tree: go build takes the files from elsewhere.
func TestExtending(t *testing.T) {
	long.Test(t, "70 s: it compiles a copy of the tree with a guest of each kind")
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
	e := extract(t, string(page)+examples(t, filepath.Join(root, "docs", "extending")), root, dir)
	want := []string{
		"internal/results/report/graphite.go", "internal/scale/host/sandbox/runtime_nice.go",
		"internal/workloads/app/checksums", "internal/workloads/load/checksum", "internal/workloads/subject/ballast",
	}
	if slices.Sort(e.added); !slices.Equal(e.added, want) || e.lines != 3 {
		t.Errorf("the examples are %v and %d lines", e.added, e.lines)
	}
	built, err := binary.Build(dir, "-overlay", e.overlay)
	if err != nil {
		t.Fatal(err)
	}
	run := filepath.Join(dir, "run")
	o := command{binary: built, args: []string{"run", e.files["ballast.yaml"], "--out", run, "--seed", "1"}}.
		start(t).wait(t)
	if o.code != 0 {
		t.Fatal(o)
	}
	checkExample(t, run)
	checkFormat(t, built, run)
	t.Run("runtime", func(t *testing.T) { checkRuntime(t, built, dir, e) })
	t.Run("chart", func(t *testing.T) { checkChart(t, filepath.Join(run, record.ReportFile)) })
}

// examples are the Go files that the page links to, as blocks of code. The first line of each names the file that it
// is in the tree.
func examples(t *testing.T, dir string) string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.go.txt"))
	if err != nil || len(names) == 0 {
		t.Fatalf("%s has %d examples: %v", dir, len(names), err)
	}
	var b strings.Builder
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		b.WriteString("\n```go\n" + string(text) + "```\n")
	}
	return b.String()
}

// example describes the files of a page, which are written below a directory.
type example struct {
	overlay string            // for go build
	files   map[string]string // paths of the files that are not Go, by the names that the page gives them
	added   []string          // new folders, and new files in existing folders, as paths in the tree
	lines   int               // number of lines that are added to files of the tree
}

// extract writes the files of a page below dir, and an overlay that puts those of Go into the tree at root.
func extract(t *testing.T, page, root, dir string) (e example) {
	t.Helper()
	e.files = map[string]string{}
	replace := map[string]string{}
	write := func(name, text string) string {
		path := filepath.Join(dir, strings.ReplaceAll(name, "/", "_"))
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, block := range fenced.FindAllStringSubmatch(page, -1) {
		text, name := block[1], block[2]
		if !strings.HasSuffix(name, ".go") {
			e.files[name] = write(name, text)
			continue
		}
		there := filepath.Join(root, name)
		if old, err := os.ReadFile(there); err == nil { // the text is a line for the imports of this file
			_, added, _ := strings.Cut(text, "\n")
			e.lines += strings.Count(added, "\n")
			text = strings.Replace(string(old), "import (\n", "import (\n"+added, 1)
		} else {
			added := filepath.Dir(name)
			if _, err := os.Stat(filepath.Join(root, added)); err == nil {
				added = name
			}
			if !slices.Contains(e.added, added) {
				e.added = append(e.added, added)
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
	if len(e.files) != 3 || len(replace) < 6 {
		t.Fatalf("the page has the files %v and %v", replace, e.files)
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

// checkFormat: the report format of the example is offered, and writes the numbers of the run.
func checkFormat(t *testing.T, built, run string) {
	t.Helper()
	report := func(format string) output {
		return command{binary: built, args: []string{"report", "--format", format, run}}.start(t).wait(t)
	}
	if o := report("graphit"); o.code != 2 || !strings.Contains(o.stderr, `did you mean "graphite"?`) {
		t.Errorf("a format that is none: %v", o)
	}
	o := report("graphite")
	line := regexp.MustCompile(`^tare\.[a-z0-9_]+\.[a-z_]+(;[a-z_]+=[A-Za-z0-9_./-]+)+ [0-9e.+-]+ [0-9]{10}\n$`)
	for text := range strings.Lines(o.stdout) {
		if !line.MatchString(text) {
			t.Errorf("a line of the format: %q", text)
		}
	}
	if want := "\ntare.ballast_bytes.estimate;arm=ballast;unit=bytes 8.388608e+06 "; o.code != 0 ||
		!strings.Contains("\n"+o.stdout, want) { // noise may withhold every other number
		t.Errorf("the format lacks %q: %v", want, o)
	}
}

// checkRuntime: the runtime of the example is offered; without its script the error asks for that, and with it the
// runtime runs.
func checkRuntime(t *testing.T, built, dir string, e example) {
	runtimeFor(t, "runc")
	o := command{binary: built, args: []string{"list", "subjects"}}.start(t).wait(t)
	for _, want := range []string{"`runc-nice` (runc at a lower priority)", "of `runc-nice`: nice value"} {
		if !strings.Contains(strings.Join(strings.Fields(o.stdout), " "), want) {
			t.Errorf("the subjects lack %q: %v", want, o)
		}
	}
	out := filepath.Join(dir, "nice")
	run := command{binary: built, args: []string{"run", e.files["nice.yaml"], "--out", out, "--seed", "1"}}
	if o := run.start(t).wait(t); o.code != 3 || !strings.Contains(o.stderr, "put its script beside tare") {
		t.Errorf("without the runtime: %v", o)
	}
	if err := os.Rename(e.files["bin/runc-nice"], filepath.Join(dir, "runc-nice")); err != nil {
		t.Fatal(err)
	}
	if o := run.start(t).wait(t); o.code != 0 {
		t.Fatal(o)
	}
	c, err := record.Read(out)
	if err != nil || c.Run.Traits["nice"] != "nice 10" {
		t.Fatalf("the run has the traits %v; %v", c.Run.Traits, err)
	}
	// This looks at the trials, because other work on the machine may have voided some of them and so the estimate.
	if !slices.ContainsFunc(c.Trials, func(tr record.Trial) bool {
		return tr.Arm == "nice" && tr.Metrics["sandbox_pss_bytes"] > 0
	}) {
		t.Errorf("the container's memory is in none of %d trials", len(c.Trials))
	}
}

// summaryOf reads the summary of a run.
func summaryOf(t *testing.T, run string) (s analysis.Summary) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(run, record.SummaryFile))
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// checkExample: the metrics of the example are there for every arm that has them, and its answer has its own words.
func checkExample(t *testing.T, run string) {
	t.Helper()
	s := summaryOf(t, run)
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
