// Package analysis turns the trials of a run into a summary: estimates with intervals, the smallest visible differences, and
// answers in words that are tied to them. It is pure: records in, summary out.
package analysis

// Schema names the JSON form of Summary.
const Schema = "tare.summary/v1"

// Summary is summary.json.
type Summary struct {
	Schema         string            `json:"schema"`
	Experiment     string            `json:"experiment"`
	Question       string            `json:"question"`
	Baseline       string            `json:"baseline,omitempty"` // the subject that the arms direct and aa run; none where they run no subject
	Partial        bool              `json:"partial"`            // the run was interrupted: fewer trials than planned
	Valid          bool              `json:"valid"`
	InvalidReasons []string          `json:"invalid_reasons"`
	Blocks         int               `json:"blocks"` // complete blocks
	Seed           uint64            `json:"seed"`
	Estimates      []Estimate        `json:"estimates"`
	MDE            []MDE             `json:"mde"`
	Models         []Model           `json:"models"`
	Disturbed      []Disturbed       `json:"disturbed,omitempty"` // by level, where stalls of the machine were watched for
	Answers        []Answer          `json:"answers"`
	Trials         Trials            `json:"trials"`
	Self           Self              `json:"self"`
	Absent         map[string]string `json:"absent,omitempty"` // arms that did not run, for their program is not installed, and why
	Warnings       []string          `json:"warnings"`
}

// Trials counts them, and names those that are left out of the estimates.
type Trials struct {
	Planned  int        `json:"planned"`
	Done     int        `json:"done"`
	Valid    int        `json:"valid"`
	Failed   int        `json:"failed"`
	Invalid  int        `json:"invalid"`
	Excluded []Excluded `json:"excluded"`
}

// Excluded is a trial that failed or is invalid.
type Excluded struct {
	Index   int               `json:"index"` // in the plan
	Block   int               `json:"block"`
	Arm     string            `json:"arm"`
	Factors map[string]string `json:"factors"`
	Why     string            `json:"why"`
}

// Estimate is one metric of one arm at one level of the factors, beside its baseline. Intervals are null below 6 blocks.
type Estimate struct {
	Metric     string            `json:"metric"`
	Unit       string            `json:"unit"`
	Arm        string            `json:"arm"`
	Baseline   string            `json:"baseline,omitempty"`
	Factors    map[string]string `json:"factors"`
	Value      float64           `json:"value"` // median over blocks
	Lo         *float64          `json:"lo"`
	Hi         *float64          `json:"hi"`
	Confidence float64           `json:"confidence"`
	N          int               `json:"n"` // blocks
	Method     string            `json:"method"`
	Difference *Difference       `json:"difference,omitempty"` // arm minus baseline, paired by block
	Ratio      *Ratio            `json:"ratio,omitempty"`
	Notes      []string          `json:"notes,omitempty"` // what to know before quoting it
}

// Difference is arm minus baseline. Resolved: its interval excludes 0 and it is larger than what separates the A/A twins; of the
// twin itself, which is what the others are held against, only that its interval excludes 0: that is a false alarm.
type Difference struct {
	Value      float64  `json:"value"`
	Lo         *float64 `json:"lo"`
	Hi         *float64 `json:"hi"`
	Resolved   bool     `json:"resolved"`
	Unresolved string   `json:"unresolved,omitempty"` // why it is not resolved
	Confidence float64  `json:"confidence"`
	N          int      `json:"n"` // blocks in which both arms are valid
	Method     string   `json:"method"`
}

// Ratio is arm over baseline, paired by block.
type Ratio struct {
	Value float64  `json:"value"`
	Lo    *float64 `json:"lo"`
	Hi    *float64 `json:"hi"`
}

// MDE is the smallest difference that the run can see, from the A/A twin.
type MDE struct {
	Metric  string            `json:"metric"`
	Factors map[string]string `json:"factors"`
	Value   float64           `json:"value"`
}

// Model is cost = fixed + slope x level of each factor, fitted on the values of trials.
type Model struct {
	Metric       string                `json:"metric"`
	Arm          string                `json:"arm"`
	Terms        []Term                `json:"terms"`
	R2           float64               `json:"r2"`
	Linear       bool                  `json:"linear"`        // no departure from a line was shown
	Test         string                `json:"test"`          // by which test
	HeldoutError *float64              `json:"heldout_error"` // of levels left out of the fit, as a part of the mean value
	ValidRange   map[string][2]float64 `json:"valid_range"`
}

// Term is one coefficient of a model.
type Term struct {
	Name  string   `json:"name"`
	Unit  string   `json:"unit"`
	Value float64  `json:"value"`
	Lo    *float64 `json:"lo"`
	Hi    *float64 `json:"hi"`
}

// Answer is a sentence and the estimates it rests on, as "metric arm".
type Answer struct {
	Question string   `json:"question"`
	Answer   string   `json:"answer"`
	Evidence []string `json:"evidence"`
}

// Self is what the scale cost, over all trials.
type Self struct {
	CPUSeconds float64 `json:"cpu_seconds"`
	RSSBytes   uint64  `json:"rss_bytes"`
}
