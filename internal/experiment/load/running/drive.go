package running

import (
	"context"
	"runtime"
	"runtime/debug"
	"sync"

	"tare/internal/experiment/role"
	"tare/internal/lib/pace"
)

// Drive runs the threads of a load. Each returns when its work in the schedule is done, or when its context ends.
// Drive returns the CPU time of this process in the window, in seconds. The first error of a thread ends all threads,
// and is returned.
//
// Neither a garbage collection nor a thread that waits for a scheduler slot (P) may look like a slow server. The
// collector is therefore off, unless garbage is true, which is for threads that allocate much. A memory limit guards
// against hostile servers.
func Drive(ctx context.Context, s role.Schedule, threads int, garbage bool, thread func(context.Context, int) error,
) (cpu float64, err error) {
	begin, end, err := s.Window()
	if err != nil {
		return 0, err
	}
	runtime.GC()
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(1 << 30))
	if !garbage {
		defer debug.SetGCPercent(debug.SetGCPercent(-1))
	}
	// A thread that returns from a wait must find a slot free at once. With only one slot per thread, as on a machine
	// with one CPU, it waits up to 20 ms for the slot of a goroutine that sleeps in the kernel.
	if slots := threads + 2; slots > runtime.GOMAXPROCS(0) {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(slots))
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var working sync.WaitGroup
	for part := range threads {
		working.Go(func() {
			if err := thread(ctx, part); err != nil {
				cancel(err)
			}
		})
	}
	if cpu, err = pace.ProcessCPU(ctx, begin, end); err != nil {
		cancel(err)
	}
	working.Wait()
	return cpu, context.Cause(ctx)
}
