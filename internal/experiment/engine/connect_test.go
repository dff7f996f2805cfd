package engine

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"tare/internal/experiment/spec"
	"tare/internal/lib/fault"
	"tare/internal/mesh/connect"
	"tare/internal/mesh/generation"
)

const connectSpec = `name: connections
question: Where do they go?
blocks: 1
warmup: 20ms
duration: 2s
loads: {client: {kind: connect}}
baseline: {subject: kernelmesh, store: value, peer: endpoint, work: replace, max-services: 8, max-endpoints: 32}
arms:
  snapshot: {subject: kernelmesh, store: snapshot, peer: endpoint, work: replace, max-services: 8, max-endpoints: 32}
  path: {subject: kernelmesh, store: snapshot, peer: endpoint, services: 30, endpoints: 4, protocol: udp, fit: true}
gates: {drift: 1000}
`

// TestConnectSpec: a load of connections needs no application, but it needs something to connect to in every arm.
func TestConnectSpec(t *testing.T) {
	s := mustParse(t, connectSpec)
	first, _ := json.Marshal(s)
	again, err := spec.Parse("run.json", first, testFeatures)
	if err != nil {
		t.Fatalf("%v\n%s", err, first)
	}
	if second, _ := json.Marshal(again); string(first) != string(second) {
		t.Errorf("not the same:\n%s\n%s", first, second)
	}
	for _, c := range []struct{ old, new, want string }{
		{"kind: connect", "kind: connect, to: server", `there is no key "to"`},
		{"kind: connect}", "kind: connect}, other: {kind: http, to: server, rate: 1}", `the spec has no "applications"`},
		{connectSpec[strings.Index(connectSpec, "baseline"):strings.Index(connectSpec, "arms:")], "",
			`a load of kind connect goes to what the subject serves by itself`},
		{"store: snapshot, peer: endpoint, work: replace", "store: snapshot, work: replace",
			`needs a subject that serves something by itself`},
		{", protocol: udp", "", `needs a subject that serves something by itself`},
		{"services: 30, ", "", `needs a subject that serves something by itself`},
	} {
		text := strings.Replace(connectSpec, c.old, c.new, 1)
		if text == connectSpec {
			t.Fatalf("the spec has no %q", c.old)
		}
		if _, err := spec.Parse("s.yaml", []byte(text), testFeatures); fault.CodeOf(err) != fault.Usage ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v", c.new, err)
		}
	}
}

// TestConnectTrials runs a block with the real processes: connections are checked in trials that replace the
// configuration, and reach their endpoints in the others.
func TestConnectTrials(t *testing.T) {
	g := newGround(t)
	c, trials, err := g.run(t.Context(), mustParse(t, connectSpec), quiet)
	if err != nil {
		t.Fatal(err)
	}
	if len(trials) != 4 {
		t.Fatalf("%d trials", len(trials))
	}
	for _, tr := range trials {
		r := tr.Loads["client"]
		if !tr.Validity.Valid || r.Generator != connect.Generator || r.Done == 0 {
			t.Errorf("%s: %+v, %d connections", tr.Arm, tr.Validity, r.Done)
			continue
		}
		judged := tr.Counts["wrong_connect_share"]
		if tr.Arm == "path" {
			if _, counted := r.Counts[generation.Judged]; counted || judged.Of != 0 || tr.Work != nil ||
				tr.Metrics["connect_p50_seconds"] <= 0 || r.Opened != r.Intended {
				t.Errorf("path: %v, work %v, metrics %v", r.Counts, tr.Work, tr.Metrics)
			}
			continue
		}
		if tr.Work == nil || tr.Metrics["replacements_per_second"] < 10 || tr.Metrics["replacement_seconds"] <= 0 {
			t.Errorf("%s: work %v, metrics %v", tr.Arm, tr.Work, tr.Metrics)
		}
		if judged.Of == 0 || judged.In != 0 {
			t.Errorf("%s: %d of %d connections were wrong: %v", tr.Arm, judged.In, judged.Of, r.Counts)
		}
		if tr.Arm == "snapshot" && (tr.Counts["failed_connect_share"].In != 0 ||
			tr.Counts["backward_connect_share"].In != 0) {
			t.Errorf("snapshot: %v", r.Counts)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(c.Dir, "*.yaml")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
