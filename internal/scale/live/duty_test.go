package live

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"gonum.org/v1/gonum/stat/distuv"

	"tare/internal/scale/ledger"
)

// With statistics on for 10 s of every 60, the true run time of a program is within the stated error in 19 cases of 20,
// whether its load is constant, drifts, comes in bursts or at regular times.
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
			// until simulates the load up to the given second, and returns the run time since the previous call.
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
				l.AddComponents()
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
				cycle, from, _ = totals.o.Duty.next(cycle, from, now, func(d time.Duration) time.Duration {
					return time.Duration(r.Int64N(int64(d))).Truncate(time.Second)
				})
			}
			until(cycles * every)
			add(ledger.Program{ID: 1, Tag: "t"}, nil)
			if all, components := totals.Programs.Sum(), totals.ComponentsBPF.Sum(); math.Abs(all-components) > 1e-6*all {
				t.Errorf("%s: programs ran for %g s, those of components for %g s", name, all, components)
			}
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

// TestSkippedCycles: after a process was stopped, it counts only those of the cycles that it missed in which statistics
// were off throughout.
func TestSkippedCycles(t *testing.T) {
	d := Duty{On: 10 * time.Second, Every: time.Minute}
	start := time.Unix(0, 0)
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	first := func(time.Duration) time.Duration { return 0 }
	for _, c := range []struct {
		what             string
		since, now       int // seconds after the cycle began
		begins, on, want int
	}{
		{"in time", 20, 30, 60, 60, 0},
		{"on at the end of the cycle", 59, 69, 60, 69, 0},
		{"stopped with statistics off", 310, 320, 300, 320, 4},
		{"stopped with statistics on", 5, 305, 300, 305, 0},
		{"stopped before, and then with statistics on", 310, 440, 420, 440, 4},
	} {
		begins, on, skipped := d.next(start, at(c.since), at(c.now), first)
		if !begins.Equal(at(c.begins)) || !on.Equal(at(c.on)) || skipped != c.want {
			t.Errorf("%s: the cycle begins at %d s, statistics are on at %d s, and %d cycles were skipped; want %d, %d, %d",
				c.what, begins.Unix(), on.Unix(), skipped, c.begins, c.on, c.want)
		}
	}
}
