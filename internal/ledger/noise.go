package ledger

// Noise is what disturbed the machine during a window, as the witness saw it: when each CPU stood still because the hypervisor ran
// somebody else, and which tasks held a CPU for long.
//
// Times are CLOCK_MONOTONIC in nanoseconds, the clock of role.Schedule and of the sampler, so that a stall can be laid over
// requests and samples.
type Noise struct {
	Witness        string     `json:"witness"`        // steal-clock (exact to the nanosecond), steal-ticks (the kernel's counter)
	PeriodSeconds  float64    `json:"period_seconds"` // time between two looks of the witness at one CPU
	StolenSeconds  float64    `json:"stolen_seconds"` // by the steal clock, over all CPUs; may exceed what /proc/stat has counted yet
	LongestSeconds float64    `json:"longest_stall_seconds"`
	Stalls         []Stall    `json:"stalls"`         // the longest MaxStalls, by time
	StallsOmitted  int        `json:"stalls_omitted"` // shorter ones that are not listed
	Occupied       []Stall    `json:"occupied"`       // a task held a CPU without a break; bounded likewise
	OccupiedMissed int        `json:"occupied_omitted"`
	Busiest        []Occupant `json:"busiest"`              // by CPU time seen at the witness's looks, the largest first
	Late           int        `json:"late_looks"`           // looks that came late although nothing was stolen: interrupts were off
	LongestLate    float64    `json:"longest_late_seconds"` // of them; never taken for noise, for the subject may be the cause
}

// MaxStalls bounds Noise.Stalls and Noise.Occupied, each.
const MaxStalls = 4096

// Stall is a stretch of time on one CPU in which those who wanted to run there could not.
type Stall struct {
	CPU     int     `json:"cpu"`
	From    int64   `json:"from_ns"` // the stall lies between From and To; these are the looks of the witness on either side
	To      int64   `json:"to_ns"`
	Seconds float64 `json:"seconds"` // of it, how long the CPU was away; at most To - From
	Cause   Cause   `json:"cause"`
	Idle    bool    `json:"idle"`             // the CPU was idle when it was taken away, so the kernel counts the time as idle as well
	PID     int     `json:"pid,omitempty"`    // of an occupant
	Comm    string  `json:"comm,omitempty"`   // of an occupant
	Cgroup  string  `json:"cgroup,omitempty"` // of an occupant; empty where it could not be read
}

// Occupant is a process that was seen running.
type Occupant struct {
	PID     int     `json:"pid"`
	Comm    string  `json:"comm"`
	Cgroup  string  `json:"cgroup"`
	Seconds float64 `json:"seconds"` // looks x period
}

// Cause is who disturbed a measurement.
type Cause string

// The causes.
const (
	Hypervisor Cause = "hypervisor" // CPU time was stolen
	Neighbour  Cause = "neighbour"  // another tenant's process held the CPU
	Generator  Cause = "generator"  // the load generator itself was late or out of CPU
	Subject    Cause = "subject"    // what is weighed was too slow: a result, never an exclusion
	Unknown    Cause = "unknown"
)
