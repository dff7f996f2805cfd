package meter

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/lib/known"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/proc"
	"tare/internal/scale/host/sandbox"
	"tare/internal/scale/ledger"
)

// Sandboxes adds to a ledger what the machine's sandboxes used in its window. A meter that has a Sandboxes in its
// Options reads the edges of the sandboxes just before those of the window, so that both cover the same length of time.
type Sandboxes struct {
	o      sandbox.Options
	reader *sandbox.Reader // nil before the first edge, and after an error
	fs     proc.FS
	edges  []sandboxEdge   // by time, from the one at which the next window begins
	census *sandbox.Census // at the last edge
	failed error           // why the last edge could not be read
	cost   time.Duration   // CPU time that this process spent on sandboxes and has not reported
	smaps  time.Duration   // the part of cost for reading resident memory
}

// sandboxEdge is the CPU time of processes at one time.
type sandboxEdge struct {
	at    time.Time
	ticks uint64          // a time just before the reading, in the unit of proc.Process.Start
	used  map[task]uint64 // CPU time, in ns, of all processes, and of threads in sandboxes
}

// task identifies a process or a thread even if its number is reused.
type task struct {
	pid, tid int
	start    uint64
}

// Limits of the CPU time for reading resident memory, for which the kernel walks the page tables of each process.
const (
	smapsPart  = 0.02 // fraction of the window
	smapsLeast = 100 * time.Millisecond
	smapsMost  = 2 * time.Second
)

// sandboxSpan is the largest difference between the time from edge to edge and the length of the window that needs no
// warning, as a fraction of that length.
const sandboxSpan = 0.02

// NewSandboxes returns a Sandboxes without an edge. The caller must close the result.
func NewSandboxes(o sandbox.Options) *Sandboxes { return &Sandboxes{o: o, fs: proc.FS{Root: o.Root}} }

// ReadEdge reads an edge. AddTo and Tick return its error.
func (s *Sandboxes) ReadEdge() {
	began := selfTime()
	defer func() { s.cost += selfTime() - began }()
	if s.reader == nil {
		if s.reader, s.failed = sandbox.New(s.o); s.failed != nil {
			return
		}
	}
	var e sandboxEdge
	if e.ticks, s.failed = s.fs.Now(); s.failed != nil {
		return
	}
	if s.census, s.failed = s.reader.Read(true); s.failed != nil {
		return
	}
	e.at = time.Now()
	e.used = s.times(s.census)
	s.edges = append(s.edges, e)
}

// edge returns the index of the last edge before a time; -1 if there is none.
func (s *Sandboxes) edge(at time.Time) int {
	n := len(s.edges)
	for n > 0 && s.edges[n-1].at.After(at) {
		n--
	}
	return n - 1
}

// times returns the CPU time of all processes, and of threads in sandboxes, from the census that was just taken.
func (s *Sandboxes) times(c *sandbox.Census) map[task]uint64 {
	all := map[task]uint64{}
	s.reader.Times(func(pid int, start, ns uint64) { all[task{pid, pid, start}] = ns })
	for _, b := range c.Sandboxes {
		for _, p := range b.Processes {
			for i := range p.Threads {
				if t := &p.Threads[i]; t.CPUNs != nil {
					all[task{p.PID, t.TID, p.Start}] = *t.CPUNs
				}
			}
		}
	}
	return all
}

// Close releases all resources.
func (s *Sandboxes) Close() {
	if s.reader != nil {
		s.reader.Close()
	}
	s.reader, s.edges = nil, nil
}

// AddTo reads the resident memory of all processes of sandboxes in turn, and adds the sandboxes to the ledger of the
// last window.
func (s *Sandboxes) AddTo(l *ledger.Ledger) error {
	before := s.cost
	if err := s.add(l); err != nil {
		return err
	}
	total, smaps := s.cost.Seconds(), s.smaps.Seconds()
	l.Self.SandboxSeconds, l.Self.SmapsSeconds = &total, &smaps
	l.Self.CPUSeconds += (s.cost - before).Seconds() // CPUSeconds already includes the edges
	return nil
}

// Tick is like AddTo, but for a window that is followed by another without a gap. The next window's ledger then
// includes the cost of adding to this one. After an error, it finds all sandboxes anew for the next window.
func (s *Sandboxes) Tick(l *ledger.Ledger) error {
	total, smaps := s.cost.Seconds(), s.smaps.Seconds()
	s.cost = 0
	if err := s.add(l); err != nil {
		s.Close()
		s.ReadEdge()
		return err
	}
	l.Self.SandboxSeconds, l.Self.SmapsSeconds = &total, &smaps
	s.edges = slices.Delete(s.edges, 0, s.edge(l.Window.End))
	return nil
}

// add adds the sandboxes to the ledger.
func (s *Sandboxes) add(l *ledger.Ledger) error {
	if s.failed != nil {
		return s.failed
	}
	began := selfTime()
	defer func() { s.cost += selfTime() - began }()
	// After an error, the first edge was read when the window had begun.
	from, to := max(s.edge(l.Window.Start), 0), s.edge(l.Window.End)
	if from >= to {
		return errors.New("they were not read at both edges of the window")
	}
	c, first, last := s.census, &s.edges[from], &s.edges[to]
	span := last.at.Sub(first.at).Seconds()
	if len(c.Sandboxes) > 0 && math.Abs(span-l.Window.Seconds) > sandboxSpan*l.Window.Seconds {
		l.Warn("sandboxes-span", "the clocks of processes in sandboxes were read %.3g s apart, in a window of %.3g s: their "+
			"CPU time is off by as much", span, l.Window.Seconds)
	}
	budget := time.Duration(smapsPart * l.Window.Seconds * float64(time.Second))
	memory, unread := s.resident(c, min(max(budget, smapsLeast), smapsMost))
	if unread > 0 {
		l.Warn("pss-not-read", "the resident memory of %d processes of sandboxes was not read, because reading the "+
			"others took %v of CPU time: it is unknown, and so are sums that it belongs to; a longer --for reads more",
			unread, s.smaps)
	}
	if c.Hidden > 0 && !proc.Capable(unix.CAP_SYS_PTRACE) { // a security module may hide some even from root
		l.Warn("programs-hidden", "what %d processes run may not be read: sandboxes that only the program shows are "+
			"missing; run as root, or with CAP_SYS_PTRACE", c.Hidden)
	}
	l.Sandboxes = []ledger.Sandbox{}
	cgroups := map[string]*ledger.Cgroup{}
	for i := range l.Cgroups {
		if g := &l.Cgroups[i]; !g.Vanished {
			cgroups[g.Path] = g
		}
	}
	for _, b := range c.Sandboxes {
		e := entry{s: s, c: c, b: b, first: first, last: last, memory: memory, cgroups: cgroups}
		l.Sandboxes = append(l.Sandboxes, e.sandbox())
	}
	pss := func(b ledger.Sandbox) uint64 { return known.Or(b.GrossMemory, 0) }
	slices.SortStableFunc(l.Sandboxes, func(a, b ledger.Sandbox) int { return cmp.Compare(pss(b), pss(a)) })
	return nil
}

// memories is the resident memory of processes, or why it could not be read. Processes for which there was no time are
// absent.
type memories map[*sandbox.Process]memoryReading

type memoryReading struct {
	memory *ledger.SandboxMemory // nil with an error
	huge   uint64                // bytes of huge pages, which are not in memory
	err    error
}

// resident reads the resident memory of all processes of sandboxes, VMMs and sentries first, until that has used up
// the budget of CPU time. It also returns how many were left out.
func (s *Sandboxes) resident(c *sandbox.Census, budget time.Duration) (memories, int) {
	var all []*sandbox.Process
	for _, b := range c.Sandboxes {
		for _, p := range b.Processes {
			if !p.Kernel {
				all = append(all, p)
			}
		}
	}
	large := func(p *sandbox.Process) int {
		if p.Component == sandbox.VMM || p.Component == sandbox.Sentry {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(all, func(a, b *sandbox.Process) int { return cmp.Compare(large(a), large(b)) })
	memory := make(memories, len(all))
	began := selfTime()
	defer func() { s.smaps = selfTime() - began }()
	for i, p := range all {
		if selfTime()-began > budget {
			return memory, len(all) - i
		}
		memory[p] = s.memoryOf(p)
	}
	return memory, 0
}

// memoryOf returns the resident memory of one process. It is 0 for a process that has ended since the census, even if
// its PID has been reused.
func (s *Sandboxes) memoryOf(p *sandbox.Process) memoryReading {
	r, err := s.fs.Rollup(p.PID)
	m := &ledger.SandboxMemory{PSS: r.PSS, Anon: r.Anon, File: r.File, Shmem: r.Shmem, Swap: r.Swap}
	if err == nil {
		m.PageTables, err = s.fs.PageTables(p.PID)
	}
	now, gone := s.fs.Process(p.PID)
	if errors.Is(gone, proc.ErrGone) || gone == nil && now.Start != p.Start {
		return memoryReading{memory: &ledger.SandboxMemory{Anon: new(uint64), File: new(uint64), Shmem: new(uint64)}}
	}
	if err != nil {
		return memoryReading{err: err}
	}
	return memoryReading{memory: m, huge: r.Huge}
}

// entry builds the ledger's entry for one sandbox.
type entry struct {
	s       *Sandboxes
	c       *sandbox.Census
	b       *sandbox.Sandbox
	first   *sandboxEdge
	last    *sandboxEdge
	memory  memories
	cgroups map[string]*ledger.Cgroup // the ledger's groups by path
	untimed []string                  // processes and threads whose CPU time is missing from sums
}

func (e *entry) sandbox() ledger.Sandbox {
	b := e.b
	out := ledger.Sandbox{
		ID: b.ID, Name: b.Name, Runtime: b.Runtime, Engine: b.Engine, Driver: b.Driver, VM: b.VM, Arrangement: b.Row,
		Title:      b.Title,
		Containers: append([]string{}, b.Containers...), Findings: []ledger.SandboxFinding{},
		Processes: []ledger.SandboxProcess{}, Groups: []ledger.SandboxGroup{}, Notes: []string{},
	}
	if b.Pod != (sandbox.Pod{}) {
		out.Pod = &ledger.SandboxPod{UID: b.Pod.UID, Namespace: b.Pod.Namespace, Name: b.Pod.Name}
	}
	if d := b.Declared; d != nil {
		out.Declared = &ledger.SandboxOverhead{MemoryBytes: d.MemoryBytes, Source: d.Source}
	}
	e.processes(&out)
	out.Components = e.components()
	out.ByContainer = e.byContainer()
	e.sums(&out)
	e.groups(&out)
	findings := e.c.Findings(b, func(p *sandbox.Process) (uint64, string, bool) {
		m := e.memory[p].memory
		if m == nil {
			return 0, "", false
		}
		return m.PSS, "PSS", true
	})
	out.Findings = append(out.Findings, lists.Map(findings,
		func(f sandbox.Finding) ledger.SandboxFinding { return ledger.SandboxFinding(f) })...)
	return out
}

// used returns the CPU time that a task used between the edges; a task that started in between began at 0. It is nil
// if unknown, as for a task that was read only at the second edge but is older than the first.
func (e *entry) used(t task) *float64 {
	before, listed := e.first.used[t]
	now, read := e.last.used[t]
	if !read || !listed && e.olderThanWindow(t) {
		return nil
	}
	return new(float64(now-min(now, before)) / 1e9)
}

// olderThanWindow reports whether a task existed at the first edge, or may have. A process that was not listed there
// but started in the tick of the edge counts as newer: it used less than a tick before.
func (e *entry) olderThanWindow(t task) bool {
	if t.tid == t.pid {
		return t.start < e.first.ticks
	}
	p, err := e.s.fs.Process(t.tid) // the kernel exposes each thread as /proc/TID too, although it does not list it
	return err != nil || p.Start <= e.first.ticks
}

func (e *entry) processes(out *ledger.Sandbox) {
	for _, p := range e.b.Processes {
		x := ledger.SandboxProcess{
			PID: p.PID, Comm: p.Comm, Program: p.Program, Component: string(p.Component), Container: p.Container,
			KnownBy: []string{}, CPUCgroup: p.CPU.Path, MemoryCgroup: p.Memory.Path, Memory: e.memory[p].memory,
			CPU: e.used(task{p.PID, p.PID, p.Start}),
		}
		x.KnownBy = append(x.KnownBy, lists.Map(p.Signs, func(s sandbox.Sign) string { return string(s) })...)
		for i := range p.Threads {
			t := &p.Threads[i]
			x.Threads = append(x.Threads, ledger.SandboxThread{TID: t.TID, Comm: t.Comm, Component: string(t.Component),
				CPUCgroup: t.CPU.Path, CPU: e.used(task{p.PID, t.TID, p.Start})})
		}
		out.Processes = append(out.Processes, x)
	}
}

// parts collects components by name.
type parts map[string]*ledger.SandboxComponent

func (ps parts) part(name string, charge ledger.Charge) *ledger.SandboxComponent {
	p := ps[name]
	if p == nil {
		p = &ledger.SandboxComponent{Component: name, Charge: charge, CPU: new(float64)}
		ps[name] = p
	}
	return p
}

// counters returns the CPU time of the groups that belong to this sandbox alone and contain its application, by path.
// The values are those in the ledger's own list of groups, and include processes that have ended. For a virtual machine
// the result is empty, because its threads may be in other groups than their process.
func (e *entry) counters() map[string]*float64 {
	all := map[string]*float64{}
	for _, g := range e.b.Groups {
		if g.Reading == nil || g.Within != "" || e.b.VM {
			continue
		}
		application := func(p *sandbox.Process) bool {
			return p.Component == sandbox.Workload && cgroup.Within(p.CPU.Path, g.Path)
		}
		counted := e.cgroups[g.Path]
		if counted != nil && counted.CPUSeconds != nil && slices.ContainsFunc(e.b.Processes, application) {
			all[g.Path] = new(*counted.CPUSeconds)
		}
	}
	return all
}

// components splits what the sandbox used. In a group whose counter includes the application, each other process has
// the CPU time of its own clock, and the application has the rest. If threads belong to another component than their
// process, their CPU time is subtracted from that of the process. The memory of the guest is subtracted from that of
// the processes that hold it.
func (e *entry) components() []ledger.SandboxComponent {
	ps, counters := parts{}, e.counters()
	for _, p := range e.b.Processes {
		part := ps.part(string(p.Component), chargeOf(p.Component))
		part.Processes++
		own := e.used(task{p.PID, p.PID, p.Start})
		if top, counted := counterOf(counters, p.CPU.Path); counted && p.Component == sandbox.Workload {
			own = new(float64) // it is in the counter
		} else if counted {
			counters[top] = known.Sum(counters[top], known.Minus(own))
		}
		if own == nil {
			e.untimed = append(e.untimed, fmt.Sprintf("process %d (%s)", p.PID, p.Comm))
		}
		for i := range p.Threads {
			t := &p.Threads[i]
			if t.Component == p.Component {
				continue
			}
			other := ps.part(string(t.Component), chargeOf(t.Component))
			other.Threads++
			used := e.used(task{p.PID, t.TID, p.Start})
			if used == nil {
				e.untimed = append(e.untimed, fmt.Sprintf("thread %d (%s)", t.TID, t.Comm))
			}
			other.CPU = known.Sum(other.CPU, used)
			if own = known.Sum(own, known.Minus(used)); own != nil {
				*own = max(*own, 0) // process and thread were not read at the same time
			}
		}
		part.CPU = known.Sum(part.CPU, own)
		e.addMemory(ps, part, p)
	}
	for _, rest := range counters {
		if rest != nil {
			*rest = max(*rest, 0) // the clocks of processes are read outside the window's edges
		}
		part := ps.part(string(sandbox.Workload), ledger.ChargeWorkload)
		part.CPU = known.Sum(part.CPU, rest)
	}
	order := []string{ledger.ComponentGuest}
	order = append(order, lists.Map(sandbox.Components, func(c sandbox.Component) string { return string(c) })...)
	out := []ledger.SandboxComponent{}
	for _, name := range order {
		if p := ps[name]; p != nil {
			out = append(out, *p)
		}
	}
	return out
}

// byContainer returns what each container uses: the counters of its group, and the resident memory of its processes.
func (e *entry) byContainer() []ledger.SandboxContainer {
	out := make([]ledger.SandboxContainer, 0, len(e.b.Containers))
	for _, id := range e.b.Containers {
		c := ledger.SandboxContainer{ID: id, Memory: &ledger.SandboxMemory{Anon: new(uint64), File: new(uint64),
			Shmem: new(uint64)}}
		for _, p := range e.b.Processes {
			if p.Container != id {
				continue
			}
			c.Processes++
			if m := e.memory[p].memory; m == nil && !p.Kernel {
				c.Memory = nil
			} else if m != nil && c.Memory != nil {
				c.Memory.Add(m)
			}
			if of := sandbox.WhoseIs(p.CPU.Path); of.ID == id {
				if g := e.cgroups[of.IDGroup]; g != nil {
					c.CPU = g.CPUSeconds
				}
			}
			if of := sandbox.WhoseIs(p.Memory.Path); of.ID == id {
				if g := e.cgroups[of.IDGroup]; g != nil && g.Memory != nil {
					c.MemoryHard = g.Memory.Hard
				}
			}
		}
		out = append(out, c)
	}
	return out
}

// counterOf returns the counted group that contains a group, and whether there is one.
func counterOf(counters map[string]*float64, group string) (top string, counted bool) {
	for top := range counters {
		if cgroup.Within(group, top) {
			return top, true
		}
	}
	return "", false
}

func chargeOf(c sandbox.Component) ledger.Charge {
	if c.Infrastructure() {
		return ledger.ChargeTare
	}
	return ledger.ChargeWorkload
}

// addMemory adds the memory of a process to its component, and the guest's share of it to ComponentGuest.
func (e *entry) addMemory(ps parts, part *ledger.SandboxComponent, p *sandbox.Process) {
	m := e.memory[p].memory
	if m == nil {
		return
	}
	own := *m
	if m.Shmem != nil && *m.Shmem > 0 && slices.Contains(e.b.GuestMemory, p.Component) {
		zero, shared := uint64(0), *m.Shmem
		guest := ps.part(ledger.ComponentGuest, ledger.ChargeWorkload)
		addTo(&guest.Memory, &ledger.SandboxMemory{PSS: shared, Anon: &zero, File: &zero, Shmem: &shared})
		own.PSS, own.Shmem = m.PSS-min(m.PSS, shared), &zero
	}
	addTo(&part.Memory, &own)
}

func addTo(sum **ledger.SandboxMemory, m *ledger.SandboxMemory) {
	if *sum == nil {
		*sum = new(*m)
		return
	}
	(*sum).Add(m)
}

// sums sets gross, net and tare, and the measured overhead.
func (e *entry) sums(out *ledger.Sandbox) {
	cpu := map[ledger.Charge]*float64{ledger.ChargeWorkload: new(float64), ledger.ChargeTare: new(float64)}
	pss := map[ledger.Charge]uint64{}
	read, kinds := true, true
	var overhead uint64
	for _, c := range out.Components {
		cpu[c.Charge] = known.Sum(cpu[c.Charge], c.CPU)
		if c.Memory == nil {
			continue
		}
		pss[c.Charge] += c.Memory.PSS
		if c.Charge != ledger.ChargeTare {
			continue
		}
		if c.Memory.Anon == nil || c.Memory.Shmem == nil {
			kinds = false
			continue
		}
		overhead += *c.Memory.Anon + *c.Memory.Shmem + c.Memory.PageTables
	}
	var why error
	huge := map[ledger.Charge]uint64{}
	for _, p := range e.b.Processes {
		read = read && (p.Kernel || e.memory[p].memory != nil)
		why = cmp.Or(why, e.memory[p].err)
		huge[chargeOf(p.Component)] += e.memory[p].huge
	}
	out.NetCPU, out.TareCPU = cpu[ledger.ChargeWorkload], cpu[ledger.ChargeTare]
	out.GrossCPU = known.Sum(out.NetCPU, out.TareCPU)
	if read {
		out.NetMemory, out.TareMemory = new(pss[ledger.ChargeWorkload]), new(pss[ledger.ChargeTare])
		out.GrossMemory = known.Sum(out.NetMemory, out.TareMemory)
		if kinds {
			out.MeasuredOverhead = &overhead
		}
	} else {
		note := "resident memory of some processes was not read, so its sums are not known"
		if why != nil {
			note += ": " + why.Error()
		}
		out.Notes = append(out.Notes, note)
	}
	if all := huge[ledger.ChargeWorkload] + huge[ledger.ChargeTare]; all > 0 {
		out.GrossMemory, out.NetMemory = nil, nil
		if huge[ledger.ChargeTare] > 0 { // such as the VMM's, which the guest may have
			out.TareMemory, out.MeasuredOverhead = nil, nil
		}
		out.Notes = append(out.Notes, fmt.Sprintf("its processes map up to %s of huge pages, which are in no PSS, so sums "+
			"with them are not known", quantity.Value(float64(all), quantity.Bytes)))
	}
	if len(e.untimed) > 0 {
		note := "CPU time of " + e.untimed[0]
		if more := len(e.untimed) - 1; more > 0 {
			note += fmt.Sprintf(" and %d more", more)
		}
		out.Notes = append(out.Notes, note+" was not read at both edges of the window, so sums with it are not known")
	}
	e.explain(out)
}

// explain notes what net includes, and removes values that cannot be separated.
func (e *entry) explain(out *ledger.Sandbox) {
	has := func(name string) bool {
		return slices.ContainsFunc(out.Components, func(c ledger.SandboxComponent) bool { return c.Component == name })
	}
	if e.b.VM {
		out.Notes = append(out.Notes, "net is the whole guest: the application, the guest's kernel and its page cache, "+
			"which the host cannot tell apart")
		if has(string(sandbox.VMM)) && !has(ledger.ComponentGuest) && out.TareMemory != nil {
			out.NetMemory, out.TareMemory, out.MeasuredOverhead = nil, nil, nil
			out.Notes = append(out.Notes, "the guest's memory is not shared memory, so it cannot be told from the VMM's "+
				"own")
		}
		if has(string(sandbox.VMM)) && !has(string(sandbox.VCPU)) {
			out.NetCPU, out.TareCPU = nil, nil
			out.Notes = append(out.Notes, "the VMM does not name its vCPU threads, so their CPU time cannot be told from "+
				"its own")
		}
	}
	if has(string(sandbox.Sentry)) && !has(string(sandbox.Workload)) {
		out.NetCPU, out.TareCPU = nil, nil
		out.Notes = append(out.Notes, "the application runs inside the sentry, so their CPU time cannot be told apart")
	}
}

// groups lists the groups that the sandbox is charged to. CPU time and memory are those of the ledger's list of
// groups, so that each group has one value. Memory of groups that are not in that list was read at the sandboxes' last
// edge.
func (e *entry) groups(out *ledger.Sandbox) {
	for _, g := range e.b.Groups {
		x := ledger.SandboxGroup{Path: g.Path, Place: string(g.Place), Inside: g.Inside, Within: g.Within,
			Processes: g.Processes}
		if g.Reading != nil {
			x.Memory = memory(g.Reading.Memory)
			if listed := e.cgroups[g.Path]; listed != nil {
				x.CPU, x.Memory = listed.CPUSeconds, listed.Memory
			}
		}
		if x.Memory != nil && x.Memory.Hard != nil {
			into := &out.ChargedOutside
			if g.Inside {
				into = &out.ChargedInside
			}
			*into = known.Sum(x.Memory.Hard, cmp.Or(*into, new(int64)))
		}
		out.Groups = append(out.Groups, x)
	}
	shared := func(g *sandbox.Group) bool { return g.Processes > 0 && g.Within == "" && g.Reading == nil }
	if i := slices.IndexFunc(e.b.Groups, shared); i >= 0 {
		out.Notes = append(out.Notes, fmt.Sprintf("a part of it is charged to groups that others are in as well, such "+
			"as %s: what that is of their memory is not known", e.b.Groups[i].Path))
	}
}
