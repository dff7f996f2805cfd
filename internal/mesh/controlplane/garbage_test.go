package controlplane

import (
	"runtime"
	"runtime/metrics"
	"testing"
	"time"
)

func TestPercentFor(t *testing.T) {
	for _, c := range []struct {
		objects, stacks uint64
		want            int
	}{
		{0, 0, 400}, {1 << 20, 0, 400}, {8 << 20, 0, 400}, {16 << 20, 0, 200}, {8 << 20, 24 << 20, 100},
		{64 << 20, 0, 50}, {200 << 20, 200 << 20, 50},
	} {
		if got := percentFor(c.objects, c.stacks); got != c.want {
			t.Errorf("%d MiB of objects and %d of stacks: %d %%, want %d", c.objects>>20, c.stacks>>20, got, c.want)
		}
	}
}

func TestWorthCollecting(t *testing.T) {
	for _, c := range []struct {
		name      string
		now, kept use
		want      bool
	}{
		{"nothing", use{}, use{}, false}, {"a little", use{free: 4 << 20}, use{}, false},
		{"more", use{free: 5 << 20}, use{}, true},
		{"little of much", use{free: 20 << 20, live: 300 << 20}, use{}, false},
		{"much of much", use{free: 40 << 20, live: 300 << 20}, use{}, true},
		{"all are there", use{goroutines: 100}, use{goroutines: 100}, false},
		{"most are", use{goroutines: 90}, use{goroutines: 100}, false},
		{"new", use{allocated: 17 << 20}, use{}, true},
		{"new since", use{allocated: 17 << 20}, use{allocated: 2 << 20}, false},
		{"little new", use{allocated: 17 << 20, live: 300 << 20}, use{}, false},
		{"some have left", use{goroutines: 89}, use{goroutines: 100}, true},
		{"more have come", use{goroutines: 200}, use{goroutines: 100}, false},
	} {
		if got := c.now.worthCollecting(c.kept); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	for _, c := range []struct {
		allocated, live uint64
		want            bool
	}{{0, 0, true}, {256 << 10, 0, false}, {1 << 20, 300 << 20, true}, {2 << 20, 300 << 20, false}} {
		if got := (use{allocated: 1 + c.allocated, live: c.live}).idleSince(use{allocated: 1}); got != c.want {
			t.Errorf("%+v: idle: %v", c, got)
		}
	}
}

var kept [][]byte

// TestBoundGarbage: the larger the heap, the smaller the share of garbage that the process keeps; once idle it returns
// unused memory; and stop restores GOGC.
func TestBoundGarbage(t *testing.T) {
	t.Setenv("GOGC", "")
	of := func(name string) uint64 {
		s := []metrics.Sample{{Name: name}}
		metrics.Read(s)
		return s[0].Value.Uint64()
	}
	until := func(what string, is func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !is(); time.Sleep(50 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: not within a minute; %d %%", what, of("/gc/gogc:percent"))
			}
		}
	}
	before := of("/gc/gogc:percent")
	stop := BoundGarbage()
	for range 100 {
		kept = append(kept, make([]byte, 1<<20))
	}
	until("as little as may be, of 100 MiB", func() bool {
		runtime.GC()
		return of("/gc/gogc:percent") == leastGarbage
	})
	released := of("/memory/classes/heap/released:bytes")
	kept = nil
	until("100 MiB given back", func() bool { return of("/memory/classes/heap/released:bytes") >= released+90<<20 })
	until("as much as may be, of little", func() bool {
		runtime.GC()
		return of("/gc/gogc:percent") > leastGarbage
	})
	stop()
	if after := of("/gc/gogc:percent"); after != before {
		t.Errorf("%d %% at the end, %d before", after, before)
	}
	runtime.GC()
	if after := of("/gc/gogc:percent"); after != before {
		t.Errorf("%d %% after another collection, %d before", after, before)
	}
}
