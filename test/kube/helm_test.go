package kube

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tare/test/binary"
)

// TestHelm installs the chart, upgrades it, rolls it back and removes it. After each step the cluster has what the
// chart's values say, and in the end nothing that it did not have before.
func TestHelm(t *testing.T) {
	program, err := binary.Helm()
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	if _, err := Bin(); err != nil {
		t.Skip(err)
	}
	root, err := binary.Root()
	if err != nil {
		t.Fatal(err)
	}
	image, err := AgentImage(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	c := Up(t, Options{Nodes: 2, MachineNodes: 1, Images: []string{image}})
	home := t.TempDir()
	helm := func(args ...string) (string, error) {
		cmd := exec.Command(program, append(args, "--namespace=tare")...)
		cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig, "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home,
			"HELM_DATA_HOME="+home)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	kubectl := func(args ...string) string {
		t.Helper()
		out, err := c.Kubectl(args...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	chart := filepath.Join(root, "deploy/helm/tare")

	// In a namespace whose pod security level would keep agents from starting, the chart refuses to install.
	kubectl("create", "namespace", "tare")
	kubectl("-n", "tare", "wait", "--for=create", "configmap/kube-root-ca.crt", "serviceaccount/default", "--timeout=60s")
	before := objects(t, c)
	for _, level := range []string{"", "baseline"} {
		if level != "" {
			kubectl("label", "namespace", "tare", "pod-security.kubernetes.io/enforce="+level)
		}
		out, err := helm("install", "tare", chart)
		if err == nil || !strings.Contains(out, "namespace tare pod-security.kubernetes.io/enforce=privileged") {
			t.Errorf("in a namespace of level %q: %v\n%s", level, err, out)
		}
	}
	if after := objects(t, c); !slices.Equal(after, before) {
		t.Errorf("a refused installation leaves\n%q, before\n%q", after, before)
	}

	kubectl("label", "--overwrite", "namespace", "tare", "pod-security.kubernetes.io/enforce=privileged")
	for _, step := range []struct {
		args     []string
		settings string // that the agents have then
		policies int
	}{
		{[]string{"install", "tare", chart}, "max-series: 1000", 0},
		{[]string{"upgrade", "tare", chart, "--set=maxSeries=77,networkPolicy.enabled=true",
			"--set-json=networkPolicy.from=[{\"podSelector\":{}}]"}, "max-series: 77", 1},
		{[]string{"rollback", "tare", "1"}, "max-series: 1000", 0},
	} {
		if out, err := helm(append(step.args, "--wait", "--timeout=90s")...); err != nil {
			t.Fatalf("helm %v: %v\n%s", step.args, err, out)
		}
		kubectl("-n", "tare", "rollout", "status", "daemonset/tare-agent", "--timeout=60s")
		if got := kubectl("-n", "tare", "get", "configmap", "tare-agent", "-o", "jsonpath={.data}"); !strings.Contains(got,
			step.settings+`\n`) {
			t.Errorf("after %v the settings are %s", step.args, got)
		}
		if got := kubectl("-n", "tare", "get", "networkpolicies", "-o", "name"); strings.Count(got, "\n") != step.policies {
			t.Errorf("after %v there are policies %q", step.args, got)
		}
		// All pods are of the present template: those that serve have the present settings.
		names := strings.Fields(kubectl("-n", "tare", "get", "pods", "-o", "name", "-l", "app.kubernetes.io/name=tare-agent",
			"--field-selector=status.phase=Running"))
		if len(names) != 2 {
			t.Errorf("after %v there are %q", step.args, names)
		}
		for _, name := range names {
			path := "/api/v1/namespaces/tare/pods/" + strings.TrimPrefix(name, "pod/") + ":9633/proxy/metrics"
			if got := kubectl("get", "--raw", path); !strings.Contains(got, "\ntare_node_cpu_seconds_total{") {
				t.Errorf("after %v %s serves\n%s", step.args, name, got)
			}
		}
	}
	if out, err := helm("uninstall", "tare", "--wait", "--timeout=90s"); err != nil {
		t.Fatalf("helm uninstall: %v\n%s", err, out)
	}
	eventually(t, func() string { // what belongs to the DaemonSet is removed in the background
		if after := objects(t, c); !slices.Equal(after, before) {
			return "left:\n" + strings.Join(after, "\n") + "\nbefore:\n" + strings.Join(before, "\n")
		}
		return ""
	})
}

// objects lists all objects of a cluster in order, except events, which expire, and leases, which kubelets make at any
// time.
func objects(t *testing.T, c *Cluster) []string {
	t.Helper()
	kinds, err := c.Kubectl("api-resources", "--verbs=list", "-o", "name")
	if err != nil {
		t.Fatal(err)
	}
	all := slices.DeleteFunc(strings.Fields(kinds), func(kind string) bool {
		return strings.HasPrefix(kind, "events") || strings.HasPrefix(kind, "leases")
	})
	out, err := c.Kubectl("get", strings.Join(all, ","), "-A", "--no-headers", "-o",
		"custom-columns=K:.kind,NS:.metadata.namespace,N:.metadata.name")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	slices.Sort(lines)
	return lines
}
