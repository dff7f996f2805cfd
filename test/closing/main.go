// Command closing ends a run of the tests with lists that cannot be overlooked: what was skipped and why, what failed,
// and the totals on the last line. Its arguments are the files in which gotestsum has recorded the events of go test.
// It exits with status 1 if anything failed.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"tare/internal/lib/quantity"
	"tare/test/long"
	"tare/test/quiet"
)

func main() {
	t := &tally{}
	for _, path := range os.Args[1:] {
		if err := t.file(path); err != nil {
			t.failed = append(t.failed, outcome{path, err.Error()})
		}
	}
	t.close(os.Stdout)
	if len(t.failed) > 0 {
		os.Exit(1)
	}
}

// tally counts the results of checks and tests.
type tally struct {
	passed, long           int // long counts the tests of the long suite that did not run
	failed, lacking, noisy []outcome
	hung                   []outcome // tests that did not end, each with the stacks of its goroutines
}

// outcome is a check or test with the reason for its verdict.
type outcome struct{ name, reason string }

// close prints the lists and the totals to w.
func (t *tally) close(w io.Writer) {
	for _, o := range t.hung {
		fmt.Fprintf(w, "\n%s did not end, and was stopped here:\n%s\n", o.name, o.reason)
	}
	for _, l := range []struct {
		title    string
		outcomes []outcome
	}{{"Skipped, and why", t.lacking}, {"Skipped because of noise (run them again without it)", t.noisy},
		{"Failed", t.failed}} {
		if len(l.outcomes) == 0 {
			continue
		}
		fmt.Fprintf(w, "\n%s:\n", l.title)
		for _, o := range l.outcomes {
			fmt.Fprintf(w, "  %s: %s\n", o.name, o.reason)
		}
	}
	if t.long > 0 {
		fmt.Fprintf(w, "\n%d long tests not run: make test-long\n", t.long)
	}
	fmt.Fprintf(w, "\n%d passed, %d failed, %d skipped\n", t.passed, len(t.failed), len(t.lacking)+len(t.noisy))
}

// event is one line of `go test -json`: see `go doc test2json`.
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
}

// result holds the events of one test or, without a test's name, of a package.
type result struct {
	verdict string // pass, fail or skip; empty while it runs
	output  strings.Builder
}

// packageRun holds the results of one package by the names of its tests.
type packageRun map[string]*result

// file adds the results in a file. It reads the whole file before it counts, because events of several packages
// alternate.
func (t *tally) file(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return t.read(f)
}

func (t *tally) read(r io.Reader) error {
	runs := map[string]packageRun{}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("reading an event: %w", err)
		}
		if e.Package == "" { // from a build; if a build fails, the package fails too
			continue
		}
		if runs[e.Package] == nil {
			runs[e.Package] = packageRun{"": {}}
		}
		p := runs[e.Package]
		if p[e.Test] == nil {
			p[e.Test] = &result{}
		}
		switch e.Action {
		case "output":
			p[e.Test].output.WriteString(e.Output)
		case "pass", "fail", "skip":
			p[e.Test].verdict = e.Action
		}
	}
	for _, name := range slices.Sorted(maps.Keys(runs)) {
		t.count(strings.TrimPrefix(name, "tare/"), runs[name])
	}
	return lines.Err()
}

// count adds the tests of a package to the tally. If a test has subtests, only these are counted, unless the test
// failed or was skipped and none of its subtests was.
func (t *tally) count(name string, p packageRun) {
	failed := len(t.failed)
	for _, test := range slices.Sorted(maps.Keys(p)) {
		if test == "" || p.explained(test) {
			continue
		}
		switch r := p[test]; r.verdict {
		case "pass":
			t.passed++
		case "skip":
			t.skip(name+" "+test, reason(r.output.String()))
		case "fail":
			t.failed = append(t.failed, outcome{name + " " + test, "see above"})
		default:
			t.failed = append(t.failed, outcome{name + " " + test, "did not end"})
			if shown := stacks(r.output.String()); shown != "" {
				t.hung = append(t.hung, outcome{name + " " + test, shown})
			}
		}
	}
	if len(t.failed) > failed {
		return
	}
	switch whole := p[""]; whole.verdict {
	case "pass", "skip":
	case "fail":
		t.failed = append(t.failed, outcome{name, cmp.Or(lastLine(whole.output.String()), "could not be built")})
	default:
		t.failed = append(t.failed, outcome{name, "did not end"})
	}
}

func (t *tally) skip(name, reason string) {
	switch {
	case strings.HasPrefix(reason, long.Reason):
		t.long++
	case strings.HasPrefix(reason, quiet.Reason):
		t.noisy = append(t.noisy, outcome{name, reason})
	default:
		t.lacking = append(t.lacking, outcome{name, reason})
	}
}

// explained reports whether a test has subtests that account for its verdict.
func (p packageRun) explained(test string) bool {
	for other, r := range p {
		if strings.HasPrefix(other, test+"/") && (p[test].verdict == "pass" || r.verdict == p[test].verdict) {
			return true
		}
	}
	return false
}

// at matches the file and line that the testing package puts before each line that a test logs.
var at = regexp.MustCompile(`^[\w.-]+\.go:\d+: `)

// reason returns all that a skipped test logged, on one line.
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

// maxStacks is the maximum number of distinct stacks that are printed for a test.
const maxStacks = 40

// stacks returns the stacks of the goroutines that run this project's code, each once, from the output of a test.
// gotestsum prints nothing for a test that has no verdict, and thousands of goroutines may wait at the same place.
func stacks(output string) string {
	var all []string
	times := map[string]int{}
	for block := range strings.SplitSeq(output, "\n\n") {
		head, frames, _ := strings.Cut(strings.TrimSpace(block), "\n")
		if !strings.HasPrefix(head, "goroutine ") || !strings.Contains(frames, "tare/") {
			continue
		}
		var functions []string
		for line := range strings.Lines(frames) {
			functions = append(functions, varying.ReplaceAllString(strings.TrimSuffix(line, "\n"), ""))
		}
		_, state, _ := strings.Cut(head, "[")
		stack := "[" + state + "\n" + strings.Join(functions, "\n")
		if times[stack]++; times[stack] == 1 {
			all = append(all, stack)
		}
	}
	var b strings.Builder
	for _, stack := range all[:min(len(all), maxStacks)] {
		fmt.Fprintf(&b, "%s %s\n", quantity.Counted(times[stack], "goroutine"), stack)
	}
	if left := len(all) - maxStacks; left > 0 {
		fmt.Fprintf(&b, "and %s\n", quantity.Counted(left, "other stack"))
	}
	return strings.TrimRight(b.String(), "\n")
}

// varying matches the parts in which the stacks of goroutines that wait at the same place differ: arguments, offsets,
// and the goroutine that started them.
var varying = regexp.MustCompile(`\([^()*]*\)$| \+0x[0-9a-f]+$| in goroutine \d+$`)

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}
