package dataplane

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sort"
	"sync/atomic"

	"tare/internal/mesh"
	"tare/internal/mesh/proxy/config"
)

// cluster is a set of endpoints at work.
type cluster struct {
	proxy    *Proxy
	config   *config.Cluster
	balance  atomic.Pointer[balance]
	upstream *upstream
}

func (p *Proxy) newCluster(c *config.Cluster) *cluster {
	made := &cluster{proxy: p, config: c}
	made.upstream = p.newUpstream(c)
	made.balance.Store(&balance{})
	return made
}

// speaksAs says whether connections to one are as good for the other.
func (c *cluster) speaksAs(other *cluster) bool {
	a, b := c.config, other.config
	return a.HTTP2 == b.HTTP2 && sameClientTLS(a.TLS, b.TLS)
}

func sameClientTLS(a, b *config.ClientTLS) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Key == b.Key && a.ServerName == b.ServerName && a.Sessions == b.Sessions
}

// balance chooses among endpoints by weight.
type balance struct {
	targets []mesh.Target
	sums    []uint64      // of the weights up to each; nil where all are the same
	next    atomic.Uint64 // where they are
}

func (c *cluster) assign(targets []mesh.Target) {
	b := &balance{targets: targets}
	same := !slices.ContainsFunc(targets, func(t mesh.Target) bool { return t.Weight != targets[0].Weight })
	if !same {
		sum := uint64(0)
		for _, t := range targets {
			sum += uint64(t.Weight)
			b.sums = append(b.sums, sum)
		}
	}
	b.next.Store(rand.Uint64() >> 1) // proxies that start together do not ask the same endpoint first
	c.balance.Store(b)
	c.upstream.keep(targets)
}

// pick is an endpoint; ok is false where there is none. One after the other where all weigh the same, else by chance.
func (b *balance) pick() (at netip.AddrPort, ok bool) {
	switch n := len(b.targets); {
	case n == 0:
		return at, false
	case n == 1:
		return b.targets[0].Address, true
	case b.sums == nil:
		return b.targets[b.next.Add(1)%uint64(n)].Address, true
	}
	want := rand.Uint64N(b.sums[len(b.sums)-1])
	i := sort.Search(len(b.sums), func(i int) bool { return b.sums[i] > want })
	return b.targets[i].Address, true
}

// errNoEndpoint is where a cluster has no endpoint that takes connections.
var errNoEndpoint = errors.New("the cluster has no endpoint that takes connections")

// connect makes a connection for a client of TCP, to another endpoint with every attempt.
func (c *cluster) connect(ctx context.Context, attempts int) (over net.Conn, raw *net.TCPConn, err error) {
	err = errNoEndpoint
	for range attempts {
		at, ok := c.balance.Load().pick()
		if !ok {
			return nil, nil, errNoEndpoint
		}
		if over, raw, err = c.upstream.dial(ctx, at); err == nil {
			return over, raw, nil
		}
	}
	return nil, nil, err
}

// dial connects to an endpoint, and shakes hands where the cluster has TLS, in the cluster's time to connect.
func (u *upstream) dial(ctx context.Context, at netip.AddrPort) (net.Conn, *net.TCPConn, error) {
	ctx, cancel := context.WithTimeout(ctx, u.config.Load().ConnectTimeout)
	defer cancel()
	u.proxy.stats.Connects.Add(1)
	c, err := u.dialer.DialContext(ctx, "tcp", at.String())
	if err != nil {
		return nil, nil, fmt.Errorf("connecting to %s: %w", at, err)
	}
	raw := c.(*net.TCPConn)
	if u.tls == nil {
		return raw, raw, nil
	}
	over := tls.Client(raw, u.tls())
	if err := over.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, nil, fmt.Errorf("the TLS handshake with %s: %w", at, err)
	}
	return over, raw, nil
}
