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
	"tare/internal/load/push"
	"tare/internal/pace"
	"tare/internal/quantity"
	"tare/internal/role"
	"tare/internal/stats"
)

func newLoadPush() *cobra.Command {
	var o push.Options
	var warmup, duration time.Duration
	var asRole, asJSON bool
	cmd := &cobra.Command{
		Use:   "push --mesh HOST:PORT",
		Short: "Change the configuration of a mesh ('tare app mesh'), and make connections until they show each change",
		Example: `  tare load push --mesh 127.0.0.1:18001 --duration 10s
  tare load push --mesh 127.0.0.1:18001 --what all`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asRole {
				conn := role.NewConn(os.Stdin, os.Stdout)
				return reported(conn, push.Run(cmd.Context(), o, conn))
			}
			p, err := push.Prepare(cmd.Context(), o)
			if err != nil {
				return err
			}
			defer p.Close()
			r, err := p.Run(cmd.Context(), role.Schedule{Begin: pace.Now(), Warmup: int64(warmup), Duration: int64(duration)})
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(r)
			}
			return printPush(cmd.OutOrStdout(), o, r)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Mesh, "mesh", "", "where the mesh takes changes, host:port")
	f.StringVar(&o.What, "what", push.One, "what a change is of: one service, by chance, or all at once")
	f.DurationVar(&o.Interval, "interval", push.DefaultInterval, "time between two connections while a change is not seen yet")
	f.DurationVar(&o.Pause, "pause", push.DefaultPause, "time from one change to the next, half to one and a half times as long by chance")
	f.Uint64Var(&o.Seed, "seed", 1, "seed of what is changed, and of the pauses")
	f.DurationVar(&warmup, "warmup", 200*time.Millisecond, "time before the measured window (--role: the parent's schedule says)")
	f.DurationVar(&duration, "duration", 5*time.Second, "length of the measured window (--role: the parent's schedule says)")
	f.BoolVar(&asRole, "role", false, "speak the role protocol on standard input and output")
	f.BoolVar(&asJSON, "json", false, "print the result as JSON")
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
