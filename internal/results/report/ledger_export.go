package report

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strconv"

	"tare/internal/lib/known"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/lib/text"
	"tare/internal/scale/ledger"
)

// ledgerLabels identify a number of a ledger; those that do not apply are empty. They are the columns of the CSV form
// and the labels of OpenMetrics, in this order.
var ledgerLabels = []string{"id", "name", "cgroup", "context", "charge", "workload", "component"}

// labels identify one thing of a ledger, such as a control group or a program.
type labels map[string]string

// amount is one number about a thing of a ledger; its value is nil if unknown.
type amount struct {
	metric, unit, help string
	value              *float64
}

// ledgerNumber is one number of a ledger, with the thing that it is about.
type ledgerNumber struct {
	kind   string
	labels labels
	amount
}

// number converts a pointer to any number to a pointer to a float64; nil stays nil.
func number[N int | int64 | uint64 | float64](n *N) *float64 {
	return known.As(n, func(n N) float64 { return float64(n) })
}

func (l labels) charged(c ledger.Charged) labels {
	l["charge"], l["workload"], l["component"] = string(c.Charge), c.Workload, c.Component
	return l
}

// ledgerNumbers returns the numbers of a ledger, grouped by kind and metric.
func ledgerNumbers(l *ledger.Ledger) []ledgerNumber {
	x := numbers{order: map[[2]string]int{}}
	x.addBudget(l)
	x.addCharged(l)
	x.addGroups(l)
	x.addPrograms(l)
	x.addSandboxes(l)
	x.addSelf(l)
	slices.SortStableFunc(x.all, func(a, b ledgerNumber) int {
		return cmp.Compare(x.order[[2]string{a.kind, a.metric}], x.order[[2]string{b.kind, b.metric}])
	})
	return x.all
}

// numbers collects the numbers of a ledger.
type numbers struct {
	all   []ledgerNumber
	order map[[2]string]int // of kinds and metrics: the order in which they were first added
}

func (x *numbers) add(kind string, of labels, amounts ...amount) {
	for _, a := range amounts {
		if key := [2]string{kind, a.metric}; x.order[key] == 0 {
			x.order[key] = len(x.order) + 1
		}
		x.all = append(x.all, ledgerNumber{kind, of, a})
	}
}

func (x *numbers) addBudget(l *ledger.Ledger) {
	s := quantity.Seconds
	x.add("window", nil,
		amount{"seconds", s, "The length of the window.", &l.Window.Seconds},
		amount{"start_seconds", s, "When the window began, in seconds since 1970.",
			new(float64(l.Window.Start.UnixMilli()) / 1e3)})
	x.add("cpu", nil,
		amount{"capacity_seconds", s, "The CPU time that there was: the window times the CPUs.", &l.CPU.Capacity},
		amount{"idle_seconds", s, "CPU time in which nothing ran, as the kernel counts it.", &l.CPU.Idle},
		amount{"idle_stolen_seconds", s, "The part of idle time in which the hypervisor had taken the CPU.",
			l.CPU.IdleStolen},
		amount{"steal_seconds", s, "CPU time that the hypervisor took.", &l.CPU.Steal},
		amount{"attributed_seconds", s, "CPU time on a line of the budget.", &l.CPU.Attributed},
		amount{"unexplained_seconds", s, "The remainder of the capacity.", &l.CPU.Unexplained},
		amount{"bpf_unsplit_seconds", s, "Run time of eBPF programs that samples could not place, inside the lines.",
			l.CPU.BPFUnsplit})
	for _, line := range l.CPU.Lines {
		took := &line.Seconds
		if line.Method == ledger.MethodNone {
			took = nil
		}
		x.add("line", labels{"name": line.Name}, amount{"cpu_seconds", s, "CPU time by line of the budget.", took})
	}
}

// addCharged adds what components and workloads used.
func (x *numbers) addCharged(l *ledger.Ledger) {
	s, b := quantity.Seconds, quantity.Bytes
	for _, c := range l.Components {
		x.add("component", labels{}.charged(c.Charged),
			amount{"cpu_seconds", s, "CPU time of the component's groups, each second in one component.", c.CPUSeconds},
			amount{"bpf_seconds", s, "Run time of its eBPF programs, without what was stolen.", c.BPFSeconds},
			amount{"bpf_others_seconds", s, "The part of it in groups of others.", c.BPFOthersSeconds},
			amount{"bpf_unsplit_seconds", s, "The part of it that samples could not place.", c.BPFUnsplitSeconds},
			amount{"memory_hard_bytes", b, "Hard memory of its groups.", number(c.MemoryHardBytes)},
			amount{"map_bytes", b, "Its eBPF maps, whichever group is charged for them.", number(c.MapBytes)})
	}
	for _, w := range l.Workloads {
		x.add("workload", labels{"workload": w.Name},
			amount{"gross_cpu_seconds", s, "CPU time of the workload and of what serves it.", w.GrossCPU},
			amount{"net_cpu_seconds", s, "CPU time of the application itself.", w.NetCPU},
			amount{"tare_cpu_seconds", s, "CPU time of infrastructure on its behalf.", w.TareCPU},
			amount{"gross_memory_hard_bytes", b, "Hard memory of the workload and of what serves it.", number(w.GrossMemory)},
			amount{"net_memory_hard_bytes", b, "Hard memory of the application itself.", number(w.NetMemory)},
			amount{"tare_memory_hard_bytes", b, "Hard memory of infrastructure on its behalf.", number(w.TareMemory)})
	}
	if t := l.Tare; t != nil {
		x.add("tare", nil,
			amount{"cpu_seconds", s, "CPU time of all infrastructure.", t.CPU},
			amount{"bpf_unsplit_seconds", s, "Run time of its eBPF programs that samples could not place.", t.BPFUnsplit},
			amount{"cpu_twice_at_most_seconds", s, "The part of its CPU time that may be counted twice, at most.", t.CPUTwice},
			amount{"unassigned_cpu_seconds", s, "The part of its CPU time in no workload's gross.", t.UnassignedCPU},
			amount{"memory_hard_bytes", b, "Hard memory of all infrastructure.", number(t.Memory)},
			amount{"unassigned_memory_hard_bytes", b, "The part of its hard memory in no workload's gross.",
				number(t.UnassignedMemory)})
	}
}

func (x *numbers) addGroups(l *ledger.Ledger) {
	s, n, b := quantity.Seconds, quantity.Count, quantity.Bytes
	for _, g := range l.Cgroups {
		m := cmp.Or(g.Memory, new(ledger.Memory))
		x.add("cgroup", labels{"cgroup": g.Path}.charged(g.Charged),
			amount{"cpu_seconds", s, "CPU time of a control group with all below it.", g.CPUSeconds},
			amount{"bpf_seconds", s, "Run time of eBPF programs above its tasks, as far as samples placed it.", g.BPFSeconds},
			amount{"bpf_inside_seconds", s, "The part of that in its CPU time.", g.BPFInsideSeconds},
			amount{"throttled_seconds", s, "Time in which its CPU limit stopped it.", g.ThrottledSeconds},
			amount{"throttled_periods", n, "Periods in which its CPU limit stopped it.", number(g.ThrottledPeriods)},
			amount{"periods", n, "Periods of its CPU limit.", number(g.Periods)},
			amount{"memory_hard_bytes", b, "Memory that cannot be reclaimed, with all groups below it.", number(m.Hard)},
			amount{"memory_soft_bytes", b, "Memory that can be reclaimed, with all groups below it.", number(m.Soft)},
			amount{"memory_working_set_bytes", b, "Its working set, as the kubelet reports it.", number(m.WorkingSet)})
	}
}

func (x *numbers) addPrograms(l *ledger.Ledger) {
	s, n, b := quantity.Seconds, quantity.Count, quantity.Bytes
	for _, p := range l.Programs {
		stolen := known.As(p.StolenSeconds, func(of ledger.Interval) float64 { return of.Value })
		x.add("program", programLabels(p),
			amount{"runs", n, "Runs of an eBPF program.", number(p.RunCount)},
			amount{"run_seconds", s, "Run time of an eBPF program, by the kernel's count.", p.RunSeconds},
			amount{"stolen_seconds", s, "The part of it in which the hypervisor had taken the CPU.", stolen},
			amount{"memory_bytes", b, "Memory of the program itself.", number(p.MemoryBytes)})
	}
	for _, p := range l.Programs {
		for _, share := range p.Shares {
			of := programLabels(p)
			if of["context"] = string(share.Context); share.Cgroup != nil {
				of["cgroup"] = *share.Cgroup
			}
			x.add("share", of,
				amount{"seconds", s, "Run time of a program by control group and context; without a group: not placed.",
					&share.Seconds},
				amount{"lower_seconds", s, "The lower end of its 95 % interval.", &share.Lo},
				amount{"upper_seconds", s, "The upper end of its 95 % interval.", &share.Hi})
		}
	}
	for _, m := range l.Maps {
		of := labels{"id": fmt.Sprint(m.ID), "name": m.Name}.charged(m.Charged)
		if m.ChargedTo != nil {
			of["cgroup"] = *m.ChargedTo
		}
		x.add("map", of,
			amount{"bytes", b, "Memory of an eBPF map, and the group that is charged for it.", number(m.Bytes)})
	}
}

func (x *numbers) addSandboxes(l *ledger.Ledger) {
	s, b := quantity.Seconds, quantity.Bytes
	for _, box := range l.Sandboxes {
		of := labels{"id": box.ID}
		if box.Pod != nil && box.Pod.Name != "" {
			of["name"] = box.Pod.Namespace + "/" + box.Pod.Name
		} else {
			of["name"] = box.Name
		}
		x.add("sandbox", of,
			amount{"gross_cpu_seconds", s, "CPU time of a sandbox.", box.GrossCPU},
			amount{"net_cpu_seconds", s, "CPU time of its application.", box.NetCPU},
			amount{"tare_cpu_seconds", s, "CPU time of what serves it.", box.TareCPU},
			amount{"gross_memory_pss_bytes", b, "Resident memory of a sandbox as PSS.", number(box.GrossMemory)},
			amount{"net_memory_pss_bytes", b, "Resident memory of its application as PSS.", number(box.NetMemory)},
			amount{"tare_memory_pss_bytes", b, "Resident memory of what serves it as PSS.", number(box.TareMemory)})
	}
}

func (x *numbers) addSelf(l *ledger.Ledger) {
	s, n, b := quantity.Seconds, quantity.Count, quantity.Bytes
	x.add("self", nil,
		amount{"cpu_seconds", s, "CPU time of the scale, its setup included.", &l.Self.CPUSeconds},
		amount{"resident_bytes", b, "The most memory that the scale had resident.", number(&l.Self.RSSBytes)},
		amount{"bpf_seconds", s, "Run time of the scale's own eBPF programs.", l.Self.BPFSeconds},
		amount{"bpf_bytes", b, "Memory of the scale's own eBPF programs and maps.", number(l.Self.BPFBytes)},
		amount{"samples", n, "Samples that were taken.", number(&l.Self.Samples)},
		amount{"samples_lost", n, "Samples that were lost.", number(&l.Self.SamplesLost)})
	codes := map[string]float64{}
	for _, w := range l.Warnings {
		codes[w.Code]++
	}
	for _, code := range slices.Sorted(maps.Keys(codes)) {
		x.add("warning", labels{"name": code},
			amount{"messages", n, "Warnings by code: read them before quoting.", new(codes[code])})
	}
}

func programLabels(p ledger.Program) labels {
	return labels{"id": fmt.Sprint(p.ID), "name": p.Name}.charged(p.Charged)
}

// LedgerCSV writes a row for each number of a ledger (RFC 4180). Unknown values are empty, never 0.
func LedgerCSV(w io.Writer, l *ledger.Ledger) error {
	c := newLedgerCSV(w)
	return c.add(l)
}

// SeriesCSV writes ledgers as LedgerCSV does, with one header and one more column: when the window began, in seconds
// since 1970.
func SeriesCSV(w io.Writer, all iter.Seq[*ledger.Ledger]) error {
	c := newLedgerCSV(w, "window_start_seconds")
	return each(all, func(l *ledger.Ledger) error {
		return c.add(l, strconv.FormatFloat(float64(l.Window.Start.UnixMilli())/1e3, 'f', 3, 64))
	})
}

type ledgerCSV struct{ *csv.Writer }

// newLedgerCSV writes the header, with further columns at its end.
func newLedgerCSV(w io.Writer, further ...string) ledgerCSV {
	c := csv.NewWriter(w)
	// add returns the first error of all writes.
	_ = c.Write(slices.Concat([]string{"kind"}, ledgerLabels, []string{"metric", "unit", "value"}, further))
	return ledgerCSV{c}
}

// add writes the rows of a ledger, with the values of the further columns in each.
func (c ledgerCSV) add(l *ledger.Ledger, further ...string) error {
	for _, n := range ledgerNumbers(l) {
		row := []string{n.kind}
		row = append(row, lists.Map(ledgerLabels, func(label string) string { return text.Cell(n.labels[label]) })...)
		row = append(row, n.metric, n.unit, formatted(n.value, 'f'))
		_ = c.Write(append(row, further...))
	}
	c.Flush()
	if err := c.Error(); err != nil {
		return fmt.Errorf("writing the ledger as CSV: %w", err)
	}
	return nil
}

// LedgerOpenMetrics writes a ledger in the text format of OpenMetrics 1.0. Every family is a gauge, because the numbers
// are of one window and do not accumulate over ledgers. Unknown values have no sample. If a group was removed and
// another one created at the same path, both share one series.
func LedgerOpenMetrics(w io.Writer, l *ledger.Ledger) error {
	x := newExposition(w, nil)
	x.sums = true // OpenMetrics forbids duplicate series
	for _, n := range ledgerNumbers(l) {
		if n.value == nil || !finite(*n.value) {
			continue
		}
		said := maps.Clone(n.labels)
		maps.DeleteFunc(said, func(_, value string) bool { return value == "" })
		x.add(n.kind+"_"+n.metric, n.help, said, *n.value)
	}
	return x.close("the ledger")
}
