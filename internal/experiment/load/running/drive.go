package running

import (
	"context"
	"runtime"
	"runtime/debug"
	"sync"

	"tare/internal/experiment/role"
	"tare/internal/lib/pace"
)

// Drive runs the threads of a load, which return when what they have to do by the schedule is done, and their context
// ends early. It returns what CPU time this process used in the window, in seconds. The first error of a thread ends
// all, and is returned.
//
// Neither a collection of garbage nor a thread that waits for a scheduler slot (P) may look like a slow server. Threads
// that allocate are garbage: that is collected then. A limit of memory stands guard against hostile servers.
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
	// A thread coming out of a wait must find a slot free at once. With one for each thread and no more, as on a machine
	// with one CPU, it waits up to 20 ms for that of a goroutine that sleeps in the kernel.
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
