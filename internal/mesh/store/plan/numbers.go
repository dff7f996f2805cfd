package plan

// Numbers allocates the numbers in a range, and takes them back.
type Numbers struct {
	next, end uint32   // numbers from next on have never been allocated
	free      []uint32 // in the order in which they were returned, from head on
	head      int
}

// NewNumbers returns an allocator of the numbers from first to end-1.
func NewNumbers(first, end uint32) Numbers { return Numbers{next: first, end: end} }

// Except returns an allocator of the indexes of a list, except those of elements that are true.
func Except(used []bool) Numbers {
	n := Numbers{end: uint32(len(used))}
	for i, is := range used {
		if is {
			for ; n.next < uint32(i); n.next++ {
				n.free = append(n.free, n.next)
			}
			n.next++
		}
	}
	return n
}

// Oldest allocates a number that was never allocated, or, if there is none, the number that was returned first. Use it
// if programs may still look up the previous owner of a number.
func (n *Numbers) Oldest() (number uint32, ok bool) {
	if n.next < n.end || n.head == len(n.free) {
		return n.fresh()
	}
	number = n.free[n.head]
	if n.head++; n.head >= 1024 && n.head > len(n.free)/2 {
		n.free = n.free[:copy(n.free, n.free[n.head:])]
		n.head = 0
	}
	return number, true
}

// Latest allocates the number that was returned last, or, if there is none, a number that was never allocated. The
// memory of a number that was in use until recently is still in the CPU's cache.
func (n *Numbers) Latest() (number uint32, ok bool) {
	last := len(n.free) - 1
	if last < n.head {
		return n.fresh()
	}
	number, n.free = n.free[last], n.free[:last]
	return number, true
}

func (n *Numbers) fresh() (uint32, bool) {
	if n.next == n.end {
		return 0, false
	}
	n.next++
	return n.next - 1, true
}

// Give takes a number back, so that it can be allocated again.
func (n *Numbers) Give(number uint32) { n.free = append(n.free, number) }

// Left returns how many numbers can be allocated.
func (n *Numbers) Left() int { return int(n.end-n.next) + len(n.free) - n.head }
