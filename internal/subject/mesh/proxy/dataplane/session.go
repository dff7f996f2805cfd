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

// trust names the roots of a secret by what is in them; all zero where there are none yet.
func (p *Proxy) trust(roots string) (d [sha256.Size]byte) {
	if s := (*p.secrets.Load())[roots]; s != nil {
		d = s.Trust
	}
	return d
}

// tickets marks the sessions that a server gives with the roots of their time.
type tickets struct {
	trust func() [sha256.Size]byte
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
	trust func() [sha256.Size]byte
	most  int

	mu    sync.Mutex
	of    [sha256.Size]byte
	cache tls.ClientSessionCache // nil: none
}

// dial is a client's configuration for one connection. The session that it brings is of the roots that there are now,
// by which its server is verified: tickets come later, when there may be others.
func (c *sessions) dial(t *tls.Config) *tls.Config {
	t = t.Clone()
	t.ClientSessionCache = dialled{c, c.trust()}
	return t
}

// dialled are the sessions as one connection knows them.
type dialled struct {
	*sessions
	of [sha256.Size]byte
}

// current are the sessions of the roots by which a connection began, if these are still those of the moment.
func (c dialled) current() tls.ClientSessionCache {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.trust() != c.of {
		return nil
	}
	if c.cache == nil || c.sessions.of != c.of {
		c.cache, c.sessions.of = tls.NewLRUClientSessionCache(c.most), c.of
	}
	return c.cache
}

// Get implements tls.ClientSessionCache.
func (c dialled) Get(key string) (*tls.ClientSessionState, bool) {
	if cache := c.current(); cache != nil {
		return cache.Get(key)
	}
	return nil, false
}

// Put implements tls.ClientSessionCache.
func (c dialled) Put(key string, s *tls.ClientSessionState) {
	if cache := c.current(); cache != nil {
		cache.Put(key, s)
	}
}

// Get implements tls.ClientSessionCache, for a configuration that dial has made none of: there is no session.
func (c *sessions) Get(string) (*tls.ClientSessionState, bool) { return nil, false }

// Put implements tls.ClientSessionCache, likewise.
func (c *sessions) Put(string, *tls.ClientSessionState) {}

// forget drops them all: one was resumed, and its server's certificate is trusted no more.
func (c *sessions) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cache = nil
}
