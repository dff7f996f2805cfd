package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/internal/experiment/cluster"
	"tare/internal/experiment/load"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
	"tare/internal/experiment/role"
	"tare/internal/experiment/spec"
	"tare/internal/lib/pace"
	"tare/internal/mesh/generation"
	"tare/internal/mesh/push"
	"tare/internal/mesh/storebench"
	"tare/internal/scale/ledger"
	"tare/internal/workloads/load/probe"
	"tare/test/metrictest"
)

// nodesSpec is an experiment on nodes.
const nodesSpec = `name: on-nodes
question: What does it cost at each node?
nodes: 3
blocks: 1
warmup: 10ms
duration: 100ms
applications: {server: {kind: http}}
loads: {client: {kind: http, to: server, rate: 50, connections: 4, keepalive: false}}
gates: {rate: 0.01, errors: 1, lag: 60s, generator_cpu: 1, drift: 1000}
`

// TestNodesKey: the resolved spec has the key nodes. The spec that is sent to nodes does not, and names no factor or
// part that it lacks.
func TestNodesKey(t *testing.T) {
	s := mustParse(t, nodesSpec)
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if again := mustParse(t, string(text)); again.Nodes() != 3 {
		t.Errorf("resolved, it has %d nodes: %s", again.Nodes(), text)
	}
	s = mustParse(t, strings.Replace(nodesSpec, "loads: {", "loads: {more: {kind: http, to: server, rate: 1}, ", 1)+
		`factors: {client.rate: [50, 60], nodes: [2, 3], more.count: [0, 1]}
assert: ["latency_p99_seconds{client.rate=60} <= 3s"]
cluster: {where: {more: {together: client}}, accounts: {more: reader}}
`)
	x := newNodesTrial(Machine{}, s.At(spec.Level{"client.rate": "60", "nodes": "2", "more.count": "0"}), "aa", 7)
	data, err := x.job(record.PlannedTrial{Index: 4, Arm: "aa"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	var j nodeJob
	if err := json.Unmarshal(data, &j); err != nil {
		t.Fatal(err)
	}
	told := mustParse(t, string(j.Spec))
	if told.Nodes() != 0 || len(told.Factors) != 0 || told.Loads["client"].Options["rate"] != "60" || j.Seed != 7 ||
		j.Planned.Index != 4 {
		t.Errorf("a node is told %s", data)
	}
}

// fakeNodes are nodes whose outcomes a test sets.
type fakeNodes struct {
	names    []string
	outcomes func(planned record.PlannedTrial) []cluster.Outcome
	ensured  int
	group    string
	pids     []int
}

func (f *fakeNodes) Names() []string                        { return f.names }
func (f *fakeNodes) Ensure(context.Context, []string) error { f.ensured++; return nil }
func (f *fakeNodes) Why(string) string                      { return "" }
func (f *fakeNodes) PIDs() []int                            { return f.pids }
func (f *fakeNodes) Group() string                          { return f.group }

func (f *fakeNodes) Run(_ context.Context, _ []string, _ cluster.Share, data json.RawMessage, _, _ time.Duration,
	begun func(int64)) []cluster.Outcome {
	var j nodeJob
	if err := json.Unmarshal(data, &j); err != nil {
		panic(err)
	}
	begun(pace.Now())
	return f.outcomes(j.Planned)
}

// goodOutcome returns the outcome of a node with one load of the given number of requests, all with the given latency.
func goodOutcome(t *testing.T, name string, planned record.PlannedTrial, done int64, latency time.Duration,
	change func(*nodeRecord)) cluster.Outcome {
	t.Helper()
	r := load.Result{Generator: "http", Mode: load.Open, Seconds: 2, Rate: float64(done) / 2, Intended: done, Sent: done,
		Done: done, Opened: done, Connections: 4, CPUs: 1}
	h := hdrhistogram.New(1, 100_000_000_000, 3)
	if err := h.RecordValues(latency.Nanoseconds(), done); err != nil {
		t.Fatal(err)
	}
	if err := r.SetHistogram(load.Latency, h); err != nil {
		t.Fatal(err)
	}
	n := nodeRecord{Trial: record.Trial{
		Schema: record.TrialSchema, PlannedTrial: planned, Ledger: &ledger.Ledger{}, Validity: record.Validity{Valid: true},
		Loads: map[string]load.Result{"client": r},
		Metrics: map[string]float64{"cpu_seconds_per_connection": float64(done) * 1e-6, "memory_hard_bytes": float64(done),
			"latency_p50_seconds": 99, "throughput_per_second": float64(done) / 2, "error_ratio": 99,
			"events_generated": float64(done), "cpu_seconds_per_request": float64(done) * 1e-3},
		Counts: map[string]record.Count{"bpf_client_share": {In: 1, Of: int(done)}},
	}}
	if change != nil {
		change(&n)
	}
	text, err := json.Marshal(n)
	if err != nil {
		t.Fatal(err)
	}
	return cluster.Outcome{Name: name, Record: text, Begin: 1, Clock: &cluster.Offset{Ahead: 5, Error: 2}}
}

// TestFailedBesideOthers: a trial that failed at all nodes while others used their machine is worth repeating. About
// nodes on other machines, this machine knows nothing.
func TestFailedBesideOthers(t *testing.T) {
	g := newGround(t)
	for _, tt := range []struct {
		group  string
		stolen bool
		want   ledger.Cause
	}{{"/tare-nodes", true, ledger.Hypervisor}, {"/tare-nodes", false, ""}, {"", true, ""}} {
		m := g.machine
		m.Nodes = &fakeNodes{names: []string{"a"}, group: tt.group, outcomes: func(p record.PlannedTrial) []cluster.Outcome {
			return []cluster.Outcome{goodOutcome(t, "a", p, 10, 1, func(r *nodeRecord) { r.Closed = 30_000_000 })}
		}}
		m.OpenWindow = func(_ context.Context, at int64) (Window, error) {
			return stolenWindow{newEmptyWindow(at), tt.stolen}, nil
		}
		spec := nodesSpec
		tr := record.Trial{Schema: record.TrialSchema, PlannedTrial: record.PlannedTrial{Index: 1, Arm: record.Direct}}
		x := newNodesTrial(m, mustParse(t, strings.Replace(spec, "nodes: 3", "nodes: 1", 1)), tr.Arm, 0)
		_ = x.run(t.Context(), &tr) // the error is in the trial
		if again := len(measured.LostToOthers(&tr)) > 0; tr.Validity.Failed == "" || tr.Validity.Cause != tt.want ||
			again != (tt.want != "") {
			t.Errorf("%+v: %+v, again: %v", tt, tr.Validity, again)
		}
	}
}

// busyWindow is a window in which groups used CPU time.
type busyWindow struct {
	emptyWindow
	groups map[string]float64 // seconds, by path
}

func (w busyWindow) CloseAt(ctx context.Context, at int64) (*ledger.Ledger, error) {
	l, err := w.emptyWindow.CloseAt(ctx, at)
	if err != nil {
		return nil, err
	}
	total := 0.0
	for path, seconds := range w.groups {
		l.Cgroups = append(l.Cgroups, ledger.Cgroup{Path: path, CPUSeconds: ptr(seconds)})
		total += seconds
	}
	l.CPU = ledger.CPU{Capacity: 2, Lines: []ledger.CPULine{{Name: ledger.LineGroups, Seconds: total}}}
	return l, nil
}

// TestTrialIsNoNeighbour: CPU time of the trial itself at local nodes does not count as a disturbance, whether the
// trial failed there or tripped a gate. The agents' group contains only the agents; each trial has a tree at the top.
func TestTrialIsNoNeighbour(t *testing.T) {
	g := newGround(t)
	late := func(r *nodeRecord) { r.Closed = 30_000_000 }
	slow := func(r *nodeRecord) {
		r.Trial.Validity = record.Validity{Reasons: []record.Reason{{Gate: measured.GateRate.Name, Message: "client: slow",
			Seen: 0.9, Allowed: 0.99, Cause: ledger.Subject, Voids: []string{"latency_p50_seconds"}}}}
	}
	run := func(tree string, change func(*nodeRecord)) record.Validity {
		m := g.machine
		m.Nodes = &fakeNodes{names: []string{"a"}, group: "/tare-nodes-p1-t2", pids: []int{7},
			outcomes: func(p record.PlannedTrial) []cluster.Outcome {
				return []cluster.Outcome{goodOutcome(t, "a", p, 1000, time.Millisecond, change)}
			}}
		m.OpenWindow = func(_ context.Context, at int64) (Window, error) {
			return busyWindow{newEmptyWindow(at), map[string]float64{tree: 0.95, "/tare-nodes-p1-t2": 0.01, "/other": 0.04}}, nil
		}
		tr := record.Trial{Schema: record.TrialSchema, PlannedTrial: record.PlannedTrial{Index: 1, Arm: record.Direct}}
		one := mustParse(t, strings.Replace(nodesSpec, "nodes: 3", "nodes: 1", 1))
		_ = newNodesTrial(m, one, tr.Arm, 0).run(t.Context(), &tr) // the error is in the trial
		return tr.Validity
	}
	for tree, neighbour := range map[string]bool{"/tare-trial-1-p7-t9": false, "/tare-trial-1-p8-t9": true} {
		want := map[bool]ledger.Cause{true: ledger.Neighbour}[neighbour]
		if v := run(tree, late); v.Failed == "" || v.Cause != want {
			t.Errorf("%s: a trial that failed: %+v, want the cause %q", tree, v, want)
		}
		v := run(tree, slow)
		if len(v.Reasons) != 1 {
			t.Fatalf("%s: %+v", tree, v)
		}
		r := v.Reasons[0]
		if (r.Cause == ledger.Neighbour) != neighbour || r.VoidsMetric("throughput_per_second") != neighbour ||
			!r.VoidsMetric("latency_p50_seconds") {
			t.Errorf("%s: a gate tripped: %+v", tree, r)
		}
	}
}

// TestPooled: the metrics of a trial on nodes are those of all of them together. A node that failed is excluded, and
// sums are then absent.
func TestPooled(t *testing.T) {
	g := newGround(t)
	run := func(outcomes func(record.PlannedTrial) []cluster.Outcome) record.Trial {
		t.Helper()
		m := g.machine
		m.Nodes = &fakeNodes{names: []string{"a", "b", "c"}, outcomes: outcomes}
		tr := record.Trial{Schema: record.TrialSchema, PlannedTrial: record.PlannedTrial{Index: 1, Arm: record.Direct}}
		_ = newNodesTrial(m, mustParse(t, nodesSpec), tr.Arm, 0).run(t.Context(), &tr) // the error is in the trial
		return tr
	}
	three := func(change func([]cluster.Outcome)) func(p record.PlannedTrial) []cluster.Outcome {
		return func(p record.PlannedTrial) []cluster.Outcome {
			os := []cluster.Outcome{
				goodOutcome(t, "a", p, 1000, time.Millisecond, nil), goodOutcome(t, "b", p, 1000, time.Millisecond, nil),
				goodOutcome(t, "c", p, 4000, 3*time.Millisecond, nil)}
			change(os)
			return os
		}
	}
	absent := math.NaN()
	check := func(tr record.Trial, want map[string]float64) {
		t.Helper()
		for name, v := range want {
			got, ok := tr.Metrics[name]
			if ok == math.IsNaN(v) || ok && math.Abs(got-v) > 0.002*math.Abs(v) {
				t.Errorf("%s is %v (there: %v), want %v", name, got, ok, v)
			}
		}
	}
	tr := run(three(func([]cluster.Outcome) {}))
	if !tr.Validity.Valid || len(tr.Nodes) != 3 || *tr.Nodes[0].ClockOffset != 5 || *tr.Nodes[2].ClockError != 2 ||
		*tr.Nodes[1].StartedLateNs != 0 {
		t.Errorf("%+v, nodes %+v", tr.Validity, tr.Nodes)
	}
	check(tr, map[string]float64{
		"throughput_per_second": 3000, "latency_p50_seconds": 3e-3, "error_ratio": 0, "memory_hard_bytes": 2000,
		"nodes_failed":               0,
		"cpu_seconds_per_connection": (1000*1000e-6 + 1000*1000e-6 + 4000*4000e-6) / 6000, "map_bytes": absent,
	})
	if l := tr.Loads["client"]; l.Done != 6000 || l.Connections != 12 || l.Seconds != 2 ||
		tr.Nodes[0].Trial.Loads["client"].Histograms != nil {
		t.Errorf("the loads together: %+v", l)
	}
	if c := tr.Counts["bpf_client_share"]; c != (record.Count{In: 3, Of: 6000}) {
		t.Errorf("counts %+v", c)
	}

	p := &measured.Pool{Setup: &mustParse(t, nodesSpec).Setup, Trial: &tr}
	p.Gather()
	for name, want := range map[string]float64{"events_generated": 6000,
		"cpu_seconds_per_request": (1000*1 + 1000*1 + 4000*4) / 6000.0} {
		if v, ok := p.Over(metricOf(t, name)); !ok || math.Abs(v-want) > 1e-9 {
			t.Errorf("%s over the nodes is %v (%v), want %v", name, v, ok, want)
		}
	}

	for _, c := range []struct {
		name   string
		change func([]cluster.Outcome)
		says   string
	}{
		{"gone", func(os []cluster.Outcome) { os[2].Record, os[2].Failed = nil, errors.New("it went away") }, "it went away"},
		{"half a record", func(os []cluster.Outcome) { os[2].Record = os[2].Record[:len(os[2].Record)/2] },
			"its record cannot be decoded"},
		{"no record", func(os []cluster.Outcome) { os[2].Record = nil }, "it sent no record"},
		{"no metrics", func(os []cluster.Outcome) {
			os[2] = goodOutcome(t, "c", record.PlannedTrial{Index: 1, Arm: record.Direct}, 10, 1,
				func(r *nodeRecord) { r.Trial.Metrics = nil })
		}, "its record is incomplete"},
		{"another trial", func(os []cluster.Outcome) {
			os[2] = goodOutcome(t, "c", record.PlannedTrial{Index: 2, Arm: record.Direct}, 10, 1, nil)
		}, "its record is of trial 2 (direct), not of 1 (direct)"},
		{"a negative count", func(os []cluster.Outcome) {
			os[2] = goodOutcome(t, "c", record.PlannedTrial{Index: 1, Arm: record.Direct}, 10, 1, func(r *nodeRecord) {
				l := r.Trial.Loads["client"]
				l.Errors = map[string]int64{"read": -5}
				r.Trial.Loads["client"] = l
			})
		}, `its record has an impossible value of the load "client": errors.read is -5`},
		{"more values than any record", func(os []cluster.Outcome) {
			os[2].Record = json.RawMessage(`{"trial":{"ledger":{"cgroups":[` + strings.Repeat("{},", role.MaxValues) + `{}]}}}`)
		}, "its record has more than 100000 values"},
		{"a record that grows", func(os []cluster.Outcome) {
			os[2].Record = json.RawMessage(`{"trial":{"schema":"tare.trial/v1","index":1,"arm":"direct","metrics":{},"ledger":{"cgroups":[` + strings.Repeat("{},", role.MaxValues/2-100) + `{}]}}}`)
		}, "MiB, and 8 are allowed"},
		{"a record of nodes", func(os []cluster.Outcome) {
			os[2] = goodOutcome(t, "c", record.PlannedTrial{Index: 1, Arm: record.Direct}, 10, 1,
				func(r *nodeRecord) { r.Trial.Nodes = make([]record.NodeTrial, 2) })
		}, "its record contains records of other nodes"},
		{"before its time", func(os []cluster.Outcome) {
			os[2] = goodOutcome(t, "c", record.PlannedTrial{Index: 1, Arm: record.Direct}, 10, 1,
				func(r *nodeRecord) { r.Late = -1 })
		}, "before the time"},
		{"late", func(os []cluster.Outcome) {
			os[2] = goodOutcome(t, "c", record.PlannedTrial{Index: 1, Arm: record.Direct}, 10, 1,
				func(r *nodeRecord) { r.Late = 12_345_678 })
		}, "it began 12.3ms late, and 5ms is allowed"},
		{"counters read late", func(os []cluster.Outcome) {
			os[2] = goodOutcome(t, "c", record.PlannedTrial{Index: 1, Arm: record.Direct}, 10, 1,
				func(r *nodeRecord) { r.Closed = 30_000_000 })
		}, "its counters were read 30ms after an edge of the window, and 20ms is allowed"},
		{"failed there", func(os []cluster.Outcome) {
			os[2] = goodOutcome(t, "c", record.PlannedTrial{Index: 1, Arm: record.Direct}, 10, 1,
				func(r *nodeRecord) { r.Trial.Validity = record.Validity{Failed: "setting up: no"} })
		}, "setting up: no"},
	} {
		tr := run(three(c.change))
		if !tr.Validity.Valid || !strings.Contains(tr.Nodes[2].Failed, c.says) || tr.Nodes[0].Failed != "" {
			t.Errorf("%s: %+v, nodes %+v", c.name, tr.Validity, tr.Nodes)
		}
		if says := tr.FailedNodes(len(tr.Nodes)); !strings.HasPrefix(says, "c: ") || !strings.Contains(says, c.says) {
			t.Errorf("%s: it says %q", c.name, says)
		}
		check(tr, map[string]float64{"throughput_per_second": absent, "latency_p50_seconds": 1e-3, "memory_hard_bytes": 1000,
			"cpu_seconds_per_connection": 1e-3, "nodes_failed": 1})
		p := &measured.Pool{Setup: &mustParse(t, nodesSpec).Setup, Trial: &tr}
		p.Gather()
		if _, ok := p.Over(metricOf(t, "events_generated")); ok {
			t.Errorf("%s: a sum over two of three nodes", c.name)
		}
	}

	two := func(os []cluster.Outcome) { os[1].Failed, os[2].Failed = errors.New("gone"), errors.New("gone") }
	if tr := run(three(two)); tr.Validity.Valid || len(tr.Validity.Reasons) != 1 ||
		tr.Validity.Reasons[0].Gate != "nodes" || !strings.Contains(tr.Validity.Reasons[0].Message, "2 of 3 nodes failed") {
		t.Errorf("two of three: %+v", tr.Validity)
	}
	all := func(os []cluster.Outcome) {
		for i := range os {
			os[i].Failed = fmt.Errorf("gone by way %d", i+1)
		}
	}
	if tr := run(three(all)); !strings.Contains(tr.Validity.Failed,
		"the trial failed at all of 3 nodes; at a: gone by way 1; b: gone by way 2; c: gone by way 3") || len(tr.Nodes) != 3 {
		t.Errorf("all: %+v", tr.Validity)
	}
	many := &record.Trial{Nodes: []record.NodeTrial{{Name: "a", Failed: "gone"}, {Name: "b"}, {Name: "c", Failed: "late"},
		{Name: "d", Failed: "gone"}}}
	if says := many.FailedNodes(2); says != "a: gone; c: late; and at 1 more" {
		t.Errorf("the first two of three: %q", says)
	}
	invalid := func(os []cluster.Outcome) {
		for i, name := range []string{"a", "b", "c"} {
			os[i] = goodOutcome(t, name, record.PlannedTrial{Index: 1, Arm: record.Direct}, 10, 1, func(r *nodeRecord) {
				r.Trial.Validity = record.Validity{Reasons: []record.Reason{{Gate: "lag", Message: "client: late"}}}
			})
		}
	}
	if tr := run(three(invalid)); tr.Validity.Valid || len(tr.Validity.Reasons) != 1 ||
		tr.Validity.Reasons[0].Message != "a: client: late (and 2 more of the gate lag)" {
		t.Errorf("invalid at each: %+v", tr.Validity)
	}
}

// TestNoNodes: a trial on nodes that are not connected is rejected with a hint.
func TestNoNodes(t *testing.T) {
	g := newGround(t)
	for want, nodes := range map[string]Nodes{"give --local-nodes": nil,
		"on 3 nodes, and there are 2": &fakeNodes{names: []string{"a", "b"}}} {
		m := g.machine
		m.Nodes = nodes
		var tr record.Trial
		err := newNodesTrial(m, mustParse(t, nodesSpec), record.Direct, 0).run(t.Context(), &tr)
		if err == nil || !strings.Contains(tr.Validity.Failed, want) {
			t.Errorf("got %v, %+v", err, tr.Validity)
		}
	}
}

// TestNodeAgent: an agent runs a real trial, within its share of the machine, from the given start time; this test is
// the coordinator.
func TestNodeAgent(t *testing.T) {
	g := newGround(t)
	planned := record.PlannedTrial{Index: 4, Arm: record.Direct}
	x := newNodesTrial(Machine{}, mustParse(t, nodesSpec), planned.Arm, 3)
	data, err := x.job(planned, 0)
	if err != nil {
		t.Fatal(err)
	}
	readied := false
	a := NodeAgent{Name: "a", Dir: t.TempDir(), Ready: func() error { readied = true; return nil },
		Machine: func(*spec.Spec) (Machine, error) { return g.machine, nil }}
	var begin int64
	soon := func(context.Context) (int64, error) {
		if !readied {
			t.Error("not readied before the barrier")
		}
		limits := map[string]int{}
		want := map[string]string{"cpu.cfs_quota_us": "50000", "cpu.max": "50000 100000", "cpu.shares": "256",
			"cpu.weight": "25"}
		for _, h := range g.machine.Cgroups.Hierarchies {
			for file, is := range want {
				found, _ := filepath.Glob(filepath.Join(h.Mount, fmt.Sprintf("tare-trial-4-p%d-*", os.Getpid()), file))
				for _, f := range found {
					if text, err := os.ReadFile(f); err == nil && strings.TrimSpace(string(text)) == is {
						limits[file[:5]]++
					}
				}
			}
		}
		if n := limits["cpu.c"] + limits["cpu.m"]; n != 1 || limits["cpu.s"]+limits["cpu.w"] != 1 {
			t.Errorf("%d limits of half a CPU, of the files %v", n, limits)
		}
		begin = pace.Now() + int64(100*time.Millisecond)
		return begin, nil
	}
	// A group with a quarter of one process's weight may get no CPU time for seconds if many processes want a CPU. The few
	// requests of such a short trial are then not answered in time, and it is repeated.
	var out []byte
	var r nodeRecord
	for tries := 1; tries == 1 || tries <= 5 && r.Trial.Metrics["throughput_per_second"] == 0; tries++ {
		if out, err = a.Run(t.Context(), cluster.Job{ID: 1, Share: cluster.Share{CPUs: 0.5, Weight: 0.25}, Data: data},
			soon); err != nil {
			t.Fatal(err)
		}
		r = nodeRecord{}
		if err := json.Unmarshal(out, &r); err != nil {
			t.Fatal(err)
		}
		if r.Trial.Validity.Failed != "" {
			break
		}
	}
	if r.Late != 0 || r.Trial.Index != 4 || r.Trial.Validity.Failed != "" ||
		r.Trial.Metrics["throughput_per_second"] <= 0 {
		t.Errorf("%+v", r)
	}
	opened := measured.MonotonicOf(r.Trial.Ledger.Window.Start)
	early := time.Duration(begin + int64(x.spec.Warmup) - opened)
	if early > time.Millisecond || r.Opened < 0 || r.Closed < 0 {
		t.Errorf("the window opened %v before the warm-up's end", early)
	}
	if kept, err := os.ReadFile(filepath.Join(a.Dir, nodeRecordFile)); err != nil || string(kept) != string(out) {
		t.Errorf("the node keeps %q (%v)", kept, err)
	}

	t.Run("late", func(t *testing.T) {
		out, err := a.Run(t.Context(), cluster.Job{ID: 2, Data: data},
			func(context.Context) (int64, error) { return pace.Now() - int64(20*time.Millisecond), nil })
		if err != nil {
			t.Fatal(err)
		}
		n := (&nodesTrial{machine: Machine{Nodes: &fakeNodes{}}, spec: x.spec}).nodeTrial(cluster.Outcome{Name: "a",
			Record: out, Begin: 1}, planned, 0)
		if !strings.Contains(n.Failed, "late, and 5ms is allowed") || n.Trial == nil ||
			*n.StartedLateNs < int64(20*time.Millisecond) {
			t.Errorf("%+v", n)
		}
	})
	t.Run("variant without a load", func(t *testing.T) {
		const more = "loads: {noise: {kind: http, to: server, rate: 50, connections: 4}, "
		level := mustParse(t, strings.Replace(nodesSpec, "loads: {", more, 1)+
			"arms: {calm: {subject: variant, set: noise.count=0}}\n")
		for arm, want := range map[string][]string{record.Direct: {"client", "noise"}, "calm": {"client"}} {
			planned := record.PlannedTrial{Index: 4, Arm: arm}
			data, err := newNodesTrial(Machine{}, level, arm, 3).job(planned, 0)
			if err != nil {
				t.Fatal(err)
			}
			out, err := a.Run(t.Context(), cluster.Job{ID: 6, Data: data}, startBarrier)
			if err != nil {
				t.Fatal(err)
			}
			r, err := decodeNodeRecord(out)
			if got := slices.Sorted(maps.Keys(r.Trial.Loads)); err != nil || !slices.Equal(got, want) {
				t.Errorf("%s: the loads are %q, want %q (%v)", arm, got, want, err)
			}
		}
	})
	t.Run("no directory", func(t *testing.T) {
		b := a
		b.Dir = filepath.Join(a.Dir, "gone")
		out, err := b.Run(t.Context(), cluster.Job{ID: 3, Data: data}, startBarrier)
		if out == nil || err == nil || !strings.Contains(err.Error(), "the node's record cannot be written") {
			t.Errorf("%v, and a record: %v", err, out != nil)
		}
	})
	t.Run("abandoned", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		out, err := a.Run(ctx, cluster.Job{ID: 4, Data: data}, func(ctx context.Context) (int64, error) {
			cancel(cluster.ErrAbandoned)
			return 0, context.Cause(ctx)
		})
		if out == nil || !errors.Is(err, cluster.ErrAbandoned) {
			t.Errorf("%v, and a record: %v", err, out != nil)
		}
	})
	t.Run("no trial", func(t *testing.T) {
		for _, data := range []string{`{}`, `{"spec": {"name": "x"}}`, `[]`} {
			out, err := a.Run(t.Context(), cluster.Job{ID: 5, Data: json.RawMessage(data)}, startBarrier)
			if err == nil || out != nil {
				t.Errorf("%s: %v", data, err)
			}
		}
	})
}

// TestNodeSeeds: copies of a load at different nodes do not start their requests at the same moments.
func TestNodeSeeds(t *testing.T) {
	seeds := map[uint64]bool{}
	for _, name := range []string{"a", "b", "c"} {
		seeds[NodeAgent{Name: name}.seed(1)] = true
		seeds[NodeAgent{Name: name}.seed(2)] = true
	}
	if len(seeds) != 6 {
		t.Errorf("%v", slices.Sorted(maps.Keys(seeds)))
	}
}

// FuzzNodeRecord: whatever a node sends as its record, the pooled trial is made without a panic, can be written, and
// has no metric of a failed node.
func FuzzNodeRecord(f *testing.F) {
	planned := record.PlannedTrial{Index: 1, Arm: record.Direct}
	for _, seed := range []string{
		`{}`, `[]`, `{"trial":null}`, `{"trial":{"schema":"tare.trial/v1","index":1,"arm":"direct"}}`,
		`{"trial":{"schema":"tare.trial/v1","index":1,"arm":"direct","ledger":{},"metrics":{},"loads":{"client":{"rate":1e308,"cpus":-1e308,"counts":{"n":1e308},"histograms":{"latency":"!"}}}}}`,
		`{"trial":{"schema":"tare.trial/v1","index":1,"arm":"direct","ledger":{"cgroups":[{"path":"/a","role":"load"}],"maps":[{"inner":null}]},"metrics":{"memory_hard_bytes":1e308},"counts":{"x":{"in":-1}},
			"events":{"generated":-5},"validity":{"reasons":[{"gate":"lag"}]}},"late_ns":-1,"closed_late_ns":99999999999}`,
	} {
		f.Add([]byte(seed))
	}
	spec := mustParse(f, nodesSpec)
	f.Fuzz(func(t *testing.T, text []byte) {
		x := &nodesTrial{machine: Machine{Nodes: &fakeNodes{}}, spec: spec}
		tr := record.Trial{Loads: map[string]load.Result{}, Ledger: &ledger.Ledger{}}
		for _, name := range []string{"a", "b"} {
			tr.Nodes = append(tr.Nodes, x.nodeTrial(cluster.Outcome{Name: name, Record: text, Begin: 1}, planned, 0))
		}
		p := &measured.Pool{Setup: &spec.Setup, Trial: &tr}
		p.Gather()
		p.Judge()
		p.Trim("/tare-nodes")
		if measured.FailedNodes(tr.Nodes) == 2 && tr.Metrics["nodes_failed"] != 2 ||
			measured.FailedNodes(tr.Nodes) == 2 && len(tr.Metrics) != 1 {
			t.Errorf("both failed, and the metrics are %v", tr.Metrics)
		}
		if _, err := json.Marshal(tr); err != nil {
			t.Errorf("the trial cannot be written: %v", err)
		}
	})
}

func metricOf(t *testing.T, name string) *measured.Metric {
	t.Helper()
	m, known := measured.Find(name)
	if !known {
		t.Fatalf("there is no metric %s", name)
	}
	return &m
}

// TestNodesNeverAverageQuantiles: one of two nodes saw nine times as many requests, all ten times as slow. A quantile
// of both together is that of all requests, and a maximum is that of the slower node; means of the two nodes' quantiles
// or maxima would be neither.
func TestNodesNeverAverageQuantiles(t *testing.T) {
	node := func(n int64, each time.Duration, most float64) record.NodeTrial {
		h := hdrhistogram.New(1, int64(time.Minute), 3)
		if err := h.RecordValues(each.Nanoseconds(), n); err != nil {
			t.Fatal(err)
		}
		histograms := func(names ...string) load.Result {
			r := load.Result{Seconds: 1, Done: n, Counts: map[string]float64{}}
			for _, name := range names {
				if err := r.SetHistogram(name, h); err != nil {
					t.Fatal(err)
				}
			}
			return r
		}
		client := histograms(probe.Delay, push.Whole, push.Usable, push.Sent, generation.OldEndpoint)
		work := histograms(storebench.FlushTime, push.Received)
		work.Generator = push.Generator
		work.Counts[storebench.FlushSeconds], work.Counts[storebench.Flushes] = float64(n)*each.Seconds(), float64(n)
		return record.NodeTrial{Name: "n", Trial: &record.Trial{
			Loads: map[string]load.Result{"client": client}, Work: &work, Validity: record.Validity{Valid: true},
			Metrics: map[string]float64{ // as reported by a node with Tare before 0.3
				"limited_most_share": most, "sched_delay_p99_seconds": each.Seconds(), "push_p99_seconds": each.Seconds(),
				"flush_p99_seconds":        each.Seconds(),
				"old_endpoint_p99_seconds": each.Seconds(), "push_received_p50_seconds": each.Seconds(),
				"sched_delay_max_seconds": each.Seconds(),
				"flush_seconds":           each.Seconds(),
			},
		}}
	}
	tr := &record.Trial{Loads: map[string]load.Result{}, Nodes: []record.NodeTrial{node(9000, 10*time.Millisecond, 0.9),
		node(1000, time.Millisecond, 0.1)}}
	p := &measured.Pool{Setup: &mustParse(t, nodesSpec).Setup, Trial: tr}
	p.Gather()
	for name, want := range map[string]float64{
		"sched_delay_p50_seconds": 10e-3, "sched_delay_p99_seconds": 10e-3, "sched_delay_max_seconds": 10e-3,
		"push_p99_seconds":        10e-3,
		"push_usable_p99_seconds": 10e-3, "push_sent_p50_seconds": 10e-3, "push_received_p50_seconds": 10e-3,
		"push_received_max_seconds": 10e-3,
		"old_endpoint_p99_seconds":  10e-3, "flush_p99_seconds": 10e-3, "flush_seconds": (9*10e-3 + 1e-3) / 10,
		"limited_most_share": 0.9,
	} {
		if got, ok := tr.Metrics[name]; !ok || math.Abs(got-want) > 0.002*want {
			t.Errorf("%s of both nodes is %v (there: %v), want %v", name, got, ok, want)
		}
	}
}

// TestDefinitions checks every definition, and that no two metrics share a name.
func TestDefinitions(t *testing.T) {
	set := metric.NewSet(measured.Definitions())
	if len(set) != len(measured.Metrics()) {
		t.Errorf("%d metrics have %d names", len(measured.Metrics()), len(set))
	}
	quantile := regexp.MustCompile(`_(p[0-9]+|max)_seconds$`)
	for _, m := range measured.Metrics() {
		if err := metrictest.Check(m.Definition); err != nil {
			t.Error(err)
		}
		if (m.Value == nil) == (m.Count == nil) || (m.Count != nil) != (m.Pool == metric.Counts) {
			t.Errorf("%s: a value or else counts, which are pooled as such", m.Name)
		}
		if quantile.MatchString(m.Name) && (m.Pool != metric.Merged || m.Cost) {
			t.Errorf("%s is a quantile or a maximum, and is pooled by %q, a cost: %v", m.Name, m.Pool, m.Cost)
		}
		if _, defined := set[m.Instead]; m.Instead != "" && !defined {
			t.Errorf("%s has %s instead of it, which there is not", m.Name, m.Instead)
		}
	}
	// The directions of these metrics were once wrong.
	for name, want := range map[string]metric.Direction{
		"replacements_per_second": metric.Higher, "throughput_per_second": metric.Higher, "events_delivered": metric.Higher,
		"events_lost":    metric.Lower,
		"cpu_busy_share": metric.Neither, "bpf_client_share": metric.Neither, "limited_share": metric.Neither,
		"records_per_flush": metric.Neither,
		"map_charged_share": metric.Neither, "events_generated": metric.Neither, "events_counted": metric.Neither,
	} {
		if got := set.Of(name).Better; got != want {
			t.Errorf("%s is better when it is %q, want %q", name, got, want)
		}
	}
}
