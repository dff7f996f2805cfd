package kube

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"tare/internal/kube/cluster"
	"tare/test/binary"
	"tare/test/long"
)

const runtimeClass = `
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: gvisor}
handler: runsc
`

// sandboxed is a pod that burns CPU time in a sandbox.
const sandboxed = `
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Pod
metadata: {name: sandboxed, namespace: shop}
spec:
  runtimeClassName: gvisor
  nodeName: n1
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: "tare.test/web:1", args: [burn, "16"]}]
`

// TestGVisor weighs a pod in a sandbox, and runs the ready-made experiment for gVisor's RuntimeClass in its quick form.
func TestGVisor(t *testing.T) {
	long.Test(t, "3 min: gVisor's RuntimeClass weighed in pods of two nodes, where make runsc has been run")
	root, err := binary.Root()
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(root, "bin")
	if _, err := os.Stat(filepath.Join(bin, "containerd-shim-runsc-v1")); err != nil {
		t.Skip("needs gVisor (make runsc)")
	}
	p := upWithPlugin(t, Options{Nodes: 2, GVisor: bin}, "kubectl-tare")
	apply, kubectl := p.must(t)
	apply(runtimeClass)
	apply(sandboxed)
	kubectl("-n", "shop", "wait", "--for=condition=Ready", "pod/sandboxed", "--timeout=60s")
	c := p.weigh(t, 0, "--for", "4s", "--by", "container", "-n", "shop")
	if i := slices.IndexFunc(c.Workloads, func(r *cluster.Row) bool { return r.Workload == "sandboxed" }); i < 0 ||
		c.Workloads[i].CPUs.Gross == nil || *c.Workloads[i].CPUs.Gross < 0.1 {
		t.Errorf("the pod in a sandbox uses CPU time, and is not there: %+v", c.Workloads)
	}
	kubectl("-n", "shop", "delete", "pod", "sandboxed")
	s := p.readyMade(t, "cluster/gvisor")
	of := map[string]float64{}
	for i := range s.Estimates {
		if e := &s.Estimates[i]; e.Component == "" {
			of[e.Arm+" "+e.Metric] = e.Value
		}
	}
	for _, metric := range []string{"cpu_seconds_per_request", "app_memory_hard_bytes", "latency_p50_seconds"} {
		if plain, sandbox := of["direct "+metric], of["gvisor "+metric]; plain <= 0 || sandbox < 1.2*plain {
			t.Errorf("%s: %g in a sandbox, %g without", metric, sandbox, plain)
		}
	}
}
