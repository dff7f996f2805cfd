package profile

import (
	"math"
	"slices"
)

// maxRemoved is the maximum number of pieces of removed code that a window keeps.
const maxRemoved = 1 << 13

// Code is machine code of the kernel that was removed from memory, such as an eBPF program that was unloaded. For its
// addresses, the kernel no longer has a name, or has that of other code that took its place.
type Code struct {
	Start, End uint64
	Until      int64  // time of the removal, ns of CLOCK_MONOTONIC
	Name       string // the kernel's symbol
}

// removed holds code that was removed while a window was open.
type removed struct {
	codes     []Code // by the time of their removal
	lo, hi    uint64 // all codes are in [lo, hi): a quick test for addresses of other code
	forgotten int    // number of codes that were not kept, because of maxRemoved
}

// Remove records that code was removed.
func (r *removed) Remove(c Code) {
	if len(r.codes) == maxRemoved {
		r.forgotten++
		return
	}
	if len(r.codes) == 0 {
		r.lo = math.MaxUint64
	}
	r.lo, r.hi = min(r.lo, c.Start), max(r.hi, c.End)
	r.codes = slices.Insert(r.codes, r.after(c.Until), c)
}

// after returns the number of codes that were removed at the given time or earlier.
func (r *removed) after(at int64) int {
	i, _ := slices.BinarySearchFunc(r.codes, at, func(c Code, at int64) int {
		if c.Until <= at {
			return -1
		}
		return 1
	})
	return i
}

// find returns the code that was at an address at the given time and has been removed since; nil if there is none.
func (r *removed) find(address uint64, at int64) *Code {
	if address < r.lo || address >= r.hi {
		return nil
	}
	for i := r.after(at); i < len(r.codes); i++ { // the first to be removed: another may have taken its place
		if c := &r.codes[i]; c.Start <= address && address < c.End {
			return c
		}
	}
	return nil
}

// Changed reports whether a kernel call chain meant other code at one time than at another.
func (r *removed) Changed(kernel []uint64, at, then int64) bool {
	if r.after(at) == r.after(then) {
		return false
	}
	for i := range kernel {
		if a := caller(kernel, i); r.find(a, at) != r.find(a, then) {
			return true
		}
	}
	return false
}
