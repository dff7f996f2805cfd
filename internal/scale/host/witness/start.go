package witness

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/lib/pace"
	"tare/internal/scale/ledger"
)

// drainEvery is how often the ring of a running witness is drained.
const drainEvery = 200 * time.Millisecond

// Running is an independent witness between Start and Stop.
type Running struct {
	w    *Witness
	from int64
	stop chan struct{}
	done chan error
}

// Start starts a witness. The caller must call Stop. The error is a *feature.MissingError if this machine does not
// support one.
func Start(o Options) (*Running, error) {
	w, err := Open(o)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(w.Reset(), w.Enable()); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	if err := w.Begin(); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	r := &Running{w: w, from: monotonic(), stop: make(chan struct{}), done: make(chan error, 1)}
	go r.drain()
	return r, nil
}

func (r *Running) drain() {
	tick := time.NewTicker(drainEvery)
	defer tick.Stop()
	for {
		select {
		case <-r.stop:
			r.done <- nil
			return
		case <-tick.C:
			if err := r.w.Drain(nil); err != nil {
				r.done <- err
				return
			}
		}
	}
}

// Stop ends the witness and returns what disturbed the machine since Start.
func (r *Running) Stop() (*ledger.Noise, error) {
	to := monotonic()
	close(r.stop)
	err := <-r.done
	err = errors.Join(err, r.w.Settle(to), r.w.Disable())
	var a *Account
	if err == nil {
		a, err = r.w.End(r.from, to)
	}
	if err := errors.Join(err, r.w.Close()); err != nil {
		return nil, err
	}
	return &a.Noise, nil
}

func monotonic() int64 { return pace.Clock(unix.CLOCK_MONOTONIC) }
