// Package pods runs trials in a cluster (engine.Place). Applications and loads are pods. The agents of all nodes take
// windows at the same time. The cost of a subject is the usage of everything in the cluster that matches the rules of
// its arm. Place.Trial, in trial.go, shows the life of one trial from top to bottom.
//
// Run, in run.go, identifies a run by its objects. One Job without pods owns all of them, and the cluster itself ends
// that Job when the time of the run is over, so even an abandoned run leaves nothing behind.
package pods

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/spec"
	"tare/internal/kube/agents"
	"tare/internal/lib/fault"
	"tare/internal/lib/lists"
	"tare/internal/lib/pace"
	"tare/internal/lib/text"
	"tare/internal/scale/charge"
)

// Options configure the pods of a run.
type Options struct {
	Cluster *agents.Cluster
	Agents  func(context.Context) ([]agents.Agent, error) // returns the current agents
	Wanted  func(context.Context) (int, error)            // returns on how many nodes there are to be agents; 0: unknown
	Nodes   []agents.Node
	NodeOf  map[string]string // by part: see Places
	Spread  []string          // the nodes of an experiment on nodes, enough for its largest level
	Image   string            // the image of tare, of this build
	Version string            // of tare with its build
	Token   string            // shared by the run's parts
	// Accounts are the service accounts of the parts' pods, by part; a part without an entry has none.
	Accounts map[string]string
	Owned    metav1.ObjectMeta // metadata of the run's objects, except their names; its name is the run's
}

// Place runs the trials of one run.
type Place struct {
	o       Options
	cameUp  map[string]bool // arms whose pods have been ready at least once
	weighed map[string]bool // nodes that have given a window at least once

	followed bool // the logs of a subject have been followed at least once
}

const (
	partLabel  = "tare/part" // name of the application or load in the spec
	trialLabel = "tare/trial"

	tokenKey = "token" // in the run's Secret
)

// New returns the place of a run whose objects Start has created. The spec must have passed Check.
func New(o Options) *Place {
	return &Place{o: o, cameUp: map[string]bool{}, weighed: map[string]bool{}}
}

// meta returns the metadata of an object of the run.
func (p *Place) meta(name string) metav1.ObjectMeta {
	meta := *p.o.Owned.DeepCopy()
	meta.Name = name
	return meta
}

const (
	endWithin  = 30 * time.Second
	awayWithin = 5 * time.Minute // longest wait for an API server that is away when a trial ends
	poll       = 200 * time.Millisecond
)

// gone waits until no pod matches the selector.
func gone(ctx context.Context, c *agents.Cluster, namespace, selector string) error {
	for {
		list, err := c.Core().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err == nil && len(list.Items) == 0 {
			return nil
		}
		if pace.Sleep(ctx, poll) == nil {
			continue
		}
		if err != nil {
			return refused(err, namespace, "listing pods")
		}
		return fault.New(fault.Machine, "namespace "+namespace, "kubectl get pods -l "+selector,
			"%d pods have not ended within %v", len(list.Items), endWithin)
	}
}

func (p *Place) refused(err error, doing string) error {
	return refused(err, p.o.Owned.Namespace, doing)
}

func refused(err error, namespace, doing string) error {
	return fault.Wrap(err, fault.Machine, "namespace "+namespace, agents.Hint(err), "%s failed", doing)
}

// TrialTakes is the extra time that a trial takes in pods, compared with one on a machine: pods have to become ready
// and to be removed. It was measured on the test cluster, with sidecars.
const TrialTakes = 9 * time.Second

// longestWindow is the longest window of an agent.
const longestWindow = 5 * time.Minute

// Check returns an error for a spec that cannot run in pods, whatever the cluster.
func Check(s *spec.Spec) error {
	cannot := func(path string, part *kind.Part, why string) error {
		return fault.New(fault.Usage, path, "docs/cluster-experiments.md says what can run in pods",
			"%s %s: run this experiment on a machine, with tare run", part.Name(), why)
	}
	if s.MostNodes() > 0 && s.Cluster != nil && len(s.Cluster.Where) > 0 {
		return fault.New(fault.Usage, "cluster.where", "omit it, or \"nodes\"",
			"every part of an experiment on nodes runs on each of them")
	}
	for _, l := range s.Levels() {
		if s.MostNodes() > 0 && s.At(l).Nodes() == 0 {
			return fault.New(fault.Usage, "nodes", "leave it out, or every level of \"nodes\" that is above 0",
				"a level with 0 nodes does not run on nodes, and others do")
		}
	}
	if s.Duration > longestWindow {
		return fault.New(fault.Usage, "duration", "take a shorter one, and more blocks",
			"must be at most %v, the longest window of an agent, got %v", longestWindow, s.Duration)
	}
	for _, sec := range s.Sections() {
		for name, part := range lists.ByKey(sec.Parts) {
			_, marked := part.Kind.(kind.Marked)
			switch path := sec.Path(name); {
			case sec.Weighs() && !marked && !part.Varies():
				return cannot(path, part, "is started by Tare")
			case sec.Weighs() && marked:
				if err := checkMarks(s, path, part); err != nil {
					return err
				}
			case sec.Weighs():
			case !part.Kind.About().InPods:
				return cannot(path, part, "needs more of a machine than a process")
			}
		}
	}
	return nil
}

// checkMarks returns an error for an arm if its subject applies to a part that does not exist. It also returns one if
// the arm distinguishes the containers of a pod although some arm of the experiment has a RuntimeClass.
func checkMarks(s *spec.Spec, path string, arm *kind.Part) error {
	marks, err := arm.Kind.(kind.Marked).Marks(arm.Options)
	if err != nil {
		return err
	}
	for _, name := range marks.Parts {
		if s.Applications[name] == nil && s.Loads[name] == nil {
			all := slices.Concat(slices.Sorted(maps.Keys(s.Applications)), slices.Sorted(maps.Keys(s.Loads)))
			return fault.New(fault.Usage, path, "the spec has "+strings.Join(all, ", "),
				"no application or load is named %q", text.Clip(name))
		}
	}
	whole, err := wholePods(s)
	if i := slices.IndexFunc(marks.Components, func(r charge.Rule) bool { return kind.InPods(&r) }); whole && i >= 0 {
		return fault.New(fault.Usage, path, "give the RuntimeClass an experiment of its own",
			"under a RuntimeClass all of a pod is one cost, and this arm has the component %s of a pod",
			text.Clip(marks.Components[i].Component))
	}
	return err
}

// wholePods reports whether all of a pod is its part's cost, because some arm has a RuntimeClass. A sandbox runs in the
// control group of the pod, beside those of containers, so the whole groups of pods are compared.
func wholePods(s *spec.Spec) (bool, error) {
	for _, arm := range s.Subjects() {
		if of, marked := arm.Kind.(kind.Marked); marked {
			if marks, err := of.Marks(arm.Options); err != nil || marks.RuntimeClass != "" {
				return err == nil, err
			}
		}
	}
	return false, nil
}

// Places chooses the node of each part, which is the same in all trials. Where the spec does not say otherwise, all
// applications run on the first node, and all loads on the second if there is one.
func Places(s *spec.Spec, nodes []agents.Node) (map[string]string, error) {
	names := taking(nodes)
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

// taking returns the names of the nodes that take pods.
func taking(nodes []agents.Node) (names []string) {
	for _, n := range nodes {
		if n.Ready && n.OS == "linux" && n.Schedulable {
			names = append(names, n.Name)
		}
	}
	return names
}

// Spread adapts an experiment on nodes to the number of nodes that take pods. It returns the names of the nodes on
// which the experiment runs, and the text of ScaleNodes on what it changed. If the experiment does not run on nodes,
// Spread changes nothing and returns no names.
func Spread(s *spec.Spec, nodes []agents.Node) (names []string, changed string) {
	if s.MostNodes() == 0 {
		return nil, ""
	}
	names = taking(nodes)
	changed = s.ScaleNodes(len(names))
	return names[:s.MostNodes()], changed
}

// choose returns a node for the value of "on" in a spec: the node with that name or, failing that, the first node whose
// labels match it as a selector. takes has the names of the nodes that take pods.
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
