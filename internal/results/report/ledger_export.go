package report

import (
	"encoding/csv"
	"fmt"
	"io"
	"maps"
	"slices"

	"tare/internal/lib/quantity"
	"tare/internal/scale/ledger"
)

// ledgerLabels say what a number of a ledger is of; those that say nothing are empty. They are the columns of the CSV
// form and the labels of OpenMetrics, in this order.
var ledgerLabels = []string{"id", "name", "cgroup", "context", "charge", "workload", "component"}

// labels are those of one thing.
type labels map[string]string

// ledgerNumber is a number of a ledger, nil where it is not known.
type ledgerNumber struct {
	kind, metric, unit, help string
	labels                   labels
	value                    *float64
}

// amount is a number that each thing of one kind has.
type amount[T any] struct {
	metric, unit, help string
	of                 func(T) *float64
}

// number is a pointer to any number as one to a float64.
func number[N int | int64 | uint64 | float64](n *N) *float64 {
	if n == nil {
		return nil
	}
	return new(float64(*n))
}

func (l labels) charged(c ledger.Charged) labels {
	l["charge"], l["workload"], l["component"] = string(c.Charge), c.Workload, c.Component
	return l
}

// ledgerNumbers calls with each number of a ledger, those of one kind and metric in turn.
func ledgerNumbers(l *ledger.Ledger, call func(ledgerNumber)) {
	s, n, b := quantity.Seconds, quantity.Count, quantity.Bytes
	emit(call, "window", []*ledger.Window{&l.Window}, func(*ledger.Window) labels { return labels{} },
		[]amount[*ledger.Window]{
			{"seconds", s, "The length of the window.", func(w *ledger.Window) *float64 { return &w.Seconds }},
			{"start_seconds", s, "When the window began, in seconds since 1970.", func(w *ledger.Window) *float64 {
				return new(float64(w.Start.UnixMilli()) / 1e3)
			}},
		})
	emit(call, "cpu", []*ledger.CPU{&l.CPU}, func(*ledger.CPU) labels { return labels{} }, []amount[*ledger.CPU]{
		{"capacity_seconds", s, "The CPU time that there was: the window times the CPUs.",
			func(c *ledger.CPU) *float64 { return &c.Capacity }},
		{"idle_seconds", s, "CPU time in which nothing ran, as the kernel counts it.",
			func(c *ledger.CPU) *float64 { return &c.Idle }},
		{"idle_stolen_seconds", s, "The part of idle time in which the hypervisor had taken the CPU.",
			func(c *ledger.CPU) *float64 { return c.IdleStolen }},
		{"steal_seconds", s, "CPU time that the hypervisor took.", func(c *ledger.CPU) *float64 { return &c.Steal }},
		{"attributed_seconds", s, "CPU time on a line of the budget.",
			func(c *ledger.CPU) *float64 { return &c.Attributed }},
		{"unexplained_seconds", s, "The remainder of the capacity.",
			func(c *ledger.CPU) *float64 { return &c.Unexplained }},
		{"bpf_unsplit_seconds", s, "Run time of eBPF programs that samples could not place, inside the lines.",
			func(c *ledger.CPU) *float64 { return c.BPFUnsplit }},
	})
	emit(call, "line", l.CPU.Lines, func(x ledger.CPULine) labels { return labels{"name": x.Name} },
		[]amount[ledger.CPULine]{{"cpu_seconds", s, "CPU time by line of the budget.", func(x ledger.CPULine) *float64 {
			if x.Method == ledger.MethodNone {
				return nil
			}
			return &x.Seconds
		}}})
	emit(call, "component", l.Components, func(c ledger.Component) labels { return labels{}.charged(c.Charged) },
		[]amount[ledger.Component]{
			{"cpu_seconds", s, "CPU time of the component's groups, each second in one component.",
				func(c ledger.Component) *float64 { return c.CPUSeconds }},
			{"bpf_seconds", s, "Run time of its eBPF programs, without what was stolen.",
				func(c ledger.Component) *float64 { return c.BPFSeconds }},
			{"bpf_others_seconds", s, "The part of it in groups of others.",
				func(c ledger.Component) *float64 { return c.BPFOthersSeconds }},
			{"bpf_unsplit_seconds", s, "The part of it that samples could not place.",
				func(c ledger.Component) *float64 { return c.BPFUnsplitSeconds }},
			{"memory_hard_bytes", b, "Hard memory of its groups.",
				func(c ledger.Component) *float64 { return number(c.MemoryHardBytes) }},
			{"map_bytes", b, "Its eBPF maps, whichever group is charged for them.",
				func(c ledger.Component) *float64 { return number(c.MapBytes) }},
		})
	emit(call, "workload", l.Workloads, func(w ledger.Workload) labels { return labels{"workload": w.Name} },
		[]amount[ledger.Workload]{
			{"gross_cpu_seconds", s, "CPU time of the workload and of what serves it.",
				func(w ledger.Workload) *float64 { return w.GrossCPU }},
			{"net_cpu_seconds", s, "CPU time of the application itself.",
				func(w ledger.Workload) *float64 { return w.NetCPU }},
			{"tare_cpu_seconds", s, "CPU time of infrastructure on its behalf.",
				func(w ledger.Workload) *float64 { return w.TareCPU }},
			{"gross_memory_hard_bytes", b, "Hard memory of the workload and of what serves it.",
				func(w ledger.Workload) *float64 { return number(w.GrossMemory) }},
			{"net_memory_hard_bytes", b, "Hard memory of the application itself.",
				func(w ledger.Workload) *float64 { return number(w.NetMemory) }},
			{"tare_memory_hard_bytes", b, "Hard memory of infrastructure on its behalf.",
				func(w ledger.Workload) *float64 { return number(w.TareMemory) }},
		})
	if l.Tare != nil {
		emit(call, "tare", []*ledger.Tare{l.Tare}, func(*ledger.Tare) labels { return labels{} }, []amount[*ledger.Tare]{
			{"cpu_seconds", s, "CPU time of all infrastructure.", func(t *ledger.Tare) *float64 { return t.CPU }},
			{"bpf_unsplit_seconds", s, "Run time of its eBPF programs that samples could not place.",
				func(t *ledger.Tare) *float64 { return t.BPFUnsplit }},
			{"cpu_twice_at_most_seconds", s, "The part of its CPU time that may be counted twice, at most.",
				func(t *ledger.Tare) *float64 { return t.CPUTwice }},
			{"unassigned_cpu_seconds", s, "The part of its CPU time in no workload's gross.",
				func(t *ledger.Tare) *float64 { return t.UnassignedCPU }},
			{"memory_hard_bytes", b, "Hard memory of all infrastructure.",
				func(t *ledger.Tare) *float64 { return number(t.Memory) }},
			{"unassigned_memory_hard_bytes", b, "The part of its hard memory in no workload's gross.",
				func(t *ledger.Tare) *float64 { return number(t.UnassignedMemory) }},
		})
	}
	groupNumbers(l, call)
	programNumbers(l, call)
	sandboxNumbers(l, call)
	emit(call, "self", []*ledger.Self{&l.Self}, func(*ledger.Self) labels { return labels{} }, []amount[*ledger.Self]{
		{"cpu_seconds", s, "CPU time of the scale, its setup included.",
			func(x *ledger.Self) *float64 { return &x.CPUSeconds }},
		{"resident_bytes", b, "The most memory that the scale had resident.",
			func(x *ledger.Self) *float64 { return number(&x.RSSBytes) }},
		{"bpf_seconds", s, "Run time of the scale's own eBPF programs.",
			func(x *ledger.Self) *float64 { return x.BPFSeconds }},
		{"bpf_bytes", b, "Memory of the scale's own eBPF programs and maps.",
			func(x *ledger.Self) *float64 { return number(x.BPFBytes) }},
		{"samples", n, "Samples that were taken.", func(x *ledger.Self) *float64 { return number(&x.Samples) }},
		{"samples_lost", n, "Samples that were lost.", func(x *ledger.Self) *float64 { return number(&x.SamplesLost) }},
	})
	codes := map[string]float64{}
	for _, w := range l.Warnings {
		codes[w.Code]++
	}
	emit(call, "warning", slices.Sorted(maps.Keys(codes)), func(code string) labels { return labels{"name": code} },
		[]amount[string]{{"messages", n, "Warnings by code: read them before quoting.",
			func(code string) *float64 { return new(codes[code]) }}})
}

// emit calls with all amounts of all things of one kind.
func emit[T any](call func(ledgerNumber), kind string, things []T, of func(T) labels, amounts []amount[T]) {
	for _, a := range amounts {
		for _, x := range things {
			call(ledgerNumber{kind, a.metric, a.unit, a.help, of(x), a.of(x)})
		}
	}
}

func groupNumbers(l *ledger.Ledger, call func(ledgerNumber)) {
	s, n, b := quantity.Seconds, quantity.Count, quantity.Bytes
	held := func(of func(*ledger.Memory) *float64) func(ledger.Cgroup) *float64 {
		return func(g ledger.Cgroup) *float64 {
			if g.Memory == nil {
				return nil
			}
			return of(g.Memory)
		}
	}
	emit(call, "cgroup", l.Cgroups, func(g ledger.Cgroup) labels { return labels{"cgroup": g.Path}.charged(g.Charged) },
		[]amount[ledger.Cgroup]{
			{"cpu_seconds", s, "CPU time of a control group with all below it.",
				func(g ledger.Cgroup) *float64 { return g.CPUSeconds }},
			{"bpf_seconds", s, "Run time of eBPF programs above its tasks, as far as samples placed it.",
				func(g ledger.Cgroup) *float64 { return g.BPFSeconds }},
			{"bpf_inside_seconds", s, "The part of that in its CPU time.",
				func(g ledger.Cgroup) *float64 { return g.BPFInsideSeconds }},
			{"throttled_seconds", s, "Time in which its CPU limit stopped it.",
				func(g ledger.Cgroup) *float64 { return g.ThrottledSeconds }},
			{"throttled_periods", n, "Periods in which its CPU limit stopped it.",
				func(g ledger.Cgroup) *float64 { return number(g.ThrottledPeriods) }},
			{"periods", n, "Periods of its CPU limit.", func(g ledger.Cgroup) *float64 { return number(g.Periods) }},
			{"memory_hard_bytes", b, "Memory that cannot be reclaimed, with all groups below it.",
				held(func(m *ledger.Memory) *float64 { return number(m.Hard) })},
			{"memory_soft_bytes", b, "Memory that can be reclaimed, with all groups below it.",
				held(func(m *ledger.Memory) *float64 { return number(m.Soft) })},
			{"memory_working_set_bytes", b, "Its working set, as the kubelet reports it.",
				held(func(m *ledger.Memory) *float64 { return number(m.WorkingSet) })},
		})
}

// placed is a share with the program that it is of.
type placed struct {
	*ledger.Program
	ledger.Share
}

func programNumbers(l *ledger.Ledger, call func(ledgerNumber)) {
	s, n, b := quantity.Seconds, quantity.Count, quantity.Bytes
	of := func(p ledger.Program) labels {
		return labels{"id": fmt.Sprint(p.ID), "name": p.Name}.charged(p.Charged)
	}
	emit(call, "program", l.Programs, of, []amount[ledger.Program]{
		{"runs", n, "Runs of an eBPF program.", func(p ledger.Program) *float64 { return number(p.RunCount) }},
		{"run_seconds", s, "Run time of an eBPF program, by the kernel's count.",
			func(p ledger.Program) *float64 { return p.RunSeconds }},
		{"stolen_seconds", s, "The part of it in which the hypervisor had taken the CPU.",
			func(p ledger.Program) *float64 {
				if p.StolenSeconds == nil {
					return nil
				}
				return &p.StolenSeconds.Value
			}},
		{"memory_bytes", b, "Memory of the program itself.",
			func(p ledger.Program) *float64 { return number(p.MemoryBytes) }},
	})
	var shares []placed
	for i := range l.Programs {
		for _, share := range l.Programs[i].Shares {
			shares = append(shares, placed{&l.Programs[i], share})
		}
	}
	emit(call, "share", shares, func(p placed) labels {
		all := of(*p.Program)
		if all["context"] = string(p.Context); p.Cgroup != nil {
			all["cgroup"] = *p.Cgroup
		}
		return all
	}, []amount[placed]{
		{"seconds", s, "Run time of a program by control group and context; without a group: not placed.",
			func(p placed) *float64 { return &p.Seconds }},
		{"lower_seconds", s, "The lower end of its 95 % interval.", func(p placed) *float64 { return &p.Lo }},
		{"upper_seconds", s, "The upper end of its 95 % interval.", func(p placed) *float64 { return &p.Hi }},
	})
	emit(call, "map", l.Maps, func(m ledger.Map) labels {
		all := labels{"id": fmt.Sprint(m.ID), "name": m.Name}.charged(m.Charged)
		if m.ChargedTo != nil {
			all["cgroup"] = *m.ChargedTo
		}
		return all
	}, []amount[ledger.Map]{
		{"bytes", b, "Memory of an eBPF map, and the group that is charged for it.",
			func(m ledger.Map) *float64 { return number(m.Bytes) }},
	})
}

func sandboxNumbers(l *ledger.Ledger, call func(ledgerNumber)) {
	s, b := quantity.Seconds, quantity.Bytes
	emit(call, "sandbox", l.Sandboxes, func(x ledger.Sandbox) labels {
		all := labels{"id": x.ID}
		if x.Pod != nil && x.Pod.Name != "" {
			all["name"] = x.Pod.Namespace + "/" + x.Pod.Name
		}
		return all
	}, []amount[ledger.Sandbox]{
		{"gross_cpu_seconds", s, "CPU time of a sandbox.", func(x ledger.Sandbox) *float64 { return x.GrossCPU }},
		{"net_cpu_seconds", s, "CPU time of its application.", func(x ledger.Sandbox) *float64 { return x.NetCPU }},
		{"tare_cpu_seconds", s, "CPU time of what serves it.", func(x ledger.Sandbox) *float64 { return x.TareCPU }},
		{"gross_memory_pss_bytes", b, "Resident memory of a sandbox as PSS.",
			func(x ledger.Sandbox) *float64 { return number(x.GrossMemory) }},
		{"net_memory_pss_bytes", b, "Resident memory of its application as PSS.",
			func(x ledger.Sandbox) *float64 { return number(x.NetMemory) }},
		{"tare_memory_pss_bytes", b, "Resident memory of what serves it as PSS.",
			func(x ledger.Sandbox) *float64 { return number(x.TareMemory) }},
	})
}

// LedgerCSV writes a row for each number of a ledger (RFC 4180). What is not known is empty, never 0.
func LedgerCSV(w io.Writer, l *ledger.Ledger) error {
	c := csv.NewWriter(w)
	_ = c.Write(slices.Concat([]string{"kind"}, ledgerLabels, []string{"metric", "unit", "value"}))
	ledgerNumbers(l, func(n ledgerNumber) {
		row := []string{n.kind}
		for _, label := range ledgerLabels {
			row = append(row, cell(n.labels[label]))
		}
		_ = c.Write(append(row, n.metric, n.unit, formatted(n.value, 'f')))
	})
	c.Flush()
	if err := c.Error(); err != nil {
		return fmt.Errorf("writing the ledger as CSV: %w", err)
	}
	return nil
}

// LedgerOpenMetrics writes a ledger in the text format of OpenMetrics 1.0. Every family is a gauge: a number of a
// window does not grow from one ledger to the next. What is not known has no sample. Groups of one path, which were
// removed and made again, are one series.
func LedgerOpenMetrics(w io.Writer, l *ledger.Ledger) error {
	x := newExposition(w, nil)
	x.sums = true // a series that stands there twice is refused
	ledgerNumbers(l, func(n ledgerNumber) {
		if n.value == nil || !finite(*n.value) {
			return
		}
		said := maps.Clone(n.labels)
		maps.DeleteFunc(said, func(_, value string) bool { return value == "" })
		x.add(n.kind+"_"+n.metric, n.help, said, *n.value)
	})
	return x.close("the ledger")
}
