package plan

// Numbers hands out the numbers from one to below another, and takes them back.
type Numbers struct {
	next, end uint32   // from next on none was ever handed out
	free      []uint32 // in the order in which they came back, from head on
	head      int
}

// NewNumbers has all numbers from first to below end.
func NewNumbers(first, end uint32) Numbers { return Numbers{next: first, end: end} }

// Except has the numbers whose index is false in used.
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

// Oldest hands out a number that was never handed out, else the one that came back first: for numbers by which programs
// may still look for the last owner.
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

// Latest hands out the number that came back last, whose memory is warm, else one that was never handed out.
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

// Give takes a number back.
func (n *Numbers) Give(number uint32) { n.free = append(n.free, number) }

// Left is how many can be handed out.
func (n *Numbers) Left() int { return int(n.end-n.next) + len(n.free) - n.head }
