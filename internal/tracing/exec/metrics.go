package exec

import (
	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
	"tare/internal/lib/quantity"
	"tare/internal/scale/ledger"
)

// gateCounts trips if the load's count and the kernel's differ, or if the kernel's counter missed execs.
var gateCounts = &measured.Gate{
	Name: "counts", Breaks: []measured.Need{measured.Counted}, Quiet: ledger.Unknown,
	Why: "one of two counts of events is wrong",
}

// Gates returns the load's gates in addition to the usual ones.
func (asLoad) Gates() []*measured.Gate { return []*measured.Gate{gateCounts} }

// Metrics returns the metrics of the events that the load makes: their number, and the cost of making them.
func (asLoad) Metrics() []measured.Metric {
	return []measured.Metric{
		{
			Definition: metric.Definition{
				Name: "events_generated", Unit: quantity.Count, Rank: metric.RankEvents, Pool: metric.Sum, Cost: true,
				Family: "events", Tally: "generated",
				Needs: measured.NeedEvents,
				How:   "Execs that succeeded, as counted by the load, warm-up included.",
			},
			Value: Count(func(e *record.Events) *int64 { return &e.Generated }),
		},
		{
			Definition: metric.Definition{
				Name: "events_counted", Unit: quantity.Count, Rank: metric.RankEvents, Pool: metric.Sum, Cost: true,
				Family: "events", Tally: "counted by the kernel",
				Needs: measured.NeedEvents,
				How: "The same as counted by the kernel in the load's control group: any difference makes the trial invalid. " +
					"Absent in pods.",
			},
			Value: Count(func(e *record.Events) *int64 {
				if e.KernelCount == nil {
					return nil
				}
				return &e.Counted
			}),
		},
		{
			Definition: metric.Definition{
				Name: "machine_cpu_seconds_per_kiloevent", Unit: quantity.Seconds + " per kiloevent",
				Rank: metric.RankOther, Pool: metric.Machine, Cost: true, Better: metric.Lower,
				Needs: measured.NeedEventCost, Answers: true,
				Rule: 1, // under rule 0, time stolen from idle CPUs was subtracted twice
				How: "CPU time of the machine that was neither idle nor stolen, per 1,000 events made. Its difference from " +
					"the baseline is all that a tracer costs.",
			},
			Value: PerKiloevent(machineRate),
		},
		{
			Definition: metric.Definition{
				Name: "load_cpu_seconds_per_kiloevent", Unit: quantity.Seconds + " per kiloevent",
				Family: "load",
				Rank:   metric.RankOther, Pool: metric.PerEvent, Cost: true, Better: metric.Lower,
				Needs: measured.NeedEventCost, Answers: true,
				How: "CPU time of the load's control group per 1,000 events. Includes a tracer's eBPF programs, which run in the " +
					"load's processes.",
			},
			Value: PerKiloevent(func(m *measured.Measured) (float64, bool) { return m.RoleRate(kind.Load) }),
		},
	}
}

// machineRate returns the CPU seconds per second of the whole machine.
func machineRate(m *measured.Measured) (float64, bool) {
	c, seconds := m.Ledger.CPU, m.Ledger.Window.Seconds
	// A ledger that covers only a part of the machine has no total.
	return measured.Rate(c.Busy(), seconds), seconds > 0 && c.Capacity > 0
}

// Count returns the Value of a metric that is a count of events, or a number computed from such counts. of(e) must
// return nil if the trial does not have the count.
func Count(of func(*record.Events) *int64) func(*measured.Measured) (float64, bool) {
	return WhereEvents(func(m *measured.Measured) (float64, bool) {
		n := of(m.Events)
		if n == nil {
			return 0, false
		}
		return float64(*n), true
	})
}

// WhereEvents restricts the Value of a metric to trials in which events are counted.
func WhereEvents(value func(*measured.Measured) (float64, bool)) func(*measured.Measured) (float64, bool) {
	return func(m *measured.Measured) (float64, bool) {
		if m.Events == nil {
			return 0, false
		}
		return value(m)
	}
}

// PerKiloevent returns the Value of a metric that divides a cost per second of the ledger's window by the thousands of
// events per second of the load's window. The metric has no value if the ledger's window was cut (WindowCut).
func PerKiloevent(cost func(*measured.Measured) (float64, bool)) func(*measured.Measured) (float64, bool) {
	return WhereEvents(measured.Per(func(m *measured.Measured) (float64, bool) {
		c, ok := cost(m)
		return c, ok && !m.WindowCut()
	}, kiloeventRate))
}

// kiloeventRate returns the number of events made per second, in thousands.
func kiloeventRate(m *measured.Measured) (float64, bool) {
	total := 0.0
	for name, r := range m.Loads {
		if p := m.Setup.Loads[name]; p != nil && p.MakesEvents() {
			rate, known := measured.AnswerRate(&r)
			if !known {
				return 0, false
			}
			total += rate
		}
	}
	return total / 1000, true
}

// Judge returns the gates that the load and its counts trip. It does not judge how much CPU time the load uses, because
// making execs is its work.
func (asLoad) Judge(m *measured.Measured, name string) []measured.Trip {
	j := m.JudgeLoad(name)
	r := j.Result
	switch open := r.Mode == load.Open; {
	case open && r.Intended == 0:
		j.Trip(measured.GateIdle, 0, 1, "no exec was intended in the window; raise the rate or the duration")
	case r.Done == 0:
		j.Trip(measured.GateIdle, 0, 1, "not one exec was made in the window; see the errors of the trial")
	case open:
		// At the end of the window, at most one exec of each worker can be in progress.
		seen, allowed := measured.Reached(&r, int64(r.Counts[CountWorkers])), m.Setup.Gates.Float("rate")
		if seen < allowed {
			j.Trip(measured.GateRate, seen, allowed, "execs were made at %.2f %% of the intended rate, and %g %% is "+
				"required; lower the rate, or give the load more workers", 100*seen, 100*allowed)
		}
	}
	judgeErrors(j, m.Setup.Gates.Float("errors"))
	j.Lag()
	j.Drift()
	return append(j.Trips, judgeEvents(m)...)
}

// judgeErrors compares the number of failed execs with the number of intended ones. In a storm, which has no schedule,
// every attempt counts as intended.
func judgeErrors(j *measured.LoadJudge, allowed float64) {
	failed := j.Result.Failures()
	all := max(j.Result.Intended, failed)
	if seen := measured.Ratio(failed, all); seen > allowed {
		j.Trip(measured.GateErrors, seen, allowed, "%d of %d execs failed (%s)",
			failed, all, measured.ErrorKinds(j.Result.Errors))
	}
}

// judgeEvents checks that the load and the kernel counted the same events. Otherwise a tracer cannot be judged by
// either count. A trial in which the tracer lost events is still valid.
func judgeEvents(m *measured.Measured) []measured.Trip {
	e := m.Events
	if e == nil || e.KernelCount == nil {
		return nil
	}
	var trips []measured.Trip
	if e.Missed != 0 {
		trips = append(trips, measured.Tripped(gateCounts, float64(e.Missed), 0,
			"the kernel's counter of execs did not run for %d of them (recursion), so its count is too low; "+
				"see what else traces execs here", e.Missed))
	}
	if e.Generated != e.Counted {
		trips = append(trips, measured.Tripped(gateCounts, float64(e.Generated), float64(e.Counted),
			"the load made %d execs, and the kernel counted %d in its control group: with one of the two wrong "+
				"nothing can be said of a tracer; run it again", e.Generated, e.Counted))
	}
	return trips
}
