package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"tare/test/quiet"
)

// tally counts what came of the checks and tests, and says so as they end.
type tally struct {
	w       io.Writer
	passed  int
	failed  []outcome
	skipped []outcome
}

// outcome is a check or test with the reason for its verdict.
type outcome struct{ name, reason string }

func (t *tally) fail(name, reason string) { t.failed = append(t.failed, outcome{name, reason}) }
func (t *tally) skip(name, reason string) { t.skipped = append(t.skipped, outcome{name, reason}) }

// add adds another tally, and prints what was written to it.
func (t *tally) add(other *tally) {
	fmt.Fprint(t.w, other.w)
	t.passed += other.passed
	t.failed = append(t.failed, other.failed...)
	t.skipped = append(t.skipped, other.skipped...)
}

// close prints the lists and the totals.
func (t *tally) close(took time.Duration) {
	var noisy, lacking []outcome
	for _, o := range t.skipped {
		if strings.HasPrefix(o.reason, quiet.Reason) {
			noisy = append(noisy, o)
		} else {
			lacking = append(lacking, o)
		}
	}
	for _, l := range []struct {
		title    string
		outcomes []outcome
	}{{"Skipped, and why", lacking}, {"Skipped, for the machine was too noisy (run them again when it is not)", noisy}, {"Failed", t.failed}} {
		if len(l.outcomes) == 0 {
			continue
		}
		fmt.Fprintf(t.w, "\n%s:\n", l.title)
		for _, o := range l.outcomes {
			fmt.Fprintf(t.w, "  %s: %s\n", o.name, o.reason)
		}
	}
	fmt.Fprintf(t.w, "\n%d passed, %d failed, %d skipped (%s)\n", t.passed, len(t.failed), len(t.skipped), took.Round(time.Second))
}

// event is one line of `go test -json`: see `go doc test2json`, and `go help buildjson` for the output of the build.
type event struct {
	Time       time.Time
	Action     string
	Package    string
	ImportPath string // of a build event
	Test       string
	Elapsed    float64 // seconds
	Output     string
}

// run is what has been seen of one package.
type run struct {
	tests  map[string]*result
	began  time.Time       // of the first test: before, the package may have waited for its turn
	output strings.Builder // what belongs to no test
}

// result is what has been seen of one test.
type result struct {
	verdict string // pass, fail or skip; empty while it runs
	output  strings.Builder
}

// A test that took this long has its time printed: it shows progress, and where the time goes.
const slow = 2.0 // seconds

// read adds the events of a `go test -json` to the tally until they end.
func (t *tally) read(r io.Reader) error {
	runs := map[string]*run{}
	builds := map[string]*strings.Builder{}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil || e.Action == "" {
			fmt.Fprintln(t.w, lines.Text()) // not an event: go itself has something to say
			continue
		}
		switch e.Action {
		case "build-output":
			if builds[e.ImportPath] == nil {
				builds[e.ImportPath] = &strings.Builder{}
			}
			builds[e.ImportPath].WriteString(e.Output)
			continue
		case "build-fail":
			if b := builds[e.ImportPath]; b != nil {
				fmt.Fprint(t.w, b)
			}
			continue
		}
		p := runs[e.Package]
		if p == nil {
			p = &run{tests: map[string]*result{}}
			runs[e.Package] = p
		}
		t.event(p, e)
	}
	for name, p := range runs {
		if p.tests != nil {
			t.fail(name, "did not end")
		}
	}
	return lines.Err()
}

// event takes one event of a package. At the package's end its tests are counted and p.tests becomes nil.
func (t *tally) event(p *run, e event) {
	if e.Test == "" {
		switch e.Action {
		case "output":
			p.output.WriteString(e.Output)
		case "pass", "fail", "skip":
			t.count(p, e)
			p.tests = nil
		}
		return
	}
	r := p.tests[e.Test]
	if p.began.IsZero() {
		p.began = e.Time
	}
	if r == nil {
		r = &result{}
		p.tests[e.Test] = r
	}
	switch e.Action {
	case "output":
		r.output.WriteString(e.Output)
	case "pass", "fail", "skip":
		r.verdict = e.Action
		if e.Action == "fail" {
			fmt.Fprint(t.w, r.output.String())
		} else if e.Elapsed >= slow && !strings.Contains(e.Test, "/") {
			fmt.Fprintf(t.w, "   %s %s %.1f s\n", e.Action, e.Test, e.Elapsed)
		}
	}
}

// count adds the tests of a package that has ended. A test with subtests counts by these alone, unless its own verdict
// is not explained by any of theirs.
func (t *tally) count(p *run, end event) {
	name := strings.TrimPrefix(end.Package, "tare/")
	passed, failed, skipped := t.passed, len(t.failed), len(t.skipped)
	for _, test := range slices.Sorted(maps.Keys(p.tests)) {
		r := p.tests[test]
		if p.explained(test, r.verdict) {
			continue
		}
		switch r.verdict {
		case "pass":
			t.passed++
		case "skip":
			t.skip(name+" "+test, reason(r.output.String()))
		case "fail":
			t.fail(name+" "+test, "see above")
		default: // the process died under it; the package's own output says how
			fmt.Fprint(t.w, r.output.String(), p.output.String())
			t.fail(name+" "+test, "did not end")
		}
	}
	if end.Action == "fail" && len(t.failed) == failed {
		fmt.Fprint(t.w, p.output.String())
		t.fail(name, cmp.Or(lastLine(p.output.String()), "could not be built"))
	}
	seconds := end.Elapsed
	if !p.began.IsZero() {
		seconds = end.Time.Sub(p.began).Seconds()
	}
	fmt.Fprintf(t.w, "   %-4s %-32s %6.1f s  %d passed, %d failed, %d skipped\n",
		end.Action, name, seconds, t.passed-passed, len(t.failed)-failed, len(t.skipped)-skipped)
}

// explained says whether a test has subtests that account for its verdict.
func (p *run) explained(test, verdict string) bool {
	for other, r := range p.tests {
		if strings.HasPrefix(other, test+"/") && (verdict == "pass" || r.verdict == verdict) {
			return true
		}
	}
	return false
}

// at is the place that the testing package puts before what a test logs.
var at = regexp.MustCompile(`^[\w.-]+\.go:\d+: `)

// reason is what a skipped test said: all that it logged, on one line.
func reason(output string) string {
	var said []string
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "=== ") || strings.HasPrefix(line, "--- ") {
			continue
		}
		said = append(said, at.ReplaceAllString(line, ""))
	}
	return cmp.Or(strings.Join(said, "; "), "no reason given")
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}
