package translate

import (
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	caresv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/network/dns_resolver/cares/v3"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"tare/internal/mesh"
)

// Discovery is how the endpoints of a cluster are found.
type Discovery uint8

// The ways that are supported.
const (
	Static   Discovery = iota // they stand in the cluster
	EDS                       // they come as a resource of their own
	DNS                       // the cluster has host names, all of whose addresses are endpoints (STRICT_DNS)
	Original                  // there are none: connections go on where they were going (ORIGINAL_DST)
)

// Family is which addresses of a host name become endpoints.
type Family uint8

// The families. Preferred ones fall back on the other.
const (
	PreferIPv6 Family = iota
	PreferIPv4
	OnlyIPv4
	OnlyIPv6
	AllFamilies
)

// Cluster is a cluster whose endpoints may have to be found yet.
type Cluster struct {
	Name      string
	Discovery Discovery

	Service string        // EDS: the name of its endpoints
	Wait    time.Duration // EDS: for so long the cluster waits for its first endpoints; 0: until they come

	Hosts   []string // DNS: the names to look up, each once
	Family  Family
	Refresh time.Duration // between look-ups

	Warnings []*Warning

	self      bool // it is the workload itself, by its own listener
	weighted  bool // the weights of localities count
	named     [][]string
	cluster   mesh.Cluster // without what has to be found
	endpoints []mesh.Locality
}

// What the protocol sets where nothing else is given.
const (
	defaultConnectTimeout = 5 * time.Second
	defaultRefresh        = 5 * time.Second
	defaultWait           = 15 * time.Second
)

// minRefresh is the shortest time between look-ups of a name; the protocol has the same.
const minRefresh = time.Millisecond

// With is the cluster with the endpoints of an assignment (EDS).
func (c *Cluster) With(l []mesh.Locality) *mesh.Cluster {
	out := c.cluster
	out.Localities = c.weighs(l)
	return &out
}

// Empty says whether the cluster itself says that it has no endpoints.
func (c *Cluster) Empty() bool { return c.Discovery == Static && len(c.endpoints) == 0 }

// Known is a static cluster.
func (c *Cluster) Known() *mesh.Cluster { return c.With(c.endpoints) }

// At is a cluster of host names with their addresses.
func (c *Cluster) At(addresses func(host string) []netip.Addr) *mesh.Cluster {
	list := slices.Clone(c.endpoints)
	for i := range list {
		from := list[i].Endpoints
		list[i].Endpoints = make([]mesh.Endpoint, 0, len(from))
		for j, e := range from {
			if c.named[i][j] == "" {
				list[i].Endpoints = append(list[i].Endpoints, e)
				continue
			}
			for _, a := range c.Family.choose(addresses(c.named[i][j])) {
				e.Address = netip.AddrPortFrom(a, e.Address.Port())
				list[i].Endpoints = append(list[i].Endpoints, e)
			}
		}
	}
	return c.With(list)
}

// choose are the addresses of a family that can be connected to, each once and in order.
func (f Family) choose(all []netip.Addr) []netip.Addr {
	var four, six []netip.Addr
	for _, a := range all {
		switch a = a.Unmap().WithZone(""); {
		case !a.IsValid() || !reachable(a):
		case a.Is4():
			four = append(four, a)
		default:
			six = append(six, a)
		}
	}
	first, second := six, four
	switch f {
	case OnlyIPv4:
		first, second = four, nil
	case OnlyIPv6:
		second = nil
	case PreferIPv4:
		first, second = four, six
	case AllFamilies:
		first, second = slices.Concat(four, six), nil
	}
	if len(first) == 0 {
		first = second
	}
	slices.SortFunc(first, netip.Addr.Compare)
	return slices.Compact(first)
}

// weighs leaves out the weights of localities where the cluster does not say that they count, as Envoy does.
func (c *Cluster) weighs(list []mesh.Locality) []mesh.Locality {
	if c.weighted || !slices.ContainsFunc(list, func(l mesh.Locality) bool { return l.Weight != 0 }) {
		return list
	}
	list = slices.Clone(list)
	for i := range list {
		list[i].Weight = 0
	}
	return list
}

// ParseCluster reads a Cluster.
func ParseCluster(b []byte) (*Cluster, error) {
	var m clusterv3.Cluster
	if err := decode(b, &m); err != nil {
		return nil, Refused("cluster", Name(b), err)
	}
	c := &Cluster{Name: m.GetName(), cluster: mesh.Cluster{Name: m.GetName()}}
	var list []*Warning
	if err := c.read(&m, notes{list: &list}); err != nil {
		return nil, Refused("cluster", c.Name, err)
	}
	c.Warnings = warnings("cluster", c.Name, list)
	return c, nil
}

// unheeded are fields of a cluster that change how endpoints are found fit or connections are kept, and not where a
// connection may go.
var unheeded = map[protoreflect.Name]string{
	"outlier_detection":                        "endpoints that fail are not ejected",
	"health_checks":                            "nobody checks endpoints: their health is what the control plane says",
	"upstream_connection_options":              "keep-alive and other options of sockets are left to the application",
	"upstream_bind_config":                     "connections leave from the application's own address",
	"max_requests_per_connection":              "connections are never ended",
	"preconnect_policy":                        "no connection is made ahead",
	"close_connections_on_host_health_failure": "connections are never ended",
	"ignore_health_on_host_removal":            "an endpoint that is taken away gets no new connections",
	"dns_jitter":                               "look-ups have no jitter",
	"dns_failure_refresh_rate":                 "a look-up that fails is repeated as others are",
	"least_request_lb_config":                  leastRequest,
	"ring_hash_lb_config":                      noAffinity,
	"maglev_lb_config":                         noAffinity,
}

// What is lost of policies that need to know more than a program on connect() does.
const (
	leastRequest = "endpoints are chosen at random by weight: requests under way are not counted"
	noAffinity   = "endpoints are chosen at random by weight: callers do not keep theirs"
)

// clusterFields are those of a cluster that are read, or can have no effect.
var clusterFields = slices.Concat(slices.Collect(maps.Keys(unheeded)), []protoreflect.Name{
	"name", "type", "eds_cluster_config", "connect_timeout", "lb_policy", "load_assignment", "circuit_breakers",
	"common_lb_config", "dns_refresh_rate", "respect_dns_ttl", "dns_lookup_family", "transport_socket",
	"round_robin_lb_config", "typed_extension_protocol_options", "filters", "transport_socket_matches",
	"typed_dns_resolver_config", "original_dst_lb_config",
	// These have no effect on connections:
	"alt_stat_name", "metadata", "stats_matcher", "track_cluster_stats", "track_timeout_budgets",
	"per_connection_buffer_limit_bytes", "wait_for_warm_on_init", "http2_protocol_options", "protocol_selection",
	"common_http_protocol_options", "http_protocol_options", "cleanup_interval",
})

func (c *Cluster) read(m *clusterv3.Cluster, n notes) (err error) {
	m.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		if what := unheeded[f.Name()]; what != "" {
			n.in(string(f.Name())).note("%s", what)
		}
		return true
	})
	slices.SortFunc(*n.list, func(a, b *Warning) int { return strings.Compare(a.Field, b.Field) })
	if err := only(m, clusterFields...); err != nil {
		return err
	}
	if c.Name == "" {
		return in("name", refuse("is missing"))
	}
	if c.cluster.ConnectTimeout, err = duration(m.GetConnectTimeout()); err != nil {
		return in("connect_timeout", err)
	}
	if m.GetConnectTimeout() == nil {
		c.cluster.ConnectTimeout = defaultConnectTimeout
	} else if c.cluster.ConnectTimeout == 0 {
		return in("connect_timeout", refuse("must be more than 0 s"))
	}
	for _, step := range []func(*clusterv3.Cluster, notes) error{c.balancing, c.breakers, c.transport, c.discovery} {
		if err := step(m, n); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) balancing(m *clusterv3.Cluster, n notes) error {
	switch p := m.GetLbPolicy(); p {
	case clusterv3.Cluster_ROUND_ROBIN:
		c.cluster.Policy = mesh.RoundRobin
	case clusterv3.Cluster_RANDOM:
		c.cluster.Policy = mesh.Random
	case clusterv3.Cluster_LEAST_REQUEST:
		// Envoy's takes the less busy of two that it chooses at random: without the count, the random choice is left.
		c.cluster.Policy = mesh.Random
		n.in("lb_policy").note("LEAST_REQUEST: %s", leastRequest)
	case clusterv3.Cluster_RING_HASH, clusterv3.Cluster_MAGLEV:
		c.cluster.Policy = mesh.Random
		n.in("lb_policy").note("%s: %s", p, noAffinity)
	case clusterv3.Cluster_CLUSTER_PROVIDED:
		if m.GetType() != clusterv3.Cluster_ORIGINAL_DST {
			return in("lb_policy", refuse("%s is only for clusters of type ORIGINAL_DST", p))
		}
	default:
		return in("lb_policy", refuse("%s is not supported", p))
	}
	if r := m.GetRoundRobinLbConfig(); r != nil {
		if err := only(r, "slow_start_config"); err != nil {
			return in("round_robin_lb_config", err)
		}
		if r.GetSlowStartConfig() != nil {
			n.in("round_robin_lb_config.slow_start_config").note("new endpoints have their full weight at once")
		}
	}
	l := m.GetCommonLbConfig()
	if l == nil {
		return nil
	}
	n = n.in("common_lb_config")
	err := only(l, "healthy_panic_threshold", "locality_weighted_lb_config", "update_merge_window", "zone_aware_lb_config",
		"close_connections_on_host_set_change", "ignore_new_hosts_until_first_hc", "consistent_hashing_lb_config")
	if err != nil {
		return in("common_lb_config", err)
	}
	if p := l.GetHealthyPanicThreshold().GetValue(); p != 0 {
		n.in("healthy_panic_threshold").note("%v %%: endpoints that are not healthy are never asked", p)
	}
	if l.GetZoneAwareLbConfig() != nil {
		n.in("zone_aware_lb_config").note("zones get their endpoints' share, whoever asks")
	}
	if l.GetCloseConnectionsOnHostSetChange() {
		n.in("close_connections_on_host_set_change").note("connections are never ended")
	}
	if l.GetIgnoreNewHostsUntilFirstHc() {
		n.in("ignore_new_hosts_until_first_hc").note("new endpoints are asked at once")
	}
	if w := l.GetLocalityWeightedLbConfig(); w != nil {
		if err := only(w); err != nil {
			return in("common_lb_config", in("locality_weighted_lb_config", err))
		}
		c.weighted = true
	}
	return nil
}

func (c *Cluster) breakers(m *clusterv3.Cluster, n notes) error {
	if m.GetCircuitBreakers() == nil {
		return nil
	}
	if err := only(m.GetCircuitBreakers(), "thresholds", "per_host_thresholds"); err != nil {
		return in("circuit_breakers", err)
	}
	n = n.in("circuit_breakers")
	if len(m.GetCircuitBreakers().GetPerHostThresholds()) > 0 {
		n.in("per_host_thresholds").note("connections of single endpoints are not limited")
	}
	given := false
	for i, t := range m.GetCircuitBreakers().GetThresholds() {
		at := func(err error) error { return in("circuit_breakers", in("thresholds", item(i, err))) }
		err := only(t, "priority", "max_connections", "max_pending_requests", "max_requests", "max_retries",
			"track_remaining", "retry_budget", "max_connection_pools")
		if err != nil {
			return at(err)
		}
		if t.GetRetryBudget() != nil {
			n.in("thresholds").item(i).in("retry_budget").note("nothing is retried")
		}
		if t.GetPriority() != corev3.RoutingPriority_DEFAULT {
			continue // connections are all of the default priority
		}
		if given {
			return at(in("priority", refuse("DEFAULT is given twice")))
		}
		given = true
		b := &c.cluster.Breakers
		for _, limit := range []struct {
			field string
			from  *wrapperspb.UInt32Value
			to    *uint32
		}{
			{"max_connections", t.GetMaxConnections(), &b.MaxConnections},
			{"max_pending_requests", t.GetMaxPendingRequests(), &b.MaxPending},
			{"max_requests", t.GetMaxRequests(), &b.MaxRequests},
			{"max_retries", t.GetMaxRetries(), &b.MaxRetries},
		} {
			*limit.to = limit.from.GetValue()
			if limit.field == "max_connections" && limit.from != nil && *limit.to == 0 {
				return at(in(limit.field, refuse("must be 1 or more: a cluster that takes no connections is one "+
					"without endpoints")))
			}
		}
	}
	return nil
}

const upstreamTLS = "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"

// httpOptions are how HTTP is spoken to a cluster, which connections do not show.
const httpOptions = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

func (c *Cluster) transport(m *clusterv3.Cluster, n notes) error {
	for i, f := range m.GetFilters() {
		if t := typeOf(f.GetTypedConfig()); !observing(t) {
			return in("filters", item(i, unsupported(f.GetName(), t)))
		}
	}
	for i, s := range m.GetTransportSocketMatches() {
		if rawSocket(s.GetTransportSocket()) == nil {
			continue
		}
		if t := typeOf(s.GetTransportSocket().GetTypedConfig()); t != upstreamTLS {
			err := in("transport_socket", unsupported(s.GetTransportSocket().GetName(), t))
			return in("transport_socket_matches", item(i, err))
		}
		n.in("transport_socket_matches").item(i).note("endpoints that could be reached by TLS are reached without")
	}
	for name, a := range m.GetTypedExtensionProtocolOptions() {
		if typeOf(a) != httpOptions {
			return in("typed_extension_protocol_options", refuse("%s (%s) is not supported", clip(name), clip(typeOf(a))))
		}
	}
	return in("transport_socket", rawSocket(m.GetTransportSocket()))
}

// rawSocket refuses all transports but the plain one.
func rawSocket(s *corev3.TransportSocket) error {
	const raw = "envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer"
	switch {
	case s == nil:
		return nil
	case typeOf(s.GetTypedConfig()) != raw && (s.GetTypedConfig() != nil ||
		s.GetName() != "envoy.transport_sockets.raw_buffer"):
		return refuse("%s (%s) is not supported", clip(s.GetName()), clip(typeOf(s.GetTypedConfig())))
	}
	return only(s, "name", "typed_config")
}

func (c *Cluster) discovery(m *clusterv3.Cluster, n notes) (err error) {
	if m.GetClusterType() != nil {
		return in("cluster_type", refuse("%s is not supported", clip(m.GetClusterType().GetName())))
	}
	switch m.GetType() {
	case clusterv3.Cluster_STATIC:
		c.Discovery = Static
	case clusterv3.Cluster_EDS:
		c.Discovery = EDS
	case clusterv3.Cluster_STRICT_DNS:
		c.Discovery = DNS
	case clusterv3.Cluster_LOGICAL_DNS:
		c.Discovery = DNS
		n.in("type").note("LOGICAL_DNS: connections go to all addresses of the name, not only to the first")
	case clusterv3.Cluster_ORIGINAL_DST:
		c.Discovery = Original
		return in("original_dst_lb_config", only(m.GetOriginalDstLbConfig()))
	default:
		return in("type", refuse("%s is not supported", m.GetType()))
	}
	if m.GetOriginalDstLbConfig() != nil {
		return in("original_dst_lb_config", refuse("is only for clusters of type ORIGINAL_DST"))
	}
	if c.Discovery == EDS {
		if m.GetLoadAssignment() != nil {
			return in("load_assignment", refuse("is not for clusters of type EDS"))
		}
		return in("eds_cluster_config", c.eds(m.GetEdsClusterConfig()))
	}
	switch {
	case m.GetEdsClusterConfig() != nil:
		return in("eds_cluster_config", refuse("is only for clusters of type EDS"))
	case m.GetLoadAssignment() == nil && c.Discovery == Static:
		return nil // it has no endpoints, and refuses connections: so a control plane says that something is not allowed
	case m.GetLoadAssignment() == nil:
		return in("load_assignment", refuse("is missing"))
	}
	if c.endpoints, c.named, err = localities(m.GetLoadAssignment(), c.Discovery == DNS); err != nil {
		return in("load_assignment", err)
	}
	if c.Discovery == DNS {
		return c.dns(m)
	}
	return nil
}

func (c *Cluster) eds(m *clusterv3.Cluster_EdsClusterConfig) error {
	if m == nil {
		return refuse("is missing")
	}
	if err := only(m, "eds_config", "service_name"); err != nil {
		return err
	}
	s := m.GetEdsConfig()
	if s == nil {
		return in("eds_config", refuse("is missing"))
	}
	if err := only(s, "ads", "self", "initial_fetch_timeout", "resource_api_version"); err != nil {
		return in("eds_config", err)
	}
	if s.GetAds() == nil && s.GetSelf() == nil {
		return in("eds_config", refuse("must be ads or self"))
	}
	if v := s.GetResourceApiVersion(); v != corev3.ApiVersion_AUTO && v != corev3.ApiVersion_V3 {
		return in("eds_config", in("resource_api_version", refuse("%s is not supported", v)))
	}
	wait, err := duration(s.GetInitialFetchTimeout())
	if err != nil {
		return in("eds_config", in("initial_fetch_timeout", err))
	}
	if s.GetInitialFetchTimeout() == nil {
		wait = defaultWait
	}
	c.Wait = wait
	if c.Service = m.GetServiceName(); c.Service == "" {
		c.Service = c.Name
	}
	return nil
}

const caresType = "envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig"

// resolver refuses resolvers other than the system's. Envoy's c-ares asks the system's unless it is given others.
func resolver(config *corev3.TypedExtensionConfig) error {
	if config == nil {
		return nil
	}
	if t := typeOf(config.GetTypedConfig()); t != caresType {
		return unsupported(config.GetName(), t)
	}
	var m caresv3.CaresDnsResolverConfig
	if err := typed(config.GetTypedConfig(), &m); err != nil {
		return in("typed_config", err)
	}
	return in("typed_config", only(&m, "udp_max_queries", "query_timeout_seconds", "query_tries", "rotate_nameservers",
		"max_udp_channel_duration", "reinit_channel_on_timeout"))
}

func (c *Cluster) dns(m *clusterv3.Cluster) (err error) {
	if err := resolver(m.GetTypedDnsResolverConfig()); err != nil {
		return in("typed_dns_resolver_config", err)
	}
	//nolint:staticcheck // deprecated: what replaces it, cluster_type, is not what control planes send
	rate := m.GetDnsRefreshRate()
	if c.Refresh, err = duration(rate); err == nil && rate != nil && c.Refresh <= minRefresh {
		err = refuse("must be more than %v", minRefresh)
	}
	if err != nil {
		return in("dns_refresh_rate", err)
	}
	if c.Refresh == 0 {
		c.Refresh = defaultRefresh
	}
	families := map[clusterv3.Cluster_DnsLookupFamily]Family{
		clusterv3.Cluster_AUTO: PreferIPv6, clusterv3.Cluster_V4_PREFERRED: PreferIPv4, clusterv3.Cluster_V4_ONLY: OnlyIPv4,
		clusterv3.Cluster_V6_ONLY: OnlyIPv6, clusterv3.Cluster_ALL: AllFamilies,
	}
	var ok bool
	if c.Family, ok = families[m.GetDnsLookupFamily()]; !ok {
		return in("dns_lookup_family", refuse("%s is not supported", m.GetDnsLookupFamily()))
	}
	sum := uint64(0)
	for i, list := range c.named {
		for j, host := range list {
			if host != "" && !slices.Contains(c.Hosts, host) {
				if c.Hosts = append(c.Hosts, host); len(c.Hosts) > maxHosts {
					return in("load_assignment", refuse("a cluster can have %d host names", maxHosts))
				}
			}
			sum += uint64(c.endpoints[i].Endpoints[j].Weight)
		}
	}
	if sum > math.MaxUint32/maxAddresses {
		return in("load_assignment", refuse("the weights of all endpoints are too much for 32 bits, should each name have "+
			"%d addresses", maxAddresses))
	}
	return nil
}

// What bounds a cluster of host names: the names, and how many addresses of each are taken.
const (
	maxHosts     = 1024
	maxAddresses = 256
)
