package agent

import (
	"context"
	"log/slog"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"

	"tare/internal/lib/text"
	"tare/internal/scale/charge"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/ledger"
	"tare/internal/scale/live"
	"tare/internal/scale/meter"
)

// weigher reads the counters when it is asked for metrics, and now and then when it is not. It is a
// prometheus.Gatherer, for many goroutines.
type weigher struct {
	c   *configuration
	log *slog.Logger

	mu       sync.Mutex
	ctx      context.Context //nolint:containedctx // of the agent: a Gatherer is given none
	scale    *live.Scale
	totals   *live.Totals
	layout   *cgroup.Layout
	started  time.Time
	read     time.Time // when counters were read last
	err      error     // of that
	families []*dto.MetricFamily
	logged   time.Time
	running  []charge.Process // for the rules
	looked   time.Time        // when they were read
}

// runningEvery is how often the processes are looked at, whose names rules may have: some 20 us each.
const runningEvery = 10 * time.Second

// fresh is how old counters may be when metrics are asked for: several who scrape at once share one reading.
const fresh = 500 * time.Millisecond

func newWeigher(ctx context.Context, c *configuration, log *slog.Logger) (w *weigher, err error) {
	w = &weigher{c: c, log: log, ctx: ctx, started: time.Now()}
	if w.layout, err = cgroup.Discover(cgroup.Roots{}); err != nil {
		return nil, err
	}
	if w.scale, err = live.Open(ctx, meter.Options{SampleHz: c.hz(), NoStatistics: c.withoutStatistics()}); err != nil {
		return nil, err
	}
	w.totals = live.NewTotals(live.Options{Most: c.maxSeries()})
	return w, nil
}

// keepReading reads the counters whenever no scrape has for a while, until the context ends: samples would be lost, and
// what groups that go away have used.
func (w *weigher) keepReading(ctx context.Context) {
	tick := time.NewTicker(w.c.tick() / 4)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			w.mu.Lock()
			w.readOlder(w.c.tick())
			w.mu.Unlock()
		}
	}
}

// Gather gives all metrics.
func (w *weigher) Gather() ([]*dto.MetricFamily, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.readOlder(fresh)
	if w.families == nil && w.totals.Last != nil {
		w.families = families(&view{Totals: w.totals, started: w.started})
	}
	return w.families, nil
}

// readOlder reads the counters if the last reading is older than age.
func (w *weigher) readOlder(age time.Duration) {
	now := time.Now()
	if now.Sub(w.read) < age || w.ctx.Err() != nil {
		return
	}
	w.read, w.families = now, nil
	var l *ledger.Ledger
	if l, w.err = w.scale.Tick(w.ctx); w.err == nil {
		w.err = w.charge(l)
	}
	if w.err != nil {
		if now.Sub(w.logged) > time.Minute {
			w.logged = now
			w.log.Error("the counters could not be read", "error", text.Line(w.err.Error()))
		}
		return
	}
	w.totals.Add(l)
}

// charge says what belongs to whom, by the rules.
func (w *weigher) charge(l *ledger.Ledger) error {
	if len(w.c.rules) > 0 {
		if now := time.Now(); now.Sub(w.looked) >= runningEvery {
			running, err := charge.Running(w.layout)
			if err != nil {
				return err
			}
			w.running, w.looked = running, now
		}
		charge.Apply(w.c.rules, l, w.running)
	}
	l.AddComponents()
	return nil
}

// health is why the machine cannot be weighed; nil while it can.
func (w *weigher) health() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

func (w *weigher) close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.scale.Close()
}
