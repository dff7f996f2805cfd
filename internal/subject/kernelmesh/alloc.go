package kernelmesh

import "slices"

// extent is a run of neighbouring slots.
type extent struct{ base, size uint32 }

// extents hands out runs of slots: first fit over a list of free runs, kept in order and merged.
type extents struct{ free []extent }

func newExtents(size uint32) *extents { return &extents{free: []extent{{0, size}}} }

// take finds a run; ok is false where no free run is long enough. A run of size 0 is no run.
func (x *extents) take(size uint32) (e extent, ok bool) {
	if size == 0 {
		return extent{}, true
	}
	for i := range x.free {
		f := &x.free[i]
		if f.size < size {
			continue
		}
		e = extent{f.base, size}
		f.base += size
		f.size -= size
		if f.size == 0 {
			x.free = slices.Delete(x.free, i, i+1)
		}
		return e, true
	}
	return extent{}, false
}

// give takes a run back.
func (x *extents) give(e extent) {
	if e.size == 0 {
		return
	}
	i, _ := slices.BinarySearchFunc(x.free, e.base, func(f extent, base uint32) int { return int(f.base) - int(base) })
	x.free = slices.Insert(x.free, i, e)
	if i+1 < len(x.free) && e.base+e.size == x.free[i+1].base {
		x.free[i].size += x.free[i+1].size
		x.free = slices.Delete(x.free, i+1, i+2)
	}
	if i > 0 && x.free[i-1].base+x.free[i-1].size == e.base {
		x.free[i-1].size += x.free[i].size
		x.free = slices.Delete(x.free, i, i+1)
	}
}

// ids hands out numbers below a limit, the last one given back first, so that memory that is warm stays so.
type ids struct {
	returned []uint32
	next     uint32
	limit    uint32
}

func (x *ids) take() (id uint32, ok bool) {
	if n := len(x.returned); n > 0 {
		id, x.returned = x.returned[n-1], x.returned[:n-1]
		return id, true
	}
	if x.next == x.limit {
		return 0, false
	}
	x.next++
	return x.next - 1, true
}

func (x *ids) give(id uint32) { x.returned = append(x.returned, id) }
