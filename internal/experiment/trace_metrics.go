package experiment

import (
	"tare/internal/ledger"
	"tare/internal/load"
	"tare/internal/load/exec"
	"tare/internal/metric"
	"tare/internal/quantity"
	"tare/internal/record"
)

// traceMetrics are what a trial tells whose load makes events: how many there were, by each of the counts, what became of them, and what that cost.
var traceMetrics = []Metric{
	event("events_generated", "Events (execs) that the load made from its first to its last, warm-up included. The load counts each exec that succeeded.", metric.Neither, func(e *record.Events) *int64 { return &e.Generated }),
	event("events_counted", "The same events as the kernel counted them in the load's control group, less what it had counted there before the load began. A trial in which this is not `events_generated` is invalid.", metric.Neither, func(e *record.Events) *int64 { return &e.Counted }),
	event("events_delivered", "Events that the tracer delivered, until it had ended, less what it had delivered before the load began. Left out where there is no tracer, as all that follow.", metric.Higher, func(e *record.Events) *int64 { return e.Delivered }),
	event("events_lost", "Events that the tracer had to deliver and did not: those that the kernel counted in the load's control group (for one that traces the whole machine: everywhere), less `events_delivered`; 0 where it delivered more.", metric.Lower, lost),
	event("events_extra", "Events that it delivered beyond those that there were; 0 where it delivered fewer. Of one that traces the whole machine the harness's own, before the load, are taken for such that there were.", metric.Lower, extra),
	event("events_late", "Events that it delivered more than `late-after` after the load's end: too late for whoever watches, and not lost.", metric.Lower, func(e *record.Events) *int64 { return e.Late }),
	event("events_said_lost", "Events that it says itself it lost. Left out where it never says.", metric.Lower, func(e *record.Events) *int64 { return e.SaidLost }),
	event("events_unsaid", "How far that is from `events_lost`, in whichever way: what it loses without saying so, or says without having lost it. Left out where it never says.", metric.Lower, unsaid),
	{Definition: metric.Definition{Name: "events_lost_share", Unit: quantity.Part, Rank: metric.RankEvents, Pool: metric.Counts, Better: metric.Lower, Needs: needEvents, How: "Part of the events that the tracer had to deliver which it lost, pooled over the trials of an arm. Losses come in bursts, so events are no independent samples: the interval is too narrow where some are lost."},
		count: eventShare(lost, func(e *record.Events) *int64 { return e.Expected })},
	{Definition: metric.Definition{Name: "events_late_share", Unit: quantity.Part, Rank: metric.RankEvents, Pool: metric.Counts, Better: metric.Lower, Needs: needEvents, How: "Part of the events delivered which came late, pooled likewise."},
		count: eventShare(func(e *record.Events) *int64 { return e.Late }, func(e *record.Events) *int64 { return e.Delivered })},
	{Definition: metric.Definition{Name: "lossy_trial_share", Unit: quantity.Part, Rank: metric.RankEvents, Pool: metric.Counts, Better: metric.Lower, Needs: needEvents, How: "Part of the trials of an arm in which the tracer lost any event. Trials are independent: where none of n lost any, fewer than 3 in n such trials do, at 95 %."}, count: lossyTrials},
	{Definition: metric.Definition{Name: "cpu_seconds_per_kiloevent", Unit: quantity.Seconds + " per kiloevent", Rank: metric.RankCPU, Pool: metric.PerEvent, Cost: true, Better: metric.Lower, Needs: needEventCost, Headline: true, How: "What the tracer takes of CPU time per 1,000 events: the sum of the next two." + noSubject},
		value: whereEvents(func(m *measurement) (float64, bool) {
			agent, ok1 := m.agentPerKiloevent()
			programs, ok2 := perKiloevent((*measurement).bpfRate)(m)
			return agent + programs, ok1 && ok2
		})},
	{Definition: metric.Definition{Name: "agent_cpu_seconds_per_kiloevent", Unit: quantity.Seconds + " per kiloevent", Rank: metric.RankOther, Pool: metric.PerEvent, Cost: true, Better: metric.Lower, Needs: needAgentCost, How: "CPU time of the tracer's control group, its processes, from when all was set up until the tracer was told to end, per 1,000 events that the kernel counted in that time: what a tracer puts off until the load has ended is in it." + noSubject}, value: whereEvents((*measurement).agentPerKiloevent)},
	{Definition: metric.Definition{Name: "bpf_seconds_per_kiloevent", Unit: quantity.Seconds + " per kiloevent", Rank: metric.RankBPF, Pool: metric.PerEvent, Cost: true, Better: metric.Lower, Needs: needEventCost, How: "Run time of its eBPF programs, which the kernel charges to whoever execs, per 1,000 events made. Rates by their own windows, the ledger's and the load's. Its programs are those that its processes hold, and pinned ones that came with it." + noSubject}, value: perKiloevent((*measurement).bpfRate)},
	{Definition: metric.Definition{Name: "machine_cpu_seconds_per_kiloevent", Unit: quantity.Seconds + " per kiloevent", Rank: metric.RankOther, Pool: metric.Machine, Cost: true, Better: metric.Lower, Needs: needEventCost, How: "CPU time of the whole machine that was neither idle nor stolen, per 1,000 events made. The difference to the baseline is all that the tracer costs: softirq, kernel threads and what the work lost are in it."},
		value: perKiloevent(func(m *measurement) (float64, bool) {
			c := m.ledger.CPU
			return rate(c.Capacity-c.Idle-c.Steal, m.ledger.Window.Seconds), m.ledger.Window.Seconds > 0 && c.Capacity > 0 // a ledger of a part has no budget
		})},
	{Definition: metric.Definition{Name: "load_cpu_seconds_per_kiloevent", Unit: quantity.Seconds + " per kiloevent", Rank: metric.RankOther, Pool: metric.PerEvent, Cost: true, Better: metric.Lower, Needs: needEventCost, How: "CPU time of the load's control group per 1,000 events: the work itself, with the tracer's programs that run in it."}, value: perKiloevent(func(m *measurement) (float64, bool) { return m.roleRate("load") })},
	{Definition: metric.Definition{Name: "memory_peak_bytes", Unit: quantity.Bytes, Rank: metric.RankMemory, Pool: metric.Mean, Cost: true, Better: metric.Lower, Needs: needMemory, How: "Of the tracer's control group, which is new in each trial: the most memory of any kind that the kernel has charged to it until it was told to end, page cache included (memory.peak, or max_usage of v1)." + noSubject},
		value: whereEvents(func(m *measurement) (float64, bool) {
			switch {
			case m.subject == nil:
				return 0, true
			case m.tracer == nil || m.tracer.MemoryPeak == nil:
				return 0, false
			}
			return float64(*m.tracer.MemoryPeak), true
		})},
	{Definition: metric.Definition{Name: "memory_anon_bytes", Unit: quantity.Bytes, Rank: metric.RankMemory, Pool: metric.Mean, Cost: true, Better: metric.Lower, Needs: needMemory, How: "Of the same group at the end of the window: anonymous memory, without page cache." + noSubject},
		value: whereEvents(memory(func(m *ledger.Memory) *int64 { return signed(m.Anon) }))},
	{Definition: metric.Definition{Name: "rss_bytes", Unit: quantity.Bytes, Rank: metric.RankOther, Pool: metric.Mean, Cost: true, Better: metric.Lower, Needs: needMemory, Headline: true, How: "Resident sets of the tracer's processes (VmRSS), added up, before it was told to end. Pages that several share, such as of programs and libraries, count in each." + noSubject},
		value: resident(func(t *tracerReady) uint64 { return t.RSS })},
	{Definition: metric.Definition{Name: "rss_peak_bytes", Unit: quantity.Bytes, Rank: metric.RankOther, Pool: metric.Mean, Cost: true, Better: metric.Lower, Needs: needMemory, How: "The highest that each of these has been since the process began (VmHWM), added up: its start is in it." + noSubject},
		value: resident(func(t *tracerReady) uint64 { return t.RSSPeak })},
}

func resident(bytes func(*tracerReady) uint64) func(*measurement) (float64, bool) {
	return whereEvents(func(m *measurement) (float64, bool) {
		switch {
		case m.subject == nil:
			return 0, true
		case m.tracer == nil:
			return 0, false
		}
		return float64(bytes(m.tracer)), true
	})
}

// event is a metric that is one of the counts of events, or made of them; where that is null the trial cannot tell.
func event(name, how string, better metric.Direction, value func(*record.Events) *int64) Metric {
	return Metric{Definition: metric.Definition{
		Name: name, Unit: quantity.Count, Rank: metric.RankEvents, Pool: metric.Sum, Cost: true, Better: better, Needs: needEvents, Headline: name == "events_lost", How: how,
	}, value: func(m *measurement) (float64, bool) {
		if m.events == nil {
			return 0, false
		}
		n := value(m.events)
		if n == nil {
			return 0, false
		}
		return float64(*n), true
	}}
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

// eventShare is a part of events, to be pooled.
func eventShare(part, of func(*record.Events) *int64) func(*measurement) (int, int) {
	return func(m *measurement) (int, int) {
		if m.events == nil {
			return 0, 0
		}
		n, all := part(m.events), of(m.events)
		if n == nil || all == nil {
			return 0, 0
		}
		return int(*n), int(*all)
	}
}

func lossyTrials(m *measurement) (in, of int) {
	if m.events == nil {
		return 0, 0
	}
	n := lost(m.events)
	switch {
	case n == nil:
		return 0, 0
	case *n > 0:
		return 1, 1
	}
	return 0, 1
}

// whereEvents gives a value only where events are counted.
func whereEvents(value func(*measurement) (float64, bool)) func(*measurement) (float64, bool) {
	return func(m *measurement) (float64, bool) {
		if m.events == nil {
			return 0, false
		}
		return value(m)
	}
}

// minWindow is the part of the load's measured time that the window of the counters must have: on a machine where the scale itself is held up, rates of the two
// are of different times.
const minWindow = 0.5

func (m *measurement) windowCut() bool {
	return m.ledger.Window.Seconds < minWindow*m.spec.Duration.Seconds()
}

func perKiloevent(cost func(*measurement) (float64, bool)) func(*measurement) (float64, bool) {
	return whereEvents(per(func(m *measurement) (float64, bool) {
		c, ok := cost(m)
		return c, ok && !m.windowCut()
	}, func(m *measurement) (float64, bool) {
		total := 0.0
		for _, r := range m.eventLoads() {
			total += rate(float64(r.Done), r.Seconds)
		}
		return total / 1000, true
	}))
}

// eventLoads are the results of the loads that make events.
func (m *measurement) eventLoads() map[string]load.Result {
	made := map[string]load.Result{}
	for name, r := range m.loads {
		if p := m.spec.Loads[name]; p != nil && p.Kind.execs {
			made[name] = r
		}
	}
	return made
}

// agentPerKiloevent is the CPU time of the tracer's processes per 1,000 events.
func (m *measurement) agentPerKiloevent() (float64, bool) {
	switch {
	case m.subject == nil:
		return 0, true
	case m.tracer == nil || m.tracer.CPUSeconds == nil || m.events.Counted <= 0:
		return 0, false
	}
	return *m.tracer.CPUSeconds / float64(m.events.Counted) * 1000, true
}

// roleRate is the CPU time per second of the groups of a role.
func (m *measurement) roleRate(role string) (float64, bool) {
	total, found := m.roleSeconds(role)
	return rate(total, m.ledger.Window.Seconds), found && m.ledger.Window.Seconds > 0
}

func signed(n *uint64) *int64 {
	if n == nil {
		return nil
	}
	return new(int64(*n))
}

// judgeEvents: two counts of the same events that do not agree are no ground to hold a tracer against. What a tracer loses is no fault of the trial.
func (m *measurement) judgeEvents() []trip {
	e := m.events
	if e == nil {
		return nil
	}
	var trips []trip
	if e.Missed != 0 {
		trips = append(trips, tripped(gateCounts, float64(e.Missed), 0,
			"the kernel's counter of execs did not run for %d of them (recursion), so its count is too low; see what else traces execs here", e.Missed))
	}
	if e.Generated != e.Counted {
		trips = append(trips, tripped(gateCounts, float64(e.Generated), float64(e.Counted),
			"the load made %d execs, and the kernel counted %d in its control group: with one of the two wrong nothing can be said of a tracer; run it again", e.Generated, e.Counted))
	}
	return trips
}

// judgeExec judges a load that execs. It may use all of its CPU: the execs are the work.
func (m *measurement) judgeExec(name string, r load.Result) []trip {
	j := judgeLoad{name: name, r: r, part: m.spec.Loads[name], gates: m.spec.Gates}
	if r.Mode == load.Open {
		// As many as there are workers can be under way at the end.
		late := max(r.Late-int64(r.Counts[exec.CountWorkers]), 0)
		seen, allowed := ratio(r.Done-late, r.Intended), j.gates.float("rate")
		switch {
		case r.Intended == 0:
			j.trip(gateIdle, 0, 1, "no exec was intended in the window; raise the rate or the duration")
		case seen < allowed:
			j.trip(gateRate, seen, allowed, "%.2f %% of the intended execs were made in time, and %g %% must be; lower the rate, or give the load more workers", 100*seen, 100*allowed)
		}
	} else if r.Done == 0 {
		j.trip(gateIdle, 0, 1, "not one exec was made in the window; see the errors of the trial")
	}
	n := int64(0)
	for _, c := range r.Errors {
		n += c
	}
	if seen, allowed := ratio(n, max(r.Intended, n)), j.gates.float("errors"); seen > allowed {
		j.trip(gateErrors, seen, allowed, "%d of %d execs failed (%s)", n, max(r.Intended, n), errorKinds(r.Errors))
	}
	j.lag()
	j.drift()
	return j.trips
}
