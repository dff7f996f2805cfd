// Package write is the load that writes files and nothing else, by an absolute schedule or as fast as the file system
// takes it: the reference workload of what makes system calls into a file system. It runs as a separate process
// (tare load write), with threads that each have one write under way at most.
//
// A write is one write(2) of a fixed size at the end of a file, and the fsync(2) or fdatasync(2) after it where those
// are asked for; it is done when the last of them has returned. Latency runs from the intended start, service time from
// the actual one. In open loop whichever thread is free takes the next start of the schedule, so one that waits for the
// disk holds up no other.
//
// # Files
//
// All files are in a private directory, made below Options.Directory and removed with everything in it in the end.
// Each thread fills one file after the other, a few of them in turn: an old file is truncated when its turn comes
// again, so that all files together never hold more than Options.Limit. Opening and truncating is part of the write
// that needs the next file.
//
// The directory is locked (flock(2)) while the load lives. The kernel gives the lock back however the process ends, so
// what a killed load has left behind differs from what is in use: Clean removes it, and so does the next load.
//
// Without sync a write ends in the page cache. The kernel writes it to the disk in its own time, or never, where the
// file is cut off before; until then it is memory of the load's control group.
package write

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"tare/internal/experiment/load"
	"tare/internal/experiment/load/running"
	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/files"
	"tare/internal/lib/lists"
	"tare/internal/lib/pace"
)

// Name is what specs call the load, and results their generator.
const Name = "write"

// CountBytes is the count of a result (load.Result.Counts) that says how many bytes the writes of the window wrote that
// succeeded.
const CountBytes = "written_bytes"

// How a write is made to last: Options.Sync.
const (
	SyncNone  = "none"
	SyncFile  = "fsync"
	SyncData  = "fdatasync"
	ringFiles = 4 // that each thread fills in turn
)

// Options is the load to make.
type Options struct {
	Rate      float64       // writes per second of all threads; 0 for closed loop
	Arrivals  pace.Arrivals // of open loop
	Seed      uint64        // of Poisson arrivals, and of what is written
	Workers   int           // threads, and so writes at once at most; 0 for as many as CPUs that this process may use
	Size      int           // bytes of a write
	Sync      string        // after each write: SyncNone, SyncFile or SyncData
	Directory string        // where the load makes its own; empty: the system's for temporary files
	Limit     int64         // bytes of all files at any time
	Drain     time.Duration // how long after the window what was due in it may still begin and end
	Spin      time.Duration // largest wait that may be spun through; default pace.DefaultSpin, negative for none
}

// complete fills in defaults and checks what settings by themselves cannot. Its errors are of wrong use.
func (o *Options) complete() error {
	o.Workers = cmp.Or(o.Workers, pace.CPUs())
	o.Spin = max(cmp.Or(o.Spin, pace.DefaultSpin), 0)
	return o.check()
}

// check checks the options together, as far as they were given.
func (o *Options) check() error {
	if least := int64(max(o.Workers, 1)) * ringFiles * int64(o.Size); o.Limit < least {
		return fault.New(fault.Usage, "limit", fmt.Sprintf("give at least %d, or fewer workers or a smaller size", least),
			"%d bytes have no room for a write of %d in each of %d files of %d workers", o.Limit, o.Size, ringFiles,
			max(o.Workers, 1))
	}
	return nil
}

// Ready is what a load says of itself before the start.
type Ready struct {
	Directory string `json:"directory"` // its own
	Workers   int    `json:"workers"`
	role.Wants
}

// Load is a load that is ready to run, once: its directory is there, and in it a file for each thread.
type Load struct {
	o       Options
	dir     *files.Scratch
	workers []*worker

	// Of the run: the edges of its window, and until when what was due in it may end; ns by pace.Now.
	begin, warm, end, drained int64

	mu       sync.Mutex
	arrivals *pace.Schedule // guarded by mu; nil in closed loop
}

// New makes a load. Its errors are of code fault.Usage where the options make no sense, and fault.Machine where the
// directory or a file cannot be made. Close removes the files.
func New(o Options) (l *Load, err error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	l = &Load{o: o}
	if l.dir, err = files.NewScratch(o.Directory, "write"); err != nil {
		return nil, err
	}
	data := make([]byte, o.Size)
	fill(data, o.Seed)
	for part := range o.Workers {
		w := newWorker(l, part, data)
		l.workers = append(l.workers, w)
		if f := w.nextFile(); f.step != "" {
			err := fault.Wrap(f.errno, fault.Machine, l.dir.Path(), "give another directory", "a file cannot be made")
			return nil, errors.Join(err, l.Close())
		}
	}
	return l, nil
}

// fill makes data that no file system can make smaller.
func fill(data []byte, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0))
	for i := range data {
		data[i] = byte(rng.Uint32())
	}
}

// Ready describes the load.
func (l *Load) Ready() Ready {
	return Ready{Directory: l.dir.Path(), Workers: len(l.workers), Wants: role.Wants{Stalls: true}}
}

// Close removes the files and the directory. What is gone already is no error.
func (l *Load) Close() error {
	return errors.Join(append(lists.Map(l.workers, (*worker).close), l.dir.Close())...)
}

// Run writes by the schedule and gives the result. Those writes count that are intended in the window. A file
// system that refuses is no error of the run: the result has its refusals, by kind. Run ends early with the context's
// error.
func (l *Load) Run(ctx context.Context, s role.Schedule) (*load.Result, error) {
	var err error
	if l.warm, l.end, err = s.Window(); err != nil {
		return nil, err
	}
	l.begin = s.Begin
	l.drained = l.end + int64(l.o.Drain)
	if l.o.Rate > 0 {
		l.arrivals = pace.NewSchedule(s.Begin, l.o.Rate, l.o.Arrivals, l.o.Seed, 0, 1)
	}
	for _, w := range l.workers {
		if s.Stalls {
			w.log = running.NewLog(l.logged(s))
		}
	}
	cpu, err := running.Drive(ctx, s, len(l.workers), false, func(ctx context.Context, part int) error {
		return l.workers[part].run(ctx)
	})
	if err != nil {
		return nil, err
	}
	return l.result(s, cpu)
}

// logged is how many writes a worker may have to keep one by one: any of them may come to do nearly all.
func (l *Load) logged(s role.Schedule) int {
	most := float64(running.MostRequests / len(l.workers))
	if l.o.Rate > 0 {
		most = min(most, l.o.Rate*float64(s.Duration)/1e9*4/3+1000)
	}
	return int(most)
}

// next is when the next write is to begin, for a worker that is free; false when there is none in the window any more.
// In closed loop that is at once, or when the worker has rested.
func (l *Load) next(rested int64) (at int64, ok bool) {
	if l.arrivals == nil {
		at = max(pace.Now(), l.begin, rested)
		return at, at < l.end
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if at = l.arrivals.Peek(); at >= l.end {
		return at, false
	}
	l.arrivals.Advance()
	return at, true
}

// tellApart adds to the result what stalls of the machine did not affect; nothing if stalls are not reported.
func (l *Load) tellApart(r *load.Result, stalls *role.Stalls) error {
	logs := lists.Map(l.workers, func(w *worker) *running.Log { return w.log })
	return running.Classify(r, logs, stalls, l.warm, l.end)
}

// result adds up what the workers counted.
func (l *Load) result(s role.Schedule, cpu float64) (*load.Result, error) {
	r := &load.Result{
		Generator: Name, Mode: load.Closed, Seconds: float64(s.Duration) / 1e9, TargetRate: l.o.Rate,
		Connections: len(l.workers), // writes at once, at most
		Errors:      map[string]int64{}, Counts: map[string]float64{},
		CPUSeconds: cpu, CPUs: float64(min(len(l.workers), pace.CPUs())),
	}
	if l.o.Rate > 0 {
		r.Mode, r.Arrivals = load.Open, string(l.o.Arrivals)
	}
	sum := load.NewTally()
	for _, w := range l.workers {
		sum.Merge(&w.count)
		for f, n := range w.failures {
			r.Errors[f.String()] += n
		}
	}
	r.Counts[CountBytes] = float64(sum.Done) * float64(l.o.Size)
	return r, sum.Into(r)
}

// Run plays a load's part in the role protocol on conn: makes the directory, says ready, waits for the start, writes,
// sends the result, and stays until the parent closes its end. If the parent does so earlier, that is the end, and no
// error. Whatever happens, the files are removed.
func Run(ctx context.Context, o Options, conn *role.Conn) (err error) {
	l, err := New(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	return role.WorkThenStalls(ctx, conn, l.Ready(), l.Run, l.tellApart)
}
