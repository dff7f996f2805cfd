package measured

import (
	"slices"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/metric"
	"tare/internal/lib/quantity"
	"tare/internal/scale/ledger"
)

// requestBusy names the metric for the whole CPU time of a request. The other requestMetrics are its parts.
const requestBusy = "busy_cpu_seconds_per_request"

// requestMetrics show where the CPU time of a request goes. The parts add up to the whole in each trial.
var requestMetrics = []Metric{
	ofRequest(requestBusy, "",
		"CPU time of the machine without others and Tare, per request answered: the sum of the next five. Without eBPF "+
			"programs in interrupts where the kernel counts these separately. Absent where only a part of the machine's "+
			"control groups can be seen.",
		(*Measured).busySeconds),
	byComponent(ofRequest("subject_cpu_seconds_per_request", "its own processes",
		"Its part in the subject's control groups."+NoSubject, (*Measured).subjectSeconds)),
	ofRequest("app_cpu_seconds_per_request", "applications",
		"Its part in the applications' control groups.",
		func(m *Measured) (float64, bool) { return m.RoleSeconds(kind.Application) }),
	ofRequest("load_cpu_seconds_per_request", "loads", "Its part in the loads' control groups.",
		func(m *Measured) (float64, bool) { return m.RoleSeconds(kind.Load) }),
	ofRequest("kernel_cpu_seconds_per_request", "kernel threads and interrupts beside them",
		"Its part in kernel threads, and in interrupts that the kernel charges to no group, of the whole machine. Where "+
			"the ledger has no line for interrupts, these are in the next.",
		(*Measured).kernelSeconds),
	ofRequest("unexplained_cpu_seconds_per_request", "what is on no account",
		"The remainder: CPU time on no line of the ledger's budget, and of the trial's control group outside the "+
			"groups of subject, applications and loads. Can be negative.",
		(*Measured).unaccounted),
}

// ofRequest makes a metric of CPU time per answered request, for experiments with a subject in the path of requests.
// If part is empty, the metric is the whole.
func ofRequest(name, part, how string, seconds func(*Measured) (float64, bool)) Metric {
	d := metric.Definition{
		Name: name, Family: "cpu", Unit: quantity.Seconds + " per request", Rank: metric.RankCPU, Pool: metric.PerRequest,
		Cost: true, Better: metric.Lower, Needs: needBudget, Answers: true, Part: part, PartOf: requestBusy,
		How: how + " Only in experiments with a subject in the path of requests.",
	}
	if part == "" {
		d.PartOf, d.Sum = "", "a request takes {} of the machine's CPU time"
	}
	return Metric{Definition: d, Value: func(m *Measured) (float64, bool) {
		s, ok := seconds(m)
		return m.perRequest(s, ok)
	}}
}

// byComponent adds the metric's value for each component of the subject.
func byComponent(m Metric) Metric {
	m.Component = func(m *Measured, component string) (float64, bool) {
		s, ok := cpuSeconds(m.component(component))
		return m.perRequest(s, ok)
	}
	return m
}

// perRequest divides CPU time of the window, in seconds, by the number of answered requests.
func (m *Measured) perRequest(seconds float64, ok bool) (float64, bool) {
	requests, told := m.RequestRate()
	window := m.Ledger.Window.Seconds
	if !ok || !told || requests <= 0 || window <= 0 || !m.hasInPath() {
		return 0, false
	}
	return Rate(seconds, window) / requests, true
}

// subjectSeconds returns the CPU time of the subject's groups; 0 without a subject or if it has no processes of its
// own.
func (m *Measured) subjectSeconds() (float64, bool) {
	if warned(m.Ledger, WarnShared) != nil {
		return 0, false
	}
	groups := m.ofRole(kind.Subject)
	if m.Subject == nil || len(groups) == 0 {
		return 0, true
	}
	return cpuSeconds(groups)
}

// needBudget includes Alone because kernel threads and interrupts also do work for other processes.
var needBudget = append(slices.Clone(NeedRequestCost), Alone)

func (m *Measured) hasInPath() bool {
	return m.Setup != nil &&
		slices.ContainsFunc(m.Setup.Subjects(), func(p *kind.Part) bool { return p.Kind.About().InPath.With(p.Options) })
}

// busySeconds returns the CPU time of the trial and of the kernel on its behalf, and the unexplained remainder.
func (m *Measured) busySeconds() (float64, bool) {
	if m.Ledger.CPU.Part != nil {
		return 0, false
	}
	own, ok1 := m.CPURate()
	kernel, ok2 := m.kernelSeconds()
	return own*m.Ledger.Window.Seconds + kernel + m.Ledger.CPU.Unexplained, ok1 && ok2
}

// unaccounted returns the unexplained remainder, plus the trial's own CPU time outside the groups of its subject,
// applications and loads. The counter of the group that contains them is read at another moment than their own
// counters, so there is a difference of some microseconds even if nothing else ran in it.
func (m *Measured) unaccounted() (float64, bool) {
	own, known := m.CPURate()
	if !known || m.Ledger.CPU.Part != nil {
		return 0, false
	}
	rest := m.Ledger.CPU.Unexplained + own*m.Ledger.Window.Seconds
	subject, known := m.subjectSeconds()
	if !known {
		return 0, false
	}
	rest -= subject
	for _, role := range []kind.Role{kind.Application, kind.Load} {
		if len(m.ofRole(role)) == 0 {
			continue
		}
		used, known := m.RoleSeconds(role)
		if !known {
			return 0, false
		}
		rest -= used
	}
	return rest, true
}

// kernelSeconds returns the CPU time of kernel threads and of interrupts outside control groups. Where interrupts are
// not known, they are part of the unexplained remainder.
func (m *Measured) kernelSeconds() (total float64, ok bool) {
	for _, l := range m.Ledger.CPU.Lines {
		if l.Name == ledger.LineKernel || l.Name == ledger.LineInterrupts {
			total += l.Seconds
			ok = ok || l.Name == ledger.LineKernel
		}
	}
	return total, ok
}
