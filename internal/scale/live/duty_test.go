package live

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"gonum.org/v1/gonum/stat/distuv"

	"tare/internal/scale/ledger"
)

// With statistics on for 10 s of 60, what a program ran in truth is within the stated error 19 times of 20, whether its
// load is even, drifts, comes in bursts, or at regular times.
func TestDutyError(t *testing.T) {
	const cycles, every, on, runs = 40, 60, 10, 400
	loads := map[string]func(r *rand.Rand) func(second int) float64{
		"even":  func(*rand.Rand) func(int) float64 { return func(int) float64 { return 0.1 } },
		"noise": func(r *rand.Rand) func(int) float64 { return func(int) float64 { return r.Float64() } },
		"drift": func(*rand.Rand) func(int) float64 {
			return func(s int) float64 { return float64(s) / (cycles * every) }
		},
		"bursts": func(r *rand.Rand) func(int) float64 {
			return func(int) float64 { return math.Floor(r.Float64() * 1.1) }
		},
		"regular": func(*rand.Rand) func(int) float64 {
			return func(s int) float64 { return float64(1 - min(s%every/15, 1)) }
		},
	}
	for name, load := range loads {
		inside, stated := 0, 0
		for seed := range uint64(runs) {
			r := rand.New(rand.NewPCG(seed, 5))
			at := load(r)
			totals := NewTotals(Options{Duty: Duty{On: on * time.Second, Every: every * time.Second}})
			truth, second := 0.0, 0
			// until runs to the end of a second, and gives what ran with statistics on.
			until := func(end int) (ran float64) {
				for ; second < end; second++ {
					s := at(second)
					if ran += s; second < cycles*every {
						truth += s
					}
				}
				return ran
			}
			add := func(p ledger.Program, unsplit *float64) {
				l := window(second)
				l.CPU.BPFUnsplit, l.Programs = unsplit, []ledger.Program{p}
				totals.Add(l)
			}
			start := time.Unix(0, 0)
			cycle, from := start, start
			for range cycles {
				until(int(from.Sub(start) / time.Second))
				add(ledger.Program{ID: 1, Tag: "t"}, nil)
				counted := until(second + on)
				add(ledger.Program{ID: 1, Tag: "t", RunSeconds: &counted, RunCount: new(uint64(1))}, new(0.0))
				now := start.Add(time.Duration(second) * time.Second)
				cycle, from = totals.o.Duty.next(cycle, now, func(d time.Duration) time.Duration {
					return time.Duration(r.Int64N(int64(d))).Truncate(time.Second)
				})
			}
			until(cycles * every)
			add(ledger.Program{ID: 1, Tag: "t"}, nil)
			totals.Each(func(_ ProgramKey, p Program) {
				if p.ScalingError == nil {
					return
				}
				stated++
				if math.Abs(totals.Programs.Sum()-truth) <= *p.ScalingError+1e-6*truth {
					inside++
				}
			})
		}
		if stated != runs {
			t.Fatalf("%s: an error is stated in %d of %d runs", name, stated, runs)
		}
		t.Logf("%s: %d of %d are within the stated error", name, inside, runs)
		if chance := (distuv.Binomial{N: runs, P: 0.95}).CDF(float64(inside)); chance < 0.001 {
			t.Errorf("%s: %d of %d are within the stated error of 95 %%", name, inside, runs)
		}
	}
}
