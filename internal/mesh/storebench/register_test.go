package storebench

import (
	"errors"
	"math"
	"testing"

	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
	"tare/internal/lib/param"
	"tare/internal/scale/ledger"
)

// The interfaces that the engine looks for.
var _ interface {
	kind.Player
	kind.Checker
} = guest{}

func TestRegistered(t *testing.T) {
	g := kind.Find(kind.Subject, "store")
	if g == nil {
		t.Fatal("there is no subject store")
	}
	part := &kind.Part{Kind: g, Options: param.Values{"store": "pooled:ondemand"}}
	if !part.Works() || !part.WorksAlone() {
		t.Error("it does not work by itself")
	}
	if got := g.About().Trait(part.Options); got != "whole per record" {
		t.Errorf("the trait of pooled is %q", got)
	}
	if err := g.(kind.Checker).Check(param.Values{"store": "shelf"}); err == nil {
		t.Error("a store that does not exist passes")
	}
}

func TestMetrics(t *testing.T) {
	work := load.Result{
		Mode: load.Closed, Seconds: 1, Done: 2000, Intended: 2000, Sent: 2000,
		Counts: map[string]float64{
			Flushes: 2000, FlushSeconds: 0.5, Records: 90_000, Updates: 142_000, Deletes: 2000, Syscalls: 150_000,
			GracePeriods: 2000, WorkBytes: 2e6, OpenSeconds: 0.1, FillSeconds: 0,
		},
	}
	h := hdrhistogram.New(1, 1e9, 3)
	if err := errors.Join(h.RecordValues(250_000, 2000), work.SetHistogram(FlushTime, h)); err != nil {
		t.Fatal(err)
	}
	m := &measured.Measured{
		Setup: &kind.Setup{}, Trial: record.Trial{Work: &work, Ledger: &ledger.Ledger{Window: ledger.Window{Seconds: 0.1}}},
	}
	got := m.Values()
	for name, want := range map[string]float64{
		"flush_seconds": 250e-6, "flush_p50_seconds": 250e-6, "flush_p99_seconds": 250e-6, "records_per_flush": 45,
		"map_updates_per_flush": 71, "map_deletes_per_flush": 1, "syscalls_per_flush": 75, "grace_periods_per_flush": 1,
		"bytes_per_flush": 1000, "store_open_seconds": 0.1,
	} {
		if v, ok := got[name]; !ok || math.Abs(v-want) > 0.002*want {
			t.Errorf("%s is %g (%v), want %g", name, v, ok, want)
		}
	}
	if _, ok := got["store_fill_seconds"]; ok {
		t.Error("filled with nothing in no time")
	}
}
