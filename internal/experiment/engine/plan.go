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

// typicalOverhead is what a trial takes beside warm-up and window: starting and stopping processes.
const typicalOverhead = 200 * time.Millisecond

// mostLevelsTimed bounds the levels that an estimate looks at one by one. Of more it takes these as typical.
const mostLevelsTimed = 256

// Estimate estimates how long the whole plan will take, before any trial was timed.
func Estimate(s *spec.Spec) time.Duration {
	levels := s.Levels()
	timed := levels
	if len(timed) > mostLevelsTimed {
		rng := rand.New(rand.NewPCG(1, 0)) // the order of levels is by value
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

// Estimate is how long the whole plan will take where its trials run.
func (r *Runner) Estimate() time.Duration {
	return Estimate(r.Spec) + time.Duration(trialsOf(r.Spec))*r.Longer
}

func trialsOf(s *spec.Spec) int { return s.Blocks * len(s.Levels()) * len(s.AllArms()) }

// eachNode is how much longer a trial takes for each node that joins it, on the project's machine.
const eachNode = 60 * time.Millisecond

// extra is what the guests say that a trial of this arm takes longer than usual. Copies of a part start side by side.
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
