// Package controlplane is a control plane for tests, demonstrations and experiments: the snapshot cache of
// go-control-plane behind the aggregated discovery service, as state of the world and as deltas, for every node the
// same.
package controlplane

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/log"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	deltav3 "github.com/envoyproxy/go-control-plane/pkg/server/delta/v3"
	sotwv3 "github.com/envoyproxy/go-control-plane/pkg/server/sotw/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/proto"

	"tare/internal/pace"
)

// Resources are all that a control plane has to say. A message that was given once must not be changed: what is the
// same message in the next Set counts as unchanged without a look at it.
type Resources struct {
	Clusters  []*clusterv3.Cluster
	Endpoints []*endpointv3.ClusterLoadAssignment
	Listeners []*listenerv3.Listener
}

// Sent is one response as it left. Time is nanoseconds by pace.Now (CLOCK_MONOTONIC), just before it was handed to the
// transport.
type Sent struct {
	TypeURL, Nonce string
	Resources      int
	Removed        int // deltas only
	Time           int64
}

// Answer is what a data plane said to a response.
type Answer struct {
	Node, TypeURL, Nonce string
	Version              string // state of the world: the last that it took
	Refused              string // why; empty: it was taken
	Time                 int64  // ns by pace.Now
}

// Options are what a server tells and how. The zero value will do.
type Options struct {
	OnSent   func(Sent)   // called by the stream's goroutine
	OnAnswer func(Answer) // the same
	// Stamped has responses of deltas tell in their version, which the protocol has for debugging only, when Set was
	// called and when they left: see TimesOf. With state of the world the version is data, and stays as it is.
	Stamped bool
}

// stampFormat is how a version has the times: that of the call of Set, and that of Sent.
const stampFormat = "%s set=%d sent=%d"

// TimesOf reads the times (ns by pace.Now) that a stamped response tells in its version.
func TimesOf(version string) (set, sent int64, ok bool) {
	var number string
	n, err := fmt.Sscanf(version, stampFormat, &number, &set, &sent)
	return set, sent, err == nil && n == 3
}

// Server is a control plane. Make it with New.
type Server struct {
	o      Options
	cache  cache.SnapshotCache
	cancel context.CancelFunc
	grpc   *grpc.Server

	mu     sync.Mutex
	epoch  string // of versions, so that those of a server that started anew are others
	number uint64
	last   snapshot

	set     atomic.Int64     // when Set was called last
	streams sync.Mutex       // apart from mu, which is held while streams are told
	nodes   map[int64]string // by stream of deltas, whose first request alone says it
}

// sameForAll has every node get the same.
type sameForAll struct{}

const everyone = "everyone"

func (sameForAll) ID(*corev3.Node) string { return everyone }

// maxRequest is the longest request that is taken: names of 100,000 resources.
const maxRequest = 64 << 20

// New makes a server without resources. It answers nobody before the first Set.
func New(o Options) *Server {
	ctx, cancel := context.WithCancel(context.Background())
	s := &Server{o: o, cancel: cancel, epoch: strconv.FormatInt(time.Now().UnixNano(), 36), nodes: map[int64]string{}}
	// Not the cache's own mode for ADS: in it, one cluster that a data plane refuses keeps the endpoints of all others
	// from it.
	quiet := log.LoggerFuncs{}
	s.cache = cache.NewSnapshotCache(false, sameForAll{}, quiet)
	s.grpc = grpc.NewServer(grpc.MaxRecvMsgSize(maxRequest), grpc.InitialWindowSize(8<<20), grpc.InitialConnWindowSize(8<<20),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(s.grpc, &service{
		world: sotwv3.NewServer(ctx, s.cache, (*worldCallbacks)(s), sotwv3.WithOrderedADS(), sotwv3.WithLogger(quiet)),
		delta: deltav3.NewServer(ctx, s.cache, (*deltaCallbacks)(s), deltav3.WithLogger(quiet)),
	})
	return s
}

// Serve answers at l until Close. It closes l.
func (s *Server) Serve(l net.Listener) error {
	if err := s.grpc.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serving xDS at %s: %w", l.Addr(), err)
	}
	return nil
}

// Close ends all streams.
func (s *Server) Close() {
	s.cancel()
	s.grpc.Stop()
}

// Set makes r what the control plane says, and returns the time (ns by pace.Now) at which it began to tell the data
// planes; see OnSent for when each response left. A list that is the very one of the Set before is not looked at again.
func (s *Server) Set(ctx context.Context, r Resources) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set.Store(pace.Now())
	s.number++
	version := s.epoch + "-" + strconv.FormatUint(s.number, 10)
	next, err := part(s.last, resource.ClusterType, r.Clusters, version, snapshot{})
	if err == nil {
		next, err = part(s.last, resource.EndpointType, r.Endpoints, version, next)
	}
	if err == nil {
		next, err = part(s.last, resource.ListenerType, r.Listeners, version, next)
	}
	if err != nil {
		return 0, err
	}
	s.last = next
	at := pace.Now()
	if err := s.cache.SetSnapshot(ctx, everyone, next); err != nil {
		return 0, fmt.Errorf("setting the snapshot: %w", err)
	}
	return at, nil
}

// snapshot is all resources by the URL of their type. Go-control-plane's own would be encoded as a whole for each
// change.
type snapshot map[string]*ofType

type ofType struct {
	list     any // as it was given
	version  string
	items    map[string]types.Resource
	timed    map[string]types.ResourceWithTTL // the same
	versions map[string]string                // by name
}

func (s snapshot) of(url string) *ofType {
	if t := s[url]; t != nil {
		return t
	}
	return &ofType{}
}

func (s snapshot) GetVersion(url string) string                      { return s.of(url).version }
func (s snapshot) GetResources(url string) map[string]types.Resource { return s.of(url).items }
func (s snapshot) GetResourcesAndTTL(url string) map[string]types.ResourceWithTTL {
	return s.of(url).timed
}
func (s snapshot) GetVersionMap(url string) map[string]string { return s.of(url).versions }
func (snapshot) ConstructVersionMap() error                   { return nil }

// part adds the resources of a kind to a snapshot, with their versions: those of messages that were there before are
// known. A kind of which nothing changed keeps its version, so that the state of the world is not sent again.
func part[T types.Resource](last snapshot, url string, list []T, version string, into snapshot) (snapshot, error) {
	old := last.of(url)
	if before, ok := old.list.([]T); ok && len(before) == len(list) && (len(list) == 0 || &before[0] == &list[0]) {
		into[url] = old
		return into, nil
	}
	t := &ofType{list: list, version: version}
	rest := list // what may be other than before
	if same, changed := alike(old, list); same {
		t.items, t.timed, t.versions = maps.Clone(old.items), maps.Clone(old.timed), maps.Clone(old.versions)
		rest = changed
	} else {
		t.items, t.timed, t.versions = make(map[string]types.Resource, len(list)), make(map[string]types.ResourceWithTTL, len(list)), make(map[string]string, len(list))
	}
	same := len(list) == len(old.items) && old.version != "" // as long as nothing says otherwise
	seen := make(map[string]bool, len(rest))
	for _, r := range rest {
		name := cache.GetResourceName(r)
		if seen[name] {
			return nil, fmt.Errorf("resource %q of %s is given twice", name, url)
		}
		seen[name] = true
		before, known := old.items[name]
		v := old.versions[name]
		if !known || before != types.Resource(r) {
			b, err := proto.MarshalOptions{Deterministic: true}.Marshal(r)
			if err != nil {
				return nil, fmt.Errorf("encoding resource %q of %s: %w", name, url, err)
			}
			sum := sha256.Sum256(b)
			v = hex.EncodeToString(sum[:12])
		}
		same = same && known && v == old.versions[name]
		t.items[name], t.timed[name], t.versions[name] = r, types.ResourceWithTTL{Resource: r}, v
	}
	if same {
		t.version = old.version
	}
	into[url] = t
	return into, nil
}

// alike says whether a list is the one before but for some resources, each in the place of the one before of its name,
// and gives these.
func alike[T types.Resource](old *ofType, list []T) (same bool, changed []T) {
	before, ok := old.list.([]T)
	if !ok || len(before) != len(list) {
		return false, nil
	}
	for i, r := range list {
		if types.Resource(r) == types.Resource(before[i]) {
			continue
		}
		if cache.GetResourceName(r) != cache.GetResourceName(before[i]) {
			return false, nil
		}
		changed = append(changed, r)
	}
	return true, changed
}

// service is the aggregated discovery service alone: the other services of go-control-plane would triple what has to be
// linked.
type service struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	world sotwv3.Server
	delta deltav3.Server
}

func (s *service) StreamAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	return s.world.StreamHandler(stream, resource.AnyType)
}

func (s *service) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return s.delta.DeltaStreamHandler(stream, resource.AnyType)
}

type worldCallbacks Server

func (*worldCallbacks) OnStreamOpen(context.Context, int64, string) error { return nil }
func (*worldCallbacks) OnStreamClosed(int64, *corev3.Node)                {}

func (s *worldCallbacks) OnStreamRequest(_ int64, r *discoveryv3.DiscoveryRequest) error {
	if s.o.OnAnswer != nil && r.GetResponseNonce() != "" {
		s.o.OnAnswer(Answer{r.GetNode().GetId(), r.GetTypeUrl(), r.GetResponseNonce(), r.GetVersionInfo(), r.GetErrorDetail().GetMessage(), pace.Now()})
	}
	return nil
}

func (s *worldCallbacks) OnStreamResponse(_ context.Context, _ int64, _ *discoveryv3.DiscoveryRequest, r *discoveryv3.DiscoveryResponse) {
	if s.o.OnSent != nil {
		s.o.OnSent(Sent{r.GetTypeUrl(), r.GetNonce(), len(r.GetResources()), 0, pace.Now()})
	}
}

type deltaCallbacks Server

func (*deltaCallbacks) OnDeltaStreamOpen(context.Context, int64, string) error { return nil }

func (s *deltaCallbacks) OnDeltaStreamClosed(id int64, _ *corev3.Node) {
	s.streams.Lock()
	defer s.streams.Unlock()
	delete(s.nodes, id)
}

func (s *deltaCallbacks) OnStreamDeltaRequest(id int64, r *discoveryv3.DeltaDiscoveryRequest) error {
	s.streams.Lock()
	if n := r.GetNode(); n != nil {
		s.nodes[id] = n.GetId()
	}
	node := s.nodes[id]
	s.streams.Unlock()
	if s.o.OnAnswer != nil && r.GetResponseNonce() != "" {
		s.o.OnAnswer(Answer{node, r.GetTypeUrl(), r.GetResponseNonce(), "", r.GetErrorDetail().GetMessage(), pace.Now()})
	}
	return nil
}

func (s *deltaCallbacks) OnStreamDeltaResponse(_ int64, _ *discoveryv3.DeltaDiscoveryRequest, r *discoveryv3.DeltaDiscoveryResponse) {
	now := pace.Now()
	if s.o.Stamped {
		r.SystemVersionInfo = fmt.Sprintf(stampFormat, r.GetSystemVersionInfo(), s.set.Load(), now)
	}
	if s.o.OnSent != nil {
		s.o.OnSent(Sent{r.GetTypeUrl(), r.GetNonce(), len(r.GetResources()), len(r.GetRemovedResources()), now})
	}
}
