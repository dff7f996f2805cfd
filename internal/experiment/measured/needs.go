package measured

import (
	"slices"

	"tare/internal/experiment/metric"
	"tare/internal/scale/ledger"
)

// Need is metric.Need.
type Need = metric.Need

// The needs. docs/metrics.md says which metric has which.
const (
	Whole       Need = "whole"       // enough of the trial's nodes took part
	Worked      Need = "worked"      // the load did anything at all in the window
	Paced       Need = "paced"       // the generator began its requests on time, with CPU to spare
	PacedAwake  Need = "paced-awake" // the same of the requests that no stall of the machine touched
	Rated       Need = "rated"       // an open load reached the rate that was asked for
	Complete    Need = "complete"    // no more requests failed or stayed unanswered than is allowed
	Connected   Need = "connected"   // as many connections were open at once as was asked for
	Steady      Need = "steady"      // latency was alike in both halves of the window
	SteadyRate  Need = "steady-rate" // a closed load, or a subject's own work, was as fast in both halves of the window
	Unthrottled Need = "unthrottled" // no group was held back by a CPU limit that the spec does not have
	Held        Need = "held"        // a CPU limit that the experiment is about was what held its groups back
	Probed      Need = "probed"      // a probe was awake in the window
	Alone       Need = "alone"       // others left the machine to the trial
	Windowed    Need = "windowed"    // the counters were read at the edges of the load's window
	Contained   Need = "contained"   // every process of the trial stayed in the trial's control groups
	Counted     Need = "counted"     // load and kernel agree on how many events there were
	Read        Need = "read"        // the measurements that a program printed could be read
	Untouched   Need = "untouched"   // others took little from loads that do not know which requests they touched
)

// The needs of the families of metrics. A metric always declares its needs; one that nothing can void has the empty
// list.
var (
	// NeedNothing is of metrics that are right whatever happened: they describe the trial itself.
	NeedNothing = []Need{}

	// NeedLatency: a request's time is right only when it was sent when it was due, at the rate, the connections and
	// the steady state that it is quoted for. Requests that failed are missing from the histogram, and they are not the
	// fast ones.
	NeedLatency = []Need{Whole, Worked, Paced, Rated, Complete, Connected, Steady, SteadyRate, Unthrottled, Held, Alone}

	// NeedRunning is of the requests that no stall of the machine touched. What a stall did to the rate, to the
	// generator and to latency in one half of the window is in the requests that are left out. What a process of the
	// trial does from elsewhere would be left out with it.
	NeedRunning = []Need{Whole, Worked, PacedAwake, Complete, Connected, Unthrottled, Held, Contained}

	// NeedThroughput: as latency, save that the drift of an open load's latency does not touch how many requests were
	// answered.
	NeedThroughput = []Need{Whole, Worked, Paced, Rated, Complete, Connected, SteadyRate, Unthrottled, Held, Alone}

	// NeedShare is of parts of the machine, which are proportional to the rate. A generator that is late makes bursts
	// and not fewer requests, so pacing is not among them.
	NeedShare = []Need{Whole, Worked, Rated, Complete, Connected, SteadyRate, Unthrottled, Held, Alone, Windowed,
		Contained}

	// NeedCost is of costs per piece of work. Cost and work are of the same window, so neither a missed rate nor a late
	// generator matters; requests that fail cost and do not count.
	NeedCost = []Need{Whole, Worked, Complete, Windowed, Contained}

	// NeedRequestCost: how many requests are answered in one go depends on how many connections are open.
	NeedRequestCost = []Need{Whole, Worked, Complete, Connected, Windowed, Contained}

	// NeedEventCost is of costs per event, which is as good as the count of events.
	NeedEventCost = []Need{Whole, Worked, Complete, Counted, Windowed, Contained}

	// NeedAgentCost is the same of what is counted by itself, from before the load until after it, and not at the
	// window's edges.
	NeedAgentCost = []Need{Whole, Worked, Complete, Counted, Contained}

	// NeedEvents is of counts of events: they are exact at any rate, however late.
	NeedEvents = []Need{Whole, Worked, Counted}

	// NeedSamples is of parts of a program's own run time: any work will do.
	NeedSamples = []Need{Whole, Worked, Windowed, Contained}

	// NeedLimit is of what groups with a CPU limit used of it.
	NeedLimit = []Need{Whole, Worked, Held, Windowed, Contained}

	// NeedMemory is of memory under load, which may depend on the connections but not on how fast or how evenly
	// requests came.
	NeedMemory = []Need{Whole, Worked, Connected, Windowed, Contained}

	// NeedRest is of what does not depend on the load: start-up, and memory before the load and after it.
	NeedRest = []Need{Whole}

	// NeedWork is of the time that a subject takes for its own work.
	NeedWork = []Need{Whole, Worked, Complete, SteadyRate, Unthrottled}

	// NeedWorkCount is of what a piece of that work consists of, which takes as many steps on a slow machine.
	NeedWorkCount = []Need{Whole, Worked}

	// NeedSeen is of times that are not the work's own, but seen beside it.
	NeedSeen = []Need{Whole, Worked, Unthrottled}

	// NeedDelay is of how long others wait for a CPU.
	NeedDelay = []Need{Whole, Probed, Alone, Unthrottled}
)

// Gate is a condition on a trial. What it breaks is decided here, once, and not by what a trial measured.
type Gate struct {
	// as record.Reason.Gate has it; two gates may share a name where one setting governs both, or where they are one
	// condition with different causes
	Name   string
	Breaks []Need
	Quiet  ledger.Cause // the cause when nothing outside the trial disturbed the machine
	Why    string       // why it breaks these and no others
}

// The gates.
var (
	GateIdle = &Gate{Name: "idle", Breaks: []Need{Worked, Rated}, Quiet: ledger.Subject,
		Why: "nothing was done in the window"}
	GateIdleCopy = &Gate{Name: "idle", Breaks: []Need{Worked, Rated}, Quiet: ledger.Subject,
		Why: "one copy of a load did nothing: less was done than was asked for, and what the idle copy cost was not " +
			"for it"}
	GateRate = &Gate{Name: "rate", Breaks: []Need{Rated}, Quiet: ledger.Subject,
		Why: "latency at a missed rate is that of a queue, and parts of the machine go with the rate; costs of what " +
			"was done are right"}
	GateErrors = &Gate{Name: "errors", Breaks: []Need{Complete}, Quiet: ledger.Subject,
		Why: "failed requests have no latency, and cost without counting as work"}
	GateDrain = &Gate{Name: "drain", Breaks: []Need{Complete}, Quiet: ledger.Subject,
		Why: "unanswered requests are the slowest, are missing from latency, and cost without counting as work"}
	GateLag = &Gate{Name: "lag", Breaks: []Need{Paced}, Quiet: ledger.Generator,
		Why: "late requests come in bursts, which the subject would not have had to serve"}
	GateLagRunning = &Gate{Name: "lag-running", Breaks: []Need{PacedAwake}, Quiet: ledger.Generator,
		Why: "a generator that is late while the machine runs is late for undisturbed requests too"}
	GateGenerator = &Gate{Name: "generator-cpu", Breaks: []Need{Paced}, Quiet: ledger.Generator,
		Why: "a generator short of CPU reads answers late"}
	GateConnections = &Gate{Name: "connections", Breaks: []Need{Connected}, Quiet: ledger.Subject,
		Why: "latency, throughput and memory depend on the number of connections; the cost of one does not"}
	GateDriftLatency = &Gate{Name: "drift", Breaks: []Need{Steady}, Quiet: ledger.Unknown,
		Why: "one quantile cannot describe two states; all else goes with the rate of an open loop, which was reached " +
			"or has its own gate"}
	GateDriftRate = &Gate{Name: "drift", Breaks: []Need{SteadyRate}, Quiet: ledger.Unknown,
		Why: "in a closed loop latency and parts of the machine change with throughput; cost per piece of work does not"}
	GateThrottled = &Gate{Name: "throttled", Breaks: []Need{Unthrottled}, Quiet: ledger.Unknown,
		Why: "a throttled group is late and slow; what it did costs the same"}
	GateHeld = &Gate{Name: "held", Breaks: []Need{Held}, Quiet: ledger.Unknown,
		Why: "something other than the limit decided how much the groups used, and so how much work they did"}
	GateWindow = &Gate{Name: "window", Breaks: []Need{Windowed}, Quiet: ledger.Unknown,
		Why: "kernel counters are of another time than the load, whose own counts and times are right"}
	GateContained = &Gate{Name: "contained", Breaks: []Need{Contained}, Quiet: ledger.Subject,
		Why: "what a process uses in another control group, or before its group's counter was reset, is missing from " +
			"the trial and seems to be others'; requests are served all the same"}
	GateNodes = &Gate{Name: "nodes", Breaks: []Need{Whole}, Quiet: ledger.Unknown,
		Why: "with too few nodes it is another trial"}
)

// commonGates are those of every trial; guests may have more.
var commonGates = []*Gate{
	GateIdle, GateIdleCopy, GateRate, GateErrors, GateDrain, GateLag, GateLagRunning, GateGenerator, GateConnections,
	GateDriftLatency, GateDriftRate, GateThrottled, GateHeld, GateWindow, GateContained, GateNodes,
}

// Gated is a guest that defines gates.
type Gated interface {
	Gates() []*Gate
}

// breaks reports whether the gate takes from a metric what it needs.
func (g *Gate) breaks(m *Metric) bool {
	return slices.ContainsFunc(m.Needs, func(n Need) bool { return slices.Contains(g.Breaks, n) })
}

// Voids are the metrics, out of those that a trial has, that it cannot tell once the gate was tripped for this cause. A
// subject that is too slow still shows in what it did: its throughput, and the requests that failed, are results.
func (g *Gate) Voids(cause ledger.Cause, has func(metric string) bool) []string {
	voids := []string{} // an empty list says none; null would say all
	for _, m := range Metrics() {
		if has(m.Name) && g.breaks(&m) && !(cause == ledger.Subject && m.Outcome) {
			voids = append(voids, m.Name)
		}
	}
	slices.Sort(voids)
	return voids
}
