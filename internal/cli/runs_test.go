package cli

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"tare/experiments"
	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
	"tare/internal/lib/fault"
	"tare/internal/results/analysis"
	"tare/internal/results/report"
)

// oldRuns are run directories as earlier versions wrote them; see the README there.
const oldRuns = "../../test/runs"

// unpack writes the files of an old run into a directory, as 'tare run' once wrote them.
func unpack(t *testing.T, name string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, file := range []string{record.RunFile, record.TrialsFile, record.SummaryFile} {
		text := gunzip(t, filepath.Join(oldRuns, name, file+".gz"))
		if err := os.WriteFile(filepath.Join(dir, file), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func gunzip(t *testing.T, path string) []byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := gzip.NewReader(f)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return data
}

// eachOldRun runs a test for every old run. It fails if a built-in experiment has none.
func eachOldRun(t *testing.T, test func(t *testing.T, dir string)) {
	t.Helper()
	entries, err := os.ReadDir(oldRuns)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, e := range entries {
		if e.IsDir() {
			seen[e.Name()] = true
			t.Run(e.Name(), func(t *testing.T) { test(t, unpack(t, e.Name())) })
		}
	}
	for _, name := range append(experiments.Names(), "quickstart-before-metrics") {
		if !seen[name] {
			t.Errorf("%s has no run of %s", oldRuns, name)
		}
	}
}

// everyReport reports on a run in each format, from one analysis.
func everyReport(t *testing.T, dir string) map[string]string {
	t.Helper()
	outs := map[string]string{}
	var writers []report.Writer[*report.Run]
	for _, format := range report.Runs.Names() {
		write, err := report.Runs.Writer(format)
		if err != nil {
			t.Fatal(err)
		}
		writers = append(writers, func(_ io.Writer, r *report.Run, o report.Options) error {
			var out strings.Builder
			err := write(&out, r, o)
			outs[format] = out.String()
			return err
		})
	}
	if _, err := writeReport(io.Discard, dir, reportFlags{}, writers); err != nil {
		t.Error(err)
	}
	return outs
}

// TestOldRuns: a run of an earlier version can be read. Its report still has every estimate, and every number in the
// answers, that it had when it was made, except those that were wrong. Estimates and sentences may be added.
func TestOldRuns(t *testing.T) {
	eachOldRun(t, func(t *testing.T, dir string) {
		var was, is analysis.Summary
		text, err := os.ReadFile(filepath.Join(dir, record.SummaryFile))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, &was); err != nil {
			t.Fatalf("the summary that it left: %v", err)
		}
		for format, out := range everyReport(t, dir) {
			want := was.Experiment
			switch format {
			case "text", "html", "md", "junit":
				want = was.Question
			case "json":
				want = analysis.Schema
			case "github":
				want = strings.ReplaceAll(was.Question, ",", "%2C")
			case "bench": // has lines for trials, and says for each metric whether lower or higher is better
				want = "Benchmark"
				if !strings.Contains(out, "\nUnit memory_hard_bytes better=lower\n") {
					t.Errorf("it does not know that less memory is better:\n%s", out)
				}
			}
			if !contains(out, want) {
				t.Errorf("as %s it lacks %q:\n%s", format, want, out)
			}
			if format == "json" {
				if err := json.Unmarshal([]byte(out), &is); err != nil {
					t.Fatalf("the JSON does not read back: %v", err)
				}
			}
		}
		if is.Schema != was.Schema || is.Valid != was.Valid || is.Partial != was.Partial || is.Blocks != was.Blocks {
			t.Errorf("schema %q, valid %v, partial %v, %d blocks; it was %q, %v, %v, %d",
				is.Schema, is.Valid, is.Partial, is.Blocks, was.Schema, was.Valid, was.Partial, was.Blocks)
		}
		got, want := is.Trials, was.Trials
		got.Excluded, want.Excluded = nil, nil // they give reasons as sentences, which may differ
		if !reflect.DeepEqual(got, want) {
			t.Errorf("trials %+v; they were %+v", got, want)
		}
		if len(was.Estimates) == 0 || len(was.Answers) == 0 && was.Valid {
			t.Errorf("it had %d estimates and %d answers, with which it shows nothing",
				len(was.Estimates), len(was.Answers))
		}
		wrong := wrongIn(t, dir)
		was.Answers = slices.DeleteFunc(was.Answers, func(a analysis.Answer) bool {
			return slices.ContainsFunc(was.Estimates, func(e analysis.Estimate) bool {
				of := e.Metric + " "
				return wrong(e) && (slices.Contains(a.Evidence, of+e.Arm) || e.Arm == record.Direct &&
					slices.ContainsFunc(a.Evidence, func(has string) bool { return strings.HasPrefix(has, of) }))
			})
		})
		sameEstimates(t, &was, &is, wrong)
		sameAnswers(t, &was, &is)
	})
}

// wrongIn returns a function that reports whether the value of an estimate was wrong in an old run. Earlier versions
// divided by a number of answers that included those after the window. This matters where a queue grew, as on the busy
// machine of these runs, unless the value is 0. They also left unanswered requests out of latency.
func wrongIn(t *testing.T, dir string) func(analysis.Estimate) bool {
	c, err := record.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	return func(e analysis.Estimate) bool {
		m, _ := measured.Find(e.Metric)
		return slices.ContainsFunc(c.Trials, func(t record.Trial) bool {
			if t.Arm != e.Arm || record.LevelKey(t.Factors) != record.LevelKey(e.Factors) {
				return false
			}
			values := t.Metrics
			if e.Component != "" {
				values = t.Components[e.Component]
			}
			return m.Answers && !load.AnswersKnown(t.Loads) && values[e.Metric] != 0 ||
				m.Histogram == load.Latency && load.Missing(t.Loads, load.Latency) > 0
		})
	}
}

// TestOldDefinitions: a run with the definitions that an earlier version wrote, or with none at all, gives the same
// report as one with those of today.
func TestOldDefinitions(t *testing.T) {
	eachOldRun(t, func(t *testing.T, dir string) {
		path := filepath.Join(dir, record.RunFile)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		reports := map[string]string{}
		for name, metrics := range map[string]any{
			"as written": nil, "of today": measured.Definitions(), "none": json.RawMessage("null"),
		} {
			var run map[string]any
			if err := json.Unmarshal(text, &run); err != nil {
				t.Fatal(err)
			}
			if metrics != nil {
				run["metrics"] = metrics
			}
			changed, err := json.Marshal(run)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, changed, 0o644); err != nil {
				t.Fatal(err)
			}
			if reports[name], err = runReport(dir); err != nil {
				t.Fatal(err)
			}
		}
		for name, got := range reports {
			if got != reports["of today"] {
				t.Errorf("with the definitions %s it is\n%s\nand with those of today\n%s", name, got, reports["of today"])
			}
		}
	})
}

// contains reports whether text has words in their order, however its lines are broken, and whether or not it is HTML.
func contains(text, words string) bool {
	plain := strings.NewReplacer("&#39;", "'", "&amp;", "&").Replace(text)
	return strings.Contains(strings.Join(strings.Fields(plain), " "), words)
}

// sameEstimates compares the estimates that were not wrong, and their differences if the baseline's value was not.
func sameEstimates(t *testing.T, was, is *analysis.Summary, wrong func(analysis.Estimate) bool) {
	t.Helper()
	for _, w := range was.Estimates {
		if wrong(w) {
			continue
		}
		i := slices.IndexFunc(is.Estimates, func(e analysis.Estimate) bool {
			return e.Metric == w.Metric && e.Arm == w.Arm && e.Component == w.Component && maps.Equal(e.Factors, w.Factors)
		})
		if i < 0 {
			t.Errorf("%s of %s %v is gone", w.Metric, w.Arm, w.Factors)
			continue
		}
		e := is.Estimates[i]
		interval := sameInterval
		if e.Method == analysis.PooledMethod {
			interval = noNarrower // earlier versions gave too narrow ones where trials differ in size
		}
		same := equalTo(&e.Value, &w.Value) && interval(e.Lo, e.Hi, w.Lo, w.Hi) && e.N == w.N &&
			e.Unit == w.Unit && (e.Withheld == "") == (w.Withheld == "")
		base := w
		base.Arm = record.Direct
		if d, v := e.Difference, w.Difference; same && !wrong(base) && (d != nil || v != nil) {
			same = d != nil && v != nil && equalTo(&d.Value, &v.Value) && interval(d.Lo, d.Hi, v.Lo, v.Hi) &&
				d.Resolved == v.Resolved && d.N == v.N && d.Lost == v.Lost
		}
		if !same {
			t.Errorf("%s of %s %v is %s\nit was %s", w.Metric, w.Arm, w.Factors, shownAsJSON(e), shownAsJSON(w))
		}
	}
}

func sameInterval(lo, hi, wasLo, wasHi *float64) bool {
	return equalTo(lo, wasLo) && equalTo(hi, wasHi)
}

func noNarrower(lo, hi, wasLo, wasHi *float64) bool {
	if lo == nil || hi == nil || wasLo == nil || wasHi == nil {
		return sameInterval(lo, hi, wasLo, wasHi)
	}
	return (*lo <= *wasLo || equalTo(lo, wasLo)) && (*hi >= *wasHi || equalTo(hi, wasHi))
}

// equalTo compares numbers that may have been rounded when they were written as decimals; nil equals only nil.
func equalTo(a, b *float64) bool {
	if a == nil || b == nil {
		return a == b
	}
	return math.Abs(*a-*b) <= 1e-9*math.Max(math.Abs(*a), math.Abs(*b))
}

func shownAsJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// figure matches a number in a sentence.
var figure = regexp.MustCompile(`[0-9][0-9.,]*[0-9]|[0-9]`)

// atNone matches how answers once said that a comparison is resolved at no level. They now say it without a number.
var atNone = regexp.MustCompile(` at 0 of [0-9]+ levels`)

// nothing matches how answers once mentioned a cost that neither arm had. They no longer mention such a cost.
var nothing = regexp.MustCompile(`adds 0 s \(no interval\) of kernel time per [a-z]+`)

// ofLines matches the intervals that answers once gave for lines of a single block. Such lines now have no intervals.
var ofLines = regexp.MustCompile(` \[[^]]*\]`)

// sameAnswers checks that the new answers have all the evidence and all the numbers of the old ones. Their sentences
// may differ.
func sameAnswers(t *testing.T, was, is *analysis.Summary) {
	t.Helper()
	evidence, numbers := map[string]bool{}, map[string]bool{}
	for _, a := range is.Answers {
		for _, e := range a.Evidence {
			evidence[e] = true
		}
		for _, n := range figure.FindAllString(a.Answer, -1) {
			numbers[n] = true
		}
	}
	// A number may have more digits now than it had then.
	said := func(n string) bool {
		if numbers[n] {
			return true
		}
		for other := range numbers {
			if a, b := plainNumber(n), plainNumber(other); math.Abs(a-b) <= 0.05*math.Abs(b) {
				return true
			}
		}
		return false
	}
	for _, a := range was.Answers {
		if len(a.Evidence) == 0 {
			continue // it says what is missing, which may be said of another arm now
		}
		for _, e := range a.Evidence {
			if !evidence[e] && !(nothing.MatchString(a.Answer) && strings.HasPrefix(e, "bpf_seconds_per_")) {
				t.Errorf("no answer rests on %s any more, as this did: %s", e, a.Answer)
			}
		}
		text := nothing.ReplaceAllString(atNone.ReplaceAllString(a.Answer, ""), "")
		if was.Blocks == 1 {
			text = ofLines.ReplaceAllString(text, "")
		}
		for _, n := range figure.FindAllString(text, -1) {
			if !said(n) {
				t.Errorf("no answer has the number %s any more, as this had: %s\nthey are %s",
					n, a.Answer, shownAsJSON(is.Answers))
			}
		}
	}
}

// plainNumber parses a number of a sentence, in which commas separate thousands.
func plainNumber(text string) float64 {
	v, err := strconv.ParseFloat(strings.ReplaceAll(text, ",", ""), 64)
	if err != nil {
		return math.NaN()
	}
	return v
}

// TestOldRunsDamaged: a record that was changed or torn is rejected with an error that names the place. A last line
// that was cut off is left out, with a warning.
func TestOldRunsDamaged(t *testing.T) {
	eachOldRun(t, func(t *testing.T, dir string) {
		runJSON, trials := filepath.Join(dir, record.RunFile), filepath.Join(dir, record.TrialsFile)
		whole := map[string][]byte{}
		for _, path := range []string{runJSON, trials} {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			whole[path] = text
		}
		first := bytes.IndexByte(whole[trials], '\n')
		last := bytes.LastIndexByte(bytes.TrimSpace(whole[trials]), '\n')
		if first < 0 || last < first {
			t.Fatalf("%s has fewer than two lines", trials)
		}
		replaced := func(text []byte, old, new string) []byte {
			if !bytes.Contains(text, []byte(old)) {
				t.Fatalf("there is no %s to damage", old)
			}
			return bytes.Replace(text, []byte(old), []byte(new), 1)
		}
		for _, c := range []struct {
			name, path string
			text       []byte // nil: the file is gone
			says       string // of the error; empty: a warning
		}{
			{"no run.json", runJSON, nil, "this is not a run directory"},
			{"run.json is empty", runJSON, []byte{}, "this is not the record of a run"},
			{"half of run.json", runJSON, whole[runJSON][:len(whole[runJSON])/2], "this is not the record of a run"},
			{"run.json of another schema", runJSON, replaced(whole[runJSON], "tare.run/v1", "tare.run/v9"),
				`the schema is "tare.run/v9"`},
			{"seed of another type", runJSON, replaced(whole[runJSON], `"seed":`, `"seed": "x", "was":`),
				"this is not the record of a run"},
			{"a torn first trial", trials, whole[trials][first/2:], ":1: this line is not the record of a trial"},
			{"a trial of another schema", trials, replaced(whole[trials], "tare.trial/v1", "tare.trial/v0"),
				`:1: the schema is "tare.trial/v0"`},
			{"an index of another type", trials, replaced(whole[trials], `"index":`, `"index":"x","was":`),
				":1: this line is not the record of a trial"},
			{"a torn last trial", trials, whole[trials][:(last+len(whole[trials]))/2], ""},
		} {
			err := os.WriteFile(c.path, c.text, 0o644)
			if c.text == nil {
				err = os.Remove(c.path)
			}
			if err != nil {
				t.Fatal(err)
			}
			out, err := runReport(dir, "--format", "json")
			switch {
			case c.says == "" && (err != nil || !strings.Contains(out, "the last line was cut off and is left out")):
				t.Errorf("%s: error %v and no warning in the report", c.name, err)
			case c.says == "":
			case err == nil || fault.CodeOf(err) != fault.Usage || !strings.Contains(err.Error(), c.says):
				t.Errorf("%s: %v, want an error of use that says %q", c.name, err, c.says)
			}
			if err := os.WriteFile(c.path, whole[c.path], 0o644); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestOldRunsAreSmall keeps the fixtures small, and free of details of the machine on which they were made.
func TestOldRunsAreSmall(t *testing.T) {
	const most, mostOfAll = 150_000, 2_000_000
	total := int64(0)
	err := filepath.WalkDir(oldRuns, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if total += info.Size(); info.Size() > most {
			t.Errorf("%s has %d bytes", path, info.Size())
		}
		return nil
	})
	if err != nil || total > mostOfAll {
		t.Errorf("%d bytes, %v", total, err)
	}
	eachOldRun(t, func(t *testing.T, dir string) {
		c, err := record.Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		if h := c.Run.Environment.Hostname; h != "example.invalid" {
			t.Errorf("its machine is called %q", h)
		}
		for _, file := range []string{record.RunFile, record.TrialsFile, record.SummaryFile} {
			text, err := os.ReadFile(filepath.Join(dir, file))
			if err != nil {
				t.Fatal(err)
			}
			if path := regexp.MustCompile(`"/(home|root|tmp|work)/[^"]*`).Find(text); path != nil {
				t.Errorf("%s has the path %s", file, path)
			}
		}
	})
}

// TestRemovedSubject: runs of a subject that Tare no longer has are read as before.
func TestRemovedSubject(t *testing.T) {
	const removed = "proxy"
	if kind.Find(kind.Subject, removed) != nil {
		t.Fatalf("there is a subject %s", removed)
	}
	rate, kernel := unpack(t, "mesh-rate"), unpack(t, "mesh-kernel")
	report, err := runReport(rate)
	if err != nil || !strings.Contains(report, ", proxy +23.2 MB") {
		t.Errorf("the report, %v:\n%s", err, report)
	}
	// They are read, and have too few blocks for intervals.
	_, err = ran(t, "compare", kernel, rate, "--anyway")
	if !strings.Contains(fault.HintOf(err), "kernelmesh, proxy, and envoy, haproxy, kernelmesh, nginx, proxy") {
		t.Errorf("the comparison: %v; %s", err, fault.HintOf(err))
	}
}

// TestBriefs compares the report of each built-in experiment with a file, so that a change shows in a diff that can be
// read as a new user would read the report. The report of a run without levels has at most 39 lines, because 'tare run'
// adds one about the page.
func TestBriefs(t *testing.T) {
	eachOldRun(t, func(t *testing.T, dir string) {
		out, err := runReport(dir)
		if err != nil {
			t.Fatal(err)
		}
		out = strings.ReplaceAll(out, dir, "DIR")
		_, name, _ := strings.Cut(t.Name(), "/")
		path := filepath.Join("testdata", "briefs", name+".txt")
		if *update {
			if err := os.WriteFile(path, []byte(out), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil || out != string(want) {
			t.Errorf("%s differs (run the test with -update and read the diff): %v\n%s", path, err, out)
		}
		c, err := record.Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		levels := map[string]bool{}
		for _, p := range c.Run.Plan {
			levels[shownAsJSON(p.Factors)] = true
		}
		if n := strings.Count(out, "\n"); len(levels) == 1 && n >= 40 {
			t.Errorf("%d lines:\n%s", n, out)
		}
		all, err := runReport(dir, "--all")
		if err != nil || len(all) <= len(out) {
			t.Errorf("--all has %d bytes, and without it there are %d: %v", len(all), len(out), err)
		}
	})
}
