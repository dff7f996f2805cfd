package kube

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"tare/internal/scale/ledger"
	"tare/test/long"
)

// TestEmulatedNode: on a node that has a separate kernel and only cgroup v2, each container has its name, the CPU
// budget adds up, and the agent agrees with the kubelet.
func TestEmulatedNode(t *testing.T) {
	long.Test(t, "9 min: a node with a kernel of its own, emulated")
	if _, err := Bin(); err != nil {
		t.Skip(err)
	}
	image, err := AgentImage(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	c := Up(t, Options{Nodes: 2, Emulated: 1, Images: []string{image}})
	t.Logf("ready after %.1f s", time.Since(began).Seconds())
	applyProtected(t, c)
	t.Logf("agents after %.1f s", time.Since(began).Seconds())
	const node = "n2"
	agents := openShop(t, c)
	w := watch(t, c, map[string]*agent{node: agents[node]}, 5*time.Minute)[node]
	if w.ahead, err = agents[node].ahead(); err != nil {
		t.Fatal(err)
	}
	t.Logf("its clock is %v ahead", w.ahead)
	w.names(t, c, node)
	w.adds(t)
	// A kernel without CONFIG_IRQ_TIME_ACCOUNTING counts interrupts of an idle processor neither as idle time nor as any
	// other (tick_nohz_stop_idle in kernel/time/tick-sched.c). On an emulated processor, where interrupts take ten to
	// thirty times as long, that is 3 to 7 % of the capacity; with nohz=off, which counts idle time by ticks, it was -2 %.
	w.explains(t, 0.1)
	w.agrees(t, c, node)
}

// ahead returns by how much the agent's clock is ahead of this machine's. The time that an answer takes makes a
// measurement too small, so ahead takes the largest of five.
func (a *agent) ahead() (time.Duration, error) {
	most := time.Duration(math.MinInt64)
	for range 5 {
		text, err := a.get("/v1/ledger?for=1s")
		answered := time.Now()
		if err != nil {
			return 0, err
		}
		var l ledger.Ledger
		if err := json.Unmarshal(text, &l); err != nil {
			return 0, err
		}
		most = max(most, l.Window.End.Sub(answered))
	}
	return most, nil
}
