// Package write is a load that only writes files, on an absolute schedule or as fast as the file system allows. It is
// the reference workload for system calls on files. It runs as a separate process (tare load write), with threads that
// each do one write at a time.
//
// A write is one write(2) of a fixed size at the end of a file, followed by fsync(2) or fdatasync(2) if configured. The
// write is done when the last of these calls returns. Latency counts from the intended start, and service time from the
// actual start. In open loop, any free thread takes the next start of the schedule, so a thread that waits for the disk
// delays no other thread.
//
// # Files
//
// All files are in a private directory, which the load makes below Options.Directory and removes in the end with its
// contents. Each thread fills its files in turn. An old file is truncated when its turn comes again, so all files
// together never exceed Options.Limit. Opening and truncating a file is part of the write that needs it.
//
// The directory is locked (flock(2)) while the load lives. The kernel releases the lock however the process ends, so
// that the files left by a killed load can be distinguished from files in use. Clean removes such files, and so does
// the next load.
//
// Without sync, a write ends in the page cache. The kernel writes the data to the disk later, or never if the file is
// truncated first; until then the data is memory of the load's control group.
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

// CountBytes is the name of a count in a result (load.Result.Counts): the bytes of the writes that ended without error
// inside the window.
const CountBytes = "written_bytes"

// Values of Options.Sync: the system call that follows a write to make it durable.
const (
	SyncNone  = "none"
	SyncFile  = "fsync"
	SyncData  = "fdatasync"
	ringFiles = 4 // files that each thread fills in turn
)

// Options configures the load.
type Options struct {
	Rate      float64       // writes per second of all threads together; 0 for closed loop
	Arrivals  pace.Arrivals // distribution of starts in open loop
	Seed      uint64        // seed of Poisson arrivals, and of the written data
	Workers   int           // threads: the most concurrent writes; 0: one for each CPU that this process may use
	Size      int           // bytes of a write
	Sync      string        // the system call after each write: SyncNone, SyncFile or SyncData
	Directory string        // parent of the load's own directory; empty: the system's directory for temporary files
	Limit     int64         // the most bytes that all files together have at any time
	Drain     time.Duration // how long after the window the window's writes may still begin and end
	Spin      time.Duration // longest wait during which a thread spins; default pace.DefaultSpin, negative: none
}

// complete fills in defaults, and checks options against each other. Its errors have the code fault.Usage.
func (o *Options) complete() error {
	o.Workers = cmp.Or(o.Workers, pace.CPUs())
	o.Spin = max(cmp.Or(o.Spin, pace.DefaultSpin), 0)
	return o.check()
}

// check checks options against each other.
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
	Directory string `json:"directory"` // the load's private directory
	Workers   int    `json:"workers"`
	role.Wants
}

// Load is a load that is ready to run, once: its directory and a file for each thread exist.
type Load struct {
	o       Options
	dir     *files.Scratch
	workers []*worker

	// For the run, in ns by pace.Now: when writing begins, the edges of the window (warm, end), and when the window's
	// writes must have ended.
	begin, warm, end, drained int64

	mu       sync.Mutex
	arrivals *pace.Schedule // guarded by mu; nil in closed loop
}

// New makes a load. The error has the code fault.Usage for invalid options, and fault.Machine if the directory or a
// file cannot be created. The caller must close the load, which removes the files.
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

// Close removes the files and the directory. It is no error if they are already gone.
func (l *Load) Close() error {
	return errors.Join(append(lists.Map(l.workers, (*worker).close), l.dir.Close())...)
}

// Run writes as scheduled and returns the result. Writes count if their intended start is in the window. Errors of the
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

// logged returns how many writes a worker must be able to log individually. Any worker may do nearly all of them.
func (l *Load) logged(s role.Schedule) int {
	most := float64(running.MostRequests / len(l.workers))
	if l.o.Rate > 0 {
		most = min(most, l.o.Rate*float64(s.Duration)/1e9*4/3+1000)
	}
	return int(most)
}

// next returns when a free worker must begin the next write, and false if none is left in the window. In closed loop
// that is at once, or at the end of the worker's rest.
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

// classify adds to a result the measurements of writes that stalls of the machine did not affect, if the workers logged
// their writes.
func (l *Load) classify(r *load.Result, stalls *role.Stalls) error {
	logs := lists.Map(l.workers, func(w *worker) *running.Log { return w.log })
	return running.Classify(r, logs, stalls, l.warm, l.end)
}

// result adds up the counts of the workers.
func (l *Load) result(s role.Schedule, cpu float64) (*load.Result, error) {
	r := &load.Result{
		Generator: Name, Mode: load.Closed, Seconds: float64(s.Duration) / 1e9, TargetRate: l.o.Rate,
		Connections: len(l.workers), // the maximum number of concurrent writes
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
	r.Counts[CountBytes] = float64(sum.Finished) * float64(l.o.Size)
	return r, sum.Into(r)
}

// Run runs the load by the role protocol on conn: it makes the directory, sends the ready message, waits for the start,
// writes, sends the result, and waits until the parent closes its end. If the parent does so earlier, Run ends without
// an error. Run removes the files in any case.
func Run(ctx context.Context, o Options, conn *role.Conn) (err error) {
	l, err := New(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	return role.WorkThenStalls(ctx, conn, l.Ready(), l.Run, l.classify)
}
