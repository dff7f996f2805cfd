package ledger

import (
	"slices"
	"strings"

	"tare/internal/lib/known"
	"tare/internal/lib/lists"
)

// View is one machine's ledger of a window that several machines measured.
type View struct {
	Name   string // of the machine, without slashes
	Ledger *Ledger
}

// Join merges the ledgers of several machines over the same window as if they were one machine: capacities and CPU
// times add up, and the budget still closes. Each machine's root group becomes /NAME, with its other groups below.
// Programs and maps get new ids, because ids of two machines are unrelated. A sum is unknown if one machine lacks its
// part.
//
// The window runs from the earliest start to the latest end, and its length is the mean length of the machines'
// windows, so rates are off by at most the relative difference of these lengths. The result has no Noise, because its
// times are on each machine's own clock, and no components or sandboxes. Join calls Settle to derive workloads and tare
// again.
//
// The result shares memory with the views, which must not be used afterwards.
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
		CgroupCPU:   of(func(l *Ledger) string { return l.Host.CgroupCPU }),
		Clocksource: of(func(l *Ledger) string { return l.Host.Clocksource }),
	}
	var ids ids
	for i := range views {
		v := &views[i]
		l := v.Ledger
		out.join(l, i == 0)
		if known.Or(l.Host.IRQTime, false) {
			out.Host.IRQTimeOn = append(out.Host.IRQTimeOn, v.Name)
		}
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
		// What one machine could not read is unknown for all.
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
	if out.Host.IRQTime != nil { // it is the same for all
		out.Host.IRQTimeOn = nil
	}
	out.Window.Seconds /= float64(max(len(views), 1))
	out.Settle()
	return out
}

// together returns the distinct texts of all views, separated by commas.
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
	l.Host.PossibleCPUs += m.Host.PossibleCPUs
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

// join adds the budget of one more machine. If a machine lacks a line, that time is in its unexplained time.
func (c *CPU) join(o *CPU) {
	for to, of := range map[*float64]float64{&c.Capacity: o.Capacity, &c.Idle: o.Idle, &c.User: o.User,
		&c.System: o.System, &c.Softirq: o.Softirq, &c.IRQ: o.IRQ, &c.Steal: o.Steal, &c.Attributed: o.Attributed,
		&c.Unexplained: o.Unexplained} {
		*to += of
	}
	if (c.IdleStolen == nil) != (o.IdleStolen == nil) {
		// A machine that does not know its stolen idle time counts that time as idle, so adding 0 keeps the budget closed.
		c.IdleStolen = new(known.Or(c.IdleStolen, 0) + known.Or(o.IdleStolen, 0))
	} else {
		addTo(o.IdleStolen, &c.IdleStolen)
	}
	addTo(o.IdleStolenError, &c.IdleStolenError)
	addTo(o.ChargedStolen, &c.ChargedStolen)
	addTo(o.BPFUnsplit, &c.BPFUnsplit)
	addTo(o.Root, &c.Root)
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

// addTo adds n to a sum, which becomes unknown (nil) if n is nil.
func addTo[N known.Number](n *N, sum **N) { *sum = known.Sum(*sum, n) }

// same returns the common value of a and b, or nil if they differ or one is nil.
func same[T comparable](a, b *T) *T {
	if a == nil || b == nil || *a != *b {
		return nil
	}
	return a
}

// path returns a group's path below the view's own group.
func (v *View) path(group string) string { return "/" + v.Name + strings.TrimSuffix(group, "/") }

// rewrite replaces a group's path by its path below the view's own group. It does nothing if the path is nil.
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

// ids assigns new ids, from 1, to the programs and maps of several machines.
type ids struct {
	programs, maps       map[uint32]uint32 // of the current machine: new ids by old ids
	lastProgram, lastMap uint32
	noPrograms, noMaps   bool
}

// of starts numbering for another machine: it assigns new ids to all its programs and maps.
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
