package controlplane

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/udp/udp_proxy/v3" // so that raw resources can have it
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/goccy/go-yaml"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"tare/internal/fault"
)

// Config is what a configuration file says: services in plain words, and resources as Envoy has them.
type Config struct {
	Services  []Service        `json:"services" yaml:"services"`
	Resources []map[string]any `json:"resources" yaml:"resources"` // each with its "@type"
}

// Service is an address and what serves it: endpoints of its own, or other services by weight. Without an address it is
// only there to be named by others.
type Service struct {
	Name           string            `json:"name" yaml:"name"`
	Address        string            `json:"address" yaml:"address"`
	Protocol       string            `json:"protocol" yaml:"protocol"` // tcp (default) or udp
	Policy         string            `json:"policy" yaml:"policy"`     // round-robin (default) or random
	MaxConnections uint32            `json:"max_connections" yaml:"max_connections"`
	ConnectTimeout string            `json:"connect_timeout" yaml:"connect_timeout"` // such as 250ms; default 5s
	Endpoints      []Endpoint        `json:"endpoints" yaml:"endpoints"`
	Zones          map[string]uint32 `json:"zones" yaml:"zones"` // weights of zones against each other
	Split          map[string]uint32 `json:"split" yaml:"split"` // other services and their weights
	Allow          []Rule            `json:"allow" yaml:"allow"` // only these connections
	Deny           []Rule            `json:"deny" yaml:"deny"`   // all but these
}

// Endpoint is one place that serves.
type Endpoint struct {
	Address  string `json:"address" yaml:"address"` // IP:port, or host:port, all of whose addresses serve
	Weight   uint32 `json:"weight" yaml:"weight"`   // default 1
	Health   string `json:"health" yaml:"health"`   // healthy (default), unhealthy or draining
	Priority uint32 `json:"priority" yaml:"priority"`
	Zone     string `json:"zone" yaml:"zone"`
}

// Rule is connections by where they come from and go to; what is empty holds for all.
type Rule struct {
	From  []string `json:"from" yaml:"from"`   // addresses or prefixes
	To    []string `json:"to" yaml:"to"`       // the same
	Ports []string `json:"ports" yaml:"ports"` // of the destination: 80, or 8000-8999
}

// maxFile bounds a configuration file: some 200,000 endpoints.
const maxFile = 64 << 20

const example = "services: [{name: web, address: 10.96.0.1:80, endpoints: [{address: 127.0.0.1:8080, weight: 3}]}]"

// ReadFile reads a configuration file.
func ReadFile(path string) (Resources, error) {
	const mend, what = "name a file with --config", "the configuration cannot be read"
	f, err := os.Open(path)
	if err != nil {
		return Resources{}, fault.Wrap(err, fault.Usage, path, mend, what)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("it has more than %d MiB", maxFile>>20)
	}
	if err != nil {
		return Resources{}, fault.Wrap(err, fault.Usage, path, mend, what)
	}
	return Parse(path, data)
}

// Parse makes resources of a configuration in YAML; name is the file's, for errors. What it does not know is a
// *fault.Error of code Usage.
func Parse(name string, data []byte) (Resources, error) {
	var c Config
	if line := tooDeep(data); line > 0 {
		return Resources{}, fault.New(fault.Usage, fmt.Sprintf("%s:%d", name, line), example, "brackets or lists are nested more than %d deep", maxDepth)
	}
	if err := yaml.UnmarshalWithOptions(data, &c, yaml.Strict()); err != nil && !errors.Is(err, io.EOF) {
		var at yaml.Error
		if errors.As(err, &at) && at.GetToken() != nil && at.GetToken().Position != nil {
			return Resources{}, fault.New(fault.Usage, fmt.Sprintf("%s:%d", name, at.GetToken().Position.Line), example, "%s", at.GetMessage())
		}
		return Resources{}, fault.New(fault.Usage, name, example, "%s", err)
	}
	r, err := c.Resolve()
	return r, fault.Wrap(err, fault.Usage, name, example, "the configuration is wrong")
}

// maxDepth is far more than a configuration needs. The YAML parser takes time by the square of the depth.
const maxDepth = 100

// tooDeep is the line at which brackets, or lists that begin on it ("- - -"), nest deeper than maxDepth; 0: none does.
func tooDeep(data []byte) int {
	brackets := 0
	for i, line := range bytes.Split(data, []byte("\n")) {
		lists := 0
		for rest, more := line, true; more; lists++ {
			rest, more = bytes.CutPrefix(bytes.TrimLeft(rest, " \t"), []byte("-"))
		}
		for _, c := range line {
			switch c {
			case '[', '{':
				brackets++
			case ']', '}':
				brackets = max(0, brackets-1)
			}
			if brackets > maxDepth || lists > maxDepth {
				return i + 1
			}
		}
	}
	return 0
}

// Resolve makes resources of a configuration.
func (c *Config) Resolve() (Resources, error) {
	var r Resources
	names := map[string]*Service{}
	for i := range c.Services {
		s := &c.Services[i]
		if s.Name == "" {
			return r, fmt.Errorf("services[%d]: name is missing", i)
		}
		if names[s.Name] != nil {
			return r, fmt.Errorf("service %s is given twice", s.Name)
		}
		names[s.Name] = s
	}
	for i := range c.Services {
		if err := c.Services[i].resolve(&r, names); err != nil {
			return r, fmt.Errorf("service %s: %w", c.Services[i].Name, err)
		}
	}
	for i, m := range c.Resources {
		if err := r.raw(m); err != nil {
			return r, fmt.Errorf("resources[%d]: %w", i, err)
		}
	}
	return r, nil
}

// raw adds a resource as Envoy has it. Whether a data plane can do it is not for the control plane to say.
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
	default:
		return fmt.Errorf("%s is none of clusters, endpoints and listeners", made.ProtoReflect().Descriptor().FullName())
	}
	return nil
}

func (s *Service) resolve(r *Resources, names map[string]*Service) error {
	to := []*tcpproxyv3.TcpProxy_WeightedCluster_ClusterWeight{{Name: s.Name, Weight: 1}}
	if len(s.Split) > 0 {
		if len(s.Endpoints) > 0 || s.MaxConnections > 0 || s.Policy != "" || s.ConnectTimeout != "" || len(s.Zones) > 0 {
			return errors.New("split: it has no endpoints of its own, and none of what belongs to them")
		}
		if s.Address == "" {
			return errors.New("split: it needs an address")
		}
		to = nil
		for _, name := range slices.Sorted(maps.Keys(s.Split)) {
			switch {
			case names[name] == nil || len(names[name].Split) > 0:
				return fmt.Errorf("split: there is no service %s with endpoints", name)
			case s.Split[name] == 0:
				return fmt.Errorf("split: %s: a weight must be 1 or more", name)
			}
			to = append(to, &tcpproxyv3.TcpProxy_WeightedCluster_ClusterWeight{Name: name, Weight: s.Split[name]})
		}
	} else if err := s.cluster(r); err != nil {
		return err
	}
	if s.Address == "" {
		if len(s.Allow)+len(s.Deny) > 0 || s.Protocol != "" {
			return errors.New("allow, deny and protocol need an address")
		}
		return nil
	}
	l, err := s.listener(to)
	if err != nil {
		return err
	}
	r.Listeners = append(r.Listeners, l)
	return nil
}

func (s *Service) cluster(r *Resources) error {
	c := &clusterv3.Cluster{Name: s.Name, ConnectTimeout: durationpb.New(5 * time.Second)}
	policy, ok := map[string]clusterv3.Cluster_LbPolicy{"": clusterv3.Cluster_ROUND_ROBIN, "round-robin": clusterv3.Cluster_ROUND_ROBIN, "random": clusterv3.Cluster_RANDOM}[s.Policy]
	if !ok {
		return fmt.Errorf("policy: %q is neither round-robin nor random", s.Policy)
	}
	c.LbPolicy = policy
	if s.ConnectTimeout != "" {
		d, err := time.ParseDuration(s.ConnectTimeout)
		if err != nil || d <= 0 {
			return fmt.Errorf("connect_timeout: %q is no duration such as 250ms", s.ConnectTimeout)
		}
		c.ConnectTimeout = durationpb.New(d)
	}
	if s.MaxConnections > 0 {
		c.CircuitBreakers = &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{MaxConnections: wrapperspb.UInt32(s.MaxConnections)}}}
	}
	c.CommonLbConfig = &clusterv3.Cluster_CommonLbConfig{HealthyPanicThreshold: &typev3.Percent{}}
	if len(s.Zones) > 0 {
		c.CommonLbConfig.LocalityConfigSpecifier = &clusterv3.Cluster_CommonLbConfig_LocalityWeightedLbConfig_{LocalityWeightedLbConfig: &clusterv3.Cluster_CommonLbConfig_LocalityWeightedLbConfig{}}
	}
	a, named, err := s.assignment()
	if err != nil {
		return err
	}
	r.Clusters = append(r.Clusters, c)
	if named {
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STRICT_DNS}
		c.LoadAssignment = a
		return nil
	}
	c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS}
	c.EdsClusterConfig = &clusterv3.Cluster_EdsClusterConfig{EdsConfig: &corev3.ConfigSource{ResourceApiVersion: corev3.ApiVersion_V3, ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}}}}
	r.Endpoints = append(r.Endpoints, a)
	return nil
}

// assignment is the endpoints of a service; named says whether any has a host name.
func (s *Service) assignment() (a *endpointv3.ClusterLoadAssignment, named bool, err error) {
	type place struct {
		priority uint32
		zone     string
	}
	a = &endpointv3.ClusterLoadAssignment{ClusterName: s.Name}
	localities := map[place]*endpointv3.LocalityLbEndpoints{}
	used := map[string]bool{}
	for i, e := range s.Endpoints {
		address, host, err := socket(e.Address, corev3.SocketAddress_TCP)
		if err != nil {
			return nil, false, fmt.Errorf("endpoints[%d]: %w", i, err)
		}
		named = named || host
		health, ok := map[string]corev3.HealthStatus{"": corev3.HealthStatus_HEALTHY, "healthy": corev3.HealthStatus_HEALTHY, "unhealthy": corev3.HealthStatus_UNHEALTHY, "draining": corev3.HealthStatus_DRAINING}[e.Health]
		if !ok {
			return nil, false, fmt.Errorf("endpoints[%d]: health: %q is none of healthy, unhealthy and draining", i, e.Health)
		}
		at := place{e.Priority, e.Zone}
		l := localities[at]
		if l == nil {
			l = &endpointv3.LocalityLbEndpoints{Priority: e.Priority}
			if e.Zone != "" {
				l.Locality = &corev3.Locality{Zone: e.Zone}
			}
			if w, given := s.Zones[e.Zone]; given {
				if w == 0 {
					return nil, false, fmt.Errorf("zones: %s: a weight must be 1 or more", e.Zone)
				}
				l.LoadBalancingWeight = wrapperspb.UInt32(w)
			}
			used[e.Zone] = true
			localities[at] = l
			a.Endpoints = append(a.Endpoints, l)
		}
		l.LbEndpoints = append(l.LbEndpoints, &endpointv3.LbEndpoint{HealthStatus: health, LoadBalancingWeight: wrapperspb.UInt32(max(1, e.Weight)),
			HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: address}}})
	}
	for zone := range s.Zones {
		if !used[zone] {
			return nil, false, fmt.Errorf("zones: there is no endpoint in %s", zone)
		}
	}
	for zone := range used {
		if _, given := s.Zones[zone]; len(s.Zones) > 0 && !given {
			return nil, false, fmt.Errorf("zones: zone %q has endpoints and no weight", zone)
		}
	}
	return a, named, nil
}

// socket is an address; named says whether its host is a name.
func socket(text string, protocol corev3.SocketAddress_Protocol) (a *corev3.Address, named bool, err error) {
	i := strings.LastIndexByte(text, ':')
	if i < 0 {
		return nil, false, fmt.Errorf("address: %q is no host:port", text)
	}
	port, err := strconv.ParseUint(text[i+1:], 10, 16)
	if err != nil || port == 0 {
		return nil, false, fmt.Errorf("address: %q has no port from 1 to 65535", text)
	}
	host := text[:i]
	if bare, ok := strings.CutPrefix(host, "["); ok {
		host = strings.TrimSuffix(bare, "]")
	}
	_, err = netip.ParseAddr(host)
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{Protocol: protocol, Address: host,
		PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(port)}}}}, err != nil, nil
}

func (s *Service) listener(to []*tcpproxyv3.TcpProxy_WeightedCluster_ClusterWeight) (*listenerv3.Listener, error) {
	protocol, ok := map[string]corev3.SocketAddress_Protocol{"": corev3.SocketAddress_TCP, "tcp": corev3.SocketAddress_TCP, "udp": corev3.SocketAddress_UDP}[s.Protocol]
	if !ok {
		return nil, fmt.Errorf("protocol: %q is neither tcp nor udp", s.Protocol)
	}
	address, named, err := socket(s.Address, protocol)
	if err == nil && named {
		err = fmt.Errorf("address: %q has no IP address", s.Address)
	}
	if err != nil {
		return nil, err
	}
	c := &listenerv3.FilterChain{}
	for _, r := range []struct {
		action rbacv3.RBAC_Action
		name   string
		rules  []Rule
	}{{rbacv3.RBAC_DENY, "deny", s.Deny}, {rbacv3.RBAC_ALLOW, "allow", s.Allow}} {
		if len(r.rules) == 0 {
			continue
		}
		all := &rbacv3.RBAC{Action: r.action, Policies: map[string]*rbacv3.Policy{}}
		for i, rule := range r.rules {
			p, err := rule.policy()
			if err != nil {
				return nil, fmt.Errorf("%s[%d]: %w", r.name, i, err)
			}
			all.Policies[fmt.Sprintf("%s-%d", r.name, i)] = p
		}
		if err := addFilter(c, "envoy.filters.network.rbac", &networkrbacv3.RBAC{StatPrefix: s.Name, Rules: all}); err != nil {
			return nil, err
		}
	}
	proxy := &tcpproxyv3.TcpProxy{StatPrefix: s.Name}
	if len(to) == 1 {
		proxy.ClusterSpecifier = &tcpproxyv3.TcpProxy_Cluster{Cluster: to[0].GetName()}
	} else {
		proxy.ClusterSpecifier = &tcpproxyv3.TcpProxy_WeightedClusters{WeightedClusters: &tcpproxyv3.TcpProxy_WeightedCluster{Clusters: to}}
	}
	proxy.IdleTimeout = durationpb.New(0)
	if err := addFilter(c, "envoy.filters.network.tcp_proxy", proxy); err != nil {
		return nil, err
	}
	return &listenerv3.Listener{Name: s.Name, Address: address, FilterChains: []*listenerv3.FilterChain{c}}, nil
}

func addFilter(c *listenerv3.FilterChain, name string, config proto.Message) error {
	var a anypb.Any
	if err := anypb.MarshalFrom(&a, config, proto.MarshalOptions{Deterministic: true}); err != nil {
		return fmt.Errorf("encoding %s: %w", name, err)
	}
	c.Filters = append(c.Filters, &listenerv3.Filter{Name: name, ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: &a}})
	return nil
}

// policy holds for connections from one of From, to one of To and of Ports.
func (r *Rule) policy() (*rbacv3.Policy, error) {
	p := &rbacv3.Policy{}
	from, err := ranges(r.From)
	if err != nil {
		return nil, fmt.Errorf("from: %w", err)
	}
	for _, x := range from {
		p.Principals = append(p.Principals, &rbacv3.Principal{Identifier: &rbacv3.Principal_DirectRemoteIp{DirectRemoteIp: x}})
	}
	if len(from) == 0 {
		p.Principals = []*rbacv3.Principal{{Identifier: &rbacv3.Principal_Any{Any: true}}}
	}
	var to, ports []*rbacv3.Permission
	all, err := ranges(r.To)
	if err != nil {
		return nil, fmt.Errorf("to: %w", err)
	}
	for _, x := range all {
		to = append(to, &rbacv3.Permission{Rule: &rbacv3.Permission_DestinationIp{DestinationIp: x}})
	}
	for _, text := range r.Ports {
		first, last, isRange := strings.Cut(text, "-")
		if !isRange {
			last = first
		}
		a, errA := strconv.ParseUint(first, 10, 16)
		b, errB := strconv.ParseUint(last, 10, 16)
		if errA != nil || errB != nil || a == 0 || a > b {
			return nil, fmt.Errorf("ports: %q is neither a port nor a range such as 8000-8999", text)
		}
		ports = append(ports, &rbacv3.Permission{Rule: &rbacv3.Permission_DestinationPortRange{DestinationPortRange: &typev3.Int32Range{Start: int32(a), End: int32(b) + 1}}})
	}
	either := func(list []*rbacv3.Permission) *rbacv3.Permission {
		return &rbacv3.Permission{Rule: &rbacv3.Permission_OrRules{OrRules: &rbacv3.Permission_Set{Rules: list}}}
	}
	switch {
	case len(to) > 0 && len(ports) > 0:
		p.Permissions = []*rbacv3.Permission{{Rule: &rbacv3.Permission_AndRules{AndRules: &rbacv3.Permission_Set{Rules: []*rbacv3.Permission{either(to), either(ports)}}}}}
	case len(to)+len(ports) > 0:
		p.Permissions = append(to, ports...)
	default:
		p.Permissions = []*rbacv3.Permission{{Rule: &rbacv3.Permission_Any{Any: true}}}
	}
	return p, nil
}

func ranges(list []string) (out []*corev3.CidrRange, err error) {
	for _, text := range list {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			a, also := netip.ParseAddr(text)
			if also != nil || a.Zone() != "" {
				return nil, fmt.Errorf("%q is neither an address nor a prefix such as 10.0.0.0/8", text)
			}
			p = netip.PrefixFrom(a, a.BitLen())
		}
		out = append(out, &corev3.CidrRange{AddressPrefix: p.Addr().String(), PrefixLen: wrapperspb.UInt32(uint32(p.Bits()))})
	}
	return out, nil
}
