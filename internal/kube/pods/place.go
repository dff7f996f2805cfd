// Package pods is the place of trials in a cluster (engine.Place): applications and loads are pods, windows are taken
// by the agents of all nodes at the same time, and what a subject costs is what runs in the cluster by the rules of
// its arm. Trial, in trial.go, is the life of one trial from top to bottom.
//
// All objects of a run are owned by one Job without pods, which the cluster itself ends when the time of the run is
// over: nothing is left of a run whose process was killed.
package pods

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	api "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/spec"
	"tare/internal/kube/agents"
	"tare/internal/lib/fault"
	"tare/internal/lib/lists"
	"tare/internal/lib/pace"
)

// Options say where and as what the pods of a run exist.
type Options struct {
	Cluster   *agents.Cluster
	Agents    func(context.Context) ([]agents.Agent, error) // those that there are now
	Nodes     []agents.Node
	Namespace string        // of the pods: an existing one
	Image     string        // of tare, of this build
	Version   string        // of tare with its build
	Lifetime  time.Duration // after which the cluster removes what is left
}

// Place is where the trials of one run run. Close it.
type Place struct {
	o      Options
	name   string            // of the run's objects
	token  string            // of its parts
	owned  metav1.ObjectMeta // of the run's objects, but for their names
	nodeOf map[string]string // of each part; empty: any
	cameUp map[string]bool   // arms whose pods have been ready
}

const (
	partLabel  = "tare/part" // application or load, as the spec calls it
	trialLabel = "tare/trial"

	tokenKey = "token" // in the run's Secret
)

// New makes what all trials of a run need: the Job that owns everything, and the Secret with the token of its parts.
// The spec must have passed Check.
func New(ctx context.Context, o Options, s *spec.Spec) (*Place, error) {
	p := &Place{o: o, name: "tare-" + strings.ToLower(rand.Text()[:6]), token: rand.Text(), cameUp: map[string]bool{}}
	var err error
	if p.nodeOf, err = places(s, o.Nodes); err != nil {
		return nil, err
	}
	pod, maybe := p.podSpec(), false
	p.owned, maybe, err = o.Cluster.MakeOwner(ctx, agents.RunName, o.Namespace, p.name, o.Lifetime, &pod)
	if err != nil {
		if maybe {
			_ = p.Close(ctx)
		}
		return nil, p.refused(err, "making the Job that owns the run")
	}
	_, err = o.Cluster.Core().Secrets(o.Namespace).Create(ctx, &api.Secret{ObjectMeta: p.meta(p.name),
		Data: map[string][]byte{tokenKey: []byte(p.token)}}, metav1.CreateOptions{FieldManager: agents.Manager})
	if err != nil {
		_ = p.Close(ctx)
		return nil, p.refused(err, "making the Secret of the run")
	}
	return p, nil
}

// meta is of an object of the run.
func (p *Place) meta(name string) metav1.ObjectMeta {
	meta := *p.owned.DeepCopy()
	meta.Name = name
	return meta
}

// Close removes all that is left of the run, and waits until its pods have ended.
func (p *Place) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWithin)
	defer cancel()
	if err := p.o.Cluster.RemoveOwner(ctx, p.o.Namespace, p.name); err != nil {
		return p.refused(err, "removing the run's objects")
	}
	err := p.o.Cluster.Core().Secrets(p.o.Namespace).Delete(ctx, p.name, metav1.DeleteOptions{})
	if agents.Removed(err) != nil {
		return p.refused(err, "removing the run's Secret")
	}
	return p.gone(ctx, agents.InstanceLabel+"="+p.name)
}

const (
	endWithin = 30 * time.Second
	poll      = 200 * time.Millisecond
)

// gone waits until there are no pods with these labels.
func (p *Place) gone(ctx context.Context, selector string) error {
	for {
		list, err := p.o.Cluster.Core().Pods(p.o.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err == nil && len(list.Items) == 0 {
			return nil
		}
		if pace.Sleep(ctx, poll) == nil {
			continue
		}
		if err != nil {
			return p.refused(err, "listing pods")
		}
		return fault.New(fault.Machine, "namespace "+p.o.Namespace, "kubectl get pods -l "+selector,
			"%d pods of the trial have not ended within %v", len(list.Items), endWithin)
	}
}

func (p *Place) refused(err error, doing string) error {
	return fault.Wrap(err, fault.Machine, "namespace "+p.o.Namespace, agents.Hint(err), "%s failed", doing)
}

// TrialTakes is how much longer a trial takes in pods than on a machine: the pods become ready, and are removed. It is
// measured on the test cluster, with sidecars.
const TrialTakes = 9 * time.Second

// longestWindow is that of an agent.
const longestWindow = 5 * time.Minute

// Check refuses what cannot run in pods, whatever the cluster has.
func Check(s *spec.Spec) error {
	cannot := func(path string, part *kind.Part, why string) error {
		return fault.New(fault.Usage, path, "docs/cluster-experiments.md says what can run in pods",
			"%s %s: run this experiment on a machine, with tare run", part.Name(), why)
	}
	if s.MostNodes() > 0 {
		return fault.New(fault.Usage, "nodes", "leave it out: where parts run is said by \"cluster\"",
			"an experiment on nodes that join by themselves cannot run in pods")
	}
	if s.Duration > longestWindow {
		return fault.New(fault.Usage, "duration", "take a shorter one, and more blocks",
			"an agent's windows last %v at most, and %v is asked for", longestWindow, s.Duration)
	}
	for _, sec := range s.Sections() {
		for name, part := range lists.ByKey(sec.Parts) {
			_, marked := part.Kind.(kind.Marked)
			switch path := sec.Path(name); {
			case sec.Weighs() && !marked && !part.Varies():
				return cannot(path, part, "is started by Tare")
			case sec.Weighs():
			case !part.Kind.About().InPods:
				return cannot(path, part, "needs more of a machine than a process")
			}
		}
	}
	return nil
}

// places chooses the node of each part, so that it is the same in all trials. Parts of which the spec does not say
// where they run are put on the nodes in turn, loads apart from applications where there are two nodes.
func places(s *spec.Spec, nodes []agents.Node) (map[string]string, error) {
	var names []string
	for _, n := range nodes {
		if n.Ready && n.OS == "linux" && n.Schedulable {
			names = append(names, n.Name)
		}
	}
	if len(names) == 0 {
		return nil, fault.New(fault.Machine, "", "kubectl get nodes", "no node of the cluster takes pods")
	}
	at := map[string]string{}
	for name := range s.Applications {
		at[name] = names[0]
	}
	for name := range s.Loads {
		at[name] = names[min(1, len(names)-1)]
	}
	if s.Cluster == nil {
		return at, nil
	}
	var place func(part string) error
	placed := map[string]bool{}
	place = func(part string) error {
		w := s.Cluster.Where[part]
		if other := w.Apart + w.Together; other != "" {
			if err := place(other); err != nil {
				return err
			}
		}
		if placed[part] {
			return nil
		}
		placed[part] = true
		switch {
		case w.Together != "":
			at[part] = at[w.Together]
		case w.Apart != "":
			i := slices.IndexFunc(names, func(n string) bool { return n != at[w.Apart] })
			if i < 0 {
				return fault.New(fault.Machine, "cluster.where."+part, "kubectl get nodes",
					"it is to run apart from %s, and only one node takes pods", w.Apart)
			}
			at[part] = names[i]
		case w.On != "":
			node, err := choose(w.On, nodes, names)
			if err != nil {
				return fault.Wrap(err, fault.Machine, "cluster.where."+part, "kubectl get nodes --show-labels",
					"there is no node for it")
			}
			at[part] = node
		}
		return nil
	}
	for _, part := range slices.Sorted(maps.Keys(at)) {
		if err := place(part); err != nil {
			return nil, err
		}
	}
	return at, nil
}

// choose is the node of a name, or the first that a selector matches.
func choose(on string, nodes []agents.Node, takes []string) (string, error) {
	if slices.Contains(takes, on) {
		return on, nil
	}
	for i := range nodes {
		if matches, err := nodes[i].Matches(on); err != nil {
			return "", err
		} else if matches && slices.Contains(takes, nodes[i].Name) {
			return nodes[i].Name, nil
		}
	}
	return "", fmt.Errorf("none that takes pods is called %q or has such labels", on)
}
