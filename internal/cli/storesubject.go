package cli

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"tare/internal/experiment/load"
	"tare/internal/experiment/role"
	"tare/internal/lib/param"
	"tare/internal/lib/quantity"
	"tare/internal/lib/stats"
	"tare/internal/mesh/storebench"
)

func newStoreSubject() *cobra.Command {
	w := window{privileged: true} // it writes maps as long as it works
	var values param.Values
	c := &cobra.Command{
		Use:   "store --store DESIGN",
		Short: "Open a store of mesh configuration, flush changes into it as fast as possible, and report what that took",
		Example: `  tare subject store --store pooled
  tare subject store --store snapshot --resource listener --operation insert --services 1000`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := storebench.OptionsOf(values)
			return w.run(cmd, err,
				func(conn *role.Conn) error { return storebench.Run(cmd.Context(), o, conn) },
				func() (worker, error) { return storebench.New(cmd.Context(), o) },
				func(out io.Writer, r *load.Result) error { return printStore(out, o, r) })
		},
	}
	values = param.Flags(c.Flags(), storebench.Settings...)
	w.flags(c.Flags(), 200*time.Millisecond, 2*time.Second)
	return c
}

// printStore writes the result for people.
func printStore(w io.Writer, o storebench.Options, r *load.Result) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(what, value string) { fmt.Fprintf(t, "%s\t%s\n", what, value) }
	seconds := func(v float64) string { return quantity.Value(v, quantity.Seconds) }
	line("store", o.Store)
	line("opened in", seconds(r.Counts[storebench.OpenSeconds]))
	if o.Services > 0 {
		line(fmt.Sprintf("filled with %s of %s in", quantity.Counted(o.Services, "service"), quantity.Counted(o.Endpoints, "endpoint")), seconds(r.Counts[storebench.FillSeconds]))
	}
	if o.Operation == storebench.Lookup {
		line("lookups", fmt.Sprintf("%.0f, each %s; the first for a service after others %s", r.Counts[storebench.Lookups], seconds(r.Counts[storebench.LookupMiddle]), seconds(r.Counts[storebench.LookupFirst])))
		return t.Flush()
	}
	n := r.Counts[storebench.Flushes]
	if n == 0 {
		line("flushes", "none began in the window")
		return t.Flush()
	}
	line(fmt.Sprintf("%s of a %s", o.Operation, o.Resource), fmt.Sprintf("%.0f flushes, each %s", n, seconds(r.Counts[storebench.FlushSeconds]/n)))
	h, err := r.Histogram(storebench.FlushTime)
	if err != nil {
		return err
	}
	for _, q := range []float64{0.5, 0.99, 0.999} {
		if ns, ok := stats.Quantile(h, q); ok {
			line(fmt.Sprintf("p%g", 100*q), seconds(ns/1e9))
		}
	}
	for _, c := range []struct{ name, what string }{
		{storebench.Records, "records"}, {storebench.Updates, "map updates"}, {storebench.Deletes, "map deletes"}, {storebench.Syscalls, "system calls"},
		{storebench.GracePeriods, "grace periods"}, {storebench.WorkBytes, "bytes"},
	} {
		line(c.what+" per flush", fmt.Sprintf("%.4g", r.Counts[c.name]/n))
	}
	return t.Flush()
}
