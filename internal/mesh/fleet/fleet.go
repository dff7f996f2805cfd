// Package fleet is a load of many light proxies on a control plane. Each proxy has a separate connection, subscribes
// over xDS as Envoy does (to clusters and listeners, and to the endpoints, routes and secrets to which these refer),
// and acknowledges what it gets. Thousands of proxies fit into a process, because they keep only names and digests of
// what they have, and a resource that several have is decoded once.
package fleet

import (
	"context"
	"crypto/tls"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"tare/internal/lib/pace"
)

// Options configures the proxies. Address, Node and MarkOf are required.
type Options struct {
	Address string                   // of the control plane, host:port
	Node    func(i int) *corev3.Node // the node of proxy i
	TLS     func(i int) *tls.Config  // nil: no TLS
	Delta   bool                     // use deltas instead of the state of the world
	Manner  func(i int) Manner       // nil: the zero value for all
	// OnHave, unless nil, is called for each response that proxy i accepts, before the proxy answers it. It gets the
	// digests of all resources that the proxy has, by type and name. Proxies call it concurrently.
	OnHave func(i int, has map[string]map[string]uint64)
	OnEnd  func(i int, err error) // called when the connection of proxy i ends, unless the fleet closed it; may be nil
	MarkOf func(*endpointv3.ClusterLoadAssignment) Mark
	// Again is the mean time after which proxies connect again when their connection has ended. Each proxy has its own
	// random time, 0.5 to 1.5 times as long. 0: they never do.
	Again time.Duration
}

// Fleet is a set of proxies. Make it with New. Its methods must not be called concurrently.
type Fleet struct {
	o        Options
	contents contents
	counts   counts

	proxies []*proxy
	cancels []context.CancelFunc
	running sync.WaitGroup

	codec   codec
	lastEnd atomic.Pointer[error] // why a connection last ended, unless the fleet closed it

	missing atomic.Int64 // connected proxies that have not yet got all that they subscribed to
	wake    chan struct{}
	watch   atomic.Pointer[watch]
}

// counts holds the fields of Counts while proxies update them.
type counts struct{ responses, bytes, refusals, connections, ends atomic.Int64 }

// Counts holds the sums over all proxies since New.
type Counts struct {
	Responses   int64 // received
	Bytes       int64 // of received resources: names, types and contents, before any compression and encryption
	Refusals    int64 // responses that a proxy refused
	Connections int64 // attempts to open a stream
	Ends        int64 // streams that ended, or could not be opened, although the fleet did not close them
}

// New makes a fleet of n proxies, none of which is connected.
func New(n int, o Options) *Fleet {
	f := &Fleet{o: o, codec: newCodec(), wake: make(chan struct{}, 1), proxies: make([]*proxy, n),
		cancels: make([]context.CancelFunc, n)}
	f.contents = contents{markOf: o.MarkOf, seed: maphash.MakeSeed()}
	for i := range f.proxies {
		f.proxies[i] = &proxy{fleet: f, index: i}
	}
	if o.Manner != nil {
		f.Behave(o.Manner)
	}
	return f
}

// Behave changes the manners of proxies, none of which may be connected.
func (f *Fleet) Behave(manner func(i int) Manner) {
	for i, p := range f.proxies {
		p.manner = manner(i)
	}
}

// Len returns the number of proxies.
func (f *Fleet) Len() int { return len(f.proxies) }

// Counts returns the current counts.
func (f *Fleet) Counts() Counts {
	c := &f.counts
	return Counts{c.responses.Load(), c.bytes.Load(), c.refusals.Load(), c.connections.Load(), c.ends.Load()}
}

// Connect starts to connect those of the proxies in [from, to) that are not connected yet, and does not wait for them
// (see Complete). The connections end when ctx ends.
func (f *Fleet) Connect(ctx context.Context, from, to int) error {
	for i := from; i < to; i++ {
		if f.cancels[i] != nil {
			continue
		}
		cc, err := f.dial(i)
		if err != nil {
			return fmt.Errorf("proxy %d: %w", i, err)
		}
		p := f.proxies[i]
		p.complete.Store(0)
		if p.answers() {
			f.missing.Add(1)
		}
		own, cancel := context.WithCancel(ctx)
		ended := make(chan struct{})
		f.cancels[i] = func() { cancel(); <-ended }
		f.running.Go(func() {
			defer close(ended)
			f.serve(own, p, cc)
			_ = cc.Close()
			if p.complete.Swap(-1) == 0 && p.answers() {
				f.completed() // Complete need no longer wait for it
			}
		})
	}
	return nil
}

// answers reports whether the proxy answers as usual, and thus will have all that it subscribes to.
func (p *proxy) answers() bool { return !p.manner.Silent && !p.manner.Refuses && !p.manner.Floods }

func (f *Fleet) dial(i int) (*grpc.ClientConn, error) {
	c := insecure.NewCredentials()
	if f.o.TLS != nil {
		c = credentials.NewTLS(f.o.TLS(i))
	}
	return grpc.NewClient("passthrough:///"+f.o.Address, grpc.WithTransportCredentials(c), grpc.WithReadBufferSize(4<<10),
		grpc.WithWriteBufferSize(4<<10), grpc.WithDisableServiceConfig(),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.5, Jitter: 0.5,
				MaxDelay: 2 * time.Second},
			MinConnectTimeout: time.Minute}),
		grpc.WithMaxHeaderListSize(maxHeaders),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.ForceCodecV2(f.codec),
			grpc.WaitForReady(true)))
}

// serve runs a proxy's streams, one at a time.
func (f *Fleet) serve(ctx context.Context, p *proxy, cc *grpc.ClientConn) {
	for {
		f.counts.connections.Add(1)
		own, cancel := context.WithCancel(ctx)
		err := p.run(own, cc)
		cancel()
		if ctx.Err() != nil {
			return
		}
		f.counts.ends.Add(1)
		f.lastEnd.Store(&err)
		if f.o.OnEnd != nil {
			f.o.OnEnd(p.index, err)
		}
		if f.o.Again == 0 {
			return
		}
		if p.complete.Swap(0) > 0 {
			f.missing.Add(1)
		}
		by := time.Duration(maphash.Comparable(f.contents.seed, p.index) % uint64(f.o.Again))
		if pace.Sleep(ctx, f.o.Again/2+by) != nil {
			return
		}
	}
}

// Disconnect closes the connections of the proxies in [from, to), and waits until they are closed on this side.
func (f *Fleet) Disconnect(from, to int) {
	for i := from; i < to; i++ {
		if cancel := f.cancels[i]; cancel != nil {
			cancel()
			f.cancels[i] = nil
		}
	}
}

// Connected returns how many proxies Connect has connected and Disconnect has not disconnected since.
func (f *Fleet) Connected() (n int) {
	for _, cancel := range f.cancels {
		if cancel != nil {
			n++
		}
	}
	return n
}

// Close closes all connections.
func (f *Fleet) Close() {
	f.Disconnect(0, len(f.proxies))
	f.running.Wait()
}

// completed is called when a proxy has all that it subscribed to, or when it ends before that.
func (f *Fleet) completed() {
	if f.missing.Add(-1) == 0 {
		f.wakeUp()
	}
}

func (f *Fleet) wakeUp() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Complete waits until every connected proxy has had, since its latest connection, all that it subscribed to, and
// returns the times (ns by pace.Now, sorted) at which each first had it. Proxies that do not answer as usual are left
// out.
func (f *Fleet) Complete(ctx context.Context) ([]int64, error) {
	for f.missing.Load() > 0 {
		select {
		case <-f.wake:
		case <-ctx.Done():
			return nil, fmt.Errorf("%d of %d proxies do not have all that they asked for: %w%s", f.missing.Load(),
				len(f.proxies), ctx.Err(), f.lastWords())
		}
	}
	var at []int64
	for i, p := range f.proxies {
		if t := p.complete.Load(); t > 0 && f.cancels[i] != nil {
			at = append(at, t)
		}
	}
	slices.Sort(at)
	return at, nil
}

// lastWords returns why the last connection ended, if one has.
func (f *Fleet) lastWords() string {
	if err := f.lastEnd.Load(); err != nil {
		return fmt.Sprintf("; a connection ended: %v", *err)
	}
	return ""
}

// Digest returns the name and the digest of a resource as OnHave gets them. Digests differ between fleets.
func (f *Fleet) Digest(url string, value []byte) (name string, digest uint64, err error) {
	k := kindOf(url)
	if k < 0 {
		return "", 0, fmt.Errorf("no proxy asks for %s", url)
	}
	c := f.contents.of(k, value)
	return c.name, c.digest, nil
}

// watch is a change that Expect waits for.
type watch struct {
	mark Mark
	want int64 // number of proxies
	came atomic.Int64
	seen []times // by proxy
	done chan struct{}
}

// times holds the times of one proxy, ns by pace.Now.
type times struct{ received, answered atomic.Int64 }

// seen records when proxy i received a mark and acknowledged it. Only the first time counts, and only for the mark that
// Expect waits for.
func (f *Fleet) seen(i int, m Mark, received, answered int64) {
	w := f.watch.Load()
	if w == nil || w.mark != m || w.seen[i].received.Load() != 0 {
		return
	}
	w.seen[i].received.Store(received)
	w.seen[i].answered.Store(answered)
	if w.came.Add(1) == w.want {
		close(w.done)
	}
}

// Spread holds the times at which proxies got a change, ns by pace.Now, sorted.
type Spread struct {
	Received []int64 // when the complete response had arrived
	Answered []int64 // when its acknowledgement was handed to the transport
}

// Expect makes the fleet look for a mark that a given number of proxies must receive. The returned function waits until
// they have received and acknowledged it. If ctx ends first, it returns an error and the times so far.
func (f *Fleet) Expect(m Mark, want int) func(context.Context) (Spread, error) {
	w := &watch{mark: m, want: int64(want), seen: make([]times, len(f.proxies)), done: make(chan struct{})}
	if want == 0 {
		close(w.done)
	}
	f.watch.Store(w)
	return func(ctx context.Context) (s Spread, err error) {
		select {
		case <-w.done:
		case <-ctx.Done():
			err = fmt.Errorf("change %d of service %d came to %d of %d proxies: %w", m.Change, m.Service, w.came.Load(), want,
				ctx.Err())
		}
		for i := range w.seen {
			if t := w.seen[i].answered.Load(); t != 0 {
				s.Received, s.Answered = append(s.Received, w.seen[i].received.Load()), append(s.Answered, t)
			}
		}
		slices.Sort(s.Received)
		slices.Sort(s.Answered)
		return s, err
	}
}
