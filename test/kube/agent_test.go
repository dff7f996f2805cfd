package kube

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"tare/test/binary"
	"tare/test/long"
)

// hostile is the name of a pod whose labels claim that it is another pod.
var hostile = "hostile-" + strings.Repeat("x", 150)

// shop returns the manifest of the namespace shop, with pods on the given nodes. The agent's figures for these pods are
// compared with the kubelet's.
func shop(nodes []string) string {
	pod := func(name, node, metadata, args, resources string) string {
		return fmt.Sprintf(`---
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: shop%s}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: "tare.test/web:1", args: [%s], resources: {%s}}
`, name, metadata, node, args, resources)
	}
	text := "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n"
	for i, node := range nodes {
		limits := fmt.Sprintf("limits: {cpu: %dm, memory: 128Mi}", 150+75*i)
		text += pod("burner-"+node, node, "", `burn, "64"`, limits)
		text += pod("web-"+node, node, "", "serve", "") + pod("sleeper-"+node, node, "", "sleep", "")
	}
	return text + pod("burner-n1-too", "n1", "", `burn, "64"`, "limits: {cpu: 150m, memory: 128Mi}") +
		pod(hostile, "n1", `, labels: {io.kubernetes.pod.name: kubelet, io.kubernetes.pod.namespace: kube-system,
		io.kubernetes.container.name: "x"}, annotations: {io.kubernetes.cri.sandbox-name: "<script>\u0007\"}\n",
		io.kubernetes.cri.sandbox-namespace: kube-system, io.kubernetes.cri.container-type: sandbox}`, "serve", "")
}

// password is the password whose hash is in webYAML.
const password = "tare-test"

const webYAML = `tls_server_config: {cert_file: agent.crt, key_file: agent.key}
basic_auth_users: {prometheus: $2y$04$epB6D3rzs2BMc3ICDT/GTee8KAlCkmkCleNKZWRXUwouz2XiAOy.u}
`

// TestAgent runs the agent with the manifests in deploy/kubernetes on three nodes, the first of which shares the whole
// machine, and compares the agent's figures with the kubelet's.
func TestAgent(t *testing.T) {
	if _, err := Bin(); err != nil {
		t.Skip(err)
	}
	image, err := AgentImage(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	c := Up(t, Options{Nodes: 3, MachineNodes: 1, Images: []string{image}})
	applyProtected(t, c)
	agents := openShop(t, c)
	t.Run("rights", func(t *testing.T) { rights(t, c) })
	t.Run("a tenant", func(t *testing.T) { tenant(t, c, agents["n1"].address) })

	// In a minute the kubelet takes only some samples: too few for a comparison within 1 %.
	window := 40 * time.Second
	if long.Enabled() {
		window = 5 * time.Minute
	}
	watched := watch(t, c, agents, window)
	for node, w := range watched {
		t.Run(node, func(t *testing.T) {
			w.names(t, c, node)
			w.adds(t)
			if node == "n1" {
				w.explains(t, 0.03)
			} else {
				w.seesPart(t)
			}
			w.agrees(t, c, node)
		})
	}
	if long.Enabled() {
		t.Run("who pays for eBPF", func(t *testing.T) { payers(t, c, agents["n1"]) })
	}
}

// openShop starts the pods of the shop, and returns the agents of all nodes.
func openShop(t *testing.T, c *Cluster) map[string]*agent {
	t.Helper()
	if err := c.Apply(shop(c.Nodes)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Kubectl("-n", "shop", "wait", "--for=condition=Ready", "pod", "--all", "--timeout=300s"); err != nil {
		t.Fatal(err)
	}
	agents := map[string]*agent{}
	for _, p := range pods(t, c) {
		if p.Metadata.Namespace == "tare" {
			agents[p.Spec.NodeName] = newAgent(c, p.Status.PodIP)
		}
	}
	if len(agents) != len(c.Nodes) {
		t.Fatalf("%d agents", len(agents))
	}
	return agents
}

// applyProtected applies the manifests with the component tls, and its secret. It returns the directory that has the
// certificate of the agents, agent.crt.
func applyProtected(t *testing.T, c *Cluster) (dir string) {
	t.Helper()
	dir = t.TempDir()
	a := &authority{dir: dir}
	cert, key, err := a.leaf("agent", "tare-agent", "", nil, "tare-agent")
	if err != nil {
		t.Fatal(err)
	}
	root, err := binary.Root()
	if err != nil {
		t.Fatal(err)
	}
	manifests, err := filepath.Rel(dir, filepath.Join(root, "deploy/kubernetes"))
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"web.yaml": []byte(webYAML), "agent.crt": cert, "agent.key": key,
		"kustomization.yaml": fmt.Appendf(nil, "resources: [%s]\ncomponents: [%s/tls]\n", manifests, manifests),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{
		{"apply", "-k", dir},
		{"-n", "tare", "create", "secret", "generic", "tare-agent-web", "--from-file=" + dir + "/web.yaml",
			"--from-file=" + dir + "/agent.crt", "--from-file=" + dir + "/agent.key"},
		{"-n", "tare", "rollout", "status", "daemonset/tare-agent", "--timeout=300s"},
	} {
		if _, err := c.Kubectl(args...); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

type pod struct {
	Metadata struct{ Name, Namespace string }
	Spec     struct {
		NodeName   string
		Containers []struct{ Name string }
	}
	Status struct{ PodIP string }
}

func pods(t *testing.T, c *Cluster) []pod {
	t.Helper()
	out, err := c.Kubectl("get", "pods", "-A", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var list struct{ Items []pod }
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// rights: the agent's processes have the six capabilities of the manifest and no more, cannot gain others, and a
// filter of system calls applies.
func rights(t *testing.T, c *Cluster) {
	want := []string{ // capabilities 2, 19, 21, 34, 38 and 39 of include/uapi/linux/capability.h
		"CapInh:\t0000000000000000", "CapPrm:\t000000c400280004", "CapEff:\t000000c400280004",
		"CapBnd:\t000000c400280004", "CapAmb:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2",
	}
	found := 0
	for _, p := range processesOf(t, strings.TrimPrefix(c.Group, "/")) {
		pid, comm, _ := strings.Cut(p, " ")
		if comm != "tare-agent" {
			continue
		}
		found++
		status, err := os.ReadFile("/proc/" + pid + "/status")
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range want {
			if !strings.Contains(string(status), "\n"+line+"\n") {
				t.Errorf("not %q:\n%s", line, status)
			}
		}
	}
	if found != 3 {
		t.Errorf("%d processes of the agent", found)
	}
}

// tenant: a pod of another namespace gets nothing from an agent without the password.
func tenant(t *testing.T, c *Cluster, address string) {
	for _, path := range []string{"/metrics", "/v1/ledger?for=1s", "/healthz", "/"} {
		for url, want := range map[string]string{
			"https://" + address + path:                      "401",
			"http://" + address + path:                       "400",
			"https://prometheus:" + password + "@" + address: "200",
		} {
			out, err := c.Kubectl("-n", "shop", "exec", "web-n2", "--", "/bin/web", "get", url)
			if err != nil || strings.TrimSpace(out) != want {
				t.Errorf("%s: %q, %v, want %s", url, out, err, want)
			}
		}
	}
}

// agent is a client of one running tare-agent.
type agent struct {
	address string
	client  http.Client
}

func newAgent(c *Cluster, ip string) *agent {
	transport := &http.Transport{
		DialContext:     func(_ context.Context, _, address string) (net.Conn, error) { return c.Dial("n1", address) },
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}
	return &agent{net.JoinHostPort(ip, "9633"), http.Client{Timeout: time.Minute, Transport: transport}}
}

func (a *agent) get(path string) ([]byte, error) {
	r, err := a.client.Get("https://prometheus:" + password + "@" + a.address + path)
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	data, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = errors.New(r.Status)
	}
	return data, err
}

// metrics holds the values of every metric by the labels of its series, in the order of their names: pod=web,...
type metrics map[string]map[string]float64

func (a *agent) metrics() (metrics, error) {
	text, err := a.get("/metrics")
	if err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	all := metrics{}
	for name, f := range families {
		all[name] = map[string]float64{}
		for _, m := range f.Metric {
			all[name][labels(m)] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return all, nil
}

// labels returns the labels of a series as text. It leaves out empty ones and, if a pod's name is among them, the
// control group.
func labels(m *dto.Metric) string {
	var all []string
	named := slices.ContainsFunc(m.Label, func(l *dto.LabelPair) bool {
		return l.GetName() == "pod" && l.GetValue() != ""
	})
	for _, l := range m.Label {
		if l.GetValue() != "" && (l.GetName() != "cgroup" || !named) {
			all = append(all, l.GetName()+"="+l.GetValue())
		}
	}
	return strings.Join(all, ",")
}

// sum adds up all series of a metric, including those that are gone.
func (m metrics) sum(name string) float64 {
	total := m["tare_agent_series_gone_seconds_total"]["metric="+name]
	for _, v := range m[name] {
		total += v
	}
	return total
}

// reading is a scrape. at is when the agent read its counters, in seconds since it started.
type reading struct {
	metrics
	at       float64
	answered time.Time
}

// counted is the CPU time in seconds that a node's control group had used at a time, read from outside.
type counted struct {
	at   time.Time
	used float64
}

// usage is one sample that the kubelet took of a container.
type usage struct {
	at         time.Time
	cpu        float64 // seconds
	workingSet float64 // bytes
}

// source is a page of the kubelet with samples. Their times are truncated to the grain: in /stats/summary, to whole
// seconds.
type source struct {
	page  string
	grain time.Duration
}

var (
	summary  = source{"stats/summary", time.Second}
	resource = source{"metrics/resource", time.Millisecond}
)

// watched holds what the agent of a node and the node's kubelet reported.
type watched struct {
	readings []reading
	node     []counted                     // one count before the first reading, and one after each
	kubelet  map[source]map[string][]usage // by labels; one for each sample of the kubelet
	sampled  atomic.Bool                   // the kubelet has taken enough samples
	ahead    time.Duration                 // how far the node's clock, which the kubelet uses, is ahead of this machine's
}

// twice reports whether the kubelet took at least three samples of every container, and so two that are certainly newer
// than the agent's first reading.
func (w *watched) twice() bool {
	for _, containers := range w.kubelet {
		if len(containers) == 0 {
			return false
		}
		for _, samples := range containers {
			if len(samples) < 3 {
				return false
			}
		}
	}
	return true
}

// add adds a reading. Between the first reading and the last it keeps only the metrics that are compared.
func (w *watched) add(r reading) {
	if n := len(w.readings); n > 1 {
		before := &w.readings[n-1]
		kept := metrics{cpuMetric: before.metrics[cpuMetric], setMetric: {}}
		for labels, v := range before.metrics[setMetric] {
			if strings.HasPrefix(labels, workingSet) {
				kept[setMetric][labels] = v
			}
		}
		before.metrics = kept
	}
	w.readings = append(w.readings, r)
}

// The metrics of the agent that are compared.
const (
	cpuMetric  = "tare_group_cpu_seconds_total"
	setMetric  = "tare_group_memory_bytes"
	workingSet = "kind=working_set," // prefix of a container's labels
)

func allSampled(all map[string]*watched) bool {
	for _, w := range all {
		if !w.sampled.Load() {
			return false
		}
	}
	return true
}

// watch reads each agent twice a second, and each kubelet every 4 s, for at least the given time, and until the
// kubelets have taken enough samples for a comparison, which they do when they have time.
func watch(t *testing.T, c *Cluster, agents map[string]*agent, long time.Duration) map[string]*watched {
	t.Helper()
	all := map[string]*watched{}
	ctx, stop := context.WithTimeout(t.Context(), long+3*time.Minute)
	defer stop()
	enough := time.Now().Add(long)
	var wg sync.WaitGroup
	var failed errorList
	every := func(period time.Duration, do func() error) {
		wg.Go(func() {
			for tick := time.NewTicker(period); ctx.Err() == nil; {
				if err := do(); err != nil {
					failed.add(err)
					stop()
				}
				select {
				case <-ctx.Done():
				case <-tick.C:
				}
			}
		})
	}
	for node, a := range agents {
		w := &watched{kubelet: map[source]map[string][]usage{summary: {}, resource: {}}}
		all[node] = w
		every(500*time.Millisecond, func() error {
			if len(w.node) == 0 {
				w.node = append(w.node, counted{time.Now(), c.used(node)})
			}
			m, err := a.metrics()
			w.add(reading{m, m["tare_node_cpu_capacity_seconds_total"][""] / m["tare_node_cpus"][""], time.Now()})
			w.node = append(w.node, counted{time.Now(), c.used(node)})
			return err
		})
		every(4*time.Second, func() error {
			if w.sampled.Load() {
				return nil
			}
			err := w.ask(c, node)
			w.sampled.Store(time.Now().After(enough) && w.twice())
			return err
		})
	}
	for ctx.Err() == nil && !(time.Now().After(enough) && allSampled(all)) {
		time.Sleep(100 * time.Millisecond)
	}
	time.Sleep(memoryEvery) // until the agents have reported memory after the last sample
	stop()
	wg.Wait()
	if err := errors.Join(failed.all...); err != nil {
		t.Fatal(err)
	}
	return all
}

// used returns the CPU time that the control group of a node has used, in seconds.
func (c *Cluster) used(node string) float64 {
	text, _ := os.ReadFile(filepath.Join("/sys/fs/cgroup/cpuacct", c.Group, node, "cpuacct.usage"))
	ns, _ := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
	return ns / 1e9
}

type errorList struct {
	mu  sync.Mutex
	all []error
}

func (l *errorList) add(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, err)
}

// ask adds the samples that the kubelet of a node shows.
func (w *watched) ask(c *Cluster, node string) error {
	add := func(s source, container, namespace, pod string, u usage) {
		key := fmt.Sprintf("container=%s,namespace=%s,pod=%s", container, namespace, pod)
		if all := w.kubelet[s][key]; len(all) == 0 || !all[len(all)-1].at.Equal(u.at) {
			w.kubelet[s][key] = append(all, u)
		}
	}
	get := func(s source) (string, error) {
		return c.Kubectl("get", "--raw", "/api/v1/nodes/"+node+"/proxy/"+s.page)
	}

	text, err := get(summary)
	if err != nil {
		return err
	}
	var all struct {
		Pods []struct {
			PodRef     struct{ Name, Namespace string }
			Containers []struct {
				Name string
				CPU  struct {
					Time                 time.Time
					UsageCoreNanoSeconds float64
				}
				Memory struct{ WorkingSetBytes float64 }
			}
		}
	}
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return err
	}
	for _, p := range all.Pods {
		for _, x := range p.Containers {
			add(summary, x.Name, p.PodRef.Namespace, p.PodRef.Name,
				usage{x.CPU.Time, x.CPU.UsageCoreNanoSeconds / 1e9, x.Memory.WorkingSetBytes})
		}
	}

	if text, err = get(resource); err != nil {
		return err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		return err
	}
	sets := map[string]float64{}
	for _, m := range families["container_memory_working_set_bytes"].GetMetric() {
		sets[labels(m)] = m.GetGauge().GetValue()
	}
	for _, m := range families["container_cpu_usage_seconds_total"].GetMetric() {
		of := map[string]string{}
		for _, l := range m.Label {
			of[l.GetName()] = l.GetValue()
		}
		add(resource, of["container"], of["namespace"], of["pod"],
			usage{time.UnixMilli(m.GetTimestampMs()), m.GetCounter().GetValue(), sets[labels(m)]})
	}
	return nil
}

// names: each container of the node has a series with its name, and no other container has one.
func (w *watched) names(t *testing.T, c *Cluster, node string) {
	last := w.readings[len(w.readings)-1]
	want := map[string]bool{}
	for _, p := range pods(t, c) {
		if p.Spec.NodeName != node {
			continue
		}
		of := ",namespace=" + p.Metadata.Namespace + ",pod=" + p.Metadata.Name
		for _, x := range p.Spec.Containers {
			want["container="+x.Name+of] = true
		}
		want["container=(sandbox)"+of], want[of[1:]] = true, true
	}
	for _, metric := range []string{cpuMetric, setMetric} {
		got := map[string]bool{}
		for labels := range last.metrics[metric] {
			labels = strings.ReplaceAll(labels, workingSet, "")
			if strings.Contains(labels, "pod=") && !strings.Contains(labels, "kind=") {
				got[labels] = true
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s: names\n%q, want\n%q", metric, slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
		}
	}
}

// adds: the CPU budget adds up, and the totals over groups and over namespaces are the same.
func (w *watched) adds(t *testing.T) {
	first, last := w.readings[0], w.readings[len(w.readings)-1]
	for _, r := range []reading{first, last} {
		groups, namespaces := r.sum("tare_group_cpu_seconds_total"), r.sum("tare_namespace_cpu_seconds_total")
		const apart = 0.01 // seconds: counters are read one after another, and totals never fall
		if math.Abs(groups-namespaces) > apart {
			t.Errorf("groups used %v s, and namespaces %v s", groups, namespaces)
		}
		lines := r.sum("tare_node_cpu_seconds_total") - r.metrics["tare_node_cpu_counted_twice_seconds_total"][""] -
			r.metrics["tare_node_cpu_ahead_seconds"][""]
		capacity := r.metrics["tare_node_cpu_capacity_seconds_total"][""]
		if math.Abs(lines-capacity) > 1e-6 {
			t.Errorf("the lines sum to %v s, the capacity is %v s", lines, capacity)
		}
	}
}

// since returns by how much a counter of the agent grew between the first reading and the last.
func (w *watched) since(metric, labels string) float64 {
	return w.readings[len(w.readings)-1].metrics[metric][labels] - w.readings[0].metrics[metric][labels]
}

// seesPart: the agent warns that it sees only a part of the machine, and says how much that part used.
func (w *watched) seesPart(t *testing.T) {
	first, last := w.readings[0], w.readings[len(w.readings)-1]
	for _, code := range []string{"pid-namespace", "cgroup-namespace"} {
		if last.metrics["tare_agent_warning"]["code="+code] != 1 {
			t.Errorf("it does not say that it sees a part of the machine: no warning %s", code)
		}
	}
	part, node := w.since("tare_node_part_cpu_seconds_total", ""), w.used(&last)-w.used(&first)
	t.Logf("the node used %.3f s of %.1f s, by the agent %.3f s", node,
		w.since("tare_node_cpu_capacity_seconds_total", ""), part)
	if math.Abs(part/node-1) > 0.02 {
		t.Errorf("the node used %.3f s, and the agent says %.3f s", node, part)
	}
}

// explains: of a node that is a whole machine, at most the given share of the capacity is unexplained, and what
// Kubernetes does not see is on lines and in groups.
func (w *watched) explains(t *testing.T, atMost float64) {
	last := w.readings[len(w.readings)-1]
	if _, says := last.metrics["tare_node_part_cpu_seconds_total"]; says {
		t.Error("the agent says that it sees a part of the machine")
	}
	capacity := w.since("tare_node_cpu_capacity_seconds_total", "")
	unexplained := w.since("tare_node_cpu_seconds_total", "line=unexplained") / capacity
	if math.Abs(unexplained) > atMost {
		t.Errorf("%.2f %% of the capacity is unexplained", 100*unexplained)
	}
	t.Logf("unexplained: %.2f %% of %.1f s; not seen by Kubernetes, in seconds of CPU time:", 100*unexplained, capacity)
	seen := 0.0
	for labels := range last.metrics["tare_node_cpu_seconds_total"] {
		switch labels {
		case "line=kernel_threads", "line=interrupts", "line=root_group", "line=ebpf":
			t.Logf("%9.3f %s", w.since("tare_node_cpu_seconds_total", labels), labels)
			seen += w.since("tare_node_cpu_seconds_total", labels)
		}
	}
	for labels := range last.metrics["tare_group_cpu_seconds_total"] {
		if used := w.since("tare_group_cpu_seconds_total", labels); strings.Contains(labels, "/system/") {
			t.Logf("%9.3f %s", used, labels)
			seen += used
		}
	}
	if seen <= 0 {
		t.Error("nothing is listed that Kubernetes does not see")
	}
}

// zero returns the agent's time 0 by this machine's clock. Each reading gives a time that is too late by the delay of
// the agent's answer, so the earliest is the best.
func (w *watched) zero() time.Time {
	started := func(r reading) time.Time { return r.answered.Add(-time.Duration(r.at * float64(time.Second))) }
	return started(slices.MinFunc(w.readings, func(a, b reading) int { return started(a).Compare(started(b)) }))
}

// used returns the CPU time that the node had used when the agent read its counters, in seconds, interpolated between
// the counts before and after that time.
func (w *watched) used(r *reading) float64 {
	at := w.zero().Add(time.Duration(r.at * float64(time.Second)))
	i := max(1, slices.IndexFunc(w.node, func(c counted) bool { return !c.at.Before(at) }))
	a, b := w.node[i-1], w.node[i]
	return a.used + (b.used-a.used)*at.Sub(a.at).Seconds()/b.at.Sub(a.at).Seconds()
}

// agrees: between two samples of the kubelet, at the samples' own times, a container used as much CPU time as the agent
// says. At a time between two readings of the agent, its figure is only known to lie between theirs.
func (w *watched) agrees(t *testing.T, c *Cluster, node string) {
	zero := w.zero().Add(w.ahead)
	var want []string
	for _, p := range pods(t, c) {
		for _, x := range p.Spec.Containers {
			if p.Spec.NodeName == node {
				want = append(want, fmt.Sprintf("container=%s,namespace=%s,pod=%s", x.Name, p.Metadata.Namespace,
					p.Metadata.Name))
			}
		}
	}
	slices.Sort(want)
	for source, containers := range w.kubelet {
		if got := slices.Sorted(maps.Keys(containers)); !slices.Equal(got, want) {
			t.Errorf("%s has containers\n%q, want\n%q", source.page, got, want)
		}
		open := 0
		for _, key := range slices.Sorted(maps.Keys(containers)) {
			if !long.Enabled() && !strings.Contains(key, "namespace=shop,") {
				continue // with few samples, a late one matters if a container works in bursts, as the agent does
			}
			x := &compared{t, w, source, key, zero}
			inside := slices.DeleteFunc(containers[key], func(u usage) bool {
				first, last := x.around(u)
				return first < 0 || last >= len(w.readings)
			})
			if len(inside) < 2 {
				t.Errorf("%s of %s: %d samples", source.page, key, len(inside))
				continue
			}
			if !x.agree(inside) {
				open++
			}
		}
		if open > len(want)/2 && long.Enabled() {
			t.Errorf("%s: %d of %d containers could not be compared within 1 %%", source.page, open, len(want))
		}
	}
}

// late is how much older a counter of the kubelet may be than its time says, because the kubelet's thread may have to
// wait between reading the counter and the clock.
const late = 50 * time.Millisecond

// compared is a container whose usage both the kubelet and the agent report. zero is the agent's time 0 by the node's
// clock.
type compared struct {
	t    *testing.T
	w    *watched
	s    source
	key  string
	zero time.Time
}

// around returns the indices of the last reading of the agent that is certainly before a sample of the kubelet, and of
// the first that is certainly after it.
func (x *compared) around(u usage) (first, last int) {
	index := func(when time.Time) int { // index of the first reading after that time
		s := when.Sub(x.zero).Seconds()
		i := slices.IndexFunc(x.w.readings, func(r reading) bool { return r.at > s })
		if i < 0 {
			return len(x.w.readings)
		}
		return i
	}
	return index(u.at.Add(-late)) - 1, index(u.at.Add(x.s.grain))
}

// cpu returns what the container had used, according to the agent, at the time of a sample of the kubelet: the least,
// the likely and the most, in seconds.
func (x *compared) cpu(u usage) (lo, mid, hi float64) {
	first, last := x.around(u)
	lo, hi = x.w.readings[first].metrics[cpuMetric][x.key], x.w.readings[last].metrics[cpuMetric][x.key]
	at := u.at.Sub(x.zero).Seconds()
	i := first + 1
	for x.w.readings[i].at < at {
		i++
	}
	a, b := x.w.readings[i-1], x.w.readings[i]
	from, to := a.metrics[cpuMetric][x.key], b.metrics[cpuMetric][x.key]
	return lo, from + (to-from)*(at-a.at)/(b.at-a.at), hi
}

// memoryEvery is how old the agent's memory figures may be, plus some time for a scrape.
const memoryEvery = 11 * time.Second

// sets returns the smallest and the largest working set that the agent reported between two times, in seconds since it
// started.
func (x *compared) sets(from, to float64) (lo, hi float64) {
	lo, hi = math.Inf(1), 0
	for _, r := range x.w.readings {
		v, says := r.metrics[setMetric][workingSet+x.key] // a new container is missing until the agent reads memory again
		if says && r.at >= from && r.at <= to {
			lo, hi = min(lo, v), max(hi, v)
		}
	}
	return lo, hi
}

// memory compares working sets. off is the largest distance of a sample of the kubelet from the range of the agent's
// figures around the sample's time. moved is how far the agent's largest figure is above its smallest. Both are
// fractions. samples is the number of samples that were compared.
func (x *compared) memory(all []usage) (off, moved float64, samples int) {
	end := x.w.readings[len(x.w.readings)-1].at
	for _, u := range all {
		first, _ := x.around(u)
		until := u.at.Sub(x.zero).Seconds() + memoryEvery.Seconds()
		if until > end {
			continue
		}
		lo, hi := x.sets(x.w.readings[first].at, until)
		off, samples = max(off, lo/u.workingSet-1, 1-hi/u.workingSet), samples+1
	}
	lo, hi := x.sets(0, end)
	return off, hi/lo - 1, samples
}

// typical returns the sample whose difference from the agent's figure is the median. Others may be older than their
// times say, because a thread of the kubelet had to wait between reading a counter and reading the clock.
func (x *compared) typical(samples []usage) usage {
	all := slices.Clone(samples)
	ahead := func(u usage) float64 {
		_, mid, _ := x.cpu(u)
		return mid - u.cpu
	}
	slices.SortFunc(all, func(a, b usage) int { return cmp.Compare(ahead(a), ahead(b)) })
	return all[len(all)/2]
}

// agree compares samples of the kubelet with the agent's figures for their times. It returns false if CPU times differ
// by more than 1 %. In the long suite that is an error, unless the container used over 1 % of its CPU time so near to a
// sample that the sample's time does not say whether before or after.
func (x *compared) agree(samples []usage) bool {
	k := max(1, min(5, len(samples)/2))
	t, first, last := x.t, x.typical(samples[:k]), x.typical(samples[len(samples)-k:])
	used := last.cpu - first.cpu
	lo1, mid1, hi1 := x.cpu(first)
	lo2, mid2, hi2 := x.cpu(last)
	// On a machine that others use, a sample may be older by more than the constant late. The margin rounding allows for
	// that, and is as wide as the agent's promise.
	rounding := 0.001 + 0.01*used // seconds
	if used < lo2-hi1-rounding || used > hi2-lo1+rounding {
		t.Errorf("%s of %s: the kubelet counted %.3f s in %v, and the agent between %.3f and %.3f s", x.s.page, x.key, used,
			last.at.Sub(first.at), lo2-hi1, hi2-lo1)
	}
	setOff, moved, n := x.memory(samples)
	switch steady := moved <= 0.01; {
	case n == 0:
		t.Errorf("%s of %s: no sample of the working set", x.s.page, x.key)
	case setOff > 0.01 && steady:
		t.Errorf("%s of %s: the working set differs by %.2f %%", x.s.page, x.key, 100*setOff)
	case setOff > 0.05+moved:
		t.Errorf("%s of %s: the working set differs by %.2f %%, and it moved by %.2f %%", x.s.page, x.key, 100*setOff,
			100*moved)
	}
	off, open := (mid2-mid1)/used-1, (hi2-lo1-lo2+hi1)/used
	if used == 0 && mid1 == mid2 {
		off, open = 0, 0
	}
	t.Logf("%s of %s: %.4f s by the kubelet in %.0f s, by the agent %+.2f %%; its times leave %.2f %% open; working set "+
		"%.1f MB, which moved by %.2f %%, at most %.2f %% off in %d samples", x.s.page, x.key, used,
		last.at.Sub(first.at).Seconds(), 100*off, 100*open, last.workingSet/1e6, 100*moved, 100*setOff, n)
	if within := math.Abs(off) <= 0.01; within || !long.Enabled() {
		return within
	}
	if open <= 0.01 {
		t.Errorf("%s of %s: CPU time differs by %.2f %%", x.s.page, x.key, 100*off)
	}
	return false
}
