// Package comparison compares recorded runs with each other. It takes each run relative to its own baseline: the effect
// of an arm is its ratio to, or its difference from, the baseline of the same run. Effects depend less on the state of
// the machine on that day than the values themselves. What remains of that dependence is the variance between runs. It
// is in the interval of every change; if it is not known, there is no verdict. The package does no I/O: records in,
// comparison out.
package comparison

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/lib/stats"
	"tare/internal/results/analysis"
)

// Schema names the JSON form of Comparison.
const Schema = "tare.comparison/v1"

// Source is one recorded run and its summary.
type Source struct {
	Dir      string
	Run      record.Run
	Summary  *analysis.Summary
	Warnings []string // about its record
}

// Comparison lists what changed between old and new runs.
type Comparison struct {
	Schema     string `json:"schema"`
	Experiment string `json:"experiment"`
	Old        []Ref  `json:"old"` // repeats of the same thing
	New        []Ref  `json:"new"` // repeats of the same thing
	History    []Ref  `json:"history"`

	Changes  []Change  `json:"changes"`
	Compared int       `json:"compared"` // number of changes with a verdict
	Resolved int       `json:"resolved"` // number of these that are resolved
	Missing  []Missing `json:"missing"`
	Warnings []string  `json:"warnings"`

	// doubted holds the names of changes that a doubt about a run leaves unresolved, by the text of the doubt. leftOut
	// holds the names of effects, by the text on how many runs of the history measured them by another rule.
	doubted, leftOut lists.Groups[string, string]
}

// Ref identifies a run.
type Ref struct {
	ID       string            `json:"id"`
	Dir      string            `json:"dir"`
	Started  time.Time         `json:"started"`
	Version  string            `json:"tare"`
	Subjects map[string]string `json:"subjects"` // name -> version
}

func refs(sources []Source) []Ref {
	all := []Ref{}
	for _, s := range sources {
		all = append(all, Ref{
			ID: s.Run.ID, Dir: s.Dir, Started: s.Run.Started, Version: s.Run.Version, Subjects: s.Run.Environment.Subjects,
		})
	}
	return all
}

// Scale says how the effect of an arm is expressed.
type Scale string

// The scales: the ratio to the baseline of the same run, the difference from it if there is no ratio, or the value
// itself if the baseline has none of the metric.
const (
	Ratio      Scale = "ratio"
	Difference Scale = "difference"
	Value      Scale = "value"
)

// Between is the source of the variance between runs.
type Between string

// The sources of the variance between runs. With Unknown there is no verdict.
const (
	Unknown Between = ""
	Repeats Between = "repeats" // of the same thing, among the compared runs
	History Between = "history"
	Twins   Between = "twins" // the A/A twins of all runs, if they vary more than the arms
)

// Of identifies what is compared: one metric of one arm at one level.
type Of struct {
	Metric    string            `json:"metric"`
	Unit      string            `json:"unit"`
	Rank      int               `json:"rank"`
	Arm       string            `json:"arm"`
	Component string            `json:"component,omitempty"`
	Factors   map[string]string `json:"factors"`
	Headline  bool              `json:"headline"` // a headline in some run
	Scale     Scale             `json:"scale"`
}

// newOf returns what the effects have in common. There must be at least one effect.
func newOf(k key, scale Scale, effects []effect) Of {
	e := effects[len(effects)-1].of
	return Of{
		Metric: k.metric, Unit: e.Unit, Rank: e.Rank, Arm: k.arm, Component: k.component, Factors: e.Factors, Scale: scale,
		Headline: slices.ContainsFunc(effects, func(e effect) bool { return e.headline }),
	}
}

// Change is the change from the old runs to the new ones. On the scale of ratios, Old and New are ratios to the
// baseline and Value is a fraction: 0.05 is 5 % more. Otherwise all are in the unit of the metric.
type Change struct {
	Of
	Old      float64  `json:"old"` // the mean effect; the geometric mean for ratios
	New      float64  `json:"new"`
	Value    float64  `json:"value"`
	Lo       *float64 `json:"lo"` // nil if the variance between runs is not known
	Hi       *float64 `json:"hi"`
	Resolved bool     `json:"resolved"`
	Why      string   `json:"unresolved,omitempty"` // why it is not resolved
	Between  Between  `json:"between,omitempty"`
	Freedom  float64  `json:"degrees_of_freedom,omitempty"` // of the variance between runs
}

// Missing is an effect that some of the compared runs do not have. If Compared is set, other runs of both sides have
// it, and there is a change between these. Trials are not lost at random, so the change is not resolved if a run lost
// the effect. A run whose version of Tare did not measure the effect, or measured it by an earlier rule, only makes the
// number of repeats smaller.
type Missing struct {
	Of
	Compared bool     `json:"compared"`
	In       []Absent `json:"in"`
}

// Absent names a run that does not have an effect, by its directory, and the reason.
type Absent struct {
	Dir string `json:"dir"`
	Why string `json:"why"`

	older bool // the reason is the run's version of Tare, not what the run measured
}

// key identifies an effect.
type key struct{ metric, arm, component, level string }

// effect is the effect of an arm in one run, and the estimate that it comes from.
type effect struct {
	stats.Effect
	of       *analysis.Estimate
	headline bool
	dir      string // of the run
}

// source is a run with its quotable estimates, and with the metrics that it withholds or lost.
type source struct {
	dir       string
	defined   metric.Set
	estimates map[key]*analysis.Estimate
	lost      map[key]lost
	headlines []string
}

// lost is a metric without a quotable estimate, and the reason.
type lost struct {
	of  Of
	why string
}

// sourcesOf prepares runs for a comparison.
func sourcesOf(all []Source) (sources []source) {
	for _, s := range all {
		one := source{dir: s.Dir, defined: s.Run.Defined(), estimates: map[key]*analysis.Estimate{}, lost: map[key]lost{},
			headlines: s.Summary.Headlines}
		has := map[string]bool{}
		asked := func(metric string) bool {
			return slices.Contains(s.Summary.Headlines, metric) || slices.Contains(s.Run.Headline, metric)
		}
		for _, m := range slices.Concat(s.Summary.Missing, s.Summary.ComponentMissing) {
			has[m.Metric] = true
			d := one.defined.Of(m.Metric)
			one.lost[key{m.Metric, m.Arm, m.Component, record.LevelKey(m.Factors)}] = lost{
				of: Of{Metric: m.Metric, Unit: d.Unit, Rank: d.Rank, Arm: m.Arm, Component: m.Component,
					Factors: m.Factors, Headline: asked(m.Metric)},
				why: fmt.Sprintf("%d of %d trials were lost: %s", m.Lost, m.Trials, m.Because()),
			}
		}
		for i := range s.Summary.Estimates {
			e := &s.Summary.Estimates[i]
			has[e.Metric] = true
			k := key{e.Metric, e.Arm, e.Component, record.LevelKey(e.Factors)}
			if e.Withheld == "" {
				one.estimates[k] = e
				continue
			}
			one.lost[k] = lost{
				of: Of{Metric: e.Metric, Unit: e.Unit, Rank: e.Rank, Arm: e.Arm, Component: e.Component,
					Factors: e.Factors, Headline: asked(e.Metric)},
				why: "withheld: " + e.Withheld,
			}
		}
		// If a record has no definitions, only the metrics that the run has or lost are known to exist in its version of
		// Tare.
		maps.DeleteFunc(one.defined, func(name string, d metric.Definition) bool { return d.Assumed && !has[name] })
		sources = append(sources, one)
	}
	return sources
}

// rule returns the metric.Definition.Rule by which the run measured an effect.
func (s source) rule(k key) int { return s.defined[k.metric].Rule }

// latest returns the latest rule (metric.Definition.Rule) by which some run has a difference from the baseline or, if
// no run has one, the value itself. The rule of a run that lost the metric does not count, so it does not make the
// values of other runs outdated.
func latest(sources []source, k key) int {
	for _, scale := range []Scale{Difference, Value} {
		rule := -1
		for _, s := range sources {
			if e := s.estimates[k]; e != nil {
				if _, ok := effectOf(e, scale); ok {
					rule = max(rule, s.rule(k))
				}
			}
		}
		if rule >= 0 {
			return rule
		}
	}
	return 0
}

// by returns the run's estimate of an effect by a rule; nil if it has none.
func (s source) by(rule int, k key) *analysis.Estimate {
	if s.rule(k) != rule {
		return nil
	}
	return s.estimates[k]
}

// otherwise reports whether the run has an estimate of an effect by another rule.
func (s source) otherwise(rule int, k key) bool { return s.estimates[k] != nil && s.rule(k) != rule }

// effects returns the effects of runs by a rule and on a scale. Runs without one are returned with the reasons.
func effects(sources []source, k key, rule int, scale Scale) (all []effect, without []Absent) {
	for _, s := range sources {
		if e := s.by(rule, k); e != nil {
			if x, ok := effectOf(e, scale); ok {
				all = append(all, effect{x, e, slices.Contains(s.headlines, e.Metric), s.dir})
				continue
			}
		}
		without = append(without, s.absent(k, rule))
	}
	return all, without
}

// absent returns the reason why a run does not have an effect by a rule.
func (s source) absent(k key, rule int) Absent {
	_, defined := s.defined[k.metric]
	l, lost := s.lost[k]
	e := s.estimates[k]
	base, baseLost := s.lost[key{k.metric, record.Direct, "", k.level}]
	switch {
	case !defined && !lost && e == nil:
		return Absent{s.dir, "that version of Tare did not measure it", true}
	case s.rule(k) < rule:
		return Absent{s.dir, "that version of Tare measured it in another way", true}
	case lost:
		return Absent{Dir: s.dir, Why: l.why}
	case e == nil:
		return Absent{Dir: s.dir, Why: "not measured"}
	case e.Difference == nil && baseLost:
		return Absent{Dir: s.dir, Why: "of the baseline, " + base.why}
	}
	return Absent{Dir: s.dir, Why: "no interval"}
}

// Compare compares new runs with old ones. Each side must have at least one run, and the runs of a side must be repeats
// of the same thing. The history may have more runs of the experiment, and may include the compared ones. It serves to
// estimate the variance between runs. A run that is given twice on one side counts once.
func Compare(old, new, history []Source) Comparison {
	old, new, history = distinct(old), distinct(new), distinct(history)
	c := Comparison{
		Schema: Schema, Experiment: old[0].Run.Experiment, Old: refs(old), New: refs(new), History: refs(history),
		Changes: []Change{}, Missing: []Missing{}, Warnings: []string{},
	}
	was, is, before := sourcesOf(old), sourcesOf(new), sourcesOf(history)
	all := sourcesOf(distinct(slices.Concat(old, new, history)))
	for _, k := range keysOf(slices.Concat(was, is)) {
		rule := latest(slices.Concat(was, is), k)
		scale := scaleOf(slices.Concat(was, is), k, rule)
		a, notOld := effects(was, k, rule, scale)
		b, notNew := effects(is, k, rule, scale)
		without := slices.Concat(notOld, notNew)
		c.miss(k, scale, slices.Concat(was, is), slices.Concat(a, b), Missing{
			Compared: len(a) > 0 && len(b) > 0, In: without,
		})
		if len(a) == 0 || len(b) == 0 {
			continue
		}
		past, _ := effects(before, k, rule, scale)
		twins, _ := effects(all, key{k.metric, record.AA, k.component, k.level}, rule, scale)
		if k.component != "" || scale == Value || scale == Difference && !comparable(slices.Concat(a, b)) {
			twins = nil // the baseline has next to none of the metric, so the twin's variance means little
		}
		c.add(k, scale, a, b, past, twins, without)
		left := 0
		for _, s := range before {
			if s.otherwise(rule, k) {
				left++
			}
		}
		if left > 0 {
			c.leftOut.Add(fmt.Sprintf("%d of %s", left, quantity.Counted(len(before), "run")), labelOf(k))
		}
	}
	slices.SortStableFunc(c.Changes, func(a, b Change) int { return cmp.Compare(a.Rank, b.Rank) })
	slices.SortStableFunc(c.Missing, func(a, b Missing) int { return cmp.Compare(a.Rank, b.Rank) })
	c.warn(old, new)
	return c
}

// miss adds an effect that some run does not have. It leaves out an effect that no run has and no run lost.
func (c *Comparison) miss(k key, scale Scale, sources []source, effects []effect, m Missing) {
	if len(m.In) == 0 {
		return
	}
	if len(effects) > 0 {
		m.Of = newOf(k, scale, effects)
	}
	for _, s := range sources {
		if l, known := s.lost[k]; known {
			l.of.Headline, l.of.Scale = l.of.Headline || m.Headline, scale
			m.Of = l.of
		}
		m.Headline = m.Headline || slices.Contains(s.headlines, k.metric)
	}
	if m.Metric != "" {
		c.Missing = append(c.Missing, m)
	}
}

// comparable reports whether the baseline's value is at least half of the arm's in all effects.
func comparable(effects []effect) bool {
	return !slices.ContainsFunc(effects, func(e effect) bool {
		return math.Abs(e.of.Value-e.of.Difference.Value) < math.Abs(e.of.Value)/2
	})
}

// between returns the variance between runs and its source: repeats or the history, whichever has more degrees of
// freedom. Twins may vary less than the arms do, so they alone do not suffice. They are the source if they make the
// interval wider.
func between(old, new, before, twins []effect) (from Between, spread stats.Spread) {
	const seed = 1 // for the random orders that test the history for shifts
	repeats, repeated := stats.SpreadOfRepeats(plain(old), plain(new))
	history, followed := stats.SpreadOfHistory(plain(before), seed)
	switch {
	case repeated && !(followed && history.Freedom > repeats.Freedom):
		from, spread = Repeats, repeats
	case followed:
		from, spread = History, history
	default:
		return Unknown, stats.Spread{}
	}
	width := func(s stats.Spread) float64 {
		d := s.Change(plain(old), plain(new))
		return d.Hi - d.Lo
	}
	if byTwins, known := stats.SpreadOfTwins(plain(twins)); known && width(byTwins) > width(spread) {
		return Twins, byTwins
	}
	return from, spread
}

// add adds a change, unless its values are not finite. It is not resolved if runs lost the effect.
func (c *Comparison) add(k key, scale Scale, old, new, before, twins []effect, without []Absent) {
	change := Change{Of: newOf(k, scale, slices.Concat(old, new)), Old: mean(old), New: mean(new)}
	from, spread := between(old, new, before, twins)
	change.Value = change.New - change.Old
	var d stats.Estimate
	if from != Unknown {
		d = spread.Change(plain(old), plain(new))
	}
	lo, hi := d.Lo, d.Hi
	if scale == Ratio {
		change.Old, change.New, change.Value = math.Exp(change.Old), math.Exp(change.New), math.Expm1(change.Value)
		lo, hi = math.Expm1(lo), math.Expm1(hi)
	}
	if !finite(change.Old, change.New, change.Value) {
		return // the values cannot be measurements
	}
	switch {
	case from == Unknown:
		change.Why = "by how much it differs from run to run is not known"
	case !finite(lo, hi):
		change.Why = "its interval has no end"
	default:
		change.Lo, change.Hi, change.Freedom, change.Between = &lo, &hi, spread.Freedom, from
		change.Resolved = d.Excludes(0)
		if !change.Resolved {
			change.Why = "its interval contains 0"
		} else if why := doubt(slices.Concat(old, new), without); why != "" {
			change.Resolved, change.Why = false, why
			c.doubted.Add(why, labelOf(k))
		}
		c.Compared++
		if change.Resolved {
			c.Resolved++
		}
	}
	c.Changes = append(c.Changes, change)
}

func labelOf(k key) string {
	return strings.TrimSpace(quantity.Label(k.metric) + " of " + k.arm + " " + k.component)
}

// doubt returns the first reason why the effect in a run may be wrong, with the run; empty if there is none. The
// variance between runs knows nothing of what biases all runs of one side, such as trials that only slow arms lose, or
// runs that lost too many of them to have a value.
func doubt(effects []effect, without []Absent) string {
	if lost := lists.Find(without, func(a *Absent) bool { return !a.older }); lost != nil {
		return "there is no value in " + lost.Dir
	}
	for _, e := range effects {
		if d := e.of.Difference; d != nil && d.Doubt() != "" {
			return e.dir + ": " + d.Doubt()
		}
	}
	return ""
}

func finite(all ...float64) bool {
	return !slices.ContainsFunc(all, func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
}

// maxDoubted is the maximum number of metrics that a warning names.
const maxDoubted = 8

// warn adds the warnings that a reader should know before quoting a change.
func (c *Comparison) warn(old, new []Source) {
	if expected := float64(c.Compared) * (1 - stats.Confidence); c.Resolved > 0 && expected >= 0.5 {
		c.Warnings = append(c.Warnings, fmt.Sprintf(
			"of %d comparisons chance alone resolves about %.0f; %d are resolved", c.Compared, math.Ceil(expected), c.Resolved))
	}
	for why, of := range c.doubted.All() {
		c.Warnings = append(c.Warnings, fmt.Sprintf("%s; so not resolved: %s", why,
			strings.Join(analysis.FirstOf(lists.Include(nil, of...), maxDoubted), ", ")))
	}
	for runs, of := range c.leftOut.All() {
		c.Warnings = append(c.Warnings, fmt.Sprintf("the variance between runs leaves out %s of the history, which measured "+
			"these in another way: %s", runs, strings.Join(analysis.FirstOf(lists.Include(nil, of...), maxDoubted), ", ")))
	}
	for i, s := range slices.Concat(old, new) {
		if reasons := Apart(old[0].Run, s.Run); i > 0 && len(reasons) > 0 {
			c.Warnings = append(c.Warnings, fmt.Sprintf("%s differs from %s in %s", s.Dir, old[0].Dir,
				strings.Join(reasons, "; ")))
		}
		for _, w := range slices.Concat(s.Warnings, s.Summary.Warnings) {
			c.Warnings = lists.Include(c.Warnings, s.Dir+": "+w)
		}
		switch {
		case !s.Summary.Valid:
			c.Warnings = append(c.Warnings, s.Dir+" is invalid: "+strings.Join(s.Summary.InvalidReasons, "; "))
		case s.Summary.Partial:
			c.Warnings = append(c.Warnings, s.Dir+" is partial")
		}
	}
}

// scaleOf returns the scale on which all runs have the effect by a rule: the value itself only if no run has a
// difference.
func scaleOf(sources []source, k key, rule int) Scale {
	scale := Value
	for _, s := range sources {
		e := s.by(rule, k)
		if e == nil || e.Difference == nil || e.Difference.Lo == nil {
			continue
		}
		if e.Ratio == nil || e.Ratio.Lo == nil || !(*e.Ratio.Lo > 0) {
			return Difference
		}
		scale = Ratio
	}
	return scale
}

// on returns the effect of an estimate on a scale; nil if it has no interval there.
func on(e *analysis.Estimate, scale Scale) (of *analysis.Interval) {
	switch {
	case scale == Ratio:
		of = e.Ratio
	case scale == Value:
		of = &e.Interval
	case e.Difference != nil:
		of = &e.Difference.Interval
	}
	if of == nil || of.Lo == nil || of.Hi == nil {
		return nil
	}
	return of
}

// effectOf returns the effect of an estimate on a scale, in the form that package stats needs: with the logarithm of a
// ratio. It returns false if there is no usable interval.
func effectOf(e *analysis.Estimate, scale Scale) (stats.Effect, bool) {
	of, blocks := on(e, scale), e.N
	switch {
	case of == nil:
		return stats.Effect{}, false
	case scale == Ratio:
		return stats.EffectOf(math.Log(of.Value), math.Log(*of.Lo), math.Log(*of.Hi), e.Difference.N)
	case e.Method == analysis.PooledMethod:
		blocks = e.Trials
	case scale == Difference:
		blocks = e.Difference.N
	}
	return stats.EffectOf(of.Value, *of.Lo, *of.Hi, blocks)
}

// keysOf returns the keys of subjects that some run has or lost, sorted by metric, level, arm and component.
func keysOf(sources []source) []key {
	levels := map[key]map[string]string{}
	for _, s := range sources {
		for k, l := range s.lost {
			levels[k] = l.of.Factors
		}
		for k, e := range s.estimates {
			levels[k] = e.Factors
		}
	}
	maps.DeleteFunc(levels, func(k key, _ map[string]string) bool { return k.arm == record.Direct || k.arm == record.AA })
	return slices.SortedFunc(maps.Keys(levels), func(a, b key) int {
		return cmp.Or(cmp.Compare(a.metric, b.metric), analysis.CompareLevels(levels[a], levels[b]),
			cmp.Compare(a.arm, b.arm), cmp.Compare(a.component, b.component))
	})
}

func plain(all []effect) []stats.Effect {
	return lists.Map(all, func(e effect) stats.Effect { return e.Effect })
}

func mean(all []effect) float64 {
	sum := 0.0
	for _, e := range all {
		sum += e.Value / float64(len(all))
	}
	return sum
}

// distinct removes repeated runs and sorts the rest by start.
func distinct(sources []Source) (all []Source) {
	seen := map[string]bool{}
	for _, s := range sources {
		if name := Name(s); !seen[name] {
			seen[name] = true
			all = append(all, s)
		}
	}
	slices.SortStableFunc(all, func(a, b Source) int { return a.Run.Started.Compare(b.Run.Started) })
	return all
}

// Name identifies a run, whichever directory its record is in.
func Name(s Source) string {
	if s.Run.ID == "" {
		return s.Dir
	}
	return fmt.Sprintf("%s %s %d", s.Run.ID, s.Run.Started.UTC().Format(time.RFC3339Nano), s.Run.Seed)
}
