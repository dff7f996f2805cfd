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
	"tare/internal/scale/profile"
)

// Functions breaks down by function the difference in CPU time between an arm and the baseline at a level, if trials
// have profiles. Values are means over blocks, because means add up and medians do not.
type Functions struct {
	Arm      string            `json:"arm"`
	Factors  map[string]string `json:"factors"`
	Metric   string            `json:"metric"`   // the profiled metric; if it is void, so are the functions
	Unit     string            `json:"unit"`     // of CPU time: "seconds per request", "seconds per connection", "CPUs"
	N        int               `json:"n"`        // blocks in which both arms have a profile
	Baseline float64           `json:"baseline"` // CPU time of all functions in the baseline
	// Difference is the difference of all functions together, with a 95 % interval by Student's t.
	Difference Interval `json:"difference"`
	// Considered lists the functions that use most CPU time in the two arms together, the largest difference first. Their
	// intervals hold simultaneously with a confidence of 95 % (Bonferroni).
	Considered []FunctionDifference `json:"considered"`
	// Rest is the difference of all functions that are not in Considered.
	Rest float64 `json:"rest"`
	// Unresolved is the reason why no function is named; empty if functions may be named.
	Unresolved string `json:"unresolved,omitempty"`
	// Withheld is set if the metric or its baseline is withheld: then not even Difference may be quoted, and Unresolved
	// has the reason.
	Withheld bool `json:"withheld,omitempty"`
}

// FunctionDifference is the difference of one function in one part of the trial.
type FunctionDifference struct {
	Part string `json:"part"`
	profile.Function
	Baseline   float64  `json:"baseline"`
	Difference Interval `json:"difference"`
	// Resolved reports whether the interval excludes 0 and the difference is larger than what separates the A/A twins.
	Resolved bool `json:"resolved"`
}

// maxConsidered is the maximum number of functions that are compared. It is limited because each one widens the
// intervals of all. The functions are selected by their CPU time in both arms together, which hardly biases their
// differences if the arms are the same. At most maxLookedAt functions are examined to find them.
const (
	maxConsidered = 40
	maxLookedAt   = 400
)

// functionKey is a function in a part of the trial.
type functionKey struct {
	part string
	profile.Function
}

// profiled is the profile of a trial: the CPU time of each function, in the unit of the metric.
type profiled struct {
	metric    string
	unit      string
	total     float64
	functions map[functionKey]float64
	cut       bool // the profile omits functions, whose time is in total
}

// profileOf returns the profile of the first attempt in which the profiled metric is valid; nil if there is none, or if
// a value in it is impossible.
func profileOf(attempts []record.Trial, defined metric.Set) *profiled {
	for _, t := range attempts {
		p := t.Profile
		if p == nil || !t.Validity.Stands(p.Metric) || !(p.Divisor > 0) || !Usable(p.Divisor) ||
			defined.Of(p.Metric).Answers && !load.AnswersKnown(t.Loads) {
			continue
		}
		of := &profiled{
			metric: p.Metric, unit: p.Unit, total: p.Rest / p.Divisor, functions: map[functionKey]float64{},
		}
		of.cut = len(p.Functions) >= record.MaxFunctions
		for _, f := range p.Functions[:min(len(p.Functions), record.MaxFunctions)] {
			v := f.Seconds / p.Divisor
			if v < 0 || !Usable(v) {
				return nil
			}
			of.functions[functionKey{f.Part, f.Function}] += v
			of.total += v
		}
		if !Usable(of.total) {
			return nil
		}
		return of
	}
	return nil
}

// profiles holds the profiles of a level, by arm and block.
type profiles map[string]map[int]*profiled

// blocks returns the blocks in which both an arm and the baseline have a profile of a metric, in order.
func (p profiles) blocks(arm, metric string) (blocks []int) {
	for block, of := range lists.ByKey(p[arm]) {
		if b := p[record.Direct][block]; b != nil && b.metric == metric && of.metric == metric {
			blocks = append(blocks, block)
		}
	}
	return blocks
}

// differences returns the differences of one function from the baseline within blocks. known is false if the profile of
// a trial may omit the function.
func (p profiles) differences(arm string, blocks []int, f functionKey) (ds []float64, known bool) {
	for _, block := range blocks {
		own, base := p[arm][block], p[record.Direct][block]
		v, has := own.functions[f]
		was, had := base.functions[f]
		if !has && own.cut || !had && base.cut {
			return nil, false
		}
		ds = append(ds, v-was)
	}
	return ds, true
}

// means returns the mean of each function over blocks of an arm.
func (p profiles) means(arm string, blocks []int) map[functionKey]float64 {
	means := map[functionKey]float64{}
	for _, block := range blocks {
		for f, v := range p[arm][block].functions {
			means[f] += v / float64(len(blocks))
		}
	}
	return means
}

// compareFunctions adds the comparison of each arm with the baseline, by function and at each level, if both have
// profiles. It leaves out the A/A twin.
func (s *Summary) compareFunctions(
	t *Table, trials []record.Trial, dependences map[armMetric]stats.Dependence,
) {
	s.warnOfProfiles(trials)
	levels := map[string]profiles{}
	for _, attempts := range attemptsOf(trials) {
		of := profileOf(attempts, t.defined)
		if of == nil {
			continue
		}
		first, level := attempts[0], record.LevelKey(levelOf(attempts[0].Factors))
		if levels[level] == nil {
			levels[level] = profiles{}
		}
		if levels[level][first.Arm] == nil {
			levels[level][first.Arm] = map[int]*profiled{}
		}
		levels[level][first.Arm][first.Block] = of
	}
	for _, at := range t.Levels {
		p := levels[record.LevelKey(at)]
		if p == nil {
			continue
		}
		for _, arm := range t.Arms {
			if arm == record.Direct || arm == record.AA {
				continue
			}
			if f := p.compare(s, t, arm, at, dependences); f != nil {
				s.Functions = append(s.Functions, *f)
			}
		}
	}
}

// compare breaks down the difference between an arm and the baseline at a level by function. It returns nil if there is
// no block in which both have a profile of the same metric.
func (p profiles) compare(
	s *Summary, t *Table, arm string, at factors, dependences map[armMetric]stats.Dependence,
) *Functions {
	var metrics []string
	for _, of := range lists.ByKey(p[arm]) {
		metrics = lists.Include(metrics, of.metric)
	}
	var blocks []int // the blocks of the metric that has the most of them
	for _, metric := range metrics {
		if has := p.blocks(arm, metric); len(has) > len(blocks) {
			blocks = has
		}
	}
	if len(blocks) == 0 {
		return nil
	}
	of := p[arm][blocks[0]]
	f := &Functions{Arm: arm, Factors: at, Metric: of.metric, Unit: of.unit, N: len(blocks)}
	twinBlocks := p.blocks(record.AA, of.metric)
	own, twin := dependences[armMetric{arm, of.metric}], dependences[armMetric{record.AA, of.metric}]
	var totals []float64
	for _, block := range blocks {
		totals = append(totals, p[arm][block].total-p[record.Direct][block].total)
		f.Baseline += p[record.Direct][block].total / float64(len(blocks))
	}
	whole := own.Widen(stats.MeanAt(totals, stats.Confidence), totals)
	f.Difference, f.Rest = newInterval(whole), whole.Value
	f.Unresolved = p.refuses(s, t, f, len(twinBlocks))

	base := p.means(record.Direct, blocks)
	type considered struct {
		functionKey
		differences, twins []float64
	}
	var all []considered
	for i, c := range p.candidates(base, p.means(arm, blocks)) {
		if i == maxLookedAt || len(all) == maxConsidered {
			break
		}
		ds, known := p.differences(arm, blocks, c)
		twins, twinsKnown := p.differences(record.AA, twinBlocks, c)
		if known && twinsKnown {
			all = append(all, considered{c, ds, twins})
		}
	}
	for _, c := range all {
		e := own.WithOwn(c.differences).Widen(stats.FamilyMean(c.differences, len(all)), c.differences)
		far, _ := stats.SmallestVisible(twin.WithOwn(c.twins).Widen(stats.MeanAt(c.twins, stats.Confidence), c.twins))
		f.Considered = append(f.Considered, FunctionDifference{
			Part: c.part, Function: c.Function, Baseline: base[c.functionKey], Difference: newInterval(e),
			Resolved: f.Unresolved == "" && e.Excludes(0) && math.Abs(e.Value) > far,
		})
		f.Rest -= e.Value
	}
	slices.SortStableFunc(f.Considered, func(a, b FunctionDifference) int {
		return cmp.Compare(math.Abs(b.Difference.Value), math.Abs(a.Difference.Value))
	})
	return f
}

// candidates returns the functions of two arms, sorted by descending CPU time in both together.
func (p profiles) candidates(base, own map[functionKey]float64) []functionKey {
	both := maps.Clone(base)
	for c, v := range own {
		both[c] += v
	}
	return slices.SortedFunc(maps.Keys(both), func(a, b functionKey) int {
		return cmp.Or(cmp.Compare(both[b], both[a]), cmp.Compare(a.part, b.part), a.Compare(b.Function))
	})
}

// refuses returns the reason why no function of an arm is named; empty if functions may be named. Whatever makes the
// difference of the metric doubtful makes the differences of its functions doubtful, too. refuses also sets f.Withheld.
func (p profiles) refuses(s *Summary, t *Table, f *Functions, twins int) string {
	of := armMetric{f.Arm, f.Metric}
	e := s.estimateOf(f.Metric, f.Arm, "", f.Factors)
	if e != nil && e.Withheld != "" {
		f.Withheld = true
		return e.Withheld
	}
	if base := s.estimateOf(f.Metric, record.Direct, "", f.Factors); base != nil && base.Withheld != "" {
		f.Withheld = true
		return baselineWithheld + ": " + base.Withheld
	}
	switch {
	case f.N < stats.MinBlocks:
		return fmt.Sprintf("%d of the %d blocks that an interval needs", f.N, stats.MinBlocks)
	case twins < stats.MinBlocks:
		return "there are too few A/A twins to compare it with"
	case t.selected[of]:
		return LossReason + ": more than chance explains"
	case t.carried[of]:
		return carriesOver
	case e == nil || e.Difference == nil:
		return ""
	case e.Difference.strong:
		return tooNarrow
	}
	if why := e.Difference.Doubt(); strings.HasPrefix(why, LossReason) {
		return why
	}
	return ""
}

// warnOfProfiles warns of trials without a profile and of profiles that lack something.
func (s *Summary) warnOfProfiles(trials []record.Trial) {
	lack, lost, first := 0, 0, ""
	for _, t := range trials {
		if t.Profile != nil && len(t.Profile.Lacks) > 0 {
			lack, first = lack+1, cmp.Or(first, t.Profile.Lacks[0])
		}
		if slices.ContainsFunc(t.Warned(), func(w ledger.Warning) bool { return w.Code == record.NoProfile }) {
			lost++
		}
	}
	if lost > 0 {
		s.addWarning("%s without a profile: the warnings of their ledgers say why", quantity.Counted(lost, "trial"))
	}
	if lack > 0 {
		s.addWarning("the profiles of %s lack something: %s", quantity.Counted(lack, "trial"), first)
	}
}

// Named returns the functions whose difference is resolved, the largest first.
func (f *Functions) Named() (named []FunctionDifference) {
	for _, d := range f.Considered {
		if d.Resolved {
			named = append(named, d)
		}
	}
	return named
}

// What names the quantity of which the functions are parts: "CPU time per request".
func (f *Functions) What() string {
	if _, per, is := strings.Cut(f.Unit, " per "); is {
		return "CPU time per " + per
	}
	return "CPU time per second"
}

// MaxNamedFunctions is the maximum number of functions of an arm that an answer or the brief report names.
const MaxNamedFunctions = 5

// functionAnswers returns answers on which functions make up the differences at the outermost levels: "CPU time per
// request of mesh differs by +57 us [50, 64]: +21 us [18, 24] in ..."
func (s *Summary) functionAnswers(t *Table) (all []Answer) {
	for i := range s.Functions {
		f := &s.Functions[i]
		if !slices.ContainsFunc(outermost(t.Levels), func(at factors) bool { return maps.Equal(at, f.Factors) }) {
			continue
		}
		if f.Unresolved != "" {
			all = append(all, Answer{Evidence: []string{}, Answer: fmt.Sprintf("No function is named for the %s of %s%s: %s.",
				f.What(), s.ArmName(f.Arm), before(" ", s.At(f.Factors)), f.Unresolved)})
			continue
		}
		text := fmt.Sprintf("By function, the %s of %s%s differs from the baseline's by %s", f.What(),
			s.ArmName(f.Arm), before(" ", s.At(f.Factors)), f.Difference.Signed(f.Unit))
		named, rest, more := f.Named(), f.Difference.Value, 0.0
		var parts []string
		for i, d := range named {
			rest -= d.Difference.Value
			if i < MaxNamedFunctions {
				parts = append(parts, d.Difference.Signed(f.Unit)+" in "+d.String()+" of "+d.Part)
			} else {
				more += d.Difference.Value
			}
		}
		if n := len(named) - MaxNamedFunctions; n > 0 {
			parts = append(parts, fmt.Sprintf("%s in %s", Interval{Value: more}.Signed(f.Unit),
				quantity.Counted(n, "further function")))
		}
		if len(parts) == 0 {
			text += ", and no function is beyond noise by itself."
		} else {
			text += ": " + Join(parts) + ". The other " + Interval{Value: rest}.Signed(f.Unit) +
				" is in functions that are not beyond noise, or were not compared."
		}
		all = append(all, Answer{Answer: text, Evidence: []string{f.Metric + " " + f.Arm}})
	}
	return all
}

// before returns lead followed by text, or an empty string if text is empty.
func before(lead, text string) string {
	if text == "" {
		return ""
	}
	return lead + text
}
