package cgroup

import "bytes"

// Value is a counter that the kernel may lack.
type Value struct {
	N  uint64
	OK bool // the kernel has it and it was read
}

// Ptr is the counter, nil where the kernel lacks it.
func (v Value) Ptr() *uint64 {
	if !v.OK {
		return nil
	}
	n := v.N
	return &n
}

// CPU is what a group, with all its descendants, has used since it was made.
type CPU struct {
	UsageNs          Value // nanoseconds of CPU time
	ThrottledNs      Value // nanoseconds that runnable CPUs of the group itself were held back by its quota
	Periods          Value // quota periods in which the group itself wanted to run
	ThrottledPeriods Value // those of them in which it used up its quota
}

// Memory is what a group, with all its descendants, holds, in bytes. On v1 there is no SlabReclaimable, and Sock is TCP
// only and not a part of Current.
type Memory struct {
	Current         Value // memory.current, memory.usage_in_bytes
	Peak            Value // memory.peak (Linux 5.19), memory.max_usage_in_bytes
	Anon            Value
	File            Value // page cache, with shmem
	Shmem           Value
	Kernel          Value // memory.stat kernel (Linux 5.18), memory.kmem.usage_in_bytes
	SlabReclaimable Value
	Sock            Value
	InactiveFile    Value
}

// parseUint reads the decimal number that is all of b but surrounding white space.
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

// times scales v to a smaller unit.
func (v Value) times(k uint64) Value {
	if v.N > (1<<64-1)/k {
		return Value{}
	}
	v.N *= k
	return v
}

// next cuts the first "key value" line off b.
func next(b []byte) (key, value, rest []byte) {
	line := b
	if i := bytes.IndexByte(b, '\n'); i >= 0 {
		line, rest = b[:i], b[i+1:]
	}
	if i := bytes.IndexByte(line, ' '); i >= 0 {
		return line[:i], line[i+1:], rest
	}
	return line, nil, rest
}

// The parsers below read one file each into a group. They leave alone what the file does not have.

func parseUsage(g *Group, b []byte) { g.CPU.UsageNs = parseUint(b) }

// parseThrottling reads cpu.stat of v1 (times in nanoseconds) or v2 (in microseconds).
func parseThrottling(g *Group, b []byte) {
	for len(b) > 0 {
		var key, value []byte
		key, value, b = next(b)
		switch string(key) {
		case "nr_periods":
			g.CPU.Periods = parseUint(value)
		case "nr_throttled":
			g.CPU.ThrottledPeriods = parseUint(value)
		case "throttled_time":
			g.CPU.ThrottledNs = parseUint(value)
		case "throttled_usec":
			g.CPU.ThrottledNs = parseUint(value).times(1000)
		}
	}
}

// parseCPUStat reads cpu.stat of v2 for usage and throttling.
func parseCPUStat(g *Group, b []byte) {
	parseThrottling(g, b)
	for len(b) > 0 {
		var key, value []byte
		if key, value, b = next(b); string(key) == "usage_usec" {
			g.CPU.UsageNs = parseUint(value).times(1000)
			return
		}
	}
}

func parseCurrent(g *Group, b []byte) { g.Memory.Current = parseUint(b) }
func parsePeak(g *Group, b []byte)    { g.Memory.Peak = parseUint(b) }
func parseKernel(g *Group, b []byte)  { g.Memory.Kernel = parseUint(b) }
func parseSock(g *Group, b []byte)    { g.Memory.Sock = parseUint(b) }

// parseMemoryStat1 reads memory.stat of v1, whose hierarchical numbers are called total_* (memcg1_stat_format in
// mm/memcontrol-v1.c).
func parseMemoryStat1(g *Group, b []byte) {
	for len(b) > 0 {
		var key, value []byte
		key, value, b = next(b)
		switch string(key) {
		case "total_rss":
			g.Memory.Anon = parseUint(value)
		case "total_cache":
			g.Memory.File = parseUint(value)
		case "total_shmem":
			g.Memory.Shmem = parseUint(value)
		case "total_inactive_file":
			g.Memory.InactiveFile = parseUint(value)
		}
	}
}

// parseMemoryStat2 reads memory.stat of v2 (Documentation/admin-guide/cgroup-v2.rst).
func parseMemoryStat2(g *Group, b []byte) {
	for len(b) > 0 {
		var key, value []byte
		key, value, b = next(b)
		switch string(key) {
		case "anon":
			g.Memory.Anon = parseUint(value)
		case "file":
			g.Memory.File = parseUint(value)
		case "shmem":
			g.Memory.Shmem = parseUint(value)
		case "kernel":
			g.Memory.Kernel = parseUint(value)
		case "slab_reclaimable":
			g.Memory.SlabReclaimable = parseUint(value)
		case "sock":
			g.Memory.Sock = parseUint(value)
		case "inactive_file":
			g.Memory.InactiveFile = parseUint(value)
		}
	}
}
