package snapshot

import "tare/internal/lib/bpf"

// waiter waits until all eBPF programs that were running at the call of start have returned. Store uses it from one
// goroutine.
type waiter interface {
	start()        // begins to wait; must not be called while running
	running() bool // reports whether a wait has begun whose result wait has not returned yet
	over() bool    // reports whether the result is available
	wait() error   // waits for the result, and returns it
	close() error  // waits if running, and releases everything
}

// rcu waits in the background for one RCU grace period, which takes a few to a few tens of milliseconds. It does
// not wait for sleepable programs (see bpf.Waiter).
type rcu struct {
	waiter *bpf.Waiter
	answer chan error // with room for one result
	asked  bool
}

func newRCU() (*rcu, error) {
	w, err := bpf.NewWaiter("ss_grace")
	if err != nil {
		return nil, err
	}
	return &rcu{waiter: w, answer: make(chan error, 1)}, nil
}

func (g *rcu) start() {
	g.asked = true
	go func() { g.answer <- g.waiter.Wait() }()
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
	return g.waiter.Close()
}
