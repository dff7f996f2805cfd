package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"tare/internal/lib/known"
	"tare/internal/lib/lists"
	"tare/internal/scale/ledger"
)

// Bounds on the figures of one node, so that no sum over MaxNodes nodes overflows.
const (
	// maxFigure is the largest sum over all groups, in nanoseconds or bytes: MaxNodes times maxFigure fits in 63 bits. A
	// group's usage also counts in the groups above it and in the budget. Containers of pods are four groups deep, so the
	// CPU time of 1,200 busy CPUs in five minutes, the longest window, is below it.
	maxFigure  = 1.8e15
	maxCPUs    = 1e6
	minSeconds = 1e-3
)

// Names of components that come from this package rather than from a rule, and of pods' sandboxes.
const (
	kernelThreads  = "kernel threads"
	rootProcesses  = "root group"
	interrupts     = "interrupts"
	otherBPF       = "ebpf"
	self           = "tare"
	sidecar        = "sidecar"
	pause          = "pause"
	infrastructure = "infrastructure" // for a rule that names no component
	podSandbox     = "(sandbox)"      // as in ledger.Name.Container
	ended          = "pods that ended"
)

// owner identifies who is charged for a part of a node's usage.
type owner struct {
	machine bool // the usage belongs to a machine that several nodes share, rather than to the node
	side    side

	namespace, kind, workload, pod, container, component string
}

// within reports whether an owner belongs to the same pod as another and is on the same side.
func (o *owner) within(other *owner) bool {
	return o.pod != "" && o.pod == other.pod && o.namespace == other.namespace && o.side == other.side
}

// node is the state of merging one node.
type node struct {
	*Node
	m       *Merger
	l       *ledger.Ledger
	machine *machine // shared with other nodes; nil if it is not
	view    *view    // its view of that machine
	cells   map[owner]*account
	owners  map[string]*owner // by path of a group
	all     metrics           // of all groups in the ledger, including those that are not the node's
}

// plausible returns an error if a ledger has impossible figures, with which sums could overflow.
func plausible(l *ledger.Ledger) error {
	if l == nil {
		return nil
	}
	s := l.Window.Seconds
	switch {
	case l.Schema != ledger.Schema:
		return errors.New("its answer is not a ledger")
	case !(s >= minSeconds && s <= 1e6):
		return fmt.Errorf("the window of its ledger lasts %v s", s)
	}
	for _, at := range []time.Time{l.Window.Start, l.Window.End} {
		if y := at.UTC().Year(); y < 1970 || y > 9000 { // JSON has years up to 9999, and the node's clock may be off
			return fmt.Errorf("the window of its ledger is in the year %d", y)
		}
	}
	sums := [3]float64{} // seconds and bytes that are added up as integers; other seconds
	count := func(i int, v float64) { sums[i] += math.Abs(v) }
	count(0, l.CPU.Attributed)
	for _, v := range []float64{l.CPU.Capacity, l.CPU.Idle, l.CPU.Steal, l.CPU.Unexplained,
		known.Or(l.CPU.IdleStolen, 0)} {
		count(2, v)
	}
	for i := range l.CPU.Lines {
		if l.CPU.Lines[i].Name != ledger.LineGroups { // its parts are the groups themselves
			count(0, l.CPU.Lines[i].Seconds)
		}
	}
	for i := range l.Cgroups {
		g := &l.Cgroups[i]
		if g.Path == "/" || g.Path == "" {
			continue // not a part of the account
		}
		count(0, known.Or(g.CPUSeconds, 0))
		if m := g.Memory; m != nil {
			count(1, float64(known.Or(m.Hard, 0)))
			count(1, float64(known.Or(m.Soft, 0)))
			count(1, float64(known.Or(m.WorkingSet, 0)))
		}
	}
	if n := l.Host.CPUs; n < 0 || n > maxCPUs ||
		!(sums[0]*1e9 <= maxFigure && sums[0]/s <= maxCPUs && sums[1] <= maxFigure && sums[2]/s <= maxCPUs) {
		return errors.New("its ledger has impossible figures")
	}
	return nil
}

// merge adds a node with a ledger.
func (m *Merger) merge(n *Node, a *NodeAccount) {
	w := &node{Node: n, m: m, l: n.Ledger, cells: map[owner]*account{}, owners: map[string]*owner{}}
	w.view = &view{node: n.Name, private: w.l.CPU.Part != nil, lines: map[owner]*account{}, cells: map[owner]*account{}}
	if identity := m.o.Machines[n.Name]; n.Root != "" || m.sharing[identity] > 1 && identity != "" {
		w.machine = m.machineOf(cmp.Or(identity, n.Name))
	}
	w.window(a)
	w.groups()
	w.all[cpus] = int64(math.Round(float64(w.all[cpu]) / w.l.Window.Seconds))
	w.takeSelf()
	rest := w.rest()
	w.programs(rest)
	w.maps()
	w.sandboxes()
	w.leave()
	a.Reserve = w.reserve() // before spread, which charges workloads for whatever serves the node
	if m.o.Spread {
		spread(w.cells)
	}
	if !w.knowsBPF() {
		w.m.warn("no-ebpf", w.Name, "the eBPF programs of these nodes could not be read, or their run time was not counted "+
			"(agents with --bpf-stats off): run time of infrastructure's programs above workloads counts in the net of the "+
			"workloads")
		for _, cells := range []map[owner]*account{w.cells, w.view.cells, w.view.lines} {
			for o, cell := range cells {
				cell.mark(bpf, o.in(), true)
			}
		}
	}
	var total account
	components := map[key]*account{}
	for o, cell := range w.cells {
		w.perCPU(cell)
		m.add(&o, n.Name, cell)
		total.merge(cell)
		m.addTo(components, o.componentKey(), cell)
	}
	a.Usage, a.Components = new(total.usage(false)), rows(components)
	a.BPFUnsplit = w.l.CPU.BPFUnsplit
	w.account(a, &total)
	w.foreignWarnings()
}

// account sets the budget of the node, or adds the node to the machine that it shares.
func (w *node) account(a *NodeAccount, total *account) {
	budget := budgetOf(w.l)
	budget.MemoryBytes = w.Capacity.MemoryBytes
	if w.machine == nil {
		a.Budget = &budget
		if w.view.private {
			w.m.inPart(w.Name)
		}
		return
	}
	a.Machine = &w.machine.index
	x := w.machine
	x.kept.Nodes = append(x.kept.Nodes, w.Name)
	w.view.groups, w.view.budget = w.all, budget
	x.views = append(x.views, w.view)
	for f, n := range total.gross() {
		x.placed[f] += n
	}
}

func budgetOf(l *ledger.Ledger) Budget {
	c := &l.CPU
	return Budget{CPUs: float64(l.Host.CPUs), Capacity: c.Capacity, Idle: c.Waited(), Steal: c.Steal,
		Attributed: c.Attributed, Unexplained: c.Unexplained}
}

// window records the time of the node's window by the clock of the machine that asked the nodes, and warns if the
// window differs from the requested one.
func (w *node) window(a *NodeAccount) {
	offset := time.Duration(known.Or(w.Clock.OffsetSeconds, 0) * float64(time.Second))
	start, end := w.l.Window.Start.Add(-offset), w.l.Window.End.Add(-offset)
	a.Start, a.End = &start, &end
	d := &w.m.doc
	if w.m.o.Start.IsZero() {
		if d.Start.IsZero() || start.Before(d.Start) {
			d.Start = start
		}
		if end.After(d.End) {
			d.End = end
		}
		return
	}
	if w.Clock.OffsetSeconds == nil {
		w.m.warn("clock-unknown", w.Name, "the offset of these nodes' clocks was not measured: their windows may "+
			"differ from that of the cluster")
		return
	}
	apart := max(start.Sub(d.Start).Abs(), end.Sub(d.End).Abs()).Seconds() + known.Or(w.Clock.UncertaintySeconds, 0)
	if tolerated := 0.1 * d.End.Sub(d.Start).Seconds(); apart > tolerated {
		w.m.warn("window-apart", w.Name, "the windows of these nodes may be off from that of the cluster by more than a "+
			"tenth of its length")
	}
}

// cell returns the account of an owner, creating it if needed. Beyond maxCells, all further owners on a side share one.
func (w *node) cell(o owner) *account {
	c := w.cells[o]
	if c == nil {
		if len(w.cells) >= maxCells {
			w.m.warn("too-many-owners", w.Name, fmt.Sprintf("the ledgers of these nodes have more than %d containers and "+
				"components: the others have no names", maxCells))
			o = owner{side: o.side, namespace: OtherRows, workload: OtherRows}
			if c = w.cells[o]; c != nil {
				return c
			}
		}
		c = &account{}
		w.cells[o] = c
	}
	return c
}

// groups adds CPU time and memory by owner. A group's counters include those of the groups below it. A group's figure
// is added to its own owner, and therefore subtracted from the owner of the nearest group above it whose figure is
// known.
func (w *node) groups() {
	groups := slices.DeleteFunc(slices.Clone(w.l.Cgroups), func(g ledger.Cgroup) bool {
		return g.Path == "/" || g.Path == ""
	})
	slices.SortStableFunc(groups, func(a, b ledger.Cgroup) int { return cmp.Compare(len(a.Path), len(b.Path)) })
	tree := ledger.NewTree(groups)
	owners, counters := make([]*owner, len(groups)), make([][figures]*int64, len(groups))
	at := func(i int) *owner {
		if i < 0 {
			return nil
		}
		return owners[i]
	}
	for i := range groups {
		g, o := &groups[i], new(w.ownerOf(&groups[i]))
		if owners[i], counters[i] = o, countersOf(g); w.owners[g.Path] == nil {
			w.owners[g.Path] = o
		}
		for f, v := range counters[i] {
			switch {
			case f == cpus || f == bpf: // derived from other figures
			case v != nil:
				w.move(f, *v, o, at(tree.Nearest(i, func(j int) bool { return counters[j][f] != nil })))
			default:
				w.mark(f, o, at(tree.Above(i)))
			}
		}
	}
}

// countersOf returns the figures that a group itself reports, not those derived from others; nil if unknown.
func countersOf(g *ledger.Cgroup) [figures]*int64 {
	m := cmp.Or(g.Memory, new(ledger.Memory))
	if g.Vanished {
		m = &ledger.Memory{Hard: new(int64), Soft: new(int64), WorkingSet: new(uint64)} // a removed group holds no memory
	}
	return [figures]*int64{
		cpu: whole(g.CPUSeconds, 1e9), hard: m.Hard, soft: m.Soft,
		workingSet: known.As(m.WorkingSet, func(n uint64) int64 { return int64(n) }),
	}
}

// move adds a group's figure to its owner, and subtracts it from the owner of the group whose figure includes it.
func (w *node) move(figure int, n int64, o, from *owner) {
	switch {
	case from == nil:
		w.all[figure] += n
	case *from == *o:
		return
	default:
		w.cell(*from).add(figure, from.in(), -n)
	}
	w.cell(*o).add(figure, o.in(), n)
}

// mark records that a group's figure is unknown, for its owner and for the owner of the group above it.
func (w *node) mark(figure int, o, over *owner) {
	switch {
	case over == nil:
		w.cell(*o).mark(figure, o.in(), true)
	case *over == *o: // the figure above includes this one, or is unknown and marked itself
	case o.within(over): // the owner above is the pod, whose figure includes this one
		w.cell(*o).inPod[figure]++
		w.cell(*over).inPod[figure]++
	default:
		w.cell(*o).mark(figure, o.in(), false)
		w.cell(*over).mark(figure, over.in(), false)
	}
}

// in returns the side on which an owner's usage is summed.
func (o *owner) in() side {
	if o.side == sideElsewhere {
		return sideOther
	}
	return o.side
}

// give moves up to n of one owner's usage to another, and returns how much it moved.
func (w *node) give(from, to owner, figure int, n int64) int64 {
	if from == to {
		return 0
	}
	a := w.cell(from)
	n = min(n, max(a.sums[figure][from.in()], 0))
	if n > 0 {
		if from.machine && !to.machine {
			w.machine.give(w.Name, from, figure, n)
		}
		a.add(figure, from.in(), -n)
		w.cell(to).add(figure, to.in(), n)
	}
	return n
}

func shared(component string) owner { return owner{side: sideShared, component: component} }

// line returns a line of the node's budget in nanoseconds; 0 if there is none.
func (w *node) line(name string) int64 {
	for i := range w.l.CPU.Lines {
		if x := &w.l.CPU.Lines[i]; x.Name == name {
			return known.Or(whole(&x.Seconds, 1e9), 0)
		}
	}
	return 0
}

// takeSelf moves the CPU time of Tare itself out of the group in which it runs.
func (w *node) takeSelf() {
	if path := w.l.Self.Cgroup; path != nil {
		if o := ledger.At(w.owners, *path); o != nil && o.component != self && o.side != sideElsewhere {
			to := shared(self)
			to.machine = o.machine
			w.give(*o, to, cpu, w.line(ledger.LineSelf))
		}
	}
}

// rest adds the CPU time that is attributed to no group below the root: kernel threads, interrupts, processes in the
// root group, which no rule can name, and eBPF programs, whose run time is not included in the other three. It returns
// the owner of these programs.
func (w *node) rest() owner {
	last := owner{side: sideShared, component: otherBPF}
	lines := map[owner]int64{
		shared(kernelThreads):                       w.line(ledger.LineKernel),
		shared(interrupts):                          w.line(ledger.LineInterrupts),
		{side: sideOther, component: rootProcesses}: w.line(ledger.LineRoot),
	}
	if path := w.l.Self.Cgroup; path == nil || *path == "/" || *path == "" {
		lines[shared(self)] = w.line(ledger.LineSelf)
	}
	left := known.Or(whole(&w.l.CPU.Attributed, 1e9), 0) - w.all[cpu]
	to := func(o owner, ns int64) {
		if ns == 0 {
			return
		}
		if w.machine == nil {
			w.cell(o).add(cpu, o.side, ns)
			return
		}
		a := w.view.lines[o]
		if a == nil {
			a = &account{}
			w.view.lines[o] = a
		}
		a.add(cpu, o.side, ns)
		a.add(cpus, o.side, int64(math.Round(float64(ns)/w.l.Window.Seconds)))
	}
	for o, ns := range lines {
		to(o, ns)
		left -= ns
	}
	to(last, left)
	return last
}

// leave moves everything that is not part of the node from its cells into its view of the machine.
func (w *node) leave() {
	for o, cell := range w.cells {
		if !o.machine && o.side != sideElsewhere {
			continue
		}
		if o.machine {
			w.perCPU(cell)
			w.view.cells[o] = cell
		}
		delete(w.cells, o)
	}
}

// perCPU sets an account's CPUs from its CPU time and the length of the node's window.
func (w *node) perCPU(a *account) {
	for s := range sides {
		a.sums[cpus][s] = int64(math.Round(float64(a.sums[cpu][s]) / w.l.Window.Seconds))
	}
	a.unknown[cpus], a.in[cpus], a.missing[cpus] = a.unknown[cpu], a.in[cpu], a.missing[cpu]
	a.inPod[cpus] = a.inPod[cpu]
}

// knowsBPF reports whether the run time of the node's eBPF programs is known. If Tare's own are the only programs, it
// is known to be 0.
func (w *node) knowsBPF() bool {
	others := func(p ledger.Program) bool { return !p.Own }
	return w.l.Programs != nil && (w.l.CPU.BPFUnsplit != nil || !slices.ContainsFunc(w.l.Programs, others))
}

// programs charges the run time of eBPF programs to owners: where a program of infrastructure ran in the context of a
// workload's task, its run time counts as tare of the workload's pod, not as the workload's own usage.
func (w *node) programs(rest owner) {
	apart := w.l.Host.IRQTime != nil && *w.l.Host.IRQTime
	for i := range w.l.Programs {
		p := &w.l.Programs[i]
		ran, counted := p.RanSeconds()
		if !counted || p.Own {
			continue
		}
		kept := 1.0 // the part of the run time that was not stolen
		if *p.RunSeconds > 0 {
			kept = ran / *p.RunSeconds
		}
		for _, s := range p.Shares {
			if s.Cgroup != nil {
				w.share(p, *s.Cgroup, known.Or(whole(new(s.Seconds*kept), 1e9), 0),
					apart && s.Context != ledger.Task, rest)
			}
		}
	}
}

// share charges one share of a program's run time. apart is true if the share ran in an interrupt whose time the kernel
// counts separately, so that no group's CPU time contains it.
func (w *node) share(p *ledger.Program, path string, ns int64, apart bool, rest owner) {
	component := w.m.name(cmp.Or(p.Component, otherBPF))
	at := ledger.At(w.owners, path)
	if at == nil { // the program ran in the root group, or on an idle CPU
		if p.Charge == ledger.ChargeTare && w.machine == nil {
			w.cell(shared(component)).add(bpf, sideShared, w.give(rest, shared(component), cpu, ns))
		}
		return
	}
	if at.side == sideElsewhere {
		return
	}
	from, to := *at, *at
	if apart {
		from = rest
	}
	if p.Charge == ledger.ChargeTare && at.side == sideNet {
		to.side, to.component = sidePod, component
	} else if p.Charge == ledger.ChargeTare && at.side == sideOther {
		to = shared(component)
		to.machine = at.machine
	}
	switch {
	case from == to:
		w.cell(to).add(bpf, to.in(), max(min(ns, w.cell(to).sums[cpu][to.in()]), 0))
	case p.Charge == ledger.ChargeTare:
		w.cell(to).add(bpf, to.in(), w.give(from, to, cpu, ns))
	}
}

// maps moves the memory of infrastructure's eBPF maps from the workload whose groups are charged for it to that
// infrastructure.
func (w *node) maps() {
	for i := range w.l.Maps {
		x := &w.l.Maps[i]
		if x.Charge != ledger.ChargeTare || x.ChargedTo == nil || x.Bytes == nil || *x.Bytes > maxFigure {
			continue
		}
		at := ledger.At(w.owners, *x.ChargedTo)
		if at == nil || at.side != sideNet {
			continue
		}
		to := *at
		to.side, to.component = sidePod, w.m.name(cmp.Or(x.Component, otherBPF))
		w.give(*at, to, hard, int64(*x.Bytes))
		w.give(*at, to, workingSet, int64(*x.Bytes))
	}
}

// sandboxes charges pods for processes that serve only them, such as shims, which may be in unrelated groups. In the
// pods' own groups it separates such processes, such as virtual machine monitors, from the application.
func (w *node) sandboxes() {
	for i := range w.l.Sandboxes {
		box := &w.l.Sandboxes[i]
		if box.Pod == nil {
			continue
		}
		pod, known := w.pod(&ledger.Name{Namespace: box.Pod.Namespace, Pod: box.Pod.Name, PodUID: box.Pod.UID})
		if !known || pod.side == sideElsewhere {
			continue
		}
		serves := lists.Keyed(box.Components,
			func(c ledger.SandboxComponent) (string, bool) { return c.Component, c.Charge == ledger.ChargeTare })
		for j := range box.Processes {
			p := &box.Processes[j]
			own := whole(p.CPU, 1e9)
			for _, t := range p.Threads {
				if ns := whole(t.CPU, 1e9); ns != nil {
					if own != nil {
						*own -= *ns
					}
					w.serve(pod, serves, t.Component, t.CPUCgroup, *ns)
				}
			}
			if own != nil {
				w.serve(pod, serves, p.Component, p.CPUCgroup, *own)
			}
		}
	}
}

// serve charges a pod, as tare, for the CPU time that one of its processes used in a group. serves says which
// components are infrastructure. Time of other components, and time that is tare of a pod already, is not moved.
func (w *node) serve(pod owner, serves map[string]bool, component, path string, ns int64) {
	at := ledger.At(w.owners, path)
	if at == nil || !serves[component] || at.side == sidePod || at.side == sideElsewhere ||
		at.side == sideShared && at.pod != "" {
		return
	}
	to := pod
	to.side, to.component = sidePod, w.m.name(component)
	if at.pod == pod.pod && at.namespace == pod.namespace {
		to.container = at.container
	}
	w.give(*at, to, cpu, ns)
}

// reserve compares the resources that the node reserves with the usage of whatever serves it outside pods.
func (w *node) reserve() *Reserve {
	r := &Reserve{Capacity: w.Capacity, Allocatable: w.Allocatable}
	r.Reserved.CPUs = known.Sum(w.Capacity.CPUs, known.Minus(w.Allocatable.CPUs))
	r.Reserved.MemoryBytes = known.Sum(w.Capacity.MemoryBytes, known.Minus(w.Allocatable.MemoryBytes))
	if w.machine != nil && w.Root == "" {
		return r // it is unknown which of the machine's daemons are the node's
	}
	var own, unnamed account
	for o, cell := range w.cells {
		switch {
		case o.pod != "":
		case o.side == sideShared:
			own.merge(cell)
		case o.side == sideOther && o.component != ended:
			unnamed.merge(cell)
		}
	}
	w.perCPU(&own)
	w.perCPU(&unnamed)
	// used returns a figure of the infrastructure that serves the node. It is nil if no usage is known to serve the node,
	// if a part of it is unknown and may be counted elsewhere, or if the usage that no rule names, some of which may also
	// serve the node, would not fit within the headroom.
	used := func(f int, headroom float64) *int64 {
		switch n, more := own.gross()[f], unnamed.gross()[f]; {
		case own.unknown[f] > 0:
			w.m.warn("reserve-unknown", w.Name, "a part of what serves these nodes is not known, such as a service that ended "+
				"in the window or was started again")
			return nil
		case n <= 0 || float64(n+more) > headroom*float64(n):
			w.m.warn("reserve-unknown", w.Name, "what serves these nodes is not known: too much of what runs outside of "+
				"pods is named by no rule of their agents")
			return nil
		default:
			return &n
		}
	}
	if n := used(cpus, HeadroomCPU); n != nil {
		r.Used.CPUs = new(float64(*n) / 1e9)
		r.Suggested.CPUs = new(math.Ceil(*r.Used.CPUs*HeadroomCPU/StepCPUs) * StepCPUs)
	}
	if r.Used.MemoryBytes = used(workingSet, HeadroomMemory); r.Used.MemoryBytes != nil {
		r.Suggested.MemoryBytes = new(int64(math.Ceil(float64(*r.Used.MemoryBytes)*HeadroomMemory/StepMemory)) * StepMemory)
	}
	return r
}

// foreignWarnings adds the warnings of the node's ledger, once for each code, and warns if eBPF run time that samples
// could not split is more than 1 % of the node's CPU time.
func (w *node) foreignWarnings() {
	seen := map[string]bool{}
	for _, x := range w.l.Warnings {
		if code := w.m.name(x.Code); !seen[code] && len(seen) < maxNamed {
			seen[code] = true
			w.m.note("node-"+code, w.Name, "warnings of the nodes' ledgers: docs/troubleshooting.md says what it means")
		}
	}
	if left := known.Or(w.l.CPU.BPFUnsplit, 0); left > 0.01*w.l.CPU.Attributed {
		w.m.warn("ebpf-unsplit", w.Name, "more than 1 % of the CPU time of these nodes is run time of eBPF programs that "+
			"samples could not split: it stays in the figures of the containers and services in which they ran")
	}
}
