package xds

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"tare/internal/mesh/xds/translate"
)

// Resolver finds the addresses of host names.
type Resolver interface {
	// Lookup finds all addresses of a host, and for how long they hold; 0 where that is not known.
	Lookup(ctx context.Context, host string) (addresses []netip.Addr, ttl time.Duration, err error)
}

// SystemResolver asks as the machine is set up to. It does not learn for how long an answer holds.
type SystemResolver struct{}

// Lookup finds the addresses of a host.
func (SystemResolver) Lookup(ctx context.Context, host string) ([]netip.Addr, time.Duration, error) {
	addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, 0, fmt.Errorf("looking up %s: %w", host, err)
	}
	return addresses, 0, nil
}

// MaxLookups is how many look-ups of host names a data plane makes at a time, and MaxAddresses how many addresses of
// one name it takes.
const (
	MaxLookups   = 8
	MaxAddresses = 256
)

// What else bounds look-ups: for how long one, and how often one name whatever the answer says.
const (
	lookupTimeout = 5 * time.Second
	minTTL        = time.Second
)

// resolving keeps the addresses of host names up to date. It is for the client's goroutine; look-ups are goroutines of
// their own.
type resolving struct {
	resolver Resolver
	answers  chan answer
	hosts    map[string]*lookup
	running  int
}

type lookup struct {
	due     time.Time
	running bool
	refresh time.Duration
	ttl     bool // the answer's own time counts
}

type answer struct {
	host      string
	addresses []netip.Addr
	ttl       time.Duration
	err       error
}

func newResolving(r Resolver) resolving {
	return resolving{resolver: r, answers: make(chan answer, MaxLookups), hosts: map[string]*lookup{}}
}

func (n *resolving) waits() bool { return len(n.hosts) > 0 }

// follow takes up names that came, and drops those that went.
func (n *resolving) follow(changed []string, s *state) {
	for _, host := range changed {
		if s.hosts[host] == nil {
			delete(n.hosts, host)
			continue
		}
		if n.hosts[host] == nil {
			n.hosts[host] = &lookup{}
		}
	}
}

// look begins the look-ups that are due.
func (n *resolving) look(ctx context.Context, now time.Time) {
	if n.running >= MaxLookups {
		return
	}
	for host, l := range n.hosts {
		if l.running || now.Before(l.due) {
			continue
		}
		l.running = true
		n.running++
		go func() {
			ctx, stop := context.WithTimeout(ctx, lookupTimeout)
			defer stop()
			a := answer{host: host}
			a.addresses, a.ttl, a.err = n.resolver.Lookup(ctx, host)
			n.answers <- a // there is room: no more run than it holds
		}()
		if n.running >= MaxLookups {
			return
		}
	}
}

// done takes note of an answer, and says whether it changes anything. A name that is not found keeps the addresses that
// it had.
func (n *resolving) done(a answer, s *state) bool {
	n.running--
	l := n.hosts[a.host]
	if l == nil {
		return false
	}
	l.running = false
	l.refresh, l.ttl = 0, false
	for name := range s.hosts[a.host] {
		if c := s.clusters[name]; c != nil && c.Discovery == translate.DNS {
			if l.refresh == 0 || c.Refresh < l.refresh {
				l.refresh = c.Refresh
			}
			l.ttl = l.ttl || c.RespectTTL
		}
	}
	wait := l.refresh
	if l.ttl && a.ttl > 0 {
		wait = max(a.ttl, minTTL)
	}
	l.due = time.Now().Add(wait)
	if a.err != nil {
		if _, known := s.addresses[a.host]; known {
			return false
		}
		a.addresses = nil
	}
	return s.resolve(a.host, a.addresses[:min(len(a.addresses), MaxAddresses)])
}
