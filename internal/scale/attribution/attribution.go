// Package attribution splits an eBPF program's exact run time among the places where samples saw it run. The share of a
// place is the run time multiplied by the fraction of the samples that saw the program there, with a confidence
// interval. If there are too few samples, the result says so instead of guessing. The package does no I/O.
package attribution

import (
	"cmp"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strings"

	"tare/internal/lib/lists"
	"tare/internal/lib/stats/interval"
	"tare/internal/scale/ledger"
)

const (
	// Confidence is the confidence level of every interval of this package.
	Confidence = 0.95
	// MinSamples is the minimum number of samples for splitting a program's time. With fewer, the relative standard error
	// of a share of one half exceeds 20 %.
	MinSamples = 25
	// MinShare is how many samples a place needs for a separate share; places with fewer are reported together.
	MinShare = 5
)

// Idle replaces the group in samples of interrupts on an idle CPU, where no group's task is running.
const Idle = "(idle)"

// Place describes where a sample saw a program: the group of the task on the CPU, and the context that the program
// itself ran in. Group is empty if the thread ended before its group could be read.
type Place struct {
	Group   string
	Context ledger.Context
}

// Evidence holds what is known about one program in one window.
type Evidence struct {
	RunNs   uint64        // run time according to the kernel's statistics, nanoseconds
	Samples map[Place]int // how many samples saw it in each place
	Sole    *Place        // the only place where its attachments allow it to run; nil if there may be others
	Blind   bool          // the addresses of its machine code are unknown, so no sample can be recognized as its own

	// Hz is the number of samples per second on each CPU, and Seconds the duration of sampling; notes use them to suggest
	// a sufficient rate or window. Both are 0 if no samples were taken, or if CPU cycles triggered them and not a clock.
	Hz, Seconds float64
}

// Split returns the shares of a program. Their seconds add up to RunNs exactly: whole nanoseconds are distributed by
// largest remainder. A program that did not run has no shares.
func Split(e Evidence) []ledger.Share {
	if e.RunNs == 0 {
		return []ledger.Share{}
	}
	total := float64(e.RunNs) / 1e9
	n := 0
	for _, k := range e.Samples {
		n += k
	}
	if e.Sole != nil {
		return []ledger.Share{{
			Cgroup: &e.Sole.Group, Context: e.Sole.Context,
			Seconds: total, Lo: total, Hi: total, Samples: n, Method: ledger.Sole,
		}}
	}
	if n < MinSamples {
		return []ledger.Share{{
			Seconds: total, Lo: 0, Hi: total, Samples: n, Method: ledger.Sampled,
			Note: e.tooFew(n),
		}}
	}

	type part struct {
		share ledger.Share
		k     int
	}
	var parts []part
	var rest, restPlaces, unknown int
	for p, k := range e.Samples {
		switch {
		case k == 0:
		case p.Group == "":
			unknown += k
		case k < MinShare:
			rest, restPlaces = rest+k, restPlaces+1
		default:
			parts = append(parts, part{ledger.Share{Cgroup: &p.Group, Context: p.Context}, k})
		}
	}
	slices.SortFunc(parts, func(a, b part) int {
		return cmp.Or(b.k-a.k, cmp.Compare(*a.share.Cgroup, *b.share.Cgroup), cmp.Compare(a.share.Context, b.share.Context))
	})
	if rest > 0 {
		parts = append(parts, part{ledger.Share{
			Note: fmt.Sprintf("not split: %d places with fewer than %d samples each", restPlaces, MinShare)}, rest})
	}
	if unknown > 0 {
		parts = append(parts, part{ledger.Share{Note: "these threads ended, or their group could not be read in time"},
			unknown})
	}

	counts := lists.Map(parts, func(p part) int { return p.k })
	shares := make([]ledger.Share, len(parts))
	for i, ns := range Apportion(e.RunNs, counts, n) {
		s := parts[i].share
		lo, hi := interval.Binomial(parts[i].k, n, Confidence)
		s.Seconds, s.Lo, s.Hi = float64(ns)/1e9, lo*total, hi*total
		s.Samples, s.Method = parts[i].k, ledger.Sampled
		shares[i] = s
	}
	return shares
}

const (
	// enough is the number of samples that a hint aims for: a Poisson count with this mean is below MinSamples in 1 of
	// 100 windows.
	enough = 38
	// fastest is the highest rate, in Hz, that a hint suggests: the largest prime below perf.MaxHz.
	fastest = 4999
	// longest is the longest window that a hint suggests, in seconds.
	longest = 3600
)

// tooFew explains why n samples do not split the run time, and which option would have produced enough.
func (e Evidence) tooFew(n int) string {
	if e.Blind {
		return "not split: the addresses of its machine code are unknown, so samples cannot see it"
	}
	if e.Hz == 0 {
		return fmt.Sprintf("not split: %d samples, %d are needed", n, MinSamples)
	}
	seconds := float64(e.RunNs) / 1e9
	expected := seconds * e.Hz
	if _, hi := interval.Poisson(n, Confidence); hi < expected/2 {
		return fmt.Sprintf("not split: %d samples where its run time makes about %.0f: it runs where samples cannot see it, "+
			"with interrupts off or asleep", n, expected)
	}
	short := fmt.Sprintf("not split: %d samples, %d are needed", n, MinSamples)
	var options []string
	if hz := math.Ceil(enough / seconds); hz <= fastest {
		options = append(options, fmt.Sprintf("--hz %d", primeFrom(max(int(hz), int(e.Hz)+1))))
	}
	if window := math.Ceil(e.Seconds * max(enough/expected, 1)); e.Seconds > 0 && window <= longest {
		options = append(options, fmt.Sprintf("a window of %d s", int(window)))
	}
	if len(options) == 0 {
		return short + "; it ran too little to be split"
	}
	return short + "; use " + strings.Join(options, " or ")
}

// primeFrom returns the smallest prime that is not below n: a prime rate does not stay in step with timers at round
// rates.
func primeFrom(n int) int {
	for n = max(n, 2); !big.NewInt(int64(n)).ProbablyPrime(0); n++ { // exact below 2^64
	}
	return n
}

// Apportion distributes total in proportion to counts, which add up to n, by largest remainder.
func Apportion(total uint64, counts []int, n int) []uint64 {
	out := make([]uint64, len(counts))
	remainder := make([]float64, len(counts))
	left := total
	for i, k := range counts {
		exact := float64(total) * (float64(k) / float64(n))
		whole := math.Floor(exact)
		out[i], remainder[i] = min(uint64(whole), left), exact-whole
		left -= out[i]
	}
	order := make([]int, len(counts))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(remainder[b], remainder[a]) })
	// Above 2^53 ns (104 days of run time) floats cannot represent single nanoseconds, and left may exceed len(counts).
	each := left / uint64(len(counts))
	for i := range out {
		out[i] += each
	}
	for _, i := range order[:left-each*uint64(len(counts))] {
		out[i]++
	}
	return out
}

// SampledSeconds estimates a program's run time from samples alone: samples times period, with the interval of a
// Poisson count. It is a check on the kernel's statistics, which count wall time (including preemption, sleep and
// steal), whereas samples count CPU time.
func SampledSeconds(samples int, periodSeconds float64) ledger.Interval {
	lo, hi := interval.Poisson(samples, Confidence)
	return ledger.Interval{Value: float64(samples) * periodSeconds, Lo: lo * periodSeconds, Hi: hi * periodSeconds}
}
