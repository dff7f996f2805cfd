package controlplane

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

// Limits on the garbage that a control plane accumulates before a collection. The main limit is in bytes, so that a
// small heap is collected rarely: a collection takes every idle CPU for milliseconds, which on a small machine would
// look like a slow data plane. A large heap is limited to leastGarbage, half of Go's default, because garbage that is
// collected late leaves holes between the objects that stay.
const (
	garbageBytes   = 32 << 20
	leastGarbage   = 50  // percent of the live heap
	mostGarbage    = 400 // percent of the live heap
	garbageChanged = 10  // percent of the current setting; for less, stopping the process to change it is not worthwhile
)

// Thresholds: when a control plane counts as idle, and when collecting the garbage of an idle one is worth the cost.
const (
	idleEvery    = 2 * time.Second
	idleBytes    = 256 << 10 // bytes allocated in idleEvery; with less, the process is idle
	idlePart     = 256       // or this fraction (1/256) of the live heap, if that is more
	worthIt      = 4 << 20   // bytes of garbage
	worthPart    = 10        // or 1/10 of the live heap; or if 1/10 of the goroutines have ended
	worthNew     = 16 << 20  // bytes allocated since whileIdle last collected
	worthNewPart = 2         // or 1/2 of the live heap
	restTimes    = 20        // the pause after a collection, as a multiple of its duration
)

// BoundGarbage makes the process, which must be a control plane, keep little garbage, and return memory to the kernel
// while it is idle, until stop is called. If the environment sets GOGC, BoundGarbage does not change it; with GOGC=off,
// BoundGarbage does nothing.
func BoundGarbage() (stop func()) {
	if os.Getenv("GOGC") == "off" {
		return func() {}
	}
	t := &tidier{done: make(chan struct{})}
	if os.Getenv("GOGC") == "" {
		t.percent = mostGarbage
		t.before = debug.SetGCPercent(t.percent)
		t.watch()
	}
	var idle sync.WaitGroup
	idle.Go(t.whileIdle)
	return func() {
		close(t.done)
		idle.Wait()
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.percent != 0 {
			debug.SetGCPercent(t.before)
			t.percent = 0
		}
	}
}

// tidier bounds the garbage of the process.
type tidier struct {
	done    chan struct{}
	before  int // GOGC before BoundGarbage, in percent
	mu      sync.Mutex
	percent int // GOGC now; 0: tidier does not set it
}

// percentFor returns the GOGC percentage for a process with the given sizes of live objects and stacks, in bytes.
func percentFor(objects, stacks uint64) int {
	if objects+stacks == 0 {
		return mostGarbage
	}
	return int(min(mostGarbage, max(leastGarbage, 100*garbageBytes/(objects+stacks))))
}

// collected is an object that nothing refers to, so its cleanup runs after the next collection.
type collected struct{ _ [4]*collected }

// watch adjusts the percentage after each collection.
func (t *tidier) watch() {
	runtime.AddCleanup(new(collected), func(t *tidier) {
		if t.set() {
			t.watch()
		}
	}, t)
}

// set adjusts the percentage to the live heap that the last collection found. It returns false once tidier has
// stopped.
func (t *tidier) set() bool {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}}
	metrics.Read(live)
	next := percentFor(live[0].Value.Uint64(), live[1].Value.Uint64())
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.percent == 0 {
		return false
	}
	d := next - t.percent
	if bound := next == leastGarbage || next == mostGarbage; bound && d != 0 || max(d, -d)*100 > t.percent*garbageChanged {
		debug.SetGCPercent(next)
		t.percent = next
	}
	return true
}

// whileIdle collects garbage and returns the memory to the kernel whenever the process allocates little.
func (t *tidier) whileIdle() {
	ticks := time.NewTicker(idleEvery)
	defer ticks.Stop()
	last, kept := readUse(), use{}
	for rest := time.Now(); ; {
		select {
		case <-t.done:
			return
		case <-ticks.C:
		}
		now := readUse()
		if began := time.Now(); began.After(rest) && now.idleSince(last) && now.worthCollecting(kept) {
			for range 2 { // a collection at most halves a stack; FreeOSMemory runs a third collection
				runtime.GC()
			}
			debug.FreeOSMemory()
			rest = time.Now().Add(restTimes * time.Since(began))
			now = readUse()
			kept = now
		}
		kept.goroutines = max(kept.goroutines, now.goroutines)
		last = now
	}
}

// use holds what the process uses, in bytes except for goroutines.
type use struct {
	allocated  uint64 // since the process began
	live       uint64 // at the last collection
	free       uint64 // heap objects beyond live, and free memory not returned to the kernel
	goroutines uint64
}

func readUse() use {
	s := []metrics.Sample{
		{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/free:bytes"}, {Name: "/sched/goroutines:goroutines"},
	}
	metrics.Read(s)
	u := use{allocated: s[0].Value.Uint64(), live: s[1].Value.Uint64(), free: s[3].Value.Uint64(),
		goroutines: s[4].Value.Uint64()}
	if objects := s[2].Value.Uint64(); objects > u.live {
		u.free += objects - u.live
	}
	return u
}

// idleSince reports whether little has been allocated since before.
func (u use) idleSince(before use) bool {
	return u.allocated-before.allocated < max(idleBytes, u.live/idlePart)
}

// worthCollecting reports whether a collection would free enough: by the known garbage; by the goroutines that have
// ended since whileIdle last collected; or by the bytes allocated since then, because that many may have become
// garbage. kept is the use after that collection, with the largest number of goroutines since.
func (u use) worthCollecting(kept use) bool {
	return u.free > max(worthIt, u.live/worthPart) ||
		u.goroutines < kept.goroutines-kept.goroutines/worthPart ||
		u.allocated-kept.allocated > max(worthNew, u.live/worthNewPart)
}
