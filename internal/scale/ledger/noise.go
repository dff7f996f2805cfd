package ledger

import (
	"slices"
	"strings"
)

// Noise is what disturbed the machine during a window, as the witness saw it: when each CPU stood still because the
// hypervisor ran somebody else, and which tasks held a CPU for long.
//
// Times are CLOCK_MONOTONIC in nanoseconds, the clock of role.Schedule and of the sampler, so that a stall can be laid
// over requests and samples.
type Noise struct {
	// steal-clock (exact to the nanosecond), steal-ticks (the kernel's counter)
	Witness       string  `json:"witness"`
	PeriodSeconds float64 `json:"period_seconds"` // time between two looks of the witness at one CPU
	// by the steal clock, over all CPUs; may exceed what /proc/stat has counted yet
	StolenSeconds  float64    `json:"stolen_seconds"`
	LongestSeconds float64    `json:"longest_stall_seconds"`
	Stalls         []Stall    `json:"stalls"`         // the longest MaxStalls, by time
	StallsOmitted  int        `json:"stalls_omitted"` // shorter ones that are not listed
	Occupied       []Stall    `json:"occupied"`       // a task held a CPU without a break; bounded likewise
	OccupiedMissed int        `json:"occupied_omitted"`
	Busiest        []Occupant `json:"busiest"` // by CPU time seen at the witness's looks, the largest first
	// looks that came late although nothing was stolen: interrupts were off
	Late int `json:"late_looks"`
	// of them, at most; never taken for noise, for the subject may be the cause
	LongestLate float64 `json:"longest_late_seconds"`
}

// MaxStalls bounds Noise.Stalls and Noise.Occupied, each.
const MaxStalls = 4096

// Stall is a stretch of time on one CPU in which those who wanted to run there could not.
type Stall struct {
	CPU int `json:"cpu"`
	// the stall lies between From and To; these are the looks of the witness on either side
	From    int64   `json:"from_ns"`
	To      int64   `json:"to_ns"`   // for an occupant: the looks before the first and after the last that saw it
	Seconds float64 `json:"seconds"` // of it, how long the CPU was away; at most To - From
	Cause   Cause   `json:"cause"`
	// the CPU was idle when it was taken away, so the kernel counts the time as idle as well
	Idle   bool   `json:"idle"`
	PID    int    `json:"pid,omitempty"`    // of an occupant
	Comm   string `json:"comm,omitempty"`   // of an occupant
	Cgroup string `json:"cgroup,omitempty"` // of an occupant; empty where it could not be read
}

// Occupant is who was seen running: the processes of one name in one control group.
type Occupant struct {
	PID       int     `json:"pid"` // of the busiest of them
	Comm      string  `json:"comm"`
	Cgroup    string  `json:"cgroup"`    // empty where it could not be read
	Processes int     `json:"processes"` // how many they are
	Seconds   float64 `json:"seconds"`   // looks x period
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

// Spans are the stretches, from and to, of the stalls that count and of those in which a task that counts held a CPU:
// disjoint and in order. CPUs often stand still together, and thousands of stalls are then a few hundred spans. It is
// for whoever has seen that none was omitted.
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

// KernelThread says whether a task of a name is a thread of the kernel that works for others: softirq, deferred work,
// callbacks of RCU.
func KernelThread(comm string) bool {
	name, _, _ := strings.Cut(comm, "/")
	threads := []string{"ksoftirqd", "kworker", "rcu_preempt", "rcu_sched", "rcuc", "rcuog", "rcuos", "migration", "irq"}
	return slices.Contains(threads, name)
}
