package kube

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	appsapi "k8s.io/api/apps/v1"
	api "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/httpstream"      //nolint:staticcheck // deprecated, and what client-go takes
	"k8s.io/apimachinery/pkg/util/httpstream/spdy" //nolint:staticcheck // as httpstream
	"k8s.io/apimachinery/pkg/util/portforward"
	clientportforward "k8s.io/client-go/tools/portforward"

	"tare/internal/kube/cluster"
	"tare/internal/scale/host/proc"
	"tare/internal/scale/ledger"
	"tare/test/binary"
	"tare/test/long"
	"tare/test/speed"
)

const (
	crowdNodes   = 1000
	crowdPerNode = 30 // pods of two containers
)

// crowd plays the API server of a cluster and the agents of its nodes. Each agent listens at a separate port, to which
// the server forwards connections as a real one does.
type crowd struct {
	agents  []net.Listener
	pods    []api.Pod
	ledger  string                // JSON of a node's ledger, with NODE in place of the node's number
	behaves func(node int) string // "slow": it answers after seconds; "trickles": its answer never ends; "": at once

	mu  sync.Mutex
	end time.Time // of the latest window that was requested
}

func (c *crowd) windowEnd() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.end
}

// process records how much CPU time and memory another process has used over time.
type process struct {
	stop, stopped chan struct{}
	resident      float64 // maximum, in bytes
	used          []used
}

type used struct {
	at  time.Time
	cpu time.Duration
}

// peak matches the largest memory that a process had resident. The maximum in struct rusage could be that of this
// process, whose memory the other one shares between fork and exec.
var peak = regexp.MustCompile(`(?m)^VmHWM:\s*(\d+) kB$`)

// follow reads what a process uses ten times a second.
func follow(pid int) *process {
	p := &process{stop: make(chan struct{}), stopped: make(chan struct{})}
	go func() {
		defer close(p.stopped)
		for tick := time.NewTicker(100 * time.Millisecond); ; {
			status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			if found := peak.FindSubmatch(status); found != nil {
				kb, _ := strconv.ParseFloat(string(found[1]), 64) // digits
				p.resident = max(p.resident, kb*1024)
			}
			if cpu, err := proc.Runtime(pid); err == nil {
				p.used = append(p.used, used{time.Now(), cpu})
			}
			select {
			case <-tick.C:
			case <-p.stop:
				return
			}
		}
	}()
	return p
}

// end stops the reading.
func (p *process) end() {
	close(p.stop)
	<-p.stopped
}

// usedBefore returns the CPU time that the process had used by the given time.
func (p *process) usedBefore(when time.Time) (cpu time.Duration) {
	for _, u := range p.used {
		if u.at.Before(when) {
			cpu = u.cpu
		}
	}
	return cpu
}

// TestThousandAgents: the ledgers of a thousand agents, over real connections, are merged within the promised time and
// memory, even if some agents are slow.
func TestThousandAgents(t *testing.T) {
	long.Test(t, "1 min: a thousand simulated agents, which another process asks")
	dir := t.TempDir()
	path := filepath.Join(dir, "kubectl-tare")
	if err := binary.Program(path, "./cmd/kubectl-tare"); err != nil {
		t.Fatal(err)
	}
	c := newCrowd(t)
	server := httptest.NewTLSServer(c)
	t.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	config, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": []any{map[string]any{"name": "c",
			"cluster": map[string]any{"server": server.URL, "certificate-authority-data": ca}}},
		"contexts": []any{map[string]any{"name": "c", "context": map[string]any{"cluster": "c", "user": "u"}}},
		"users":    []any{map[string]any{"name": "u", "user": map[string]any{"token": "x"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(dir, "config")
	if err := os.WriteFile(kubeconfig, config, 0o600); err != nil {
		t.Fatal(err)
	}
	weigh := func(format string, wantCode int) *cluster.Cluster {
		t.Helper()
		cmd := exec.Command(path, "weigh", "--for", "10s", "-o", format, "--kubeconfig", kubeconfig)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		began := time.Now()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		p := follow(cmd.Process.Pid)
		err := cmd.Wait()
		ended := time.Now()
		p.end()
		if cmd.ProcessState.ExitCode() != wantCode {
			t.Fatalf("%v, want exit code %d\n%.4000s", err, wantCode, errs.Bytes())
		}
		end := c.windowEnd()
		after := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime() - p.usedBefore(end)
		t.Logf("%s: %.1f s in all, the result %.1f s after the window; then %.1f s of CPU time; at most %.0f MB resident",
			format, ended.Sub(began).Seconds(), ended.Sub(end).Seconds(), after.Seconds(), float64(p.resident)/1e6)
		if p.resident == 0 || p.resident > 500e6 {
			t.Errorf("%.0f MB were resident", float64(p.resident)/1e6)
		}
		if format != "json" {
			// The limit is one of CPU time, because this process, which plays the nodes, takes the CPUs at the same moment.
			if most := speed.Scale(5 * time.Second); after > most {
				t.Errorf("it used %v of CPU time after the window, and may use %v", after, most)
			}
			return nil
		}
		var account cluster.Cluster
		if err := json.Unmarshal(out.Bytes(), &account); err != nil {
			t.Fatal(err)
		}
		sumsAreExact(t, &account)
		return &account
	}

	weigh("text", 0)
	account := weigh("json", 0)
	if account.Answered != crowdNodes || len(account.Containers) < crowdNodes*crowdPerNode*2 {
		t.Errorf("%d nodes and %d containers", account.Answered, len(account.Containers))
	}

	const trickle, slow = 20, 21 // nodes below 20 trickle, and node 20 is slow
	c.behaves = func(node int) string {
		switch {
		case node < trickle:
			return "trickles"
		case node < slow:
			return "slow"
		}
		return ""
	}
	account = weigh("json", 4)
	for i := range account.Nodes {
		n := &account.Nodes[i]
		node, err := strconv.Atoi(strings.TrimPrefix(n.Name, "node-"))
		if trickles := node < trickle; err != nil || trickles != (n.Failed != "") ||
			trickles && !strings.Contains(n.Failed, "in time") {
			t.Errorf("%s: %q", n.Name, n.Failed)
		}
	}
	if account.Answered != crowdNodes-trickle {
		t.Errorf("%d nodes answered", account.Answered)
	}
}

func newCrowd(t *testing.T) *crowd {
	t.Helper()
	c := &crowd{behaves: func(int) string { return "" }}
	for node := range crowdNodes {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		c.agents = append(c.agents, l)
		agent := &http.Server{ReadHeaderTimeout: time.Minute,
			Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { c.answer(w, r, node) })}
		go agent.Serve(l) //nolint:errcheck // ends with the test
		t.Cleanup(func() { _ = agent.Close() })

		name := fmt.Sprintf("node-%d", node)
		c.pods = append(c.pods, api.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "tare",
			Name: "tare-agent-" + strconv.Itoa(node), UID: "agent",
			Labels: map[string]string{"app.kubernetes.io/name": "tare-agent"},
			OwnerReferences: []metav1.OwnerReference{{Kind: "DaemonSet", Name: "tare-agent", UID: "set",
				Controller: new(true)}}},
			Spec: api.PodSpec{NodeName: name, HostPID: true,
				Containers: []api.Container{{Name: "agent", Image: "tare-agent:0.1.0"}}},
			Status: api.PodStatus{ContainerStatuses: []api.ContainerStatus{{
				State: api.ContainerState{Running: &api.ContainerStateRunning{}}}}}})
		for j := range crowdPerNode {
			p := api.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprintf("team-%d", j%20),
				Name: fmt.Sprintf("app-%d-%d", j, node), UID: uid(node, j),
				Labels: map[string]string{"app": fmt.Sprint("app-", j), "pod-template-hash": "5d4f8", "team": "x"},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet",
					Name: fmt.Sprintf("app-%d-5d4f8", j), Controller: new(true)}}}}
			p.Spec.NodeName = name
			for _, of := range []string{"app", "istio-proxy"} {
				p.Spec.Containers = append(p.Spec.Containers, api.Container{Name: of, Image: "registry.example.com/team/" + of,
					Env: []api.EnvVar{{Name: "MODE", Value: "production"}, {Name: "ADDRESS", Value: "0.0.0.0:8080"}}})
			}
			c.pods = append(c.pods, p)
		}
	}
	var l ledger.Ledger
	l.Schema = ledger.Schema
	l.Host.CPUs = 4
	for j := range crowdPerNode {
		pod := fmt.Sprintf("/kubepods/burstable/podNODE-%d", j)
		for _, container := range []string{"", "app", "istio-proxy", "(sandbox)"} {
			of := ledger.Charged{Charge: ledger.ChargeWorkload, Workload: fmt.Sprintf("team-%d/app-%d-NODE", j%20, j)}
			switch container {
			case "istio-proxy":
				of.Charge, of.Component = ledger.ChargeTare, "sidecar"
			case "(sandbox)":
				of.Charge, of.Component = ledger.ChargeTare, "pause"
			}
			seconds := 0.01
			if container == "" {
				seconds = 0.04
			}
			l.Cgroups = append(l.Cgroups, ledger.Cgroup{Path: strings.TrimSuffix(pod+"/"+container, "/"), Charged: of,
				CPUSeconds: &seconds, Rule: `profile kubernetes:99:5 namespace=\*`,
				Name: &ledger.Name{Namespace: fmt.Sprintf("team-%d", j%20), Pod: fmt.Sprintf("app-%d-NODE", j),
					PodUID: strings.ReplaceAll(string(uid(123456, j)), "123456", "NODE"), Container: container},
				Memory: &ledger.Memory{Hard: new(int64(1e6)), Soft: new(int64(1e6)), WorkingSet: new(uint64(2e6))}})
			l.CPU.Attributed += 0.01
		}
	}
	l.CPU.Capacity, l.CPU.Idle = 40, 40-l.CPU.Attributed
	text, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	c.ledger = string(text)
	t.Logf("%d pods; a ledger has %d kB", len(c.pods), len(text)/1000)
	return c
}

func uid(node, pod int) (id types.UID) { return types.UID(fmt.Sprintf("0f7a8265-%d-%d", node, pod)) }

// answer answers a request to the agent of a node.
func (c *crowd) answer(w http.ResponseWriter, r *http.Request, node int) {
	if r.URL.Path == "/v1/clock" {
		if c.behaves(node) == "slow" {
			time.Sleep(500 * time.Millisecond)
		}
		fmt.Fprintf(w, `{"time": %q}`, time.Now().Format(time.RFC3339Nano))
		return
	}
	at, err := time.Parse(time.RFC3339Nano, r.FormValue("at"))
	d, err2 := time.ParseDuration(r.FormValue("for"))
	if err != nil || err2 != nil || time.Until(at) < 0 { // a real agent refuses these too
		http.Error(w, "wrong", http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	c.end = at.Add(d)
	c.mu.Unlock()
	time.Sleep(time.Until(at.Add(d)))
	window := fmt.Sprintf(`"window":{"start":%q,"end":%q,"seconds":%v`, at.Format(time.RFC3339Nano),
		at.Add(d).Format(time.RFC3339Nano), d.Seconds())
	text := strings.ReplaceAll(c.ledger, "NODE", strconv.Itoa(node))
	from := strings.Index(text, `"window":{`)
	to := from + strings.IndexByte(text[from:], '}')
	text = text[:from] + window + text[to:]
	switch c.behaves(node) {
	case "slow":
		time.Sleep(3 * time.Second)
	case "trickles":
		for i := range text {
			if _, err := io.WriteString(w, text[i:i+1]); err != nil || http.NewResponseController(w).Flush() != nil {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	_, _ = io.WriteString(w, text) // if it does not arrive, the test sees that
}

// ServeHTTP answers as the API server.
func (c *crowd) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch path := r.URL.Path; {
	case strings.HasSuffix(path, "/portforward"):
		c.forward(w, r)
	case path == "/api/v1/nodes":
		all := make([]api.Node, crowdNodes)
		for i := range all {
			all[i].Name = fmt.Sprintf("node-%d", i)
			all[i].Status.NodeInfo = api.NodeSystemInfo{OperatingSystem: "linux", BootID: fmt.Sprint("boot-", i)}
			all[i].Status.Conditions = []api.NodeCondition{{Type: api.NodeReady, Status: api.ConditionTrue}}
		}
		list := api.NodeList{}
		list.Items, list.Continue = page(r, all)
		reply(w, "v1", "NodeList", &list)
	case strings.HasSuffix(path, "/pods"):
		all := c.pods
		if r.URL.Query().Get("labelSelector") != "" {
			all = nil
			for i := range c.pods {
				if c.pods[i].Namespace == "tare" {
					all = append(all, c.pods[i])
				}
			}
		}
		list := api.PodList{}
		list.Items, list.Continue = page(r, all)
		reply(w, "v1", "PodList", &list)
	case path == "/apis/apps/v1/daemonsets":
		set := appsapi.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "tare", Name: "tare-agent", UID: "set"}}
		set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app.kubernetes.io/name": "tare-agent"}}
		set.Spec.Template.Spec = api.PodSpec{HostPID: true, Containers: []api.Container{{Name: "agent"}}}
		reply(w, "apps/v1", "DaemonSetList", &appsapi.DaemonSetList{Items: []appsapi.DaemonSet{set}})
	default:
		http.NotFound(w, r)
	}
}

// page returns the part of a list that a request asks for, and the token for the next part; "" after the last.
func page[T any](r *http.Request, all []T) (some []T, next string) {
	from, _ := strconv.Atoi(r.URL.Query().Get("continue")) // empty: 0
	limit, err := strconv.Atoi(r.URL.Query().Get("limit"))
	if err != nil || from+limit >= len(all) {
		return all[from:], ""
	}
	return all[from : from+limit], strconv.Itoa(from + limit)
}

func reply(w http.ResponseWriter, version, kind string, list any) {
	text, err := json.Marshal(list)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, `{"apiVersion":%q,"kind":%q,%s`, version, kind, text[1:]) // fails only if the client has gone
}

// forward is the server's side of kubectl port-forward by WebSocket.
func (c *crowd) forward(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(r.URL.Path, "/") // .../pods/NAME/portforward
	node, err := strconv.Atoi(strings.TrimPrefix(parts[len(parts)-2], "tare-agent-"))
	if err != nil {
		http.NotFound(w, r)
		return
	}
	upgrader := websocket.Upgrader{Subprotocols: []string{portforward.WebsocketsSPDYTunnelingPortForwardV1}}
	socket, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return
	}
	conn, err := spdy.NewServerConnection(clientportforward.NewTunnelingConnection("server", socket),
		func(s httpstream.Stream, _ <-chan struct{}) error {
			if s.Headers().Get(api.StreamType) == api.StreamTypeData {
				go c.connect(s, node)
			}
			return nil
		})
	if err != nil {
		_ = socket.Close()
		return
	}
	<-conn.CloseChan()
}

func (c *crowd) connect(s httpstream.Stream, node int) {
	agent, err := net.Dial("tcp", c.agents[node].Addr().String())
	if err != nil {
		_ = s.Reset()
		return
	}
	go func() {
		_, _ = io.Copy(agent, s)
		_ = agent.Close()
	}()
	_, _ = io.Copy(s, agent)
	_ = s.Close()
}
