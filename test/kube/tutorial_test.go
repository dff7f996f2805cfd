package kube

import (
	"os"
	"path/filepath"
	"testing"

	"tare/test/binary"
	"tare/test/docpage"
	"tare/test/long"
)

// TestTutorial runs the commands of the cluster's tutorial on two nodes with the shop of the tests: a Deployment with
// sidecars, and pods that serve nodes.
func TestTutorial(t *testing.T) {
	long.Test(t, "5 min: windows of a cluster, and an experiment of 18 trials in pods")
	p := upWithPlugin(t, Options{Nodes: 2}, "kubectl-tare")
	if err := p.Apply(shopWithProxy + "---" + infra); err != nil {
		t.Fatal(err)
	}
	for namespace, of := range map[string]string{"default": "deployment/shop", "infra": "deployment/opener"} {
		if _, err := p.Kubectl("-n", namespace, "rollout", "status", of, "--timeout=60s"); err != nil {
			t.Fatal(err)
		}
	}
	dir := filepath.Dir(p.path) // kubectl finds kubectl-tare beside it
	if err := binary.Program(filepath.Join(dir, "tare"), "./cmd/tare"); err != nil {
		t.Fatal(err)
	}
	docpage.Run(t, "../../docs/tutorial-cluster.md", "COLUMNS=100", "KUBECONFIG="+p.Kubeconfig,
		"KUBECACHEDIR="+filepath.Join(p.Dir, "cache"),
		"PATH="+dir+string(os.PathListSeparator)+p.bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	p.noRunLeft(t)
}
