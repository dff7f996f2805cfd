package analysis

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"tare/internal/experiment/assertion"
	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/lib/stats"
)

// Verdict is the result of one assertion: the worst of the results of its checks.
type Verdict struct {
	Assertion string  `json:"assertion"`
	Result    Result  `json:"result"`
	Checks    []Check `json:"checks"` // by level and arm
}

// Result states whether an assertion holds.
type Result string

// The results. An assertion is undecided if, for example, the interval contains its bound, or the metric was not
// measured (Check.Why).
const (
	Holds     Result = "holds"
	Fails     Result = "fails"
	Undecided Result = "undecided"
)

// Check is the result of one assertion for one arm at one level. Value and its interval belong to the bounded quantity:
// the metric, its difference from the baseline, or the change from the baseline as a fraction of it. Value, Lo and
// Hi are nil if unknown. An assertion with == has no interval, because it applies to every trial.
type Check struct {
	Metric     string            `json:"metric"`
	Arm        string            `json:"arm"`
	Component  string            `json:"component,omitempty"`
	Factors    map[string]string `json:"factors"`
	Result     Result            `json:"result"`
	Against    assertion.Against `json:"against"` // value, difference or change
	Unit       string            `json:"unit"`    // of Value and Bound; quantity.Part for a change
	Bound      float64           `json:"bound"`
	Value      *float64          `json:"value"`
	Lo         *float64          `json:"lo"`
	Hi         *float64          `json:"hi"`
	Confidence float64           `json:"confidence,omitempty"`
	Mean       *Interval         `json:"mean,omitempty"` // for a cost: the same for means, which must give the same result
	N          int               `json:"n"`              // blocks, or trials for ==
	Lost       int               `json:"lost,omitempty"` // further blocks without a value; the worst case is assumed
	Why        string            `json:"why,omitempty"`  // why it is undecided, or a note on the result
	// Blocks is the total number of blocks that would decide the check in 8 of 10 runs, if the value and the noise stay
	// the same. If there is no interval yet, it is the minimum number for an interval.
	Blocks  int     `json:"blocks,omitempty"`
	Seconds float64 `json:"more_seconds,omitempty"` // time for the blocks that are missing
}

// Result returns the result of all assertions together: Fails if one fails, else Undecided if one is undecided, else
// Holds. Without assertions, it is Holds.
func (s *Summary) Result() Result {
	return worst(lists.Map(s.Verdicts, func(v Verdict) Result { return v.Result }))
}

func worst(results []Result) Result {
	for _, r := range []Result{Fails, Undecided} {
		if slices.Contains(results, r) {
			return r
		}
	}
	return Holds
}

// Decided reports whether a run that continues until its assertions are decided may end. Assertions are examined only
// at the numbers of blocks that stats.MayDecide accepts, because the confidence of their intervals allows for that many
// looks at the results and no more. If they were examined and the run may not end, the text says what is undecided.
func Decided(run record.Run, trials []record.Trial) (bool, string, error) {
	if !stats.MayDecide(run.Blocks) {
		return false, "", nil
	}
	s, err := Summarize(run, trials)
	if err != nil {
		return false, "", err
	}
	var open []string
	for _, v := range s.Verdicts {
		if v.Result == Undecided {
			open = append(open, v.Assertion)
		}
	}
	if len(open) == 0 {
		return true, "", nil
	}
	return false, "undecided: " + strings.Join(open, ", "), nil
}

type asserter struct {
	*Summary
	run        record.Run
	trials     []record.Trial
	whole      *Table
	components map[string]*Table
	places     []place // arms at levels of the plan
	confidence float64
	perBlock   float64                                 // duration of a block in seconds
	learned    map[learned]map[string]stats.Dependence // by arm
	bursts     map[string]float64                      // by metric: stats.Bursts of its counts
	levels     map[levelMetric]bool                    // results of concerns
}

// levelMetric names a metric at a level, of a component or, if component is empty, of the whole subject.
type levelMetric struct{ component, metric, level string }

// learned is the key under which asserter.learned keeps the dependences between blocks that it has computed.
type learned struct {
	component, metric string
	against           assertion.Against
}

// assert adds the verdicts of the run's assertions.
func (s *Summary) assert(run record.Run, trials []record.Trial, t *Table) error {
	switch n := len(run.Assert); {
	case n == 0:
		return nil
	case n > assertion.Most:
		return fmt.Errorf("run %q has %d assertions, and %d are allowed", run.ID, n, assertion.Most)
	}
	a := asserter{
		Summary: s, run: run, trials: trials, whole: t, components: map[string]*Table{}, places: allPlaces(run, trials),
		confidence: stats.Confidence, perBlock: secondsPerBlock(trials), learned: map[learned]map[string]stats.Dependence{},
		bursts: map[string]float64{}, levels: map[levelMetric]bool{},
	}
	if run.Open() {
		// The assertions were examined several times during the run, which ended if they were decided.
		a.confidence = stats.SequentialConfidence
	}
	var all []assertion.Assertion
	checks := 0
	for _, text := range run.Assert {
		asserted, err := assertion.Parse(text)
		if err != nil {
			return fmt.Errorf("the assertion %q of run %q %w", text, run.ID, err)
		}
		all = append(all, asserted)
		if checks += len(a.concerned(asserted)); checks > assertion.MostChecks {
			return fmt.Errorf("the assertions of run %q are of %d arms and levels or more, and %d are allowed", run.ID, checks,
				assertion.MostChecks)
		}
	}
	s.Verdicts = append(s.Verdicts, lists.Map(all, a.verdict)...)
	if run.Open() {
		s.addWarning("the run goes on until its assertions are decided, so verdicts rest on intervals of %.1f %% at each "+
			"look; the other intervals of what was asserted cover less than they say", 100*a.confidence)
	}
	return nil
}

// secondsPerBlock returns the mean duration of a block; 0 if unknown.
func secondsPerBlock(trials []record.Trial) float64 {
	blocks := lists.Keyed(trials, func(t record.Trial) (int, bool) { return t.Block, true })
	if len(trials) == 0 {
		return 0
	}
	return max(0, trials[len(trials)-1].Ended.Sub(trials[0].Started).Seconds()) / float64(len(blocks))
}

// allPlaces returns the arms at the levels of the plan, sorted by level.
func allPlaces(run record.Run, trials []record.Trial) []place {
	planned := slices.Clone(run.Plan)
	for _, t := range trials { // for records without a plan
		planned = append(planned, t.PlannedTrial)
	}
	all := placesOf(planned)
	slices.SortStableFunc(all, comparePlaces)
	return all
}

// concerned returns the places where an assertion is checked: every level and arm that it names or leaves open. An
// assertion that leaves the arm open is checked for the baseline and its twin only if the run has no other arms, the
// assertion is about the value itself, and no arm is absent.
func (a *asserter) concerned(of assertion.Assertion) []place {
	arms := askedArms(a.run, a.whole)
	if of.Against != assertion.Value || len(a.run.Absent) > 0 {
		arms = withoutBaseline(arms)
	}
	if of.Arm != "" {
		arms = []string{of.Arm}
	}
	return slices.DeleteFunc(slices.Clone(a.places), func(p place) bool {
		return !slices.Contains(arms, p.arm) || !contains(p.at, of.Level)
	})
}

// contains reports whether a level has all the asked values. Numbers are compared by value, not as text.
func contains(at factors, asked map[string]string) bool {
	for name, level := range asked {
		has, is := at[name]
		x, okX := LevelNumber(has)
		y, okY := LevelNumber(level)
		if !is || has != level && !(okX && okY && x == y) {
			return false
		}
	}
	return true
}

// verdict checks one assertion over the whole run.
func (a *asserter) verdict(of assertion.Assertion) Verdict {
	v := Verdict{Assertion: of.String(), Checks: []Check{}}
	t := a.tableOf(of.Component)
	var results []Result
	for _, p := range a.concerned(of) {
		key := levelMetric{of.Component, of.Metric, record.LevelKey(p.at)}
		concerns, known := a.levels[key]
		if !known {
			concerns = a.concerns(t, of, p.at)
			a.levels[key] = concerns
		}
		if !concerns && !t.silent(p) {
			continue
		}
		c := a.check(t, of, p)
		v.Checks, results = append(v.Checks, c), append(results, c.Result)
	}
	for arm, why := range lists.ByKey(a.run.Absent) {
		if of.Arm == "" || of.Arm == arm {
			c := a.newCheck(t, of, place{arm, factors{}})
			c.Why = "the arm did not run: " + why
			v.Checks, results = append(v.Checks, c), append(results, c.Result)
		}
	}
	if v.Result = worst(results); len(v.Checks) == 0 {
		v.Result = Undecided
	}
	return v
}

func (a *asserter) tableOf(component string) *Table {
	if component == "" {
		return a.whole
	}
	if a.components[component] == nil {
		a.components[component] = componentTable(component, a.run, a.trials, &Summary{})
	}
	return a.components[component]
}

// concerns reports whether a metric can be expected at a level: some arm has it there, or lost it, or had too few
// samples for it, or nothing at all was measured there. Levels that select different loads have different metrics.
func (a *asserter) concerns(t *Table, of assertion.Assertion, at factors) bool {
	if !t.known[of.Metric] {
		return true // no level has it, and every level reports that
	}
	told, level := false, record.LevelKey(at)
	for place, outcomes := range t.outcomes {
		if place.level != level {
			continue
		}
		for _, o := range outcomes {
			if _, has := o.fates[of.Metric]; has {
				return true
			}
			told = told || len(o.fates) > 0
		}
	}
	if d := t.defined.Of(of.Metric); d.Quantile != 0 {
		for _, trial := range a.trials {
			if maps.Equal(trial.Factors, at) && len(encodedOf(trial, d.Histogram)) > 0 {
				return true
			}
		}
	}
	return !told
}

// silent reports whether no trial of an arm at a level gave any metric, such as when all of them failed. If no
// other arm has a certain metric there, this does not show that the silent arm would lack it.
func (t *Table) silent(p place) bool {
	for _, o := range t.outcomes[levelArm{record.LevelKey(p.at), p.arm}] {
		if len(o.fates) > 0 {
			return false
		}
	}
	return true
}

func (a *asserter) newCheck(t *Table, of assertion.Assertion, p place) Check {
	c := Check{
		Metric: of.Metric, Arm: p.arm, Component: of.Component, Factors: p.at, Result: Undecided, Against: of.Against,
		Unit: t.defined.Of(of.Metric).Unit, Bound: of.Bound,
	}
	if of.Against == assertion.Change {
		c.Unit = quantity.Part
	}
	return c
}

func (a *asserter) check(t *Table, of assertion.Assertion, p place) Check {
	c := a.newCheck(t, of, p)
	key := pool{record.LevelKey(p.at), p.arm, of.Metric}
	lost := t.losses(key)
	if of.Op == assertion.Equal {
		a.exact(t, of, p, &c)
		if c.N == 0 && len(lost) > 0 {
			c.Why = t.lostOf(key, p.at, lost)
		}
		if why := a.withheld(of, p); c.Result == Holds && why != "" {
			c.Result, c.Why = Undecided, why
		}
		return c
	}
	if n := len(t.outcomes[levelArm{key.level, key.arm}]); len(lost) > 0 &&
		float64(len(lost)) > invalidLimit(a.run.Spec)*float64(n) {
		c.Why = t.lostOf(key, p.at, lost)
		return c
	}
	if c.Why = a.withheld(of, p); c.Why != "" {
		return c
	}
	hold := a.measured
	if t.pools[key] != nil {
		hold = a.pooled
	}
	hold(t, of, p, &c)
	// An arm that equals the baseline has a difference of 0, and passes or fails as 0 does. The A/A twin is such an arm:
	// if it gets the unexpected result too, the machine was not steady, and the arm's result means nothing.
	expected := Holds
	if !of.Keeps(0) {
		expected = Fails
	}
	if of.Against == assertion.Value || c.Result == Undecided || c.Result == expected || p.arm == record.AA {
		return c
	}
	twin := a.newCheck(t, of, place{record.AA, p.at})
	if hold(t, of, place{record.AA, p.at}, &twin); twin.Result == c.Result {
		c.Result, c.Why = Undecided, "the A/A twin, which is the baseline again, shows the same: the machine was not steady"
	}
	return c
}

// withheld returns the reason why the value of an arm at a level must not be quoted or, if the assertion is about a
// difference or change from the baseline, why the baseline's value must not; empty if there is no such reason.
func (a *asserter) withheld(of assertion.Assertion, p place) string {
	find := func(arm string) string {
		if e := a.estimateOf(of.Metric, arm, of.Component, p.at); e != nil {
			return e.Withheld
		}
		return ""
	}
	if why := find(p.arm); why != "" || of.Against == assertion.Value {
		return why
	}
	if why := find(record.Direct); why != "" {
		return baselineWithheld + ": " + why
	}
	return ""
}

// lostOf says how many trials of an arm at a level lost a metric, and why most of them did.
func (t *Table) lostOf(key pool, at factors, lost []record.Reason) string {
	m := t.missing(key, at, lost)
	return fmt.Sprintf("%d of %d trials were lost: %s", m.Lost, m.Trials, m.Because())
}

// exact checks each trial against a bound with ==. One trial can show that the assertion fails. That it holds is
// claimed only for the trials that were run.
func (a *asserter) exact(t *Table, of assertion.Assertion, p place, c *Check) {
	values := t.Column(p.at, p.arm, of.Metric)
	c.N = len(values)
	broken := 0
	for _, v := range values {
		if !of.Keeps(v) {
			broken++
			if c.Value == nil || math.Abs(v-of.Bound) > math.Abs(*c.Value-of.Bound) {
				c.Value = &v
			}
		}
	}
	_, c.Lost = t.lost(of.Metric, p)
	switch {
	case broken > 0:
		c.Result, c.Why = Fails, fmt.Sprintf("broken in %d of %s", broken, quantity.Counted(c.N, "trial"))
	case c.N > 0 && c.Lost > 0:
		c.Value, c.Why = &of.Bound, fmt.Sprintf("kept in all %d trials with a value; the %s without one could have broken it",
			c.N, quantity.Counted(c.Lost, "block"))
	case c.N < stats.MinBlocks:
		c.tooFew(stats.MinBlocks, a.perBlock)
	default:
		c.Result, c.Value = Holds, &of.Bound
		c.Why = fmt.Sprintf("kept in all %d trials; at 95 %% confidence, fewer than %s of such trials break it", c.N,
			quantity.Rough(stats.NoneBound(c.N), quantity.Part))
	}
}

// pooled checks a share against a bound. The share is computed from counts that are added up over trials.
func (a *asserter) pooled(t *Table, of assertion.Assertion, p place, c *Check) {
	if of.Against == assertion.Change { // no spec and no command line can ask for this
		c.Why = "a part that is pooled over trials has no change in per cent"
		return
	}
	bursts, known := a.bursts[of.Metric] // counts are of the whole subject: components have none
	if !known {
		var all []stats.Share
		for key, counts := range t.pools {
			if key.metric == of.Metric {
				all = append(all, stats.ClusteredShareAt(byBlock(counts), math.Inf(1), a.confidence))
			}
		}
		bursts = stats.Bursts(all...)
		a.bursts[of.Metric] = bursts
	}
	key := pool{record.LevelKey(p.at), p.arm, of.Metric}
	isUneven := false // whether the counts in the latest estimate are uneven
	estimate := func(base, mine []stats.Count) stats.Estimate {
		share := a.share(mine, bursts)
		e := stats.Estimate{Value: share.Value, Lo: share.Lo, Hi: share.Hi, HasInterval: share.HasInterval, N: share.Trials}
		isUneven = share.Uneven
		if of.Against != assertion.Value {
			base := a.share(base, bursts)
			e, isUneven = stats.ShareDifference(base, share), isUneven || base.Uneven
		}
		e.HasInterval = e.HasInterval && share.Samples >= minPooled && share.Trials >= stats.MinBlocksAt(a.confidence)
		e.Confidence = a.confidence
		return e
	}
	_, lost, whole := t.lostBlocks(p.at, p.arm, of.Metric, of.Against != assertion.Value)
	lo, hi := t.worstShares(p.at, key, whole, estimate)
	e := estimate(byBlock(t.pools[pool{key.level, record.Direct, key.metric}]), byBlock(t.pools[key]))
	a.decide(of, e, min(e.Lo, lo), max(e.Hi, hi), lost-whole, c)
	if c.Result != Undecided && isUneven && !e.Beyond(of.Bound, stats.UnevenTimes) {
		c.Result, c.Why = Undecided, uneven
	}
}

// share returns a share with its interval. If none or all of the samples count in it, the interval has only one end;
// the confidence is then raised so that this end has the error probability of one end of a two-sided interval.
func (a *asserter) share(counts []stats.Count, bursts float64) stats.Share {
	s := stats.ClusteredShareAt(counts, bursts, a.confidence)
	if s.In == 0 || s.In == s.Samples {
		s = stats.ClusteredShareAt(counts, bursts, (1+a.confidence)/2)
	}
	return s
}

// measured checks values of single trials against a bound: the median of the arm, or the pseudo-median of its
// differences from the baseline, or of its relative changes, within blocks.
func (a *asserter) measured(t *Table, of assertion.Assertion, p place, c *Check) {
	if of.Against == assertion.Value {
		e, lo, hi, lost := a.median(t, of.Metric, p)
		a.decide(of, e, lo, hi, lost, c)
		a.paid(t, of, p, c)
		return
	}
	e, lo, hi, lost, ok := a.compared(t, of, p)
	if !ok {
		c.N, c.Why = e.N, "a change from the baseline is not known where a value is 0"
		return
	}
	a.decide(of, e, lo, hi, lost, c)
	a.paid(t, of, p, c)
	if c.Result != Undecided {
		a.lag(t, of, p, e.Value, c)
	}
	switch {
	case c.Result == Undecided:
	case t.carried[armMetric{p.arm, of.Metric}]:
		c.Result, c.Why = Undecided, carriesOver
	case !e.Beyond(of.Bound, stats.StrongTimes) &&
		a.dependence(t, of, p).Of(changes(of)(t.pairs(p.at, p.arm, of.Metric))).Strong():
		c.Result, c.Why = Undecided, tooNarrow
	}
}

// changes returns the function from pairs to the values that are compared with a bound. For a change these are
// logarithms of ratios, without pairs that have a value of 0 or less.
func changes(of assertion.Assertion) func([]stats.Pair) []float64 {
	if of.Against == assertion.Change {
		return func(pairs []stats.Pair) []float64 { logs, _ := stats.LogRatios(pairs); return logs }
	}
	return stats.Differences
}

// dependence returns how much neighbouring blocks of an arm resemble each other in the quantity that the assertion
// bounds.
func (a *asserter) dependence(t *Table, of assertion.Assertion, p place) stats.Dependence {
	known := learned{of.Component, of.Metric, of.Against}
	if _, has := a.learned[known]; !has {
		a.learned[known] = t.dependence(of.Metric, changes(of))
	}
	return a.learned[known][p.arm]
}

// seesRare is the minimum number of blocks for a verdict that does not mention which rare trials it may have missed: an
// event that affects a tenth of all trials occurs in at least one of 30 blocks in more than 95 of 100 runs.
const seesRare = 30

// paid leaves a check of a cost undecided if the mean of the trials is not on the same side of the bound as the
// median. If one trial in ten costs three times as much, the user pays the mean, and a median does not show it.
func (a *asserter) paid(t *Table, of assertion.Assertion, p place, c *Check) {
	if !t.defined.Of(of.Metric).Cost || c.Result == Undecided {
		return
	}
	e, xs := a.mean(t, of, p)
	mean := Check{Against: of.Against, Result: Undecided}
	a.decide(of, e, e.Lo, e.Hi, 0, &mean)
	c.Mean = new(newInterval(e))
	if mean.Result == c.Result {
		if c.Result == Holds && of.Op.Upper() && c.N < seesRare {
			c.Why = fmt.Sprintf("trials that cost much more could be up to %s of all without one in %d blocks",
				quantity.Rough(stats.NoneBound(c.N), quantity.Part), c.N)
		}
		return
	}
	mean.Unit = c.Unit
	c.Result, c.Why = Undecided, fmt.Sprintf("the mean does not agree with the median: it is %s", mean.Seen())
	if n := stats.Outlying(xs); n > 0 {
		c.Why += fmt.Sprintf(": %d of %s cost far more than the others", n, quantity.Counted(len(xs), "trial"))
	}
	c.Blocks, c.Seconds = mean.Blocks, mean.Seconds
}

// mean returns the mean of the bounded quantity: of the arm's values, of their differences from the baseline within
// blocks, or, for a change, the arm's mean relative to the baseline's. It also returns the values of the arm.
func (a *asserter) mean(t *Table, of assertion.Assertion, p place) (e stats.Estimate, values []float64) {
	values = t.Column(p.at, p.arm, of.Metric)
	if of.Against == assertion.Value {
		return stats.MeanAt(values, a.confidence), values
	}
	pairs := t.pairs(p.at, p.arm, of.Metric)
	dependence := a.dependence(t, of, p)
	if of.Against == assertion.Difference {
		ds := stats.Differences(pairs)
		return dependence.Widen(stats.MeanAt(ds, a.confidence), ds), values
	}
	e, influences, _ := stats.MeanChange(pairs, a.confidence)
	e = dependence.Widen(e, influences)
	e.Value, e.Lo, e.Hi = math.Expm1(e.Value), math.Expm1(e.Lo), math.Expm1(e.Hi)
	return e, values
}

// lag leaves a check of latency undecided if the load generator's lag may differ between the arms by more than a tenth
// of the distance to the bound.
func (a *asserter) lag(t *Table, of assertion.Assertion, p place, value float64, c *Check) {
	pairs := t.lagPairs(p.at, p.arm, of.Metric)
	if len(pairs) == 0 {
		return
	}
	away := math.Abs(value - of.Bound)
	if of.Against == assertion.Change {
		away *= stats.Median(t.Column(p.at, record.Direct, of.Metric)).Value
	}
	if apart, _ := stats.FarEnd(pairs, a.run.Seed); apart > lagPart*away {
		c.Result, c.Why = Undecided, fmt.Sprintf("%s: it may be %s apart between the arms, over a tenth of the distance to "+
			"the bound", LagReason, quantity.Rough(apart, quantity.Seconds))
	}
}

// lost returns the blocks in which the value of an arm counts even in the worst case, and the number of lost blocks. A
// block that the arm and both twins lost to the hypervisor or to neighbours counts as not run.
func (t *Table) lost(metric string, p place) (stand []int, lost int) {
	stand, lost, whole := t.lostBlocks(p.at, p.arm, metric, false)
	return stand, lost - whole
}

// median returns the median of an arm with its interval. lo and hi are the worst ends that the interval could have,
// whatever the values of the lost blocks, and lost is the number of these.
func (a *asserter) median(t *Table, metric string, p place) (e stats.Estimate, lo, hi float64, lost int) {
	e = stats.MedianAt(t.Column(p.at, p.arm, metric), a.confidence)
	stand, lost := t.lost(metric, p)
	if lost == 0 || !e.HasInterval {
		return e, e.Lo, e.Hi, lost
	}
	with := func(v float64) stats.Estimate {
		xs := slices.Repeat([]float64{v}, lost)
		for _, block := range stand {
			xs = append(xs, t.cells[cell{record.LevelKey(p.at), p.arm, block}].metrics[metric])
		}
		return stats.MedianAt(xs, a.confidence)
	}
	return e, with(math.Inf(-1)).Lo, with(math.Inf(1)).Hi, lost
}

// compared returns the difference or relative change of an arm from the baseline. lo and hi are the worst ends that its
// interval could have, whatever the values of the lost blocks. ok is false if a change is undefined because a value is
// not above 0.
func (a *asserter) compared(t *Table, of assertion.Assertion, p place) (e stats.Estimate, lo, hi float64, lost int,
	ok bool,
) {
	made := changes(of)
	back := func(v float64) float64 { return v }
	if of.Against == assertion.Change {
		back = math.Expm1
	}
	pairs := t.pairs(p.at, p.arm, of.Metric)
	xs := made(pairs)
	if len(xs) < len(pairs) {
		return stats.Estimate{N: len(pairs)}, 0, 0, 0, false
	}
	dependence := a.dependence(t, of, p)
	stand, lost, whole := t.lostPairs(p.at, p.arm, of.Metric)
	lost -= whole
	e, lo, hi = dependence.At(xs, 0, a.confidence, a.run.Seed)
	if lost > 0 && e.HasInterval {
		_, lo, hi = dependence.At(made(t.pairsOf(p.at, p.arm, of.Metric, stand)), lost, a.confidence, a.run.Seed)
	}
	e.Value, e.Lo, e.Hi = back(e.Value), back(e.Lo), back(e.Hi)
	return e, back(lo), back(hi), lost, true
}

// decide sets the result if the whole interval lies on one side of the bound. lo and hi are the worst ends of the
// interval, with lost blocks taken into account.
func (a *asserter) decide(of assertion.Assertion, e stats.Estimate, lo, hi float64, lost int, c *Check) {
	if c.N = e.N; e.N > 0 {
		c.Value = finite(e.Value)
	}
	if !e.HasInterval {
		least := stats.MinBlocksAt(a.confidence)
		if a.run.Open() {
			least = max(least, stats.FirstLook)
		}
		c.tooFew(least, a.perBlock)
		return
	}
	c.Lo, c.Hi, c.Confidence, c.Lost = finite(e.Lo), finite(e.Hi), e.Confidence, lost
	best, worst, half := lo, hi, e.Hi-e.Value
	if !of.Op.Upper() {
		best, worst, half = hi, lo, e.Value-e.Lo
	}
	if !of.Keeps(e.Value) {
		half = e.Hi - e.Lo - half
	}
	switch {
	case of.Keeps(worst):
		c.Result = Holds
	case !of.Keeps(best):
		c.Result = Fails
	default:
		if c.Why = "its interval contains the bound"; e.Lo > of.Bound || e.Hi < of.Bound {
			c.Why = fmt.Sprintf("the %s without a value could change the verdict", quantity.Counted(lost, "block"))
		}
		if n, ok := stats.BlocksToDecide(e.N, half, math.Abs(e.Value-of.Bound)); ok && lost == 0 {
			c.need(n, a.perBlock)
		}
	}
}

// need sets the number of blocks that would decide the check, and the time that the missing blocks take.
func (c *Check) need(blocks int, perBlock float64) {
	c.Blocks, c.Seconds = blocks, math.Round(float64(max(blocks-c.N, 0))*perBlock)
}

// tooFew records why there is no verdict: the metric was not measured in any block, or in too few. least is the minimum
// number of blocks for a verdict.
func (c *Check) tooFew(least int, perBlock float64) {
	if c.Why = "it was not measured"; c.N > 0 {
		c.Why = "too few: " + quantity.Counted(c.N, "block")
		c.need(max(least, c.N+1), perBlock)
	}
}

// Seen formats the checked value with its interval: "+2.1 % [+0.8, +3.5]".
func (c *Check) Seen() string {
	switch {
	case c.Value == nil:
		return "-"
	case c.Against == assertion.Value:
		return Interval{*c.Value, c.Lo, c.Hi}.Written(c.Unit)
	}
	return Interval{*c.Value, c.Lo, c.Hi}.Signed(c.Unit)
}

// Place returns the arm and level of a check: "proxy client, at rate 1000".
func (s *Summary) Place(c *Check) string {
	text := strings.TrimSpace(s.ArmName(c.Arm) + " " + c.Component)
	if len(c.Factors) > 0 {
		text += ", " + s.At(c.Factors)
	}
	return text
}

// Advice returns what would decide an undecided check; empty if that is unknown.
func (c *Check) Advice() string {
	if c.Result != Undecided || c.Blocks == 0 {
		return ""
	}
	text := fmt.Sprintf("about %d blocks would decide it", c.Blocks)
	if c.Lo == nil {
		text = fmt.Sprintf("at least %d blocks are needed", c.Blocks)
	}
	if c.Seconds > 0 {
		text += fmt.Sprintf(" (%s more)", quantity.Wait(time.Duration(c.Seconds*float64(time.Second))))
	}
	return text
}
