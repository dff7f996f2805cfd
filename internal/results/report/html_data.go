package report

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"tare/internal/experiment/load"
	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/results/analysis"
)

// chartData is the data for the charts, embedded in the page as JSON. Values are in seconds, bytes and fractions; each
// carries its text as well, so that the tooltips of a chart have the same words as the tables.
type chartData struct {
	Arms      []chartArm      `json:"arms"`
	Levels    []chartLevel    `json:"levels"`
	Metrics   []chartMetric   `json:"metrics"` // in the order of the tables
	Estimates []chartEstimate `json:"estimates"`
	Curves    []chartCurve    `json:"curves"`
	Factor    string          `json:"factor"` // the numeric factor with the most levels, at least two; empty: none
	Models    []chartModel    `json:"models"`

	FactorName string       `json:"factorName"`
	Limits     []chartLimit `json:"limits"`
	LimitParts []chartPart  `json:"limitParts"`
	Ran        []chartPart  `json:"ran"`
	Stairs     []chartStair `json:"stairs"`
	Usable     *float64     `json:"usable"` // the limit for waits for a CPU, in seconds; nil if no metric has one

	Placed  []chartPlaced `json:"placed"`
	Courses []chartCourse `json:"courses"`

	CPU    []chartPart  `json:"cpu"`
	CPUSum []chartCPU   `json:"cpuSum"`
	Memory []chartPart  `json:"memory"`
	Trials []chartTrial `json:"trials"`

	memory   []tableRow // for tables only
	unplaced []string
	plain    func(text string) string // replaces the names of factors by those in tables
}

type chartArm struct {
	Name     string `json:"name"`
	Baseline bool   `json:"baseline"`
	Twin     bool   `json:"twin"`

	arm string // its name in the record
}

type chartLevel struct {
	Name    string             `json:"name"`
	Rest    string             `json:"rest"`    // its name without the swept factor
	Numbers map[string]float64 `json:"numbers"` // the levels of factors that are numbers

	factors map[string]string
}

type chartMetric struct {
	Name  string `json:"name"`
	Label string `json:"label"`
	Unit  string `json:"unit"`
	Lag   bool   `json:"lag"` // about the load generator: describes the measurement, not the subject

	Headline bool `json:"headline"` // among those that a reader wants first

	Ladder string `json:"ladder"` // the ladder that it is a rung of; empty: none
	Rung   string `json:"rung"`

	rank, order int
}

// place is one arm at one level.
type place struct {
	Arm   int `json:"arm"`
	Level int `json:"level"`
}

// chartValue is a value with its interval, and both as text.
type chartValue struct {
	analysis.Interval
	Text string `json:"text"`
}

func valueOf(e *analysis.Estimate) chartValue { return chartValue{e.Interval, textOf(e)} }

type chartEstimate struct {
	Metric int `json:"metric"`
	place
	chartValue
	Change   *float64 `json:"change"` // difference from the baseline, as a fraction of it
	ChangeLo *float64 `json:"changeLo"`
	ChangeHi *float64 `json:"changeHi"`
	Resolved bool     `json:"resolved"`
	Verdict  string   `json:"verdict"` // the difference in words
}

// chartCurve is the latency of one arm at one level, by percentile.
type chartCurve struct {
	place
	Points []curvePoint `json:"points"`
}

// curvePoint is one percentile: the median over blocks of the trials' quantiles, and its paired difference from the
// baseline.
type curvePoint struct {
	Q float64 `json:"q"`
	chartValue
	Diff    *float64 `json:"diff"`
	DiffLo  *float64 `json:"diffLo"`
	DiffHi  *float64 `json:"diffHi"`
	Verdict string   `json:"verdict"`
	Visible *float64 `json:"visible"` // the smallest visible difference here: half the width of the A/A band
}

type chartModel struct {
	Metric  int                   `json:"metric"`
	Arm     int                   `json:"arm"`
	Fixed   float64               `json:"fixed"`
	Slopes  map[string]float64    `json:"slopes"`
	Range   map[string][2]float64 `json:"range"`
	Linear  bool                  `json:"linear"`
	Caption string                `json:"caption"`
}

// chartPart is one part of a stacked bar: a fraction of the CPU capacity, or an amount in the unit of the chart, such
// as bytes of memory.
type chartPart struct {
	place
	Group string  `json:"group"` // the bar
	Part  string  `json:"part"`
	Value float64 `json:"value"`
	Text  string  `json:"text"`
}

// chartCPU holds the totals of one arm's CPU budget.
type chartCPU struct {
	place
	Idle     float64 `json:"idle"` // fraction of the capacity
	Capacity float64 `json:"capacity"`
	Trials   int     `json:"trials"`
}

type chartTrial struct {
	Index int `json:"index"` // from 1, as in the progress of the run
	Block int `json:"block"`
	place
	At     float64            `json:"at"` // seconds since the first trial began
	Valid  bool               `json:"valid"`
	Why    string             `json:"why"`
	Values map[string]float64 `json:"values"` // by metric
	Texts  map[string]string  `json:"texts"`
}

// dataMaker builds the data step by step.
type dataMaker struct {
	*chartData
	s      *analysis.Summary
	run    record.Run
	trials []record.Trial
	levels map[string]int
	arms   map[string]int
	metric map[string]int
}

func newDataMaker(s *analysis.Summary, run record.Run, trials []record.Trial) *dataMaker {
	m := &dataMaker{chartData: &chartData{
		Arms: []chartArm{}, Levels: []chartLevel{}, Metrics: []chartMetric{}, Estimates: []chartEstimate{},
		Curves: []chartCurve{}, Models: []chartModel{},
		Limits: []chartLimit{}, LimitParts: []chartPart{}, Ran: []chartPart{}, Stairs: []chartStair{},
		Placed: []chartPlaced{}, Courses: []chartCourse{},
		// All lists are empty rather than nil, so that JavaScript need not check for null.
		CPU: []chartPart{}, CPUSum: []chartCPU{}, Memory: []chartPart{}, Trials: []chartTrial{},
	}, s: s, run: run, trials: trials, levels: map[string]int{}, arms: map[string]int{}, metric: map[string]int{}}
	m.names()
	m.estimates()
	m.curves()
	m.models()
	m.budgets()
	m.memoryParts()
	m.inTime()
	m.rest()
	m.limits()
	m.ran()
	m.upAndDown()
	m.waits()
	m.placed()
	m.courses()
	return m
}

// names collects arms, levels and metrics: first those of the estimates, in their order, then those that only trials
// have.
func (m *dataMaker) names() {
	arms := map[string]bool{}
	level := func(f map[string]string) {
		if _, seen := m.levels[record.LevelKey(f)]; seen {
			return
		}
		m.levels[record.LevelKey(f)] = len(m.Levels)
		l := chartLevel{Name: clean(levelName(f)), Numbers: map[string]float64{}, factors: f}
		for name, v := range f {
			if x, ok := analysis.LevelNumber(v); ok {
				l.Numbers[name] = x
			}
		}
		m.Levels = append(m.Levels, l)
	}
	order := map[string]int{} // position among the definitions
	for i, d := range m.run.Metrics {
		order[d.Name] = i
	}
	defined := m.run.Defined()
	for _, e := range m.s.Estimates {
		if e.Component != "" {
			continue // charts show whole subjects only; the tables have their components
		}
		arms[e.Arm] = true
		level(e.Factors)
		if _, seen := m.metric[e.Metric]; !seen {
			m.metric[e.Metric] = 0
			m.Metrics = append(m.Metrics, chartMetric{
				Name: e.Metric, Label: clean(quantity.Label(e.Metric)), Unit: e.Unit, Lag: e.Rank == metric.RankGenerator,
				Headline: slices.Contains(m.s.Headlines, e.Metric),
				Ladder:   clean(defined.Of(e.Metric).Ladder), Rung: clean(defined.Of(e.Metric).Rung),
				rank: e.Rank, order: order[e.Metric],
			})
		}
	}
	slices.SortStableFunc(m.Metrics, func(a, b chartMetric) int {
		if a.Ladder != "" && a.Ladder == b.Ladder {
			return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.order, b.order))
		}
		return cmp.Compare(a.rank, b.rank)
	})
	for i, x := range m.Metrics {
		m.metric[x.Name] = i
	}
	for _, t := range m.trials {
		arms[t.Arm] = true
		level(t.Factors)
	}
	for _, name := range slices.SortedFunc(maps.Keys(arms), analysis.CompareArms) {
		m.arms[name] = len(m.Arms)
		m.Arms = append(m.Arms, chartArm{clean(m.s.ArmName(name)), name == record.Direct, name == record.AA, name})
	}
	m.Factor = m.sweptFactor()
	m.plain = newPlain(m.Levels)
}

// sweptFactor returns the factor with the most levels among those that are numbers at every level; empty if none has
// two or more.
func (m *dataMaker) sweptFactor() string {
	best, most := "", 1
	if len(m.Levels) == 0 {
		return ""
	}
	for _, name := range slices.Sorted(maps.Keys(m.Levels[0].factors)) {
		seen := map[float64]bool{}
		for _, l := range m.Levels {
			v, ok := l.Numbers[name]
			if !ok {
				seen = nil
				break
			}
			seen[v] = true
		}
		if len(seen) > most {
			best, most = name, len(seen)
		}
	}
	return best
}

func (m *dataMaker) placeOf(arm string, level map[string]string) place {
	return place{m.arms[arm], m.levels[record.LevelKey(level)]}
}

func (m *dataMaker) estimates() {
	for _, e := range m.s.Estimates {
		if !analysis.Usable(e.Value) || e.Component != "" || e.Withheld != "" {
			continue
		}
		c := chartEstimate{Metric: m.metric[e.Metric], place: m.placeOf(e.Arm, e.Factors), chartValue: valueOf(&e)}
		if d := e.Difference; d != nil {
			c.Resolved, c.Verdict = d.Resolved, verdict(d, e.Unit)
			if e.Arm == record.AA && d.Resolved {
				c.Verdict += ", a false alarm"
			}
		}
		if r := e.Ratio; r != nil && analysis.Usable(r.Value) && !e.Difference.BaselineWithheld() {
			c.Change, c.ChangeLo, c.ChangeHi = less1(&r.Value), less1(r.Lo), less1(r.Hi)
		}
		m.Estimates = append(m.Estimates, c)
	}
}

func less1(v *float64) *float64 {
	if v == nil || !analysis.Usable(*v) {
		return nil
	}
	return new(*v - 1)
}

// verdict describes a difference, with the reason if it is not resolved.
func verdict(d *analysis.Difference, unit string) string {
	if d.BaselineWithheld() {
		return "not resolved: " + clean(d.Unresolved)
	}
	text := d.Signed(unit)
	if d.Unresolved != "" {
		text += ", not resolved: " + clean(d.Unresolved)
	}
	return text
}

// curves collects the curves of latency, ordered by level and arm. If the median of an arm is withheld, its curve is
// left out. If the baseline's median is withheld, the differences from it are left out as well.
func (m *dataMaker) curves() {
	median := m.run.Defined().QuantileOf(load.Latency, 0.5)
	for _, c := range analysis.Curves(m.run, m.trials) {
		curve := chartCurve{place: m.placeOf(c.Arm, c.Factors)}
		if m.withheld(median, curve.place) {
			continue
		}
		unpaired := m.withheld(median, m.placeOf(record.Direct, c.Factors))
		for _, p := range c.Points {
			point := curvePoint{Q: p.Q, chartValue: chartValue{p.Interval, p.Text()}, Visible: p.Visible}
			if d := p.Difference; d != nil && !unpaired {
				point.Diff, point.DiffLo, point.DiffHi = &d.Value, d.Lo, d.Hi
				point.Verdict = verdict(d, quantity.Seconds)
			}
			curve.Points = append(curve.Points, point)
		}
		m.Curves = append(m.Curves, curve)
	}
	slices.SortStableFunc(m.Curves, func(a, b chartCurve) int { return comparePlaces(a.place, b.place) })
}

func (m *dataMaker) models() {
	captions := lists.Map(models(m.s), m.plain)
	for _, x := range m.s.Models {
		arm, known := m.arms[x.Arm]
		metric, has := m.metric[x.Metric]
		if !known || !has || len(x.Terms) == 0 || x.Withheld != "" {
			continue
		}
		c := chartModel{Metric: metric, Arm: arm, Fixed: x.Terms[0].Value, Slopes: map[string]float64{}, Range: x.ValidRange,
			Linear: x.Linear}
		for _, t := range x.Terms[1:] {
			c.Slopes[t.Name] = t.Value
		}
		lead := fmt.Sprintf("%s of %s: ", quantity.Label(x.Metric), m.s.ArmName(x.Arm))
		for _, text := range captions {
			if strings.HasPrefix(text, lead) || strings.Contains(text, ") "+lead) { // after "NOT A LINE (by a test) "
				c.Caption = clean(text)
			}
		}
		m.Models = append(m.Models, c)
	}
}

func comparePlaces(a, b place) int {
	return cmp.Or(cmp.Compare(a.Level, b.Level), cmp.Compare(a.Arm, b.Arm))
}

// budgets collects the CPU budgets of the arms. The totals are ordered by level and arm, and the parts are in the order
// in which bars show them.
func (m *dataMaker) budgets() {
	if n := m.run.Nodes; n != nil && !n.Local {
		return // the ledgers are of the coordinator's machine, and the trials ran on others
	}
	at := func(b analysis.Budget) place { return m.placeOf(b.Arm, b.Factors) }
	for _, b := range inPlace(analysis.Budgets(m.trials), at) {
		p, n := at(b), float64(b.Trials)
		if b.Unplaced > 0 {
			m.unplaced = append(m.unplaced, fmt.Sprintf(
				"%s of eBPF time in each trial of %s stays in the parts where it ran: there are too few samples to say which",
				inSeconds(b.Unplaced/n), strings.TrimSuffix(m.Arms[p.Arm].Name+" at "+m.Levels[p.Level].Name, " at ")))
		}
		m.CPUSum = append(m.CPUSum, chartCPU{p, b.Idle / b.Capacity, b.Capacity / n, b.Trials})
		for _, part := range b.Parts {
			v := part.Seconds / b.Capacity
			text := fmt.Sprintf("%s of capacity, %s in each trial", quantity.Value(v, quantity.Part),
				inSeconds(part.Seconds/n))
			m.CPU = append(m.CPU, chartPart{p, part.Bar, part.Name, v, text})
		}
	}
	order := func(p chartPart) int {
		return slices.IndexFunc(analysis.BudgetParts, func(x analysis.BudgetPart) bool { return x.Name == p.Part })
	}
	slices.SortStableFunc(m.CPU, func(a, b chartPart) int { return cmp.Compare(order(a), order(b)) })
}

// inPlace sorts values by level, and by arm within a level.
func inPlace[T any](all []T, at func(T) place) []T {
	return slices.SortedStableFunc(slices.Values(all), func(a, b T) int { return comparePlaces(at(a), at(b)) })
}

// grossTable returns a row for each application and arm: what the application itself used, and what was used on its
// behalf.
func (m *dataMaker) grossTable() []tableRow {
	return lists.Map(m.s.Workloads, func(w analysis.Workload) tableRow {
		return m.row(w.Name, m.placeOf(w.Arm, w.Factors), grossCells(w.Workload)...)
	})
}

// roleNames are the names of groups' roles in the memory table, in its order.
var roleNames = []struct{ role, name string }{
	{"subject", "subject"}, {"app", "application"}, {"load", "load generator"},
}

// memoryParts collects the memory that the groups of each role hold at the end of the window.
func (m *dataMaker) memoryParts() {
	at := func(h analysis.Held) place { return m.placeOf(h.Arm, h.Factors) }
	held := inPlace(analysis.Memory(m.trials), at)
	for _, role := range roleNames {
		for _, h := range held {
			if h.Role != role.role {
				continue
			}
			p := at(h)
			row := m.row(role.name, p)
			for i, name := range analysis.MemoryFields() {
				v, known := h.Bytes[name]
				if !known {
					row.Cells = append(row.Cells, "-")
					continue
				}
				text := inBytes(math.Round(v))
				row.Cells = append(row.Cells, text)
				if i < analysis.MemoryParts && v > 0 {
					m.Memory = append(m.Memory, chartPart{p, role.name, name, v, text})
				}
			}
			m.memory = append(m.memory, row)
		}
	}
}

func (m *dataMaker) inTime() {
	var first time.Time
	for _, t := range m.trials {
		if first.IsZero() || t.Started.Before(first) {
			first = t.Started
		}
	}
	defined := m.run.Defined()
	for _, t := range m.trials {
		c := chartTrial{Index: t.Index + 1, Block: t.Block + 1, place: m.placeOf(t.Arm, t.Factors),
			At:    t.Started.Sub(first).Seconds(),
			Valid: t.Validity.Valid && t.Validity.Failed == "", Values: map[string]float64{}, Texts: map[string]string{}}
		if !c.Valid {
			c.Why = clean(cmp.Or(t.Validity.Failed, "invalid"))
			for i, r := range t.Validity.Reasons {
				if i == 0 {
					c.Why = clean(r.Message)
				}
			}
			if n, all := t.Validity.Voided(); n > 0 && !all {
				c.Why = "it has lost " + quantity.Counted(n, "metric") + ": " + c.Why
			}
			if t.Attempt > 0 {
				c.Why = fmt.Sprintf("attempt %d, %s", t.Attempt+1, c.Why)
			}
		}
		values, _ := analysis.Metrics(t, defined) // unreadable values are left out, and the summary warns of them
		for name, v := range values {
			if i, known := m.metric[name]; known && analysis.Usable(v) {
				c.Values[name], c.Texts[name] = v, quantity.Value(v, m.Metrics[i].Unit)
			}
		}
		m.Trials = append(m.Trials, c)
	}
}
