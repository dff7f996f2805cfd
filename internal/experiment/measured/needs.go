package measured

import (
	"slices"

	"tare/internal/experiment/metric"
	"tare/internal/scale/ledger"
)

// Need is metric.Need, under a shorter name for the many declarations of this package.
type Need = metric.Need

// The needs. docs/metrics.md says which gates break which.
const (
	Whole       Need = "whole"       // enough of the trial's nodes took part
	Worked      Need = "worked"      // the load did something in the window
	Paced       Need = "paced"       // the generator began its requests on time, with CPU to spare
	PacedAwake  Need = "paced-awake" // Paced, for requests that no stall of the machine touched
	Rated       Need = "rated"       // an open load reached the requested rate
	Complete    Need = "complete"    // no more requests failed or stayed unanswered than allowed
	Connected   Need = "connected"   // the requested number of connections was open at once
	Steady      Need = "steady"      // latency was similar in both halves of the window
	SteadyRate  Need = "steady-rate" // a closed load, or a subject's own work, was as fast in both halves of the window
	Unthrottled Need = "unthrottled" // no group was throttled by a CPU limit that is not in the spec
	Held        Need = "held"        // a CPU limit that the experiment is about did throttle its groups
	Probed      Need = "probed"      // a load of kind probe, which measures how late it is woken, was awake in the window
	Alone       Need = "alone"       // other processes left the machine to the trial
	Windowed    Need = "windowed"    // the counters were read at the edges of the load's window
	Contained   Need = "contained"   // every process of the trial stayed in the trial's control groups
	Counted     Need = "counted"     // load and kernel agree on the number of events
	Read        Need = "read"        // the measurements that a program printed could be read
	// other processes took little CPU time from loads that cannot distinguish the requests that were delayed by this
	Untouched Need = "untouched"
)

// The needs of families of metrics. Every metric declares its needs; one that nothing can void has the empty list.
var (
	// NeedNothing is for metrics that are valid whatever happened: they describe the trial itself.
	NeedNothing = []Need{}

	// NeedLatency is for the time of a request, which is valid only if the request was sent when it was due, with the
	// stated rate and connections, in a steady state. Failed requests are missing from the histogram, and they are rarely
	// the fast ones.
	NeedLatency = []Need{Whole, Worked, Paced, Rated, Complete, Connected, Steady, SteadyRate, Unthrottled, Held, Alone}

	// NeedRunning is for requests that no stall of the machine touched. Stalls spoil the rate, the pacing and the
	// steadiness only of requests that are left out, so Rated, Paced, Steady and SteadyRate are not needed. Contained is
	// needed, because delays by a process of the trial outside of its groups would be left out as well.
	NeedRunning = []Need{Whole, Worked, PacedAwake, Complete, Connected, Unthrottled, Held, Contained}

	// NeedThroughput is NeedLatency without Steady: drift of an open load's latency does not change how many requests are
	// answered.
	NeedThroughput = []Need{Whole, Worked, Paced, Rated, Complete, Connected, SteadyRate, Unthrottled, Held, Alone}

	// NeedShare is for shares of the machine, which are proportional to the rate. A late generator makes bursts, but not
	// fewer requests, so Paced is not included.
	NeedShare = []Need{Whole, Worked, Rated, Complete, Connected, SteadyRate, Unthrottled, Held, Alone, Windowed,
		Contained}

	// NeedCost is for costs per piece of work. Cost and work are from the same window, so neither a missed rate nor a
	// late generator matters. Failed requests cost something but do not count as work.
	NeedCost = []Need{Whole, Worked, Complete, Windowed, Contained}

	// NeedRequestCost is NeedCost with Connected: how many requests are answered in one batch depends on how many
	// connections are open.
	NeedRequestCost = []Need{Whole, Worked, Complete, Connected, Windowed, Contained}

	// NeedEventCost is for costs per event, which need a correct count of events.
	NeedEventCost = []Need{Whole, Worked, Complete, Counted, Windowed, Contained}

	// NeedAgentCost is for costs per event that are counted separately, from before the load until after it, and not at
	// the window's edges.
	NeedAgentCost = []Need{Whole, Worked, Complete, Counted, Contained}

	// NeedEvents is for counts of events: they are exact at any rate and with any delay.
	NeedEvents = []Need{Whole, Worked, Counted}

	// NeedSamples is for fractions of a program's own run time: any work will do.
	NeedSamples = []Need{Whole, Worked, Windowed, Contained}

	// NeedLimit is for the part of its CPU limit that a group used.
	NeedLimit = []Need{Whole, Worked, Held, Windowed, Contained}

	// NeedMemory is for memory under load, which may depend on the connections but not on the rate or the pacing of
	// requests.
	NeedMemory = []Need{Whole, Worked, Connected, Windowed, Contained}

	// NeedRest is for values that do not depend on the load: start-up, and memory before the load and after it.
	NeedRest = []Need{Whole}

	// NeedWork is for the time that a subject takes for its own work.
	NeedWork = []Need{Whole, Worked, Complete, SteadyRate, Unthrottled}

	// NeedWorkCount is for the steps of a piece of that work, whose number does not depend on the machine's speed.
	NeedWorkCount = []Need{Whole, Worked}

	// NeedSeen is for times that are observed during that work, but are not times of the work itself.
	NeedSeen = []Need{Whole, Worked, Unthrottled}

	// NeedDelay is for how long a probe waits for a CPU, as any other process of the machine would.
	NeedDelay = []Need{Whole, Probed, Alone, Unthrottled}
)

// Gate is a condition on a trial. The needs that it breaks are fixed here, and do not depend on what a trial measured.
type Gate struct {
	// Name is the name in record.Reason.Gate. Two gates may share a name if one setting governs both, or if they are one
	// condition with different causes.
	Name   string
	Breaks []Need
	Quiet  ledger.Cause // the cause when nothing outside the trial disturbed the machine
	Why    string       // why it breaks these needs and no others
}

// The gates.
var (
	GateIdle = &Gate{Name: "idle", Breaks: []Need{Worked, Rated}, Quiet: ledger.Subject,
		Why: "nothing was done in the window"}
	GateIdleCopy = &Gate{Name: "idle", Breaks: []Need{Worked, Rated}, Quiet: ledger.Subject,
		Why: "one copy of a load did nothing, but cost something"}
	GateRate = &Gate{Name: "rate", Breaks: []Need{Rated}, Quiet: ledger.Subject,
		Why: "latency at a missed rate is that of a queue, and shares of the machine follow the rate; costs of what was " +
			"done are right"}
	GateErrors = &Gate{Name: "errors", Breaks: []Need{Complete}, Quiet: ledger.Subject,
		Why: "failed requests have no latency, and cost without counting as work"}
	GateDrain = &Gate{Name: "drain", Breaks: []Need{Complete}, Quiet: ledger.Subject,
		Why: "unanswered requests are the slowest, and cost without counting as work"}
	GateUnsent = &Gate{Name: "drain", Breaks: []Need{Rated}, Quiet: ledger.Subject,
		Why: "requests that were never sent are the slowest; they cost nothing"}
	GateLag = &Gate{Name: "lag", Breaks: []Need{Paced}, Quiet: ledger.Generator,
		Why: "late requests come in bursts"}
	GateLagRunning = &Gate{Name: "lag-running", Breaks: []Need{PacedAwake}, Quiet: ledger.Generator,
		Why: "a generator that is late while the machine runs is late for undisturbed requests too"}
	GateGenerator = &Gate{Name: "generator-cpu", Breaks: []Need{Paced}, Quiet: ledger.Generator,
		Why: "a generator short of CPU reads answers late"}
	GateConnections = &Gate{Name: "connections", Breaks: []Need{Connected}, Quiet: ledger.Subject,
		Why: "latency, throughput and memory depend on the number of connections"}
	GateDriftLatency = &Gate{Name: "drift", Breaks: []Need{Steady}, Quiet: ledger.Unknown,
		Why: "in an open loop, one quantile cannot describe two states"}
	GateDriftRate = &Gate{Name: "drift", Breaks: []Need{SteadyRate}, Quiet: ledger.Unknown,
		Why: "in a closed loop, latency and shares of the machine change with throughput; cost per piece of work does not"}
	GateThrottled = &Gate{Name: "throttled", Breaks: []Need{Unthrottled}, Quiet: ledger.Unknown,
		Why: "a throttled group is late and slow; what it did costs the same"}
	GateHeld = &Gate{Name: "held", Breaks: []Need{Held}, Quiet: ledger.Unknown,
		Why: "something other than the limit decided how much the groups used"}
	GateWindow = &Gate{Name: "window", Breaks: []Need{Windowed}, Quiet: ledger.Unknown,
		Why: "kernel counters are of another time than the load"}
	GateContained = &Gate{Name: "contained", Breaks: []Need{Contained}, Quiet: ledger.Subject,
		Why: "what a process uses in another control group, or before its group's counter was reset, is missing from the " +
			"trial"}
	GateNodes = &Gate{Name: "nodes", Breaks: []Need{Whole}, Quiet: ledger.Unknown,
		Why: "with too few nodes it is another trial"}
)

// commonGates are the gates of every trial. Applications, loads and subjects (kind.Guest) may add more.
var commonGates = []*Gate{
	GateIdle, GateIdleCopy, GateRate, GateErrors, GateDrain, GateUnsent, GateLag, GateLagRunning, GateGenerator,
	GateConnections, GateDriftLatency, GateDriftRate, GateThrottled, GateHeld, GateWindow, GateContained, GateNodes,
}

// Gated is a guest that defines gates.
type Gated interface {
	Gates() []*Gate
}

// breaks reports whether the gate breaks a need of the metric.
func (g *Gate) breaks(m *Metric) bool {
	return slices.ContainsFunc(m.Needs, func(n Need) bool { return slices.Contains(g.Breaks, n) })
}

// Voids returns those metrics of a trial that are invalid if the gate tripped for this cause. If the subject was too
// slow, metrics that show that (Outcome), such as throughput and failed requests, stay valid as results.
func (g *Gate) Voids(cause ledger.Cause, has func(metric string) bool) []string {
	voids := []string{} // an empty list means none; nil would mean all
	for _, m := range Metrics() {
		if has(m.Name) && g.breaks(&m) && !(cause == ledger.Subject && m.Outcome) {
			voids = append(voids, m.Name)
		}
	}
	slices.Sort(voids)
	return voids
}
