// Command faults starts many runs, makes one system call of each fail, or kills the run at that call, and reports the
// results:
//
//	go run ./test/bench/faults [-n 2000] [-for 1h] [-at 4] [-only quickstart,mesh-rate] [-state FILE]
//	go run ./test/bench/faults -seed 17 -only quickstart   # the same fault again
//	go run ./test/bench/faults -again [-state FILE]        # those that showed a problem, after a fix
//	go run ./test/bench/faults -table
//
// Each run is a built-in experiment with very short windows. A seed chooses the call and the fault (see test/faults).
// Several runs go on at a time, because they wait more than they work. When these have ended, tare clean must leave
// nothing behind, every finished trial must be readable, and the exit code and the error must be documented ones. If
// something is left behind, each of these runs is repeated alone, to find the one that left it. Each run adds a line to
// the state file, and an interrupted campaign continues from there.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"tare/experiments"
	"tare/test/binary"
	"tare/test/campaign"
	"tare/test/faults"
)

func main() {
	n := flag.Int("n", 2000, "faults in all")
	at := flag.Int("at", 4, "runs at the same time")
	state := flag.String("state", "test/bench/faults/faults.jsonl", "file of what was found, which grows")
	only := flag.String("only", "", "experiments, with commas between them; all when empty")
	most := flag.Duration("for", time.Hour, "start no run after this time")
	seed := flag.Uint64("seed", 0, "make this fault alone, and print all about it")
	again := flag.Bool("again", false, "make those faults again that showed a problem")
	table := flag.Bool("table", false, "print a table of what was found, and run nothing")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := func() error {
		found, err := campaign.Read[faults.Verdict](*state)
		if err != nil || *table {
			printTable(found)
			return err
		}
		names := experiments.Names()
		if *only != "" {
			names = strings.Split(*only, ",")
		}
		c := &bench{state: *state, at: *at, names: names, counts: map[string]map[faults.Class]int{}}
		if c.dir, err = os.MkdirTemp("", "faults-"); err != nil {
			return err
		}
		defer os.RemoveAll(c.dir)
		switch err := c.prepare(); {
		case err != nil:
			return err
		case *again:
			return c.again(ctx, found)
		case *seed > 0:
			return c.one(ctx, *seed)
		}
		return c.run(ctx, found, *n, time.Now().Add(*most))
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		os.Exit(1)
	}
}

type bench struct {
	state  string
	at     int // runs at the same time
	names  []string
	counts map[string]map[faults.Class]int // of system calls, for each experiment that this machine can run
	runner *faults.Runner
	dir    string
}

func (b *bench) prepare() error {
	tare, err := binary.Build(b.dir)
	if err != nil {
		return err
	}
	b.runner, err = faults.New(b.dir, tare)
	return err
}

// one makes the fault that the seed chooses in the first experiment, and prints everything about it.
func (b *bench) one(ctx context.Context, seed uint64) error {
	b.names = b.names[:1]
	if err := b.countAll(ctx); err != nil {
		return err
	}
	_, err := b.alone(ctx, *b.plan(b.names[0], seed))
	return err
}

// alone makes one fault, and prints everything about it.
func (b *bench) alone(ctx context.Context, p faults.Planned) (*faults.Verdict, error) {
	verdicts, err := b.runner.Try(ctx, filepath.Join(b.dir, "try"), 1, p)
	if err != nil {
		return nil, err
	}
	v := verdicts[0]
	fmt.Printf("%s: %s\nhit: %s\nexit code %d: %s\nfinished %d, readable %d\nleft before tare clean: %q\nproblems: %q\n",
		v.Experiment, v.Fault, v.Hit, v.Code, v.Said, v.Finished, v.Readable, v.LeftBefore, v.Problems)
	return v, nil
}

// again repeats the faults that showed a problem the last time that they were made.
func (b *bench) again(ctx context.Context, found []faults.Verdict) error {
	for _, v := range latest(found) {
		if len(v.Problems) == 0 {
			continue
		}
		now, err := b.alone(ctx, faults.Planned{Experiment: v.Experiment, Seed: v.Seed, Fault: v.Fault})
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if now.Hit == "" {
			continue // the system call was not reached, so this attempt shows nothing
		}
		if err := campaign.Append(b.state, now); err != nil {
			return err
		}
	}
	return nil
}

// latest returns the last verdict of each seed, in order of seed.
func latest(found []faults.Verdict) []faults.Verdict {
	bySeed := map[uint64]faults.Verdict{}
	for _, v := range found {
		bySeed[v.Seed] = v
	}
	return slices.SortedFunc(maps.Values(bySeed), func(a, b faults.Verdict) int { return cmp.Compare(a.Seed, b.Seed) })
}

func (b *bench) run(ctx context.Context, found []faults.Verdict, n int, until time.Time) error {
	if err := b.countAll(ctx); err != nil {
		return err
	}
	hits, next := 0, uint64(0)
	for _, v := range latest(found) {
		next = max(next, v.Seed)
		if v.Hit != "" {
			hits++
		}
	}
	for hits < n && time.Now().Before(until) && ctx.Err() == nil {
		var some []faults.Planned
		const turns = 4 // batches of b.at runs between two searches for leftovers
		for len(some) < min(turns*b.at, n-hits) {
			next++
			if p := b.plan(b.names[int(next)%len(b.names)], next); p != nil {
				some = append(some, *p)
			}
		}
		verdicts, err := b.try(ctx, some)
		if ctx.Err() != nil {
			return nil // an interrupted run shows nothing
		}
		if err != nil {
			return err
		}
		for _, v := range verdicts {
			if v.Hit != "" {
				hits++
			}
			if len(v.Problems) > 0 || v.Hit == "" {
				fmt.Printf("seed %d, %s, %s, hit %q: exit code %d, %q\n", v.Seed, v.Experiment, v.Fault, v.Hit, v.Code, v.Problems)
			}
			if err := campaign.Append(b.state, v); err != nil {
				return err
			}
		}
	}
	return nil
}

// try makes faults, several at a time. If something is left behind, it makes each fault again alone to find the one
// that left it.
func (b *bench) try(ctx context.Context, some []faults.Planned) ([]*faults.Verdict, error) {
	dir := filepath.Join(b.dir, "try")
	verdicts, err := b.runner.Try(ctx, dir, b.at, some...)
	if err != nil || len(some) == 1 || !verdicts[0].LeftSome {
		return verdicts, err
	}
	fmt.Printf("seeds %d to %d together: %q; now each alone\n", some[0].Seed, some[len(some)-1].Seed, verdicts[0].Problems)
	for i, p := range some {
		alone, err := b.runner.Try(ctx, dir, 1, p)
		if err != nil {
			return nil, err
		}
		if i > 0 || len(alone[0].Problems) > 0 { // a problem that no fault shows alone stays with the first
			verdicts[i] = alone[0]
		}
	}
	return verdicts, nil
}

// countAll counts the system calls of all experiments. Several run at a time, because some wait most of the time.
func (b *bench) countAll(ctx context.Context) error {
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(b.at)
	for _, name := range b.names {
		g.Go(func() error {
			r, err := b.runner.Count(ctx, filepath.Join(b.dir, "count-"+name), name)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			mu.Lock()
			defer mu.Unlock()
			if r.Code != 0 && r.Code != 4 {
				fmt.Printf("%s cannot be run here, exit code %d: %s\n", name, r.Code, r.Stderr)
				return nil
			}
			b.counts[name] = r.Counts
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if len(b.counts) == 0 {
		return errors.New("none of the experiments can be run here")
	}
	return nil
}

// plan chooses a fault in an experiment, or returns nil if this machine cannot run the experiment.
func (b *bench) plan(name string, seed uint64) *faults.Planned {
	counts := b.counts[name]
	if counts == nil {
		return nil
	}
	return &faults.Planned{Experiment: name, Seed: seed, Fault: faults.Choose(seed, counts)}
}

func printTable(found []faults.Verdict) {
	type tally struct{ faults, kills, missed, problems, mended int }
	had := map[uint64]bool{} // seeds whose fault ever showed a problem
	for _, v := range found {
		had[v.Seed] = had[v.Seed] || len(v.Problems) > 0
	}
	all := map[string]*tally{}
	for _, v := range latest(found) {
		for _, key := range []string{v.Experiment, "all"} {
			t := all[key]
			if t == nil {
				t = &tally{}
				all[key] = t
			}
			switch {
			case v.Hit == "":
				t.missed++
				continue
			case v.Fault.Kill:
				t.kills++
			default:
				t.faults++
			}
			if len(v.Problems) > 0 {
				t.problems++
			} else if had[v.Seed] {
				t.mended++
			}
		}
	}
	fmt.Println("| experiment | failed calls | kill -9 | showed a problem, mended since | show one | place not reached " +
		"|\n|---|---|---|---|---|---|")
	names := slices.SortedFunc(maps.Keys(all), func(a, b string) int {
		return cmp.Or(cmp.Compare(btoi(a == "all"), btoi(b == "all")), cmp.Compare(a, b))
	})
	for _, name := range names {
		t := all[name]
		fmt.Printf("| %s | %d | %d | %d | %d | %d |\n", name, t.faults, t.kills, t.mended, t.problems, t.missed)
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
