package snapshot

import "math/bits"

// room allocates runs of adjacent lines in constant time (two-level segregated fit): free runs are in lists by size,
// with eight lists for each power of two, and a freed run is merged with its free neighbours. room knows lines only by
// number and never accesses them.
type room struct {
	runs  []run          // by line
	lists [26 * 8]uint32 // the first run of each list; 0: the list is empty
	used  [4]uint64      // a bit for each list, set if the list is not empty
	free  uint32         // the number of free lines
}

// run is the state of a line. In the first line of a free run, size is the run's size, and next and prev are its
// neighbours in the list; in the last line of a free run, back is the run's size. In a taken run, size and back are 0
// in all lines; if the run is in a chain, its first line has the chain's next run in next, and the run's size in prev.
type run struct{ size, next, prev, back uint32 }

// chain is a list of taken runs, in the order in which they were added. Its links are in room.runs.
type chain struct{ first, last, lines uint32 }

// hang appends a run of n lines to a chain.
func (r *room) hang(c *chain, line, n uint32) {
	r.runs[line].next, r.runs[line].prev = 0, n
	r.join(c, &chain{line, line, n})
}

// join moves all runs of another chain to the end of c.
func (r *room) join(c, other *chain) {
	switch {
	case other.first == 0:
		return
	case c.first == 0:
		c.first = other.first
	default:
		r.runs[c.last].next = other.first
	}
	c.last = other.last
	c.lines += other.lines
	*other = chain{}
}

// unhang removes up to n runs from the beginning of a chain, and frees them.
func (r *room) unhang(c *chain, n int) {
	for ; n > 0 && c.first != 0; n-- {
		line := c.first
		lines := r.runs[line].prev
		if c.first = r.runs[line].next; c.first == 0 {
			c.last = 0
		}
		c.lines -= lines
		r.give(line, lines)
	}
}

// newRoom returns a room for the lines from 1 to lines-1, all of which are taken at first.
func newRoom(lines uint32) *room { return &room{runs: make([]run, lines+1)} }

// list returns the index of the list for runs of n lines.
func list(n uint32) int {
	if n < 16 {
		return int(n)
	}
	e := bits.Len32(n) - 1
	return (e-2)*8 + int(n>>(e-3)&7)
}

// take allocates n adjacent lines; ok is false if no free run is long enough.
func (r *room) take(n uint32) (line uint32, ok bool) {
	// Runs in the list for n itself may be too short. Those in later lists are all long enough.
	from := list(n)
	if n >= 16 && n&(1<<(bits.Len32(n)-4)-1) != 0 {
		from++
	}
	at := r.first(from)
	if at < 0 {
		if line = r.long(list(n), n); line == 0 {
			return 0, false
		}
	} else {
		line = r.lists[at]
	}
	size := r.runs[line].size
	r.unlink(line)
	if size > n {
		r.link(line+n, size-n)
	}
	r.free -= n
	return line, true
}

// first returns the index of the first list that is not empty, beginning at the given index, or -1 if there is none.
func (r *room) first(from int) int {
	for i := from / 64; i < len(r.used); i++ {
		w := r.used[i]
		if i == from/64 {
			w &= ^uint64(0) << (from % 64)
		}
		if w != 0 {
			return i*64 + bits.TrailingZeros64(w)
		}
	}
	return -1
}

// long returns a run of at least n lines from the list, or 0 if there is none.
func (r *room) long(list int, n uint32) uint32 {
	for line := r.lists[list]; line != 0; line = r.runs[line].next {
		if r.runs[line].size >= n {
			return line
		}
	}
	return 0
}

// give frees n lines.
func (r *room) give(line, n uint32) {
	r.free += n
	if after := r.runs[line+n].size; after > 0 {
		r.unlink(line + n)
		n += after
	}
	if before := r.runs[line-1].back; before > 0 {
		line -= before
		n += before
		r.unlink(line)
	}
	r.link(line, n)
}

func (r *room) link(line, n uint32) {
	l := list(n)
	next := r.lists[l]
	first := &r.runs[line]
	first.size, first.next, first.prev = n, next, 0
	r.runs[line+n-1].back = n
	if next != 0 {
		r.runs[next].prev = line
	}
	r.lists[l] = line
	r.used[l/64] |= 1 << (l % 64)
}

func (r *room) unlink(line uint32) {
	first := r.runs[line]
	l := list(first.size)
	if first.prev != 0 {
		r.runs[first.prev].next = first.next
	} else {
		r.lists[l] = first.next
		if first.next == 0 {
			r.used[l/64] &^= 1 << (l % 64)
		}
	}
	if first.next != 0 {
		r.runs[first.next].prev = first.prev
	}
	r.runs[line+first.size-1].back = 0
	r.runs[line].size = 0
}
