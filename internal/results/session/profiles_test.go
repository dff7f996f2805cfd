package session

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	pprof "github.com/google/pprof/profile"

	"tare/internal/experiment/record"
	"tare/internal/results/analysis"
)

// TestUnitsOfGraphs: a trial whose number of requests is unknown, and whose CPU time is therefore in another unit, has
// a separate graph. That graph is not compared with a baseline in the unit of the other trials.
func TestUnitsOfGraphs(t *testing.T) {
	run := record.Run{Schema: record.RunSchema, ID: "r", Experiment: "x"}
	dir := filepath.Join(t.TempDir(), "run")
	w, err := record.Create(dir, run)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	var data bytes.Buffer
	if err := stack("main").Write(&data); err != nil {
		t.Fatal(err)
	}
	if err := w.WriteProfile("trial.pb.gz", data.Bytes()); err != nil {
		t.Fatal(err)
	}
	var trials []record.Trial
	for i, arm := range []string{record.Direct, "proxy", "proxy", "proxy"} {
		unit, divisor := "seconds per request", 1000.0
		if i == 1 {
			unit, divisor = "CPUs", 4
		}
		trials = append(trials, record.Trial{
			PlannedTrial: record.PlannedTrial{Index: i, Arm: arm}, Validity: record.Validity{Valid: true},
			Profile: &record.Profile{File: "profiles/trial.pb.gz", Metric: "m", Unit: unit, Divisor: divisor},
		})
	}
	if _, err := writeProfiles(w, &analysis.Summary{}, run, trials); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(dir, record.ProfileDir, record.StacksFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"<h2>direct: 20.0 us per request, 1 trial</h2>", "<h2>proxy: 20.0 us per request, 2 trials</h2>",
		"main: 20.0 us, 100 %, 0 s to the baseline", "<h2>proxy: 0.00500 CPU, 1 trial</h2>",
		"main: 0.00500 CPU, 100 %</title>",
	} {
		if !strings.Contains(string(page), want) {
			t.Errorf("%q is not in %s", want, page)
		}
	}
}

// stack returns a profile of 20 ms in a function of the subject.
func stack(function string) *pprof.Profile {
	m := &pprof.Mapping{ID: 1, File: "/bin/web", Limit: 1 << 20}
	f := &pprof.Function{ID: 1, Name: function}
	l := &pprof.Location{ID: 1, Mapping: m, Line: []pprof.Line{{Function: f}}}
	return &pprof.Profile{
		SampleType: []*pprof.ValueType{{Type: "samples", Unit: "count"}, {Type: "cpu", Unit: "nanoseconds"}},
		Sample: []*pprof.Sample{{
			Location: []*pprof.Location{l}, Value: []int64{2, 20e6}, Label: map[string][]string{"part": {"the subject"}},
		}},
		Mapping: []*pprof.Mapping{m}, Function: []*pprof.Function{f}, Location: []*pprof.Location{l},
	}
}
