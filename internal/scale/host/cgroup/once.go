package cgroup

import (
	"bytes"
	"os"
	"path/filepath"
)

// CPUTime is the CPU time in nanoseconds that the group of that directory, with those below it, has used since it was
// made (cpuacct.usage of v1, cpu.stat of v2). It is not OK where the kernel does not tell, or the group has gone. It is
// for few groups, and few readings: a Reader is for many.
func CPUTime(dir string) Value {
	return once(dir, func(g *Group) Value { return g.CPU.UsageNs }, source{"cpuacct.usage", parseUsage},
		source{"cpu.stat", parseCPUStat})
}

// MemoryPeak is the most memory in bytes that the kernel has charged to the group of that directory, and those below
// it, at any time (memory.peak of v2, since Linux 5.19; memory.max_usage_in_bytes of v1). It is not OK where the kernel
// does not tell, or the group has gone.
func MemoryPeak(dir string) Value {
	return once(dir, func(g *Group) Value { return g.Memory.Peak }, source{"memory.peak", parsePeak},
		source{"memory.max_usage_in_bytes", parsePeak})
}

// MemoryLimit is the most memory in bytes that the group of that directory may have (memory.max of v2,
// memory.limit_in_bytes of v1). It is not OK where it may have any, where the kernel does not tell, or the group has
// gone.
func MemoryLimit(dir string) Value {
	for _, name := range []string{"memory.max", "memory.limit_in_bytes"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			continue
		}
		// v1 says the largest number of pages that fits in a long where there is no limit (PAGE_COUNTER_MAX).
		if v := parseUint(b); v.OK && v.N < 1<<62 {
			return v
		}
		return Value{}
	}
	return Value{}
}

type source struct {
	name  string
	parse func(*Group, []byte)
}

// once takes a counter from the first of the files that has it.
func once(dir string, of func(*Group) Value, from ...source) Value {
	for _, s := range from {
		b, err := os.ReadFile(filepath.Join(dir, s.name))
		if err != nil {
			continue
		}
		var g Group
		if s.parse(&g, b); of(&g).OK {
			return of(&g)
		}
	}
	return Value{}
}

// OOMKills is how many processes of a group itself, without those below it, the kernel has killed because memory was
// short since the group was made, by its directory in the hierarchy of the memory controller (memory.events.local of
// v2, since Linux 5.2; memory.oom_control of v1, since Linux 4.13). It is not OK where the kernel does not tell, or the
// group has gone.
func OOMKills(dir string) Value {
	for _, name := range []string{"memory.events.local", "memory.oom_control"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			continue
		}
		for line := range bytes.Lines(b) {
			if n, ok := bytes.CutPrefix(line, []byte("oom_kill ")); ok {
				return parseUint(n)
			}
		}
	}
	return Value{}
}
