package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tare/internal/experiment/load"
	"tare/internal/experiment/role"
	"tare/internal/lib/param"
	"tare/internal/lib/quantity"
	"tare/internal/workloads/load/write"
)

func newLoadWrite() *cobra.Command {
	var w window
	var seed uint64
	var spin time.Duration
	var values param.Values
	cmd := &cobra.Command{
		Use:   "write (--rate N | --mode closed)",
		Short: "Write to files, by an absolute schedule or as fast as it goes, with fsync or without",
		Example: `  tare load write --rate 1000 --duration 10s
  tare load write --mode closed --sync fsync --directory /var/lib/mydisk --duration 10s`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := write.OptionsOf(values)
			o.Seed, o.Spin = seed, spinning(spin)
			return w.run(cmd, err,
				func(conn *role.Conn) error { return write.Run(cmd.Context(), o, conn) },
				func() (worker, error) { return write.New(o) }, printWrite)
		},
	}
	values = param.Flags(cmd.Flags(), write.Settings...)
	cmd.Flags().Uint64Var(&seed, "seed", 1, "seed of poisson arrivals, and of what is written")
	spinFlag(cmd.Flags(), &spin)
	w.flags(cmd.Flags(), 0, 10*time.Second)
	return cmd
}

// printWrite writes the result for people.
func printWrite(w io.Writer, r *load.Result) error {
	var b strings.Builder
	if r.Mode == load.Open {
		fmt.Fprintf(&b, "open loop, %s arrivals, %g/s for %gs, ", r.Arrivals, r.TargetRate, r.Seconds)
	} else {
		fmt.Fprintf(&b, "closed loop for %gs, ", r.Seconds)
	}
	fmt.Fprintf(&b, "%s\n%d of %d writes done, %.0f/s", quantity.Counted(r.Connections, "worker"), r.Done, r.Intended, r.Rate)
	fmt.Fprintf(&b, "; %s, %s/s\n", quantity.Value(r.Counts[write.CountBytes], quantity.Bytes),
		quantity.Value(r.Counts[write.CountBytes]/r.Seconds, quantity.Bytes))
	if n := r.Intended - r.Sent; n > 0 {
		fmt.Fprintf(&b, "%d were never begun: no worker was free\n", n)
	}
	if r.Unfinished > 0 {
		fmt.Fprintf(&b, "%d had not ended when the drain did\n", r.Unfinished)
	}
	lines, err := clocks(r)
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, b.String()+failures(r)+lines+generatorCPU(r)+"\n")
	return err
}
