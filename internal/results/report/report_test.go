package report_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
	"tare/internal/results/analysis"
	"tare/internal/results/report"
	"tare/test/analysistest"
)

var update = flag.Bool("update", false, "write the golden files")

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs (run the test with -update and read the diff):\n%s", path, got)
	}
}

var plain = analysistest.Truth{Blocks: 8, BPF: 3.1e-6, Latency: 9e-6, Noise: 0.5e-6, MapBytes: 1.2e6}

// cases returns runs, each with a feature that every report must show.
func cases() map[string]func() (record.Run, []record.Trial) {
	with := func(alter func(*analysistest.Truth)) func() (record.Run, []record.Trial) {
		return func() (record.Run, []record.Trial) {
			truth := plain
			alter(&truth)
			return analysistest.Quickstart(truth)
		}
	}
	return map[string]func() (record.Run, []record.Trial){
		"plain":   with(func(*analysistest.Truth) {}),
		"noisy":   with(func(t *analysistest.Truth) { t.Noise, t.Lag = 30e-6, 2e-6 }),
		"lag":     with(func(t *analysistest.Truth) { t.Lag, t.ExtraLag = 3e-6, 4e-6 }),
		"few":     with(func(t *analysistest.Truth) { t.Blocks = 3 }),
		"sweep":   with(func(t *analysistest.Truth) { t.Rates = []string{"500", "1000", "2000"} }),
		"charged": charged,
		"against": func() (record.Run, []record.Trial) {
			run, trials := analysistest.Quickstart(plain)
			run.Baseline = "old"
			return run, trials
		},
		"partial": func() (record.Run, []record.Trial) {
			run, trials := analysistest.Quickstart(plain)
			run.Baseline = "old"
			return run, trials[:20]
		},
		"invalid": func() (record.Run, []record.Trial) {
			run, trials := analysistest.Quickstart(plain)
			for i := range trials {
				switch {
				case trials[i].Arm == "candidate" && i%2 == 0:
					trials[i].Validity = record.Validity{Reasons: []record.Reason{{Gate: "generator-cpu", Seen: 0.8, Allowed: 0.7,
						Message: "the generator used 80 % of its CPU and may use 70 %: lower the rate or give it more threads"}}}
				case trials[i].Arm == "candidate":
					trials[i].Validity = record.Validity{Failed: "client: exit status 1: connect: \x1b[31mrefused\nat once"}
				}
			}
			return run, trials
		},
	}
}

func TestGolden(t *testing.T) {
	for name, make := range cases() {
		t.Run(name, func(t *testing.T) {
			run, trials := make()
			run.Metrics = measured.Definitions()
			s, err := analysis.Summarize(run, trials)
			if err != nil {
				t.Fatal(err)
			}
			var text, all, colour, md, mdAll, js bytes.Buffer
			err = errors.Join(
				report.Text(&text, s, run, report.Options{Dir: "runs/quickstart"}),
				report.Text(&all, s, run, report.Options{Dir: "runs/quickstart", All: true}),
				report.Text(&colour, s, run, report.Options{Dir: "runs/quickstart", Color: true}),
				report.Markdown(&md, s, run, report.Options{}),
				report.Markdown(&mdAll, s, run, report.Options{All: true}),
				report.JSON(&js, s),
			)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, name+".txt", text.Bytes())
			golden(t, name+".all.txt", all.Bytes())
			golden(t, name+".md", md.Bytes())
			golden(t, name+".all.md", mdAll.Bytes())
			if strings.ContainsRune(text.String(), '\x1b') {
				t.Error("plain text has escape sequences")
			}
			if strip(colour.String()) != text.String() {
				t.Error("colour says what plain text does not")
			}
			if !strings.Contains(js.String(), `"schema": "tare.summary/v1"`) {
				t.Error("the JSON names no schema")
			}
		})
	}
}

// TestGrossIsBounded: many applications at many levels do not bury the rest of a terminal's report, and are not lost.
func TestGrossIsBounded(t *testing.T) {
	run, trials := charged()
	s, err := analysis.Summarize(run, trials)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 60 {
		w := s.Workloads[len(s.Workloads)-1]
		w.Name = fmt.Sprintf("copy_%d", i)
		s.Workloads = append(s.Workloads, w)
	}
	var text, md bytes.Buffer
	if err := errors.Join(report.Text(&text, s, run, report.Options{All: true}),
		report.Markdown(&md, s, run, report.Options{All: true})); err != nil {
		t.Fatal(err)
	}
	for _, got := range []string{text.String(), strings.ReplaceAll(md.String(), `\_`, "_")} {
		if n := strings.Count(got, "copy_"); n != 18 || !strings.Contains(got, "42 more rows are in summary.json") {
			t.Errorf("%d copies are named in\n%s", n, got)
		}
	}
}

// strip removes the styles from a text.
func strip(s string) string {
	var b strings.Builder
	for s != "" {
		before, after, found := strings.Cut(s, "\x1b[")
		b.WriteString(before)
		if !found {
			break
		}
		_, s, _ = strings.Cut(after, "m")
	}
	return b.String()
}

// TestNotRepeatedIsSaid: if spoiled trials were no longer repeated, the line on the validity of the run says so.
func TestNotRepeatedIsSaid(t *testing.T) {
	const said = "9 spoiled trials were not run again, because 6 further attempts in a row had lost the same metrics"
	for _, text := range []string{"", said} {
		run, trials := analysistest.Quickstart(plain)
		run.NotRepeated = text
		s, err := analysis.Summarize(run, trials)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := report.Markdown(&b, s, run, report.Options{All: true}); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(b.String(), "valid; "+said+"; 8 complete blocks") != (text != "") || s.NotRepeated != text {
			t.Errorf("with %q:\n%s", text, b.String())
		}
	}
}

func TestProseIsFolded(t *testing.T) {
	run, trials := analysistest.Quickstart(plain)
	s, err := analysis.Summarize(run, trials)
	if err != nil {
		t.Fatal(err)
	}
	s.Estimates = nil
	var b bytes.Buffer
	if err := report.Text(&b, s, run, report.Options{Width: 60}); err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(b.String(), "\n") {
		if len(line) > 60 && !strings.HasPrefix(line, "quickstart") && !strings.HasPrefix(line, "again") &&
			!strings.Contains(line, "found in 80 %") {
			t.Errorf("%d columns: %q", len(line), line)
		}
	}
}

func TestBench(t *testing.T) {
	run, trials := cases()["invalid"]()
	run.Experiment, run.Environment.CPUModel = "my-own experiment", "Example\nCPU"
	trials[0].Validity = record.Validity{Valid: true}
	trials[0].Arm, trials[0].Factors = "v/2-3", map[string]string{"rate": "10 00"}
	trials[0].Metrics = map[string]float64{"map_bytes": 4096, "not one word": 1, "": 2}
	var b bytes.Buffer
	if err := report.Bench(&b, run, trials[:6]); err != nil {
		t.Fatal(err)
	}
	golden(t, "bench.txt", b.Bytes())
}

// full is a writer without space.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestAFullDiskIsSaid(t *testing.T) {
	run, trials := analysistest.Quickstart(plain)
	s, err := analysis.Summarize(run, trials)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range report.Runs.Formats() {
		err := f.Run(full{}, &report.Run{Summary: s, Record: run, Trials: trials}, report.Options{})
		if err == nil || !strings.Contains(err.Error(), "no space left") {
			t.Errorf("%s: %v", f.Name, err)
		}
	}
}

func FuzzReport(f *testing.F) {
	f.Add("quickstart", "candidate", "rate", "1000", "latency_p50_seconds", 1e-6, 2e-6)
	f.Add("", "", "", "", "", 0.0, -1.0)
	f.Add("x\x1b[2J", "a|b", "<script>", "\n", "_per_", 1e300, -1e-300)
	f.Fuzz(func(t *testing.T, name, arm, factor, level, metric string, base, value float64) {
		run := record.Run{Schema: record.RunSchema, Experiment: name, Question: arm, Command: []string{metric, level}}
		var trials []record.Trial
		for i := range 18 {
			trial := record.Trial{Metrics: map[string]float64{metric: base + float64(i)*value},
				Validity: record.Validity{Valid: i != 17, Failed: ""}}
			trial.PlannedTrial = record.PlannedTrial{Index: i, Block: i / 3, Arm: []string{record.Direct, record.AA, arm}[i%3],
				Factors: map[string]string{factor: level}}
			trials = append(trials, trial)
		}
		s, err := analysis.Summarize(run, trials)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range report.Runs.Formats() {
			var b bytes.Buffer
			r := &report.Run{Summary: s, Record: run, Trials: trials}
			if err := f.Run(&b, r, report.Options{Width: 20}); err != nil {
				t.Fatalf("%s: %v", f.Name, err)
			}
			if bytes.ContainsRune(b.Bytes(), '\x1b') {
				t.Errorf("%s: a control character went through", f.Name)
			}
		}
	})
}

// TestBenchDirections: whether more or less of a metric is better comes from its definition. Without a definition there
// is no such line.
func TestBenchDirections(t *testing.T) {
	run := record.Run{Schema: record.RunSchema, Experiment: "own", Metrics: measured.Definitions()}
	trials := []record.Trial{{
		PlannedTrial: record.PlannedTrial{Arm: record.Direct}, Validity: record.Validity{Valid: true},
		Metrics: map[string]float64{"replacements_per_second": 10, "cpu_busy_share": 0.5, "flush_seconds": 1, "of_my_own": 2},
	}}
	var b bytes.Buffer
	if err := report.Bench(&b, run, trials); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Unit replacements_per_second better=higher\n", "Unit flush_seconds better=lower\n"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("lacks %q:\n%s", want, b.String())
		}
	}
	for _, not := range []string{"Unit cpu_busy_share", "Unit of_my_own"} {
		if strings.Contains(b.String(), not) {
			t.Errorf("says %q:\n%s", not, b.String())
		}
	}
}

// TestComponents: a component follows its arm in every format for people.
func TestComponents(t *testing.T) {
	run, trials := analysistest.Quickstart(plain)
	for i := range trials {
		if trials[i].Arm == "candidate" {
			trials[i].Components = map[string]map[string]float64{
				"agent": {"map_bytes": 345e3}, "programs": {"cpu_seconds": 0.0125},
			}
		}
	}
	s, err := analysis.Summarize(run, trials)
	if err != nil {
		t.Fatal(err)
	}
	var text, markdown, page bytes.Buffer
	if err := report.Text(&text, s, run, report.Options{All: true}); err != nil {
		t.Fatal(err)
	}
	if err := report.Markdown(&markdown, s, run, report.Options{All: true}); err != nil {
		t.Fatal(err)
	}
	if err := report.HTML(&page, s, run, trials, report.HTMLOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, of := range map[string]string{"text": text.String(), "Markdown": markdown.String(), "HTML": page.String()} {
		for component, value := range map[string]string{"candidate agent": "345", "candidate programs": "12.5"} {
			_, row, found := strings.Cut(of, component)
			if row = row[:min(len(row), 80)]; !found || !strings.Contains(row, value) {
				t.Errorf("%s: %s of %s is not in %q", name, value, component, row)
			}
		}
	}
}
