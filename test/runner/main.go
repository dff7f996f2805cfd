// Runner runs every check and test of the project, and ends with three lists that cannot be
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
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// staticcheck is run at one version, so that a new one cannot fail an old tree.
const staticcheck = "honnef.co/go/tools/cmd/staticcheck@v0.7.0"

// step is one part of the whole, which adds what came of it to the tally.
type step struct {
	name string
	what string // in a few words
	run  func(ctx context.Context, t *tally) error
	// beside says that it runs beside the steps after it, on the CPU time that these leave.
	beside bool
}

// The steps, cheapest first.
var steps = []step{
	{name: "format", what: "gofmt", run: check("format", gofmt)},
	{name: "vet", what: "go vet", run: check("vet", command("go", "vet", "./...")), beside: true},
	{name: "staticcheck", what: "staticcheck", run: check("staticcheck", command("go", "run", staticcheck, "./...")), beside: true},
	{name: "lines", what: "no line is too long", run: check("lines", longLines)},
	{name: "generated", what: "generated files are those that their sources make", run: check("generated", generated)},
	// Emulated machines take as much CPU time as there is, and the steps after this one leave half of theirs. Three
	// machines at a time: they wait as often as they work, and not all have two processors.
	{name: "vm", what: "virtual machine tests", beside: true,
		run: packages(1, func(p string) bool { return p == "tare/test/vm" }, "-parallel", "3")},
	{name: "pure", what: "tests that only compute", beside: true, run: packages(1, pure)},
	{name: "unit", what: "unit and kernel tests", run: inTurn(
		packages(3, modest),
		packages(1, func(p string) bool { return !outside(p) && !pure(p) && !modest(p) }),
	)},
	{name: "browser", what: "the report in a browser", run: packages(1, func(p string) bool { return p == "tare/test/browser" })},
	// Of its tests those run at the same time that wait more than they work.
	{name: "e2e", what: "end-to-end tests", run: packages(1, func(p string) bool { return p == "tare/test/e2e" }, "-parallel", "4")},
}

// outside says whether a package's tests look at what is finished, in a step of their own, and so come last.
func outside(p string) bool {
	return slices.Contains([]string{"tare/test/browser", "tare/test/vm", "tare/test/e2e"}, p)
}

// pure says whether a package's tests depend on their input alone. They work more than they wait, and come to the same
// however slowly they run.
func pure(p string) bool {
	p = strings.TrimPrefix(p, "tare/internal/")
	return slices.Contains([]string{"results/analysis", "cli", "results/comparison", "experiment/load/running", "experiment/record", "results/report", "lib/stats"}, p)
}

// modest says whether a package's tests measure nothing of the machine, and so can run beside each other: they wait
// more than they work.
func modest(p string) bool {
	p = strings.TrimPrefix(p, "tare/internal/")
	return slices.Contains([]string{"experiment/cluster", "experiment/process", "sandboxes/oci", "experiment/role", "tare/release/provenance", "tare/test/runner"}, p) ||
		p != "mesh/fleet" && p != "mesh/push" && p != "mesh/connect" && strings.HasPrefix(p, "mesh/") && !slices.Contains([]string{"mesh/kernelmesh", "mesh/storebench"}, p)
}

func main() {
	if len(os.Args) > 3 && os.Args[1] == turnCommand {
		fmt.Fprintln(os.Stderr, takeTurn(os.Args[2], os.Args[3:]))
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	chosen, err := choose(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	// Everything is compiled in the one way of `make build`, so that each step finds in Go's cache what the one before
	// has compiled.
	if err := errors.Join(os.Setenv("CGO_ENABLED", "0"), os.Setenv("GOFLAGS", "-trimpath")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	t := &tally{w: os.Stdout}
	began := time.Now()
	var beside []<-chan *tally
	alone := len(slices.DeleteFunc(slices.Clone(chosen), func(s step) bool { return s.beside }))
	for _, s := range chosen {
		if s.beside && alone > 0 {
			fmt.Printf("== %s: %s, beside the steps below; what came of them is printed at the end\n", s.name, s.what)
			beside = append(beside, runBeside(ctx, s))
			continue
		}
		s.into(ctx, t)
		if ctx.Err() != nil {
			t.fail(s.name, "interrupted; the steps after it did not run")
			break
		}
	}
	for _, other := range beside {
		t.add(<-other)
	}
	t.close(time.Since(began))
	if len(t.failed) > 0 {
		os.Exit(1)
	}
}

// into runs the step, and adds to the tally what came of it.
func (s step) into(ctx context.Context, t *tally) {
	fmt.Fprintf(t.w, "== %s: %s\n", s.name, s.what)
	at := time.Now()
	if err := s.run(ctx, t); err != nil {
		t.fail(s.name, err.Error())
	}
	fmt.Fprintf(t.w, "   %s took %s\n", s.name, time.Since(at).Round(100*time.Millisecond))
}

// runBeside starts the step on CPU time that nothing else wants, and gives a tally of its own when it has ended.
func runBeside(ctx context.Context, s step) <-chan *tally {
	done := make(chan *tally, 1)
	go func() {
		t := &tally{w: &strings.Builder{}}
		defer func() { done <- t }()
		// The policy is of this thread and what is started from it, and the thread ends with this function.
		runtime.LockOSThread()
		if err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0); err != nil {
			t.fail(s.name, "leaving the CPUs to the other steps: "+err.Error())
			return
		}
		s.into(ctx, t)
	}()
	return done
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
			fmt.Fprintln(t.w, err)
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

// inTurn makes a step of two, one after the other.
func inTurn(first, second func(context.Context, *tally) error) func(context.Context, *tally) error {
	return func(ctx context.Context, t *tally) error {
		err := first(ctx, t)
		if ctx.Err() != nil {
			return err
		}
		return errors.Join(err, second(ctx, t))
	}
}

// packages makes a step of the tests of some packages, so many packages at a time, with more flags of go test.
func packages(atOnce int, in func(importPath string) bool, flags ...string) func(context.Context, *tally) error {
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
		return gotest(ctx, t, atOnce, slices.Concat(flags, chosen))
	}
}

// gotest runs tests, of which packages are the arguments (flags first), and adds them to the tally as they end.
func gotest(ctx context.Context, t *tally, atOnce int, packages []string) error {
	// Many tests measure the machine or count what is left on it: no more than so many packages run at once, and no result
	// is taken from an earlier run (-count=1). Up to two packages are linked while they run, on what CPU time they leave:
	// linking them all takes a minute. Vet is a step of its own. The time limit is for a test that hangs; no test passes
	// or fails by it otherwise.
	turns, err := openTurns(atOnce)
	if err != nil {
		return err
	}
	defer turns.Close()
	inTurn, err := turns.flag()
	if err != nil {
		return err
	}
	args := slices.Concat([]string{"test", "-json", "-p", strconv.Itoa(atOnce + 2), inTurn, "-toolexec=nice", "-count=1", "-vet=off", "-timeout", "30m"}, packages)
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
