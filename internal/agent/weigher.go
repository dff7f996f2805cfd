package agent

import (
	"context"
	"log/slog"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"

	"tare/internal/lib/text"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/names"
	"tare/internal/scale/ledger"
	"tare/internal/scale/live"
	"tare/internal/scale/meter"
)

// weigher reads the counters when metrics are requested, and at intervals when they are not. It implements the
// interface source, and is safe for concurrent use.
type weigher struct {
	c   *configuration
	log *slog.Logger

	mu      sync.Mutex
	ctx     context.Context //nolint:containedctx // the agent's, because the methods of source have none
	scale   scale
	shared  meter.Shared // used by the scale and the windows
	totals  *live.Totals
	names   *names.Resolver
	layout  *cgroup.Layout
	charger *charger
	started time.Time
	read    time.Time // when the counters were last read
	err     error     // why that reading failed; nil if it did not
	logged  time.Time
	parts   map[string]meter.Part // the last reading of each part, by name
	builder builder
}

// scale is the part of live.Scale that the weigher uses.
type scale interface {
	Tick(context.Context) (*ledger.Ledger, error)
	Due() time.Time
	Parts() []meter.Part
	Skipped() int
	Close() error
}

// runningEvery is the time between two listings of processes, for rules that name processes, if no group or program
// was created. Listing costs about 20 us per process.
const runningEvery = 10 * time.Second

// fresh is the age up to which a reading of the counters also serves later requests, so that clients that scrape at
// about the same time share it.
const fresh = 500 * time.Millisecond

func newWeigher(ctx context.Context, c *configuration, log *slog.Logger) (w *weigher, err error) {
	w = &weigher{c: c, log: log, ctx: ctx, started: time.Now(), parts: map[string]meter.Part{}}
	if w.layout, err = cgroup.Discover(cgroup.Roots{}); err != nil {
		return nil, err
	}
	o := meter.Options{SampleHz: c.hz(), NoStatistics: c.withoutStatistics(), Lean: true, Shared: &w.shared}
	if w.scale, err = live.Open(ctx, o, c.duty); err != nil {
		return nil, err
	}
	w.charger = &charger{rules: c.rules, layout: w.layout, every: runningEvery}
	w.names = names.Open(names.Options{Root: c.hostRoot()})
	w.totals = live.NewTotals(live.Options{Name: w.place, Most: c.maxSeries(), Duty: c.duty})
	return w, nil
}

// keepReading reads the counters, until the context ends, whenever no scrape has done so for a tick: otherwise the
// usage of a group or program would be lost when it goes away. It also reads them when run statistics must be
// switched.
func (w *weigher) keepReading(ctx context.Context) {
	for {
		timer := time.NewTimer(w.untilDue())
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		w.mu.Lock()
		if due := w.scale.Due(); !due.IsZero() && !time.Now().Before(due) {
			w.readOlder(0)
		} else {
			w.readOlder(w.c.tick())
		}
		w.mu.Unlock()
	}
}

// untilDue returns how long keepReading may wait, if there are no scrapes, before it must read the counters.
func (w *weigher) untilDue() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	wait := time.Until(w.read.Add(w.c.tick()))
	if due := w.scale.Due(); !due.IsZero() {
		wait = min(wait, time.Until(due))
	}
	return max(wait, fresh/10)
}

// each calls builder.each with the current totals. It returns an error if the last reading failed: the totals of the
// reading before that would look like those of a machine that does nothing.
func (w *weigher) each(has func(string, uint64) bool, f func(*dto.MetricFamily, uint64) error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil || w.totals.Last == nil { // after a failure or before the first reading
		return w.err
	}
	v := &view{Totals: w.totals, started: w.started, parts: w.parts, skipped: w.scale.Skipped()}
	return w.builder.each(v, has, f)
}

// reading reads the counters, unless they are fresh or were read after the given time, and returns when they were read.
// Clients that wait at the same time share a reading that began after they came, however long it took. Otherwise, if
// the machine were so busy that a reading takes longer than fresh, there would be one reading for each waiting client,
// and the last client would wait for all of them.
func (w *weigher) reading(after time.Time) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.read.After(after) {
		w.readOlder(fresh)
	}
	return w.read
}

// readOlder reads the counters if the last reading is older than age.
func (w *weigher) readOlder(age time.Duration) {
	now := time.Now()
	if now.Sub(w.read) < age || w.ctx.Err() != nil {
		return
	}
	w.read = now
	var l *ledger.Ledger
	l, w.err = w.scale.Tick(w.ctx)
	for _, p := range w.scale.Parts() {
		w.parts[p.Name] = p
	}
	if w.err != nil {
		if now.Sub(w.logged) > time.Minute {
			w.logged = now
			w.log.Error("the counters could not be read", "error", text.Line(w.err.Error()))
		}
		return
	}
	began := time.Now()
	w.names.Fill(l)
	w.parts[partNames] = meter.Part{Name: partNames, Took: time.Since(began)}
	w.charger.charge(l)
	w.totals.Add(l)
}

// partNames is the name of the part of a reading in which the names of control groups are found.
const partNames = "names"

// place returns the names under which people know a control group.
func (w *weigher) place(path string) live.Place {
	n := w.names.Of(path)
	return live.Place{Namespace: n.Namespace, Pod: n.Pod, Container: n.Container, Unit: n.Unit, Top: n.Top}
}

// health returns the reason why the machine cannot be weighed; nil if it can. After a failure it reads again, so it
// reports the present state.
func (w *weigher) health() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		w.readOlder(fresh)
	}
	return w.err
}

func (w *weigher) close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.shared.Close()
	return w.scale.Close()
}
