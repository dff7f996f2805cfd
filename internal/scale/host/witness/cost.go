package witness

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"tare/internal/lib/pace"
)

const (
	costPeriod = 20 * time.Microsecond // between looks while their cost is measured
	// costLooks is the number of looks after which the kernel stops them. If an interrupt takes longer than costPeriod,
	// as it can on virtual machines, the next one is due when it ends, and until the end of the series its CPU does
	// nothing else.
	costLooks = 8
	costSpin  = 200 * time.Microsecond
	costGoes  = 24 // at least; only the fastest counts, because the rest were slowed down by something else
	costMost  = 240
)

// maxSampleRate is the file with the rate, in samples per second, above which the kernel throttles events. The kernel
// lowers it if interrupts take long (perf_sample_event_took in kernel/events/core.c).
const maxSampleRate = "/proc/sys/kernel/perf_event_max_sample_rate"

// MeasureCost measures what one look costs a busy CPU: a fixed amount of work is repeated without and with a witness
// that looks at this thread a few times, every 20 us. For a witness that has joined a sampler, this is what a look
// adds to an interrupt that happens anyway; for a separate one it includes the interrupt. It takes about 20 ms of CPU.
// On a busy machine it retries for up to ten times as long, until the fastest round with the witness is slower than the
// fastest round without it. If that never happens, the cost is unknown, which is an error. MeasureCost must not be
// called while the witness is enabled. Reset discards the looks that it has caused.
func (w *Witness) MeasureCost() (time.Duration, error) {
	if err := mayLookSoOften(); err != nil {
		return 0, err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	steps := 1 << 14
	for spin(steps) < costSpin {
		steps *= 2
	}
	without, with, looks := time.Duration(1<<62), time.Duration(1<<62), uint64(0)
	for goes := 0; goes < costGoes || with <= without && goes < costMost; goes++ {
		took, err := w.spinUnwatched(steps)
		if err != nil {
			return 0, err
		}
		without = min(without, took)
		if err := w.Reset(); err != nil {
			return 0, err
		}
		if took, err = w.spinUnder(steps, true); err != nil {
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

// mayLookSoOften returns an error if the kernel would throttle the event that MeasureCost opens.
func mayLookSoOften() error {
	text, err := os.ReadFile(maxSampleRate)
	if err != nil {
		return fmt.Errorf("reading how often a CPU may be sampled: %w", err)
	}
	most, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return fmt.Errorf("reading how often a CPU may be sampled: %w", err)
	}
	if need := int(time.Second / costPeriod); most < need {
		return fmt.Errorf("the kernel allows %d samples a second and measuring takes %d: it lowers %s where "+
			"interrupts take long", most, need, maxSampleRate)
	}
	return nil
}

func (w *Witness) hasJoined() bool {
	return slices.ContainsFunc(w.events, func(e event) bool { return e.joined })
}

// spinUnwatched spins as a measurement with a witness does, but without the witness.
func (w *Witness) spinUnwatched(steps int) (time.Duration, error) {
	if !w.hasJoined() {
		return spin(steps), nil
	}
	return w.spinUnder(steps, false)
}

// spinUnder spins under an event of this thread, and under the witness if watched is set. The kernel disables the
// event after costLooks interrupts, whatever happens to this thread. The event must not have a program itself, because
// it would then not be counted (__perf_event_overflow in kernel/events/core.c).
func (w *Witness) spinUnder(steps int, watched bool) (time.Duration, error) {
	leader, err := costEvent(-1)
	if err != nil {
		return 0, err
	}
	defer unix.Close(leader)
	if watched {
		fd, err := costEvent(leader)
		if err != nil {
			return 0, err
		}
		defer unix.Close(fd)
		if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_SET_BPF, w.objects.TareWitness.FD()); err != nil {
			return 0, fmt.Errorf("attaching the witness to measure it: %w", err)
		}
	}
	if err := unix.IoctlSetInt(leader, unix.PERF_EVENT_IOC_REFRESH, costLooks); err != nil {
		return 0, fmt.Errorf("enabling the event to measure the witness: %w", err)
	}
	took := spin(steps)
	if err := unix.IoctlSetInt(leader, unix.PERF_EVENT_IOC_DISABLE, 0); err != nil {
		return 0, fmt.Errorf("disabling the event to measure the witness: %w", err)
	}
	return took, nil
}

// costEvent opens an event for this thread, disabled unless it has a leader.
func costEvent(leader int) (int, error) {
	attr := unix.PerfEventAttr{
		Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_CPU_CLOCK,
		Size:   uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
		Sample: uint64(costPeriod),
	}
	if leader < 0 {
		attr.Bits = unix.PerfBitDisabled
	}
	fd, err := unix.PerfEventOpen(&attr, 0, -1, leader, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("opening an event to measure the witness: %w", err)
	}
	return fd, nil
}

// spin does a fixed amount of work and returns the CPU time that it took. This includes interrupts, but not stolen
// time or time of other tasks.
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

func threadTime() time.Duration { return time.Duration(pace.Clock(unix.CLOCK_THREAD_CPUTIME_ID)) }
