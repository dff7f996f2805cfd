package kube

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tare/internal/kube/cluster"
	"tare/test/binary"
)

// plugin is kubectl-tare, and the cluster that it is about.
type plugin struct {
	*Cluster
	path string
}

const agentImage = "docker.io/library/tare-agent:0.1.0"

// upWithPlugin starts a cluster whose nodes have the image of tare-agent, and builds kubectl-tare.
func upWithPlugin(t *testing.T, o Options) *plugin {
	t.Helper()
	if _, err := Bin(); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	agent, path := filepath.Join(dir, "tare-agent"), filepath.Join(dir, "kubectl-tare")
	archive := filepath.Join(dir, "agent.tar")
	for to, pkg := range map[string]string{agent: "./cmd/tare-agent", path: "./cmd/kubectl-tare"} {
		if err := binary.Program(to, pkg, "-ldflags=-w"); err != nil {
			t.Fatal(err)
		}
	}
	cmd, err := binary.Go("run", "./release/image", archive, agent)
	if err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(cmd.Env, "VERSION=0.1.0", "COMMIT=test", "SOURCE_DATE_EPOCH=1790000000")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("making the image: %v\n%s", err, out)
	}
	o.Images = append(o.Images, archive)
	return &plugin{Up(t, o), path}
}

// command is kubectl tare as the administrator.
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

// weigh weighs the cluster.
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

const shop = `
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
	if err := p.Apply(shop); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Kubectl("rollout", "status", "deployment/shop", "--timeout=60s"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	c := p.weigh(t, 0, "--for", "5s", "--by", "container")
	t.Logf("weighed in %v", time.Since(began))
	p.nothingLeft(t, 0)
	if c.Answered != 3 || c.Asked != 3 {
		t.Fatalf("%d of %d nodes answered", c.Answered, c.Asked)
	}
	// All nodes took the window that was asked for.
	for _, n := range c.Nodes {
		if n.Start.Sub(c.Start).Abs() > time.Second || n.End.Sub(c.End).Abs() > time.Second || *n.Clock.UncertaintySeconds > 1 {
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
	// The sidecar is tare of its pod, and the application is net.
	i := slices.IndexFunc(c.Workloads, func(r cluster.Row) bool { return r.Workload == "shop" && r.Kind == "Deployment" })
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
	for _, w := range c.Warnings {
		if w.Code == "pod-unknown" || w.Code == "clock-unknown" || w.Code == "window-apart" {
			t.Errorf("warning: %+v", w)
		}
	}
	text, errs, code := p.tare("weigh", "--for", "1s", "--image", agentImage)
	if code != 0 || !strings.Contains(text, "shop") {
		t.Errorf("as text: exit code %d\n%s\n%s", code, text, errs)
	}
	t.Logf("\n%s", text)
}
