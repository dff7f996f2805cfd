package experiment

import (
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"time"

	"tare/internal/load"
	"tare/internal/load/connect/generation"
	"tare/internal/record"
	"tare/internal/role"
)

// trip is a gate that a trial tripped. Its cause, and what it voids, are settled once all are known.
type trip struct {
	gate *Gate
	record.Reason
}

func tripped(g *Gate, seen, allowed float64, format string, args ...any) trip {
	return trip{g, record.Reason{Gate: g.Name, Seen: seen, Allowed: allowed, Message: fmt.Sprintf(format, args...)}}
}

// judge holds a trial against the gates of its spec and gives those that it tripped: who tripped each, and which of the metrics that the trial
// has it voids.
func (m *measurement) judge() []record.Reason {
	return m.reasons(m.trips(), m.values(), m.counts())
}

// trips holds a trial against the gates of its spec.
func (m *measurement) trips() []trip {
	var trips []trip
	for _, name := range slices.Sorted(maps.Keys(m.loads)) {
		if part := m.spec.Loads[name]; part != nil && part.Kind.watches {
			trips = append(trips, m.judgeProbe(name, m.loads[name])...)
			continue
		}
		if part := m.spec.Loads[name]; part != nil && part.Kind.execs {
			trips = append(trips, m.judgeExec(name, m.loads[name])...)
			continue
		}
		if _, judges := m.loads[name].Counts[generation.Judged]; judges {
			trips = append(trips, judgeConnect(name, m.loads[name])...)
			continue
		}
		j := judgeLoad{name: name, r: m.loads[name], part: m.spec.Loads[name], gates: m.spec.Gates, stalls: stallsOf(m.ledger, m.tree, m.shared),
			copies: m.otherCopiesWorked(name)}
		j.rate()
		j.errors()
		j.drain()
		j.lag()
		j.lagRunning()
		j.generator()
		j.connections()
		j.drift()
		trips = append(trips, j.trips...)
	}
	if m.work != nil {
		j := judgeLoad{name: "the subject", r: *m.work, gates: m.spec.Gates, works: true}
		j.work()
		j.errors()
		j.drift()
		trips = append(trips, j.trips...)
	}
	return slices.Concat(trips, m.window(), m.judgeEvents(), m.throttled(), m.held())
}

// window: the counters must have been read at the edges of the load's window.
func (m *measurement) window() []trip {
	if !m.windowCut() || m.shared { // nodes that share a machine hold each other up; their counts are right all the same
		return nil
	}
	seen := m.ledger.Window.Seconds / m.spec.Duration.Seconds()
	return []trip{tripped(gateWindow, seen, minWindow,
		"counters were read %.3f s apart, and the load's window is %v: tare itself was held up; stop what else is running here",
		m.ledger.Window.Seconds, m.spec.Duration)}
}

// otherCopiesWorked reports whether a copy of the same load, other than the named one, had requests answered.
func (m *measurement) otherCopiesWorked(name string) bool {
	for other, r := range m.loads {
		if other != name && isCopyOf(other, name) && r.Done > 0 {
			return true
		}
	}
	return false
}

// judgeLoad judges one load.
type judgeLoad struct {
	name  string
	r     load.Result
	part  *Part
	gates Options
	works bool // it is no load, but the work of a subject
	trips []trip

	copies bool // other copies of the same load had requests answered

	stalls role.Stalls // of the machine, in the window
}

func (j *judgeLoad) trip(g *Gate, seen, allowed float64, format string, args ...any) {
	t := tripped(g, seen, allowed, format, args...)
	t.Message = j.name + ": " + t.Message
	j.trips = append(j.trips, t)
}

// rate: an open load must have its requests answered within the window, save those that were naturally under way when it closed.
func (j *judgeLoad) rate() {
	if j.r.Mode != load.Open {
		switch {
		case j.r.Done > 0:
		case j.copies:
			j.trip(gateIdleCopy, 0, 1, "not one request was answered, and other copies of the load worked; lengthen the duration, or see the errors of the trial")
		default:
			j.trip(gateIdle, 0, 1, "not one request was answered; lengthen the duration, or see the errors of the trial")
		}
		return
	}
	if j.r.Intended == 0 {
		j.trip(gateIdle, 0, 1, "no request was intended in the window; raise the rate or the duration")
		return
	}
	late := max(j.r.Late-j.underWay()-j.heldUp(), 0)
	seen := float64(j.r.Done-late) / float64(j.r.Intended)
	if allowed := j.gates.float("rate"); seen < allowed {
		j.trip(gateRate, seen, allowed, "%.2f %% of the intended requests were answered in time, and %g %% must be; lower the rate or give the load more connections",
			100*seen, 100*allowed)
	}
}

// work: a subject that works by itself must have done some. It has neither a rate to keep nor a generator beside it.
func (j *judgeLoad) work() {
	if j.r.Done == 0 {
		j.trip(gateIdle, 0, 1, "no piece of its work began in the window; lengthen the duration")
	}
}

// underWay is how many requests are open at once when nothing queues, by Little's law: twice the rate times the median time from
// sending to the answer, and never more than there are connections.
func (j *judgeLoad) underWay() int64 {
	h, err := j.r.Histogram(load.Service)
	if err != nil || h == nil || j.r.Seconds <= 0 {
		return 0
	}
	n := 2 * float64(j.r.Intended) / j.r.Seconds * float64(h.ValueAtQuantile(50)) / 1e9
	return min(int64(math.Ceil(n)), int64(j.r.Connections))
}

// heldUp is how many requests the window closed upon because the machine stood still just then: those that were due since its last stall
// began, if the window ends in the stall or before as much time again has passed, in which the queue drains. They were answered
// all the same, or other gates speak.
func (j *judgeLoad) heldUp() int64 {
	if len(j.stalls.Spans) == 0 {
		return 0
	}
	last := j.stalls.Spans[len(j.stalls.Spans)-1] // Spans are in order and apart
	from, to := last[0], min(last[1], j.stalls.To)
	if j.stalls.To > to+(to-from) {
		return 0
	}
	return int64(math.Ceil(j.r.TargetRate * float64(j.stalls.To-from) / 1e9))
}

func (j *judgeLoad) errors() {
	n := int64(0)
	for _, c := range j.r.Errors {
		n += c
	}
	if seen, allowed := ratio(n, j.r.Intended), j.gates.float("errors"); seen > allowed {
		j.trip(gateErrors, seen, allowed, "%d of %d requests failed (%s); lower the rate, or see what the application says", n, j.r.Intended, errorKinds(j.r.Errors))
	}
}

func errorKinds(errors map[string]int64) string {
	text := ""
	for _, kind := range slices.Sorted(maps.Keys(errors)) {
		if text != "" {
			text += ", "
		}
		text += fmt.Sprintf("%s %d", kind, errors[kind])
	}
	return text
}

func (j *judgeLoad) drain() {
	if seen, allowed := ratio(j.r.Unfinished, j.r.Intended), j.gates.float("errors"); seen > allowed {
		j.trip(gateDrain, seen, allowed, "%d of %d requests were still without an answer after the drain; lower the rate", j.r.Unfinished, j.r.Intended)
	}
}

func ratio(n, of int64) float64 {
	if of <= 0 {
		return 0
	}
	return float64(n) / float64(of)
}

func (j *judgeLoad) lag() {
	h, err := j.r.Histogram(load.OwnLag)
	if j.r.Mode != load.Open || err != nil || h == nil {
		return
	}
	seen, allowed := time.Duration(h.ValueAtQuantile(99)), j.gates.duration("lag")
	if seen > allowed {
		j.trip(gateLag, seen.Seconds(), allowed.Seconds(), "the generator started the 99th percentile of requests %v late, and %v is allowed; lower the rate or give the load a CPU of its own",
			seen.Round(time.Microsecond), allowed)
	}
}

func (j *judgeLoad) generator() {
	if j.r.CPUs <= 0 || j.r.Seconds <= 0 || j.r.Mode != load.Open {
		return
	}
	if seen, allowed := j.r.CPUSeconds/(j.r.CPUs*j.r.Seconds), j.gates.float("generator_cpu"); seen > allowed {
		j.trip(gateGenerator, seen, allowed, "the generator used %.0f %% of its CPUs, and %g %% is allowed; lower the rate or give it more threads", 100*seen, 100*allowed)
	}
}

func (j *judgeLoad) connections() {
	if j.part == nil || !j.part.Kind.holdsConnections(j.part.Options) {
		return
	}
	if seen, allowed := ratio(int64(j.r.MaxConnections), int64(j.r.Connections)), j.gates.float("connections"); seen < allowed {
		j.trip(gateConnections, seen, allowed, "%d of %d connections were open at once; ask for fewer", j.r.MaxConnections, j.r.Connections)
	}
}

// throttled: a group whose CPU nobody limited must not have been held back, by a limit above it for instance.
func (m *measurement) throttled() []trip {
	var trips []trip
	limited := map[string]bool{}
	for _, sec := range m.spec.sections() {
		for name, p := range sec.parts {
			_, limited[name] = p.Limits["cpus"]
		}
	}
	if arm := m.spec.Subject(m.arm); arm != nil {
		_, limited[subjectGroup] = arm.Limits["cpus"]
	}
	for _, g := range m.ledger.Cgroups {
		if !within(g.Path, m.tree) || g.ThrottledSeconds == nil || limited[path.Base(g.Path)] || m.shared && g.Path == m.tree {
			continue
		}
		if seen, allowed := *g.ThrottledSeconds, m.spec.Gates.duration("throttled"); seen > allowed.Seconds() {
			trips = append(trips, tripped(gateThrottled, seen, allowed.Seconds(),
				"%s was throttled for %.3f s, and no CPU limit was asked for it; raise the limit of the group that tare runs in", g.Path, seen))
		}
	}
	return trips
}
