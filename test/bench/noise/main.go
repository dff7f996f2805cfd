// Command noise tests Tare's promises about noisy machines repeatedly, with or without a neighbour that takes half of
// every CPU, and counts how often each promise held:
//
//	go run ./test/bench/noise [-neighbour] [-n 20] [-for 1h] [-only quickstart,planted] [-state FILE]
//	go run ./test/bench/noise -table [-any]
//
// Each repetition adds a line to the state file, test/bench/noise/noise.jsonl. A campaign that its time limit or a
// signal ended continues from there. -table prints the table of docs/noise.md from that file, with one column each for
// the quiet machine, for the machine beside the neighbour, and for the machine under steal.
package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"tare/internal/scale/host/proc"
	"tare/test/neighbour/neighbour"
)

func main() {
	c := campaign{}
	flag.BoolVar(&c.neighbour, "neighbour", false, "run beside a neighbour that takes half of every CPU")
	flag.IntVar(&c.repetitions, "n", 20, "repetitions of each kind")
	flag.StringVar(&c.tare, "tare", "bin/tare", "the binary")
	flag.StringVar(&c.state, "state", "test/bench/noise/noise.jsonl", "file of what was found, which grows")
	flag.BoolVar(&c.any, "any", false, "count the repetitions of every binary, to go on with a campaign after a change "+
		"that cannot matter to it")
	only := flag.String("only", "", "kinds, separated by commas: "+strings.Join(kindNames(), ", ")+"; all when empty")
	length := flag.Duration("for", time.Hour, "start no repetition after this time")
	table := flag.Bool("table", false, "print the table of what was found, and run nothing")
	flag.Parse()
	err := func() error {
		found, err := read(c.state)
		if err != nil {
			return err
		}
		if *table {
			return printTable(os.Stdout, found, c.any)
		}
		if c.kinds, err = chooseKinds(*only); err != nil {
			return err
		}
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		return c.run(ctx, found, time.Now().Add(*length))
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, "noise:", err)
		os.Exit(1)
	}
}

// outcome is one line of the state file: the result of one repetition of a kind.
type outcome struct {
	Kind string    `json:"kind"`
	At   time.Time `json:"at"`
	// version and hash of the binary; the table has outcomes of several binaries only with -any
	Tare      string             `json:"tare"`
	Neighbour bool               `json:"neighbour"`
	Seconds   float64            `json:"seconds"`
	Stolen    float64            `json:"stolen"`              // part of the machine's CPU time
	Busy      float64            `json:"neighbour_part"`      // part of the machine's CPU time, in the neighbour's bursts
	Exit      int                `json:"exit"`                // of tare
	Held      bool               `json:"held"`                // whether the promise held
	Values    map[string]float64 `json:"values,omitempty"`    // figures of the kind
	Different []string           `json:"different,omitempty"` // metrics of the twins that were called different
	Withheld  string             `json:"withheld,omitempty"`  // why a figure is missing, in tare's own words
}

// stealFrom is the part of the machine's CPU time from which a repetition without the neighbour counts as one under
// steal.
const stealFrom = 0.02

// column returns the table's column for the outcome.
func (o *outcome) column() string {
	switch {
	case o.Neighbour:
		return "neighbour"
	case o.Stolen >= stealFrom:
		return "steal"
	default:
		return "quiet"
	}
}

func read(path string) ([]outcome, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var found []outcome
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		var o outcome
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			fmt.Fprintf(os.Stderr, "noise: %s:%d is no outcome, as of one that was killed while it wrote: %v\n", path, n, err)
			continue
		}
		found = append(found, o)
	}
	return found, lines.Err()
}

// campaign repeats some kinds under one condition, with or without the neighbour.
type campaign struct {
	tare, state string
	neighbour   bool
	any         bool
	repetitions int
	kinds       []kind

	version string
	command string // of the neighbour; empty if there is none
	dir     string // temporary directory for the files of one repetition
}

func (c *campaign) run(ctx context.Context, found []outcome, deadline time.Time) (err error) {
	if c.tare, err = filepath.Abs(c.tare); err != nil {
		return err
	}
	if c.version, err = versionOf(c.tare); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(c.state), 0o755); err != nil {
		return err
	}
	if c.dir, err = os.MkdirTemp("", "tare-noise-"); err != nil {
		return err
	}
	defer os.RemoveAll(c.dir)
	if c.neighbour {
		if c.command, err = neighbour.Build(c.dir); err != nil {
			return err
		}
	}
	done := map[string]int{}
	for _, o := range found {
		if o.Neighbour == c.neighbour && (c.any || o.Tare == c.version) {
			done[o.Kind]++
		}
	}
	// In rounds, so that a campaign that is cut short has some repetitions of each kind.
	for i := 1; i <= c.repetitions; i++ {
		for _, k := range c.kinds {
			if done[k.name] >= i {
				continue
			}
			if ctx.Err() != nil || time.Now().After(deadline) {
				fmt.Println("the time is up; the same command goes on from here")
				return nil
			}
			outcomes, err := c.repeat(ctx, k, uint64(i))
			if ctx.Err() != nil {
				continue // an interrupted repetition is no outcome
			}
			if err != nil {
				return fmt.Errorf("%s, repetition %d: %w", k.name, i, err)
			}
			for _, o := range outcomes {
				if err := c.append(o); err != nil {
					return err
				}
				done[o.Kind]++
				fmt.Printf("%s %d of %d (%s): held %t, exit code %d, %.1f %% stolen, %.0f s, %v %s\n",
					o.Kind, done[o.Kind], c.repetitions, o.column(), o.Held, o.Exit, 100*o.Stolen, o.Seconds, o.Values, o.Withheld)
			}
		}
	}
	return nil
}

func versionOf(tare string) (string, error) {
	program, err := os.ReadFile(tare)
	if err != nil {
		return "", err
	}
	out, err := exec.Command(tare, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", tare, err)
	}
	return fmt.Sprintf("%s %.6x", strings.TrimSpace(string(out)), sha256.Sum256(program)), nil
}

func (c *campaign) append(o outcome) error {
	line, err := json.Marshal(o)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(c.state, os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	if end, err := f.Seek(0, io.SeekEnd); err == nil && end > 0 {
		last := []byte{0}
		if _, err := f.ReadAt(last, end-1); err == nil && last[0] != '\n' {
			line = append([]byte{'\n'}, line...) // the line before was cut short
		}
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

// repeat runs one kind once, with the neighbour around it. Some runs give outcomes of several kinds.
func (c *campaign) repeat(ctx context.Context, k kind, seed uint64) (outcomes []outcome, err error) {
	out := filepath.Join(c.dir, "run")
	if err := os.RemoveAll(out); err != nil {
		return nil, err
	}
	r := &repetition{ctx: ctx, tare: c.tare, out: out, seed: seed, kind: k.name}
	if k.quiet != nil {
		if r.base, err = k.quiet(r); err != nil {
			return nil, err
		}
		if err := os.RemoveAll(out); err != nil {
			return nil, err
		}
	}
	var p *neighbour.Process
	if c.neighbour {
		if p, err = neighbour.Launch(c.command, neighbour.Options{For: time.Hour, Seed: seed}); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, p.Stop()) }()
	}
	before, err := proc.FS{}.Stat()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if outcomes, err = k.run(r); err != nil {
		return nil, err
	}
	after, err := proc.FS{}.Stat()
	if err != nil {
		return nil, err
	}
	seconds := time.Since(began).Seconds()
	capacity, busy := seconds*float64(len(after.Online)), 0.0
	if p != nil {
		if err := p.Stop(); err != nil {
			return nil, err
		}
		busy = neighbour.Taken(p.Bursts(), 0, 1<<62) / capacity
	}
	for i := range outcomes {
		o := &outcomes[i]
		o.At, o.Tare, o.Neighbour, o.Seconds = began.UTC(), c.version, c.neighbour, seconds
		o.Stolen, o.Busy = (after.Steal-before.Steal)/capacity, busy
	}
	return outcomes, nil
}

func chooseKinds(only string) ([]kind, error) {
	if only == "" {
		return kinds, nil
	}
	var chosen []kind
	for name := range strings.SplitSeq(only, ",") {
		i := slices.IndexFunc(kinds, func(k kind) bool { return k.name == name })
		if i < 0 {
			return nil, fmt.Errorf("no kind is called %q; there are %s", name, strings.Join(kindNames(), ", "))
		}
		chosen = append(chosen, kinds[i])
	}
	return chosen, nil
}

func kindNames() (names []string) {
	for _, k := range kinds {
		names = append(names, k.name)
	}
	return names
}
