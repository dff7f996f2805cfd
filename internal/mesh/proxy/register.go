package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strconv"

	"tare/internal/experiment/process"
	"tare/internal/lib/param"
	"tare/internal/lib/self"
	"tare/internal/mesh/redirect"
	"tare/internal/mesh/sidecar"
	"tare/internal/mesh/sidecar/driven"
)

func init() { sidecar.Register(guest{}) }

// guest is the proxy as package sidecar knows it: the tare binary, configured by a file or over xDS.
type guest struct{}

// About is sidecar.Proxy's.
func (guest) About() sidecar.About {
	return sidecar.About{Name: "proxy", Summary: "Tare's own small proxy as sidecars (net/http, crypto/tls)",
		Hint: "name a tare binary by its path, or leave it out: Tare is its own proxy", Settings: ownSettings}
}

// Version is sidecar.Proxy's.
func (guest) Version(context.Context, string) string { return self.Version }

// Check is sidecar.Checker's.
func (guest) Check(o param.Values) error {
	_, err := OptionsOf(o)
	return err
}

// Takes is sidecar.Redirectable's.
func (g guest) Takes(way string, o param.Values) error {
	if g.Driven(o) && redirect.Unchanged(way) {
		return fmt.Errorf("with \"%s: %s\" the proxy hears of its listeners when it is no longer root, and \"redirect: %s\" needs "+
			"root (CAP_NET_ADMIN): write \"%s: %s\", or \"redirect: %s\"", settingControl, byXDS, way, settingControl, byFile,
			redirect.IPTables)
	}
	return nil
}

// The files in a proxy's directory, beside those of its certificate.
const (
	configFile = "proxy.json"
	statsFile  = "stats.sock"
)

// Driven is sidecar.Driven's.
func (guest) Driven(o param.Values) bool { return o[settingControl] == byXDS }

// Drive is sidecar.Driven's: the same control plane as Envoy's, told the same.
func (guest) Drive(ctx context.Context, d sidecar.Drive) (any, error) { return driven.Start(ctx, d) }

// Command is sidecar.Proxy's.
func (g guest) Command(p sidecar.Place) (process.Command, error) {
	from, err := g.configured(p)
	if err != nil {
		return process.Command{}, err
	}
	program := p.Program
	if p.Options["program"] == "" {
		program = p.Self
	}
	return process.Command{
		Argv: append([]string{
			program, "subject", "proxy", "--human", "--workers=" + strconv.Itoa(p.Workers),
			"--gc-percent=" + p.Options["gc-percent"], "--stats=" + statsFile,
			"--uid=" + strconv.Itoa(p.UID), "--gid=" + strconv.Itoa(p.GID),
		}, from...),
		Dir: p.Dir,
	}, nil
}

// configured gives the arguments that say where the proxy's configuration comes from, and writes the file where that is
// one.
func (g guest) configured(p sidecar.Place) ([]string, error) {
	if !g.Driven(p.Options) {
		b, err := resourcesOf(p)
		if err != nil {
			return nil, err
		}
		return []string{"--config=" + configFile}, sidecar.WriteFile(p.Dir, configFile, b)
	}
	plane, err := driven.Of(p)
	if err != nil {
		return nil, err
	}
	args := []string{"--xds=" + plane.Address, "--node=" + driven.Node(p)}
	if p.AcceptTLS || p.DialTLS { // else the mesh has no certificates, and the control plane serves in the clear
		args = append(args, "--credentials="+plane.Credentials(p))
	}
	return args, nil
}

// Own is sidecar.Teller's: the proxy's counters.
func (guest) Own(ctx context.Context, p sidecar.Place) (map[string]float64, error) {
	c, err := sidecar.DialIn(ctx, p.Dir, statsFile)
	if err != nil {
		return nil, fmt.Errorf("asking the proxy: %w", err)
	}
	defer c.Close()
	b, err := io.ReadAll(io.LimitReader(c, 1<<16))
	if err != nil {
		return nil, fmt.Errorf("asking the proxy: %w", err)
	}
	own := map[string]float64{}
	if err := json.Unmarshal(b, &own); err != nil {
		return nil, fmt.Errorf("reading what the proxy says: %w", err)
	}
	return own, nil
}

// typeURL is what names of messages begin with.
const typeURL = "type.googleapis.com/envoy."

type (
	fields   = map[string]any
	elements = []any
)

// resourcesOf is the configuration of a proxy in Envoy's form. TLS is as for the other proxies: see
// docs/mesh-proxies.md.
func resourcesOf(p sidecar.Place) ([]byte, error) {
	resources, err := serviceOf(p, hop{name: "to", peer: p.Peer, listen: p.Listen, to: p.To, from: p.From})
	if err != nil {
		return nil, err
	}
	for _, o := range p.Others {
		more, err := serviceOf(p, hop{name: o.Name, peer: o.Identity, listen: o.Listen, to: o.To})
		if err != nil {
			return nil, err
		}
		resources = append(resources, more...)
	}
	if p.AcceptTLS || p.DialTLS {
		const kind = typeURL + "extensions.transport_sockets.tls.v3.Secret"
		identity := fields{"filename": sidecar.IdentityFile}
		resources = append(
			resources,
			fields{
				"@type":           kind,
				"name":            "identity",
				"tls_certificate": fields{"certificate_chain": identity, "private_key": identity},
			},
			fields{
				"@type":              kind,
				"name":               "roots",
				"validation_context": fields{"trusted_ca": fields{"filename": sidecar.RootsFile}},
			},
		)
	}
	return json.MarshalIndent(fields{"resources": resources}, "", "  ")
}

// hop is where requests of a service come to and go, the SPIFFE ID of the peer, and the address whose connections are
// redirected to listen; empty: none.
type hop struct{ name, peer, listen, to, from string }

// serviceOf is the cluster of a service, and its listener where it is called through the proxy.
func serviceOf(p sidecar.Place, s hop) (elements, error) {
	to := socketOf(s.to)
	if to == nil {
		return nil, errNoAddress
	}
	cluster := fields{"@type": typeURL + "config.cluster.v3.Cluster", "name": s.name, "connect_timeout": "5s",
		"load_assignment": fields{"cluster_name": s.name, "endpoints": elements{fields{"lb_endpoints": elements{
			fields{"endpoint": fields{"address": to}}}}}}}
	if sidecar.OverHTTP2(p.Protocol) {
		cluster["typed_extension_protocol_options"] = fields{
			"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": fields{
				"@type":                typeURL + "extensions.upstreams.http.v3.HttpProtocolOptions",
				"explicit_http_config": fields{"http2_protocol_options": fields{}},
			},
		}
	}
	if p.DialTLS {
		cluster["transport_socket"] = fields{
			"name": "tls",
			"typed_config": fields{"@type": typeURL + "extensions.transport_sockets.tls.v3.UpstreamTlsContext",
				"sni": p.PeerName, "max_session_keys": 0, "common_tls_context": tlsOf(p, fields{"exact": s.peer})},
		}
	}
	if s.listen == "" {
		return elements{cluster}, nil
	}
	listen := socketOf(s.listen)
	if listen == nil {
		return nil, errNoAddress
	}
	chain := fields{"filters": elements{filterOf(p, s.name)}}
	if p.AcceptTLS {
		from := fields{"exact": s.peer}
		if len(p.Rules) > 0 { // which judge every request
			from = fields{"prefix": "spiffe://"}
		}
		chain["transport_socket"] = fields{
			"name": "tls",
			"typed_config": fields{"@type": typeURL + "extensions.transport_sockets.tls.v3.DownstreamTlsContext",
				"require_client_certificate": true, "disable_stateless_session_resumption": true,
				"common_tls_context": tlsOf(p, from)},
		}
	}
	in := fields{"@type": typeURL + "config.listener.v3.Listener", "name": "in-" + s.name, "address": listen,
		"filter_chains": elements{chain}}
	if s.from != "" {
		if err := redirected(s.from, p.Transparent, in, chain); err != nil {
			return nil, err
		}
	}
	return elements{cluster, in}, nil
}

// redirected has a listener take connections that were made to another address, and close all others.
func redirected(address string, transparent bool, listener, chain fields) error {
	from, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("reading where connections were going: %w", err)
	}
	listener["listener_filters"] = elements{fields{"name": "original_dst", "typed_config": fields{
		"@type": typeURL + "extensions.filters.listener.original_dst.v3.OriginalDst"}}}
	listener["transparent"] = transparent
	chain["filter_chain_match"] = fields{
		"destination_port": from.Port(),
		"prefix_ranges":    elements{fields{"address_prefix": from.Addr().String(), "prefix_len": from.Addr().BitLen()}},
	}
	return nil
}

var errNoAddress = errors.New("the proxy's addresses must be IP addresses with a port")

// rulesOf is the filter by which requests are judged: policies are looked through in the order of their names.
func rulesOf(p sidecar.Place) fields {
	policies := fields{}
	for i, id := range p.Rules {
		policies[fmt.Sprintf("rule-%05d", i)] = fields{
			"permissions": elements{fields{"any": true}},
			"principals":  elements{fields{"authenticated": fields{"principal_name": fields{"exact": id}}}},
		}
	}
	return fields{"name": "rbac", "typed_config": fields{
		"@type": typeURL + "extensions.filters.http.rbac.v3.RBAC",
		"rules": fields{"action": "ALLOW", "policies": policies},
	}}
}

func filterOf(p sidecar.Place, cluster string) fields {
	if p.Protocol == sidecar.ProtocolTCP {
		return fields{
			"name": "tcp",
			"typed_config": fields{"@type": typeURL + "extensions.filters.network.tcp_proxy.v3.TcpProxy",
				"stat_prefix": "in", "cluster": cluster},
		}
	}
	filters := elements{fields{"name": "router", "typed_config": fields{
		"@type": typeURL + "extensions.filters.http.router.v3.Router"}}}
	if len(p.Rules) > 0 {
		filters = elements{rulesOf(p), filters[0]}
	}
	return fields{"name": "http", "typed_config": fields{
		"@type":       typeURL + "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
		"stat_prefix": "in", "stream_idle_timeout": "0s",
		"route_config": fields{
			"name": "routes",
			"virtual_hosts": elements{fields{"name": "all", "domains": elements{"*"}, "routes": elements{
				fields{"match": fields{"prefix": "/"}, "route": fields{"cluster": cluster, "timeout": "0s"}}}}},
		},
		"http_filters": filters,
	}}
}

// tlsOf is what both sides of mutual TLS have. The peer's SPIFFE ID must match.
func tlsOf(p sidecar.Place, peer fields) fields {
	ask := func(name string) fields { return fields{"name": name} }
	c := fields{
		"tls_params": fields{
			"tls_minimum_protocol_version": "TLSv1_3",
			"ecdh_curves":                  elements{"X25519"},
		},
		"tls_certificate_sds_secret_configs": elements{ask("identity")},
		"combined_validation_context": fields{
			"validation_context_sds_secret_config": ask("roots"),
			"default_validation_context": fields{
				"match_typed_subject_alt_names": elements{
					fields{"san_type": "URI", "matcher": peer},
				}},
		},
	}
	switch {
	case sidecar.OverHTTP2(p.Protocol):
		c["alpn_protocols"] = elements{"h2"}
	case p.Protocol == sidecar.ProtocolHTTP:
		c["alpn_protocols"] = elements{"http/1.1"}
	}
	return c
}

// socketOf is an address in Envoy's form; nil where it is none.
func socketOf(address string) fields {
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil
	}
	return fields{"socket_address": fields{"address": a.Addr().String(), "port_value": a.Port()}}
}
