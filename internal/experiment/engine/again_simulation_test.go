package engine

import (
	"context"
	"flag"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"tare/internal/experiment/record"
	"tare/internal/lib/stats"
	"tare/internal/scale/ledger"
)

var simulated = flag.Int("simulated", 0, "simulated runs for each row of a table; 0: few enough for every day")

// nowhere discards records, because there are many simulated runs and the disk is slow.
type nowhere struct{ dir string }

func (nowhere) Append(record.Trial) error  { return nil }
func (nowhere) UpdateRun(record.Run) error { return nil }

func (nowhere) WriteProfile(string, []byte) error { return nil }
func (n nowhere) Dir() string                     { return n.dir }

// simulatedMachine is a machine that is quiet or noisy at random, trial by trial.
type simulatedMachine struct {
	toNoise, toQuiet      float64 // chance to change after a trial
	spoiledQuiet, spoiled float64 // chance that a trial is spoiled
	noisy                 bool
}

// next returns the noise in the value of the next trial, and whether the trial is spoiled.
func (m *simulatedMachine) next(r *rand.Rand) (noise float64, spoiled bool) {
	change, chance := m.toNoise, m.spoiledQuiet
	if m.noisy {
		noise, change, chance = 0.5*r.ExpFloat64(), m.toQuiet, m.spoiled
	}
	if r.Float64() < change {
		m.noisy = !m.noisy
	}
	return noise, r.Float64() < chance
}

// stall returns what a stall caused by the subject itself, which occurs with the given chance, adds to a value, and
// whether a gate trips and blames others: it does for the longest 30 % of stalls.
func stall(r *rand.Rand, chance float64) (longer float64, spoiled bool) {
	if r.Float64() >= chance {
		return 0, false
	}
	s := r.ExpFloat64()
	return 2 * s, s > -math.Log(0.3)
}

// Spoiled trials are repeated until that is futile, and this must not bias the comparison. The engine runs trials with
// simulated values: a difference of 1, and noise of the machine in the values of both arms. Three rules are compared:
// no trial is repeated, all are within the budget, and all until it is futile.
func TestRepeatingBySimulation(t *testing.T) {
	const blocks, shift = 18, 1.0
	runs := 40
	if *simulated > 0 {
		runs = *simulated
	}
	t.Log("| machine | subject | rule | further attempts | blocks that are left | bias | covers % | of runs |")
	for _, machine := range []struct {
		name string
		simulatedMachine
	}{
		{"bursts of 10 trials", simulatedMachine{0.1, 0.1, 0.02, 0.9, false}},
		{"bursts of 60 trials", simulatedMachine{1.0 / 60, 1.0 / 60, 0.02, 0.97, false}},
		{"never quiet, half are spoiled", simulatedMachine{1, 0, 0, 0.5, true}},
		{"never quiet, 97 % are spoiled", simulatedMachine{1, 0, 0, 0.97, true}},
	} {
		for _, subject := range []struct {
			name         string
			base, stalls float64 // chance of a stall caused by the baseline and by the subject
		}{{"as its twins", 0, 0}, {"stalls twice as often", 0.15, 0.3}} {
			truth := stalledCentre(subject.base, subject.stalls, shift)
			for _, rule := range []string{"none", "all", "until futile"} {
				s := mustParse(t, shortSpec)
				s.Blocks, s.Repeat = blocks, 0.5
				if rule == "none" {
					s.Repeat = 0
				}
				r := rand.New(rand.NewPCG(17, 4))
				var again, left, bias, covered, intervals float64
				for i := range runs {
					machine.noisy = r.Float64() < machine.toNoise/(machine.toNoise+machine.toQuiet)
					values := map[int]map[string]float64{}
					clock := time.Unix(1_000_000, 0)
					run := record.Run{Seed: uint64(i), Blocks: blocks, Plan: Plan(s, uint64(i))}
					m := &Runner{Spec: s, Record: &run, Writer: nowhere{t.TempDir()}, Progress: quiet}
					m.now = func() time.Time { return clock }
					m.trial = func(_ context.Context, tr *record.Trial) error {
						if rule == "all" {
							clear(m.vain)
						}
						tr.Started, tr.Ended = clock, clock.Add(time.Second)
						clock = tr.Ended
						chance, value := subject.base, 10+0.3*r.NormFloat64()
						if tr.Arm == "kernelmesh" {
							chance, value = subject.stalls, value+shift
						}
						noise, spoiled := machine.next(r)
						longer, slow := stall(r, chance)
						if spoiled || slow {
							tr.Validity = spoiledBy(ledger.Neighbour)
							return nil
						}
						tr.Validity.Valid = true
						if values[tr.Block] == nil {
							values[tr.Block] = map[string]float64{}
						}
						values[tr.Block][tr.Arm] = value + noise + longer
						return nil
					}
					trials, err := m.Run(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					again += float64(len(trials)-len(run.Plan)) / float64(runs)
					var pairs []stats.Pair
					for _, arms := range values {
						base, has := arms[record.Direct]
						if arm, both := arms["kernelmesh"]; has && both {
							pairs = append(pairs, stats.Pair{Base: base, Arm: arm})
						}
					}
					left += float64(len(pairs)) / float64(runs)
					if e := stats.Difference(pairs, uint64(i)); e.HasInterval {
						intervals++
						bias += e.Value - truth
						if !e.Excludes(truth) {
							covered++
						}
					}
				}
				covers, of := 100*covered/max(intervals, 1), 100*intervals/float64(runs)
				t.Logf("| %s | %s | %s | %.1f | %.1f | %+.2f | %.1f | %.0f |",
					machine.name, subject.name, rule, again, left, bias/max(intervals, 1), covers, of)
				slack := 300 * math.Sqrt(0.07*0.93/max(intervals, 1))
				if subject.stalls == 0 && intervals > 0 && covers < 93-slack {
					t.Errorf("%s, %s: covers %.1f %% of %.0f", machine.name, rule, covers, intervals)
				}
				if rule == "until futile" && machine.spoiled > 0.95 && machine.toQuiet == 0 && again > 20 { // of 27
					t.Errorf("%s: %.1f further attempts, nearly all of them futile", machine.name, again)
				}
			}
		}
	}
}

// stalledCentre returns the pseudo-median of the difference of two arms that each stall with a given chance, without
// lost trials.
func stalledCentre(base, subject, shift float64) float64 {
	r := rand.New(rand.NewPCG(3, 3))
	draw := func(chance float64) float64 {
		longer, _ := stall(r, chance)
		return 0.3*r.NormFloat64() + longer
	}
	all := make([]float64, 50_000)
	for i := range all {
		all[i] = shift + (draw(subject)-draw(base)+draw(subject)-draw(base))/2
	}
	return stats.Median(all).Value
}
