package engine

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tare/internal/experiment/spec"
	"tare/internal/lib/fault"
)

const pushSpec = `name: pushes
question: How long?
blocks: 1
warmup: 50ms
duration: 200ms
applications:
  mesh: {kind: mesh, services: 20, endpoints: 2}
  web: {kind: http}
loads:
  push: {kind: push, to: mesh}
baseline: {subject: kernelmesh, store: value, xds: mesh, peer: endpoint, work: push}
arms:
  snapshot: {subject: kernelmesh, store: snapshot, xds: mesh, peer: endpoint, work: push}
factors:
  push.what: [one, all]
`

// TestPushRefuses: a spec is rejected if a mesh and the parts that talk to it do not match.
func TestPushRefuses(t *testing.T) {
	mustParse(t, pushSpec)
	for want, change := range map[string][2]string{
		`"xds" must be the name of one application of kind mesh or istiod, and "web" is not`: {"snapshot, xds: mesh",
			"snapshot, xds: web"},
		`"xds" must be the name of one application of kind mesh or istiod, and "none" is not`: {"value, xds: mesh",
			"value, xds: none"},
		`and "mesh" is not`: {"endpoints: 2", "endpoints: 2, count: 2"},
		`"services" cannot be combined with "xds"`: {"snapshot, xds: mesh",
			"snapshot, xds: mesh, services: 5"},
		`"work: push" times the changes of a control plane`:            {"snapshot, xds: mesh", "snapshot"},
		"a load of kind push cannot go to an application of kind http": {"to: mesh", "to: web"},
		"a load of kind http cannot go to an application of kind mesh": {"kind: push, to: mesh",
			"kind: http, rate: 5, to: mesh"},
	} {
		text := strings.Replace(pushSpec, change[0], change[1], 1)
		if strings.Contains(want, "http cannot") || strings.Contains(want, `"mesh" is not`) {
			text = text[:strings.Index(text, "factors:")] // only the load of kind push has the setting
		}
		if strings.Contains(want, `"mesh" is not`) {
			text = strings.Replace(text, "to: mesh", "to: mesh, count: 2", 1)
		}
		if _, err := spec.Parse("test.yaml", []byte(text), testFeatures); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, not %q", err, want)
		}
	}
}

// TestIstiodSpec: the spec for a mesh under istiod, which is not a built-in experiment, can be run if istiod is
// installed.
func TestIstiodSpec(t *testing.T) {
	text, err := os.ReadFile("../../../test/istiod/config-push.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s := mustParse(t, string(text))
	if n := len(s.Levels()); n != 8 {
		t.Errorf("%d levels", n)
	}
	t.Setenv("PATH", t.TempDir())
	t.Setenv("TARE_ISTIOD", filepath.Join(t.TempDir(), "none"))
	if _, err := s.LeaveOutAbsent(t.Context()); fault.CodeOf(err) != fault.Machine ||
		!strings.Contains(fault.HintOf(err), "make istiod") {
		t.Errorf("without istiod: %v", err)
	}
}

const istiodSpec = `name: under
question: What does it cost?
blocks: 1
warmup: 100ms
duration: 400ms
applications:
  web: {kind: http}
loads:
  client: {kind: http, to: web, rate: 200, connections: 4}
arms:
  file: {subject: kernelmesh}
  istiod: {subject: kernelmesh, control-plane: istiod}
`

// TestIstiodRefuses: a control plane that is started for the data plane gets only the applications.
func TestIstiodRefuses(t *testing.T) {
	mustParse(t, istiodSpec)
	for _, more := range []string{"services: 5", "work: replace", "xds: web"} {
		text := strings.Replace(istiodSpec, "control-plane: istiod", "control-plane: istiod, "+more, 1)
		if _, err := spec.Parse("test.yaml", []byte(text), testFeatures); err == nil ||
			!strings.Contains(err.Error(), "cannot be combined with") {
			t.Errorf("%s: %v", more, err)
		}
	}
}

// TestIstiodTrials: requests go through a data plane that has the application's service from a real istiod.
func TestIstiodTrials(t *testing.T) {
	if os.Getenv("TARE_ISTIOD_TEST") == "" {
		t.Skip("make istiod-test runs it")
	}
	g := newGround(t)
	_, trials, err := g.run(t.Context(), mustParse(t, istiodSpec), quiet)
	if err != nil {
		t.Fatal(err)
	}
	if len(trials) != 4 {
		t.Fatalf("%d trials", len(trials))
	}
	for _, tr := range trials {
		if tr.Validity.Failed != "" || tr.Metrics["throughput_per_second"] <= 0 || tr.Metrics["error_ratio"] > 0 {
			t.Errorf("%s: %+v, %v", tr.Arm, tr.Validity, tr.Metrics)
		}
		if tr.Arm != "istiod" {
			continue
		}
		evidence, err := json.Marshal(tr.Evidence)
		if err != nil || !strings.Contains(string(evidence), "LEAST_REQUEST") {
			t.Errorf("evidence: %s, %v", evidence, err)
		}
	}
}

// TestPushTrials runs a block with the real processes.
func TestPushTrials(t *testing.T) {
	g := newGround(t)
	_, trials, err := g.run(t.Context(), mustParse(t, strings.Replace(pushSpec, "  web: {kind: http}\n", "", 1)), quiet)
	if err != nil {
		t.Fatal(err)
	}
	if len(trials) != 6 {
		t.Fatalf("%d trials", len(trials))
	}
	for _, tr := range trials {
		if tr.Validity.Failed != "" || tr.Work == nil {
			t.Errorf("%s: %+v, work %v", tr.Arm, tr.Validity, tr.Work)
			continue
		}
		m := tr.Metrics
		at := []string{"push_received_seconds", "push_decoded_seconds", "push_visible_seconds", "push_acked_seconds"}
		for i, name := range at {
			if m[name] <= 0 || i > 0 && m[name] < m[at[i-1]] {
				t.Errorf("%s at %v: %s is %g", tr.Arm, tr.Factors, name, m[name])
			}
		}
		// Medians are compared, because no connection shows when a change became usable if the machine stood still then.
		if m["push_usable_p50_seconds"] < m["push_received_p50_seconds"]/2 ||
			m["push_p50_seconds"] < m["push_sent_p50_seconds"] || m["push_gap_seconds"] <= 0 || m["throughput_per_second"] <= 0 {
			t.Errorf("%s at %v: %v", tr.Arm, tr.Factors, m)
		}
		if m["push_refused_ratio"] != 0 || m["push_wrong_ratio"] != 0 {
			t.Errorf("%s at %v: refused %g, wrong %g", tr.Arm, tr.Factors, m["push_refused_ratio"], m["push_wrong_ratio"])
		}
	}
}
