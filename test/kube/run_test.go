package kube

import (
	"encoding/json"
	"os"
	"os/exec"
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

// upForRuns starts a cluster of two nodes with something to weigh, and writes the spec to file.
func upForRuns(t *testing.T) (p *plugin, file string) {
	t.Helper()
	p = upWithPlugin(t, Options{Nodes: 2}, "kubectl-tare")
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
	eventually(t, func() string {
		out, err := p.Kubectl("get", "services,secrets,serviceaccounts,roles,rolebindings", "-A", "-o", "name", "-l",
			"app.kubernetes.io/managed-by=kubectl-tare")
		if err != nil {
			return err.Error()
		}
		return strings.TrimSpace(out)
	})
}

// TestRunGoesOn: a run needs neither the command that has started it nor a permanently available API server. If it ends
// early, what was measured is kept, with the reason, and nothing is left in the cluster.
func TestRunGoesOn(t *testing.T) {
	long.Test(t, "6 min: runs in pods that are interrupted, and whose parts are killed")
	p := upWithPlugin(t, Options{Nodes: 2}, "kubectl-tare")
	file := filepath.Join(t.TempDir(), "rights.yaml")
	spec := strings.Replace(rightsSpec, "blocks: 1", "blocks: 2", 1)
	if err := os.WriteFile(file, []byte(spec), 0o600); err != nil {
		t.Fatal(err)
	}
	type begun struct {
		*exec.Cmd
		dir  string
		errs *strings.Builder
	}
	// begin starts a run, and returns once a trial of it has ended.
	begin := func(t *testing.T) begun {
		t.Helper()
		dir := filepath.Join(t.TempDir(), "run")
		b := begun{p.command("run", file, "--image", agentImage, "--out", dir), dir, &strings.Builder{}}
		b.Stderr = b.errs
		if err := b.Start(); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
			if lines, _ := os.ReadFile(filepath.Join(dir, record.TrialsFile)); strings.Contains(string(lines), "\n") {
				return b
			}
			if time.Now().After(deadline) {
				t.Fatalf("no trial has ended\n%s", b.errs)
			}
		}
	}
	// partial waits for the run, which must end early and keep some results (exit code 4).
	partial := func(t *testing.T, b begun, says ...string) {
		t.Helper()
		_ = b.Wait()
		t.Logf("%s", b.errs)
		if code := b.ProcessState.ExitCode(); code != 4 {
			t.Errorf("exit code %d", code)
		}
		for _, want := range says {
			if !strings.Contains(b.errs.String(), want) {
				t.Errorf("it does not say: %s", want)
			}
		}
		p.noRunLeft(t)
		r, err := record.Read(b.dir)
		if err != nil || len(r.Trials) == 0 || len(r.Trials) >= 6 {
			t.Errorf("%v, of what was measured there are %d trials", err, len(r.Trials))
		}
		if _, err := os.Stat(filepath.Join(b.dir, record.SummaryFile)); err != nil {
			t.Error(err)
		}
	}
	signal := func(t *testing.T, of *os.Process, s syscall.Signal) {
		t.Helper()
		if err := of.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("command killed, API server away", func(t *testing.T) {
		b := begin(t)
		signal(t, b.Process, syscall.SIGTERM)
		if _ = b.Wait(); !strings.Contains(b.errs.String(), "interrupted: the run goes on") {
			t.Errorf("it does not say that the run goes on\n%s", b.errs)
		}
		before, err := record.Read(b.dir)
		if err != nil {
			t.Fatal(err)
		}
		attach := p.command("attach", "--out", b.dir)
		attach.Stderr = b.errs
		if err := attach.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second) // not a deadline: until the second command is attached
		server := p.component(t, "kube-apiserver")
		signal(t, server, syscall.SIGSTOP)
		time.Sleep(30 * time.Second)
		signal(t, server, syscall.SIGCONT)
		err = attach.Wait()
		t.Logf("%s", b.errs)
		if err != nil {
			t.Fatal(err)
		}
		p.noRunLeft(t)
		r, err := record.Read(b.dir)
		if err != nil || r.Partial || len(r.Warnings) > 0 || r.Run.ID != before.Run.ID {
			t.Fatalf("%v, %+v", err, r.Warnings)
		}
		again := 0
		for _, tr := range r.Trials {
			if tr.Validity.Failed != "" {
				again++
				if tr.Validity.Cause == "" {
					t.Errorf("trial %d: %s", tr.Index, tr.Validity.Failed)
				}
			}
		}
		t.Logf("%d trials, of which %d failed", len(r.Trials), again)
	})
	t.Run("interrupted", func(t *testing.T) {
		b := begin(t)
		signal(t, b.Process, syscall.SIGINT)
		partial(t, b, "interrupted; ending the run", "the run is partial, with")
	})
	t.Run("coordinator killed", func(t *testing.T) {
		b := begin(t)
		p.kill(t, "kubectl-tare", p.Group+"/n")
		partial(t, b, "the coordinator had ended with code 137", "the run is partial")
	})
	t.Run("coordinator deleted", func(t *testing.T) {
		b := begin(t)
		_, kubectl := p.must(t)
		kubectl("delete", "pods", "-l", "app.kubernetes.io/name=tare-run,!tare/part", "--force", "--grace-period=0")
		partial(t, b, "pod was deleted")
	})
	t.Run("installed agents", func(t *testing.T) {
		if err := p.ApplyAgent(); err != nil {
			t.Fatal(err)
		}
		b := begin(t)
		if err := b.Wait(); err != nil || strings.Contains(b.errs.String(), "starting agents") {
			t.Errorf("%v\n%s", err, b.errs)
		}
		p.noRunLeft(t)
	})
	t.Run("forgotten", func(t *testing.T) {
		b := begin(t)
		signal(t, b.Process, syscall.SIGKILL)
		_ = b.Wait()
		out, failed, code := p.tare("clean", "--all")
		t.Logf("clean --all: %s%s", out, failed)
		if code != 0 {
			t.Errorf("clean: exit code %d", code)
		}
		p.noRunLeft(t)
	})
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

// TestRunRights runs an experiment with the token of a service account that has the documented rights and no others, in
// a namespace that admits only pods of the level restricted.
func TestRunRights(t *testing.T) {
	long.Test(t, "1 min: an experiment in pods with the documented rights")
	p := upWithPlugin(t, Options{Nodes: 2}, "kubectl-tare")
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
	for _, in := range []string{namespace, "kube-system"} {
		kubectl("create", "rolebinding", "run", "-n", in, "--role=tare-run", "--serviceaccount="+account)
	}

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
	out, errs, code := p.tare("run", file, "--kubeconfig", as, "-n", namespace, "--image", agentImage, "--detach")
	if code != 0 {
		t.Fatalf("exit code %d\n%s\n%s", code, out, errs)
	}
	name := strings.Fields(out)[3] // kubectl tare attach NAME
	may := func(who []string, answer string, what ...string) {
		t.Helper()
		for _, may := range what {
			args := append(append(who, "auth", "can-i"), strings.Fields(may)...)
			if said, _ := p.Kubectl(args...); strings.TrimSpace(said) != answer {
				t.Errorf("may %q %s? %q, want %s", who, may, said, answer)
			}
		}
	}
	// A coordinator that an attacker has taken over cannot become root on a node: it can make pods only in its namespace.
	coordinator := []string{"--as", "system:serviceaccount:" + namespace + ":" + name}
	may(coordinator, "yes", "create pods -n "+namespace, "create pods --subresource=portforward -n kube-system",
		"list daemonsets.apps -n kube-system")
	may(coordinator, "no", "create pods -n kube-system", "create daemonsets.apps -n kube-system", "create pods -n default",
		"delete pods -n kube-system", "create pods --subresource=exec -n kube-system", "get secrets -n "+namespace,
		"create pods --subresource=exec -n "+namespace, "create jobs.batch -n "+namespace, "list nodes", "list pods -A",
		"list daemonsets.apps -A",
		"create serviceaccounts --subresource=token -n "+namespace, "create roles.rbac.authorization.k8s.io -n "+namespace,
		"create rolebindings.rbac.authorization.k8s.io -n kube-system", "patch pods -n "+namespace)
	out, errs, code = p.tare("attach", "--kubeconfig", as, "-n", namespace, "--out", filepath.Join(dir, "run"))
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
	may([]string{"--kubeconfig", as}, "no", "create pods -n kube-system", "create pods -n default",
		"get secrets -n "+namespace, "list secrets -n "+namespace, "create pods --subresource=exec -n "+namespace,
		"update pods -n "+namespace, "create serviceaccounts --subresource=token -n "+namespace, "patch nodes",
		"escalate roles.rbac.authorization.k8s.io -n "+namespace, "bind roles.rbac.authorization.k8s.io -n "+namespace)
}
