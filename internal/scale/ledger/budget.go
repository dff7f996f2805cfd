package ledger

import (
	"math"
	"slices"

	"tare/internal/lib/known"
)

// Usage holds the measured parts of the CPU budget, in seconds over one window.
type Usage struct {
	Capacity, Idle, User, System, Softirq, IRQ, Steal float64

	// IdleStolen is the part of Steal that Idle contains as well. It is off by at most IdleStolenError. Both are nil
	// without a witness (package witness).
	IdleStolen, IdleStolenError *float64

	Groups float64 // CPU time of every group below the root
	Root   float64 // CPU time of processes in the root group
	Kernel float64 // CPU time of kernel threads in the root group
	// Ksoftirqd is the part of Kernel in ksoftirqd threads. With IRQTime the kernel counts it as Softirq as well
	// (irqtime_account_process_tick in kernel/sched/cputime.c), but Budget counts it only with the threads.
	Ksoftirqd float64
	Self      float64 // CPU time of this process, contained in Groups or Root: see InGroup
	InGroup   bool    // this process is in a group below the root

	// IRQTime reports whether the kernel keeps interrupts out of tasks' CPU time (CONFIG_IRQ_TIME_ACCOUNTING). If so,
	// Softirq and IRQ hold the time of all interrupts. Otherwise an interrupt counts as CPU time of the task that it
	// interrupts, and only interrupts on idle CPUs are separate: IdleInterrupts is their time, estimated from samples; it
	// is nil without samples, and the budget then has no line for interrupts.
	IRQTime        bool
	IdleInterrupts *float64

	BPF []BPFTime
	// NotSplit is run time that samples could not place. It ran inside the other parts, in unknown proportions.
	NotSplit float64
	// NoBPF, NoRoot and NoKernel mark a part as unknown, so that it gets no line. With NoBPF, eBPF time stays on the lines
	// of the parts in which the programs ran. With NoRoot, CPU time of the root group is unexplained. With NoKernel, CPU
	// time of kernel threads is on the line of the root group, or unexplained.
	NoBPF, NoRoot, NoKernel bool
}

// BPFTime is run time of eBPF programs that could be split.
type BPFTime struct {
	Where   Where
	Context Context
	Seconds float64
}

// Where is the part of the budget that a program ran in.
type Where int

// The parts.
const (
	InGroups Where = iota // a group below the root
	InRoot                // the root group, including kernel threads
	InIdle                // an interrupt on an idle CPU
)

// The names of the budget's lines.
const (
	LineGroups     = "control groups"
	LineRoot       = "root group"
	LineKernel     = "kernel threads"
	LineBPF        = "ebpf"
	LineInterrupts = "interrupts"
	LineSelf       = "self"
)

// The methods of a line.
const (
	MethodCounted = "counted"
	MethodSampled = "sampled"
	MethodBoth    = "counted, split by samples"
	MethodNone    = "not split" // no eBPF time could be split, so all of it is on other lines
)

// Budget closes the CPU budget: each second of CPU time is on one line. eBPF time that could be split is moved from
// the line that it ran in to the ebpf line; the rest stays there.
func Budget(u Usage) CPU {
	groups, root, kernel, ksoftirqd := u.Groups, u.Root, u.Kernel-u.Ksoftirqd, u.Ksoftirqd
	interrupts, method := 0.0, MethodCounted
	if u.IRQTime {
		interrupts = max(u.Softirq-u.Ksoftirqd, 0) + u.IRQ
	} else if u.IdleInterrupts != nil {
		interrupts, method = *u.IdleInterrupts, MethodSampled
	}
	if u.InGroup {
		groups -= u.Self
	} else {
		root -= u.Self
	}

	// No line goes below 0: run time is wall time and can exceed the CPU time around it.
	bpf := 0.0
	take := func(want float64, from ...*float64) {
		for _, line := range from {
			part := min(want, max(*line, 0))
			*line -= part
			bpf += part
			want -= part
		}
	}
	for _, b := range u.BPF {
		switch {
		case u.IRQTime && b.Where == InRoot && b.Context != Task: // ksoftirqd's CPU time includes its softirqs
			take(b.Seconds, &interrupts, &ksoftirqd)
		case b.Where == InIdle || u.IRQTime && b.Context != Task:
			take(b.Seconds, &interrupts)
		case b.Where == InGroups:
			take(b.Seconds, &groups)
		default:
			take(b.Seconds, &root, &kernel, &ksoftirqd)
		}
	}

	c := CPU{
		Capacity: u.Capacity, Idle: u.Idle, User: u.User, System: u.System, Softirq: u.Softirq, IRQ: u.IRQ, Steal: u.Steal,
		IdleStolen: u.IdleStolen, IdleStolenError: u.IdleStolenError,
		Lines: []CPULine{
			{LineGroups, groups, MethodCounted},
			{LineRoot, root, MethodCounted},
			{LineKernel, kernel + ksoftirqd, MethodCounted},
			{LineBPF, bpf, MethodBoth},
			{LineInterrupts, interrupts, method},
			{LineSelf, u.Self, MethodCounted},
		},
	}
	unknown := map[string]bool{LineBPF: u.NoBPF, LineRoot: u.NoRoot, LineKernel: u.NoKernel,
		LineInterrupts: !u.IRQTime && u.IdleInterrupts == nil}
	c.Lines = slices.DeleteFunc(c.Lines, func(l CPULine) bool { return unknown[l.Name] })
	if !u.NoBPF {
		c.BPFUnsplit = &u.NotSplit
	}
	if !u.NoRoot && !u.NoKernel {
		c.Root = new(u.Root + u.Kernel)
	}
	for i := range c.Lines {
		if l := &c.Lines[i]; l.Name == LineBPF && len(u.BPF) == 0 && u.NotSplit > 0 {
			l.Method = MethodNone
		}
	}
	for _, l := range c.Lines {
		c.Attributed += l.Seconds
	}
	c.Unexplained = c.Busy() - c.Attributed
	if u.IdleStolen != nil {
		c.ChargedStolen = new(max(0, min(c.Attributed-(u.User+u.System+u.Softirq+u.IRQ), -c.Unexplained,
			u.Steal-*u.IdleStolen)))
	}
	return c
}

// Waited returns how long the CPUs were available and idle: idle time without the stolen part.
func (c CPU) Waited() float64 {
	return c.Idle - known.Or(c.IdleStolen, 0)
}

// Busy returns how long the CPUs of the machine ran something: neither idle nor stolen.
func (c CPU) Busy() float64 { return c.Capacity - c.Waited() - c.Steal }

// Closes reports whether the parts add up to the capacity, within floating-point rounding.
func (c CPU) Closes() bool {
	return math.Abs(c.Waited()+c.Steal+c.Attributed+c.Unexplained-c.Capacity) <= 1e-9*max(c.Capacity, 1)
}

// Derive computes Hard, Soft and WorkingSet from the other fields. cgroup v1 lacks slab_reclaimable, which then counts
// as part of Hard because the kernel does not separate it.
func (m *Memory) Derive() {
	slab := int64(known.Or(m.SlabReclaimable, 0))
	if m.Anon != nil && m.Shmem != nil && m.Kernel != nil {
		m.Hard = new(int64(*m.Anon) + int64(*m.Shmem) + int64(*m.Kernel) - slab)
	}
	if m.File != nil && m.Shmem != nil {
		m.Soft = new(int64(*m.File) - int64(*m.Shmem) + slab)
	}
	if m.Current != nil && m.InactiveFile != nil {
		m.WorkingSet = new(*m.Current - min(*m.Current, *m.InactiveFile))
	}
}

// Ancestors calls f with path and the path of every group above it, up to and including "/".
func Ancestors(path string, f func(string)) {
	for path != "" && path != "/" {
		f(path)
		i := len(path) - 1
		for i > 0 && path[i] != '/' {
			i--
		}
		path = path[:i]
	}
	f("/")
}

// MapBytes returns the memory of all maps of known size, each counted once, and the number of maps of unknown size.
// Both are 0 if maps could not be read (Maps is nil).
func (l *Ledger) MapBytes() (bytes uint64, unknown int) {
	for _, m := range l.Maps {
		if m.Bytes == nil {
			unknown++
			continue
		}
		bytes += *m.Bytes
	}
	return bytes, unknown
}
