package cgroup

import "bytes"

// Value is a counter that this kernel may lack.
type Value struct {
	N  uint64
	OK bool // the kernel has the counter and it was read
}

// Ptr returns the counter; nil if it is not OK.
func (v Value) Ptr() *uint64 {
	if !v.OK {
		return nil
	}
	return new(v.N)
}

// CPU holds the CPU time that a group, with all its descendants, has used since it was created.
type CPU struct {
	UsageNs          Value // nanoseconds of CPU time
	ThrottledNs      Value // nanoseconds in which its quota kept the group itself from running, summed over CPUs
	Periods          Value // quota periods in which the group itself wanted to run
	ThrottledPeriods Value // periods in which it used up its quota

	// Resets counts the times that UsageNs was seen to be reset to 0 since the group was first read. Only on v1 can it be
	// reset, because there the counter is a writable file.
	Resets int
}

// Memory is the memory of a group, with all its descendants, in bytes. v1 has no SlabReclaimable, and its Sock is only
// TCP and not included in Current.
type Memory struct {
	Current         Value // memory.current, memory.usage_in_bytes
	Peak            Value // memory.peak (Linux 5.19), memory.max_usage_in_bytes
	Anon            Value
	File            Value // page cache, including shmem
	Shmem           Value
	Kernel          Value // memory.stat kernel (Linux 5.18), memory.kmem.usage_in_bytes
	SlabReclaimable Value
	Sock            Value
	InactiveFile    Value
}

// parseUint parses a decimal number, ignoring surrounding white space.
func parseUint(b []byte) (v Value) {
	b = bytes.TrimSpace(b)
	for _, c := range b {
		d := uint64(c - '0')
		if d > 9 || v.N > (1<<64-1-d)/10 {
			return Value{}
		}
		v.N = v.N*10 + d
	}
	v.OK = len(b) > 0
	return v
}

// times multiplies v by k, to convert it to a smaller unit. The result is not OK if it overflows.
func (v Value) times(k uint64) Value {
	if v.N > (1<<64-1)/k {
		return Value{}
	}
	v.N *= k
	return v
}

// field is a line "key value" of a file and the destination of its value.
type field struct {
	key  string
	to   *Value
	unit uint64 // the factor from the unit of the file to that of the Value
}

// set parses the fields that the file has, and does not change the others.
func set(b []byte, fields ...field) {
	for len(b) > 0 {
		var line []byte
		line, b, _ = bytes.Cut(b, []byte("\n"))
		key, value, _ := bytes.Cut(line, []byte(" "))
		for i := range fields {
			if f := &fields[i]; string(key) == f.key {
				*f.to = parseUint(value).times(f.unit)
			}
		}
	}
}

// Each parser below parses one file into a group, and leaves the values that the file lacks unchanged: other files may
// have them.

func parseUsage(g *Group, b []byte) { g.CPU.UsageNs, g.CPU.Resets = parseUint(b), g.resets }

// parseThrottling reads cpu.stat of v1 (times in nanoseconds) or v2 (in microseconds).
func parseThrottling(g *Group, b []byte) {
	c := &g.CPU
	set(b, field{"nr_periods", &c.Periods, 1}, field{"nr_throttled", &c.ThrottledPeriods, 1},
		field{"throttled_time", &c.ThrottledNs, 1}, field{"throttled_usec", &c.ThrottledNs, 1000})
}

// parseCPUStat reads cpu.stat of v2 for usage and throttling.
func parseCPUStat(g *Group, b []byte) {
	parseThrottling(g, b)
	set(b, field{"usage_usec", &g.CPU.UsageNs, 1000})
}

// parseRootCPUStat is parseCPUStat for the root of v2. Its usage_usec includes stolen time before Linux 6.14, and the
// time of virtual machines twice before 5.16 (root_cgroup_cputime in kernel/cgroup/rstat.c). Its parts never did.
func parseRootCPUStat(g *Group, b []byte) {
	parseThrottling(g, b)
	var user, system Value
	set(b, field{"user_usec", &user, 1000}, field{"system_usec", &system, 1000})
	g.CPU.UsageNs = Value{N: user.N + system.N, OK: user.OK && system.OK}
}

func parseCurrent(g *Group, b []byte) { g.Memory.Current = parseUint(b) }
func parsePeak(g *Group, b []byte)    { g.Memory.Peak = parseUint(b) }
func parseKernel(g *Group, b []byte)  { g.Memory.Kernel = parseUint(b) }
func parseSock(g *Group, b []byte)    { g.Memory.Sock = parseUint(b) }

// parseMemoryStat1 parses memory.stat of v1, where hierarchical values are called total_* (memcg1_stat_format in
// mm/memcontrol-v1.c).
func parseMemoryStat1(g *Group, b []byte) {
	m := &g.Memory
	set(b, field{"total_rss", &m.Anon, 1}, field{"total_cache", &m.File, 1}, field{"total_shmem", &m.Shmem, 1},
		field{"total_inactive_file", &m.InactiveFile, 1})
}

// parseMemoryStat2 reads memory.stat of v2 (Documentation/admin-guide/cgroup-v2.rst).
func parseMemoryStat2(g *Group, b []byte) {
	m := &g.Memory
	set(b, field{"anon", &m.Anon, 1}, field{"file", &m.File, 1}, field{"shmem", &m.Shmem, 1},
		field{"kernel", &m.Kernel, 1}, field{"slab_reclaimable", &m.SlabReclaimable, 1}, field{"sock", &m.Sock, 1},
		field{"inactive_file", &m.InactiveFile, 1})
}
