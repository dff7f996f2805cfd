package authority

import (
	"maps"
	"net"
	"net/netip"
	"sync"
	"time"

	"tare/internal/lib/pace"
)

// limits limits how often each peer may do something, with a token bucket for each peer.
type limits struct {
	rate, burst float64 // tokens per second; size of a bucket

	mu    sync.Mutex
	by    map[string]*pace.Bucket
	swept int64 // when full buckets were last removed, ns by pace.Now
}

// maxBuckets is the maximum number of peers with separate buckets. Further peers share the bucket of peer "".
const maxBuckets = 10_000

func newLimits(rate, burst float64) *limits {
	return &limits{rate: rate, burst: burst, by: map[string]*pace.Bucket{}}
}

// open reports whether a peer has a token, without taking one.
func (l *limits) open(peer string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := pace.Now()
	return l.of(peer, now).Left(now) >= 1
}

// take takes a peer's token, and reports whether there was one.
func (l *limits) take(peer string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := pace.Now()
	return l.of(peer, now).TryTake(now)
}

func (l *limits) of(peer string, now int64) *pace.Bucket {
	b := l.by[peer]
	if b == nil && len(l.by) >= maxBuckets {
		if now-l.swept >= int64(time.Second) { // slow, so peers must not be able to trigger it at will
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

// hostOf returns the address that stands for a peer: an IPv4 address, or the /64 network of an IPv6 address, because
// one host usually has all of it. All peers of other networks, such as Unix sockets, count as one.
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
