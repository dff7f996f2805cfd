package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"os"

	"github.com/spf13/cobra"

	"tare/internal/fault"
	"tare/internal/load"
	loadhttp "tare/internal/load/http"
	"tare/internal/pace"
	"tare/internal/role"
	"tare/internal/stats"
)

func init() { register(newLoad) }

func newLoad() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "load",
		Short:   "Make load and measure how it is served",
		Example: "  tare load http --url http://127.0.0.1:8080/ --rate 5000",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newLoadHTTP(), newLoadProbe(), newLoadConnect(), newLoadPush(), newLoadExec())
	return cmd
}

func newLoadHTTP() *cobra.Command {
	var o loadhttp.Options
	var mode, arrivals, source string
	var spin, warmup, duration time.Duration
	var asRole, asJSON bool
	cmd := &cobra.Command{
		Use:   "http --url URL",
		Short: "Put HTTP/1.1 servers under load: by an absolute schedule (--rate), or as fast as they answer",
		Example: `  tare load http --url http://127.0.0.1:8080/ --rate 5000 --connections 16 --duration 10s
  tare load http --url http://127.0.0.1:8080/ --mode closed --connections 64 --keepalive=false`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Arrivals, o.Source, o.Spin = pace.Arrivals(arrivals), loadhttp.Source(source), spin
			if spin == 0 {
				o.Spin = -1
			}
			conn := role.NewConn(os.Stdin, os.Stdout)
			if err := checkMode(mode, o.Rate); err != nil {
				if asRole {
					return reported(conn, err)
				}
				return err
			}
			if asRole {
				return reported(conn, loadhttp.Run(cmd.Context(), o, conn))
			}
			g, err := loadhttp.Prepare(cmd.Context(), o)
			if err != nil {
				return err
			}
			defer g.Close()
			const ahead = 20 * time.Millisecond // for the threads to be there at the start
			r, err := g.Run(cmd.Context(), role.Schedule{Begin: pace.Now() + int64(ahead), Warmup: int64(warmup), Duration: int64(duration)})
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(r)
			}
			return printLoad(cmd.OutOrStdout(), r)
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&o.Targets, "url", nil, "what to request, http://host:port/path; several are taken in turn")
	f.StringVar(&mode, "mode", "", "open (by the schedule of --rate) or closed (as fast as answers come); default open when there is a rate")
	f.Float64Var(&o.Rate, "rate", 0, "requests per second in all; 0 for closed loop")
	f.StringVar(&arrivals, "arrivals", string(pace.Constant), "spacing of intended starts: constant or poisson")
	f.Uint64Var(&o.Seed, "seed", 1, "seed of poisson arrivals")
	f.IntVar(&o.Connections, "connections", 16, "connections at once")
	f.BoolVar(&o.KeepAlive, "keepalive", true, "keep connections; false makes one for each request")
	f.IntVar(&o.Threads, "threads", 0, "threads; 0 for one in open loop up to 50000 per second, else two, and never more than CPUs")
	f.DurationVar(&warmup, "warmup", 0, "time before the measured window (--role: the parent's schedule says)")
	f.DurationVar(&duration, "duration", 10*time.Second, "length of the measured window (--role: the parent's schedule says)")
	f.DurationVar(&o.Drain, "drain", 2*time.Second, "how long to wait for answers after the window")
	f.DurationVar(&o.Timeout, "timeout", 10*time.Second, "longest wait for an answer, from the sending")
	f.StringVar(&o.Method, "method", "GET", "request method")
	f.IntVar(&o.Body, "body", 0, "bytes of request body")
	f.StringArrayVar(&o.Headers, "header", nil, `further request header, "Name: value"; may be repeated`)
	f.StringVar(&source, "source", string(loadhttp.SourceAuto), "source addresses: auto, none, or loopback (spread over 127.0.0.0/8)")
	f.DurationVar(&spin, "spin", pace.DefaultSpin, "longest wait to spin through before an intended start; 0 for none")
	f.BoolVar(&o.Recycle, "recycle", false, "without keep-alive: connect the same sockets again instead of making new ones; programs that watch sockets come and go see less")
	f.BoolVar(&asRole, "role", false, "speak the role protocol on standard input and output")
	f.BoolVar(&asJSON, "json", false, "print the result as JSON")
	return cmd
}

// checkMode sees that mode and rate say the same thing.
func checkMode(mode string, rate float64) error {
	switch {
	case mode == load.Open && rate == 0:
		return fault.New(fault.Usage, "--mode open", "give --rate", "an open loop needs a rate")
	case mode == load.Closed && rate != 0:
		return fault.New(fault.Usage, "--mode closed", "leave out --rate, or use --mode open", "a closed loop has no rate of its own")
	case mode != "" && mode != load.Open && mode != load.Closed:
		return fault.New(fault.Usage, "--mode", "use open or closed", "%q is no mode", mode)
	}
	return nil
}

// reported tells the parent of a role why it ends, and passes the error on for the exit code.
func reported(conn *role.Conn, err error) error {
	if err != nil {
		err = errors.Join(err, conn.Fail(err))
	}
	return err
}

// printLoad writes the result for people.
func printLoad(w io.Writer, r *load.Result) error {
	var b strings.Builder
	connections := fmt.Sprintf("%d connections, %d opened in the window", r.MaxConnections, r.Opened)
	if r.Mode == load.Open {
		fmt.Fprintf(&b, "open loop, %s arrivals, %g/s for %gs, %s\n", r.Arrivals, r.TargetRate, r.Seconds, connections)
	} else {
		fmt.Fprintf(&b, "closed loop for %gs, %s\n", r.Seconds, connections)
	}
	fmt.Fprintf(&b, "%d of %d requests answered, %.0f/s", r.Done, r.Intended, r.Rate)
	if r.Late > 0 {
		fmt.Fprintf(&b, ", %d of them after the end", r.Late)
	}
	b.WriteByte('\n')
	if n := r.Intended - r.Sent; n > 0 {
		fmt.Fprintf(&b, "%d were never sent: no connection was free\n", n)
	}
	if r.Unfinished > 0 {
		fmt.Fprintf(&b, "%d were still without an answer when the drain ended\n", r.Unfinished)
	}
	for _, kind := range slices.Sorted(maps.Keys(r.Errors)) {
		fmt.Fprintf(&b, "%d failed: %s\n", r.Errors[kind], kind)
	}
	fmt.Fprintf(&b, "%10s %10s %10s %10s %10s %10s\n", "", "p50", "p90", "p99", "p99.9", "max")
	for _, row := range []struct{ name, title string }{
		{load.Latency, "latency"}, {load.Service, "service"}, {load.Connect, "connect"}, {load.Lag, "lag"}, {load.OwnLag, "own lag"},
	} {
		h, err := r.Histogram(row.name)
		if err != nil {
			return err
		}
		if h == nil {
			continue
		}
		fmt.Fprintf(&b, "%10s", row.title)
		for _, q := range []float64{0.5, 0.9, 0.99, 0.999} {
			text := "-" // too few requests lie beyond it, by the rule of the reports
			if ns, ok := stats.Quantile(h, q); ok {
				text = shortTime(int64(ns))
			}
			fmt.Fprintf(&b, " %10s", text)
		}
		fmt.Fprintf(&b, " %10s\n", shortTime(h.Max()))
	}
	fmt.Fprintf(&b, "generator: %.2f CPU seconds, %.0f %% of %g CPUs", r.CPUSeconds, 100*r.CPUSeconds/(r.CPUs*r.Seconds), r.CPUs)
	if r.CPUSeconds > 0 {
		fmt.Fprintf(&b, ", %.0f requests per CPU second", float64(r.Done)/r.CPUSeconds)
	}
	b.WriteByte('\n')
	_, err := io.WriteString(w, b.String())
	return err
}

// shortTime is ns nanoseconds in three figures.
func shortTime(ns int64) string {
	switch {
	case ns < 1e3:
		return fmt.Sprintf("%d ns", ns)
	case ns < 1e6:
		return fmt.Sprintf("%.3g us", float64(ns)/1e3)
	case ns < 1e9:
		return fmt.Sprintf("%.3g ms", float64(ns)/1e6)
	}
	return fmt.Sprintf("%.3g s", float64(ns)/1e9)
}
