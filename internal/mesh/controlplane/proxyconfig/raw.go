package proxyconfig

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"

	// Registers types that raw resources may use.
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stream/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/health_check/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/local_ratelimit/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/http_inspector/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_dst/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/proxy_protocol/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/proxy_protocol/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/raw_buffer/v3"
)

// Resources holds what one node receives. Messages are immutable, and nodes share those that they have in common.
type Resources struct {
	Clusters  []*clusterv3.Cluster
	Endpoints []*endpointv3.ClusterLoadAssignment
	Listeners []*listenerv3.Listener
	Routes    []*routev3.RouteConfiguration
	Secrets   []*tlsv3.Secret
}

// raw adds a resource in Envoy's format. It does not check whether a data plane supports it.
func (r *Resources) raw(m map[string]any) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	var a anypb.Any
	if err := protojson.Unmarshal(text, &a); err != nil {
		return err
	}
	made, err := a.UnmarshalNew()
	if err != nil {
		return err
	}
	switch made := made.(type) {
	case *clusterv3.Cluster:
		r.Clusters = append(r.Clusters, made)
	case *endpointv3.ClusterLoadAssignment:
		r.Endpoints = append(r.Endpoints, made)
	case *listenerv3.Listener:
		r.Listeners = append(r.Listeners, made)
	case *routev3.RouteConfiguration:
		r.Routes = append(r.Routes, made)
	case *tlsv3.Secret:
		r.Secrets = append(r.Secrets, made)
	default:
		return fmt.Errorf("%s is none of clusters, endpoints, listeners, routes and secrets",
			made.ProtoReflect().Descriptor().FullName())
	}
	return nil
}

// with returns the resources of r and those of more, and changes neither. Lists to which nothing is added are shared.
func (r Resources) with(more Resources) Resources {
	return Resources{
		join(r.Clusters, more.Clusters), join(r.Endpoints, more.Endpoints), join(r.Listeners, more.Listeners),
		join(r.Routes, more.Routes), join(r.Secrets, more.Secrets),
	}
}

func join[T any](a, b []T) []T {
	switch { // the results are clipped, so that appending to one copies it instead of changing a shared array
	case len(b) == 0:
		return slices.Clip(a)
	case len(a) == 0:
		return slices.Clip(b)
	}
	return slices.Concat(a, b)
}

// name is the type and name of a resource.
type name struct{ kind, name string }

// names calls add with each resource's name, and joins the errors.
func (r *Resources) names(add func(name) error) error {
	var err error
	for _, m := range r.Clusters {
		err = errors.Join(err, add(name{"cluster", m.GetName()}))
	}
	for _, m := range r.Endpoints {
		err = errors.Join(err, add(name{"endpoints of cluster", m.GetClusterName()}))
	}
	for _, m := range r.Listeners {
		err = errors.Join(err, add(name{"listener", m.GetName()}))
	}
	for _, m := range r.Routes {
		err = errors.Join(err, add(name{"route configuration", m.GetName()}))
	}
	for _, m := range r.Secrets {
		err = errors.Join(err, add(name{"secret", m.GetName()}))
	}
	return err
}

// once returns the names of the resources, or an error if a name occurs twice or is already in others, which may be
// nil.
func (r *Resources) once(others map[name]bool) (map[name]bool, error) {
	own := map[name]bool{}
	return own, r.names(func(n name) error {
		if own[n] || others[n] {
			return fmt.Errorf("%s %s is given twice", n.kind, n.name)
		}
		own[n] = true
		return nil
	})
}
