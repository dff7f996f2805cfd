// Package burn is the application that keeps CPUs busy (tare app burn): a neighbour that wants the whole machine,
// beside which the measured processes must get their share. It uses CPU time and nothing else.
package burn

import (
	"context"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/role"
	"tare/internal/lib/pace"
	"tare/internal/lib/param"
)

// Options configures the load on the CPUs.
type Options struct {
	Share float64 // of every CPU that the process may run on, from 0 to 1; 0: it only waits
}

// Ready is the data of the ready message.
type Ready struct {
	Threads int `json:"threads"`
}

// period is the interval over which the share is kept.
const period = 10 * time.Millisecond

// Serve burns CPU time until the context ends, with one thread on each CPU that this process may run on. It calls ready
// once the threads have begun.
func Serve(ctx context.Context, o Options, ready func(Ready) error) error {
	if err := (param.Values{"share": param.Number(o.Share)}).Check(Settings); err != nil {
		return err
	}
	cpus, err := pace.AllowedCPUs()
	if err != nil {
		return err
	}
	if o.Share == 0 {
		cpus = nil
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	pinned := make(chan error, len(cpus))
	for _, cpu := range cpus {
		wg.Go(func() { burn(ctx, cpu, o.Share, pinned) })
	}
	for range cpus {
		if err := <-pinned; err != nil {
			return err
		}
	}
	if err := ready(Ready{Threads: len(cpus)}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// burn uses a share of one CPU, measured by the thread's CPU clock. If other tasks also use the CPU, burn keeps trying
// to get its share.
func burn(ctx context.Context, cpu int, share float64, pinned chan<- error) {
	runtime.LockOSThread() // never unlocked: the thread, with its affinity, ends with the goroutine
	err := pace.RunOn(cpu)
	if pinned <- err; err != nil {
		return
	}
	for ctx.Err() == nil {
		begin, used := pace.Now(), threadTime()
		for pace.Now()-begin < int64(period) && threadTime()-used < int64(float64(period)*share) {
		}
		if rest := int64(period) - (pace.Now() - begin); rest > 0 && share < 1 {
			time.Sleep(time.Duration(rest))
		}
	}
}

// threadTime returns the CPU time of the calling thread in nanoseconds.
func threadTime() int64 { return pace.Clock(unix.CLOCK_THREAD_CPUTIME_ID) }

// Run runs the application by the role protocol on conn: it sends the ready message once it uses CPU time, and ends
// when the parent closes its end or the context ends.
func Run(ctx context.Context, o Options, conn *role.Conn) error {
	return role.Play(ctx, conn, func(ctx context.Context) error {
		return Serve(ctx, o, func(r Ready) error { return conn.Send(role.Ready, r) })
	})
}
