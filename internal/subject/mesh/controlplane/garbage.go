package controlplane

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

// How much garbage a control plane lets gather before it is collected: so many bytes, because collecting takes every
// idle CPU for milliseconds, which on a small machine would show as a slow data plane; but of a large heap no more than
// a part, because what is collected late leaves holes between what stays.
const (
	garbageBytes   = 32 << 20
	leastGarbage   = 50  // per cent of what lives
	mostGarbage    = 400 // the same
	garbageChanged = 10  // per cent of the setting: less is not worth stopping the process for
)

// What is idle, by what the process allocates, and how much of it is worth giving back to the machine.
const (
	idleEvery = 2 * time.Second
	idleBytes = 256 << 10 // in that time
	worthIt   = 16 << 20  // bytes allocated since the last time
)

// BoundGarbage has the process, which must be that of a control plane, keep little garbage, and give memory back while
// nothing happens, until stop is called. It leaves alone what the environment says by GOGC.
func BoundGarbage() (stop func()) {
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

// tidier is what bounds garbage.
type tidier struct {
	done    chan struct{}
	before  int // percent, as it was
	mu      sync.Mutex
	percent int // as it is; 0: it is for others to set
}

// percentFor is how much garbage may gather, in per cent of what lives: objects and stacks, in bytes.
func percentFor(objects, stacks uint64) int {
	if objects+stacks == 0 {
		return mostGarbage
	}
	return int(min(mostGarbage, max(leastGarbage, 100*garbageBytes/(objects+stacks))))
}

// collected is an object that nobody has: when it is collected, everything has been looked at.
type collected struct{ _ [4]*collected }

// watch sets the percentage after each collection.
func (t *tidier) watch() {
	runtime.AddCleanup(new(collected), func(t *tidier) {
		if t.set() {
			t.watch()
		}
	}, t)
}

// set sets the percentage to what the last collection has found. It says whether to go on.
func (t *tidier) set() bool {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}}
	metrics.Read(live)
	next := percentFor(live[0].Value.Uint64(), live[1].Value.Uint64())
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.percent == 0 {
		return false
	}
	if d := next - t.percent; max(d, -d)*100 > t.percent*garbageChanged {
		debug.SetGCPercent(next)
		t.percent = next
	}
	return true
}

// whileIdle collects what has gathered, and gives it back, once little is allocated any more.
func (t *tidier) whileIdle() {
	ticks := time.NewTicker(idleEvery)
	defer ticks.Stop()
	allocated := func() uint64 {
		s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
		metrics.Read(s)
		return s[0].Value.Uint64()
	}
	last, given := allocated(), uint64(0)
	for {
		select {
		case <-t.done:
			return
		case <-ticks.C:
		}
		now := allocated()
		if now-last < idleBytes && now-given > worthIt {
			for range 2 { // each collection makes stacks smaller by half at most, and FreeOSMemory has one more
				runtime.GC()
			}
			debug.FreeOSMemory()
			given = now
		}
		last = now
	}
}
