package cli

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"tare/internal/lib/fault"
	"tare/internal/lib/privilege"
	"tare/internal/results/report"
	"tare/internal/results/screen"
	"tare/internal/scale/remote"
)

func init() { register(newTop) }

// topFlags are the flags of tare top.
type topFlags struct {
	ticks
	scale scaleFlags
	agent remote.Options
	once  bool
	json  bool
}

func newTop() *cobra.Command {
	var f topFlags
	c := &cobra.Command{
		Use:   "top",
		Short: "Show the ledger of this machine, or of one with tare-agent, live on a screen",
		Long: `Top shows the ledger of a machine as tare weigh prints it, again and again: the CPU budget as a bar, with what was
stolen and what is unexplained, and tables of components, eBPF programs with who pays for them, control groups as a
tree, sandboxes and maps. CPU time is in CPUs: 0.2500 is a quarter of one CPU. What is not known is "-", never 0. Below
the table is the history of the selected row, up to ten minutes.

  tab, 1 to 5   the tables               s, r    sort by the next column; the other way round
  j, k, arrows  select a row             /       show rows whose name has a text
  enter         what is below a row      p       freeze the screen
  +, -          longer, shorter ticks    w       the warnings of the ledger
  ?             all keys                 q       quit

Windows follow each other without a gap. Rules, sandboxes and samples are as of tare weigh, and so is what it costs: the
line "self" of the budget.

--agent HOST:PORT shows another machine, of which a tare-agent gives one window after another, by the rules of its
configuration. This needs no rights here. --once prints one ledger as text, --json one JSON document a line.`,
		Example: `  tare top
  tare top --tare 'cgroup=/system.slice/falco.service,component=falco' --workload 'shop=namespace=shop'
  tare top --agent node-7:9633 --ca /etc/tare/ca.pem --user ops --password-file /etc/tare/password
  tare top --once | less
  tare top --every 10s --json >> ledgers.jsonl`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			if err := f.checkAgent(cmd.Flags()); err != nil {
				return err
			}
			return f.top(cmd.Context(), cmd.OutOrStdout())
		},
	}
	fs := c.Flags()
	fs.DurationVar(&f.every, "every", 2*time.Second, "length of a tick")
	fs.BoolVar(&f.once, "once", false, "print the ledger of one tick, and end")
	fs.BoolVar(&f.json, "json", false, "print one JSON document for each tick and nothing else, until Ctrl-C")
	f.scale.register(fs)
	fs.StringVar(&f.agent.Address, "agent", "", "HOST:PORT of the tare-agent of another machine")
	fs.BoolVar(&f.agent.TLS, "tls", false, "speak HTTPS with the agent")
	fs.StringVar(&f.agent.CAFile, "ca", "", "file with the authority of the agent's certificate, for HTTPS")
	fs.StringVar(&f.agent.User, "user", "", "user at the agent, with --password-file")
	fs.StringVar(&f.agent.PasswordFile, "password-file", "", "file with the user's password")
	fs.StringVar(&f.agent.TokenFile, "token-file", "", "file with a bearer token, for a proxy before the agent")
	return c
}

// checkAgent refuses flags that mean nothing with an agent, or without.
func (f *topFlags) checkAgent(given *pflag.FlagSet) (err error) {
	var scale, agent pflag.FlagSet
	new(scaleFlags).register(&scale)
	for _, name := range []string{"tls", "ca", "user", "password-file", "token-file"} {
		agent.AddFlag(given.Lookup(name))
	}
	given.Visit(func(g *pflag.Flag) {
		switch {
		case err != nil:
		case f.agent.Address != "" && scale.Lookup(g.Name) != nil:
			err = fault.New(fault.Usage, "--"+g.Name+" --agent", "set it where the agent runs: tare-agent --help",
				"an agent weighs by its own settings")
		case f.agent.Address == "" && agent.Lookup(g.Name) != nil:
			err = fault.New(fault.Usage, "--"+g.Name, "add --agent HOST:PORT", "this is for the connection to an agent")
		}
	})
	return err
}

// top shows or prints ledgers.
func (f *topFlags) top(ctx context.Context, out io.Writer) error {
	terminal := fileOf(out)
	if !f.once && !f.json {
		if err := checkTerminal(terminal); err != nil {
			return err
		}
	}
	defer debug.SetGCPercent(debug.SetGCPercent(50)) // as weigh does
	s, err := f.open(ctx)
	if err != nil {
		return err
	}
	switch {
	case f.once:
		err = f.printOne(ctx, out, s)
	case f.json:
		var write, none = report.Series.Writer("json")
		if err = none; err == nil {
			err = f.write(ctx, out, s, write, report.Options{})
		}
	default:
		err = screen.Run(ctx, terminal, s, screen.Options{Every: f.every, From: f.agent.Address,
			Retry: f.agent.Address != ""})
	}
	return errors.Join(err, s.Close())
}

// checkTerminal refuses to draw where nothing can be drawn.
func checkTerminal(f *os.File) error {
	const hint = "add --once for one ledger as text, or --json for one JSON document for each tick"
	if f == nil || !isatty.IsTerminal(f.Fd()) {
		return fault.New(fault.Usage, "standard output", hint, "tare top draws on a terminal, and this is none")
	}
	if slices.Contains([]string{"", "dumb"}, os.Getenv("TERM")) {
		return fault.New(fault.Usage, "TERM="+os.Getenv("TERM"), hint, "this terminal cannot be drawn on")
	}
	return nil
}

// open opens this machine, or an agent of another one.
func (f *topFlags) open(ctx context.Context) (source, error) {
	if f.agent.Address == "" {
		o, err := f.scale.options(ctx)
		if err != nil {
			return nil, err
		}
		return openWatch(ctx, o)
	}
	a, err := remote.New(f.agent)
	if err == nil && ctx.Value(ownProcess{}) != nil {
		err = privilege.Drop()
	}
	if err != nil {
		return nil, err
	}
	return a, nil
}

// printOne prints the ledger of one tick.
func (f *topFlags) printOne(ctx context.Context, out io.Writer, s source) error {
	format := "text"
	if f.json {
		format = "json"
	}
	write, err := report.Ledgers.Writer(format)
	if err != nil {
		return err
	}
	l, err := s.Next(ctx, f.every)
	if err != nil {
		return cmp.Or(ctx.Err(), err)
	}
	return write(out, l, textOptions(out, "", true))
}
