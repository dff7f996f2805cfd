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

// of is the value of a key: the one in use if it is good for the purpose, else a fresh one. Neither is found out while
// others have to wait.
func (s *shared[K, V]) of(key K, good func(*V) bool, fresh func() *V) *V {
	var made *V
	for {
		there := s.there(key)
		if there != nil && good(there) {
			return there
		}
		if made == nil {
			made = fresh()
		}
		if s.replace(key, there, made) {
			return made
		}
	}
}

func (s *shared[K, V]) there(key K) *V {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.made[key].Value()
}

// replace puts a value in the place of the one that was there, unless that is another by now.
func (s *shared[K, V]) replace(key K, there, v *V) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.made[key].Value() != there {
		return false
	}
	if s.made == nil {
		s.made = map[K]weak.Pointer[V]{}
	}
	s.made[key] = weak.Make(v)
	runtime.AddCleanup(v, s.forget, key)
	return true
}

// forget drops what nobody has any more, unless it was made again.
func (s *shared[K, V]) forget(key K) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.made[key].Value() == nil {
		delete(s.made, key)
	}
}
