package pods

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	api "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tare/internal/experiment/load"
	"tare/internal/experiment/record"
	"tare/internal/scale/ledger"
	"tare/internal/tracing/exec"
)

const tracedSpec = `name: traced
question: What does the tracer deliver?
nodes: 2
loads:
  execs: {kind: exec, rate: 100}
arms:
  tracer:
    subject: installed-tracer
    logs: namespace=tracing,container=tracer
    lines: '"tare-exec"'
    components: namespace=tracing,component=tracer
factors:
  nodes: [1, 2, 5]
`

// TestTakeLog: a line of a log counts if it matches and its time is not before the loads begin.
func TestTakeLog(t *testing.T) {
	begin := time.Date(2026, 11, 30, 12, 0, 0, 5000, time.UTC)
	event := func(line []byte) bool { return bytes.Contains(line, []byte("exec")) }
	for _, c := range []struct {
		name, log string
		n         int64
		err       string
	}{
		{"none", "", 0, "EOF"},
		{"lines", "2026-11-30T12:00:00.000005Z an exec\n2026-11-30T12:00:01Z a fork\n2026-11-30T13:00:01.5+01:00 exec\n", 2,
			"EOF"},
		{"earlier", "2026-11-30T12:00:00.000004Z an exec\n2026-11-30T12:00:09Z an exec\n", 1, "EOF"},
		{"unfinished", "2026-11-30T12:00:09Z an exec", 0, "EOF"},
		{"long", "2026-11-30T12:00:09Z exec " + strings.Repeat("x", 3*maxLine) + "\n2026-11-30T12:00:09Z exec\n", 2, "EOF"},
		{"cut off", "2026-11-30T12:00:09Z " + strings.Repeat("x", maxLine) + " exec\n2026-11-30T12:00:09Z exec\n", 1, "EOF"},
		{"no time", "2026-11-30T12:00:09Z exec\nexec\n", 1, "a line has no time"},
		{"empty line", "\n", 0, "a line has no time"},
	} {
		l := &logs{counts: map[string]*count{"a": {From: begin}}}
		err := l.take(strings.NewReader(c.log), "a", event)
		if n := l.counts["a"].N; n != c.n || err == nil || !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %d events (%v), want %d (%s)", c.name, n, err, c.n, c.err)
		}
	}
	l := &logs{counts: map[string]*count{"a": {}}}
	if err := l.take(strings.NewReader("2026-11-30T12:00:09Z exec\n"), "a", event); !errors.Is(err, io.EOF) ||
		l.counts["a"].N != 0 {
		t.Errorf("before the window is known: %d, %v", l.counts["a"].N, err)
	}
}

// TestSettle: settle returns the counts after a pause without new events, or an error if a log can no longer be
// followed.
func TestSettle(t *testing.T) {
	l := &logs{counts: map[string]*count{"a": {N: 5}, "b": {N: 7}}}
	late := time.AfterFunc(time.Second, func() { l.add("b", time.Now()) })
	defer late.Stop()
	l.from(time.Now().Add(-time.Minute), nil)
	got, err := l.settle(t.Context(), map[string]int64{"a": 5, "b": 9})
	if err != nil || got["a"] != 5 || got["b"] != 8 {
		t.Errorf("%v, %v", got, err)
	}
	l.counts["b"].err = errors.New("gone")
	if _, err := l.settle(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "gone") {
		t.Errorf("a log that ended: %v", err)
	}
	l.counts["b"].err = nil
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.settle(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("an ended trial: %v", err)
	}
}

// TestOnNodes: every part of an experiment on nodes runs on each of them, and only these are weighed.
func TestOnNodes(t *testing.T) {
	s := parse(t, tracedSpec)
	if err := Check(s); err != nil {
		t.Fatal(err)
	}
	names, changed := Spread(s, nodes("control", "a", "b", "c"))
	if !slices.Equal(names, []string{"a", "b"}) || !strings.Contains(changed, "the levels of 5 nodes are left out") {
		t.Errorf("%v, %q", names, changed)
	}
	if names, changed := Spread(parse(t, meshSpec), nodes("a")); names != nil || changed != "" {
		t.Errorf("without nodes: %v, %q", names, changed)
	}
	x := underWayOf(t, tracedSpec, "tracer")
	x.o.Spread, x.nodeOf = names, map[string]string{}
	x.place(2)
	if len(x.nodeOf) != 2 || x.nodeOf["execs_1"] != "a" || x.nodeOf["execs_2"] != "b" || len(x.spec.Loads) != 2 ||
		x.spec.Loads["execs_2"].Options["rate"] != "100" || !x.weighs("a") || x.weighs("c") {
		t.Errorf("%v, %v", x.nodeOf, x.spec.Loads)
	}
}

// TestLogged: the log of a node is that of the only running container there that matches.
func TestLogged(t *testing.T) {
	tracer := func(node, pod, container string, phase api.PodPhase) api.Pod {
		p := api.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "tracing", Name: pod}}
		p.Spec.NodeName, p.Status.Phase = node, phase
		p.Spec.Containers = []api.Container{{Name: "other"}, {Name: container}}
		return p
	}
	going := tracer("a", "old", "tracer", api.PodRunning)
	going.DeletionTimestamp = &metav1.Time{}
	x := underWayOf(t, tracedSpec, "tracer")
	x.loads = map[string]*playing{"execs_1": {node: "a"}, "execs_2": {node: "b"}}
	b := tracer("b", "t2", "tracer", api.PodRunning)
	for _, c := range []struct {
		name string
		pods []api.Pod
		want string // of the error
	}{
		{"good", []api.Pod{going, tracer("a", "t1", "tracer", api.PodRunning), b, tracer("c", "t3", "tracer",
			api.PodRunning)}, ""},
		{"two", []api.Pod{tracer("a", "t1", "tracer", api.PodRunning), tracer("a", "t9", "tracer", api.PodRunning), b},
			"two containers of the node a match the rule for its logs: tracer of t1, and tracer of t9"},
		{"none", []api.Pod{going, tracer("a", "t1", "tracer", api.PodFailed), b}, "no container that runs on the node a"},
		{"another", []api.Pod{tracer("a", "t1", "agent", api.PodRunning), b}, "no container that runs on the node a"},
	} {
		logged, err := x.logged(c.pods)
		if c.want == "" && (err != nil || len(logged) != 2 || logged["a"].Pod != "t1") ||
			c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, %v; want %q", c.name, logged, err, c.want)
		}
	}
	x.followed = true
	if _, err := x.logged([]api.Pod{b}); err == nil || x.record.Validity.Cause != ledger.Neighbour {
		t.Errorf("a pod that is being replaced: %v, %q", err, x.record.Validity.Cause)
	}
}

// TestMixed: eBPF programs are not weighed if they include those of other nodes on the same machine, which are not
// weighed.
func TestMixed(t *testing.T) {
	for _, c := range []struct {
		weighed []string
		mixed   bool
	}{{nil, false}, {[]string{"a", "c"}, true}, {[]string{"a", "b"}, false}, {[]string{"c"}, false}} {
		x := underWayOf(t, tracedSpec, "tracer")
		for i := range x.o.Nodes[:2] {
			x.o.Nodes[i].Machine = "one"
		}
		x.nodes = c.weighed
		l := ledgerOf()
		if got := x.mixed(l); got != c.mixed || got != (len(l.Warnings) > 0) {
			t.Errorf("%v: %t, %v", x.nodes, got, l.Warnings)
		}
	}
}

// TestEvents: what a tracer did not deliver is lost, and the record says on which nodes.
func TestEvents(t *testing.T) {
	x := underWayOf(t, tracedSpec, "tracer", podOf("execs_1", "a"), podOf("execs_2", "b"))
	x.o.Spread, x.nodeOf = []string{"a", "b"}, map[string]string{}
	x.place(2)
	made := load.Result{Mode: load.Open, Seconds: 1, Intended: 100, Sent: 100, Done: 100, Finished: new(int64(100)),
		Counts: map[string]float64{exec.CountMade: 100, exec.CountFailed: 1, exec.CountWorkers: 1}}
	x.record.Loads = map[string]load.Result{"execs_1": made, "execs_2": made}
	x.loads = map[string]*playing{"execs_1": {node: "a"}, "execs_2": {node: "b"}}
	more := &logs{counts: map[string]*count{"a": {N: 101}, "b": {N: 99}}}
	if err := x.events(t.Context(), more); err == nil ||
		!strings.Contains(err.Error(), "a has 101 events, and its loads made 100") {
		t.Errorf("a log with events of others: %v", err)
	}
	ended := &logs{counts: map[string]*count{"a": {}, "b": {err: errors.New("it ended")}}}
	if err := x.events(t.Context(), ended); err == nil || x.record.Validity.Cause != ledger.Neighbour {
		t.Errorf("a log that ended: %v, %q", err, x.record.Validity.Cause)
	}
	x.record.Validity.Cause = ""
	l := &logs{counts: map[string]*count{"a": {N: 100}, "b": {N: 97}}}
	if err := x.events(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	e := x.record.Events
	if e.Generated != 200 || e.Failed != 2 || *e.Expected != 200 || *e.Delivered != 197 || e.KernelCount != nil {
		t.Errorf("%+v", e)
	}
	a := ledgerOf(group("/a/tare", "ns", "run-0-execs_1", container, 0.1), group("/a/t", "tracing", "t1", "tracer", 0.02))
	b := ledgerOf(group("/b/tare", "ns", "run-0-execs_2", container, 0.1), group("/b/t", "tracing", "t2", "tracer", 0.03))
	if err := x.account([]ledger.View{{Name: "a", Ledger: a}, {Name: "b", Ledger: b}}); err != nil {
		t.Fatal(err)
	}
	m := x.record.Metrics
	for name, want := range map[string]float64{"events_generated": 200, "events_lost": 3, "events_extra": 0,
		"agent_cpu_seconds_per_kiloevent": 0.05 / 0.2} {
		if got, has := m[name]; !has || got < want-1e-9 || got > want+1e-9 {
			t.Errorf("%s is %g (%t), want %g", name, got, has, want)
		}
	}
	for _, name := range []string{"events_counted", "events_late", "events_said_lost"} {
		if got, has := m[name]; has {
			t.Errorf("%s is %g, and nothing counted it", name, got)
		}
	}
	warned := slices.ContainsFunc(x.record.Ledger.Warnings, func(w ledger.Warning) bool {
		return w.Code == "events-lost" && strings.Contains(w.Message, "b: 97 of 100")
	})
	if !warned {
		t.Errorf("%+v", x.record.Ledger.Warnings)
	}
	baseline := underWayOf(t, tracedSpec, record.Direct)
	baseline.loads, baseline.record.Loads = x.loads, x.record.Loads
	baseline.spec = x.spec
	if err := baseline.events(t.Context(), nil); err != nil || baseline.record.Events.Delivered != nil ||
		baseline.record.Events.Generated != 200 {
		t.Errorf("%v: %+v", err, baseline.record.Events)
	}
}
