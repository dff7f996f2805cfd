package calibrate

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"

	"golang.org/x/sys/unix"

	"tare/internal/load/pace"
)

// stood is how the machine stood still while a weight was planted, as a task saw it that asked every millisecond on every CPU to be woken.
// A hypervisor that runs somebody else for some milliseconds shows in no counter of a guest's guest, and here.
type stood struct {
	part    float64 // of the wake-ups that were late by more than a millisecond
	longest float64 // s
}

const (
	witnessEvery = int64(1e6) // ns between two wake-ups on one CPU
	witnessLate  = int64(1e6) // ns: later than a CPU with little to do ever lets anybody wait
)

// witness watches until the function that it returns is called.
func witness(ctx context.Context) (end func() (stood, error)) {
	ctx, cancel := context.WithCancel(ctx)
	collect := debug.SetGCPercent(-1) // a collection of garbage here must not look like the machine's
	var mu sync.Mutex
	var woken, late, longest int64
	var failed error
	var running sync.WaitGroup
	for cpu := range runtime.NumCPU() {
		running.Go(func() {
			n, l, max, err := watchCPU(ctx, cpu)
			mu.Lock()
			defer mu.Unlock()
			woken, late = woken+n, late+l
			if max > longest {
				longest = max
			}
			if err != nil {
				failed = err
			}
		})
	}
	return func() (s stood, err error) {
		cancel()
		running.Wait()
		debug.SetGCPercent(collect)
		if woken > 0 {
			s = stood{part: float64(late) / float64(woken), longest: float64(longest) / 1e9}
		}
		return s, failed
	}
}

func watchCPU(ctx context.Context, cpu int) (woken, late, longest int64, err error) {
	thread, err := pace.LockThread(0)
	if err != nil {
		return 0, 0, 0, err
	}
	defer thread.Close()
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return 0, 0, 0, fmt.Errorf("reading the CPUs of a thread: %w", err)
	}
	one.Set(cpu)
	if unix.SchedSetaffinity(0, &one) != nil {
		return 0, 0, 0, nil // a CPU that we may not use is not ours to watch
	}
	defer func() { _ = unix.SchedSetaffinity(0, &all) }() // what was allowed a moment ago is again
	// As in a probe, each wake-up that falls into a stall counts.
	for at := pace.Now() + witnessEvery; ctx.Err() == nil; at += witnessEvery {
		now, err := thread.Until(ctx, at)
		if err != nil {
			return woken, late, longest, nil // the end came in a wait
		}
		woken++
		if delay := now - at; delay > witnessLate {
			late++
			longest = max(longest, delay)
		}
	}
	return woken, late, longest, nil
}
