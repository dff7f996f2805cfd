package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"tare/internal/kube/cluster"
	"tare/test/binary"
	"tare/test/long"
	"tare/test/terminal"
)

// plugin is kubectl-tare, and the cluster that it weighs.
type plugin struct {
	*Cluster
	path string
}

const agentImage = "tare-agent:0.1.0"

// upWithPlugin starts a cluster whose nodes have the image of tare-agent, with the other given programs in it, and
// builds kubectl-tare.
func upWithPlugin(t *testing.T, o Options, others ...string) *plugin {
	t.Helper()
	if _, err := Bin(); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "kubectl-tare")
	if err := binary.Program(path, "./cmd/kubectl-tare"); err != nil {
		t.Fatal(err)
	}
	archive, err := AgentImage(dir, others...)
	if err != nil {
		t.Fatal(err)
	}
	o.Images = append(o.Images, archive)
	return &plugin{Up(t, o), path}
}

// command returns a command that runs kubectl tare as the administrator.
func (p *plugin) command(args ...string) *exec.Cmd {
	cmd := exec.Command(p.path, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+p.Kubeconfig)
	return cmd
}

// tare runs kubectl tare, and returns what it printed and its exit code.
func (p *plugin) tare(args ...string) (stdout, stderr string, code int) {
	cmd := p.command(args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		code = -1
		if exit, is := errors.AsType[*exec.ExitError](err); is {
			code = exit.ExitCode()
		}
	}
	return out.String(), errs.String(), code
}

// weigh weighs the cluster with the given arguments, and returns the account that is printed as JSON.
func (p *plugin) weigh(t *testing.T, wantCode int, args ...string) *cluster.Cluster {
	t.Helper()
	out, errs, code := p.tare(append([]string{"weigh", "-o", "json", "--image", agentImage}, args...)...)
	if code != wantCode {
		t.Fatalf("kubectl tare weigh %v: exit code %d, want %d\n%s", args, code, wantCode, errs)
	}
	var c cluster.Cluster
	if err := json.Unmarshal([]byte(out), &c); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return &c
}

// nothingLeft fails the test if the cluster still has temporary agents after a while.
func (p *plugin) nothingLeft(t *testing.T, within time.Duration) {
	t.Helper()
	var out string
	for deadline := time.Now().Add(within); ; time.Sleep(200 * time.Millisecond) {
		var err error
		out, err = p.Kubectl("get", "jobs,daemonsets,pods,controllerrevisions", "-A", "-o", "name",
			"-l", "app.kubernetes.io/managed-by=kubectl-tare")
		if err != nil {
			t.Fatal(err)
		}
		if out == "" {
			return
		}
		if time.Now().After(deadline) {
			break
		}
	}
	t.Errorf("left after %v:\n%s", within, out)
}

const shopWithProxy = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: shop}
spec:
  replicas: 3
  selector: {matchLabels: {app: shop}}
  template:
    metadata: {labels: {app: shop}}
    spec:
      terminationGracePeriodSeconds: 1
      initContainers:
      - {name: proxy, image: "tare.test/web:1", restartPolicy: Always, args: [sleep]}
      containers:
      - {name: web, image: "tare.test/web:1", readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}}
`

// TestPlugin weighs a cluster of three nodes by agents that are deployed for it.
func TestPlugin(t *testing.T) {
	p := upWithPlugin(t, Options{Nodes: 3})
	if err := p.Apply(shopWithProxy); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Kubectl("rollout", "status", "deployment/shop", "--timeout=300s"); err != nil {
		t.Fatal(err)
	}
	apart := func(w cluster.Warning) bool { return w.Code == "window-apart" }
	var c *cluster.Cluster
	for range 3 { // an agent may stand still at an edge of the window; one with a wrong window has it each time
		began := time.Now()
		c = p.weigh(t, 0, "--for", "5s", "--by", "container")
		t.Logf("weighed in %v", time.Since(began))
		p.nothingLeft(t, 20*time.Second) // less than the time after which the cluster removes the agents
		if !slices.ContainsFunc(c.Warnings, apart) {
			break
		}
	}
	if c.Answered != 3 || c.Asked != 3 {
		t.Fatalf("%d of %d nodes answered", c.Answered, c.Asked)
	}
	// All nodes used the requested window.
	for _, n := range c.Nodes {
		if n.Start.Sub(c.Start).Abs() > time.Second || n.End.Sub(c.End).Abs() > time.Second ||
			*n.Clock.UncertaintySeconds > 1 {
			t.Errorf("%s: %v to %v, of %v to %v; its clock is known within %v s", n.Name, n.Start, n.End, c.Start, c.End,
				*n.Clock.UncertaintySeconds)
		}
	}
	// gross = net + tare, and each view adds up to the total.
	for _, view := range cluster.Views() {
		sum := 0.0
		for _, r := range c.By(view) {
			sum += *r.CPU.Gross
			if d := *r.CPU.Gross - *r.CPU.Net - *r.CPU.Tare; math.Abs(d) > 1e-9 {
				t.Errorf("%+v: gross is off from net + tare by %g", r, d)
			}
		}
		if d := sum - *c.Total.CPU.Gross; math.Abs(d) > 1e-6 {
			t.Errorf("rows of %s add up to %g more than the total", view, d)
		}
	}
	// The sidecar counts as tare of its pod, and the application as net.
	i := slices.IndexFunc(c.Workloads, func(r *cluster.Row) bool {
		return r.Workload == "shop" && r.Kind == "Deployment"
	})
	if i < 0 {
		t.Fatalf("no row of the Deployment: %+v", c.Workloads)
	}
	if s := c.Workloads[i].Hard; !(*s.Tare > 0 && *s.Net > 0) {
		t.Errorf("memory of the shop: %+v", s)
	}
	for name, wantNet := range map[string]bool{"web": true, "proxy": false} {
		n := 0
		for _, r := range c.Containers {
			if r.Workload == "shop" && r.Container == name {
				n++
				if net := *r.Hard.Net > 0; net != wantNet {
					t.Errorf("%s: memory %v net, %v tare", name, *r.Hard.Net, *r.Hard.Tare)
				}
			}
		}
		if n != 3 {
			t.Errorf("%d rows of container %s, want 3", n, name)
		}
	}
	inPart := 0
	for _, w := range c.Warnings {
		switch w.Code {
		case "pod-unknown", "clock-unknown", "window-apart":
			t.Errorf("warning: %+v", w)
		case "machine-in-part":
			inPart = w.Count
		}
	}
	// The nodes are containers, each of which sees only itself.
	if inPart != 3 {
		t.Errorf("%d of 3 nodes are said to be a part of their machine: %+v", inPart, c.Warnings)
	}
	text, errs, code := p.tare("weigh", "--for", "1s", "--image", agentImage)
	if code != 0 || !strings.Contains(text, "shop") {
		t.Errorf("as text: exit code %d\n%s\n%s", code, text, errs)
	}
	t.Logf("\n%s", text)
	p.top(t)
}

// top looks at the cluster on the screen, as a person does.
func (p *plugin) top(t *testing.T) {
	m := terminal.New(t, p.path, "top", "--every", "2s", "--image", agentImage, "--kubeconfig", p.Kubeconfig)
	s := m.Until("default/shop")
	if !strings.HasPrefix(s, "kubectl tare top  3 nodes  ") || !strings.Contains(s, "# workloads") {
		t.Errorf("the first screen is\n%s", s)
	}
	m.Keys("4")
	m.Until("+ n")
	m.Keys("j", "Enter") // the first row is the machine that the nodes share
	m.Until("- n")
	m.Keys("q")
	m.Restored("0")
	p.nothingLeft(t, 5*time.Second)
}

// TestNodesWithoutAnswer: a node whose agent ends during the window, one that is cut off and one whose answer trickles
// are named as missing, and the figures of the fourth are right.
func TestNodesWithoutAnswer(t *testing.T) {
	long.Test(t, "50 s: waits for a node that is cut off")
	p := upWithPlugin(t, Options{Nodes: 4})
	cmd := p.command("weigh", "--for", "8s", "-o", "json", "--image", agentImage)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() string {
		list, err := p.Kubectl("get", "pods", "-n", "kube-system", "-l", "app.kubernetes.io/managed-by=kubectl-tare",
			"--field-selector", "status.phase=Running", "-o", "name")
		if err != nil {
			return err.Error()
		}
		if n := strings.Count(list, "\n"); n < 4 {
			return fmt.Sprintf("%d agents run", n)
		}
		return ""
	})
	time.Sleep(4 * time.Second) // not a deadline: into the window
	p.killAgent(t, "n2")
	p.network(t, "ip", "-n", "n1", "link", "set", "port3", "down")
	p.network(t, "tc", "-n", "n4", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "16kbit", "burst", "1540",
		"latency", "10s")
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 4 {
		t.Fatalf("%v, want exit code 4\n%s\n%s", err, out.Bytes(), errs.Bytes())
	}
	t.Logf("%s", errs.Bytes())
	var c cluster.Cluster
	if err := json.Unmarshal(out.Bytes(), &c); err != nil {
		t.Fatalf("%v\n%s", err, out.Bytes())
	}
	if c.Asked != 4 || c.Answered != 1 {
		t.Errorf("%d of %d nodes answered", c.Answered, c.Asked)
	}
	for _, n := range c.Nodes {
		want := map[string]string{"n1": "", "n2": "has ended", "n3": "did not answer in time",
			"n4": "did not answer in time|comes too slowly"}[n.Name]
		if named, _ := regexp.MatchString(want, n.Failed); !named || (n.Failed == "") != (want == "") ||
			(n.Usage == nil) != (want != "") {
			t.Errorf("%s: %q, want %q", n.Name, n.Failed, want)
		}
	}
}

// network changes the network of the nodes, by a command that sees their network namespaces by name.
func (p *plugin) network(t *testing.T, command ...string) {
	t.Helper()
	in := append([]string{"-t", strconv.Itoa(p.watcher.Process.Pid), "-m"}, command...)
	if out, err := exec.Command("nsenter", in...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", command, err, out)
	}
}

// killAgent kills the agent of a node.
func (p *plugin) killAgent(t *testing.T, node string) {
	t.Helper()
	p.kill(t, "tare-agent", p.Group+"/"+node+"/")
}

// kill kills one process with the given name whose control group's path contains the given text.
func (p *plugin) kill(t *testing.T, name, in string) {
	t.Helper()
	found, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range found {
		dir := filepath.Dir(path)
		comm, _ := os.ReadFile(path)
		group, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
		if string(comm) == name+"\n" && bytes.Contains(group, []byte(in)) {
			pid, err := strconv.Atoi(filepath.Base(dir))
			if err == nil {
				err = syscall.Kill(pid, syscall.SIGKILL)
			}
			if err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("no %s runs in %s", name, in)
}

// component returns a process of the control plane.
func (p *plugin) component(t *testing.T, name string) *os.Process {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(p.Dir, "pids", name))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	process, err := os.FindProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	return process
}

// TestInterrupted: Ctrl-C removes the agents at once, whenever it comes.
func TestInterrupted(t *testing.T) {
	long.Test(t, "20 s: interrupts it at three moments")
	p := upWithPlugin(t, Options{Nodes: 1})
	for _, after := range []time.Duration{100 * time.Millisecond, time.Second, 5 * time.Second} {
		cmd := p.command("weigh", "--for", "1m", "--image", agentImage)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(after)
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 1 {
			t.Errorf("interrupted after %v: %v, want exit code 1", after, err)
		}
		p.nothingLeft(t, 5*time.Second)
	}
}

// TestWeighKilled: whenever kubectl tare is killed, the cluster removes the agents when their time is over.
func TestWeighKilled(t *testing.T) {
	long.Test(t, "1 min: kills it 20 times, and waits for the cluster")
	p := upWithPlugin(t, Options{Nodes: 1})
	left := 0
	for i := range 20 {
		cmd := p.command("weigh", "--for", "1s", "--start-within", "3s", "--image", agentImage)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i*i) * 10 * time.Millisecond) // up to 3.6 s, most of them early
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		out, err := p.Kubectl("get", "jobs", "-A", "-o", "name", "-l", "app.kubernetes.io/managed-by=kubectl-tare")
		if err != nil {
			t.Fatal(err)
		}
		left = max(left, strings.Count(out, "\n"))
	}
	if left < 5 {
		t.Errorf("at most %d jobs were there at a time: it was hardly ever killed in time", left)
	}
	out, errs, code := p.tare("clean")
	if code != 0 || !strings.Contains(out, "its time is not over") {
		t.Errorf("kubectl tare clean: exit code %d\n%s%s", code, out, errs)
	}
	p.nothingLeft(t, 80*time.Second) // the time of the agents is 34 s
	if out, _, code := p.tare("clean"); code != 0 || out != "nothing to remove\n" {
		t.Errorf("kubectl tare clean: exit code %d\n%s", code, out)
	}
}

// TestInstalled: a user with only the documented rights can weigh the cluster with temporary agents. Installed agents
// answer kubectl tare weigh but no tenant, and uninstall leaves nothing of them.
func TestInstalled(t *testing.T) {
	p := upWithPlugin(t, Options{Nodes: 1})
	rights, err := os.ReadFile("../../deploy/kubernetes/weigh.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Apply(string(rights) + `
---
apiVersion: v1
kind: Namespace
metadata: {name: strict, labels: {pod-security.kubernetes.io/enforce: baseline}}
`); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"create", "clusterrolebinding", "weigher", "--clusterrole=tare-weigh", "--user=weigher"},
		{"create", "rolebinding", "weigher", "-n", "kube-system", "--role=tare-weigh", "--user=weigher"},
	} {
		if _, err := p.Kubectl(args...); err != nil {
			t.Fatal(err)
		}
	}

	// Temporary agents, with the documented rights and without any.
	eventually(t, func() string { // roles take effect a moment later
		out, _, code := p.tare("doctor", "--as", "weigher")
		if code != 0 || !strings.Contains(out, "ok  rights") ||
			!strings.Contains(out, "--  run        no experiments in default, ") ||
			!strings.Contains(out, "run.yaml: create pods in default") {
			return out
		}
		return ""
	})
	if out, _, code := p.tare("doctor", "-n", "strict"); code != 0 ||
		!strings.Contains(out, "ok  run        all of deploy/kubernetes/run.yaml, with the pods of experiments in strict") {
		t.Errorf("doctor: exit code %d\n%s", code, out)
	}
	p.weigh(t, 0, "--for", "1s", "--as", "weigher")
	p.nothingLeft(t, 5*time.Second)
	if out, _, code := p.tare("clean", "--as", "weigher"); code != 0 || out != "nothing to remove\n" {
		t.Errorf("clean: exit code %d\n%s", code, out)
	}
	out, errs, code := p.tare("doctor", "--as", "stranger")
	if code != 3 || !strings.Contains(out, "no  rights     missing: list nodes in all namespaces") ||
		!strings.Contains(out, "create pods/portforward in kube-system") {
		t.Errorf("doctor without rights: exit code %d\n%s%s", code, out, errs)
	}
	if _, errs, code := p.tare("weigh", "--as", "stranger"); code != 3 || !strings.Contains(errs, "kubectl tare doctor") {
		t.Errorf("weigh without rights: exit code %d\n%s", code, errs)
	}
	if _, errs, code := p.tare("weigh"); code != 2 || !strings.Contains(errs, "--image") {
		t.Errorf("without an image: exit code %d\n%s", code, errs)
	}
	_, errs, code = p.tare("weigh", "--image", agentImage, "--agents-namespace", "strict")
	if code != 3 || !strings.Contains(errs, "PodSecurity") || !strings.Contains(errs, "--agents-namespace") {
		t.Errorf("where privileged pods are refused: exit code %d\n%s", code, errs)
	}
	_, errs, code = p.tare("weigh", "--image", "127.0.0.1:1/missing:1", "--start-within", "20s", "--for", "1s")
	if code != 4 || !strings.Contains(errs, "ErrImage") && !strings.Contains(errs, "ImagePull") {
		t.Errorf("an image that is not there: exit code %d\n%s", code, errs)
	}
	p.nothingLeft(t, 5*time.Second)

	// Installed agents.
	if out, errs, code := p.tare("install", "--image", agentImage); code != 0 || strings.Count(out, "applied") != 5 {
		t.Fatalf("install: exit code %d\n%s%s", code, out, errs)
	}
	out, errs, code = p.tare("weigh", "--for", "1s", "-o", "json", "--agents-namespace", "tare")
	var c cluster.Cluster
	err = json.Unmarshal([]byte(out), &c)
	if err != nil || code != 0 || c.Answered != 1 || strings.Contains(errs, "starting agents") {
		t.Errorf("by installed agents: exit code %d, %v\n%s", code, err, errs)
	}
	if !slices.ContainsFunc(c.Components, func(r *cluster.Row) bool { return r.Component == "tare" }) {
		t.Errorf("the agents' own cost is in no row: %+v", c.Components)
	}
	ip, err := p.Kubectl("get", "pods", "-n", "tare", "-o", "jsonpath={.items[0].status.podIP}")
	if err != nil {
		t.Fatal(err)
	}
	tenant := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(context.Context, string, string) (net.Conn, error) { return p.Dial("n1", ip+":9633") }}}
	for _, path := range []string{"/v1/ledger?for=1s", "/v1/clock"} {
		r, err := tenant.Get("http://localhost" + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Body.Close()
		if r.StatusCode != http.StatusForbidden {
			t.Errorf("a tenant gets %s of %s", r.Status, path)
		}
	}
	if out, errs, code := p.tare("uninstall"); code != 0 || strings.Count(out, "removed") != 5 {
		t.Errorf("uninstall: exit code %d\n%s%s", code, out, errs)
	}
	eventually(t, func() string {
		out, err := p.Kubectl("get", "namespaces,daemonsets,pods,serviceaccounts,configmaps", "-A", "-o", "name",
			"-l", "app.kubernetes.io/managed-by=kubectl-tare")
		if err != nil {
			return err.Error()
		}
		return out
	})
}

// TestInstalledBeside: install and uninstall leave a namespace that others created, and what is in it, as it was. If an
// object exists already, or pods are refused, install says so.
func TestInstalledBeside(t *testing.T) {
	long.Test(t, "30 s: agents in a namespace of others")
	p := upWithPlugin(t, Options{Nodes: 1})
	if err := p.Apply(`
apiVersion: v1
kind: Namespace
metadata: {name: theirs, labels: {team: shop}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: precious, namespace: theirs}
---
apiVersion: v1
kind: Namespace
metadata: {name: strict, labels: {pod-security.kubernetes.io/enforce: baseline}}
---
apiVersion: v1
kind: Namespace
metadata: {name: half}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: tare-agent, namespace: half}
automountServiceAccountToken: false
---
apiVersion: v1
kind: Namespace
metadata: {name: full}
---
apiVersion: v1
kind: ResourceQuota
metadata: {name: none, namespace: full}
spec: {hard: {pods: 0}}
`); err != nil {
		t.Fatal(err)
	}
	labels := func() string {
		out, err := p.Kubectl("get", "namespace", "theirs", "-o", "jsonpath={.metadata.labels}")
		if err != nil {
			t.Error(err)
		}
		return out
	}
	before := labels()
	out, errs, code := p.tare("install", "-n", "theirs", "--image", agentImage)
	if code != 0 || strings.Count(out, "applied") != 4 {
		t.Fatalf("install: exit code %d\n%s%s", code, out, errs)
	}
	if out, errs, code := p.tare("uninstall", "-n", "theirs"); code != 0 || strings.Count(out, "removed") != 4 {
		t.Errorf("uninstall: exit code %d\n%s%s", code, out, errs)
	}
	if _, err := p.Kubectl("get", "configmap", "-n", "theirs", "precious"); err != nil {
		t.Error(err)
	}
	if after := labels(); after != before {
		t.Errorf("the namespace has the labels %s, and had %s", after, before)
	}
	_, errs, code = p.tare("install", "-n", "strict", "--image", agentImage)
	if code != 2 || !strings.Contains(errs, "kubectl label") {
		t.Errorf("install where privileged pods are refused: exit code %d\n%s", code, errs)
	}
	out, errs, code = p.tare("install", "-n", "half", "--image", agentImage)
	if code != 2 || out != "" || !strings.Contains(errs, "serviceaccount/tare-agent in half was not created") {
		t.Errorf("install over an object of others: exit code %d\n%s%s", code, out, errs)
	}
	if out, _, code := p.tare("uninstall", "-n", "half"); code != 0 || out != "nothing to remove\n" {
		t.Errorf("uninstall: exit code %d\n%s", code, out)
	}
	out, errs, code = p.tare("install", "-n", "full", "--image", agentImage)
	if code != 3 || strings.Count(out, "applied") != 4 || !strings.Contains(errs, "exceeded quota") {
		t.Errorf("install where no pod is admitted: exit code %d\n%s%s", code, out, errs)
	}
	out, _, code = p.tare("doctor", "--agents-namespace", "full")
	if code != 3 || !strings.Contains(out, "installed in full; 0 of 0 run; there is none on n1\n") {
		t.Errorf("doctor without an agent: exit code %d\n%s", code, out)
	}
}

// TestProtected: agents with TLS and a password serve windows, through the API server, to a user who gives the
// certificate and the password; other users get an error that names what is missing.
func TestProtected(t *testing.T) {
	long.Test(t, "40 s: agents with TLS and a password")
	p := upWithPlugin(t, Options{Nodes: 2})
	dir := applyProtected(t, p.Cluster)
	secret := filepath.Join(dir, "password")
	if err := os.WriteFile(secret, []byte(password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ca, name := "--agents-ca="+filepath.Join(dir, "agent.crt"), "--agents-server-name=tare-agent"
	user, file := "--agents-user=prometheus", "--agents-password-file="+secret
	if c := p.weigh(t, 0, "--for", "1s", ca, name, user, file); c.Answered != 2 || *c.Total.CPU.Gross <= 0 {
		t.Errorf("%d of %d nodes answered: %+v", c.Answered, c.Asked, c.Total.CPU)
	}
	for what, x := range map[string]struct {
		args []string
		code int
		says string
	}{
		"nothing":       {nil, 4, "wants TLS or a password (--agents-ca"},
		"no password":   {[]string{ca, name}, 4, "401"},
		"another name":  {[]string{ca, user, file}, 4, "not localhost"},
		"half of it":    {[]string{ca, user}, 2, "--agents-password-file"},
		"no such file":  {[]string{"--agents-ca=/nonexistent", user, file}, 2, "--agents-ca /nonexistent"},
		"no TLS at all": {[]string{user, file}, 4, "--agents-ca"},
	} {
		out, errs, code := p.tare(append([]string{"weigh", "--for", "1s"}, x.args...)...)
		if code != x.code || !strings.Contains(out+errs, x.says) {
			t.Errorf("%s: exit code %d, want %d with %q\n%s%s", what, code, x.code, x.says, out, errs)
		}
	}
}

// TestPluginTwentyNodes: twenty nodes are weighed in one window. How long that takes is logged.
func TestPluginTwentyNodes(t *testing.T) {
	long.Test(t, "1 min: twenty nodes weighed")
	p := upWithPlugin(t, Options{Nodes: 20})
	if _, errs, code := p.tare("install", "--image", agentImage, "--start-within", "3m"); code != 0 {
		t.Fatalf("install: exit code %d\n%s", code, errs)
	}
	for range 2 {
		began := time.Now()
		c := p.weigh(t, 0, "--for", "10s")
		t.Logf("a window of 10 s took %v", time.Since(began))
		if c.Answered != 20 {
			t.Errorf("%d nodes answered", c.Answered)
		}
		for _, w := range c.Warnings {
			t.Logf("warning: %s (%d)", w.Code, w.Count)
		}
	}
}
