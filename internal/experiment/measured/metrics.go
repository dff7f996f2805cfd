package measured

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
	"tare/internal/lib/known"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/lib/stats"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/ledger"
)

// Metric is a metric's definition with the function that computes its value in a trial.
type Metric struct {
	metric.Definition

	Value func(*Measured) (float64, bool) // false: unknown in this trial, and the metric is omitted
	Count func(*Measured) (in, of int)    // instead of Value, for a fraction that is pooled over trials

	// Component returns the value of one named component of the subject. Nil: the metric exists for the whole subject
	// only.
	Component func(m *Measured, component string) (float64, bool)
}

// Teller is a guest that defines metrics.
type Teller interface {
	Metrics() []Metric
}

// Metrics returns all metrics, in the order of docs/metrics.md: those that any trial may have, then those of guests.
func Metrics() []Metric { return all().metrics }

// Gates returns all gates, those of every trial first, then those of guests.
func Gates() []*Gate { return all().gates }

type everything struct {
	metrics []Metric
	gates   []*Gate
}

// all must not be called before every guest is registered.
var all = sync.OnceValue(func() everything {
	e := everything{
		metrics: slices.Concat(coreMetrics, requestMetrics, subjectMetrics, startMetrics, runningMetrics, limitMetrics),
		gates:   slices.Clone(commonGates),
	}
	for _, r := range []kind.Role{kind.Application, kind.Load, kind.Subject} {
		for _, g := range kind.All(r) {
			e.add(g)
		}
	}
	e.metrics = append(e.metrics, nodeMetrics...)
	return e
})

// add adds the metrics and gates that a guest defines. Guests of one family may define the same ones.
func (e *everything) add(g kind.Guest) {
	if t, ok := g.(Teller); ok {
		for _, m := range t.Metrics() {
			if !slices.ContainsFunc(e.metrics, func(o Metric) bool { return o.Name == m.Name }) {
				e.metrics = append(e.metrics, m)
			}
		}
	}
	if gated, ok := g.(Gated); ok {
		for _, gate := range gated.Gates() {
			if !slices.Contains(e.gates, gate) {
				e.gates = append(e.gates, gate)
			}
		}
	}
}

// Definitions returns the definitions of all metrics, in the order of docs/metrics.md.
func Definitions() []metric.Definition {
	return lists.Map(Metrics(), func(m Metric) metric.Definition { return m.Definition })
}

// Find returns the metric of a name, and false if there is none.
func Find(name string) (Metric, bool) {
	m := lists.Find(Metrics(), func(m *Metric) bool { return m.Name == name })
	return known.Or(m, Metric{}), m != nil
}

// Measured is the input of metrics and gates: a trial's record, with complete ledgers whose groups have their roles,
// and data that the record does not hold or holds encoded.
type Measured struct {
	record.Trial
	Setup  *kind.Setup // at the trial's level
	Tree   string      // path of the group that contains all groups of the trial; or Nowhere
	Shared bool        // the trial's group has a CPU limit: the node's share of the machine

	Subject  *kind.Objects  // nil for a baseline without a subject
	Evidence map[string]any // facts that only a guest knows (kind.Evidence), by the guest's name
	// Start is the time in seconds from the start of the subject's process until it was ready; 0: it was running before.
	Start float64

	Processes map[string][]int // PIDs in the subject's groups at the end of the window, by component

	roles map[string]GroupRole // roles of the trial's groups, by path: see SetRoles
}

// Nowhere is the Tree of a trial whose groups have no common parent, such as those of pods. Then all groups with a
// role belong to the trial.
const Nowhere = "nowhere"

// NoSubject ends the description of a metric that is 0 without a subject.
const NoSubject = " 0 in a baseline without a subject."

// bySamples ends the description of a fraction that is measured by samples.
const bySamples = " By samples, pooled over the trials of an arm; absent below 25 samples."

var coreMetrics = slices.Concat(
	orRunning(requestTimes(load.Latency, NeedLatency, untilAnswered, 0.5, 0.9, 0.99, 0.999)),
	orRunning(requestTimes(load.Connect, NeedLatency, untilConnected, 0.5, 0.99)),
	requestTimes(load.Lag, NeedNothing, "from the intended start of a request until it was sent (a wait for a free "+
		"connection, or a late generator)", 0.5, 0.99),
	orRunning(requestTimes(load.OwnLag, NeedNothing, "that the generator itself was late, once the request was due "+
		"and a connection free", 0.5, 0.99)),
	workMetrics,
)

// What the histograms of requests measure.
const (
	untilAnswered  = "from the intended start of a request until its answer was read"
	untilConnected = "to make a connection"
)

// workMetrics measure the work done, and the cost of each piece of it.
var workMetrics = []Metric{
	{Definition: metric.Definition{Name: "throughput_per_second", Family: "throughput", Unit: quantity.PerSecond,
		Rank: metric.RankThroughput, Pool: metric.Sum, Better: metric.Higher, Needs: NeedThroughput, Headline: true,
		Outcome: true, Answers: true, How: "Requests of all loads answered without error in the window, whenever they " +
			"were due, per second. Absent where a load makes none, or does not report them."},
		Value: func(m *Measured) (float64, bool) {
			rate, known := m.answerRate()
			return rate, known && m.requests() && !m.outside() && !m.pieces()
		}},
	{Definition: metric.Definition{Name: "error_ratio", Unit: quantity.Part, Rank: metric.RankThroughput,
		Pool: metric.Merged, Better: metric.Lower, Needs: NeedNothing, Outcome: true,
		How: "Requests that failed or stayed unanswered, of those intended."}, Value: func(m *Measured) (float64, bool) {
		intended := m.Sum(func(r load.Result) float64 { return float64(r.Intended) })
		return m.Sum(func(r load.Result) float64 { return float64(failed(r)) }) / intended, intended > 0
	}},
	{Definition: metric.Definition{Name: "bpf_seconds_per_connection", Family: "bpf", What: "kernel time",
		Per: "connection", Unit: quantity.Seconds + " per connection", Rank: metric.RankBPF, Pool: metric.PerConnection,
		Cost: true, Better: metric.Lower, Needs: NeedCost, Headline: true,
		How: "Run time of the subject's eBPF programs per connection opened. Absent where requests share " +
			"connections." + NoSubject},
		Value: Per((*Measured).BPFRate, (*Measured).ConnectionRate)},
	{Definition: metric.Definition{Name: "bpf_seconds_per_request", Family: "bpf", What: "kernel time", Per: "request",
		Unit: quantity.Seconds + " per request", Rank: metric.RankBPF, Pool: metric.PerRequest, Cost: true,
		Better: metric.Lower, Needs: NeedRequestCost, Answers: true, Headline: true,
		How: "Run time of the subject's eBPF programs per request answered. Absent where each request opens a " +
			"connection." + NoSubject}, Value: Per((*Measured).BPFRate, (*Measured).RequestRate)},
	{Definition: metric.Definition{Name: "bpf_client_share", Family: "bpf", Unit: quantity.Part, Rank: metric.RankBPF,
		Pool: metric.Counts, Needs: NeedSamples,
		How: "Part of the subject's eBPF run time in the loads' groups." + bySamples},
		Count: func(m *Measured) (in, of int) { return m.BPFSamples(kind.Load) }},
	{Definition: metric.Definition{Name: "bpf_server_share", Family: "bpf", Unit: quantity.Part, Rank: metric.RankBPF,
		Pool: metric.Counts, Needs: NeedSamples,
		How: "Part of the subject's eBPF run time in the applications' groups." + bySamples},
		Count: func(m *Measured) (in, of int) { return m.BPFSamples(kind.Application) }},
	{Definition: metric.Definition{Name: "cpu_seconds_per_connection", Family: "cpu", What: "CPU time", Per: "connection",
		Unit: quantity.Seconds + " per connection", Rank: metric.RankCPU, Pool: metric.PerConnection, Cost: true,
		Better: metric.Lower, Needs: NeedCost, Headline: true, Lead: true,
		How: "CPU time of the trial's control group (applications, loads, subject) and of observed applications, with " +
			"the eBPF programs that run in their tasks, per connection opened. Absent where requests share connections."},
		Value: Per((*Measured).CPURate, (*Measured).ConnectionRate)},
	{Definition: metric.Definition{Name: "cpu_seconds_per_request", Family: "cpu", What: "CPU time", Per: "request",
		Unit: quantity.Seconds + " per request", Rank: metric.RankCPU, Pool: metric.PerRequest, Cost: true,
		Better: metric.Lower, Needs: NeedRequestCost, Answers: true, Headline: true, Lead: true,
		How: "The same per request answered."},
		Value: Per((*Measured).CPURate, (*Measured).RequestRate)},
}

var startMetrics = []Metric{{
	Definition: metric.Definition{
		Name: "start_seconds", Unit: quantity.Seconds, Rank: metric.RankOther, Pool: metric.Mean, Cost: true,
		Better: metric.Lower, Needs: NeedRest,
		How: "From the start of the subject's first process until the subject was ready. Absent where it ran before the " +
			"trial, or starts with the applications.",
	},
	Value: func(m *Measured) (float64, bool) { return m.Start, m.Subject != nil && m.Start > 0 },
}}

// Into sets the metrics and the validity of a measured trial's record, and trims its ledgers to what a record must
// hold. roles holds the roles of the trial's groups, by path.
func (m *Measured) Into(t *record.Trial, roles map[string]GroupRole) {
	m.Trial = *t
	m.SetRoles(roles)
	t.Metrics, t.Counts, t.Components = m.Values(), m.Counts(), m.Components()
	t.Validity.Reasons = m.Reasons(m.Trips(), t.Metrics, t.Counts)
	t.Validity.Valid = len(t.Validity.Reasons) == 0
	m.Trim()
}

// Values returns the metrics that are known in this trial. A metric whose source is nil is absent, not 0.
func (m *Measured) Values() map[string]float64 {
	values := map[string]float64{}
	for _, one := range Metrics() {
		if one.Value == nil {
			continue
		}
		if v, ok := one.Value(m); ok {
			values[one.Name] = v
		}
	}
	return values
}

// Counts returns this trial's counts for metrics that are pooled over trials.
func (m *Measured) Counts() map[string]record.Count {
	counts := map[string]record.Count{}
	for _, one := range Metrics() {
		if one.Count == nil {
			continue
		}
		if in, of := one.Count(m); of > 0 {
			counts[one.Name] = record.Count{In: in, Of: of}
		}
	}
	return counts
}

// orRunning sets Instead in metrics of all requests, to the names of the same metrics of undisturbed requests
// (runningMetrics).
func orRunning(all []Metric) []Metric {
	for i := range all {
		all[i].Instead = strings.Replace(all[i].Name, "_p", runningSuffix+"_p", 1)
	}
	return all
}

// runningSuffix ends the name of a histogram of undisturbed requests. Without it, the name is that of the histogram of
// all requests.
const runningSuffix = "_running"

// requestTimes makes metrics of how long something took for each request: quantiles of a histogram.
func requestTimes(histogram string, needs []Need, what string, quantiles ...float64) []Metric {
	unanswered := ""
	if histogram == load.Latency {
		unanswered = " Requests without an answer count as the slowest; left out where it is one of these."
	}
	rule := 0
	if strings.HasPrefix(histogram, load.Connect) {
		rule = 1 // by rule 0, the time included the write of the first request
	}
	return lists.Map(quantiles, func(q float64) Metric {
		quantile, family := load.QuantileName(q), strings.TrimSuffix(histogram, runningSuffix)
		return Metric{
			Definition: metric.Definition{
				Name: histogram + "_" + quantile + "_seconds", Unit: quantity.Seconds, Rank: latencyRank(family),
				Pool: metric.Merged, Better: metric.Lower,
				Needs: needs, Headline: family == load.Latency && q != 0.9,
				Lead: histogram == load.Latency && (q == 0.5 || q == 0.99), Tail: q > 0.5,
				Family: family, Histogram: histogram, Quantile: q, Undisturbed: histogram != family, Rule: rule,
				How: fmt.Sprintf("Time %s: %s quantile. Left out when fewer than %g requests lie beyond it.%s",
					what, quantile, stats.MinBeyond(q), unanswered),
			},
			Value: func(m *Measured) (float64, bool) {
				return Seconds(histogram, func(h *hdrhistogram.Histogram) (float64, bool) {
					return stats.QuantileWithout(h, load.Missing(m.Loads, histogram), q)
				})(m)
			},
		}
	})
}

// Seconds returns a function that gets a value from the merged histogram of all loads that have it, and converts it
// from nanoseconds to seconds.
func Seconds(histogram string, value func(*hdrhistogram.Histogram) (float64, bool)) func(*Measured) (float64, bool) {
	return func(m *Measured) (float64, bool) {
		h, ok := m.Histogram(histogram)
		if !ok {
			return 0, false
		}
		ns, ok := value(h)
		return ns / 1e9, ok
	}
}

// Quantile returns a function that returns a quantile of a histogram, or false if too few values lie beyond it.
func Quantile(q float64) func(*hdrhistogram.Histogram) (float64, bool) {
	return func(h *hdrhistogram.Histogram) (float64, bool) { return stats.Quantile(h, q) }
}

// Mean returns the mean of a histogram.
func Mean(h *hdrhistogram.Histogram) (float64, bool) { return h.Mean(), true }

// Longest returns the largest value of a histogram.
func Longest(h *hdrhistogram.Histogram) (float64, bool) { return float64(h.Max()), true }

// latencyRank returns the rank of a histogram of requests. Histograms about the generator come last.
func latencyRank(histogram string) int {
	if histogram == load.Lag || histogram == load.OwnLag {
		return metric.RankGenerator
	}
	return metric.RankLatency
}

// Histogram merges one histogram of all loads that have it.
func (m *Measured) Histogram(name string) (*hdrhistogram.Histogram, bool) {
	var encoded []string
	for _, r := range m.Loads {
		if text, ok := r.Histograms[name]; ok {
			encoded = append(encoded, text)
		}
	}
	h, err := stats.MergeEncoded(encoded...)
	return h, err == nil && h != nil
}

// Sum adds up a value over all loads.
func (m *Measured) Sum(of func(load.Result) float64) (total float64) {
	for _, r := range m.Loads {
		total += of(r)
	}
	return total
}

// failed returns how many of a load's intended requests failed or stayed unanswered.
func failed(r load.Result) int64 { return max(r.Intended-r.Done, 0) }

// Per returns a function that divides one rate by another.
func Per(cost, work func(*Measured) (float64, bool)) func(*Measured) (float64, bool) {
	return func(m *Measured) (float64, bool) {
		c, ok1 := cost(m)
		w, ok2 := work(m)
		if !ok1 || !ok2 || w <= 0 {
			return 0, false
		}
		return c / w, true
	}
}

// WorkCount returns a function that returns a count of a subject that works by itself.
func WorkCount(name string) func(*Measured) (float64, bool) {
	return func(m *Measured) (float64, bool) {
		if m.Work == nil {
			return 0, false
		}
		v, ok := m.Work.Counts[name]
		return v, ok
	}
}

// requests reports whether a load makes requests. A probe makes none.
func (m *Measured) requests() bool { return m.mode(load.Open, load.Closed) }

// outside reports whether a load has no counts for the window alone: sums over the loads would then be incomplete.
func (m *Measured) outside() bool { return m.mode(load.Outside) }

// mode reports whether a load is in one of these modes.
func (m *Measured) mode(modes ...string) bool {
	for _, r := range m.Loads {
		if slices.Contains(modes, r.Mode) {
			return true
		}
	}
	return false
}

// ConnectionRate returns how many connections the loads opened per second; false if one of them does not report it. It
// is also false if the requests of every load share connections: opening a few of these again is not the work of a
// load.
func (m *Measured) ConnectionRate() (float64, bool) {
	shared := true
	for name := range m.Loads {
		shared = shared && m.sharesConnections(name)
	}
	if shared {
		return 0, false
	}
	return m.Sum(func(r load.Result) float64 { return Rate(float64(r.Opened), r.Seconds) }), !m.outside()
}

// AnswerRate returns how many requests of a load were answered without error per second of the window; false if that
// is unknown.
func AnswerRate(r *load.Result) (float64, bool) {
	n, known := r.Answers()
	return Rate(float64(n), r.Seconds), known
}

// answerRate is AnswerRate for all loads together.
func (m *Measured) answerRate() (total float64, known bool) {
	for _, r := range m.Loads {
		rate, known := AnswerRate(&r)
		if !known {
			return 0, false
		}
		total += rate
	}
	return total, true
}

// RequestRate returns how many requests of the loads were answered per second of the window. It returns false if that
// is unknown, if a load's pieces of work are not requests, or if every load opens a connection for each request,
// because costs are then per connection.
func (m *Measured) RequestRate() (float64, bool) {
	if m.Events != nil || m.outside() {
		return 0, false // an exec is not a request: its cost is per event
	}
	if !slices.ContainsFunc(slices.Collect(maps.Keys(m.Loads)), m.sharesConnections) || m.pieces() {
		return 0, false
	}
	return m.answerRate()
}

// pieces reports whether a load does pieces of work that are not requests.
func (m *Measured) pieces() bool {
	for name := range m.Loads {
		if part := m.Setup.Loads[name]; part != nil && part.Kind.About().MakesPieces {
			return true
		}
	}
	return false
}

// sharesConnections reports whether several requests of a load share a connection. The options decide first: if a load
// opens a connection for each request, some requests fail to open one while the machine stalls, so by the counts alone
// one trial in twenty would have metrics that the others lack.
func (m *Measured) sharesConnections(name string) bool {
	if part := m.Setup.Loads[name]; part != nil {
		if holds := part.Kind.About().HoldsConnections; holds != nil && !holds(part.Options) {
			return false
		}
	}
	r := m.Loads[name]
	n, _ := r.Answers()
	return float64(r.Opened) < 0.99*float64(n)
}

// Rate returns n per second, or 0 without time.
func Rate(n, seconds float64) float64 {
	if seconds <= 0 {
		return 0
	}
	return n / seconds
}

// Programs returns the subject's programs; false if one of them is, or may be, missing.
func (m *Measured) Programs() ([]ledger.Program, bool) {
	if m.Subject == nil {
		return nil, true
	}
	if m.Subject.Incomplete {
		return nil, false
	}
	var found []ledger.Program
	for _, o := range m.Subject.Programs {
		i := slices.IndexFunc(m.Ledger.Programs, func(p ledger.Program) bool { return p.ID == o.ID })
		if i < 0 {
			return nil, false
		}
		found = append(found, m.Ledger.Programs[i])
	}
	return found, true
}

// BPFRate returns the run time of the subject's programs per second; false if it is unknown.
func (m *Measured) BPFRate() (float64, bool) {
	programs, ok := m.Programs()
	if !m.Setup.Statistics {
		return 0, false
	}
	total := 0.0
	for _, p := range programs {
		ran, known := p.RanSeconds() // excludes time stolen while the programs ran
		if !known {
			return 0, false
		}
		total += ran
	}
	return m.perSecond(total, ok)
}

// BPFSamples counts the samples of the subject's programs in groups of a role (in), and anywhere (of).
func (m *Measured) BPFSamples(role kind.Role) (in, of int) {
	return m.samplesIn(func(s *ledger.Seen) bool { return s.Cgroup != nil && m.RoleOf(*s.Cgroup) == role })
}

// samplesIn counts the samples of the subject's programs in places that match (in), and anywhere (of).
func (m *Measured) samplesIn(matches func(*ledger.Seen) bool) (in, of int) {
	programs, _ := m.Programs()
	for _, p := range programs {
		for i := range p.Seen {
			of += p.Seen[i].Samples
			if matches(&p.Seen[i]) {
				in += p.Seen[i].Samples
			}
		}
	}
	return in, of
}

// RoleOf returns the role of the group at path, or of the nearest group above it that has one.
func (m *Measured) RoleOf(path string) kind.Role {
	nearest, longest := "", -1
	for _, g := range m.Ledger.Cgroups {
		if g.Role != "" && cgroup.Within(path, g.Path) && len(g.Path) > longest {
			nearest, longest = g.Role, len(g.Path)
		}
	}
	return kind.Role(nearest)
}

// CPURate returns the CPU time per second of the trial's group and of groups elsewhere that have a role; false if the
// subject's is not among it.
func (m *Measured) CPURate() (float64, bool) {
	if warned(m.Ledger, WarnShared) != nil {
		return 0, false
	}
	groups := observed(m.Ledger, m.Tree)
	if m.Tree != Nowhere {
		tree := lists.Find(m.Ledger.Cgroups, func(g *ledger.Cgroup) bool { return g.Path == m.Tree })
		if tree == nil {
			return 0, false
		}
		groups = append(groups, tree)
	}
	return m.perSecond(cpuSeconds(groups))
}

// perSecond divides an amount by the length of the window; false if the amount is unknown or the window has no length.
func (m *Measured) perSecond(amount float64, known bool) (float64, bool) {
	return Rate(amount, m.Ledger.Window.Seconds), known && m.Ledger.Window.Seconds > 0
}

// SubjectMaps returns the ids of the subject's maps: the maps that it reports, the maps that its programs use, and the
// inner maps of these.
func (m *Measured) SubjectMaps() map[uint32]bool {
	ids := map[uint32]bool{}
	if m.Subject == nil {
		return ids
	}
	for _, o := range m.Subject.Maps {
		ids[o.ID] = true
	}
	programs, _ := m.Programs()
	for _, p := range programs {
		for _, id := range p.MapIDs {
			ids[id] = true
		}
	}
	for grew := true; grew; {
		grew = false
		for _, mp := range m.Ledger.Maps {
			if !ids[mp.ID] {
				continue
			}
			for _, id := range mp.Inner {
				grew = grew || !ids[id]
				ids[id] = true
			}
		}
	}
	return ids
}

// MapBytes returns the bytes of the subject's maps, counted once each; false if one is missing, or its size is unknown.
func (m *Measured) MapBytes() (float64, bool) {
	if m.Subject != nil && m.Subject.Incomplete {
		return 0, false
	}
	ids := m.SubjectMaps()
	found, total := 0, uint64(0)
	for _, mp := range m.Ledger.Maps {
		if !ids[mp.ID] {
			continue
		}
		if mp.Bytes == nil {
			return 0, false
		}
		found++
		total += *mp.Bytes
	}
	return float64(total), found == len(ids)
}
