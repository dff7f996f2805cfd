package engine

import (
	"math/rand/v2"
	"time"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/record"
	"tare/internal/experiment/spec"
)

// Plan orders the trials: randomised complete blocks. A block holds every level once, in random order, and within a
// level every arm once, in random order and without anything between them. The same spec and seed give the same plan,
// on any machine.
func Plan(s *spec.Spec, seed uint64) []record.PlannedTrial {
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

// typicalOverhead is the time of a trial besides warm-up and window, for starting and stopping processes.
const typicalOverhead = 200 * time.Millisecond

// mostLevelsTimed limits the levels that an estimate examines. If there are more, it takes a random sample.
const mostLevelsTimed = 256

// Estimate estimates how long the whole plan will take, before any trial has been timed.
func Estimate(s *spec.Spec) time.Duration {
	levels := s.Levels()
	timed := levels
	if len(timed) > mostLevelsTimed {
		rng := rand.New(rand.NewPCG(1, 0)) // levels are sorted by value, so the first of them would be a biased sample
		timed = nil
		for _, i := range rng.Perm(len(levels))[:mostLevelsTimed] {
			timed = append(timed, levels[i])
		}
	}
	var block time.Duration
	for _, l := range timed {
		level := s.At(l)
		for _, arm := range s.AllArms() {
			block += startLead + s.Warmup + s.Duration + typicalOverhead + extra(level.As(arm), arm)
		}
	}
	return time.Duration(float64(s.Blocks) * float64(block) * float64(len(levels)) / float64(len(timed)))
}

// Estimate estimates how long the whole plan will take at r.Place, or on r.Machine if there is no Place.
func (r *Runner) Estimate() time.Duration {
	return Estimate(r.Spec) + time.Duration(trialsOf(r.Spec))*r.Longer
}

func trialsOf(s *spec.Spec) int { return s.Blocks * len(s.Levels()) * len(s.AllArms()) }

// eachNode is the extra time that a trial takes for each node, as measured on the machine on which Tare is developed.
const eachNode = 60 * time.Millisecond

// extra returns how much longer than usual a trial of this arm takes. Copies of a part add nothing, because they start
// concurrently.
func extra(s *spec.Spec, arm string) time.Duration {
	extra := time.Duration(s.Nodes()) * eachNode
	add := func(p *kind.Part) { extra += p.Kind.About().TakesLonger.With(p.Options) }
	if p := s.Of(arm); p != nil {
		add(p)
	}
	for _, of := range []map[string]*kind.Part{s.Applications, s.Loads} {
		for _, p := range of {
			add(p)
		}
	}
	return extra
}
