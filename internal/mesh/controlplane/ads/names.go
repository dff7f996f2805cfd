package ads

import (
	"hash/maphash"
	"slices"
	"sync"
)

// names is a sorted set of names of resources. It never changes.
type names struct {
	list []string
	own  int64 // bytes of the names that were not in the table, so their strings are not shared
}

// nameAround is the overhead of a name in bytes.
const nameAround = 16

var noNames = &names{}

func (n *names) has(name string) bool {
	_, found := slices.BinarySearch(n.list, name)
	return found
}

// nameSets holds the sets that are in use, so that data planes with the same subscriptions share one.
type nameSets struct {
	once sync.Once
	seed maphash.Seed
	sets shared[uint64, names]
}

// of returns the set of a list of names. It reuses the table's strings for names that the table has. It may reorder
// the list.
func (s *nameSets) of(list []string, t *Table) *names {
	if len(list) == 0 {
		return noNames
	}
	slices.Sort(list)
	list = slices.Compact(list)
	s.once.Do(func() { s.seed = maphash.MakeSeed() })
	var h maphash.Hash
	h.SetSeed(s.seed)
	for _, name := range list {
		_, _ = h.WriteString(name)
		_ = h.WriteByte(0)
	}
	return s.sets.of(h.Sum64(), func(n *names) bool { return slices.Equal(n.list, list) }, func() *names {
		n := &names{list: make([]string, len(list))}
		for i, name := range list {
			if r := t.Get(name); r != nil {
				name = r.name
			} else {
				n.own += int64(len(name)) + nameAround
			}
			n.list[i] = name
		}
		return n
	})
}
