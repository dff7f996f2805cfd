package witness

import (
	"errors"
	"os"
	"reflect"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/btf"

	"tare/internal/scale/host/feature"
	"tare/internal/scale/host/proc"
	"tare/test/vm/guest"
)

func start(t testing.TB, o Options) *Running {
	t.Helper()
	r, err := Start(o)
	if errors.Is(err, feature.ErrMissing) {
		t.Skipf("needs a machine with a witness: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// The structures of the program and the Go types that read them have the same layout.
func TestLayout(t *testing.T) {
	spec, err := loadWitness()
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range map[string]any{"state": state{}, "process": process{}} {
		var s *btf.Struct
		if err := spec.Types.TypeByName(name, &s); err != nil {
			t.Fatal(err)
		}
		typ := reflect.TypeOf(v)
		if int(s.Size) != int(typ.Size()) || len(s.Members) != typ.NumField() {
			t.Fatalf("%s: %d bytes and %d members in C, %d and %d in Go", name, s.Size, len(s.Members), typ.Size(),
				typ.NumField())
		}
		for i, m := range s.Members {
			if f := typ.Field(i); int(m.Offset.Bytes()) != int(f.Offset) {
				t.Errorf("%s: %s is at %d in C, %s at %d in Go", name, m.Name, m.Offset.Bytes(), f.Name, f.Offset)
			}
		}
	}
	if n := unsafe.Sizeof(record{}); n != 80 {
		t.Errorf("a record has %d bytes in Go, 80 in C", n)
	}
}

// TestMostProcesses: however many CPUs there are, at most half of the map is in the free entries that they set aside.
func TestMostProcesses(t *testing.T) {
	const setAside = 128 // LOCAL_FREE_TARGET in kernel/bpf/bpf_lru_list.c
	for cpus := 1; cpus <= 1024; cpus *= 2 {
		if n := mostProcesses(cpus); n < 4096 || setAside*uint32(cpus) > n/2 {
			t.Errorf("%d CPUs set aside %d of %d entries", cpus, setAside*cpus, n)
		}
	}
}

// The witness and the kernel count the same stolen time, apart from what the kernel had not yet counted at either edge,
// whether or not the witness records who held the CPUs.
func TestStolenAgreesWithTheKernel(t *testing.T) {
	guest.Slow(t)
	for _, o := range []Options{{}, {NoOccupants: true}} {
		before, err := (proc.FS{}).Stat()
		if err != nil {
			t.Fatal(err)
		}
		r := start(t, o)
		began := time.Now()
		for time.Since(began) < 2*time.Second { // something that occupies a CPU, for the witness to see
			spin(1 << 14)
		}
		n, err := r.Stop()
		if err != nil {
			t.Fatal(err)
		}
		seconds := time.Since(began).Seconds()
		after, err := (proc.FS{}).Stat()
		if err != nil {
			t.Fatal(err)
		}
		counted := after.Steal - before.Steal
		// The longest stall may be counted on the other side of each edge, and the kernel counts in hundredths of a second.
		if slack := 0.02 + 2*n.LongestSeconds; n.StolenSeconds > counted+slack*float64(runtime.NumCPU()) {
			t.Errorf("%.3f s stolen by the witness (longest %.3f s), %.2f s by the kernel", n.StolenSeconds,
				n.LongestSeconds, counted)
		}
		var listed float64
		for _, s := range n.Stalls {
			listed += s.Seconds
			if s.Seconds <= 0 || s.To <= s.From || s.Seconds > 1.001*float64(s.To-s.From)/1e9 {
				t.Errorf("a stall of %v s between %d and %d", s.Seconds, s.From, s.To)
			}
		}
		if part := n.StolenSeconds / (seconds * float64(runtime.NumCPU())); part < 0 || part > 1 {
			t.Errorf("the stolen part is %v", part)
		}
		if seen := len(n.Busiest) > 0; seen == o.NoOccupants || o.NoOccupants && len(n.Occupied) > 0 {
			t.Errorf("%+v: %d processes were seen running, %d held a CPU", o, len(n.Busiest), len(n.Occupied))
		}
		t.Logf("%s: %.4f s stolen, %.4f s of it in %d stalls; the kernel counted %.2f s", n.Witness, n.StolenSeconds,
			listed, len(n.Stalls), counted)
	}
}

// Stop closes all descriptors, so no program and no event remains.
func TestStopGivesBack(t *testing.T) {
	count := func() int {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(fds)
	}
	cycle := func() {
		if _, err := start(t, Options{}).Stop(); err != nil {
			t.Error(err)
		}
	}
	cycle()
	before := count()
	cycle()
	if after := count(); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}
