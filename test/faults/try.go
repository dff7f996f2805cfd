package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"tare/experiments"
	"tare/internal/experiment/record"
	"tare/test/footprint"
)

// Verdict is the effect of one fault on one run. Problems lists what must not happen, whatever fails: the run does not
// end, ends without a documented exit code or without an error, has a finished trial that cannot be read, or leaves
// something behind.
type Verdict struct {
	Seed       uint64   `json:"seed"`
	Experiment string   `json:"experiment"`
	Fault      Fault    `json:"fault"`
	Hit        string   `json:"hit"` // empty if the call was never reached in this run
	Code       int      `json:"code"`
	Said       string   `json:"said"`        // the first line of its error
	Finished   int      `json:"finished"`    // trials, by the progress that it printed
	Readable   int      `json:"readable"`    // trials in the record
	LeftBefore []string `json:"left_before"` // what the runs of a Try left before tare clean; only in its first verdict
	Problems   []string `json:"problems"`
	LeftSome   bool     `json:"-"` // something was left behind, by this run or by another at the same time
	Seconds    float64  `json:"seconds"`
}

var (
	lengths = regexp.MustCompile(`(?m)^(\s*)(duration|warmup): .*$`)
	blocks  = regexp.MustCompile(`(?m)^(\s*)blocks: .*$`)
	trialAt = regexp.MustCompile(`trial (\d+) of (\d+)`)
)

// Short returns the spec of a built-in experiment with windows so short that its figures mean nothing. A run of it
// under faults goes through the same code as any other.
func Short(name string) (string, error) {
	_, text, ok := experiments.File(name)
	if !ok {
		return "", fmt.Errorf("there is no experiment %s", name)
	}
	short := lengths.ReplaceAllStringFunc(string(text), func(line string) string {
		m := lengths.FindStringSubmatch(line)
		length := "200ms"
		if m[2] == "warmup" {
			length = "20ms"
		}
		return m[1] + m[2] + ": " + length
	})
	return blocks.ReplaceAllString(short, "${1}blocks: 1"), nil
}

// limit is how long a short run may take, even on a busy machine.
const limit = 3 * time.Minute

// Count runs an experiment in dir without a fault, counts its calls, and removes dir. The exit code is 0 or, because
// short windows show little, 4; 3 means that this machine cannot run the experiment.
func (r *Runner) Count(ctx context.Context, dir, name string) (*Result, error) {
	args, err := runArgs(dir, name)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	return r.Run(ctx, dir, Fault{}, limit, args...)
}

func runArgs(dir, name string) ([]string, error) {
	text, err := Short(name)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	spec := filepath.Join(dir, "spec.yaml")
	if err := os.WriteFile(spec, []byte(text), 0o600); err != nil {
		return nil, err
	}
	return []string{"run", spec, "--quick", "--seed", "1", "--out", filepath.Join(dir, "run")}, nil
}

// Planned is a fault to make in a run of an experiment.
type Planned struct {
	Experiment string
	Seed       uint64
	Fault      Fault
}

// Try runs experiments, each with its fault, in directories below dir, which it makes and removes, and returns a
// verdict on each. The argument at is the largest number of runs at the same time. When all have ended, Try looks for
// what they left behind, and reports it as a problem of the first. A caller can find the run that left something by
// trying each alone.
func (r *Runner) Try(ctx context.Context, dir string, at int, all ...Planned) ([]*Verdict, error) {
	before, err := footprint.Look()
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	verdicts := make([]*Verdict, len(all))
	var g errgroup.Group
	g.SetLimit(at)
	for i, p := range all {
		g.Go(func() (err error) {
			verdicts[i], err = r.try(ctx, filepath.Join(dir, strconv.Itoa(i)), p)
			return err
		})
	}
	if err := errors.Join(g.Wait(), ctx.Err()); err != nil {
		return nil, err
	}
	first := verdicts[0]
	if first.LeftBefore, err = before.Left(); err != nil {
		return nil, err
	}
	// A killed child may still be doing something during the first clean, so the second counts.
	for range 2 {
		cleaned, err := r.Run(ctx, dir, Fault{}, limit, "clean")
		if err != nil {
			return nil, err
		}
		if cleaned.Code != 0 {
			first.LeftSome = true
			first.problem("tare clean ended with exit code %d: %s", cleaned.Code, firstError(cleaned.Stderr))
		}
		left, err := before.Left()
		if err != nil {
			return nil, err
		}
		if len(left) == 0 {
			break
		}
		first.LeftSome = true
		first.problem("left after tare clean: %s", strings.Join(left, "; "))
	}
	return verdicts, nil
}

// try runs one experiment with a fault, and records how it ended and what can be read.
func (r *Runner) try(ctx context.Context, dir string, p Planned) (*Verdict, error) {
	args, err := runArgs(dir, p.Experiment)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	result, err := r.Run(ctx, dir, p.Fault, limit, args...)
	if err != nil {
		return nil, err
	}
	v := &Verdict{
		Seed: p.Seed, Experiment: p.Experiment, Fault: p.Fault, Hit: result.Hit, Code: result.Code,
		Said:    firstError(result.Stderr),
		Seconds: time.Since(began).Seconds(),
	}
	v.judgeEnd(result)
	v.judgeTrials(filepath.Join(dir, "run"), result)
	return v, nil
}

func (v *Verdict) problem(format string, args ...any) {
	v.Problems = append(v.Problems, fmt.Sprintf(format, args...))
}

// judgeEnd adds the problems with the way in which a run ended.
func (v *Verdict) judgeEnd(r *Result) {
	killed := v.Fault.Kill && r.Hit != ""
	switch {
	case r.TimedOut:
		v.problem("it did not end within %s: %s", limit, clip(r.Stderr))
	case strings.Contains(r.Stderr, "goroutine ") && strings.Contains(r.Stderr, "[running]"):
		v.problem("it panicked: %s", clip(r.Stderr))
	case killed && r.Code == -1:
	case r.Code < 0 || r.Code > 5:
		v.problem("exit code %d is not documented: %s", r.Code, clip(r.Stderr))
	case r.Code == 1:
		v.problem("it calls the fault an internal error: %s", firstError(r.Stderr))
	case r.Code != 0 && v.Said == "":
		v.problem("exit code %d without an error", r.Code)
	}
}

// judgeTrials adds a problem if finished trials were lost.
func (v *Verdict) judgeTrials(dir string, r *Result) {
	for _, m := range trialAt.FindAllStringSubmatch(r.Stderr, -1) {
		if n, err := strconv.Atoi(m[1]); err == nil {
			v.Finished = max(v.Finished, n-1) // the trial announced last had not finished
		}
	}
	if r.Code == 0 || v.Finished > 0 {
		c, err := record.Read(dir)
		if err != nil {
			v.problem("the record cannot be read: %v", err)
			return
		}
		v.Readable = len(c.Trials)
	}
	if v.Readable < v.Finished {
		v.problem("%d trials had finished, and %d can be read", v.Finished, v.Readable)
	}
}

// firstError returns the first error that tare printed.
func firstError(text string) string {
	for line := range strings.Lines(text) {
		if said, ok := strings.CutPrefix(line, "tare: "); ok {
			return strings.TrimSpace(said)
		}
	}
	return ""
}

// clip returns the end of a long text.
func clip(text string) string {
	const most = 2000
	if len(text) > most {
		text = "..." + text[len(text)-most:]
	}
	return text
}
