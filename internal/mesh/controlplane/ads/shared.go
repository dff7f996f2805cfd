package ads

import (
	"runtime"
	"sync"
	"weak"
)

// shared holds the values that are in use, by a key derived from their content, so that making the same content again
// returns the existing value. The zero value is ready; it may be used concurrently.
type shared[K comparable, V any] struct {
	mu   sync.Mutex
	made map[K]weak.Pointer[V]
}

// of returns the value of a key: the existing one if good accepts it, else a fresh one. Neither function runs under
// the lock.
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

// replace stores v for a key if the key's value is still the one that there(key) returned (nil: none), and reports
// whether it did.
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

// forget removes a value that is no longer referenced, unless it was made again.
func (s *shared[K, V]) forget(key K) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.made[key].Value() == nil {
		delete(s.made, key)
	}
}
