package kernelmesh

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"tare/internal/experiment/load"
	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
	"tare/internal/mesh"
	"tare/internal/mesh/connect"
	"tare/internal/mesh/generation"
	"tare/internal/mesh/store"
	"tare/test/meshmodel"
)

// connectMain runs a load of connections as a process: argument 1 is a cgroup to enter, argument 2 the process that
// replaces.
func connectMain() {
	if err := os.WriteFile(filepath.Join(os.Args[1], "cgroup.procs"), []byte("0"), 0); err != nil {
		panic(err)
	}
	pid, err := strconv.Atoi(os.Args[2])
	if err != nil {
		panic(err)
	}
	conn := role.Stdio()
	if err := connect.Run(context.Background(), connect.Options{Replacer: pid}, conn); err != nil {
		_ = conn.Fail(err)
		os.Exit(1)
	}
}

// TestReplacerChanges compares the changes with the model: after each, both services have the endpoints of its
// generation, and no other cluster is left.
func TestReplacerChanges(t *testing.T) {
	r, c := &replacer{}, mesh.NewConfig()
	for g := range uint64(10) {
		change := r.change(g)
		if g == 0 {
			change = r.first()
		}
		c.Apply(change)
		if len(c.Clusters) != generation.Services || len(c.Listeners) != generation.Services {
			t.Errorf("generation %d: %d clusters, %d listeners", g, len(c.Clusters), len(c.Listeners))
		}
		for service := range generation.Services {
			a := meshmodel.Find(c, mesh.Question{To: generation.AddrPort(generation.Service(service)), Protocol: mesh.UDP})
			want := map[netip.AddrPort]bool{}
			for i := range generation.Size(g) {
				want[generation.AddrPort(generation.Endpoint(service, g, i))] = true
			}
			for d := range a.Parts {
				delete(want, d.Endpoint)
			}
			if a.Verdict != mesh.Accept || len(a.Parts) != generation.Size(g) || len(want) > 0 {
				t.Errorf("generation %d, service %d: %v", g, service, a)
			}
		}
	}
}

// TestWorkReplace replaces under a load in a separate process. The guarantees of the store's design must hold for real
// connections; designs with weak guarantees show that the load detects violations.
func TestWorkReplace(t *testing.T) {
	overStores(t, testWorkReplace, "snapshot", "value", "sized", "pooled:ondemand")
}

func testWorkReplace(t *testing.T, name string) {
	d, dir := newDataPlane(t, Options{Store: name, Peer: PeerEndpoint, Work: WorkReplace, MaxServices: 16,
		MaxEndpoints: 64})
	w, err := d.newWorker(d.options)
	if err != nil {
		t.Fatal(err)
	}
	child := start(t, "connect", dir, fmt.Sprint(os.Getpid()))
	conn := role.NewConn(child.out, child.in)
	var ready connect.Ready
	if err := conn.Expect(role.Ready, &ready, nil); err != nil || !ready.Judges {
		t.Fatalf("%+v, %v", ready, err)
	}
	least := 100.0
	if testing.Short() { // the load may share the only, emulated, processor with the replacer
		least = 1
	}
	// The window is longer than the load or the replacer may stand still on a busy machine.
	s := role.Schedule{Begin: pace.Now() + int64(20*time.Millisecond), Warmup: int64(20 * time.Millisecond),
		Duration: int64(3 * time.Second)}
	if err := conn.Send(role.Start, s); err != nil {
		t.Fatal(err)
	}
	replaced, err := w.Run(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	var r load.Result
	if err := conn.Expect(role.Result, &r, nil); err != nil {
		t.Fatal(err)
	}
	if err := child.stop(); err != nil {
		t.Error(err)
	}
	h, err := replaced.Histogram(generation.ReplacementTime)
	if err != nil || h == nil {
		t.Fatalf("histogram %v, %v", h, err)
	}
	n, spent := replaced.Counts[generation.Replacements], replaced.Counts[generation.ReplacementSeconds]
	if n < 2 || float64(h.TotalCount()) != n || float64(replaced.Done) != n || spent <= 0 || spent > 2*replaced.Seconds {
		t.Errorf("%g replacements, %d timed, in %g s", n, h.TotalCount(), spent)
	}
	c := r.Counts
	text, _ := json.Marshal(c)
	t.Logf("%g replacements; %s", n, text)
	if c[generation.Judged] < least || int64(c[generation.Judged]-c[generation.FailedCount]) != r.Done {
		t.Errorf("%d of %g connections were made", r.Done, c[generation.Judged])
	}
	wrong := c[generation.StaleCount] + c[generation.TornCount] + c[generation.MissedCount]
	switch d.design.Atomic {
	case store.PerChange:
		if wrong+c[generation.FailedCount]+c[generation.BackwardCount] > 0 {
			t.Errorf("changes are not seen whole: %s", text)
		}
	case store.PerResource:
		if wrong > 0 {
			t.Errorf("resources are not seen whole: %s", text)
		}
	case store.PerRecord:
		// These designs remove the old records before they write the new ones.
		if wrong+c[generation.FailedCount] == 0 {
			t.Errorf("nothing is seen of the gap in each change: %s", text)
		}
	}
}

// TestWorkReplaceSlow: a run counts one change even if the store is too slow to end one within the window; invalid
// options and lack of room are reported.
func TestWorkReplaceSlow(t *testing.T) {
	p, _ := newDataPlane(t, Options{Store: "value", MaxServices: 16, MaxEndpoints: 64})
	w, err := newReplacer(p.DataPlane, Options{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := w.Run(t.Context(), role.Schedule{Begin: pace.Now(), Duration: 1})
	if err != nil || r.Counts[generation.Replacements] != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	for name, run := range map[string]func(Worker) error{
		"no window": func(w Worker) error { _, err := w.Run(t.Context(), role.Schedule{}); return err },
		"cancelled": func(w Worker) error {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond) // deadline under test
			defer cancel()
			_, err := w.Run(ctx, role.Schedule{Begin: pace.Now(), Duration: int64(time.Hour)})
			return err
		},
	} {
		if w, err = newReplacer(p.DataPlane, Options{}); err != nil {
			t.Fatal(err)
		}
		if err := run(w); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	t.Run("NoRoom", func(t *testing.T) {
		small, _ := newDataPlane(t, Options{Store: "value", MaxServices: 1, MaxEndpoints: 64})
		if _, err := newReplacer(small.DataPlane, Options{}); fault.CodeOf(err) != fault.Usage || fault.HintOf(err) == "" {
			t.Errorf("no room: %v", err)
		}
	})
}
