package cli

import (
	"cmp"
	"context"
	"errors"
	"io"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"tare/internal/lib/fault"
	"tare/internal/lib/privilege"
	"tare/internal/lib/usage"
	"tare/internal/results/report"
	"tare/internal/results/screen"
	"tare/internal/scale/remote"
)

func init() { register(newTop) }

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
		Long: `Top shows the ledger of a machine, as tare weigh prints it, and keeps it up to date: the CPU budget as a bar, with
stolen and unexplained time, and tables of components, of eBPF programs and who pays for them, of control groups as a
tree, of sandboxes and of maps. CPU time is in CPUs: 0.2500 is a quarter of one CPU. What is not known is "-", never 0.
Below the table is the history of the selected row, up to ten minutes.

  tab, 1 to 5   switch tables            s, r    sort by the next column; reverse the order
  j, k, arrows  select a row             /       show only rows whose name contains a text
  enter         show or hide its parts   p       freeze the screen
  +, -          longer, shorter ticks    w       warnings of the ledger
  ?             all keys                 q       quit

Windows follow each other without a gap, except where a CPU goes offline or comes online: the next ledger warns of it.
Rules, sandboxes and samples work as in tare weigh. The line "self" of the budget is what top itself costs.

--agent HOST:PORT shows another machine, on which tare-agent takes one window after another, by the rules of its own
configuration. This needs no privileges here. --once prints one ledger as text, --json one JSON document per line.`,
		Example: `  tare top
  tare top --tare 'cgroup=/system.slice/falco.service,component=falco' --workload 'shop=namespace=shop'
  tare top --agent node-7:9633 --ca /etc/tare/ca.pem --user ops --password-file /etc/tare/password
  tare top --once | less
  tare top --every 10s --json >> ledgers.jsonl`,
		Args: usage.NoArgs,
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
	fs.BoolVar(&f.once, "once", false, "print the ledger of one tick and exit")
	fs.BoolVar(&f.json, "json", false, "print one JSON document for each tick and nothing else, until Ctrl-C")
	f.scale.register(fs)
	fs.StringVar(&f.agent.Address, "agent", "", "show the machine whose tare-agent is at HOST:PORT")
	fs.BoolVar(&f.agent.TLS, "tls", false, "connect to the agent by HTTPS")
	fs.StringVar(&f.agent.CAFile, "ca", "", "connect by HTTPS, and trust the certificates (PEM) in this file")
	fs.StringVar(&f.agent.User, "user", "", "user name for the agent, with --password-file")
	fs.StringVar(&f.agent.PasswordFile, "password-file", "", "file with the password of --user")
	fs.StringVar(&f.agent.TokenFile, "token-file", "", "file with a bearer token, for a proxy in front of the agent")
	return c
}

// checkAgent rejects flags that have no meaning with an agent, or without one.
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
				"an agent uses the settings of its own machine")
		case f.agent.Address == "" && agent.Lookup(g.Name) != nil:
			err = fault.New(fault.Usage, "--"+g.Name, "add --agent HOST:PORT", "this flag needs --agent")
		}
	})
	return err
}

// top shows or prints ledgers.
func (f *topFlags) top(ctx context.Context, out io.Writer) error {
	terminal := fileOf(out)
	if !f.once && !f.json {
		err := screen.CheckTerminal(terminal, "tare top",
			"add --once for one ledger as text, or --json for one JSON document for each tick")
		if err != nil {
			return err
		}
	}
	defer debug.SetGCPercent(debug.SetGCPercent(50)) // for the reason given in newWeigh
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
		next := func(ctx context.Context, d time.Duration) (*screen.Picture, error) {
			l, err := s.Next(ctx, d)
			if err != nil {
				return nil, err
			}
			return screen.OfLedger(l), nil
		}
		err = screen.Run(ctx, terminal, next, screen.Options{Command: "tare top", Weigh: "tare weigh",
			Tables: screen.LedgerTables(), Every: f.every, From: f.agent.Address, Retry: f.agent.Address != ""})
	}
	return errors.Join(err, s.Close())
}

// open returns a source of ledgers: this machine or, with --agent, an agent.
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
