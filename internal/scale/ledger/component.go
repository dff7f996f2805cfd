package ledger

import (
	"cmp"
	"slices"

	"tare/internal/lib/known"
)

// Component is the account of one named part of the machine: a component of a workload or of tare, the load, the
// measuring process, or, with an empty charge, everything that no rule names. Each second of CPU time is in exactly one
// component, and together they make up CPU.Attributed to the nanosecond.
type Component struct {
	Charged
	// CPUSeconds is the CPU time of its groups, each counted once, including eBPF programs of others that ran there. The
	// CPU time of the measuring process is only in the component with ChargeSelf. For the empty charge, CPUSeconds is what
	// the others leave of CPU.Attributed.
	CPUSeconds *float64 `json:"cpu_seconds"`
	// BPFSeconds is the run time of its eBPF programs as the kernel counts it, wherever they ran, without stolen time.
	// All eBPF fields are nil if the machine's programs could not be read.
	BPFSeconds *float64 `json:"bpf_seconds"`
	// BPFOthersSeconds is the part of BPFSeconds that ran in groups of others or on idle CPUs. It is contained in the
	// CPUSeconds of others, except on idle CPUs and where interrupts are counted separately.
	BPFOthersSeconds *float64 `json:"bpf_others_seconds"`
	// BPFUnsplitSeconds is the part of BPFSeconds that samples could not place. Any of it may have run in groups of
	// others.
	BPFUnsplitSeconds *float64 `json:"bpf_unsplit_seconds"`
	// MemoryHardBytes is the hard memory of its groups at the end of the window, each counted once; nil for the measuring
	// process, whose memory is in the group that it was started in.
	MemoryHardBytes *int64 `json:"memory_hard_bytes"`
	MapBytes        *int64 `json:"map_bytes"` // size of its eBPF maps, whichever group is charged for them

	accrued, ran *int64 // see Accrued
}

// Accrued returns what to add to totals over many ledgers, in nanoseconds: the CPU time and the eBPF run time of the
// component. They leave out the groups and programs whose time is unknown. If the CPU time of a group is unknown, for
// example because the group was removed in the window, it stays in the component of the group above, whose counter
// includes it. The components therefore add up to CPU.Attributed in any case. The CPU time of the empty charge may be
// negative, because counters are not read at the same instant. A value is nil if all of it is unknown. For a component
// that AddComponents did not make, such as one decoded from JSON, the values are those of its fields.
func (c *Component) Accrued() (cpu, run *int64) {
	return cmp.Or(c.accrued, nanoseconds(c.CPUSeconds)), cmp.Or(c.ran, nanoseconds(c.BPFSeconds))
}

// chargeOrder is the order of components by charge.
var chargeOrder = []Charge{ChargeWorkload, ChargeTare, ChargeLoad, ChargeSelf, ""}

// AddComponents sets Components of a settled ledger, ordered by charge and name.
func (l *Ledger) AddComponents() {
	s := newSettlement(l)
	found := map[Charged]*componentSum{}
	at := func(c Charged) *componentSum {
		if found[c] == nil {
			found[c] = &componentSum{cpu: s.cpu[c].value(), accrued: s.cpu[c].knownPart(), hard: s.memory[c].value()}
		}
		return found[c]
	}
	for c := range s.cpu {
		at(c)
	}
	none, self := at(Charged{}), at(Charged{Charge: ChargeSelf})
	for i := range l.Programs {
		s.addProgram(at(l.Programs[i].Charged), &l.Programs[i])
	}
	for i := range l.Maps {
		at(l.Maps[i].Charged).maps.add(1, l.Maps[i].size(), "")
	}
	if s.cpu[Charged{Charge: ChargeSelf}] == nil {
		self.cpu, self.hard = l.CPU.self(), nil
		self.accrued = self.cpu
	}
	none.cpu, none.hard = nanoseconds(&l.CPU.Attributed), s.allMemory()
	none.accrued = none.cpu
	for c, sum := range found {
		sum.forget(s)
		if c.Charge == "" {
			continue
		}
		none.cpu = known.Sum(none.cpu, known.Minus(sum.cpu))
		if sum.accrued != nil {
			none.accrued = known.Sum(none.accrued, known.Minus(sum.accrued))
		}
		if sum != self || sum.hard != nil {
			none.hard = known.Sum(none.hard, known.Minus(sum.hard))
		}
	}
	if none.hard != nil { // as in sum.value
		none.hard = new(max(*none.hard, 0))
	}
	l.Components = []Component{}
	for c, sum := range found {
		l.Components = append(l.Components, Component{
			Charged: c, CPUSeconds: seconds(sum.cpu), BPFSeconds: seconds(sum.ran.value()),
			BPFOthersSeconds: seconds(sum.others.value()), BPFUnsplitSeconds: seconds(sum.unsplit.value()),
			MemoryHardBytes: sum.hard, MapBytes: sum.maps.value(), accrued: sum.accrued, ran: sum.ran.knownPart(),
		})
	}
	slices.SortFunc(l.Components, func(a, b Component) int {
		return cmp.Or(cmp.Compare(slices.Index(chargeOrder, a.Charge), slices.Index(chargeOrder, b.Charge)),
			cmp.Compare(a.Workload, b.Workload), cmp.Compare(a.Component, b.Component))
	})
}

// componentSum is a component in whole nanoseconds and bytes.
type componentSum struct {
	cpu, accrued, hard         *int64
	ran, others, unsplit, maps sum
}

// forget marks as unknown what depends on programs or maps that could not be read.
func (c *componentSum) forget(s *settlement) {
	if s.noPrograms {
		for _, part := range []*sum{&c.ran, &c.others, &c.unsplit} {
			part.add(1, nil, "")
		}
	}
	if s.noMaps {
		c.maps.add(1, nil, "")
	}
}

// addProgram adds the run time of a program to the component that owns it.
func (s *settlement) addProgram(to *componentSum, p *Program) {
	var others, unsplit int64
	ran, known := p.split(func(share Share, ns int64) {
		switch {
		case share.Cgroup == nil:
			unsplit += ns
		case s.chargeOf(*share.Cgroup) != p.Charged:
			others += ns
		}
	})
	for part, n := range map[*sum]*int64{&to.ran: &ran, &to.others: &others, &to.unsplit: &unsplit} {
		if !known {
			n = nil
		}
		part.add(1, n, "")
	}
}

// allMemory returns the hard memory of all groups; nil if that of a topmost group is unknown.
func (s *settlement) allMemory() *int64 {
	all := new(int64)
	for _, g := range s.l.Cgroups {
		top := true
		Ancestors(g.Path, func(path string) {
			if _, above := s.index[path]; above && path != g.Path {
				top = false
			}
		})
		switch {
		case !top || g.Vanished:
		case g.Memory == nil:
			return nil
		default:
			all = known.Sum(all, g.Memory.Hard)
		}
	}
	return all
}
