// Package analysis turns the trials of a run into a summary: estimates with intervals, the smallest visible
// differences, and answers in words that rest on them. It does no I/O: records in, summary out. Start reading at
// Summarize.
package analysis

import (
	"tare/internal/experiment/record"
	"tare/internal/lib/stats"
	"tare/internal/scale/ledger"
)

// Schema names the JSON form of Summary.
const Schema = "tare.summary/v1"

// Summary is the content of summary.json.
type Summary struct {
	Schema     string `json:"schema"`
	Experiment string `json:"experiment"`
	Question   string `json:"question"`
	// Baseline is the subject that the arms direct and aa run; empty if they run none.
	Baseline       string     `json:"baseline,omitempty"`
	Partial        bool       `json:"partial"` // the run has fewer trials than planned, or may still go on
	Valid          bool       `json:"valid"`
	InvalidReasons []string   `json:"invalid_reasons"`
	Blocks         int        `json:"blocks"` // complete blocks
	Seed           uint64     `json:"seed"`
	Estimates      []Estimate `json:"estimates"`
	MDE            []MDE      `json:"mde"`
	Models         []Model    `json:"models"`
	// ComponentModels holds the models of single components of subjects.
	ComponentModels []Model `json:"component_models,omitempty"`
	Losses          []Loss  `json:"losses"`
	// Headlines are the metrics that a reader wants first (see Summary.headlines).
	Headlines []string    `json:"headlines"`
	Disturbed []Disturbed `json:"disturbed,omitempty"` // by level, if stalls of the machine were watched for
	// Functions breaks down the differences of arms in CPU time by function, if stacks were sampled.
	Functions  []Functions `json:"functions,omitempty"`
	Workloads  []Workload  `json:"workloads,omitempty"`  // gross, tare and net of applications, if trials were charged
	Placements []Placement `json:"placements,omitempty"` // places that are charged, if guests record them
	Answers    []Answer    `json:"answers"`
	// Verdicts are the results of the run's assertions, in their order.
	Verdicts []Verdict `json:"verdicts,omitempty"`
	Missing  []Missing `json:"missing"` // metrics that were withheld or not measured, and why
	// ComponentMissing holds the metrics of single components of subjects that were lost in every trial.
	ComponentMissing []Missing `json:"component_missing,omitempty"`
	Trials           Trials    `json:"trials"`
	Self             Self      `json:"self"`
	// Absent holds the arms that did not run because their program is not installed, with the reason.
	Absent   map[string]string `json:"absent,omitempty"`
	Warnings []string          `json:"warnings"`
	Phrases  []record.Phrase   `json:"phrases,omitempty"` // how sentences mention levels
	// Stopped is the reason why a run without a fixed number of blocks ended.
	Stopped     string `json:"stopped,omitempty"`
	NotRepeated string `json:"not_repeated,omitempty"` // why spoiled trials were not run again
}

// Missing is a metric of an arm at a level that the run cannot give, because too many of its trials were lost. There
// may be an estimate from the other trials, which is then marked as withheld.
type Missing struct {
	Metric string `json:"metric"`
	Arm    string `json:"arm"`
	// Component is the part of the subject that lost it, in ComponentMissing; empty for the arm as a whole.
	Component string            `json:"component,omitempty"`
	Factors   map[string]string `json:"factors"`
	Trials    int               `json:"trials"` // trials that were run
	Lost      int               `json:"lost"`   // number of these that were lost
	Gate      string            `json:"gate"`   // the gate that most were lost to; empty if they failed
	Cause     ledger.Cause      `json:"cause"`  // the cause that tripped it most often
	// CauseShare is the fraction of the machine's CPU time that Cause took, as a mean over the trials lost to Gate by
	// Cause.
	CauseShare *float64 `json:"cause_share,omitempty"`
	Culprits   []string `json:"culprits,omitempty"`
	Message    string   `json:"message"` // from one of these trials
}

// Trials counts the planned trials, each once however often it was run, and lists those that are left out of some
// estimate or of all.
type Trials struct {
	Planned  int        `json:"planned"`
	Done     int        `json:"done"`
	Valid    int        `json:"valid"`    // trials that are valid in at least one attempt
	Failed   int        `json:"failed"`   // trials that failed in every attempt
	Invalid  int        `json:"invalid"`  // the other trials: gates void some of their metrics in every attempt
	Attempts int        `json:"attempts"` // runs of trials in all, repeats included
	Excluded []Excluded `json:"excluded"`
}

// Excluded is a trial that failed or is invalid in every attempt.
type Excluded struct {
	Index   int               `json:"index"` // in the plan
	Block   int               `json:"block"`
	Arm     string            `json:"arm"`
	Factors map[string]string `json:"factors"`
	Why     string            `json:"why"`
	Voids   []string          `json:"voids,omitempty"` // the metrics that are left out; empty: all
}

// Interval is a value and the ends of its interval, which are nil if it has none.
type Interval struct {
	Value float64  `json:"value"`
	Lo    *float64 `json:"lo"`
	Hi    *float64 `json:"hi"`
}

// newInterval converts an estimate of package stats.
func newInterval(e stats.Estimate) Interval {
	if !e.HasInterval {
		return Interval{Value: e.Value}
	}
	return Interval{e.Value, &e.Lo, &e.Hi}
}

// Zero reports whether the interval contains only 0.
func (i Interval) Zero() bool { return i.Lo != nil && *i.Lo == 0 && *i.Hi == 0 }

// half returns the larger distance from the value to an end of the interval, which must exist.
func (i Interval) half() float64 { return max(i.Value-*i.Lo, *i.Hi-i.Value) }

// Estimate is one metric of one arm at one level of the factors, compared with its baseline. Intervals are nil if
// there are fewer than 6 blocks.
type Estimate struct {
	Metric     string            `json:"metric"`
	Unit       string            `json:"unit"`
	Rank       int               `json:"rank"` // of the metric: tables and charts are sorted by it
	Arm        string            `json:"arm"`
	Component  string            `json:"component,omitempty"` // empty: the whole subject
	Baseline   string            `json:"baseline,omitempty"`
	Factors    map[string]string `json:"factors"`
	Interval                     // the median over blocks
	Confidence float64           `json:"confidence"`
	N          int               `json:"n"`                  // blocks, or samples of pooled shares
	Blocks     int               `json:"blocks"`             // blocks that the estimate rests on, even if N counts samples
	Planned    int               `json:"planned"`            // blocks in which the arm was run at this level
	Withheld   string            `json:"withheld,omitempty"` // why it must not be quoted; empty: it may be
	Method     string            `json:"method"`

	// DesignEffect and Trials are set for pooled shares: how many times larger the variance is than with independent
	// samples, and how many trials have samples. DesignEffect is left out if no sample, or every sample, was in the
	// share.
	DesignEffect *float64 `json:"design_effect,omitempty"`
	Trials       int      `json:"trials,omitempty"`

	// Mean is set for a cost, because a user pays the mean, while the median is typical. It is the mean over blocks, with
	// an interval by Student's t from 6 blocks on. Outlying is the number of blocks whose value is far above the others of
	// the arm (stats.Outlying).
	Mean     *Interval `json:"mean,omitempty"`
	Outlying int       `json:"outlying,omitempty"`

	Difference *Difference `json:"difference,omitempty"` // arm minus baseline, paired by block
	Ratio      *Interval   `json:"ratio,omitempty"`      // arm over baseline, paired by block
	Notes      []string    `json:"notes,omitempty"`      // what to know before quoting it
}

// Difference is arm minus baseline. It is Resolved if its interval excludes 0, it is larger than the smallest visible
// difference, and lost blocks could not have made it vanish. For the baseline's twin, Resolved means only that its
// interval excludes 0: a false alarm.
type Difference struct {
	Interval
	Resolved   bool      `json:"resolved"`
	Unresolved string    `json:"unresolved,omitempty"` // why it is not resolved
	Confidence float64   `json:"confidence"`
	N          int       `json:"n"` // blocks in which both arms are valid
	Method     string    `json:"method"`
	Mean       *Interval `json:"mean,omitempty"` // for a cost: the mean of the differences within blocks

	// Lost is the number of further blocks in which both arms ran and at least one of them has no value. If the arm's
	// losses are beyond chance, Lost includes the blocks whose value comes from a later attempt. WorstLo and WorstHi are
	// the ends of the interval if the differences in these blocks, and in those of LostRepeated, were minus or plus
	// infinity, or, for a pooled share, if none or all samples of the lost trials counted in it; nil if they are unbounded
	// or there is no interval.
	Lost    int      `json:"lost"`
	WorstLo *float64 `json:"worst_lo"`
	WorstHi *float64 `json:"worst_hi"`

	// LostRepeated is the number of further blocks that count as lost although a later attempt has a value, because the
	// arm had to repeat more trials than its twins lost.
	LostRepeated int `json:"lost_repeated,omitempty"`

	// LostWhole is the number of blocks among Lost in which the arm and both twins lost the metric, each to the
	// hypervisor or to neighbours alone. Such a block favors no arm, and counts as not run: RestLo and RestHi are the
	// worst case of the other lost blocks, and decide whether the difference is resolved.
	LostWhole int      `json:"lost_whole,omitempty"`
	RestLo    *float64 `json:"rest_lo,omitempty"`
	RestHi    *float64 `json:"rest_hi,omitempty"`

	// SmallestVisible is the larger of two values: the difference that the A/A twins show, and half the width of the
	// difference's own interval; nil if either is unknown.
	SmallestVisible *float64 `json:"smallest_visible"`

	// Found is the size of an effect that 80 % of runs like this one resolve; nil if SmallestVisible is nil. An effect as
	// large as SmallestVisible is resolved in only about every second run.
	Found *float64 `json:"found_in_80_percent"`

	// ToResolve forecasts how many blocks would resolve a small difference; nil if this one is resolved, or if more
	// blocks would not help.
	ToResolve *Forecast `json:"to_resolve,omitempty"`

	// Effective is the number of independent blocks that would be worth as much as the N blocks, which resemble their
	// neighbours; nil if too few differences were measured to estimate it.
	Effective *float64 `json:"effective_blocks"`

	carried bool // the arm changes the trial that runs right after it

	strong bool // blocks depend on each other so strongly that the interval may still be too narrow
}

// Loss names a metric for which an arm has no value in some blocks in which it ran.
type Loss struct {
	Arm      string            `json:"arm"`
	Factors  map[string]string `json:"factors"`
	Metrics  []string          `json:"metrics"`  // lost in the same blocks, for the same reasons
	Planned  int               `json:"planned"`  // blocks in which the arm ran
	Lost     int               `json:"lost"`     // of these: number without a value after all attempts
	Repeated int               `json:"repeated"` // of these: number with the value of a later attempt
	// By is the number of lost blocks by reason: the gate with the cause that tripped it if known, "failed" or "too few
	// samples".
	By     map[string]int `json:"by"`
	Beyond bool           `json:"beyond_chance"`
}

// MDE (minimum detectable effect) is the smallest difference that the run can detect, judged by the A/A twin.
type MDE struct {
	Metric  string            `json:"metric"`
	Factors map[string]string `json:"factors"`
	Value   float64           `json:"value"`
}

// Model is the line cost = fixed + slope x level of each factor, fitted within each block.
type Model struct {
	Metric    string  `json:"metric"`
	Arm       string  `json:"arm"`
	Component string  `json:"component,omitempty"` // of the arm's subject; empty: the whole subject
	Terms     []Term  `json:"terms"`
	R2        float64 `json:"r2"`
	// Linear is set if no departure from a line was found and the held-out error is small.
	Linear       bool                  `json:"linear"`
	Test         string                `json:"test"`          // the test that Linear rests on
	HeldoutError *float64              `json:"heldout_error"` // error at levels left out of the fit, over the mean value
	ValidRange   map[string][2]float64 `json:"valid_range"`
	Withheld     string                `json:"withheld,omitempty"` // why it must not be quoted; empty: it may be
	Method       string                `json:"method"`
	Blocks       int                   `json:"blocks"` // blocks that were fitted; the others lack too many levels

	// Effective is the number of independent blocks that would be worth as much as the fitted ones, for the coefficient in
	// which neighbouring blocks resemble each other most; nil if there are too few blocks to estimate it.
	Effective *float64 `json:"effective_blocks,omitempty"`

	strong  bool // intervals may still be too narrow
	unpaced bool // a load of the run had no target rate
	line    *stats.Line
}

// Unpaced reports whether a load of the run had no target rate. What is used per second then follows from the load's
// speed and is no measure of demand.
func (m *Model) Unpaced() bool { return m.unpaced }

// HasIntervals reports whether the terms have intervals. They have none if all trials were fitted together.
func (m *Model) HasIntervals() bool {
	return len(m.Terms) > 0 && m.Terms[0].Lo != nil && m.Terms[0].Hi != nil
}

// Term is one coefficient of a model.
type Term struct {
	Name string `json:"name"`
	Unit string `json:"unit"`
	Interval
}

// Answer is a sentence with the estimates that it rests on, each as "metric arm".
type Answer struct {
	Question string   `json:"question"`
	Answer   string   `json:"answer"`
	Evidence []string `json:"evidence"`

	// General is set if no guest worded the answer: it goes through the metrics of an arm at a level, as the tables do.
	General bool `json:"-"`
}

// Self is the cost of Tare itself over all trials: the sum of its CPU time, with that of its nodes, and the largest
// resident memory of one of its processes.
type Self struct {
	CPUSeconds float64 `json:"cpu_seconds"`
	RSSBytes   uint64  `json:"rss_bytes"`
}

// add adds the cost in one ledger, which may be nil.
func (s *Self) add(l *ledger.Ledger) {
	if l != nil {
		s.CPUSeconds += l.Self.CPUSeconds
		s.RSSBytes = max(s.RSSBytes, l.Self.RSSBytes)
	}
}
