package ledger

import (
	"slices"
	"strings"
)

// Noise describes what disturbed the machine during a window, as seen by the witness: when each CPU stood still because
// the hypervisor ran something else, and which tasks held a CPU for long.
//
// Times are CLOCK_MONOTONIC in nanoseconds, the clock of role.Schedule and of the sampler, so stalls can be matched
// with requests and samples.
type Noise struct {
	// Witness is steal-clock (exact to the nanosecond) or steal-ticks (the kernel's counter).
	Witness       string  `json:"witness"`
	PeriodSeconds float64 `json:"period_seconds"` // time between two looks of the witness at one CPU
	// StolenSeconds is the stolen time that the witness measured, over all CPUs. By the steal clock it may exceed what
	// /proc/stat has counted so far.
	StolenSeconds  float64    `json:"stolen_seconds"`
	LongestSeconds float64    `json:"longest_stall_seconds"`
	Stalls         []Stall    `json:"stalls"`         // the longest MaxStalls, in order of time
	StallsOmitted  int        `json:"stalls_omitted"` // shorter ones that are not listed
	Occupied       []Stall    `json:"occupied"`       // the longest MaxStalls times in which a task held a CPU throughout
	OccupiedMissed int        `json:"occupied_omitted"`
	Busiest        []Occupant `json:"busiest"` // by CPU time seen at the witness's looks, largest first
	// Late counts looks that came late although nothing was stolen: interrupts were off.
	Late int `json:"late_looks"`
	// LongestLate is an upper bound on the longest delay of a late look, in seconds. Such delays never count as noise,
	// because the subject may be their cause.
	LongestLate float64 `json:"longest_late_seconds"`
}

// MaxStalls bounds Noise.Stalls and Noise.Occupied, each.
const MaxStalls = 4096

// Stall is a stretch of time on one CPU during which tasks that wanted to run there could not.
type Stall struct {
	CPU int `json:"cpu"`
	// From and To are the times of the witness's last look before the stall and of its first look after the stall. For an
	// occupant, they are those of the last look before the occupant was seen and of the first look that no longer saw it.
	From int64 `json:"from_ns"`
	To   int64 `json:"to_ns"`
	// Seconds is how long the CPU was away between From and To. For an occupant, it is how long the occupant held the CPU
	// in that time.
	Seconds float64 `json:"seconds"`
	Cause   Cause   `json:"cause"`
	// Idle reports whether the CPU was idle when it was taken away, so that the kernel counts the time as idle as well.
	Idle   bool   `json:"idle"`
	PID    int    `json:"pid,omitempty"`    // the occupant's; 0 for a stall
	Comm   string `json:"comm,omitempty"`   // the occupant's; empty for a stall
	Cgroup string `json:"cgroup,omitempty"` // the occupant's; empty for a stall, or if it could not be read
}

// Occupant describes processes that the witness saw running: all with one name in one control group.
type Occupant struct {
	PID       int     `json:"pid"` // of the busiest of these processes
	Comm      string  `json:"comm"`
	Cgroup    string  `json:"cgroup"`    // empty if it could not be read
	Processes int     `json:"processes"` // how many there are
	Seconds   float64 `json:"seconds"`   // looks x period
}

// Cause is what disturbed a measurement.
type Cause string

// The causes.
const (
	Hypervisor Cause = "hypervisor" // CPU time was stolen
	Neighbour  Cause = "neighbour"  // another tenant's process held the CPU
	Generator  Cause = "generator"  // the load generator itself was late or short of CPU
	Subject    Cause = "subject"    // what is being weighed was too slow: a result, never grounds for exclusion
	Unknown    Cause = "unknown"
)

// Spans returns the disjoint, ordered stretches [from, to] covered by those stalls and occupied times for which
// counts(stall) returns true. CPUs often stand still together, so thousands of stalls become a few hundred spans. The
// spans are complete only if no stall was omitted.
func (n *Noise) Spans(counts func(Stall) bool) [][2]int64 {
	all := [][2]int64{}
	for _, s := range slices.Concat(n.Stalls, n.Occupied) {
		if counts(s) {
			all = append(all, [2]int64{s.From, s.To})
		}
	}
	slices.SortFunc(all, func(a, b [2]int64) int { return slices.Compare(a[:], b[:]) })
	spans := all[:0]
	for _, s := range all {
		if last := len(spans) - 1; last >= 0 && s[0] <= spans[last][1] {
			spans[last][1] = max(spans[last][1], s[1])
			continue
		}
		spans = append(spans, s)
	}
	return spans
}

// KernelThread reports whether comm names a kernel thread that works on behalf of others: softirq, deferred work, RCU
// callbacks.
func KernelThread(comm string) bool {
	name, _, _ := strings.Cut(comm, "/")
	threads := []string{"ksoftirqd", "kworker", "rcu_preempt", "rcu_sched", "rcuc", "rcuog", "rcuos", "migration", "irq"}
	return slices.Contains(threads, name)
}
