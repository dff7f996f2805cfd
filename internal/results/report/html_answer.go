package report

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/results/analysis"
)

// This file draws the charts that answer the questions of some experiments: how much of a CPU limit is used, where the
// programs ran, how long others waited for a CPU. They depend on the metrics of a run and not on its name, so a user's
// own experiment has them too.

// chartLimit holds how much of their CPU limit the limited groups used, in CPUs. An unknown value is nil, never 0.
type chartLimit struct {
	place
	Limit     *float64 `json:"limit"`
	Used      float64  `json:"used"`
	Lo        *float64 `json:"lo"`
	Hi        *float64 `json:"hi"`
	Text      string   `json:"text"`
	Throttled string   `json:"throttled"` // fraction of the periods that were throttled

	limit, bpf, task, softirq, rest string // for the table
}

// The parts of what limited groups used.
const (
	partLimitedApp     = "application, without eBPF"
	partLimitedTask    = "eBPF in task context"
	partLimitedSoftirq = "eBPF in softirq"
	partLimitedBPF     = "eBPF, context not known"
	partLimitedAll     = "not split: the samples do not say"
)

// The places where programs ran.
const (
	partRanTask    = "tasks of the groups with a limit"
	partRanSoftirq = "softirq above those tasks"
	partRanOther   = "other groups, which pay for it"
	partRanClients = "the clients' groups"
	partRanServers = "the servers' groups"
	partRanElse    = "elsewhere"
)

// found returns the estimate of a metric in an arm at a level; nil if there is none, or if it is withheld.
func (m *dataMaker) found(metric string, at place) *analysis.Estimate {
	if e := m.estimateOf(metric, at); e != nil && e.Withheld == "" {
		return e
	}
	return nil
}

// withheld reports whether there is an estimate of a metric in an arm at a level that must not be quoted.
func (m *dataMaker) withheld(metric string, at place) bool {
	e := m.estimateOf(metric, at)
	return e != nil && e.Withheld != ""
}

func (m *dataMaker) estimateOf(metric string, at place) *analysis.Estimate {
	return lists.Find(m.s.Estimates, func(e *analysis.Estimate) bool {
		return e.Metric == metric && e.Component == "" && m.placeOf(e.Arm, e.Factors) == at && analysis.Usable(e.Value)
	})
}

func textOf(e *analysis.Estimate) string {
	if e == nil {
		return "-"
	}
	return e.Written(e.Unit)
}

// shownArms returns the arms without the twin, which only shows the noise. If there are fewer than three arms, it
// returns all.
func (m *dataMaker) shownArms() []int {
	var all []int
	for i, a := range m.Arms {
		if !a.Twin || len(m.Arms) < 3 {
			all = append(all, i)
		}
	}
	return all
}

// shownPlaces returns the arms at each level, level by level.
func (m *dataMaker) shownPlaces() (all []place) {
	for level := range m.Levels {
		all = append(all, lists.Map(m.shownArms(), func(arm int) place { return place{arm, level} })...)
	}
	return all
}

// limits adds a bar for the use of CPU limits in each arm at each level. The bar shows medians: the eBPF time by
// samples, split by context with the pooled samples of the arm, and the rest of the CPU time that the kernel charged.
// Samples and charges are counted separately, so the rest can be below 0, and is then drawn as 0.
func (m *dataMaker) limits() {
	for _, at := range m.shownPlaces() {
		of := func(metric string) *analysis.Estimate { return m.found(metric, at) }
		used := of("limited_cpus")
		if used == nil {
			continue
		}
		limit, bpf, throttled := of("limit_cpus"), of("limited_bpf_cpus"), of("limited_throttled_share")
		c := chartLimit{place: at, Used: used.Value, Lo: used.Lo, Hi: used.Hi, Text: textOf(used),
			limit: "-", bpf: textOf(bpf), task: "-", softirq: "-", rest: "-"}
		if limit != nil {
			c.Limit, c.limit = &limit.Value, quantity.Value(limit.Value, limit.Unit)
		}
		if throttled != nil {
			c.Throttled = textOf(throttled)
		}
		part := func(name string, v float64) string {
			text := quantity.Value(v, used.Unit)
			m.LimitParts = addPart(m.LimitParts, at, name, v, text)
			return text
		}
		if bpf == nil {
			part(partLimitedAll, used.Value)
		} else {
			c.rest = part(partLimitedApp, max(used.Value-bpf.Value, 0))
			task, inside := of("bpf_limited_task_share"), of("bpf_limited_inside_share")
			if task != nil && inside != nil && inside.Value > 0 {
				of := min(task.Value/inside.Value, 1)
				c.task, c.softirq = part(partLimitedTask, bpf.Value*of), part(partLimitedSoftirq, bpf.Value*(1-of))
			} else {
				part(partLimitedBPF, bpf.Value)
			}
		}
		m.Limits = append(m.Limits, c)
	}
}

// addPart adds a part of a bar, unless it is 0 or less.
func addPart(parts []chartPart, at place, name string, v float64, text string) []chartPart {
	if v > 0 {
		parts = append(parts, chartPart{at, "", name, v, text})
	}
	return parts
}

// ran adds bars for where the eBPF programs spent their run time, by the pooled samples of each arm.
func (m *dataMaker) ran() {
	for _, at := range m.shownPlaces() {
		names := []struct{ metric, part string }{{"bpf_limited_task_share", partRanTask},
			{"bpf_limited_softirq_share", partRanSoftirq}}
		rest := partRanOther
		if m.found(names[0].metric, at) == nil {
			names[0].metric, names[0].part = "bpf_client_share", partRanClients
			names[1].metric, names[1].part = "bpf_server_share", partRanServers
			rest = partRanElse
		}
		first, second := m.found(names[0].metric, at), m.found(names[1].metric, at)
		if first == nil || second == nil {
			continue
		}
		m.Ran = addPart(m.Ran, at, names[0].part, first.Value, textOf(first))
		m.Ran = addPart(m.Ran, at, names[1].part, second.Value, textOf(second))
		if left := 1 - first.Value - second.Value; left > 1e-9 {
			m.Ran = addPart(m.Ran, at, rest, left, quantity.Value(left, quantity.Part))
		}
	}
}

// limited returns the metric of the run that has a limit, and reports whether there is one.
func (m *dataMaker) limited() (metric.Definition, bool) {
	for _, d := range m.run.Metrics {
		if _, has := m.metric[d.Name]; has && d.Limit != 0 {
			return d, true
		}
	}
	return metric.Definition{}, false
}

// waits sets the limit that the chart of waits draws, if the run has a metric with one.
func (m *dataMaker) waits() {
	if d, probed := m.limited(); probed {
		m.Usable = &d.Limit
	}
}

func (d *chartData) limitTables() []tableRow {
	return lists.Map(d.Limits, func(c chartLimit) tableRow {
		return d.row("", c.place, c.limit, c.Text, cmp.Or(c.Throttled, "-"), c.bpf, c.task, c.softirq, c.rest)
	})
}

// waitTables returns a row for each arm at each level: how long others waited, and the longest wait of all its trials.
func (m *dataMaker) waitTables() (all []tableRow) {
	longest, probed := m.limited()
	if !probed {
		return nil
	}
	for _, at := range m.shownPlaces() {
		wait, waited := analysis.Largest(m.trials, longest.Name, m.Arms[at.Arm].arm, m.Levels[at.Level].factors)
		if !waited {
			continue
		}
		row := m.row("", at)
		for _, d := range m.run.Metrics {
			if d.Family == longest.Family {
				row.Cells = append(row.Cells, textOf(m.found(d.Name, at)))
			}
		}
		row.Cells = append(row.Cells, inSeconds(wait))
		all = append(all, row)
	}
	return all
}

// stairs lists the kinds of memory for which the amounts before, under and after the load are drawn. The run must have
// metrics for the amounts before and after.
var stairs = []struct{ name, metric string }{
	{"eBPF maps, each once", "map_bytes"},
	{"kernel memory of the data plane's group", "memory_kernel_bytes"},
	{"hard memory of the data plane's group", "memory_hard_bytes"},
}

// chartStair is one kind of memory at one step, at one level.
type chartStair struct {
	place
	Kind string `json:"kind"`
	Step string `json:"step"`
	chartValue
}

// The steps of a trial: before, under and after the load.
const (
	stepUp    = "with the services, before load"
	stepUnder = "under load"
	stepDown  = "after removal"
)

func (m *dataMaker) upAndDown() {
	// These map a metric to its counterpart before the load and after removal.
	before, after := map[string]string{}, map[string]string{}
	for _, d := range m.run.Metrics {
		if _, has := m.metric[d.Name]; has {
			before[d.Before], after[d.After] = d.Name, d.Name
		}
	}
	if after[stairs[0].metric] == "" || m.Factor == "" {
		return
	}
	for _, kind := range stairs {
		steps := []struct{ name, metric string }{
			{stepUp, before[kind.metric]}, {stepUnder, kind.metric}, {stepDown, after[kind.metric]},
		}
		for _, arm := range m.shownArms() {
			if m.Arms[arm].Baseline {
				continue // the baseline has no data plane
			}
			for _, step := range steps {
				for level := range m.Levels {
					if e := m.found(step.metric, place{arm, level}); e != nil {
						m.Stairs = append(m.Stairs, chartStair{place{arm, level}, kind.name, step.name, valueOf(e)})
					}
				}
			}
		}
	}
}

// stairTables returns a row for each kind of memory of an arm at a level, with a cell for each step.
func (d *chartData) stairTables() (all []tableRow) {
	type kind struct {
		name string
		at   place
	}
	var rows lists.Groups[kind, chartStair]
	for _, c := range d.Stairs {
		rows.Add(kind{c.Kind, c.place}, c)
	}
	for of, steps := range rows.All() {
		row := d.row(of.name, of.at, "-", "-", "-")
		for _, c := range steps {
			row.Cells[slices.Index([]string{stepUp, stepUnder, stepDown}, c.Step)] = c.Text
		}
		all = append(all, row)
	}
	return all
}

func levelName(factors map[string]string) string {
	named := map[string]string{}
	for name, v := range factors {
		if short := record.FactorName(name); factors[short] == "" {
			name = short
		}
		named[name] = v
	}
	return record.LevelName(named)
}

// newPlain returns a function that replaces the names of factors in a text by their short names.
func newPlain(levels []chartLevel) func(text string) string {
	short := map[string]string{}
	for _, l := range levels {
		for name := range l.factors {
			short[name] = cmp.Or(record.FactorName(name), name)
		}
	}
	var pairs []string
	for name, to := range lists.ByKey(short) {
		pairs = append(pairs, name, to)
	}
	return strings.NewReplacer(pairs...).Replace
}

// rest sets the name of each level without the swept factor: levels of the other factors are separate lines in charts.
func (m *dataMaker) rest() {
	for i, l := range m.Levels {
		others := maps.Clone(l.factors)
		delete(others, m.Factor)
		m.Levels[i].Rest = clean(levelName(others))
	}
	m.FactorName = clean(record.FactorName(m.Factor))
}
