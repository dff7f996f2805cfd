package record

import "tare/internal/scale/profile"

// ProfileDir is the directory in a run directory that has the profiles: one of each trial, one of each arm, and a page
// with flame graphs.
const (
	ProfileDir = "profiles"
	StacksFile = "stacks.html"
)

// MaxFunctions is how many functions the profile of a trial has. A trial has some hundreds.
const MaxFunctions = 1000

// Profile is in which functions the trial's groups used CPU time during the window. The groups' counters say how much
// that was, and samples how it is divided.
type Profile struct {
	File    string `json:"file"`    // with the stacks, in the run directory: pprof (github.com/google/pprof)
	Samples int    `json:"samples"` // of the trial's groups

	// Metric is a metric of the trial: what voids it voids the functions.
	Metric string `json:"metric"`
	// Divisor is by what CPU seconds are divided to be in the unit: requests answered, connections opened, or seconds.
	Unit    string  `json:"unit"`
	Divisor float64 `json:"divisor"`

	Functions []FunctionTime `json:"functions"`       // at most MaxFunctions, those first that used most
	Rest      float64        `json:"rest_seconds"`    // of all others
	Lacks     []string       `json:"lacks,omitempty"` // what the profile does not show
}

// FunctionTime is what one function used in one part of a trial.
type FunctionTime struct {
	Part string `json:"part"` // of the trial: "the application web", "the load clients", "the subject's agent"
	profile.Function
	Samples int     `json:"samples"`
	Seconds float64 `json:"seconds"` // CPU time in the window
}
