package kube

import (
	"strings"
	"testing"
	"time"
)

// eventually repeats a check until it returns "", for a minute, and fails the test with the last answer.
func eventually(t *testing.T, check func() string) {
	t.Helper()
	var last string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		if last = check(); last == "" {
			return
		}
	}
	t.Fatal(last)
}

// TestTwoClusters: two clusters at the same time, each with its own nodes and pods.
func TestTwoClusters(t *testing.T) {
	one := Up(t, Options{Nodes: 2, MachineNodes: 1})
	two := Up(t, Options{Nodes: 1})
	for _, c := range []*Cluster{one, two} {
		out, err := c.Kubectl("get", "nodes", "-o", "name")
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(out, "node/"); got != len(c.Nodes) {
			t.Errorf("%d nodes, want %d:\n%s", got, len(c.Nodes), out)
		}
	}
	if err := one.Apply(web); err != nil {
		t.Fatal(err)
	}
	if _, err := one.Kubectl("rollout", "status", "daemonset/web", "--timeout=60s"); err != nil {
		t.Fatal(err)
	}
	if out, err := two.Kubectl("get", "pods", "-A", "-o", "name"); err != nil || out != "" {
		t.Errorf("pods of the other cluster: %s, %v", out, err)
	}
}

const web = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - {name: web, image: "tare.test/web:1", readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}}
`
