package kube

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tare/internal/kube/cluster"
	"tare/test/binary"
	"tare/test/long"
	"tare/test/vm"
)

// sandboxed is a RuntimeClass, by name and handler, and a pod of it that burns CPU time.
const sandboxed = `
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: %[1]s}
handler: %[2]s
---
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Pod
metadata: {name: sandboxed, namespace: shop}
spec:
  runtimeClassName: %[1]s
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
	weighSandboxes(t, Options{GVisor: bin}, "gvisor", "runsc")
}

// TestMicroVM is TestGVisor for Tare's reference sandbox. It also reads the output and the exit status of a container,
// as containerd has them.
func TestMicroVM(t *testing.T) {
	long.Test(t, "5 min: Tare's microvm as a RuntimeClass of two nodes, where QEMU and a kernel for it are installed")
	kernel, err := vm.Kernel()
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	tare, err := binary.Build(dir)
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "microvm")
	script := fmt.Sprintf("#!/bin/sh\nexport TARE_MICROVM_KERNEL='%s'\nexec '%s' microvm \"$@\"\n", kernel.Image, tare)
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	p := weighSandboxes(t, Options{MicroVM: program}, "microvm", "microvm")
	apply, kubectl := p.must(t)
	apply(`
apiVersion: v1
kind: Pod
metadata: {name: ends, namespace: shop}
spec:
  runtimeClassName: microvm
  restartPolicy: Never
  containers: [{name: main, image: "tare.test/web:1", args: [burn, much]}]
`)
	kubectl("-n", "shop", "wait", "--for=jsonpath={.status.phase}=Failed", "pod/ends", "--timeout=120s")
	code := kubectl("-n", "shop", "get", "pod", "ends", "-o",
		"jsonpath={.status.containerStatuses[0].state.terminated.exitCode}")
	if log := kubectl("-n", "shop", "logs", "ends"); code != "1" || !strings.Contains(log, "invalid syntax") {
		t.Errorf("the exit code is %s, the output %q", code, log)
	}
}

// weighSandboxes starts a cluster of two nodes with a RuntimeClass and a pod of it, and weighs the pod. Then it runs
// the ready-made experiment cluster/CLASS in its quick form.
func weighSandboxes(t *testing.T, o Options, class, handler string) *plugin {
	t.Helper()
	o.Nodes = 2
	p := upWithPlugin(t, o, "kubectl-tare")
	apply, kubectl := p.must(t)
	apply(fmt.Sprintf(sandboxed, class, handler))
	kubectl("-n", "shop", "wait", "--for=condition=Ready", "pod/sandboxed", "--timeout=120s")
	c := p.weigh(t, 0, "--for", "4s", "--by", "container", "-n", "shop")
	if i := slices.IndexFunc(c.Workloads, func(r *cluster.Row) bool { return r.Workload == "sandboxed" }); i < 0 ||
		c.Workloads[i].CPUs.Gross == nil || *c.Workloads[i].CPUs.Gross < 0.1 {
		t.Errorf("the pod in a sandbox uses CPU time, and is not there: %+v", c.Workloads)
	}
	kubectl("-n", "shop", "delete", "pod", "sandboxed")
	s := p.readyMade(t, "cluster/"+class)
	of := map[string]float64{}
	for i := range s.Estimates {
		if e := &s.Estimates[i]; e.Component == "" {
			of[e.Arm+" "+e.Metric] = e.Value
		}
	}
	for _, metric := range []string{"cpu_seconds_per_request", "app_memory_hard_bytes", "latency_p50_seconds"} {
		if plain, sandbox := of["direct "+metric], of[class+" "+metric]; plain <= 0 || sandbox < 1.2*plain {
			t.Errorf("%s: %g in a sandbox, %g without", metric, sandbox, plain)
		}
	}
	return p
}
