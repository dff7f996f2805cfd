package kernelmesh

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tare/internal/experiment/load"
	"tare/internal/experiment/role"
	"tare/internal/lib/pace"
	"tare/internal/mesh/push"
	appmesh "tare/internal/mesh/services"
	"tare/internal/mesh/xds"
)

// pushMain runs a load of changes as a process: argument 1 is a cgroup to enter, argument 2 the address where the mesh
// accepts changes, argument 3 what a change affects (push.One or push.All).
func pushMain() {
	if err := os.WriteFile(filepath.Join(os.Args[1], "cgroup.procs"), []byte("0"), 0); err != nil {
		panic(err)
	}
	conn := role.Stdio()
	o := push.Options{Mesh: os.Args[2], What: os.Args[3], Interval: push.DefaultInterval, Pause: push.DefaultPause}
	if err := push.Run(context.Background(), o, conn); err != nil {
		_ = conn.Fail(err)
		os.Exit(1)
	}
}

// TestWorkPush: changes of a control plane reach connections, the data plane and the load agree about them, and none
// is visible later than it is usable.
func TestWorkPush(t *testing.T) {
	for _, x := range []struct{ store, what string }{{"snapshot", push.One}, {"snapshot", push.All}, {"value", push.All},
		{"sized", push.One}} {
		t.Run(x.store+" "+x.what, func(t *testing.T) { testWorkPush(t, x.store, x.what) })
		if testing.Short() {
			return
		}
	}
}

func testWorkPush(t *testing.T, store, what string) {
	ctx, stop := context.WithCancel(t.Context())
	is, ended := make(chan appmesh.Ready, 1), make(chan error, 1)
	go func() {
		ended <- appmesh.Serve(ctx, appmesh.Options{Listen: "127.0.0.1:0", Services: 30, Endpoints: 3},
			func(r appmesh.Ready) error { is <- r; return nil })
	}()
	mesh := <-is
	dir := testCgroup(t)
	s := newSubject(t, Options{XDS: mesh.Address, CgroupDir: dir, Store: store, Peer: PeerEndpoint, Work: "push"}, 0)
	s.ready(t)
	child := start(t, "push", dir, mesh.Control, what)
	conn := role.NewConn(child.out, child.in)
	if err := conn.Expect(role.Ready, nil, nil); err != nil {
		t.Fatal(err)
	}
	at := role.Schedule{Begin: pace.Now() + int64(20*time.Millisecond), Warmup: int64(50 * time.Millisecond),
		Duration: int64(300 * time.Millisecond)}
	var made, timed load.Result
	for _, c := range []*role.Conn{conn, s.conn} {
		if err := c.Send(role.Start, at); err != nil {
			t.Fatal(err)
		}
	}
	if err := conn.Expect(role.Result, &made, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.conn.Expect(role.Result, &timed, nil); err != nil {
		t.Fatal(err)
	}
	// The edges differ: the load counts by when it asks, the data plane by when the response was sent.
	if made.Done < 1 || timed.Done < made.Done-1 || timed.Done > made.Done+1 || len(made.Errors)+len(timed.Errors) > 0 {
		t.Errorf("the load made %d changes (%v), the data plane timed %d (%v)", made.Done, made.Errors, timed.Done,
			timed.Errors)
	}
	least := func(r *load.Result, name string) int64 {
		h, err := r.Histogram(name)
		if err != nil || h == nil || h.TotalCount() != r.Done {
			t.Fatalf("%s: %v, %v", name, h, err)
		}
		return h.Min()
	}
	received, decoded, visible, acked := least(&timed, push.Received), least(&timed, push.Decoded), least(&timed,
		push.Visible), least(&timed, push.Acked)
	if received > decoded || decoded > visible || visible > acked {
		t.Errorf("received %d ns, decoded %d ns, visible %d ns, acked %d ns after it was sent", received, decoded,
			visible, acked)
	}
	// A connection can show a change once it was decoded. Applying it may continue after that, above all in a store
	// that makes changes one by one.
	if usable := least(&made, push.Usable); usable < decoded/2 {
		t.Errorf("usable %d ns and decoded %d ns after it was sent", usable, decoded)
	}
	if whole, sent := least(&made, push.Whole), least(&made, push.Sent); whole < sent {
		t.Errorf("sent %d ns and usable %d ns after it was told", sent, whole)
	}
	if c := made.Counts; c[push.Tries] < float64(made.Done) || c[push.Wrong] > 0 ||
		store != "sized" && c[push.Refused] > 0 {
		t.Errorf("connections: %v", c)
	}
	if err := child.stop(); err != nil {
		t.Error(err)
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestPushWork: changes sent in the window count, and one in any case; a control plane that does not report when it
// sent them is refused.
func TestPushWork(t *testing.T) {
	event := func(sent string, at int64) xds.Event {
		return xds.Event{Kind: xds.Endpoints, Version: "1 set=90 sent=" + sent, Received: at, Decoded: at + 1,
			Applied: at + 2, Acked: at + 3}
	}
	s := role.Schedule{Begin: 100, Warmup: 100, Duration: 100}
	for name, x := range map[string]struct {
		events []xds.Event
		done   int64
	}{
		"in the window":       {[]xds.Event{event("150", 160), event("250", 260), event("299", 400), event("300", 410)}, 2},
		"after it, the first": {[]xds.Event{event("150", 160), event("350", 360), event("370", 380)}, 1},
	} {
		w := &pushWork{some: make(chan struct{}, 1)}
		w.hear(xds.Event{Kind: xds.Clusters})
		for _, e := range x.events {
			w.hear(e)
		}
		r, err := w.Run(t.Context(), s)
		if err != nil || r.Done != x.done {
			t.Errorf("%s: %d changes, %v", name, r.Done, err)
			continue
		}
		if h, err := r.Histogram(push.Acked); err != nil || h.Min() != 13 {
			t.Errorf("%s: the shortest is %d ns, %v", name, h.Min(), err)
		}
	}
	w := &pushWork{some: make(chan struct{}, 1)}
	w.hear(xds.Event{Kind: xds.Endpoints, Version: "1"})
	if _, err := w.Run(t.Context(), s); err == nil || !strings.Contains(err.Error(), "does not say") {
		t.Errorf("a control plane without times: %v", err)
	}
	if _, err := newPushWork(&DataPlane{}, Options{}); err == nil {
		t.Error("there is work without a control plane")
	}
}
