package analysis

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
	"tare/internal/lib/known"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/lib/stats"
)

// Family makes answers from certain metrics, whatever the experiment's name: a user's spec gets the same answers as a
// built-in spec with the same metrics.
type Family struct {
	Metrics []string // the family is asked if the run has any of these

	// Answer returns the answers, or nil if the family has nothing to say.
	Answer func(*Summary, *Table) []Answer

	// General families are asked only if there is no other answer.
	General bool
}

// families holds two families for metrics that every guest has, and those that Register added. Several can apply to one
// run: if a tracer is measured while a probe waits for a CPU, one family answers how many events the tracer lost, and
// another whether the machine stays usable.
var families = []Family{
	{Metrics: []string{"limit_cpus"}, Answer: limitAnswers},
	{Metrics: []string{"bpf_seconds_per_connection"}, Answer: pathAnswers, General: true},
}

// Register adds a family. Guests register families for their metrics.
func Register(f Family) { families = append(families, f) }

// inWords returns the answers of the families, in the order in which the first metric of each family is shown, and then
// those of ladderAnswers. General families, and after them saturationAnswers, are asked only if there is no other
// answer.
func (s *Summary) inWords(t *Table) (all []Answer) {
	order := slices.Clone(families)
	slices.SortStableFunc(order, func(a, b Family) int { return t.defined.Compare(a.Metrics[0], b.Metrics[0]) })
	speak := func(f Family) {
		if slices.ContainsFunc(f.Metrics, func(name string) bool { return t.known[name] }) {
			all = append(all, f.Answer(s, t)...)
		}
	}
	for _, f := range order {
		if !f.General {
			speak(f)
		}
	}
	all = append(all, ladderAnswers(s, t)...)
	for _, f := range order {
		if f.General && len(all) == 0 {
			speak(f)
		}
	}
	if len(all) == 0 {
		all = saturationAnswers(s, t)
	}
	return all
}

// Has reports whether the trials of the run have all of the metrics.
func (t *Table) Has(metrics ...string) bool {
	return !slices.ContainsFunc(metrics, func(name string) bool { return !t.known[name] })
}

// SubjectHas reports whether some subject has a metric with a value other than 0.
func (t *Table) SubjectHas(metric string) bool {
	for _, arm := range t.Subjects() {
		for _, at := range t.Levels {
			if slices.ContainsFunc(t.Column(at, arm, metric), func(v float64) bool { return v != 0 }) {
				return true
			}
		}
	}
	return false
}

// free reports whether the run's headline metrics include one that is meaningful only for loads without a rate limit.
// Records of Tare before 0.2 do not list headline metrics; for those, free reports whether a load is a closed loop.
func free(t *Table) bool {
	if len(t.headlines) == 0 {
		return t.closed
	}
	return slices.ContainsFunc(t.headlines, func(name string) bool { return t.known[name] && t.defined.Of(name).Free })
}

// fullPart is the minimum busy fraction of the machine's CPUs at which the machine counts as full.
const fullPart = 0.9

// full reports whether the machine's CPUs are full with every subject at every level.
func full(t *Table) bool {
	found := false
	for _, at := range t.Levels {
		for _, arm := range t.Subjects() {
			busy := t.Column(at, arm, "cpu_busy_share")
			if len(busy) == 0 {
				continue
			}
			if found = true; stats.Median(busy).Value < fullPart {
				return false
			}
		}
	}
	return found
}

// Find returns the estimate of a metric of an arm as a whole, not of one of its components, at a level; nil if there is
// none or it is withheld.
func (s *Summary) Find(metric, arm string, level map[string]string) *Estimate {
	return lists.Find(s.Estimates, func(e *Estimate) bool {
		return e.Metric == metric && e.Arm == arm && e.Component == "" && e.Withheld == "" && maps.Equal(e.Factors, level)
	})
}

// estimateOf returns the estimate of a metric of an arm, or of one of its components, at a level, even if it is
// withheld; nil if there is none.
func (s *Summary) estimateOf(metric, arm, component string, at factors) *Estimate {
	return lists.Find(s.Estimates, func(e *Estimate) bool {
		return e.Metric == metric && e.Arm == arm && e.Component == component && maps.Equal(e.Factors, at)
	})
}

// Visible returns the smallest difference in a metric that the run can distinguish from noise at a level, judged by the
// A/A twins, and whether it is known.
func (s *Summary) Visible(metric string, level map[string]string) (float64, bool) {
	for _, m := range s.MDE {
		if m.Metric == metric && maps.Equal(m.Factors, level) {
			return m.Value, true
		}
	}
	return 0, false
}

// ArmName returns the name of an arm for readers. If the run compares with another subject, the baseline has that
// subject's name.
func (s *Summary) ArmName(arm string) string {
	switch {
	case s.Baseline == "":
	case arm == record.Direct:
		return s.Baseline + " (baseline)"
	case arm == record.AA:
		return s.Baseline + " (again)"
	}
	return arm
}

// PlainName returns the name of an arm for readers, without "(baseline)".
func (s *Summary) PlainName(arm string) string {
	if arm == record.Direct && s.Baseline != "" {
		return s.Baseline
	}
	return arm
}

// answer adds the answers to the run's question. Every sentence rests on estimates, which are listed as evidence.
func (s *Summary) answer(run record.Run, t *Table) {
	if !s.Valid {
		s.Answers = append(s.Answers, Answer{
			Question: s.Question, Answer: "No answer: the run is invalid. " + strings.Join(s.InvalidReasons, ". ") + ".",
		})
		return
	}
	all := s.inWords(t)
	var missing []Answer
	if len(all) > 0 {
		missing = s.missingAnswers(run, t)
	} else {
		all = s.genericAnswers(run, t) // these say what is missing, by arm and level
	}
	for i := range all {
		all[i].Answer = s.partly() + all[i].Answer
	}
	for _, a := range slices.Concat(all, missing, s.functionAnswers(t)) {
		a.Question = s.Question
		s.Answers = append(s.Answers, a)
	}
}

// genericAnswers returns an answer for each asked arm at each level, or at the outermost ones if there are many. The
// answer lists how the arm differs from the baseline.
func (s *Summary) genericAnswers(run record.Run, t *Table) (all []Answer) {
	arms := askedArms(run, t)
	if slices.Contains(arms, record.Direct) {
		arms = []string{record.AA} // a run of only the baseline is about its noise
	}
	for _, arm := range arms {
		for _, at := range outermost(s.everyLevel(run, t)) {
			p := &Prose{Summary: s, Arm: arm, At: at}
			p.cost(t)
			p.latency(t)
			p.throughput()
			p.memory(t)
			p.stated(t)
			p.others(t)
			p.missing(run, t)
			if len(p.clauses) > 0 {
				p.end()
			} else {
				p.endUnresolved()
			}
			p.sums(t)
			p.lines()
			if lacks := t.lacks[arm]; lacks != "" && len(p.text) > 0 {
				p.Add("It is not the same service: %s.", lacks)
			}
			p.endUnresolved()
			if len(p.text) > 0 {
				a := p.Answer()
				a.General = true
				all = append(all, a)
			}
		}
	}
	return all
}

// outermost returns the first and the last level if the run sweeps one factor over more than three numbers, and all
// levels otherwise. The tables show the levels in between.
func outermost(levels []factors) []factors {
	for _, at := range levels {
		for _, level := range at {
			if _, is := LevelNumber(level); !is || len(at) > 1 {
				return levels
			}
		}
	}
	if len(levels) <= 3 {
		return levels
	}
	return []factors{levels[0], levels[len(levels)-1]}
}

// partly returns the beginning of an answer from a partial run.
func (s *Summary) partly() string {
	if !s.Partial {
		return ""
	}
	return fmt.Sprintf("From a partial run (%d of %d trials): ", s.Trials.Done, s.Trials.Planned)
}

// Subjects returns the arms other than the baseline and its twin.
func (t *Table) Subjects() []string {
	return withoutBaseline(t.Arms)
}

// BaselineAndSubjects returns all arms but the baseline's twin. The baseline may be a subject, too.
func (t *Table) BaselineAndSubjects() []string {
	return append([]string{record.Direct}, t.Subjects()...)
}

// cost adds clauses on the time that a unit of work costs. A kind of time (metric.Definition.What) often has a cost per
// connection and another per request, which say the same thing, so only the one that is shown first is mentioned.
func (p *Prose) cost(t *Table) {
	var costs []*Estimate
	for i := range p.Summary.Estimates {
		if e := &p.Summary.Estimates[i]; p.has(e) && t.defined.Of(e.Metric).What != "" {
			costs = append(costs, e)
		}
	}
	slices.SortStableFunc(costs, func(a, b *Estimate) int {
		return cmp.Or(t.defined.Compare(a.Metric, b.Metric), cmp.Compare(t.order[a.Metric], t.order[b.Metric]))
	})
	said := map[string]bool{}
	for _, e := range costs {
		d := t.defined.Of(e.Metric)
		if said[d.What] {
			continue
		}
		said[d.What] = true
		if e.Value == 0 && (t.none(e) || p.baseIsZero(e) && e.Hi != nil && *e.Hi == 0) {
			continue // neither arm spends any, for example because no eBPF program was loaded
		}
		if by := e.Difference; by != nil && p.unresolved(e) && (by.Lo != nil || by.BaselineWithheld() || len(p.clauses) > 0) {
			p.leave(e, d.What+" per "+d.Per)
			continue
		}
		text := p.adds(e, d.What+" per "+d.Per)
		p.Rest(e.Metric, e.Arm) // the evidence lists the whole before its part
		if d.Rank == metric.RankBPF && p.baseIsZero(e) {
			text += p.loadsPart(slices.Sorted(maps.Keys(t.loads)))
		}
		p.clause(e, text)
	}
}

// none reports whether a metric was 0 in every block, in both the estimate's arm and the baseline.
func (t *Table) none(e *Estimate) bool {
	for _, arm := range []string{e.Arm, record.Direct} {
		if slices.ContainsFunc(t.Column(e.Factors, arm, e.Metric), func(v float64) bool { return v != 0 }) {
			return false
		}
	}
	return true
}

// has reports whether an estimate is about the answer's arm and level, is not of a single component, and may be quoted.
func (p *Prose) has(e *Estimate) bool {
	return e.Arm == p.Arm && e.Component == "" && e.Withheld == "" && maps.Equal(e.Factors, p.At)
}

// loadsPart describes the fraction of the arm's eBPF time that ran in the control groups of the named loads. The
// fraction covers all eBPF programs, so it does not apply to a difference from a baseline that runs programs, too.
func (p *Prose) loadsPart(loads []string) string {
	share := p.Peek("bpf_client_share")
	if share == nil || len(loads) == 0 {
		return ""
	}
	p.Rest(share.Metric, share.Arm)
	where := "loads' cgroups"
	if len(loads) == 1 {
		where = loads[0] + "'s cgroup"
	}
	return fmt.Sprintf(", %.0f %% of it in the %s", 100*share.Value, where)
}

// adds describes the difference in a cost: "adds 3.1 us [2.8, 3.4] of kernel time per connection". For a cost that the
// baseline does not have, it describes the cost itself.
func (p *Prose) adds(e *Estimate, what string) string {
	d := e.Difference
	switch {
	case d == nil:
		return "takes " + e.Written(e.Unit) + " of " + what
	case len(p.clauses) > 0 || d.Lo != nil && !d.Resolved: // an unresolved difference is exactly 0 here
		return p.standing(what + " " + p.moved(e))
	case d.Value < 0:
		return "saves " + size(d, e.Unit) + " of " + what
	}
	return "adds " + size(d, e.Unit) + " of " + what
}

// latency adds clauses on quantiles: "p50 is 9 us [5, 13] higher". They compare quantiles, because a difference of
// quantiles is not the time that any single request gains or loses. If the machine stalled too often, the clauses are
// about the requests that no stall touched, and say so.
func (p *Prose) latency(t *Table) {
	share, running := p.Summary.whileRunning(p.At)
	while := ""
	if running {
		while = " while the machine was running"
	}
	for _, d := range t.defined.Quantiles(load.Latency) {
		if !d.Headline {
			continue
		}
		name, spoken := quantileName(d.Quantile), d.Name
		if running {
			spoken = d.Instead
		}
		if e := p.Peek(spoken); e != nil && e.Difference != nil {
			p.difference(e, name+while)
			continue
		}
		if all := p.Peek(d.Name); running && len(p.clauses) > 0 && all != nil && all.Difference != nil {
			p.clauses = append(p.clauses, fmt.Sprintf("%s%s is unknown: the machine's stalls touched %s of the requests",
				name, while, quantity.Rough(share, quantity.Part)))
		}
	}
}

// quantileName returns the usual name of a quantile: p99.9.
func quantileName(q float64) string { return fmt.Sprintf("p%.6g", 100*q) }

func (p *Prose) throughput() {
	// At a fixed rate the throughput is the rate; a difference is worth a clause only if it is resolved.
	if e := p.Peek("throughput_per_second"); e != nil && e.Difference != nil && e.Difference.Resolved {
		p.clause(e, p.standing("throughput "+p.moved(e)))
	}
}

// memories are the kinds of memory that answers mention.
var memories = []struct{ metric, of, name string }{
	{"memory_hard_bytes", "hard memory", "hard memory"}, {"map_bytes", "maps", "memory in maps"},
}

// memory adds a clause on each kind of memory: on the amount that the arm holds if the baseline holds none, and on the
// difference otherwise.
func (p *Prose) memory(t *Table) {
	for _, m := range memories {
		e := p.Peek(m.metric)
		switch {
		case e == nil || e.Value == 0 && p.baseIsZero(e) || p.statedInstead(t, m.metric):
		case p.baseIsZero(e):
			p.clause(e, p.opening("holds ", "")+Said(e)+" of "+m.of+p.perUnit(e))
		case e.Difference != nil:
			p.difference(e, m.name)
		default: // the baseline's is missing, so this is not what the arm adds
			p.clause(e, p.standing(m.name+" is "+Said(e)))
		}
	}
}

// statedInstead reports whether the answer states another metric of the same family of metrics (metric.Set.FamilyOf).
func (p *Prose) statedInstead(t *Table, metric string) bool {
	return slices.ContainsFunc(t.stated, func(name string) bool {
		return name != metric && t.defined.FamilyOf(name) == t.defined.FamilyOf(metric) && p.Peek(name) != nil
	})
}

// stated returns the run's headline metrics that have their own wording in answers (Definition.Clause), in the order in
// which they are shown.
func stated(run record.Run) (names []string) {
	defined := run.Defined()
	for _, d := range run.Metrics {
		asked := d.Headline && headline(run, d.Name) || slices.Contains(run.Headline, d.Name)
		if d.Clause != "" && asked && !slices.Contains(names, d.Name) {
			names = append(names, d.Name)
		}
	}
	slices.SortStableFunc(names, defined.Compare)
	return names
}

// stated adds a clause for each of the arm's metrics that has its own wording: "uses 0.04 CPUs [0.03, 0.05]". If the
// baseline has the metric too, the difference follows.
func (p *Prose) stated(t *Table) {
	spoken := 0
	for _, name := range t.stated {
		e := p.Peek(name)
		if e == nil || slices.Contains(p.evidence, e.Metric+" "+e.Arm) || e.Value == 0 && p.baseIsZero(e) {
			continue
		}
		text := strings.Replace(t.defined.Of(name).Clause, "{}", Said(e), 1)
		goesOn := strings.HasPrefix(text, "of which ")
		if !goesOn {
			if p.pause(spoken == 0); spoken == perSentence {
				p.pause(true)
				spoken = 0
			}
			spoken++
		}
		p.own++
		switch d := e.Difference; {
		case d == nil || p.baseIsZero(e):
		case p.unresolved(e) && strings.HasPrefix(p.visible(e), foundFrom):
			text += ", no resolved difference" + p.visible(e)
		case p.unresolved(e):
			p.leave(e, "the difference in "+quantity.Label(name))
		default:
			text += ", which " + p.moved(e)
		}
		if text += p.perUnit(e); goesOn {
			p.goOn(e, text)
		} else {
			p.clause(e, text)
		}
	}
	p.pause(spoken > 0)
}

// perUnit describes how a metric grows with the swept factor: " (0.3 MB, and 4.3 MB [4.2, 4.4] more for every 1,000 of
// count)". It returns an empty string if the growth is not linear or the answer is not about the last level.
func (p *Prose) perUnit(e *Estimate) string {
	for _, m := range p.Summary.Models {
		if m.Metric == e.Metric && m.Arm == e.Arm {
			if text := p.line(m, e.Unit); text != "" {
				return " (" + text + ")"
			}
		}
	}
	return ""
}

// material is the fraction of the fixed part that a line must add over its range to be worth a clause.
const material = 0.01

// Flat reports whether a line of one factor adds too little over its range, compared with its fixed part, to be worth
// mentioning.
func (m Model) Flat() bool {
	r := m.ValidRange[m.Terms[1].Name]
	return math.Abs(m.Terms[1].Value)*(r[1]-r[0]) < material*math.Abs(m.Terms[0].Value)
}

// line formats a model as a clause at the last level of its factor, such as "0.01 CPU, and 0.12 CPU more for every
// 1,000 requests/s". It returns an empty string at other levels, if the model is withheld or not linear, or if its
// slope may be zero or is negligible.
func (p *Prose) line(m Model, unit string) string {
	if m.Withheld != "" || !m.Linear || len(m.Terms) != 2 || len(p.At) != 1 {
		return ""
	}
	x := m.Terms[1]
	at, is := LevelNumber(p.At[x.Name])
	if !is || at < m.ValidRange[x.Name][1] || m.HasIntervals() && *x.Lo <= 0 && *x.Hi >= 0 {
		return ""
	}
	if m.Flat() {
		return "" // resolved but negligible
	}
	slope := p.Summary.Slope(x, unit, m.ValidRange[x.Name][1])
	if x.Value > 0 {
		slope = strings.Replace(slope, forEvery, " more"+forEvery, 1)
	}
	if !m.HasIntervals() {
		slope += ", without an interval"
	}
	return m.Terms[0].In(unit) + fixedAnd + slope
}

// The words after the fixed part of a line and after its slope.
const (
	fixedAnd = ", and "
	forEvery = " for every "
)

// Slope formats what further units of a factor add to a metric: "2.9 MB for every 1,000 connections". The number of
// units is the largest power of ten, up to 1,000, that does not exceed the largest level. The name of the units comes
// from the run's phrase for the factor ("with {} connections"), or else is the factor's name.
func (s *Summary) Slope(x Term, unit string, largest float64) string {
	many := 1.0
	for many < 1000 && many*10 <= largest {
		many *= 10
	}
	what := "of " + record.FactorName(x.Name)
	for _, p := range s.Phrases {
		if _, unit, ok := strings.Cut(p.Words[""], "{} "); p.Factor == x.Name && ok {
			what = unit
		}
	}
	return x.times(many).In(unit) + forEvery + quantity.Thousands(int(many)) + s.UnitOf(x.Name) + " " + what
}

// UnitOf returns the unit of a factor's levels as numbers (LevelNumber): " s" if they are durations, and otherwise
// nothing.
func (s *Summary) UnitOf(factor string) string {
	e := lists.Find(s.Estimates, func(e *Estimate) bool { return e.Factors[factor] != "" && e.Factors[factor] != "0" })
	if e != nil {
		if _, err := time.ParseDuration(e.Factors[factor]); err == nil {
			return " s"
		}
	}
	return ""
}

// times returns the slope per n units.
func (x Term) times(n float64) Term {
	scaled := func(v float64) float64 { return v * n }
	x.Value, x.Lo, x.Hi = x.Value*n, known.As(x.Lo, scaled), known.As(x.Hi, scaled)
	return x
}

// atMost is the maximum number of resolved differences that Prose.others adds to an answer.
const atMost = 3

// others names up to atMost resolved differences that no clause has mentioned, one of each family of metrics, sorted by
// descending size relative to the value. The lag of the load generator is left out: it is a check of the run, not a
// result.
func (p *Prose) others(t *Table) {
	if p.own >= perSentence {
		return // the stated metrics say what the run is about; the tables have the rest
	}
	type found struct {
		e    *Estimate
		text string
		by   float64 // difference as a fraction of the larger of the two values
	}
	spoken := map[string]bool{}
	for _, named := range p.evidence {
		name, _, _ := strings.Cut(named, " ")
		spoken[t.defined.FamilyOf(name)] = true
	}
	var all []found
	for i := range p.Summary.Estimates {
		e := &p.Summary.Estimates[i]
		if !p.has(e) || e.Rank == metric.RankGenerator || p.toldByAnother(t, e.Metric) {
			continue
		}
		if spoken[t.defined.FamilyOf(e.Metric)] || t.defined.Of(e.Metric).Clause != "" {
			continue // already mentioned, or left to Prose.stated
		}
		if base := p.base(e); base != nil && e.Difference != nil && e.Difference.Resolved {
			size := max(math.Abs(e.Value), math.Abs(base.Value))
			all = append(all, found{e, p.moved(e), math.Abs(e.Difference.Value) / size})
		}
	}
	slices.SortStableFunc(all, func(a, b found) int {
		return cmp.Or(cmp.Compare(b.by, a.by), cmp.Compare(partFirst(a.e), partFirst(b.e)),
			cmp.Compare(a.e.Metric, b.e.Metric))
	})
	named := 0
	for _, f := range all {
		if named == atMost {
			break
		}
		family := t.defined.FamilyOf(f.e.Metric)
		if spoken[family] {
			continue
		}
		spoken[family] = true
		named++
		label := quantity.Label(f.e.Metric)
		p.clause(f.e, p.standing(label+" "+f.text))
	}
}

// toldByAnother reports whether answers at this level use another metric in place of the named one. If stalls touched
// too many requests, answers use the metric of the requests that no stall touched, and otherwise the metric of all
// requests.
func (p *Prose) toldByAnother(t *Table, name string) bool {
	d := t.defined.Of(name)
	if _, running := p.Summary.whileRunning(p.At); !running {
		return d.Undisturbed
	}
	return d.Instead != "" && p.Peek(d.Instead) != nil
}

// partFirst sorts a fraction before the same quantity as a count, because a fraction is easier to understand.
func partFirst(e *Estimate) int {
	if e.Unit == quantity.Part {
		return 0
	}
	return 1
}
