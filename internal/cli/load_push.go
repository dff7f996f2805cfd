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
	"tare/internal/mesh/push"
)

func newLoadPush() *cobra.Command {
	var w window
	var mesh string
	var seed uint64
	var values param.Values
	cmd := &cobra.Command{
		Use:   "push --mesh HOST:PORT",
		Short: "Change the configuration of a mesh ('tare app mesh'), and make connections until they show each change",
		Example: `  tare load push --mesh 127.0.0.1:18001 --duration 10s
  tare load push --mesh 127.0.0.1:18001 --what all`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := push.OptionsOf(values)
			o.Mesh, o.Seed = mesh, seed
			return w.run(cmd, err,
				func(conn *role.Conn) error { return push.Run(cmd.Context(), o, conn) },
				func() (worker, error) { return push.Prepare(cmd.Context(), o) },
				func(out io.Writer, r *load.Result) error { return printPush(out, o, r) })
		},
	}
	f := cmd.Flags()
	values = param.Flags(f, push.Settings...)
	f.StringVar(&mesh, "mesh", "", "address at which the mesh takes changes, host:port")
	f.Uint64Var(&seed, "seed", 1, "seed of what is changed, and of the pauses")
	w.flags(f, 200*time.Millisecond, 5*time.Second)
	_ = cmd.MarkFlagRequired("mesh")
	return cmd
}

// printPush writes the result for people.
func printPush(w io.Writer, o push.Options, r *load.Result) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "changes of %s\t%d in %gs\n", map[string]string{push.One: "one service", push.All: "all services"}[o.What], r.Done, r.Seconds)
	for _, line := range []struct{ histogram, what string }{
		{push.Sent, "until the response is sent"}, {push.Usable, "from then until a new connection shows it"}, {push.Whole, "together"},
		{push.Gap, "of which between the last two tries"},
	} {
		h, err := r.Histogram(line.histogram)
		if err != nil {
			return err
		}
		if h == nil {
			continue
		}
		fmt.Fprint(t, line.what)
		for _, q := range []float64{0.5, 0.99, 0.999} {
			if ns, ok := stats.Quantile(h, q); ok {
				fmt.Fprintf(t, "\tp%g %s", 100*q, quantity.Value(ns/1e9, quantity.Seconds))
			}
		}
		fmt.Fprintf(t, "\tat most %s\n", quantity.Value(float64(h.Max())/1e9, quantity.Seconds))
	}
	fmt.Fprintf(t, "connections tried meanwhile\t%.0f, %.0f refused, %.0f to what is no endpoint of the service\n", r.Counts[push.Tries], r.Counts[push.Refused], r.Counts[push.Wrong])
	for name, n := range r.Errors {
		fmt.Fprintf(t, "%s\t%d\n", name, n)
	}
	return t.Flush()
}
