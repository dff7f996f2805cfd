package meter

import (
	"cmp"
	"math"
	"slices"

	"tare/internal/scale/host/perf"
)

// text records where and when the machine code of BPF programs was in memory. Addresses are reused after a program is
// freed, so time is divided into epochs, within each of which an address means one program.
type text struct {
	spans  []span
	epochs []int64 // times at which the epochs after the first begin, ascending
	lo, hi uint64  // every span lies in [lo, hi): a quick test for addresses outside BPF code
}

// span is one stretch of code, and the time during which it held the program.
type span struct {
	start, end uint64
	from, to   int64
	program    uint32 // id; 0 until the kernel has reported it
}

const (
	always  = math.MinInt64
	forever = math.MaxInt64
)

func newText() *text { return &text{lo: math.MaxUint64} }

// add records the code of a program that exists now. Code that is already known at that place and still exists only
// gets its program id.
func (x *text) add(start, length uint64, program uint32) {
	if length == 0 {
		return
	}
	for i := range x.spans {
		if s := &x.spans[i]; s.start == start && s.to == forever && (s.program == 0 || s.program == program) {
			s.program = program
			return
		}
	}
	x.keep(span{start: start, end: start + length, from: always, to: forever, program: program})
}

func (x *text) keep(s span) {
	x.spans = append(x.spans, s)
	x.lo, x.hi = min(x.lo, s.start), max(x.hi, s.end)
}

// symbol records that program code has appeared or disappeared. Events of different CPUs may arrive in any order.
func (x *text) symbol(s perf.Symbol) {
	if s.Removed {
		for i := range x.spans {
			if p := &x.spans[i]; p.start == s.Start && p.from < s.Time && p.to > s.Time {
				p.to = s.Time
			}
		}
	} else if isProgram(s.Name) && s.Len > 0 {
		x.keep(span{start: s.Start, end: s.Start + uint64(s.Len), from: s.Time, to: forever})
	}
	i, _ := slices.BinarySearch(x.epochs, s.Time)
	x.epochs = slices.Insert(x.epochs, i, s.Time)
}

// isProgram distinguishes a program from a trampoline or dispatcher (bpf_get_prog_name in kernel/bpf/core.c).
func isProgram(symbol string) bool {
	const prefix = "bpf_prog_"
	return len(symbol) > len(prefix) && symbol[:len(prefix)] == prefix
}

// name records which program the code of a load event belongs to. If a call of add has already recorded that code with
// its program, the duplicate span is removed.
func (x *text) name(id uint32, symbols []perf.Symbol) {
	for _, s := range symbols {
		at := slices.IndexFunc(x.spans, func(p span) bool { return p.start == s.Start && p.from == s.Time && p.program == 0 })
		if at < 0 {
			continue
		}
		known := func(p span) bool { return p.start == s.Start && p.to == forever && p.program == id }
		if slices.ContainsFunc(x.spans, known) {
			x.spans = slices.Delete(x.spans, at, at+1)
		} else {
			x.spans[at].program = id
		}
	}
}

// epoch returns the number of the epoch that contains a time.
func (x *text) epoch(t int64) int32 {
	if len(x.epochs) == 0 || t < x.epochs[0] {
		return 0
	}
	i, found := slices.BinarySearch(x.epochs, t)
	for found && i < len(x.epochs) && x.epochs[i] == t {
		i++
	}
	return int32(i)
}

// mayHold reports whether addr may be in a BPF program. It is a quick test.
func (x *text) mayHold(addr uint64) bool { return addr >= x.lo && addr < x.hi }

// view returns the code as it was in one epoch, sorted by address.
func (x *text) view(epoch int32) []span {
	at := int64(always)
	if epoch > 0 {
		at = x.epochs[epoch-1]
	}
	var v []span
	for _, s := range x.spans {
		if s.from <= at && at < s.to {
			v = append(v, s)
		}
	}
	slices.SortFunc(v, func(a, b span) int { return cmp.Compare(a.start, b.start) })
	return v
}

// unsure returns the programs whose code overlaps another's at the same time. A record of a load or unload was lost,
// and samples there may belong to either program.
func (x *text) unsure() map[uint32]bool {
	sorted := slices.SortedFunc(slices.Values(x.spans), func(a, b span) int { return cmp.Compare(a.start, b.start) })
	found := map[uint32]bool{}
	for i, a := range sorted {
		for _, b := range sorted[i+1:] {
			if b.start >= a.end {
				break
			}
			if a.program != b.program && max(a.from, b.from) < min(a.to, b.to) {
				found[a.program], found[b.program] = true, true
			}
		}
	}
	delete(found, 0)
	return found
}

// find returns the program whose code contains addr.
func find(view []span, addr uint64) (program uint32, ok bool) {
	i, _ := slices.BinarySearchFunc(view, addr, func(s span, a uint64) int {
		if s.end <= a {
			return -1
		}
		if s.start > a {
			return 1
		}
		return 0
	})
	if i < len(view) && view[i].start <= addr && addr < view[i].end && view[i].program != 0 {
		return view[i].program, true
	}
	return 0, false
}
