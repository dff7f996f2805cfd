package plugin

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"

	"tare/internal/kube/agents"
	"tare/internal/kube/cluster"
	"tare/internal/kube/clusterreport"
	"tare/internal/lib/fault"
	"tare/internal/lib/text"
)

func init() { register(newWeigh) }

const (
	shortest = 100 * time.Millisecond // as of tare-agent
	longest  = 5 * time.Minute

	sharedSpread = "spread"
	sharedApart  = "apart"
	// What follows a window: answers, and the removal of the agents.
	afterWindow = 30 * time.Second
)

type weighFlags struct {
	window, within                    time.Duration
	by, output, selector, shared      string
	format                            clusterreport.Format
	image, agentsNamespace, namespace string
	top                               int
	selects                           labels.Selector
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

-n and -l choose which pods have rows; what others use is in rows "(other pods)", so that sums stay right.
A node that does not answer is named with the reason and is in no sum; the exit code is then 4.`,
		Example: `  # what workloads use, and what infrastructure uses on their behalf, by agents that are installed or deployed for it
  kubectl tare weigh
  kubectl tare weigh --image registry.example.com/tare-agent:0.1.0

  # which infrastructure costs most; what a namespace's pods cost, with their part of what serves the nodes
  kubectl tare weigh --for 1m --by component
  kubectl tare weigh -n shop -l app=cart --by container --shared spread

  # for programs (schema tare.cluster/v1), and a page with the cluster's picture
  kubectl tare weigh -o json | jq '.components[] | {component, cpu: .cpu_seconds.tare}'
  kubectl tare weigh -o html > cluster.html`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.namespace = c.overrides.Context.Namespace
			if err := f.check(); err != nil {
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
	fs.StringVar(&f.by, "by", "workload", "what rows are of: "+strings.Join(cluster.Views(), ", "))
	fs.StringVarP(&f.output, "output", "o", "text", "format: "+strings.Join(clusterreport.Names(), ", "))
	fs.StringVarP(&f.selector, "selector", "l", "", "only pods with these labels have rows")
	fs.StringVar(&f.shared, "shared", sharedApart, "what serves a whole node: apart, in separate lines, or spread over "+
		"workloads")
	fs.IntVar(&f.top, "top", 20, "most rows of a table as text; 0: all")
	registerAgents(fs, &f.image, &f.agentsNamespace)
	fs.DurationVar(&f.within, "start-within", time.Minute, "time for temporary agents to start")
	return cmd
}

func (f *weighFlags) check() (err error) {
	format := slices.Index(clusterreport.Names(), f.output)
	switch {
	case f.window < shortest || f.window > longest:
		return fault.New(fault.Usage, "--for "+f.window.String(), "an agent's windows last that long",
			"a window must last %v to %v", shortest, longest)
	case f.within < time.Second || f.within > 10*time.Minute:
		return fault.New(fault.Usage, "--start-within "+f.within.String(), "", "it must be 1s to 10m")
	case format < 0:
		return fault.New(fault.Usage, "-o "+text.Clip(f.output), text.Suggest(f.output, clusterreport.Names()),
			"no such format")
	case !slices.Contains(cluster.Views(), f.by):
		return fault.New(fault.Usage, "--by "+text.Clip(f.by), text.Suggest(f.by, cluster.Views()), "no such view")
	case f.shared != sharedSpread && f.shared != sharedApart:
		return fault.New(fault.Usage, "--shared "+text.Clip(f.shared), "choose apart or spread", "no such rule")
	}
	f.format = clusterreport.Formats()[format]
	f.selects, err = labels.Parse(f.selector)
	return fault.Wrap(err, fault.Usage, "-l "+text.Clip(f.selector), "try -l app=web", "not a selector of labels")
}

// weigh weighs the cluster and prints the account. Agents that it has deployed are removed before anything is
// printed.
func (f *weighFlags) weigh(ctx context.Context, c *agents.Cluster, out, log io.Writer) error {
	account, err := f.account(ctx, c, log)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	top := f.top
	if top == 0 {
		top = -1
	}
	if err := f.format.Write(&b, account, clusterreport.Options{By: f.by, Top: top}); err != nil {
		return err
	}
	if _, err := out.Write(b.Bytes()); err != nil {
		return fault.Wrap(err, fault.Machine, "standard output", "make room, or write somewhere else",
			"cannot write the result")
	}
	if account.Answered < account.Asked {
		var failed []string
		for i := range account.Nodes {
			if n := &account.Nodes[i]; n.Failed != "" {
				failed = append(failed, n.Name+": "+n.Failed)
			}
		}
		const most = 10
		if len(failed) > most {
			failed = append(failed[:most], fmt.Sprintf("and %d more", len(failed)-most))
		}
		return fault.New(fault.Invalid, "", strings.Join(failed, "\n"), "%d of %d nodes gave no window",
			account.Asked-account.Answered, account.Asked)
	}
	return nil
}

func (f *weighFlags) account(ctx context.Context, c *agents.Cluster, log io.Writer) (*cluster.Cluster, error) {
	nodes, err := c.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	if len(nodes) == 0 {
		return nil, fault.New(fault.Machine, "", "", "the cluster has no nodes")
	}
	list, err := c.Find(ctx, f.agentsNamespace)
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		t, deployErr := f.deploy(ctx, c, nodes, log)
		if t != nil {
			defer remove(ctx, t, log)
		}
		if deployErr != nil {
			return nil, deployErr
		}
		if list, err = t.Wait(ctx, nodes, f.within); err != nil {
			return nil, err
		}
	}
	return f.merge(ctx, c, nodes, list)
}

// deploy deploys temporary agents. What it returns is to be removed, also after an error.
func (f *weighFlags) deploy(ctx context.Context, c *agents.Cluster, nodes []agents.Node, log io.Writer,
) (*agents.Temporary, error) {
	if f.image == "" {
		return nil, fault.New(fault.Usage, "", "give --image, the image of tare-agent in a registry that the nodes can "+
			"reach: docs/kubernetes.md says how to make it", "tare-agent is not installed in this cluster")
	}
	d := agents.Deployment{Namespace: namespaceOf(f.agentsNamespace), Image: f.image,
		Lifetime: (f.within + f.window + afterWindow).Round(time.Second)}
	fmt.Fprintf(log, "tare: starting agents on %d nodes, in the namespace %s, for %v at most\n", len(nodes), d.Namespace,
		d.Lifetime)
	return c.Deploy(ctx, d)
}

// remove removes agents. What this cannot, the cluster does.
func remove(ctx context.Context, t *agents.Temporary, log io.Writer) {
	if err := t.Remove(ctx); err != nil {
		fmt.Fprintf(log, "tare: the cluster removes the agents when their time is over: %s\n", text.Line(err.Error()))
	}
}

// merge has the agents take a window, and adds it up.
func (f *weighFlags) merge(ctx context.Context, c *agents.Cluster, nodes []agents.Node, list []agents.Agent,
) (*cluster.Cluster, error) {
	w := c.Open(ctx, list, f.window)
	pods, err := c.Pods(ctx) // during the window: those that are in it
	o := cluster.Options{Start: w.Start, End: w.End, Machines: map[string]string{}, Spread: f.shared == sharedSpread,
		Containers: f.by == "container" || f.output != "text"}
	if f.namespace != "" || !f.selects.Empty() {
		o.Match = func(p *cluster.Pod) bool {
			return (f.namespace == "" || f.namespace == p.Namespace) && f.selects.Matches(labels.Set(p.Labels))
		}
	}
	missing := map[string]*agents.Node{}
	for i := range nodes {
		o.Machines[nodes[i].Name] = nodes[i].Machine
		missing[nodes[i].Name] = &nodes[i]
	}
	m := cluster.New(pods, o)
	for a := range w.Answers {
		n := missing[a.Node]
		if n == nil {
			continue // it came after the nodes were listed
		}
		delete(missing, a.Node)
		m.Add(nodeOf(n, &a))
	}
	if err := cmp.Or(ctx.Err(), err); err != nil {
		return nil, err
	}
	for _, n := range missing {
		m.Add(&cluster.Node{Name: n.Name, Failed: without(n), Capacity: n.Capacity, Allocatable: n.Allocatable})
	}
	return m.Finish(), nil
}

func nodeOf(n *agents.Node, a *agents.Answer) *cluster.Node {
	to := &cluster.Node{Name: n.Name, Failed: a.Failed, Ledger: a.Ledger, Capacity: n.Capacity,
		Allocatable: n.Allocatable}
	switch {
	case a.Failed == "":
		to.Clock = cluster.Clock{OffsetSeconds: new(a.Offset.Seconds()), UncertaintySeconds: new(a.Uncertainty.Seconds())}
	case !n.Ready:
		to.Failed = notReady
	}
	return to
}

const notReady = "the node is not ready"

// without says why a node has no agent.
func without(n *agents.Node) string {
	switch {
	case n.OS != "linux":
		return "tare-agent needs Linux, and the node has " + cmp.Or(n.OS, "another system")
	case !n.Ready:
		return notReady
	}
	return "there is no agent on it"
}
