package kube

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tare/internal/experiment/record"
	"tare/internal/results/analysis"
	"tare/test/long"
)

// dns is a DNS server by which sidecars find their control plane: %s stands for the control plane's address.
const dns = `
apiVersion: v1
kind: Pod
metadata: {name: dns, namespace: kube-system, labels: {app: dns}}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: dns, image: "tare.test/web:1", args: [name, istiod.istio-system.svc, %s]}]
---
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec: {clusterIP: 10.96.0.10, selector: {app: dns}, ports: [{port: 53, protocol: UDP}]}
`

// strict makes Istio refuse connections without mutual TLS.
const strict = `
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: istio-system}
spec: {mtls: {mode: STRICT}}
`

// upWithIstio starts a cluster of two nodes with Istio. The programs and images are in the directory TARE_ISTIO:
// bin/istioctl, and images/pilot.tar and proxyv2.tar, named tare.test/NAME.
func upWithIstio(t *testing.T) *plugin {
	t.Helper()
	return istioOn(t, Options{Nodes: 2})
}

// istioOn starts a cluster as upWithIstio does, with nodes of the caller's choice.
func istioOn(t *testing.T, o Options) *plugin {
	t.Helper()
	dir := os.Getenv("TARE_ISTIO")
	if dir == "" {
		t.Skip("needs Istio: name in TARE_ISTIO a directory with its istioctl and images")
	}
	o.Images = []string{filepath.Join(dir, "images/pilot.tar"), filepath.Join(dir, "images/proxyv2.tar")}
	p := upWithPlugin(t, o, "kubectl-tare")
	apply, kubectl := p.must(t)
	args := []string{"manifest", "generate", "--set", "profile=minimal"}
	for _, set := range []string{"hub=tare.test", "tag=1.31.1", "values.global.imagePullPolicy=Never",
		"values.global.nativeNftables=true", "values.pilot.resources.requests.cpu=50m",
		"values.pilot.resources.requests.memory=128Mi", "values.global.proxy.resources.requests.cpu=20m",
		"values.pilot.autoscaleEnabled=false",
		// Istio's build of Envoy has these filters; Envoy's from the Python wheel does not.
		"values.pilot.env.PILOT_ENABLE_ALPN_FILTER=false", "values.pilot.env.PILOT_ENABLE_METADATA_EXCHANGE=false",
		"values.telemetry.v2.prometheus.enabled=false", "values.telemetry.enabled=false"} {
		args = append(args, "--set", set)
	}
	manifest, err := exec.Command(filepath.Join(dir, "bin/istioctl"), args...).Output()
	if err != nil {
		t.Fatal(err)
	}
	kubectl("create", "namespace", "istio-system")
	eventually(t, func() string { // custom resource definitions must exist before their resources
		_, err := p.kubectl(string(manifest), "apply", "--server-side", "--force-conflicts", "-f", "-")
		if err != nil {
			return err.Error()
		}
		return ""
	})
	apply(fmt.Sprintf(dns, kubectl("-n", "istio-system", "get", "service", "istiod", "-o", "jsonpath={.spec.clusterIP}")))
	kubectl("-n", "kube-system", "wait", "--for=condition=Ready", "pod/dns", "--timeout=120s")
	kubectl("-n", "istio-system", "rollout", "status", "deployment/istiod", "--timeout=120s")
	return p
}

// TestIstio runs the ready-made experiment for Istio's sidecars in its quick form.
func TestIstio(t *testing.T) {
	long.Test(t, "6 min: Istio's sidecars weighed in pods of two nodes, where TARE_ISTIO has Istio")
	p := upWithIstio(t)
	apply, _ := p.must(t)
	apply(strict)
	s := p.readyMade(t, "cluster/istio-sidecar")
	components := map[string]float64{}
	for i := range s.Estimates {
		if e := &s.Estimates[i]; e.Arm == "istio" && e.Metric == "subject_cpus" {
			components[e.Component] = e.Value
		}
	}
	for _, name := range []string{"sidecar.client", "sidecar.server", "controlplane"} {
		if components[name] <= 0 {
			t.Errorf("%s uses %g CPUs", name, components[name])
		}
	}
}

// TestIstioHops runs the ready-made experiment for one sidecar and two in its quick form: the arm with one sidecar has
// the cost of one, and the other arm that of two.
func TestIstioHops(t *testing.T) {
	long.Test(t, "6 min: one of Istio's sidecars and two, where TARE_ISTIO has Istio")
	s := upWithIstio(t).readyMade(t, "cluster/istio-hops")
	components := map[string]float64{}
	for i := range s.Estimates {
		if e := &s.Estimates[i]; e.Metric == "subject_cpus" && strings.HasPrefix(e.Component, "sidecar.") {
			components[e.Arm+" "+e.Component] = e.Value
		}
	}
	for _, name := range []string{"server-only sidecar.server", "both sidecar.server", "both sidecar.client"} {
		if components[name] <= 0 {
			t.Errorf("%s uses %g CPUs", name, components[name])
		}
	}
	if len(components) != 3 {
		t.Errorf("sidecars: %v", components)
	}
}

// TestIstioConnections runs the ready-made experiment for connections through Istio's sidecars in its quick form: the
// memory of the client's sidecar grows with them.
func TestIstioConnections(t *testing.T) {
	long.Test(t, "8 min: connections through Istio's sidecars, where TARE_ISTIO has Istio")
	p := upWithIstio(t)
	apply, _ := p.must(t)
	apply(strict)
	s := p.readyMade(t, "cluster/istio-connections")
	memory := map[string]float64{}
	for i := range s.Estimates {
		e := &s.Estimates[i]
		if e.Arm == "istio" && e.Component == "sidecar.client" && e.Metric == "memory_hard_bytes" {
			memory[e.Factors["client.connections"]] = e.Value
		}
	}
	if few, many := memory["50"], memory["3000"]; many < few+3000*1024 {
		t.Errorf("the client's sidecar has %g bytes with 50 connections, and %g with 3,000", few, many)
	}
}

// readyMade runs a ready-made experiment in its quick form, into the directory TARE_KUBE_OUT and with the arguments
// TARE_KUBE_ARGS if these are set, and returns its summary, which must be valid.
func (p *plugin) readyMade(t *testing.T, name string, args ...string) (s analysis.Summary) {
	t.Helper()
	dir := os.Getenv("TARE_KUBE_OUT")
	if dir == "" {
		dir = filepath.Join(t.TempDir(), "run")
	}
	began := time.Now()
	args = slices.Concat([]string{"run", name, "--image", agentImage, "--out", dir, "--quick"}, args,
		strings.Fields(os.Getenv("TARE_KUBE_ARGS")))
	out, errs, code := p.tare(args...)
	t.Logf("exit code %d after %v\n%s\n%s", code, time.Since(began), out, errs)
	if code != 0 {
		t.FailNow()
	}
	p.noRunLeft(t)
	data, err := os.ReadFile(filepath.Join(dir, record.SummaryFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &s); err != nil {
		t.Fatal(err)
	}
	if !s.Valid {
		t.Errorf("invalid: %v", s.InvalidReasons)
	}
	return s
}
