package authority

import (
	"maps"
	"net"
	"net/netip"
	"sync"
	"time"

	"tare/internal/lib/pace"
)

// limits bound how often each peer may do something: a bucket for each, which fills at a rate.
type limits struct {
	rate, burst float64 // per second; at once

	mu    sync.Mutex
	by    map[string]*pace.Bucket
	swept int64 // ns by pace.Now
}

// maxBuckets is how many peers are kept apart. More share one bucket.
const maxBuckets = 10_000

func newLimits(rate, burst float64) *limits {
	return &limits{rate: rate, burst: burst, by: map[string]*pace.Bucket{}}
}

// open says whether a peer may, without counting it.
func (l *limits) open(peer string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := pace.Now()
	return l.of(peer, now).Left(now) >= 1
}

// take counts one time of a peer, and says whether it may.
func (l *limits) take(peer string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := pace.Now()
	return l.of(peer, now).TryTake(now)
}

func (l *limits) of(peer string, now int64) *pace.Bucket {
	b := l.by[peer]
	if b == nil && len(l.by) >= maxBuckets {
		if now-l.swept >= int64(time.Second) { // it takes a while, and must not be had at will
			l.swept = now
			maps.DeleteFunc(l.by, func(_ string, o *pace.Bucket) bool { return o.Full(now) })
		}
		if len(l.by) >= maxBuckets {
			peer = ""
			b = l.by[peer]
		}
	}
	if b == nil {
		fresh := pace.NewBucket(l.rate, l.burst, now)
		b = &fresh
		l.by[peer] = b
	}
	return b
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
