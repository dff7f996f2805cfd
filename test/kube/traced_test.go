package kube

import (
	"testing"

	"tare/test/long"
)

// TestTraced runs the ready-made experiment with exectrace as a DaemonSet in its quick form: on each node, its log has
// every exec that the node's load made.
func TestTraced(t *testing.T) {
	long.Test(t, "6 min: exectrace as a DaemonSet, on 2 and 5 nodes")
	p := upWithPlugin(t, Options{Nodes: 5}, "kubectl-tare")
	_, kubectl := p.must(t)
	kubectl("create", "namespace", "tare-experiments")
	kubectl("apply", "-f", "../../deploy/kubernetes/exectrace.yaml")
	kubectl("-n", "tare-tracing", "rollout", "status", "daemonset/exectrace", "--timeout=120s")
	s := p.readyMade(t, "cluster/exectrace", "-n", "tare-experiments")
	levels := 0
	for i := range s.Estimates {
		switch e := &s.Estimates[i]; {
		case e.Arm != "exectrace":
		case e.Metric == "events_lost" || e.Metric == "events_extra":
			levels++
			if e.Value != 0 {
				t.Errorf("%s with %s nodes: %g", e.Metric, e.Factors["nodes"], e.Value)
			}
		case e.Metric == "events_delivered" && e.Value <= 0:
			t.Errorf("none was delivered: %+v", e)
		}
	}
	if levels != 4 {
		t.Errorf("%d of 4 estimates say what was lost, and what was invented", levels)
	}
}
