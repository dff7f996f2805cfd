package dataplane

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
	"tare/internal/mesh/original"
	"tare/internal/mesh/proxy/config"
)

// listener is a socket, and what happens to its connections.
type listener struct {
	proxy   *Proxy
	at      netip.AddrPort
	socket  *net.TCPListener
	current atomic.Pointer[form]
	stopped atomic.Bool
}

// form is a listener's configuration at work. It is replaced as a whole; chains that serve requests outlive it where
// the next form has them too.
type form struct {
	config *config.Listener
	asks   bool // the first byte must be seen to choose a chain
	http   map[*config.Chain]*server
	tls    map[*config.Chain]*tls.Config
	only   *config.Chain // the chain of all connections, where there is but one
}

func (p *Proxy) newListener(want *config.Listener) (*listener, error) {
	// Addresses that the machine does not have (yet) are no reason to fail where the kernel allows it.
	socket, err := listen(want)
	if err != nil {
		return nil, fault.Wrap(
			err,
			fault.Usage,
			want.Name,
			"end what has the address, or name another",
			"listening at %s",
			want.Address,
		)
	}
	l := &listener{proxy: p, at: want.Address, socket: socket}
	l.set(want)
	p.ended.Go(l.accept)
	return l, nil
}

func listen(want *config.Listener) (*net.TCPListener, error) {
	c := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		if !want.Transparent {
			return nil
		}
		return setTransparent(raw, want)
	}}
	l, err := c.Listen(context.Background(), "tcp", want.Address.String())
	if err != nil {
		return nil, err
	}
	return l.(*net.TCPListener), nil
}

// setTransparent has a socket be as transparent as its listener is to be. To make it so takes CAP_NET_ADMIN.
func setTransparent(raw syscall.RawConn, want *config.Listener) (err error) {
	level, option, value := unix.SOL_IP, unix.IP_TRANSPARENT, 0
	if want.Address.Addr().Is6() {
		level, option = unix.SOL_IPV6, unix.IPV6_TRANSPARENT
	}
	if want.Transparent {
		value = 1
	}
	failed := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, value) })
	if failed != nil {
		return failed
	}
	return os.NewSyscallError("setsockopt", err)
}

// change is set, for another configuration of the same address.
func (l *listener) change(want *config.Listener) error {
	if want.Transparent != l.current.Load().config.Transparent {
		raw, err := l.socket.SyscallConn()
		if err == nil {
			err = setTransparent(raw, want)
		}
		if err != nil {
			return fault.Wrap(err, fault.Machine, want.Name, "run as root", "listening transparently at %s", want.Address)
		}
	}
	l.set(want)
	return nil
}

func (l *listener) socketAddress() netip.AddrPort {
	return l.socket.Addr().(*net.TCPAddr).AddrPort()
}

// set makes want what happens to the next connections, and as far as rules and routes go to the next requests.
func (l *listener) set(want *config.Listener) {
	old := l.current.Load()
	f := &form{
		config: want,
		asks:   want.Asks(),
		http:   map[*config.Chain]*server{},
		tls:    map[*config.Chain]*tls.Config{},
	}
	chains := want.Chains
	if want.Default != nil {
		chains = append(chains[:len(chains):len(chains)], want.Default)
	}
	if len(chains) == 1 && chains[0].For.Port == 0 &&
		len(chains[0].For.To)+len(chains[0].For.From) == 0 && !f.asks {
		f.only = chains[0]
	}
	kept := map[*server]bool{}
	for i, c := range chains {
		if c.TLS != nil {
			f.tls[c] = l.proxy.serverTLS(c.TLS)
		}
		if c.HTTP == nil {
			continue
		}
		s := old.like(i, c)
		if s == nil || kept[s] {
			s = l.proxy.newServer(c)
		}
		s.current.Store(c)
		kept[s] = true
		f.http[c] = s
	}
	l.current.Store(f)
	if old != nil {
		for _, s := range old.http {
			if !kept[s] {
				l.proxy.ended.Go(func() { s.drain(context.Background()) })
			}
		}
	}
}

// like is the server of the chain in the same place, if it can serve c as well.
func (f *form) like(place int, c *config.Chain) *server {
	if f == nil {
		return nil
	}
	chains := f.config.Chains
	if f.config.Default != nil {
		chains = append(chains[:len(chains):len(chains)], f.config.Default)
	}
	if place >= len(chains) || f.http[chains[place]] == nil || !sameServer(chains[place], c) {
		return nil
	}
	return f.http[chains[place]]
}

// stop ends listening, and the connections that it brought as they come to rest.
func (l *listener) stop() {
	l.socket.Close()
	l.proxy.ended.Go(func() { l.drain(context.Background()) })
}

// drain lets requests under way end until ctx does.
func (l *listener) drain(ctx context.Context) {
	l.stopped.Store(true)
	var all sync.WaitGroup
	for _, s := range l.current.Load().http {
		all.Go(func() { s.drain(ctx) })
	}
	all.Wait()
}

// accept takes connections until the socket is closed.
func (l *listener) accept() {
	for {
		c, err := l.socket.AcceptTCP()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			l.proxy.stats.AcceptErrors.Add(1)
			time.Sleep(10 * time.Millisecond) // too many open files, most likely: some will be closed
			continue
		}
		l.proxy.stats.Connections.Add(1)
		f := l.current.Load()
		if only := f.only; only != nil && only.HTTP != nil && len(only.Access) == 0 {
			f.http[only].give(secured(c, f.tls[only]))
			continue
		}
		go l.serve(c, f)
	}
}

func secured(c net.Conn, t *tls.Config) net.Conn {
	if t == nil {
		return c
	}
	return tls.Server(c, t)
}

// serve finds out which chain a connection is for, and has it do its work. Nothing is sent to a client, nor to where it
// wants to go, before all rules let it pass.
func (l *listener) serve(c *net.TCPConn, f *form) {
	to := addrOf(c.LocalAddr())
	if f.config.Original {
		to = original.Destination(c)
	}
	chain, err := l.choose(c, f, to)
	if err != nil || chain == nil || chain.TCP == nil && chain.HTTP == nil {
		l.proxy.stats.Denied.Add(1)
		c.Close()
		return
	}
	over := secured(c, f.tls[chain])
	if chain.HTTP != nil && len(chain.Access) == 0 {
		f.http[chain].give(over)
		return
	}
	handover := false
	done := l.proxy.connections.add(c)
	defer func() {
		done()
		if !handover {
			c.Close()
		}
	}()
	call := &config.Call{Remote: addrOf(c.RemoteAddr()), Local: to}
	if t, ok := over.(*tls.Conn); ok {
		if err := handshake(t); err != nil {
			l.proxy.stats.HandshakeErrors.Add(1)
			return
		}
		known(call, t.ConnectionState())
	}
	if !config.Pass(chain.Access, call) {
		l.proxy.stats.Denied.Add(1)
		return
	}
	if chain.HTTP != nil {
		handover = true
		f.http[chain].give(over)
		return
	}
	l.proxy.forward(over, c, chain.TCP)
}

func handshake(t *tls.Conn) error {
	ctx, cancel := context.WithTimeout(context.Background(), handshakeTimeout)
	defer cancel()
	if err := t.HandshakeContext(ctx); err != nil {
		return fmt.Errorf("the TLS handshake with %s: %w", t.RemoteAddr(), err)
	}
	return nil
}

// known says who is at the other end, as far as its certificate was verified. One that was shown has been: see
// serverTLS. Where there are no roots none is asked for.
func known(c *config.Call, s tls.ConnectionState) {
	c.ServerName = s.ServerName
	if len(s.PeerCertificates) > 0 {
		c.Authenticated, c.Names = true, namesOf(s.PeerCertificates[0])
	}
}

// choose chooses the chain of a connection that was made to an address.
func (l *listener) choose(c *net.TCPConn, f *form, to netip.AddrPort) (*config.Chain, error) {
	if f.only != nil {
		return f.only, nil
	}
	secure := false
	if f.asks {
		wait := f.config.Hello
		if wait == 0 {
			wait = handshakeTimeout
		}
		var err error
		if secure, err = beginsWithTLS(c, wait); err != nil &&
			(!f.config.Continue || !errors.Is(err, context.DeadlineExceeded)) {
			return nil, err
		}
	}
	return f.config.Select(to, addrOf(c.RemoteAddr()).Addr(), secure), nil
}

// recordHandshake is the first byte of a TLS connection (RFC 8446, section 5.1).
const recordHandshake = 22

// beginsWithTLS looks at a connection's first byte, and leaves it there. Its error is context.DeadlineExceeded where
// there is none in time.
func beginsWithTLS(c *net.TCPConn, wait time.Duration) (bool, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return false, err
	}
	if err := c.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return false, err
	}
	var first [1]byte
	var n int
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		n, _, failed = unix.Recvfrom(int(fd), first[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return failed != unix.EAGAIN
	})
	if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
		err = context.DeadlineExceeded
	}
	if undo := c.SetReadDeadline(time.Time{}); err == nil {
		err = undo
	}
	if err == nil {
		err = failed
	}
	if err == nil && n == 0 {
		err = net.ErrClosed
	}
	return err == nil && first[0] == recordHandshake, err
}

func addrOf(a net.Addr) netip.AddrPort {
	if t, ok := a.(*net.TCPAddr); ok {
		ap := t.AddrPort()
		return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	}
	return netip.AddrPort{}
}
