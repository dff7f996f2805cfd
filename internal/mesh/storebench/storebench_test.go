package storebench

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"math"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/cilium/ebpf"

	"tare/internal/experiment/load"
	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
	"tare/internal/lib/param"
	"tare/internal/mesh"
	"tare/internal/mesh/store"
)

// fake is a store that records changes, and takes a millisecond for each.
type fake struct {
	config  *mesh.Config
	most    int // largest number of clusters at the same time
	kinds   map[string]int
	refuses bool
}

func (f *fake) Maps() map[string]*ebpf.Map         { return nil }
func (f *fake) Cluster(string) (id uint32, _ bool) { return 0, false }
func (f *fake) Close() error                       { return nil }

func (f *fake) Apply(_ context.Context, change mesh.Change) (store.Work, error) {
	if f.refuses {
		return store.Work{}, store.TooLarge("x", "no room")
	}
	for _, c := range change.Clusters {
		kind := Insert
		if old := f.config.Clusters[c.Name]; old != nil {
			kind = Replace
			if reflect.DeepEqual(old, c) {
				kind = "again"
			}
		}
		f.kinds[kind]++
	}
	for _, name := range change.RemovedClusters {
		if f.config.Clusters[name] != nil {
			f.kinds[Delete]++
		}
	}
	f.config.Apply(change)
	f.most = max(f.most, len(f.config.Clusters))
	time.Sleep(time.Millisecond)
	return store.Work{Records: 3, Updates: 2, Bytes: 10}, nil
}

func newFake(t *testing.T, o Options) (*Bench, *fake) {
	t.Helper()
	in, err := newInputs(o)
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{config: mesh.NewConfig(), kinds: map[string]int{}}
	return &Bench{o: o, store: f, in: in}, f
}

func schedule(warmup, duration time.Duration) role.Schedule {
	return role.Schedule{Begin: pace.Now(), Warmup: int64(warmup), Duration: int64(duration)}
}

// TestOperations: each operation makes only its own kind of change, and only that is counted.
func TestOperations(t *testing.T) {
	for _, from := range Forms {
		for _, operation := range []string{Insert, Replace, Delete} {
			t.Run(from+"/"+operation, func(t *testing.T) {
				b, f := newFake(t, Options{Resource: Cluster, Operation: operation, From: from})
				r, err := b.Run(t.Context(), schedule(0, 200*time.Millisecond))
				if err != nil {
					t.Fatal(err)
				}
				n := int(r.Counts[Flushes])
				if n == 0 || n != f.kinds[operation] || f.kinds["again"] > 0 || f.most > resident {
					t.Errorf("%d flushes; the store saw %v, %d at once", n, f.kinds, f.most)
				}
				if r.Counts[Records] != float64(3*n) || r.Counts[WorkBytes] != float64(10*n) {
					t.Errorf("work %v of %d flushes", r.Counts, n)
				}
				if each := r.Counts[FlushSeconds] / float64(n); each < 1e-3 {
					t.Errorf("a flush that sleeps for 1 ms is said to take %g s", each)
				}
				h, err := r.Histogram(FlushTime)
				if err != nil || h.TotalCount() != int64(n) || r.Done != int64(n) {
					t.Errorf("histogram %v, %v; done %d", h, err, r.Done)
				}
				sum := int64(0)
				for _, s := range r.Slices {
					sum += s.Done
				}
				if sum != int64(n) || len(r.Slices) != load.Slices {
					t.Errorf("slices hold %d", sum)
				}
			})
		}
	}
}

// TestSlow: a run counts one flush even if the store is too slow to end one within the window, and counts none of the
// warm-up.
func TestSlow(t *testing.T) {
	b, _ := newFake(t, Options{Resource: Listener, Operation: Delete, From: Struct})
	r, err := b.Run(t.Context(), schedule(0, 1))
	if err != nil || r.Counts[Flushes] != 1 {
		t.Errorf("%v, %v", r, err)
	}
	b, f := newFake(t, Options{Resource: Cluster, Operation: Insert, From: Struct})
	r, err = b.Run(t.Context(), schedule(300*time.Millisecond, 300*time.Millisecond))
	if err != nil || r.Counts[Flushes] == 0 || int(r.Counts[Flushes]) >= f.kinds[Insert] {
		t.Errorf("%v of %v are counted, %v", r.Counts[Flushes], f.kinds, err)
	}
}

func TestFailures(t *testing.T) {
	b, f := newFake(t, Options{Store: "fake", Resource: Cluster, Operation: Replace, From: Struct})
	f.refuses = true
	if _, err := b.Run(t.Context(), schedule(0, time.Second)); fault.CodeOf(err) != fault.Usage ||
		!strings.Contains(err.Error(), "store fake: replace of cluster 0") {
		t.Errorf("a store that refuses: %v", err)
	}
	b, _ = newFake(t, Options{Resource: Cluster, Operation: Replace, From: Struct})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond) // deadline under test
	defer cancel()
	if _, err := b.Run(ctx, schedule(0, time.Hour)); err == nil {
		t.Error("the context ended and the run did not say so")
	}
	if _, err := b.Run(t.Context(), schedule(0, 0)); fault.CodeOf(err) != fault.Usage {
		t.Errorf("no duration: %v", err)
	}
	for name, wrong := range map[string]param.Values{
		"resource": {"resource": "route"}, "operation": {"operation": "loop"}, "from": {"from": "text"},
		"negative": {"services": "-1"}, "many": {"services": strconv.Itoa(MaxServices + 1)}, "endpoints": {"endpoints": "0"},
	} {
		if err := wrong.Check(Settings); fault.CodeOf(err) != fault.Usage || fault.HintOf(err) == "" {
			t.Errorf("%s: %v (hint %q)", name, err, fault.HintOf(err))
		}
	}
	for _, store := range []string{"valve", "value:other"} {
		if _, err := New(t.Context(), Options{Store: store}); fault.CodeOf(err) != fault.Usage || fault.HintOf(err) == "" {
			t.Errorf("%s: %v (hint %q)", store, err, fault.HintOf(err))
		}
	}
}

// TestWire: a change decoded from bytes equals the same change made from structs.
func TestWire(t *testing.T) {
	for _, resource := range Resources {
		decoded, err := newInputs(Options{Resource: resource, From: Struct})
		if err != nil {
			t.Fatal(err)
		}
		wire, err := newInputs(Options{Resource: resource, From: Bytes})
		if err != nil {
			t.Fatal(err)
		}
		for i := range resident {
			for _, of := range []func(*inputs) (mesh.Change, error){
				func(in *inputs) (mesh.Change, error) { return in.set(i) },
				func(in *inputs) (mesh.Change, error) { return in.other(i) },
				func(in *inputs) (mesh.Change, error) { return in.remove(i) },
			} {
				want, _ := of(decoded)
				got, err := of(wire)
				if err != nil || !reflect.DeepEqual(got, want) {
					a, _ := json.Marshal(got)
					b, _ := json.Marshal(want)
					t.Fatalf("%s %d: %v\n%s\n%s", resource, i, err, a, b)
				}
			}
		}
	}
}

func TestMiddle(t *testing.T) {
	h := hdrhistogram.New(1, load.Longest, 3)
	for _, ns := range []int64{1, 1, 100, 100, 110, 110, 1e6, 1e6} {
		if err := h.RecordValue(ns); err != nil {
			t.Fatal(err)
		}
	}
	if got := middle(h); math.Abs(got-105) > 0.5 {
		t.Errorf("the mean of the middle half is %g, want 105", got)
	}
}

// TestDesigns runs every design in this kernel: every operation, and lookups.
func TestDesigns(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	for _, d := range store.Designs() {
		if testing.Short() && (d.Name == "naive" || d.Name == "pooled") {
			continue // they wait for readers at every record, or make a thousand maps: minutes on an emulated processor
		}
		for _, o := range []Options{
			{Resource: Cluster, Operation: Replace, From: Struct},
			{Resource: Listener, Operation: Insert, From: Bytes},
			{Resource: Cluster, Operation: Delete, From: Struct},
			{Resource: Cluster, Operation: Lookup, From: Struct, Services: 2},
		} {
			t.Run(d.Name+"/"+o.Operation, func(t *testing.T) {
				o.Store, o.Endpoints = d.Name, 2
				o.Max = store.Options{MaxClusters: 70, MaxListeners: 70, MaxEndpoints: 700}
				b, err := New(t.Context(), o)
				if err != nil {
					t.Fatal(err)
				}
				defer b.Close()
				r, err := b.Run(t.Context(), schedule(0, 10*time.Millisecond))
				if err != nil {
					t.Fatal(err)
				}
				if o.Operation == Lookup {
					if ns := 1e9 * r.Counts[LookupMiddle]; ns < 1 || r.Counts[LookupFirst] <= 0 || r.Counts[FillSeconds] <= 0 {
						t.Errorf("a lookup takes %g ns; %v", ns, r.Counts)
					}
					return
				}
				if n := r.Counts[Flushes]; n == 0 || r.Counts[WorkBytes] <= 0 || r.Counts[OpenSeconds] <= 0 {
					t.Errorf("%v", r.Counts)
				}
			})
		}
	}
}

// TestRole goes through the whole protocol with the first design.
func TestRole(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	toChild, fromParent := io.Pipe()
	toParent, fromChild := io.Pipe()
	ended := make(chan error, 1)
	o := Options{Store: "value", Resource: Cluster, Operation: Replace, From: Struct, Endpoints: 1}
	go func() {
		err := Run(t.Context(), o, role.NewConn(toChild, fromChild))
		fromChild.Close()
		ended <- err
	}()
	conn := role.NewConn(toParent, fromParent)
	var ready Ready
	if err := conn.Expect(role.Ready, &ready, nil); err != nil {
		t.Fatal(err)
	}
	if ready.Store != "value" || len(ready.Maps) == 0 || ready.Maps[0].ID == 0 || ready.Programs == nil {
		t.Errorf("%+v", ready)
	}
	if err := conn.Send(role.Start, schedule(0, 50*time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	var r load.Result
	if err := conn.Expect(role.Result, &r, nil); err != nil || r.Counts[Flushes] == 0 {
		t.Errorf("%v, %v", r, err)
	}
	fromParent.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	// It is no error if the parent closes the connection before it sends a start.
	if err := Run(t.Context(), o, role.NewConn(strings.NewReader(""), &bytes.Buffer{})); err != nil {
		t.Error(err)
	}
}

func TestOptionsOf(t *testing.T) {
	for _, c := range []struct {
		given param.Values
		says  string // text in the expected error; empty: no error
		want  Options
	}{
		{param.Values{"store": "value"}, "", Options{Store: "value", Resource: Cluster, Operation: Replace, From: Struct,
			Endpoints: DefaultEndpoints}},
		{param.Values{"store": "value", "services": "7", "endpoints": "3", "max-clusters": "5", "operation": Lookup}, "",
			Options{Store: "value", Resource: Cluster, Operation: Lookup, From: Struct, Services: 7, Endpoints: 3,
				Max: store.Options{MaxClusters: 5}}},
		{nil, `needs a "store"`, Options{}},
		{param.Values{"store": "no such"}, "no such", Options{}},
		{param.Values{"store": "value", "operation": Lookup}, `give "services"`, Options{}},
	} {
		v := param.Defaults(Settings)
		maps.Copy(v, c.given)
		o, err := OptionsOf(v)
		switch {
		case c.says != "":
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v: %v, want %q", c.given, err, c.says)
			}
		case err != nil || o != c.want:
			t.Errorf("%v: got %+v, %v; want %+v", c.given, o, err, c.want)
		}
	}
}
