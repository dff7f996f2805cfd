package cluster

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"tare/internal/lib/known"
	"tare/internal/lib/text"
)

// Bounds on the cost of untrusted input.
const (
	MaxNodes = 5000    // merged nodes: the most that Kubernetes supports in a cluster
	MaxRows  = 400_000 // in one view; further rows are added to the row "(other)"
	maxCells = 50_000  // owners in the ledger of one node
	maxName  = 253     // bytes of a name, as in Kubernetes
	maxNamed = 10      // nodes or pods listed in a warning
	maxKinds = 1000    // different warnings
)

// Names of rows for usage that has no name in the cluster.
const (
	Application = "application" // the component of workloads themselves
	NoRule      = "(no rule)"   // named by no rule
	OtherPods   = "(other pods)"
	OtherRows   = "(other)" // beyond MaxRows
	NodeItself  = "(node)"  // namespace of usage that is in no pod
)

// Merger adds up the ledgers of nodes, one at a time. It keeps rows but no ledgers.
type Merger struct {
	o        Options
	byUID    map[string]*Pod
	byName   map[[2]string]*Pod
	sharing  map[string]int // by machine: its number of nodes
	machines map[string]*machine
	doc      Cluster
	total    account
	views    [3]map[key]*account // workloads, namespaces, components
	// containers holds the containers of the node that is being added. They become rows at once, because no other node
	// has them.
	containers map[key]*account
	more       account             // usage of the containers beyond MaxRows, which share one row
	warnings   map[string]*Warning // by code and message
	names      map[string]string   // interned names
	applied    []bool              // by rule: whether it has matched a container
}

// machine is a machine that several nodes share.
type machine struct {
	index  int
	placed metrics // usage of the nodes' own groups
	views  []*view // of the nodes
	given  map[string]map[owner]*metrics
	kept   Machine
	usage  account
}

// view is a node's view of its machine, without the node's own part. A node in a container sees only its own control
// groups and processes; one that is the machine itself, or shares its namespaces, sees all.
type view struct {
	node    string
	private bool               // it contains only some of the machine's groups, and no groups of other nodes
	lines   map[owner]*account // usage in no group
	cells   map[owner]*account // usage in groups, without what the node moved to its pods
	groups  metrics            // usage of all groups, the node's own among them
	budget  Budget
}

// key identifies a row. Its fields are those of Row.
type key struct{ namespace, kind, workload, pod, container, node, component string }

func (k key) row(a *account) *Row {
	return &Row{Namespace: k.namespace, Kind: k.kind, Workload: k.workload, Pod: k.pod, Container: k.container,
		Node: k.node, Component: k.component, Usage: a.usage(true)}
}

// New returns a Merger for a cluster with these pods, which must not change while it is used.
func New(pods []Pod, o Options) *Merger {
	m := &Merger{o: o, byUID: make(map[string]*Pod, len(pods)), byName: make(map[[2]string]*Pod, len(pods)),
		containers: map[key]*account{}, sharing: map[string]int{}, machines: map[string]*machine{},
		warnings: map[string]*Warning{}, names: map[string]string{}, applied: make([]bool, len(o.Rules))}
	for i := range m.views {
		m.views[i] = map[key]*account{}
	}
	for i := range pods {
		p := &pods[i]
		m.byName[[2]string{p.Namespace, p.Name}] = p
		if p.UID != "" {
			m.byUID[p.UID] = p
		}
	}
	for i := range pods { // anybody may write an annotation, so it must not take the place of a UID
		if p := &pods[i]; p.ConfigHash != "" && m.byUID[p.ConfigHash] == nil {
			m.byUID[p.ConfigHash] = p
		}
	}
	matches := func(p Pod) bool { return o.Match(&p) }
	if o.Match != nil && !slices.ContainsFunc(pods, matches) {
		m.warn("no-such-pod", "", fmt.Sprintf("none of the %d pods of the cluster is one that was asked for", len(pods)))
	}
	for _, identity := range o.Machines {
		m.sharing[identity]++
	}
	m.doc = Cluster{Schema: Schema, Start: o.Start, End: o.End, Spread: o.Spread, Nodes: []NodeAccount{},
		Machines: []Machine{}, Warnings: []Warning{}}
	return m
}

// Add adds a node. An implausible ledger counts as no answer.
func (m *Merger) Add(n *Node) {
	if len(m.doc.Nodes) >= MaxNodes {
		m.warn("too-many-nodes", "", fmt.Sprintf("only %d nodes are merged: the others are in no figure", MaxNodes))
		return
	}
	n.Name = m.name(n.Name)
	a := NodeAccount{Name: n.Name, Clock: n.Clock}
	m.doc.Asked++
	switch err := plausible(n.Ledger); {
	case n.Failed != "":
		a.Failed = text.ClipLine(n.Failed, 4*maxName)
	case n.Ledger == nil:
		a.Failed = "no ledger"
	case err != nil:
		a.Failed = err.Error()
	}
	if a.Failed == "" {
		m.doc.Answered++
		m.merge(n, &a)
		m.addContainers()
	}
	m.doc.Nodes = append(m.doc.Nodes, a)
}

// Finish returns the account. The Merger must not be used afterwards.
func (m *Merger) Finish() *Cluster {
	d := &m.doc
	for i, applied := range m.applied {
		if !applied {
			m.warn("rule-unused", m.o.Rules[i].Where, "these rules charge nothing: they match no container of the nodes "+
				"that answered, or earlier rules match it first")
		}
	}
	for _, identity := range slices.Sorted(maps.Keys(m.machines)) {
		m.finishMachine(m.machines[identity])
	}
	d.Capacity.MemoryBytes = new(int64)
	for i := range d.Nodes {
		if b := d.Nodes[i].Budget; b != nil {
			d.Capacity.add(b)
		}
	}
	for i := range d.Machines {
		d.Capacity.add(&d.Machines[i].Budget)
	}
	slices.SortFunc(d.Nodes, func(a, b NodeAccount) int { return cmp.Compare(a.Name, b.Name) })
	d.Total = m.total.usage(false)
	for i, to := range []*[]*Row{&d.Workloads, &d.Namespaces, &d.Components} {
		*to = rows(m.views[i])
	}
	if m.o.Containers {
		m.addContainers()
		if m.more != (account{}) {
			d.Containers = append(d.Containers, &Row{Namespace: OtherRows, Usage: m.more.usage(true)})
		}
		slices.SortFunc(d.Containers, bySize)
	}
	for _, w := range m.warnings {
		d.Warnings = append(d.Warnings, *w)
	}
	slices.SortFunc(d.Warnings, func(a, b Warning) int {
		return cmp.Or(cmp.Compare(a.Code, b.Code), cmp.Compare(a.Message, b.Message))
	})
	return d
}

// rows returns the rows of a view, the biggest first, and empties the view.
func rows(view map[key]*account) []*Row {
	all := make([]*Row, 0, len(view))
	for k, a := range view {
		all = append(all, k.row(a))
		delete(view, k)
	}
	slices.SortFunc(all, bySize)
	return all
}

func bySize(a, b *Row) int {
	return cmp.Or(cmp.Compare(b.CPUs.GrossKnown(), a.CPUs.GrossKnown()), a.compare(b))
}

// addContainers makes rows of the containers of a node.
func (m *Merger) addContainers() {
	d := &m.doc
	for k, a := range m.containers {
		if len(d.Containers) >= MaxRows {
			m.manyRows()
			m.more.merge(a)
			continue
		}
		d.Containers = append(d.Containers, k.row(a))
	}
	clear(m.containers)
}

// compare orders rows by their names.
func (r *Row) compare(o *Row) int {
	return cmp.Or(strings.Compare(r.Namespace, o.Namespace), strings.Compare(r.Kind, o.Kind),
		strings.Compare(r.Workload, o.Workload), strings.Compare(r.Pod, o.Pod), strings.Compare(r.Container, o.Container),
		strings.Compare(r.Node, o.Node), strings.Compare(r.Component, o.Component))
}

// By returns the rows of a view: workload, namespace, component, node or container; nil for any other name. The rows of
// shared machines follow those of nodes.
func (c *Cluster) By(view string) []*Row {
	switch view {
	case "workload":
		return c.Workloads
	case "namespace":
		return c.Namespaces
	case "component":
		return c.Components
	case "container":
		return c.Containers
	case "node":
		var all []*Row
		for i := range c.Nodes {
			if u := c.Nodes[i].Usage; u != nil {
				all = append(all, &Row{Node: c.Nodes[i].Name, Usage: *u})
			}
		}
		for i := range c.Machines {
			all = append(all, &Row{Node: c.Machines[i].Label(), Usage: c.Machines[i].Usage})
		}
		return all
	}
	return nil
}

// Label returns the name of the machine's row among nodes.
func (m *Machine) Label() string { return "(machine of " + strings.Join(m.Nodes, ", ") + ")" }

// Views returns the names of the views.
func Views() []string { return []string{"workload", "namespace", "component", "node", "container"} }

// part returns the name of the component to which an owner belongs.
func (o *owner) part() string {
	if o.component == "" && o.side == sideOther {
		return NoRule
	}
	return cmp.Or(o.component, Application)
}

// componentKey returns the key of an owner's row among components. All pods that Options.Match excludes share one row.
func (o *owner) componentKey() key {
	if o.namespace == OtherPods {
		return key{component: OtherPods}
	}
	return key{component: o.part()}
}

// add adds the usage of an owner on a node to everything that contains it.
func (m *Merger) add(o *owner, node string, a *account) {
	m.total.merge(a)
	component := o.part()
	k := key{namespace: o.namespace, kind: o.kind, workload: o.workload}
	if o.side == sideShared {
		k.kind, k.workload, k.component = "", "", component
	} else if o.side == sideOther {
		k.workload = component
	}
	m.addTo(m.views[0], k, a)
	m.addTo(m.views[1], key{namespace: cmp.Or(o.namespace, NodeItself)}, a)
	m.addTo(m.views[2], o.componentKey(), a)
	if !m.o.Containers {
		return
	}
	k = key{namespace: o.namespace, kind: o.kind, workload: o.workload, pod: o.pod, container: o.container, node: node}
	if o.container == "" || o.pod == "" {
		k.component = component
	}
	m.addTo(m.containers, k, a.byContainer(o.in()))
}

// addTo adds usage to a row of a view.
func (m *Merger) addTo(view map[key]*account, k key, a *account) {
	if view[k] == nil && len(view) >= MaxRows {
		m.manyRows()
		k = key{namespace: OtherRows}
	}
	if view[k] == nil {
		view[k] = &account{}
	}
	view[k].merge(a)
}

func (m *Merger) manyRows() {
	m.warn("too-many-rows", "", fmt.Sprintf("a view has more than %d rows: the others are in its row %s", MaxRows,
		OtherRows))
}

// name returns a single copy of a name, cut to the longest name in Kubernetes.
func (m *Merger) name(s string) string {
	if kept, ok := m.names[s]; ok {
		return kept
	}
	kept := strings.Clone(text.ClipTo(s, maxName))
	m.names[kept] = kept
	return kept
}

// warn adds a warning about a node or pod.
func (m *Merger) warn(code, about, message string) { m.note(code, about, message) }

// note is like warn, for codes that this package does not define, such as those of nodes' ledgers.
func (m *Merger) note(code, about, message string) {
	id := code + "\x00" + message
	if m.warnings[id] == nil {
		if len(m.warnings) >= maxKinds {
			code, message = "more-warnings", "there are more kinds of warnings than are kept"
			id = code
		}
		if m.warnings[id] == nil {
			m.warnings[id] = &Warning{Code: code, Message: text.ClipLine(message, 4*maxName), About: []string{}}
		}
	}
	w := m.warnings[id]
	w.Count++
	if about != "" && len(w.About) < maxNamed && !slices.Contains(w.About, about) {
		w.About = append(w.About, about)
	}
}

// add adds the budget of another machine.
func (b *Budget) add(o *Budget) {
	b.CPUs, b.Capacity, b.Idle, b.Steal = b.CPUs+o.CPUs, b.Capacity+o.Capacity, b.Idle+o.Idle, b.Steal+o.Steal
	b.Attributed, b.Unexplained = b.Attributed+o.Attributed, b.Unexplained+o.Unexplained
	b.MemoryBytes = known.Sum(b.MemoryBytes, o.MemoryBytes)
}
