package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"tare/internal/experiment/load"
	"tare/internal/experiment/role"
	"tare/internal/lib/param"
	"tare/internal/tracing/exec"
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
	lines, err := clocks(r)
	if err != nil {
		return err
	}
	text += failures(r) + lines + generatorCPU(r)
	if r.Done > 0 {
		text += fmt.Sprintf(", %s for each exec", shortTime(int64(1e9*r.CPUSeconds/float64(r.Done))))
	}
	_, err = io.WriteString(w, text+"\n")
	return err
}
