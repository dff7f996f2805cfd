package ads

import (
	"runtime"
	"sync"
	"weak"
)

// shared has the values that are in use, by a key made of their content, so that whoever makes the same once more gets
// the one that is there. The zero value is ready; it may be used by several goroutines.
type shared[K comparable, V any] struct {
	mu   sync.Mutex
	made map[K]weak.Pointer[V]
}

// of is the value of a key: the one in use if it is good for the purpose, else a fresh one.
func (s *shared[K, V]) of(key K, good func(*V) bool, fresh func() *V) *V {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := s.made[key].Value(); v != nil && good(v) {
		return v
	}
	v := fresh()
	if s.made == nil {
		s.made = map[K]weak.Pointer[V]{}
	}
	s.made[key] = weak.Make(v)
	runtime.AddCleanup(v, s.forget, key)
	return v
}

// forget drops what nobody has any more, unless it was made again.
func (s *shared[K, V]) forget(key K) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.made[key].Value() == nil {
		delete(s.made, key)
	}
}
