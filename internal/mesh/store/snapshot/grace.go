package snapshot

import (
	"sync"

	"tare/internal/lib/bpf"
)

// waiter waits for programs. Store uses it from one goroutine.
type waiter interface {
	start()        // must not run already
	running() bool // started, and the answer not taken yet
	over() bool    // the answer is there
	wait() error   // takes the answer
	close() error
}

// rcu waits, in the background, until every program that runs now has ended: an RCU grace period, some milliseconds
// long.
type rcu struct {
	waiter *bpf.Waiter
	ask    chan struct{}
	answer chan error
	asked  bool
	ends   sync.WaitGroup
}

func newRCU() (*rcu, error) {
	w, err := bpf.NewWaiter("ss_grace")
	if err != nil {
		return nil, err
	}
	g := &rcu{waiter: w, ask: make(chan struct{}, 1), answer: make(chan error, 1)}
	g.ends.Go(func() {
		for range g.ask {
			g.answer <- w.Wait()
		}
	})
	return g, nil
}

func (g *rcu) start() {
	g.asked = true
	g.ask <- struct{}{}
}

func (g *rcu) running() bool { return g.asked }

func (g *rcu) over() bool { return g.asked && len(g.answer) > 0 }

func (g *rcu) wait() error {
	err := <-g.answer
	g.asked = false
	return err
}

func (g *rcu) close() error {
	if g.asked {
		_ = g.wait()
	}
	close(g.ask)
	g.ends.Wait()
	return g.waiter.Close()
}
