// Package snapshot implements a control plane with go-control-plane's snapshot cache and server, for comparison with
// Tare's own control plane. It serves meshes compiled by package proxyconfig.
package snapshot

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"

	"tare/internal/lib/pace"
	"tare/internal/mesh/controlplane/proxyconfig"
)

// Plane is a control plane with a snapshot cache. It issues no certificates.
type Plane struct {
	server *grpc.Server
	cache  cache.SnapshotCache
	stop   context.CancelFunc

	mu      sync.Mutex
	mesh    *proxyconfig.Mesh
	version int
}

// New makes a Plane with a snapshot for each proxy of the mesh.
func New(ctx context.Context, m *proxyconfig.Mesh) (*Plane, error) {
	if m.Secure() {
		return nil, errors.New("a snapshot cache has no certificates: turn mtls off")
	}
	p := &Plane{cache: cache.NewSnapshotCache(true, cache.IDHash{}, nil), mesh: m,
		server: grpc.NewServer(grpc.MaxConcurrentStreams(1000))}
	for _, id := range m.Proxies() {
		if err := p.set(ctx, id, m); err != nil {
			return nil, err
		}
	}
	ctx, p.stop = context.WithCancel(context.WithoutCancel(ctx))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(p.server, server.NewServer(ctx, p.cache, nil))
	return p, nil
}

// Serve answers at l until Close. It closes l.
func (p *Plane) Serve(l net.Listener) error { return p.server.Serve(l) }

// Close ends all streams.
func (p *Plane) Close() {
	p.stop()
	p.server.Stop()
}

// SetEndpoints replaces the endpoints of some services, and returns the time at which it began, in ns by pace.Now. It
// sets only the snapshots of proxies whose resources change, and reuses all unchanged messages.
func (p *Plane) SetEndpoints(ctx context.Context, of map[string][]proxyconfig.Endpoint) (int64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	began := pace.Now()
	next, err := p.mesh.WithEndpoints(of)
	if err != nil {
		return 0, err
	}
	p.version++
	for _, id := range next.Proxies() {
		before, _ := p.mesh.Part(id)
		after, _ := next.Part(id)
		if before == after {
			continue
		}
		if err := p.set(ctx, id, next); err != nil {
			return 0, err
		}
	}
	p.mesh = next
	return began, nil
}

func (p *Plane) set(ctx context.Context, id string, m *proxyconfig.Mesh) error {
	r, err := m.For(id)
	if err != nil {
		return err
	}
	// Only endpoints change. If all types shared one version, each change would resend the state-of-the-world responses of
	// every type.
	const first = "1"
	s := &cache.Snapshot{}
	s.Resources[types.Cluster] = cache.NewResources(first, list(r.Clusters))
	s.Resources[types.Endpoint] = cache.NewResources(strconv.Itoa(p.version), list(r.Endpoints))
	s.Resources[types.Listener] = cache.NewResources(first, list(r.Listeners))
	s.Resources[types.Route] = cache.NewResources(first, list(r.Routes))
	if err := p.cache.SetSnapshot(ctx, id, s); err != nil {
		return fmt.Errorf("setting the snapshot of %s: %w", id, err)
	}
	return nil
}

func list[T types.Resource](messages []T) (out []types.Resource) {
	for _, m := range messages {
		out = append(out, m)
	}
	return out
}
