package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"tare/internal/experiment/load"
	"tare/internal/experiment/role"
	"tare/internal/lib/param"
	"tare/internal/workloads/load/probe"
)

func newLoadProbe() *cobra.Command {
	var w window
	var values param.Values
	cmd := &cobra.Command{
		Use:     "probe",
		Short:   "Generate no load: measure how long a task waits for a CPU, on every CPU",
		Example: `  tare load probe --duration 10s`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := probe.OptionsOf(values)
			return w.run(cmd, err,
				func(conn *role.Conn) error { return probe.Run(cmd.Context(), o, conn) },
				func() (worker, error) { return probe.New(o) }, printProbe)
		},
	}
	values = param.Flags(cmd.Flags(), probe.Settings...)
	w.flags(cmd.Flags(), 0, 10*time.Second)
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
	line, err := times(r, probe.Delay, fmt.Sprintf("%d wake-ups on %g CPUs in %gs; late by", h.TotalCount(), r.CPUs, r.Seconds))
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, line)
	return err
}
