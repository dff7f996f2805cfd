package measured

import (
	"slices"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/metric"
	"tare/internal/lib/quantity"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/ledger"
)

// subjectMetrics measure the resources that a subject itself uses. Every experiment has them, so most are not Headline:
// otherwise a run with a precision would go on until they are precise. When an answer picks the largest differences, it
// leaves out metrics with a Clause, which would always win against a baseline without a subject.
var subjectMetrics = []Metric{
	{
		Definition: metric.Definition{
			Name: "subject_bpf_cpus", Unit: quantity.CPUs, Rank: metric.RankBPF, Pool: metric.Sum, Cost: true,
			Better: metric.Lower, Needs: NeedShare, Family: "bpf", Clause: "uses {} in eBPF programs",
			Plan: "eBPF programs",
			How:  "Run time of the subject's eBPF programs per second, wherever they ran." + NoSubject,
		},
		Value: (*Measured).BPFRate,
	},
	{
		Definition: metric.Definition{
			Name: "subject_cpus", Unit: quantity.CPUs, Rank: metric.RankCPU, Pool: metric.Sum, Cost: true,
			Better: metric.Lower, Needs: NeedShare, Family: "cpu", Clause: "uses {} in its own processes",
			Plan: planSubject,
			How: "CPU time of the subject's control groups per second, with interrupts where the kernel leaves them in the " +
				"interrupted task's time." + NoSubject,
		},
		Value:     func(m *Measured) (float64, bool) { return m.subjectRate(m.ofRole(kind.Subject)) },
		Component: func(m *Measured, component string) (float64, bool) { return m.subjectRate(m.component(component)) },
	},
	{
		Definition: metric.Definition{
			Name: "map_bytes", Unit: quantity.Bytes, Rank: metric.RankMemory, Pool: metric.Mean, Cost: true,
			Better: metric.Lower, Needs: NeedMemory, Headline: true, Family: "map",
			How: "Bytes of the subject's eBPF maps at the end of the window, each map once. Of a component: the maps that its " +
				"processes hold." + NoSubject,
		},
		Value:     (*Measured).MapBytes,
		Component: (*Measured).componentMapBytes,
	},
	ofMemory("memory_hard_bytes", true, "Anon + shmem + kernel - reclaimable slab",
		func(m *ledger.Memory) *int64 { return m.Hard }),
	ofMemory("memory_soft_bytes", false, "File - shmem + reclaimable slab",
		func(m *ledger.Memory) *int64 { return m.Soft }),
	ofMemory("memory_anon_bytes", false, "Anonymous memory, without page cache",
		func(m *ledger.Memory) *int64 { return signed(m.Anon) }),
	ofMemory("memory_file_bytes", false, "Page cache, with tmpfs and shared memory",
		func(m *ledger.Memory) *int64 { return signed(m.File) }),
	ofMemory("memory_shmem_bytes", false, "The part of `memory_file_bytes` that is tmpfs and shared memory",
		func(m *ledger.Memory) *int64 { return signed(m.Shmem) }),
	ofMemory("memory_kernel_bytes", false, "Kernel memory, with the maps and programs that the kernel charges to "+
		"the group", KernelMemory),
	appMemory,
}

// planSubject is the name in plans of a subject without components.
const planSubject = "the subject"

// Speaker is a guest whose answers mention metrics that are not headlines otherwise.
type Speaker interface {
	// Speaks names metrics that are headlines in an experiment with this setup.
	Speaks(*kind.Setup) []string
}

// Headlines returns the metrics in the answer of an experiment with this setup, in the order of Metrics.
func Headlines(s *kind.Setup) []Metric {
	spoken := map[string]bool{}
	for _, p := range s.Subjects() {
		if guest, ok := p.Kind.(Speaker); ok {
			for _, name := range guest.Speaks(s) {
				spoken[name] = true
			}
		}
	}
	saturated := false
	for _, p := range s.Loads {
		saturated = saturated || p.Kind.About().Saturates.With(p.Options)
	}
	return slices.DeleteFunc(slices.Clone(Metrics()), func(m Metric) bool {
		return !spoken[m.Name] && (!m.Headline || m.Free && !saturated)
	})
}

// ofMemory makes a metric of the memory of the subject's groups at the end of the window.
func ofMemory(name string, headline bool, what string, part func(*ledger.Memory) *int64) Metric {
	plan := ""
	if headline {
		plan = planSubject
	}
	return Metric{
		Definition: metric.Definition{
			Name: name, Unit: quantity.Bytes, Rank: metric.RankMemory, Pool: metric.Mean, Cost: true,
			Better: metric.Lower, Needs: NeedMemory, Headline: headline, Lead: headline, Family: "memory", Plan: plan,
			How: what + ". Of the subject's control groups at the end of the window." + NoSubject,
		},
		Value: Memory(part),
		Component: func(m *Measured, component string) (float64, bool) {
			return memoryOf(m.component(component), part)
		},
	}
}

// appMemory is the memory of the applications: a sandbox around an application adds to it, and so may a setting of the
// application.
var appMemory = Metric{
	Definition: metric.Definition{
		Name: "app_memory_hard_bytes", Unit: quantity.Bytes, Rank: metric.RankMemory, Pool: metric.Mean, Cost: true,
		Better: metric.Lower, Needs: NeedMemory, Family: "memory",
		How: "As `memory_hard_bytes`, of the control groups of the trial's applications. Absent without any.",
	},
	Value: func(m *Measured) (float64, bool) {
		groups := m.ofRole(kind.Application)
		if len(groups) == 0 {
			return 0, false
		}
		return memoryOf(groups, func(g *ledger.Memory) *int64 { return g.Hard })
	},
}

func signed(v *uint64) *int64 {
	if v == nil {
		return nil
	}
	return new(int64(*v))
}

// KernelMemory returns the kernel memory of a group, or nil if that is unknown.
func KernelMemory(m *ledger.Memory) *int64 { return signed(m.Kernel) }

// Memory returns a function that adds up a part of the memory of the subject's groups. It is 0 without a subject.
func Memory(part func(*ledger.Memory) *int64) func(*Measured) (float64, bool) {
	return func(m *Measured) (float64, bool) {
		if m.Subject == nil {
			return 0, true
		}
		return memoryOf(m.ofRole(kind.Subject), part)
	}
}

func memoryOf(groups []*ledger.Cgroup, part func(*ledger.Memory) *int64) (float64, bool) {
	return sum(groups, func(g *ledger.Cgroup) *int64 {
		if g.Memory == nil {
			return nil
		}
		return part(g.Memory)
	})
}

func cpuSeconds(groups []*ledger.Cgroup) (float64, bool) {
	return sum(groups, func(g *ledger.Cgroup) *float64 { return g.CPUSeconds })
}

// sum adds up a value over groups; false if there are none, or the value of one is unknown.
func sum[N int64 | float64](groups []*ledger.Cgroup, of func(*ledger.Cgroup) *N) (total float64, known bool) {
	for _, g := range groups {
		n := of(g)
		if n == nil {
			return 0, false
		}
		total += float64(*n)
	}
	return total, len(groups) > 0
}

// subjectRate returns the CPU time per second of groups of the subject; 0 without a subject.
func (m *Measured) subjectRate(groups []*ledger.Cgroup) (float64, bool) {
	if m.Subject == nil {
		return 0, true
	}
	return m.perSecond(cpuSeconds(groups))
}

// ofRole returns the trial's groups of a role.
func (m *Measured) ofRole(role kind.Role) []*ledger.Cgroup {
	return Topmost(m.Ledger, func(g *ledger.Cgroup) bool { return g.Role == string(role) })
}

// component returns the groups of a component of the subject.
func (m *Measured) component(name string) []*ledger.Cgroup {
	return Topmost(m.Ledger, func(g *ledger.Cgroup) bool { return g.Role == string(kind.Subject) && g.Component == name })
}

// Topmost returns the groups for which is(group) returns true, without those inside another such group: the kernel
// counts the memory and time of a group in the groups above it as well.
func Topmost(l *ledger.Ledger, is func(*ledger.Cgroup) bool) []*ledger.Cgroup {
	var all []*ledger.Cgroup
	for i := range l.Cgroups {
		if g := &l.Cgroups[i]; is(g) {
			all = append(all, g)
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(g *ledger.Cgroup) bool {
		return slices.ContainsFunc(all, func(o *ledger.Cgroup) bool {
			return o.Path != g.Path && cgroup.Within(g.Path, o.Path)
		})
	})
}

// componentMapBytes returns the bytes of the maps that processes of a component hold, counted once each. It is false
// if no process of the component is known, or the size of one of its maps is unknown.
func (m *Measured) componentMapBytes(component string) (total float64, ok bool) {
	pids := m.Processes[component]
	for _, mp := range m.Ledger.Maps {
		held := func(o ledger.Owner) bool { return slices.Contains(pids, o.PID) }
		if !slices.ContainsFunc(mp.HeldBy, held) {
			continue
		}
		if mp.Bytes == nil {
			return 0, false
		}
		total += float64(*mp.Bytes)
	}
	return total, len(pids) > 0
}

// Components returns the metrics of the subject's components, by component; nil if it has none.
func (m *Measured) Components() map[string]map[string]float64 {
	var all map[string]map[string]float64
	for _, g := range m.Ledger.Cgroups {
		inTrial := m.Tree == Nowhere || cgroup.Within(g.Path, m.Tree)
		if g.Role != string(kind.Subject) || g.Component == "" || all[g.Component] != nil || !inTrial {
			continue
		}
		values := map[string]float64{}
		for _, one := range Metrics() {
			if one.Component == nil {
				continue
			}
			if v, ok := one.Component(m, g.Component); ok {
				values[one.Name] = v
			}
		}
		if all == nil {
			all = map[string]map[string]float64{}
		}
		all[g.Component] = values
	}
	return all
}
