package storetest

import (
	"context"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/mesh"
	"tare/internal/mesh/store"
)

// FlushesVariable is the environment variable with the number of flushes for the test of growth, which then has no
// limit on its time: 1000000 is the full test.
const FlushesVariable = "TARE_STORE_FLUSHES"

// growth replaces, adds and removes over and over: neither maps nor the process may grow.
func (s *suite) growth(t *testing.T) {
	flushes, least, bound := 20000, 50, 1500*time.Millisecond
	if n, err := strconv.Atoi(os.Getenv(FlushesVariable)); err == nil {
		flushes, least, bound = n, 0, 24*time.Hour
	}
	st := s.open(t, s.small())
	changes := make([]mesh.Change, 0, 64)
	for i := range 8 { // come, change, change, go: clusters and listeners of eight services, out of step
		a, b := ClusterLoad(i), rename(ClusterLoad(100+i), ClusterName(i))
		b.Localities = b.Localities[:1+i]
		l, m := ListenerLoad(i), service(i, ClusterName(i+1))
		changes = append(changes,
			mesh.Change{Clusters: []*mesh.Cluster{a}}, mesh.Change{Listeners: []*mesh.Listener{l}},
			mesh.Change{Clusters: []*mesh.Cluster{b}}, mesh.Change{Listeners: []*mesh.Listener{m}},
			mesh.Change{Clusters: []*mesh.Cluster{a}}, mesh.Change{Listeners: []*mesh.Listener{l}},
			mesh.Change{RemovedClusters: []string{a.Name}}, mesh.Change{RemovedListeners: []string{l.Name}})
	}
	done := 0
	run := func(n int, b *budget) {
		for i := 0; i < n && b.more(); i++ {
			if _, err := st.Apply(context.Background(), changes[done%len(changes)]); err != nil {
				t.Fatal(err)
			}
			done++
		}
	}
	// The first rounds fill pools and free lists.
	warm := s.budget(least, bound/4)
	run(min(20000, max(flushes/10, len(changes))), warm)
	maps, heap, rss := footprint(t, st)
	first := done
	run(flushes, s.budget(least, bound))
	mapsNow, heapNow, rssNow := footprint(t, st)
	t.Logf("%d flushes after the first %d: maps %d to %d bytes, heap %d to %d bytes, resident %d to %d bytes", done-first,
		first, maps, mapsNow, heap, heapNow, rss, rssNow)
	// The memory of a process goes up and down a little; a leak grows with every flush.
	if grown := float64(int64(heapNow)-int64(heap)) - 256<<10; grown > 8*float64(done-first) {
		t.Errorf("the heap grew from %d to %d bytes", heap, heapNow)
	}
	if grown := float64(int64(rssNow)-int64(rss)) - 8<<20; grown > 8*float64(done-first) {
		t.Errorf("the process grew from %d to %d bytes", rss, rssNow)
	}
	if float64(mapsNow) > 1.5*float64(maps)+64<<10 {
		t.Errorf("the maps grew from %d to %d bytes", maps, mapsNow)
	}
}

// footprint returns the bytes of all maps that this process holds, of its live heap, and of its resident memory.
func footprint(t testing.TB, s store.Store) (maps, heap, rss uint64) {
	t.Helper()
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return mapBytes(t), m.HeapAlloc, residentBytes(t)
}

// mapBytes returns the total memory (memlock in fdinfo) of the maps to which this process has descriptors. It counts
// each map once.
func mapBytes(t testing.TB) (sum uint64) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fdinfo")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, e := range entries {
		text, err := os.ReadFile("/proc/self/fdinfo/" + e.Name())
		if err != nil {
			continue // this was the descriptor by which the directory was read
		}
		field := func(name string) string {
			for line := range strings.Lines(string(text)) {
				if v, ok := strings.CutPrefix(line, name+":"); ok {
					return strings.TrimSpace(v)
				}
			}
			return ""
		}
		id := field("map_id")
		if id == "" || seen[id] {
			continue
		}
		seen[id] = true
		n, _ := strconv.ParseUint(field("memlock"), 10, 64)
		sum += n
	}
	return sum
}

func residentBytes(t testing.TB) uint64 {
	t.Helper()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.ParseUint(strings.Fields(string(text))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return pages * uint64(os.Getpagesize())
}

// returned fills a store and removes everything again: the maps must then take no more memory than when the store was
// full, and the store must still work.
func (s *suite) returned(t *testing.T) {
	st := s.open(t, s.small())
	all := mesh.NewConfig()
	for b := s.budget(2, time.Second); len(all.Clusters) < 24 && b.more(); {
		i := len(all.Clusters)
		change := mesh.Change{Clusters: []*mesh.Cluster{little(i)}, Listeners: []*mesh.Listener{service(i, ClusterName(i))}}
		all.Apply(change)
		apply(t, st, change)
		if i == 0 { // the first change twice, because pools are filled on first use
			apply(t, st, everything(all))
			apply(t, st, change)
		}
	}
	full := settled(t) // a design may fill its pools in the background
	apply(t, st, everything(all))
	one := mesh.Change{Clusters: []*mesh.Cluster{ClusterLoad(0)}, Listeners: []*mesh.Listener{service(0, ClusterName(0))}}
	var empty uint64
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if empty = mapBytes(t); empty <= full || time.Now().After(end) {
			break
		}
	}
	t.Logf("maps with %d services: %d bytes; with none: %d bytes", len(all.Clusters), full, empty)
	if empty > full {
		t.Errorf("maps took %d bytes with %d services, and take %d with none", full, len(all.Clusters), empty)
	}
	// And it still works.
	apply(t, st, one)
	config := mesh.NewConfig()
	config.Apply(one)
	(&checker{store: st, ask: NewAsker(t, s.design, st), config: config}).question(t,
		mesh.Question{To: ServiceAddress(0), Protocol: mesh.TCP}, 1000)
}

// settled returns the bytes of all maps as soon as they are the same half a second later. With a pool of thousands of
// maps, one reading takes about as long.
func settled(t testing.TB) uint64 {
	t.Helper()
	for bytes := mapBytes(t); ; {
		time.Sleep(500 * time.Millisecond)
		now := mapBytes(t)
		if now == bytes {
			return bytes
		}
		bytes = now
	}
}

// waits compares the grace periods that a design counts with the kernel's count of how often the writer's thread gave
// up its CPU to wait (ru_nvcsw). Nothing else in a change makes the thread wait except page faults, which are few.
func (s *suite) waits(t *testing.T) {
	st := s.open(t, s.small())
	type result struct {
		work    store.Work
		stopped int64
		changes int
		err     error
	}
	got := make(chan result)
	go func() { // with a separate thread, which ends with the goroutine
		runtime.LockOSThread()
		var r result
		a, b := ClusterLoad(0), rename(ClusterLoad(100), ClusterName(0))
		for i := 0; i < 3 && r.err == nil; i++ { // creates what is only made at first use
			_, r.err = st.Apply(context.Background(),
				mesh.Change{Clusters: []*mesh.Cluster{a}, Listeners: []*mesh.Listener{ListenerLoad(0)}})
		}
		runtime.GC()
		var before, after unix.Rusage
		r.err = unix.Getrusage(unix.RUSAGE_THREAD, &before)
		for budget := s.budget(2, time.Second); r.changes < 1000 && r.err == nil && budget.more(); r.changes++ {
			c := a
			if r.changes%2 == 0 {
				c = b
			}
			var w store.Work
			w, r.err = st.Apply(context.Background(), mesh.Change{Clusters: []*mesh.Cluster{c}})
			r.work.Add(w)
		}
		if err := unix.Getrusage(unix.RUSAGE_THREAD, &after); r.err == nil {
			r.err = err
		}
		r.stopped = after.Nvcsw - before.Nvcsw
		got <- r
	}()
	r := <-got
	if r.err != nil {
		t.Fatal(r.err)
	}
	t.Logf("%d changes of a cluster: %d grace periods counted; the kernel says the writer stood still %d times", r.changes,
		r.work.GracePeriods, r.stopped)
	// The Go runtime parks threads, too, and an expedited grace period can be more than one wait.
	waits, slack := int64(r.work.GracePeriods), int64(r.changes/10+10)
	if r.stopped < waits-waits/10-slack || r.stopped > 3*waits+slack {
		t.Errorf("%d grace periods are counted for %d changes, but the writer stood still %d times", r.work.GracePeriods,
			r.changes, r.stopped)
	}
}
