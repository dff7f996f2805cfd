package experiment

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/internal/ledger"
	"tare/internal/load"
	"tare/internal/metric"
	"tare/internal/quantity"
	"tare/internal/record"
	"tare/internal/stats"
)

// Metric is one value of a trial: what it is, and how a trial tells it.
type Metric struct {
	metric.Definition

	value func(*measurement) (float64, bool) // false: this trial cannot tell, and the metric is left out
	count func(*measurement) (in, of int)    // instead of value, for a part that is pooled over trials
}

// Definitions are those of all metrics, in the order of docs/metrics.md.
func Definitions() []metric.Definition {
	all := make([]metric.Definition, len(Metrics))
	for i, m := range Metrics {
		all[i] = m.Definition
	}
	return all
}

// measurement is what one trial gathered, as metrics and gates look at it.
type measurement struct {
	spec    *Spec // at the trial's level
	loads   map[string]load.Result
	work    *load.Result              // of a subject that works by itself
	ledger  *ledger.Ledger            // whole, roles set
	further map[string]*ledger.Ledger // the trial's further readings, likewise
	tree    string                    // path of the trial's group, which holds those of all its processes
	shared  bool                      // the trial's group has a CPU limit of its own: the node's share of the machine
	nodes   []record.NodeTrial        // of a trial on nodes

	subject *subjectReady // null in the arms of a baseline that starts no subject
	arm     string
	events  *record.Events // null where none are counted
	tracer  *tracerReady   // null where there is none
	start   float64        // seconds from the start of the subject's process until it was ready
}

// subjectReady is what a subject says of itself when it is ready.
type subjectReady struct {
	Version  string   `json:"version,omitempty"`
	Programs []object `json:"programs"`
	Maps     []object `json:"maps"`
}

type object struct {
	ID   uint32 `json:"id"`
	Name string `json:"name"`
}

const noSubject = " 0 in a baseline without a subject, where none of its programs or maps exist."

// Metrics are all metrics, in the order of docs/metrics.md.
var Metrics = slices.Concat(coreMetrics, runningMetrics, limitMetrics, probeMetrics, memoryMetrics, storeMetrics, pushMetrics, connectMetrics, traceMetrics, nodeMetrics)

var coreMetrics = []Metric{
	orRunning(latency(load.Latency, needLatency, 0.5, "p50", "from the intended start of a request until its answer was read")),
	orRunning(latency(load.Latency, needLatency, 0.9, "p90", "from the intended start of a request until its answer was read")),
	orRunning(latency(load.Latency, needLatency, 0.99, "p99", "from the intended start of a request until its answer was read")),
	orRunning(latency(load.Latency, needLatency, 0.999, "p999", "from the intended start of a request until its answer was read")),
	orRunning(latency(load.Connect, needLatency, 0.5, "p50", "for a connection to be made")),
	orRunning(latency(load.Connect, needLatency, 0.99, "p99", "for a connection to be made")),
	latency(load.Lag, needNothing, 0.5, "p50", "from the intended start of a request until it was sent, for want of a free connection or of a generator in time"),
	latency(load.Lag, needNothing, 0.99, "p99", "from the intended start of a request until it was sent, for want of a free connection or of a generator in time"),
	orRunning(latency(load.OwnLag, needNothing, 0.5, "p50", "that the generator itself was late, from when a request was due and a connection was free")),
	orRunning(latency(load.OwnLag, needNothing, 0.99, "p99", "that the generator itself was late, from when a request was due and a connection was free")),
	{Definition: metric.Definition{Name: "throughput_per_second", Unit: quantity.PerSecond, Rank: metric.RankThroughput, Pool: metric.Sum, Better: metric.Higher, Needs: needThroughput, Headline: true, Outcome: true, How: "Requests of all loads that were answered without error, per second of the window."}, value: func(m *measurement) (float64, bool) {
		return m.sum(func(r load.Result) float64 { return r.Rate }), len(m.loads) > 0
	}},
	{Definition: metric.Definition{Name: "error_ratio", Unit: quantity.Part, Rank: metric.RankThroughput, Pool: metric.Merged, Better: metric.Lower, Needs: needNothing, Outcome: true, How: "Requests that failed or stayed unanswered, of those intended."}, value: func(m *measurement) (float64, bool) {
		intended := m.sum(func(r load.Result) float64 { return float64(r.Intended) })
		return m.sum(func(r load.Result) float64 { return float64(failed(r)) }) / intended, intended > 0
	}},
	{Definition: metric.Definition{Name: "bpf_seconds_per_connection", Unit: quantity.Seconds + " per connection", Rank: metric.RankBPF, Pool: metric.PerConnection, Cost: true, Better: metric.Lower, Needs: needCost, Headline: true, How: "Run time of the subject's eBPF programs, per connection that the loads opened. Both as rates, each by its own window: the ledger's and the load's." + noSubject}, value: per((*measurement).bpfRate, (*measurement).connectionRate)},
	{Definition: metric.Definition{Name: "bpf_seconds_per_request", Unit: quantity.Seconds + " per request", Rank: metric.RankBPF, Pool: metric.PerRequest, Cost: true, Better: metric.Lower, Needs: needRequestCost, Headline: true, How: "Run time of the subject's eBPF programs, per request answered. Left out where each request has a connection of its own: it would say the same twice." + noSubject}, value: per((*measurement).bpfRate, (*measurement).requestRate)},
	{Definition: metric.Definition{Name: "bpf_client_share", Unit: quantity.Part, Rank: metric.RankBPF, Pool: metric.Counts, Needs: needSamples, How: "Part of the subject's eBPF run time that ran in the groups of the loads (the clients): samples there, of all samples of its programs, pooled over the trials of an arm. Left out below 25 samples."},
		count: func(m *measurement) (in, of int) { return m.bpfSamples("load") }},
	{Definition: metric.Definition{Name: "bpf_server_share", Unit: quantity.Part, Rank: metric.RankBPF, Pool: metric.Counts, Needs: needSamples, How: "The same for the groups of the applications (the servers)."},
		count: func(m *measurement) (in, of int) { return m.bpfSamples("app") }},
	{Definition: metric.Definition{Name: "cpu_seconds_per_connection", Unit: quantity.Seconds + " per connection", Rank: metric.RankCPU, Pool: metric.PerConnection, Cost: true, Better: metric.Lower, Needs: needCost, Headline: true, How: "CPU time of the trial's control group, which holds applications, loads and subject, per connection that the loads opened. eBPF programs that run in their tasks are inside."}, value: per((*measurement).cpuRate, (*measurement).connectionRate)},
	{Definition: metric.Definition{Name: "cpu_seconds_per_request", Unit: quantity.Seconds + " per request", Rank: metric.RankCPU, Pool: metric.PerRequest, Cost: true, Better: metric.Lower, Needs: needRequestCost, Headline: true, How: "The same per request answered."}, value: per((*measurement).cpuRate, (*measurement).requestRate)},
	{Definition: metric.Definition{Name: "map_bytes", Unit: quantity.Bytes, Rank: metric.RankMemory, Pool: metric.Mean, Cost: true, Better: metric.Lower, Needs: needMemory, Headline: true, How: "Bytes of the subject's eBPF maps at the end of the window, each map once, by the method that the ledger names." + noSubject}, value: (*measurement).mapBytes},
	{Definition: metric.Definition{Name: "memory_hard_bytes", Unit: quantity.Bytes, Rank: metric.RankMemory, Pool: metric.Mean, Cost: true, Better: metric.Lower, Needs: needMemory, Headline: true, How: "Of the subject's control group at the end of the window: anon + shmem + kernel - reclaimable slab." + noSubject}, value: memory(func(m *ledger.Memory) *int64 { return m.Hard })},
	{Definition: metric.Definition{Name: "memory_soft_bytes", Unit: quantity.Bytes, Rank: metric.RankMemory, Pool: metric.Mean, Cost: true, Better: metric.Lower, Needs: needMemory, How: "Of the subject's control group at the end of the window: file - shmem + reclaimable slab." + noSubject}, value: memory(func(m *ledger.Memory) *int64 { return m.Soft })},
	{Definition: metric.Definition{Name: "start_seconds", Unit: quantity.Seconds, Rank: metric.RankOther, Pool: metric.Mean, Cost: true, Better: metric.Lower, Needs: needRest, How: "From the start of the subject's process until it said that it was ready. Left out where there is no subject."}, value: func(m *measurement) (float64, bool) { return m.start, m.subject != nil }},
}

// values are the metrics that this trial can tell. One whose source is null is absent, never 0.
func (m *measurement) values() map[string]float64 {
	values := map[string]float64{}
	for _, one := range Metrics {
		if one.value == nil {
			continue
		}
		if v, ok := one.value(m); ok {
			values[one.Name] = v
		}
	}
	return values
}

// counts are what this trial adds to metrics that are pooled over trials.
func (m *measurement) counts() map[string]record.Count {
	counts := map[string]record.Count{}
	for _, one := range Metrics {
		if one.count == nil {
			continue
		}
		if in, of := one.count(m); of > 0 {
			counts[one.Name] = record.Count{In: in, Of: of}
		}
	}
	return counts
}

// orRunning is a metric of all requests that has a twin of those that no stall of the machine touched (runningMetrics).
func orRunning(m Metric) Metric {
	m.Instead = strings.Replace(m.Name, "_p", "_running_p", 1)
	return m
}

func latency(histogram string, needs []Need, q float64, quantile, what string) Metric {
	return Metric{
		Definition: metric.Definition{
			Name: histogram + "_" + quantile + "_seconds", Unit: quantity.Seconds, Rank: latencyRank(histogram), Pool: metric.Merged, Better: metric.Lower,
			Needs: needs, Headline: histogram == load.Latency && quantile != "p90", Tail: q > 0.5,
			How: fmt.Sprintf("Time %s: %s quantile of the whole histogram of the trial, all loads merged. Left out when fewer than %g requests lie beyond it.",
				what, quantile, stats.MinBeyond(q)),
		},
		value: func(m *measurement) (float64, bool) {
			h, ok := m.histogram(histogram)
			if !ok {
				return 0, false
			}
			ns, ok := stats.Quantile(h, q)
			return ns / 1e9, ok
		},
	}
}

// latencyRank is that of a histogram of requests: what is about the generator comes last.
func latencyRank(histogram string) int {
	if slices.Contains([]string{load.Lag, load.OwnLag, load.OwnLagRunning}, histogram) {
		return metric.RankGenerator
	}
	return metric.RankLatency
}

// histogram merges one histogram of all loads that have it.
func (m *measurement) histogram(name string) (*hdrhistogram.Histogram, bool) {
	var encoded []string
	for _, r := range m.loads {
		if text, ok := r.Histograms[name]; ok {
			encoded = append(encoded, text)
		}
	}
	h, err := stats.MergeEncoded(encoded...)
	return h, err == nil && h != nil
}

func (m *measurement) sum(of func(load.Result) float64) (total float64) {
	for _, r := range m.loads {
		total += of(r)
	}
	return total
}

// failed counts the requests of a load that got no good answer.
func failed(r load.Result) int64 { return max(r.Intended-r.Done, 0) }

// per is one rate over another.
func per(cost, work func(*measurement) (float64, bool)) func(*measurement) (float64, bool) {
	return func(m *measurement) (float64, bool) {
		c, ok1 := cost(m)
		w, ok2 := work(m)
		if !ok1 || !ok2 || w <= 0 {
			return 0, false
		}
		return c / w, true
	}
}

func (m *measurement) connectionRate() (float64, bool) {
	return m.sum(func(r load.Result) float64 { return rate(float64(r.Opened), r.Seconds) }), true
}

// requestRate is false where each request has a connection of its own: what it costs stands under its connection.
func (m *measurement) requestRate() (float64, bool) {
	if m.events != nil {
		return 0, false // an exec is no request: its costs stand under events
	}
	if opened, done := m.sum(func(r load.Result) float64 { return float64(r.Opened) }), m.sum(func(r load.Result) float64 { return float64(r.Done) }); opened >= 0.99*done {
		return 0, false
	}
	return m.sum(func(r load.Result) float64 { return rate(float64(r.Done), r.Seconds) }), true
}

func rate(n, seconds float64) float64 {
	if seconds <= 0 {
		return 0
	}
	return n / seconds
}

// programs are the subject's programs; false when the ledger lacks one of them.
func (m *measurement) programs() ([]ledger.Program, bool) {
	if m.subject == nil {
		return nil, true
	}
	var found []ledger.Program
	for _, o := range m.subject.Programs {
		i := slices.IndexFunc(m.ledger.Programs, func(p ledger.Program) bool { return p.ID == o.ID })
		if i < 0 {
			return nil, false
		}
		found = append(found, m.ledger.Programs[i])
	}
	return found, true
}

func (m *measurement) bpfRate() (float64, bool) {
	programs, ok := m.programs()
	if !m.spec.Statistics {
		return 0, false
	}
	total := 0.0
	for _, p := range programs {
		ran, known := p.RanSeconds() // what was stolen inside the programs is nobody's cost
		if !known {
			return 0, false
		}
		total += ran
	}
	return rate(total, m.ledger.Window.Seconds), ok && m.ledger.Window.Seconds > 0
}

// bpfSamples counts the samples of the subject's programs, and those of them in groups of a role.
func (m *measurement) bpfSamples(role string) (in, of int) {
	programs, _ := m.programs()
	for _, p := range programs {
		for _, seen := range p.Seen {
			of += seen.Samples
			if seen.Cgroup != nil && m.roleOf(*seen.Cgroup) == role {
				in += seen.Samples
			}
		}
	}
	return in, of
}

// roleOf is the role of the group at path, or of the nearest group above it that has one.
func (m *measurement) roleOf(path string) string {
	role, longest := "", -1
	for _, g := range m.ledger.Cgroups {
		if g.Role != "" && within(path, g.Path) && len(g.Path) > longest {
			role, longest = g.Role, len(g.Path)
		}
	}
	return role
}

// within says whether path is group or below it.
func within(path, group string) bool {
	return path == group || strings.HasPrefix(path, strings.TrimSuffix(group, "/")+"/")
}

func (m *measurement) cpuRate() (float64, bool) {
	i := slices.IndexFunc(m.ledger.Cgroups, func(g ledger.Cgroup) bool { return g.Path == m.tree })
	if i < 0 || m.ledger.Cgroups[i].CPUSeconds == nil || m.ledger.Window.Seconds <= 0 {
		return 0, false
	}
	return *m.ledger.Cgroups[i].CPUSeconds / m.ledger.Window.Seconds, true
}

// subjectMaps are the ids of the subject's maps: those it names, those its programs use, and those inside them. Each stands once.
func (m *measurement) subjectMaps() map[uint32]bool {
	ids := map[uint32]bool{}
	if m.subject == nil {
		return ids
	}
	for _, o := range m.subject.Maps {
		ids[o.ID] = true
	}
	programs, _ := m.programs()
	for _, p := range programs {
		for _, id := range p.MapIDs {
			ids[id] = true
		}
	}
	for grew := true; grew; {
		grew = false
		for _, mp := range m.ledger.Maps {
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

func (m *measurement) mapBytes() (float64, bool) {
	ids := m.subjectMaps()
	found, total := 0, uint64(0)
	for _, mp := range m.ledger.Maps {
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

func memory(part func(*ledger.Memory) *int64) func(*measurement) (float64, bool) {
	return func(m *measurement) (float64, bool) {
		if m.subject == nil {
			return 0, true
		}
		total, found := 0.0, false
		for _, g := range m.ledger.Cgroups {
			if g.Role != "subject" {
				continue
			}
			if g.Memory == nil || part(g.Memory) == nil {
				return 0, false
			}
			total, found = total+float64(*part(g.Memory)), true
		}
		return total, found
	}
}

func needWords(needs []Need) string {
	if len(needs) == 0 {
		return "-"
	}
	words := make([]string, len(needs))
	for i, n := range needs {
		words[i] = string(n)
	}
	return strings.Join(words, ", ")
}

// WriteMetrics writes docs/metrics.md.
func WriteMetrics(w io.Writer) error {
	var b strings.Builder
	b.WriteString(`# Metrics

One value for each trial, in the "metrics" of its line in trials.jsonl. A name ends in its unit and means the same in every experiment. A metric
whose source this machine does not have is absent, never 0. This page is made from the definitions in the source
(internal/experiment/metrics.go). Each run keeps the definitions of its own metrics, in "metrics" of run.json.

A metric needs certain things of its trial. A gate that was tripped breaks some of them, and the trial then cannot tell the metrics that have
one of these needs; all others of the same trial stand. Answers speak of the metrics marked with *; a run with a precision ends by those
of them that are not quantiles above the median or pooled over trials.

| gate | breaks | for |
|---|---|---|
`)
	for _, g := range Gates {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", g.Name, needWords(g.Breaks), g.Why)
	}
	b.WriteString(`
When the subject itself tripped the gate, for it was too slow and nobody else disturbed the machine, that is a result: its throughput and
the part of its requests that failed stand.

Over the nodes of a trial on several (docs/nodes.md) a metric is pooled as its column says: by merged histograms and counts, a sum,
the largest, the mean, or the mean weighted by connections, requests or events. A cost (**+**) may be a fixed part and parts that grow with
factors; models are fitted to these.

| metric | unit | better | over nodes | needs | how |
|---|---|---|---|---|---|
`)
	for _, m := range Metrics {
		mark := ""
		if m.Headline {
			mark += " *"
		}
		if m.Cost {
			mark += " **+**"
		}
		fmt.Fprintf(&b, "| `%s`%s | %s | %s | %s | %s | %s |\n", m.Name, mark, m.Unit, cmp.Or(string(m.Better), "-"), m.Pool, needWords(m.Needs), m.How)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
