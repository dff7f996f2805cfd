package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"tare/internal/load"
	"tare/internal/load/probe"
	"tare/internal/pace"
	"tare/internal/role"
	"tare/internal/stats"
)

func newLoadProbe() *cobra.Command {
	var o probe.Options
	var warmup, duration time.Duration
	var asRole, asJSON bool
	cmd := &cobra.Command{
		Use:     "probe",
		Short:   "Make no load: measure how long a task that wants a CPU has to wait for one, on every CPU",
		Example: `  tare load probe --duration 10s`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asRole {
				conn := role.NewConn(os.Stdin, os.Stdout)
				return reported(conn, probe.Run(cmd.Context(), o, conn))
			}
			p, err := probe.New(o)
			if err != nil {
				return err
			}
			const ahead = 20 * time.Millisecond // for the threads to be there at the start
			r, err := p.Run(cmd.Context(), role.Schedule{Begin: pace.Now() + int64(ahead), Warmup: int64(warmup), Duration: int64(duration)})
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(r)
			}
			return printProbe(cmd.OutOrStdout(), r)
		},
	}
	f := cmd.Flags()
	f.DurationVar(&o.Interval, "interval", time.Millisecond, "time between two wake-ups on one CPU")
	f.DurationVar(&warmup, "warmup", 0, "time before the measured window (--role: the parent's schedule says)")
	f.DurationVar(&duration, "duration", 10*time.Second, "length of the measured window (--role: the parent's schedule says)")
	f.BoolVar(&asRole, "role", false, "speak the role protocol on standard input and output")
	f.BoolVar(&asJSON, "json", false, "print the result as JSON")
	return cmd
}

// printProbe writes the result for people.
func printProbe(w io.Writer, r *load.Result) error {
	h, err := r.Histogram(probe.Delay)
	if err != nil {
		return err
	}
	if h == nil {
		_, err := fmt.Fprintln(w, "no wake-up fell into the window")
		return err
	}
	text := fmt.Sprintf("%d wake-ups on %g CPUs in %gs; late by:", h.TotalCount(), r.CPUs, r.Seconds)
	for _, q := range []float64{0.5, 0.9, 0.99, 0.999} {
		if ns, ok := stats.Quantile(h, q); ok {
			text += fmt.Sprintf(" p%g %s,", 100*q, shortTime(int64(ns)))
		}
	}
	_, err = fmt.Fprintf(w, "%s at most %s\n", text, shortTime(h.Max()))
	return err
}
