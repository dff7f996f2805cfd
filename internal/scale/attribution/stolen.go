package attribution

import (
	"tare/internal/lib/stats/interval"
	"tare/internal/scale/ledger"
)

// Hit is a stall (a time in which the hypervisor withheld a CPU) that ended inside a program: the witness (package
// witness) looked as the CPU came back, and the sample taken then has the program in its call chain.
type Hit struct {
	Stolen float64 // seconds
	Late   float64 // seconds that the sample came late; the program was held up for at least as long
}

// Stalled holds what is known about stalls inside one program.
type Stalled struct {
	RunSeconds float64 // by the kernel's statistics, stalls included
	Hits       []Hit
	Samples    int
	Period     float64 // seconds between samples of one CPU
	LookPeriod float64 // seconds between looks of the witness at one CPU: Period or a multiple
	// Busy and BusyStolen are the time in which the CPUs were not idle, and the part of it that was stolen, in seconds.
	Busy, BusyStolen float64
}

// Stolen estimates the part of a program's run time in which the hypervisor had taken its CPU away, in seconds. It also
// returns the method: ledger.StolenWitnessed or, if it had to assume anything about time that samples do not see,
// ledger.StolenProportion.
//
// A stall of at least one LookPeriod always covers a time at which a look is due, so each such stall of the program is
// a Hit and counts in full. A shorter stall covers such a time with the probability length/LookPeriod. The short hits
// therefore represent all short stalls, and each counts as one LookPeriod. The number of short hits is a Poisson count.
//
// Samples may miss part of the program because it runs with interrupts off. The estimate assumes that stalls hit that
// part as often as everything else that ran. As nothing saw those stalls, the interval includes both extremes: that
// none of the part was stolen, and that all of it was.
func Stolen(s Stalled) (ledger.Interval, string) {
	var v ledger.Interval
	short := 0
	for _, h := range s.Hits {
		if h.Stolen < s.LookPeriod {
			short++
			continue
		}
		v.Value += h.Stolen
		v.Lo += min(h.Late, h.Stolen)
		v.Hi += h.Stolen
	}
	if s.BusyStolen > 0 {
		lo, hi := interval.Poisson(short, Confidence)
		v.Value += float64(short) * s.LookPeriod
		v.Lo += lo * s.LookPeriod
		// Short stalls cannot have taken more than the rest of the stolen time.
		v.Hi += max(min(hi*s.LookPeriod, s.BusyStolen-v.Hi), float64(short)*s.LookPeriod)
	}
	method := ledger.StolenWitnessed
	ran := max(s.RunSeconds-v.Value, 0)
	if seen := SampledSeconds(s.Samples, s.Period); ran >= float64(MinSamples)*s.Period && seen.Hi < 0.8*ran &&
		s.BusyStolen > 0 && s.Busy > 0 {
		method = ledger.StolenProportion
		hidden := ran - seen.Value
		v.Value += hidden * min(s.BusyStolen/s.Busy, 1)
		v.Hi += min(hidden, s.BusyStolen)
	}
	v.Value, v.Lo, v.Hi = min(v.Value, s.RunSeconds), min(v.Lo, s.RunSeconds), min(v.Hi, s.RunSeconds)
	v.Lo, v.Hi = min(v.Lo, v.Value), max(v.Hi, v.Value)
	return v, method
}
