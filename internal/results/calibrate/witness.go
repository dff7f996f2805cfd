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

// stood describes stalls of the machine while a weight was planted, as seen by one thread for each CPU. Each of these
// threads asks to be woken every millisecond. In a nested guest, no counter shows that a hypervisor ran something else
// for some milliseconds, but these threads do.
type stood struct {
	part    float64 // fraction of wake-ups that were late by more than wakeLate
	longest float64 // seconds by which the latest of these was late
	delays  []int64 // of all wake-ups, in ns, sorted

	// away is the fraction of the machine's CPU time that others used meanwhile, including the hypervisor. stolen is
	// the fraction that the hypervisor used. awaySeconds and stolenSeconds are the same in CPU seconds. All four come
	// from a disturbance, not from these threads.
	away, stolen, stolenSeconds float64
	awaySeconds                 float64
}

// disturbedBy sets the fields on what others used.
func (s *stood) disturbedBy(d disturbance) {
	s.stolenSeconds, s.awaySeconds = d.stolen, d.stolen+d.foreign
	if d.capacity > 0 {
		s.stolen, s.away = min(1, s.stolenSeconds/d.capacity), min(1, s.awaySeconds/d.capacity)
	}
}

// later returns the fraction of the wake-ups that were late by more than the given seconds.
func (s stood) later(seconds float64) float64 {
	if len(s.delays) == 0 {
		return 0
	}
	i, _ := slices.BinarySearch(s.delays, int64(seconds*1e9)+1)
	return float64(len(s.delays)-i) / float64(len(s.delays))
}

// overTail reports whether stalls may have moved quantile q: the fraction of late wake-ups exceeds a tenth of the
// fraction of values beyond q.
func (s stood) overTail(q float64) bool { return s.part > (1-q)/10 }

// asLong reports whether the machine stalled for at least half of the given seconds.
func (s stood) asLong(seconds float64) bool { return s.longest >= seconds/2 }

// inEach reports whether stalls of the machine may explain that a count is off by the given number of requests. It
// assumes that the machine's longest stall prolonged each of the server's stalls, and compares the number of requests
// that are due in that time, at a rate per second, with half of the given number.
func (s stood) inEach(stalls, rate, requests float64) bool {
	return s.longest*rate*stalls >= requests/2
}

// overQuantile reports whether the fraction of the machine that others used exceeds half of the fraction of values
// beyond quantile q.
func (s stood) overQuantile(q float64) bool { return s.away > (1-q)/2 }

const (
	wakeEvery = int64(1e6) // ns between two wake-ups on one CPU
	wakeLate  = 1e-3       // s; a CPU with little to do never wakes a task later than this
)

// wakeUps watches all CPUs until the caller calls end.
func wakeUps(ctx context.Context) (end func() (stood, error)) {
	ctx, cancel := context.WithCancel(ctx)
	collect := debug.SetGCPercent(-1) // garbage collection here must not look like a stall of the machine
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
		return nil, nil // this process may not use the CPU
	}
	defer release()
	// A stall skips no wake-ups: each one that is due during the stall counts with its delay.
	for at := pace.Now() + wakeEvery; ctx.Err() == nil; at += wakeEvery {
		now, err := thread.Until(ctx, at)
		if err != nil {
			return delays, nil // the watch ended during the wait
		}
		delays = append(delays, now-at)
	}
	return delays, nil
}

// pinThread keeps the calling thread, which must be locked, on one CPU until release is called. release is nil if this
// process may not use the CPU.
func pinThread(cpu int) (release func(), err error) {
	all, err := pace.AllowedCPUs()
	if err != nil || pace.RunOn(cpu) != nil {
		return nil, err
	}
	return func() { _ = pace.RunOn(all...) }, nil // these CPUs were allowed before, so this cannot fail
}

// pinAnywhere keeps the calling thread, which must be locked, on one CPU until release is called. It chooses the last
// CPU that this process may use, and returns it.
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
