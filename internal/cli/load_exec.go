package cli

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"tare/internal/load"
	"tare/internal/load/exec"
	"tare/internal/param"
	"tare/internal/role"
	"tare/internal/stats"
)

func newLoadExec() *cobra.Command {
	var w window
	var spin time.Duration
	var values param.Values
	cmd := &cobra.Command{
		Use:   "exec",
		Short: "Execute a program that does nothing, on an absolute schedule or as fast as possible, and count every exec",
		Example: `  tare load exec --rate storm --duration 5s
  tare load exec --rate 1000 --warmup 1s --duration 10s --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := exec.OptionsOf(values)
			o.Spin = spinning(spin)
			return w.run(cmd, err,
				func(conn *role.Conn) error { return exec.Run(cmd.Context(), o, conn) },
				func() (worker, error) { return exec.New(o) }, printExec)
		},
	}
	values = param.Flags(cmd.Flags(), exec.Settings...)
	spinFlag(cmd.Flags(), &spin)
	w.flags(cmd.Flags(), 0, 10*time.Second)
	return cmd
}

// printExec writes the result for people.
func printExec(w io.Writer, r *load.Result) error {
	text := fmt.Sprintf("storm for %gs, %.0f workers on %g CPUs\n", r.Seconds, r.Counts[exec.CountWorkers], r.CPUs)
	if r.Mode == load.Open {
		text = fmt.Sprintf("%g/s for %gs, %.0f workers on %g CPUs\n", r.TargetRate, r.Seconds, r.Counts[exec.CountWorkers], r.CPUs)
	}
	text += fmt.Sprintf("%d of %d execs made, %.0f/s; %.0f with warm-up\n", r.Done, r.Intended, r.Rate, r.Counts[exec.CountMade])
	if n := r.Intended - r.Sent; n > 0 {
		text += fmt.Sprintf("%d were never tried: the machine did not get to them in time\n", n)
	}
	for _, kind := range slices.Sorted(maps.Keys(r.Errors)) {
		text += fmt.Sprintf("%d failed: %s\n", r.Errors[kind], kind)
	}
	for _, row := range []struct{ name, title string }{{load.Latency, "latency"}, {load.Service, "service"}, {load.Lag, "lag"}, {load.OwnLag, "own lag"}} {
		h, err := r.Histogram(row.name)
		if err != nil {
			return err
		}
		if h == nil || row.name == load.Service && r.Mode == load.Closed { // in a storm the two are one
			continue
		}
		text += row.title + ":"
		for _, q := range []float64{0.5, 0.9, 0.99, 0.999} {
			if ns, ok := stats.Quantile(h, q); ok {
				text += fmt.Sprintf(" p%g %s,", 100*q, shortTime(int64(ns)))
			}
		}
		text += fmt.Sprintf(" at most %s\n", shortTime(h.Max()))
	}
	text += fmt.Sprintf("%.2f CPU seconds, %.0f %% of %g CPUs", r.CPUSeconds, 100*r.CPUSeconds/(r.CPUs*r.Seconds), r.CPUs)
	if r.Done > 0 {
		text += fmt.Sprintf(", %s for each exec", shortTime(int64(1e9*r.CPUSeconds/float64(r.Done))))
	}
	_, err := io.WriteString(w, text+"\n")
	return err
}
