package record

import "tare/internal/scale/profile"

// ProfileDir is the directory in a run directory that has the profiles: one of each trial, one of each arm, and
// StacksFile, a page with flame graphs.
const (
	ProfileDir = "profiles"
	StacksFile = "stacks.html"
)

// MaxFunctions limits the functions that a trial's record lists. Typical trials have some hundreds.
const MaxFunctions = 1000

// Profile shows in which functions the trial's groups spent their CPU time during the window. The groups' counters give
// the total, and samples show how it is divided.
type Profile struct {
	File    string `json:"file"`    // path in the run directory of the stacks, in pprof's form (github.com/google/pprof)
	Samples int    `json:"samples"` // how many were taken in the trial's groups

	// Metric names the metric of the trial on which the validity of the profile depends: what voids this metric voids the
	// functions too.
	Metric string `json:"metric"`
	// Divisor converts CPU seconds to Unit by division: the number of requests answered, of connections opened, or of
	// seconds in the window.
	Unit    string  `json:"unit"`
	Divisor float64 `json:"divisor"`

	Functions []FunctionTime `json:"functions"`       // at most MaxFunctions, in descending order of CPU time
	Rest      float64        `json:"rest_seconds"`    // CPU time of all others
	Lacks     []string       `json:"lacks,omitempty"` // what the profile does not show
}

// FunctionTime is the CPU time that one function used in one part of a trial.
type FunctionTime struct {
	Part string `json:"part"` // part of the trial: "the application web", "the load clients", "the subject's agent"
	profile.Function
	Samples int     `json:"samples"`
	Seconds float64 `json:"seconds"` // CPU time in the window
}
