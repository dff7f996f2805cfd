package ads

import (
	"hash/maphash"
	"runtime"
	"slices"
	"sync"
	"weak"
)

// names is a set of names of resources, in order. It never changes.
type names struct{ list []string }

var noNames = &names{}

func (n *names) has(name string) bool {
	_, found := slices.BinarySearch(n.list, name)
	return found
}

// nameSets has sets that are in use, so that data planes which ask for the same share one.
type nameSets struct {
	mu   sync.Mutex
	seed maphash.Seed
	made map[uint64]weak.Pointer[names]
}

// of is the set of a list of names, whose strings are a table's where it has them. The list may be changed.
func (s *nameSets) of(list []string, t *Table) *names {
	if len(list) == 0 {
		return noNames
	}
	slices.Sort(list)
	list = slices.Compact(list)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.made == nil {
		s.seed, s.made = maphash.MakeSeed(), map[uint64]weak.Pointer[names]{}
	}
	var h maphash.Hash
	h.SetSeed(s.seed)
	for _, name := range list {
		_, _ = h.WriteString(name)
		_ = h.WriteByte(0)
	}
	sum := h.Sum64()
	if n := s.made[sum].Value(); n != nil && slices.Equal(n.list, list) {
		return n
	}
	n := &names{make([]string, len(list))}
	for i, name := range list {
		if r := t.Get(name); r != nil {
			name = r.name
		}
		n.list[i] = name
	}
	s.made[sum] = weak.Make(n)
	runtime.AddCleanup(n, s.forget, sum)
	return n
}

// forget drops a set that nobody has any more, unless it was made again.
func (s *nameSets) forget(sum uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.made[sum].Value() == nil {
		delete(s.made, sum)
	}
}
