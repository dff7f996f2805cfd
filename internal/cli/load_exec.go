package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"tare/internal/fault"
	"tare/internal/load"
	"tare/internal/load/exec"
	"tare/internal/pace"
	"tare/internal/role"
	"tare/internal/stats"
)

func newLoadExec() *cobra.Command {
	var o exec.Options
	var storm, asRole, asJSON bool
	var spin, warmup, duration time.Duration
	cmd := &cobra.Command{
		Use:   "exec (--rate N | --storm)",
		Short: "Execute a program that does nothing, by an absolute schedule or as fast as it goes, and count every exec",
		Example: `  tare load exec --storm --duration 5s
  tare load exec --rate 1000 --warmup 1s --duration 10s --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Spin = spin; spin == 0 {
				o.Spin = -1
			}
			conn := role.NewConn(os.Stdin, os.Stdout)
			if storm == (o.Rate != 0) {
				err := fault.New(fault.Usage, "--rate, --storm", "give one of them", "execs are made either by a rate or in a storm")
				if asRole {
					return reported(conn, err)
				}
				return err
			}
			if asRole {
				return reported(conn, exec.Run(cmd.Context(), o, conn))
			}
			l, err := exec.New(o)
			if err != nil {
				return err
			}
			defer l.Close()
			const ahead = 5 * time.Millisecond // for the workers to hear of it
			r, err := l.Run(cmd.Context(), role.Schedule{Begin: pace.Now() + int64(ahead), Warmup: int64(warmup), Duration: int64(duration)})
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(r)
			}
			return printExec(cmd.OutOrStdout(), r)
		},
	}
	f := cmd.Flags()
	f.Float64Var(&o.Rate, "rate", 0, "execs per second of all workers, at constant gaps")
	f.BoolVar(&storm, "storm", false, "execute as fast as it goes: each worker again as soon as its child has ended")
	f.IntVar(&o.Workers, "workers", 0, "processes that execute, dealt out to the CPUs in turn; 0 for one on each")
	f.DurationVar(&spin, "spin", pace.DefaultSpin, "longest wait to spin through before an intended start; 0 for none")
	f.DurationVar(&warmup, "warmup", 0, "time before the measured window (--role: the parent's schedule says)")
	f.DurationVar(&duration, "duration", 10*time.Second, "length of the measured window (--role: the parent's schedule says)")
	f.BoolVar(&asRole, "role", false, "speak the role protocol on standard input and output")
	f.BoolVar(&asJSON, "json", false, "print the result as JSON")
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
