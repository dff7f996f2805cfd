package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"tare/internal/load"
	"tare/internal/pace"
	"tare/internal/quantity"
	"tare/internal/role"
	"tare/internal/stats"
	"tare/internal/subject/mesh/storebench"
)

func newStoreSubject() *cobra.Command {
	var o storebench.Options
	var warmup, duration time.Duration
	var asRole, asJSON bool
	c := &cobra.Command{
		Use:   "store",
		Short: "Open a store of mesh configuration, flush changes into it as fast as it goes, and say what that took",
		Example: `  tare subject store --store pooled
  tare subject store --store snapshot --resource listener --operation insert --services 1000`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asRole {
				conn := role.NewConn(os.Stdin, os.Stdout)
				return reported(conn, storebench.Run(cmd.Context(), o, conn))
			}
			b, err := storebench.New(cmd.Context(), o)
			if err != nil {
				return err
			}
			defer b.Close()
			r, err := b.Run(cmd.Context(), role.Schedule{Begin: pace.Now(), Warmup: int64(warmup), Duration: int64(duration)})
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(r)
			}
			return printStore(cmd.OutOrStdout(), o, r)
		},
	}
	f := c.Flags()
	f.StringVar(&o.Store, "store", storebench.DefaultStore, "design, or design:variant")
	f.StringVar(&o.Resource, "resource", storebench.Cluster, "what is flushed: cluster or listener")
	f.StringVar(&o.Operation, "operation", storebench.Replace, "insert, replace, delete, or lookup: no change, but questions by a program in the kernel")
	f.StringVar(&o.From, "from", storebench.Struct, "struct: changes come decoded; bytes: as xDS resources on the wire")
	f.IntVar(&o.Services, "services", 0, "services in the store beside what is flushed")
	f.IntVar(&o.Endpoints, "endpoints", storebench.DefaultEndpoints, "of each of these services")
	f.Uint32Var(&o.Max.MaxClusters, "max-clusters", 0, "clusters that the store is made for; 0: its own choice")
	f.Uint32Var(&o.Max.MaxListeners, "max-listeners", 0, "listeners, likewise")
	f.Uint32Var(&o.Max.MaxEndpoints, "max-endpoints", 0, "endpoints of all clusters, likewise")
	f.DurationVar(&warmup, "warmup", 200*time.Millisecond, "time before the measured window (--role: the parent's schedule says)")
	f.DurationVar(&duration, "duration", 2*time.Second, "length of the measured window (--role: the parent's schedule says)")
	f.BoolVar(&asRole, "role", false, "speak the role protocol on standard input and output")
	f.BoolVar(&asJSON, "json", false, "print the result as JSON")
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
		line(fmt.Sprintf("filled with %s of %s in", counted(o.Services, "service"), counted(o.Endpoints, "endpoint")), seconds(r.Counts[storebench.FillSeconds]))
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
