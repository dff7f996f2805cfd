package agent

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/types/known/timestamppb"

	"tare/internal/lib/known"
	"tare/internal/lib/self"
	"tare/internal/scale/host/proc"
	"tare/internal/scale/ledger"
	"tare/internal/scale/live"
	"tare/internal/scale/meter"
)

// metric declares one metric, including its documentation.
type metric struct {
	name   string
	help   string
	kind   dto.MetricType
	labels []string
	each   func(v *view, b *builder) // adds the metric's series to b
}

// view holds the data from which metrics are made.
type view struct {
	*live.Totals
	started time.Time
	parts   map[string]meter.Part // the last reading of each part, by name
	skipped int                   // cycles of --bpf-stats 10s/60s without run statistics

	loaded map[live.ProgramKey]live.Program // the programs that are loaded, by key; set by builder.each
}

const (
	counter = dto.MetricType_COUNTER
	gauge   = dto.MetricType_GAUGE
)

// other is the label value of the series that adds up everything that has no separate series because of --max-series.
const other = "(other)"

var (
	componentLabels = []string{"charge", "component", "workload"}
	placeLabels     = []string{"cgroup", "container", "namespace", "pod", "unit"}
	programLabels   = []string{"charge", "component", "id", "program", "type"}
	payerLabels     = []string{"cgroup", "container", "id", "namespace", "pod", "program", "unit"}
	mapLabels       = []string{"charge", "component", "id", "map", "type"}
)

// metrics are all metrics that the agent exports.
var metrics = []metric{
	{"tare_node_cpus", "CPUs of the machine that are online.", gauge, nil, func(v *view, b *builder) {
		b.add(float64(v.Last.Host.CPUs))
	}},
	{"tare_node_cpu_capacity_seconds_total", "CPUs times elapsed time.",
		counter, nil,
		func(v *view, b *builder) { b.add(v.Capacity.Seconds()) }},
	{"tare_node_part_cpu_seconds_total", "CPU time of the visible control groups, as in a node that is a container; the " +
		"rest is on the line unexplained. Absent where the agent sees the whole machine.", counter, nil,
		func(v *view, b *builder) { b.addDuration(v.Part) }},
	{"tare_node_cpu_seconds_total", "CPU time by line of the budget. The sum of the lines, less " +
		"tare_node_cpu_counted_twice_seconds_total and tare_node_cpu_ahead_seconds, is the capacity. The line ebpf is run " +
		"time of eBPF programs that could be split.",
		counter, []string{"line"}, func(v *view, b *builder) {
			for name, s := range v.Lines() {
				b.add(s, strings.ReplaceAll(name, " ", "_"))
			}
		}},
	{"tare_node_cpu_counted_twice_seconds_total", "CPU time on several lines of the budget, because of limits of the " +
		"kernel's counters.", counter, nil,
		func(v *view, b *builder) { b.add(v.CountedTwice()) }},
	{"tare_node_cpu_ahead_seconds", "CPU time that the budget's lines have already and the capacity has not yet; the " +
		"next readings make up for it.", gauge, nil,
		func(v *view, b *builder) { b.add(v.Ahead()) }},
	{"tare_node_cpu_longest_stall_seconds", "Longest time that the hypervisor took a CPU away, in the last minute.",
		gauge, nil, func(v *view, b *builder) {
			if longest, known := v.LongestStall(); known {
				b.add(longest)
			}
		}},

	{"tare_component_cpu_seconds_total", "CPU time by component, as the rules charge it; charge \"unknown\" is what no " +
		"rule matches.", counter, componentLabels,
		func(v *view, b *builder) { eachTotal(v.Components, b, componentValues, "", other) }},
	{"tare_component_bpf_seconds_total", "Run time of a component's eBPF programs, in whatever control group they ran.",
		counter, componentLabels, func(v *view, b *builder) { eachTotal(v.ComponentsBPF, b, componentValues, "", other) }},
	{"tare_component_memory_hard_bytes", "Memory of a component's control groups that the kernel cannot " +
		"reclaim.", gauge, componentLabels, eachComponent},
	{"tare_component_bpf_map_bytes", "Memory of a component's eBPF maps, each counted once.", gauge, componentLabels,
		eachComponent},

	{"tare_group_cpu_seconds_total", "CPU time by container, else pod, else systemd unit, else control group. Each " +
		"second is in one series: a pod's excludes its containers.", counter, placeLabels, func(v *view, b *builder) {
		eachTotal(v.Places, b, placeValues, other)
	}},
	{"tare_group_memory_bytes", "Memory of the same, by kind: hard (the kernel cannot reclaim it), soft (it can) and " +
		"working_set (as the kubelet counts it).", gauge, append([]string{"kind"}, placeLabels...),
		func(v *view, b *builder) {
			for kind, of := range memoryKinds {
				places, rest := v.Memory(of)
				for p, bytes := range places {
					b.add(float64(bytes), placeValues(append(b.scratch[:0], kind), p)...)
				}
				if _, omitted, _ := v.Places.Rest(); omitted > 0 && rest != nil {
					b.add(float64(*rest), kind, other)
				}
			}
		}},
	{"tare_namespace_cpu_seconds_total", "CPU time by namespace, including pods that are gone; without one, of what is " +
		"in no pod.", counter, []string{"namespace"}, func(v *view, b *builder) {
		eachTotal(v.Namespaces, b, namespaceValues, other)
	}},

	{"tare_bpf_program_run_seconds_total", "Run time of an eBPF program, as the kernel counts it: wall time, with " +
		"interrupts and stolen time. The sum of tare_bpf_payer_seconds_total, tare_bpf_unsplit_seconds_total and " +
		"tare_bpf_pending_seconds.", counter, programLabels, func(v *view, b *builder) {
		if v.Counted {
			eachTotal(v.Programs, b, v.ofLoaded(countedValues), "", "", "", other)
		}
	}},
	{"tare_bpf_program_runs_total", "Runs of an eBPF program.", counter, programLabels, func(v *view, b *builder) {
		eachCount(v, v.Runs, b)
	}},
	{"tare_bpf_program_samples_total", "Samples of an eBPF program in the run time that was split. If a payer has k of " +
		"n samples, its share is k/n to within about 2*sqrt(k)/n.", counter, programLabels, func(v *view, b *builder) {
		eachCount(v, v.Samples, b)
	}},
	{"tare_bpf_program_memory_bytes", "Memory of an eBPF program's code, without its maps.", gauge, programLabels,
		func(v *view, b *builder) {
			rest := 0.0
			v.Each(func(key live.ProgramKey, p live.Program) {
				switch {
				case p.MemoryBytes == nil || p.Unloaded:
				case v.Programs.Has(key):
					b.add(float64(*p.MemoryBytes), programValues(b.scratch[:0], p)...)
				default:
					rest += float64(*p.MemoryBytes)
				}
			})
			if rest > 0 {
				b.add(rest, "", "", "", other)
			}
		}},
	{"tare_bpf_programs_missed_total", "eBPF programs whose run time is in no total. when \"unseen\": loaded and " +
		"unloaded between two readings. when \"unloaded\": run time after the last reading.", counter, []string{"when"},
		func(v *view, b *builder) {
			b.add(float64(v.Missed.Unloaded), "unloaded")
			b.add(float64(v.Missed.Unseen), "unseen")
		}},
	{"tare_bpf_payer_seconds_total", "Run time of an eBPF program by the place in which it ran, by samples. cgroup " +
		"\"(idle)\": in interrupts above an idle CPU.", counter,
		payerLabels, func(v *view, b *builder) {
			eachTotal(v.Payers, b, func(to []string, payer live.Payer) []string {
				p, known := v.loaded[payer.Program]
				if !known {
					return nil
				}
				at := payer.Place
				return append(to, at.Top, at.Container, id(p.ID), at.Namespace, at.Pod, p.Name, at.Unit)
			}, other, "", "", "", "", other)
		}},
	{"tare_bpf_unsplit_seconds_total", "Run time of an eBPF program that samples could not place.", counter,
		[]string{"id", "program"}, func(v *view, b *builder) {
			eachTotal(v.Unsplit, b, v.ofLoaded(programName), "", other)
		}},
	{"tare_bpf_pending_seconds", "Run time of an eBPF program that awaits more samples to be split.",
		gauge, []string{"id", "program"}, func(v *view, b *builder) {
			rest, any := 0.0, false
			v.Each(func(key live.ProgramKey, p live.Program) {
				switch {
				case !p.Counted:
				case v.Programs.Has(key):
					b.add(p.Pending, id(p.ID), p.Name)
				default:
					rest, any = rest+p.Pending, true
				}
			})
			if any {
				b.add(rest, "", other)
			}
		}},
	{"tare_bpf_scaling_error_seconds", "Half-width of the 95 % interval of tare_bpf_program_run_seconds_total " +
		"where run statistics are on part of the time (--bpf-stats 10s/60s).", gauge, []string{"id", "program"},
		func(v *view, b *builder) {
			eachProgram(v, func(p *live.Program) {
				if p.ScalingError != nil {
					b.add(*p.ScalingError, id(p.ID), p.Name)
				}
			})
		}},
	{"tare_bpf_map_bytes", "Memory of an eBPF map, counted once even if several programs use it.", gauge, mapLabels,
		func(v *view, b *builder) {
			all := v.Last.Maps
			bySize := func(a, b ledger.Map) int { return cmp.Compare(known.Or(b.Bytes, 0), known.Or(a.Bytes, 0)) }
			if !slices.IsSortedFunc(all, bySize) {
				all = slices.SortedFunc(slices.Values(all), bySize)
			}
			most := v.Most()
			rest := uint64(0)
			for i := range all {
				m := &all[i]
				switch {
				case m.Bytes == nil:
				case most > 0 && i >= most:
					rest += *m.Bytes
				default:
					b.add(float64(*m.Bytes), chargeOf(m.Charged), m.Component, id(m.ID), m.Name, m.Type)
				}
			}
			if rest > 0 {
				b.add(float64(rest), "", "", "", other)
			}
		}},

	{"tare_agent_build_info", "Versions of the agent and of Go; always 1.", gauge, []string{"goversion", "version"},
		func(_ *view, b *builder) { b.add(1, runtime.Version(), self.Version) }},
	{"tare_agent_cpu_seconds_total", "CPU time of the agent: the budget's line self.", counter, nil,
		func(v *view, b *builder) { b.add(v.Self.CPU.Seconds()) }},
	{"tare_agent_resident_memory_bytes", "Resident memory of the agent.", gauge, nil, func(_ *view, b *builder) {
		if now, err := (proc.FS{}).ResidentNow(os.Getpid()); err == nil {
			b.add(float64(now))
		}
	}},
	{"tare_agent_bpf_memory_bytes", "Memory of the agent's own eBPF programs and maps.", gauge, nil,
		func(v *view, b *builder) {
			if bytes := v.Last.Self.BPFBytes; bytes != nil {
				b.add(float64(*bytes))
			}
		}},
	{"tare_agent_bpf_seconds_total", "Run time of the agent's own eBPF programs.", counter, nil,
		func(v *view, b *builder) { b.addDuration(v.Self.BPF) }},
	{"tare_agent_bpf_stats_seconds_total", "Cost of the kernel's run statistics, estimated from the number of " +
		"runs.", counter, nil,
		func(v *view, b *builder) { b.addDuration(v.Self.Stats) }},
	{"tare_agent_witness_seconds_total", "Cost of looking for stolen time, estimated from the number of " +
		"looks.", counter, nil,
		func(v *view, b *builder) { b.addDuration(v.Self.Witness) }},
	{"tare_agent_samples_total", "Samples of kernel mode.", counter, nil,
		func(v *view, b *builder) { b.add(float64(v.Self.Samples)) }},
	{"tare_agent_samples_lost_total", "Samples lost because their buffer was full.", counter, nil,
		func(v *view, b *builder) { b.add(float64(v.Self.Lost)) }},
	{"tare_agent_ticks_total", "Readings of the counters.", counter, nil,
		func(v *view, b *builder) { b.add(float64(v.Ticks)) }},
	{"tare_agent_gap_seconds_total", "Time that no reading covers, such as when a CPU came online. Its usage is in no " +
		"other metric.", counter, nil,
		func(v *view, b *builder) { b.add(v.Gap.Seconds()) }},
	{"tare_agent_bpf_stats_cycles_skipped_total", "Cycles of --bpf-stats 10s/60s without run statistics, because " +
		"the agent was stopped. Run time in them is in no other metric.", counter, nil,
		func(v *view, b *builder) { b.add(float64(v.skipped)) }},
	{"tare_agent_collector_duration_seconds", "Duration of a part of the last reading.", gauge, []string{"collector"},
		func(v *view, b *builder) {
			for name, p := range v.parts {
				b.add(p.Took.Seconds(), name)
			}
		}},
	{"tare_agent_collector_success", "1 if a part of the last reading succeeded, else 0, and what it reads is " +
		"absent.", gauge, []string{"collector"}, func(v *view, b *builder) {
		for name, p := range v.parts {
			b.add(map[bool]float64{true: 1, false: 0}[p.Err == nil], name)
		}
	}},
	{"tare_agent_series_gone_seconds_total", "Total of a metric's series that have ended, because what they stand for " +
		"is gone or a larger one took their place.",
		counter, []string{"metric"}, func(v *view, b *builder) {
			for name, r := range v.ranked() {
				b.add(r.Gone(), name)
			}
		}},
	{"tare_agent_series_gone_count_total", "As tare_agent_series_gone_seconds_total, of runs and samples.", counter,
		[]string{"metric"}, func(v *view, b *builder) {
			b.add(float64(v.Runs.Gone()), "tare_bpf_program_runs_total")
			b.add(float64(v.Samples.Gone()), "tare_bpf_program_samples_total")
		}},
	{"tare_agent_series_omitted", "Items in the series \"(other)\", because of --max-series.", gauge,
		[]string{"metric"}, func(v *view, b *builder) {
			for name, r := range v.ranked() {
				_, omitted, _ := r.Rest()
				b.add(float64(omitted), name)
			}
			for name, bytes := range componentMemory {
				all, most := v.components(bytes)
				b.add(float64(len(all)-most), name)
			}
		}},
	{"tare_agent_warning", "1 for each code of the warnings of the last reading; /v1/ledger has their text.", gauge,
		[]string{"code"}, func(v *view, b *builder) {
			seen := map[string]bool{}
			for _, w := range v.Last.Warnings {
				if !seen[w.Code] {
					seen[w.Code] = true
					b.add(1, w.Code)
				}
			}
		}},
}

// limited is a metric with a bounded number of series.
type limited interface {
	Rest() (total float64, omitted int, any bool)
	Gone() float64
}

func (v *view) ranked() map[string]limited {
	return map[string]limited{
		"tare_group_cpu_seconds_total": v.Places, "tare_namespace_cpu_seconds_total": v.Namespaces,
		"tare_component_cpu_seconds_total": v.Components, "tare_component_bpf_seconds_total": v.ComponentsBPF,
		"tare_bpf_payer_seconds_total": v.Payers, "tare_bpf_program_run_seconds_total": v.Programs,
		"tare_bpf_unsplit_seconds_total": v.Unsplit,
	}
}

var memoryKinds = map[string]func(*ledger.Memory) *int64{
	"hard": func(m *ledger.Memory) *int64 { return m.Hard },
	"soft": func(m *ledger.Memory) *int64 { return m.Soft },
	"working_set": func(m *ledger.Memory) *int64 {
		if m.WorkingSet == nil {
			return nil
		}
		return new(int64(*m.WorkingSet))
	},
}

func (b *builder) addDuration(d *time.Duration) {
	if d != nil {
		b.add(d.Seconds())
	}
}

// valuesOf appends the label values of a key, or returns nil if the key has no series.
type valuesOf[K any] func(to []string, key K) []string

// eachTotal adds the total of each key, and the total of all others with the label values in rest.
func eachTotal[K comparable](r *live.Ranked[K], b *builder, labels valuesOf[K], rest ...string) {
	for key, s := range r.All() {
		if values := labels(b.scratch[:0], key); values != nil {
			b.add(s, values...)
		}
	}
	if s, _, any := r.Rest(); any {
		b.add(s, rest...)
	}
}

// componentMemory holds, by metric, the functions that return the memory of a component in bytes; nil if it is unknown.
var componentMemory = map[string]func(*ledger.Component) *int64{
	"tare_component_memory_hard_bytes": func(c *ledger.Component) *int64 { return c.MemoryHardBytes },
	"tare_component_bpf_map_bytes":     func(c *ledger.Component) *int64 { return c.MapBytes },
}

// components returns the components whose memory is known, and how many of them have a separate series.
func (v *view) components(bytes func(*ledger.Component) *int64) (all []*ledger.Component, most int) {
	for i := range v.Last.Components {
		if c := &v.Last.Components[i]; bytes(c) != nil {
			all = append(all, c)
		}
	}
	if most = v.Most(); most == 0 {
		most = len(all)
	}
	return all, min(most, len(all))
}

// eachComponent adds the memory of each of the biggest components, and the sum of all others.
func eachComponent(v *view, b *builder) {
	bytes := componentMemory[b.m.name]
	all, most := v.components(bytes)
	slices.SortStableFunc(all, func(a, b *ledger.Component) int { return cmp.Compare(*bytes(b), *bytes(a)) })
	for _, c := range all[:most] {
		b.add(float64(*bytes(c)), componentValues(b.scratch[:0], c.Charged)...)
	}
	rest := int64(0)
	for _, c := range all[most:] {
		rest += *bytes(c)
	}
	if most < len(all) {
		b.add(float64(rest), "", other)
	}
}

// ofLoaded returns a function that calls labels for the loaded program with a key. It returns nil, so that there is no
// series, if the program is not loaded.
func (v *view) ofLoaded(labels valuesOf[live.Program]) valuesOf[live.ProgramKey] {
	return func(to []string, key live.ProgramKey) []string {
		if p, known := v.loaded[key]; known {
			return labels(to, p)
		}
		return nil
	}
}

func componentValues(to []string, c ledger.Charged) []string {
	return append(to, chargeOf(c), c.Component, c.Workload)
}

func chargeOf(c ledger.Charged) string { return cmp.Or(string(c.Charge), "unknown") }

func placeValues(to []string, p live.Place) []string {
	return append(to, p.Top, p.Container, p.Namespace, p.Pod, p.Unit)
}

func namespaceValues(to []string, name string) []string {
	if name == other { // a runtime's annotation can hold any text
		name = strconv.Quote(name)
	}
	return append(to, name)
}

func programName(to []string, p live.Program) []string { return append(to, id(p.ID), p.Name) }

func programValues(to []string, p live.Program) []string {
	return append(to, chargeOf(p.Charged), p.Component, id(p.ID), p.Name, p.Type)
}

// countedValues returns programValues for a program whose run time is known, and nil for any other, which has no
// series.
func countedValues(to []string, p live.Program) []string {
	if !p.Counted {
		return nil
	}
	return programValues(to, p)
}

// eachProgram calls f with each loaded program that has a separate series.
func eachProgram(v *view, f func(*live.Program)) {
	v.Each(func(key live.ProgramKey, p live.Program) {
		if v.Programs.Has(key) {
			f(&p)
		}
	})
}

// eachCount adds the count of each program, and the sum for all programs without a separate series.
func eachCount(v *view, c *live.Counts[live.ProgramKey], b *builder) {
	labels := v.ofLoaded(programValues)
	for key, n := range c.All() {
		if values := labels(b.scratch[:0], key); values != nil {
			b.add(float64(n), values...)
		}
	}
	if n, any := c.Rest(); any && v.Counted {
		b.add(float64(n), "", "", "", other)
	}
}

func id(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

// builder makes the protobuf messages of metrics, one metric at a time. A scrape has thousands of series, and each
// series has nine objects, so builder reuses the objects for the next metric and the next scrape.
type builder struct {
	created *timestamppb.Timestamp
	m       *metric
	family  dto.MetricFamily

	series   slab[dto.Metric]
	counters slab[dto.Counter]
	gauges   slab[dto.Gauge]
	values   slab[float64]
	pairs    slab[dto.LabelPair]
	labels   slab[*dto.LabelPair]
	texts    slab[string]
	scratch  [maxLabels]string // the labels of the series that is being added
	scrapes  int
}

// renewal is the number of scrapes after which the objects are allocated anew. Without this, the memory that was needed
// for the peak number of series would never be freed.
const renewal = 64

// maxLabels is the maximum number of labels of a metric.
const maxLabels = 8

// versions has the metrics that often stay the same between readings, by name, with functions that return the version
// of a metric: a number that changes whenever its series do.
var versions = map[string]func(*view) uint64{
	"tare_group_memory_bytes": func(v *view) uint64 { return v.MemoryVersion() },
}

// sorted returns the metrics in the order of their names, which Prometheus' formats require.
var sorted = sync.OnceValue(func() []metric {
	return slices.SortedFunc(slices.Values(metrics), func(a, b metric) int { return cmp.Compare(a.name, b.name) })
})

// each calls f with every metric that has series in a view, and with the metric's version, or 0 if it has no version.
// The metric is valid until f returns. A metric with a version is left out if has(name, version) is true.
func (b *builder) each(v *view, has func(name string, version uint64) bool,
	f func(_ *dto.MetricFamily, version uint64) error) error {
	if b.scrapes++; b.scrapes%renewal == 0 {
		*b = builder{scrapes: b.scrapes}
	}
	v.loaded = map[live.ProgramKey]live.Program{}
	v.Each(func(key live.ProgramKey, p live.Program) { v.loaded[key] = p })
	b.created = timestamppb.New(v.started)
	all := sorted()
	slabs := []interface{ reuse() }{&b.series, &b.counters, &b.gauges, &b.values, &b.pairs, &b.labels, &b.texts}
	for i := range all {
		for _, s := range slabs {
			s.reuse()
		}
		b.m = &all[i]
		version := uint64(0)
		if of := versions[b.m.name]; of != nil {
			if version = of(v); has(b.m.name, version) {
				continue
			}
		}
		b.family.Name, b.family.Help, b.family.Type = &b.m.name, &b.m.help, &b.m.kind
		b.family.Metric = b.family.Metric[:0]
		b.m.each(v, b)
		if len(b.family.Metric) == 0 {
			continue
		}
		if err := f(&b.family, version); err != nil {
			return err
		}
	}
	return nil
}

// add adds a series with the given label values, in the order of the metric's labels. A label with an empty value is
// left out.
func (b *builder) add(value float64, texts ...string) {
	one := b.series.one()
	pairs := b.labels.some(len(texts))[:0]
	for i, s := range texts {
		if s == "" {
			continue
		}
		text, pair := b.texts.one(), b.pairs.one()
		*text = label(s)
		pair.Name, pair.Value = &b.m.labels[i], text
		pairs = append(pairs, pair)
	}
	one.Label = pairs
	v := b.values.one()
	*v = value
	one.Counter, one.Gauge = nil, nil
	if b.m.kind == counter {
		one.Counter = b.counters.one()
		one.Counter.Value, one.Counter.CreatedTimestamp = v, b.created
	} else {
		one.Gauge = b.gauges.one()
		one.Gauge.Value = v
	}
	b.family.Metric = append(b.family.Metric, one)
}

// slab allocates many values of a type at once. After a call of reuse it hands them out again, without clearing them.
type slab[T any] struct {
	blocks [][]T
	at     int // index of the block from which values are taken
	taken  int // values taken from that block
}

const slabSize = 256

func (s *slab[T]) some(n int) []T {
	if s.at < len(s.blocks) && s.taken+n > len(s.blocks[s.at]) {
		s.at, s.taken = s.at+1, 0
	}
	if s.at == len(s.blocks) {
		s.blocks = append(s.blocks, make([]T, slabSize))
	}
	given := s.blocks[s.at][s.taken:][:n:n]
	s.taken += n
	return given
}

func (s *slab[T]) one() *T { return &s.some(1)[0] }

// reuse makes all values available again.
func (s *slab[T]) reuse() { s.at, s.taken = 0, 0 }

// maxLabel bounds the value of a label, in bytes: users choose the names of control groups and programs.
const maxLabel = 512

// label returns a text as the value of a label. Prometheus rejects a whole scrape for one byte that is not UTF-8.
// Different texts stay different: a text with odd bytes or a leading quote is quoted, and one that is cut ends in a
// hash of the whole. A cut text is longer than any uncut one, so no name can look like another's hash.
func label(s string) string {
	const ellipsis = "..."
	const room = maxLabel - len(ellipsis) - 2*sha256.Size
	if len(s) <= room && isPlain(s) { // nearly all texts
		return s
	}
	odd := s[0] == '"' || !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
	if odd {
		s = strconv.QuoteToASCII(s)
	}
	if len(s) <= room {
		return s
	}
	hash := sha256.Sum256([]byte(s))
	cut := s[:room]
	for !utf8.ValidString(cut) {
		cut = cut[:len(cut)-1]
	}
	return cut + ellipsis + hex.EncodeToString(hash[:])
}

// isPlain reports whether a text consists of printable ASCII characters and does not begin with a quote.
func isPlain(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return s[0] != '"'
}
