// Package analysis turns the trials of a run into a summary: estimates with intervals, the smallest visible
// differences, and answers in words that are tied to them. It is pure: records in, summary out.
package analysis

import (
	"tare/internal/experiment/record"
	"tare/internal/lib/stats"
	"tare/internal/scale/ledger"
)

// Schema names the JSON form of Summary.
const Schema = "tare.summary/v1"

// Summary is summary.json.
type Summary struct {
	Schema     string `json:"schema"`
	Experiment string `json:"experiment"`
	Question   string `json:"question"`
	// the subject that the arms direct and aa run; none where they run no subject
	Baseline       string     `json:"baseline,omitempty"`
	Partial        bool       `json:"partial"` // the run was interrupted: fewer trials than planned
	Valid          bool       `json:"valid"`
	InvalidReasons []string   `json:"invalid_reasons"`
	Blocks         int        `json:"blocks"` // complete blocks
	Seed           uint64     `json:"seed"`
	Estimates      []Estimate `json:"estimates"`
	MDE            []MDE      `json:"mde"`
	Models         []Model    `json:"models"`
	// ComponentModels are the same of components of subjects, each with its name.
	ComponentModels []Model `json:"component_models,omitempty"`
	Losses          []Loss  `json:"losses"`
	// Headlines are the metrics that a reader wants first: those that are asserted or asked about, then those with a
	// resolved difference, the largest in proportion first.
	Headlines []string    `json:"headlines"`
	Disturbed []Disturbed `json:"disturbed,omitempty"` // by level, where stalls of the machine were watched for
	// Functions say what makes up the differences of arms, where stacks were sampled.
	Functions  []Functions `json:"functions,omitempty"`
	Workloads  []Workload  `json:"workloads,omitempty"`  // gross, tare and net of applications, where trials were charged
	Placements []Placement `json:"placements,omitempty"` // which places are charged for what ran, if guests record it
	Answers    []Answer    `json:"answers"`
	// Verdicts are what became of the assertions of the run, in their order.
	Verdicts []Verdict `json:"verdicts,omitempty"`
	Missing  []Missing `json:"missing"` // metrics that were withheld, and why
	Trials   Trials    `json:"trials"`
	Self     Self      `json:"self"`
	// arms that did not run, for their program is not installed, and why
	Absent   map[string]string `json:"absent,omitempty"`
	Warnings []string          `json:"warnings"`
	Phrases  []record.Phrase   `json:"phrases,omitempty"` // how levels read in sentences
	// why a run without a fixed number of blocks ended
	Stopped     string `json:"stopped,omitempty"`
	NotRepeated string `json:"not_repeated,omitempty"` // spoiled trials that were not run again
}

// Missing is a metric of an arm at a level that the run cannot tell: too many of its trials were lost. There may be an
// estimate from the others, which says that it is withheld.
type Missing struct {
	Metric     string            `json:"metric"`
	Arm        string            `json:"arm"`
	Factors    map[string]string `json:"factors"`
	Trials     int               `json:"trials"`                // that were run
	Lost       int               `json:"lost"`                  // of these
	Gate       string            `json:"gate"`                  // by which most were lost; empty where they failed
	Cause      ledger.Cause      `json:"cause"`                 // the cause that tripped it most often
	CauseShare *float64          `json:"cause_share,omitempty"` // of the machine's CPU time, the mean over these trials
	Culprits   []string          `json:"culprits,omitempty"`
	Message    string            `json:"message"` // of one of these trials
}

// Trials counts those of the plan, each once however often it was run, and names those that are left out of some
// estimate or of all.
type Trials struct {
	Planned  int        `json:"planned"`
	Done     int        `json:"done"`
	Valid    int        `json:"valid"`    // in one attempt at least
	Failed   int        `json:"failed"`   // in every attempt
	Invalid  int        `json:"invalid"`  // the others: gates void some of their metrics
	Attempts int        `json:"attempts"` // how often trials were run in all
	Excluded []Excluded `json:"excluded"`
}

// Excluded is a trial that failed or is invalid in every attempt.
type Excluded struct {
	Index   int               `json:"index"` // in the plan
	Block   int               `json:"block"`
	Arm     string            `json:"arm"`
	Factors map[string]string `json:"factors"`
	Why     string            `json:"why"`
	Voids   []string          `json:"voids,omitempty"` // the metrics that are left out; none named: all
}

// Interval is a value and the ends of its interval, which are nil if there is none.
type Interval struct {
	Value float64  `json:"value"`
	Lo    *float64 `json:"lo"`
	Hi    *float64 `json:"hi"`
}

// newInterval is that of an estimate of package stats.
func newInterval(e stats.Estimate) Interval {
	if !e.HasInterval {
		return Interval{Value: e.Value}
	}
	return Interval{e.Value, &e.Lo, &e.Hi}
}

// Zero reports whether nothing but 0 is in the interval.
func (i Interval) Zero() bool { return i.Lo != nil && *i.Lo == 0 && *i.Hi == 0 }

// half is the larger half of the interval, which there must be.
func (i Interval) half() float64 { return max(i.Value-*i.Lo, *i.Hi-i.Value) }

// Estimate is one metric of one arm at one level of the factors, compared with its baseline. Intervals are nil below 6
// blocks.
type Estimate struct {
	Metric     string            `json:"metric"`
	Unit       string            `json:"unit"`
	Rank       int               `json:"rank"` // among the metrics: tables and charts show them in this order
	Arm        string            `json:"arm"`
	Component  string            `json:"component,omitempty"` // left out for the whole subject
	Baseline   string            `json:"baseline,omitempty"`
	Factors    map[string]string `json:"factors"`
	Interval                     // the median over blocks
	Confidence float64           `json:"confidence"`
	N          int               `json:"n"`                  // blocks
	Blocks     int               `json:"blocks"`             // that it rests on, also where n counts samples
	Planned    int               `json:"planned"`            // blocks in which the arm was run at this level
	Withheld   string            `json:"withheld,omitempty"` // why it must not be quoted: too many of its trials were lost
	Method     string            `json:"method"`

	// DesignEffect and Trials are set for pooled shares: how many times larger the variance is than with independent
	// samples, and how many trials have samples. N counts samples there. The design effect is left out if nothing, or
	// everything, was in the part.
	DesignEffect *float64 `json:"design_effect,omitempty"`
	Trials       int      `json:"trials,omitempty"`

	// Mean is set for a cost, because a user pays the mean, while the median is typical. It is over blocks, with an
	// interval by Student's t from 6 blocks on. Outlying counts the blocks whose value is far above the others of the
	// arm (stats.Outlying).
	Mean     *Interval `json:"mean,omitempty"`
	Outlying int       `json:"outlying,omitempty"`

	Difference *Difference `json:"difference,omitempty"` // arm minus baseline, paired by block
	Ratio      *Interval   `json:"ratio,omitempty"`      // arm over baseline, paired by block
	Notes      []string    `json:"notes,omitempty"`      // what to know before quoting it
}

// Difference is arm minus baseline. It is Resolved if its interval excludes 0, it is larger than the smallest that is
// visible, and lost blocks could not have made it vanish. For the twin, with which the other arms are compared,
// Resolved means only that its interval excludes 0: a false alarm.
type Difference struct {
	Interval
	Resolved   bool      `json:"resolved"`
	Unresolved string    `json:"unresolved,omitempty"` // why it is not resolved
	Confidence float64   `json:"confidence"`
	N          int       `json:"n"` // blocks in which both arms are valid
	Method     string    `json:"method"`
	Mean       *Interval `json:"mean,omitempty"` // of a cost: the mean of the differences within blocks

	// Lost counts the further blocks in which both arms ran and one of them has no value; where the arm's losses are
	// beyond chance, also those with the value of a later attempt. WorstLo and WorstHi are the interval with these,
	// and LostRepeated, at minus and plus infinity; nil: without a bound, or there is no interval.
	Lost    int      `json:"lost"`
	WorstLo *float64 `json:"worst_lo"`
	WorstHi *float64 `json:"worst_hi"`

	// LostRepeated counts further blocks that count as lost although they have the value of a later attempt: an arm
	// had to repeat more trials than its twins lost.
	LostRepeated int `json:"lost_repeated,omitempty"`

	// LostWhole counts those of the Lost in which the arm and both twins lost the metric, each to the hypervisor or
	// to neighbours alone. Such a block chose no arm, and counts as one that was not run: RestLo and RestHi are the
	// worst case of the other lost blocks, by which it is then decided whether the difference is resolved.
	LostWhole int      `json:"lost_whole,omitempty"`
	RestLo    *float64 `json:"rest_lo,omitempty"`
	RestHi    *float64 `json:"rest_hi,omitempty"`

	// SmallestVisible is the larger of what the A/A twins show and of half the interval's own width; nil where either
	// is not known.
	SmallestVisible *float64 `json:"smallest_visible"`

	// Found is the effect that 80 % of runs like this one resolve. It is there where SmallestVisible is, which is a
	// half-width: about every second run resolves an effect of that size.
	Found *float64 `json:"found_in_80_percent"`

	// ToResolve is how many blocks would resolve a small difference where noise left this one unresolved.
	ToResolve *Forecast `json:"to_resolve,omitempty"`

	// Effective is how many independent blocks the N are worth, since neighbouring ones resemble each other; nil where
	// too few differences were measured to say.
	Effective *float64 `json:"effective_blocks"`

	strong bool // blocks depend on each other so strongly that the interval may still be too narrow
}

// Loss names a metric for which an arm has no value in some blocks in which it ran.
type Loss struct {
	Arm      string            `json:"arm"`
	Factors  map[string]string `json:"factors"`
	Metrics  []string          `json:"metrics"`  // that were lost in the same blocks, for the same reasons
	Planned  int               `json:"planned"`  // blocks in which it ran
	Lost     int               `json:"lost"`     // of these: without a value after all attempts
	Repeated int               `json:"repeated"` // of these: with the value of a later attempt, the first being spoiled
	// lost blocks by the gate and, if it is known, the cause that tripped it; "failed", "too few samples"
	By     map[string]int `json:"by"`
	Beyond bool           `json:"beyond_chance"`
}

// MDE is the smallest difference that the run can see, from the A/A twin.
type MDE struct {
	Metric  string            `json:"metric"`
	Factors map[string]string `json:"factors"`
	Value   float64           `json:"value"`
}

// Model is cost = fixed + slope x level of each factor, fitted within each block.
type Model struct {
	Metric    string  `json:"metric"`
	Arm       string  `json:"arm"`
	Component string  `json:"component,omitempty"` // of the arm's subject; empty: all of it
	Terms     []Term  `json:"terms"`
	R2        float64 `json:"r2"`
	// no departure from a line was shown, and the held-out error is small
	Linear       bool                  `json:"linear"`
	Test         string                `json:"test"`          // by which test
	HeldoutError *float64              `json:"heldout_error"` // of levels left out of the fit, as a part of the mean value
	ValidRange   map[string][2]float64 `json:"valid_range"`
	Method       string                `json:"method"`
	Blocks       int                   `json:"blocks"` // whose trials were fitted; others miss too many levels

	// Effective is how many independent blocks those are worth, of the coefficient that depends most on its neighbours;
	// left out where there are too few to tell.
	Effective *float64 `json:"effective_blocks,omitempty"`

	strong  bool // intervals may still be too narrow
	unpaced bool // see Unpaced
	line    *stats.Line
}

// Unpaced reports whether a load of the run had no rate to keep to: what is used per second is then of its speed, and
// no demand.
func (m *Model) Unpaced() bool { return m.unpaced }

// HasIntervals reports whether its terms have intervals: those of a fit of all trials together have none.
func (m *Model) HasIntervals() bool {
	return len(m.Terms) > 0 && m.Terms[0].Lo != nil && m.Terms[0].Hi != nil
}

// Term is one coefficient of a model.
type Term struct {
	Name string `json:"name"`
	Unit string `json:"unit"`
	Interval
}

// Answer is a sentence and the estimates it rests on, as "metric arm".
type Answer struct {
	Question string   `json:"question"`
	Answer   string   `json:"answer"`
	Evidence []string `json:"evidence"`

	// General says that it goes through the metrics of an arm at a level, as the tables do, and that no guest worded it.
	General bool `json:"-"`
}

// Self is the cost of the scale, over all trials.
type Self struct {
	CPUSeconds float64 `json:"cpu_seconds"`
	RSSBytes   uint64  `json:"rss_bytes"`
}
