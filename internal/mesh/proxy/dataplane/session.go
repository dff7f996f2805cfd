package dataplane

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"
)

// A session that is resumed brings no certificate: that of its first handshake is verified again, and the connection
// fails if its root is trusted no more. So sessions are of the roots by which they began, and others begin anew.

// trust names roots by what is in them.
type trust = [sha256.Size]byte

// trusts says what a proxy has for a secret of roots at the moment; all zero while there is nothing.
func (p *Proxy) trusts(roots string) func() trust {
	return func() (d trust) {
		if s := (*p.secrets.Load())[roots]; s != nil {
			d = s.Trust
		}
		return d
	}
}

// tickets marks the sessions that a server gives with the roots of their time.
type tickets struct {
	trust func() trust
	// refused is how many sessions were resumed and then refused. All from before are then of no more use: a session
	// that was verified just before its root was dropped has the mark of the roots after that.
	refused atomic.Uint64
}

const ticketMark = "tare roots "

func (k *tickets) mark() []byte {
	d := k.trust()
	return binary.BigEndian.AppendUint64(append([]byte(ticketMark), d[:]...), k.refused.Load())
}

// on has a server's configuration give and take marked tickets.
func (k *tickets) on(c *tls.Config) {
	c.WrapSession = func(of tls.ConnectionState, s *tls.SessionState) ([]byte, error) {
		s.Extra = append(s.Extra, k.mark())
		return c.EncryptTicket(of, s)
	}
	c.UnwrapSession = func(ticket []byte, of tls.ConnectionState) (*tls.SessionState, error) {
		s, err := c.DecryptTicket(ticket, of)
		if err != nil || s == nil {
			return nil, nil // as crypto/tls does: the session begins anew
		}
		mark := k.mark()
		if !slices.ContainsFunc(s.Extra, func(e []byte) bool { return bytes.Equal(e, mark) }) {
			return nil, nil
		}
		return s, nil
	}
}

// sessions are those that a client may resume: of the roots of the moment.
type sessions struct {
	trust func() trust
	most  int

	mu    sync.Mutex
	of    trust
	cache tls.ClientSessionCache // nil: none
}

// now are the sessions for one connection. The session that it brings is of the roots that there are now, by which its
// server is verified: tickets come later, when there may be others.
func (c *sessions) now() tls.ClientSessionCache { return dialled{c, c.trust()} }

// cacheOf has the sessions of some roots, if these are still those of the moment.
func (c *sessions) cacheOf(roots trust) tls.ClientSessionCache {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.trust() != roots {
		return nil
	}
	if c.cache == nil || c.of != roots {
		c.cache, c.of = tls.NewLRUClientSessionCache(c.most), roots
	}
	return c.cache
}

// forget drops them all: one was resumed, and its server's certificate is trusted no more.
func (c *sessions) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cache = nil
}

// dialled are the sessions as a connection knows them that began by some roots.
type dialled struct {
	all   *sessions
	roots trust
}

// Get implements tls.ClientSessionCache.
func (d dialled) Get(key string) (*tls.ClientSessionState, bool) {
	if cache := d.all.cacheOf(d.roots); cache != nil {
		return cache.Get(key)
	}
	return nil, false
}

// Put implements tls.ClientSessionCache.
func (d dialled) Put(key string, s *tls.ClientSessionState) {
	if cache := d.all.cacheOf(d.roots); cache != nil {
		cache.Put(key, s)
	}
}
