// Runner runs every check and test of the project, one after the other, and ends with three lists that cannot be
// overlooked: what failed, what was skipped and why, and the totals. A check that cannot run here is on the second
// list; nothing passes in silence.
//
//	go run ./test/runner              everything
//	go run ./test/runner vet unit     these steps alone
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// staticcheck is run at one version, so that a new one cannot fail an old tree.
const staticcheck = "honnef.co/go/tools/cmd/staticcheck@v0.7.0"

// step is one part of the whole, which adds what came of it to the tally.
type step struct {
	name string
	what string // in a few words
	run  func(ctx context.Context, t *tally) error
}

// The steps, cheapest first.
var steps = []step{
	{"format", "gofmt", check("format", gofmt)},
	{"vet", "go vet", check("vet", command("go", "vet", "./..."))},
	{"staticcheck", "staticcheck", check("staticcheck", command("go", "run", staticcheck, "./..."))},
	{"lines", "no line is too long", check("lines", longLines)},
	{"generated", "generated files are those that their sources make", check("generated", generated)},
	{"unit", "unit and kernel tests", packages(func(p string) bool { return !outside(p) })},
	{"browser", "the report in a browser", packages(func(p string) bool { return p == "tare/test/browser" })},
	// Three machines at a time: they wait as often as they work, and not all have two processors.
	{"vm", "virtual machine tests", packages(func(p string) bool { return p == "tare/test/vm" }, "-parallel", "3")},
	{"e2e", "end-to-end tests", packages(func(p string) bool { return p == "tare/test/e2e" })},
}

// outside says whether a package's tests look at what is finished, in a step of their own, and so come last.
func outside(p string) bool {
	return slices.Contains([]string{"tare/test/browser", "tare/test/vm", "tare/test/e2e"}, p)
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	chosen, err := choose(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	// Everything is compiled in the one way of `make build`, so that each step finds in Go's cache what the one before
	// has compiled.
	if err := errors.Join(os.Setenv("CGO_ENABLED", "0"), os.Setenv("GOFLAGS", "-trimpath -ldflags=-w")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	t := &tally{w: os.Stdout}
	began := time.Now()
	for _, s := range chosen {
		fmt.Printf("== %s: %s\n", s.name, s.what)
		at := time.Now()
		if err := s.run(ctx, t); err != nil {
			t.fail(s.name, err.Error())
		}
		fmt.Printf("   %s took %s\n", s.name, time.Since(at).Round(100*time.Millisecond))
		if ctx.Err() != nil {
			t.fail(s.name, "interrupted; the steps after it did not run")
			break
		}
	}
	t.close(time.Since(began))
	if len(t.failed) > 0 {
		os.Exit(1)
	}
}

// choose returns the steps of the given names, in their own order; all of them for no name.
func choose(names []string) ([]step, error) {
	if len(names) == 0 {
		return steps, nil
	}
	var known []string
	var chosen []step
	for _, s := range steps {
		known = append(known, s.name)
		if slices.Contains(names, s.name) {
			chosen = append(chosen, s)
		}
	}
	for _, n := range names {
		if !slices.Contains(known, n) {
			return nil, fmt.Errorf("no step is called %q; there are %s", n, strings.Join(known, ", "))
		}
	}
	return chosen, nil
}

// errSkip is wrapped by a check that cannot run here; its text is the reason.
var errSkip = errors.New("skipped")

// check makes a step of something that passes or fails as one.
func check(name string, f func(context.Context) error) func(context.Context, *tally) error {
	return func(ctx context.Context, t *tally) error {
		err := f(ctx)
		switch {
		case err == nil:
			t.passed++
		case errors.Is(err, errSkip):
			t.skip(name, err.Error())
		default:
			fmt.Println(err)
			t.fail(name, "see above")
		}
		return nil
	}
}

// command makes a check of a command: what it prints is the failure.
func command(name string, args ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
		}
		return nil
	}
}

func gofmt(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "gofmt", "-l", ".").CombinedOutput()
	if err != nil {
		return fmt.Errorf("gofmt: %w\n%s", err, out)
	}
	if len(out) > 0 {
		return fmt.Errorf("these files are not formatted; run gofmt -w on them:\n%s", strings.TrimSpace(string(out)))
	}
	return nil
}

// packages makes a step of the tests of some packages, with more flags of go test.
func packages(in func(importPath string) bool, flags ...string) func(context.Context, *tally) error {
	return func(ctx context.Context, t *tally) error {
		out, err := exec.CommandContext(ctx, "go", "list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}", "./...").Output()
		if err != nil {
			return fmt.Errorf("listing the packages: %w", err)
		}
		var chosen []string
		for p := range strings.FieldsSeq(string(out)) {
			if in(p) {
				chosen = append(chosen, p)
			}
		}
		if len(chosen) == 0 {
			t.skip("go test", "there are no such packages")
			return nil
		}
		return gotest(ctx, t, slices.Concat(flags, chosen))
	}
}

// gotest runs tests, of which packages are the arguments (flags first), and adds them to the tally as they end.
func gotest(ctx context.Context, t *tally, packages []string) error {
	// Many tests measure the machine or count what is left on it, so no two packages run at once (-p 1), and no result
	// is taken from an earlier run (-count=1). Vet is a step of its own. The time limit is for a test that hangs; no
	// test passes or fails by it otherwise.
	args := append([]string{"test", "-json", "-p", "1", "-count=1", "-vet=off", "-timeout", "20m"}, packages...)
	cmd := exec.CommandContext(ctx, "go", args...)
	// At an interrupt go test ends its tests, reports what they came to, and exits; only then is it killed.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 20 * time.Second
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("running go test: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("running go test: %w", err)
	}
	before := len(t.failed)
	readErr := t.read(stdout)
	if readErr != nil {
		_, _ = io.Copy(io.Discard, stdout) // or go test would block on a full pipe
	}
	err = cmd.Wait()
	if readErr != nil {
		return fmt.Errorf("reading what go test printed: %w", readErr)
	}
	// A failing test is in the tally; an exit code without one is a failure of go test itself.
	if err != nil && len(t.failed) == before {
		return fmt.Errorf("running go test: %w", err)
	}
	return nil
}
