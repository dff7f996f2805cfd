package charge

import (
	"strings"

	"tare/internal/lib/lists"
	"tare/internal/scale/ledger"
)

// The selectors that are referred to elsewhere in this package.
const (
	selectCgroup                                = "cgroup"
	selectLabel                                 = "label"
	selectNamespace, selectPod, selectContainer = "namespace", "pod", "container"
	selectComm                                  = "comm"
	selectOwner                                 = "owner" // only in rules for a cluster
)

// selecting lists the selectors, which are also keys of a rule in a file, and where Patterns keeps them.
var selecting = []struct {
	name string
	of   func(p *Patterns) *string
}{
	{selectCgroup, func(p *Patterns) *string { return &p.Cgroup }},       // the path of a control group
	{selectNamespace, func(p *Patterns) *string { return &p.Namespace }}, // a namespace of Kubernetes
	{selectPod, func(p *Patterns) *string { return &p.Pod }},
	{selectContainer, func(p *Patterns) *string { return &p.Container }},
	{selectLabel, func(p *Patterns) *string { return &p.Label }}, // a label of a container or its pod: KEY=VALUE
	{"unit", func(p *Patterns) *string { return &p.Unit }},       // a unit of systemd
	{selectComm, func(p *Patterns) *string { return &p.Comm }},   // the names of processes
	{"program", func(p *Patterns) *string { return &p.Program }},
	{"map", func(p *Patterns) *string { return &p.Map }},
	{selectOwner, func(p *Patterns) *string { return &p.Owner }}, // the owner of pods: NAME or KIND/NAME
}

// selectors are the selectors that rules for a node may use, and clusterSelectors the ones that rules for a cluster may
// use.
var (
	selectors = func() (names []string) {
		for _, s := range selecting {
			if s.name != selectOwner {
				names = append(names, s.name)
			}
		}
		return names
	}()
	clusterSelectors = []string{selectNamespace, selectPod, selectContainer, selectLabel, selectOwner}
)

// Rule charges whatever matches all of its patterns.
type Rule struct {
	// Charged is assigned to what matches. Its workload may contain {namespace}, {pod}, {container} and {unit}, which are
	// replaced by the names of the group, so that one rule makes several workloads. A group without one of these names
	// does not match.
	ledger.Charged
	Patterns
	Where   string // the flag or file position of the rule, for messages
	Profile bool   // it is from a profile, whose rules need not match anything
}

// Patterns holds the patterns of a rule by selector. Empty ones are unused.
type Patterns struct{ Cgroup, Namespace, Pod, Container, Label, Unit, Comm, Program, Map, Owner string }

// at returns the pattern of a selector; nil if there is no such selector.
func (p *Patterns) at(selector string) *string {
	for _, s := range selecting {
		if s.name == selector {
			return s.of(p)
		}
	}
	return nil
}

// key returns the value of a key in the rule; nil if there is no such key.
func (r *Rule) key(name string) *string {
	switch name {
	case keyCharge:
		return (*string)(&r.Charge)
	case keyWorkload:
		return &r.Workload
	case keyComponent:
		return &r.Component
	}
	return r.at(name)
}

// given returns the selectors that have a pattern.
func (p *Patterns) given() (given []string) {
	for _, s := range selecting {
		if *s.of(p) != "" {
			given = append(given, s.name)
		}
	}
	return given
}

// MatchesPod reports whether a rule for a cluster matches a pod's container, given its names and labels, and the kind
// and name of the pod's owner, such as Deployment and web.
func (r *Rule) MatchesPod(n *ledger.Name, kind, owner string) bool {
	return r.matchesName(n) && (r.Owner == "" || MatchOwner(r.Owner, kind, owner))
}

// MatchOwner reports whether a pattern of the form NAME or KIND/NAME matches an owner of pods. Kinds are
// case-insensitive, as in kubectl.
func MatchOwner(pattern, kind, owner string) bool {
	if of, name, found := strings.Cut(pattern, "/"); found {
		return matchName(strings.ToLower(of), strings.ToLower(kind)) && matchName(name, owner)
	}
	return matchName(pattern, owner)
}

// byName reports whether the patterns select groups by name.
func (p *Patterns) byName() bool {
	return p.Namespace != "" || p.Pod != "" || p.Container != "" || p.Label != "" || p.Unit != ""
}

// String returns the patterns in the syntax of flags.
func (p *Patterns) String() string {
	pieces := lists.Map(p.given(), func(s string) string { return s + "=" + escaped(*p.at(s)) })
	return strings.Join(pieces, ",")
}

// name returns where a rule is written and what it selects, for Cgroup.Rule in the ledger.
func (r *Rule) name() string {
	if strings.HasPrefix(r.Where, "--") { // a flag, which includes the patterns
		return r.Where
	}
	return r.Where + " " + r.Patterns.String()
}

// matchesGroup reports whether the rule selects this group itself, and not only a group above it. A rule with cgroup=
// selects the group at that path, and a rule with names selects the topmost groups that have them. A rule with comm=
// requires that at least one process is in the group or below it, and that all such processes have that name; processes
// counts them. over is the name of the group above.
func (r *Rule) matchesGroup(g *ledger.Cgroup, over *ledger.Name, processes tally) bool {
	switch {
	case r.Comm != "" && (g.Vanished || processes.named == 0 || processes.named < processes.all):
		return false
	case r.Cgroup != "":
		return matchPath(r.Cgroup, g.Path) && (!r.byName() || r.matchesName(g.Name)) && r.has(g.Name)
	case r.byName():
		return r.matchesName(g.Name) && r.has(g.Name) && !r.matchesName(over)
	case r.Comm != "":
		// What runs in a container is not trusted and can choose its name, so a profile's comm= selects no containers.
		return !r.Profile || g.Name == nil || g.Name.ContainerID == "" && g.Name.PodUID == ""
	}
	return false
}

// IsContainer reports whether the rule has a pattern for containers that matches the name.
func (r *Rule) IsContainer(name string) bool {
	return r.Container != "" && matchKnown(r.Container, name)
}

// holds reports whether the rule charges the programs and maps that a process with the given name holds. It is false
// for a rule that also selects groups: such a rule charges what belongs to the groups.
func (r *Rule) holds(comm string) bool {
	return r.Comm != "" && r.Cgroup == "" && !r.byName() && matchName(r.Comm, comm)
}

// matchesName reports whether a name matches all patterns that select by name.
func (r *Rule) matchesName(n *ledger.Name) bool {
	return n != nil && matchKnown(r.Namespace, n.Namespace) && matchKnown(r.Pod, n.Pod) &&
		matchKnown(r.Container, n.Container) && matchKnown(r.Unit, n.Unit) && (r.Label == "" || r.matchesLabel(n.Labels))
}

// matchKnown reports whether name matches. An unknown name matches only an empty pattern.
func matchKnown(pattern, name string) bool {
	return pattern == "" || name != "" && matchName(pattern, name)
}

func (r *Rule) matchesLabel(labels map[string]string) bool {
	key, pattern, _ := strings.Cut(r.Label, "=")
	value, has := labels[key]
	return has && matchName(pattern, value)
}

// places are the placeholders that a rule's workload can contain.
var places = []struct {
	place string
	of    func(n *ledger.Name) string
}{
	{"{namespace}", func(n *ledger.Name) string { return n.Namespace }},
	{"{pod}", func(n *ledger.Name) string { return n.Pod }},
	{"{container}", func(n *ledger.Name) string { return n.Container }},
	{"{unit}", func(n *ledger.Name) string { return n.Unit }},
}

// has reports whether n has all names that the rule's workload refers to.
func (r *Rule) has(n *ledger.Name) bool {
	if !r.template() {
		return true
	}
	for _, p := range places {
		if strings.Contains(r.Workload, p.place) && (n == nil || p.of(n) == "") {
			return false
		}
	}
	return true
}

// template reports whether the workload contains placeholders.
func (r *Rule) template() bool { return strings.Contains(r.Workload, "{") }

// charged returns what the rule assigns to a group with the name n.
func (r *Rule) charged(n *ledger.Name) ledger.Charged {
	c := r.Charged
	if r.template() && n != nil {
		var words []string
		for _, p := range places {
			words = append(words, p.place, p.of(n))
		}
		c.Workload = strings.NewReplacer(words...).Replace(c.Workload)
	}
	return c
}
