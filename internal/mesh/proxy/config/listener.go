package config

import (
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	httprouterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_dst/v3" // so that JSON can name it
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/proto"

	"tare/internal/mesh"
	"tare/internal/mesh/xds/translate"
)

// The filters that are supported, by the types of their configuration.
const (
	tcpProxyType      = "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy"
	networkRBACType   = "envoy.extensions.filters.network.rbac.v3.RBAC"
	httpType          = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
	httpRBACType      = "envoy.extensions.filters.http.rbac.v3.RBAC"
	routerType        = "envoy.extensions.filters.http.router.v3.Router"
	tlsInspectorType  = "envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector"
	httpInspectorType = "envoy.extensions.filters.listener.http_inspector.v3.HttpInspector"
	originalType      = "envoy.extensions.filters.listener.original_dst.v3.OriginalDst"
)

// What the protocol sets where nothing else is given.
const (
	defaultIdle       = time.Hour
	defaultStreamIdle = 5 * time.Minute
	defaultHead       = 60 << 10
	maxHead           = 8 << 20
	defaultStreams    = 1024
	// defaultHeadTimeout is ours: the protocol lets a client take for ever to send a request's head.
	defaultHeadTimeout = 15 * time.Second
)

// ParseListener reads a Listener.
func ParseListener(b []byte) (*Listener, error) {
	var m listenerv3.Listener
	if err := translate.Decode(b, &m); err != nil {
		return nil, translate.Refused("listener", translate.Name(b), err)
	}
	l := &Listener{Name: m.GetName()}
	if err := l.read(&m); err != nil {
		return nil, translate.Refused("listener", l.Name, err)
	}
	return l, nil
}

func (l *Listener) read(m *listenerv3.Listener) error {
	err := translate.Only(
		m,
		"name",
		"address",
		"filter_chains",
		"default_filter_chain",
		"listener_filters",
		"transparent",
		// These have no effect here:
		"stat_prefix",
		"stats_matcher",
		"metadata",
		"traffic_direction",
		"access_log",
		"per_connection_buffer_limit_bytes",
		"drain_type",
		"enable_reuse_port",
		"tcp_backlog_size",
		"ignore_global_conn_limit",
		"bypass_overload_manager",
		"max_connections_to_accept_per_socket_event",
		"listener_filters_timeout",
		"continue_on_listener_filters_timeout",
	)
	if err != nil {
		return err
	}
	if l.Name == "" {
		return translate.In("name", translate.Refuse("is missing"))
	}
	address, protocol, err := translate.Address(m.GetAddress())
	if err == nil && protocol != corev3.SocketAddress_TCP {
		err = translate.In(
			"socket_address",
			translate.In("protocol", translate.Refuse("%s is not supported", protocol)),
		)
	}
	if err != nil {
		return translate.In("address", err)
	}
	l.Address = address
	l.Transparent = m.GetTransparent().GetValue()
	for i, f := range m.GetListenerFilters() {
		switch t := translate.TypeOf(f.GetTypedConfig()); t {
		case tlsInspectorType, httpInspectorType: // how a connection begins is found out where it matters
		case originalType:
			l.Original = true
		default:
			return translate.In("listener_filters", translate.Item(i, translate.Unsupported(f.GetName(), t)))
		}
	}
	l.Continue = m.GetContinueOnListenerFiltersTimeout()
	if l.Hello, err = translate.Duration(m.GetListenerFiltersTimeout()); err != nil {
		return translate.In("listener_filters_timeout", err)
	}
	seen := map[string]bool{}
	for i, from := range m.GetFilterChains() {
		c, err := chain(from)
		for _, key := range c.For.keys() {
			if err == nil && seen[key] {
				err = translate.In("filter_chain_match", translate.Refuse("another chain has the same"))
			}
			seen[key] = true
		}
		if err != nil {
			return translate.In("filter_chains", translate.Item(i, err))
		}
		l.Chains = append(l.Chains, c)
	}
	if from := m.GetDefaultFilterChain(); from != nil {
		if l.Default, err = chain(from); err == nil && proto.Size(from.GetFilterChainMatch()) > 0 {
			err = translate.In(
				"filter_chain_match",
				translate.Refuse("the default chain is for whatever no other matches"),
			)
		}
		if err != nil {
			return translate.In("default_filter_chain", err)
		}
	}
	if len(l.Chains) == 0 && l.Default == nil {
		return translate.In("filter_chains", translate.Refuse("is missing"))
	}
	return nil
}

func chain(m *listenerv3.FilterChain) (c *Chain, err error) {
	c = &Chain{Name: m.GetName()}
	if err := translate.Only(m, "filter_chain_match", "filters", "transport_socket", "name", "metadata",
		"transport_socket_connect_timeout"); err != nil {
		return c, err
	}
	if c.For, err = selection(m.GetFilterChainMatch()); err != nil {
		return c, translate.In("filter_chain_match", err)
	}
	if s := m.GetTransportSocket(); s != nil && translate.TypeOf(s.GetTypedConfig()) != rawType {
		if c.TLS, err = serverTLS(s); err != nil {
			return c, translate.In("transport_socket", err)
		}
	}
	for i, f := range m.GetFilters() {
		if err := c.filter(f, i == len(m.GetFilters())-1); err != nil {
			return c, translate.In("filters", translate.Item(i, err))
		}
	}
	return c, nil
}

func (c *Chain) filter(f *listenerv3.Filter, last bool) (err error) {
	kind := translate.TypeOf(f.GetTypedConfig())
	switch kind {
	case tcpProxyType, httpType:
		if !last {
			return translate.Refuse("it must be the last filter")
		}
	case networkRBACType:
		if last {
			return translate.Refuse("nothing comes after it")
		}
		a, err := networkRBAC(f.GetTypedConfig())
		if a != nil {
			c.Access = append(c.Access, a)
		}
		return translate.In("typed_config", err)
	default:
		return translate.Unsupported(f.GetName(), kind)
	}
	if err := translate.Only(f, "name", "typed_config"); err != nil {
		return err
	}
	b := f.GetTypedConfig().GetValue()
	if kind == tcpProxyType {
		var m tcpproxyv3.TcpProxy
		if err = translate.Decode(b, &m); err == nil {
			c.TCP, err = tcp(&m)
		}
		return translate.In("typed_config", err)
	}
	var m hcmv3.HttpConnectionManager
	if err = translate.Decode(b, &m); err == nil {
		c.HTTP, err = manager(&m)
	}
	return translate.In("typed_config", err)
}

func tcp(m *tcpproxyv3.TcpProxy) (*TCP, error) {
	// Clusters are connected to after the handshake and the rules, and nothing is read before, whatever the mode.
	if err := translate.Only(m, "stat_prefix", "cluster", "weighted_clusters", "max_connect_attempts", "idle_timeout",
		"access_log", "access_log_flush_interval", "flush_access_log_on_connected", "access_log_options",
		"upstream_connect_mode", "max_early_data_bytes"); err != nil {
		return nil, err
	}
	t := &TCP{Idle: defaultIdle, Attempts: 1}
	var err error
	if m.GetIdleTimeout() != nil {
		if t.Idle, err = translate.Duration(m.GetIdleTimeout()); err != nil {
			return nil, translate.In("idle_timeout", err)
		}
	}
	if a := m.GetMaxConnectAttempts(); a != nil {
		if t.Attempts = int(min(a.GetValue(), maxRetries)); t.Attempts == 0 {
			return nil, translate.In("max_connect_attempts", translate.Refuse("must be 1 or more"))
		}
	}
	w := m.GetWeightedClusters()
	if w == nil {
		if m.GetCluster() == "" {
			return nil, translate.In("cluster", translate.Refuse("is missing"))
		}
		t.Clusters = []mesh.WeightedCluster{{Name: m.GetCluster(), Weight: 1}}
		return t, nil
	}
	if err := translate.Only(w, "clusters"); err != nil {
		return nil, translate.In("weighted_clusters", err)
	}
	total := uint64(0)
	for i, c := range w.GetClusters() {
		err := translate.Only(c, "name", "weight")
		switch {
		case err != nil:
		case c.GetName() == "":
			err = translate.In("name", translate.Refuse("is missing"))
		case c.GetWeight() == 0:
			err = translate.In("weight", translate.Refuse("must be 1 or more"))
		}
		if total += uint64(c.GetWeight()); err == nil && total > 1<<32-1 {
			err = translate.In("weight", translate.Refuse("the weights of all clusters are too much for 32 bits"))
		}
		if err != nil {
			return nil, translate.In("weighted_clusters", translate.In("clusters", translate.Item(i, err)))
		}
		t.Clusters = append(t.Clusters, mesh.WeightedCluster{Name: c.GetName(), Weight: c.GetWeight()})
	}
	if len(t.Clusters) == 0 {
		return nil, translate.In("weighted_clusters", translate.In("clusters", translate.Refuse("is missing")))
	}
	return t, nil
}

// manager reads a proxy of requests.
func manager(m *hcmv3.HttpConnectionManager) (*HTTP, error) {
	err := translate.Only(
		m,
		"codec_type",
		"rds",
		"route_config",
		"http_filters",
		"common_http_protocol_options",
		"http_protocol_options",
		"http2_protocol_options",
		"server_name",
		"max_request_headers_kb",
		"stream_idle_timeout",
		"request_headers_timeout",
		"normalize_path",
		"merge_slashes",
		"path_with_escaped_slashes_action",
		"server_header_transformation",
		"use_remote_address",
		"skip_xff_append",
		"generate_request_id",
		"forward_client_cert_details",
		// These have no effect here:
		"stat_prefix",
		"access_log",
		"access_log_options",
		"tracing",
		"drain_timeout",
		"delayed_close_timeout",
		"request_timeout",
		"stream_error_on_invalid_http_message",
		"internal_address_config",
		"strip_trailing_host_dot",
		"xff_num_trusted_hops",
	)
	switch {
	case err != nil:
	case m.GetForwardClientCertDetails() != hcmv3.HttpConnectionManager_SANITIZE:
		err = translate.In("forward_client_cert_details", translate.Refuse("must be SANITIZE"))
	case m.GetCodecType() == hcmv3.HttpConnectionManager_HTTP3:
		err = translate.In("codec_type", translate.Refuse("HTTP3 is not supported"))
	}
	if err != nil {
		return nil, err
	}
	h := &HTTP{
		IdleTimeout: defaultIdle,
		HeadTimeout: defaultHeadTimeout,
		StreamIdle:  defaultStreamIdle,
		MaxHead:     defaultHead,
		MaxStreams:  defaultStreams,
		Normalize:   m.GetNormalizePath().GetValue(),
		Merge:       m.GetMergeSlashes(),
		Edge:        m.GetUseRemoteAddress().GetValue(),
	}
	switch a := m.GetPathWithEscapedSlashesAction(); a {
	case hcmv3.HttpConnectionManager_IMPLEMENTATION_SPECIFIC_DEFAULT, hcmv3.HttpConnectionManager_KEEP_UNCHANGED:
	case hcmv3.HttpConnectionManager_REJECT_REQUEST:
		h.Reject = true
	default:
		return nil, translate.In("path_with_escaped_slashes_action", translate.Refuse("%s is not supported", a))
	}
	if k := m.GetMaxRequestHeadersKb(); k != nil {
		if h.MaxHead = int(k.GetValue()) << 10; h.MaxHead == 0 || h.MaxHead > maxHead {
			return nil, translate.In(
				"max_request_headers_kb",
				translate.Refuse("must be 1 to %d, not %d", maxHead>>10, k.GetValue()),
			)
		}
	}
	if n := m.GetHttp2ProtocolOptions().GetMaxConcurrentStreams(); n != nil {
		h.MaxStreams = max(1, n.GetValue())
	}
	if d := m.GetCommonHttpProtocolOptions().GetIdleTimeout(); d != nil {
		if h.IdleTimeout, err = translate.Duration(d); err != nil {
			return nil, translate.In("common_http_protocol_options", translate.In("idle_timeout", err))
		}
	}
	if d := m.GetStreamIdleTimeout(); d != nil {
		if h.StreamIdle, err = translate.Duration(d); err != nil {
			return nil, translate.In("stream_idle_timeout", err)
		}
	}
	if d := m.GetRequestHeadersTimeout(); d != nil {
		if h.HeadTimeout, err = translate.Duration(d); err != nil {
			return nil, translate.In("request_headers_timeout", err)
		}
	}
	if err := h.filters(m.GetHttpFilters()); err != nil {
		return nil, translate.In("http_filters", err)
	}
	return h, h.routes(m)
}

func (h *HTTP) filters(list []*hcmv3.HttpFilter) error {
	for i, f := range list {
		err := translate.Only(f, "name", "typed_config")
		kind := translate.TypeOf(f.GetTypedConfig())
		switch {
		case err != nil:
		case kind == routerType && i == len(list)-1:
			var m httprouterv3.Router
			if err = translate.Decode(f.GetTypedConfig().GetValue(), &m); err == nil {
				// Nothing is counted for others, logged or traced here, and no headers of Envoy's own are added.
				err = translate.In(
					"typed_config",
					translate.Only(&m, "dynamic_stats", "start_child_span", "upstream_log",
						"upstream_log_options", "suppress_envoy_headers"),
				)
			}
			if err == nil {
				return nil
			}
		case kind == httpRBACType:
			var a *Access
			if a, err = httpRBAC(f.GetTypedConfig()); a != nil {
				h.Access = append(h.Access, a)
			}
			err = translate.In("typed_config", err)
		default:
			err = translate.Unsupported(f.GetName(), kind)
		}
		if err != nil {
			return translate.Item(i, err)
		}
	}
	return translate.Refuse("the last must be a router")
}

func (h *HTTP) routes(m *hcmv3.HttpConnectionManager) (err error) {
	switch r := m.GetRouteSpecifier().(type) {
	case *hcmv3.HttpConnectionManager_RouteConfig:
		h.Routes, err = routes(r.RouteConfig)
		return translate.In("route_config", err)
	case *hcmv3.HttpConnectionManager_Rds:
		err = translate.Only(r.Rds, "config_source", "route_config_name")
		if err == nil {
			err = translate.In("config_source", source(r.Rds.GetConfigSource()))
		}
		if h.RouteName = r.Rds.GetRouteConfigName(); err == nil && h.RouteName == "" {
			err = translate.In("route_config_name", translate.Refuse("is missing"))
		}
		return translate.In("rds", err)
	}
	return translate.In("rds", translate.Refuse("is missing"))
}
