package ledger

import (
	"fmt"
	"math"

	"tare/internal/lib/known"
	"tare/internal/lib/quantity"
)

// minPooled is the number of samples of a program from which on its run time is placed by them. It equals
// attribution.MinSamples.
const minPooled = 25

// Pool returns each workload's account as the mean over several windows. A single window may have too few samples to
// say where one of tare's programs ran; pooled, its run time is placed by its samples of all windows. If the programs
// that still have too few samples ran for more than a thousandth of a workload's own CPU time, its NetCPU and TareCPU
// are nil, and Notes say so. Other notes and bounds, which belong to single windows, are left out, and so are
// workloads that are missing from a window. Pool returns nil if there are no windows.
func Pool(windows []*Ledger) []Workload {
	if len(windows) == 0 {
		return nil
	}
	p := pool{n: int64(len(windows)), placed: map[place]int64{}, programs: map[programKey]*pooledProgram{},
		unplaced: map[string]*sum{}, workloads: map[string]*pooled{}}
	for _, l := range windows {
		p.add(l)
	}
	p.placePrograms()
	var all []Workload
	for _, name := range p.names {
		if w := p.workloads[name]; w.windows == p.n {
			all = append(all, p.mean(w))
		}
	}
	return all
}

// pool holds the totals of several windows.
type pool struct {
	n         int64           // windows
	placed    map[place]int64 // ns that tare's programs ran, by place
	few       int64           // ns that programs with too few samples ran
	gone      int64           // ns that other programs ran, by samples, in threads whose group could not be read
	unplaced  map[string]*sum // by workload: few and gone of programs that name it
	unknown   bool            // the run time of some programs is unknown
	programs  map[programKey]*pooledProgram
	irqApart  bool
	names     []string
	workloads map[string]*pooled
}

// place is where a program of tare ran, as far as a workload's account distinguishes it. Run time in the zero place
// belongs to no account.
type place struct {
	workload string
	part     placePart
}

type placePart int

// The parts of a workload's account in which tare's programs can run.
const (
	_              placePart = iota
	placeInside              // in its groups, and contained in their CPU time
	placeApart               // in its groups, and not contained in their CPU time
	placeElsewhere           // not in its groups, and on its behalf
)

// programKey identifies a program in several windows, in each of which it may have been loaded anew. Programs are not
// pooled with each other, because the samples of one do not show where another ran: if the other runs with interrupts
// off, no sample sees it.
type programKey struct {
	Charged
	name, kind, tag string
}

// pooledProgram holds the totals of one program, without the windows in which it can only have run in one place.
type pooledProgram struct {
	ran                *int64 // ns; nil if unknown
	samples, groupless int64  // all samples, and those whose group could not be read
	seen               map[place]int64
}

// pooled holds the totals of one workload.
type pooled struct {
	name                     string
	windows                  int64
	own, groups              *int64 // ns
	gross, net, tare, inMaps *int64 // bytes
}

func (p *pool) add(l *Ledger) {
	s := newSettlement(l)
	p.irqApart = p.irqApart || l.anyIRQApart()
	for i := range l.Workloads {
		account := &l.Workloads[i]
		w := p.workloads[account.Name]
		if w == nil {
			w = &pooled{name: account.Name, own: new(int64), groups: new(int64), gross: new(int64), net: new(int64),
				tare: new(int64), inMaps: new(int64)}
			p.workloads[w.name] = w
			p.names = append(p.names, w.name)
		}
		w.windows++
		own, _ := total(s.cpu, s.own[w.name])
		groups, _ := total(s.cpu, s.serving[w.name])
		if s.noPrograms { // tare's programs may have run elsewhere
			groups = nil
		}
		w.own, w.groups = known.Sum(w.own, own), known.Sum(w.groups, groups)
		w.gross, w.net = known.Sum(w.gross, account.GrossMemory), known.Sum(w.net, account.NetMemory)
		w.tare, w.inMaps = known.Sum(w.tare, account.TareMemory), known.Sum(w.inMaps, account.TareMaps)
	}
	p.unknown = p.unknown || s.noPrograms
	for i := range l.Programs {
		if prog := &l.Programs[i]; prog.Charge == ChargeTare {
			p.addProgram(s, prog)
		}
	}
}

func (p *pool) addProgram(s *settlement, prog *Program) {
	key := programKey{prog.Charged, prog.Name, prog.Type, prog.Tag}
	to := p.programs[key]
	if to == nil {
		to = &pooledProgram{ran: new(int64), seen: map[place]int64{}}
		p.programs[key] = to
	}
	sole := false
	ran, counted := prog.split(func(share Share, ns int64) {
		if share.Method == Sole {
			sole = true
			p.placed[s.placeOf(prog, *share.Cgroup, share.Context)] += ns
		}
	})
	switch {
	case !counted:
		to.ran = nil
	case sole:
		return
	default:
		to.ran = known.Sum(to.ran, &ran)
	}
	for _, seen := range prog.Seen {
		n := int64(seen.Samples)
		if to.samples += n; seen.Cgroup == nil {
			to.groupless += n
			continue
		}
		to.seen[s.placeOf(prog, *seen.Cgroup, seen.Context)] += n
	}
}

// placeOf returns the place of a program of tare while it ran in the group at path.
func (s *settlement) placeOf(prog *Program, path string, context Context) place {
	counted := context == Task || !s.l.IRQApart(path)
	switch at := s.chargeOf(path); {
	case at.Charge == ChargeWorkload && counted:
		return place{at.Workload, placeInside}
	case at.Charge == ChargeWorkload:
		return place{at.Workload, placeApart}
	case at.Charge == ChargeTare && counted: // already in the CPU time of that group
		return place{}
	case at.Charge == ChargeTare:
		of, _ := s.serves(at)
		return place{of, placeElsewhere}
	}
	return place{s.servedBy(prog.Charged), placeElsewhere}
}

// placePrograms places the run time of each program by its samples in all windows.
func (p *pool) placePrograms() {
	for key, prog := range p.programs {
		unplaced := sumOf(p.unplaced, key.Workload)
		if prog.ran == nil || prog.samples < minPooled {
			unplaced.add(1, prog.ran, "")
			p.unknown = p.unknown || prog.ran == nil
			p.few += known.Or(prog.ran, 0)
			continue
		}
		part := func(samples int64) int64 {
			return int64(math.Round(float64(*prog.ran) * (float64(samples) / float64(prog.samples))))
		}
		for at, samples := range prog.seen {
			p.placed[at] += part(samples)
		}
		gone := part(prog.groupless)
		unplaced.add(1, &gone, "")
		p.gone += gone
	}
}

// each returns the mean of a total over the windows; nil for nil.
func (p *pool) each(n *int64) *int64 {
	return known.As(n, func(n int64) int64 { return int64(math.Round(float64(n) / float64(p.n))) })
}

// mean returns the account of an average window. Net and tare are rounded, and gross is their sum.
func (p *pool) mean(w *pooled) Workload {
	out := Workload{Name: w.name, Cgroups: []string{}, Notes: []string{}}
	note := func(format string, args ...any) { out.Notes = append(out.Notes, fmt.Sprintf(format, args...)) }
	at := func(part placePart) *int64 { return new(p.placed[place{w.name, part}]) }
	own, groups, unknown := p.each(w.own), p.each(known.Sum(w.groups, at(placeElsewhere))), "net and tare"
	hidden := matters(p.unplaced[w.name].value(), w.own) // as in settlement.workload
	if hidden {
		groups, unknown = nil, "gross, net and tare"
	}
	out.TareCgroupsCPU = seconds(groups)
	unplaced := func(ns int64) string { return quantity.Value(float64(*p.each(&ns))/1e9, quantity.Seconds) }
	placed := false
	switch {
	case p.unknown:
		note("how long some eBPF programs of tare ran is not known: %s are not known", unknown)
	case matters(&p.few, w.own):
		note("samples of all windows could not place %s per window that eBPF programs of tare ran: %s are not known",
			unplaced(p.few), unknown)
	default:
		placed = true
		rest := ""
		if hidden {
			rest = "; gross and tare are not known"
		}
		if p.few+p.gone > 0 {
			note("samples could not place %s per window that eBPF programs of tare ran: any of it that ran here is in net%s",
				unplaced(p.few+p.gone), rest)
		}
	}
	if placed && own != nil {
		in := min(*p.each(at(placeInside)), *own)
		bpf := in + *p.each(at(placeApart))
		net, tare := known.Sum(own, known.Minus(&in)), known.Sum(&bpf, groups)
		out.NetCPU, out.TareCPU, out.GrossCPU = seconds(net), seconds(tare), seconds(known.Sum(net, tare))
	} else if !p.irqApart {
		out.GrossCPU = seconds(known.Sum(own, groups))
	}
	out.NetMemory, out.TareMemory, out.TareMaps = p.each(w.net), p.each(w.tare), p.each(w.inMaps)
	if out.GrossMemory = known.Sum(out.NetMemory, out.TareMemory); out.GrossMemory == nil {
		out.GrossMemory = p.each(w.gross)
	}
	return out
}
