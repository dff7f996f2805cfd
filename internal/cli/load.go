package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"tare/internal/experiment/load"
	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
	"tare/internal/lib/param"
	"tare/internal/lib/stats"
	loadhttp "tare/internal/workloads/load/http"
)

func init() { register(newLoad) }

func newLoad() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "load",
		Short:   "Generate load and measure how it is served",
		Example: "  tare load http --url http://127.0.0.1:8080/ --rate 5000",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newLoadHTTP(), newLoadProbe(), newLoadConnect(), newLoadPush(), newLoadExec(), newLoadWrite())
	return cmd
}

// window are the flags of commands that measure: how long, and who says so.
type window struct {
	warmup, duration time.Duration
	asRole, asJSON   bool
	privileged       bool // as a role it keeps its capabilities
}

func (w *window) flags(f *pflag.FlagSet, warmup, duration time.Duration) {
	const unless = " (--role: the parent's schedule says)"
	f.DurationVar(&w.warmup, "warmup", warmup, "time before the measured window"+unless)
	f.DurationVar(&w.duration, "duration", duration, "length of the measured window"+unless)
	f.BoolVar(&w.asRole, "role", false, "speak the role protocol on standard input and output")
	f.BoolVar(&w.asJSON, "json", false, "print the result as JSON")
}

// worker is what works once, by a schedule. One with a Close is closed.
type worker interface {
	Run(context.Context, role.Schedule) (*load.Result, error)
}

// ready has threads be there at the start of the schedule.
const ready = 20 * time.Millisecond

// run works as a role, or prepares a worker, lets it work and prints the result. An error of the options is told where
// the result would be.
func (w *window) run(cmd *cobra.Command, err error, asRole func(*role.Conn) error, prepare func() (worker, error),
	print func(io.Writer, *load.Result) error) error {
	err = wrongUse(cmd, err)
	if w.asRole {
		conn := unprivileged(cmd.Context())
		if w.privileged {
			conn = role.NewConn(os.Stdin, os.Stdout)
		}
		if err == nil {
			err = asRole(conn)
		}
		return reported(conn, err)
	}
	if err != nil {
		return err
	}
	work, err := prepare()
	if err != nil {
		return err
	}
	schedule := role.Schedule{Begin: pace.Now() + int64(ready), Warmup: int64(w.warmup), Duration: int64(w.duration)}
	r, err := work.Run(cmd.Context(), schedule)
	switch c := work.(type) {
	case io.Closer:
		err = errors.Join(err, c.Close())
	case interface{ Close() }:
		c.Close()
	}
	if err != nil {
		return err
	}
	if w.asJSON {
		print = encodeLoad
	}
	return errors.Join(print(cmd.OutOrStdout(), r), allFailed(cmd, r))
}

// loadSchema names the JSON form of the result of one load.
const loadSchema = "tare.load/v1"

// loadDocument is what --json prints.
type loadDocument struct {
	Schema string `json:"schema"`
	*load.Result
	Failed        int64                        `json:"failed"` // the sum of errors
	Distributions map[string]load.Distribution `json:"distributions"`
}

// encodeLoad writes the result as JSON, with quantiles beside the histograms that only a library can read.
func encodeLoad(w io.Writer, r *load.Result) error {
	distributions, err := r.Distributions()
	if err != nil {
		return err
	}
	return json.NewEncoder(w).Encode(loadDocument{loadSchema, r, failedOf(r), distributions})
}

func failedOf(r *load.Result) (n int64) {
	for _, of := range r.Errors {
		n += of
	}
	return n
}

// allFailed is the error of a load of which nothing worked, which a script must not take for a measurement.
func allFailed(cmd *cobra.Command, r *load.Result) error {
	failed := failedOf(r)
	if r.Done > 0 || failed == 0 {
		return nil
	}
	kinds := slices.SortedFunc(maps.Keys(r.Errors), func(a, b string) int {
		return cmp.Or(cmp.Compare(r.Errors[b], r.Errors[a]), cmp.Compare(a, b))
	})
	return fault.New(fault.Exceeded, cmd.CommandPath(), "see what it is put to work on",
		"nothing worked: all %d failed, most of them by %s", failed, kinds[0])
}

// wrongUse makes what a guest says of its settings an error of wrong use.
func wrongUse(cmd *cobra.Command, err error) error {
	if err == nil || fault.CodeOf(err) != fault.Internal {
		return err
	}
	return fault.New(fault.Usage, cmd.CommandPath(), seeHelp(cmd), "%s", err)
}

func newLoadHTTP() *cobra.Command {
	var w window
	var only loadhttp.Options // those that the command line alone has
	var source string
	var values param.Values
	cmd := &cobra.Command{
		Use:   "http --url URL",
		Short: "Put HTTP, gRPC and TCP servers under load: on an absolute schedule, or as fast as they answer",
		Example: `  tare load http --url http://127.0.0.1:8080/ --rate 5000 --connections 16 --duration 10s
  tare load http --url http://127.0.0.1:8080/ --mode closed --connections 64 --keepalive=false
  tare load http --url http://127.0.0.1:8080/ --protocol http2 --rate 5000 --connections 4 --streams 32
  tare load http --url https://127.0.0.1:8443/ --tls unverified --rate 500 --keepalive=false
  tare load http --url http://127.0.0.1:8080/tare.Echo/Echo --protocol grpc --rate 1000 --request-body 1KiB`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := loadhttp.OptionsOf(values)
			o.Targets, o.Seed, o.Recycle = only.Targets, only.Seed, only.Recycle
			o.Method, o.Headers = only.Method, only.Headers
			o.Source, o.Spin = loadhttp.Source(source), spinning(only.Spin)
			return w.run(cmd, err,
				func(conn *role.Conn) error { return loadhttp.Run(cmd.Context(), o, conn) },
				func() (worker, error) { return loadhttp.Prepare(cmd.Context(), o) }, printLoad)
		},
	}
	f := cmd.Flags()
	values = param.Flags(f, loadhttp.Settings...)
	f.StringArrayVar(&only.Targets, "url", nil, "what to request, http[s]://host:port/path; several are used in turn")
	f.Uint64Var(&only.Seed, "seed", 1, "seed of poisson arrivals")
	f.StringVar(&only.Method, "method", "", "request method; GET, or POST with a body, when left out")
	f.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "body" { // what request-body was called before specs could set it
			name = "request-body"
		}
		return pflag.NormalizedName(name)
	})
	f.StringArrayVar(&only.Headers, "header", nil, `further request header, "Name: value"; may be repeated`)
	f.StringVar(&source, "source", string(loadhttp.SourceAuto), "source addresses: auto, none, or loopback (spread over 127.0.0.0/8)")
	f.BoolVar(&only.Recycle, "recycle", false, "without keep-alive: connect the same sockets again "+
		"instead of making new ones; programs that watch sockets come and go see less")
	spinFlag(f, &only.Spin)
	w.flags(f, 0, 10*time.Second)
	return cmd
}

func spinFlag(f *pflag.FlagSet, spin *time.Duration) {
	f.DurationVar(spin, "spin", pace.DefaultSpin, "longest wait to spin through before an intended start; 0 for none")
}

// spinning is the flag as options have it, where 0 is the default.
func spinning(spin time.Duration) time.Duration {
	if spin == 0 {
		return -1
	}
	return spin
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
	b.WriteString(failures(r))
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
		for _, q := range printed {
			text := "-" // too few requests lie beyond it, by the rule of the reports
			if ns, ok := stats.Quantile(h, q); ok {
				text = shortTime(int64(ns))
			}
			fmt.Fprintf(&b, " %10s", text)
		}
		fmt.Fprintf(&b, " %10s\n", shortTime(h.Max()))
	}
	b.WriteString("generator: " + generatorCPU(r))
	if r.CPUSeconds > 0 {
		fmt.Fprintf(&b, ", %.0f requests per CPU second", float64(r.Done)/r.CPUSeconds)
	}
	b.WriteByte('\n')
	_, err := io.WriteString(w, b.String())
	return err
}

// printed are the quantiles that are printed.
var printed = []float64{0.5, 0.9, 0.99, 0.999}

// failures is a line for each way in which work failed.
func failures(r *load.Result) (text string) {
	for _, kind := range slices.Sorted(maps.Keys(r.Errors)) {
		text += fmt.Sprintf("%d failed: %s\n", r.Errors[kind], kind)
	}
	return text
}

// times is a histogram of times in a line: its quantiles, as far as enough was measured, and the largest. It is empty
// where nothing was measured.
func times(r *load.Result, histogram, title string) (string, error) {
	h, err := r.Histogram(histogram)
	if err != nil || h == nil {
		return "", err
	}
	text := title + ":"
	for _, q := range printed {
		if ns, ok := stats.Quantile(h, q); ok {
			text += fmt.Sprintf(" p%g %s,", 100*q, shortTime(int64(ns)))
		}
	}
	return fmt.Sprintf("%s at most %s\n", text, shortTime(h.Max())), nil
}

// clocks are the times of a load that works by a schedule, a line for each clock. In a closed loop latency is service.
func clocks(r *load.Result) (text string, err error) {
	for _, row := range []struct{ name, title string }{
		{load.Latency, "latency"}, {load.Service, "service"}, {load.Lag, "lag"}, {load.OwnLag, "own lag"},
	} {
		if row.name == load.Service && r.Mode == load.Closed {
			continue
		}
		line, err := times(r, row.name, row.title)
		if err != nil {
			return "", err
		}
		text += line
	}
	return text, nil
}

// generatorCPU is what a generator used of its CPUs.
func generatorCPU(r *load.Result) string {
	return fmt.Sprintf("%.2f CPU seconds, %.0f %% of %g CPUs", r.CPUSeconds, 100*r.CPUSeconds/(r.CPUs*r.Seconds), r.CPUs)
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
