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

// What is idle, and what is worth collecting then.
const (
	idleEvery    = 2 * time.Second
	idleBytes    = 256 << 10 // allocated in that time
	idlePart     = 256       // or such a part of what lives, if that is more
	worthIt      = 4 << 20   // bytes that nothing needs
	worthPart    = 10        // or such a part of what lives; or of the goroutines, if so many have ended
	worthNew     = 16 << 20  // bytes allocated since the last time
	worthNewPart = 2         // or such a part of what lives
	restTimes    = 20        // how many times as long as it took the next one waits
)

// BoundGarbage has the process, which must be that of a control plane, keep little garbage, and give memory back while
// nothing happens, until stop is called. It leaves alone what the environment says by GOGC.
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
	d := next - t.percent
	if bound := next == leastGarbage || next == mostGarbage; bound && d != 0 || max(d, -d)*100 > t.percent*garbageChanged {
		debug.SetGCPercent(next)
		t.percent = next
	}
	return true
}

// whileIdle collects what has gathered, and gives it back, once little is allocated any more.
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
			for range 2 { // each collection makes stacks smaller by half at most, and FreeOSMemory has one more
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

// use is what the process uses, in bytes.
type use struct {
	allocated  uint64 // in all
	live       uint64 // at the last collection
	free       uint64 // dead by what is known, or free, and not given back
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

// idleSince says whether little has been allocated since a while ago.
func (u use) idleSince(before use) bool {
	return u.allocated-before.allocated < max(idleBytes, u.live/idlePart)
}

// worthCollecting says whether there is enough to give back: by what is known of it; by the goroutines that have ended
// since the last time, with what was theirs; or by what has been allocated since, in the place of which something else
// may have died.
func (u use) worthCollecting(kept use) bool {
	return u.free > max(worthIt, u.live/worthPart) ||
		u.goroutines < kept.goroutines-kept.goroutines/worthPart ||
		u.allocated-kept.allocated > max(worthNew, u.live/worthNewPart)
}
