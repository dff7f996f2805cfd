package kube

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"tare/test/long"
)

// TestTwentyNodes: twenty nodes become ready, and each has an agent that answers.
func TestTwentyNodes(t *testing.T) {
	long.Test(t, "1 min: twenty nodes with agents")
	if _, err := Bin(); err != nil {
		t.Skip(err)
	}
	image, err := AgentImage(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	c := Up(t, Options{Nodes: 20, Images: []string{image}})
	t.Logf("ready after %.1f s", time.Since(began).Seconds())
	applyProtected(t, c)
	t.Logf("agents after %.1f s", time.Since(began).Seconds())
	answered := 0
	for _, p := range pods(t, c) {
		m, err := newAgent(c, p.Status.PodIP).metrics()
		if err != nil {
			t.Errorf("%s: %v", p.Spec.NodeName, err)
		} else if m["tare_node_part_cpu_seconds_total"][""] > 0 {
			answered++
		}
	}
	if answered != 20 {
		t.Errorf("%d agents say what their nodes used, of 20", answered)
	}
	t.Logf("all agents scraped after %.1f s", time.Since(began).Seconds())
	began = time.Now()
	if err := c.Down(); err != nil {
		t.Error(err)
	}
	t.Logf("removed in %.1f s", time.Since(began).Seconds())
}

// TestThousandNodes: kwok simulates 1,000 nodes beside a real one.
func TestThousandNodes(t *testing.T) {
	long.Test(t, "1 min: a thousand simulated nodes")
	c := Up(t, Options{})
	began := time.Now()
	if err := c.Simulate(1000); err != nil {
		t.Fatal(err)
	}
	t.Logf("1,000 simulated nodes are ready after %.1f s", time.Since(began).Seconds())
	out, err := c.Kubectl("get", "nodes", "--no-headers")
	if got := strings.Count(out, " Ready "); err != nil || got != 1001 {
		t.Errorf("%d nodes are ready, %v", got, err)
	}
	began = time.Now()
	if _, err := c.Kubectl("delete", "nodes", "-l", "type=kwok", "--wait=false"); err != nil {
		t.Error(err)
	}
	eventually(t, func() string {
		out, err := c.Kubectl("get", "nodes", "-o", "name")
		if n := strings.Count(out, "node/"); err != nil || n != 1 {
			return fmt.Sprintf("%d nodes, %v", n, err)
		}
		return ""
	})
	t.Logf("and gone after %.1f s", time.Since(began).Seconds())
}
