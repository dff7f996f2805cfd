// Command kernelmesh checks Tare's promise about kernelmesh, that it adds at most 10 us to p50. It compares pairs of
// trials of the same block.
//
// It reads one or more runs of its spec.yaml, whose blocks count together:
//
//	tare run test/bench/kernelmesh/spec.yaml --out DIR
//	go run ./test/bench/kernelmesh DIR...
//	go run ./test/bench/kernelmesh -at client.rate=1000 DIR     # one level of a run of mesh-rate
//
// For each planned trial, the first attempt in which no gate voids the metric counts. A pair is lost where both arms
// ran and one has no value after all attempts. A promise holds if all of its interval is within the bound even with the
// lost pairs at infinity, fails if none of the interval is, and is undecided otherwise. The exit code is 1 if a promise
// fails.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
	"tare/internal/lib/stats"
	"tare/internal/results/analysis"
)

// promise is a bound on the difference between two arms.
type promise struct {
	what       string
	metric     string
	base, arm  string
	most       float64
	unit       string
	multiplier float64 // factor from the metric's unit to the row's unit
	noise      bool    // the row shows the machine's noise, and is not a promise
}

var promises = []promise{
	{"p50 that kernelmesh adds", "latency_p50_seconds", record.Direct, "kernelmesh", 10, "us", 1e6, false},
	{"the same of requests that no stall touched", "latency_running_p50_seconds", record.Direct, "kernelmesh", 10, "us",
		1e6, false},
	{"p50 of the baseline's twin, for the noise", "latency_p50_seconds", record.Direct, record.AA, 10, "us", 1e6, true},
}

func main() {
	at := flag.String("at", "", "count the trials of one level alone, such as client.rate=1000")
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "kernelmesh: name the directories of runs of test/bench/kernelmesh/spec.yaml")
		os.Exit(2)
	}
	failed, err := judge(flag.Args(), *at)
	if err != nil {
		fmt.Fprintln(os.Stderr, "kernelmesh:", err)
		os.Exit(1)
	}
	if failed {
		os.Exit(1)
	}
}

// block is one block of one run.
type block struct{ run, block int }

func (b block) compare(o block) int {
	return cmp.Or(cmp.Compare(b.run, o.run), cmp.Compare(b.block, o.block))
}

// outcomes are the planned trials of all runs.
type outcomes struct {
	ran    map[string]map[block]bool               // by arm
	values map[string]map[string]map[block]measure // by metric and arm
}

// measure is a metric's value in the first attempt in which no gate voids it.
type measure struct {
	value float64
	again bool // an earlier attempt was void
}

// judge reads runs and judges the promises by the trials at the given level, or by all trials if level is empty.
func judge(dirs []string, level string) (failed bool, err error) {
	factor, value, _ := strings.Cut(level, "=")
	all := newOutcomes()
	for i, dir := range dirs {
		c, err := record.Read(dir)
		if err != nil {
			return false, err
		}
		trials := slices.DeleteFunc(c.Trials, func(t record.Trial) bool { return level != "" && t.Factors[factor] != value })
		if level != "" && len(trials) == 0 {
			return false, fmt.Errorf("%s has no trials at %q", dir, level)
		}
		if err := all.add(i, trials, c.Run.Defined()); err != nil {
			return false, fmt.Errorf("%s: %w", dir, err)
		}
	}
	fmt.Println("| what | at most | blocks | lost | measured | with lost pairs at infinity | " +
		"|\n|---|---|---|---|---|---|---|")
	for _, p := range promises {
		line, broken := all.keeps(p)
		fmt.Println(line)
		failed = failed || broken
	}
	fmt.Println("\n| arm | p50 | p99 |\n|---|---|---|")
	for _, arm := range arms {
		fmt.Printf("| %s | %s | %s |\n", arm, all.median("latency_p50_seconds", arm),
			all.median("latency_p99_seconds", arm))
	}
	all.printLosses()
	return failed, nil
}

var arms = []string{record.Direct, record.AA, "kernelmesh"}

func newOutcomes() outcomes {
	return outcomes{ran: map[string]map[block]bool{}, values: map[string]map[string]map[block]measure{}}
}

func (o outcomes) add(run int, trials []record.Trial, defined metric.Set) error {
	trials = slices.Clone(trials)
	slices.SortStableFunc(trials, func(a, b record.Trial) int { return cmp.Compare(a.Attempt, b.Attempt) })
	first := map[string]map[block]int{} // the number of each block's first attempt, by arm
	for _, t := range trials {
		if t.Validity.Failed == record.Interrupted {
			continue // an interrupted trial does not count as an attempt
		}
		at := block{run, t.Block}
		if o.ran[t.Arm] == nil {
			o.ran[t.Arm] = map[block]bool{}
		}
		o.ran[t.Arm][at] = true
		if first[t.Arm] == nil {
			first[t.Arm] = map[block]int{}
		}
		if _, known := first[t.Arm][at]; !known {
			first[t.Arm][at] = t.Attempt
		}
		if t.Validity.Failed != "" {
			fmt.Fprintf(os.Stderr, "trial %d of %s failed: %s\n", t.Index+1, t.Arm, t.Validity.Failed)
			continue
		}
		metrics, err := analysis.Metrics(t, defined)
		if err != nil {
			return fmt.Errorf("reading trial %d: %w", t.Index+1, err)
		}
		for name, value := range metrics {
			if t.Validity.Stands(name) {
				o.take(name, t.Arm, at, measure{value, t.Attempt != first[t.Arm][at]})
			}
		}
	}
	return nil
}

// take keeps a value, unless an earlier attempt gave one.
func (o outcomes) take(metric, arm string, at block, m measure) {
	if o.values[metric] == nil {
		o.values[metric] = map[string]map[block]measure{}
	}
	if o.values[metric][arm] == nil {
		o.values[metric][arm] = map[block]measure{}
	}
	if _, has := o.values[metric][arm][at]; !has {
		o.values[metric][arm][at] = m
	}
}

// pairs returns the values of two arms in the blocks in which both ran, in order of block, and the number of these
// blocks in which an arm has no value.
func (o outcomes) pairs(metric, base, arm string) (pairs []stats.Pair, lost int) {
	for _, at := range slices.SortedFunc(maps.Keys(o.ran[arm]), block.compare) {
		if !o.ran[base][at] {
			continue
		}
		a, ok1 := o.values[metric][base][at]
		b, ok2 := o.values[metric][arm][at]
		if !ok1 || !ok2 {
			lost++
			continue
		}
		pairs = append(pairs, stats.Pair{Base: a.value, Arm: b.value})
	}
	return pairs, lost
}

// keeps returns a row of the table that says whether a promise is kept.
func (o outcomes) keeps(p promise) (row string, broken bool) {
	pairs, lost := o.pairs(p.metric, p.base, p.arm)
	e := stats.Difference(pairs, 1)
	lo, hi, bounded := stats.WorstCaseAt(stats.Differences(pairs), lost, stats.Confidence, 1)
	verdict, measured, worst := "too few blocks", "-", "-"
	if len(pairs) > 0 {
		measured = fmt.Sprintf("%.3g %s", p.multiplier*e.Value, p.unit)
	}
	if e.HasInterval && bounded {
		measured = fmt.Sprintf("%.3g %s [%.3g, %.3g]", p.multiplier*e.Value, p.unit, p.multiplier*e.Lo, p.multiplier*e.Hi)
		lo, hi = p.multiplier*lo, p.multiplier*hi
		worst = fmt.Sprintf("[%.3g, %.3g]", lo, hi)
		switch {
		case hi <= p.most:
			verdict = "holds"
		case lo > p.most:
			verdict, broken = "fails", !p.noise
		default:
			verdict = "undecided"
		}
	}
	return fmt.Sprintf("| %s | %g %s | %d | %d | %s | %s | %s |", p.what, p.most, p.unit, len(pairs), lost,
		measured, worst,
		verdict), broken
}

// printLosses prints, for each arm and each judged metric, in how many of the arm's blocks the metric has no value, and
// in how many its value comes from a later attempt.
func (o outcomes) printLosses() {
	var metrics []string
	for _, p := range promises {
		if !slices.Contains(metrics, p.metric) {
			metrics = append(metrics, p.metric)
		}
	}
	fmt.Print("\n| blocks without a value + with a later attempt's | blocks |")
	for _, m := range metrics {
		fmt.Printf(" `%s` |", m)
	}
	fmt.Print("\n|---|---|")
	for range metrics {
		fmt.Print("---|")
	}
	fmt.Println()
	for _, arm := range arms {
		fmt.Printf("| %s | %d |", arm, len(o.ran[arm]))
		for _, m := range metrics {
			lost, again := o.losses(m, arm)
			fmt.Printf(" %d + %d |", lost, again)
		}
		fmt.Println()
	}
}

func (o outcomes) losses(metric, arm string) (lost, again int) {
	for at := range o.ran[arm] {
		switch m, has := o.values[metric][arm][at]; {
		case !has:
			lost++
		case m.again:
			again++
		}
	}
	return lost, again
}

// median returns an arm's median over all blocks, in us, with its interval where there is one.
func (o outcomes) median(metric, arm string) string {
	var all []float64
	for _, m := range o.values[metric][arm] {
		all = append(all, 1e6*m.value)
	}
	if len(all) == 0 {
		return "-"
	}
	e := stats.Median(all)
	if !e.HasInterval {
		return fmt.Sprintf("%.4g us", e.Value)
	}
	return fmt.Sprintf("%.4g us [%.4g, %.4g]", e.Value, e.Lo, e.Hi)
}
