package dataplane

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/mesh"
	"tare/internal/mesh/proxy/config"
)

// forward connects a client with an endpoint, and copies both ways until both have ended or either has failed. Between
// two sockets without TLS the kernel copies (splice), since io.Copy asks it to.
func (p *Proxy) forward(client net.Conn, socket *net.TCPConn, t *config.TCP) {
	c := (*p.clusters.Load())[weighted(t.Clusters)]
	if c == nil {
		p.stats.NoUpstream.Add(1)
		return
	}
	if !c.upstream.reserve() {
		p.stats.NoUpstream.Add(1)
		return
	}
	defer c.upstream.release()
	server, raw, err := c.connect(context.Background(), t.Attempts)
	if err != nil {
		p.stats.ConnectErrors.Add(1)
		return
	}
	defer server.Close()
	tracked := p.connections.idle(socket, raw, t.Idle)
	defer tracked()
	var both sync.WaitGroup
	both.Go(func() { p.pipe(client, server) })
	p.pipe(server, client)
	both.Wait()
}

// pipe copies until the source ends, and hands that end on; a failure ends both.
func (p *Proxy) pipe(to, from net.Conn) {
	err := p.copy(to, from)
	if err == nil {
		if w, ok := to.(interface{ CloseWrite() error }); ok && w.CloseWrite() == nil {
			return
		}
	}
	to.Close()
	from.Close()
}

func (p *Proxy) copy(to, from net.Conn) error {
	_, encrypted := to.(*tls.Conn)
	if _, also := from.(*tls.Conn); !encrypted && !also {
		_, err := io.Copy(to, from)
		return err
	}
	b := p.buffers.Get()
	defer p.buffers.Put(b)
	_, err := io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, b)
	return err
}

// weighted chooses a cluster by weight.
func weighted(list []mesh.WeightedCluster) string {
	if len(list) == 1 {
		return list[0].Name
	}
	total := uint32(0)
	for i := range list {
		total += list[i].Weight
	}
	n := rand.Uint32N(total)
	for i := range list {
		if n < list[i].Weight {
			return list[i].Name
		}
		n -= list[i].Weight
	}
	return list[0].Name
}

// tracked are connections that are forwarded, so that they can be ended.
type tracked struct {
	mu   sync.Mutex
	all  map[*net.TCPConn]idling
	none chan struct{} // closed when there are none any more, once somebody waits
}

// idling is a connection with its other side.
type idling struct {
	other *net.TCPConn
	idle  time.Duration
}

// add keeps a connection until what it returns is called.
func (t *tracked) add(c *net.TCPConn) (done func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all == nil {
		t.all = map[*net.TCPConn]idling{}
	}
	t.all[c] = idling{}
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.all, c)
		if len(t.all) == 0 && t.none != nil {
			close(t.none)
			t.none = nil
		}
	}
}

// idle has a connection that was added end with its other side once nothing has moved on both for so long; 0: never.
func (t *tracked) idle(c, other *net.TCPConn, after time.Duration) (done func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all[c] = idling{other, after}
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.all[c] = idling{}
	}
}

// wait returns when there are none, or ctx ends.
func (t *tracked) wait(ctx context.Context) {
	t.mu.Lock()
	if len(t.all) == 0 {
		t.mu.Unlock()
		return
	}
	if t.none == nil {
		t.none = make(chan struct{})
	}
	none := t.none
	t.mu.Unlock()
	select {
	case <-none:
	case <-ctx.Done():
	}
}

// endTimeout is how long connections have to end once they were closed.
const endTimeout = time.Second

// end closes all, and waits for them.
func (t *tracked) end() {
	t.mu.Lock()
	for c, i := range t.all {
		c.Close()
		if i.other != nil {
			i.other.Close()
		}
	}
	t.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	t.wait(ctx)
}

func (t *tracked) left() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.all)
}

// trim ends those on which nothing has moved for too long.
func (t *tracked) trim(time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for c, i := range t.all {
		if i.idle > 0 && min(still(c), still(i.other)) > i.idle {
			c.Close()
			i.other.Close()
		}
	}
}

// still is for how long no data came or went on a connection (tcp_info, linux/tcp.h); 0 where that is not known.
func still(c *net.TCPConn) (d time.Duration) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	var info *unix.TCPInfo
	read := func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }
	if e := raw.Control(read); errors.Join(e, err) != nil {
		return 0
	}
	return time.Duration(min(info.Last_data_recv, info.Last_data_sent)) * time.Millisecond
}
