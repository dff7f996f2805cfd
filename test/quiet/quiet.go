// Package quiet measures how much the machine was disturbed during a test, and waits for quiet where a test can do
// nothing without it.
//
// Most tests hold on a noisy machine as they are, or with a tolerance for the CPU time that was stolen, or used by
// others, while they ran, which the kernel counts. A constant tolerance that is large enough for the worst machine
// would find nothing on a good one.
package quiet

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/scale/host/proc"
)

// Reason begins the skip message of a test that found no quiet; test/closing lists such tests separately.
const Reason = "needs a quiet machine"

var errNoisy = errors.New(Reason)

// A machine is quiet as long as the hypervisor takes less than maxStolen of its CPU time, and other processes use less
// than maxUsed: far below the bursts that spoil a measurement, and above what a machine does that nobody uses.
const (
	maxStolen = 0.01
	maxUsed   = 0.10
)

// Noise is the CPU time that a test could not use during a period, because others had it.
type Noise struct {
	Seconds float64 // length of the period
	CPUs    int
	Stolen  float64 // CPU seconds that the hypervisor gave to others; the resolution is 10 ms
	// CPU seconds that other processes used: all but this process and the children that it has waited for, without
	// interrupts
	Used float64
}

// Capacity returns the CPU time of all CPUs in the period, in seconds.
func (n Noise) Capacity() float64 { return n.Seconds * float64(n.CPUs) }

// quiet reports whether tests that need a quiet machine can run in such noise.
func (n Noise) quiet() bool {
	return n.Stolen < maxStolen*n.Capacity() && n.Used < maxUsed*n.Capacity()
}

func (n Noise) String() string {
	return fmt.Sprintf("%.1f %% stolen, %.1f %% used by others", 100*n.Stolen/n.Capacity(), 100*n.Used/n.Capacity())
}

// Watch adds up what disturbs the machine after Start.
type Watch struct {
	at   time.Time
	stat proc.Stat
	own  float64
}

// Start starts a watch.
func Start(t testing.TB) *Watch {
	t.Helper()
	w, err := start()
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func start() (*Watch, error) {
	s, err := proc.FS{}.Stat()
	if err != nil {
		return nil, err
	}
	own, err := ownTime()
	if err != nil {
		return nil, err
	}
	return &Watch{at: time.Now(), stat: s, own: own}, nil
}

// Noise returns what has disturbed the machine since Start. It can be called again.
func (w *Watch) Noise(t testing.TB) Noise {
	t.Helper()
	n, err := w.noise()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (w *Watch) noise() (Noise, error) {
	now, err := start()
	if err != nil {
		return Noise{}, err
	}
	used := busy(now.stat) - busy(w.stat) - (now.own - w.own)
	return Noise{
		Seconds: now.at.Sub(w.at).Seconds(), CPUs: len(now.stat.Online),
		// The difference can be negative, because the resolution of /proc/stat is coarser than that of our own time.
		Stolen: now.stat.Steal - w.stat.Steal, Used: max(0, used),
	}, nil
}

// busy returns the CPU time of all processes, in seconds.
func busy(s proc.Stat) float64 { return s.User + s.Nice + s.System }

// ownTime returns the CPU time of this process and of the children that it has waited for, in seconds.
func ownTime() (seconds float64, err error) {
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if err := unix.Getrusage(who, &u); err != nil {
			return 0, fmt.Errorf("reading the CPU time of this process: %w", err)
		}
		seconds += float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
	}
	return seconds, nil
}

// Wait returns as soon as the machine has been quiet for a stretch of time, and skips the test if that does not happen
// within atMost. Call it before the test starts any process.
func Wait(t testing.TB, stretch, atMost time.Duration) {
	t.Helper()
	err := wait(stretch, atMost, func() (func() (Noise, error), error) {
		w, err := start()
		if err != nil {
			return nil, err
		}
		return w.noise, nil
	}, time.Sleep)
	if errors.Is(err, errNoisy) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// wait is Wait with replaceable functions for watching the machine and sleeping.
func wait(stretch, atMost time.Duration, watch func() (func() (Noise, error), error), sleep func(time.Duration)) error {
	var least Noise
	for waited := time.Duration(0); waited == 0 || waited+stretch <= atMost; waited += stretch {
		noise, err := watch()
		if err != nil {
			return err
		}
		sleep(stretch)
		n, err := noise()
		if err != nil {
			return err
		}
		if n.quiet() {
			return nil
		}
		if waited == 0 || (n.Stolen+n.Used)/n.Capacity() < (least.Stolen+least.Used)/least.Capacity() {
			least = n
		}
	}
	return fmt.Errorf("%w: within %s no %s had less than %g %% stolen and %g %% used by others; the quietest had %s",
		errNoisy, atMost, stretch, 100*maxStolen, 100*maxUsed, least)
}
