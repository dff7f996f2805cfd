package witness

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	costPeriod = 20 * time.Microsecond // between looks while their cost is measured
	costSpin   = 200 * time.Microsecond
	costGoes   = 24 // at least; the fastest counts: what slows a go down is not the witness
	costMost   = 240
)

// MeasureCost measures what one look costs a busy CPU: a fixed amount of work is done many times without and with a
// witness that looks at this thread 50,000 times a second. Of a witness that has joined a sampler it is what a look
// adds to an interrupt that comes anyway, of one that stands alone the interrupt is part of it. It takes about 20 ms of
// CPU, ten times that where the machine is so restless that the fastest go with the witness is no slower than the
// fastest without; where it still is not, the cost is unknown, which is an error. Call it while no look is taken; Reset
// forgets what it did.
func (w *Witness) MeasureCost() (time.Duration, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	leader := -1
	if w.hasJoined() {
		var err error
		if leader, err = w.costEvent(-1, false); err != nil {
			return 0, err
		}
		defer unix.Close(leader)
	}
	steps := 1 << 14
	for spin(steps) < costSpin {
		steps *= 2
	}
	without, with, looks := time.Duration(1<<62), time.Duration(1<<62), uint64(0)
	for goes := 0; goes < costGoes || with <= without && goes < costMost; goes++ {
		took, err := spinUnder(leader, steps)
		if err != nil {
			return 0, err
		}
		without = min(without, took)
		if err := w.Reset(); err != nil {
			return 0, err
		}
		if took, err = w.spinWatched(leader, steps); err != nil {
			return 0, err
		}
		states, err := w.states()
		if err != nil {
			return 0, err
		}
		if took < with {
			with, looks = took, 0
			for _, s := range states {
				looks += s.Looks
			}
		}
	}
	if looks == 0 {
		return 0, errors.New("the witness did not look at a busy thread")
	}
	cost := (with - without) / time.Duration(looks)
	if cost <= 0 {
		return 0, fmt.Errorf("work took %v at best under %d looks, and %v without", with, looks, without)
	}
	return cost, nil
}

func (w *Witness) hasJoined() bool {
	return slices.ContainsFunc(w.events, func(e event) bool { return e.joined })
}

// costEvent opens an event of this thread, disabled unless it has a leader.
func (w *Witness) costEvent(leader int, watched bool) (int, error) {
	attr := unix.PerfEventAttr{
		Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_CPU_CLOCK, Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
		Sample: uint64(costPeriod),
	}
	if leader < 0 {
		attr.Bits = unix.PerfBitDisabled
	}
	fd, err := unix.PerfEventOpen(&attr, 0, -1, leader, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("opening an event to measure the witness: %w", err)
	}
	if watched {
		if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_SET_BPF, w.objects.TareWitness.FD()); err != nil {
			return -1, errors.Join(fmt.Errorf("attaching the witness to measure it: %w", err), unix.Close(fd))
		}
	}
	return fd, nil
}

// spinWatched spins while the witness looks: with the leader's beat where there is one.
func (w *Witness) spinWatched(leader, steps int) (time.Duration, error) {
	fd, err := w.costEvent(leader, true)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	if leader < 0 {
		leader = fd
	}
	return spinUnder(leader, steps)
}

// spinUnder spins while an event is enabled; -1 is none.
func spinUnder(fd, steps int) (time.Duration, error) {
	if fd < 0 {
		return spin(steps), nil
	}
	if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_ENABLE, 0); err != nil {
		return 0, fmt.Errorf("enabling the event to measure the witness: %w", err)
	}
	took := spin(steps)
	if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_DISABLE, 0); err != nil {
		return 0, fmt.Errorf("disabling the event to measure the witness: %w", err)
	}
	return took, nil
}

// spin does a fixed amount of work and says how much CPU time that took: interrupts are in it, and time that was stolen
// or that others ran is not.
func spin(steps int) time.Duration {
	start := threadTime()
	x := uint64(steps)
	for range steps {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	took := threadTime() - start
	runtime.KeepAlive(x)
	return took
}

func threadTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		panic("clock_gettime: " + err.Error()) // this clock is always there
	}
	return time.Duration(ts.Nano())
}
