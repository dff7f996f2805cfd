// Command try tests the promises of tare try repeatedly, and counts how often each held:
//
//	go run ./test/bench/try [-n 20] [-for 1h] [-only planted] [-load connections] [-blocks 6] [-state FILE]
//	go run ./test/bench/try -table
//
// planted tries an agent of known cost (test/agent): its CPU time, its memory and the time that its eBPF program adds
// to each connection must all be within their intervals. nothing tries sleep infinity: no difference may be resolved
// except those of its own memory and start. Each repetition adds a line to the state file, from which an interrupted
// campaign continues.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"tare/internal/experiment/record"
	"tare/internal/results/analysis"
	"tare/test/agent/agent"
	"tare/test/campaign"
)

func main() {
	var c bench
	flag.IntVar(&c.repetitions, "n", 20, "repetitions of each promise")
	flag.StringVar(&c.tare, "tare", "bin/tare", "the binary")
	flag.StringVar(&c.state, "state", "test/bench/try/try.jsonl", "file of what was found, which grows")
	flag.StringVar(&c.load, "load", "connections", "workload; empty: all")
	flag.IntVar(&c.blocks, "blocks", 0, "blocks of each run; 0: as tare try chooses")
	only := flag.String("only", "", "planted or nothing; both when empty")
	length := flag.Duration("for", time.Hour, "start no repetition after this time")
	table := flag.Bool("table", false, "print the counts of what was found, and run nothing")
	flag.Parse()
	err := func() error {
		found, err := campaign.Read[outcome](c.state)
		if err != nil || *table {
			printTable(found)
			return err
		}
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		return c.run(ctx, *only, found, time.Now().Add(*length))
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, "try:", err)
		os.Exit(1)
	}
}

// outcome is one line of the state file.
type outcome struct {
	Promise string    `json:"promise"`
	At      time.Time `json:"at"`
	Load    string    `json:"load"`
	Blocks  int       `json:"blocks"`
	Seed    uint64    `json:"seed"`
	Exit    int       `json:"exit"` // of tare
	Held    bool      `json:"held"`
	Missed  []string  `json:"missed,omitempty"` // what kept it from holding
	Seconds float64   `json:"seconds"`
	// Intervals holds, by metric, the measured value of what was planted and the ends of its interval.
	Intervals map[string][3]float64 `json:"intervals,omitempty"`
}

// promise is a command that is repeated, and a check of each run's summary.
type promise struct {
	name string
	argv []string
	hold func(*analysis.Summary, *outcome)
}

type bench struct {
	tare, state, load string
	blocks            int
	repetitions       int
}

func (c *bench) run(ctx context.Context, only string, found []outcome, deadline time.Time) error {
	dir, err := os.MkdirTemp("", "tare-try-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path, err := agent.Build(dir)
	if err != nil {
		return err
	}
	promises := []promise{
		{"planted", []string{path, "{cgroup_dir}"}, planted},
		{"nothing", []string{"sleep", "infinity"}, nothing},
	}
	done := map[string]int{}
	for _, o := range found {
		done[o.Promise]++
	}
	for i := 1; i <= c.repetitions; i++ { // in rounds, so that a campaign that is cut short has some of each
		for _, p := range promises {
			if done[p.name] >= i || only != "" && only != p.name {
				continue
			}
			if ctx.Err() != nil || time.Now().After(deadline) {
				fmt.Println("the time is up; the same command goes on from here")
				return nil
			}
			o, err := c.repeat(ctx, p, filepath.Join(dir, "run"), uint64(i))
			if ctx.Err() != nil {
				continue // an interrupted repetition is no outcome
			}
			if err != nil {
				return fmt.Errorf("%s, repetition %d: %w", p.name, i, err)
			}
			if err := campaign.Append(c.state, o); err != nil {
				return err
			}
			done[p.name]++
			fmt.Printf("%s %d of %d: held %t, exit code %d, %.0f s %s\n", p.name, i, c.repetitions, o.Held, o.Exit,
				o.Seconds, strings.Join(o.Missed, "; "))
		}
	}
	return nil
}

// repeat tries a command once. It returns an error if tare cannot run at all (exit codes 1 to 3, or a signal); any
// other exit code is an outcome.
func (c *bench) repeat(ctx context.Context, p promise, out string, seed uint64) (o outcome, err error) {
	if err := os.RemoveAll(out); err != nil {
		return o, err
	}
	args := []string{"try", "--json", "--out", out, "--seed", strconv.FormatUint(seed, 10)}
	if c.load != "" {
		args = append(args, "--load", c.load)
	}
	if c.blocks > 0 {
		args = append(args, "--blocks", strconv.Itoa(c.blocks))
	}
	cmd := exec.CommandContext(ctx, c.tare, append(append(args, "--"), p.argv...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 30 * time.Second
	var says strings.Builder
	cmd.Stderr = &says
	began := time.Now()
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return o, err
	}
	o = outcome{Promise: p.name, At: began, Load: c.load, Seed: seed, Exit: cmd.ProcessState.ExitCode(),
		Seconds: time.Since(began).Seconds()}
	if slices.Contains([]int{-1, 1, 2, 3}, o.Exit) {
		return o, fmt.Errorf("tare %v ended with %d: %s", args, o.Exit, says.String())
	}
	text, err := os.ReadFile(filepath.Join(out, record.SummaryFile))
	if err != nil {
		return o, err
	}
	contents, err := record.Read(out)
	if err != nil {
		return o, err
	}
	o.Blocks = contents.Run.Blocks
	var s analysis.Summary
	if err := json.Unmarshal(text, &s); err != nil {
		return o, fmt.Errorf("reading the summary: %w", err)
	}
	if !s.Valid {
		o.Missed = append([]string{"invalid"}, s.InvalidReasons...)
		return o, nil
	}
	p.hold(&s, &o)
	o.Held = len(o.Missed) == 0
	return o, nil
}

// planted notes every planted cost that is outside its measured interval. The eBPF program runs only in the workload
// "connections".
func planted(s *analysis.Summary, o *outcome) {
	o.Intervals = map[string][3]float64{}
	for _, k := range agent.Planted {
		seen := false
		for _, e := range s.Estimates {
			if e.Metric != k.Metric || e.Arm != "planted-agent" ||
				e.Factors["workload"] != "" && e.Factors["workload"] != "connections" {
				continue
			}
			if e.Lo == nil || e.Hi == nil {
				continue
			}
			seen = true
			o.Intervals[k.Metric] = [3]float64{e.Value, *e.Lo, *e.Hi}
			if !k.In(*e.Lo, *e.Hi) {
				o.Missed = append(o.Missed, fmt.Sprintf("%s is %g [%g, %g]", k.Metric, e.Value, *e.Lo, *e.Hi))
			}
		}
		if !seen {
			o.Missed = append(o.Missed, k.Metric+" has no interval")
		}
	}
}

// own holds the prefixes of the metrics in which a command that does nothing differs from no command at all: it uses
// memory, and takes time to start.
var own = []string{"memory_", "rss_", "start_"}

// nothing notes every difference that is resolved, in any metric of any workload, except in the metrics of own.
func nothing(s *analysis.Summary, o *outcome) {
	for _, e := range s.Estimates {
		if e.Arm != "sleep" || e.Difference == nil || !e.Difference.Resolved ||
			slices.ContainsFunc(own, func(prefix string) bool { return strings.HasPrefix(e.Metric, prefix) }) {
			continue
		}
		o.Missed = append(o.Missed, fmt.Sprintf("%s %s: %g, smallest visible %v", e.Metric, e.Factors["workload"],
			e.Difference.Value, deref(e.Difference.SmallestVisible)))
	}
}

func deref(v *float64) float64 {
	if v == nil {
		return 0
	}
	return *v
}

// printTable prints how often each promise held, and what kept it from holding.
func printTable(found []outcome) {
	for _, name := range []string{"planted", "nothing"} {
		held, all := 0, 0
		var missed []string
		for _, o := range found {
			if o.Promise != name {
				continue
			}
			all++
			if o.Held {
				held++
			}
			for _, m := range o.Missed {
				missed = append(missed, fmt.Sprintf("seed %d: %s", o.Seed, m))
			}
		}
		fmt.Printf("%s held in %d of %d\n", name, held, all)
		for _, m := range missed {
			fmt.Println("  " + m)
		}
	}
}
