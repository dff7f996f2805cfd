package cgroup

import (
	"os"
	"path/filepath"
)

// CPUTime is the CPU time in nanoseconds that the group of that directory, with those below it, has used since it was
// made (cpuacct.usage of v1, cpu.stat of v2). It is not OK where the kernel does not tell, or the group has gone. It is
// for few groups, and few readings: a Reader is for many.
func CPUTime(dir string) Value {
	return once(dir, source{usageV1, parseUint}, source{"cpu.stat", func(b []byte) Value {
		var g Group
		parseCPUStat(&g, b)
		return g.CPU.UsageNs
	}})
}

// MemoryPeak is the most memory in bytes that the kernel has charged to the group of that directory, and those below
// it, at any time (memory.peak of v2, since Linux 5.19; memory.max_usage_in_bytes of v1). It is not OK where the kernel
// does not tell, or the group has gone.
func MemoryPeak(dir string) Value {
	return once(dir, source{"memory.peak", parseUint}, source{"memory.max_usage_in_bytes", parseUint})
}

// MemoryLimit is the most memory in bytes that the group of that directory may have (memory.max of v2,
// memory.limit_in_bytes of v1). It is not OK where it may have any, where the kernel does not tell, or the group has
// gone.
func MemoryLimit(dir string) Value {
	return once(dir, source{"memory.max", parseLimit}, source{"memory.limit_in_bytes", parseLimit})
}

// parseLimit reads a limit. V1 says the largest number of pages that fits in a long where there is none
// (PAGE_COUNTER_MAX), and v2 a word.
func parseLimit(b []byte) Value {
	if v := parseUint(b); v.N < 1<<62 {
		return v
	}
	return Value{}
}

// OOMKills is how many processes of a group itself, without those below it, the kernel has killed because memory was
// short since the group was made, by its directory in the hierarchy of the memory controller (memory.events.local of
// v2, since Linux 5.2; memory.oom_control of v1, since Linux 4.13). It is not OK where the kernel does not tell, or the
// group has gone.
func OOMKills(dir string) Value {
	return once(dir, source{"memory.events.local", parseKills}, source{"memory.oom_control", parseKills})
}

func parseKills(b []byte) (v Value) {
	set(b, field{"oom_kill", &v, 1})
	return v
}

// source is a file that has a counter.
type source struct {
	name  string
	parse func([]byte) Value
}

// once takes a counter from the first of the files that has it.
func once(dir string, from ...source) Value {
	for _, s := range from {
		b, err := os.ReadFile(filepath.Join(dir, s.name))
		if err != nil {
			continue
		}
		if v := s.parse(b); v.OK {
			return v
		}
	}
	return Value{}
}
