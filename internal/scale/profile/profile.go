// Package profile shows where CPU time went: the stacks that samples found, by process and control group, as a pprof
// profile (github.com/google/pprof) that `go tool pprof` and Parca read. Samples determine how the CPU time of a group
// is divided, and the kernel's counter of the group determines the total, so a profile adds up to a ledger.
//
// Start reading at Build; meter.Stacks takes the samples.
package profile

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strings"
	"time"

	pprof "github.com/google/pprof/profile"

	"tare/internal/lib/stats/interval"
	"tare/internal/lib/text"
)

// Hz is the number of samples of stacks per second and CPU. It is not a round number, so that samples do not run in
// step with timers of round rates.
const Hz = 99

// Label is the label that holds the path of a sample's control group. LabelContext marks samples whose time is not part
// of their group's CPU time. Its only value is Interrupt, for interrupts that the kernel counts separately.
const (
	Label        = "group"
	LabelContext = "context"
	Interrupt    = "interrupt"
)

// Window holds the samples of a span of time.
type Window struct {
	Start  time.Time
	Length time.Duration
	Period time.Duration // between two samples on a busy CPU
	Stacks []Stack
	Lost   uint64 // samples that did not fit in a ring buffer
	Left   int    // samples in no stack, because there were too many different stacks
	Hidden int    // samples in no stack, because their processes are outside this process's PID namespace
	Unread int    // samples of processes that were not read, because there were too many
	Blind  []int  // CPUs that were not sampled for a part of the window
	Slowed uint64 // times that the kernel throttled the sampler

	LostRecords uint64 // records of processes and eBPF programs that came or went; without them, names may be wrong
	removed
}

// Stack is a call chain, and the number of samples that found it.
type Stack struct {
	Process *Process // nil if it could not be read
	Group   string   // path of the control group that the CPU time is charged to; empty if unknown
	Kernel  []uint64 // addresses, innermost first
	User    []uint64 // addresses of user code, found by frame pointers, innermost first
	Count   int
	At      int64 // time of one sample, ns of CLOCK_MONOTONIC; at the times of the others, addresses meant the same code
}

// Process is a process as it was when a sample found it.
type Process struct {
	PID      int
	Comm     string
	Program  string    // path of the program's file; empty if unknown
	Mappings []Mapping // of executable files, by address
}

// Mapping is a part of a file in the memory of a process.
type Mapping struct {
	Start, End, Offset uint64
	Path               string
	Device             string // major:minor, as /proc/PID/maps has it
	Inode              uint64
}

// find returns the mapping that contains an address, or nil.
func (p *Process) find(address uint64) *Mapping {
	i, _ := slices.BinarySearchFunc(p.Mappings, address, func(m Mapping, a uint64) int {
		if m.End <= a {
			return -1
		}
		return 1
	})
	if i < len(p.Mappings) && p.Mappings[i].Start <= address {
		return &p.Mappings[i]
	}
	return nil
}

// file returns the file of which the mapping is a part.
func (m *Mapping) file() file { return file{m.Path, m.Device, m.Inode} }

// Has reports whether an address is in one of the mappings.
func (p *Process) Has(address uint64) bool { return p.find(address) != nil }

// Group holds what a profile needs to know about a control group.
type Group struct {
	Seconds *float64 // CPU time of the group without groups below it; nil if unknown
	// Alone reports whether Seconds adds up processes that still live and not a counter of the group. It then lacks
	// processes that have ended, and the groups below even if their time is unknown.
	Alone  bool
	Labels map[string]string
}

// Symbols finds names for addresses.
type Symbols interface {
	// Kernel returns the names of addresses of the kernel, in their order; a name is empty if it is not known.
	Kernel(addresses []uint64) ([]string, error)
	// Find looks for a file that a process has mapped, if it was not found yet. It returns the build ID, which is
	// empty if the file has none or was not found.
	Find(p *Process, m *Mapping) (buildID string)
	// User returns the name of the function at an offset in a file; empty if it is not known.
	User(m *Mapping, offset uint64) string
}

// bpfPrefix begins the kernel's symbols of eBPF programs: bpf_prog_<tag>_<name>, where a tag is 16 hexadecimal digits
// (bpf_get_prog_name in kernel/bpf/core.c).
const (
	bpfPrefix = "bpf_prog_"
	bpfTag    = 16 // digits
)

// bpfName returns "bpf:" and the name of the eBPF program that a kernel symbol stands for, or its tag if it has no
// name. is reports whether the symbol is that of a program: bpf_prog_load is not.
func bpfName(symbol string) (name string, is bool) {
	rest, is := strings.CutPrefix(symbol, bpfPrefix)
	tag, name, _ := strings.Cut(rest, "_")
	if !is || len(tag) != bpfTag || strings.Trim(tag, "0123456789abcdef") != "" {
		return "", false
	}
	return "bpf:" + cmp.Or(name, tag), true
}

// Build makes the profile of a window. Its values are samples, and nanoseconds of CPU time.
//
// The CPU time of a group, from groups, is divided among its stacks in proportion to their samples. If the time of a
// group is unknown, its stacks share the time of the nearest group above it whose time is known; if there is none,
// each sample counts one period, as it does where samples show that a group's time leaves out processes that ended.
// Samples of an unknown group have no time. The time of a group without samples is "[not sampled]", with 0 samples. If
// apart is true, the CPU times of groups exclude interrupts (CONFIG_IRQ_TIME_ACCOUNTING), and each sample of an
// interrupt counts one period.
func Build(w *Window, symbols Symbols, groups map[string]Group, apart bool) (*pprof.Profile, error) {
	b := builder{
		symbols: symbols, removed: &w.removed, kernel: map[uint64]string{}, locations: map[place]*pprof.Location{},
		functions: map[function]*pprof.Function{}, mappings: map[file]*pprof.Mapping{},
		p: &pprof.Profile{
			SampleType:        []*pprof.ValueType{{Type: "samples", Unit: "count"}, {Type: "cpu", Unit: "nanoseconds"}},
			DefaultSampleType: "cpu",
			PeriodType:        &pprof.ValueType{Type: "cpu", Unit: "nanoseconds"},
			Period:            int64(w.Period),
			TimeNanos:         w.Start.UnixNano(),
			DurationNanos:     int64(w.Length),
		},
	}
	if err := b.nameKernel(w.Stacks); err != nil {
		return nil, err
	}
	b.mapping(kernelFile) // the first mapping gives a profile its title
	b.findFiles(w.Stacks)
	counts := map[string]int{}
	for _, s := range w.Stacks {
		if !apart || !b.interrupt(s) {
			counts[counter(groups, s.Group)] += s.Count
		}
	}
	totals := map[string]float64{} // in nanoseconds, by counter
	for of, n := range counts {
		switch g := groups[of]; {
		case of == "":
		case g.Seconds == nil || g.leavesOut(n, w.Period):
			totals[of] = float64(n) * float64(w.Period)
		default:
			totals[of] = max(0, *g.Seconds*1e9)
		}
	}
	// The stacks of a group get differences of rounded cumulative times, so whole nanoseconds add up to its time.
	dealt, seen := map[string]int64{}, map[string]int{}
	for _, s := range w.Stacks {
		if apart && b.interrupt(s) {
			b.add(s, int64(s.Count)*int64(w.Period), groups[s.Group].Labels)
			b.p.Sample[len(b.p.Sample)-1].Label[LabelContext] = []string{Interrupt}
			continue
		}
		of := counter(groups, s.Group)
		seen[of] += s.Count
		upTo := int64(math.Round(totals[of] * float64(seen[of]) / float64(counts[of])))
		b.add(s, upTo-dealt[of], groups[s.Group].Labels)
		dealt[of] = upTo
	}
	b.comment(w.Lost > 0, "lost samples: %d", w.Lost)
	b.comment(w.Left > 0, "samples of stacks beyond the most that are kept: %d", w.Left)
	b.comment(w.Hidden > 0, "samples of processes outside Tare's PID namespace: %d", w.Hidden)
	b.comment(w.Unread > 0, "samples of processes without a name, of which there were too many to read: %d", w.Unread)
	b.comment(len(w.Blind) > 0, "CPUs that were not sampled all the time: %v", w.Blind)
	b.comment(w.Slowed > 0, "times that the kernel throttled the sampler: %d", w.Slowed)
	b.comment(w.LostRecords > 0, "lost records of processes and eBPF programs, so names may be wrong: %d", w.LostRecords)
	b.comment(w.forgotten > 0, "eBPF programs that were unloaded, beyond the most that are kept: %d", w.forgotten)
	b.comment(counts[""] > 0, "samples of no known control group, which have no CPU time: %d", counts[""])
	for _, group := range slices.Sorted(maps.Keys(groups)) {
		g := groups[group]
		if g.Seconds != nil && counts[group] == 0 && *g.Seconds > 0 {
			b.add(Stack{Group: group}, int64(math.Round(*g.Seconds*1e9)), g.Labels)
		}
		b.comment(g.leavesOut(counts[group], w.Period),
			"processes that ended are not in the CPU time of %s: each of its samples counts one period", printed(group))
	}
	return b.p, b.p.CheckValid()
}

// leavesOut reports whether n samples of a group are more than its CPU time explains. By chance alone, it returns true
// in one window of 1,000.
func (g Group) leavesOut(n int, period time.Duration) bool {
	lo, _ := interval.Poisson(n, 0.998)
	return g.Alone && g.Seconds != nil && lo > *g.Seconds/period.Seconds()
}

// counter returns the group whose known CPU time includes that of the given group: the group itself, or else the
// nearest above it. If no such time is known, it returns the group itself.
func counter(groups map[string]Group, group string) string {
	for at := group; at != ""; at = path.Dir(at) {
		if g := groups[at]; g.Seconds != nil && (at == group || !g.Alone) {
			return at
		}
		if at == "/" || at == "." {
			break
		}
	}
	return group
}

// comment adds a comment about what the profile lacks, if the condition holds.
func (b *builder) comment(is bool, format string, args ...any) {
	if is {
		b.p.Comments = append(b.p.Comments, fmt.Sprintf(format, args...))
	}
}

// maxName is the maximum length of a name, in bytes: anybody can name a process, a file or a function.
const maxName = 1 << 10

// printed returns a name made safe to print: readers of profiles print names as they are.
func printed(name string) string { return text.ClipLine(name, maxName) }

// builder makes a profile.
type builder struct {
	p         *pprof.Profile
	symbols   Symbols
	removed   *removed
	kernel    map[uint64]string
	locations map[place]*pprof.Location
	functions map[function]*pprof.Function
	mappings  map[file]*pprof.Mapping
}

// place is an instruction, file is a file with code, and function is a function in a file.
type (
	place struct {
		mapping *pprof.Mapping
		address uint64
		name    string
	}
	file struct {
		path, device string
		inode        uint64
	}
	function struct {
		mapping *pprof.Mapping
		name    string
	}
)

// Pseudo files of code that is in no file.
var (
	kernelFile  = file{path: "[kernel]"}
	bpfFile     = file{path: "[bpf]"}
	unknownFile = file{path: "[unknown]"}
)

// nameKernel looks up the names of all kernel addresses in one call.
func (b *builder) nameKernel(stacks []Stack) error {
	var all []uint64
	for _, s := range stacks {
		for i := range s.Kernel {
			a := caller(s.Kernel, i)
			if _, is := b.kernel[a]; !is {
				b.kernel[a] = ""
				all = append(all, a)
			}
		}
	}
	names, err := b.symbols.Kernel(all)
	if err != nil {
		return err
	}
	for i, name := range names {
		b.kernel[all[i]] = name
	}
	return nil
}

// findFiles looks for the files of user code before any function is named: what a process that has ended cannot
// show, another may. It goes from process to process, so that Symbols can read each of them once.
func (b *builder) findFiles(stacks []Stack) {
	user := slices.DeleteFunc(slices.Clone(stacks), func(s Stack) bool { return s.Process == nil })
	slices.SortStableFunc(user, func(x, y Stack) int { return cmp.Compare(x.Process.PID, y.Process.PID) })
	for _, s := range user {
		for i := range s.User {
			if m := s.Process.find(caller(s.User, i)); m != nil {
				if of := b.mapping(m.file()); of.BuildID == "" {
					of.BuildID = printed(b.symbols.Find(s.Process, m))
				}
			}
		}
	}
}

// caller returns the address of frame i: the instruction that runs, or, because a chain holds return addresses, one
// inside the call instruction.
func caller(chain []uint64, i int) uint64 {
	if i > 0 && chain[i] > 0 {
		return chain[i] - 1
	}
	return chain[i]
}

// symbol returns the kernel's symbol of frame i, as it was when the stack was sampled; empty if it is not known.
// nameKernel must have been called.
func (b *builder) symbol(s *Stack, i int) string {
	a := caller(s.Kernel, i)
	if c := b.removed.find(a, s.At); c != nil {
		return c.Name
	}
	return b.kernel[a]
}

// interrupt reports whether a stack is of an interrupt or a softirq. nameKernel must have been called.
func (b *builder) interrupt(s Stack) bool {
	if len(s.Kernel) == 0 {
		return false
	}
	chain := make([]string, len(s.Kernel))
	for i := range s.Kernel {
		chain[i] = b.symbol(&s, i)
	}
	_, is := entry(chain)
	return is
}

func (b *builder) add(s Stack, ns int64, labels map[string]string) {
	sample := &pprof.Sample{Value: []int64{int64(s.Count), ns}, Label: map[string][]string{}}
	for i := range s.Kernel {
		name, in := b.symbol(&s, i), kernelFile
		if bpf, is := bpfName(name); is {
			name, in = bpf, bpfFile
		}
		sample.Location = append(sample.Location, b.location(b.mapping(in), caller(s.Kernel, i),
			cmp.Or(name, "[kernel]")))
	}
	for i := range s.User {
		a := caller(s.User, i)
		var m *Mapping
		if s.Process != nil {
			m = s.Process.find(a)
		}
		if m == nil {
			l := b.location(b.mapping(unknownFile), 0, "[unknown]")
			if n := len(sample.Location); n == 0 || sample.Location[n-1] != l { // consecutive unknown frames share one location
				sample.Location = append(sample.Location, l)
			}
			continue
		}
		offset := a - m.Start + m.Offset
		sample.Location = append(sample.Location, b.location(b.mapping(m.file()), offset, b.symbols.User(m, offset)))
	}
	if len(sample.Location) == 0 {
		name := "[unknown]"
		if s.Count == 0 {
			name = "[not sampled]"
		}
		sample.Location = append(sample.Location, b.location(b.mapping(unknownFile), 0, name))
	}
	if s.Process != nil {
		sample.Label["comm"] = []string{printed(s.Process.Comm)}
		if s.Process.Program != "" {
			sample.Label[LabelProgram] = []string{printed(s.Process.Program)}
		}
		sample.NumLabel = map[string][]int64{"pid": {int64(s.Process.PID)}}
	}
	if s.Group != "" {
		sample.Label[Label] = []string{printed(s.Group)}
	}
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if v := labels[key]; v != "" {
			sample.Label[key] = []string{printed(v)}
		}
	}
	b.p.Sample = append(b.p.Sample, sample)
}

// location returns the location of an address, which is an offset in the file of m, or an address of the kernel. If
// name is empty, tools that read the profile may look it up in a file with the same build ID.
func (b *builder) location(m *pprof.Mapping, address uint64, name string) *pprof.Location {
	at := place{m, address, name}
	if l := b.locations[at]; l != nil {
		return l
	}
	l := &pprof.Location{ID: uint64(len(b.p.Location) + 1), Mapping: m, Address: address}
	if name != "" {
		of := function{m, printed(name)}
		f := b.functions[of]
		if f == nil {
			f = &pprof.Function{ID: uint64(len(b.p.Function) + 1), Name: of.name, SystemName: of.name, Filename: m.File}
			b.functions[of] = f
			b.p.Function = append(b.p.Function, f)
		}
		l.Line = []pprof.Line{{Function: f}}
	} else {
		m.HasFunctions = false
	}
	b.locations[at] = l
	b.p.Location = append(b.p.Location, l)
	return l
}

// mapping returns the mapping of a file. Addresses in it are offsets in the file, so a file that is mapped at several
// places has one mapping.
func (b *builder) mapping(of file) *pprof.Mapping {
	if found := b.mappings[of]; found != nil {
		return found
	}
	made := &pprof.Mapping{
		ID: uint64(len(b.p.Mapping) + 1), File: printed(of.path), Limit: math.MaxInt64, HasFunctions: true,
		HasFilenames: true, HasLineNumbers: true, HasInlineFrames: true,
	}
	b.mappings[of] = made
	b.p.Mapping = append(b.p.Mapping, made)
	return made
}
