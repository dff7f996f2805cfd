package proc

import (
	"os"
	"testing"
)

// TestMemoryFixture: every field is read, and those of CPUs and zones are added up. A kernel that does not report
// available memory causes an error.
func TestMemoryFixture(t *testing.T) {
	page := uint64(os.Getpagesize())
	want := Memory{
		Available: 23900000 << 10, Free: 23864004 << 10, Kept: (57 + 3 + 12216) * page, Anon: 95096 << 10,
		Shmem: 12780 << 10, Cache: (2387200 + 1688152) << 10, Reclaimable: 311300 << 10, Slab: 68320 << 10,
		Stacks: 2320 << 10, PageTables: 4036 << 10, GuestTables: 12 << 10, PerCPU: 1600 << 10,
	}
	got, err := fixture.Memory()
	if err != nil || got != want {
		t.Errorf("%+v, %v\nwant %+v", got, err, want)
	}
	if want := uint64(68320+2320+4036+12+1600) << 10; got.Kernel() != want {
		t.Errorf("the kernel's is %d bytes, want %d", got.Kernel(), want)
	}
	if got, err = fixture.MedianMemory(); err != nil || got != want {
		t.Errorf("the median is %+v, %v", got, err)
	}
	if _, err := (FS{Root: t.TempDir()}).Memory(); err == nil {
		t.Error("an empty tree has memory")
	}
}

// TestMemory: on this machine, all fields that every supported kernel has are known, and no part exceeds the whole.
func TestMemory(t *testing.T) {
	m, err := FS{}.MedianMemory()
	if err != nil {
		t.Fatal(err)
	}
	total := (FS{}).Machine().MemoryBytes
	for what, n := range map[string]uint64{"available": m.Available, "free": m.Free, "anon": m.Anon, "cache": m.Cache,
		"slab": m.Slab, "stacks": m.Stacks, "page tables": m.PageTables, "by CPU": m.PerCPU} {
		// A machine whose files are all in an initramfs has no page cache that could be taken back.
		if n == 0 && (what != "cache" || !testing.Short()) || n > total {
			t.Errorf("%s: %d of %d bytes", what, n, total)
		}
	}
	if sum := m.Free + m.Kept + m.Anon + m.Shmem + m.Cache + m.Reclaimable + m.Kernel(); sum > total+total/100 {
		t.Errorf("the parts are %d of %d bytes", sum, total)
	}
}
