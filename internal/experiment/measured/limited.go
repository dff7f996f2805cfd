package measured

import (
	"tare/internal/experiment/kind"
	"tare/internal/experiment/metric"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/ledger"
)

// limitMetrics are about groups with a CPU limit in the spec, and about the eBPF programs' share of the machine.
var limitMetrics = []Metric{
	{Definition: metric.Definition{Name: "limit_cpus", Unit: quantity.CPUs, Rank: metric.RankOther, Pool: metric.Sum,
		Cost: true, Needs: NeedNothing, How: "Sum of the CPU limits that the spec gives groups."},
		Value: func(m *Measured) (float64, bool) {
			total := 0.0
			for _, g := range m.limited() {
				total += g.limit
			}
			return total, total > 0
		}},
	{Definition: metric.Definition{Name: "limited_cpus", Family: "limited", Unit: quantity.CPUs, Rank: metric.RankOther,
		Pool: metric.Sum, Cost: true, Needs: NeedLimit, Headline: true,
		How: "CPU time per second of the groups with a CPU limit, as the kernel charges it."},
		Value: (*Measured).limitedCPUs},
	{Definition: metric.Definition{Name: "limited_share", Family: "limited", Unit: quantity.Part, Rank: metric.RankOther,
		Pool: metric.Mean, Needs: NeedLimit, Headline: true,
		How: "The same as a part of the limit. Can be a little above 1 where the window is no multiple of 100 ms."},
		Value: func(m *Measured) (float64, bool) {
			used, ok := m.limitedCPUs()
			limit := 0.0
			for _, g := range m.limited() {
				limit += g.limit
			}
			return used / limit, ok
		}},
	{Definition: metric.Definition{Name: "limited_most_share", Family: "limited", Unit: quantity.Part,
		Rank: metric.RankOther, Pool: metric.Largest, Needs: NeedLimit,
		How: "The same of the one group that came closest to its own limit, or went furthest over it."},
		Value: func(m *Measured) (most float64, ok bool) {
			for _, g := range m.limited() {
				if g.CPUSeconds == nil {
					return 0, false // the unknown share may be the largest
				}
				most, ok = max(most, Rate(*g.CPUSeconds, m.Ledger.Window.Seconds)/g.limit), true
			}
			return most, ok
		}},
	{Definition: metric.Definition{Name: "limited_throttled_share", Family: "limited", Unit: quantity.Part,
		Rank: metric.RankOther, Pool: metric.Mean, Needs: NeedSamples, Headline: true,
		How: "Throttled periods of the groups with a CPU limit, of the periods in which they ran."},
		Value: (*Measured).limitedThrottled},
	{Definition: metric.Definition{Name: "limited_bpf_cpus", Family: "limited", Unit: quantity.CPUs,
		Rank: metric.RankOther, Pool: metric.Sum, Cost: true, Better: metric.Lower, Needs: NeedLimit,
		How: "CPU time per second of the subject's eBPF programs inside the CPU time of the groups with a limit, by " +
			"samples; where interrupts are off for long, these fall on what runs next." + NoSubject,
	}, Value: (*Measured).limitedBPF},
	{Definition: metric.Definition{Name: "limited_cpu_seconds_per_connection", Family: "limited", Unit: quantity.Seconds +
		" per connection", Rank: metric.RankOther, Pool: metric.PerConnection, Cost: true, Better: metric.Lower,
		Needs: NeedCost, Headline: true, How: "CPU time that the kernel charges to the groups with a limit, per " +
			"connection opened."}, Value: Per((*Measured).limitedCPUs, (*Measured).ConnectionRate)},
	{Definition: metric.Definition{Name: "bpf_limited_task_share", Family: "bpf", Unit: quantity.Part,
		Rank: metric.RankBPF, Pool: metric.Counts, Needs: NeedSamples,
		How: "Part of the subject's eBPF run time in task context of the groups with a CPU limit." + bySamples},
		Count: func(m *Measured) (in, of int) {
			return m.limitedSamples(func(g *limitedGroup, c ledger.Context) bool { return g != nil && !interrupt(c) })
		}},
	{Definition: metric.Definition{Name: "bpf_limited_softirq_share", Family: "bpf", Unit: quantity.Part,
		Rank: metric.RankBPF, Pool: metric.Counts, Needs: NeedSamples,
		How: "The same in softirq and hardirq above their tasks." + bySamples},
		Count: func(m *Measured) (in, of int) {
			return m.limitedSamples(func(g *limitedGroup, c ledger.Context) bool { return g != nil && interrupt(c) })
		}},
	{Definition: metric.Definition{Name: "bpf_limited_inside_share", Family: "bpf", Unit: quantity.Part,
		Rank: metric.RankBPF, Pool: metric.Counts, Needs: NeedSamples,
		How: "The same in both contexts, as far as it is in these groups' CPU time and so inside their limit." + bySamples},
		Count: func(m *Measured) (in, of int) { return m.limitedSamples(m.inside) }},
	{Definition: metric.Definition{Name: "bpf_cpus", Family: "bpf", Unit: quantity.CPUs, Rank: metric.RankBPF,
		Pool: metric.Sum, Cost: true, Better: metric.Lower, Needs: NeedLimit,
		How: "eBPF run time of the subject's programs per second: wall time, which can exceed CPU time. Only where a group " +
			"has a CPU limit." + NoSubject},
		Value: func(m *Measured) (float64, bool) {
			v, ok := m.BPFRate()
			return v, ok && len(m.limited()) > 0
		}},
	{Definition: metric.Definition{Name: "bpf_cpu_share", Family: "bpf", Unit: quantity.Part, Rank: metric.RankBPF,
		Pool: metric.Mean, Better: metric.Lower, Needs: NeedShare, Headline: true, Free: true,
		How: "eBPF run time of the subject's programs as a part of all CPUs of the machine." +
			NoSubject}, Value: func(m *Measured) (float64, bool) {
		v, ok := m.BPFRate()
		return m.ofCapacity(v*m.Ledger.Window.Seconds, ok)
	}},
	{Definition: metric.Definition{Name: "cpu_busy_share", Family: "cpu", Unit: quantity.Part, Rank: metric.RankCPU,
		Pool: metric.Mean, Needs: NeedShare, Headline: true, Free: true,
		Rule: 1, // by rule 0, time stolen from idle CPUs was subtracted twice
		How:  "Part of the CPUs of the machine that was neither idle nor stolen."}, Value: func(m *Measured) (float64, bool) {
		c := m.Ledger.CPU
		return m.ofCapacity(c.Busy(), true)
	}},
	{Definition: metric.Definition{Name: "app_cpu_share", Unit: quantity.Part, Rank: metric.RankOther, Pool: metric.Mean,
		Better: metric.Lower, Needs: NeedShare,
		How: "CPU time of the applications' groups, with eBPF programs in their tasks, as a part of all CPUs of the " +
			"machine."}, Value: roleCPU(kind.Application)},
	{Definition: metric.Definition{Name: "load_cpu_share", Family: "load", Unit: quantity.Part, Rank: metric.RankOther,
		Pool: metric.Mean, Better: metric.Lower, Needs: NeedShare, How: "The same of the loads' groups."},
		Value: roleCPU(kind.Load)},
}

// limitedGroup is a group of the ledger with a CPU limit in the spec.
type limitedGroup struct {
	*ledger.Cgroup
	limit float64 // in CPUs
}

// limited returns the groups of applications and loads with a CPU limit. Limits of subjects are not of interest here.
func (m *Measured) limited() []limitedGroup {
	var groups []limitedGroup
	for i := range m.Ledger.Cgroups {
		g := &m.Ledger.Cgroups[i]
		if r := m.roles[g.Path]; r.Limit > 0 && r.Role != kind.Subject {
			groups = append(groups, limitedGroup{g, r.Limit})
		}
	}
	return groups
}

func (m *Measured) limitedCPUs() (float64, bool) {
	return m.perSecond(cpuSeconds(lists.Map(m.limited(), func(g limitedGroup) *ledger.Cgroup { return g.Cgroup })))
}

func (m *Measured) limitedThrottled() (float64, bool) {
	var throttled, periods uint64
	for _, g := range m.limited() {
		if g.ThrottledPeriods == nil || g.Periods == nil {
			return 0, false
		}
		throttled, periods = throttled+*g.ThrottledPeriods, periods+*g.Periods
	}
	return float64(throttled) / float64(periods), periods > 0
}

func (m *Measured) limitedBPF() (float64, bool) {
	if len(m.limited()) == 0 {
		return 0, false
	}
	if m.Subject == nil {
		return 0, true
	}
	period := m.Ledger.Host.SamplerPeriod
	if _, ok := m.Programs(); !ok || period == nil {
		return 0, false
	}
	in, _ := m.limitedSamples(m.inside)
	return m.perSecond(float64(in)**period, true)
}

// held checks, in an experiment about a CPU limit, that the limit throttled its groups, and that nothing else on the
// machine kept them from reaching it.
func (m *Measured) held() []Trip {
	asked := m.Setup.Gates.Float("held")
	if asked == 0 {
		return nil
	}
	seen, ok := m.limitedThrottled()
	if !ok || seen >= asked {
		return nil
	}
	return []Trip{Tripped(GateHeld, seen, asked,
		"the groups with a CPU limit were throttled in %.0f %% of their periods, and %g %% is asked for: something else "+
			"kept them from their limit; stop what else runs here, or lower the limit", 100*seen, 100*asked)}
}

func interrupt(c ledger.Context) bool { return c == ledger.Softirq || c == ledger.Hardirq }

// inside reports whether the CPU time of the group g includes the time of programs that run in the context c while a
// task of the group is on the CPU.
func (m *Measured) inside(g *limitedGroup, c ledger.Context) bool {
	return g != nil && !(interrupt(c) && m.Ledger.IRQApart(g.Path))
}

// limitedSamples returns how many samples of the subject's programs match, and how many samples of them there are in
// all. The function matches receives the CPU-limited group of a sample, or nil, and the context. Without such groups,
// both counts are 0.
func (m *Measured) limitedSamples(matches func(*limitedGroup, ledger.Context) bool) (in, of int) {
	groups := m.limited()
	if len(groups) == 0 {
		return 0, 0
	}
	return m.samplesIn(func(s *ledger.Seen) bool {
		var at *limitedGroup
		for i := range groups {
			if s.Cgroup != nil && cgroup.Within(*s.Cgroup, groups[i].Path) {
				at = &groups[i]
			}
		}
		return matches(at, s.Context)
	})
}

func (m *Measured) ofCapacity(seconds float64, ok bool) (float64, bool) {
	c := m.Ledger.CPU.Capacity
	return seconds / c, ok && c > 0
}

// roleCPU returns a function that computes the CPU time of the groups of a role, as a fraction of the machine's.
func roleCPU(role kind.Role) func(*Measured) (float64, bool) {
	return func(m *Measured) (float64, bool) { return m.ofCapacity(m.RoleSeconds(role)) }
}

// RoleSeconds returns the CPU time in the window of the trial's groups of a role; false if there are none, or the time
// of one is unknown.
func (m *Measured) RoleSeconds(role kind.Role) (float64, bool) {
	return cpuSeconds(m.ofRole(role))
}

// RoleRate returns the CPU time per second of the groups of a role.
func (m *Measured) RoleRate(role kind.Role) (float64, bool) { return m.perSecond(m.RoleSeconds(role)) }
