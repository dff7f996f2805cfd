// Package plan predicts from recorded runs what a load that was not run would need: CPUs and memory by component, what
// to request from a cluster, how many nodes that takes, and what it costs. It does no I/O: summaries in, a plan out.
// Start reading at Make. A plan has a figure only if a model of a run gives one, and lists the costs without a figure.
package plan

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strings"

	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
	"tare/internal/lib/fault"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/lib/stats"
	"tare/internal/results/analysis"
	"tare/internal/results/comparison"
)

// Schema names the JSON form of Plan.
const Schema = "tare.plan/v1"

// Ask is the question that a plan answers.
type Ask struct {
	For    map[string]float64 // levels by factor: its full name, or its last part if that is unique
	Copies float64            // number of copies, such as pods, each with the load of For; 0 means 1
	Arm    string             // empty: all except the twin and a baseline without a subject
	Node   *Size              // nil: no number of nodes
	Prices *Prices            // nil: no price
	Beyond bool               // allow levels outside of the measured range

	// Measure returns the command that would run the given levels of a factor, in the experiment of a run or in another
	// that has one of the arms; empty if there is none.
	Measure func(run record.Run, arms []string, factor string, levels []float64) string
}

// Size is the capacity of a node.
type Size struct {
	CPUs        float64 `json:"cpus"`
	MemoryBytes float64 `json:"memory_bytes"`
}

// Prices are the prices of one CPU and of one GiB of memory, in money per hour.
type Prices struct {
	CPU    float64 `json:"cpu_hour"`
	Memory float64 `json:"gib_hour"`
}

// Plan is the prediction from recorded runs.
type Plan struct {
	Schema     string             `json:"schema"`
	For        map[string]float64 `json:"for"`
	Copies     float64            `json:"copies"`     // totals, nodes and prices are of all copies, parts of one
	Confidence float64            `json:"confidence"` // of intervals, which are for a trial in a new block
	Arms       []Arm              `json:"arms"`
	Beyond     []Beyond           `json:"beyond,omitempty"` // levels outside of the measured range
	Missing    []Missing          `json:"missing,omitempty"`
	Conflicts  []string           `json:"conflicts,omitempty"` // models and arms that were not used, with the reason
	Warnings   []string           `json:"warnings,omitempty"`
}

// Arm is the plan of one variant. A total is nil if a part of it is unplanned. Totals are of all copies, and both ends
// of their intervals are those of one copy times the number of copies. Such an interval is wider than it needs to be:
// trials scatter independently, and only the error of the line is common to all copies.
type Arm struct {
	Arm       string      `json:"arm"`
	Parts     []Part      `json:"parts"`
	CPUs      *Amount     `json:"cpus"`
	Memory    *Amount     `json:"memory_bytes"`
	Node      *Need       `json:"nodes,omitempty"`
	PerHour   *Amount     `json:"money_per_hour,omitempty"`
	Unplanned []Unplanned `json:"unplanned,omitempty"`
}

// Part is the need of one component.
type Part struct {
	Component string    `json:"component"`
	CPUs      *Forecast `json:"cpus"`
	Memory    *Forecast `json:"memory_bytes"`
}

// Forecast is the value of a model with its prediction interval, the amount to request, and its source.
type Forecast struct {
	Amount
	// Request is the upper end of the interval, rounded up to thousandths of a CPU or to MiB, in CPUs or bytes; nil for
	// the run time of eBPF programs, which is charged to the processes that make them run.
	Request      *float64              `json:"request"`
	Metric       string                `json:"metric"`
	Experiment   string                `json:"experiment"`
	Run          string                `json:"run"`
	Machine      string                `json:"machine"`
	HeldoutError *float64              `json:"heldout_error"`
	Range        map[string][2]float64 `json:"range"` // the measured range of each factor that the value depends on
	// Bent is the result of the test that found that the cost is not a line; empty if no test did. If it is set, the
	// interval allows for how far the measured levels lie from the line, but a cost that bends more sharply between two
	// levels may leave the interval.
	Bent string `json:"bent,omitempty"`
}

// Amount is a predicted mean and the ends of its prediction interval.
type Amount struct {
	Value float64 `json:"value"`
	Lo    float64 `json:"lo"`
	Hi    float64 `json:"hi"`
}

// Need is the number of nodes of a size that hold the totals: at their upper ends, and at their means.
type Need struct {
	Size
	Count  float64 `json:"count"`
	AtMean float64 `json:"count_at_mean"`
	Bound  string  `json:"bound"` // the resource that fills them first: cpu or memory
}

// Unplanned is a cost without a figure.
type Unplanned struct {
	Component string `json:"component"`
	Metric    string `json:"metric"`
	Why       string `json:"why"`

	unit string // the unit whose total is unknown because of this cost
}

// Beyond is a level outside of the range of a model.
type Beyond struct {
	Factor  string     `json:"factor"`
	Asked   float64    `json:"asked"`
	Range   [2]float64 `json:"range"`
	Command string     `json:"command,omitempty"` // the command that would measure it

	unit string // of the levels, after a space (analysis.Summary.UnitOf)
}

// Says describes how far the level is outside of the range.
func (b Beyond) Says() string {
	end, which, times := b.Range[1], "largest", b.Asked/b.Range[1]
	if b.Asked < b.Range[0] {
		end, which, times = b.Range[0], "smallest", b.Range[0]/b.Asked
	}
	said := fmt.Sprintf("%s %s is outside of the measured %s to %s, by %s", record.FactorName(b.Factor),
		number(b.Asked)+b.unit, number(b.Range[0]), number(b.Range[1])+b.unit, number(math.Abs(b.Asked-end))+b.unit)
	if times > 1 && !math.IsInf(times, 0) {
		ratio := math.Max(b.Asked/end, 0)
		many := fmt.Sprintf("%.3g", ratio)
		if ratio >= 999.5 {
			many = number(math.Round(ratio)) // without an exponent
		}
		said += fmt.Sprintf(" (%s times the %s level)", many, which)
	}
	return said
}

// Missing is a factor that was asked for but never swept in the runs of some models: their figures are for the level
// that the run had.
type Missing struct {
	Factor  string   `json:"factor"`
	Asked   float64  `json:"asked"`
	Of      []string `json:"of"` // costs whose models do not depend on the factor
	Command string   `json:"command,omitempty"`
}

// number formats a level.
func number(v float64) string {
	if v == math.Trunc(v) && math.Abs(v) < 1e15 {
		return quantity.Thousands(int(v))
	}
	return fmt.Sprintf("%.6g", v)
}

// use is a model that predicts one cost of an arm.
type use struct {
	source    comparison.Source
	model     analysis.Model
	component string
	unit      string
	charged   bool               // the cost is charged to the component, which can request it
	levels    map[string]float64 // the levels that were asked for, by factor of the model
	lacks     []string           // factors that were asked for but that the model does not have
}

// name returns the name of the cost for readers.
func (u use) name() string { return u.component + " " + resource(u.unit) }

func resource(unit string) string {
	if unit == quantity.CPUs {
		return "CPU"
	}
	return "memory"
}

// rank is lower for a better model of a cost. The best model depends on most of the factors that were asked for. Among
// equals, a model that gives a figure is better, and then one with the levels that were asked for in its range.
func (u use) rank() int {
	rank := 4 * len(u.lacks)
	if _, err := u.forecast(); err != nil {
		rank += 2
	}
	for factor, v := range u.levels {
		if r := u.model.ValidRange[factor]; v < r[0] || v > r[1] {
			return rank + 1
		}
	}
	return rank
}

// Make makes a plan from runs, of which there must be at least one. Of several models of a cost it uses the one with
// the lowest rank, or the first of these. It returns an error if a run is invalid or ran on several nodes, if a level
// is outside of the range of a model and ask.Beyond is not set, or if the plan would have no figure at all.
func Make(sources []comparison.Source, ask Ask) (*Plan, error) {
	ask.Copies = cmp.Or(ask.Copies, 1)
	p := &Plan{Schema: Schema, For: ask.For, Copies: ask.Copies, Confidence: stats.Confidence, Arms: []Arm{}}
	for _, s := range sources {
		switch {
		case !s.Summary.Valid:
			return nil, fault.New(fault.Invalid, s.Dir, "run it again", "the run is invalid: %s",
				strings.Join(s.Summary.InvalidReasons, "; "))
		case onNodes(s.Run):
			return nil, fault.New(fault.Usage, s.Dir, "name a run without \"nodes\"",
				"it ran on several nodes, and its record does not say whether levels are of each or of all")
		}
		p.warn(s, sources[0])
	}
	arms := armsOf(sources, ask.Arm)
	if len(arms) == 0 {
		return nil, fault.New(fault.Usage, "--arm", "name an arm of the runs, which 'tare report' shows",
			"the runs have no such arm with a subject")
	}
	missing, unasked := lists.Groups[string, use]{}, []string(nil)
	for _, arm := range arms {
		uses, err := p.choose(sources, arm, ask)
		if err != nil {
			return nil, err
		}
		for _, u := range uses {
			for _, f := range u.lacks {
				if u.model.Component != "" || !hasComponents(uses, u.model.Metric) {
					missing.Add(f, u)
				}
			}
			p.beyond(u, ask)
			for _, t := range u.model.Terms[1:] {
				if _, is := u.levels[t.Name]; !is {
					unasked = lists.Include(unasked, record.FactorName(t.Name))
				}
			}
		}
		p.Arms = append(p.Arms, armOf(arm, uses, unmodelled(sources, arm, uses), ask))
	}
	for f, uses := range missing.All() {
		m := Missing{Factor: f, Asked: ask.For[f]}
		for _, u := range uses {
			m.Of = lists.Include(m.Of, u.name())
		}
		for _, s := range sources {
			if m.Command == "" && ask.Measure != nil {
				m.Command = ask.Measure(s.Run, arms, f, sweep(max(math.Trunc(m.Asked/4), min(1, m.Asked)), m.Asked))
			}
		}
		p.Missing = append(p.Missing, m)
	}
	slices.SortFunc(p.Missing, func(a, b Missing) int { return cmp.Compare(a.Factor, b.Factor) })
	if !ask.Beyond && len(p.Beyond) > 0 {
		hint := "--beyond plans nevertheless"
		if c := p.Beyond[0].Command; c != "" {
			hint = "measure it: " + c + "; " + hint
		}
		return nil, fault.New(fault.Usage, "--for", hint, "%s",
			strings.Join(lists.Map(p.Beyond, Beyond.Says), "; "))
	}
	if slices.ContainsFunc(p.Arms, func(a Arm) bool { return len(a.Parts) > 0 }) {
		return p, nil
	}
	if len(unasked) > 0 {
		return nil, fault.New(fault.Usage, "--for", "give it a level, such as "+unasked[0]+"=10",
			"the costs depend on %s as well", strings.Join(unasked, ", "))
	}
	why := "no run has a model of CPUs or memory: that takes three levels of a factor"
	if u := p.Arms[0].Unplanned; len(u) > 0 {
		why = fmt.Sprintf("%s of %s: %s", quantity.Label(u[0].Metric), u[0].Component, u[0].Why)
	}
	return nil, fault.New(fault.Invalid, sources[0].Dir, "see the models: tare report DIR --all",
		"nothing can be planned: %s", why)
}

// onNodes reports whether an experiment ran on several nodes. Of a run in a cluster, only its spec says so.
func onNodes(r record.Run) bool {
	var spec struct {
		Nodes   int            `json:"nodes"`
		Factors map[string]any `json:"factors"`
	}
	_ = json.Unmarshal(r.Spec, &spec) // a spec that cannot be read names no nodes
	_, is := spec.Factors["nodes"]
	for _, levels := range spec.Factors {
		cases, _ := levels.(map[string]any)
		for _, settings := range cases {
			of, _ := settings.(map[string]any)
			is = is || of["nodes"] != nil
		}
	}
	return is || r.Nodes != nil || spec.Nodes > 0
}

// warn adds what makes the figures of a run less certain, or less comparable with those of the first.
func (p *Plan) warn(s, first comparison.Source) {
	add := func(text string) { p.Warnings = lists.Include(p.Warnings, s.Dir+": "+text) }
	if s.Summary.Partial {
		add("the run is partial")
	}
	if machine(s.Run) != machine(first.Run) {
		add("it ran on another machine than " + first.Dir + ": " + machine(s.Run))
	}
	switch names, known := comparison.OtherNodes(s.Run.Environment, first.Run.Environment); {
	case s.Dir == first.Dir:
	case len(names) > 0:
		add("it ran on other machines of a cluster than " + first.Dir + ": " +
			strings.Join(analysis.FirstOf(names, maxNames), ", "))
	case !known:
		add("it is not known whether it ran on the same cluster as " + first.Dir)
	}
	for _, w := range slices.Concat(s.Warnings, s.Summary.Warnings) {
		add(w)
	}
}

// maxNames is the maximum number of nodes that are named.
const maxNames = 4

// machine returns the CPU model, the number of CPUs and the kernel of the machine of a run, for readers.
func machine(r record.Run) string {
	e := r.Environment
	return fmt.Sprintf("%s, %s, kernel %s", cmp.Or(e.CPUModel, "unknown CPU"), quantity.Counted(e.CPUs, "CPU"),
		cmp.Or(e.Kernel, "unknown"))
}

// armsOf returns the arms to plan, in the order of the runs.
func armsOf(sources []comparison.Source, only string) (arms []string) {
	for _, s := range sources {
		for _, m := range slices.Concat(s.Summary.Models, s.Summary.ComponentModels) {
			name := s.Summary.ArmName(m.Arm)
			if m.Arm == record.Direct && s.Run.Baseline == "" || only != "" && m.Arm != only && name != only {
				continue
			}
			arms = lists.Include(arms, name)
		}
	}
	return arms
}

// choose returns the models to use for an arm. For each metric, the model of the whole arm and those of its components
// come from the same run. Runs with other settings than the run with the best model are left out, because a total of
// costs that were measured under different loads would mean nothing. It adds what it left out to p.Conflicts.
func (p *Plan) choose(sources []comparison.Source, arm string, ask Ask) (all []use, err error) {
	var runs [][]use
	for _, s := range sources {
		defined, here := s.Run.Defined(), []use(nil)
		for _, m := range slices.Concat(s.Summary.Models, s.Summary.ComponentModels) {
			d := defined.Of(m.Metric)
			if s.Summary.ArmName(m.Arm) != arm || d.Plan == "" || d.Unit != quantity.CPUs && d.Unit != quantity.Bytes {
				continue
			}
			u, err := useOf(s, m, ask.For)
			if err != nil {
				return nil, err
			}
			u.component, u.unit, u.charged = cmp.Or(m.Component, d.Plan), d.Unit, d.Rank != metric.RankBPF
			here = append(here, u)
		}
		if len(here) > 0 {
			runs = append(runs, here)
		}
	}
	if len(runs) == 0 {
		return nil, nil
	}
	best := func(uses []use) int { return slices.Min(lists.Map(uses, use.rank)) }
	like := slices.MinFunc(runs, func(a, b []use) int { return cmp.Compare(best(a), best(b)) })[0]
	chosen := map[string][]use{}
	var metrics []string
	for _, uses := range runs {
		s := uses[0].source
		if what := otherwise(like.source.Run, s.Run, uses[0].model.Arm); what != "" {
			p.Conflicts = lists.Include(p.Conflicts, fmt.Sprintf("%s of %s is left out: it differs from that of %s in %s", arm,
				s.Dir, like.source.Dir, what))
			continue
		}
		here := map[string][]use{}
		for _, u := range uses {
			here[u.model.Metric] = append(here[u.model.Metric], u)
		}
		for metric, is := range lists.ByKey(here) {
			was, taken := chosen[metric]
			if !taken {
				metrics, chosen[metric] = append(metrics, metric), is
				continue
			}
			used, left := was, is
			if is[0].rank() < was[0].rank() {
				used, left = is, was
			}
			chosen[metric] = used
			p.Conflicts = lists.Include(p.Conflicts, fmt.Sprintf("%s of %s is from %s, and not from %s", quantity.Label(metric),
				arm, used[0].source.Dir, left[0].source.Dir))
		}
	}
	for _, metric := range metrics {
		all = append(all, chosen[metric]...)
	}
	return all, nil
}

// unmodelled returns the costs of an arm that have no model. These are costs that its trials have, and costs that only
// other arms have, such as a baseline without a subject. The run time of eBPF programs is always among them, because
// every subject may have some.
func unmodelled(sources []comparison.Source, arm string, uses []use) (all []Unplanned) {
	for _, s := range sources {
		for _, d := range s.Run.Metrics {
			of := func(metric string) bool { return metric == d.Name }
			if d.Plan == "" || slices.ContainsFunc(uses, func(u use) bool { return of(u.model.Metric) }) ||
				slices.ContainsFunc(all, func(u Unplanned) bool { return of(u.Metric) }) {
				continue
			}
			here, elsewhere := false, d.Rank == metric.RankBPF
			for _, e := range s.Summary.Estimates {
				here = here || of(e.Metric) && s.Summary.ArmName(e.Arm) == arm
				elsewhere = elsewhere || of(e.Metric)
			}
			switch {
			case here:
				all = append(all, Unplanned{d.Plan, d.Name, noModel, d.Unit})
			case elsewhere:
				all = append(all, Unplanned{d.Plan, d.Name, notMeasured, d.Unit})
			}
		}
	}
	return all
}

// The reasons why a cost has no figure.
const (
	noModel     = "no line was fitted: that takes values at three levels or more of a numeric factor"
	notMeasured = "no trial of this arm has it"
	noWhole     = "no line was fitted to the whole arm, and its components may not hold all of it"
)

// otherwise names what differs between two runs: settings of an arm, conditions of the run, and versions of programs.
// It leaves out settings that either run sweeps, and programs that belong to other arms. It returns an empty string if
// nothing differs.
func otherwise(a, b record.Run, arm string) string {
	x, sweptX, errX := settingsOf(a.Spec, arm)
	y, sweptY, errY := settingsOf(b.Spec, arm)
	if errX != nil || errY != nil {
		return "what its record does not say"
	}
	swept := func(setting string) bool {
		return slices.ContainsFunc(slices.Concat(sweptX, sweptY), func(f string) bool { return sweeps(f, setting) })
	}
	var differ []string
	both := maps.Clone(x)
	maps.Copy(both, y)
	for setting := range lists.ByKey(both) {
		if x[setting] != y[setting] && !swept(setting) {
			differ = append(differ, strings.TrimPrefix(setting, "arms."+arm+"."))
		}
	}
	for name, version := range lists.ByKey(a.Environment.Subjects) {
		other, both := b.Environment.Subjects[name]
		if both && other != version && !ofOtherArm(name, a.Spec, arm) {
			differ = append(differ, "the version of "+name)
		}
	}
	return strings.Join(differ, ", ")
}

// ofOtherArm reports whether a program is known to be the subject of other arms only: it has the name of their kind of
// subject. Programs by other names, and that of the baseline, may be any arm's.
func ofOtherArm(program string, raw json.RawMessage, arm string) bool {
	type part struct {
		Subject string `json:"subject"`
	}
	var spec struct {
		Arms     map[string]part `json:"arms"`
		Baseline part            `json:"baseline"`
	}
	if json.Unmarshal(raw, &spec) != nil || program == spec.Baseline.Subject || program == spec.Arms[arm].Subject {
		return false
	}
	return slices.Contains(slices.Collect(maps.Values(spec.Arms)), part{program})
}

// settingsOf returns the settings of an arm and the conditions of its run in JSON, by path, and the factors of the run.
func settingsOf(raw json.RawMessage, arm string) (settings map[string]string, factors []string, err error) {
	var spec struct {
		Arms     map[string]any `json:"arms"`
		Baseline any            `json:"baseline"`
		Factors  map[string]any `json:"factors"`
	}
	conditions, err := comparison.Conditions(raw)
	if err = errors.Join(err, json.Unmarshal(raw, &spec)); err != nil {
		return nil, nil, err
	}
	delete(conditions, "baseline") // costs are those of the arm itself
	settings = map[string]string{}
	flatten(settings, "", conditions)
	if arm == record.Direct {
		flatten(settings, "baseline", spec.Baseline)
	} else {
		flatten(settings, "arms."+arm, spec.Arms[arm])
	}
	return settings, slices.Collect(maps.Keys(spec.Factors)), nil
}

// flatten adds a JSON value by path.
func flatten(to map[string]string, at string, value any) {
	switch v := value.(type) {
	case nil:
	case map[string]any:
		for key, inner := range v {
			flatten(to, strings.TrimPrefix(at+"."+key, "."), inner)
		}
	default:
		to[at] = fmt.Sprint(v)
	}
}

// sweeps reports whether a factor sets a setting: its name matches the end of the setting's path, as in a spec.
func sweeps(factor, setting string) bool {
	pattern, segments := strings.ReplaceAll(factor, ".", "/"), strings.Split(setting, ".")
	for i := range segments {
		if is, err := path.Match(pattern, strings.Join(segments[i:], "/")); err == nil && is {
			return true
		}
	}
	return false
}

// useOf finds the levels of a model's factors among those that were asked for.
func useOf(s comparison.Source, m analysis.Model, asked map[string]float64) (use, error) {
	u := use{source: s, model: m, levels: map[string]float64{}}
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		var found []string
		for _, t := range m.Terms[1:] {
			if t.Name == name || record.FactorName(t.Name) == name {
				found = []string{t.Name}
				break
			}
			if strings.HasSuffix(t.Name, "."+name) {
				found = append(found, t.Name)
			}
		}
		switch len(found) {
		case 0:
			u.lacks = append(u.lacks, name)
		case 1:
			if _, twice := u.levels[found[0]]; twice {
				return u, fault.New(fault.Usage, "--for", "name each factor once", "%s has two levels", found[0])
			}
			u.levels[found[0]] = asked[name]
		default:
			return u, fault.New(fault.Usage, "--for", "name one of them in full", "%q may be %s", name,
				strings.Join(found, " or "))
		}
	}
	return u, nil
}

// beyond adds the levels that lie outside of the range of a model.
func (p *Plan) beyond(u use, ask Ask) {
	for factor, v := range lists.ByKey(u.levels) {
		r := u.model.ValidRange[factor]
		if v >= r[0] && v <= r[1] {
			continue
		}
		b := Beyond{Factor: factor, Asked: v, Range: r, unit: u.source.Summary.UnitOf(factor)}
		if slices.ContainsFunc(p.Beyond, func(o Beyond) bool { return o.Factor == factor && o.Range == r }) {
			continue
		}
		if ask.Measure != nil {
			b.Command = ask.Measure(u.source.Run, nil, factor, sweep(min(r[0], v), max(r[1], v)))
		}
		p.Beyond = append(p.Beyond, b)
	}
}

// sweep returns four levels from one to another, rounded to whole numbers if both ends are.
func sweep(from, to float64) (levels []float64) {
	for i := range 4 {
		v := from + (to-from)*float64(i)/3
		if from == math.Trunc(from) && to == math.Trunc(to) {
			v = math.Round(v)
		}
		levels = lists.Include(levels, v)
	}
	return levels
}
