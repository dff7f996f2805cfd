package proxy

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"tare/internal/mesh"
	"tare/internal/mesh/proxy/config"
	"tare/internal/mesh/proxy/dataplane"
	"tare/internal/mesh/xds"
	"tare/internal/mesh/xds/translate"
)

// source makes resources into changes of the data plane: it brings clusters and their endpoints together, which come
// apart, and looks up host names.
type source struct {
	plane   *dataplane.Proxy
	files   bool // secrets may name files
	lookups lookups

	onSecret func(*config.Secret) // called with each that is put to work; may be nil

	mu       sync.Mutex // one change at a time
	clusters map[string]*known
	services map[string]map[string]bool // clusters by the endpoints that they have
	assigned map[string]translate.Assignment
	running  sync.WaitGroup
}

// known is a cluster as it is now.
type known struct {
	*config.Cluster
	stop context.CancelFunc // of its look-ups; nil without
}

func newSource(p *dataplane.Proxy, files bool) *source {
	return &source{plane: p, files: files, lookups: newLookups(xds.SystemResolver{}),
		clusters: map[string]*known{}, services: map[string]map[string]bool{}, assigned: map[string]translate.Assignment{}}
}

// Parse reads a resource, and says what else it needs before it can be at work.
func (s *source) Parse(k xds.Kind, b []byte) (xds.Resource, error) {
	switch k {
	case xds.Clusters:
		c, err := config.ParseCluster(b)
		if err != nil {
			return xds.Resource{}, err
		}
		r := xds.Resource{Name: c.Name, Value: c, Needs: secretsOf(clientSecrets(c.TLS)...)}
		if c.Discovery == translate.EDS {
			r.Needs = append(r.Needs, xds.Ref{Kind: xds.Endpoints, Name: c.Service})
		}
		return r, nil
	case xds.Endpoints:
		a, err := translate.ParseAssignment(b)
		return xds.Resource{Name: a.Name, Value: a}, err
	case xds.Listeners:
		l, err := config.ParseListener(b)
		if err != nil {
			return xds.Resource{}, err
		}
		return xds.Resource{Name: l.Name, Value: l, Needs: needsOf(l), Place: l.Address.String()}, nil
	case xds.Routes:
		r, err := config.ParseRoutes(b)
		if err != nil {
			return xds.Resource{}, err
		}
		return xds.Resource{Name: r.Name, Value: r, Needs: clustersOf(r)}, nil
	case xds.Secrets:
		x, err := config.ParseSecret(b, s.files)
		if err != nil {
			return xds.Resource{}, err
		}
		return xds.Resource{Name: x.Name, Value: x}, nil
	}
	return xds.Resource{}, fmt.Errorf("the proxy takes no %s", k)
}

func clientSecrets(t *config.ClientTLS) []string {
	if t == nil {
		return nil
	}
	return []string{t.Identity, t.Roots}
}

func secretsOf(names ...string) (out []xds.Ref) {
	for _, name := range names {
		if name != "" {
			out = append(out, xds.Ref{Kind: xds.Secrets, Name: name})
		}
	}
	return out
}

// needsOf are the resources that a listener names, each once.
func needsOf(l *config.Listener) (out []xds.Ref) {
	seen := map[xds.Ref]bool{}
	add := func(refs ...xds.Ref) {
		for _, r := range refs {
			if !seen[r] {
				seen[r] = true
				out = append(out, r)
			}
		}
	}
	chains := slices.Clone(l.Chains)
	if l.Default != nil {
		chains = append(chains, l.Default)
	}
	for _, c := range chains {
		if c.TLS != nil {
			add(secretsOf(c.TLS.Identity, c.TLS.Roots)...)
		}
		if c.TCP != nil {
			for _, w := range c.TCP.Clusters {
				add(xds.Ref{Kind: xds.Clusters, Name: w.Name})
			}
		}
		if c.HTTP != nil && c.HTTP.Routes != nil {
			add(clustersOf(c.HTTP.Routes)...)
		} else if c.HTTP != nil {
			add(xds.Ref{Kind: xds.Routes, Name: c.HTTP.RouteName})
		}
	}
	return out
}

func clustersOf(r *config.Routes) (out []xds.Ref) {
	seen := map[string]bool{}
	for i := range r.Hosts {
		for _, route := range r.Hosts[i].Routes {
			for _, w := range route.Clusters {
				if !seen[w.Name] {
					seen[w.Name] = true
					out = append(out, xds.Ref{Kind: xds.Clusters, Name: w.Name})
				}
			}
		}
	}
	return out
}

// Apply puts resources to work.
func (s *source) Apply(ctx context.Context, u xds.Update) []xds.Failure {
	s.mu.Lock()
	defer s.mu.Unlock()
	var c dataplane.Change
	touched := map[string]bool{} // clusters whose endpoints may be others
	for _, r := range u.Set {
		switch v := r.Value.(type) {
		case *config.Cluster:
			c.Clusters = append(c.Clusters, v)
			s.forget(v.Name)
			s.know(v)
			touched[v.Name] = true
		case translate.Assignment:
			s.assigned[v.Name] = v
			for name := range s.services[v.Name] {
				touched[name] = true
			}
		case *config.Listener:
			c.Listeners = append(c.Listeners, v)
		case *config.Routes:
			c.Routes = append(c.Routes, v)
		case *config.Secret:
			c.Secrets = append(c.Secrets, v)
			if s.onSecret != nil {
				s.onSecret(v)
			}
		}
	}
	for _, r := range u.Removed {
		switch r.Kind {
		case xds.Clusters:
			c.RemovedClusters = append(c.RemovedClusters, r.Name)
			s.forget(r.Name)
		case xds.Endpoints:
			delete(s.assigned, r.Name)
		case xds.Listeners:
			c.RemovedListeners = append(c.RemovedListeners, r.Name)
		case xds.Routes:
			c.RemovedRoutes = append(c.RemovedRoutes, r.Name)
		case xds.Secrets:
			c.RemovedSecrets = append(c.RemovedSecrets, r.Name)
		}
	}
	for name := range touched {
		k := s.clusters[name]
		if k == nil {
			continue
		}
		if k.Discovery == translate.DNS {
			s.lookUp(ctx, k)
			continue
		}
		c.Endpoints = append(c.Endpoints, dataplane.Endpoints{Cluster: name, Targets: s.targets(k)})
	}
	var failed []xds.Failure
	for _, f := range s.plane.Apply(c) {
		failed = append(failed, xds.Failure{Ref: xds.Ref{Kind: xds.Listeners, Name: f.Listener}, Err: f.Err})
	}
	return failed
}

func (s *source) targets(k *known) []mesh.Target {
	if k.Discovery == translate.EDS {
		return k.With(s.assigned[k.Service].Localities).Targets(nil)
	}
	return k.Known().Targets(nil)
}

// know takes a cluster in.
func (s *source) know(c *config.Cluster) {
	s.clusters[c.Name] = &known{Cluster: c}
	if c.Discovery == translate.EDS {
		if s.services[c.Service] == nil {
			s.services[c.Service] = map[string]bool{}
		}
		s.services[c.Service][c.Name] = true
	}
}

// forget takes a cluster away, and ends its look-ups.
func (s *source) forget(name string) {
	k := s.clusters[name]
	if k == nil {
		return
	}
	if k.stop != nil {
		k.stop()
	}
	if of := s.services[k.Service]; k.Discovery == translate.EDS {
		if delete(of, name); len(of) == 0 {
			delete(s.services, k.Service)
		}
	}
	delete(s.clusters, name)
}

// lookups are the look-ups of all clusters, of which xds.MaxLookups run at a time: a control plane may name any number
// of hosts.
type lookups struct {
	resolver xds.Resolver
	running  chan struct{}
}

func newLookups(r xds.Resolver) lookups { return lookups{r, make(chan struct{}, xds.MaxLookups)} }

// lookupTimeout bounds one look-up, once it runs.
const lookupTimeout = 5 * time.Second

// find looks up a host name: the first xds.MaxAddresses of its addresses, in order.
func (l lookups) find(ctx context.Context, host string) ([]netip.Addr, error) {
	select {
	case l.running <- struct{}{}:
		defer func() { <-l.running }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	list, _, err := l.resolver.Lookup(ctx, host)
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.Clone(list[:min(len(list), xds.MaxAddresses)]), err // so that the rest is not kept
}

// lookUp keeps the addresses of a cluster's host names up to date until the cluster or ctx ends. Names that are not
// found keep the addresses they had.
func (s *source) lookUp(ctx context.Context, k *known) {
	ctx, k.stop = context.WithCancel(ctx)
	s.running.Go(func() {
		found := map[string][]netip.Addr{}
		wait := time.NewTimer(0)
		defer wait.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-wait.C:
			}
			changed := false
			for _, host := range k.Hosts {
				list, err := s.lookups.find(ctx, host)
				if err == nil && !slices.Equal(list, found[host]) {
					found[host], changed = list, true
				}
			}
			if changed {
				s.found(k, found)
			}
			wait.Reset(max(k.Refresh, time.Second))
		}
	})
}

func (s *source) found(k *known, addresses map[string][]netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.clusters[k.Name] != k {
		return
	}
	targets := k.At(func(host string) []netip.Addr { return addresses[host] }).Targets(nil)
	s.plane.Apply(dataplane.Change{Endpoints: []dataplane.Endpoints{{Cluster: k.Name, Targets: targets}}})
}

// close ends all look-ups.
func (s *source) close() {
	s.mu.Lock()
	for name := range s.clusters {
		s.forget(name)
	}
	s.mu.Unlock()
	s.running.Wait()
}
