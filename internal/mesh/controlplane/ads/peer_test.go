package ads

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	testresource "github.com/envoyproxy/go-control-plane/pkg/test/resource/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
)

// serve runs a server until the test ends.
func serve(t testing.TB, s *Server) (address string) {
	t.Helper()
	return serveWith(t, s, newIntake())
}

func serveWith(t testing.TB, s *Server, in *intake) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(in.serverOptions(nil)...)
	s.Register(g)
	ended := make(chan error, 1)
	go func() { ended <- g.Serve(l) }()
	t.Cleanup(func() {
		g.Stop()
		s.Wait()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

func dial(t testing.TB, address string) discoveryv3.AggregatedDiscoveryServiceClient {
	t.Helper()
	cc, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cc.Close() })
	return discoveryv3.NewAggregatedDiscoveryServiceClient(cc)
}

var encoder Encoder

// viewOf makes a view from "type name=content" words, such as "C a E a=1": clusters, endpoints, secrets, listeners and
// routes.
func viewOf(t testing.TB, text string) View {
	t.Helper()
	lists := map[string][]*Resource{}
	kind := ""
	for _, word := range strings.Fields(text) {
		if len(word) == 1 && strings.Contains("CESLR", word) {
			kind = word
			continue
		}
		name, content, _ := strings.Cut(word, "=")
		m := messageOf(kind, name, content)
		r, err := encoder.Resource(m)
		if err != nil {
			t.Fatal(err)
		}
		lists[TypeURL(m)] = append(lists[TypeURL(m)], r)
	}
	v := View{Tables: map[string]*Table{}}
	for url, list := range lists {
		table, err := NewTable(list)
		if err != nil {
			t.Fatal(err)
		}
		v.Tables[url] = table
	}
	return v
}

// messageOf makes a resource of a kind; different contents make different messages. A listener's content is the route
// that it waits for.
func messageOf(kind, name, content string) proto.Message {
	switch kind {
	case "C":
		c := testresource.MakeCluster(testresource.Ads, name)
		c.AltStatName = content
		return c
	case "E":
		return &endpointv3.ClusterLoadAssignment{ClusterName: name,
			Endpoints: []*endpointv3.LocalityLbEndpoints{{Locality: &corev3.Locality{Zone: content}}}}
	case "S":
		return &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_GenericSecret{GenericSecret: &tlsv3.GenericSecret{
			Secret: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: content}}}}}
	case "L":
		route, rest, _ := strings.Cut(content, "/")
		l := testresource.MakeRouteHTTPListener(testresource.Ads, name, 80, route)
		l.StatPrefix = rest
		return l
	}
	return &routev3.RouteConfiguration{Name: name, VirtualHosts: []*routev3.VirtualHost{{Name: content}}}
}

var urls = map[string]string{"C": ClusterType, "E": EndpointType, "S": SecretType, "L": ListenerType, "R": RouteType}

// got is a response of either variant.
type got struct {
	kind, version, nonce string
	names, removed       []string
	versions             map[string]string // deltas
}

func (g got) String() string {
	words := append([]string{g.kind}, g.names...)
	for _, name := range g.removed {
		words = append(words, "-"+name)
	}
	return strings.Join(words, " ")
}

// peer is a data plane whose requests the test makes, with the types that go-control-plane generates.
type peer struct {
	t      testing.TB
	world  discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	delta  discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	nonces map[string]string
	taken  map[string]string // versions, state of the world
	wanted map[string][]string
	probes int
	said   bool
	node   string
}

func connect(t testing.TB, address string, delta bool) *peer {
	return connectAs(t, address, delta, "node")
}

func connectAs(t testing.TB, address string, delta bool, node string) *peer {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	p := &peer{t: t, nonces: map[string]string{}, taken: map[string]string{}, wanted: map[string][]string{}, node: node}
	var err error
	if delta {
		p.delta, err = dial(t, address).DeltaAggregatedResources(ctx)
	} else {
		p.world, err = dial(t, address).StreamAggregatedResources(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func urlOf(kind string) string {
	if url := urls[kind]; url != "" {
		return url
	}
	return kind
}

func (p *peer) send(m proto.Message) {
	p.t.Helper()
	var err error
	var node *corev3.Node
	if !p.said {
		p.said, node = true, &corev3.Node{Id: p.node}
	}
	switch m := m.(type) {
	case *discoveryv3.DiscoveryRequest:
		m.Node = node
		err = p.world.Send(m)
	case *discoveryv3.DeltaDiscoveryRequest:
		m.Node = node
		err = p.delta.Send(m)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// want subscribes to names: with the state of the world to these names only, with deltas to these in addition to
// earlier ones.
func (p *peer) want(kind string, names ...string) {
	p.t.Helper()
	if p.wanted[kind] = names; p.delta != nil {
		p.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: urlOf(kind), ResourceNamesSubscribe: names})
		return
	}
	p.send(&discoveryv3.DiscoveryRequest{TypeUrl: urlOf(kind), ResourceNames: names, ResponseNonce: p.nonces[kind],
		VersionInfo: p.taken[kind]})
}

// answer acknowledges the last response of a type, or refuses it.
func (p *peer) answer(kind, wrong string) {
	p.t.Helper()
	var detail *statuspb.Status
	if wrong != "" {
		detail = &statuspb.Status{Code: 3, Message: wrong}
	}
	if p.delta != nil {
		p.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: urlOf(kind), ResponseNonce: p.nonces[kind],
			ErrorDetail: detail})
		return
	}
	p.send(&discoveryv3.DiscoveryRequest{TypeUrl: urlOf(kind), ResponseNonce: p.nonces[kind], ErrorDetail: detail,
		VersionInfo: p.taken[kind], ResourceNames: p.wanted[kind]})
}

// hear waits for a response.
func (p *peer) hear() (got, error) {
	g, err := p.hearAll(func(string, proto.Message) {})
	p.nonces[g.kind] = g.nonce
	return g, err
}

// hearAll waits for a response, and calls show with each resource in it.
func (p *peer) hearAll(show func(string, proto.Message)) (got, error) {
	var g got
	url := ""
	if p.delta != nil {
		r, err := p.delta.Recv()
		if err != nil {
			return g, err
		}
		url = r.GetTypeUrl()
		g = got{version: r.GetSystemVersionInfo(), nonce: r.GetNonce(), removed: r.GetRemovedResources(),
			versions: map[string]string{}}
		for _, x := range r.GetResources() {
			g.names = append(g.names, x.GetName())
			g.versions[x.GetName()] = x.GetVersion()
			m, err := x.GetResource().UnmarshalNew()
			if err != nil || NameOf(m) != x.GetName() {
				return g, fmt.Errorf("resource %s: %v, %w", x.GetName(), m, err)
			}
			show(x.GetName(), m)
		}
	} else {
		r, err := p.world.Recv()
		if err != nil {
			return g, err
		}
		url = r.GetTypeUrl()
		g = got{version: r.GetVersionInfo(), nonce: r.GetNonce()}
		for _, x := range r.GetResources() {
			m, err := x.UnmarshalNew()
			if err != nil || TypeURL(m) != url {
				return g, fmt.Errorf("%v, %w", m, err)
			}
			g.names = append(g.names, NameOf(m))
			show(NameOf(m), m)
		}
	}
	g.kind = url
	for kind, of := range urls {
		if of == url {
			g.kind = kind
		}
	}
	slices.Sort(g.names)
	return g, nil
}

// expect waits for a response, which must be as in want, for example "C a b -c".
func (p *peer) expect(want string) got {
	p.t.Helper()
	g, err := p.hear()
	if err != nil || g.String() != want {
		p.t.Fatalf("got %q, %v; want %q", g, err, want)
	}
	return g
}

// takes expects a response and acknowledges it.
func (p *peer) takes(want string) got {
	p.t.Helper()
	g := p.expect(want)
	p.taken[g.kind] = g.version
	p.answer(g.kind, "")
	return g
}

// quiet checks that no response is due: its request is answered after any other response that could be sent.
func (p *peer) quiet() {
	p.t.Helper()
	for range 2 { // a response that waited for the answer to the first comes before the second
		p.probes++
		probe := fmt.Sprint("probe", p.probes)
		p.want(probe)
		p.takes(probe)
	}
}

// ends expects the stream to end.
func (p *peer) ends() error {
	p.t.Helper()
	for {
		if _, err := p.hear(); err != nil {
			return err
		}
	}
}

// both runs a test with both variants.
func both(t *testing.T, f func(t *testing.T, delta bool)) {
	for name, delta := range map[string]bool{"world": false, "delta": true} {
		t.Run(name, func(t *testing.T) { f(t, delta) })
	}
}

// forEver is a patience that no test exceeds.
const forEver = time.Hour
