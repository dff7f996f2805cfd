package experiment

import (
	"encoding/json"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"tare/internal/fault"
	"tare/internal/ledger"
	"tare/internal/load"
	"tare/internal/load/connect"
	"tare/internal/load/connect/generation"
	"tare/internal/subject/mesh/kernelmesh"
)

const connectSpec = `name: connections
question: Where do they go?
blocks: 1
warmup: 20ms
duration: 600ms
loads: {client: {kind: connect}}
baseline: {subject: kernelmesh, store: value, peer: endpoint, work: replace, max-services: 8, max-endpoints: 32}
arms:
  snapshot: {subject: kernelmesh, store: snapshot, peer: endpoint, work: replace, max-services: 8, max-endpoints: 32}
  path: {subject: kernelmesh, store: snapshot, peer: endpoint, services: 30, endpoints: 4, protocol: udp, fit: true}
gates: {drift: 1000}
`

// TestConnectSpec: a load of connections needs no application, and something to connect to in every arm.
func TestConnectSpec(t *testing.T) {
	s := mustParse(t, connectSpec)
	first, _ := json.Marshal(s)
	again, err := Parse("run.json", first, testFeatures)
	if err != nil {
		t.Fatalf("%v\n%s", err, first)
	}
	if second, _ := json.Marshal(again); string(first) != string(second) {
		t.Errorf("not the same:\n%s\n%s", first, second)
	}
	for _, c := range []struct{ old, new, want string }{
		{"kind: connect", "kind: connect, to: server", `there is no key "to"`},
		{"kind: connect}", "kind: connect}, other: {kind: http, to: server, rate: 1}", `the spec has no "applications"`},
		{connectSpec[strings.Index(connectSpec, "baseline"):strings.Index(connectSpec, "arms:")], "", `a load of kind connect goes to what the subject serves by itself`},
		{"store: snapshot, peer: endpoint, work: replace", "store: snapshot, work: replace", `needs a subject that serves something by itself`},
		{", protocol: udp", "", `needs a subject that serves something by itself`},
		{"services: 30, ", "", `needs a subject that serves something by itself`},
	} {
		text := strings.Replace(connectSpec, c.old, c.new, 1)
		if text == connectSpec {
			t.Fatalf("the spec has no %q", c.old)
		}
		if _, err := Parse("s.yaml", []byte(text), testFeatures); fault.CodeOf(err) != fault.Usage || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v", c.new, err)
		}
	}
}

// TestConnectTrials runs a block with the real processes: connections are judged where configuration is replaced, and come to endpoints where it is not.
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
			if _, counted := r.Counts[generation.Judged]; counted || judged.Of != 0 || tr.Work != nil || tr.Metrics["connect_p50_seconds"] <= 0 || r.Opened != r.Intended {
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
		if tr.Arm == "snapshot" && (tr.Counts["failed_connect_share"].In != 0 || tr.Counts["backward_connect_share"].In != 0) {
			t.Errorf("snapshot: %v", r.Counts)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(c.Dir, "*.yaml")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestFillers: what is written for a load of connections is what the subject reads, and fits where it is to fit.
func TestFillers(t *testing.T) {
	file := filepath.Join(t.TempDir(), servicesFile)
	x := &trial{spec: mustParse(t, connectSpec), arm: "path"}
	o := x.spec.Arms["path"].Options
	if err := x.writeServices(file, x.serviceCount(o, knobServices)); err != nil {
		t.Fatal(err)
	}
	services, err := kernelmesh.ReadFile(file)
	if err != nil || len(services) != 30 {
		t.Fatalf("%d services, %v", len(services), err)
	}
	seen := map[string]bool{}
	for _, s := range services {
		for _, e := range s.Endpoints {
			if a := e.Address.String(); seen[a] || !e.Address.Addr().IsLoopback() || e.Address.Addr().As4()[1] < 128 {
				t.Errorf("endpoint %s", a)
			}
			seen[e.Address.String()] = true
		}
	}
	if len(seen) != 120 || services[0].Address.String() != "10.96.0.1:80" || services[29].Protocol != kernelmesh.UDP {
		t.Errorf("%d endpoints, first %v", len(seen), services[0])
	}
	if own := subjectOptions(o, 30); own["max-services"] != "30" || own["max-endpoints"] != "120" || own["protocol"] != "" || own["endpoints"] != "" {
		t.Errorf("its own options: %v", own)
	}
}

// TestStatistics: a spec can have the kernel's run statistics off, and then no run time of programs is told, not even of none.
func TestStatistics(t *testing.T) {
	if !mustParse(t, goodSpec).Statistics {
		t.Error("they are off where a spec says nothing")
	}
	off := mustParse(t, "statistics: false\n"+goodSpec)
	text, _ := json.Marshal(off)
	again, err := Parse("run.json", text, testFeatures)
	if err != nil || off.Statistics || again.Statistics {
		t.Errorf("%v, and again %v: %v", off.Statistics, again.Statistics, err)
	}
	m := goodMeasurement(t)
	if _, ok := m.values()["bpf_seconds_per_connection"]; !ok {
		t.Error("with them there is no time of eBPF")
	}
	m.spec.Statistics = false
	for name := range m.values() {
		if strings.HasPrefix(name, "bpf_") {
			t.Errorf("without them there is %s", name)
		}
	}
}

func TestConnectMetricsAndGates(t *testing.T) {
	r := load.Result{Mode: load.Closed, Seconds: 2, Intended: 1000, Sent: 1000, Done: 900, Opened: 900, Rate: 450, Errors: map[string]int64{"connect-refused": 100}, Counts: map[string]float64{
		generation.Judged: 1000, generation.FailedCount: 100, generation.StaleCount: 1, generation.TornCount: 2, generation.MissedCount: 3, generation.BackwardCount: 50,
	}}
	histogram(t, &r, generation.OldEndpoint, 50, 2_000_000)
	work := load.Result{Mode: load.Closed, Seconds: 2, Done: 500, Intended: 500, Counts: map[string]float64{generation.Replacements: 500, generation.ReplacementSeconds: 1}}
	m := &measurement{spec: mustParse(t, connectSpec), loads: map[string]load.Result{"client": r}, work: &work, ledger: &ledger.Ledger{Window: ledger.Window{Seconds: 0.6}}}
	got := m.values()
	for name, want := range map[string]float64{
		"replacements_per_second": 250, "replacement_seconds": 2e-3, "old_endpoint_p50_seconds": 2e-3, "old_endpoint_max_seconds": 2e-3, "throughput_per_second": 450,
	} {
		if v, ok := got[name]; !ok || math.Abs(v-want) > 0.002*want {
			t.Errorf("%s is %g (%v), want %g", name, v, ok, want)
		}
	}
	if v, ok := got["old_endpoint_p99_seconds"]; ok {
		t.Errorf("a p99 of 50 values: %g", v)
	}
	counts := m.counts()
	for name, want := range map[string]int{"wrong": 6, "stale": 1, "torn": 2, "missed": 3, "failed": 100, "backward": 50} {
		if c := counts[name+"_connect_share"]; c.In != want || c.Of != 1000 {
			t.Errorf("%s: %+v, want %d of 1000", name, c, want)
		}
	}
	// Neither wrong connections nor failures are the trial's fault.
	if reasons := m.judge(); len(reasons) > 0 {
		t.Errorf("tripped %+v", reasons)
	}
	r.Counts = map[string]float64{generation.Judged: 0}
	m.loads["client"] = r
	if reasons := m.judge(); len(reasons) != 1 || reasons[0].Gate != "idle" {
		t.Errorf("a load that judged nothing: %+v", reasons)
	}
	r.Counts = nil // it was not there to judge: then a failure is one
	m.loads["client"] = r
	if reasons := m.judge(); len(reasons) != 1 || reasons[0].Gate != "errors" {
		t.Errorf("failed connections: %+v", reasons)
	}
	m.loads, m.work = map[string]load.Result{}, nil
	for name := range m.values() {
		if strings.HasPrefix(name, "replacement") || strings.HasPrefix(name, "old_endpoint") {
			t.Errorf("%s of nothing", name)
		}
	}
	if len(m.counts()) != 0 {
		t.Errorf("counts of nothing: %v", m.counts())
	}
}
