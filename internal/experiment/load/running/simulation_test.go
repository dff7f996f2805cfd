package running

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"

	"tare/internal/experiment/load"
	"tare/internal/experiment/role"
	"tare/test/long"
)

// system is a queue under load: servers that take requests in order and all stand still at the same time.
type system struct {
	name    string
	servers int
	rate    float64                  // arrivals per second
	even    bool                     // constant arrivals, else Poisson
	clients int                      // of a closed loop
	service func(*rand.Rand) float64 // s
}

func (s system) mode() string {
	if s.clients > 0 {
		return load.Closed
	}
	return load.Open
}

func exponential(mean float64) func(*rand.Rand) float64 {
	return func(r *rand.Rand) float64 { return mean * r.ExpFloat64() }
}

// lognormal returns a distribution with a long tail: for a deviation of 1, its p99 is 10 times its median.
func lognormal(median, deviation float64) func(*rand.Rand) float64 {
	return func(r *rand.Rand) float64 { return median * math.Exp(deviation*r.NormFloat64()) }
}

func twoPoint(short, long, part float64) func(*rand.Rand) float64 {
	return func(r *rand.Rand) float64 {
		if r.Float64() < part {
			return long
		}
		return short
	}
}

// stallsOf returns stalls of 5 to 50 ms that take the given part of the time, in s.
func stallsOf(r *rand.Rand, part, seconds float64) (all [][2]float64) {
	const lo, hi = 5e-3, 50e-3
	if part == 0 {
		return nil
	}
	gap := (lo + hi) / 2 * (1 - part) / part
	for at := gap * r.ExpFloat64(); at < seconds; {
		end := at + lo + (hi-lo)*r.Float64()
		all = append(all, [2]float64{at, end})
		at = end + gap*r.ExpFloat64()
	}
	return all
}

// told returns the stalls as a witness would report them: each up to 2 ms too long at either end.
func told(r *rand.Rand, stalls [][2]float64, seconds float64) *role.Stalls {
	const fuzz = 2e-3
	s := &role.Stalls{To: ns(seconds)}
	for _, one := range stalls {
		s.Spans = append(s.Spans, [2]int64{ns(one[0] - fuzz*r.Float64()), ns(one[1] + fuzz*r.Float64())})
	}
	return s
}

func ns(seconds float64) int64 { return int64(seconds * 1e9) }

// advance returns when work that begins at a time is done, given that it rests during stalls.
func advance(from, work float64, stalls [][2]float64) float64 {
	i, _ := slices.BinarySearchFunc(stalls, from, func(s [2]float64, t float64) int {
		if s[1] <= t {
			return -1
		}
		return 1
	})
	for ; i < len(stalls); i++ {
		if quiet := stalls[i][0] - from; quiet > 0 {
			if work <= quiet {
				return from + work
			}
			work -= quiet
		}
		from = stalls[i][1]
	}
	return from + work
}

// run simulates the system for some seconds.
func (s system) run(r *rand.Rand, seconds float64, stalls [][2]float64) *Log {
	log := NewLog(MostRequests)
	free := make([]float64, s.servers)
	serve := func(at float64) float64 {
		i := least(free)
		free[i] = advance(max(at, free[i]), s.service(r), stalls)
		return free[i]
	}
	if s.clients > 0 {
		next := make([]float64, s.clients)
		for {
			i := least(next)
			at := next[i]
			if at >= seconds {
				return log
			}
			next[i] = serve(at)
			log.Add(ns(at), ns(at), ns(next[i]), -1, -1, true)
		}
	}
	for at, i := 0.0, 0; at < seconds; i++ {
		log.Add(ns(at), ns(at), ns(serve(at)), 0, -1, true)
		if at += r.ExpFloat64() / s.rate; s.even {
			at = float64(i+1) / s.rate
		}
	}
	return log
}

func least(xs []float64) int {
	at := 0
	for i := range xs {
		if xs[i] < xs[at] {
			at = i
		}
	}
	return at
}

// tails are the quantiles that simulations compare.
var tails = [3]float64{0.5, 0.9, 0.99}

// sums computes the mean of values over runs, with its standard error.
type sums struct{ n, sum, squares float64 }

func (s *sums) add(x float64) { s.n, s.sum, s.squares = s.n+1, s.sum+x, s.squares+x*x }

func (s *sums) mean() float64 { return s.sum / s.n }

func (s *sums) err() float64 {
	return math.Sqrt(max(s.squares/s.n-s.mean()*s.mean(), 0) / (s.n - 1))
}

// seen holds the results of one run: the weighted quantiles, the plain quantiles of the undisturbed requests, and the
// classification.
type seen struct {
	weighted, plain [3]float64
	run             *load.Running
}

func (s system) look(t *testing.T, log *Log, stalls *role.Stalls, seconds float64) seen {
	t.Helper()
	r := &load.Result{Mode: s.mode(), Connections: s.clients}
	got := seen{run: &load.Running{}}
	c := classifier{run: got.run, end: ns(seconds)}
	r.Running = got.run
	c.gather([]*Log{log})
	c.watch(stalls)
	split := c.choose(severalClosed(r))
	if err := c.fill(r, split); err != nil {
		t.Fatal(err)
	}
	h, err := r.Histogram(load.LatencyRunning)
	if err != nil || h == nil && got.run.Withheld == "" {
		t.Fatalf("no histogram: %v, %+v", err, r.Running)
	}
	if h == nil {
		return got
	}
	var all []float64
	for i := range c.requests {
		if split.fate(i, &c.requests[i]) == undisturbed {
			all = append(all, float64(c.requests[i].Done))
		}
	}
	slices.Sort(all)
	for i, q := range tails {
		got.weighted[i] = float64(h.ValueAtQuantile(100 * got.run.Rank(q)))
		got.plain[i] = all[int(q*float64(len(all)))]
	}
	return got
}

// pareto returns a distribution with the given mean and a tail that falls as the given power.
func pareto(mean, power float64) func(*rand.Rand) float64 {
	return func(r *rand.Rand) float64 { return mean * (power - 1) / power * math.Pow(1-r.Float64(), -1/power) }
}

// lognormalOf returns the lognormal distribution with the given mean and deviation of the logarithm.
func lognormalOf(mean, deviation float64) func(*rand.Rand) float64 {
	return lognormal(mean/math.Exp(deviation*deviation/2), deviation)
}

// TestRecoversTheQuietMachine: under stalls, the reported weighted quantiles equal those of the same system without
// stalls, over windows of the same length, to within the error of the simulation. Without weights they are too low. A
// quantile is reported if the trial and its level have enough data (load.Running.Tells, load.TellsOf). The mean is
// taken over logarithms, because reports give medians.
func TestRecoversTheQuietMachine(t *testing.T) {
	t.Parallel()
	const seconds = 4.0
	runs := long.Repeat(24, 100)
	var biased, claimed atomic.Int64
	t.Run("systems", func(t *testing.T) { // ends when all parallel subtests have
		for _, s := range long.Some(4, []system{
			{name: "closed, 8 on 2", servers: 2, clients: 8, service: lognormal(300e-6, 1)},
			{name: "M/M/1 at 30 %", servers: 1, rate: 1000, service: exponential(300e-6)},
			{name: "M/G/1 lognormal at 40 %", servers: 1, rate: 1000, service: lognormal(250e-6, 1)},
			{name: "M/G/1 lognormal 2 at 20 %", servers: 1, rate: 1000, service: lognormalOf(200e-6, 2)},
			{name: "M/G/2 two-point at 49 %", servers: 2, rate: 2000, service: twoPoint(200e-6, 6e-3, 0.05)},
			{name: "D/G/2 lognormal at 49 %", servers: 2, rate: 2000, even: true, service: lognormal(300e-6, 1)},
			{name: "M/G/1 lognormal 1.5 at 20 %", servers: 1, rate: 1000, service: lognormalOf(200e-6, 1.5)},
			{name: "M/G/1 Pareto 2.1 at 20 %", servers: 1, rate: 1000, service: pareto(200e-6, 2.1)},
			{name: "M/G/8 lognormal 1.5 at 20 %", servers: 8, rate: 1000, service: lognormalOf(1600e-6, 1.5)},
			{name: "closed, 16 on 16, lognormal 1.5", servers: 16, clients: 16, service: lognormalOf(5e-3, 1.5)},
			{name: "closed, 16 on 16, Pareto 2.1", servers: 16, clients: 16, service: pareto(5e-3, 2.1)},
		}) {
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				rng := rand.New(rand.NewPCG(1, 2))
				var quiet [3]sums
				for range 2 * runs {
					for i, q := range s.look(t, s.run(rng, seconds, nil), &role.Stalls{To: ns(seconds)}, seconds).weighted {
						quiet[i].add(math.Log(q))
					}
				}
				for _, part := range []float64{0.1, 0.3, 0.5} {
					var reported, plain [3]sums
					var level []*load.Running
					share := 0.0
					for range runs {
						stalls := stallsOf(rng, part, seconds)
						got := s.look(t, s.run(rng, seconds, stalls), told(rng, stalls, seconds), seconds)
						level = append(level, got.run)
						of, _ := got.run.Share()
						share += of / float64(runs)
						for i, q := range tails {
							if ok, _ := got.run.Tells(load.LatencyRunning, names[i], q, 10); ok {
								reported[i].add(math.Log(got.weighted[i]))
								plain[i].add(math.Log(got.plain[i]))
							}
						}
					}
					for i, q := range tails {
						ok, why := load.TellsOf(level, level, load.LatencyRunning, names[i], q, 10, 0.25)
						off := math.Exp(reported[i].mean()-quiet[i].mean()) - 1
						unweighted := math.Exp(plain[i].mean()-quiet[i].mean()) - 1
						noise := math.Hypot(reported[i].err(), quiet[i].err())
						t.Logf("%s, stalls take %.0f %%, p%g: %.0f us in quiet; %+.1f %% +- %.1f weighted, %+.1f %% unweighted; "+
							"%.0f %% disturbed, %g of %d tell; %s", s.name, 100*part, 100*q, math.Exp(quiet[i].mean())/1e3, 100*off,
							100*noise, 100*unweighted, 100*share, reported[i].n, runs, cmp.Or(why, "reported"))
						if !ok {
							continue // not reported there
						}
						claimed.Add(1)
						if math.Abs(off) > allowedBias+3.5*noise {
							t.Errorf("%s, stalls take %.0f %%: p%g is %+.1f %% off, and the error of the simulation is %.1f %%",
								s.name, 100*part, 100*q, 100*off, 100*noise)
						}
						if unweighted < -3.5*noise && unweighted < off {
							biased.Add(1)
						}
					}
				}
			})
		}
	})
	if biased.Load() < 3 || claimed.Load() < 12 {
		t.Errorf("%d quantiles are claimed, and without weights only %d are too low: it would not be seen that weights are "+
			"missing", claimed.Load(), biased.Load())
	}
}

// allowedBias is the relative bias that the method may have, in addition to the error of the simulation.
const allowedBias = 0.03

// names are the names of the quantiles in tails.
var names = [3]string{"p50", "p90", "p99"}

// TestStallsOfABusyMachine: stalls that occur only while the machine is busy, such as those of a hypervisor that takes
// back CPU time, cause no bias either.
func TestStallsOfABusyMachine(t *testing.T) {
	t.Parallel()
	const runs, seconds, rate = 40, 4.0, 1000.0
	s := system{name: "M/G/1", servers: 1, rate: rate, service: twoPoint(200e-6, 4e-3, 0.05)}
	rng := rand.New(rand.NewPCG(3, 4))
	var quiet, weighted, plain [3]sums
	for range runs {
		for i, q := range s.look(t, s.run(rng, seconds, nil), &role.Stalls{To: ns(seconds)}, seconds).weighted {
			quiet[i].add(q)
		}
		log, stalls := busyStalls(rng, s, seconds, 30, 10e-3)
		got := s.look(t, log, told(rng, stalls, seconds), seconds)
		for i := range tails {
			weighted[i].add(got.weighted[i])
			plain[i].add(got.plain[i])
		}
	}
	for i, q := range tails {
		truth := quiet[i].mean()
		off, noise := weighted[i].mean()/truth-1, math.Hypot(weighted[i].err(), quiet[i].err())/truth
		t.Logf("p%g: %.0f us in quiet; %+.1f %% +- %.1f weighted, %+.1f %% unweighted",
			100*q, truth/1e3, 100*off, 100*noise, 100*(plain[i].mean()/truth-1))
		if math.Abs(off) > 0.01+3.5*noise {
			t.Errorf("p%g is %+.1f %% off, and the error of the simulation is %.1f %%", 100*q, 100*off, 100*noise)
		}
	}
	if off := plain[1].mean()/quiet[1].mean() - 1; off > -0.05 {
		t.Errorf("without weights p90 is %+.1f %% off: the simulation would not see that weights are missing", 100*off)
	}
}

// busyStalls simulates one server with stalls of the given length, which begin at the given rate per second of busy
// time.
func busyStalls(r *rand.Rand, s system, seconds, rate, length float64) (*Log, [][2]float64) {
	type request struct{ at, done float64 }
	var all []request
	var stalls [][2]float64
	free, stall := 0.0, r.ExpFloat64()/rate
	for at := 0.0; at < seconds; at += r.ExpFloat64() / s.rate {
		for ; stall < at; stall += r.ExpFloat64() / rate {
			if stall >= free {
				continue // idle: nobody notices
			}
			for i := len(all) - 1; i >= 0 && all[i].done > stall; i-- {
				all[i].done += length
			}
			free += length
			stalls = append(stalls, [2]float64{stall, stall + length})
			stall += length
		}
		free = max(at, free) + s.service(r)
		all = append(all, request{at, free})
	}
	log := NewLog(len(all))
	for _, one := range all {
		log.Add(ns(one.at), ns(one.at), ns(one.done), 0, -1, true)
	}
	return log, stalls
}
