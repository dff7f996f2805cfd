package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/anypb"

	statuspb "google.golang.org/genproto/googleapis/rpc/status"

	"tare/internal/lib/pace"
)

// Manner determines how a proxy behaves. The zero value answers at once and accepts everything.
type Manner struct {
	// Slow is how long the proxy takes to read a response before it answers.
	Slow time.Duration
	// Refuses makes the proxy refuse every response but the first of each type.
	Refuses bool
	// Silent makes the proxy never answer, and read nothing after the first response.
	Silent bool
	// Floods makes the proxy subscribe to endpoints that do not exist, different ones each time, as fast as it can.
	Floods bool
}

// proxy is one light proxy: it subscribes as Envoy does, keeps names and digests of what it gets, and answers. All
// fields that are not atomic belong to the goroutine of run.
type proxy struct {
	fleet  *Fleet
	index  int
	manner Manner

	kinds [kinds]subscription
	out   stream

	complete atomic.Int64 // when it first had all it subscribed to on this stream, ns by pace.Now; 0: not yet; -1: ended
}

// subscription is what a proxy has asked for, and what it has received, of one type of resources.
type subscription struct {
	asked    []string // names, sorted; nil: all, for types that are roots
	opened   bool     // a request has been sent
	answered bool     // a response has come
	has      map[string]*content
	version  string // state of the world: the last accepted version
	nonce    string
}

// stream is an xDS stream, of deltas or of the state of the world.
type stream interface {
	// ask requests the resources in the proxy's subscription of a type, which has been updated. added and dropped are the
	// names by which it differs from the previous one.
	ask(p *proxy, k resourceType, added, dropped []string) error
	// receive waits for a response.
	receive() (response, error)
	// answer acknowledges a response, or, unless refused is empty, refuses it with that text as the reason.
	answer(p *proxy, k resourceType, r *response, refused string) error
	// ended reports whether the stream has ended.
	ended() bool
}

// response is a response of either variant.
type response struct {
	url, nonce, version string
	resources           [][]byte
	removed             []string
	whole               bool // state of the world, not deltas
	bytes               int  // as in Counts.Bytes
}

// run opens a stream on a connection, and handles responses until the stream ends or ctx does.
func (p *proxy) run(ctx context.Context, cc *grpc.ClientConn) (err error) {
	if p.fleet.o.Delta {
		p.out, err = openDelta(ctx, cc)
	} else {
		p.out, err = openWorld(ctx, cc)
	}
	if err != nil {
		return err
	}
	for k := range p.kinds {
		p.kinds[k] = subscription{has: map[string]*content{}}
	}
	for _, k := range []resourceType{clusters, listeners} {
		if err := p.ask(k, nil); err != nil {
			return err
		}
	}
	if p.manner.Floods {
		return p.flood()
	}
	for {
		r, err := p.out.receive()
		if err != nil {
			return err
		}
		if err := p.take(ctx, &r); err != nil {
			return err
		}
	}
}

// flood sends requests, and reads no responses, until the stream ends.
func (p *proxy) flood() error {
	for i := 0; ; i++ {
		if err := p.ask(endpoints, []string{fmt.Sprint("nothing-", i%1000)}); err != nil {
			return err
		}
		if p.out.ended() {
			_, err := p.out.receive()
			return err
		}
	}
}

// take processes a response and answers it.
func (p *proxy) take(ctx context.Context, r *response) error {
	received := pace.Now()
	k := kindOf(r.url)
	if k < 0 {
		return errors.New("a response of a type that nobody asked for: " + r.url)
	}
	f := p.fleet
	f.counts.responses.Add(1)
	f.counts.bytes.Add(int64(r.bytes))
	if p.manner.Silent {
		<-ctx.Done()
		return ctx.Err()
	}
	if p.manner.Slow > 0 {
		if err := pace.Sleep(ctx, p.manner.Slow); err != nil {
			return err
		}
	}
	s := &p.kinds[k]
	if p.manner.Refuses && s.answered {
		f.counts.refusals.Add(1)
		return p.out.answer(p, k, r, "this proxy refuses everything")
	}
	marks := p.store(k, r)
	if f.o.OnHave != nil {
		f.o.OnHave(p.index, p.has())
	}
	s.answered, s.nonce, s.version = true, r.nonce, r.version
	if err := p.out.answer(p, k, r, ""); err != nil {
		return err
	}
	answered := pace.Now()
	for _, m := range marks {
		f.seen(p.index, m, received, answered)
	}
	return p.follow(k)
}

// store stores what a response contains, and returns the marks of endpoints in it.
func (p *proxy) store(k resourceType, r *response) (marks []Mark) {
	s := &p.kinds[k]
	there := map[string]bool{}
	for _, value := range r.resources {
		c := p.fleet.contents.of(k, value)
		if s.has[c.name] = c; c.mark != (Mark{}) {
			marks = append(marks, c.mark)
		}
		there[c.name] = true
	}
	for _, name := range r.removed {
		delete(s.has, name)
	}
	if r.whole && k.roots() { // a resource that the response lacks is removed
		maps.DeleteFunc(s.has, func(name string, _ *content) bool { return !there[name] })
	}
	return marks
}

// follow subscribes to the resources of other types that the resources of a type need, and checks whether the proxy has
// all that it wants.
func (p *proxy) follow(k resourceType) error {
	for _, other := range []resourceType{endpoints, routes, secrets} {
		if !slices.Contains(needing[other], k) {
			continue
		}
		need := map[string]bool{}
		for _, by := range needing[other] {
			for _, c := range p.kinds[by].has {
				for _, name := range c.needs[other] {
					need[name] = true
				}
			}
		}
		names := slices.Sorted(maps.Keys(need))
		if !slices.Equal(names, p.kinds[other].asked) {
			if err := p.ask(other, names); err != nil {
				return err
			}
		}
	}
	if p.answers() && p.complete.Load() == 0 && p.whole() {
		p.complete.Store(pace.Now())
		p.fleet.completed()
	}
	return nil
}

// whole reports whether the proxy has all that it subscribed to.
func (p *proxy) whole() bool {
	for k := range p.kinds {
		s := &p.kinds[k]
		if resourceType(k).roots() && !s.answered {
			return false
		}
		for _, name := range s.asked {
			if s.has[name] == nil {
				return false
			}
		}
	}
	return true
}

// has returns what the proxy has, as digests by type and name.
func (p *proxy) has() map[string]map[string]uint64 {
	all := map[string]map[string]uint64{}
	for k := range p.kinds {
		for name, c := range p.kinds[k].has {
			if all[urls[k]] == nil {
				all[urls[k]] = map[string]uint64{}
			}
			all[urls[k]][name] = c.digest
		}
	}
	return all
}

// ask subscribes to exactly the given names of a type, or to all of the type if names is nil.
func (p *proxy) ask(k resourceType, names []string) error {
	s := &p.kinds[k]
	added := without(names, s.asked)
	dropped := without(s.asked, names)
	for _, name := range dropped {
		delete(s.has, name)
	}
	s.asked = names
	if err := p.out.ask(p, k, added, dropped); err != nil {
		return err
	}
	s.opened = true
	return nil
}

// without returns the elements of a sorted list that are not in another.
func without(list, other []string) (rest []string) {
	for _, x := range list {
		if _, found := slices.BinarySearch(other, x); !found {
			rest = append(rest, x)
		}
	}
	return rest
}

// node returns the proxy's node for the first request of a stream, and nil afterwards.
func (p *proxy) node() *corev3.Node {
	for _, s := range p.kinds {
		if s.opened {
			return nil
		}
	}
	return p.fleet.o.Node(p.index)
}

func wrongOf(refused string) *statuspb.Status {
	if refused == "" {
		return nil
	}
	return &statuspb.Status{Code: int32(codes.InvalidArgument), Message: refused}
}

// delta is a stream of deltas.
type delta struct {
	g discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
}

func openDelta(ctx context.Context, cc *grpc.ClientConn) (stream, error) {
	g, err := discoveryv3.NewAggregatedDiscoveryServiceClient(cc).DeltaAggregatedResources(ctx)
	return delta{g}, err
}

func (d delta) ask(p *proxy, k resourceType, added, dropped []string) error {
	return sent(d.g.Send(&discoveryv3.DeltaDiscoveryRequest{Node: p.node(), TypeUrl: urls[k],
		ResourceNamesSubscribe: added, ResourceNamesUnsubscribe: dropped}))
}

func (d delta) answer(_ *proxy, k resourceType, r *response, refused string) error {
	return sent(d.g.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: urls[k], ResponseNonce: r.nonce,
		ErrorDetail: wrongOf(refused)}))
}

func (d delta) ended() bool { return d.g.Context().Err() != nil }

func (d delta) receive() (r response, err error) {
	m, err := d.g.Recv()
	if err != nil {
		return r, err
	}
	r = response{url: m.GetTypeUrl(), nonce: m.GetNonce(), version: m.GetSystemVersionInfo(),
		removed: m.GetRemovedResources()}
	for _, x := range m.GetResources() {
		r.add(x.GetName(), x.GetResource())
	}
	return r, nil
}

// world is a stream of the state of the world.
type world struct {
	g discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
}

func openWorld(ctx context.Context, cc *grpc.ClientConn) (stream, error) {
	g, err := discoveryv3.NewAggregatedDiscoveryServiceClient(cc).StreamAggregatedResources(ctx)
	return world{g}, err
}

func (w world) ask(p *proxy, k resourceType, _, _ []string) error {
	s := &p.kinds[k]
	return sent(w.g.Send(&discoveryv3.DiscoveryRequest{Node: p.node(), TypeUrl: urls[k], ResourceNames: s.asked,
		ResponseNonce: s.nonce, VersionInfo: s.version}))
}

func (w world) answer(p *proxy, k resourceType, r *response, refused string) error {
	m := &discoveryv3.DiscoveryRequest{TypeUrl: urls[k], ResourceNames: p.kinds[k].asked, ResponseNonce: r.nonce,
		VersionInfo: r.version, ErrorDetail: wrongOf(refused)}
	if refused != "" {
		m.VersionInfo = p.kinds[k].version
	}
	return sent(w.g.Send(m))
}

func (w world) ended() bool { return w.g.Context().Err() != nil }

func (w world) receive() (r response, err error) {
	m, err := w.g.Recv()
	if err != nil {
		return r, err
	}
	r = response{url: m.GetTypeUrl(), nonce: m.GetNonce(), version: m.GetVersionInfo(), whole: true}
	for _, x := range m.GetResources() {
		r.add("", x)
	}
	return r, nil
}

// add adds a resource. In deltas, the resource's name is also outside the message, and counts in bytes; otherwise name
// is empty.
func (r *response) add(name string, a *anypb.Any) {
	r.resources = append(r.resources, a.GetValue())
	r.bytes += len(a.GetValue()) + len(a.GetTypeUrl()) + len(name)
}

// sent ignores io.EOF, because Recv returns why a stream has ended.
func sent(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
