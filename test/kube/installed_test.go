package kube

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tare/internal/experiment/record"
	"tare/test/long"
)

// injectedSpec weighs what Tare's own webhook injects. The baseline never reaches the webhook.
const injectedSpec = `name: injected
question: What does a sidecar add that burns CPU time at its limit?
warmup: 500ms
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
repeat: 300%
cluster: {where: {client: {apart: server}}}
`

// slowSidecar makes the injected container a native sidecar of Kubernetes (restartPolicy) that is ready after notReady.
const (
	notReady    = 3 * time.Second
	slowSidecar = `args: [burn, "16"]
      restartPolicy: Always
      readinessProbe: {initialDelaySeconds: 3, periodSeconds: 1, timeoutSeconds: 10,
                       exec: {command: [/bin/web, get, "https://10.96.0.1/"]}}`
)

// upForSidecars starts a cluster of two nodes whose API server calls Tare's webhook for the pods of an arm, and writes
// the spec to file.
func upForSidecars(t *testing.T, duration string, blocks int) (p *plugin, file string) {
	t.Helper()
	p = upWithPlugin(t, Options{Nodes: 2}, "kubectl-tare")
	opt := strings.NewReplacer("redirect: cni", "redirect: cni\n    opt: in", `args: [burn, "16"]`, slowSidecar).
		Replace(controlplane)
	asked := strings.Replace(hook, `    namespaceSelector:
      matchExpressions:
        - {key: kubernetes.io/metadata.name, operator: In, values: [shop]}
`, "    objectSelector: {matchLabels: {mesh.tare/inject: \"true\"}}\n", 1)
	p.injects(t, opt, asked)
	file = filepath.Join(t.TempDir(), "injected.yaml")
	spec := fmt.Appendf(nil, "%sduration: %s\nblocks: %d\n", injectedSpec, duration, blocks)
	if err := os.WriteFile(file, spec, 0o600); err != nil {
		t.Fatal(err)
	}
	return p, file
}

// TestSidecars weighs sidecars of known cost that a webhook injects into one arm's pods, on two nodes.
func TestSidecars(t *testing.T) {
	long.Test(t, "2 min: sidecars that Tare's webhook injects, weighed in pods")
	p, file := upForSidecars(t, "2s", 2)
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
			if r.Gate == "throttled" { // only the sidecars have a limit, which belongs to what is weighed
				t.Errorf("trial %d of %s: %s", tr.Index, tr.Arm, r.Message)
			}
		}
		// This metric must be missing, because it would include what the machine does outside of the nodes.
		if v, has := tr.Metrics["unexplained_cpu_seconds_per_request"]; has {
			t.Errorf("trial %d of %s: %g s of a request are on no account", tr.Index, tr.Arm, v)
		}
		if tr.Arm != "mesh" {
			if proxies > 0 || len(tr.Components) > 0 || tr.Metrics["subject_cpus"] != 0 {
				t.Errorf("trial %d of %s: %d sidecars, components %v", tr.Index, tr.Arm, proxies, tr.Components)
			}
			continue
		}
		weighed++
		var is record.Installed
		if err := json.Unmarshal(tr.Subject, &is); err != nil || !installs(is.Images) {
			t.Errorf("trial %d had %s, %v", tr.Index, tr.Subject, err)
		}
		sum := 0.0
		for _, name := range []string{"sidecar.server", "sidecar.client"} {
			of := tr.Components[name]
			sum += of["subject_cpus"]
			// A limit of 40m is a quota per 100 ms. A window of 2 s may include one period more than 20.
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
			t.Errorf("trial %d was set up after %v, and its sidecars are ready after %v", tr.Index, tr.Clocks["set-up"],
				notReady)
		}
	}
	if weighed < 2 {
		t.Errorf("%d trials of the mesh came through", weighed)
	}
	if !installs(run.Run.Environment.Subjects) {
		t.Errorf("the versions of the run are %v", run.Run.Environment.Subjects)
	}
}

// installs reports whether images are those of the sidecar and of the control plane.
func installs(images map[string]string) bool {
	return len(images) == 2 && images["mesh-proxy"] == "tare.test/web:1" &&
		strings.HasSuffix(images["controlplane"], "tare-agent:0.1.0")
}

// TestRunFaults causes faults in the trials of one run, one after the other. Each fails its trial with an error that
// describes the fault, the trial is run again, and nothing is left behind.
func TestRunFaults(t *testing.T) {
	long.Test(t, "4 min: pods, agents and a webhook that go away during a run")
	p, file := upForSidecars(t, "4s", 4) // long enough for an agent to be killed in the window
	_, kubectl := p.must(t)
	dir := filepath.Join(t.TempDir(), "run")
	cmd := p.command("run", file, "--image", agentImage, "--out", dir)
	var errs strings.Builder
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer cmd.Process.Kill()
	until := func(what string, is func() bool) {
		t.Helper()
		for deadline := time.Now().Add(5 * time.Minute); !is(); time.Sleep(100 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("not within 5 minutes: %s\n%s", what, errs.String())
			}
			select {
			case err := <-ended:
				t.Fatalf("the run ended before %s: %v\n%s", what, err, errs.String())
			default:
			}
		}
	}
	trials := func() []record.Trial {
		run, err := record.Read(dir)
		if err != nil {
			return nil // the run has not begun, or a line is being written
		}
		return run.Trials
	}
	// inTrial waits until the pods of a trial are ready for the first time. It must be the trial's first attempt: three
	// faults in one trial would use up its attempts.
	seen := map[string]bool{}
	inTrial := func(pods int, ready string) (server string) {
		t.Helper()
		until("a trial with "+ready, func() bool {
			out, err := p.Kubectl("get", "pods", "-l", "tare/part", "--no-headers")
			if err != nil || strings.Count(out, ready+" ") != pods {
				return false
			}
			if strings.Contains(out, "-again-") {
				return false
			}
			for line := range strings.Lines(out) {
				if name, _, _ := strings.Cut(line, " "); strings.HasSuffix(name, "-server") {
					server = name
				}
			}
			is := server != "" && !seen[server]
			seen[server] = true
			return is
		})
		return server
	}
	failed := func(why string) {
		t.Helper()
		until("a trial that fails: "+why, func() bool {
			return slices.ContainsFunc(trials(), func(tr record.Trial) bool {
				return strings.Contains(tr.Validity.Failed, why) && tr.Validity.Cause != ""
			})
		})
	}

	until("a trial of the mesh came through", func() bool {
		return slices.ContainsFunc(trials(), func(tr record.Trial) bool {
			return tr.Arm == "mesh" && tr.Validity.Failed == ""
		})
	})
	const service = "/webhooks/0/clientConfig/service/name"
	point := func(at string) { // the API server keeps its connections open, so it must be pointed at another service
		t.Helper()
		kubectl("patch", "mutatingwebhookconfiguration", "mesh-injection", "--type=json", "-p",
			`[{"op": "replace", "path": "`+service+`", "value": "`+at+`"}]`)
	}
	point("nobody")
	failed("failed calling webhook")
	point("controlplane")

	kubectl("delete", "pod", inTrial(2, "1/1"), "--wait=false")
	failed("server: the pod was deleted or evicted during the trial")

	inTrial(2, "1/1")
	time.Sleep(4 * time.Second) // into the window
	kubectl("-n", "kube-system", "delete", "pods", "-l", "app.kubernetes.io/managed-by=kubectl-tare", "--force",
		"--grace-period=0", "--field-selector=spec.nodeName=n2")
	failed("n2")

	inTrial(2, "1/1")
	time.Sleep(4 * time.Second) // not a deadline: into the window
	before := len(trials())
	p.network(t, "ip", "-n", "n1", "link", "set", "port2", "down")
	time.Sleep(30 * time.Second) // not a deadline: longer than agents have to answer
	p.network(t, "ip", "-n", "n1", "link", "set", "port2", "up")
	until("a trial fails whose node was cut off", func() bool {
		all := trials()
		return slices.ContainsFunc(all[min(before, len(all)):], func(tr record.Trial) bool {
			return tr.Validity.Failed != "" && tr.Validity.Cause != ""
		})
	})

	if err := <-ended; err != nil {
		t.Errorf("%v\n%s", err, errs.String())
	}
	t.Log(errs.String())
	p.noRunLeft(t)
	last := map[int]string{}
	for _, tr := range trials() {
		last[tr.Index] = tr.Validity.Failed
		t.Logf("trial %d of %s, attempt %d: %q", tr.Index, tr.Arm, tr.Attempt, tr.Validity.Failed)
	}
	for index, why := range last {
		if why != "" {
			t.Errorf("trial %d did not come through: %s", index, why)
		}
	}

	// Only the states of the pods say that an image does not exist.
	if err := p.ApplyAgent(); err != nil {
		t.Fatal(err)
	}
	out, said, code := p.tare("run", file, "--image", "tare.test/none:1", "--out", filepath.Join(t.TempDir(), "none"))
	if code == 0 || !strings.Contains(said, "coordinator waits: ") || !strings.Contains(said, "tare.test/none:1") {
		t.Errorf("exit code %d\n%s\n%s", code, out, said)
	}
	p.noRunLeft(t)
}
