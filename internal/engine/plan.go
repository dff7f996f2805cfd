package engine

import (
	"math/rand/v2"
	"time"

	"tare/internal/kind"
	"tare/internal/record"
)

// Plan orders the trials: randomised complete blocks. A block holds every level once, in random order, and within a
// level every arm once, in random order and without anything between them. The same spec and seed give the same plan,
// on any machine.
func Plan(s *Spec, seed uint64) []record.PlannedTrial {
	rng := rand.New(rand.NewPCG(seed, 0))
	levels, arms := s.Levels(), s.AllArms()
	var plan []record.PlannedTrial
	for block := range s.Blocks {
		position := 0
		for _, l := range rng.Perm(len(levels)) {
			for _, a := range rng.Perm(len(arms)) {
				plan = append(plan, record.PlannedTrial{
					Index: len(plan), Block: block, Position: position, Arm: arms[a], Factors: levels[l],
				})
				position++
			}
		}
	}
	return plan
}

// typicalOverhead is what a trial takes beside warm-up and window: starting and stopping processes. It is what the
// estimate of the length begins with, until trials have been timed.
const typicalOverhead = 200 * time.Millisecond

// Estimate is how long the whole plan will take.
func Estimate(s *Spec) time.Duration {
	each := time.Duration(0) // of the trials of one block at one level
	for _, arm := range s.AllArms() {
		each += startLead + s.Warmup + s.Duration + typicalOverhead
		if part := s.Of(arm); part != nil {
			if slow, ok := part.Kind.(kind.Slow); ok {
				each += slow.ReadyAfter(part.Options)
			}
		}
	}
	return time.Duration(s.Blocks*len(s.Levels())) * each
}
