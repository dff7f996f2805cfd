package bpf

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// crowd loads 50 programs and 100 maps, the number that a weighing must cope with.
func crowd(b *testing.B) {
	z := newZoo(b)
	for i := range 50 {
		z.newProgram(b, fmt.Sprintf("crowd_%d", i), ebpf.SocketFilter)
	}
	for i := range 100 - len(z.maps) {
		z.newMap(b, &ebpf.MapSpec{Name: fmt.Sprintf("crowd_%d", i), Type: ebpf.Hash, KeySize: 4, ValueSize: 8,
			MaxEntries: 64})
	}
}

func cpuTime() time.Duration {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// measure reports the CPU time of each operation in addition to the wall time, and the peak memory of the process.
func measure(b *testing.B, operation func()) {
	start := cpuTime()
	for b.Loop() {
		operation()
	}
	b.ReportMetric(float64((cpuTime()-start).Nanoseconds())/1e3/float64(b.N), "cpu-us/op")
	if status, err := os.ReadFile("/proc/self/status"); err == nil {
		for line := range strings.Lines(string(status)) {
			var kb float64
			if _, err := fmt.Sscanf(line, "VmHWM: %f kB", &kb); err == nil {
				b.ReportMetric(kb/1024, "peak-MiB")
			}
		}
	}
}

func benchmarkOpen(b *testing.B, o Options) {
	crowd(b)
	measure(b, func() {
		v, err := Open(o)
		if err != nil {
			b.Fatal(err)
		}
		v.Close()
	})
}

func BenchmarkOpen(b *testing.B)                 { benchmarkOpen(b, Options{}) }
func BenchmarkOpenWithoutIterators(b *testing.B) { benchmarkOpen(b, Options{WithoutIterators: true}) }

func benchmarkSnapshot(b *testing.B, o Options) {
	crowd(b)
	v := open(b, o)
	measure(b, func() { snapshot(b, v) })
}

func BenchmarkSnapshot(b *testing.B) { benchmarkSnapshot(b, Options{}) }
func BenchmarkSnapshotWithoutIterators(b *testing.B) {
	benchmarkSnapshot(b, Options{WithoutIterators: true})
}

func BenchmarkReadCounters(b *testing.B) {
	crowd(b)
	v := open(b, Options{})
	snapshot(b, v)
	measure(b, func() {
		if _, err := v.ReadCounters(); err != nil {
			b.Fatal(err)
		}
	})
}

// BenchmarkWeighing does all that one weighing does with this package.
func BenchmarkWeighing(b *testing.B) {
	crowd(b)
	measure(b, func() {
		v, err := Open(Options{})
		if err != nil {
			b.Fatal(err)
		}
		snapshot(b, v)
		for range 2 {
			if _, err := v.ReadCounters(); err != nil {
				b.Fatal(err)
			}
		}
		v.Close()
	})
}
