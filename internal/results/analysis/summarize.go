package analysis

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"tare/internal/experiment/load"
	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/lib/stats"
	"tare/internal/scale/ledger"
)

// Summarize turns the trials of a run into its summary. A failed trial is left out of every estimate. A trial that
// tripped a gate is left out of the estimates that the gate voids. Both are counted and named. If a trial was repeated,
// each metric comes from the first attempt in which it is valid. An arm is compared with the baseline in the blocks in
// which both have the metric, so that a block that one arm lost still counts for the others.
func Summarize(run record.Run, trials []record.Trial) (*Summary, error) {
	if run.Schema != record.RunSchema {
		return nil, fmt.Errorf("summarizing run %q: its schema is %q, not %q", run.ID, run.Schema, record.RunSchema)
	}
	s := &Summary{
		Schema: Schema, Experiment: run.Experiment, Question: run.Question, Baseline: run.Baseline, Seed: run.Seed,
		InvalidReasons: []string{}, Missing: []Missing{}, Stopped: run.Stopped, NotRepeated: run.NotRepeated,
		Estimates: []Estimate{}, MDE: []MDE{}, Models: []Model{}, Answers: []Answer{}, Warnings: []string{},
		Absent: run.Absent, Phrases: run.Phrases,
	}
	s.Warnings = append(s.Warnings, run.Warnings...)
	trials, left := bounded(run, trials)
	s.warnOfBounds(left)
	t := newTable(run, trials, s)
	s.Trials = countTrials(run, trials)
	s.Partial = s.Trials.Done < s.Trials.Planned || run.Open() && run.Stopped == ""
	s.Blocks = completeBlocks(run, t)
	for _, trial := range trials {
		s.Self.add(trial.Ledger)
		for _, n := range trial.Nodes {
			if n.Trial != nil { // the trial's own ledger has only the coordinator
				s.Self.add(n.Trial.Ledger)
			}
		}
	}
	t.judgeArms()
	dependences := t.dependences()
	for _, at := range t.Levels {
		for _, metric := range t.metrics {
			s.estimate(t, at, metric, dependences, run.Seed)
		}
	}
	bursts := burstsOf(t)
	var unevenIn []string
	for _, at := range t.Levels {
		unevenIn = append(unevenIn, s.pool(t, at, bursts)...)
	}
	s.lose(t)
	s.warnOfUneven(unevenIn)
	s.warnOfDependence(dependences)
	s.warnOfCarryOver(t)
	s.Disturbed = disturbed(t.Levels, trials)
	s.warnOfStalls(t, trials)
	s.Workloads = workloads(trials)
	s.Placements = placements(trials)
	s.warnOfTwins()
	s.warnOfOthers(trials)
	s.warnOfLeftovers(trials)
	s.warnOfBeside(trials)
	s.warnOfPrograms(trials)
	s.withhold(run, t, newCarriers(t.defined, trials))
	s.addComponents(run, trials)
	s.Models = append(s.Models, fitModels(t)...)
	for _, models := range [][]Model{s.Models, s.ComponentModels} {
		for i := range models {
			models[i].unpaced = t.unpaced
			models[i].Withheld = s.withheldLevel(&models[i])
		}
	}
	s.warnOfModels()
	s.judge(run, t)
	s.forecast(trials)
	s.compareFunctions(t, trials, dependences)
	s.answer(run, t)
	if err := s.assert(run, trials, t); err != nil {
		return nil, err
	}
	s.Headlines = s.headlines(run, t)
	return s, nil
}

// Table holds the valid values of the trials, and what was lost.
type Table struct {
	Levels []map[string]string
	Arms   []string          // the baseline, its twin, then the others by name
	Traits map[string]string // notes on arms, by arm

	metrics []string
	known   map[string]bool // metrics that some trial has, including pooled ones
	closed  bool            // a load of the run is a closed loop
	unpaced bool            // a load of the run has no target rate
	defined metric.Set      // the definitions of the run's metrics
	order   map[string]int  // order of the definitions, by metric
	stated  []string        // metrics with their own wording in answers (Definition.Clause), in order of rank

	headlines []string          // metrics that answers are about; empty if the record does not say
	lacks     map[string]string // what an arm does not do that others do, by arm
	cells     map[cell]*values
	in        map[levelArm][]int            // the blocks in which an arm has a cell at a level, in order
	loads     map[string]bool               // names of loads
	pools     map[pool]map[int]record.Count // by block

	// outcomes holds one outcome for each planned trial, by block, however often the trial was run. A trial whose attempts
	// were all interrupted has none.
	outcomes map[levelArm]map[int]*outcome
	selected map[armMetric]bool // arms that lost the metric more often than their twins, beyond chance

	before  map[cell]string    // by trial: the arm that ran right before it in the same block
	carried map[armMetric]bool // arms that change the metric in the trial after them
}

// pool is a metric of an arm at a level.
type pool struct{ level, arm, metric string }

type cell struct {
	level string // record.LevelKey of the factors
	arm   string
	block int
}

type levelArm struct{ level, arm string } // level is record.LevelKey of the factors

// values are the values of one trial: its metrics, and for each metric of latency the generator's lag at the same
// quantile, in seconds.
type values struct{ metrics, lag map[string]float64 }

// factors is one level of an experiment.
type factors = map[string]string

// levelOf returns the level of a trial. A record without factors has an empty level, not an unknown one.
func levelOf(recorded map[string]string) factors {
	if recorded == nil {
		return factors{}
	}
	return recorded
}

// LevelNumber parses a level as a number, and reports whether it is one. A duration is in seconds.
func LevelNumber(level string) (float64, bool) {
	if v, err := strconv.ParseFloat(level, 64); err == nil && Usable(v) {
		return v, true
	}
	if d, err := time.ParseDuration(level); err == nil {
		return d.Seconds(), true
	}
	return 0, false
}

// CompareLevels orders levels by their factors: numbers by size, before texts, which are in alphabetical order.
func CompareLevels(a, b map[string]string) int {
	for _, name := range slices.Sorted(maps.Keys(a)) {
		x, okX := LevelNumber(a[name])
		y, okY := LevelNumber(b[name])
		c := strings.Compare(a[name], b[name])
		switch {
		case okX && okY && x != y:
			c = cmp.Compare(x, y)
		case okX && !okY:
			c = -1
		case okY && !okX:
			c = 1
		}
		if c != 0 {
			return c
		}
	}
	return strings.Compare(record.LevelKey(a), record.LevelKey(b))
}

// Usable reports whether a value can be a measurement. NaN and huge values would spoil every sum.
func Usable(v float64) bool { return !math.IsNaN(v) && math.Abs(v) < 1e100 }

func newTable(run record.Run, trials []record.Trial, s *Summary) *Table {
	t := &Table{
		defined: run.Defined(), order: map[string]int{}, stated: stated(run),
		headlines: run.Headline, Traits: run.Traits, lacks: run.Lacks,
		cells: map[cell]*values{}, in: map[levelArm][]int{}, pools: map[pool]map[int]record.Count{}, loads: map[string]bool{},
		outcomes: map[levelArm]map[int]*outcome{},
	}
	for i, d := range run.Metrics {
		t.order[d.Name] = i
	}
	levels, arms, metrics := map[string]factors{}, map[string]bool{}, map[string]bool{}
	unreadable, doubt := 0, doubtful{names: map[string]bool{}}
	for _, attempts := range attemptsOf(trials) {
		at := levelOf(attempts[0].Factors)
		c := cell{record.LevelKey(at), attempts[0].Arm, attempts[0].Block}
		place := levelArm{c.level, c.arm}
		v := &values{metrics: map[string]float64{}, lag: map[string]float64{}}
		counted := map[string]bool{}
		var readings []reading
		for _, trial := range attempts {
			r, n := v.take(trial, t.defined)
			readings, unreadable = append(readings, r), unreadable+n
			doubt.look(trial)
			for name, r := range trial.Loads {
				t.loads[name], t.closed = true, t.closed || r.Mode == load.Closed
				t.unpaced = t.unpaced || r.Mode != load.Open && r.TargetRate == 0
			}
			for name, n := range trial.Counts {
				if counted[name] || !trial.Validity.Stands(name) || !possible(n) {
					continue
				}
				key := pool{c.level, c.arm, name}
				if t.pools[key] == nil {
					t.pools[key] = map[int]record.Count{}
				}
				sum := t.pools[key][c.block]
				t.pools[key][c.block], counted[name] = record.Count{In: sum.In + n.In, Of: sum.Of + n.Of}, true
			}
		}
		told := func(metric string) bool { _, has := v.metrics[metric]; return has || counted[metric] }
		o := outcomeOf(attempts, readings, told)
		if t.outcomes[place] == nil {
			t.outcomes[place] = map[int]*outcome{}
		}
		t.outcomes[place][c.block] = o
		if len(v.metrics) == 0 && len(counted) == 0 && !o.whole {
			continue
		}
		for name := range v.metrics {
			metrics[name] = true
		}
		levels[c.level], arms[c.arm] = at, true
		if _, twice := t.cells[c]; !twice {
			t.in[place] = append(t.in[place], c.block)
		}
		t.cells[c] = v
	}
	for _, blocks := range t.in {
		slices.Sort(blocks)
	}
	if unreadable > 0 {
		s.addWarning("%d histograms could not be read; quantiles from them are missing", unreadable)
	}
	doubt.addWarnings(s)
	t.Levels = slices.SortedFunc(maps.Values(levels), CompareLevels)
	t.Arms = slices.SortedFunc(maps.Keys(arms), CompareArms)
	t.metrics, t.known = slices.Sorted(maps.Keys(metrics)), metrics
	for key := range t.pools {
		t.known[key.metric] = true
	}
	t.findOrder(trials)
	return t
}

// possible reports whether a count is valid: not negative, and at most its total.
func possible(n record.Count) bool { return n.In >= 0 && n.In <= n.Of }

// doubtful counts data in a record that no trial can have written. Such data are left out.
type doubtful struct {
	bare   int // trials that did not fail and yet have no metrics
	values int
	names  map[string]bool // metrics with such values
}

func (d *doubtful) look(t record.Trial) {
	if t.Validity.Failed == "" && t.Metrics == nil {
		d.bare++
	}
	see := func(name string, usable bool) {
		if !usable {
			d.values++
			d.names[name] = true
		}
	}
	for name, v := range t.Metrics {
		see(name, Usable(v))
	}
	for name, n := range t.Counts {
		see(name, possible(n))
	}
}

func (d *doubtful) addWarnings(s *Summary) {
	if d.bare > 0 {
		s.addWarning("the record is incomplete: %s without metrics did not fail", quantity.Counted(d.bare, "trial"))
	}
	if d.values > 0 {
		names := lists.Map(slices.Sorted(maps.Keys(d.names)), quantity.Label)
		s.addWarning("left out: %s that cannot have been measured, of %s", quantity.Counted(d.values, "value"),
			strings.Join(FirstOf(names, maxApart), ", "))
	}
}

// take adds the valid values of an attempt for metrics that no earlier attempt had. The generator's lag is taken from
// the same attempt as the latency. It also returns the number of histograms that could not be read.
func (v *values) take(trial record.Trial, defined metric.Set) (r reading, unreadable int) {
	if trial.Validity.Failed != "" {
		return reading{}, 0
	}
	r, err := readingOf(trial, defined)
	if err != nil {
		unreadable++
	}
	lag, err := lagOf(trial, r.metrics, defined)
	if err != nil {
		unreadable++
	}
	for name, x := range r.metrics {
		if _, has := v.metrics[name]; has || !trial.Validity.Stands(name) {
			continue
		}
		v.metrics[name] = x
		if l, known := lag[name]; known {
			v.lag[name] = l
		}
	}
	return r, unreadable
}

// attemptsOf groups the attempts at each planned trial, in the order in which the trials first ran; the attempts of a
// trial are in order. Interrupted trials are left out.
func attemptsOf(trials []record.Trial) [][]record.Trial {
	type planned struct {
		index int
		cell
	}
	var all lists.Groups[planned, record.Trial]
	for _, t := range trials {
		if t.Validity.Failed != record.Interrupted {
			all.Add(planned{t.Index, cell{record.LevelKey(t.Factors), t.Arm, t.Block}}, t)
		}
	}
	var sorted [][]record.Trial
	for _, attempts := range all.All() {
		slices.SortStableFunc(attempts, func(a, b record.Trial) int { return cmp.Compare(a.Attempt, b.Attempt) })
		sorted = append(sorted, attempts)
	}
	return sorted
}

// Metrics returns the values of one trial by metric: the recorded values, and the quantiles of latency for which its
// histograms have enough samples. It leaves out recorded values that an earlier version of Tare computed from an
// incomplete number of answers. The error is about histograms that cannot be read; the returned values are valid
// nevertheless.
func Metrics(trial record.Trial, defined metric.Set) (map[string]float64, error) {
	r, err := readingOf(trial, defined)
	return r.metrics, err
}

// reading holds what the record of a trial says: the values by metric, and the reasons why metrics that were measured
// have no value.
type reading struct {
	metrics map[string]float64
	lost    map[string]record.Reason
}

// readingOf returns the values that Metrics returns, and the reasons why others are missing. Quantiles are computed
// from the histograms even if they were recorded, because earlier versions left unanswered requests out.
func readingOf(trial record.Trial, defined metric.Set) (reading, error) {
	quantiles, among, err := quantilesOf(trial, load.Latency, defined)
	r := reading{metrics: quantiles, lost: map[string]record.Reason{}}
	for _, name := range among {
		r.lost[name] = amongUnanswered
	}
	for name, v := range trial.Metrics {
		_, has := r.metrics[name]
		_, lost := r.lost[name]
		switch {
		case has || lost || !Usable(v):
		case !reliable(defined.Of(name), v, trial):
			r.lost[name] = answersUnknown
		default:
			r.metrics[name] = v
		}
	}
	return r, err
}

// reliable reports whether a recorded value can be used. If the recording version of Tare did not count the answers in
// the window, a value that depends on their number cannot be used, unless it is 0, which is right for any number.
func reliable(d metric.Definition, v float64, t record.Trial) bool {
	return v == 0 || !d.Answers || load.AnswersKnown(t.Loads)
}

func valid(t record.Trial) bool { return t.Validity.Valid && t.Validity.Failed == "" }

// CompareArms orders arms: the baseline first, its twin second, then the others by name.
func CompareArms(a, b string) int {
	rank := func(arm string) int { return slices.Index([]string{record.AA, record.Direct}, arm) }
	return cmp.Or(cmp.Compare(rank(b), rank(a)), strings.Compare(a, b))
}

// quantilesOf returns the quantiles for which a histogram, merged over all loads, has enough samples, in seconds and by
// metric of latency. among lists the metrics whose quantiles are among the unanswered requests, which are missing from
// the histogram. The definitions of the metrics say which metric is which quantile.
func quantilesOf(
	trial record.Trial, histogram string, defined metric.Set,
) (m map[string]float64, among []string, err error) {
	m = map[string]float64{}
	h, err := stats.MergeEncoded(encodedOf(trial, histogram)...)
	if err != nil || h == nil {
		return m, nil, err
	}
	missing := load.Missing(trial.Loads, histogram)
	for _, d := range defined.Quantiles(load.Latency) {
		if ns, ok := stats.QuantileWithout(h, missing, d.Quantile); ok {
			m[d.Name] = ns / 1e9
		} else if stats.AmongMissing(h, missing, d.Quantile) {
			among = append(among, d.Name)
		}
	}
	return m, among, nil
}

func encodedOf(trial record.Trial, histogram string) []string {
	var encoded []string
	for _, r := range lists.ByKey(trial.Loads) {
		if h, ok := r.Histograms[histogram]; ok {
			encoded = append(encoded, h)
		}
	}
	return encoded
}

// blocks returns the numbers of the blocks in which all the arms have a value, in order.
func (t *Table) blocks(level string, has func(*values) bool, arms ...string) []int {
	var blocks []int
	for _, block := range t.in[levelArm{level, arms[0]}] {
		all := true
		for _, arm := range arms {
			v, ok := t.cells[cell{level, arm, block}]
			all = all && ok && has(v)
		}
		if all {
			blocks = append(blocks, block)
		}
	}
	return blocks
}

func hasMetric(metric string) func(*values) bool {
	return func(v *values) bool { _, ok := v.metrics[metric]; return ok }
}

// Column returns the values of one metric of one arm at a level, by block.
func (t *Table) Column(at map[string]string, arm, metric string) []float64 {
	var xs []float64
	level := record.LevelKey(at)
	for _, b := range t.blocks(level, hasMetric(metric), arm) {
		xs = append(xs, t.cells[cell{level, arm, b}].metrics[metric])
	}
	return xs
}

// pairs returns the values of one metric in the baseline and in an arm, by block.
func (t *Table) pairs(at factors, arm, metric string) []stats.Pair {
	return t.pairsOf(at, arm, metric, t.blocks(record.LevelKey(at), hasMetric(metric), record.Direct, arm))
}

func (t *Table) pairsOf(at factors, arm, metric string, blocks []int) []stats.Pair {
	var ps []stats.Pair
	level := record.LevelKey(at)
	for _, b := range blocks {
		ps = append(ps, stats.Pair{
			Base: t.cells[cell{level, record.Direct, b}].metrics[metric],
			Arm:  t.cells[cell{level, arm, b}].metrics[metric],
		})
	}
	return ps
}

// warnOfTwins warns if the twins differ in more metrics than chance explains: in at least two, and in more than a tenth
// of all. 95 % intervals let one in twenty differ by chance.
func (s *Summary) warnOfTwins() {
	var all int
	var apart []string
	for _, e := range s.Estimates {
		if e.Arm == record.AA && e.Difference != nil {
			all++
			if e.Difference.Resolved {
				apart = append(apart, quantity.Label(e.Metric))
			}
		}
	}
	if len(apart) > 1 && 10*len(apart) > all {
		s.addWarning("the A/A twins differ in %d of %d metrics (%s): the machine was not steady, and small differences mean "+
			"little", len(apart), all, strings.Join(FirstOf(lists.Include(nil, apart...), maxApart), ", "))
	}
}

// maxApart is the maximum number of metrics that a warning names.
const maxApart = 8

// warnOfOthers warns if trials shared the machine with another run of tare.
func (s *Summary) warnOfOthers(trials []record.Trial) {
	n := 0
	for _, t := range trials {
		if slices.ContainsFunc(t.Warned(), func(w ledger.Warning) bool { return w.Code == record.OtherRun }) {
			n++
		}
	}
	if n > 0 {
		s.addWarning("another run of tare was under way on this machine in %d of %d trials, and the two disturb each other: "+
			"run it again alone", n, len(trials))
	}
}

// warnOfLeftovers warns if trials left something behind on the machine, with the message of the first.
func (s *Summary) warnOfLeftovers(trials []record.Trial) {
	n, first := 0, ""
	for _, t := range trials {
		for _, w := range t.Warned() {
			if w.Code == record.LeftBehind {
				n, first = n+1, cmp.Or(first, w.Message)
			}
		}
	}
	if n > 0 {
		s.addWarning("%d trials left something behind; of the first: %s", n, first)
	}
}

// warnOfPrograms warns of an arm if eBPF programs that were loaded during its trials outlived them, and none did of
// the baseline's: each trial after it, of the baseline too, may have run with them.
func (s *Summary) warnOfPrograms(trials []record.Trial) {
	left, last := warnedByArm(trials, record.ProgramsLeft)
	for arm, n := range lists.ByKey(left) {
		s.addWarning("after %s of %s, and none of the baseline, eBPF programs that were loaded during the trial were still "+
			"there (after the last: %s): if %s attached them, later trials ran with them, those of the baseline too; have "+
			"its command remove them, and run it again", quantity.Counted(n, "trial"), arm, last[arm], arm)
	}
}

// warnOfBeside warns of an arm if control groups outside of the trial were created in every trial of the arm and in
// none of the baseline, perhaps by other programs at the request of the trial's commands.
func (s *Summary) warnOfBeside(trials []record.Trial) {
	const least = 2 // in a single trial it can be chance, such as a service started by a timer
	var ended []record.Trial
	all := map[string]int{}
	for _, t := range trials {
		if t.Validity.Failed == "" {
			ended = append(ended, t)
			all[t.Arm]++
		}
	}
	made, last := warnedByArm(ended, record.MadeBeside)
	for arm, n := range lists.ByKey(made) {
		if n == all[arm] && n >= least {
			s.addWarning("in each of the %d trials of %s, and in none of the baseline, a control group outside of the trial "+
				"was made (in the last: %s): figures of %s leave out what others start for it, such as docker run or "+
				"systemd-run; observe that instead (observe: container:ID or unit:NAME)", n, arm, last[arm], arm)
		}
	}
}

// warnedByArm returns the number of warnings with a code in the trials of each arm, and the message of the last one. It
// returns none if a trial of the baseline or of its twin has one: other programs of the machine then cause them.
func warnedByArm(trials []record.Trial, code string) (n map[string]int, last map[string]string) {
	n, last = map[string]int{}, map[string]string{}
	for _, t := range trials {
		for _, w := range t.Warned() {
			if w.Code == code {
				n[t.Arm], last[t.Arm] = n[t.Arm]+1, w.Message
			}
		}
	}
	if n[record.Direct]+n[record.AA] > 0 {
		return nil, nil
	}
	return n, last
}
