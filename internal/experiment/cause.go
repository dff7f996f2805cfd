package experiment

import (
	"cmp"
	"os"
	"slices"
	"strings"

	"tare/internal/ledger"
	"tare/internal/record"
)

// The thresholds by which a gate is laid to somebody outside the trial. They are fixed here, before any run.
const (
	// stolenPart is the part of the CPU time from which on the hypervisor can have tripped a gate. A generator whose CPU is away for
	// 40 ms of a window of 2 s begins 2 % of its requests late, which trips the gate on its 99th percentile; on a machine with two CPUs
	// that is 1 % of the CPU time.
	stolenPart = 0.01

	// foreignPart is the same for tasks of others. The scheduler shares a CPU with them in slices of a few ms, where the hypervisor
	// takes one away for tens: it takes more of them to do the same. Those that hold a CPU without a break are held to stolenPart.
	foreignPart = 0.05

	// explains is how far a shortfall can exceed the part of the CPU time that others took: a machine that lost 5 % of its CPU time may
	// for that reason answer up to 20 % of the requests too late, for a queue that has built up takes time to drain, but not 40 %.
	explains = 4.0
)

// disturbance is what others took of the machine during a window, as parts of its CPU time.
type disturbance struct {
	stolen   float64 // by the hypervisor
	foreign  float64 // by tasks outside the trial's control groups that are not this process
	occupied float64 // the part of foreign in stretches in which a task held a CPU without a break
	culprits []string
}

// maxCulprits is how many of those who disturbed are named.
const maxCulprits = 3

// disturbanceOf reads from a ledger what others took: by its witness, and where there was none, or for what it does not tell, by the
// kernel's counters. The trial's own groups are those at and below tree; self is this process. A ledger that has neither shows nothing.
func disturbanceOf(l *ledger.Ledger, tree string, self int) disturbance {
	var d disturbance
	if l == nil || l.CPU.Capacity <= 0 {
		return d
	}
	capacity, own := l.CPU.Capacity, 0.0
	d.stolen = l.CPU.Steal / capacity
	groups := map[string]float64{}
	for _, g := range l.Cgroups {
		switch {
		case g.CPUSeconds == nil:
		case g.Path == tree:
			own = *g.CPUSeconds
			if g.BPFInsideSeconds != nil {
				own -= *g.BPFInsideSeconds // the lines below are without it
			}
		case g.Path != "/" && strings.LastIndexByte(g.Path, '/') == 0 && !within(tree, g.Path):
			groups[g.Path] = *g.CPUSeconds
		}
	}
	for _, line := range l.CPU.Lines {
		if line.Name == ledger.LineGroups || line.Name == ledger.LineRoot {
			d.foreign += line.Seconds
		}
	}
	d.foreign = max(0, d.foreign-own) / capacity

	ours := func(pid int, group string) bool { return pid == self || group != "" && within(group, tree) }
	busy := map[string]float64{}
	if n := l.Noise; n != nil {
		d.stolen = max(d.stolen, n.StolenSeconds/capacity)
		for _, s := range n.Occupied {
			if !ours(s.PID, s.Cgroup) {
				d.occupied += s.Seconds / capacity
			}
		}
		for _, o := range n.Busiest {
			if !ours(o.PID, o.Cgroup) {
				busy[o.Comm] += o.Seconds
			}
		}
	}
	d.foreign = max(d.foreign, d.occupied)
	if len(busy) == 0 {
		busy = groups
	}
	d.culprits = largest(busy, maxCulprits)
	return d
}

// largest are the names with the most seconds, the most first.
func largest(seconds map[string]float64, most int) []string {
	var names []string
	for name, s := range seconds {
		if s > 0 && name != "" {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(seconds[b], seconds[a]), strings.Compare(a, b)) })
	return names[:min(len(names), most)]
}

// by is who outside the trial disturbed it enough to trip a gate, and what part of the CPU time he took; Unknown when nobody did.
func (d disturbance) by() (ledger.Cause, float64) {
	steal, others := d.stolen/stolenPart, max(d.foreign/foreignPart, d.occupied/stolenPart)
	switch {
	case max(steal, others) < 1:
		return ledger.Unknown, 0
	case steal >= others:
		return ledger.Hypervisor, d.stolen
	}
	return ledger.Neighbour, d.foreign
}

// shortfall is how much of the work was missing, by a gate that counts work; false for others. One copy of many that did nothing is no
// measure of it: a copy with a small limit gets going slowly, and one that others delay may miss a short window altogether.
func (t trip) shortfall() (float64, bool) {
	switch t.gate {
	case gateRate, gateConnections, gateIdle:
		return 1 - t.Seen, true
	case gateErrors, gateDrain:
		return t.Seen, true
	}
	return 0, false
}

// cause is who tripped a gate. It looks at gates and at who had the CPUs, and never at what was measured.
func (d disturbance) cause(t trip) (ledger.Cause, float64) {
	by, part := d.by()
	if by == ledger.Unknown {
		return t.gate.Quiet, 0
	}
	if short, counts := t.shortfall(); counts && short > explains*(d.stolen+d.foreign) {
		return t.gate.Quiet, 0
	}
	return by, part
}

// reasons says of each gate that was tripped who tripped it, and which of the trial's metrics it voids.
func (m *measurement) reasons(trips []trip, values map[string]float64, counts map[string]record.Count) []record.Reason {
	return reasonsOf(trips, disturbanceOf(m.ledger, m.tree, os.Getpid()), values, counts)
}

func reasonsOf(trips []trip, d disturbance, values map[string]float64, counts map[string]record.Count) []record.Reason {
	has := func(metric string) bool {
		_, value := values[metric]
		_, count := counts[metric]
		return value || count
	}
	late := false // the generator, by its own fault
	for i := range trips {
		t := &trips[i]
		var part float64
		if t.Cause, part = d.cause(*t); part > 0 {
			t.CauseShare = &part
		}
		if t.Cause == ledger.Neighbour {
			t.Culprits = d.culprits
		}
		late = late || t.Cause == ledger.Generator
	}
	var reasons []record.Reason
	for _, t := range trips {
		if late && t.Cause == ledger.Subject {
			t.Cause = ledger.Generator // what was not sent in time could not be answered in time
		}
		t.Voids = t.gate.voids(t.Cause, has)
		reasons = append(reasons, t.Reason)
	}
	return reasons
}

// failedBy is who outside the trial disturbed the machine while a trial failed; empty when nobody is known to have.
func failedBy(l *ledger.Ledger, tree string) ledger.Cause {
	if by, _ := disturbanceOf(l, tree, os.Getpid()).by(); by != ledger.Unknown {
		return by
	}
	return ""
}

// everything is what lostToOthers says of a trial that can tell nothing.
const everything = "everything"

// lostToOthers are the metrics for whose sake a trial is worth running again: what a gate that somebody other than the
// subject tripped took from it, or everything, where it failed while others had a part of the machine. It never looks at
// what was measured.
func lostToOthers(t *record.Trial) (lost []string) {
	if t.Validity.Failed != "" {
		if t.Validity.Failed != record.Interrupted && t.Validity.Cause != "" {
			return []string{everything}
		}
		return nil
	}
	for _, r := range t.Validity.Reasons {
		if r.Cause == ledger.Subject {
			continue
		}
		if r.Voids == nil {
			return []string{everything}
		}
		for _, name := range r.Voids {
			if !instead(t, name) {
				lost = append(lost, name)
			}
		}
	}
	slices.Sort(lost)
	return slices.Compact(lost)
}

// instead reports whether a trial tells what answers in the place of a metric that it cannot tell.
func instead(t *record.Trial, metric string) bool {
	i := slices.IndexFunc(Metrics, func(m Metric) bool { return m.Name == metric })
	if i < 0 || Metrics[i].Instead == "" {
		return false
	}
	_, has := t.Metrics[Metrics[i].Instead]
	return has && t.Validity.Stands(Metrics[i].Instead)
}
