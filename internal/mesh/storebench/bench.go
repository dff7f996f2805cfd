package storebench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/internal/experiment/load"
	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
	"tare/internal/mesh"
	"tare/internal/mesh/store"
	"tare/internal/mesh/store/storeload"
)

// Generator is the value of load.Result.Generator for this benchmark.
const Generator = "store"

// The names of histograms.
const (
	// FlushTime holds the time of each change, from when its input (Options.From) is available until programs find the
	// change and the store is ready for the next one. It includes decoding, if the input is encoded.
	FlushTime = "flush"
	// LookupTime holds the time of one query for each call into the kernel: the mean over the queries of the call.
	LookupTime = "lookup"
)

// The names of counts in the result. All cover the measured window, except OpenSeconds and FillSeconds. Times are in
// seconds.
const (
	Flushes      = "flushes"
	FlushSeconds = "flush_seconds" // the sum of the flushes' times
	Records      = "records"
	Updates      = "map_updates"
	Deletes      = "map_deletes"
	Syscalls     = "syscalls"
	GracePeriods = "grace_periods"
	WorkBytes    = "bytes"
	Lookups      = "lookups"
	// LookupMiddle is the time of one query: the mean over the middle half of the calls, so that interrupted calls do not
	// count.
	LookupMiddle = "lookup_seconds"
	// LookupFirst is the mean, over the middle half, of the times of first queries of a random service, after many queries
	// of the previous service. Each is measured by a separate call into the kernel.
	LookupFirst = "lookup_first_seconds"
	OpenSeconds = "open_seconds" // time to open the empty store
	FillSeconds = "fill_seconds" // time to add the services, as one change
)

const (
	// resident is the maximum number of flushed resources in the store. A design that takes a quarter of a second for each
	// resource would take too long to add 64 of them, so prepare stops early once it has added one and the time limit
	// enough has passed.
	resident = 64
	enough   = 20 * time.Millisecond

	repeat = 1000 // queries in one call into the kernel, all for the same service
)

// Bench is a store that is ready to be measured, once.
type Bench struct {
	o          Options
	design     store.Design
	store      store.Store
	in         *inputs
	ask        *storeload.Asker
	open, fill time.Duration
}

// New opens the store and fills it with its services.
func New(ctx context.Context, o Options) (b *Bench, err error) {
	d, variant, err := store.Lookup(o.Store)
	if err != nil {
		return nil, err
	}
	options := o.Max
	options.Variant = variant.Variant
	b = &Bench{o: o, design: d}
	if b.in, err = newInputs(o); err != nil {
		return nil, err
	}
	began := time.Now()
	if b.store, err = d.Open(options); err != nil {
		return nil, err
	}
	b.open = time.Since(began)
	defer func() {
		if err != nil {
			err = errors.Join(err, b.Close())
		}
	}()
	if o.Services == 0 {
		return b, nil
	}
	change := storeload.Services(o.Services, o.Endpoints)
	began = time.Now()
	if _, err := b.store.Apply(ctx, change); err != nil {
		return b, fault.Wrap(err, max(fault.CodeOf(err), fault.Internal), "--services",
			"use fewer, or make the store larger", "store %s could not add %d services with %d endpoints each", o.Store,
			o.Services, o.Endpoints)
	}
	b.fill = time.Since(began)
	if o.Operation == Lookup {
		return b, b.prepareLookups()
	}
	return b, nil
}

// Close closes the store and unloads the program.
func (b *Bench) Close() error {
	var err error
	if b.ask != nil {
		err = b.ask.Close()
	}
	return errors.Join(err, b.store.Close())
}

// prepareLookups loads the program, and checks the store's answers before lookups are timed.
func (b *Bench) prepareLookups() (err error) {
	if b.ask, err = storeload.LoadAsk(b.design, b.store.Maps()); err != nil {
		return err
	}
	for i := range b.o.Services {
		if a := b.ask.Ask(question(i), rand.Uint64()); a.Verdict != mesh.Accept {
			return fmt.Errorf("store %s answers %v for service %d, which it holds", b.o.Store, a.Verdict, i)
		}
	}
	return nil
}

func question(i int) mesh.Question {
	return mesh.Question{To: storeload.ServiceOf(i), Protocol: mesh.TCP}
}

// Run performs operations one after the other, as scheduled, and returns the result. An operation counts if it begins
// in the window, whenever it ends. If none does, the first one after the window's beginning counts.
func (b *Bench) Run(ctx context.Context, s role.Schedule) (*load.Result, error) {
	begin, end, err := s.Window()
	if err != nil {
		return nil, err
	}
	runtime.GC()
	times := FlushTime
	if b.o.Operation == Lookup {
		times = LookupTime
	}
	w := newWindow(begin, end, times)
	if err := pace.Sleep(ctx, time.Duration(s.Begin-pace.Now())); err != nil {
		return nil, err
	}
	work := map[string]func(context.Context, *window) error{Insert: b.inserts, Replace: b.replaces, Delete: b.deletes,
		Lookup: b.lookups}[b.o.Operation]
	cpu, err := s.CPUTime(func() error { return work(ctx, w) })
	if err != nil {
		return nil, err
	}
	return w.result(b, cpu)
}

// flush makes the change that kind(i) returns. If measured is set, the change counts unless it begins in the warm-up.
// more is false if no change was made, because of an error, or because the window or ctx has ended.
func (b *Bench) flush(ctx context.Context, w *window, kind func(int) (mesh.Change, error), i int,
	measured bool) (more bool, err error) {
	began := pace.Now()
	if w.over(began) || ctx.Err() != nil {
		return false, ctx.Err()
	}
	change, err := kind(i)
	if err != nil {
		return false, err
	}
	work, err := b.store.Apply(ctx, change)
	if err != nil {
		return false, fmt.Errorf("store %s: %s of %s %d: %w", b.o.Store, b.o.Operation, b.o.Resource, i, err)
	}
	if measured {
		w.add(began, pace.Now(), work)
	}
	return true, nil
}

// each flushes the changes kind(0) to kind(n-1), one for each of the first n resources.
func (b *Bench) each(ctx context.Context, w *window, kind func(int) (mesh.Change, error), n int,
	measured bool) (more bool, err error) {
	for i := range n {
		if more, err = b.flush(ctx, w, kind, i, measured); !more {
			return false, err
		}
	}
	return true, nil
}

// prepare adds resources without measuring, and returns how many it added. more is as in flush.
func (b *Bench) prepare(ctx context.Context, w *window) (n int, more bool, err error) {
	for enough := pace.Now() + int64(enough); n < resident; n++ {
		if n > 0 && pace.Now() >= enough {
			break
		}
		if more, err = b.flush(ctx, w, b.in.set, n, false); !more {
			return n, false, err
		}
	}
	return n, true, nil
}

func (b *Bench) inserts(ctx context.Context, w *window) (err error) {
	for more := true; more; {
		if more, err = b.each(ctx, w, b.in.set, resident, true); more {
			more, err = b.each(ctx, w, b.in.remove, resident, false)
		}
	}
	return err
}

func (b *Bench) deletes(ctx context.Context, w *window) (err error) {
	for more := true; more; {
		var n int
		if n, more, err = b.prepare(ctx, w); more {
			more, err = b.each(ctx, w, b.in.remove, n, true)
		}
	}
	return err
}

// replaces gives existing resources one of two contents, alternately.
func (b *Bench) replaces(ctx context.Context, w *window) error {
	n, more, err := b.prepare(ctx, w)
	for content, next := b.in.other, b.in.set; more; content, next = next, content {
		more, err = b.each(ctx, w, content, n, true)
	}
	return err
}

// lookups queries random services until the window ends.
func (b *Bench) lookups(ctx context.Context, w *window) error {
	random := rand.New(rand.NewPCG(1, 2)) // the same for every design
	for {
		began := pace.Now()
		if w.over(began) || ctx.Err() != nil {
			return ctx.Err()
		}
		q := question(random.IntN(b.o.Services))
		first := b.ask.Repeat(q, random.Uint64(), 1)
		took := b.ask.Repeat(q, random.Uint64(), repeat)
		w.looked(began, pace.Now(), first, took)
	}
}

// window collects the measurements of the operations that count.
type window struct {
	load.Tally
	begin, end int64
	times      *hdrhistogram.Histogram
	first      *hdrhistogram.Histogram // times of first queries of a service, ns; only LookupFirst is in the result
	spent      int64                   // ns in flushes
	work       store.Work
}

func newWindow(begin, end int64, times string) *window {
	w := &window{Tally: load.NewTally(), begin: begin, end: end, first: hdrhistogram.New(1, load.Longest, 3)}
	w.times = w.Histogram(times)
	return w
}

// over reports whether no further operation may begin: the window has ended, and at least one operation was counted.
func (w *window) over(now int64) bool { return now >= w.end && w.Done > 0 }

func (w *window) add(began, ended int64, work store.Work) {
	if w.Worked(w.times, ended-began, began, ended, w.begin, w.end) {
		w.spent += ended - began
		w.work.Add(work)
	}
}

func (w *window) looked(began, ended int64, first, took time.Duration) {
	if w.Worked(w.times, int64(took), began, ended, w.begin, w.end) {
		load.Record(w.first, int64(first))
	}
}

func (w *window) result(b *Bench, cpu float64) (*load.Result, error) {
	r := &load.Result{
		Generator: Generator, Mode: load.Closed, Seconds: float64(w.end-w.begin) / 1e9, Errors: map[string]int64{},
		CPUSeconds: cpu, CPUs: float64(runtime.NumCPU()),
		Counts: map[string]float64{OpenSeconds: b.open.Seconds(), FillSeconds: b.fill.Seconds()},
	}
	switch {
	case w.Done == 0:
	case b.o.Operation == Lookup:
		r.Counts[Lookups] = float64(w.Done) * repeat
		r.Counts[LookupMiddle] = (middle(w.times) + 0.5) / 1e9 // the kernel rounds down, by half a nanosecond on average
		r.Counts[LookupFirst] = middle(w.first) / 1e9
	default:
		maps.Copy(r.Counts, map[string]float64{
			Flushes: float64(w.Done), FlushSeconds: float64(w.spent) / 1e9,
			Records: float64(w.work.Records), Updates: float64(w.work.Updates), Deletes: float64(w.work.Deletes),
			Syscalls:     float64(w.work.Syscalls),
			GracePeriods: float64(w.work.GracePeriods), WorkBytes: float64(w.work.Bytes),
		})
	}
	return r, w.Into(r)
}

// middle returns the mean of the middle half of the values.
func middle(h *hdrhistogram.Histogram) float64 {
	n := h.TotalCount()
	from, to := n/4, n-n/4
	sum, at := 0.0, int64(0)
	for _, bar := range h.Distribution() {
		in := min(at+bar.Count, to) - max(at, from)
		if in > 0 {
			sum += float64(in) * float64(bar.From+bar.To) / 2
		}
		at += bar.Count
	}
	return sum / float64(to-from)
}
