package command

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"tare/internal/experiment/process"
	"tare/internal/lib/pace"
)

// lookFirst is the time until the first look for connections. It doubles after each look: a look costs CPU time in the
// window, and a load can begin late to bypass the address.
const lookFirst = 100 * time.Millisecond

// passage determines whether connections come to an address. It looks at this machine's sockets until it has seen one,
// which is soon if loads use the address at all.
type passage struct {
	port   uint16
	before map[process.Connection]bool // connections from before the loads, such as those of readiness checks

	// past returns the name of a load that bypasses the address; empty: none is seen to. Nil: none can.
	past func() string

	mu     sync.Mutex
	came   bool
	by     string             // the load that bypasses the address
	cancel context.CancelFunc // of the looking; nil before
	done   chan struct{}
}

// newPassage begins with the connections that are there.
func newPassage(address string) (*passage, error) {
	_, text, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("the address of what serves: %w", err)
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("the port of what serves: %w", err)
	}
	p := &passage{port: uint16(port), before: map[process.Connection]bool{}}
	all, err := process.Connections(p.port)
	for _, c := range all {
		p.before[c] = true
	}
	return p, err
}

// at reports whether an address has the port.
func (p *passage) at(address string) bool {
	_, port, err := net.SplitHostPort(address)
	return err == nil && port == strconv.Itoa(int(p.port))
}

// watch looks until one has come, and until the context ends for loads that go past.
func (p *passage) watch(ctx context.Context) {
	ctx, p.cancel = context.WithCancel(ctx)
	p.done = make(chan struct{})
	go func() {
		defer close(p.done)
		for wait := lookFirst; !p.seen() || p.past != nil && p.bypassed() == ""; wait *= 2 {
			if pace.Sleep(ctx, wait) != nil {
				return
			}
			if p.past != nil {
				if by := p.past(); by != "" {
					p.mu.Lock()
					p.by = by
					p.mu.Unlock()
				}
			}
		}
	}()
}

// seen looks unless a connection was seen before, and says whether one was. Connections that were closed in the last
// minute are seen too: the side that closes first keeps the pair (TIME_WAIT).
func (p *passage) seen() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.came {
		return true
	}
	all, err := process.Connections(p.port)
	p.came = err != nil // what cannot be read says nothing against it
	for _, c := range all {
		p.came = p.came || !p.before[c]
	}
	return p.came
}

// bypassed is the load that was seen to go past; empty for none.
func (p *passage) bypassed() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.by
}

// close ends the looking.
func (p *passage) close() {
	if p != nil && p.cancel != nil {
		p.cancel()
		<-p.done
	}
}
