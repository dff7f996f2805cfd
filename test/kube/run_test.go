package kube

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"tare/internal/experiment/record"
	"tare/internal/results/analysis"
	"tare/test/long"
)

// podsSpec plants a delay in one arm, and weighs in another what runs in the cluster all the time.
const podsSpec = `name: pods
question: What does a planted delay cost?
blocks: 6
warmup: 500ms
duration: 2s
applications:
  server: {kind: http}
loads:
  client: {kind: http, to: server, mode: open, rate: 200, connections: 8}
arms:
  delayed: {subject: variant, set: server.delay=3ms}
  infra: {subject: installed, labels: infra=yes, components: "namespace=infra,component=opener"}
gates: {lag: 1s, rate: 0.5} # the machine of a test cluster is not quiet
cluster: {where: {client: {apart: server}}}
`

const infra = `
apiVersion: v1
kind: Namespace
metadata: {name: infra}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: opener, namespace: infra}
spec:
  selector: {matchLabels: {app: opener}}
  template:
    metadata: {labels: {app: opener}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - {name: opener, image: "tare.test/web:1", args: [open, "20"]}
`

// upForRuns starts a cluster of two nodes with something to weigh, and writes the spec.
func upForRuns(t *testing.T) (p *plugin, file string) {
	t.Helper()
	p = upWithPlugin(t, Options{Nodes: 2})
	if err := p.Apply(infra); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Kubectl("-n", "infra", "rollout", "status", "deployment/opener", "--timeout=60s"); err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "pods.yaml")
	if err := os.WriteFile(file, []byte(podsSpec), 0o600); err != nil {
		t.Fatal(err)
	}
	return p, file
}

// TestRunInPods runs an experiment in pods of two nodes.
func TestRunInPods(t *testing.T) {
	long.Test(t, "4 min: an experiment of 24 trials in pods")
	p, file := upForRuns(t)
	dir := filepath.Join(t.TempDir(), "run")
	began := time.Now()
	out, errs, code := p.tare("run", file, "--image", agentImage, "--out", dir)
	t.Logf("exit code %d after %v\n%s\n%s", code, time.Since(began), out, errs)
	if code != 0 {
		t.FailNow()
	}
	p.noRunLeft(t)
	data, err := os.ReadFile(filepath.Join(dir, record.SummaryFile))
	if err != nil {
		t.Fatal(err)
	}
	var s analysis.Summary
	if err := json.Unmarshal(data, &s); err != nil {
		t.Fatal(err)
	}
	if !s.Valid {
		t.Errorf("invalid: %v", s.InvalidReasons)
	}
	of := func(arm, metric string) analysis.Estimate {
		i := slices.IndexFunc(s.Estimates, func(e analysis.Estimate) bool { return e.Arm == arm && e.Metric == metric })
		if i < 0 {
			t.Fatalf("there is no %s of %s", metric, arm)
		}
		return s.Estimates[i]
	}
	fast, slow := of(record.Direct, "latency_p50_seconds").Value, of("delayed", "latency_p50_seconds").Value
	if planted := slow - fast; planted < 0.0028 || planted > 0.006 {
		t.Errorf("a delay of 3 ms makes the median of %g s one of %g s", fast, slow)
	}
	if e := of("infra", "subject_cpus"); e.Value <= 0 {
		t.Errorf("what runs in the cluster uses %+v", e)
	}
	if e := of("delayed", "subject_cpus"); e.Value != 0 {
		t.Errorf("an arm without a subject uses %+v", e)
	}
	trials, err := record.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	for i := range trials.Trials {
		tr := &trials.Trials[i]
		if tr.Validity.Failed != "" {
			continue
		}
		if l := tr.Ledger; l.Host.Hostname != "n1, n2" || !l.CPU.Closes() {
			t.Errorf("trial %d: %+v", tr.Index, l.Host)
		}
	}
}

// noRunLeft fails the test if anything of a run or of temporary agents is left.
func (p *plugin) noRunLeft(t *testing.T) {
	t.Helper()
	p.nothingLeft(t, 20*time.Second)
	out, err := p.Kubectl(
		"get",
		"services,secrets",
		"-A",
		"-o",
		"name",
		"-l",
		"app.kubernetes.io/managed-by=kubectl-tare",
	)
	if err != nil || out != "" {
		t.Errorf("left: %s %v", out, err)
	}
}

// TestRunEnds: of a run that is interrupted, or killed and then cleaned, nothing is left but what was measured.
func TestRunEnds(t *testing.T) {
	long.Test(t, "3 min: runs in pods that are interrupted and killed")
	p, file := upForRuns(t)
	for name, signal := range map[string]syscall.Signal{"interrupted": syscall.SIGINT, "killed": syscall.SIGKILL} {
		dir := filepath.Join(t.TempDir(), "run")
		cmd := p.command("run", file, "--image", agentImage, "--out", dir)
		var errs strings.Builder
		cmd.Stderr = &errs
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		deadline := time.Now().Add(3 * time.Minute)
		for { // until two trials have ended and the next is under way
			lines, _ := os.ReadFile(filepath.Join(dir, record.TrialsFile))
			if strings.Count(string(lines), "\n") >= 2 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: no two trials have ended\n%s", name, errs.String())
			}
			time.Sleep(100 * time.Millisecond)
		}
		if err := cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); signal == syscall.SIGINT && code != 4 {
			t.Errorf("%s: exit code %d\n%s", name, code, errs.String())
		}
		if signal == syscall.SIGKILL {
			out, failed, code := p.tare("clean", "--all")
			t.Logf("clean --all: %s%s", out, failed)
			if code != 0 {
				t.Errorf("clean: exit code %d", code)
			}
		}
		p.noRunLeft(t)
		if r, err := record.Read(dir); err != nil || len(r.Trials) < 2 {
			t.Errorf("%s: %v, of what was measured there are %d trials", name, err, len(r.Trials))
		}
	}
}

// rightsSpec is as small as an experiment gets.
const rightsSpec = `name: rights
question: What does a planted delay cost?
blocks: 1
warmup: 100ms
duration: 1s
applications:
  server: {kind: http}
loads:
  client: {kind: http, to: server, mode: open, rate: 200, connections: 8}
arms:
  delayed: {subject: variant, set: server.delay=3ms}
gates: {lag: 1s, rate: 0.5} # the machine of a test cluster is not quiet
`

// TestRunRights runs an experiment by the token of a service account that has the documented rights and no others, in
// a namespace that takes pods without rights only.
func TestRunRights(t *testing.T) {
	long.Test(t, "1 min: an experiment in pods with the documented rights")
	p := upWithPlugin(t, Options{Nodes: 2})
	apply, kubectl := p.must(t)
	const namespace, account = "tare-experiments", "tare-experiments:runner"
	apply(`
apiVersion: v1
kind: Namespace
metadata: {name: tare-experiments, labels: {pod-security.kubernetes.io/enforce: restricted}}
`)
	for _, file := range []string{"weigh.yaml", "run.yaml"} {
		kubectl("apply", "-f", "../../deploy/kubernetes/"+file)
	}
	kubectl("create", "serviceaccount", "runner", "-n", namespace)
	kubectl("create", "clusterrolebinding", "weigh", "--clusterrole=tare-weigh", "--serviceaccount="+account)
	kubectl("create", "rolebinding", "weigh", "-n", "kube-system", "--role=tare-weigh", "--serviceaccount="+account)
	kubectl("create", "rolebinding", "run", "-n", namespace, "--role=tare-run", "--serviceaccount="+account)

	var config map[string]any
	if err := json.Unmarshal([]byte(kubectl("config", "view", "--raw", "-o", "json")), &config); err != nil {
		t.Fatal(err)
	}
	user := config["users"].([]any)[0].(map[string]any)
	user["user"] = map[string]any{"token": strings.TrimSpace(kubectl("create", "token", "runner", "-n", namespace))}
	data, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	as, file := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "rights.yaml")
	for path, data := range map[string][]byte{as: data, file: []byte(rightsSpec)} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, errs, code := p.tare("run", file, "--kubeconfig", as, "-n", namespace, "--image", agentImage, "--out",
		filepath.Join(dir, "run"))
	if code != 0 {
		t.Fatalf("exit code %d\n%s\n%s", code, out, errs)
	}
	p.noRunLeft(t)
	run, err := record.Read(filepath.Join(dir, "run"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range run.Trials {
		if why := run.Trials[i].Validity.Failed; why != "" {
			t.Errorf("trial %d: %s", i, why)
		}
	}

	out, errs, code = p.tare("run", file, "--kubeconfig", as, "-n", "default", "--image", agentImage, "--out",
		filepath.Join(dir, "elsewhere"))
	if code == 0 || !strings.Contains(errs, "forbidden") || !strings.Contains(errs, "docs/kubernetes.md has the rights") {
		t.Errorf("in another namespace: exit code %d\n%s\n%s", code, out, errs)
	}
	p.noRunLeft(t)
	for _, may := range []string{"create pods -n kube-system", "create pods -n default", "get secrets -n " + namespace,
		"list secrets -n " + namespace, "create pods --subresource=exec -n " + namespace, "update pods -n " + namespace,
		"create serviceaccounts --subresource=token -n " + namespace, "create rolebindings -n " + namespace, "patch nodes"} {
		args := append([]string{"--kubeconfig", as, "auth", "can-i"}, strings.Fields(may)...)
		if answer, _ := p.Kubectl(args...); strings.TrimSpace(answer) != "no" {
			t.Errorf("may it %s? %q", may, answer)
		}
	}
}
