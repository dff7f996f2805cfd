package cgroup

import (
	"os"
	"path/filepath"
)

// CPUTime returns the CPU time in nanoseconds that the group with the given directory and its descendants have used
// since the group was created (cpuacct.usage of v1, cpu.stat of v2). The result is not OK if the kernel does not expose
// it or the group is gone. CPUTime is for occasional use; use a Reader for many groups.
func CPUTime(dir string) Value {
	return once(dir, source{usageV1, parseUint}, source{"cpu.stat", func(b []byte) Value {
		var g Group
		parseCPUStat(&g, b)
		return g.CPU.UsageNs
	}})
}

// MemoryPeak returns the most memory in bytes that the kernel has ever charged to the group with the given directory
// and its descendants (memory.peak of v2, since Linux 5.19; memory.max_usage_in_bytes of v1). The result is not OK if
// the kernel does not expose it or the group is gone.
func MemoryPeak(dir string) Value {
	return once(dir, source{"memory.peak", parseUint}, source{"memory.max_usage_in_bytes", parseUint})
}

// MemoryLimit returns the memory limit in bytes of the group with the given directory (memory.max of v2,
// memory.limit_in_bytes of v1). The result is not OK if there is no limit, the kernel does not expose it, or the group
// is gone.
func MemoryLimit(dir string) Value {
	return once(dir, source{"memory.max", parseLimit}, source{"memory.limit_in_bytes", parseLimit})
}

// parseLimit parses a limit. If there is no limit, v1 shows the largest number of pages that fits in a long
// (PAGE_COUNTER_MAX), in bytes, and v2 shows "max".
func parseLimit(b []byte) Value {
	if v := parseUint(b); v.N < 1<<62 {
		return v
	}
	return Value{}
}

// OOMKills returns how many processes of the group itself, without its descendants, the OOM killer has killed since
// the group was created. dir is in the hierarchy of the memory controller (memory.events.local of v2, since Linux 5.2;
// memory.oom_control of v1, since Linux 4.13). It is not OK if the kernel does not expose it or the group is gone.
func OOMKills(dir string) Value {
	return once(dir, source{"memory.events.local", parseKills}, source{"memory.oom_control", parseKills})
}

func parseKills(b []byte) (v Value) {
	set(b, field{"oom_kill", &v, 1})
	return v
}

// source is a file that contains a counter.
type source struct {
	name  string
	parse func([]byte) Value
}

// once returns a counter from the first file that has it.
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
