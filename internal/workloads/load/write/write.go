// Package write is a load that only writes files, by an absolute schedule or as fast as the file system allows. It is
// the reference workload for system calls on files. It runs as a separate process (tare load write), with threads that
// each do one write at a time.
//
// A write is one write(2) of a fixed size at the end of a file, followed by fsync(2) or fdatasync(2) if configured; it
// is done when the last of them returns. Latency counts from the intended start, service time from the actual one. In
// open loop, any free thread takes the next start of the schedule, so a thread that waits for the disk delays no
// other.
//
// # Files
//
// All files are in a private directory, made below Options.Directory and removed with its contents in the end. Each
// thread fills its files in turn. An old file is truncated when its turn comes again, so all files together never
// exceed Options.Limit. Opening and truncating is part of the write that needs the next file.
//
// The directory is locked (flock(2)) while the load lives. The kernel releases the lock however the process ends, so
// what a killed load has left can be distinguished from what is in use: Clean removes it, and so does the next load.
//
// Without sync a write ends in the page cache. The kernel writes it to the disk later, or never, if the file is
// truncated before; until then it is memory of the load's control group.
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

// Name is the load's kind in specs, and the generator in results.
const Name = "write"

// CountBytes is the count in a result (load.Result.Counts) of the bytes that successful writes of the window wrote.
const CountBytes = "written_bytes"

// What follows a write to make it durable: Options.Sync.
const (
	SyncNone  = "none"
	SyncFile  = "fsync"
	SyncData  = "fdatasync"
	ringFiles = 4 // files that each thread fills in turn
)

// Options configures the load.
type Options struct {
	Rate      float64       // writes per second of all threads; 0 for closed loop
	Arrivals  pace.Arrivals // of open loop
	Seed      uint64        // of Poisson arrivals, and of what is written
	Workers   int           // threads, and so the most writes at once; 0: as many as CPUs that this process may use
	Size      int           // bytes of a write
	Sync      string        // after each write: SyncNone, SyncFile or SyncData
	Directory string        // where the load makes its directory; empty: the system's for temporary files
	Limit     int64         // bytes of all files at any time
	Drain     time.Duration // how long after the window its writes may still begin and end
	Spin      time.Duration // longest wait to spin through; default pace.DefaultSpin, negative: none
}

// complete fills in defaults and checks options that depend on each other. Its errors have the code fault.Usage.
func (o *Options) complete() error {
	o.Workers = cmp.Or(o.Workers, pace.CPUs())
	o.Spin = max(cmp.Or(o.Spin, pace.DefaultSpin), 0)
	return o.check()
}

// check checks the options that are set against each other.
func (o *Options) check() error {
	if least := int64(max(o.Workers, 1)) * ringFiles * int64(o.Size); o.Limit < least {
		return fault.New(fault.Usage, "limit", fmt.Sprintf("give at least %d, or fewer workers or a smaller size", least),
			"%d bytes are too few for a write of %d in each of %d files of %d workers", o.Limit, o.Size, ringFiles,
			max(o.Workers, 1))
	}
	return nil
}

// Ready is the data of the load's ready message.
type Ready struct {
	Directory string `json:"directory"` // the load's own
	Workers   int    `json:"workers"`
	role.Wants
}

// Load is a load that is ready to run, once: its directory and a file for each thread exist.
type Load struct {
	o       Options
	dir     *files.Scratch
	workers []*worker

	// Of the run: the edges of its window, and the time by which its writes must end; ns by pace.Now.
	begin, warm, end, drained int64

	mu       sync.Mutex
	arrivals *pace.Schedule // guarded by mu; nil in closed loop
}

// New makes a load. Its errors have the code fault.Usage for invalid options, and fault.Machine if the directory or a
// file cannot be made. The caller must close the load, which removes the files.
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

// fill fills data with bytes that no file system can compress.
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

// Close removes the files and the directory. It is not an error if they are gone already.
func (l *Load) Close() error {
	return errors.Join(append(lists.Map(l.workers, (*worker).close), l.dir.Close())...)
}

// Run writes by the schedule and returns the result. Writes count if they are intended in the window. Errors of the
// file system are not errors of the run: the result counts them by kind. If the context ends first, Run returns its
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

// logged returns how many writes a worker may have to log singly: any worker may do nearly all of them.
func (l *Load) logged(s role.Schedule) int {
	most := float64(running.MostRequests / len(l.workers))
	if l.o.Rate > 0 {
		most = min(most, l.o.Rate*float64(s.Duration)/1e9*4/3+1000)
	}
	return int(most)
}

// next returns when the next write is to begin, for a free worker, and false if none is left in the window. In closed
// loop that is at once, or when the worker has rested.
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

// tellApart adds to a result what stalls of the machine did not affect, if stalls are reported.
func (l *Load) tellApart(r *load.Result, stalls *role.Stalls) error {
	logs := lists.Map(l.workers, func(w *worker) *running.Log { return w.log })
	return running.Classify(r, logs, stalls, l.warm, l.end)
}

// result adds up the counts of the workers.
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

// Run plays a load's role in the protocol on conn: it makes the directory, sends the ready message, waits for the
// start, writes, sends the result, and waits until the parent closes its end. If the parent does so earlier, the run
// ends without an error. The files are removed in any case.
func Run(ctx context.Context, o Options, conn *role.Conn) (err error) {
	l, err := New(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	return role.WorkThenStalls(ctx, conn, l.Ready(), l.Run, l.tellApart)
}
