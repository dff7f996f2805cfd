package authority

import (
	"maps"
	"net"
	"net/netip"
	"sync"
	"time"
)

// limits bound how often each peer may do something: a bucket for each, which fills at a rate.
type limits struct {
	rate, burst float64 // per second; at once

	mu    sync.Mutex
	by    map[string]*bucket
	swept time.Time
}

type bucket struct {
	left float64
	at   time.Time
}

// maxBuckets is how many peers are kept apart. More share one bucket.
const maxBuckets = 10_000

func newLimits(rate, burst float64) *limits {
	return &limits{rate: rate, burst: burst, by: map[string]*bucket{}}
}

// open says whether a peer may, without counting it.
func (l *limits) open(peer string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.of(peer, time.Now()).left >= 1
}

// take counts one time of a peer, and says whether it may.
func (l *limits) take(peer string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.of(peer, time.Now())
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}

func (l *limits) of(peer string, now time.Time) *bucket {
	b := l.by[peer]
	if b == nil && len(l.by) >= maxBuckets {
		if now.Sub(l.swept) >= time.Second { // it takes a while, and must not be had at will
			l.swept = now
			maps.DeleteFunc(l.by, func(_ string, o *bucket) bool {
				l.fill(o, now)
				return o.left >= l.burst // as if it had never been there
			})
		}
		if len(l.by) >= maxBuckets {
			peer = ""
			b = l.by[peer]
		}
	}
	if b == nil {
		b = &bucket{l.burst, now}
		l.by[peer] = b
	}
	l.fill(b, now)
	return b
}

func (l *limits) fill(b *bucket, now time.Time) {
	b.left = min(l.burst, b.left+l.rate*max(0, now.Sub(b.at).Seconds()))
	b.at = now
}

// hostOf is the address that stands for a peer: that of IPv4, and the network of 64 bits of IPv6, which one host has
// whole. Peers of other networks, such as Unix sockets, are one.
func hostOf(addr net.Addr) string {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return ""
	}
	ip, _ := netip.AddrFromSlice(tcp.IP)
	if ip = ip.Unmap(); ip.Is6() {
		if network, err := ip.Prefix(64); err == nil {
			return network.String()
		}
	}
	return ip.String()
}
