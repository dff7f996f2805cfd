package kube

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tare/internal/experiment/record"
	"tare/test/long"
)

// injectedSpec weighs what Tare's own webhook injects. The baseline never reaches the webhook.
const injectedSpec = `name: injected
question: What does a sidecar add that burns CPU time at its limit?
blocks: 2
warmup: 500ms
duration: 2s
applications:
  server: {kind: http}
loads:
  client: {kind: http, to: server, mode: open, rate: 200, connections: 8}
arms:
  mesh:
    subject: installed
    labels: mesh.tare/inject=true
    components: container=mesh-proxy,component=sidecar; namespace=tare-system,component=controlplane
gates: {lag: 1s, rate: 0.5} # the machine of a test cluster is not quiet
cluster: {where: {client: {apart: server}}}
`

// slowSidecar is ready after notReady, and is a sidecar container as Kubernetes has them.
const (
	notReady    = 3 * time.Second
	slowSidecar = `args: [burn, "16"]
      restartPolicy: Always
      readinessProbe: {initialDelaySeconds: 3, periodSeconds: 1, timeoutSeconds: 10,
                       exec: {command: [/bin/web, get, "https://10.96.0.1/"]}}`
)

// upForSidecars starts a cluster of two nodes whose API server asks Tare's webhook about pods of an arm, and writes the
// spec.
func upForSidecars(t *testing.T) (p *plugin, file string) {
	t.Helper()
	p = upWithPlugin(t, Options{Nodes: 2})
	opt := strings.NewReplacer("redirect: cni", "redirect: cni\n    opt: in", `args: [burn, "16"]`, slowSidecar).Replace(controlplane)
	asked := strings.Replace(hook, `    namespaceSelector:
      matchExpressions:
        - {key: kubernetes.io/metadata.name, operator: In, values: [shop]}
`, "    objectSelector: {matchLabels: {mesh.tare/inject: \"true\"}}\n", 1)
	p.injects(t, opt, asked)
	file = filepath.Join(t.TempDir(), "injected.yaml")
	if err := os.WriteFile(file, []byte(injectedSpec), 0o600); err != nil {
		t.Fatal(err)
	}
	return p, file
}

// TestSidecars weighs sidecars of known cost that a webhook injects into one arm's pods, on two nodes.
func TestSidecars(t *testing.T) {
	long.Test(t, "2 min: sidecars that Tare's webhook injects, weighed in pods")
	p, file := upForSidecars(t)
	dir := filepath.Join(t.TempDir(), "run")
	out, errs, code := p.tare("run", file, "--image", agentImage, "--out", dir)
	t.Logf("exit code %d\n%s\n%s", code, out, errs)
	if code != 0 {
		t.FailNow()
	}
	p.noRunLeft(t)
	run, err := record.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	weighed := 0
	for i := range run.Trials {
		tr := &run.Trials[i]
		if tr.Validity.Failed != "" {
			t.Errorf("trial %d of %s: %s", tr.Index, tr.Arm, tr.Validity.Failed)
			continue
		}
		proxies := 0
		for _, g := range tr.Ledger.Cgroups {
			if g.Name != nil && g.Name.Container == "mesh-proxy" {
				proxies++
			}
		}
		for _, r := range tr.Validity.Reasons {
			if r.Gate == "throttled" { // by the limit of the sidecars, which is theirs
				t.Errorf("trial %d of %s: %s", tr.Index, tr.Arm, r.Message)
			}
		}
		if tr.Arm != "mesh" {
			if proxies > 0 || len(tr.Components) > 0 || tr.Metrics["subject_cpus"] != 0 {
				t.Errorf("trial %d of %s: %d sidecars, components %v", tr.Index, tr.Arm, proxies, tr.Components)
			}
			continue
		}
		weighed++
		sum := 0.0
		for _, name := range []string{"sidecar.server", "sidecar.client"} {
			of := tr.Components[name]
			sum += of["subject_cpus"]
			// A limit of 40m is a quota for each tenth of a second: in 2 s one period more may begin.
			if cpus, memory := of["subject_cpus"], of["memory_hard_bytes"]; cpus < 0.01 || cpus > 0.044 || memory < 16<<20 {
				t.Errorf("trial %d: %s uses %g CPUs, which may be 0.04, and %g bytes of memory", tr.Index, name, cpus, memory)
			}
		}
		plane, has := tr.Components["controlplane"]["subject_cpus"]
		if all := tr.Metrics["subject_cpus"]; proxies != 2 || !has || all < sum+plane-1e-6 || all > sum+plane+1e-6 {
			t.Errorf("trial %d: %d sidecars, which use %g CPUs, the control plane %g (%t), and all of it %g", tr.Index, proxies,
				sum, plane, has, all)
		}
		if tr.Clocks["set-up"] < notReady {
			t.Errorf("trial %d was set up after %v, and its sidecars are ready after %v", tr.Index, tr.Clocks["set-up"], notReady)
		}
	}
	if weighed < 2 {
		t.Errorf("%d trials of the mesh came through", weighed)
	}
}
