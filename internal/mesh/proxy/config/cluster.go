package config

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	upstreamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"tare/internal/mesh/xds/translate"
)

// httpOptions is the key under which a cluster has its options of HTTP.
const httpOptions = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

// ParseCluster reads a Cluster: TLS and HTTP here, the rest as for every data plane.
func ParseCluster(b []byte) (*Cluster, error) {
	var m clusterv3.Cluster
	if err := translate.Decode(b, &m); err != nil {
		return nil, translate.Refused("cluster", translate.Name(b), err)
	}
	c := &Cluster{IdleTimeout: defaultIdle}
	if err := c.read(&m); err != nil {
		return nil, translate.Refused("cluster", m.GetName(), err)
	}
	rest, err := proto.Marshal(&m)
	if err != nil {
		return nil, translate.Refused("cluster", m.GetName(), translate.Refuse("it cannot be encoded again"))
	}
	if c.Cluster, err = translate.ParseCluster(rest); err != nil {
		return nil, err
	}
	if err := c.honoured(&m); err != nil {
		return nil, translate.Refused("cluster", c.Name, err)
	}
	known := c.Known()
	c.ConnectTimeout, c.MaxConnections = known.ConnectTimeout, int(known.Breakers.MaxConnections)
	return c, nil
}

// read takes what is of requests and of TLS out of m.
func (c *Cluster) read(m *clusterv3.Cluster) (err error) {
	if s := m.GetTransportSocket(); s != nil && translate.TypeOf(s.GetTypedConfig()) != rawType {
		if c.TLS, err = clientTLS(s); err != nil {
			return translate.In("transport_socket", err)
		}
		m.TransportSocket = nil
	}
	short := m.GetHttp2ProtocolOptions() //nolint:staticcheck // deprecated: the short way that many still use
	if short != nil {
		c.HTTP2, m.Http2ProtocolOptions = true, nil //nolint:staticcheck // deprecated: the same
	}
	for key, a := range m.GetTypedExtensionProtocolOptions() {
		if key != httpOptions {
			continue // for translate to refuse
		}
		if err := c.options(a); err != nil {
			return translate.In("typed_extension_protocol_options", translate.In("["+key+"]", err))
		}
		delete(m.TypedExtensionProtocolOptions, key)
	}
	// Endpoints that are not healthy are never asked, and those that are have their weight's share of requests,
	// however many of them are under way.
	if m.GetLbPolicy() == clusterv3.Cluster_LEAST_REQUEST {
		m.LbPolicy, m.LbConfig = clusterv3.Cluster_ROUND_ROBIN, nil
	}
	if l := m.GetCommonLbConfig(); l != nil {
		l.HealthyPanicThreshold = nil
	}
	return nil
}

// honoured refuses what is only a matter of words to a data plane that carries connections, or lets them pass.
func (c *Cluster) honoured(m *clusterv3.Cluster) error {
	for _, name := range []protoreflect.Name{"common_http_protocol_options", "http_protocol_options"} {
		if message := m.ProtoReflect(); message.Has(message.Descriptor().Fields().ByName(name)) {
			return translate.In(string(name), translate.Refuse("is not supported"))
		}
	}
	if c.Discovery == translate.Original {
		return translate.In("type", translate.Refuse("%s is not supported", m.GetType()))
	}
	if len(c.Warnings) > 0 {
		w := c.Warnings[0]
		return translate.In(w.Field, translate.Refuse("is not supported: %s", w.What))
	}
	return nil
}

// options reads which HTTP a cluster speaks.
func (c *Cluster) options(a *anypb.Any) error {
	var m upstreamv3.HttpProtocolOptions
	if err := translate.Decode(a.GetValue(), &m); err != nil {
		return err
	}
	if err := translate.Only(&m, "common_http_protocol_options", "upstream_http_protocol_options",
		"explicit_http_config", "use_downstream_protocol_config", "auto_config"); err != nil {
		return err
	}
	if u := m.GetUpstreamHttpProtocolOptions(); u != nil {
		if err := translate.Only(u, "auto_sni", "auto_san_validation"); err != nil {
			return translate.In("upstream_http_protocol_options", err)
		}
		if u.GetAutoSanValidation() {
			return translate.In("upstream_http_protocol_options",
				translate.In("auto_san_validation", translate.Refuse("is not supported")))
		}
	}
	common := m.GetCommonHttpProtocolOptions()
	if err := c.common(common); err != nil {
		return translate.In("common_http_protocol_options", err)
	}
	switch o := m.GetUpstreamProtocolOptions().(type) {
	case *upstreamv3.HttpProtocolOptions_ExplicitHttpConfig_:
		if err := translate.Only(o.ExplicitHttpConfig, "http_protocol_options", "http2_protocol_options"); err != nil {
			return translate.In("explicit_http_config", err)
		}
		c.HTTP2 = o.ExplicitHttpConfig.GetHttp2ProtocolOptions() != nil
	case *upstreamv3.HttpProtocolOptions_UseDownstreamProtocolConfig:
		return translate.In("use_downstream_protocol_config", translate.Refuse("is not supported"))
	case *upstreamv3.HttpProtocolOptions_AutoConfig:
		return translate.In("auto_config", translate.Refuse("is not supported"))
	}
	return nil
}

// common reads what is of both versions of HTTP.
func (c *Cluster) common(m *corev3.HttpProtocolOptions) (err error) {
	if m == nil {
		return nil
	}
	// Connections live for as long as they are used, and heads of responses are bounded anyway.
	if err := translate.Only(m, "idle_timeout", "max_headers_count", "max_response_headers_kb"); err != nil {
		return err
	}
	if m.GetIdleTimeout() != nil {
		c.IdleTimeout, err = translate.Duration(m.GetIdleTimeout())
	}
	return translate.In("idle_timeout", err)
}
