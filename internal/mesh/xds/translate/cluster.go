package translate

import (
	"cmp"
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

	"tare/internal/mesh"
)

// Discovery determines how the endpoints of a cluster are found.
type Discovery uint8

// The supported ways to find endpoints.
const (
	Static   Discovery = iota // the cluster contains its endpoints
	EDS                       // the endpoints are a separate resource
	DNS                       // the cluster has host names, all of whose addresses are endpoints (STRICT_DNS)
	Original                  // no endpoints: connections go to their original destination (ORIGINAL_DST)
)

// Family determines which addresses of a host name become endpoints.
type Family uint8

// The families. If a name has no address of a preferred family, addresses of the other family are used.
const (
	PreferIPv6 Family = iota
	PreferIPv4
	OnlyIPv4
	OnlyIPv6
	AllFamilies
)

// Cluster is a cluster whose endpoints may still have to be found.
type Cluster struct {
	Name      string
	Discovery Discovery

	Service string        // EDS: the name of the resource with the endpoints
	Wait    time.Duration // EDS: how long to wait for the first endpoints; 0: without limit

	Hosts   []string // DNS: the names to look up, without duplicates
	Family  Family
	Refresh time.Duration // DNS: interval of look-ups

	Warnings []*Warning

	self      bool            // the cluster is the workload itself, behind its own listener
	weighted  bool            // the weights of localities apply
	named     [][]string      // DNS: the host name of each endpoint, by locality; empty if the endpoint has an IP address
	cluster   mesh.Cluster    // without localities
	endpoints []mesh.Locality // of the cluster itself; an endpoint with a host name has only a port
}

// Defaults of the protocol.
const (
	defaultConnectTimeout = 5 * time.Second
	defaultRefresh        = 5 * time.Second
	defaultWait           = 15 * time.Second
)

// minRefresh is the protocol's lower bound, itself excluded, of the interval between look-ups of a name.
const minRefresh = time.Millisecond

// With returns an EDS cluster with the endpoints of an assignment.
func (c *Cluster) With(l []mesh.Locality) *mesh.Cluster {
	out := c.cluster
	out.Localities = c.weighs(l)
	return &out
}

// Empty reports whether the cluster is a static one without endpoints.
func (c *Cluster) Empty() bool { return c.Discovery == Static && len(c.endpoints) == 0 }

// Known returns a static cluster with its endpoints.
func (c *Cluster) Known() *mesh.Cluster { return c.With(c.endpoints) }

// At returns a DNS cluster with the addresses of its host names.
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

// choose returns those reachable addresses that f selects, sorted and without duplicates.
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

// weighs returns the localities without their weights, unless the cluster enables weights of localities; Envoy ignores
// them, too. It does not modify the list.
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

// ParseCluster parses a Cluster.
func ParseCluster(b []byte) (*Cluster, error) {
	var m clusterv3.Cluster
	c := &Cluster{}
	var err error
	if c.Warnings, err = read("cluster", b, &m, m.GetName, func(r reader) { c.read(&m, r) }); err != nil {
		return nil, err
	}
	return c, nil
}

// unheeded maps fields of a cluster to warnings. The fields change how endpoints and their health are determined, which
// of the endpoints is preferred, or how connections are kept, but not where a connection may go.
var unheeded = map[protoreflect.Name]string{
	"outlier_detection":                        "endpoints that fail are not ejected",
	"health_checks":                            "endpoints are not checked: the control plane provides their health",
	"upstream_connection_options":              "keep-alive and other options of sockets are left to the application",
	"upstream_bind_config":                     "connections leave from the application's own address",
	"max_requests_per_connection":              "connections are never ended",
	"preconnect_policy":                        "no connection is made ahead",
	"close_connections_on_host_health_failure": "connections are never ended",
	"ignore_health_on_host_removal":            "an endpoint that is removed gets no new connections",
	"dns_jitter":                               "look-ups have no jitter",
	"dns_failure_refresh_rate":                 "a failed look-up is repeated at the usual interval",
	"least_request_lb_config":                  leastRequest,
	"ring_hash_lb_config":                      noAffinity,
	"maglev_lb_config":                         noAffinity,
}

// Warnings about policies that need more information than a program at connect() has.
const (
	leastRequest = "endpoints are chosen at random by weight: requests under way are not counted"
	noAffinity   = "endpoints are chosen at random by weight: a caller does not keep its endpoint"
)

// clusterFields are the fields of a cluster that the package uses, that cause a warning, or that can have no effect.
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

func (c *Cluster) read(m *clusterv3.Cluster, r reader) {
	m.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		what := unheeded[f.Name()]
		r.noteIf(what != "", string(f.Name()), "%s", what)
		return true
	})
	slices.SortFunc(*r.warnings, func(a, b *Warning) int { return strings.Compare(a.Field, b.Field) })
	r.only("", m, clusterFields...)
	c.Name, c.cluster.Name = m.GetName(), m.GetName()
	r.require(c.Name != "", "name", "is missing")
	c.cluster.ConnectTimeout = r.duration("connect_timeout", m.GetConnectTimeout(), defaultConnectTimeout)
	r.require(c.cluster.ConnectTimeout != 0, "connect_timeout", "must be more than 0 s")
	c.balancing(m, r)
	c.breakers(m.GetCircuitBreakers(), r.in("circuit_breakers"))
	c.transport(m, r)
	c.discovery(m, r)
}

func (c *Cluster) balancing(m *clusterv3.Cluster, r reader) {
	c.cluster.Policy = mesh.Random
	switch p := m.GetLbPolicy(); p {
	case clusterv3.Cluster_ROUND_ROBIN:
		c.cluster.Policy = mesh.RoundRobin
	case clusterv3.Cluster_RANDOM:
	case clusterv3.Cluster_LEAST_REQUEST:
		// Envoy chooses two endpoints at random and takes the less busy one. Without counts of requests, only the random
		// choice is left.
		r.note("lb_policy", "LEAST_REQUEST: %s", leastRequest)
	case clusterv3.Cluster_RING_HASH, clusterv3.Cluster_MAGLEV:
		r.note("lb_policy", "%s: %s", p, noAffinity)
	case clusterv3.Cluster_CLUSTER_PROVIDED:
		c.cluster.Policy = mesh.RoundRobin
		r.require(m.GetType() == clusterv3.Cluster_ORIGINAL_DST, "lb_policy",
			"%s is only for clusters of type ORIGINAL_DST", p)
	default:
		r.refuse("lb_policy", "%s is not supported", p)
	}
	r.only("round_robin_lb_config", m.GetRoundRobinLbConfig(), "slow_start_config")
	r.noteIf(m.GetRoundRobinLbConfig().GetSlowStartConfig() != nil, "round_robin_lb_config.slow_start_config",
		"new endpoints have their full weight at once")

	l := m.GetCommonLbConfig()
	r = r.in("common_lb_config")
	r.only("", l, "healthy_panic_threshold", "locality_weighted_lb_config", "update_merge_window", "zone_aware_lb_config",
		"close_connections_on_host_set_change", "ignore_new_hosts_until_first_hc", "consistent_hashing_lb_config")
	panics := l.GetHealthyPanicThreshold().GetValue()
	r.noteIf(panics != 0, "healthy_panic_threshold", "%v %%: endpoints that are not healthy never get connections", panics)
	r.noteIf(l.GetZoneAwareLbConfig() != nil, "zone_aware_lb_config",
		"each zone gets the share of its endpoints, wherever the caller is")
	r.noteIf(l.GetCloseConnectionsOnHostSetChange(), "close_connections_on_host_set_change",
		"connections are never ended")
	r.noteIf(l.GetIgnoreNewHostsUntilFirstHc(), "ignore_new_hosts_until_first_hc", "new endpoints get connections at once")
	r.only("locality_weighted_lb_config", l.GetLocalityWeightedLbConfig())
	c.weighted = l.GetLocalityWeightedLbConfig() != nil
}

func (c *Cluster) breakers(m *clusterv3.CircuitBreakers, r reader) {
	r.only("", m, "thresholds", "per_host_thresholds")
	r.noteIf(len(m.GetPerHostThresholds()) > 0, "per_host_thresholds", "connections of single endpoints are not limited")
	list := r.in("thresholds")
	given := false
	for i, t := range m.GetThresholds() {
		r := list.item(i)
		r.only("", t, "priority", "max_connections", "max_pending_requests", "max_requests", "max_retries",
			"track_remaining", "retry_budget", "max_connection_pools")
		r.noteIf(t.GetRetryBudget() != nil, "retry_budget", "nothing is retried")
		if t.GetPriority() != corev3.RoutingPriority_DEFAULT {
			continue // all connections have the default priority
		}
		r.require(!given, "priority", "DEFAULT is given twice")
		given = true
		c.cluster.Breakers = mesh.Breakers{
			MaxConnections: t.GetMaxConnections().GetValue(), MaxPending: t.GetMaxPendingRequests().GetValue(),
			MaxRequests: t.GetMaxRequests().GetValue(), MaxRetries: t.GetMaxRetries().GetValue(),
		}
		r.require(t.GetMaxConnections() == nil || c.cluster.Breakers.MaxConnections != 0, "max_connections",
			"must be 1 or more: leave out the endpoints of a cluster that takes no connections")
	}
}

const upstreamTLS = "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"

// httpOptions is the type of options for speaking HTTP to a cluster. They do not affect connections.
const httpOptions = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

func (c *Cluster) transport(m *clusterv3.Cluster, r reader) {
	filters, matches := r.in("filters"), r.in("transport_socket_matches")
	for i, f := range m.GetFilters() {
		if t := typeOf(f.GetTypedConfig()); !observing(t) {
			filters.item(i).check("", unsupported(f.GetName(), t))
		}
	}
	for i, m := range m.GetTransportSocketMatches() {
		s := m.GetTransportSocket()
		if rawSocket(s) == nil {
			continue
		}
		if t := typeOf(s.GetTypedConfig()); t != upstreamTLS {
			matches.item(i).check("transport_socket", unsupported(s.GetName(), t))
		}
		matches.item(i).note("", "endpoints that accept TLS are reached without it")
	}
	for name, a := range m.GetTypedExtensionProtocolOptions() {
		r.require(typeOf(a) == httpOptions, "typed_extension_protocol_options", "%s (%s) is not supported", clip(name),
			clip(typeOf(a)))
	}
	r.check("transport_socket", rawSocket(m.GetTransportSocket()))
}

// rawSocket refuses all transport sockets but the raw one.
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

func (c *Cluster) discovery(m *clusterv3.Cluster, r reader) {
	r.require(m.GetClusterType() == nil, "cluster_type", "%s is not supported", clip(m.GetClusterType().GetName()))
	switch m.GetType() {
	case clusterv3.Cluster_STATIC:
		c.Discovery = Static
	case clusterv3.Cluster_EDS:
		c.Discovery = EDS
	case clusterv3.Cluster_STRICT_DNS:
		c.Discovery = DNS
	case clusterv3.Cluster_LOGICAL_DNS:
		c.Discovery = DNS
		r.note("type", "LOGICAL_DNS: connections go to all addresses of the name, not only to the first")
	case clusterv3.Cluster_ORIGINAL_DST:
		c.Discovery = Original
		r.only("original_dst_lb_config", m.GetOriginalDstLbConfig())
		return
	default:
		r.refuse("type", "%s is not supported", m.GetType())
	}
	r.require(m.GetOriginalDstLbConfig() == nil, "original_dst_lb_config", "is only for clusters of type ORIGINAL_DST")
	if c.Discovery == EDS {
		r.require(m.GetLoadAssignment() == nil, "load_assignment", "is not for clusters of type EDS")
		c.eds(m.GetEdsClusterConfig(), r.in("eds_cluster_config"))
		return
	}
	r.require(m.GetEdsClusterConfig() == nil, "eds_cluster_config", "is only for clusters of type EDS")
	if m.GetLoadAssignment() == nil {
		// A static cluster without a load assignment has no endpoints, and refuses connections: control planes use such
		// clusters for destinations that are not allowed.
		r.require(c.Discovery == Static, "load_assignment", "is missing")
		return
	}
	c.endpoints, c.named = localities(m.GetLoadAssignment(), c.Discovery == DNS, r.in("load_assignment"))
	if c.Discovery == DNS && !r.failed() {
		c.dns(m, r)
	}
}

func (c *Cluster) eds(m *clusterv3.Cluster_EdsClusterConfig, r reader) {
	s := m.GetEdsConfig()
	r.require(m != nil, "", "is missing")
	r.only("", m, "eds_config", "service_name")
	r.require(s != nil, "eds_config", "is missing")
	r.only("eds_config", s, "ads", "self", "initial_fetch_timeout", "resource_api_version")
	r.require(s.GetAds() != nil || s.GetSelf() != nil, "eds_config", "must be ads or self")
	v := s.GetResourceApiVersion()
	r.require(v == corev3.ApiVersion_AUTO || v == corev3.ApiVersion_V3, "eds_config.resource_api_version",
		"%s is not supported", v)
	c.Wait = r.duration("eds_config.initial_fetch_timeout", s.GetInitialFetchTimeout(), defaultWait)
	c.Service = cmp.Or(m.GetServiceName(), c.Name)
}

const caresType = "envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig"

// resolver refuses resolvers other than the system's. Envoy's c-ares resolver uses the system's servers unless others
// are configured.
func resolver(config *corev3.TypedExtensionConfig, r reader) {
	if config == nil {
		return
	}
	if t := typeOf(config.GetTypedConfig()); t != caresType {
		r.check("", unsupported(config.GetName(), t))
		return
	}
	var m caresv3.CaresDnsResolverConfig
	r.check("typed_config", typed(config.GetTypedConfig(), &m))
	r.only("typed_config", &m, "udp_max_queries", "query_timeout_seconds", "query_tries", "rotate_nameservers",
		"max_udp_channel_duration", "reinit_channel_on_timeout")
}

func (c *Cluster) dns(m *clusterv3.Cluster, r reader) {
	resolver(m.GetTypedDnsResolverConfig(), r.in("typed_dns_resolver_config"))
	//nolint:staticcheck // deprecated, but control planes do not send cluster_type, which replaces it
	c.Refresh = r.duration("dns_refresh_rate", m.GetDnsRefreshRate(), defaultRefresh)
	r.require(c.Refresh > minRefresh, "dns_refresh_rate", "must be more than %v", minRefresh)
	families := map[clusterv3.Cluster_DnsLookupFamily]Family{
		clusterv3.Cluster_AUTO: PreferIPv6, clusterv3.Cluster_V4_PREFERRED: PreferIPv4, clusterv3.Cluster_V4_ONLY: OnlyIPv4,
		clusterv3.Cluster_V6_ONLY: OnlyIPv6, clusterv3.Cluster_ALL: AllFamilies,
	}
	var known bool
	c.Family, known = families[m.GetDnsLookupFamily()]
	r.require(known, "dns_lookup_family", "%s is not supported", m.GetDnsLookupFamily())
	sum := uint64(0)
	for i, list := range c.named {
		for j, host := range list {
			if host != "" && !slices.Contains(c.Hosts, host) {
				if c.Hosts = append(c.Hosts, host); len(c.Hosts) > maxHosts {
					r.refuse("load_assignment", "a cluster can have %d host names", maxHosts)
					return
				}
			}
			sum += uint64(c.endpoints[i].Endpoints[j].Weight)
		}
	}
	r.require(sum <= math.MaxUint32/maxAddresses, "load_assignment", "the weights of all endpoints are too much for 32 "+
		"bits, should each name have %d addresses", maxAddresses)
}

// Limits of a cluster with host names: the number of names, and the number of addresses used of each name.
const (
	maxHosts     = 1024
	maxAddresses = 256
)
