package ledger

import (
	"math"

	"tare/internal/lib/known"
)

// minPooled is how many samples of tare's programs are needed to say where they ran. It mirrors
// attribution.MinSamples.
const minPooled = 25

// Pool returns each workload's account as the mean over several windows. A single window may have too few samples to
// say where tare's programs ran; pooled, their run time is placed by the samples of all windows. Notes and bounds,
// which belong to single windows, are left out, and so are workloads that are missing from a window.
func Pool(windows []*Ledger) []Workload {
	if len(windows) == 0 {
		return nil
	}
	p := pool{n: int64(len(windows)), ran: new(int64), workloads: map[string]*pooled{}}
	for _, l := range windows {
		p.add(l)
	}
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
	n         int64  // windows
	ran       *int64 // ns that tare's programs ran; nil if unknown
	samples   int64  // of tare's programs
	irqApart  bool
	names     []string
	workloads map[string]*pooled
}

// pooled holds the totals of one workload.
type pooled struct {
	name                     string
	windows                  int64
	own, groups              *int64 // ns
	inside, apart            int64  // samples
	gross, net, tare, inMaps *int64 // bytes
}

func (p *pool) add(l *Ledger) {
	s := newSettlement(l)
	p.irqApart = p.irqApart || l.irqApart()
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
		w.own, w.groups = known.Sum(w.own, own), known.Sum(w.groups, nanoseconds(account.TareCgroupsCPU))
		w.gross, w.net = known.Sum(w.gross, account.GrossMemory), known.Sum(w.net, account.NetMemory)
		w.tare, w.inMaps = known.Sum(w.tare, account.TareMemory), known.Sum(w.inMaps, account.TareMaps)
	}
	if s.noPrograms {
		p.ran = nil
	}
	for i := range l.Programs {
		prog := &l.Programs[i]
		if prog.Charge != ChargeTare {
			continue
		}
		if ran, counted := prog.RanSeconds(); counted {
			p.ran = known.Sum(p.ran, nanoseconds(&ran))
		} else {
			p.ran = nil
		}
		for _, seen := range prog.Seen {
			p.samples += int64(seen.Samples)
			if seen.Cgroup == nil {
				continue
			}
			c := s.chargeOf(*seen.Cgroup)
			w := p.workloads[c.Workload]
			switch {
			case c.Charge != ChargeWorkload || w == nil:
			case seen.Context == Task || !l.irqApart():
				w.inside += int64(seen.Samples)
			default:
				w.apart += int64(seen.Samples)
			}
		}
	}
}

// mean returns the account of an average window. Net and tare are rounded, and gross is their sum.
func (p *pool) mean(w *pooled) Workload {
	each := func(n *int64) *int64 {
		return known.As(n, func(n int64) int64 { return int64(math.Round(float64(n) / float64(p.n))) })
	}
	out := Workload{Name: w.name, Cgroups: []string{}, Notes: []string{}}
	own, groups := each(w.own), each(w.groups)
	out.TareCgroupsCPU = seconds(groups)
	if inside, apart := p.placed(w.inside), p.placed(w.apart); inside != nil && apart != nil && own != nil {
		in := min(*each(inside), *own)
		bpf := in + *each(apart)
		net, tare := known.Sum(own, known.Minus(&in)), known.Sum(&bpf, groups)
		out.NetCPU, out.TareCPU, out.GrossCPU = seconds(net), seconds(tare), seconds(known.Sum(net, tare))
	} else if !p.irqApart {
		out.GrossCPU = seconds(known.Sum(own, groups))
	}
	out.NetMemory, out.TareMemory, out.TareMaps = each(w.net), each(w.tare), each(w.inMaps)
	if out.GrossMemory = known.Sum(out.NetMemory, out.TareMemory); out.GrossMemory == nil {
		out.GrossMemory = each(w.gross)
	}
	return out
}

// placed returns the share of the run time of tare's programs, over all windows, that the given number of their
// samples stands for; nil if the run time is unknown or samples are too few.
func (p *pool) placed(samples int64) *int64 {
	switch {
	case p.ran == nil || *p.ran > 0 && p.samples < minPooled:
		return nil
	case *p.ran == 0:
		return new(int64)
	}
	return new(int64(math.Round(float64(*p.ran) * (float64(samples) / float64(p.samples)))))
}
