package kernelmesh

import (
	"sync/atomic"

	"github.com/cilium/ebpf"

	"tare/internal/lib/bpf"
)

// shared is the memory that the process shares with its programs. The process reads and writes it without system calls.
type shared struct {
	mapped   bpf.Mapped
	state    *snapshotState
	clusters []snapshotCluster // by number
	ids      uint32
}

func (s *shared) open(maps map[string]*ebpf.Map, ids uint32) error {
	state, err := bpf.View[snapshotState](&s.mapped, maps[snapshotMapKmState])
	if err != nil {
		return err
	}
	if s.clusters, err = bpf.View[snapshotCluster](&s.mapped, maps[snapshotMapKmClusters]); err != nil {
		return err
	}
	s.state, s.ids = &state[0], ids
	atomic.StoreUint32(&s.state.Generation, 1)
	return nil
}

func (s *shared) close() error {
	err := s.mapped.Close()
	*s = shared{}
	return err
}

// changed makes programs discard the endpoints that they have remembered for unconnected UDP sockets, after the
// configuration has changed.
func (s *shared) changed() {
	if atomic.AddUint32(&s.state.Generation, 1) == 0 {
		atomic.StoreUint32(&s.state.Generation, 1)
	}
}

// refuse makes programs refuse all connections, or stop doing so.
func (s *shared) refuse(all bool) {
	var word uint32
	if all {
		word = 1
	}
	atomic.StoreUint32(&s.state.Closed, word)
}

// retire begins a new epoch for the number of a removed cluster: open connections to that cluster no longer count.
func (s *shared) retire(id uint32) {
	if id < s.ids {
		open := &s.clusters[id].Open
		atomic.StoreUint64(open, (atomic.LoadUint64(open)>>32+1)<<32)
	}
}
