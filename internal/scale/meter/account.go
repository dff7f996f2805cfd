package meter

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/lib/known"
	"tare/internal/lib/lists"
	"tare/internal/scale/attribution"
	"tare/internal/scale/host/bpf"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/perf"
	"tare/internal/scale/host/proc"
	"tare/internal/scale/host/witness"
	"tare/internal/scale/ledger"
)

// account turns two edges, the samples between them and the inventory into a ledger.
type account struct {
	m        *Meter
	w        *Window
	last     edge
	programs []bpf.Program
	found    *findings        // nil without sampling
	seen     *witness.Account // nil without a witness
	snapshot *bpf.Snapshot    // nil if programs could not be read
	passed   *proc.Elapsed    // cached by elapsed
	untold   bool             // a top-level group's counter was reset, so what it used is unknown; set by cgroups
	absorbed bool             // a top-level group was removed or renamed: the root's counter has its time; set by cgroups

	warnings []ledger.Warning
}

func (a *account) warn(code, format string, args ...any) {
	a.warnings = append(a.warnings, ledger.Warning{Code: code, Message: fmt.Sprintf(format, args...)})
}

// unread warns of groups that could not be read. What they used is counted only with their ancestors.
func (a *account) unread() {
	const named = 3
	all := a.m.groups.Unread()
	for _, u := range all[:min(named, len(all))] {
		hint := ""
		if errors.Is(u.Err, unix.EACCES) {
			hint = "; run as root, or with CAP_DAC_READ_SEARCH"
		}
		a.warn("group-unread", "control group %.200s could not be read, so what it used is not known: %v%s", u.Path, u.Err,
			hint)
	}
	if n := len(all) - named; n > 0 {
		a.warn("group-unread", "%d more control groups could not be read", n)
	}
}

func (a *account) seconds() float64 { return float64(a.last.at-a.w.first.at) / 1e9 }

func (a *account) window() ledger.Window {
	return ledger.Window{Start: a.w.first.wall, End: a.last.wall, Seconds: a.seconds(),
		EdgeSeconds: max(a.w.first.took, a.last.took).Seconds()}
}

func (a *account) ledger() *ledger.Ledger {
	a.warnings = slices.Clone(a.m.warnings)
	a.failed()
	if a.snapshot != nil {
		for _, w := range a.snapshot.Warnings {
			a.warnings = append(a.warnings, ledger.Warning{Code: w.Code, Message: w.Message})
		}
	}
	a.m.judgeIRQTime(a.last.stat)
	if a.m.host.IRQTime == nil {
		a.warn("irq-time", "it is not known whether the kernel takes interrupts out of tasks' CPU time; Tare assumes that "+
			"it does not")
	}
	l := &ledger.Ledger{
		Schema: ledger.Schema,
		Host:   a.m.host,
		Window: a.window(),
	}
	if a.found == nil {
		l.Host.Sampler, l.Host.SamplerPeriod = "", nil
	}
	l.Host.CPUs = len(a.last.stat.Online)
	if cpus := a.elapsed().Moved; len(cpus) > 0 {
		a.warn("cpus-changed", "CPUs %v went offline or came online: the capacity contains what they did, and not how long "+
			"they were idle", cpus)
	}
	a.unread()
	l.Programs = a.bpfPrograms()
	l.Maps = a.bpfMaps()
	l.Cgroups = a.cgroups(l.Programs)
	l.Self = a.self()
	l.CPU = a.budget(l)
	if a.m.part {
		a.partial(&l.CPU)
	}
	l.Settle()
	if a.seen != nil {
		l.Noise = &a.seen.Noise
		if a.seen.Lost > 0 {
			a.warn("stalls-lost", "the witness's ring had no room for %d stalls and occupants: their time is in the sums, but "+
				"they are not listed", a.seen.Lost)
		}
	}
	if a.found != nil {
		if n := a.found.lost.samples; n > 0 {
			what := "%d samples"
			if !a.m.sampler.ExactLost() {
				what = "at least %d records of the sampler"
			}
			a.warn("samples-lost", what+" were lost: shares may be off by as much as %.1f %%", n,
				100*float64(n)/float64(max(a.found.samples, 1)+int(n)))
		}
		if n := a.found.lost.records; n > 0 {
			a.warn("records-lost", "%d records of threads and programs were lost, because they came faster than they could be "+
				"read: samples of short-lived threads may be in no known group", n)
		}
		if n := a.found.lost.slowed; n > 0 {
			a.warn("sampler-throttled", "the kernel throttled the sampler %d times, so parts of the window have no samples; "+
				"use a lower --hz", n)
		}
		if cpus := a.found.blind; len(cpus) > 0 {
			a.warn(NotSampled, "CPUs %v went offline or came online, and were not sampled for the whole window: "+
				"shares leave out what ran there", cpus)
		}
		if n := a.found.dropped; n > 0 {
			a.warn("stacks", "%d samples are left out of the shares: there were more different call chains than the %d "+
				"that are kept", n, maxStacks)
		}
	}
	l.Warnings = a.warnings
	return l
}

// partial warns that the ledger covers only a part of the machine, as in a node that is a container, and how much.
func (a *account) partial(c *ledger.CPU) {
	used := "their CPU time is not known"
	if c.Part != nil {
		used = fmt.Sprintf("they used %.3g s of the %.3g s for which CPUs were busy", *c.Part, max(c.Busy(), *c.Part))
	}
	a.warn("cgroup-namespace", "only a part of the machine's control groups can be seen: %s; what ran outside of them is "+
		"unexplained; run in the machine's control group namespace, with its control groups mounted", used)
}

// knowsPrograms reports whether programs and their counters at both edges were read.
func (a *account) knowsPrograms() bool { return a.snapshot != nil && a.w.parts.programs.Err == nil }

// bpfPrograms returns the programs that existed in the window, busiest first; nil if they are unknown.
func (a *account) bpfPrograms() []ledger.Program {
	if !a.knowsPrograms() {
		return nil
	}
	details := make(map[bpf.Key]*bpf.Program, len(a.snapshot.Programs))
	for i := range a.snapshot.Programs {
		p := &a.snapshot.Programs[i]
		details[p.Key()] = p
	}
	out := make([]ledger.Program, 0, len(a.programs))
	known := make(map[uint32]bool, len(a.programs))
	for i := range a.programs {
		p := &a.programs[i]
		before, wasThere := a.w.programs[p.Key()]
		if p.Vanished && !wasThere {
			continue // it was gone before the window opened
		}
		known[p.ID] = true
		if d := details[p.Key()]; d != nil {
			p.Owners, p.Attached, p.MapIDs = d.Owners, d.Attached, d.MapIDs
			p.Own = p.Own || d.Own
		}
		out = append(out, a.program(p, before))
	}
	a.unloaded(out)
	a.missed(known)
	a.unsure(known)
	slices.SortStableFunc(out, func(x, y ledger.Program) int { return cmp.Compare(ran(y), ran(x)) })
	return out
}

// ran returns a program's run time, or -1 if it is unknown, to sort it last.
func ran(p ledger.Program) float64 { return known.Or(p.RunSeconds, -1) }

// unloaded warns of programs that were unloaded during the window.
func (a *account) unloaded(programs []ledger.Program) {
	var who []string
	for _, p := range programs {
		if p.RunCount == nil && !a.w.uncounted {
			who = append(who, fmt.Sprintf("%d (%s)", p.ID, cmp.Or(p.Name, "no name")))
		}
	}
	if n := len(who); n > 0 {
		a.warn("program-unloaded", "programs unloaded inside the window: %d, among them %s: their run time in it could "+
			"not be read", n, strings.Join(who[:min(n, 5)], ", "))
	}
}

// missed warns of programs that were loaded and unloaded during the window: one warning, because a machine may load
// thousands.
func (a *account) missed(known map[uint32]bool) {
	if a.found == nil {
		return
	}
	ids := map[uint32]bool{}
	for id := range a.found.places {
		ids[id] = !known[id]
	}
	for id := range a.found.loaded {
		ids[id] = !known[id]
	}
	maps.DeleteFunc(ids, func(_ uint32, missed bool) bool { return !missed })
	if len(ids) == 0 {
		return
	}
	some := slices.Sorted(maps.Keys(ids))
	some = some[:min(len(some), 5)]
	bound := ""
	// a period of cycles has no fixed duration
	if a.m != nil && a.m.sampler != nil && a.m.sampler.Source() == perf.CPUClock {
		n := 0
		for id := range ids {
			for _, k := range a.found.places[id] {
				n += k
			}
		}
		bound = fmt.Sprintf("; by the samples they ran for at most %.3g s, unless with interrupts off",
			attribution.SampledSeconds(n, a.m.sampler.Period().Seconds()).Hi)
	}
	a.warn("program-missed", "programs loaded and unloaded inside the window: %d, among them %v: their counters could "+
		"not be read%s", len(ids), some, bound)
}

// unsure warns of programs whose samples may belong to others.
func (a *account) unsure(known map[uint32]bool) {
	if a.found == nil {
		return
	}
	var who []uint32
	for id := range a.found.unsure {
		if known[id] {
			who = append(who, id)
		}
	}
	if len(who) > 0 {
		slices.Sort(who)
		a.warn("program-unsure", "programs whose code seems to have been at the addresses of another's: %d, among them "+
			"%v: the kernel's record of a load or an unload was lost, and they are not split", len(who), who[:min(len(who), 5)])
	}
}

func (a *account) program(p *bpf.Program, before bpf.Counters) ledger.Program {
	runs, ns := p.RunCount-before.RunCount, p.RunNs-before.RunNs
	// If this meter does not count, statistics may still have been enabled by others, but for an unknown part of the
	// window. The counters of a program that was unloaded during the window were last read when the window opened or, by
	// readSlow of the window before, shortly afterwards, so how long it ran after that is unknown.
	counted := !a.w.uncounted && !p.Vanished
	if !counted {
		runs, ns = 0, 0
	}
	seconds := float64(ns) / 1e9
	memory := p.MemoryBytes()
	out := ledger.Program{
		ID: p.ID, Name: p.Name, Type: p.Type, Tag: p.Tag, LoadedAt: &p.LoadedAt, Owners: owners(p.Owners),
		Attached:    append([]string{}, p.Attached...),
		MemoryBytes: &memory, Shares: []ledger.Share{}, Seen: []ledger.Seen{},
		MapIDs: append([]uint32{}, p.MapIDs...), Unloaded: p.Vanished,
		Own: p.Own,
	}
	out.Charged = ownCharge(p.Own)
	if counted {
		out.RunCount, out.RunSeconds = &runs, &seconds
	}
	if runs > 0 {
		out.NsPerRun = new(float64(ns) / float64(runs))
	}
	if p.RecursionMisses != nil && !p.Vanished {
		out.RecursionMisses = new(*p.RecursionMisses - known.Or(before.RecursionMisses, 0))
	}

	e := attribution.Evidence{RunNs: ns, Sole: a.sole(p)}
	n := 0
	if a.found != nil && !a.found.unsure[p.ID] {
		// A sampler of cycles stands still while the CPU's clock does, so its samples per second are unknown.
		if a.m.sampler.Source() == perf.CPUClock {
			e.Hz, e.Seconds = 1/a.m.sampler.Period().Seconds(), a.seconds()
		}
		e.Samples = a.found.places[p.ID]
		for place, k := range e.Samples {
			n += k
			seen := ledger.Seen{Context: place.Context, Samples: k}
			if place.Group != "" {
				seen.Cgroup = &place.Group
			}
			out.Seen = append(out.Seen, seen)
		}
		e.Blind = n == 0 && len(p.JITed) == 0
		slices.SortFunc(out.Seen, func(x, y ledger.Seen) int {
			return cmp.Or(y.Samples-x.Samples, cmp.Compare(x.Context, y.Context))
		})
		if a.m.sampler.Source() == perf.CPUClock { // a period of cycles has no fixed duration
			if counted {
				a.stolen(&out, n)
			}
			// Of a program that samples cannot see, that none did says nothing.
			if !e.Blind {
				sampled := attribution.SampledSeconds(n, a.m.sampler.Period().Seconds())
				out.SampledSeconds = &sampled
				if ran, known := out.RanSeconds(); known {
					a.compare(p, ran, n, sampled)
				}
			}
		}
	}
	out.Shares = attribution.Split(e)
	return out
}

// stolen estimates how much of a program's run time was stolen.
func (a *account) stolen(p *ledger.Program, samples int) {
	if a.seen == nil {
		return
	}
	e := a.elapsed()
	v, method := attribution.Stolen(attribution.Stalled{
		RunSeconds: *p.RunSeconds, Hits: a.found.hits[p.ID], Samples: samples, Period: a.m.sampler.Period().Seconds(),
		LookPeriod: a.seen.Noise.PeriodSeconds,
		Busy:       e.Capacity - e.Idle,
		BusyStolen: max(a.seen.Stolen-a.seen.IdleStolen, 0),
	})
	p.StolenSeconds, p.StolenMethod = &v, method
}

// compare warns if the sampler and the statistics disagree by more than chance. Either samples miss part of the run
// time, so shares rest on a biased sample, or run time includes time in which the program did not run.
func (a *account) compare(p *bpf.Program, seconds float64, n int, sampled ledger.Interval) {
	who := fmt.Sprintf("program %d (%s)", p.ID, cmp.Or(p.Name, "no name"))
	expected := seconds / a.m.sampler.Period().Seconds()
	switch {
	case expected >= attribution.MinSamples && sampled.Hi < 0.8*seconds:
		a.warn("samples-below-run-time", "%s: samples saw %.4g s [%.4g, %.4g] of the %.4g s that the kernel counted: it "+
			"runs with interrupts off, is interrupted, preempted or asleep",
			who, sampled.Value, sampled.Lo, sampled.Hi, seconds)
	case n >= attribution.MinSamples && sampled.Lo > 1.25*seconds:
		a.warn("samples-above-run-time", "%s: samples saw %.4g s [%.4g, %.4g], the kernel counted %.4g s: it is entered by "+
			"tail call, and its time counts with the program that called it, or its timers and work queues run, which the "+
			"kernel does not count",
			who, sampled.Value, sampled.Lo, sampled.Hi, seconds)
	}
}

// taskOnly holds the program types that a task runs only in its own system calls (kernel/bpf/cgroup.c,
// net/ipv4/af_inet.c).
var taskOnly = map[string]bool{"cgroup_sock_addr": true, "cgroup_sock": true, "cgroup_sockopt": true,
	"cgroup_sysctl": true}

// sole returns the only place where a program can have run, from how it is attached: to one v2 group without
// descendants, by hooks in system calls of that group's tasks. It returns nil if there is no such place, and on all
// machines that are not pure v2, because on these the tasks of one v2 group may be charged to several groups. It also
// returns nil if samples saw the program elsewhere, as when a socket was handed to a process of another group.
func (a *account) sole(p *bpf.Program) *attribution.Place {
	path := soleGroup(p)
	if a.m.layout.Mode != cgroup.ModeV2 || path == "" {
		return nil
	}
	there := false
	for _, g := range a.m.groups.Groups() {
		there = there || g.Path == path
		if g.Path != path && cgroup.Within(g.Path, path) {
			return nil
		}
	}
	place := attribution.Place{Group: path, Context: ledger.Task}
	if a.found != nil {
		for seen := range a.found.places[p.ID] {
			if seen != place {
				return nil
			}
		}
	}
	if !there {
		return nil
	}
	return &place
}

// soleGroup returns the path of the only v2 group in whose tasks' system calls the program runs, or "" if there is no
// such group. It does not check whether that group has descendants.
func soleGroup(p *bpf.Program) string {
	if !taskOnly[p.Type] {
		return ""
	}
	path := ""
	for _, t := range p.Attached {
		target, ok := strings.CutPrefix(t, "cgroup:")
		at, hook, found := strings.Cut(target, " ")
		// A kernel worker may close the last descriptor of a socket (fput in fs/file_table.c).
		if !ok || !found || path != "" && at != path || strings.HasPrefix(hook, "sock_release") {
			return ""
		}
		path = at
	}
	return path
}

func owners(hs []bpf.Holder) []ledger.Owner {
	out := make([]ledger.Owner, 0, len(hs))
	out = append(out, lists.Map(hs, func(h bpf.Holder) ledger.Owner { return ledger.Owner{PID: h.PID, Comm: h.Comm} })...)
	return out
}

// ownCharge returns ChargeSelf for this process's own objects. The others have no charge yet.
func ownCharge(yes bool) ledger.Charged {
	if yes {
		return ledger.Charged{Charge: ledger.ChargeSelf}
	}
	return ledger.Charged{}
}

// bpfMaps returns the maps at the end of the window, largest first; nil if they could not be read.
func (a *account) bpfMaps() []ledger.Map {
	if a.snapshot == nil || a.snapshot.MapsErr != nil {
		return nil
	}
	out := make([]ledger.Map, 0, len(a.snapshot.Maps))
	for i := range a.snapshot.Maps {
		m := &a.snapshot.Maps[i]
		lm := ledger.Map{
			Charged: ownCharge(m.Own),
			ID:      m.ID, Name: m.Name, Type: m.Type, KeyBytes: m.KeySize, ValueBytes: m.ValueSize, MaxEntries: m.MaxEntries,
			Bytes: m.Bytes, BytesMethod: string(m.BytesMethod),
			ChargedTo: m.ChargedTo, HeldBy: owners(m.HeldBy), Inner: append([]uint32{}, m.Inner...),
			UsedBy: append([]uint32{}, m.UsedBy...),
		}
		out = append(out, lm)
	}
	bytes := func(m ledger.Map) uint64 { return known.Or(m.Bytes, 0) }
	slices.SortStableFunc(out, func(x, y ledger.Map) int { return cmp.Compare(bytes(y), bytes(x)) })
	return out
}

// irqInTasks reports whether a task's CPU time includes interrupts that run on top of it.
func (a *account) irqInTasks() bool { return a.m.host.IRQTime == nil || !*a.m.host.IRQTime }

// cgroups returns the groups with what they used, busiest first.
func (a *account) cgroups(programs []ledger.Program) []ledger.Cgroup {
	split, unsplit := a.splitTime(programs)
	type bpfTime struct{ all, inside float64 }
	run := map[string]bpfTime{}
	for i := range programs {
		ran := ranPart(&programs[i])
		for _, s := range programs[i].Shares {
			if s.Cgroup == nil || *s.Cgroup == attribution.Idle {
				continue
			}
			ledger.Ancestors(*s.Cgroup, func(path string) {
				t := run[path]
				t.all += s.Seconds * ran
				if s.Context == ledger.Task || a.irqInTasks() {
					t.inside += s.Seconds * ran
				}
				run[path] = t
			})
		}
	}
	groups := a.m.groups.Groups()
	out := make([]ledger.Cgroup, 0, len(groups))
	var lacking []string
	root := a.m.root()
	for _, g := range groups {
		before, wasThere := a.w.first.groups[g]
		now := a.last.groups[g]
		if g.Vanished && !wasThere && !now.UsageNs.OK {
			continue
		}
		c := ledger.Cgroup{
			Path:     g.Path,
			Vanished: g.Vanished,
		}
		if !wasThere && g.Made.After(a.w.first.wall) {
			c.Began = new(min(g.Made.Sub(a.w.first.wall).Seconds(), a.seconds()))
		}
		// A group removed before the second edge still has the counters of the first: what it used since is unknown.
		if (!g.Vanished || now != before) && (wasThere || !a.isLate(g, root)) {
			if now.Resets == before.Resets {
				c.CPUSeconds = scaled(now.UsageNs, before.UsageNs, wasThere)
			}
			c.ThrottledSeconds = scaled(now.ThrottledNs, before.ThrottledNs, wasThere)
			c.ThrottledPeriods = counted(now.ThrottledPeriods, before.ThrottledPeriods, wasThere)
			c.Periods = counted(now.Periods, before.Periods, wasThere)
		}
		c.CPUReset = now.UsageNs.OK && (now.Resets != before.Resets || wasThere && now.UsageNs.N < before.UsageNs.N)
		if atTop(g.Path, root) && c.CPUSeconds == nil {
			a.untold = a.untold || c.CPUReset
			a.absorbed = a.absorbed || !c.CPUReset && (before.UsageNs.OK || now.UsageNs.OK)
		}
		// If no hierarchy counts a group's CPU time, no sample is ever assigned to the group: programs that its tasks run
		// count for another group. If programs ran but none of their time could be split, any of it may have been spent here,
		// so the eBPF time of the group is unknown, not 0.
		if a.found != nil && !a.w.uncounted && a.knowsPrograms() && now.UsageNs.OK && (split > 0 || unsplit == 0) {
			t := run[g.Path]
			if c.CPUSeconds != nil { // run time is wall time and can exceed the CPU time around it
				t.inside = min(t.inside, *c.CPUSeconds)
			}
			c.BPFSeconds, c.BPFInsideSeconds = &t.all, &t.inside
		}
		if c.Memory = a.m.memoryOf(g); c.Memory != nil && !g.Vanished && a.m.elsewhere[g.Path] != "" {
			c.Memory = nil
			lacking = append(lacking, g.Path)
		}
		out = append(out, c)
	}
	bpfOnce(out)
	a.madeAgain(out)
	a.wereReset(out)
	a.lacksMemory(lacking)
	busiestFirst(out)
	return out
}

// isLate reports whether a group that was not in the first edge has existed for longer than the window, so its counters
// include time before it. A group made while the first edge was prepared is not late: it had hardly any time to use
// CPUs. Groups at the top are late only under a new name: they are found before each edge, and no other group contains
// their time.
func (a *account) isLate(g *cgroup.Group, root string) bool {
	slack := time.Duration(a.seconds() / 100 * float64(time.Second))
	return g.Renamed || !atTop(g.Path, root) && g.Made.Before(a.w.first.wall.Add(-slack))
}

// atTop reports whether a path is that of the given root group, or of a group directly below it.
func atTop(path, root string) bool {
	rest, is := strings.CutPrefix(path, strings.TrimSuffix(root, "/"))
	return is && (rest == "" || strings.LastIndexByte(rest, '/') == 0)
}

// root returns the path of the topmost group whose CPU time can be read. It is not "/" if only a part of the hierarchy
// is mounted, as in a container without a control group namespace.
func (m *Meter) root() string {
	if h, ok := m.layout.CPU(); ok {
		return h.Root
	}
	return "/"
}

// memoryOf returns the memory of a group for a ledger. Ledgers share it until it changes, because memory is not read
// in every window.
func (m *Meter) memoryOf(g *cgroup.Group) *ledger.Memory {
	last, is := m.memory[g]
	if !is || last.read != g.Memory {
		if m.memory == nil {
			m.memory = map[*cgroup.Group]knownMemory{}
		}
		last = knownMemory{g.Memory, memory(g.Memory)}
		m.memory[g] = last
	}
	return last.shown
}

// knownMemory is the memory of a group, as read and as shown in ledgers.
type knownMemory struct {
	read  cgroup.Memory
	shown *ledger.Memory
}

// forgetGroups drops the groups that have vanished.
func (m *Meter) forgetGroups() {
	m.groups.Forget()
	for g := range m.memory {
		if g.Vanished {
			delete(m.memory, g)
		}
	}
}

// busiestFirst sorts groups in place. A Cgroup is large, so each is moved only once.
func busiestFirst(groups []ledger.Cgroup) {
	used := func(i int) float64 { return known.Or(groups[i].CPUSeconds, 0) }
	order := make([]int, len(groups)) // order[i] is the index of the group that belongs at i
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(x, y int) int {
		return cmp.Or(cmp.Compare(used(y), used(x)), cmp.Compare(groups[x].Path, groups[y].Path))
	})
	for start := range order {
		if order[start] < 0 {
			continue
		}
		first := groups[start]
		at := start
		for order[at] != start {
			from := order[at]
			groups[at], order[at] = groups[from], -1
			at = from
		}
		groups[at], order[at] = first, -1
	}
}

// wereReset warns of groups whose CPU counters went backwards during the window: cpuacct.usage of v1 is writable.
func (a *account) wereReset(groups []ledger.Cgroup) {
	const named = 3
	n := -named // becomes the number of groups that are not named
	for i := range groups {
		if !groups[i].CPUReset {
			continue
		}
		if n++; n <= 0 {
			a.warn(ledger.CounterReset, "the CPU counter of control group %.200s was reset inside the window: what it used is "+
				"not known", groups[i].Path)
		}
	}
	if n > 0 {
		a.warn(ledger.CounterReset, "the CPU counters of %d more control groups were reset", n)
	}
	if err := a.m.groups.Unnoted(); err != nil {
		a.warn("resets-unseen", "a reset of the CPU counter of a control group (a write to cpuacct.usage) is not "+
			"noticed if the counter has grown past its old value since: %v", err)
	}
}

// bpfOnce keeps the eBPF time of a path only in the newest group that had the path. Samples name only the path, so the
// eBPF time of the older groups, which have vanished, is unknown. The groups must be in the order in which they were
// found.
func bpfOnce(groups []ledger.Cgroup) {
	newer := map[string]bool{} // by path of a vanished group: whether a newer group has that path
	for i := range groups {
		if groups[i].Vanished {
			newer[groups[i].Path] = false
		}
	}
	for i := range slices.Backward(groups) {
		g := &groups[i]
		has, again := newer[g.Path]
		if !again {
			continue
		}
		if has {
			g.BPFSeconds, g.BPFInsideSeconds = nil, nil
		}
		newer[g.Path] = true
	}
}

// madeAgain warns of groups that were removed and created again during the window: their counters started from 0.
func (a *account) madeAgain(groups []ledger.Cgroup) {
	const named = 3
	old := map[string]bool{}
	for _, g := range groups {
		if g.Vanished && g.Began == nil {
			old[g.Path] = true
		}
	}
	n := 0
	for _, g := range groups {
		if !old[g.Path] || g.Began == nil {
			continue
		}
		if n++; n <= named {
			a.warn("group-made", "control group %.200s was removed and made again inside the window, after %.3g s at the "+
				"latest: what it had used before is not known", g.Path, *g.Began)
		}
	}
	if n > named {
		a.warn("group-made", "%d more control groups were removed and made again", n-named)
	}
}

// ranPart returns the fraction of a program's run time that was not stolen. Stolen time has its own line in the budget.
func ranPart(p *ledger.Program) float64 {
	if s, ok := p.RanSeconds(); ok && *p.RunSeconds > 0 {
		return s / *p.RunSeconds
	}
	return 1
}

// splitTime returns the run time that could be split by place, and the run time that could not, both in seconds and
// without stolen time. It excludes this process's own programs, which are accounted for in self.
func (a *account) splitTime(programs []ledger.Program) (split, unsplit float64) {
	own := map[uint32]bool{}
	if a.snapshot != nil { // nil if programs could not be read
		for i := range a.snapshot.Programs {
			if p := &a.snapshot.Programs[i]; p.Own {
				own[p.ID] = true
			}
		}
	}
	for i := range programs {
		p := &programs[i]
		if own[p.ID] {
			continue
		}
		ran := ranPart(p)
		for _, s := range p.Shares {
			if s.Cgroup == nil {
				unsplit += s.Seconds * ran
			} else {
				split += s.Seconds * ran
			}
		}
	}
	return split, unsplit
}

// counted returns the growth of a counter, which starts at 0 for a group that appeared during the window. It is nil if
// the kernel lacks the counter, or if it went backwards.
func counted(now, before cgroup.Value, wasThere bool) *uint64 {
	if !now.OK || wasThere && !before.OK || now.N < before.N {
		return nil
	}
	return new(now.N - before.N)
}

// scaled is like counted, but takes counters in nanoseconds and returns seconds.
func scaled(now, before cgroup.Value, wasThere bool) *float64 {
	return known.As(counted(now, before, wasThere), func(ns uint64) float64 { return float64(ns) / 1e9 })
}

func memory(m cgroup.Memory) *ledger.Memory {
	if m == (cgroup.Memory{}) {
		return nil
	}
	out := &ledger.Memory{
		Current: m.Current.Ptr(), Peak: m.Peak.Ptr(), Anon: m.Anon.Ptr(), File: m.File.Ptr(), Shmem: m.Shmem.Ptr(),
		Kernel:          m.Kernel.Ptr(),
		SlabReclaimable: m.SlabReclaimable.Ptr(), Sock: m.Sock.Ptr(), InactiveFile: m.InactiveFile.Ptr(),
	}
	out.Derive()
	return out
}

// elapsed returns what the CPUs did in the window.
func (a *account) elapsed() *proc.Elapsed {
	if a.passed == nil {
		a.passed = new(a.last.stat.Since(a.w.first.stat, a.seconds()))
	}
	return a.passed
}

// budget computes the CPU budget of the window.
func (a *account) budget(l *ledger.Ledger) ledger.CPU {
	e := a.elapsed()
	u := ledger.Usage{
		Capacity: e.Capacity, Idle: e.Idle, User: e.User, System: e.System, Softirq: e.Softirq, IRQ: e.IRQ, Steal: e.Steal,
		Self:    (a.last.self - a.w.first.self).Seconds(),
		IRQTime: !a.irqInTasks(),
	}
	if a.seen != nil {
		u.Steal, u.IdleStolen, u.IdleStolenError = a.seen.Stolen, &a.seen.IdleStolen, &a.seen.IdleStolenError
	}
	groups := a.m.layout.NewResolver()
	for i, t := range a.m.kernel.Threads() {
		used := 0.0
		if i < len(a.w.first.kernel) {
			used = (a.last.kernel[i] - a.w.first.kernel[i]).Seconds()
		} else if t.New {
			used = a.last.kernel[i].Seconds()
		}
		// Some kernel threads, such as those of vhost before Linux 6.4, are in the group of the process that they work for.
		// That group's counter already includes their time.
		if used > 0 && inGroup(l, groups, a.m.root(), t.PID) {
			continue
		}
		u.Kernel += used
		if strings.HasPrefix(t.Comm, "ksoftirqd/") {
			u.Ksoftirqd += used
		}
	}
	var total *float64 // CPU time of all tasks: the root of the cpuacct hierarchy
	unread := map[string]bool{}
	for _, g := range a.m.groups.Unread() {
		unread[g.Path] = true
	}
	untold := a.untold // total includes what some top-level group used, but nothing says how much that was
	lacking, root := false, a.m.root()
	for _, c := range l.Cgroups {
		switch {
		case c.Path == root:
			total = c.CPUSeconds
		case atTop(c.Path, root) && c.CPUSeconds != nil:
			u.Groups += *c.CPUSeconds
		case atTop(c.Path, root):
			lacking = true
			untold = untold || unread[c.Path]
		}
	}
	if lacking { // the groups below those may be known
		u.Groups = 0
		for i, own := range ledger.NewTree(l.Cgroups).Own((*ledger.Cgroup).CPUNanoseconds) {
			if l.Cgroups[i].Path != root {
				u.Groups += time.Duration(known.Or(own, 0)).Seconds()
			}
		}
	}
	u.NoKernel = a.m.noKernel
	switch {
	case a.m.rootError != nil:
		u.NoRoot = true
	case a.m.layout.CPUMode() == cgroup.ModeV2:
		u.Root = a.rootUsage()
	case untold:
		u.NoRoot = true
		a.warn("no-root-usage", "the CPU time of processes outside control groups cannot be told from that of groups that "+
			"could not be read, or whose counters were reset: it is part of what is unexplained")
	case total != nil:
		u.Root = *total - u.Groups
		if !a.m.part { // kernel threads are in no part of the machine
			u.Root -= u.Kernel
		}
		// The counters of an edge are not read at one instant, so Root may also be negative: by up to the duration of the
		// reading, on each CPU.
		if apart := (a.w.first.took + a.last.took).Seconds(); u.Root < -max(0.01*u.Capacity, apart*float64(l.Host.CPUs)) {
			a.warn("hierarchies-overlap", "the control groups together show %.3g s more CPU time than the tasks in them used: "+
				"some are in one group of the v1 hierarchy and in another of v2, and count in both; the budget counts them once",
				-u.Root)
			u.Groups, u.Root = u.Groups+u.Root, 0
		}
		if a.absorbed {
			a.warn("root-usage-at-most", "the CPU time of processes outside control groups includes that of groups that were "+
				"removed or renamed inside the window: what these used cannot be told from it")
		}
	default:
		u.NoRoot = true
		a.warn("no-root-usage", "no counter has the CPU time of processes outside control groups: it is part of what is "+
			"unexplained")
	}
	if path := l.Self.Cgroup; path != nil {
		u.InGroup = *path != root
	}
	if a.found != nil && !a.m.hidden {
		u.IdleInterrupts = new(float64(a.found.idleInterrupts) * a.m.sampler.Period().Seconds())
		if a.m.sampler.Source() == perf.Cycles {
			u.IdleInterrupts = nil // cycles stop while a CPU is idle, and the period is not one of wall time
		}
	}
	u.BPF, u.NoBPF = a.bpfTimes(l), a.w.uncounted || !a.knowsPrograms()
	_, u.NotSplit = a.splitTime(l.Programs)
	c := ledger.Budget(u)
	if a.m.part {
		c.Part = total
	}
	return c
}

// inGroup reports whether the counter of a group of the ledger other than the root includes a kernel thread: whether
// the thread is now in such a group, or in one below it that is not in the ledger. It returns false for a thread that
// has ended.
func inGroup(l *ledger.Ledger, groups *cgroup.Resolver, root string, tid int) bool {
	path, err := groups.Path(tid)
	includes := func(c ledger.Cgroup) bool {
		return c.Path == path || c.Path != "/" && c.Path != root && cgroup.Within(path, c.Path)
	}
	return err == nil && path != "/" && slices.ContainsFunc(l.Cgroups, includes)
}

// bpfTimes returns the shares that could be split, by the part of the budget that they ran in. Run time is wall time.
// If it exceeds the CPU time of the group that the programs ran in, it is limited to that, so that no group pays for
// another.
func (a *account) bpfTimes(l *ledger.Ledger) []ledger.BPFTime {
	ran := map[string]bool{}
	for i := range l.Programs {
		for _, s := range l.Programs[i].Shares {
			if s.Cgroup != nil {
				ran[*s.Cgroup] = true
			}
		}
	}
	left := make(map[string]float64, len(ran))
	for i := range l.Cgroups {
		if c := &l.Cgroups[i]; c.CPUSeconds != nil && ran[c.Path] {
			left[c.Path] = *c.CPUSeconds
		}
	}
	var times []ledger.BPFTime
	for i := range l.Programs {
		ran := ranPart(&l.Programs[i])
		for _, s := range l.Programs[i].Shares {
			if s.Cgroup == nil || a.inSelf(l, &l.Programs[i], &s) {
				continue
			}
			b := ledger.BPFTime{Where: ledger.InGroups, Context: s.Context, Seconds: s.Seconds * ran}
			switch *s.Cgroup {
			case attribution.Idle:
				b.Where = ledger.InIdle
			case "/", "":
				b.Where = ledger.InRoot
			default:
				if have, known := left[*s.Cgroup]; known && (s.Context == ledger.Task || a.irqInTasks()) {
					b.Seconds = min(b.Seconds, have)
					left[*s.Cgroup] = have - b.Seconds
				}
			}
			times = append(times, b)
		}
	}
	return times
}

// inSelf reports whether a share is of a program that Tare runs itself, such as an iterator: the process's own CPU time
// contains it.
func (a *account) inSelf(l *ledger.Ledger, p *ledger.Program, s *ledger.Share) bool {
	return p.Own && s.Context == ledger.Task && l.Self.Cgroup != nil && *s.Cgroup == *l.Self.Cgroup
}

// rootUsage returns the CPU time of processes in the root group where v2 counts CPU time. It leaves out processes that
// were moved there during the window: their counters include earlier use, and the part within the window is unknown. A
// process that began in the window is assumed to have used all of its CPU time there, whichever process had its PID
// before. (Its parent does not show whether it began elsewhere: orphans get a new one, such as init in a group.)
func (a *account) rootUsage() float64 {
	var sum time.Duration
	moved := 0
	hidden := a.m.noKernel && !a.m.hidden
	for pid, t := range a.last.root {
		before, wasThere := a.w.first.root[pid]
		if t != before {
			// Start times are in ticks, hence the slack. If processes are hidden, new ones cannot be recognized.
			const slack = int64(20 * time.Millisecond)
			age, err := a.m.fs.Age(pid)
			after := monotonic() - int64(age) - a.w.first.at // time from the first edge until it began
			switch {
			case wasThere && err == nil && after > slack && after < a.last.at-a.w.first.at:
				before = 0
			case wasThere:
			case err == nil && after < -slack || err != nil && hidden:
				moved++
				continue
			}
		}
		sum += max(t-before, 0)
	}
	if moved > 0 {
		were := "were"
		if hidden {
			were = "were, or may have been,"
		}
		a.warn("moved-to-root", "%d processes %s moved into the root group inside the window: what they used there is "+
			"not known and is part of what is unexplained", moved, were)
	}
	return sum.Seconds()
}

// self returns what this process has cost since the previous ledger; the first ledger includes set-up.
func (a *account) self() ledger.Self {
	now := selfTime()
	s := ledger.Self{CPUSeconds: (now - a.m.reported).Seconds()}
	if path, err := a.m.layout.PathOf(os.Getpid()); err == nil && path != "" {
		s.Cgroup = &path
	}
	a.m.reported = now
	if _, peak, err := (proc.FS{}).Resident(os.Getpid()); err == nil {
		s.RSSBytes = peak
	} else {
		a.warn("self-rss", "the memory of the scale itself could not be read: %v", err)
	}
	if a.seen != nil && a.m.lookCost != nil {
		s.WitnessSeconds = new(float64(a.seen.Looks) * *a.m.lookCost)
	}
	if a.found != nil {
		s.Samples, s.SamplesLost = a.found.samples, a.found.lost.samples
	}
	if a.snapshot != nil {
		a.selfBPF(&s)
	}
	return s
}

// selfBPF adds the cost of this process's own programs and maps, and of the kernel's run statistics.
func (a *account) selfBPF(s *ledger.Self) {
	var bpfSeconds float64
	var bpfBytes uint64
	if a.snapshot.MapsErr == nil {
		s.BPFBytes = &bpfBytes
	}
	var runs uint64
	own := map[bpf.Key]bool{}
	for i := range a.snapshot.Programs {
		if p := &a.snapshot.Programs[i]; p.Own {
			own[p.Key()] = true
			bpfBytes += p.MemoryBytes()
		}
	}
	for i := range a.snapshot.Maps {
		if m := &a.snapshot.Maps[i]; m.Own && m.Bytes != nil {
			bpfBytes += *m.Bytes
		} else if m.Own {
			s.BPFBytes = nil
		}
	}
	for i := range a.programs {
		p := &a.programs[i]
		before, wasThere := a.w.programs[p.Key()]
		if p.Vanished && !wasThere {
			continue // it was gone before the window opened
		}
		runs += p.RunCount - before.RunCount
		if own[p.Key()] {
			bpfSeconds += float64(p.RunNs-before.RunNs) / 1e9
		}
	}
	if !a.w.uncounted && a.knowsPrograms() {
		s.BPFSeconds = &bpfSeconds
	}
	if a.m.statsCost != nil && a.knowsPrograms() {
		s.StatsSeconds = new(float64(runs) * *a.m.statsCost)
	}
}
