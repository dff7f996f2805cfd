package proc

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Memory is the memory of the machine as a whole, in bytes (/proc/meminfo and /proc/zoneinfo). What the kernel does
// not expose is 0.
type Memory struct {
	Available uint64 `json:"available_bytes"` // MemAvailable
	Free      uint64 `json:"free_bytes"`      // MemFree
	// Kept is free pages on the per-CPU lists in /proc/zoneinfo (pagesets). They are in neither Free nor Available,
	// because they are not in NR_FREE_PAGES (si_mem_available in mm/show_mem.c). A CPU may keep up to an eighth of a zone
	// divided by the number of CPUs, and returns pages slowly (mm/page_alloc.c, Linux 6.7).
	Kept  uint64 `json:"kept_by_cpus_bytes"`
	Anon  uint64 `json:"anon_bytes"`
	Shmem uint64 `json:"shmem_bytes"`
	// Cache is page cache that is part of Available: pages of files that are not mlocked.
	Cache uint64 `json:"page_cache_bytes"`
	// Reclaimable is kernel memory that is part of Available, because it can be freed on demand.
	Reclaimable uint64 `json:"kernel_reclaimable_bytes"`

	// Kernel memory that cannot be freed, by kind.
	Slab        uint64 `json:"slab_unreclaimable_bytes"`
	Stacks      uint64 `json:"kernel_stack_bytes"`
	PageTables  uint64 `json:"page_tables_bytes"`
	GuestTables uint64 `json:"secondary_page_tables_bytes"` // of virtual machines
	PerCPU      uint64 `json:"percpu_bytes"`                // mostly counters of control groups
}

// Kernel returns kernel memory that cannot be freed, in bytes. It is incomplete: the kernel does not report buffers of
// pipes and sockets or pages of drivers.
func (m Memory) Kernel() uint64 { return m.Slab + m.Stacks + m.PageTables + m.GuestTables + m.PerCPU }

// Memory reads the machine's memory. Counters are current if this process may make the kernel add up what each CPU has
// counted (vm.stat_refresh, Documentation/admin-guide/sysctl/vm.rst), else up to a second old.
func (f FS) Memory() (m Memory, err error) {
	_ = f.text("proc/sys/vm/stat_refresh")
	text := []byte(f.text("proc/meminfo"))
	parts := func(names ...string) (sum uint64) {
		for _, name := range names {
			n, _ := parseKB(text, name)
			sum += n
		}
		return sum
	}
	var ok bool
	if m.Available, ok = parseKB(text, "MemAvailable"); !ok {
		return m, errors.New("/proc/meminfo does not say how much memory is available")
	}
	m.Free, m.Anon, m.Shmem = parts("MemFree"), parts("AnonPages"), parts("Shmem")
	m.Cache = parts("Active(file)", "Inactive(file)")
	if m.Reclaimable, ok = parseKB(text, "KReclaimable"); !ok { // Linux 4.20
		m.Reclaimable = parts("SReclaimable")
	}
	m.Slab, m.Stacks, m.PageTables = parts("SUnreclaim"), parts("KernelStack"), parts("PageTables")
	m.GuestTables, m.PerCPU = parts("SecPageTables"), parts("Percpu")
	m.Kept = keptPages([]byte(f.text("proc/zoneinfo"))) * uint64(os.Getpagesize())
	return m, nil
}

// Number and spacing of the readings of MedianMemory.
const (
	memoryReadings = 9
	memoryApart    = time.Millisecond
)

// MedianMemory takes several readings within some milliseconds and returns the one with the median total. The files
// are not read at the same instant, so a process that ends in between is counted in none or in two of them.
func (f FS) MedianMemory() (Memory, error) {
	all := make([]Memory, 0, memoryReadings)
	for range memoryReadings {
		m, err := f.Memory()
		if err != nil {
			return m, err
		}
		all = append(all, m)
		time.Sleep(memoryApart)
	}
	counted := func(m Memory) int64 { return int64(m.Available + m.Kept + m.Anon + m.Shmem + m.Kernel()) }
	slices.SortFunc(all, func(a, b Memory) int { return int(counted(a) - counted(b)) })
	return all[len(all)/2], nil
}

// keptPages adds up the pages in the lists of all CPUs in all zones (zoneinfo_show_print in mm/vmstat.c).
func keptPages(zoneinfo []byte) (pages uint64) {
	for line := range bytes.Lines(zoneinfo) {
		if count, ok := strings.CutPrefix(strings.TrimSpace(string(line)), "count:"); ok {
			n, _ := strconv.ParseUint(strings.TrimSpace(count), 10, 40)
			pages += n
		}
	}
	return pages
}
