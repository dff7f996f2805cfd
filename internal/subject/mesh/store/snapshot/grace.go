package snapshot

import (
	"errors"
	"fmt"
	"sync"

	"github.com/cilium/ebpf"
)

// waiter waits for programs. Store uses it from one goroutine.
type waiter interface {
	start()        // must not run already
	running() bool // started, and the answer not taken yet
	over() bool    // the answer is there
	wait() error   // takes the answer
	close() error
}

// grace waits, in the background, until every program that runs now has ended: an RCU grace period, some milliseconds
// long.
//
// It updates a map of maps, after which the kernel waits for readers before it returns (maybe_wait_bpf_programs in
// kernel/bpf/syscall.c, since Linux 4.20; from 6.19 on by an expedited grace period). membarrier(MEMBARRIER_CMD_GLOBAL)
// would do it without a map, but it refuses where a CPU runs without ticks (nohz_full) and returns at once where one
// CPU is online, though a program may be preempted there (sys_membarrier in kernel/sched/membarrier.c).
type grace struct {
	outer, inner *ebpf.Map
	ask          chan struct{}
	answer       chan error
	asked        bool
	ends         sync.WaitGroup
}

func newGrace() (*grace, error) {
	spec := &ebpf.MapSpec{Name: "ss_grace_inner", Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}
	inner, err := ebpf.NewMap(spec)
	if err != nil {
		return nil, fmt.Errorf("creating map ss_grace_inner: %w", err)
	}
	outer, err := ebpf.NewMap(&ebpf.MapSpec{Name: "ss_grace", Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 1, InnerMap: spec})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("creating map ss_grace: %w", err), inner.Close())
	}
	g := &grace{outer: outer, inner: inner, ask: make(chan struct{}, 1), answer: make(chan error, 1)}
	g.ends.Go(func() {
		for range g.ask {
			err := outer.Put(uint32(0), inner)
			if err != nil {
				err = fmt.Errorf("waiting for running programs: %w", err)
			}
			g.answer <- err
		}
	})
	return g, nil
}

func (g *grace) start() {
	g.asked = true
	g.ask <- struct{}{}
}

func (g *grace) running() bool { return g.asked }

func (g *grace) over() bool { return g.asked && len(g.answer) > 0 }

func (g *grace) wait() error {
	err := <-g.answer
	g.asked = false
	return err
}

func (g *grace) close() error {
	if g.asked {
		_ = g.wait()
	}
	close(g.ask)
	g.ends.Wait()
	return errors.Join(g.outer.Close(), g.inner.Close())
}
