package proc

import (
	"os"
	"os/exec"
	"slices"
	"testing"
)

// Entries lists the same processes as PIDs. A process keeps its inode while it lives, and no other process has it.
func TestEntries(t *testing.T) {
	busy := exec.Command("sleep", "600")
	if err := busy.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { busy.Process.Kill(); busy.Wait() }()
	buffer := make([]byte, 4096)
	list := func() map[int]uint64 {
		t.Helper()
		all, err := FS{}.Entries(nil, buffer)
		if err != nil {
			t.Fatal(err)
		}
		by, seen := map[int]uint64{}, map[uint64]bool{}
		for _, e := range all {
			if seen[e.Inode] {
				t.Errorf("two processes have inode %d", e.Inode)
			}
			by[e.PID], seen[e.Inode] = e.Inode, true
		}
		return by
	}
	first := list()
	for _, pid := range []int{os.Getpid(), busy.Process.Pid} {
		if inode, ok := list()[pid]; !ok || inode != first[pid] {
			t.Errorf("process %d has inode %d, and had %d", pid, inode, first[pid])
		}
	}
	pids, err := fixture.PIDs()
	if err != nil {
		t.Fatal(err)
	}
	entries, err := fixture.Entries(nil, buffer)
	if err != nil {
		t.Fatal(err)
	}
	var got []int
	for _, e := range entries {
		got = append(got, e.PID)
	}
	slices.Sort(pids)
	slices.Sort(got)
	if !slices.Equal(got, pids) {
		t.Errorf("entries %v, PIDs %v", got, pids)
	}
}

// TestRollup reads resident memory by kind of page, from a text and of this process.
func TestRollup(t *testing.T) {
	r, ok := parseRollup([]byte("5-7 ---p 0 00:00 0 [rollup]\nRss: 100 kB\nPss: 60 kB\nPss_Dirty: 1 " +
		"kB\nPss_Anon: 30 kB\nPss_File: 20 kB\nPss_Shmem: 10 kB\nShared_Hugetlb: 2048 kB\nPrivate_Hugetlb: 4096 kB\n" +
		"SwapPss: 4 kB\nPss_What: many\n"))
	if !ok || r.PSS != 60<<10 || *r.Anon != 30<<10 || *r.File != 20<<10 || *r.Shmem != 10<<10 || r.Swap != 4<<10 ||
		r.RSS != 100<<10 || r.Huge != 6<<20 {
		t.Errorf("%+v, %v", r, ok)
	}
	if r, ok := parseRollup([]byte("Pss: 60 kB\n")); !ok || r.Anon != nil {
		t.Errorf("an older kernel: %+v, %v", r, ok)
	}
	if _, ok := parseRollup(nil); ok {
		t.Error("nothing is something")
	}
	r, err := FS{}.Rollup(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if r.PSS == 0 || r.RSS < r.PSS {
		t.Errorf("this process: %+v", r)
	}
	if r.Anon != nil && (r.PSS < *r.Anon || *r.Anon+*r.File+*r.Shmem > r.PSS+3<<10 ||
		*r.Anon+*r.File+*r.Shmem+3<<10 < r.PSS) {
		t.Errorf("the kinds are not the sum: %d, %d, %d of %d", *r.Anon, *r.File, *r.Shmem, r.PSS)
	}
	if n, err := (FS{}).PageTables(os.Getpid()); err != nil || n == 0 {
		t.Errorf("page tables %d, %v", n, err)
	}
	if r, err := (FS{}).Rollup(2); err == nil && r.PSS != 0 {
		t.Errorf("a thread of the kernel: %+v, %v", r, err)
	}
}
