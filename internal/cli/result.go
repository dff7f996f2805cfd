package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/spf13/cobra"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
	"tare/internal/lib/fault"
	"tare/internal/lib/lists"
	"tare/internal/lib/param"
	"tare/internal/lib/quantity"
	"tare/internal/lib/stats"
	"tare/internal/scale/ledger"
)

// loadSchema is the schema of the JSON form of a load's result.
const loadSchema = "tare.load/v1"

// loadDocument is the JSON form of a load's result.
type loadDocument struct {
	Schema string `json:"schema"`
	*load.Result
	Failed        int64                        `json:"failed"` // the sum of errors
	Distributions map[string]load.Distribution `json:"distributions"`
}

// encodeLoad writes the result as JSON, with quantiles in addition to the histograms, which need a library to read.
func encodeLoad(w io.Writer, r *load.Result) error {
	distributions, err := r.Distributions()
	if err != nil {
		return err
	}
	return json.NewEncoder(w).Encode(loadDocument{loadSchema, r, r.Failures(), distributions})
}

// errorKinds returns the kinds of errors in a result, the most frequent first.
func errorKinds(r *load.Result) []string {
	return slices.SortedFunc(maps.Keys(r.Errors), func(a, b string) int {
		return cmp.Or(cmp.Compare(r.Errors[b], r.Errors[a]), cmp.Compare(a, b))
	})
}

// allFailed returns an error if operations of a load failed and none succeeded, so that a script does not take the
// result for a measurement.
func allFailed(cmd *cobra.Command, r *load.Result) error {
	failed := r.Failures()
	if r.Done > 0 || failed == 0 {
		return nil
	}
	return fault.New(fault.Exceeded, cmd.CommandPath(), "check what the load is directed at",
		"nothing worked: all %d operations failed; the most frequent error is %s", failed, errorKinds(r)[0])
}

// printResult writes the result of measuring a guest as text: what it did, its times, and its own metrics.
func printResult(w io.Writer, g kind.Guest, v param.Values, r *load.Result) error {
	var b strings.Builder
	printWork(&b, g.About().Name, r)
	if err := printTimes(&b, r); err != nil {
		return err
	}
	printValues(&b, g, v, r)
	_, err := io.WriteString(w, b.String())
	return err
}

// printWork writes what was done: the rate, how many operations succeeded or failed, the connections and the
// generator's own CPU time, with one line for each item that the result has.
func printWork(b *strings.Builder, name string, r *load.Result) {
	b.WriteString(name + ": ")
	if r.Mode == load.Open || r.Mode == load.Closed {
		b.WriteString(r.Mode + " loop, ")
	}
	if r.Arrivals != "" {
		b.WriteString(r.Arrivals + " arrivals, ")
	}
	fmt.Fprintf(b, "%g s\n", r.Seconds)
	line := func(title, format string, args ...any) {
		fmt.Fprintf(b, "%-13s %s\n", title, fmt.Sprintf(format, args...))
	}
	if r.Intended > 0 {
		rate := quantity.Rough(r.Rate, quantity.Count) + "/s"
		if r.TargetRate > 0 {
			rate += fmt.Sprintf(", %g/s asked for", r.TargetRate)
		}
		line("rate", "%s", rate)
		late := ""
		if r.Late > 0 {
			late = fmt.Sprintf(", %d of them after the end", r.Late)
		}
		line("done", "%d of %d%s", r.Done, r.Intended, late)
	}
	if n := r.Intended - r.Sent; n > 0 {
		line("not started", "%d: no connection or worker was free in time", n)
	}
	if r.Unfinished > 0 {
		line("unfinished", "%d when the drain ended", r.Unfinished)
	}
	if r.Intended > 0 {
		kinds := []string{"none"}
		for i, kind := range errorKinds(r) {
			kinds = append(kinds[:i], fmt.Sprintf("%d %s", r.Errors[kind], kind))
		}
		line("errors", "%s", strings.Join(kinds, ", "))
	}
	if r.MaxConnections > 0 {
		mean := ""
		if m := r.MeanConnections; m > 0 && m < 0.98*float64(r.MaxConnections) {
			mean = fmt.Sprintf(", %.3g on average", m)
		}
		line("connections", "%d%s, %d opened in the window", r.MaxConnections, mean, r.Opened)
	}
	if r.CPUs > 0 && r.Seconds > 0 {
		each := ""
		if n, known := r.Answers(); known && n > 0 {
			each = ", " + quantity.Value(r.CPUSeconds/float64(n), quantity.Seconds) +
				" for each completed operation"
		}
		line("own CPU time", "%s, %.0f %% of what it could use%s", quantity.Value(r.CPUSeconds, quantity.Seconds),
			100*r.CPUSeconds/(r.CPUs*r.Seconds), each)
	}
}

// printed lists the quantiles that printTimes shows.
var printed = []float64{0.5, 0.9, 0.99, 0.999}

// printTimes writes a row for each histogram of the result, and explains which quantiles need more samples.
func printTimes(b *strings.Builder, r *load.Result) error {
	names := []string{load.Latency, load.Service, load.Connect, load.Lag, load.OwnLag}
	names = lists.Include(names, slices.Sorted(maps.Keys(r.Histograms))...)
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "\t")
	for _, q := range printed {
		fmt.Fprintf(t, "p%g\t", 100*q)
	}
	fmt.Fprint(t, "max\t\n")
	rows, withheld := 0, len(printed) // quantiles from index withheld on are missing in some row
	for _, name := range names {
		h, err := r.Histogram(name)
		if err != nil {
			return err
		}
		if h == nil || name == load.Service && r.Histograms[name] == r.Histograms[load.Latency] {
			continue // in a closed loop the service time is the latency
		}
		rows++
		withheld = min(withheld, printRow(t, strings.ReplaceAll(name, "_", " "), h, r.Missing(name)))
	}
	if rows == 0 {
		return nil
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if n := r.Missing(load.Latency); n > 0 {
		fmt.Fprintf(b, "latency: %s requests without an answer count as the slowest; what is among them is not given (-)\n",
			quantity.Thousands(int(n)))
	}
	for _, q := range printed[withheld:] {
		fmt.Fprintf(b, "p%g: not given (-) with fewer than %s samples\n", 100*q,
			quantity.Thousands(int(math.Round(stats.MinBeyond(q)/(1-q)))))
	}
	return nil
}

// printRow writes the quantiles and the maximum of a histogram of times. The histogram lacks a number of times, given
// by missing, which count as larger than all others. printRow returns the index in printed of the first quantile for
// which there are too few samples, by the same rule as in reports, or the length of printed.
func printRow(w io.Writer, title string, h *hdrhistogram.Histogram, missing int64) (withheld int) {
	fmt.Fprintf(w, "%s\t", title)
	withheld = len(printed)
	for i, q := range printed {
		text := "-"
		if ns, ok := stats.QuantileWithout(h, missing, q); ok {
			text = quantity.Value(ns/1e9, quantity.Seconds)
		} else if _, enough := stats.Quantile(h, q); !enough {
			withheld = min(withheld, i)
		}
		fmt.Fprintf(w, "%s\t", text)
	}
	longest := "-"
	if missing == 0 {
		longest = quantity.Value(float64(h.Max())/1e9, quantity.Seconds)
	}
	fmt.Fprintf(w, "%s\t\n", longest)
	return withheld
}

// printValues writes the guest's own metrics as an experiment would report them, or else its counts.
func printValues(b *strings.Builder, g kind.Guest, v param.Values, r *load.Result) {
	name := g.About().Name
	m := &measured.Measured{
		Setup: &kind.Setup{Loads: map[string]*kind.Part{name: {Kind: g, Options: v}}},
		Trial: record.Trial{Loads: map[string]load.Result{name: *r}, Work: r, Ledger: &ledger.Ledger{}},
	}
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	any := false
	line := func(name, value string) {
		any = true
		fmt.Fprintf(t, "%s\t%s\n", name, value)
	}
	if teller, ok := g.(measured.Teller); ok {
		for _, one := range teller.Metrics() {
			if quantileOfTimes(one.Definition) {
				continue // it is in the table above
			}
			if one.Value != nil {
				if value, ok := one.Value(m); ok {
					line(quantity.Label(one.Name), quantity.Value(value, one.Unit))
				}
			} else if in, of := one.Count(m); of > 0 {
				line(quantity.Label(one.Name), fmt.Sprintf("%s, %d of %d",
					quantity.Value(float64(in)/float64(of), one.Unit), in, of))
			}
		}
	}
	if !any {
		for name, n := range lists.ByKey(r.Counts) {
			line(quantity.Label(name), quantity.Value(n, quantity.UnitOf(name)))
		}
	}
	_ = t.Flush() // writing to memory cannot fail
}

// quantileOfTimes reports whether a metric is a quantile or the maximum of a histogram of times. Such a metric is in
// seconds, is pooled by merging histograms (metric.Merged), and is no Cost, because a Cost with that pool is a mean.
func quantileOfTimes(d metric.Definition) bool {
	return d.Unit == quantity.Seconds && d.Pool == metric.Merged && !d.Cost
}
