package plugin

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/labels"

	"tare/internal/kube/agents"
	"tare/internal/kube/cluster"
	"tare/internal/lib/fault"
	"tare/internal/lib/files"
	"tare/internal/lib/pace"
	"tare/internal/lib/text"
	"tare/internal/scale/charge"
)

const (
	sharedSpread = "spread"
	sharedApart  = "apart"
	// afterWindow is the time after a window for the answers and for the removal of the agents.
	afterWindow = 30 * time.Second
	maxRules    = 1 << 20 // bytes of a file of rules
)

// scope defines which agents take windows, and which pods get separate rows. Flags set most fields; check sets
// namespace, charges and selects.
type scope struct {
	image, agentsNamespace, namespace string
	selector, owner, shared, rules    string
	charges                           []charge.Rule
	within                            time.Duration
	selects                           labels.Selector
	access                            agents.Access
	run                               string // the run that temporary agents serve, as in agents.Owner
}

func (s *scope) register(f *pflag.FlagSet) {
	f.StringVarP(&s.selector, "selector", "l", "", "only pods with these labels have rows")
	f.StringVar(&s.owner, "owner", "", "only pods of these workloads have rows: NAME or KIND/NAME, with * for any "+
		"characters")
	f.StringVar(&s.rules, "rules", "", "`file` of rules that say what is infrastructure, by owner= of pods, too")
	f.StringVar(&s.shared, "shared", sharedApart, "what serves a whole node: apart, in separate lines, or spread over "+
		"workloads")
	s.registerStart(f)
}

// registerStart adds the flags about agents.
func (s *scope) registerStart(f *pflag.FlagSet) {
	registerAgents(f, &s.image, &s.agentsNamespace)
	registerAccess(f, &s.access)
	registerWithin(f, &s.within)
}

func (s *scope) check(c *connection) (err error) {
	s.namespace = c.overrides.Context.Namespace
	if err := checkStart(s.within); err != nil {
		return err
	}
	if s.shared != "" && s.shared != sharedSpread && s.shared != sharedApart {
		return fault.New(fault.Usage, "--shared "+text.Clip(s.shared), "", "must be apart or spread")
	}
	if err := s.access.Check(); err != nil {
		return err
	}
	if s.rules != "" {
		data, err := files.Read(s.rules, maxRules)
		if err != nil {
			return fault.Wrap(err, fault.Usage, "--rules "+text.Clip(s.rules), "see docs/kubernetes.md", "cannot read the rules")
		}
		if s.charges, err = charge.ParseClusterFile(s.rules, data); err != nil {
			return err
		}
	}
	s.selects, err = labels.Parse(s.selector)
	return fault.Wrap(err, fault.Usage, "-l "+text.Clip(s.selector), "try -l app=web", "not a selector of labels")
}

// match returns a function that reports whether -n, -l and --owner ask for a pod; nil if they ask for all.
func (s *scope) match() func(*cluster.Pod) bool {
	if s.namespace == "" && s.owner == "" && s.selects.Empty() {
		return nil
	}
	return func(p *cluster.Pod) bool {
		return (s.namespace == "" || s.namespace == p.Namespace) && (s.owner == "" || p.OwnedBy(s.owner)) &&
			s.selects.Matches(labels.Set(p.Labels))
	}
}

// checkPods returns an error if -n, -l and --owner ask for pods, and there are none.
func (s *scope) checkPods(ctx context.Context, c *agents.Cluster) error {
	match := s.match()
	if match == nil {
		return nil
	}
	pods, err := c.Pods(ctx)
	if err != nil || slices.ContainsFunc(pods, func(p cluster.Pod) bool { return match(&p) }) {
		return err
	}
	var asked []string
	for _, flag := range [][2]string{{"-n", s.namespace}, {"-l", s.selector}, {"--owner", s.owner}} {
		if flag[1] != "" {
			asked = append(asked, flag[0], text.Clip(flag[1]))
		}
	}
	return fault.New(fault.Usage, strings.Join(asked, " "), "see kubectl get pods -A --show-labels",
		"no pod that runs on a node is one of these")
}

// checkWindow returns an error for a length of a window, given by a flag, that agents do not accept.
func checkWindow(flag string, d time.Duration) error {
	if d < shortest || d > longest {
		return fault.New(fault.Usage, flag+" "+d.String(), "an agent's windows last that long",
			"a window must last %v to %v", shortest, longest)
	}
	return nil
}

// windows has the agents of a cluster take windows together, one window after the other.
type windows struct {
	*scope
	c         *agents.Cluster
	temporary *agents.Temporary // nil if agents are installed
	set       agents.Set
	nodes     []agents.Node
	agents    []agents.Agent
	log       io.Writer
}

// open finds the installed agents. If there are none, it deploys temporary agents, which live for the duration life
// after the time for their start. It waits until they have started.
func (s *scope) open(ctx context.Context, c *agents.Cluster, life time.Duration, log io.Writer) (*windows, error) {
	c.Access = s.access
	w := &windows{scope: s, c: c, log: log}
	err := w.look(ctx)
	if err != nil {
		return nil, err
	}
	if w.set.UID != "" {
		return w, w.started(ctx)
	}
	if err = w.deploy(ctx, life); err == nil {
		w.set = w.temporary.Set
		_, err = w.temporary.Wait(ctx, w.nodes, s.within)
	}
	if err == nil { // nodes may have joined meanwhile
		err = w.look(ctx)
	}
	if err != nil {
		w.close(ctx)
		return nil, err
	}
	return w, nil
}

// started waits until installed agents exist and those of nodes that are ready have started, but no longer than the
// value of --start-within. It returns an error only if the context ends or nodes or agents cannot be listed.
func (w *windows) started(ctx context.Context) error {
	for deadline, said := time.Now().Add(w.within), false; ; said = true {
		ready := map[string]bool{}
		for i := range w.nodes {
			ready[w.nodes[i].Name] = w.nodes[i].Ready
		}
		waits := func(a agents.Agent) bool { return ready[a.Node] && a.NotStarted() }
		if len(w.agents) > 0 && !slices.ContainsFunc(w.agents, waits) || time.Now().After(deadline) {
			return nil
		}
		if !said {
			fmt.Fprintf(w.log, "tare: waiting for the agents in the namespace %s to start, for %v at most\n", w.set.Namespace,
				w.within)
		}
		err := pace.Sleep(ctx, time.Second)
		if err == nil {
			err = w.look(ctx)
		}
		if err != nil {
			return err
		}
	}
}

// look finds the current agents and nodes. Nodes are listed last, so that they include the node of each agent, unless
// it was removed.
func (w *windows) look(ctx context.Context) (err error) {
	if w.temporary != nil {
		w.agents, err = w.c.Agents(ctx, w.set)
	} else {
		w.set, w.agents, err = w.c.Find(ctx, w.agentsNamespace)
	}
	if err == nil {
		w.nodes, err = w.c.Nodes(ctx)
	}
	if err == nil && len(w.nodes) == 0 {
		err = fault.New(fault.Machine, "", "", "the cluster has no nodes")
	}
	return err
}

// deploy deploys temporary agents. Even after an error, some may exist.
func (w *windows) deploy(ctx context.Context, life time.Duration) (err error) {
	if w.image == "" {
		return fault.New(fault.Usage, "", "give --image, the image of tare-agent in a registry that the nodes can "+
			"reach: docs/kubernetes.md says how to make it", "tare-agent is not installed in this cluster")
	}
	d := agents.Deployment{Namespace: namespaceOf(w.agentsNamespace), Image: w.image,
		Lifetime: (w.within + life).Round(time.Second), Run: w.run}
	fmt.Fprintf(w.log, "tare: starting agents on %d nodes, in the namespace %s, for %v at most\n", len(w.nodes),
		d.Namespace, d.Lifetime)
	w.temporary, err = w.c.Deploy(ctx, d)
	return err
}

// close removes temporary agents. If it fails, the cluster removes them when their time is over.
func (w *windows) close(ctx context.Context) {
	if w.temporary == nil {
		return
	}
	if err := w.temporary.Remove(ctx); err != nil {
		fmt.Fprintf(w.log, "tare: the cluster removes the agents when their time is over: %s\n", text.Line(err.Error()))
	}
}

// take has the agents take a window that lasts d, and merges their ledgers.
func (w *windows) take(ctx context.Context, d time.Duration, containers bool) (*cluster.Cluster, error) {
	open := w.c.Open(ctx, w.agents, d)
	pods, err := w.c.Pods(ctx) // listed during the window, for the pods that exist in it
	account := w.merge(open, pods, containers)
	return account, cmp.Or(ctx.Err(), err)
}

// merge merges the ledgers of a window.
func (w *windows) merge(open *agents.Window, pods []cluster.Pod, containers bool) *cluster.Cluster {
	o := cluster.Options{Start: open.Start, End: open.End, Machines: map[string]string{},
		Spread: w.shared == sharedSpread, Containers: containers, Rules: w.charges, Match: w.match()}
	missing := map[string]*agents.Node{}
	for i := range w.nodes {
		n := &w.nodes[i]
		o.Machines[n.Name] = n.Machine
		missing[n.Name] = n
	}
	m := cluster.New(pods, o)
	failed := map[string]string{} // by node: why its agent failed
	for a := range open.Answers {
		n := missing[a.Node]
		switch {
		case a.Failed != "": // while a DaemonSet with maxSurge is updated, another agent of the node may answer
			failed[a.Node] = a.Failed
		case n != nil: // otherwise, another agent has answered, or the node was removed
			delete(missing, a.Node)
			m.Add(&cluster.Node{Name: n.Name, Ledger: a.Ledger, Capacity: n.Capacity, Allocatable: n.Allocatable,
				Clock: cluster.Clock{OffsetSeconds: new(a.Offset.Seconds()), UncertaintySeconds: new(a.Uncertainty.Seconds())}})
		}
	}
	for _, n := range missing {
		m.Add(&cluster.Node{Name: n.Name, Failed: without(n, failed[n.Name]), Capacity: n.Capacity,
			Allocatable: n.Allocatable})
	}
	return m.Finish()
}

// without returns the reason why a node gave no ledger. failed is the reason why its agent failed, if it has one.
func without(n *agents.Node, failed string) string {
	switch {
	case n.OS != "linux":
		return "tare-agent needs Linux, and the node has " + cmp.Or(n.OS, "another system")
	case !n.Ready:
		return "the node is not ready"
	}
	return cmp.Or(failed, "there is no agent on it")
}
