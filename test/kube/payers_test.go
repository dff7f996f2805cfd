package kube

import (
	"encoding/json"
	"testing"

	"gonum.org/v1/gonum/stat/distuv"

	"tare/internal/scale/attribution"
	"tare/internal/scale/ledger"
	"tare/test/busy"
)

// callers are two pods, one of which makes three times as many system calls as the other.
const callers = `
apiVersion: v1
kind: Pod
metadata: {name: caller-3, namespace: shop}
spec:
  nodeName: n1
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: "tare.test/web:1", args: [call, "60"]}]
---
apiVersion: v1
kind: Pod
metadata: {name: caller-1, namespace: shop}
spec:
  nodeName: n1
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: "tare.test/web:1", args: [call, "20"]}]
`

// payers: of an eBPF program that runs at system calls, the pod that makes three of four pays three quarters, within
// the interval that the agent gives, about as often as the interval promises.
func payers(t *testing.T, c *Cluster, a *agent) {
	if err := c.Apply(callers); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Kubectl("-n", "shop", "wait", "--for=condition=Ready", "pod/caller-3", "pod/caller-1",
		"--timeout=60s"); err != nil {
		t.Fatal(err)
	}
	const name, windows = "planted_in_pods", 20
	planted, err := busy.Attach(name, "getpgid")
	if err != nil {
		t.Fatal(err)
	}
	defer planted.Close()
	inside, split := 0, 0
	for range windows {
		text, err := a.get("/v1/ledger?for=4s")
		if err != nil {
			t.Fatal(err)
		}
		var l ledger.Ledger
		if err := json.Unmarshal(text, &l); err != nil {
			t.Fatal(err)
		}
		says, lo, hi, samples := shareOf(t, &l, name, "caller-3")
		if samples < attribution.MinSamples {
			continue
		}
		split++
		if lo <= 0.75 && 0.75 <= hi {
			inside++
		}
		t.Logf("caller-3 pays %.1f %% [%.1f, %.1f] by %d samples", 100*says, 100*lo, 100*hi, samples)
	}
	if split < windows*9/10 {
		t.Fatalf("of %d windows only %d have %d samples of the program", windows, split, attribution.MinSamples)
	}
	t.Logf("%d of %d intervals of 95 %% hold 75 %%", inside, split)
	// Fewer than that many hold the truth once in 1000 times, if each does 19 times of 20.
	if chance := (distuv.Binomial{N: float64(split), P: 0.95}).CDF(float64(inside)); chance < 0.001 {
		t.Errorf("%d of %d intervals of 95 %% hold 75 %%", inside, split)
	}
}

// shareOf is the part of a program's run time that a pod of the shop pays, its interval, and the samples of all.
func shareOf(t *testing.T, l *ledger.Ledger, program, pod string) (share, lo, hi float64, samples int) {
	t.Helper()
	groups := map[string]string{} // pods by control group
	for i := range l.Cgroups {
		if g := &l.Cgroups[i]; g.Name != nil && g.Name.Namespace == "shop" && g.Name.Container != "" {
			groups[g.Path] = g.Name.Pod
		}
	}
	for i := range l.Programs {
		p := &l.Programs[i]
		if p.Name != program || p.RunSeconds == nil {
			continue
		}
		for _, s := range p.Shares {
			samples += s.Samples
			if s.Cgroup != nil && groups[*s.Cgroup] == pod {
				share, lo, hi = s.Seconds / *p.RunSeconds, s.Lo / *p.RunSeconds, s.Hi / *p.RunSeconds
			}
		}
		return share, lo, hi, samples
	}
	t.Fatalf("no program %s is in the ledger", program)
	return 0, 0, 0, 0
}
