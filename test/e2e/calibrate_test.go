package e2e

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"tare/internal/lib/fault"
	"tare/internal/results/calibrate"
	"tare/test/long"
)

// calibration runs tare calibrate --quick with the given fault built in (none if it is empty), and reads its report.
func calibration(t *testing.T, fault string, args ...string) (calibrate.Report, output) {
	t.Helper()
	out := command{
		args: append([]string{"calibrate", "--quick", "--json"}, args...), env: []string{"TARE_CALIBRATE_FAULT=" + fault},
		timeout: 5 * time.Minute,
	}.start(t).wait(t)
	var r calibrate.Report
	dec := json.NewDecoder(strings.NewReader(out.stdout))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&r); err != nil {
		t.Fatalf("reading the calibration: %v: %s", err, out)
	}
	if r.Schema != calibrate.Schema {
		t.Errorf("the schema is %q", r.Schema)
	}
	return r, out
}

// TestCalibrate: on this machine, tare measures known quantities within tolerance. A measurement that other work on the
// machine disturbs is not judged, but enough of them must be.
func TestCalibrate(t *testing.T) {
	needsTime(t)
	leavesNothing(t)
	r, out := calibration(t, "")
	for _, w := range r.Weights {
		if w.Verdict == calibrate.Fail {
			t.Errorf("%s: %s: true %g, measured %g %s, off by %g", w.Section, w.Name, *w.True, *w.Measured, w.Unit, *w.Error)
		}
		if w.Verdict == calibrate.Disturbed {
			t.Logf("%s: %s was not judged: others took %.0f %% of the CPU time, the hypervisor %.0f %% of it all, by %s: %+v",
				w.Section, w.Name, 100*w.Others, 100*w.Stolen, w.Witness, w.Culprits)
		}
	}
	if want := int(fault.CodeOf(r.Verdict())); out.code != want {
		t.Errorf("%d weights failed and %d were not judged, want exit code %d: %s", r.Failed, r.Unjudged, want, out)
	}
	judged := map[string]int{}
	for _, w := range r.Weights {
		if w.Verdict == calibrate.Pass || w.Verdict == calibrate.Fail {
			judged[w.Section]++
		}
	}
	// Other work on the machine cannot disturb the length of a second, counts, bytes, or a process's own CPU time.
	for section, least := range map[string]int{"clock": 1, "bpf": 8, "maps": 2, "cpu": 3, "memory": 5} {
		if judged[section] < least {
			t.Errorf("%s: only %d weights were judged, want %d", section, judged[section], least)
		}
	}
	seen := map[string]bool{}
	for _, w := range r.Weights {
		seen[w.Section] = true
		// The report must show that a clock that starts when a request is sent misses most of the requests that were due in a
		// stall.
		if strings.HasPrefix(w.Name, "stalls of 500ms: requests slower") && w.Verdict == calibrate.Pass &&
			(w.ClosedLoop == nil || *w.ClosedLoop > *w.True/4) {
			t.Errorf("%s: true %g, and a closed-loop clock does not fail: %v", w.Name, *w.True, w.ClosedLoop)
		}
	}
	for _, section := range calibrate.Sections {
		if !seen[section] {
			t.Errorf("nothing was weighed of %s", section)
		}
	}
	t.Logf("%d in tolerance, %d out of it, %d not judged, in %.0f s", r.Passed, r.Failed, r.Unjudged, r.Seconds)
}

// TestCalibrateFindsFaults: with a fault built in, tare calibrate exits with 5 and names the quantity that is wrong.
func TestCalibrateFindsFaults(t *testing.T) {
	leavesNothing(t)
	for _, tt := range long.Some(1, []struct{ fault, only, weight string }{
		{"mapstwice", "maps", "bytes of a map"},
		{"clock5", "clock", "length of a second"},
		{"dropsamples", "bpf", "samples of process"},
	}) {
		t.Run(tt.fault, func(t *testing.T) {
			r, out := calibration(t, tt.fault, "--only", tt.only)
			if out.code != 5 {
				t.Errorf("want exit code 5: %s", out)
			}
			found := false
			for _, w := range r.Weights {
				found = found || w.Verdict == calibrate.Fail && strings.Contains(w.Name, tt.weight)
			}
			if !found {
				t.Errorf("%q did not fail: %s", tt.weight, out)
			}
		})
	}
}

func TestCalibrateWrongUse(t *testing.T) {
	for _, args := range [][]string{{"calibrate", "--only", "clocks"}, {"calibrate", "more"}} {
		if out := tare(t, args...); out.code != 2 || out.stdout != "" {
			t.Errorf("%v: want exit code 2: %s", args, out)
		}
	}
}
