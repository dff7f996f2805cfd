// Package probe measures how long a task that wants a CPU waits for one: the scheduling delay, as any process of the
// machine would experience it. It runs as a separate process (tare load probe), in a separate control group, and makes
// no requests.
//
// One thread on each CPU asks to be woken at the times of an absolute schedule, and records how late it was. With a
// wake-up every 1 ms, a thread that is delayed by 80 ms has missed 80 of them, and each counts with the delay that it
// would have had (80 ms, 79 ms, ...). The probe therefore measures the wait of a task that becomes ready at any moment,
// not of one that becomes ready only when the CPU is free again.
package probe

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/internal/experiment/load"
	"tare/internal/experiment/role"
	"tare/internal/lib/pace"
	"tare/internal/lib/param"
)

// The names of the generator and the mode in the results of a probe.
const (
	Generator = "probe"
	Mode      = "probe"
)

// Delay is the name of the probe's histogram: the time from when a thread should have been woken until it ran, for
// every wake-up in the window.
const Delay = "delay"

// Limits of Options.Interval.
const (
	MinInterval = 100 * time.Microsecond
	MaxInterval = time.Second
)

// longest is the longest delay that the histogram records. A longer delay is recorded as this value.
const longest = 10 * time.Minute

// Options configures a probe.
type Options struct {
	Interval time.Duration // between two wake-ups on one CPU; wake-ups on different CPUs are staggered
}

// Ready is the data of the probe's ready message.
type Ready struct {
	CPUs     []int   `json:"cpus"`
	Interval float64 `json:"interval_seconds"`
}

// Probe is a probe that is ready to run, once.
type Probe struct {
	interval time.Duration
	cpus     []int
}

// New makes a probe of every CPU that this process may run on. It returns an error with the code fault.Usage for an
// invalid option.
func New(o Options) (*Probe, error) {
	if err := (param.Values{"interval": o.Interval.String()}).Check(Settings); err != nil {
		return nil, err
	}
	cpus, err := pace.AllowedCPUs()
	return &Probe{interval: o.Interval, cpus: cpus}, err
}

// Ready describes the probe.
func (p *Probe) Ready() Ready { return Ready{CPUs: p.cpus, Interval: p.interval.Seconds()} }

// Run runs the probe as scheduled, and returns the histogram of delays. The result has no requests or connections,
// because a probe makes none. If the context ends first, Run returns its error.
func (p *Probe) Run(ctx context.Context, s role.Schedule) (*load.Result, error) {
	warm, end, err := s.Window()
	if err != nil {
		return nil, err
	}
	// Neither a garbage collection nor a thread that waits for a scheduler slot (P) may look like a delay of the machine.
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	if slots := len(p.cpus) + 2; slots > runtime.GOMAXPROCS(0) {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(slots))
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	delays := make([]*hdrhistogram.Histogram, len(p.cpus))
	cpu, err := s.CPUTime(func() error {
		var running sync.WaitGroup
		for i := range p.cpus {
			delays[i] = hdrhistogram.New(1, int64(longest), 3)
			running.Go(func() {
				if err := p.watch(ctx, i, s.Begin, warm, end, delays[i]); err != nil {
					cancel(err)
				}
			})
		}
		running.Wait()
		return context.Cause(ctx)
	})
	if err != nil {
		return nil, err
	}
	r := &load.Result{
		Generator: Generator, Mode: Mode, Seconds: float64(s.Duration) / 1e9, Errors: map[string]int64{},
		CPUs: float64(len(p.cpus)), CPUSeconds: cpu,
	}
	for _, h := range delays[1:] {
		delays[0].Merge(h)
	}
	if delays[0].TotalCount() == 0 {
		return r, nil
	}
	return r, r.SetHistogram(Delay, delays[0])
}

// watch runs the thread on the CPU p.cpus[i]. Wake-ups that are due before the end of the warm-up (warm) do not count.
func (p *Probe) watch(ctx context.Context, i int, begin, warm, end int64, delays *hdrhistogram.Histogram) error {
	thread, err := pace.LockThread(0)
	if err != nil {
		return err
	}
	defer thread.Close()
	all, err := pace.AllowedCPUs()
	if err != nil {
		return err
	}
	if err := pace.RunOn(p.cpus[i]); err != nil {
		return err
	}
	defer func() { _ = pace.RunOn(all...) }() // the CPUs of before; the probe's result does not depend on it

	every := int64(p.interval)
	// The CPUs are staggered, so that their wake-ups do not coincide.
	for at := begin + every*int64(i)/int64(len(p.cpus)); at < end; at += every {
		if err := ctx.Err(); err != nil {
			return err // Until checks ctx only before long waits, and these are short
		}
		now, err := thread.Until(ctx, at)
		if err != nil {
			return err
		}
		if at < warm {
			continue
		}
		if err := delays.RecordValue(min(max(now-at, 1), int64(longest))); err != nil {
			return fmt.Errorf("recording a delay: %w", err)
		}
	}
	return nil
}

// Run runs the load by the role protocol on conn: it sends the ready message, waits for the start, probes, sends the
// result, and waits until the parent closes its end. If the parent does so earlier, Run ends without an error.
func Run(ctx context.Context, o Options, conn *role.Conn) error {
	p, err := New(o)
	if err != nil {
		return err
	}
	return role.Work(ctx, conn, p.Ready(), p.Run)
}
