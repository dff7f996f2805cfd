package push

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
	"tare/internal/mesh/services"
	"tare/internal/scale/ledger"
)

// TestCommand: the load uses the address for changes in the application's ready message.
func TestCommand(t *testing.T) {
	ready, err := json.Marshal(services.Ready{Address: "127.0.0.1:1", Control: "127.0.0.1:2"})
	if err != nil {
		t.Fatal(err)
	}
	argv, err := kind.Command(kind.Load, guest{}, kind.Site{Address: "10.96.0.1:80", Ready: ready, Seed: 1<<64 - 1})
	got, want := strings.Join(argv, " "), "_play load push --mesh=127.0.0.1:2 --seed=18446744073709551615"
	if got != want || err != nil {
		t.Errorf("%v: got  %s\nwant %s", err, got, want)
	}
}

func filled(t *testing.T, r *load.Result, name string, n, ns int64) {
	t.Helper()
	h := hdrhistogram.New(1, longest, 3)
	if err := errors.Join(h.RecordValues(ns, n), r.SetHistogram(name, h)); err != nil {
		t.Fatal(err)
	}
}

func TestMetrics(t *testing.T) {
	work := load.Result{Generator: Generator, Mode: load.Closed, Seconds: 1, Done: 2000, Intended: 2000, Sent: 2000}
	filled(t, &work, Visible, 2000, 150_000)
	made := load.Result{
		Generator: Generator, Mode: load.Closed, Seconds: 1, Done: 15, Intended: 15, Sent: 15,
		Counts: map[string]float64{Tries: 200, Refused: 3, Wrong: 0},
	}
	filled(t, &made, Usable, 15, 250_000)
	m := &measured.Measured{
		Setup: &kind.Setup{},
		Trial: record.Trial{Work: &work, Loads: map[string]load.Result{"push": made}, Ledger: &ledger.Ledger{}},
	}
	got := m.Values()
	for name, want := range map[string]float64{
		"push_visible_seconds": 150e-6, "push_visible_p50_seconds": 150e-6, "push_visible_p99_seconds": 150e-6,
		"push_visible_max_seconds": 150e-6, "push_usable_seconds": 250e-6, "push_usable_max_seconds": 250e-6,
		"push_refused_ratio": 0.015, "push_wrong_ratio": 0,
	} {
		if v, ok := got[name]; !ok || math.Abs(v-want) > 0.002*want {
			t.Errorf("%s is %g (%v), want %g", name, v, ok, want)
		}
	}
	for _, not := range []string{
		"push_visible_p999_seconds", "push_usable_p50_seconds", "push_acked_seconds", "bpf_seconds_per_connection",
	} {
		if v, ok := got[not]; ok {
			t.Errorf("%s is %g, of too few changes or none", not, v)
		}
	}
}
