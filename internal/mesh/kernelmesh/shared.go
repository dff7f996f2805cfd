package kernelmesh

import (
	"errors"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"tare/internal/lib/bpf"
)

// shared is the memory that the process shares with its programs, by which it reads and writes without system calls.
type shared struct {
	mapped   [][]byte
	state    *snapshotState
	clusters []snapshotCluster // by number
	ids      uint32
}

func (s *shared) open(maps map[string]*ebpf.Map, ids uint32) error {
	state, err := view[snapshotState](s, maps[snapshotMapKmState])
	if err != nil {
		return err
	}
	if s.clusters, err = view[snapshotCluster](s, maps[snapshotMapKmClusters]); err != nil {
		return err
	}
	s.state, s.ids = &state[0], ids
	atomic.StoreUint32(&s.state.Generation, 1)
	return nil
}

// view maps the elements of an array.
func view[T any](s *shared, m *ebpf.Map) ([]T, error) {
	elements, memory, err := bpf.MapArray[T](m)
	if err != nil {
		return nil, err
	}
	s.mapped = append(s.mapped, memory)
	return elements, nil
}

func (s *shared) close() error {
	var errs []error
	for _, b := range s.mapped {
		errs = append(errs, unix.Munmap(b))
	}
	*s = shared{}
	return errors.Join(errs...)
}

// changed tells programs that the configuration is another: what they remember of answers does not hold.
func (s *shared) changed() {
	if atomic.AddUint32(&s.state.Generation, 1) == 0 {
		atomic.StoreUint32(&s.state.Generation, 1)
	}
}

// refuse has programs refuse all connections, or not.
func (s *shared) refuse(all bool) {
	var word uint32
	if all {
		word = 1
	}
	atomic.StoreUint32(&s.state.Closed, word)
}

// retire begins a new epoch of a number whose cluster has gone: of open connections to it nothing is counted any more.
func (s *shared) retire(id uint32) {
	if id < s.ids {
		open := &s.clusters[id].Open
		atomic.StoreUint64(open, (atomic.LoadUint64(open)>>32+1)<<32)
	}
}
