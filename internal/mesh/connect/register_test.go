package connect

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
	"tare/internal/lib/param"
	"tare/internal/mesh/generation"
	"tare/internal/scale/ledger"
)

// subject is a subject that serves something if its setting says so.
type subject struct{}

func (subject) About() kind.About { return kind.About{Name: "plane"} }

func (subject) CheckServices(_ *kind.Setup, p *kind.Part) error {
	if p.Options["serves"] == "" {
		return errors.New("write serves: true")
	}
	return nil
}

// stone is a subject that serves nothing, and slower a baseline with other settings.
type (
	stone  struct{}
	slower struct{}
)

func (stone) About() kind.About           { return kind.About{Name: "stone"} }
func (slower) About() kind.About          { return kind.About{Name: "slower"} }
func (slower) Sets(param.Values) []string { return nil }

// TestCheckSetup: every arm needs something to connect to, and the error names the part without.
func TestCheckSetup(t *testing.T) {
	serves := &kind.Part{Kind: subject{}, Options: param.Values{"serves": "true"}}
	for _, c := range []struct {
		name          string
		baseline, arm *kind.Part
		path, says    string // the error's place and text; says is empty: no error
	}{
		{"good", serves, serves, "", ""},
		{"another baseline", serves, &kind.Part{Kind: slower{}}, "", ""},
		{"no baseline", nil, serves, "", `the baseline has no subject: give the spec a "baseline"`},
		{"silent arm", serves, &kind.Part{Kind: subject{}}, "arms.arm",
			"loads.client needs a subject that serves something by itself: write serves: true"},
		{"silent baseline", &kind.Part{Kind: subject{}}, serves, "baseline", "write serves: true"},
		{"other subject", serves, &kind.Part{Kind: stone{}}, "arms.arm", "stone serves nothing"},
	} {
		s := &kind.Setup{Baseline: c.baseline, Arms: map[string]*kind.Part{"arm": c.arm}}
		err := guest{}.CheckSetup(s, "loads.client", &kind.Part{Kind: guest{}})
		path := ""
		if at := (*kind.ElsewhereError)(nil); errors.As(err, &at) {
			path = at.Path
		}
		if (err == nil) != (c.says == "") || path != c.path || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %q, %v", c.name, path, err)
		}
	}
}

// serving is a subject's part in a trial.
type serving Services

func (s serving) Services() Services { return Services(s) }

func TestCommand(t *testing.T) {
	for _, c := range []struct {
		to   Services
		want string
	}{
		{Services{First: "10.96.0.3:80", Count: 28}, "--service=10.96.0.3:80 --services=28 --endpoints=false --seed=7"},
		{Services{First: "10.96.0.3:80", Count: 28, Endpoints: true},
			"--service=10.96.0.3:80 --services=28 --endpoints=true --seed=7"},
		{Services{First: "10.96.0.1:80", Endpoints: true, Replacer: 4711}, "--replacer=4711 --seed=7"},
	} {
		argv, err := kind.Command(kind.Load, guest{}, kind.Site{Seed: 7, Subject: serving(c.to)})
		if got, want := strings.Join(argv, " "), "_play load connect "+c.want; got != want || err != nil {
			t.Errorf("%v: got  %s\nwant %s", err, got, want)
		}
	}
}

// judgedTrial is a trial in which 100 of 1000 connections failed, and six reached a wrong address.
func judgedTrial(t *testing.T) *measured.Measured {
	t.Helper()
	r := load.Result{
		Mode: load.Closed, Seconds: 2, Intended: 1000, Sent: 1000, Done: 900, Opened: 900, Rate: 450,
		Errors: map[string]int64{"connect-refused": 100},
		Counts: map[string]float64{
			generation.Judged: 1000, generation.FailedCount: 100, generation.StaleCount: 1, generation.TornCount: 2,
			generation.MissedCount: 3, generation.BackwardCount: 50,
		},
	}
	h := hdrhistogram.New(1, longest, 3)
	if err := errors.Join(h.RecordValues(2_000_000, 50), r.SetHistogram(generation.OldEndpoint, h)); err != nil {
		t.Fatal(err)
	}
	return &measured.Measured{
		Setup: &kind.Setup{
			Duration: 600 * time.Millisecond, Loads: map[string]*kind.Part{"client": {Kind: guest{}}},
			Gates: param.Values{"errors": "0.001", "drift": "0.1"},
		},
		Trial: record.Trial{
			Loads: map[string]load.Result{"client": r},
			Work: &load.Result{
				Mode: load.Closed, Seconds: 2, Done: 500, Intended: 500,
				Counts: map[string]float64{generation.Replacements: 500, generation.ReplacementSeconds: 1},
			},
			Ledger: &ledger.Ledger{Window: ledger.Window{Seconds: 0.6}},
		},
	}
}

func TestMetrics(t *testing.T) {
	m := judgedTrial(t)
	got := m.Values()
	for name, want := range map[string]float64{
		"replacements_per_second": 250, "replacement_seconds": 2e-3, "old_endpoint_p50_seconds": 2e-3,
		"old_endpoint_max_seconds": 2e-3, "throughput_per_second": 450,
	} {
		if v, ok := got[name]; !ok || math.Abs(v-want) > 0.002*want {
			t.Errorf("%s is %g (%v), want %g", name, v, ok, want)
		}
	}
	if v, ok := got["old_endpoint_p99_seconds"]; ok {
		t.Errorf("a p99 of 50 values: %g", v)
	}
	counts := m.Counts()
	for name, want := range map[string]int{"wrong": 6, "stale": 1, "torn": 2, "missed": 3, "failed": 100, "backward": 50} {
		if c := counts[name+"_connect_share"]; c.In != want || c.Of != 1000 {
			t.Errorf("%s: %+v, want %d of 1000", name, c, want)
		}
	}
	m.Loads, m.Work = map[string]load.Result{}, nil
	for name := range m.Values() {
		if strings.HasPrefix(name, "replacement") || strings.HasPrefix(name, "old_endpoint") {
			t.Errorf("%s of nothing", name)
		}
	}
	if len(m.Counts()) != 0 {
		t.Errorf("counts of nothing: %v", m.Counts())
	}
}

// TestJudge: if connections are judged, neither wrong ones nor failures are the trial's fault.
func TestJudge(t *testing.T) {
	for _, c := range []struct {
		name   string
		counts map[string]float64
		gate   string
	}{
		{"judged", map[string]float64{generation.Judged: 1000, generation.FailedCount: 100}, ""},
		{"judged nothing", map[string]float64{generation.Judged: 0}, "idle"},
		{"not there to judge", nil, "errors"},
	} {
		m := judgedTrial(t)
		r := m.Loads["client"]
		r.Counts = c.counts
		m.Loads["client"] = r
		reasons := m.Judge()
		if c.gate == "" && len(reasons) > 0 || c.gate != "" && (len(reasons) != 1 || reasons[0].Gate != c.gate) {
			t.Errorf("%s: tripped %+v", c.name, reasons)
		}
	}
}
