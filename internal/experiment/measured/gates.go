package measured

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
	"tare/internal/experiment/record"
	"tare/internal/experiment/role"
	"tare/internal/lib/lists"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/ledger"
)

// Trip is a gate that a trial tripped. Its cause, and the metrics that it voids, are determined once all trips are
// known.
type Trip struct {
	Gate *Gate
	record.Reason
}

// Tripped returns a trip of a gate. The message says what was seen and what to change.
func Tripped(g *Gate, seen, allowed float64, format string, args ...any) Trip {
	return Trip{g, record.Reason{Gate: g.Name, Seen: seen, Allowed: allowed, Message: fmt.Sprintf(format, args...)}}
}

// Judge is a load with its own gates in place of the usual ones. Its method Judge can still check usual gates, by the
// methods of m.JudgeLoad(name): one gate each, or all of them by Usual.
type Judge interface {
	Judge(m *Measured, name string) []Trip
}

// Judge checks a trial against the gates of its spec and returns those that it tripped, with the cause of each and the
// metrics of the trial that it voids.
func (m *Measured) Judge() []record.Reason {
	return m.Reasons(m.Trips(), m.Values(), m.Counts())
}

// Trips checks a trial against the gates of its spec.
func (m *Measured) Trips() []Trip {
	var trips []Trip
	for _, name := range slices.Sorted(maps.Keys(m.Loads)) {
		part := m.Setup.Loads[name]
		if part != nil {
			if own, ok := part.Kind.(Judge); ok {
				trips = append(trips, own.Judge(m, name)...)
				continue
			}
		}
		j := m.JudgeLoad(name)
		j.Usual()
		trips = append(trips, j.Trips...)
	}
	if m.Work != nil {
		j := LoadJudge{m: m, name: "the subject", Result: *m.Work, works: true}
		j.work()
		j.Errors()
		j.Drift()
		trips = append(trips, j.Trips...)
	}
	return slices.Concat(trips, m.window(), m.contained(), m.throttled(), m.held())
}

// minWindow and maxWindow are the fractions of the load's measured time that the window of the counters must last at
// least and at most. If Tare itself is delayed, the counters' rates describe another time than the load's.
const minWindow, maxWindow = 0.5, 1.5

// WindowCut reports whether the window of the counters is so short that it does not describe the window of the loads.
func (m *Measured) WindowCut() bool {
	return m.Ledger.Window.Seconds < minWindow*m.Setup.Duration.Seconds()
}

// window checks that the counters were read at the edges of the load's window.
func (m *Measured) window() []Trip {
	// Nodes that share a machine delay each other, but their counts are still correct.
	seen := m.Ledger.Window.Seconds / m.Setup.Duration.Seconds()
	if !m.WindowCut() && seen <= maxWindow || m.Shared {
		return nil
	}
	allowed, which := minWindow, "first was late"
	if seen > maxWindow {
		allowed, which = maxWindow, "second was late, after the load had ended"
	}
	return []Trip{Tripped(GateWindow, seen, allowed,
		"counters were read %.3f s apart, and the load's window is %v (the %s): tare itself was held up; stop what else is "+
			"running here",
		m.Ledger.Window.Seconds, m.Setup.Duration, which)}
}

// WarnStrays is the code of the warning about a process of the trial in a control group that is not the trial's.
const WarnStrays = "left-group"

// WarnUnseen is the code of the warning that processes may have left their groups inside the window without a trace.
const WarnUnseen = "moves-unseen"

// WarnShared is the code of the warning that the subject shares its control group with other programs: its CPU time and
// memory cannot be separated from theirs, and are in no group of the trial.
const WarnShared = "group-shared"

// stray returns the first warning about processes of the trial in other control groups, or nil.
func stray(l *ledger.Ledger) *ledger.Warning { return warned(l, WarnStrays) }

// warned returns the first warning of a ledger with a code, or nil.
func warned(l *ledger.Ledger, code string) *ledger.Warning {
	if l == nil {
		return nil
	}
	return lists.Find(l.Warnings, func(w *ledger.Warning) bool { return w.Code == code })
}

// contained checks that no process of the trial was in another control group, and that the CPU counters of the trial's
// groups were not reset.
func (m *Measured) contained() (trips []Trip) {
	if w := stray(m.Ledger); w != nil {
		return []Trip{Tripped(GateContained, 1, 0, "%s", w.Message)}
	}
	for _, g := range m.Ledger.Cgroups {
		if g.CPUReset && (cgroup.Within(g.Path, m.Tree) || m.roles[g.Path].Role != "") {
			return []Trip{Tripped(GateContained, 1, 0, "the CPU counter of control group %s was reset inside the window: what "+
				"it used is not known; find out who writes to cpuacct.usage", g.Path)}
		}
	}
	return nil
}

// Outsiders names, for messages, the processes whose use is counted in none of the trial's control groups.
func (m *Measured) Outsiders() string {
	if stray(m.Ledger) != nil {
		return "others, or processes of the trial that left its control groups,"
	}
	return "others"
}

// otherCopiesWorked reports whether a copy of the same load, other than the named one, had requests answered.
func (m *Measured) otherCopiesWorked(name string) bool {
	for other, r := range m.Loads {
		if other != name && isCopyOf(other, name) && r.Done > 0 {
			return true
		}
	}
	return false
}

// isCopyOf reports whether two parts of a trial are copies of one part of the spec: copies are named after it, with an
// underscore and a number, and no part of a spec has an underscore in its name.
func isCopyOf(a, b string) bool {
	base := func(name string) string {
		base, _, _ := strings.Cut(name, "_")
		return base
	}
	return base(a) == base(b)
}

// JudgeLoad returns the judge of the load called name.
func (m *Measured) JudgeLoad(name string) *LoadJudge {
	return &LoadJudge{
		m: m, name: name, Result: m.Loads[name], part: m.Setup.Loads[name],
		stalls: StallsOf(m.Ledger, m.Tree, m.Shared), copies: m.otherCopiesWorked(name),
	}
}

// LoadJudge judges one load. Trips holds the gates that it has tripped so far.
type LoadJudge struct {
	Result load.Result
	Trips  []Trip

	m      *Measured
	name   string
	part   *kind.Part  // nil if the spec has no such load
	works  bool        // it is the work of a subject, not a load
	copies bool        // other copies of the same load had requests answered
	stalls role.Stalls // stalls of the machine in the window
}

// Trip adds a trip of a gate.
func (j *LoadJudge) Trip(g *Gate, seen, allowed float64, format string, args ...any) {
	t := Tripped(g, seen, allowed, format, args...)
	t.Message = j.name + ": " + t.Message
	j.Trips = append(j.Trips, t)
}

// Usual checks every gate of a load that does not implement Judge.
func (j *LoadJudge) Usual() {
	j.rate()
	j.Errors()
	j.drain()
	j.Lag()
	j.lagRunning()
	j.generator()
	j.connections()
	j.Drift()
}

// rate checks that a load had at least one request answered, and that an open load had enough of its requests answered
// within the window, apart from those that were naturally in flight when the window closed.
func (j *LoadJudge) rate() {
	open := j.Result.Mode == load.Open
	switch {
	case open && j.Result.Intended == 0:
		j.Trip(GateIdle, 0, 1, "no request was intended in the window; raise the rate or the duration")
		return
	case j.Result.Done == 0 && j.copies:
		j.Trip(GateIdleCopy, 0, 1, "not one request was answered, and other copies of the load worked; lengthen the "+
			"duration, or see the errors of the trial")
		return
	case j.Result.Done == 0:
		j.Trip(GateIdle, 0, 1, "not one request was answered; lengthen the duration, or see the errors of the trial")
		return
	case !open:
		return
	}
	seen := Reached(&j.Result, j.Result.UnderWay()+j.heldUp())
	if allowed := j.m.Setup.Gates.Float("rate"); seen < allowed {
		more := ""
		if j.Result.Connections > 0 {
			more = " or give the load more connections"
		}
		j.Trip(GateRate, seen, allowed, "requests were answered at %.2f %% of the intended rate, and %g %% is required; "+
			"lower the rate%s", 100*seen, 100*allowed, more)
	}
}

// Reached returns the part of an open load's rate that was reached: the answers in the window, as a part of the
// requests intended in it. Requests that were intended in the window and answered after it are not missed, up to the
// number that may be under way when it closes: without a warm-up, no answers to earlier requests make up for them.
func Reached(r *load.Result, underWay int64) float64 {
	answers := r.Done - max(r.Late-underWay, 0)
	if r.Finished != nil {
		answers = max(answers, *r.Finished)
	}
	return Ratio(answers, r.Intended)
}

// work checks that a subject that works by itself did some work. It has neither a rate to keep nor a generator.
func (j *LoadJudge) work() {
	if j.Result.Done == 0 {
		j.Trip(GateIdle, 0, 1, "no piece of its work began in the window; lengthen the duration")
	}
}

// heldUp returns the number of requests that were late because the machine stalled near the end of the window. These
// are the requests that were due since the last stall began, if the window ended during that stall or, while the queue
// drained, within the stall's length after it. If such requests were not answered at all, other gates trip. A stall of
// more than half the window is no excuse: throughput and the use per second would describe a machine that stood still.
func (j *LoadJudge) heldUp() int64 {
	if len(j.stalls.Spans) == 0 {
		return 0
	}
	last := j.stalls.Spans[len(j.stalls.Spans)-1] // Spans are disjoint and in order
	from, to := last[0], min(last[1], j.stalls.To)
	if j.stalls.To > to+(to-from) || j.stalls.To-from > (j.stalls.To-j.stalls.From)/2 {
		return 0
	}
	return int64(math.Ceil(j.Result.TargetRate * float64(j.stalls.To-from) / 1e9))
}

// Errors checks that no more of the work failed than is allowed.
func (j *LoadJudge) Errors() {
	n, allowed := j.Result.Failures(), j.m.Setup.Gates.Float("errors")
	if seen := Ratio(n, j.Result.Intended); seen > allowed {
		j.Trip(GateErrors, seen, allowed, "%d of %d requests failed (%s); lower the rate, or see what the application says",
			n, j.Result.Intended, ErrorKinds(j.Result.Errors))
	}
}

// ErrorKinds lists failures by kind, for messages.
func ErrorKinds(errors map[string]int64) string {
	text := ""
	for kind, n := range lists.ByKey(errors) {
		if text != "" {
			text += ", "
		}
		text += fmt.Sprintf("%s %d", kind, n)
	}
	return text
}

// drain checks that no more of the intended requests failed or stayed unanswered than is allowed. If failures alone
// exceed that, Errors reports them, and drain does not count them. Requests that were never sent, because no connection
// was free, cost nothing, so they have a gate of their own (GateUnsent).
func (j *LoadJudge) drain() {
	r, allowed := &j.Result, j.m.Setup.Gates.Float("errors")
	failed, and := r.Failures(), ""
	switch {
	case Ratio(failed, r.Intended) > allowed:
		failed = 0
	case failed > 0:
		and = fmt.Sprintf(", and %d failed", failed)
	}
	unsent := r.Intended - r.Sent
	if seen := Ratio(r.Unfinished+failed, r.Intended); seen > allowed {
		j.Trip(GateDrain, seen, allowed, "%d of %d requests were still without an answer after the drain%s; lower the rate",
			r.Unfinished, r.Intended, and)
	} else if seen := Ratio(r.Unfinished+failed+unsent, r.Intended); seen > allowed {
		j.Trip(GateUnsent, seen, allowed, "%d of %d requests were not sent by the end of the drain, and %d had no answer%s; "+
			"lower the rate or give the load more connections", unsent, r.Intended, r.Unfinished, and)
	}
}

// Ratio returns n as a fraction of a total, or 0 without a total.
func Ratio(n, of int64) float64 {
	if of <= 0 {
		return 0
	}
	return float64(n) / float64(of)
}

// Lag checks that the generator of an open load began requests when they were due.
func (j *LoadJudge) Lag() { j.late(GateLag, load.OwnLag, 0.99, "") }

// late checks the generator's lag. q is the quantile of the histogram that corresponds to the 99th percentile of all
// requests. The last argument ends the description of the lag.
func (j *LoadJudge) late(g *Gate, histogram string, q float64, while string) {
	h, err := j.Result.Histogram(histogram)
	if j.Result.Mode != load.Open || err != nil || h == nil {
		return
	}
	seen, allowed := time.Duration(h.ValueAtQuantile(100*q)), j.m.Setup.Gates.Duration("lag")
	if seen > allowed {
		j.Trip(g, seen.Seconds(), allowed.Seconds(),
			"the generator started the 99th percentile of requests %v late%s, and %v is allowed; lower the rate or give the "+
				"load a CPU of its own",
			seen.Round(time.Microsecond), while, allowed)
	}
}

func (j *LoadJudge) generator() {
	if j.Result.CPUs <= 0 || j.Result.Seconds <= 0 || j.Result.Mode != load.Open {
		return
	}
	allowed := j.m.Setup.Gates.Float("generator_cpu")
	if seen := j.Result.CPUSeconds / (j.Result.CPUs * j.Result.Seconds); seen > allowed {
		j.Trip(GateGenerator, seen, allowed, "the generator used %.0f %% of its CPUs, and %g %% is allowed; lower the rate "+
			"or give it more threads", 100*seen, 100*allowed)
	}
}

// mostReplaced is the part of the connections that may be closed on average. Servers end even busy connections, after
// 100 requests or more, and an open loop opens them again when their next request is due.
const mostReplaced = 0.02

// connections checks that a load which holds its connections could open them, and that they stayed open.
func (j *LoadJudge) connections() {
	if j.part == nil || !j.part.Kind.About().HoldsConnections.With(j.part.Options) {
		return
	}
	most, mean, asked := j.Result.MaxConnections, j.Result.MeanConnections, j.Result.Connections
	allowed := j.m.Setup.Gates.Float("connections")
	if seen := Ratio(int64(most), int64(asked)); seen < allowed {
		j.Trip(GateConnections, seen, allowed, "%d of %d connections were open at once; ask for fewer", most, asked)
		return
	}
	allowed -= mostReplaced
	if seen := mean / float64(asked); mean > 0 && seen < allowed {
		j.Trip(GateConnections, seen, allowed, "%.1f of %d connections were open on average, because they were closed when "+
			"idle, or after a number of requests; have the server keep them, or set keepalive: false", mean, asked)
	}
}

// throttled checks that groups without a CPU limit in the spec were not throttled. It includes groups around the trial,
// such as the group of the container in which tare runs: they throttle the groups inside them, and the counters of
// these inner groups do not show it.
func (m *Measured) throttled() []Trip {
	var trips []Trip
	for _, g := range m.Ledger.Cgroups {
		asked := m.roles[g.Path].Limited || m.Shared && g.Path == m.Tree
		holds := g.Path != m.Tree && cgroup.Within(m.Tree, g.Path)
		own := cgroup.Within(g.Path, m.Tree) || m.Tree == Nowhere && m.roles[g.Path].Role != ""
		if asked || !holds && !own || g.ThrottledSeconds == nil {
			continue
		}
		if seen, allowed := *g.ThrottledSeconds, m.Setup.Gates.Duration("throttled"); seen > allowed.Seconds() {
			said := "%s was throttled for %.3f s, and no CPU limit was asked for it; raise the limit of the group that tare " +
				"runs in"
			if holds {
				said = "%s was throttled for %.3f s, and it holds the trial; raise its CPU limit"
			}
			trips = append(trips, Tripped(GateThrottled, seen, allowed.Seconds(), said, g.Path, seen))
		}
	}
	return trips
}
