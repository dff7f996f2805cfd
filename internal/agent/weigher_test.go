package agent

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/procfs"

	"tare/internal/lib/param"
	"tare/internal/scale/charge"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/names"
	"tare/internal/scale/ledger"
	"tare/internal/scale/live"
	"tare/internal/scale/meter"
)

// failing is a scale whose first n readings fail.
type failing struct{ n, ticks int }

func (f *failing) Tick(context.Context) (*ledger.Ledger, error) {
	f.ticks++
	if f.ticks <= f.n {
		return nil, errors.New("no counters")
	}
	return &ledger.Ledger{CPU: ledger.Budget(ledger.Usage{Capacity: 1, Idle: 1})}, nil
}

func (*failing) Due() time.Time      { return time.Time{} }
func (*failing) Parts() []meter.Part { return nil }
func (*failing) Skipped() int        { return 0 }
func (*failing) Close() error        { return nil }

func weigherOf(s scale) *weigher {
	return &weigher{c: &configuration{Values: param.Defaults(settings)}, log: slog.New(slog.DiscardHandler),
		ctx: context.Background(), scale: s, totals: live.NewTotals(live.Options{}), names: names.Open(names.Options{}),
		charger: &charger{}, parts: map[string]meter.Part{}}
}

// TestFailedReading: after a reading that failed, there are no metrics rather than those of the reading before.
func TestFailedReading(t *testing.T) {
	scale := &failing{}
	w := weigherOf(scale)
	for _, fails := range []bool{true, false, true, false} {
		if scale.ticks = 0; fails {
			scale.n = 1
		} else {
			scale.n = 0
		}
		w.read = time.Time{}
		w.reading(time.Now())
		metrics := 0
		err := w.each(func(string, uint64) bool { return false }, func(*dto.MetricFamily, uint64) error {
			metrics++
			return nil
		})
		if (err != nil) != fails || (metrics == 0) != fails {
			t.Errorf("%d metrics, error %v, after a reading that failed: %v", metrics, err, fails)
		}
	}
}

// TestHealth: health reports the present state: after a failed reading it reads again, but not more often than needed.
func TestHealth(t *testing.T) {
	scale := &failing{n: 1}
	w := weigherOf(scale)
	w.reading(time.Now())
	if err := w.health(); err == nil || scale.ticks != 1 {
		t.Fatalf("after a reading that failed: %v, %d readings", err, scale.ticks)
	}
	w.read = w.read.Add(-fresh)
	if err := w.health(); err != nil || scale.ticks != 2 {
		t.Errorf("when the counters can be read again: %v, %d readings", err, scale.ticks)
	}
	w.read = w.read.Add(-fresh)
	if err := w.health(); err != nil || scale.ticks != 2 {
		t.Errorf("with nothing wrong: %v, %d readings", err, scale.ticks)
	}
	// A reading that is no longer fresh serves only those who came before it.
	w.read = time.Now().Add(-2 * fresh)
	if at := w.reading(w.read.Add(-1)); scale.ticks != 2 || !at.Equal(w.read) {
		t.Errorf("for one who came before the last reading: %d readings", scale.ticks)
	}
	if w.reading(w.read); scale.ticks != 3 {
		t.Errorf("for one who came with the last reading: %d readings", scale.ticks)
	}
}

// TestCharger: processes are listed again when the list is too old, and not before.
func TestCharger(t *testing.T) {
	layout, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	rules := []charge.Rule{{Charged: ledger.Charged{Charge: ledger.ChargeTare, Component: "x"},
		Patterns: charge.Patterns{Comm: "no-such-process"}}}
	c := &charger{rules: rules, layout: layout, every: time.Hour}
	l := &ledger.Ledger{CPU: ledger.Budget(ledger.Usage{Capacity: 1, Idle: 1})}
	if c.charge(l); l.Components == nil {
		t.Error("the ledger has no components")
	}
	first := c.listed
	c.charge(&ledger.Ledger{})
	if len(c.processes) == 0 || c.listed != first {
		t.Errorf("%d processes are listed, at %v and %v", len(c.processes), first, c.listed)
	}
	// If a program or group began after the processes were listed, they are listed again, but not before soonest.
	loaded := &ledger.Ledger{Programs: []ledger.Program{{LoadedAt: new(first.Add(time.Millisecond))}}}
	made := &ledger.Ledger{Cgroups: []ledger.Cgroup{{Began: new(0.5)}}}
	for now, outdated := range map[time.Time]bool{first.Add(soonest / 2): false, first.Add(soonest): true} {
		if c.outdated(loaded, now) != outdated || c.outdated(made, now) != outdated || c.outdated(l, now) {
			t.Errorf("the list of %v at %v", first, now)
		}
	}
	// A group that began while the list was too young to be replaced makes it outdated later, in any window.
	for _, x := range []struct {
		name     string
		before   []ledger.Cgroup // when the processes were listed
		meantime []ledger.Cgroup // in the window after that
		now      []ledger.Cgroup
		outdated bool
	}{
		{"nothing began", []ledger.Cgroup{{Path: "/a"}}, []ledger.Cgroup{{Path: "/a"}}, []ledger.Cgroup{{Path: "/a"}}, false},
		{"a group that no window saw begin", []ledger.Cgroup{{Path: "/a"}}, nil, []ledger.Cgroup{{Path: "/a"}, {Path: "/b"}},
			true},
		{"one that was listed", []ledger.Cgroup{{Path: "/a", Began: new(0.5)}}, nil, []ledger.Cgroup{{Path: "/a"}}, false},
		{"one that the window before saw begin", nil, []ledger.Cgroup{{Path: "/a", Began: new(0.5)}},
			[]ledger.Cgroup{{Path: "/a"}}, true},
		{"one made again at the same path", []ledger.Cgroup{{Path: "/a"}},
			[]ledger.Cgroup{{Path: "/a", Vanished: true}, {Path: "/a", Began: new(0.5)}}, []ledger.Cgroup{{Path: "/a"}}, true},
		{"one that is gone", []ledger.Cgroup{{Path: "/a"}}, nil, []ledger.Cgroup{{Path: "/b", Vanished: true}}, false},
	} {
		c := &charger{rules: rules, layout: layout, every: time.Hour}
		c.charge(&ledger.Ledger{Cgroups: x.before})
		c.outdated(&ledger.Ledger{Cgroups: x.meantime}, c.listed.Add(soonest/2))
		if c.outdated(&ledger.Ledger{Cgroups: x.now}, c.listed.Add(soonest)) != x.outdated {
			t.Errorf("%s: outdated: %v", x.name, !x.outdated)
		}
	}
	c.every = 0
	c.charge(&ledger.Ledger{})
	if !c.listed.After(first) {
		t.Error("the processes were not listed again")
	}
}

// TestAfterStart: memory that only the start needed is given back.
func TestAfterStart(t *testing.T) {
	files := func() uint64 {
		self, err := procfs.Self()
		if err != nil {
			t.Fatal(err)
		}
		status, err := self.NewStatus()
		if err != nil {
			t.Fatal(err)
		}
		return status.RssFile
	}
	before := files()
	afterStart()
	if after := files(); after > before*3/4 {
		t.Errorf("%d bytes of this program's file are mapped, and were %d before", after, before)
	}
}
