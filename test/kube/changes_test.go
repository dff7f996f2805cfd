package kube

import (
	"strings"
	"testing"

	"tare/internal/experiment/record"
	"tare/internal/results/analysis"
	"tare/test/long"
)

// experiments makes the namespace for experiments with Services.
func (p *plugin) experiments(t *testing.T) {
	t.Helper()
	_, kubectl := p.must(t)
	kubectl("create", "namespace", "tare-experiments")
	kubectl("-n", "tare-experiments", "apply", "-f", "../../deploy/kubernetes/services.yaml")
}

// changes fails the test unless the changes of an arm were followed, the API server's part is smaller than the whole,
// and nothing of the Services is left.
func (p *plugin) changes(t *testing.T, s analysis.Summary, arm string) {
	t.Helper()
	of := map[string]float64{}
	for i := range s.Estimates {
		if e := &s.Estimates[i]; e.Arm == arm {
			of[e.Metric] = e.Value
		}
	}
	whole, accepted := of["push_seconds"], of["push_accepted_seconds"]
	if accepted <= 0 || whole < accepted || whole > 10 {
		t.Errorf("%s: a change takes %g s, of which the API server takes %g", arm, whole, accepted)
	}
	eventually(t, func() string {
		out, err := p.Kubectl("-n", "tare-experiments", "get", "services,endpointslices", "-o", "name")
		if err != nil {
			return err.Error()
		}
		return strings.TrimSpace(out)
	})
}

// TestServiceChange runs the ready-made experiment for changes of Services in its quick form, with kube-proxy.
func TestServiceChange(t *testing.T) {
	long.Test(t, "5 min: changes of Services, followed by kube-proxy")
	p := upWithPlugin(t, Options{Nodes: 2}, "kubectl-tare")
	p.experiments(t)
	p.changes(t, p.readyMade(t, "cluster/service-change", "-n", "tare-experiments"), record.Direct)
}

// TestIstioChange runs the ready-made experiment for changes that one of Istio's sidecars follows in its quick form.
func TestIstioChange(t *testing.T) {
	long.Test(t, "8 min: changes of Services, followed by a sidecar, where TARE_ISTIO has Istio")
	p := upWithIstio(t)
	p.experiments(t)
	s := p.readyMade(t, "cluster/istio-change", "-n", "tare-experiments")
	p.changes(t, s, record.Direct)
	p.changes(t, s, "istio")
}

// kernelmesh starts the reference data plane on each node. group is the cgroup v2 group of the node, as the node sees
// it, and env an environment variable of the DaemonSet.
func (p *plugin) kernelmesh(t *testing.T, group, env string) {
	t.Helper()
	_, kubectl := p.must(t)
	kubectl("apply", "-f", "../../deploy/kubernetes/kernelmesh.yaml")
	kubectl("-n", "tare-mesh", "set", "env", "daemonset/kernelmesh", "CGROUP=unified"+group+"/kubepods",
		env) // the machine is hybrid
	kubectl("-n", "tare-mesh", "rollout", "status", "daemonset/kernelmesh", "--timeout=120s")
}

// TestKernelmesh runs the ready-made experiment for kernelmesh under Istio's control plane in its quick form.
func TestKernelmesh(t *testing.T) {
	long.Test(t, "8 min: kernelmesh on each node, where TARE_ISTIO has Istio")
	p := upWithIstio(t)
	p.experiments(t)
	p.kernelmesh(t, "", "STEPS=0")
	s := p.readyMade(t, "cluster/kernelmesh", "-n", "tare-experiments")
	p.changes(t, s, "kernelmesh")
	of := map[string]float64{}
	for i := range s.Estimates {
		if e := &s.Estimates[i]; e.Arm == "kernelmesh" {
			of[e.Metric+" "+e.Component] = e.Value
		}
	}
	for _, known := range []string{"memory_hard_bytes dataplane", "memory_hard_bytes controlplane",
		"subject_cpus dataplane", "map_bytes ", "bpf_cpu_share "} {
		if of[known] <= 0 {
			t.Errorf("%s is %g", known, of[known])
		}
	}
}

// TestCPULimit runs the ready-made experiment for CPU limits in its quick form, with programs that take most of it: the
// limit holds for the client and the programs together.
func TestCPULimit(t *testing.T) {
	long.Test(t, "8 min: pods with a CPU limit, and kernelmesh's programs, where TARE_ISTIO has Istio")
	p := upWithIstio(t)
	p.kernelmesh(t, "", "STEPS=65535")
	s := p.readyMade(t, "cluster/cpu-limit")
	levels := 0
	for i := range s.Estimates {
		e := &s.Estimates[i]
		if e.Arm != "dataplane" {
			continue
		}
		switch e.Metric {
		case "limited_cpus":
			levels++
			if e.Value < 0.22 || e.Value > 0.28 { // a window is no multiple of the kernel's periods
				t.Errorf("%v: the clients use %g CPUs of 0.25", e.Factors, e.Value)
			}
		case "limited_bpf_cpus":
			if e.Value < 0.125 {
				t.Errorf("%v: the programs have %g CPUs of that", e.Factors, e.Value)
			}
		}
	}
	if levels != 2 {
		t.Errorf("%d levels", levels)
	}
}

// TestSaturation runs the ready-made experiment for a saturated node in its quick form.
func TestSaturation(t *testing.T) {
	long.Test(t, "8 min: a saturated node with kernelmesh, where TARE_ISTIO has Istio")
	p := istioOn(t, Options{MachineNodes: 1}) // two nodes on one machine would count its CPUs twice, and programs once
	p.kernelmesh(t, p.Group+"/n1", "STEPS=0")
	s := p.readyMade(t, "cluster/saturation")
	levels := 0
	for i := range s.Estimates {
		if e := &s.Estimates[i]; e.Arm == "dataplane" && e.Metric == "bpf_cpu_share" {
			levels++
			if e.Value <= 0 || e.Value > 0.5 {
				t.Errorf("%v: the programs take %g of the node", e.Factors, e.Value)
			}
		}
	}
	if levels != 2 {
		t.Errorf("%d levels", levels)
	}
}
