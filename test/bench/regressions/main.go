// Command regressions repeats a check as in CI on new versions of a tracer, and counts how often its result was right:
//
//	go run ./test/bench/regressions [-neighbour] [-n 20] [-for 1h] [-only cpu] [-state FILE]
//	go run ./test/bench/regressions -table
//
// The new version of a tracer takes 10 % more CPU time for each event (cpu), loses one event in 10,000 (loss), or has
// not changed (same). Each is held against the budgets of one check, on CPU time and on losses: cpu and loss must fail
// it (exit code 5), same must not. The number of blocks is planned beforehand: for CPU time by tare power, from a pilot
// of the old version against itself; for losses the trials are long enough that 99 of 100 runs meet one. With
// -neighbour, pilot and runs share the machine with a neighbour that takes half of every CPU (test/neighbour). Each run
// adds a line to the state file, and an interrupted campaign continues from there.
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
	"strings"
	"syscall"
	"time"

	"tare/internal/results/analysis"
	"tare/test/binary"
	"tare/test/campaign"
	"tare/test/neighbour/neighbour"
)

const (
	metricOfCPU  = "cpu_seconds_per_kiloevent"
	metricOfLoss = "events_lost"
	budget       = 0.05            // allowed CPU time beyond the old version's, as a fraction of it
	planted      = 0.10            // planted CPU time beyond the old version's, as a fraction of it
	lossy        = 1e-4            // fraction of events that the lossy version loses
	rate         = 2000            // events per second
	shortest     = 2 * time.Second // window of a trial
	enough       = 46052           // events in which 99 of 100 runs meet a loss: 1 - (1 - lossy)^enough = 0.99
	pilotBlocks  = 12
	oldWork      = 200 * time.Microsecond // for each event
)

var kinds = []string{"cpu", "loss", "same"}

// outcome is one line of the state file.
type outcome struct {
	Kind      string    `json:"kind"`
	Neighbour bool      `json:"neighbour"`
	At        time.Time `json:"at"`
	Blocks    int       `json:"blocks"`
	Exit      int       `json:"exit"` // of tare
	Caught    bool      `json:"caught"`
	Results   []string  `json:"results"` // of the check's assertions
	Seconds   float64   `json:"seconds"`
}

type bench struct {
	n           int
	neighbour   bool
	tare, state string
	dir         string // for built programs and runs
	tracers     string
}

func main() {
	var c bench
	flag.IntVar(&c.n, "n", 20, "runs of each kind")
	flag.BoolVar(&c.neighbour, "neighbour", false, "run beside a neighbour that takes half of every CPU")
	flag.StringVar(&c.tare, "tare", "bin/tare", "the binary")
	flag.StringVar(&c.state, "state", "test/bench/regressions/regressions.jsonl", "file of what was found, which grows")
	only := flag.String("only", "", "cpu, loss or same; all when empty")
	most := flag.Duration("for", time.Hour, "start no run after this time")
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
		return c.run(ctx, *only, found, time.Now().Add(*most))
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, "regressions:", err)
		os.Exit(1)
	}
}

func printTable(found []outcome) {
	fmt.Println("| machine | planted | runs | failed the check | undecided or invalid | blocks, mean | seconds, mean " +
		"|\n|---|---|---|---|---|---|---|")
	for _, machine := range []string{"quiet", "neighbour"} {
		for _, kind := range kinds {
			runs, caught, open, blocks, seconds := 0, 0, 0, 0, 0.0
			for _, o := range found {
				if o.Kind != kind || o.Neighbour != (machine == "neighbour") {
					continue
				}
				runs++
				blocks, seconds = blocks+o.Blocks, seconds+o.Seconds
				if o.Caught {
					caught++
				}
				if o.Exit == 4 {
					open++
				}
			}
			if runs > 0 {
				fmt.Printf("| %s | %s | %d | %d | %d | %.1f | %.0f |\n", machine, kind, runs, caught, open,
					float64(blocks)/float64(runs), seconds/float64(runs))
			}
		}
	}
}

func (c *bench) run(ctx context.Context, only string, found []outcome, until time.Time) (err error) {
	if c.tare, err = filepath.Abs(c.tare); err != nil {
		return err
	}
	if c.dir, err = os.MkdirTemp("", "tare-regressions-"); err != nil {
		return err
	}
	defer os.RemoveAll(c.dir)
	c.tracers = filepath.Join(c.dir, "tracers")
	if err := binary.Program(c.tracers, "./test/tracers"); err != nil {
		return err
	}
	if c.neighbour {
		command, err := neighbour.Build(c.dir)
		if err != nil {
			return err
		}
		p, err := neighbour.Launch(command, neighbour.Options{For: time.Until(until) + time.Hour,
			Seed: uint64(time.Now().UnixNano())})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, p.Stop()) }()
	}
	blocks, each, err := c.plan(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("an event takes %v; %d blocks are planned\n", each, blocks)
	done := map[string]int{}
	for _, o := range found {
		if o.Neighbour == c.neighbour {
			done[o.Kind]++
		}
	}
	for i := range c.n {
		for _, kind := range kinds {
			if only != "" && kind != only || done[kind] > i {
				continue
			}
			if time.Now().After(until) || ctx.Err() != nil {
				return ctx.Err()
			}
			work, length := "work="+oldWork.String(), shortest
			switch kind {
			case "cpu":
				work = "work=" + (oldWork + time.Duration(planted*float64(each))).String()
			case "loss":
				work = fmt.Sprintf("%s,lose=%g", work, lossy)
				length = max(length, time.Duration(enough*float64(time.Second)/rate/float64(blocks)).Round(time.Millisecond))
			}
			o, err := c.one(ctx, kind, work, blocks, length)
			if err = errors.Join(err, ctx.Err()); err != nil { // an interrupted run shows nothing
				return err
			}
			fmt.Printf("%s: exit %d %v, %.0f s\n", kind, o.Exit, o.Results, o.Seconds)
			if err := campaign.Append(c.state, o); err != nil {
				return err
			}
		}
	}
	return nil
}

// plan weighs the old version against itself, and returns how many blocks the budget takes on this machine, and the CPU
// time of an event.
func (c *bench) plan(ctx context.Context) (blocks int, each time.Duration, err error) {
	out := filepath.Join(c.dir, "pilot")
	if _, _, err := c.weigh(ctx, out, "work="+oldWork.String(), pilotBlocks, shortest); err != nil {
		return 0, 0, err
	}
	text, err := exec.CommandContext(ctx, c.tare, "power", out, "--see", fmt.Sprintf("%g%%", 100*budget),
		"--json").Output()
	if err != nil {
		return 0, 0, fmt.Errorf("planning: %w", err)
	}
	var p analysis.Power
	if err := json.Unmarshal(text, &p); err != nil {
		return 0, 0, fmt.Errorf("reading the plan: %w", err)
	}
	for _, r := range p.Rows {
		if r.Metric == metricOfCPU && len(r.Needs) == 1 && r.Needs[0].Blocks != nil {
			return *r.Needs[0].Blocks, time.Duration(r.Base * 1e6), os.RemoveAll(out) // Base is in s per 1,000 events
		}
	}
	return 0, 0, fmt.Errorf("there is no plan for %s: %s", metricOfCPU, text)
}

func (c *bench) one(ctx context.Context, kind, work string, blocks int, length time.Duration) (outcome, error) {
	out := filepath.Join(c.dir, "run")
	began := time.Now()
	exit, s, err := c.weigh(ctx, out, work, blocks, length)
	if err != nil {
		return outcome{}, err
	}
	o := outcome{Kind: kind, Neighbour: c.neighbour, At: began, Blocks: blocks, Exit: exit,
		Seconds: time.Since(began).Seconds()}
	for _, v := range s.Verdicts {
		o.Results = append(o.Results, string(v.Result))
		planted := kind == "cpu" && strings.HasPrefix(v.Assertion, metricOfCPU) ||
			kind == "loss" && strings.HasPrefix(v.Assertion, metricOfLoss) || kind == "same"
		o.Caught = o.Caught || planted && exit == 5 && v.Result == analysis.Fails
	}
	return o, os.RemoveAll(out)
}

// weigh runs the check with the old version as the baseline.
func (c *bench) weigh(ctx context.Context, out, work string, blocks int,
	length time.Duration) (exit int, s *analysis.Summary, err error) {
	tracer := func(fault string) string {
		return fmt.Sprintf("{subject: command, command: \"%s %s {self} subject exectrace --cgroup={cgroup_dir} "+
			"--ring=64MiB\", "+
			"ready: '^exectrace: ready', lines: '^\\{'}", c.tracers, fault)
	}
	dear := fmt.Sprintf("%s{arm=new} <= +%g%%", metricOfCPU, 100*budget)
	spec := filepath.Join(c.dir, "check.yaml")
	text := fmt.Sprintf(`name: check
question: Has it become worse?
blocks: %d
warmup: 0s
duration: %s
loads: {execs: {kind: exec, rate: %d, workers: 1}}
gates: {rate: 0, lag: 60s, drift: 1000}
baseline: %s
arms: {new: %s}
`, blocks, length, rate, tracer("work="+oldWork.String()), tracer(work))
	if err := os.WriteFile(spec, []byte(text), 0o600); err != nil {
		return 0, nil, err
	}
	cmd := exec.CommandContext(ctx, c.tare, "run", spec, "--out", out, "--json",
		"--assert", dear, "--assert", metricOfLoss+"{arm=new} == 0")
	cmd.Stderr = os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	printed, err := cmd.Output()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		return 0, nil, err
	}
	exit = cmd.ProcessState.ExitCode()
	if exit != 0 && exit != 4 && exit != 5 {
		return exit, nil, fmt.Errorf("tare ended with exit code %d", exit)
	}
	s = &analysis.Summary{}
	if err := json.Unmarshal(printed, s); err != nil {
		return exit, nil, fmt.Errorf("reading the summary: %w", err)
	}
	return exit, s, nil
}
