package subject

import (
	"fmt"
	"slices"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/metric"
	"tare/internal/lib/known"
	"tare/internal/lib/quantity"
	"tare/internal/sandboxes/oci"
	"tare/internal/scale/ledger"
)

// seen returns the Value of a metric, given a function of the trial's evidence.
func seen(of func(*Evidence, *measured.Measured) (float64, bool)) func(*measured.Measured) (float64, bool) {
	return func(m *measured.Measured) (float64, bool) {
		e, ok := m.Evidence[name].(*Evidence)
		if !ok || len(e.Sandboxes) == 0 {
			return 0, false
		}
		return of(e, m)
	}
}

// Metrics returns the metrics of trials with this subject.
func (guest) Metrics() []measured.Metric {
	all := slices.Concat(startAndStop, balanceMetrics(), memoryMetrics(), countMetrics)
	for _, c := range Components {
		all = append(all, componentMetrics(c)...)
	}
	return all
}

// between returns the Value of a metric: the mean time between two events, over all sandboxes.
func between(from, to func(oci.Times) int64) func(*measured.Measured) (float64, bool) {
	return seen(func(e *Evidence, _ *measured.Measured) (total float64, ok bool) {
		for _, s := range e.Sandboxes {
			a, b := from(s.Times), to(s.Times)
			if a == 0 || b == 0 {
				return 0, false
			}
			total += float64(b-a) / 1e9
		}
		return total / float64(len(e.Sandboxes)), true
	})
}

var startAndStop = []measured.Metric{{
	Definition: metric.Definition{
		Name: "sandbox_start_seconds", Unit: quantity.Seconds, Rank: metric.RankWork, Pool: metric.Mean, Better: metric.Lower,
		Needs: measured.NeedRest, Family: "sandbox_start", Clause: "starts a sandbox in {}",
		How: "Mean over the trial's sandboxes, which start side by side, from the runtime's create to the end of its " +
			"start. Absent without a runtime.",
	},
	Value: between(func(t oci.Times) int64 { return t.Create }, func(t oci.Times) int64 { return t.Started }),
}, {
	Definition: metric.Definition{
		Name: "sandbox_create_seconds", Unit: quantity.Seconds, Rank: metric.RankOther, Pool: metric.Mean,
		Better: metric.Lower,
		Needs:  measured.NeedRest, Family: "sandbox_start",
		How: "Part of `sandbox_start_seconds` until the create ended.",
	},
	Value: between(func(t oci.Times) int64 { return t.Create }, func(t oci.Times) int64 { return t.Created }),
}, {
	Definition: metric.Definition{
		Name: "sandbox_ready_seconds", Unit: quantity.Seconds, Rank: metric.RankWork, Pool: metric.Mean, Cost: true,
		Better: metric.Lower, Needs: measured.NeedRest, Clause: "has all applications ready {} after the launch of the first",
		How: "From the launch of the first application until all were ready. Absent without an application.",
	},
	Value: seen(func(e *Evidence, m *measured.Measured) (float64, bool) {
		return e.ReadySeconds, len(m.Setup.Applications) > 0
	}),
}, {
	Definition: metric.Definition{
		Name: "sandbox_stop_seconds", Unit: quantity.Seconds, Rank: metric.RankWork, Pool: metric.Mean, Better: metric.Lower,
		Needs: measured.NeedRest, Clause: "takes {} to end one",
		How: "As `sandbox_start_seconds`, from when a sandbox was asked to end until the runtime deleted it. Absent " +
			"without a runtime, and where one ended by itself.",
	},
	Value: between(func(t oci.Times) int64 { return t.Told }, func(t oci.Times) int64 { return t.Deleted }),
}}

// charged adds up a part of the memory for which groups are charged in a ledger: the pods' groups if inPod is set, and
// the subject's other groups if outside is set.
func charged(l *ledger.Ledger, e *Evidence, inPod, outside bool, part func(*ledger.Memory) *int64) (float64, bool) {
	return ofGroups(l, e, inPod, outside, func(g *ledger.Cgroup) *float64 {
		if g.Memory == nil {
			return nil
		}
		return known.As(part(g.Memory), func(n int64) float64 { return float64(n) })
	})
}

// ofGroups adds up a value of the groups that inPod and outside select, as for charged. It returns false if one of them
// does not report the value, or if inPod is set and no group is selected.
func ofGroups(l *ledger.Ledger, e *Evidence, inPod, outside bool,
	of func(*ledger.Cgroup) *float64) (total float64, ok bool) {
	if l == nil {
		return 0, false
	}
	tops := topsOfSubject(l)
	for i := range l.Cgroups {
		g := &l.Cgroups[i]
		if pod := e.isPod(g.Path); pod && !inPod || !pod && (!outside || !slices.Contains(tops, g)) {
			continue
		}
		v := of(g)
		if v == nil {
			return 0, false
		}
		total, ok = total+*v, true
	}
	return total, ok || !inPod // a baseline has no groups outside
}

// ofProcesses adds up a value of the processes of a component, or of all processes if component is empty. It returns
// false if there are none, or if the value of one is unknown.
func (e *Evidence) ofProcesses(component string, of func(Process) *float64) (total float64, ok bool) {
	for _, s := range e.Sandboxes {
		for _, p := range s.Processes {
			if component != "" && p.Component != component {
				continue
			}
			v := of(p)
			if v == nil {
				return 0, false
			}
			total, ok = total+*v, true
		}
	}
	return total, ok
}

// topsOfSubject returns those groups of the subject that are not inside another group of the subject.
func topsOfSubject(l *ledger.Ledger) []*ledger.Cgroup {
	return measured.Topmost(l, func(g *ledger.Cgroup) bool { return g.Role == string(kind.Subject) })
}

func hard(m *ledger.Memory) *int64 { return m.Hard }
func soft(m *ledger.Memory) *int64 { return m.Soft }

func workingSet(m *ledger.Memory) *int64 {
	return known.As(m.WorkingSet, func(n uint64) int64 { return int64(n) })
}

// attributed returns the hard memory of all groups of the sandboxes.
func attributed(e *Evidence, m *measured.Measured) (float64, bool) {
	return charged(m.Ledger, e, true, true, hard)
}

// own returns p, but without its memory if that is attributed to another process.
func (p Process) own() Process {
	if p.SameMemoryAs != 0 {
		p.Resident = Resident{}
	}
	return p
}

// memoryFamily is the family of a subject's memory metrics, which count the same memory in different ways. Of a family,
// a report's answer mentions only the metric that the experiment is about.
const memoryFamily = "memory"

// inMemory returns a memory metric. Metrics that count the same memory in different ways share a family.
func inMemory(name, family, clause, how string,
	value func(*Evidence, *measured.Measured) (float64, bool)) measured.Metric {
	return measured.Metric{
		Definition: metric.Definition{
			Name: name, Unit: quantity.UnitOf(name), Rank: metric.RankMemory, Pool: metric.Mean, Cost: true,
			Better: metric.Lower, Needs: measured.NeedMemory, Family: family, Clause: clause, How: how,
		},
		Value: seen(value),
	}
}

// planPods is the name of the sandboxes in plans. Processes that a runtime keeps outside of them belong to the subject
// itself.
const planPods = "pods, with their applications"

func planned(m measured.Metric) measured.Metric {
	m.Plan = planPods
	return m
}

const ofAll = " Of all sandboxes of the trial together, with what runs in them, at the end of the window."

// balanceMetrics returns the metrics of the machine's memory balance.
func balanceMetrics() []measured.Metric {
	line := func(name, family, clause, how string, of func(*Balance) int64) measured.Metric {
		return inMemory(name, family, clause, how, func(e *Evidence, _ *measured.Measured) (float64, bool) {
			if e.Balance == nil {
				return 0, false
			}
			return float64(of(e.Balance)), true
		})
	}
	// other returns a line that is not a cost of the sandboxes, such as the memory that other processes took, so that a
	// smaller value is not better.
	other := func(name, family, clause, how string, of func(*Balance) int64) measured.Metric {
		m := line(name, family, clause, how, of)
		m.Cost, m.Better = false, metric.Neither
		return m
	}
	const beside = "sandbox_beside"
	share := func(name, how string, of func(*Balance) int64) measured.Metric {
		m := inMemory(name, beside, "", how, func(e *Evidence, _ *measured.Measured) (float64, bool) {
			if e.Balance == nil || e.Balance.Taken <= 0 {
				return 0, false
			}
			return float64(of(e.Balance)) / float64(e.Balance.Taken), true
		})
		m.Cost, m.Better = false, metric.Neither
		return m
	}
	return []measured.Metric{
		line("sandbox_taken_bytes", "sandbox_taken", "takes {} of what the machine has to give",
			"`sandbox_lost_bytes` less `sandbox_kept_bytes`, `sandbox_beside_bytes` and `sandbox_neighbours_bytes`.",
			func(b *Balance) int64 { return b.Taken }),
		inMemory("sandbox_lost_bytes", memoryFamily, "takes {} of MemAvailable",
			"Decrease of MemAvailable from before the trial started anything until the end of the window, with the changes "+
				"that other programs caused.",
			func(e *Evidence, _ *measured.Measured) (float64, bool) {
				if e.AvailableInWindow == nil {
					return 0, false
				}
				return float64(e.AvailableBefore) - float64(*e.AvailableInWindow), true
			}),
		other("sandbox_kept_bytes", beside, "",
			"Growth of the free pages that CPUs keep, which MemAvailable leaves out (/proc/zoneinfo, the whole machine). "+
				"Negative if sandboxes took pages that were freed before the trial.",
			func(b *Balance) int64 { return b.Kept }),
		other("sandbox_beside_bytes", beside, "",
			"Hard memory of the trial's other groups, such as its loads', and the growth of Tare itself.",
			func(b *Balance) int64 { return b.Beside }),
		other("sandbox_neighbours_bytes", beside, "",
			"Growth of the machine's anonymous and shared memory, less the part of the trial's groups and of Tare itself.",
			func(b *Balance) int64 { return b.Neighbours }),
		line("sandbox_kernel_uncharged_bytes", memoryFamily, "",
			"Growth of the machine's kernel memory that cannot be freed, less what is charged to groups of the trial.",
			func(b *Balance) int64 { return b.Kernel }),
		other("sandbox_kernel_reclaimable_bytes", memoryFamily, "",
			"Part of `sandbox_hard_bytes` that the kernel can free at need: on cgroup v1, by the machine's counter; on v2 "+
				"always 0.",
			func(b *Balance) int64 { return b.Reclaimable }),
		other("sandbox_unattributed_bytes", "sandbox_unattributed", "leaves {} of that unattributed",
			"`sandbox_taken_bytes` less `sandbox_hard_bytes` and `sandbox_kernel_uncharged_bytes`, plus "+
				"`sandbox_kernel_reclaimable_bytes`.",
			func(b *Balance) int64 { return b.Remainder }),
		share("sandbox_unattributed_share", "`sandbox_unattributed_bytes` as a part of `sandbox_taken_bytes`.",
			func(b *Balance) int64 { return b.Remainder }),
		share("sandbox_uncharged_share",
			"Part of `sandbox_taken_bytes` that the sandboxes' control groups are not charged for. Negative where they "+
				"are charged for more than was taken.",
			func(b *Balance) int64 { return b.Kernel + b.Remainder }),
	}
}

func memoryMetrics() []measured.Metric {
	in := func(reading func(*measured.Measured) *ledger.Ledger, inPod, outside bool, part func(*ledger.Memory) *int64,
	) func(*Evidence, *measured.Measured) (float64, bool) {
		return func(e *Evidence, m *measured.Measured) (float64, bool) {
			return charged(reading(m), e, inPod, outside, part)
		}
	}
	window := func(m *measured.Measured) *ledger.Ledger { return m.Ledger }
	removed := func(m *measured.Measured) *ledger.Ledger { return m.Further[readingRemoved] }
	reclaimed := func(m *measured.Measured) *ledger.Ledger { return m.Further[readingReclaimed] }
	pss := func(of func(Process) uint64) func(*Evidence, *measured.Measured) (float64, bool) {
		return func(e *Evidence, _ *measured.Measured) (float64, bool) {
			return e.ofProcesses("", func(p Process) *float64 { return new(float64(of(p.own()))) })
		}
	}
	left := func(reading func(*measured.Measured) *ledger.Ledger) func(*Evidence, *measured.Measured) (float64, bool) {
		return func(e *Evidence, m *measured.Measured) (float64, bool) {
			h, ok1 := charged(reading(m), e, true, true, hard)
			s, ok2 := charged(reading(m), e, true, true, soft)
			return h + s, ok1 && ok2
		}
	}
	return []measured.Metric{
		inMemory("sandbox_hard_bytes", memoryFamily, "holds {} of hard memory",
			"Anon + shmem + kernel - reclaimable slab of the sandboxes' control groups, those of the pods and those outside "+
				"of them."+
				ofAll, attributed),
		inMemory("sandbox_soft_bytes", memoryFamily, "holds {} of page cache",
			"File - shmem + reclaimable slab of the same groups."+ofAll, in(window, true, true, soft)),
		planned(inMemory("sandbox_pod_hard_bytes", memoryFamily, "holds {} of hard memory charged to its pods",
			"Part of `sandbox_hard_bytes` in the pods' groups, which contain the processes that run the applications.",
			in(window, true, false, hard))),
		inMemory("sandbox_outside_hard_bytes", memoryFamily, "holds {} charged elsewhere",
			"Part of `sandbox_hard_bytes` outside of the pods' groups, such as shims. 0 without a runtime.",
			in(window, false, true, hard)),
		inMemory("sandbox_apart_bytes", "sandbox_apart", "of which {} belong to virtual machines that have only their "+
			"vCPU threads in the pods' groups (on cgroup v1, memory follows the thread-group leader)",
			"Hard memory of the groups charged for virtual machines whose threads run in the pods' groups while their "+
				"memory is charged elsewhere. Absent without such a sandbox."+ofAll, apartBytes),
		inMemory("sandbox_stayed_bytes", "sandbox_stayed", "of which {} are pages that virtual machines had touched before "+
			"they were moved into the pods' groups (on cgroup v2, a process moves whole, and its pages stay charged where they "+
			"were touched)",
			"Anonymous and shared memory of the overhead groups in which virtual machines started that are now in the "+
				"pods' groups, less that of processes still there (PSS). Absent without such a sandbox."+ofAll,
			stayedBytes),
		inMemory("sandbox_pod_working_set_bytes", memoryFamily, "shows up in Kubernetes with {}",
			"Current - inactive_file of the pods' groups, as the kubelet reports it.",
			in(window, true, false, workingSet)),
		inMemory("sandbox_pss_bytes", memoryFamily, "has {} resident in its processes (PSS)",
			"Proportional set size (smaps_rollup) of all processes of the sandboxes, with applications that the machine's "+
				"kernel runs. Processes that share all memory count once."+ofAll,
			pss(func(p Process) uint64 { return p.PSS })),
		inMemory("sandbox_pss_anon_bytes", memoryFamily, "", "Anonymous memory in `sandbox_pss_bytes`.",
			pss(func(p Process) uint64 { return p.Anon })),
		inMemory("sandbox_pss_file_bytes", memoryFamily, "", "Mapped files in `sandbox_pss_bytes`.",
			pss(func(p Process) uint64 { return p.File })),
		inMemory("sandbox_pss_shmem_bytes", memoryFamily, "",
			"Shared memory in `sandbox_pss_bytes`: memory of applications in gVisor and in virtual machines, with their "+
				"kernels' page cache.", pss(func(p Process) uint64 { return p.Shmem })),
		inMemory("sandbox_left_bytes", memoryFamily, "leaves {} charged when it has gone",
			"Hard and soft memory of the groups of `sandbox_hard_bytes` after the sandboxes were deleted, and before their "+
				"files were.",
			left(removed)),
		inMemory("sandbox_left_reclaimed_bytes", memoryFamily, "of which {} stay when the kernel takes back what it can",
			"Rest of `sandbox_left_bytes` after the kernel was asked to reclaim the pods' groups.", left(reclaimed)),
	}
}

var countMetrics = []measured.Metric{
	counted("sandbox_process_count", "processes",
		"Processes of all sandboxes, with the applications.",
		func(Process) int { return 1 }),
	counted("sandbox_thread_count", "threads",
		"Threads of all processes of the sandboxes, with the applications.",
		func(p Process) int { return p.Threads }),
	cpus("sandbox_pod_cpus", "uses {} charged to its pods", true,
		"CPU time per second of the pods' groups."),
	cpus("sandbox_outside_cpus", "uses {} charged elsewhere", false,
		"CPU time per second of the subject's groups outside of the pods. 0 without a runtime."),
}

func counted(name, what, how string, of func(Process) int) measured.Metric {
	return measured.Metric{
		Definition: metric.Definition{
			Name: name, Unit: quantity.Count, Rank: metric.RankOther, Pool: metric.Mean, Cost: true, Better: metric.Lower,
			Needs: measured.NeedRest, Clause: "has {} " + what, How: how,
		},
		Value: seen(func(e *Evidence, _ *measured.Measured) (float64, bool) {
			return e.ofProcesses("", func(p Process) *float64 { return new(float64(of(p))) })
		}),
	}
}

// cpus returns a metric of the CPU time of the pods' control groups, or of the groups outside of pods.
func cpus(name, clause string, inPod bool, how string) measured.Metric {
	plan := "" // processes outside of the pods belong to the subject itself
	if inPod {
		plan = planPods
	}
	return measured.Metric{
		Definition: metric.Definition{
			Name: name, Unit: quantity.CPUs, Rank: metric.RankCPU, Pool: metric.Mean, Cost: true, Better: metric.Lower,
			Needs: measured.NeedShare, Clause: clause, How: how, Plan: plan,
		},
		Value: seen(func(e *Evidence, m *measured.Measured) (float64, bool) {
			used := func(g *ledger.Cgroup) *float64 { return g.CPUSeconds }
			total, ok := ofGroups(m.Ledger, e, inPod, !inPod, used)
			return measured.Rate(total, m.Ledger.Window.Seconds), ok
		}),
	}
}

// componentMetrics returns the metrics of one component, over its processes.
func componentMetrics(component string) []measured.Metric {
	each := func(of func(Process) *float64) func(*measured.Measured) (float64, bool) {
		return seen(func(e *Evidence, _ *measured.Measured) (float64, bool) { return e.ofProcesses(component, of) })
	}
	perSecond := each(func(p Process) *float64 { return p.CPUSeconds })
	return []measured.Metric{{
		Definition: metric.Definition{
			Name: component + "_pss_bytes", Unit: quantity.Bytes, Rank: metric.RankMemory, Pool: metric.Mean, Cost: true,
			Better: metric.Lower, Needs: measured.NeedMemory, Family: memoryFamily,
			How: fmt.Sprintf("Part of `sandbox_pss_bytes` of the component %s.", component),
		},
		Value: each(func(p Process) *float64 { return new(float64(p.own().PSS)) }),
	}, {
		Definition: metric.Definition{
			Name: component + "_cpus", Unit: quantity.CPUs, Rank: metric.RankCPU, Pool: metric.Mean, Cost: true,
			Better: metric.Lower, Needs: measured.NeedShare, Family: "cpu",
			How: fmt.Sprintf("CPU time per second of the sandbox processes that are the component %s.", component),
		},
		Value: func(m *measured.Measured) (float64, bool) {
			total, ok := perSecond(m)
			return measured.Rate(total, m.Ledger.Window.Seconds), ok
		},
	}}
}

// Speaks returns the names of metrics that are headlines only in some experiments: for an idle sandbox, the cost of
// having it; for a sandbox that serves requests, that cost and where it is charged; for a sandbox that runs a user's
// program, the cost to that program. A load of Tare's that runs inside a sandbox has its own metrics.
func (guest) Speaks(s *kind.Setup) []string {
	served, inside, program := false, false, false
	for _, l := range s.Loads {
		served = served || l.To != ""
		if l.RunsInside() {
			inside = true
			_, plays := l.Kind.(kind.Player)
			program = program || !plays
		}
	}
	switch {
	case program:
		return []string{"sandbox_soft_bytes", "sandbox_left_bytes", "sandbox_left_reclaimed_bytes"}
	case inside:
		return nil
	case served:
		return []string{"sandbox_pod_cpus", "sandbox_outside_cpus", "sandbox_pod_hard_bytes", "sandbox_outside_hard_bytes",
			"sandbox_apart_bytes", "sandbox_stayed_bytes"}
	}
	return []string{"sandbox_start_seconds", "sandbox_stop_seconds", "sandbox_hard_bytes", "sandbox_taken_bytes",
		"sandbox_unattributed_bytes", "sandbox_thread_count"}
}
