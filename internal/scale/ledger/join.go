package ledger

import (
	"slices"
	"strings"

	"tare/internal/lib/known"
	"tare/internal/lib/lists"
)

// View is what one machine says of a window that several took.
type View struct {
	Name   string // of the machine, without slashes
	Ledger *Ledger
}

// Join makes one ledger of those of several machines over the same window, as if they were one machine: capacities and
// CPU times add up, and the budget still closes. Each machine's groups are below one that has its name: its root group
// is /NAME. Programs and maps get new ids, because those of two machines mean different things. A sum of which a
// machine lacks a part is not known.
//
// The window begins with the first and ends with the last, and lasts as long as theirs on average: rates are then right
// to the part by which their lengths differ. What each machine derives for itself (workloads, tare, components,
// sandboxes), and noise, whose times are of each machine's own clock, is left out: Settle derives the former.
//
// The parts of the result that are not rewritten are shared with the views, which must not be used any more.
func Join(views []View) *Ledger {
	out := &Ledger{Schema: Schema, Cgroups: []Cgroup{}, Warnings: []Warning{}, Workloads: []Workload{},
		Programs: []Program{}, Maps: []Map{}}
	of := func(text func(*Ledger) string) string { return together(views, text) }
	out.Host = Host{
		Hostname:    strings.Join(lists.Map(views, func(v View) string { return v.Name }), ", "),
		Kernel:      of(func(l *Ledger) string { return l.Host.Kernel }),
		CPUModel:    of(func(l *Ledger) string { return l.Host.CPUModel }),
		Tare:        of(func(l *Ledger) string { return l.Host.Tare }),
		Sampler:     of(func(l *Ledger) string { return l.Host.Sampler }),
		CgroupMode:  of(func(l *Ledger) string { return l.Host.CgroupMode }),
		Clocksource: of(func(l *Ledger) string { return l.Host.Clocksource }),
	}
	var ids ids
	for i := range views {
		v := &views[i]
		l := v.Ledger
		out.join(l, i == 0)
		ids.of(l)
		for j := range l.Cgroups {
			v.group(&l.Cgroups[j])
		}
		for j := range l.Programs {
			v.program(&l.Programs[j], &ids)
		}
		for j := range l.Maps {
			v.bpfMap(&l.Maps[j], &ids)
		}
		out.Cgroups = append(out.Cgroups, l.Cgroups...)
		// What one machine could not read is not known of all.
		if out.Programs = append(out.Programs, l.Programs...); l.Programs == nil {
			ids.noPrograms = true
		}
		if out.Maps = append(out.Maps, l.Maps...); l.Maps == nil {
			ids.noMaps = true
		}
		for _, w := range l.Warnings {
			out.Warnings = append(out.Warnings, Warning{w.Code, v.Name + ": " + w.Message})
		}
	}
	if ids.noPrograms {
		out.Programs = nil
	}
	if ids.noMaps {
		out.Maps = nil
	}
	out.Window.Seconds /= float64(max(len(views), 1))
	out.Settle()
	return out
}

// together is a text that all views have, or the different ones of them.
func together(views []View, text func(*Ledger) string) string {
	var all []string
	for i := range views {
		all = lists.Include(all, text(views[i].Ledger))
	}
	return strings.Join(all, ", ")
}

// join adds the figures of one more machine.
func (l *Ledger) join(m *Ledger, first bool) {
	l.Host.CPUs += m.Host.CPUs
	w := &l.Window
	if first || m.Window.Start.Before(w.Start) {
		w.Start = m.Window.Start
	}
	if first || m.Window.End.After(w.End) {
		w.End = m.Window.End
	}
	w.Seconds += m.Window.Seconds
	w.EdgeSeconds = max(w.EdgeSeconds, m.Window.EdgeSeconds)
	if first {
		l.Host.IRQTime, l.Host.SamplerPeriod = m.Host.IRQTime, m.Host.SamplerPeriod
		l.CPU = m.CPU
		l.CPU.Lines = slices.Clone(m.CPU.Lines)
		l.Self = m.Self
		l.Self.Cgroup = nil
		return
	}
	l.Host.IRQTime = same(l.Host.IRQTime, m.Host.IRQTime)
	l.Host.SamplerPeriod = same(l.Host.SamplerPeriod, m.Host.SamplerPeriod)
	l.CPU.join(&m.CPU)
	s, o := &l.Self, &m.Self
	s.CPUSeconds += o.CPUSeconds
	s.RSSBytes += o.RSSBytes
	s.Samples += o.Samples
	s.SamplesLost += o.SamplesLost
	addTo(o.BPFSeconds, &s.BPFSeconds)
	addTo(o.BPFBytes, &s.BPFBytes)
	addTo(o.StatsSeconds, &s.StatsSeconds)
	addTo(o.SamplerSeconds, &s.SamplerSeconds)
	addTo(o.WitnessSeconds, &s.WitnessSeconds)
	addTo(o.SandboxSeconds, &s.SandboxSeconds)
	addTo(o.SmapsSeconds, &s.SmapsSeconds)
}

// join adds the budget of one more machine. A line that a machine lacks is in what is unexplained there.
func (c *CPU) join(o *CPU) {
	for to, of := range map[*float64]float64{&c.Capacity: o.Capacity, &c.Idle: o.Idle, &c.User: o.User,
		&c.System: o.System, &c.Softirq: o.Softirq, &c.IRQ: o.IRQ, &c.Steal: o.Steal, &c.Attributed: o.Attributed,
		&c.Unexplained: o.Unexplained} {
		*to += of
	}
	if (c.IdleStolen == nil) != (o.IdleStolen == nil) {
		// The budget of a machine that does not know it counts it as idle: it closes with what the other knows.
		c.IdleStolen = new(known.Or(c.IdleStolen, 0) + known.Or(o.IdleStolen, 0))
	} else {
		addTo(o.IdleStolen, &c.IdleStolen)
	}
	addTo(o.IdleStolenError, &c.IdleStolenError)
	addTo(o.ChargedStolen, &c.ChargedStolen)
	addTo(o.BPFUnsplit, &c.BPFUnsplit)
	addTo(o.Part, &c.Part)
	for _, line := range o.Lines {
		i := slices.IndexFunc(c.Lines, func(l CPULine) bool { return l.Name == line.Name })
		if i < 0 {
			c.Lines = append(c.Lines, line)
			continue
		}
		at := &c.Lines[i]
		at.Seconds += line.Seconds
		if at.Method != line.Method {
			at.Method = MethodBoth
		}
	}
}

// addTo adds to a sum, which is not known without one of its parts.
func addTo[N known.Number](n *N, sum **N) { *sum = known.Sum(*sum, n) }

// same is what two say, or nil where they differ.
func same[T comparable](a, b *T) *T {
	if a == nil || b == nil || *a != *b {
		return nil
	}
	return a
}

// path is a group's path below the view's own group.
func (v *View) path(group string) string { return "/" + v.Name + strings.TrimSuffix(group, "/") }

// rewrite rewrites a path that may not be known.
func (v *View) rewrite(group **string) {
	if *group != nil {
		*group = new(v.path(**group))
	}
}

func (v *View) group(g *Cgroup) {
	g.Path = v.path(g.Path)
	if g.Name != nil {
		name := *g.Name
		if name.Top != "" {
			name.Top = v.path(name.Top)
		}
		g.Name = &name
	}
}

func (v *View) program(p *Program, ids *ids) {
	p.ID = ids.program(p.ID)
	for i := range p.Shares {
		v.rewrite(&p.Shares[i].Cgroup)
	}
	for i := range p.Seen {
		v.rewrite(&p.Seen[i].Cgroup)
	}
	for i, at := range p.Attached {
		if path, is := strings.CutPrefix(at, "cgroup:"); is {
			p.Attached[i] = "cgroup:" + v.path(path)
			continue
		}
		p.Attached[i] = v.Name + ": " + at
	}
	p.MapIDs = lists.Map(p.MapIDs, ids.bpfMap)
}

func (v *View) bpfMap(m *Map, ids *ids) {
	m.ID = ids.bpfMap(m.ID)
	v.rewrite(&m.ChargedTo)
	m.Inner, m.UsedBy = lists.Map(m.Inner, ids.bpfMap), lists.Map(m.UsedBy, ids.program)
}

// ids gives the programs and maps of several machines new ids, from 1.
type ids struct {
	programs, maps       map[uint32]uint32 // of the machine at hand, by its own
	lastProgram, lastMap uint32
	noPrograms, noMaps   bool
}

// of begins another machine.
func (i *ids) of(l *Ledger) {
	i.programs, i.maps = map[uint32]uint32{}, map[uint32]uint32{}
	for j := range l.Programs {
		i.program(l.Programs[j].ID)
	}
	for j := range l.Maps {
		i.bpfMap(l.Maps[j].ID)
	}
}

func (i *ids) program(id uint32) uint32 { return renumber(i.programs, &i.lastProgram, id) }
func (i *ids) bpfMap(id uint32) uint32  { return renumber(i.maps, &i.lastMap, id) }

func renumber(known map[uint32]uint32, last *uint32, id uint32) uint32 {
	if known[id] == 0 {
		*last++
		known[id] = *last
	}
	return known[id]
}
