// Command fuzz runs every fuzz test until it has searched for some CPU time in total, and keeps in a file how much each
// has had:
//
//	go run ./test/bench/fuzz [-each 10m] [-slice 2m] [-for 1h] [-at 2] [-only REGEXP] [-state FILE]
//	go run ./test/bench/fuzz -table
//
// It always continues with the tests that have searched least. Searches are compared by CPU time, because other work
// slows a search down. A failing input goes where 'go test -fuzz' puts it, in the package's testdata/fuzz, and every
// run of the test uses it from then on; the inputs that reached new code are in Go's build cache.
package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"tare/test/binary"
	"tare/test/campaign"
)

// found is the result of one search by a fuzz test.
type found struct {
	Package string    `json:"package"` // its directory
	Test    string    `json:"test"`
	At      time.Time `json:"at"`
	Seconds float64   `json:"seconds"` // of CPU time
	Execs   int64     `json:"execs"`
	New     int64     `json:"new"`              // inputs that reached new code
	Failed  string    `json:"failed,omitempty"` // the end of what it printed

	// Starved is the input at which Go took a search for hung, although the test passes with it. At the end of a search,
	// Go gives the process that is minimizing an input one second to stop, which is too short if this process does not
	// get a CPU.
	Starved string `json:"starved,omitempty"`
}

func (f found) name() string { return f.Package + " " + f.Test }

func main() {
	each := flag.Duration("each", 10*time.Minute, "for how long each is to search, in all: CPU time")
	slice := flag.Duration("slice", 2*time.Minute, "for how long one searches until another has its turn: elapsed time")
	most := flag.Duration("for", time.Hour, "begin nothing after this time")
	at := flag.Int("at", 2, "tests at the same time, each on one CPU")
	only := flag.String("only", "", "those whose package and name this matches")
	state := flag.String("state", "test/bench/fuzz/fuzz.jsonl", "file of what was done, which grows")
	table := flag.Bool("table", false, "print for how long each has searched, and search nothing")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := func() error {
		done, err := campaign.Read[found](*state)
		if err != nil {
			return err
		}
		root, err := binary.Root()
		if err != nil {
			return err
		}
		all, err := tests(root)
		if err != nil {
			return err
		}
		if *table {
			return printTable(all, done)
		}
		match, err := regexp.Compile(*only)
		if err != nil {
			return err
		}
		all = slices.DeleteFunc(all, func(t found) bool { return !match.MatchString(t.name()) })
		c := &bench{root: root, state: *state, slice: *slice, each: *each, seconds: map[string]float64{}}
		if c.binaries, err = os.MkdirTemp("", "tare-fuzz-"); err != nil {
			return err
		}
		defer os.RemoveAll(c.binaries)
		if c.cache, err = cache(ctx); err != nil {
			return err
		}
		for _, d := range done {
			c.seconds[d.name()] += d.Seconds
		}
		return c.run(ctx, all, *at, time.Now().Add(*most))
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		os.Exit(1)
	}
}

// shortest is the shortest time for a search: otherwise the remaining time would be used up in ever shorter searches.
const shortest = 10 * time.Second

var fuzzTest = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`)

// tests returns all fuzz tests of the project.
func tests(root string) (all []found, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "node_modules" || strings.HasPrefix(d.Name(), ".") && path != root):
			return fs.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		for _, m := range fuzzTest.FindAllSubmatch(text, -1) {
			all = append(all, found{Package: dir, Test: string(m[1])})
		}
		return err
	})
	if err == nil && len(all) == 0 {
		err = errors.New("there are no fuzz tests")
	}
	return all, err
}

type bench struct {
	root, state     string
	binaries, cache string // directories of the test binaries, and of inputs that reached new code
	slice, each     time.Duration

	compiling sync.Mutex

	mu      sync.Mutex
	seconds map[string]float64 // CPU time for which each test has searched
	busy    map[string]bool
}

func (b *bench) run(ctx context.Context, all []found, at int, until time.Time) error {
	b.busy = map[string]bool{}
	var g errgroup.Group
	for range at {
		g.Go(func() error {
			for time.Now().Before(until) && ctx.Err() == nil {
				t, ok := b.next(all)
				if !ok {
					return nil
				}
				if err := b.search(ctx, t); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// next returns the test that has searched least among those that are not busy and have not searched for long enough.
func (b *bench) next(all []found) (found, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	left := slices.DeleteFunc(slices.Clone(all), func(t found) bool {
		return b.busy[t.name()] || b.seconds[t.name()] >= b.each.Seconds()
	})
	if len(left) == 0 {
		return found{}, false
	}
	t := slices.MinFunc(left, func(x, y found) int { return cmp.Compare(b.seconds[x.name()], b.seconds[y.name()]) })
	b.busy[t.name()] = true
	return t, true
}

// cache is where 'go test -fuzz' keeps inputs that reached new code, of all packages.
func cache(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOCACHE").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOCACHE: %w", err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), "fuzz"), nil
}

// binary returns the path of a package's test binary for fuzzing, and compiles it first if it does not exist.
func (b *bench) binary(ctx context.Context, t found) (string, error) {
	b.compiling.Lock()
	defer b.compiling.Unlock()
	path := filepath.Join(b.binaries, strings.ReplaceAll(t.Package, "/", "-"))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	cmd, err := binary.Go("test", "-c", "-fuzz", "^"+t.Test+"$", "-o", path, "./"+t.Package)
	if err != nil {
		return "", err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("compiling %s: %w: %s", t.name(), err, out)
	}
	return path, nil
}

// progress matches the line that a fuzz test prints every three seconds.
var progress = regexp.MustCompile(`fuzz: elapsed: \S+, execs: (\d+) .*new interesting: (\d+) `)

func (b *bench) search(ctx context.Context, t found) error {
	path, err := b.binary(ctx, t)
	if err != nil {
		return err
	}
	left := b.each - time.Duration(b.seconds[t.name()]*float64(time.Second))
	cmd := exec.CommandContext(ctx, path, "-test.run", "^$", "-test.fuzz", "^"+t.Test+"$", "-test.parallel", "1",
		"-test.fuzztime", max(min(b.slice, left), shortest).String(), "-test.fuzzcachedir",
		filepath.Join(b.cache, "tare", t.Package))
	cmd.Dir, cmd.Env = filepath.Join(b.root, t.Package), append(os.Environ(), "GOMAXPROCS=1")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	out, failure := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return nil
	}
	if cmd.ProcessState != nil { // includes its workers' CPU time, because it waited for them
		t.Seconds = (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
	}
	t.At = time.Now().UTC()
	for _, m := range progress.FindAllSubmatch(out, -1) {
		t.Execs, _ = strconv.ParseInt(string(m[1]), 10, 64) // digits
		t.New, _ = strconv.ParseInt(string(m[2]), 10, 64)
	}
	if failure != nil {
		if t.Starved, err = b.starved(ctx, t, path, out); err != nil {
			return err
		}
		if t.Starved == "" {
			t.Failed = fmt.Sprintf("%v: %s", failure, out[max(0, len(out)-2000):])
		}
	} else if t.Execs == 0 {
		return fmt.Errorf("%s does not say that it searched: %s", t.name(), out)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.busy[t.name()] = false
	b.seconds[t.name()] += t.Seconds
	if t.Failed != "" {
		b.busy[t.name()] = true // another search would find the same failure
		fmt.Printf("%s failed: %s\n", t.name(), t.Failed)
	}
	return campaign.Append(b.state, t)
}

// stopped matches Go's message about a process that did not stop minimizing an input in time.
var stopped = regexp.MustCompile(`hung or terminated unexpectedly while minimizing: EOF\s+Failing input written to (testdata/fuzz/\w+/(\w+))`)

// starved returns the input at which Go took a search for hung, and removes its file, if the test passes with it in 100
// of 100 runs. Otherwise it returns "".
func (b *bench) starved(ctx context.Context, t found, path string, out []byte) (input string, err error) {
	m := stopped.FindSubmatch(out)
	if m == nil {
		return "", nil
	}
	cmd := exec.CommandContext(ctx, path, "-test.run", "^"+t.Test+"$/^"+string(m[2])+"$", "-test.count", "100", "-test.v")
	cmd.Dir = filepath.Join(b.root, t.Package)
	again, err := cmd.CombinedOutput()
	if err != nil || bytes.Count(again, []byte("--- PASS: "+t.Test+"/")) != 100 {
		return "", nil // the input does make the test fail
	}
	file := filepath.Join(cmd.Dir, string(m[1]))
	data, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	return string(data), os.Remove(file)
}

func printTable(all, done []found) error {
	fmt.Println("| package | test | CPU time | inputs | failed |\n|---|---|---|---|---|")
	for _, t := range all {
		failed := 0
		for _, d := range done {
			if d.name() != t.name() {
				continue
			}
			t.Seconds += d.Seconds
			t.Execs += d.Execs
			if d.Failed != "" {
				failed++
			}
		}
		fmt.Printf("| %s | %s | %s | %d | %d |\n", t.Package, t.Test, time.Duration(t.Seconds*1e9).Round(time.Second),
			t.Execs, failed)
	}
	return nil
}
