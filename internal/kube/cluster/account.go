package cluster

import (
	"math"

	"tare/internal/lib/known"
)

// side says in which sums usage counts: in net or tare, and in which part of it.
type side uint8

// The sides. Net is the sum of sideNet and sideOther, and tare is the sum of sidePod and sideShared.
const (
	sideNet    side = iota // a workload itself
	sideOther              // what no rule names
	sidePod                // infrastructure that serves one pod
	sideShared             // infrastructure that serves a node
	sides
	sideElsewhere // not part of the node, on a machine that nodes share; counted in no sum
)

// The figures of Usage, in whole nanoseconds, billionths of a CPU, and bytes, so that parts add up exactly.
const (
	cpu = iota
	cpus
	bpf
	hard
	soft
	workingSet
	figures
)

// metrics holds one number for each figure.
type metrics [figures]int64

// account holds the usage of some owners.
type account struct {
	sums    [figures][sides]int64
	unknown [figures]uint32 // number of unknown parts
	in      [figures]uint8  // bit set of the sides of the unknown parts
	missing [figures]bool   // whether there is an unknown part that is in no group's figure
	// inPod is the number of parts that are unknown only by container: the figure of the pod contains them.
	inPod [figures]uint32
}

func (a *account) add(figure int, s side, n int64) { a.sums[figure][s] += n }

// mark records that a figure has an unknown part on a side. missing means that no group's figure includes the part.
func (a *account) mark(figure int, s side, missing bool) {
	a.unknown[figure]++
	a.in[figure] |= 1 << s
	a.missing[figure] = a.missing[figure] || missing
}

func (a *account) merge(o *account) {
	for f := range figures {
		for s := range sides {
			a.sums[f][s] += o.sums[f][s]
		}
		a.unknown[f] += o.unknown[f]
		a.in[f] |= o.in[f]
		a.missing[f] = a.missing[f] || o.missing[f]
		a.inPod[f] += o.inPod[f]
	}
}

// byContainer returns the account for the row of a container: the parts that are unknown only by container (inPod) are
// added to the unknown parts of the given side.
func (a *account) byContainer(s side) *account {
	c := *a
	for f, n := range a.inPod {
		if n > 0 {
			c.unknown[f] += n
			c.in[f] |= 1 << s
		}
	}
	return &c
}

// gross returns the known part of each figure.
func (a *account) gross() (g metrics) {
	for f := range figures {
		for s := range sides {
			g[f] += a.sums[f][s]
		}
	}
	return g
}

// zero is shared by all figures that are 0. They are the majority, and a large cluster has millions.
var zero float64

// usage returns the account in the units of Usage. row is true if the account is one of several rows: any other row may
// then contain its unknown parts. A total (row is false) contains all its unknown parts, except missing ones.
func (a *account) usage(row bool) Usage {
	var u Usage
	for f, to := range u.splits() {
		unit := 1.0
		if f <= bpf {
			unit = 1e9
		}
		sum, in := a.sums[f], a.in[f]
		net, tare := sum[sideNet]+sum[sideOther], sum[sidePod]+sum[sideShared]
		const ofNet, ofTare = 1<<sideNet | 1<<sideOther, 1<<sidePod | 1<<sideShared
		lost := a.missing[f] || row && a.unknown[f] > 0
		value := func(n int64, is bool) *float64 {
			if !is {
				return nil
			}
			if n == 0 {
				return &zero
			}
			return new(float64(n) / unit)
		}
		mixed := in&ofNet != 0 && in&ofTare != 0 || lost
		*to = Split{
			Gross:  value(net+tare, !lost),
			Net:    value(net, !mixed || in&ofNet == 0),
			Tare:   value(tare, !mixed || in&ofTare == 0),
			Shared: value(sum[sideShared], in&(1<<sideShared) == 0),
			Other:  value(sum[sideOther], in&(1<<sideOther) == 0),
		}
		if g := to.Gross; g != nil && to.Net != nil && tare == 0 {
			to.Net = g
		}
		if a.unknown[f] > 0 {
			to.Known = &Known{float64(net) / unit, float64(tare) / unit, int(a.unknown[f])}
		}
	}
	return u
}

// NetKnown returns the known part of net, which is all of net if that is known.
func (s Split) NetKnown() float64 {
	if s.Known != nil {
		return s.Known.Net
	}
	return known.Or(s.Net, 0)
}

// TareKnown returns the known part of tare.
func (s Split) TareKnown() float64 {
	if s.Known != nil {
		return s.Known.Tare
	}
	return known.Or(s.Tare, 0)
}

// GrossKnown returns the known part of gross.
func (s Split) GrossKnown() float64 { return s.NetKnown() + s.TareKnown() }

// whole returns a figure in whole units of 1/per; nil if it is unknown or out of range.
func whole(v *float64, per float64) *int64 {
	if v == nil || math.IsNaN(*v) || math.Abs(*v*per) > maxFigure {
		return nil
	}
	return new(int64(math.Round(*v * per)))
}

// splits returns the figures in their order.
func (u *Usage) splits() [figures]*Split {
	return [figures]*Split{&u.CPU, &u.CPUs, &u.BPF, &u.Hard, &u.Soft, &u.WorkingSet}
}

// Figure is one figure of Usage with its name in JSON.
type Figure struct {
	Name string
	Split
}

// Figures returns all figures.
func (u *Usage) Figures() []Figure {
	return []Figure{{"cpu_seconds", u.CPU}, {"cpus", u.CPUs}, {"bpf_seconds", u.BPF}, {"memory_hard_bytes", u.Hard},
		{"memory_soft_bytes", u.Soft}, {"memory_working_set_bytes", u.WorkingSet}}
}

// Sum returns the total usage of rows.
func Sum(rows []*Row) (u Usage) {
	for i, to := range u.splits() {
		*to = Split{new(0.0), new(0.0), new(0.0), new(0.0), new(0.0), nil}
		var all Known
		for j := range rows {
			s := rows[j].splits()[i]
			to.Gross, to.Net, to.Tare = known.Sum(to.Gross, s.Gross), known.Sum(to.Net, s.Net), known.Sum(to.Tare, s.Tare)
			to.Shared, to.Other = known.Sum(to.Shared, s.Shared), known.Sum(to.Other, s.Other)
			all.Net, all.Tare = all.Net+s.NetKnown(), all.Tare+s.TareKnown()
			if s.Known != nil {
				all.Missing += s.Known.Missing
			}
		}
		if all.Missing > 0 {
			to.Known = &all
		}
	}
	return u
}
