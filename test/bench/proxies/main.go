// Command proxies judges what Tare promises of its own proxy and of kernelmesh, in pairs of the same block:
//
//   - proxy uses at most twice HAProxy's CPU time for a request;
//   - its p99 is no worse than Envoy's;
//   - kernelmesh adds at most 10 us to p50.
//
// It reads runs of its spec.yaml, as many as are named, whose blocks count together:
//
//	tare run test/bench/proxies/spec.yaml --out DIR
//	go run ./test/bench/proxies DIR...
//
// A promise holds if the whole interval keeps it, and fails if none of it does; else the blocks do not decide it. It
// ends with 1 where one fails.
package main

import (
	"fmt"
	"os"

	"tare/internal/analysis"
	"tare/internal/record"
	"tare/internal/stats"
)

// promise is a bound on what one arm has over another: a ratio, or a difference.
type promise struct {
	what       string
	metric     string
	base, arm  string
	ratio      bool
	most       float64
	unit       string
	multiplier float64 // of the metric's unit
	noise      bool    // it is of the machine, and no promise
}

const (
	cpu  = "subject_cpu_seconds_per_request"
	busy = "busy_cpu_seconds_per_request"
)

var promises = []promise{
	{"CPU time of proxy's own for a request, over HAProxy's", cpu, "haproxy", "proxy", true, 2, "times", 1, false},
	{"CPU time of the machine for a request, over HAProxy's", busy, "haproxy", "proxy", true, 2, "times", 1, false},
	{"p99 of proxy less Envoy's", "latency_p99_seconds", "envoy", "proxy", false, 0, "us", 1e6, false},
	{"the same of requests that no stall touched", "latency_running_p99_seconds", "envoy", "proxy", false, 0, "us", 1e6, false},
	{"p50 that kernelmesh adds", "latency_p50_seconds", record.Direct, "kernelmesh", false, 10, "us", 1e6, false},
	{"the same of requests that no stall touched", "latency_running_p50_seconds", record.Direct, "kernelmesh", false, 10,
		"us", 1e6, false},
	{"p50 of the baseline's twin, for the noise", "latency_p50_seconds", record.Direct, record.AA, false, 10, "us", 1e6,
		true},
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "proxies: name the directories of runs of test/bench/proxies/spec.yaml")
		os.Exit(2)
	}
	failed, err := judge(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "proxies:", err)
		os.Exit(1)
	}
	if failed {
		os.Exit(1)
	}
}

// block is one block of one run.
type block struct{ run, block int }

// values are those of each arm by metric, of trials that stand. Where one was run again, the last that stands counts.
type values map[string]map[string]map[block]float64

func judge(dirs []string) (failed bool, err error) {
	all := values{}
	for i, dir := range dirs {
		if err := all.add(i, dir); err != nil {
			return false, err
		}
	}
	fmt.Println("| what | at most | blocks | measured | |\n|---|---|---|---|---|")
	for _, p := range promises {
		line, broken := all.keeps(p)
		fmt.Println(line)
		failed = failed || broken
	}
	fmt.Println("\n| arm | p50 | p99 | CPU time of the subject's own for a request |\n|---|---|---|---|")
	for _, arm := range []string{record.Direct, "envoy", "haproxy", "proxy", "kernelmesh"} {
		fmt.Printf("| %s | %s | %s | %s |\n", arm, all.median("latency_p50_seconds", arm),
			all.median("latency_p99_seconds", arm), all.median(cpu, arm))
	}
	return failed, nil
}

func (v values) add(run int, dir string) error {
	c, err := record.Read(dir)
	if err != nil {
		return err
	}
	for _, t := range c.Trials {
		if t.Validity.Failed != "" {
			fmt.Fprintf(os.Stderr, "%s: trial %d of %s failed: %s\n", dir, t.Index+1, t.Arm, t.Validity.Failed)
			continue
		}
		metrics, err := analysis.Metrics(t, c.Run.Defined())
		if err != nil {
			return fmt.Errorf("reading trial %d of %s: %w", t.Index+1, dir, err)
		}
		for name, value := range metrics {
			if !t.Validity.Stands(name) {
				continue
			}
			if v[name] == nil {
				v[name] = map[string]map[block]float64{}
			}
			if v[name][t.Arm] == nil {
				v[name][t.Arm] = map[block]float64{}
			}
			v[name][t.Arm][block{run, t.Block}] = value
		}
	}
	return nil
}

// keeps says in a row of a table whether a promise is kept.
func (v values) keeps(p promise) (row string, broken bool) {
	var pairs []stats.Pair
	for b, base := range v[p.metric][p.base] {
		if arm, ok := v[p.metric][p.arm][b]; ok {
			pairs = append(pairs, stats.Pair{Base: base, Arm: arm})
		}
	}
	e := stats.Difference(pairs, 1)
	if p.ratio {
		var ok bool
		if e, ok = stats.Ratio(pairs, 1); !ok {
			e = stats.Estimate{}
		}
	}
	verdict, measured := "too few blocks", "-"
	if len(pairs) > 0 {
		measured = fmt.Sprintf("%.3g %s", p.multiplier*e.Value, p.unit)
	}
	if e.HasInterval {
		lo, hi := p.multiplier*e.Lo, p.multiplier*e.Hi
		measured = fmt.Sprintf("%.3g %s [%.3g, %.3g]", p.multiplier*e.Value, p.unit, lo, hi)
		switch {
		case hi <= p.most:
			verdict = "holds"
		case lo > p.most:
			verdict, broken = "fails", !p.noise
		default:
			verdict = "undecided"
		}
	}
	return fmt.Sprintf("| %s | %g %s | %d | %s | %s |", p.what, p.most, p.unit, len(pairs), measured, verdict), broken
}

// median is that of an arm over all blocks, in us, with its interval where there is one.
func (v values) median(metric, arm string) string {
	var all []float64
	for _, value := range v[metric][arm] {
		all = append(all, 1e6*value)
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
