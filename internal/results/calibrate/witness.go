package calibrate

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"

	"tare/internal/lib/pace"
)

// stood describes how the machine stood still while a weight was planted, as seen by a thread on every CPU that asked
// to be woken every millisecond. In a nested guest, no counter shows that a hypervisor ran somebody else for some
// milliseconds, but this does.
type stood struct {
	part    float64 // of the wake-ups that were late by more than a millisecond
	longest float64 // s
	delays  []int64 // of all wake-ups, ns, in order of size

	// away is the fraction of the machine that others had meanwhile, the hypervisor among them; stolen is the
	// hypervisor's, and stolenSeconds the same over all CPUs. They come from a disturbance, not from these threads.
	away, stolen, stolenSeconds float64
	awaySeconds                 float64
}

// disturbedBy fills in what others took.
func (s *stood) disturbedBy(d disturbance) {
	s.stolenSeconds, s.awaySeconds = d.stolen, d.stolen+d.foreign
	if d.capacity > 0 {
		s.stolen, s.away = min(1, s.stolenSeconds/d.capacity), min(1, s.awaySeconds/d.capacity)
	}
}

// later is the part of the wake-ups that were late by more than some seconds.
func (s stood) later(seconds float64) float64 {
	if len(s.delays) == 0 {
		return 0
	}
	i, _ := slices.BinarySearch(s.delays, int64(seconds*1e9)+1)
	return float64(len(s.delays)-i) / float64(len(s.delays))
}

// overTail reports whether a quantile q may have moved: late wake-ups touched a tenth of the values beyond it.
func (s stood) overTail(q float64) bool { return s.part > (1-q)/10 }

// asLong is for requests that last some time together: it reports whether the machine stood still for half as long.
func (s stood) asLong(seconds float64) bool { return s.longest >= seconds/2 }

// inEach is for a number of requests that come at a rate during some stalls. It reports whether their number would
// change by half if each stall were longer by the longest time that the machine stood still.
func (s stood) inEach(stalls, rate, requests float64) bool {
	return s.longest*rate*stalls >= requests/2
}

// overQuantile is for a quantile q of starts: others had the machine for more than half of the fraction beyond it.
func (s stood) overQuantile(q float64) bool { return s.away > (1-q)/2 }

const (
	wakeEvery = int64(1e6) // ns between two wake-ups on one CPU
	wakeLate  = 1e-3       // s: later than a CPU with little to do ever wakes a task
)

// wakeUps watches until the function that it returns is called.
func wakeUps(ctx context.Context) (end func() (stood, error)) {
	ctx, cancel := context.WithCancel(ctx)
	collect := debug.SetGCPercent(-1) // a collection of garbage here must not look like the machine's
	var mu sync.Mutex
	var seen stood
	var failed error
	var running sync.WaitGroup
	for cpu := range runtime.NumCPU() {
		running.Go(func() {
			delays, err := watchCPU(ctx, cpu)
			mu.Lock()
			defer mu.Unlock()
			seen.delays = append(seen.delays, delays...)
			if err != nil {
				failed = err
			}
		})
	}
	return func() (stood, error) {
		cancel()
		running.Wait()
		debug.SetGCPercent(collect)
		slices.Sort(seen.delays)
		if seen.part = seen.later(wakeLate); seen.part > 0 {
			seen.longest = float64(seen.delays[len(seen.delays)-1]) / 1e9
		}
		return seen, failed
	}
}

func watchCPU(ctx context.Context, cpu int) (delays []int64, err error) {
	thread, err := pace.LockThread(0)
	if err != nil {
		return nil, err
	}
	defer thread.Close()
	release, err := pinThread(cpu)
	if err != nil {
		return nil, err
	}
	if release == nil {
		return nil, nil // a CPU that we may not use is not ours to watch
	}
	defer release()
	// As in a probe, each wake-up that falls into a stall counts.
	for at := pace.Now() + wakeEvery; ctx.Err() == nil; at += wakeEvery {
		now, err := thread.Until(ctx, at)
		if err != nil {
			return delays, nil // the end came in a wait
		}
		delays = append(delays, now-at)
	}
	return delays, nil
}

// pinThread keeps the thread of the caller, who has locked it, on one CPU until it is released. It returns nil if this
// process may not use the CPU.
func pinThread(cpu int) (release func(), err error) {
	all, err := pace.AllowedCPUs()
	if err != nil || pace.RunOn(cpu) != nil {
		return nil, err
	}
	return func() { _ = pace.RunOn(all...) }, nil // what was allowed a moment ago is again
}

// pinAnywhere is pinThread on the last CPU that this process may use, which it returns.
func pinAnywhere() (cpu int, release func(), err error) {
	all, err := pace.AllowedCPUs()
	if err != nil {
		return 0, nil, err
	}
	cpu = all[len(all)-1]
	release, err = pinThread(cpu)
	if err == nil && release == nil {
		err = fmt.Errorf("keeping a thread on CPU %d: it is not allowed to", cpu)
	}
	return cpu, release, err
}
