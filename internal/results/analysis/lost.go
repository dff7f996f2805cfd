package analysis

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"tare/internal/experiment/load"
	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/lib/stats"
	"tare/internal/scale/ledger"
)

// withhold marks the estimates for which too many trials were lost, and adds them to Missing, with the metrics that
// have no estimate at all. Gates do not void trials at random, so the values that remain after many losses are a
// selection, which must not be quoted. The limit applies to each metric of each arm at each level separately.
func (s *Summary) withhold(run record.Run, t *Table, carriers carriers) {
	limit, least := invalidLimit(run.Spec), 0
	if !s.Partial && plannedBlocks(run) >= stats.MinBlocks {
		least = stats.MinBlocks // a partial run is marked as partial anyway
	}
	missing := map[pool]bool{}
	for i := range s.Estimates {
		e := &s.Estimates[i]
		key := pool{record.LevelKey(e.Factors), e.Arm, e.Metric}
		e.Blocks, e.Planned = t.count(key, told), len(t.outcomes[levelArm{key.level, key.arm}])
		lost := t.losses(key)
		if ok, why := carriers.carry(e, t.defined.Of(e.Metric), limit); !ok {
			missing[key] = true
			e.hold(why)
			s.Missing = append(s.Missing, Missing{Metric: e.Metric, Arm: e.Arm, Factors: e.Factors, Trials: e.Planned,
				Lost: e.Planned - e.Blocks, Gate: tooFew, Message: why})
			continue
		}
		if len(lost) == 0 || float64(len(lost)) <= limit*float64(e.Planned) && e.Blocks >= least {
			continue
		}
		missing[key] = true
		m := t.missing(key, e.Factors, lost)
		e.hold(fmt.Sprintf("%d of %d trials were lost: %s", m.Lost, m.Trials, m.Because()))
		s.Missing = append(s.Missing, m)
	}
	levels := lists.Keyed(s.everyLevel(run, t), func(at factors) (string, factors) { return record.LevelKey(at), at })
	for place, outcomes := range t.outcomes {
		for _, o := range outcomes {
			for name, f := range o.fates {
				key := pool{place.level, place.arm, name}
				if !f.told && !missing[key] && t.count(key, told) == 0 {
					missing[key] = true
					s.Missing = append(s.Missing, t.missing(key, levels[key.level], t.losses(key)))
				}
			}
		}
	}
	for i := range s.Estimates { // nothing can be compared with a withheld value of the baseline
		e := &s.Estimates[i]
		base := pool{record.LevelKey(e.Factors), record.Direct, e.Metric}
		if e.Difference != nil && e.Withheld == "" && missing[base] {
			e.Difference.Resolved, e.Difference.Unresolved = false, baselineWithheld
		}
	}
	slices.SortFunc(s.Missing, func(a, b Missing) int {
		return cmp.Or(CompareLevels(a.Factors, b.Factors), CompareArms(a.Arm, b.Arm), strings.Compare(a.Metric, b.Metric))
	})
}

// baselineWithheld is the reason why a difference is not resolved if the baseline's value is withheld.
const baselineWithheld = "the baseline's value is withheld"

// BaselineWithheld reports whether the difference is from a withheld value of the baseline. Such a difference must not
// be stated, even where differences without intervals are.
func (d *Difference) BaselineWithheld() bool { return d.Unresolved == baselineWithheld }

// hold marks an estimate as withheld, with the reason.
func (e *Estimate) hold(why string) {
	e.Withheld = why
	if e.Difference != nil {
		e.Difference.Resolved, e.Difference.Unresolved = false, why
	}
}

// missing describes the loss of a metric by its most frequent reason: the gate, the cause, and the first message.
func (t *Table) missing(key pool, at map[string]string, lost []record.Reason) Missing {
	m := Missing{Metric: key.metric, Arm: key.arm, Factors: levelOf(at),
		Trials: len(t.outcomes[levelArm{key.level, key.arm}]),
		Lost:   len(lost)}
	type why struct {
		gate  string
		cause ledger.Cause
	}
	count := map[why]int{}
	for _, r := range lost {
		count[why{r.Gate, r.Cause}]++
	}
	var most why
	for w, n := range count {
		if n > count[most] || n == count[most] && w.gate+string(w.cause) < most.gate+string(most.cause) {
			most = w
		}
	}
	m.Gate, m.Cause = most.gate, most.cause
	share, n := 0.0, 0
	for _, r := range lost {
		if (why{r.Gate, r.Cause}) != most {
			continue
		}
		m.Message = cmp.Or(m.Message, r.Message)
		if len(m.Culprits) == 0 {
			m.Culprits = r.Culprits
		}
		if r.CauseShare != nil {
			share, n = share+*r.CauseShare, n+1
		}
	}
	if n > 0 {
		share /= float64(n)
		m.CauseShare = &share
	}
	return m
}

// Because describes why a metric is missing: "the hypervisor took 24 % of the CPU time".
func (m Missing) Because() string {
	took := ""
	if m.CauseShare != nil {
		took = fmt.Sprintf(" took %.0f %% of the CPU time", 100**m.CauseShare)
	}
	switch {
	case m.Cause == ledger.Hypervisor && took != "":
		return "the hypervisor" + took
	case m.Cause == ledger.Neighbour && took != "":
		if len(m.Culprits) > 0 {
			return "other tasks" + took + " (" + strings.Join(m.Culprits, ", ") + ")"
		}
		return "other tasks" + took
	case m.Gate == "":
		return "it failed: " + m.Message
	case slices.Contains([]string{tooFew, reasonUnanswered, reasonAnswers, reasonUnnamed}, m.Gate):
		return m.Message
	case m.Cause == ledger.Generator:
		return "the load generator did not keep its schedule"
	case m.Cause == ledger.Subject && m.Gate == "rate":
		return "the rate was not reached, and a queue built up"
	}
	return fmt.Sprintf("the gate %s (%s)", m.Gate, m.Message)
}

// gap is a set of metrics that are missing for one reason.
type gap struct {
	metrics string // formatted for a sentence
	because string
	all     bool // every trial lost the metrics
}

// gaps returns the metrics that answers are about and that are missing in an arm at a level, grouped by reason.
func (s *Summary) gaps(run record.Run, t *Table, arm string, at factors) []gap {
	if failed := t.losses(pool{record.LevelKey(at), arm, ""}); len(failed) > 0 &&
		len(failed) == len(t.outcomes[levelArm{record.LevelKey(at), arm}]) {
		return []gap{{"nothing was measured", fmt.Sprintf("all %d trials failed: %s", len(failed), failed[0].Message), true}}
	}
	type key struct {
		because string
		all     bool
	}
	var names lists.Groups[key, string]
	for _, m := range s.Missing {
		if m.Arm != arm || !maps.Equal(m.Factors, at) || !headline(run, m.Metric) {
			continue
		}
		if s.answeredBy(t.defined, m.Metric, m.Arm, m.Factors) {
			continue
		}
		names.Add(key{m.Because(), m.Lost == m.Trials}, m.Metric)
	}
	var all []gap
	for k, of := range names.All() {
		all = append(all, gap{Join(labels(t.defined, of)), k.because, k.all})
	}
	return all
}

// answeredBy reports whether answers use the estimate of another metric instead of this one: the metric of undisturbed
// requests if the machine stalled too often, and otherwise the metric of all requests.
func (s *Summary) answeredBy(defined metric.Set, name, arm string, at factors) bool {
	other := defined.Counterpart(name)
	if _, running := s.whileRunning(at); other == "" || running == defined.Of(name).Undisturbed {
		return false // answers use this metric
	}
	return s.Find(other, arm, at) != nil
}

// maxLabels is the maximum number of missing metrics that are named.
const maxLabels = 6

// labels returns the names of metrics for readers. All quantiles of latency share one name.
func labels(defined metric.Set, metrics []string) []string {
	var all []string
	for _, m := range metrics {
		label := strings.TrimSuffix(quantity.Label(m), " per second")
		if d := defined.Of(m); d.Histogram == load.Latency || d.Histogram == load.LatencyRunning {
			label = "latency"
		}
		all = lists.Include(all, label)
	}
	return FirstOf(all, maxLabels)
}

// word returns a gap as a clause: "latency: not measured, the hypervisor took 24 % of the CPU time".
func (g gap) word() string {
	how := "withheld"
	if g.all {
		how = "not measured"
	}
	if strings.HasPrefix(g.metrics, "nothing ") {
		return g.metrics + ", " + g.because
	}
	return fmt.Sprintf("%s: %s, %s", g.metrics, how, g.because)
}

// fellBehind describes how far an arm fell behind at a level: "did not keep up: 1,200/s of 2,000/s". It is empty if
// the arm kept up in half of the trials or more.
func (t *Table) fellBehind(arm string, at factors) string {
	var did, asked []float64
	outcomes := t.outcomes[levelArm{record.LevelKey(at), arm}]
	for _, o := range outcomes {
		if o.slow != nil {
			did, asked = append(did, o.slow.did), append(asked, o.slow.asked)
		}
	}
	if 2*len(did) <= len(outcomes) {
		return ""
	}
	perSecond := func(xs []float64) string {
		rate := stats.Median(xs).Value
		if rate < 10 {
			return fmt.Sprintf("%.2g/s", rate)
		}
		return quantity.Thousands(int(math.Round(rate))) + "/s"
	}
	return fmt.Sprintf("did not keep up: %s of %s", perSecond(did), perSecond(asked))
}

// everyLevel returns the run's levels, including those without any known metric.
func (s *Summary) everyLevel(run record.Run, t *Table) []factors {
	levels := map[string]factors{}
	for _, p := range run.Plan {
		at := levelOf(p.Factors)
		for _, arm := range t.everyArm(run) {
			if len(t.outcomes[levelArm{record.LevelKey(at), arm}]) > 0 {
				levels[record.LevelKey(at)] = at
			}
		}
	}
	for _, at := range t.Levels {
		levels[record.LevelKey(at)] = at
	}
	return slices.SortedFunc(maps.Values(levels), CompareLevels)
}

// everyArm returns the run's arms, including those without any known metric.
func (t *Table) everyArm(run record.Run) []string {
	known := lists.Keyed(run.Plan, func(p record.PlannedTrial) (string, bool) { return p.Arm, true })
	for place := range t.outcomes {
		known[place.arm] = true
	}
	return slices.SortedFunc(maps.Keys(known), CompareArms)
}

// missingAnswers returns answers that say which results are missing and why, and which arms did not keep up. They
// follow the experiment's own answers. Arms and levels that lack the same results for the same reason are combined.
func (s *Summary) missingAnswers(run record.Run, t *Table) []Answer {
	var all lists.Groups[string, factors] // levels, by the text about their arms
	for _, at := range s.everyLevel(run, t) {
		var arms lists.Groups[string, string]
		for _, arm := range t.everyArm(run) {
			if arm == record.AA {
				continue // the twin only shows the noise
			}
			for _, g := range s.gaps(run, t, arm, at) {
				arms.Add(": "+g.word(), s.ArmName(arm))
			}
			if slow := t.fellBehind(arm, at); slow != "" {
				arms.Add(" "+slow, s.ArmName(arm))
			}
		}
		for text, named := range arms.All() {
			all.Add(Join(named)+text+".", at)
		}
	}
	var answers []Answer
	for text, levels := range all.All() {
		if at := s.AtAll(levels); at != "" {
			text = Capital(at) + ": " + text
		}
		answers = append(answers, Answer{Answer: text, Evidence: []string{}})
	}
	return answers
}

// missing adds clauses on the results of the arm or of its baseline that are missing at this level, with the reason.
func (p *Prose) missing(run record.Run, t *Table) {
	if slow := t.fellBehind(p.Arm, p.At); slow != "" {
		p.clauses = append(p.clauses, p.opening("", "it ")+slow)
		p.Find("throughput_per_second")
	}
	gaps := p.Summary.gaps(run, t, p.Arm, p.At)
	p.clauses = append(p.clauses, lists.Map(gaps, func(g gap) string { return p.standing(g.word()) })...)
	if p.Arm == record.Direct {
		return
	}
	for _, g := range p.Summary.gaps(run, t, record.Direct, p.At) {
		if !slices.ContainsFunc(gaps, func(o gap) bool { return o.metrics == g.metrics }) {
			p.clauses = append(p.clauses, p.standing("in the baseline, "+g.word()))
		}
	}
}
