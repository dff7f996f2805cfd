// Command definitions evaluates the trials of one recorded run by different definitions of "p99" and of "CPU per
// request rate", Tare's among them, to show what the definition alone does to a number. testdata/tables.md is its
// output for the run in testdata, and docs/experiments/mesh-rate.md draws the conclusions.
//
//	go run ./test/bench/definitions [-arm envoy] [RUN-DIR]
//
// RUN-DIR may be a run of any experiment, such as mesh-rate, whose only factor is the rate of its only load, and in
// which one arm has a proxy in the path of requests.
package main

import (
	"cmp"
	"compress/gzip"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/internal/experiment/load"
	"tare/internal/experiment/record"
	"tare/internal/lib/stats"
)

func main() {
	arm := flag.String("arm", "envoy", "the arm")
	flag.Parse()
	dir := "test/bench/definitions/testdata/run"
	if flag.NArg() > 0 {
		dir = flag.Arg(0)
	}
	if err := evaluate(os.Stdout, dir, *arm); err != nil {
		fmt.Fprintln(os.Stderr, "definitions:", err)
		os.Exit(1)
	}
}

// evaluate prints the tables of a run.
func evaluate(w io.Writer, dir, arm string) error {
	r, err := read(dir)
	if err != nil {
		return err
	}
	if len(r.rates) < 3 || len(r.spent[place{r.rates[0], arm}]) == 0 {
		return fmt.Errorf("%s is no run of the arm %s at several rates", dir, arm)
	}
	for _, table := range []func(io.Writer, *run, string) error{latency, otherDay, cpu} {
		if err := table(w, r, arm); err != nil {
			return err
		}
	}
	return document(w)
}

// place is an arm at a rate, in requests per second.
type place struct {
	rate float64
	arm  string
}

// run holds the trials of a recorded run that count, in order of block: of each planned trial, the first attempt whose
// latency no gate voids (timed), and the first attempt whose subject CPU time no gate voids (spent).
type run struct {
	rates        []float64
	timed, spent map[place][]trial
	lost         map[place]int // planned trials without an attempt in timed
}

// trial is one attempt.
type trial struct {
	block      int
	histograms map[string]*hdrhistogram.Histogram // in nanoseconds
	metrics    map[string]float64
	components map[string]map[string]float64
	rate       float64 // answered requests per second
}

func read(dir string) (*run, error) {
	plain, err := unpacked(dir)
	if err != nil {
		return nil, err
	}
	if plain != dir {
		defer os.RemoveAll(plain)
	}
	c, err := record.Read(plain)
	if err != nil {
		return nil, err
	}
	r := &run{timed: map[place][]trial{}, spent: map[place][]trial{}, lost: map[place]int{}}
	blocks := map[place]map[int]bool{}
	for _, t := range c.Trials {
		if t.Validity.Failed != "" || len(t.Loads) != 1 || len(t.Factors) != 1 {
			continue
		}
		one := trial{block: t.Block, metrics: t.Metrics, components: t.Components,
			histograms: map[string]*hdrhistogram.Histogram{}}
		at := place{arm: t.Arm}
		for _, l := range t.Loads {
			at.rate, one.rate = l.TargetRate, l.Rate
			for _, name := range []string{load.Latency, load.Service, load.LatencyRunning} {
				if l.Histograms[name] == "" {
					continue // the trial did not record which requests a stall touched
				}
				if one.histograms[name], err = stats.DecodeHistogram(l.Histograms[name]); err != nil {
					return nil, fmt.Errorf("trial %d: %w", t.Index, err)
				}
			}
		}
		if !slices.Contains(r.rates, at.rate) {
			r.rates = append(r.rates, at.rate)
		}
		if blocks[at] == nil {
			blocks[at] = map[int]bool{}
		}
		blocks[at][t.Block] = true
		for metric, into := range map[string]map[place][]trial{
			"latency_p50_seconds": r.timed, "subject_cpus": r.spent,
		} {
			same := func(o trial) bool { return o.block == t.Block }
			if t.Validity.Stands(metric) && !slices.ContainsFunc(into[at], same) {
				into[at] = append(into[at], one)
			}
		}
	}
	slices.Sort(r.rates)
	for _, trials := range []map[place][]trial{r.timed, r.spent} {
		for _, all := range trials {
			slices.SortFunc(all, func(a, b trial) int { return cmp.Compare(a.block, b.block) })
		}
	}
	for at, all := range blocks {
		r.lost[at] = len(all) - len(r.timed[at])
	}
	return r, nil
}

// unpacked returns dir, or, if its files are compressed, a temporary copy of it as tare run writes it.
func unpacked(dir string) (_ string, err error) {
	if _, err := os.Stat(filepath.Join(dir, record.RunFile+".gz")); errors.Is(err, fs.ErrNotExist) {
		return dir, nil
	}
	to, err := os.MkdirTemp("", "tare-definitions-")
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(to)
		}
	}()
	for _, name := range []string{record.RunFile, record.TrialsFile} {
		if err := gunzip(filepath.Join(dir, name+".gz"), filepath.Join(to, name)); err != nil {
			return "", err
		}
	}
	return to, nil
}

func gunzip(from, to string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	r, err := gzip.NewReader(f)
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	return os.WriteFile(to, text, 0o600)
}

// bounds are the upper bounds, in milliseconds, of the buckets in which Envoy reports times to Prometheus by default
// (Envoy's documentation of config.metrics.v3.HistogramBucketSettings, and histogram_impl.cc).
var bounds = []float64{
	0.5, 1, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000, 300_000, 600_000, 1_800_000, 3_600_000,
}

// histogramQuantile computes a quantile, in milliseconds, as Prometheus does for classic histograms: as if the values
// in a bucket were evenly spread (promql/quantile.go, bucketQuantile).
func histogramQuantile(q float64, h *hdrhistogram.Histogram) float64 {
	count := make([]float64, len(bounds)+1) // cumulative; the last is +Inf
	for _, bar := range h.Distribution() {
		for i := range count {
			if i == len(bounds) || float64(bar.To)/1e6 <= bounds[i] {
				count[i] += float64(bar.Count)
			}
		}
	}
	rank := q * count[len(bounds)]
	i := slices.IndexFunc(count, func(n float64) bool { return n >= rank })
	if i == len(bounds) {
		return bounds[i-1]
	}
	from, below := 0.0, 0.0
	if i > 0 {
		from, below = bounds[i-1], count[i-1]
	}
	return from + (bounds[i]-from)*(rank-below)/(count[i]-below)
}

// pooled merges the trials' histograms of one name into one.
func pooled(of []trial, name string) (*hdrhistogram.Histogram, error) {
	var all []*hdrhistogram.Histogram
	for _, t := range of {
		if h := t.histograms[name]; h != nil {
			all = append(all, h)
		}
	}
	return stats.MergeHistograms(all...)
}

// p99 returns the 99th percentile in milliseconds, even if very few requests lie beyond it.
func p99(h *hdrhistogram.Histogram) float64 { return float64(h.ValueAtQuantile(99)) / 1e6 }

// each returns the p99 of each trial, in milliseconds.
func each(of []trial) (all []float64) {
	for _, t := range of {
		all = append(all, p99(t.histograms[load.Latency]))
	}
	return all
}

func mean(xs []float64) float64 {
	sum := 0.0
	for _, x := range xs {
		sum += x
	}
	return sum / float64(len(xs))
}

// thin reports whether there are too few requests for Tare to give a p99: in at least one trial if name is empty, and
// otherwise in the merged histogram of that name.
func thin(of []trial, name string) bool {
	if name == "" {
		return enough(of) < len(of)
	}
	if name == load.LatencyRunning {
		name = load.Latency // the counts of LatencyRunning are weights, not numbers of requests
	}
	h, err := pooled(of, name)
	if err != nil {
		return true
	}
	_, ok := stats.Quantile(h, 0.99)
	return !ok
}

// enough returns how many of the trials have enough requests for Tare to give a p99.
func enough(of []trial) (n int) {
	for _, t := range of {
		if _, ok := stats.Quantile(t.histograms[load.Latency], 0.99); ok {
			n++
		}
	}
	return n
}

// definitions are what "p99" can mean, in milliseconds.
var definitions = []struct {
	name   string
	pooled string // the histogram that it is computed from; empty if computed from each trial's p99
	of     func([]trial) (float64, error)
}{
	{"all requests in one histogram", load.Latency, func(of []trial) (float64, error) {
		h, err := pooled(of, load.Latency)
		return p99(h), err
	}},
	{"mean of each trial's p99", "", func(of []trial) (float64, error) { return mean(each(of)), nil }},
	{"median of each trial's p99", "", func(of []trial) (float64, error) { return stats.Median(each(of)).Value, nil }},
	{"largest of each trial's p99", "", func(of []trial) (float64, error) { return slices.Max(each(of)), nil }},
	{"`histogram_quantile` over Envoy's buckets", load.Latency, func(of []trial) (float64, error) {
		h, err := pooled(of, load.Latency)
		return histogramQuantile(0.99, h), err
	}},
	{"all requests, from when each was sent", load.Service, func(of []trial) (float64, error) {
		h, err := pooled(of, load.Service)
		return p99(h), err
	}},
	{"requests that no stall of the machine touched", load.LatencyRunning, func(of []trial) (float64, error) {
		h, err := pooled(of, load.LatencyRunning)
		return p99(h), err
	}},
}

// header begins a table with a column for each rate.
func header(w io.Writer, first string, rates []float64) {
	fmt.Fprintf(w, "| %s |", first)
	for _, rate := range rates {
		fmt.Fprintf(w, " %s/s |", strconv.FormatFloat(rate, 'f', -1, 64))
	}
	fmt.Fprint(w, "\n|---|")
	for range rates {
		fmt.Fprint(w, "---|")
	}
	fmt.Fprintln(w)
}

// latency prints p99 without and with the arm, and the difference, by each definition.
func latency(w io.Writer, r *run, arm string) error {
	header(w, "p99 in ms: without, with, difference", r.rates)
	for _, d := range definitions {
		fmt.Fprintf(w, "| %s |", d.name)
		for _, rate := range r.rates {
			if len(r.timed[place{rate, record.Direct}]) == 0 || len(r.timed[place{rate, arm}]) == 0 {
				fmt.Fprint(w, " |") // gates void all trials without or with the arm
				continue
			}
			base, err := d.of(r.timed[place{rate, record.Direct}])
			if err != nil {
				return err
			}
			with, err := d.of(r.timed[place{rate, arm}])
			if err != nil {
				return err
			}
			few := ""
			if thin(r.timed[place{rate, record.Direct}], d.pooled) || thin(r.timed[place{rate, arm}], d.pooled) {
				few = " (few)"
			}
			fmt.Fprintf(w, " %.2f, %.2f, **%+.2f**%s |", base, with, with-base, few)
		}
		fmt.Fprintln(w)
	}
	var left, reported []string
	for _, rate := range r.rates {
		base, with := place{rate, record.Direct}, place{rate, arm}
		left = append(left, fmt.Sprintf("%d of %d, %d of %d", len(r.timed[base]), len(r.timed[base])+r.lost[base],
			len(r.timed[with]), len(r.timed[with])+r.lost[with]))
		reported = append(reported, fmt.Sprintf("%d of %d, %d of %d", enough(r.timed[base]), len(r.timed[base]),
			enough(r.timed[with]), len(r.timed[with])))
	}
	row(w, "trials whose latency no gate voids", left)
	row(w, "trials with enough requests for a p99 of their own", reported)
	fmt.Fprintln(w)
	return nil
}

// otherDay prints the paired difference of p99 over blocks, and the range of the differences between single trials:
// between a trial and the baseline of its own block, and between a trial and the baseline of another block, which
// stands for a measurement on another day.
func otherDay(w io.Writer, r *run, arm string) error {
	header(w, "p99 with less without, in ms", r.rates)
	var over, same, other []string
	for _, rate := range r.rates {
		base, with := r.timed[place{rate, record.Direct}], r.timed[place{rate, arm}]
		var paired, crossed []float64
		for _, b := range base {
			for _, a := range with {
				d := p99(a.histograms[load.Latency]) - p99(b.histograms[load.Latency])
				if a.block == b.block {
					paired = append(paired, d)
				} else {
					crossed = append(crossed, d)
				}
			}
		}
		if len(paired) == 0 || len(crossed) == 0 {
			over, same, other = append(over, ""), append(same, ""), append(other, "")
			continue
		}
		e := stats.PseudoMedian(paired, 1)
		interval := ""
		if e.HasInterval {
			interval = fmt.Sprintf(" [%.2f, %.2f]", e.Lo, e.Hi)
		}
		over = append(over, fmt.Sprintf("%.2f%s", e.Value, interval))
		same = append(same, fmt.Sprintf("%.2f to %.2f", slices.Min(paired), slices.Max(paired)))
		other = append(other, fmt.Sprintf("%.2f to %.2f", slices.Min(crossed), slices.Max(crossed)))
	}
	row(w, "baseline of the same block, over blocks", over)
	row(w, "one trial and the baseline of its own block", same)
	row(w, "one trial and the baseline of another block", other)
	fmt.Fprintln(w)
	return nil
}

func row(w io.Writer, name string, cells []string) {
	fmt.Fprintf(w, "| %s |", name)
	for _, c := range cells {
		fmt.Fprintf(w, " %s |", c)
	}
	fmt.Fprintln(w)
}

// accounts lists the processes whose CPU time is counted, in CPUs.
var accounts = []struct {
	name string
	of   func(trial) (float64, bool)
}{
	{"the server's sidecar", component("proxy.server")},
	{"both sidecars", func(t trial) (float64, bool) {
		a, ok1 := component("proxy.client")(t)
		b, ok2 := component("proxy.server")(t)
		return a + b, ok1 && ok2
	}},
	{"sidecars, application and load", perRequest("cpu_seconds_per_request")},
	{"the machine, without others and Tare", perRequest("busy_cpu_seconds_per_request")},
}

func component(name string) func(trial) (float64, bool) {
	return func(t trial) (float64, bool) {
		v, ok := t.components[name]["subject_cpus"]
		return v, ok
	}
}

func perRequest(metric string) func(trial) (float64, bool) {
	return func(t trial) (float64, bool) {
		v, ok := t.metrics[metric]
		return v * t.rate, ok
	}
}

// cpu prints CPUs per 1,000 requests/s, for each entry of accounts and each way to divide CPUs by the rate.
func cpu(w io.Writer, r *run, arm string) error {
	header(w, "CPUs per 1,000 requests/s", r.rates)
	for _, account := range accounts {
		var cpus []stats.Estimate
		var points []stats.Observation
		for _, rate := range r.rates {
			var values []float64
			for _, t := range r.spent[place{rate, arm}] {
				if v, ok := account.of(t); ok {
					values = append(values, v)
					points = append(points, stats.Observation{X: []float64{rate}, Y: v, Block: t.block})
				}
			}
			if len(values) == 0 {
				return fmt.Errorf("no trial at %g/s tells the CPU time of %s", rate, account.name)
			}
			cpus = append(cpus, stats.Median(values))
		}
		slope, err := line(points)
		if err != nil {
			return err
		}
		divided(w, account.name, r.rates, cpus)
		fmt.Fprintf(w, "| %s: slope of a line, %s |%s\n", account.name, slope, blank(len(r.rates)))
	}
	fmt.Fprintln(w)
	return nil
}

// divided prints three ways to divide CPUs by a rate, the second with its interval where there is one.
func divided(w io.Writer, name string, rates []float64, cpus []stats.Estimate) {
	const idle = 0.06 // CPUs that the document (see chart) subtracts
	var whole, less, step []string
	for i, rate := range rates {
		c := cpus[i]
		whole = append(whole, fmt.Sprintf("%.2f", c.Value/rate*1000))
		text := fmt.Sprintf("%.2f", (c.Value-idle)/rate*1000)
		if c.HasInterval {
			text += fmt.Sprintf(" [%.2f, %.2f]", (c.Lo-idle)/rate*1000, (c.Hi-idle)/rate*1000)
		}
		less = append(less, text)
		if i == 0 {
			step = append(step, "")
			continue
		}
		step = append(step, fmt.Sprintf("%.2f", (c.Value-cpus[i-1].Value)/(rate-rates[i-1])*1000))
	}
	row(w, name+": divided by the rate", whole)
	row(w, name+": less 0.06 CPUs, divided by the rate", less)
	row(w, name+": by the step from the rate before", step)
}

func blank(n int) (s string) {
	for range n {
		s += " |"
	}
	return s
}

// line fits a line to the points, and returns its slope and intercept as text.
func line(points []stats.Observation) (string, error) {
	l, err := stats.FitLine(points)
	if err != nil {
		return "", err
	}
	term := func(c stats.Coefficient, by float64) string {
		if math.IsNaN(c.Lo) || math.IsInf(c.Lo, 0) || math.IsNaN(c.Hi) || math.IsInf(c.Hi, 0) {
			return fmt.Sprintf("%.2f", c.Value*by)
		}
		return fmt.Sprintf("%.2f [%.2f, %.2f]", c.Value*by, c.Lo*by, c.Hi*by)
	}
	text := fmt.Sprintf("**%s** and %s CPUs fixed", term(l.Coefficients[1], 1000), term(l.Coefficients[0], 1))
	if !l.Straight {
		text += ", which is no line"
	}
	return text, nil
}

// chart is the CPU use of a sidecar, by rate, as read off the chart of the Open Service Mesh document (see
// docs/experiments/mesh-rate.md). document applies the definitions of CPU per request rate to it.
var chart = struct{ rates, cpus []float64 }{
	[]float64{100, 500, 1000, 2000, 4000}, []float64{0.04, 0.15, 0.26, 0.61, 1.21},
}

func document(w io.Writer) error {
	header(w, "CPUs per 1,000 requests/s", chart.rates)
	var cpus []stats.Estimate
	var points []stats.Observation
	for i, rate := range chart.rates {
		cpus = append(cpus, stats.Estimate{Value: chart.cpus[i]})
		points = append(points, stats.Observation{X: []float64{rate}, Y: chart.cpus[i]})
	}
	divided(w, "the document's chart", chart.rates, cpus)
	slope, err := line(points)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "| the document's chart: slope of a line, %s |%s\n", slope, blank(len(chart.rates)))
	said := make([]string, len(chart.rates))
	for i, rate := range chart.rates {
		said[i] = fmt.Sprintf("%.2f", (0.06+rate/1000)/rate*1000)
	}
	row(w, "the document's text, 0.06 CPUs and 0.1 per 100/s: divided by the rate", said)
	return nil
}
