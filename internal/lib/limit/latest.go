package limit

import (
	"net"
	"slices"
	"sync"
)

// Latest limits how many connections of a kind are open: at the limit, a new connection closes the oldest. It is for
// unknown peers. If it rejected new connections instead, the first peers could keep out all others.
type Latest struct {
	most int

	mu   sync.Mutex
	open []*latest // the oldest first
}

// NewLatest limits connections to most, at least 1.
func NewLatest(most int) *Latest { return &Latest{most: max(1, most)} }

// Add counts a connection until the returned connection is closed. raw is the connection below c, for example below its
// encryption. To make room for a later connection, Add closes raw and not c, because closing c might first send
// something and wait for the peer.
func (l *Latest) Add(c, raw net.Conn) net.Conn {
	own := &latest{Conn: c, raw: raw, of: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) == l.most {
		_ = l.open[0].raw.Close() // the reader of the connection then closes it
		l.open = slices.Delete(l.open, 0, 1)
	}
	l.open = append(l.open, own)
	return own
}

type latest struct {
	net.Conn
	raw net.Conn
	of  *Latest
}

// Close implements net.Conn.
func (c *latest) Close() error {
	c.of.mu.Lock()
	c.of.open = slices.DeleteFunc(c.of.open, func(o *latest) bool { return o == c })
	c.of.mu.Unlock()
	return c.Conn.Close()
}
