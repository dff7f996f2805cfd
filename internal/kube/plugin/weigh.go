package plugin

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"tare/internal/kube/agents"
	"tare/internal/kube/cluster"
	"tare/internal/kube/clusterreport"
	"tare/internal/lib/fault"
	"tare/internal/lib/text"
	"tare/internal/lib/usage"
)

func init() { register(newWeigh) }

const (
	shortest = 100 * time.Millisecond // the limits are those of tare-agent
	longest  = 5 * time.Minute
)

type weighFlags struct {
	scope

	window     time.Duration
	by, output string
	format     clusterreport.Format
	top        int
}

func newWeigh(c *connection) *cobra.Command {
	var f weighFlags
	cmd := &cobra.Command{
		Use:   "weigh",
		Short: "Weigh the cluster: one window on every node at the same time",
		Long: `Weigh has tare-agent on every node take one window at the same time, and adds up the answers: what each workload
uses in all (gross), itself (net), and by infrastructure on its behalf (tare): gross = net + tare. Sidecars are tare of
their pod; what serves a whole node, such as the kubelet, the CNI and the agents themselves, has separate lines, and
is spread over workloads only with --shared spread: CPU time in proportion to gross CPU time, memory to gross memory.

It asks the agents that are installed ('kubectl tare install'). Where there are none, it deploys agents of --image in
the namespace kube-system and removes them afterwards. Should it be killed, the cluster removes them by itself, once
the time for starting them and for the window is over. Ctrl-C removes them at once.

Agents are asked through the API server, as by kubectl port-forward: no port is opened.

-n, -l and --owner select the pods that have rows. The usage of all others is in rows "(other pods)", so that sums
stay right. --rules adds rules for what is infrastructure, by owner, label or name of pods (docs/kubernetes.md).
A node that does not answer is listed with the reason, and is in no sum; the exit code is then 4.`,
		Example: `  # what workloads use, and what infrastructure uses on their behalf, by agents that are installed or deployed for it
  kubectl tare weigh
  kubectl tare weigh --image registry.example.com/tare-agent:0.1.0

  # which infrastructure costs most; what a namespace's pods cost, with their part of what serves the nodes
  kubectl tare weigh --for 1m --by component
  kubectl tare weigh -n shop -l app=cart --by container --shared spread
  kubectl tare weigh --owner Deployment/web --rules rules.yaml

  # for programs (schema tare.cluster/v1), and a page with the cluster's picture
  kubectl tare weigh -o json | jq '.components[] | {component, cpu: .cpu_seconds.tare}'
  kubectl tare weigh -o html > cluster.html`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(c); err != nil {
				return err
			}
			client, err := c.open()
			if err != nil {
				return err
			}
			return f.weigh(cmd.Context(), client, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fs := cmd.Flags()
	fs.DurationVar(&f.window, "for", 10*time.Second, "length of the window")
	fs.StringVar(&f.by, "by", "", "what rows are of: "+strings.Join(cluster.Views(), ", ")+"; default workload, and all "+
		"with -o csv; json always has all")
	fs.StringVarP(&f.output, "output", "o", "text", "format: "+strings.Join(clusterreport.Names(), ", "))
	fs.IntVar(&f.top, "top", 20, "most rows of a table as text; 0: all")
	f.register(fs)
	return cmd
}

func (f *weighFlags) check(c *connection) error {
	if err := checkWindow("--for", f.window); err != nil {
		return err
	}
	format := slices.Index(clusterreport.Names(), f.output)
	switch {
	case format < 0:
		return fault.New(fault.Usage, "-o "+text.Clip(f.output), text.Suggest(f.output, clusterreport.Names()),
			"no such format")
	case f.by != "" && !slices.Contains(cluster.Views(), f.by):
		return fault.New(fault.Usage, "--by "+text.Clip(f.by), text.Suggest(f.by, cluster.Views()), "no such view")
	}
	f.format = clusterreport.Formats()[format]
	return f.scope.check(c)
}

// weigh weighs the cluster and prints the account. It removes the agents that it has deployed before it prints.
func (f *weighFlags) weigh(ctx context.Context, c *agents.Cluster, out, log io.Writer) error {
	account, err := f.account(ctx, c, log)
	if err != nil {
		return err
	}
	top := f.top
	if top == 0 {
		top = -1
	}
	b := bufio.NewWriter(out)
	err = f.format.Write(b, account, clusterreport.Options{By: f.by, Top: top, Width: columnsOf(out)})
	if err := cmp.Or(err, b.Flush()); err != nil {
		return fault.Wrap(err, fault.Machine, "standard output", "make room, or write somewhere else",
			"cannot write the result")
	}
	if account.Answered < account.Asked {
		return noWindows(account)
	}
	return nil
}

// columnsOf returns the width of a terminal; 0 if it is not known, or w is no terminal.
func columnsOf(w io.Writer) int {
	file, is := w.(*os.File)
	if !is {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}

// noWindows returns an error with the nodes that gave no window.
func noWindows(account *cluster.Cluster) error {
	failed := clusterreport.Failures(account)
	const most = 10
	if len(failed) > most {
		failed = append(failed[:most], fmt.Sprintf("and %d more", len(failed)-most))
	}
	return fault.New(fault.Invalid, "", strings.Join(failed, "\n"), "%d of %d nodes gave no window",
		account.Asked-account.Answered, account.Asked)
}

func (f *weighFlags) account(ctx context.Context, c *agents.Cluster, log io.Writer) (*cluster.Cluster, error) {
	if err := f.checkPods(ctx, c); err != nil {
		return nil, err
	}
	w, err := f.open(ctx, c, f.window+afterWindow, log)
	if err != nil {
		return nil, err
	}
	if f.image != "" && w.temporary == nil {
		fmt.Fprintf(log, "tare: agents are installed in the namespace %s: --image has no effect\n", w.set.Namespace)
	}
	defer w.close(ctx)
	return w.take(ctx, f.window, f.by == "container" || f.output != "text")
}
