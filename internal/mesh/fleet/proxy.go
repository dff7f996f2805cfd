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

// Manner is how a proxy behaves. The zero value answers at once and takes everything.
type Manner struct {
	// Slow is how long it takes to read a response; it answers after that.
	Slow time.Duration
	// Refuses has it refuse every response but the first of each type.
	Refuses bool
	// Silent has it never answer, and read nothing after the first response.
	Silent bool
	// Floods has it ask for endpoints that are not there, others each time, as fast as it can.
	Floods bool
}

// proxy is one light proxy: it subscribes as Envoy does, keeps what it is told by name and digest, and answers. All of
// it but what is atomic belongs to the goroutine of run.
type proxy struct {
	fleet  *Fleet
	index  int
	manner Manner

	kinds [kinds]subscription
	out   stream

	complete atomic.Int64 // when it first had all that it asked for, ns by pace.Now; 0: it has not
}

// subscription is what a proxy has of one type.
type subscription struct {
	asked    []string // names, in order; nil and whole: all that there are
	opened   bool     // a request has been sent
	answered bool     // a response has come
	has      map[string]*content
	version  string // state of the world: the last that was taken
	nonce    string
}

// response is one of either variant.
type response struct {
	url, nonce, version string
	resources           [][]byte
	removed             []string
	whole               bool // state of the world
	bytes               int
}

// run is the life of a connection. It ends with the context, or with an error of the stream's.
func (p *proxy) run(ctx context.Context, cc *grpc.ClientConn) (err error) {
	if p.out, err = open(ctx, cc, p.fleet.o.Delta); err != nil {
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

// flood asks until the stream ends.
func (p *proxy) flood() error {
	for i := 0; ; i++ {
		if err := p.ask(endpoints, []string{fmt.Sprint("nothing-", i%1000)}); err != nil {
			return err
		}
		if p.out.Context().Err() != nil {
			_, err := p.out.receive()
			return err
		}
	}
}

// take takes a response in and answers it.
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
		return p.answer(k, r, "this proxy refuses everything")
	}
	marks := p.store(k, r)
	if f.o.OnHave != nil {
		f.o.OnHave(p.index, p.has())
	}
	s.answered, s.nonce, s.version = true, r.nonce, r.version
	if err := p.answer(k, r, ""); err != nil {
		return err
	}
	answered := pace.Now()
	for _, m := range marks {
		f.seen(p.index, m, received, answered)
	}
	return p.follow(k)
}

// store keeps what a response says, and gives the marks of endpoints in it.
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
	if r.whole && k.roots() { // what is not in it is gone
		maps.DeleteFunc(s.has, func(name string, _ *content) bool { return !there[name] })
	}
	return marks
}

// follow asks for what the resources of a type need of others, and sees whether the proxy has all that it wants.
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

// whole says whether the proxy has all that it asked for.
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

// has is what the proxy has, as digests by type and name.
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

// ask asks for names of a type and no others; nil: for all there are.
func (p *proxy) ask(k resourceType, names []string) error {
	s := &p.kinds[k]
	q := request{node: p.node(), url: urls[k], names: names, added: without(names, s.asked),
		dropped: without(s.asked, names)}
	for _, name := range q.dropped {
		delete(s.has, name)
	}
	s.asked = names
	if !p.out.delta {
		q.nonce, q.version = s.nonce, s.version
	}
	if err := p.out.send(q); err != nil {
		return err
	}
	s.opened = true
	return nil
}

// answer acknowledges a response, or refuses it.
func (p *proxy) answer(k resourceType, r *response, refused string) error {
	q := request{url: urls[k], names: p.kinds[k].asked, nonce: r.nonce, version: r.version}
	if refused != "" {
		q.version = p.kinds[k].version
		q.wrong = &statuspb.Status{Code: int32(codes.InvalidArgument), Message: refused}
	}
	return p.out.send(q)
}

// without is what of a list is not in another; both are in order.
func without(list, other []string) (rest []string) {
	for _, x := range list {
		if _, found := slices.BinarySearch(other, x); !found {
			rest = append(rest, x)
		}
	}
	return rest
}

// node is the proxy's, on the first request of a stream.
func (p *proxy) node() *corev3.Node {
	for _, s := range p.kinds {
		if s.opened {
			return nil
		}
	}
	return p.fleet.o.Node(p.index)
}

// stream is one of either variant of the protocol.
type stream struct {
	grpc.ClientStream
	delta bool
}

// request is what a proxy says, in either variant.
type request struct {
	node           *corev3.Node
	url            string
	names          []string // state of the world: all that is asked for
	added, dropped []string // deltas: what it differs by from before
	nonce, version string
	wrong          *statuspb.Status // why the response of the nonce is refused
}

func open(ctx context.Context, cc *grpc.ClientConn, delta bool) (s stream, err error) {
	s.delta = delta
	client := discoveryv3.NewAggregatedDiscoveryServiceClient(cc)
	if delta {
		s.ClientStream, err = client.DeltaAggregatedResources(ctx)
	} else {
		s.ClientStream, err = client.StreamAggregatedResources(ctx)
	}
	return s, err
}

// send leaves it to receive to say why a stream has ended.
func (s stream) send(q request) (err error) {
	if s.delta {
		err = s.SendMsg(&discoveryv3.DeltaDiscoveryRequest{Node: q.node, TypeUrl: q.url, ResponseNonce: q.nonce,
			ResourceNamesSubscribe: q.added, ResourceNamesUnsubscribe: q.dropped, ErrorDetail: q.wrong})
	} else {
		err = s.SendMsg(&discoveryv3.DiscoveryRequest{Node: q.node, TypeUrl: q.url, ResponseNonce: q.nonce,
			ResourceNames: q.names, VersionInfo: q.version, ErrorDetail: q.wrong})
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// receive waits for a response.
func (s stream) receive() (r response, err error) {
	if s.delta {
		var m discoveryv3.DeltaDiscoveryResponse
		if err := s.RecvMsg(&m); err != nil {
			return r, err
		}
		r = response{url: m.GetTypeUrl(), nonce: m.GetNonce(), version: m.GetSystemVersionInfo(),
			removed: m.GetRemovedResources()}
		for _, x := range m.GetResources() {
			r.add(x.GetName(), x.GetResource())
		}
		return r, nil
	}
	var m discoveryv3.DiscoveryResponse
	if err := s.RecvMsg(&m); err != nil {
		return r, err
	}
	r = response{url: m.GetTypeUrl(), nonce: m.GetNonce(), version: m.GetVersionInfo(), whole: true}
	for _, x := range m.GetResources() {
		r.add("", x)
	}
	return r, nil
}

// add adds a resource; deltas have its name beside it.
func (r *response) add(name string, a *anypb.Any) {
	r.resources = append(r.resources, a.GetValue())
	r.bytes += len(a.GetValue()) + len(a.GetTypeUrl()) + len(name)
}
