package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/lists"
	"tare/internal/lib/pace"
	"tare/internal/lib/param"
	"tare/internal/lib/quantity"
	"tare/internal/lib/text"
	"tare/internal/lib/usage"
)

// The commands 'tare load', 'tare app' and 'tare subject' are built from what guests declare (kind.Alone).
func init() {
	register(func() *cobra.Command {
		return newGuests(kind.Load, "Generate load and measure how it is served")
	})
	register(func() *cobra.Command {
		return newGuests(kind.Application, "Run an application for a load to drive")
	})
	register(func() *cobra.Command {
		c := newGuests(kind.Subject, "Run a subject, which is what Tare weighs; without a name, list them")
		c.RunE = func(cmd *cobra.Command, _ []string) error { return listSubjects(cmd.Context(), cmd.OutOrStdout()) }
		return c
	})
}

// newGuests returns the command of a role. It has one subcommand for each guest that can run by itself.
func newGuests(r kind.Role, short string) *cobra.Command {
	c := &cobra.Command{
		Use:   string(r),
		Short: short,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			names := lists.Map(cmd.Commands(), (*cobra.Command).Name)
			return fault.New(fault.Usage, cmd.CommandPath(), usage.SeeHelp(cmd)+"; "+text.Suggest(args[0], names),
				"there is no %s %q", r, args[0])
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var examples []string
	for _, g := range kind.All(r) {
		if about := g.About(); about.Alone != nil {
			c.AddCommand(newGuest(r, g))
			examples = append(examples, example(r, about)[0])
		}
	}
	c.Example = strings.Join(examples, "\n")
	return c
}

// example returns the examples of a guest as help shows them.
func example(r kind.Role, about kind.About) (lines []string) {
	for _, args := range about.Alone.Examples {
		lines = append(lines, strings.TrimRight("  tare "+string(r)+" "+about.Name+" "+args, " "))
	}
	return lines
}

// newGuest returns the command that runs a guest by itself.
func newGuest(r kind.Role, g kind.Guest) *cobra.Command {
	about := g.About()
	summary := strings.ReplaceAll(about.Summary, "`", "'")
	c := &cobra.Command{
		Use:     about.Name,
		Short:   strings.ToUpper(summary[:1]) + summary[1:],
		Example: strings.Join(example(r, about), "\n"),
		Args:    usage.NoArgs,
	}
	values := param.Flags(c.Flags(), about.ProcessSettings()...)
	if argument := about.Alone.Argument; argument != "" {
		setting, _ := param.Find(about.ProcessSettings(), argument)
		c.Use += " [" + strings.ToUpper(argument) + "]"
		c.Args = func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 && !setting.Many {
				return usage.NoArgs(cmd, args[1:])
			}
			for _, arg := range args {
				if err := cmd.Flags().Set(argument, arg); err != nil {
					return usage.FlagError(cmd, err)
				}
			}
			return nil
		}
	}
	run := runner(r, g, c.Flags(), values)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := kind.Check(g, values); err != nil {
			return wrongUse(cmd, err)
		}
		return run(cmd)
	}
	return c
}

// runner returns the function that runs the guest g by itself, and adds the flags that this function reads to f.
func runner(r kind.Role, g kind.Guest, f *pflag.FlagSet, v param.Values) func(*cobra.Command) error {
	alone := g.About().Alone
	if alone.Run != nil {
		return func(cmd *cobra.Command) error {
			out := cmd.OutOrStdout()
			if file := fileOf(out); file != nil {
				out = file // so that the guest can count the output that is lost after its reader has gone
			}
			return alone.Run(cmd.Context(), out, stderr, v)
		}
	}
	player := g.(kind.Player) // every guest implements it, as TestEveryGuestPlays checks
	play := func(ctx context.Context, conn *role.Conn) error { return player.Play(ctx, conn, v) }
	if kind.Measures(r, g) {
		w := window{}
		w.flags(f, alone.Warmup, cmp.Or(alone.Duration, 10*time.Second))
		return func(cmd *cobra.Command) error { return w.measure(cmd, g, v, play) }
	}
	human := true
	if r == kind.Subject {
		f.BoolVar(&human, "human", false, "print text for people instead of the role protocol; the default on a terminal")
	}
	return func(cmd *cobra.Command) error {
		ctx := cmd.Context()
		if alone.Rereads {
			ctx = withoutHangup(ctx)
		}
		if human || isatty.IsTerminal(os.Stdout.Fd()) {
			return forPeople(ctx, cmd.OutOrStdout(), printer(g, v), play)
		}
		conn := role.Stdio()
		return reported(conn, play(ctx, conn))
	}
}

// printer returns a function that prints the messages of an application or a subject for people.
func printer(g kind.Guest, v param.Values) func(io.Writer, role.Message) error {
	about := g.About()
	return func(w io.Writer, m role.Message) error {
		switch m.Event {
		case role.Ready:
			line := about.Name + " is ready (Ctrl-C ends it)"
			if word := about.Alone.Ready; word != nil {
				var err error
				if line, err = word(v, m.Data); err != nil {
					return err
				}
			}
			_, err := fmt.Fprintln(w, line)
			return err
		case role.Log:
			return printLog(w, m)
		}
		return nil
	}
}

// window holds the flags of guests that are measured.
type window struct {
	warmup, duration time.Duration
	asJSON           bool
}

func (w *window) flags(f *pflag.FlagSet, warmup, duration time.Duration) {
	f.DurationVar(&w.warmup, "warmup", warmup, "time before the measured window")
	f.DurationVar(&w.duration, "duration", duration, "length of the measured window (also --for)")
	f.BoolVar(&w.asJSON, "json", false, "print the result as JSON")
	f.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "for" {
			name = "duration"
		}
		return pflag.NormalizedName(name)
	})
}

// measure runs a guest once and prints the result. It returns an error if operations failed and none succeeded, so that
// a script does not take the result for a measurement.
func (w *window) measure(cmd *cobra.Command, g kind.Guest, v param.Values, play player) error {
	if w.duration <= 0 || w.warmup < 0 {
		return fault.New(fault.Usage, cmd.CommandPath()+" --duration", "give a length of time, such as 10s",
			"there is no time to measure in")
	}
	r, err := w.work(cmd.Context(), play)
	if err != nil {
		return err
	}
	if w.asJSON {
		err = encodeLoad(cmd.OutOrStdout(), r)
	} else {
		err = printResult(cmd.OutOrStdout(), g, v, r)
	}
	return errors.Join(err, allFailed(cmd, r))
}

// threadsReady is the time that threads get to start before the schedule begins.
const threadsReady = 20 * time.Millisecond

// work plays the parent of a load: it waits until the load is ready, starts it, and returns its result.
func (w *window) work(ctx context.Context, play player) (*load.Result, error) {
	conn, end := played(ctx, play)
	log := func(line string) { fmt.Fprintln(stderr, text.Line(line)) }
	var r load.Result
	err := conn.Expect(role.Ready, nil, log)
	if err == nil {
		schedule := role.Schedule{
			Begin: pace.Now() + int64(threadsReady), Warmup: int64(w.warmup), Duration: int64(w.duration),
		}
		if err = conn.Send(role.Start, schedule); err == nil {
			done := showElapsed(w.warmup + w.duration)
			err = conn.Expect(role.Result, &r, log)
			done()
		}
	}
	if failed := end(); failed != nil {
		return nil, failed // the reason why there is no result
	}
	return &r, err
}

// showElapsed shows on a terminal how much of a long run has passed, until done is called.
func showElapsed(of time.Duration) (done func()) {
	const long = 2 * time.Second
	if of < long || !isatty.IsTerminal(os.Stderr.Fd()) {
		return func() {}
	}
	const clear = "\r\x1b[K"
	end, cleared := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(cleared)
		began := time.Now()
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				fmt.Fprintf(os.Stderr, "%s%s of %s", clear, quantity.Wait(time.Since(began)), quantity.Wait(of))
			case <-end:
				fmt.Fprint(os.Stderr, clear)
				return
			}
		}
	}()
	return func() { close(end); <-cleared }
}

// wrongUse turns an error in a guest's settings into a usage error.
func wrongUse(cmd *cobra.Command, err error) error {
	if err == nil || fault.CodeOf(err) != fault.Internal {
		return err
	}
	return fault.New(fault.Usage, cmd.CommandPath(), usage.SeeHelp(cmd), "%s", err)
}

// reported sends the error that ends a role to the role's parent, and returns it for the exit code.
func reported(conn *role.Conn, err error) error {
	if err != nil {
		err = errors.Join(err, conn.Fail(err))
	}
	return err
}

// listSubjects lists what an arm of a spec can weigh.
func listSubjects(ctx context.Context, w io.Writer) error {
	for _, g := range kind.All(kind.Subject) {
		if _, varies := g.(kind.Variant); varies {
			continue // it is the baseline, which is not weighed
		}
		about := g.About()
		state := ""
		if i, ok := g.(kind.Installed); ok {
			if missing := i.Installed(ctx, param.Defaults(about.Settings)); missing != nil {
				state = " (" + missing.Error() + ")"
			}
		}
		fmt.Fprintf(w, "%s: %s%s\n", about.Name, about.Summary, state)
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, o := range about.Settings {
			doc := o.Doc
			if o.Default != "" {
				doc += " (default " + o.Default + ")"
			}
			fmt.Fprintf(t, "  %s\t%s\n", o.Name, doc)
		}
		if err := t.Flush(); err != nil {
			return fmt.Errorf("writing the list of subjects: %w", err)
		}
	}
	return nil
}

func decodeMessage(m role.Message, into any) error {
	if err := json.Unmarshal(m.Data, into); err != nil {
		return fmt.Errorf("decoding %s message: %w", m.Event, err)
	}
	return nil
}
