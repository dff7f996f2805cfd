package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"gonum.org/v1/gonum/stat/distuv"

	"tare/internal/scale/attribution"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/ledger"
	"tare/test/busy"
)

// openers are two pods, one of which opens three times as many sockets as the other.
const openers = `
apiVersion: v1
kind: Pod
metadata: {name: opener-3, namespace: shop}
spec:
  nodeName: n1
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: "tare.test/web:1", args: [open, "60"]}]
---
apiVersion: v1
kind: Pod
metadata: {name: opener-1, namespace: shop}
spec:
  nodeName: n1
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: "tare.test/web:1", args: [open, "20"]}]
`

// payers: an eBPF program runs whenever a socket is opened, so a pod that opens three sockets of four pays three
// quarters of the program's run time. The agent's intervals hold the true share about as often as they promise.
func payers(t *testing.T, c *Cluster, a *agent) {
	if err := c.Apply(openers); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Kubectl("-n", "shop", "wait", "--for=condition=Ready", "pod/opener-3", "pod/opener-1",
		"--timeout=60s"); err != nil {
		t.Fatal(err)
	}
	opened := map[string]func() float64{}
	for _, p := range pods(t, c) {
		opened[p.Metadata.Name] = func() float64 { return openedBy(t, c, p.Status.PodIP) }
	}
	three, one := opened["opener-3"], opened["opener-1"]
	const name, windows = "planted_in_pods", 20
	plant(t, name)
	inside, split := 0, 0
	for taken := 0; split < windows && taken < 2*windows; taken++ { // on a busy machine some windows have too few samples
		before3, before1 := three(), one()
		text, err := a.get("/v1/ledger?for=4s")
		if err != nil {
			t.Fatal(err)
		}
		opened3, opened1 := three()-before3, one()-before1
		truth := opened3 / (opened3 + opened1) // about 3/4, because a process that had to wait catches up
		var l ledger.Ledger
		if err := json.Unmarshal(text, &l); err != nil {
			t.Fatal(err)
		}
		says, lo, hi, samples := shareOf(t, &l, name, "opener-3")
		if samples < attribution.MinSamples {
			continue
		}
		split++
		if lo <= truth && truth <= hi {
			inside++
		}
		t.Logf("opener-3 pays %.1f %% [%.1f, %.1f] by %d samples, and opened %.1f %%", 100*says, 100*lo, 100*hi, samples,
			100*truth)
	}
	if split < windows {
		t.Fatalf("of %d windows only %d have %d samples of the program", 2*windows, split, attribution.MinSamples)
	}
	t.Logf("%d of %d intervals of 95 %% hold the truth", inside, split)
	// chance is the probability that at most this many intervals hold the truth, if each does so with probability 0.95.
	if chance := (distuv.Binomial{N: float64(split), P: 0.95}).CDF(float64(inside)); chance < 0.001 {
		t.Errorf("%d of %d intervals of 95 %% hold the truth", inside, split)
	}
}

// openedBy returns how many sockets a pod has opened.
func openedBy(t *testing.T, c *Cluster, ip string) float64 {
	t.Helper()
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(context.Context, string, string) (net.Conn, error) { return c.Dial("n1", ip+":8080") }}}
	r, err := client.Get("http://" + ip)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	var n float64
	if _, err := fmt.Fscan(r.Body, &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// plant makes an eBPF program run whenever a process of the machine opens a socket, until the test ends.
func plant(t *testing.T, name string) {
	t.Helper()
	layout, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	v2, mounted := layout.V2()
	if !mounted {
		t.Fatal("no control groups of version 2 are mounted, to which programs attach")
	}
	planted, err := busy.Attach(name, v2.Mount)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = planted.Close() })
}

// shareOf returns the share of a program's run time that a pod of the shop pays, the interval of that share, and the
// total number of samples of the program.
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
