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

// lookFirst is the delay before the first check for connections. The delay doubles after each check: checks cost CPU
// time in the window, but must go on, because a load can start to bypass the address at any time.
const lookFirst = 100 * time.Millisecond

// passage determines whether connections are made to an address. It checks this machine's sockets until it has seen a
// connection, which happens soon if loads use the address at all.
type passage struct {
	port   uint16
	before map[process.Connection]bool // connections from before the loads, such as those of readiness checks

	// past returns the name of a load that was seen to bypass the address, or "". It is nil if there is no load whose
	// connections can be checked.
	past func() string

	mu     sync.Mutex
	came   bool
	by     string             // the load that was seen to bypass the address
	cancel context.CancelFunc // ends the checks; nil before watch
	done   chan struct{}
}

// newPassage records the connections to an address that exist now.
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

// at reports whether an address has the passage's port.
func (p *passage) at(address string) bool {
	_, port, err := net.SplitHostPort(address)
	return err == nil && port == strconv.Itoa(int(p.port))
}

// watch checks in the background until ctx ends, or until it has seen a connection and, if past is set, a load that
// bypasses the address.
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

// seen reports whether a connection was seen, and checks now if none was. It also sees connections that were closed in
// the last minute, because the side that closes first keeps the pair of ports (TIME_WAIT).
func (p *passage) seen() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.came {
		return true
	}
	all, err := process.Connections(p.port)
	p.came = err != nil // if the sockets cannot be read, assume that there was a connection
	for _, c := range all {
		p.came = p.came || !p.before[c]
	}
	return p.came
}

// bypassed returns the load that was seen to bypass the address, or "" if there was none.
func (p *passage) bypassed() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.by
}

// close ends the checks.
func (p *passage) close() {
	if p != nil && p.cancel != nil {
		p.cancel()
		<-p.done
	}
}
