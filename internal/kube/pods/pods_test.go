package pods

import (
	"context"
	"fmt"
	"math"
	"net"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	api "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"tare/experiments"
	_ "tare/internal/all"
	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
	"tare/internal/experiment/part"
	"tare/internal/experiment/record"
	"tare/internal/experiment/spec"
	"tare/internal/kube/agents"
	"tare/internal/lib/lists"
	"tare/internal/scale/ledger"
)

const meshSpec = `name: mesh
question: What does the mesh add?
applications:
  server: {kind: http, limits: {cpus: 1}}
loads:
  client: {kind: http, to: server, rate: 100}
arms:
  mesh:
    subject: installed
    labels: inject=yes
    applied: mesh.io/redirection=enabled
    components: >-
      container=proxy,component=sidecar; namespace=mesh-system,component=controlplane; program=mesh_*,component=bpf
`

// sandboxSpec has only the server in a sandbox.
const sandboxSpec = `name: sandbox
question: What does the sandbox add?
applications:
  server: {kind: http, limits: {cpus: 1}}
loads:
  client: {kind: http, to: server, rate: 100}
arms:
  sandbox: {subject: installed, runtime-class: fast, parts: server}
`

func parse(t *testing.T, text string) *spec.Spec {
	t.Helper()
	s, err := spec.Parse("mesh.yaml", []byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func nodes(names ...string) (all []agents.Node) {
	for _, name := range names {
		all = append(all, agents.Node{Name: name, Machine: name, OS: "linux", Ready: true, Schedulable: name != "control",
			Labels: map[string]string{"zone": name}})
	}
	return all
}

func TestPlaces(t *testing.T) {
	for _, c := range []struct {
		cluster string
		nodes   []agents.Node
		want    string // the nodes of the server and the client, or a part of the error
	}{
		{"", nodes("control", "a", "b"), "a b"},
		{"", nodes("control", "a"), "a a"},
		{"", nodes("control"), "no node of the cluster takes pods"},
		{"client: {together: server}", nodes("a", "b"), "a a"},
		{"server: {on: b}, client: {apart: server}", nodes("a", "b"), "b a"},
		{"server: {on: zone=b}, client: {on: zone in (b)}", nodes("a", "b"), "b b"},
		{"server: {on: control}", nodes("control", "a"), "none that takes pods"},
		{"client: {apart: server}", nodes("a"), "only one node takes pods"},
	} {
		text := meshSpec
		if c.cluster != "" {
			text += "cluster: {where: {" + c.cluster + "}}\n"
		}
		at, err := Places(parse(t, text), c.nodes)
		got := at["server"] + " " + at["client"]
		if err != nil {
			got = fmt.Sprintf("%v %v", err, err)
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%s: %s, want %s", c.cluster, got, c.want)
		}
	}
}

func TestCheck(t *testing.T) {
	const started = "name: x\nquestion: y?\n"
	const served = "applications: {s: {kind: http}}\nloads: {c: {kind: http, to: s, rate: 9}}\n"
	for _, c := range []struct{ text, want string }{
		{meshSpec, ""},
		{started + served + "arms: {a: {subject: variant, set: s.delay=1ms}}\n", ""},
		{started + served + "arms: {km: {subject: kernelmesh}}\n",
			"arms.km: kernelmesh is started by Tare"},
		{started + "loads: {c: {kind: fio}}\narms: {a: {subject: variant, set: c.size=1MiB}}\n",
			"loads.c: fio needs more of a machine than a process"},
		{sandboxSpec, ""},
		{strings.Replace(sandboxSpec, "parts: server", "parts: web", 1), "no application or load is named \"web\""},
		{sandboxSpec + "  mesh: {subject: installed, labels: a=b, components: 'container=proxy,component=sidecar'}\n",
			"this arm has the component sidecar of a pod"},
		{started + "duration: 6m\n" + served, "must be at most 5m0s, the longest window of an agent, got 6m0s"},
		{started + "nodes: 2\n" + served, ""},
		{started + served + "factors: {nodes: [0, 2]}\n", "a level with 0 nodes"},
		{started + "nodes: 2\n" + served + "cluster: {where: {c: {apart: s}}}\n", "runs on each of them"},
		{started + served + "cluster: {accounts: {d: x}}\n", `there is no application or load "d"`},
	} {
		s, err := spec.Parse("x.yaml", []byte(c.text), nil)
		if err == nil {
			err = Check(s)
		}
		if got := fmt.Sprint(err); c.want == "" && err != nil || !strings.Contains(got, c.want) {
			t.Errorf("%s\n%s, want %s", c.text, got, c.want)
		}
	}
}

// TestReadyMade: the ready-made experiments for clusters can run in pods, and their quick forms weigh something that is
// installed, unless they have no arms and time what the cluster has.
func TestReadyMade(t *testing.T) {
	for _, name := range experiments.ClusterNames() {
		file, data, _ := experiments.File(name)
		s, err := spec.Parse(file, data, nil)
		if err == nil {
			err = s.Apply(spec.Overrides{Quick: true})
		}
		if err == nil {
			err = Check(s)
		}
		if err != nil {
			t.Error(err)
			continue
		}
		marked := func(p *kind.Part) bool { _, is := p.Kind.(kind.Marked); return is }
		if len(s.Arms) > 0 && !slices.ContainsFunc(s.Subjects(), marked) {
			t.Errorf("%s weighs nothing that is installed", name)
		}
	}
}

// podOf returns the pod of a part on a node, with Tare's container and the given others.
func podOf(name, node string, containers ...string) *api.Pod {
	p := &api.Pod{ObjectMeta: metav1.ObjectMeta{Name: "run-0-" + name, Namespace: "ns",
		Labels: map[string]string{partLabel: name}}}
	p.Spec.NodeName = node
	for _, c := range append([]string{container}, containers...) {
		p.Spec.Containers = append(p.Spec.Containers, api.Container{Name: c})
	}
	return p
}

// underWay returns a trial of an arm of meshSpec, whose pods have run.
func underWay(t *testing.T, arm string, pods ...*api.Pod) *trial {
	t.Helper()
	return underWayOf(t, meshSpec, arm, pods...)
}

func underWayOf(t *testing.T, text, arm string, pods ...*api.Pod) *trial {
	t.Helper()
	s := parse(t, text)
	x := &trial{
		Place: New(Options{Owned: metav1.ObjectMeta{Namespace: "ns"}, Nodes: nodes("a", "b", "c")}), spec: s,
		pods: map[string]*api.Pod{},
		record: &record.Trial{PlannedTrial: record.PlannedTrial{Arm: arm}, Loads: map[string]load.Result{
			"client": {Mode: load.Open, TargetRate: 100, Rate: 100, Seconds: 1, Intended: 100, Sent: 100, Done: 100, Opened: 1,
				Connections: 1, MaxConnections: 1}}},
	}
	if part := s.Of(arm); part != nil {
		m, err := part.Kind.(kind.Marked).Marks(part.Options)
		if err != nil {
			t.Fatal(err)
		}
		x.marks = &m
	}
	for _, p := range pods {
		x.pods[p.Labels[partLabel]] = p
	}
	return x
}

// group returns the control group of a container that has used CPU time.
func group(path, namespace, pod, container string, seconds float64) ledger.Cgroup {
	m := &ledger.Memory{Anon: new(uint64(1000)), Shmem: new(uint64(0)), Kernel: new(uint64(0)), File: new(uint64(0))}
	m.Derive()
	return ledger.Cgroup{Path: path, CPUSeconds: &seconds, Memory: m, ThrottledSeconds: new(0.0),
		Name: &ledger.Name{Namespace: namespace, Pod: pod, Container: container, Top: path},
		// Charges by the agent's own profile are ignored.
		Charged: ledger.Charged{Charge: ledger.ChargeWorkload, Workload: "as the agent says"}, Rule: "profile"}
}

func ledgerOf(groups ...ledger.Cgroup) *ledger.Ledger {
	at := time.Now()
	used := 0.0
	for _, g := range groups {
		used += *g.CPUSeconds
	}
	return &ledger.Ledger{Schema: ledger.Schema, Window: ledger.Window{Start: at, End: at.Add(time.Second), Seconds: 1},
		CPU:     ledger.Budget(ledger.Usage{Capacity: 2, Idle: 2 - used, Groups: used}),
		Cgroups: groups, Maps: []ledger.Map{}, Warnings: []ledger.Warning{},
		Programs: []ledger.Program{{ID: 5, Name: "mesh_connect", RunSeconds: new(0.01), RunCount: new(uint64(9))},
			{ID: 6, Name: "other", RunSeconds: new(0.5), RunCount: new(uint64(9))}}}
}

// meshViews returns the ledgers of three nodes: the server is on a, the client on b, and the control plane on c.
func meshViews(proxied bool) []ledger.View {
	a := ledgerOf(group("/a/tare", "ns", "run-0-server", container, 0.10), group("/a/x", "shop", "web", container, 0.3))
	b := ledgerOf(group("/b/tare", "ns", "run-0-client", container, 0.20))
	c := ledgerOf(group("/c/pilot", "mesh-system", "pilot", "discovery", 0.04))
	if proxied {
		a.Cgroups = append(a.Cgroups, group("/a/proxy", "ns", "run-0-server", "proxy", 0.05))
		b.Cgroups = append(b.Cgroups, group("/b/proxy", "ns", "run-0-client", "proxy", 0.07))
		a.Cgroups = append(a.Cgroups, group("/a/other", "shop", "web", "proxy", 0.5)) // of a pod outside of the trial
	}
	return []ledger.View{{Name: "a", Ledger: a}, {Name: "b", Ledger: b}, {Name: "c", Ledger: c}}
}

// TestAccount: cost is the sum over all nodes of what belongs to the trial, by its pods or by the arm's rules.
func TestAccount(t *testing.T) {
	throttle := func(views []ledger.View, container string) []ledger.View {
		for _, v := range views {
			for i := range v.Ledger.Cgroups {
				if g := &v.Ledger.Cgroups[i]; g.Name.Container == container {
					g.ThrottledSeconds = new(0.5)
				}
			}
		}
		return views
	}
	near := func(name string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 1e-9 {
			t.Errorf("%s: %g, want %g", name, got, want)
		}
	}
	x := underWay(t, "mesh", podOf("server", "a", "proxy"), podOf("client", "b", "proxy"))
	if err := x.applies(); err != nil {
		t.Fatal(err)
	}
	for _, p := range x.pods {
		p.Spec.Containers[1].Image = "mesh/proxy:1.30"
	}
	views := throttle(meshViews(true), "proxy")
	pause := group("/c/pause", "mesh-system", "pilot", sandbox, 0)
	*pause.Memory.Anon = 0
	pause.Memory.Derive()
	views[2].Ledger.Cgroups = append(views[2].Ledger.Cgroups, pause)
	for _, v := range views { // as the runtimes of the nodes name them
		for _, g := range v.Ledger.Cgroups {
			g.Name.Image = "docker.io/mesh/" + g.Name.Container + ":1.30"
		}
	}
	if err := x.account(views); err != nil { // the proxy's limit belongs to the mesh
		t.Fatal(err)
	}
	const images = `{"images":{"discovery":"docker.io/mesh/discovery:1.30","proxy":"mesh/proxy:1.30"}}`
	if got := string(x.record.Subject); got != images {
		t.Errorf("%s, want %s", got, images)
	}
	m := x.record.Metrics
	near("CPU time of a request", m["cpu_seconds_per_request"], (0.10+0.20+0.05+0.07+0.04)/100)
	near("the subject's", m["subject_cpus"], 0.05+0.07+0.04)
	near("its programs", m["subject_bpf_cpus"], 3*0.01)
	near("its memory", m["memory_hard_bytes"], 3*1000)
	for component, want := range map[string]float64{"sidecar.server": 0.05, "sidecar.client": 0.07, "controlplane": 0.04} {
		near(component, x.record.Components[component]["subject_cpus"], want)
	}
	if _, has := m["start_seconds"]; has || len(x.record.Components) != 3 {
		t.Errorf("%v, %v", m, x.record.Components)
	}
	w := x.record.Ledger.Workloads
	if len(w) != 1 || w[0].Name != "server" || len(w[0].Cgroups) != 1 || w[0].Cgroups[0] != "/a/a/tare" {
		t.Errorf("%+v", w)
	}
	if len(x.record.Validity.Reasons) > 0 || !x.record.Ledger.CPU.Closes() {
		t.Errorf("%+v", x.record.Validity)
	}

	direct := underWay(t, record.Direct, podOf("server", "a"), podOf("client", "b"))
	if err := direct.account(meshViews(false)); err != nil {
		t.Fatal(err)
	}
	near("without the mesh", direct.record.Metrics["cpu_seconds_per_request"], 0.30/100)
	near("its subject", direct.record.Metrics["subject_cpus"], 0)

	held := underWay(t, record.Direct, podOf("server", "a"), podOf("client", "b"))
	if err := held.account(throttle(meshViews(false), container)); err != nil {
		t.Fatal(err)
	}
	near("the limit", held.record.Metrics["limit_cpus"], 1)
	near("what its pod uses of it", held.record.Metrics["limited_cpus"], 0.10)
	near("as a part", held.record.Metrics["limited_share"], 0.10)
	// The spec sets a limit for the server, and none for the client.
	if r := held.record.Validity.Reasons; len(r) != 1 || !strings.Contains(r[0].Message, "/b/b/tare was throttled") {
		t.Errorf("%+v", r)
	}
}

// TestAccountLacks: if a ledger or counter is missing, the trial fails; it does not count as 0.
func TestAccountLacks(t *testing.T) {
	proxied := []*api.Pod{podOf("server", "a", "proxy"), podOf("client", "b", "proxy")}
	for _, c := range []struct {
		name  string
		views []ledger.View
		want  string
	}{
		{"a node with a part", meshViews(true)[:1], "the node b, on which client ran, gave no window"},
		{"a node with a component", meshViews(true)[:2], "no node has a control group or program of controlplane"},
		{"a container", meshViews(false), "no node has a control group or program of sidecar."},
	} {
		x := underWay(t, "mesh", proxied...)
		if err := x.account(c.views); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.name, err, c.want)
		}
		if again := x.record.Validity.Cause != ""; again != strings.Contains(c.want, "gave no window") {
			t.Errorf("%s: worth another attempt: %t", c.name, again)
		}
	}
	without := meshViews(true)
	for _, v := range without {
		v.Ledger.Programs = v.Ledger.Programs[1:]
	}
	if err := underWay(t, "mesh", proxied...).account(without); err == nil ||
		!strings.Contains(err.Error(), "program of bpf") {
		t.Errorf("without its programs: %v", err)
	}
	x := underWay(t, "mesh", proxied...)
	x.silent = []string{"d: it is cut off"}
	if err := x.account(meshViews(true)); err != nil ||
		!strings.Contains(fmt.Sprint(x.record.Ledger.Warnings), "nodes-without-window") {
		t.Errorf("a node that never had an agent: %v", err)
	}
	x = underWay(t, "mesh", proxied...)
	x.silent, x.lost = []string{"d: it is cut off"}, []string{"d: it is cut off"}
	if err := x.account(meshViews(true)); err == nil || x.record.Validity.Cause != ledger.Neighbour ||
		!strings.Contains(err.Error(), "controlplane is part of the cost wherever it runs in the cluster, and 1 node "+
			"gave no window: d: it is cut off") {
		t.Errorf("a node that may have a component: %v", err)
	}
	x = underWay(t, record.Direct, podOf("server", "a"), podOf("client", "b"))
	x.silent = []string{"d: it is cut off"}
	if err := x.account(meshViews(false)); err != nil ||
		!strings.Contains(fmt.Sprint(x.record.Ledger.Warnings), "nodes-without-window 1 node gave no window") {
		t.Errorf("%v, %v", err, x.record.Ledger.Warnings)
	}
}

// TestGather: each node has one view or one reason why it has none.
func TestGather(t *testing.T) {
	begin := time.Now()
	const offset = 3 * time.Second // of the nodes' clocks
	off := func(node string, start, end time.Duration) agents.Answer {
		l := ledgerOf()
		l.Window.Start, l.Window.End = begin.Add(offset+start), begin.Add(offset+time.Second+end)
		return agents.Answer{Node: node, Ledger: l, Offset: offset}
	}
	answer := func(node, failed string) agents.Answer {
		if failed != "" {
			return agents.Answer{Node: node, Failed: failed}
		}
		return off(node, time.Millisecond, 2*time.Millisecond)
	}
	const ms = time.Millisecond
	vague := answer("c", "")
	vague.Uncertainty = 300 * ms
	windows := nodes("w")
	windows[0].OS = "windows"
	for _, c := range []struct {
		name          string
		answers       []agents.Answer
		views, silent string
	}{
		{"all", []agents.Answer{answer("c", ""), answer("a", ""), answer("b", "")}, "a b c", ""},
		{"one that fails", []agents.Answer{answer("a", ""), answer("b", ""), answer("c", "cut off")}, "a b", "c: cut off"},
		{"one without an agent", []agents.Answer{answer("a", ""), answer("b", "")}, "a b", "c: it has no agent"},
		{"an agent that is being replaced", []agents.Answer{answer("a", ""), answer("b", ""), answer("c", "not started"),
			answer("c", "")}, "a b c", ""},
		{"two agents on one node", []agents.Answer{answer("a", ""), answer("b", ""), answer("c", ""), answer("c", "")},
			"a b c", ""},
		{"one a little late", []agents.Answer{answer("a", ""), answer("b", ""), off("c", 190*ms, 190*ms)}, "a b c", ""},
		{"one cut short", []agents.Answer{answer("a", ""), answer("b", ""), off("c", 990*ms, 10*ms)}, "a b",
			"c: its window began 990ms and ended 10ms after that of the loads"},
		{"one that ends late", []agents.Answer{answer("a", ""), answer("b", ""), off("c", 0, 300*ms)}, "a b",
			"c: its window began 0s and ended 300ms after that of the loads"},
		{"one with a vague clock", []agents.Answer{answer("a", ""), answer("b", ""), vague}, "a b",
			"c: its clock is known only to 300ms, which is too little for a window of 1s"},
		{"one too early", []agents.Answer{answer("a", ""), answer("b", ""), off("c", -300*ms, 0)}, "a b",
			"c: its window began -300ms and ended 0s after that of the loads"},
	} {
		answers := make(chan agents.Answer, len(c.answers))
		for _, a := range c.answers {
			answers <- a
		}
		close(answers)
		x := underWay(t, record.Direct)
		x.o.Nodes = append(x.o.Nodes, windows...)
		w := &agents.Window{Start: begin, End: begin.Add(time.Second), Answers: answers}
		views := lists.Map(x.gather(w), func(v ledger.View) string { return v.Name })
		if got := strings.Join(views, " "); got != c.views || strings.Join(x.silent, "; ") != c.silent {
			t.Errorf("%s: views of %s, and none of %q; want %s and %q", c.name, got, x.silent, c.views, c.silent)
		}
		lost := c.silent
		if strings.HasSuffix(lost, noAgent) {
			lost = "" // a node may never have had an agent
		}
		if strings.Join(x.lost, "; ") != lost || !x.weighed["a"] || x.weighed["c"] != (c.silent == "") {
			t.Errorf("%s: lost %q, weighed %v", c.name, x.lost, x.weighed)
		}
	}
	none := make(chan agents.Answer)
	close(none)
	x := underWay(t, record.Direct)
	x.weighed["b"] = true
	if x.gather(&agents.Window{Answers: none}); !slices.Equal(x.lost, []string{"b: " + noAgent}) {
		t.Errorf("lost %q, want the node that had an agent", x.lost)
	}
}

// TestNodeLeft: a node that an autoscaler removed has no agent and is to have none, so it is not waited for, and the
// trial stands with a warning. A node whose agent is being replaced, or that left within the window, fails the trial.
func TestNodeLeft(t *testing.T) {
	agentsOn := func(nodes ...string) (all []agents.Agent) {
		for _, n := range nodes {
			all = append(all, agents.Agent{Node: n})
		}
		return all
	}
	for _, c := range []struct {
		name    string
		found   []agents.Agent
		wanted  int
		err     error
		failed  []string // nodes that have an agent and do not answer
		silent  string
		failing bool
	}{
		{"removed", agentsOn("a", "b"), 2, nil, nil, "c: " + leftCluster, false},
		{"removed, while two agents are on a node", agentsOn("a", "b", "b"), 2, nil, nil, "c: " + leftCluster, false},
		{"its agent is being replaced", agentsOn("a", "b"), 3, nil, nil, "c: " + noAgent, true},
		{"unknown", agentsOn("a", "b"), 0, nil, nil, "c: " + noAgent, true},
		{"the API server is away", agentsOn("a", "b"), 2, os.ErrDeadlineExceeded, nil, "c: " + noAgent, true},
		{"removed within the window", agentsOn("a", "b", "c"), 2, nil, []string{"c"}, "c: cut off", true},
	} {
		x := underWay(t, "mesh", podOf("server", "a", "proxy"), podOf("client", "b", "proxy"))
		x.weighed["a"], x.weighed["b"], x.weighed["c"] = true, true, true
		x.o.Wanted = func(context.Context) (int, error) { return c.wanted, c.err }
		x.complete = x.hasAll(t.Context(), c.found)
		views := meshViews(true)
		views[0].Ledger.Cgroups = append(views[0].Ledger.Cgroups, views[2].Ledger.Cgroups...) // what moved there
		answers := make(chan agents.Answer, 3)
		w := &agents.Window{Start: views[0].Ledger.Window.Start, End: views[0].Ledger.Window.End, Answers: answers}
		for _, v := range views[:2] {
			v.Ledger.Window = views[0].Ledger.Window
			answers <- agents.Answer{Node: v.Name, Ledger: v.Ledger}
		}
		for _, node := range c.failed {
			answers <- agents.Answer{Node: node, Failed: "cut off"}
		}
		close(answers)
		err := x.account(x.gather(w))
		if got := strings.Join(x.silent, "; "); got != c.silent || (err != nil) != c.failing {
			t.Errorf("%s: %q, want %q; %v", c.name, got, c.silent, err)
		}
	}
}

func TestApplies(t *testing.T) {
	for _, c := range []struct {
		arm  string
		pods []*api.Pod
		want string
	}{
		{"mesh", []*api.Pod{podOf("server", "a", "proxy"), podOf("client", "b")}, ""},
		{"mesh", []*api.Pod{podOf("server", "a"), podOf("client", "b")},
			"no pod of the trial has a container proxy; they have none"},
		{record.Direct, []*api.Pod{podOf("server", "a"), podOf("client", "b")}, ""},
		{record.Direct, []*api.Pod{podOf("server", "a", "proxy")}, "the baseline must have none but Tare's"},
		{record.Direct, []*api.Pod{redirected(podOf("server", "a"))}, "a subject applies to the baseline too"},
	} {
		err := underWay(t, c.arm, c.pods...).applies()
		if c.want == "" && err != nil || !strings.Contains(fmt.Sprint(err), c.want) {
			t.Errorf("%s: %v, want %s", c.arm, err, c.want)
		}
	}
}

// TestSandboxes: a sandbox runs in the group of its pod, beside those of the containers, and is compared with the group
// of the baseline's pod. The load is in no sandbox.
func TestSandboxes(t *testing.T) {
	for arm, own := range map[string]float64{record.Direct: 0.001, "sandbox": 0.4} {
		server, client := podOf("server", "a"), podOf("client", "b")
		if arm != record.Direct {
			server.Spec.RuntimeClassName = new("fast")
		}
		x := underWayOf(t, sandboxSpec, arm, server, client)
		if err := x.applies(); err != nil {
			t.Fatal(err)
		}
		pod := group("/a/pod", "ns", "run-0-server", "", 0.10+own)
		a := ledgerOf(pod, group("/a/pod/tare", "ns", "run-0-server", container, 0.10))
		b := ledgerOf(group("/b/pod", "ns", "run-0-client", "", 0.20), group("/b/pod/tare", "ns", "run-0-client", container,
			0.20))
		if err := x.account([]ledger.View{{Name: "a", Ledger: a}, {Name: "b", Ledger: b}}); err != nil {
			t.Fatal(err)
		}
		if got, want := x.record.Metrics["cpu_seconds_per_request"], (0.30+own)/100; math.Abs(got-want) > 1e-9 {
			t.Errorf("%s: %g s of CPU time for a request, want %g", arm, got, want)
		}
		if got := x.record.Metrics["app_memory_hard_bytes"]; got != 1000 {
			t.Errorf("%s: the application has %g bytes", arm, got)
		}
	}
	withRuntime := strings.Replace(sandboxSpec, "parts: server",
		"parts: server, components: 'cgroup=/run/shims,component=shims'", 1)
	x := underWayOf(t, withRuntime, "sandbox", podOf("server", "a"), podOf("client", "b"))
	a := ledgerOf(group("/pod", "ns", "run-0-server", "", 0.10), group("/run/shims", "", "", "", 0.05))
	b := ledgerOf(group("/pod", "ns", "run-0-client", "", 0.20))
	err := x.account([]ledger.View{{Name: "a", Ledger: a}, {Name: "b", Ledger: b}})
	if err != nil || math.Abs(x.record.Components["shims"]["subject_cpus"]-0.05) > 1e-9 {
		t.Errorf("%v: a group of a node by its path: %v", err, x.record.Components)
	}
	client := podOf("client", "b")
	if err := underWayOf(t, sandboxSpec, "sandbox", podOf("server", "a"), client).applies(); err == nil ||
		!strings.Contains(err.Error(), "server does not run under the RuntimeClass fast") {
		t.Errorf("without it: %v", err)
	}
	if err := underWayOf(t, sandboxSpec, "sandbox", podOf("client", "b", "proxy")).applies(); err == nil ||
		!strings.Contains(err.Error(), `client has the container proxy, and a part that "parts" leaves out must`) {
		t.Errorf("a proxy of the load: %v", err)
	}
}

// TestUnreachableSandbox: the network of a sandbox is a part of what is weighed. If a part in it cannot be reached,
// this is not an outside cause, unlike an API server that does not answer.
func TestUnreachableSandbox(t *testing.T) {
	server := podOf("server", "a")
	server.Status.PodIP = "127.0.0.1"
	x := underWayOf(t, sandboxSpec, "sandbox", server)
	_, err := x.dial(t.Context(), server, "server")
	if err == nil || !strings.Contains(err.Error(), "connection refused") || ofServer(err) {
		t.Errorf("%v, of the API server: %t", err, ofServer(err))
	}
	a, _ := net.Pipe()
	if err := a.SetDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if _, err := (direct{a}).Read(make([]byte, 1)); err == nil || ofServer(err) {
		t.Errorf("%v", err)
	}
}

// redirected gives a pod the annotation that the mesh adds to the pods to which it applies.
func redirected(p *api.Pod) *api.Pod {
	p.Annotations = map[string]string{"mesh.io/redirection": "enabled"}
	return p
}

// TestLacks: a pod is not ready for loads until the arm's subject has added its annotation.
func TestLacks(t *testing.T) {
	bare, given := podOf("server", "a", "proxy"), redirected(podOf("client", "b", "proxy"))
	mesh, direct := underWay(t, "mesh", bare, given), underWay(t, record.Direct, bare)
	if got := mesh.lacks(bare); got != "mesh.io/redirection=enabled" {
		t.Errorf("it lacks %q", got)
	}
	if got := mesh.lacks(given) + direct.lacks(bare); got != "" {
		t.Errorf("they lack %q", got)
	}
}

func TestStateOf(t *testing.T) {
	state := func(change func(*api.Pod)) *api.Pod {
		p := podOf("server", "a")
		p.Status.Phase = api.PodRunning
		p.Status.Conditions = []api.PodCondition{{Type: api.PodReady, Status: api.ConditionTrue}}
		p.Status.ContainerStatuses = []api.ContainerStatus{{Name: container,
			State: api.ContainerState{Running: &api.ContainerStateRunning{}}}}
		change(p)
		return p
	}
	for _, c := range []struct {
		pod      *api.Pod
		ready    bool
		why      string
		patience time.Duration
	}{
		{state(func(*api.Pod) {}), true, "", 0},
		{state(func(p *api.Pod) { p.Status = api.PodStatus{} }), false, "it is being made", startWithin},
		{state(func(p *api.Pod) {
			p.Status.Conditions = []api.PodCondition{{Type: api.PodReady, Status: api.ConditionFalse,
				Message: "containers with unready status: [proxy]"}}
		}), false, "it is not ready: containers with unready status: [proxy]", startWithin},
		{state(func(p *api.Pod) {
			p.Status.ContainerStatuses[0].State = api.ContainerState{Waiting: &api.ContainerStateWaiting{
				Reason: "ErrImagePull", Message: "not found"}}
		}), false, "tare waits: ErrImagePull: not found", stuckAfter},
		{state(func(p *api.Pod) {
			p.Status.ContainerStatuses[0].State = api.ContainerState{Terminated: &api.ContainerStateTerminated{ExitCode: 137,
				Reason: "OOMKilled"}}
		}), false, "tare has ended with code 137: OOMKilled", 0},
		{state(func(p *api.Pod) { p.Status.Phase, p.Status.Reason = api.PodFailed, "Evicted" }), false, "Evicted", 0},
		{state(func(p *api.Pod) {
			p.Status.Conditions = []api.PodCondition{{Type: api.PodScheduled, Status: api.ConditionFalse,
				Message: "0 of 2 nodes"}}
		}), false, "it is not scheduled: 0 of 2 nodes", stuckAfter},
	} {
		ready, why, patience := stateOf(c.pod)
		if ready != c.ready || !strings.Contains(why, c.why) || c.why == "" && why != "" || patience != c.patience {
			t.Errorf("%t, %q, %v; want %t, %q, %v", ready, why, patience, c.ready, c.why, c.patience)
		}
	}
}

// TestStartedAgain: a container that has another ID was restarted, so its counters began in the window.
func TestStartedAgain(t *testing.T) {
	with := func(id string) *api.Pod {
		p := podOf("server", "a")
		p.Status.InitContainerStatuses = []api.ContainerStatus{{Name: "proxy", ContainerID: id}}
		return p
	}
	for _, c := range []struct{ before, now, want string }{{"", "a", ""}, {"a", "a", ""}, {"a", "b", "proxy"}} {
		if got := startedAgain(with(c.before), with(c.now)); got != c.want {
			t.Errorf("%q, then %q: %q, want %q", c.before, c.now, got, c.want)
		}
	}
}

// TestPodHasNoRights: the pod of a part has no privileges and no rights in the cluster, and only the marks of its arm.
func TestPodHasNoRights(t *testing.T) {
	s := parse(t, meshSpec)
	p := New(Options{Image: "tare:1", Owned: metav1.ObjectMeta{Namespace: "ns",
		Name: "run", Annotations: map[string]string{}, Labels: map[string]string{agents.InstanceLabel: "run"}}})
	marks, err := s.Arms["mesh"].Kind.(kind.Marked).Marks(s.Arms["mesh"].Options)
	if err != nil {
		t.Fatal(err)
	}
	pod := p.pod("0", "server", s.Applications["server"], &marks, "a")
	c := pod.Spec.Containers[0]
	if *pod.Spec.AutomountServiceAccountToken || pod.Spec.HostNetwork || pod.Spec.HostPID || len(pod.Spec.Volumes) > 0 ||
		!*pod.Spec.SecurityContext.RunAsNonRoot || *c.SecurityContext.AllowPrivilegeEscalation ||
		len(c.SecurityContext.Capabilities.Add) > 0 || c.SecurityContext.Privileged != nil {
		t.Errorf("%+v", pod.Spec)
	}
	if i := slices.IndexFunc(c.Env, func(e api.EnvVar) bool { return e.Name == part.PodVariable }); i < 0 ||
		c.Env[i].Value != pod.Name || pod.Name != "run-0-server" {
		t.Errorf("%s has the environment %+v", pod.Name, c.Env)
	}
	if pod.Labels["inject"] != "yes" || pod.Labels[agents.InstanceLabel] != "run" ||
		c.Resources.Limits.Cpu().MilliValue() != 1000 {
		t.Errorf("%+v", pod)
	}
	// A node's label kubernetes.io/hostname need not be its name.
	terms := pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if !reflect.DeepEqual(terms, []api.NodeSelectorTerm{{MatchFields: []api.NodeSelectorRequirement{
		{Key: "metadata.name", Operator: api.NodeSelectorOpIn, Values: []string{"a"}}}}}) {
		t.Errorf("%+v", terms)
	}
	if direct := p.pod("0", "server", s.Applications["server"], nil, ""); direct.Labels["inject"] != "" ||
		direct.Spec.RuntimeClassName != nil || direct.Spec.Affinity != nil {
		t.Errorf("the baseline has the marks of the mesh: %+v", direct)
	}
	s = parse(t, sandboxSpec)
	if marks, err = s.Arms["sandbox"].Kind.(kind.Marked).Marks(s.Arms["sandbox"].Options); err != nil {
		t.Fatal(err)
	}
	in, out := p.pod("0", "server", s.Applications["server"], marks.On("server_2"), ""), marks.On("client")
	if in.Spec.RuntimeClassName == nil || *in.Spec.RuntimeClassName != "fast" || out != nil {
		t.Errorf("in a sandbox: %+v, %+v", in.Spec, out)
	}
}

// TestService: the Service of an application tells a mesh which protocol it carries.
func TestService(t *testing.T) {
	p := New(Options{Owned: metav1.ObjectMeta{Name: "run", Labels: map[string]string{}}})
	for protocol, want := range map[string]string{"http1": "http", "http2": "kubernetes.io/h2c", "grpc": "grpc",
		"tcp": "tcp", "http1, tls: true": "https", "tcp, tls: true": "tls"} {
		s := parse(t, strings.ReplaceAll(strings.Replace(meshSpec, "kind: http, limits", "kind: http, protocol: "+protocol+
			", limits", 1), "rate: 100", "rate: 100, protocol: "+strings.Replace(protocol, "tls: true", "tls: unverified", 1)))
		if got := p.service("0", "server", s.Applications["server"]).Spec.Ports[0].AppProtocol; got == nil || *got != want {
			t.Errorf("%s: %v, want %s", protocol, got, want)
		}
	}
}

// TestCPULimit: a limit is that of the spec to the nearest thousandth of a CPU. 1000 times 0.57 is a little less than
// 570.
func TestCPULimit(t *testing.T) {
	p := New(Options{Owned: metav1.ObjectMeta{Name: "run", Labels: map[string]string{}}})
	for cpus, want := range map[string]int64{"0.57": 570, "1.005": 1005, "0.01": 10, "0.3333": 333, "4096": 4096e3} {
		s := parse(t, strings.Replace(meshSpec, "cpus: 1}", "cpus: "+cpus+"}", 1))
		pod := p.pod("0", "server", s.Applications["server"], nil, "")
		if got := pod.Spec.Containers[0].Resources.Limits.Cpu().MilliValue(); got != want {
			t.Errorf("%s CPUs: a limit of %dm, want %dm", cpus, got, want)
		}
	}
}

// TestObjectNames: every name is a label of DNS, as Services and hostnames of pods must be, and parts whose names
// differ at the end alone have different names.
func TestObjectNames(t *testing.T) {
	p := New(Options{Owned: metav1.ObjectMeta{Name: NewRun("ns").Name}})
	long := strings.Repeat("a", 40)
	seen := map[string]bool{}
	for _, trial := range []string{trialName(0, 0), trialName(123, 0), trialName(123, 12)} {
		for _, part := range []string{"server", long, long + "_1", long + "_2", long + "_999"} {
			name := p.objectName(trial, part)
			if why := validation.IsDNS1035Label(name); len(why) > 0 || seen[name] ||
				!strings.HasPrefix(name, p.o.Owned.Name+"-"+trial+"-"+part[:6]) {
				t.Errorf("%s of trial %s: %s: %v", part, trial, name, why)
			}
			seen[name] = true
		}
	}
	if got := p.objectName("0", "server_2"); got != p.o.Owned.Name+"-0-server-2" {
		t.Errorf("a short name is %s", got)
	}
}

// TestKinds: docs/cluster-experiments.md names the kinds that run in pods.
func TestKinds(t *testing.T) {
	page, err := os.ReadFile("../../../docs/cluster-experiments.md")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[kind.Role][]string{}
	for _, r := range []kind.Role{kind.Application, kind.Load} {
		for _, g := range kind.All(r) {
			if g.About().InPods {
				kinds[r] = append(kinds[r], "`"+g.About().Name+"`")
			}
		}
	}
	want := fmt.Sprintf("Applications of kind %s and loads of kind %s can run in pods",
		strings.Join(kinds[kind.Application], ", "), strings.Join(kinds[kind.Load], ", "))
	if !strings.Contains(strings.Join(strings.Fields(string(page)), " "), want) {
		t.Errorf("docs/cluster-experiments.md does not say: %s", want)
	}
}

// TestAccounts: a part has the rights of the service account that the spec names for it, and the others have none.
func TestAccounts(t *testing.T) {
	s := parse(t, meshSpec+"cluster: {accounts: {server: tare-services}}\n")
	p := New(Options{Image: "tare:1", Accounts: s.Accounts(), Owned: metav1.ObjectMeta{Namespace: "ns", Name: "run",
		Annotations: map[string]string{}, Labels: map[string]string{}}})
	for name, want := range map[string]string{"server": "tare-services", "server_2": "tare-services", "client": ""} {
		spec := p.pod("0", name, s.Loads["client"], nil, "").Spec
		if spec.ServiceAccountName != want || *spec.AutomountServiceAccountToken != (want != "") {
			t.Errorf("%s has the service account %q (mounted: %t), not %q", name, spec.ServiceAccountName,
				*spec.AutomountServiceAccountToken, want)
		}
	}
}
