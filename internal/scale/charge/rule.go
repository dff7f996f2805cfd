package charge

import (
	"strings"

	"tare/internal/lib/lists"
	"tare/internal/scale/ledger"
)

// The selectors whose patterns must have a certain form.
const (
	selectCgroup                                = "cgroup"
	selectLabel                                 = "label"
	selectNamespace, selectPod, selectContainer = "namespace", "pod", "container"
	selectComm                                  = "comm"
	selectOwner                                 = "owner" // only in rules for a cluster
)

// selecting are the selectors, which are also keys of a rule in a file, with their patterns.
var selecting = []struct {
	name string
	of   func(p *Patterns) *string
}{
	{selectCgroup, func(p *Patterns) *string { return &p.Cgroup }},       // the path of a control group
	{selectNamespace, func(p *Patterns) *string { return &p.Namespace }}, // of Kubernetes
	{selectPod, func(p *Patterns) *string { return &p.Pod }},
	{selectContainer, func(p *Patterns) *string { return &p.Container }},
	{selectLabel, func(p *Patterns) *string { return &p.Label }}, // of a container or its pod: KEY=VALUE
	{"unit", func(p *Patterns) *string { return &p.Unit }},       // of systemd
	{selectComm, func(p *Patterns) *string { return &p.Comm }},   // the names of processes
	{"program", func(p *Patterns) *string { return &p.Program }},
	{"map", func(p *Patterns) *string { return &p.Map }},
	{selectOwner, func(p *Patterns) *string { return &p.Owner }}, // of pods: NAME or KIND/NAME
}

// selectors are the names of those for a node, and clusterSelectors of those for what Kubernetes' API knows.
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

// Rule charges what matches all of its patterns.
type Rule struct {
	// Charged is what matches gets. Its workload may have {namespace}, {pod}, {container} and {unit}, which stand for what
	// the group is called: one rule then makes a workload of each. A group that lacks one of them does not match.
	ledger.Charged
	Patterns
	Where   string // the flag or the place in a file that it is from, for messages
	Profile bool   // it is from a profile, whose rules need not match anything
}

// Patterns are what a rule selects. Empty ones select nothing.
type Patterns struct{ Cgroup, Namespace, Pod, Container, Label, Unit, Comm, Program, Map, Owner string }

// at is the pattern of a selector; nil where there is no such selector.
func (p *Patterns) at(selector string) *string {
	for _, s := range selecting {
		if s.name == selector {
			return s.of(p)
		}
	}
	return nil
}

// key is what a rule has for a key; nil where there is no such key.
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

// given are the selectors that have a pattern.
func (p *Patterns) given() (given []string) {
	for _, s := range selecting {
		if *s.of(p) != "" {
			given = append(given, s.name)
		}
	}
	return given
}

// MatchesPod says whether a rule for a cluster matches a pod's container: by the names and labels that the cluster has
// for them, and by the owner, such as Deployment and web.
func (r *Rule) MatchesPod(n *ledger.Name, kind, owner string) bool {
	return r.matchesName(n) && (r.Owner == "" || MatchOwner(r.Owner, kind, owner))
}

// MatchOwner says whether a pattern, of the form NAME or KIND/NAME, matches an owner of pods. Kinds have no case, as in
// kubectl.
func MatchOwner(pattern, kind, owner string) bool {
	if of, name, found := strings.Cut(pattern, "/"); found {
		return matchName(strings.ToLower(of), strings.ToLower(kind)) && matchName(name, owner)
	}
	return matchName(pattern, owner)
}

// byName says whether names of groups are selected.
func (p *Patterns) byName() bool {
	return p.Namespace != "" || p.Pod != "" || p.Container != "" || p.Label != "" || p.Unit != ""
}

// String is the patterns as a flag has them.
func (p *Patterns) String() string {
	pieces := lists.Map(p.given(), func(s string) string { return s + "=" + escaped(*p.at(s)) })
	return strings.Join(pieces, ",")
}

// name is where a rule stands, and what it selects, as the ledger names it.
func (r *Rule) name() string {
	if strings.HasPrefix(r.Where, "--") { // a flag, which says it
		return r.Where
	}
	return r.Where + " " + r.Patterns.String()
}

// matchesGroup says whether the rule names a group, and not only one above it: with cgroup= the one at that path,
// otherwise the topmost ones that have the names. over is the name of the group above, and processes are those in the
// group by their names.
func (r *Rule) matchesGroup(g *ledger.Cgroup, over *ledger.Name, processes tally) bool {
	switch {
	case r.Comm != "" && (g.Vanished || processes.named == 0 || processes.named < processes.all):
		return false
	case r.Cgroup != "":
		return matchPath(r.Cgroup, g.Path) && (!r.byName() || r.matchesName(g.Name)) && r.has(g.Name)
	case r.byName():
		return r.matchesName(g.Name) && r.has(g.Name) && !r.matchesName(over)
	case r.Comm != "":
		// Processes in a container call themselves what they like: a profile does not go by that.
		return !r.Profile || g.Name == nil || g.Name.ContainerID == "" && g.Name.PodUID == ""
	}
	return false
}

// IsContainer says whether the rule's pattern of containers matches a name.
func (r *Rule) IsContainer(name string) bool {
	return r.Container != "" && matchKnown(r.Container, name)
}

// holds says whether the rule names a process that holds programs and maps. One that selects groups as well names what
// belongs to these.
func (r *Rule) holds(comm string) bool {
	return r.Comm != "" && r.Cgroup == "" && !r.byName() && matchName(r.Comm, comm)
}

// matchesName says whether a name matches all patterns that select by names.
func (r *Rule) matchesName(n *ledger.Name) bool {
	return n != nil && matchKnown(r.Namespace, n.Namespace) && matchKnown(r.Pod, n.Pod) &&
		matchKnown(r.Container, n.Container) && matchKnown(r.Unit, n.Unit) && (r.Label == "" || r.matchesLabel(n.Labels))
}

// matchKnown matches a name that is not known only where nothing is asked of it.
func matchKnown(pattern, name string) bool {
	return pattern == "" || name != "" && matchName(pattern, name)
}

func (r *Rule) matchesLabel(labels map[string]string) bool {
	key, pattern, _ := strings.Cut(r.Label, "=")
	value, has := labels[key]
	return has && matchName(pattern, value)
}

// places are what the workload of a rule can have in braces.
var places = []struct {
	place string
	of    func(n *ledger.Name) string
}{
	{"{namespace}", func(n *ledger.Name) string { return n.Namespace }},
	{"{pod}", func(n *ledger.Name) string { return n.Pod }},
	{"{container}", func(n *ledger.Name) string { return n.Container }},
	{"{unit}", func(n *ledger.Name) string { return n.Unit }},
}

// has says whether a name has all that the workload of the rule is called after.
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

// template says whether the workload is called after what the rule matches.
func (r *Rule) template() bool { return strings.Contains(r.Workload, "{") }

// charged is what a group with a name gets.
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
