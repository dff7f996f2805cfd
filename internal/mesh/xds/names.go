package xds

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"tare/internal/mesh/xds/translate"
)

// Resolver looks up all addresses of a host.
type Resolver func(ctx context.Context, host string) ([]netip.Addr, error)

// SystemResolver uses the machine's resolver, which does not return how long its answers are valid.
func SystemResolver(ctx context.Context, host string) ([]netip.Addr, error) {
	addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, fmt.Errorf("looking up %s: %w", host, err)
	}
	return addresses, nil
}

// MaxLookups is the number of host names that a data plane looks up at the same time, and MaxAddresses the number of
// addresses of a name that it uses.
const (
	MaxLookups   = 8
	MaxAddresses = 256
)

// lookupTimeout is the time limit of a look-up.
const lookupTimeout = 5 * time.Second

// resolving keeps the addresses of host names up to date. Only the client's goroutine uses it; each look-up runs in a
// separate goroutine.
type resolving struct {
	resolver Resolver
	answers  chan answer
	hosts    map[string]*lookup
	running  int
}

type lookup struct {
	due     time.Time
	running bool
}

type answer struct {
	host      string
	addresses []netip.Addr
	err       error
}

func newResolving(r Resolver) resolving {
	return resolving{resolver: r, answers: make(chan answer, MaxLookups), hosts: map[string]*lookup{}}
}

func (n *resolving) waits() bool { return len(n.hosts) > 0 }

// follow adds those of the changed host names that are in use now, and removes the others.
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

// look starts the look-ups that are due.
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
			a.addresses, a.err = n.resolver(ctx, host)
			n.answers <- a // does not block: the channel has room for all look-ups
		}()
		if n.running >= MaxLookups {
			return
		}
	}
}

// done processes an answer, and reports whether the answer changes anything. If a look-up fails, the name keeps its
// previous addresses.
func (n *resolving) done(a answer, s *state) bool {
	n.running--
	l := n.hosts[a.host]
	if l == nil {
		return false
	}
	l.running = false
	var refresh time.Duration
	for name := range s.hosts[a.host] {
		if c := s.clusters[name]; c != nil && c.Discovery == translate.DNS {
			if refresh == 0 || c.Refresh < refresh {
				refresh = c.Refresh
			}
		}
	}
	l.due = time.Now().Add(refresh)
	if a.err != nil {
		if _, known := s.addresses[a.host]; known {
			return false
		}
		a.addresses = nil
	}
	return s.resolve(a.host, a.addresses[:min(len(a.addresses), MaxAddresses)])
}
