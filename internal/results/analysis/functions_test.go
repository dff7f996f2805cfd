package analysis_test

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"gonum.org/v1/gonum/stat/distuv"

	"tare/internal/experiment/record"
	"tare/internal/lib/stats/interval"
	"tare/internal/results/analysis"
	"tare/internal/scale/profile"
	"tare/test/long"
)

// steep and flat return the cost of function f in microseconds per request. 60 steep functions cost 40 us, 36 us and so
// on, and 1,000 flat ones 0.4 us each: 400 us in all in both cases.
func steep(f int) float64 { return 40 * math.Pow(0.9, float64(f)) }
func flat(int) float64    { return 0.4 }

// profiledRun returns a run whose trials have profiles. Each profile has the given number of functions, whose costs are
// shape(0), shape(1) and so on, and those of the candidate also have the functions in the map adds. In a trial of 4 s
// at 2,000 requests a second, a cost of 1 us per request gives 0.79 samples, and 400 us give 320. The costs of all
// functions vary together by 5 % from block to block, and each varies separately by 5 % from trial to trial.
func profiledRun(
	seed uint64, blocks, functions int, shape func(int) float64, adds map[string]float64,
) (record.Run, []record.Trial) {
	const samplesOf = 2000 * 4 * 99 * 1e-6 // in a trial, for each microsecond of cost per request
	r := rand.New(rand.NewPCG(seed, 7))
	run, trials := simulatedRun(blocks, func(string, int) float64 { return 250e-6 })
	spread := map[int]float64{}
	for i := range trials {
		t := &trials[i]
		if _, is := spread[t.Block]; !is {
			spread[t.Block] = math.Exp(0.05 * r.NormFloat64())
		}
		costs := map[string]float64{}
		for f := range functions {
			costs[fmt.Sprintf("f%d", f)] = shape(f)
		}
		if t.Arm == "candidate" {
			for name, us := range adds {
				costs[name] += us
			}
		}
		total, p := 0.0, &record.Profile{
			Metric: "cpu_seconds_per_request", Unit: "seconds per request", Divisor: 8000,
		}
		for _, name := range slices.Sorted(maps.Keys(costs)) {
			cost := costs[name] * spread[t.Block] * math.Exp(0.05*r.NormFloat64())
			total += cost
			n := int(distuv.Poisson{Lambda: cost * samplesOf, Src: rand.NewPCG(r.Uint64(), 1)}.Rand())
			p.Samples += n
			if n > 0 {
				p.Functions = append(p.Functions, record.FunctionTime{
					Part: "the subject", Samples: n, Function: profile.Function{Kind: profile.User, Name: name, File: "agent"},
				})
			}
		}
		for j := range p.Functions { // the counter's time, shared out by samples
			p.Functions[j].Seconds = total * 1e-6 * 8000 * float64(p.Functions[j].Samples) / float64(p.Samples)
		}
		t.Profile = p
	}
	return run, trials
}

// functionsOf returns the functions of the candidate in the run's summary.
func functionsOf(t *testing.T, run record.Run, trials []record.Trial) *analysis.Functions {
	t.Helper()
	s := summarize(t, run, trials)
	if len(s.Functions) != 1 {
		t.Fatalf("functions of %d arms, want those of one", len(s.Functions))
	}
	return &s.Functions[0]
}

// named returns the names of the functions whose difference is resolved, the largest first.
func named(f *analysis.Functions) (names []string) {
	for _, d := range f.Named() {
		names = append(names, d.Name)
	}
	return names
}

// TestFunctions: functions that an arm adds are named with their costs, the largest first, and the answer states the
// rest of the difference. If the run does not have enough data to name functions, the answer names none and says why.
func TestFunctions(t *testing.T) {
	adds := map[string]float64{"planted20": 20, "planted10": 10, "planted5": 5}
	run, trials := profiledRun(1, 16, 60, steep, adds)
	s := summarize(t, run, trials)
	f := functionsOf(t, run, trials)
	if got := named(f); !slices.Equal(got, []string{"planted20", "planted10", "planted5"}) {
		t.Errorf("%q are named", got)
	}
	sum := f.Rest
	for _, d := range f.Considered {
		sum += d.Difference.Value
	}
	if math.Abs(sum-f.Difference.Value) > 1e-12 || len(f.Considered) != 40 {
		t.Errorf("%d functions and the rest add up to %g, and all is %g", len(f.Considered), sum, f.Difference.Value)
	}
	answer := s.Answers[len(s.Answers)-1].Answer
	for _, want := range []string{
		"the CPU time per request of candidate differs from the baseline's by +3", " in planted20 (agent) of the subject",
		" and +", " is in functions that are not beyond noise",
	} {
		if !strings.Contains(answer, want) {
			t.Errorf("%q is not in %q", want, answer)
		}
	}
	for why, change := range map[string]func() (record.Run, []record.Trial){
		"5 of the 6 blocks": func() (record.Run, []record.Trial) { return profiledRun(1, 5, 60, steep, adds) },
		"too few A/A twins": func() (record.Run, []record.Trial) {
			run, trials := profiledRun(1, 16, 60, steep, adds)
			for i := range trials {
				if trials[i].Arm == record.AA {
					trials[i].Profile = nil
				}
			}
			return run, trials
		},
	} {
		f := functionsOf(t, first(change()), second(change()))
		if !strings.Contains(f.Unresolved, why) || len(f.Named()) > 0 {
			t.Errorf("%q named, for %q; want %q", named(f), f.Unresolved, why)
		}
	}
	for i := range trials { // a gate that voids the metric voids its functions
		if trials[i].Arm == "candidate" && trials[i].Block > 3 {
			rate := record.Reason{Gate: "rate", Voids: []string{"cpu_seconds_per_request"}}
			trials[i].Validity = record.Validity{Reasons: []record.Reason{rate}}
		}
	}
	if f := functionsOf(t, run, trials); f.N != 4 || len(f.Named()) > 0 {
		t.Errorf("%d blocks, %q named; those of 4 stand", f.N, named(f))
	}
	for i := range trials {
		trials[i].Profile.Divisor = math.NaN()
	}
	if s := summarize(t, run, trials); len(s.Functions) > 0 {
		t.Errorf("profiles that cannot be: %+v", s.Functions)
	}
}

// TestFunctionsOfLostTrials: no function is named if the metric or its baseline is withheld, or if lost trials could
// change the difference. If the metric is withheld, no total is quoted either.
func TestFunctionsOfLostTrials(t *testing.T) {
	adds := map[string]float64{"planted20": 20, "planted10": 10, "planted5": 5}
	for _, c := range []struct {
		arm      string
		lost     int
		why      string
		withheld bool
	}{
		{"candidate", 5, "5 of 16 trials were lost", true},
		{record.Direct, 5, "the baseline's value is withheld: 5 of 16 trials were lost", true},
		{"candidate", 3, "lost trials: the 3 blocks without a value could change it", false},
		{"candidate", 1, "", false},
	} {
		run, trials := profiledRun(1, 16, 60, steep, adds)
		for i := range trials {
			if trials[i].Arm == c.arm && trials[i].Block < c.lost {
				rate := record.Reason{Gate: "rate", Message: "slow", Voids: []string{"cpu_seconds_per_request"}}
				trials[i].Validity = record.Validity{Reasons: []record.Reason{rate}}
			}
		}
		s := summarize(t, run, trials)
		f := &s.Functions[0]
		if !strings.HasPrefix(f.Unresolved, c.why) || (f.Unresolved == "") != (c.why == "") || f.Withheld != c.withheld ||
			len(f.Named()) > 0 != (c.why == "") {
			t.Errorf("%d of %s lost: %q, withheld %t, %q named", c.lost, c.arm, f.Unresolved, f.Withheld, named(f))
		}
		for _, a := range s.Answers {
			if c.why != "" && strings.HasPrefix(a.Answer, "By function") {
				t.Errorf("%d of %s lost: %s", c.lost, c.arm, a.Answer)
			}
		}
	}
}

// TestFunctionsOfTwoUnits: functions are compared by the metric that most blocks have. The first block may have another
// one, if its number of requests is unknown.
func TestFunctionsOfTwoUnits(t *testing.T) {
	run, trials := profiledRun(1, 8, 60, steep, map[string]float64{"planted20": 20})
	for i := range trials {
		if trials[i].Block == 0 && trials[i].Arm == "candidate" {
			trials[i].Profile.Metric, trials[i].Profile.Unit, trials[i].Profile.Divisor = "subject_cpus", "CPUs", 4
		}
	}
	f := functionsOf(t, run, trials)
	if f.N != 7 || f.Metric != "cpu_seconds_per_request" || f.Unit != "seconds per request" {
		t.Errorf("%d blocks of %s in %s", f.N, f.Metric, f.Unit)
	}
}

func first(run record.Run, _ []record.Trial) record.Run         { return run }
func second(_ record.Run, trials []record.Trial) []record.Trial { return trials }

// TestFunctionsBySimulation: if arms are the same, a function is named in at most 5 % of runs. If an arm adds functions
// of 20, 10 and 5 us, these are named first, second and third in 95 % of runs of 16 blocks.
func TestFunctionsBySimulation(t *testing.T) {
	runs := long.Repeat(30, 1000)
	if *simulated > 0 {
		runs = *simulated
	}
	planted := map[string]float64{"planted20": 20, "planted10": 10, "planted5": 5}
	for _, blocks := range long.Some(1, []int{16, 6, 8, 12, 24}) {
		for name, shape := range map[string]func(int) float64{"steep": steep, "flat": flat} {
			functions := 60
			if name == "flat" {
				functions = 1000
			}
			some, missed, found := 0, 0, 0
			for seed := range runs {
				run, trials := profiledRun(uint64(seed), blocks, functions, shape, nil)
				f := functionsOf(t, run, trials)
				if len(named(f)) > 0 {
					some++
				}
				for _, d := range f.Considered { // the true difference of each is 0
					if *d.Difference.Lo > 0 || *d.Difference.Hi < 0 {
						missed++
						break
					}
				}
				if name == "flat" && seed > runs/10 {
					continue // flat runs take too long for this
				}
				run, trials = profiledRun(uint64(seed), blocks, functions, shape, planted)
				got := named(functionsOf(t, run, trials))
				if len(got) >= 3 && slices.Equal(got[:3], []string{"planted20", "planted10", "planted5"}) {
					found++
				}
			}
			with := runs
			if name == "flat" {
				with = runs/10 + 1
			}
			if lo, _ := interval.Binomial(some, runs, 0.999); lo > 0.05 {
				t.Errorf("%s, %d blocks: a function is named in %d of %d runs of the same arms", name, blocks, some, runs)
			}
			if lo, _ := interval.Binomial(missed, runs, 0.999); lo > 0.05 {
				t.Errorf("%s, %d blocks: an interval misses in %d of %d runs of the same arms", name, blocks, missed, runs)
			}
			if _, hi := interval.Binomial(found, with, 0.999); blocks == 16 && hi < 0.95 {
				t.Errorf("%s, %d blocks: those planted are found in %d of %d runs", name, blocks, found, with)
			}
			t.Logf("%s, %d blocks: of %d runs some function named in %d, some interval missing in %d; found in %d of %d",
				name, blocks, runs, some, missed, found, with)
		}
	}
}
