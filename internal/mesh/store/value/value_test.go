package value

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"

	"tare/internal/mesh/store"
	"tare/test/storetest"
)

func design(t testing.TB) store.Design {
	t.Helper()
	d, _, err := store.Lookup("value")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestConformance(t *testing.T) { storetest.Conformance(t, design(t)) }

func BenchmarkStore(b *testing.B) { storetest.Benchmarks(b, design(b)) }

// TestTorn checks which maps show a reader a mixture of two values while one replaces the other. The store relies on
// values under a lock not doing so; the results of the others are logged.
func TestTorn(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	var o tornObjects
	if err := loadTornObjects(&o, nil); err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	for _, c := range []struct {
		name    string
		m       *ebpf.Map
		program *ebpf.Program
		flags   ebpf.MapUpdateFlags
	}{
		{"hash, elements allocated as needed", o.TornHash, o.ReadHash, ebpf.UpdateAny},
		{"hash, elements allocated at start", o.TornPrealloc, o.ReadPrealloc, ebpf.UpdateAny},
		{"array", o.TornArray, o.ReadArray, ebpf.UpdateAny},
		{"array, under a lock", o.TornLocked, o.ReadLocked, ebpf.UpdateLock},
	} {
		value := make([]uint64, c.m.ValueSize()/8)
		key := uint32(0)
		write := func(k uint64) error {
			for i := range value {
				value[i] = k
			}
			return c.m.Update(unsafe.Pointer(&key), unsafe.Pointer(&value[0]), c.flags)
		}
		if err := write(1); err != nil {
			t.Fatal(err)
		}
		var stop atomic.Bool
		var reads, torn atomic.Int64
		var wait sync.WaitGroup
		started := make(chan error, 2)
		for range max(1, runtime.NumCPU()-1) {
			wait.Go(func() {
				packet := make([]byte, 64)
				for first := true; first || !stop.Load(); first = false {
					n, _, err := c.program.Test(packet)
					if first {
						started <- err
					}
					reads.Add(1)
					if err == nil && n > 0 {
						torn.Add(1)
					}
				}
			})
		}
		err := <-started
		writes := uint64(1)
		// 300 ms is not a deadline, but the minimum time of writing.
		for end := time.Now().Add(300 * time.Millisecond); err == nil && (writes < 1000 || time.Now().Before(end)); writes++ {
			err = write(writes + 1)
		}
		stop.Store(true)
		wait.Wait()
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d of %d reads were torn by %d replacements", c.name, torn.Load(), reads.Load(), writes)
		if c.flags == ebpf.UpdateLock && torn.Load() > 0 {
			t.Errorf("%s: values are seen torn", c.name)
		}
	}
}
