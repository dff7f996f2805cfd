package measured

import (
	"cmp"
	"os"
	"slices"
	"strings"

	"tare/internal/experiment/record"
	"tare/internal/lib/known"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/ledger"
)

// The thresholds for blaming a gate on a cause outside the trial. They are fixed here, before any run.
const (
	// stolenPart is the smallest fraction of CPU time whose loss to the hypervisor can trip a gate. A generator whose CPU
	// is taken away for 40 ms of a window of 2 s begins 2 % of its requests late, which trips the gate on its 99th
	// percentile; on a machine with two CPUs that is 1 % of the CPU time.
	stolenPart = 0.01

	// foreignPart is the smallest fraction of CPU time with which tasks outside the trial can trip a gate. The scheduler
	// divides a CPU among tasks in slices of a few ms, while the hypervisor takes it away for tens of ms, so other tasks
	// need more time to do the same harm. For tasks that hold a CPU without a break, stolenPart applies.
	foreignPart = 0.05

	// explains is the largest shortfall that the hypervisor and tasks outside the trial can explain, as a multiple of the
	// fraction of CPU time that they took. A machine that lost 5 % of its CPU time may answer up to 20 % of the requests
	// too late, because a queue takes time to drain, but not 40 %.
	explains = 4.0
)

// Disturbance describes the use of the machine by others during a window, as fractions of its CPU time.
type Disturbance struct {
	Stolen   float64  // CPU time that the hypervisor took
	Foreign  float64  // CPU time of tasks outside the trial's control groups, except this process
	Occupied float64  // the part of Foreign in stretches in which a task held a CPU without a break
	Culprits []string // names of the commands, or else the control groups, that used the most, in descending order
	// Mixed is true if processes of the trial were outside its control groups. Their CPU time is in Foreign, and cannot be
	// separated from the CPU time of others.
	Mixed bool
}

// maxCulprits is the largest length of Disturbance.Culprits.
const maxCulprits = 3

// DisturbanceOf returns the disturbance during a ledger's window, from the kernel's counters and, if stalls were
// watched for (Ledger.Noise), from the witness. self is the pid of this process. The trial's own groups are those at
// and below trees, and observed ones. Without a ledger the result is zero.
func DisturbanceOf(l *ledger.Ledger, self int, trees ...string) Disturbance {
	var d Disturbance
	if l == nil || l.CPU.Capacity <= 0 {
		return d
	}
	capacity, own := l.CPU.Capacity, 0.0
	d.Stolen = l.CPU.Steal / capacity
	groups := map[string]float64{}
	mine := ownGroup(l, trees...)
	for _, g := range l.Cgroups {
		switch {
		case g.CPUSeconds == nil:
		case slices.Contains(trees, g.Path):
			own += withoutBPF(&g)
		case g.Path != "/" && strings.LastIndexByte(g.Path, '/') == 0 && !mine(g.Path) &&
			!slices.ContainsFunc(trees, func(tree string) bool { return cgroup.Within(tree, g.Path) }):
			groups[g.Path] = *g.CPUSeconds
		}
	}
	for _, g := range observed(l, trees...) {
		own += withoutBPF(g)
	}
	for _, line := range l.CPU.Lines {
		if line.Name == ledger.LineGroups || line.Name == ledger.LineRoot {
			d.Foreign += line.Seconds
		}
	}
	d.Foreign = max(0, d.Foreign-own) / capacity

	ours := func(pid int, group string) bool { return pid == self || group != "" && mine(group) }
	busy := map[string]float64{}
	if n := l.Noise; n != nil {
		d.Stolen = max(d.Stolen, n.StolenSeconds/capacity)
		nobodys := 0.0
		for _, s := range n.Occupied {
			switch {
			case ours(s.PID, s.Cgroup):
			case s.Cgroup == "":
				nobodys += s.Seconds / capacity
			default:
				d.Occupied += s.Seconds / capacity
			}
		}
		// A process that ended before its group was read may be a short-lived one of the trial. Count no more time of such
		// processes as foreign than the kernel's counters show.
		d.Occupied += min(nobodys, max(0, d.Foreign-d.Occupied))
		for _, o := range n.Busiest {
			if !ours(o.PID, o.Cgroup) {
				busy[o.Comm] += o.Seconds
			}
		}
	}
	d.Foreign = max(d.Foreign, d.Occupied)
	if len(busy) == 0 {
		busy = groups
	}
	d.Culprits, d.Mixed = largest(busy, maxCulprits), stray(l) != nil
	return d
}

// withoutBPF returns the CPU time of a group, in seconds, without the run time of eBPF programs, which have their own
// line in the budget; 0 if it is unknown.
func withoutBPF(g *ledger.Cgroup) float64 {
	if g.CPUSeconds == nil {
		return 0
	}
	return *g.CPUSeconds - known.Or(g.BPFInsideSeconds, 0)
}

// largest returns the names with the most seconds, in descending order.
func largest(seconds map[string]float64, most int) []string {
	var names []string
	for name, s := range seconds {
		if s > 0 && name != "" {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(seconds[b], seconds[a]), strings.Compare(a, b))
	})
	return names[:min(len(names), most)]
}

// By returns the cause outside the trial that disturbed it enough to trip a gate, and the fraction of CPU time that it
// took; Unknown if there is none.
func (d Disturbance) By() (ledger.Cause, float64) {
	steal, others := d.Stolen/stolenPart, max(d.Foreign/foreignPart, d.Occupied/stolenPart)
	if d.Mixed {
		others = 0
	}
	switch {
	case max(steal, others) < 1:
		return ledger.Unknown, 0
	case steal >= others:
		return ledger.Hypervisor, d.Stolen
	}
	return ledger.Neighbour, d.Foreign
}

// shortfall returns the missing fraction of the work, for a gate that counts work, and false for other gates. It is
// false for GateIdleCopy: a copy with a small limit starts slowly, so a copy that others delay may miss a short window
// altogether.
func (t Trip) shortfall() (float64, bool) {
	switch t.Gate {
	case GateRate, GateConnections, GateIdle:
		return 1 - t.Seen, true
	case GateErrors, GateDrain, GateUnsent:
		return t.Seen, true
	}
	return 0, false
}

// cause returns what tripped a gate, and the fraction of CPU time that it took; 0 for a cause inside the trial. It
// considers gates and the use of the CPUs, and never values of metrics.
func (d Disturbance) cause(t Trip) (ledger.Cause, float64) {
	by, part := d.By()
	if by == ledger.Unknown || t.Gate == GateContained {
		return t.Gate.Quiet, 0
	}
	if short, counts := t.shortfall(); counts && short > explains*(d.Stolen+d.Foreign) {
		return t.Gate.Quiet, 0
	}
	return by, part
}

// Reasons determines what tripped each gate, and which of the trial's metrics it voids.
func (m *Measured) Reasons(trips []Trip, values map[string]float64, counts map[string]record.Count) []record.Reason {
	return ReasonsOf(trips, DisturbanceOf(m.Ledger, os.Getpid(), m.Tree), values, counts)
}

// ReasonsOf is Reasons for a given disturbance.
func ReasonsOf(trips []Trip, d Disturbance, values map[string]float64, counts map[string]record.Count) []record.Reason {
	has := func(metric string) bool {
		_, value := values[metric]
		_, count := counts[metric]
		return value || count
	}
	late := false // the generator was late by its own fault
	for i := range trips {
		t := &trips[i]
		var part float64
		if t.Cause, part = d.cause(*t); part > 0 {
			t.CauseShare = &part
		}
		if t.Cause == ledger.Neighbour {
			t.Culprits = d.Culprits
		}
		late = late || t.Cause == ledger.Generator
	}
	var reasons []record.Reason
	for _, t := range trips {
		if late && t.Cause == ledger.Subject && t.Gate != GateContained {
			t.Cause = ledger.Generator // requests that were sent late could not be answered in time
		}
		t.Voids = t.Gate.Voids(t.Cause, has)
		reasons = append(reasons, t.Reason)
	}
	return reasons
}

// FailedBy returns the cause outside the trial that disturbed the machine while a trial failed; empty if none is known.
// trees are as for DisturbanceOf.
func FailedBy(l *ledger.Ledger, trees ...string) ledger.Cause {
	if by, _ := DisturbanceOf(l, os.Getpid(), trees...).By(); by != ledger.Unknown {
		return by
	}
	return ""
}

// Everything stands for all metrics of a trial in the result of LostToOthers.
const Everything = "everything"

// LostToOthers returns the metrics that justify repeating a trial: those that a gate voided, if something other than
// the subject tripped it, except metrics that another valid one replaces (Definition.Instead). It returns Everything if
// such a gate voided all metrics, or if the trial failed while others used much of the machine. It never looks at
// measured values.
func LostToOthers(t *record.Trial) (lost []string) {
	if t.Validity.Failed != "" {
		if t.Validity.Failed != record.Interrupted && t.Validity.Cause != "" {
			return []string{Everything}
		}
		return nil
	}
	for _, r := range t.Validity.Reasons {
		if r.Cause == ledger.Subject {
			continue
		}
		if r.Voids == nil {
			return []string{Everything}
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

// instead reports whether a trial has a valid metric that replaces one that it lost.
func instead(t *record.Trial, metric string) bool {
	m, known := Find(metric)
	if !known || m.Instead == "" {
		return false
	}
	_, has := t.Metrics[m.Instead]
	return has && t.Validity.Stands(m.Instead)
}
