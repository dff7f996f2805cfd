package kernelmesh

import (
	"context"
	"fmt"
	"slices"

	"tare/internal/lib/fault"
	"tare/internal/mesh"
	"tare/internal/mesh/store"
)

// Source converts lists of services to changes of a configuration: each service is a listener and a cluster, both
// named by the protocol and the address ("tcp 10.96.0.1:80").
type Source struct {
	apply    func(context.Context, mesh.Change) (store.Work, error)
	services map[string]Service // as they were last applied
}

// NewSource makes a source that calls apply to make its changes.
func NewSource(apply func(context.Context, mesh.Change) (store.Work, error)) *Source {
	return &Source{apply: apply, services: map[string]Service{}}
}

// Changes counts what Set did.
type Changes struct {
	Added     int `json:"added"`
	Changed   int `json:"changed"`
	Removed   int `json:"removed"`
	Unchanged int `json:"unchanged"`
}

func (c Changes) String() string {
	return fmt.Sprintf("%d services added, %d changed, %d removed, %d unchanged", c.Added, c.Changed, c.Removed,
		c.Unchanged)
}

// Set replaces the configuration with the given services, by one change that contains only the differences. If services
// are invalid or do not fit, the error is a *fault.Error of code Usage, and nothing changes.
func (s *Source) Set(ctx context.Context, services []Service) (Changes, error) {
	var done Changes
	var change mesh.Change
	next := make(map[string]Service, len(services))
	for _, x := range services {
		name := x.String()
		if err := x.check(); err != nil {
			return done, fault.New(fault.Usage, "", "", "%s", err)
		}
		if _, twice := next[name]; twice {
			return done, fault.New(fault.Usage, "", "", "service %s is given twice", x)
		}
		x.Endpoints = slices.Clone(x.Endpoints)
		next[name] = x
		before, was := s.services[name]
		switch {
		case !was:
			done.Added++
			change.Listeners = append(change.Listeners, x.listener())
		case equal(before.Endpoints, x.Endpoints):
			done.Unchanged++
			continue
		default:
			done.Changed++
		}
		change.Clusters = append(change.Clusters, x.cluster())
	}
	for name := range s.services {
		if _, stays := next[name]; !stays {
			done.Removed++
			change.RemovedListeners = append(change.RemovedListeners, name)
			change.RemovedClusters = append(change.RemovedClusters, name)
		}
	}
	if done.Unchanged == len(services) && done.Removed == 0 {
		return done, nil
	}
	slices.Sort(change.RemovedListeners)
	slices.Sort(change.RemovedClusters)
	if _, err := s.apply(ctx, change); err != nil {
		return Changes{}, err
	}
	s.services = next
	return done, nil
}

// listener returns the service's listener, which sends all connections to its cluster.
func (s Service) listener() *mesh.Listener {
	all := mesh.Proxy{Clusters: []mesh.WeightedCluster{{Name: s.String(), Weight: 1}}}
	return &mesh.Listener{Name: s.String(), Address: canonical(s.Address), Protocol: s.Protocol,
		Default: &mesh.Chain{Proxy: all}}
}

func (s Service) cluster() *mesh.Cluster {
	c := &mesh.Cluster{Name: s.String()}
	if len(s.Endpoints) == 0 {
		return c
	}
	endpoints := make([]mesh.Endpoint, len(s.Endpoints))
	for i, e := range s.Endpoints {
		endpoints[i] = mesh.Endpoint{Address: canonical(e.Address), Weight: e.Weight}
	}
	c.Localities = []mesh.Locality{{Endpoints: endpoints}}
	return c
}

func equal(a, b []Endpoint) bool {
	return slices.EqualFunc(a, b, func(a, b Endpoint) bool {
		return a.Weight == b.Weight && canonical(a.Address) == canonical(b.Address)
	})
}
