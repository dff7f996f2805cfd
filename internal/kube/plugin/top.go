package plugin

import (
	"context"
	"os"
	"time"

	"github.com/spf13/cobra"

	"tare/internal/kube/agents"
	"tare/internal/kube/clusterreport"
	"tare/internal/lib/fault"
	"tare/internal/lib/usage"
	"tare/internal/results/screen"
)

func init() { register(newTop) }

// longestTop is the longest lifetime that --life can give temporary agents.
const longestTop = 24 * time.Hour

type topFlags struct {
	scope

	every, life time.Duration
}

func newTop(c *connection) *cobra.Command {
	var f topFlags
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show what the cluster's CPUs and memory are used for, live on a screen",
		Long: `Top shows the account that kubectl tare weigh prints, and keeps it up to date: the CPU time of all nodes as a bar, and
tables of workloads with their containers, namespaces, components, nodes and containers: gross = net + tare. What is
not known is "-", never 0. Below the table is the history of the selected row, up to ten minutes.

  tab, 1 to 5   switch tables            s, r    sort by the next column; reverse the order
  j, k, arrows  select a row             /       show only rows whose name contains a text
  enter         show or hide its parts   p       freeze the screen
  +, -          longer, shorter windows  w       warnings, and nodes that did not answer
  ?             all keys                 q       quit

All nodes take each window at the same time. About two seconds lie between a window and the next, in which the clocks
of the nodes are compared and pods are listed.

It asks the agents that are installed ('kubectl tare install'). Where there are none, it deploys agents of --image in
the namespace kube-system for at most the time of --life, and removes them when it ends. Should it be killed, the
cluster removes them when that time is over.`,
		Example: `  kubectl tare top
  kubectl tare top --every 30s -n shop --shared spread
  kubectl tare top --image registry.example.com/tare-agent:0.1.0 --life 10m`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(c); err != nil {
				return err
			}
			terminal, _ := cmd.OutOrStdout().(*os.File)
			err := screen.CheckTerminal(terminal, "kubectl tare top", "kubectl tare weigh prints one window")
			if err != nil {
				return err
			}
			client, err := c.open()
			if err != nil {
				return err
			}
			return f.show(cmd, client, terminal)
		},
	}
	fs := cmd.Flags()
	fs.DurationVar(&f.every, "every", 10*time.Second, "length of a window")
	fs.DurationVar(&f.life, "life", time.Hour, "how long agents live that are deployed for this")
	f.register(fs)
	return cmd
}

func (f *topFlags) check(c *connection) error {
	if err := checkWindow("--every", f.every); err != nil {
		return err
	}
	if f.life < f.every || f.life > longestTop {
		return fault.New(fault.Usage, "--life "+f.life.String(), "", "it must be a window's length to %v", longestTop)
	}
	return f.scope.check(c)
}

// show shows windows until the user quits.
func (f *topFlags) show(cmd *cobra.Command, c *agents.Cluster, terminal *os.File) error {
	ctx := cmd.Context()
	if err := f.checkPods(ctx, c); err != nil {
		return err
	}
	w, err := f.open(ctx, c, f.life, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	defer w.close(ctx)
	first := true
	next := func(ctx context.Context, d time.Duration) (*screen.Picture, error) {
		if !first { // nodes and agents may have changed
			if err := w.look(ctx); err != nil {
				return nil, err
			}
		}
		first = false
		account, err := w.take(ctx, d, true)
		if err != nil {
			return nil, err
		}
		if account.Answered == 0 {
			return nil, noWindows(account)
		}
		return clusterreport.Picture(account), nil
	}
	return screen.Run(ctx, terminal, next, screen.Options{Command: "kubectl tare top", Weigh: "kubectl tare weigh",
		Tables: clusterreport.ScreenTables(), Every: f.every, Retry: true})
}
