package tracer

import (
	"slices"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
	"tare/internal/lib/quantity"
	execload "tare/internal/tracing/exec"
	"tare/internal/workloads/subject/command"
)

// Names and a unit that several metrics use.
const (
	eventsExpected  = "events_expected"
	cpuPerKiloevent = "cpu_seconds_per_kiloevent"
	perKiloevent    = quantity.Seconds + " per kiloevent"
)

// perExpected is the metric.Definition.Rule of costs per event that the tracer should deliver. Under rule 0, they were
// costs per event that the load made.
const perExpected = 1

// Metrics returns the metrics of all tracers: what happened to the events, and what that cost.
func (asSubject) Metrics() []measured.Metric { return metrics }

// Metrics returns the metrics of all tracers.
func (anyCommand) Metrics() []measured.Metric { return metrics }

var metrics = slices.Concat(ofEvents, command.Metrics, ofNodes)

// ofEvents are the metrics of what happened to events, and of the cost of an event.
var ofEvents = []measured.Metric{
	event(eventsExpected, "expected", metric.Neither, func(e *record.Events) *int64 { return e.Expected },
		"Events that the tracer should deliver, by the kernel's count: of the load's control group, or of the machine for "+
			"a tracer of all of it."),
	event("events_delivered", "delivered", metric.Higher, func(e *record.Events) *int64 { return e.Delivered },
		"Events that it delivered, without those before the load began."),
	event("events_lost", "lost", metric.Lower, lost,
		"`events_expected` less `events_delivered`; at least 0."),
	event("events_extra", "", metric.Lower, extra,
		"Delivered events beyond the number of execs that were made; at least 0."),
	event("events_late", "late", metric.Lower, func(e *record.Events) *int64 { return e.Late },
		"Events of the load that were delivered more than `late-after` after its end."),
	event("events_said_lost", "lost by its own count", metric.Lower, func(e *record.Events) *int64 { return e.SaidLost },
		"Events that the tracer itself reports lost; absent if it never reports any."),
	event("events_unsaid", "", metric.Lower, unsaid,
		"Absolute difference of `events_said_lost` and `events_lost`; absent likewise."),
	share("events", "events_lost_share", eventShare(lost, func(e *record.Events) *int64 { return e.Expected }),
		"Part of `events_expected` that the tracer lost, pooled over the trials of an arm. Losses come in bursts: "+
			"the interval is too narrow where some are lost."),
	share("events", "events_late_share", eventShare(
		func(e *record.Events) *int64 { return e.Late }, func(e *record.Events) *int64 { return e.Delivered }),
		"Part of the delivered events that came late, pooled over the trials of an arm."),
	share("", "lossy_trial_share", lossyTrials,
		"Part of the trials of an arm in which the tracer lost any event. Where none of n lost any, fewer than 3 in n "+
			"such trials do, at 95 %."),
	{
		Definition: metric.Definition{
			Name: cpuPerKiloevent, Unit: perKiloevent, Rank: metric.RankCPU, Pool: metric.PerExpected, Cost: true,
			Family: "cpu", What: "CPU time", Per: "kiloevent",
			Better: metric.Lower, Needs: measured.NeedEventCost, Headline: true, Lead: true,
			Answers: true, Rule: perExpected,
			How: "CPU time that the tracer takes per 1,000 events: the sum of `agent_cpu_seconds_per_kiloevent` and " +
				"`bpf_seconds_per_kiloevent`." + measured.NoSubject,
		},
		Value: execload.WhereEvents(func(m *measured.Measured) (float64, bool) {
			agent, ok1 := agentPerKiloevent(m)
			programs, ok2 := programsPerKiloevent(m)
			return agent + programs, ok1 && ok2
		}),
	},
	{
		Definition: metric.Definition{
			Name: "agent_cpu_seconds_per_kiloevent", Unit: perKiloevent, Rank: metric.RankOther, Pool: metric.PerExpected,
			Cost: true, Better: metric.Lower, Needs: measured.NeedAgentCost, Rule: perExpected,
			How: "CPU time of the tracer's control group after its setup, per 1,000 events of that time that it should " +
				"deliver. In pods: in the window, per 1,000 of the load's events, whatever else it traced." + measured.NoSubject,
		},
		Value: execload.WhereEvents(agentPerKiloevent),
	},
	{
		Definition: metric.Definition{
			Name: "bpf_seconds_per_kiloevent", Unit: perKiloevent, Rank: metric.RankBPF, Pool: metric.PerExpected, Cost: true,
			Family: "bpf", What: "kernel time", Per: "kiloevent",
			Better: metric.Lower, Needs: measured.NeedEventCost, Answers: true, Rule: perExpected,
			How: "Run time of its eBPF programs, which the kernel charges to the process that execs, per 1,000 events to " +
				"deliver. Its programs are those that its processes hold, and pinned ones that came with it. Absent for one " +
				"whose events are not counted." +
				measured.NoSubject,
		},
		Value: programsPerKiloevent,
	},
}

// ofNodes are the metrics of trials on nodes.
var ofNodes = []measured.Metric{
	{
		Definition: metric.Definition{
			Name: "node_max_" + cpuPerKiloevent, Unit: perKiloevent, Rank: metric.RankOther, Pool: metric.Nodes,
			Better: metric.Lower, Needs: measured.NeedEventCost, Answers: true, Rule: perExpected, Of: cpuPerKiloevent,
			How: "Largest `cpu_seconds_per_kiloevent` of a node. Only of trials of tracers on nodes.",
		},
		Value: costliestNode,
	},
}

// event returns a metric that is a count of events, or is computed from such counts. tally is the name of the metric's
// column in the table of sums, or "" if it has none.
func event(name, tally string, better metric.Direction, of func(*record.Events) *int64, how string) measured.Metric {
	m := measured.Metric{
		Definition: metric.Definition{
			Name: name, Unit: quantity.Count, Rank: metric.RankEvents, Pool: metric.Sum, Cost: true, Better: better,
			Needs: measured.NeedEvents, Family: "events", Tally: tally, How: how,
		},
		Value: execload.Count(of),
	}
	if name == "events_lost" {
		m.Headline, m.Lead, m.TallyOf = true, true, eventsExpected
	}
	return m
}

// share returns a metric that is a ratio of counts, pooled over trials.
func share(family, name string, count func(*measured.Measured) (in, of int), how string) measured.Metric {
	return measured.Metric{
		Definition: metric.Definition{
			Name: name, Unit: quantity.Part, Rank: metric.RankEvents, Pool: metric.Counts, Better: metric.Lower,
			Needs: measured.NeedEvents, Family: family, How: how,
		},
		Count: count,
	}
}

func lost(e *record.Events) *int64 {
	if e.Expected == nil || e.Delivered == nil {
		return nil
	}
	return new(max(*e.Expected-*e.Delivered, 0))
}

func extra(e *record.Events) *int64 {
	if e.AtMost == nil || e.Delivered == nil {
		return nil
	}
	return new(max(*e.Delivered-*e.AtMost, 0))
}

func unsaid(e *record.Events) *int64 {
	n := lost(e)
	if n == nil || e.SaidLost == nil {
		return nil
	}
	return new(max(*n-*e.SaidLost, *e.SaidLost-*n))
}

// eventShare returns the Count of a metric that is a ratio of two numbers of events.
func eventShare(part, of func(*record.Events) *int64) func(*measured.Measured) (int, int) {
	return func(m *measured.Measured) (int, int) {
		if m.Events == nil {
			return 0, 0
		}
		n, all := part(m.Events), of(m.Events)
		if n == nil || all == nil {
			return 0, 0
		}
		return int(*n), int(*all)
	}
}

func lossyTrials(m *measured.Measured) (in, of int) {
	if m.Events == nil {
		return 0, 0
	}
	n := lost(m.Events)
	switch {
	case n == nil:
		return 0, 0
	case *n > 0:
		return 1, 1
	}
	return 0, 1
}

// evidenceOf returns the evidence of the trial's tracer, whatever its name is, or nil if there is none.
func evidenceOf(m *measured.Measured) *Evidence {
	for _, found := range m.Evidence {
		if e, ok := found.(*Evidence); ok {
			return e
		}
	}
	return nil
}

// agentPerKiloevent returns the CPU time of the tracer's processes, in seconds per 1,000 events that it should deliver.
// In pods, it returns the seconds per 1,000 events of the load.
func agentPerKiloevent(m *measured.Measured) (float64, bool) {
	e := evidenceOf(m)
	switch {
	case m.Subject == nil:
		return 0, true
	case m.Tree == measured.Nowhere: // in pods, where the nodes' agents read the tracer's groups
		return execload.PerKiloevent(func(m *measured.Measured) (float64, bool) { return m.RoleRate(kind.Subject) })(m)
	case e == nil || e.CPUSeconds == nil || m.Events.Expected == nil || *m.Events.Expected <= 0:
		return 0, false
	}
	return *e.CPUSeconds / float64(*m.Events.Expected) * 1000, true
}

// programsPerKiloevent returns the run time of the tracer's eBPF programs per 1,000 events that it should deliver. In
// the window only the load's events are counted. A tracer of the whole machine also has to deliver those of others:
// their ratio to the load's events is assumed to be the same in the window as in the whole trial.
var programsPerKiloevent = execload.PerKiloevent(func(m *measured.Measured) (float64, bool) {
	rate, ok := m.BPFRate()
	switch of := m.Events.Expected; {
	case m.Subject == nil:
		return rate, ok
	case of == nil || *of <= 0: // the tracer's events are not counted, so how many it should deliver is unknown
		return 0, false
	default:
		return rate * float64(m.Events.Generated) / float64(*of), ok
	}
})

func costliestNode(m *measured.Measured) (most float64, ok bool) {
	for _, n := range m.Nodes {
		if n.Failed != "" {
			continue
		}
		v, has := n.Trial.Metrics[cpuPerKiloevent]
		if !has {
			return 0, false
		}
		most, ok = max(most, v), true
	}
	return most, ok
}
