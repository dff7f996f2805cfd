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

var kept [][]byte

// TestBoundGarbage: the process keeps less garbage in proportion while it is large, gives back what nothing needs once
// it is idle, and is as it was at the end.
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
