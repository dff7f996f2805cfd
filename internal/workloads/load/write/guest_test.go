package write

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
	"tare/internal/experiment/measured"
	"tare/internal/lib/param"
	"tare/internal/scale/ledger"
	"tare/test/metrictest"
)

// These are the interfaces that the engine looks for.
var _ interface {
	kind.Player
	kind.Checker
	measured.Teller
	measured.Judge
} = guest{}

// trial returns a trial of 2 s in which a load wrote 1,000 times a second, with another load beside it.
func trial(t *testing.T) *measured.Measured {
	t.Helper()
	r := load.Result{
		Generator: Name, Mode: load.Open, Seconds: 2, TargetRate: 1000, Rate: 1000, Intended: 2000, Sent: 2000, Done: 2000,
		Connections: 2, CPUSeconds: 1.9, CPUs: 1, Counts: map[string]float64{CountBytes: 8_192_000},
	}
	for name, ns := range map[string]int64{load.Latency: 300_000, load.Service: 200_000, load.OwnLag: 1000} {
		h := hdrhistogram.New(1, 1e9, 3)
		if err := h.RecordValues(ns, 2000); err != nil {
			t.Fatal(err)
		}
		if err := r.SetHistogram(name, h); err != nil {
			t.Fatal(err)
		}
	}
	other := r
	other.Generator, other.Counts = "http", nil
	part := &kind.Part{Kind: kind.Find(kind.Load, Name), Options: param.Values{"mode": load.Open}}
	m := &measured.Measured{
		Setup: &kind.Setup{
			Loads: map[string]*kind.Part{"files": part}, Duration: 2 * time.Second,
			Gates: param.Values{
				"rate": "0.99", "errors": "0.001", "lag": "25ms", "generator_cpu": "0.7", "drift": "0.5", "connections": "1",
			},
		},
	}
	m.Loads = map[string]load.Result{"files": r, "client": other}
	m.Ledger = &ledger.Ledger{Window: ledger.Window{Seconds: 2}}
	return m
}

// TestMetrics: the metrics cover loads of this kind only, whatever other loads run.
func TestMetrics(t *testing.T) {
	m := trial(t)
	got := m.Values()
	for name, want := range map[string]float64{
		"written_bytes_per_second": 4_096_000, "write_p50_seconds": 200e-6, "write_p99_seconds": 200e-6,
	} {
		if v, ok := got[name]; !ok || math.Abs(v-want) > 0.002*want {
			t.Errorf("%s is %g (%v), want %g", name, v, ok, want)
		}
	}
	r := m.Loads["files"]
	r.Sent, r.Intended = 2030, 2030 // 30 writes did not end, and the p99 is one of them
	m.Loads["files"] = r
	got = m.Values()
	if v, ok := got["write_p99_seconds"]; ok || got["write_p50_seconds"] == 0 {
		t.Errorf("the p99 is %g s without the slowest, and the p50 %g s", v, got["write_p50_seconds"])
	}
	r.Late = 1000 // so it is unknown how many bytes were written in the window
	m.Loads["files"] = r
	if v, ok := m.Values()["written_bytes_per_second"]; ok {
		t.Errorf("bytes that were written after the window are among %g per second", v)
	}
	delete(m.Loads, "files")
	for name := range m.Values() {
		if slices.ContainsFunc(metrics, func(own measured.Metric) bool { return own.Name == name }) {
			t.Errorf("%s is told of another load", name)
		}
	}
	for _, own := range metrics {
		if err := metrictest.Check(own.Definition); err != nil {
			t.Error(err)
		}
	}
}

// TestJudge: the load may use all of its CPU, and has the gates of every other load.
func TestJudge(t *testing.T) {
	m := trial(t)
	if trips := (guest{}).Judge(m, "files"); len(trips) > 0 {
		t.Errorf("tripped %+v", trips)
	}
	r := m.Loads["files"]
	r.Done, r.Errors = 1000, map[string]int64{"write ENOSPC": 1000}
	m.Loads["files"] = r
	var gates []*measured.Gate
	for _, trip := range (guest{}).Judge(m, "files") {
		gates = append(gates, trip.Gate)
	}
	if !slices.Equal(gates, []*measured.Gate{measured.GateRate, measured.GateErrors}) {
		t.Errorf("a disk that was full half of the time trips %+v", gates)
	}
}
