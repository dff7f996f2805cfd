package config

import (
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"tare/test/vm/guest"
)

func encoded(t testing.TB, text string, m proto.Message) []byte {
	t.Helper()
	if err := protojson.Unmarshal([]byte(text), m); err != nil {
		t.Fatalf("%s: %s", text, err)
	}
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestRefusals: what the proxy cannot do is refused by resource and field.
func TestRefusals(t *testing.T) {
	guest.KernelFree(t)
	const at = `"name": "l", "address": {"socket_address": {"address": "127.0.0.1", "port_value": 1}}`
	const tcp = `{"name": "t", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy", ` +
		`"stat_prefix": "x", "cluster": "c"}}`
	listener := func(b []byte) error { _, err := ParseListener(b); return err }
	routes := func(b []byte) error { _, err := ParseRoutes(b); return err }
	secret := func(b []byte) error { _, err := ParseSecret(b, false); return err }
	for _, c := range []struct {
		read func([]byte) error
		m    proto.Message
		text string
		want string
	}{
		{listener, &listenerv3.Listener{}, `{` + at + `}`, `listener "l": filter_chains: is missing`},
		{listener, &listenerv3.Listener{}, `{` + at + `, "use_original_dst": true, "filter_chains": [{}]}`,
			`listener "l": use_original_dst: is not supported`},
		{listener, &listenerv3.Listener{}, `{` + at + `, "filter_chains": [{}, {}]}`,
			`listener "l": filter_chains[1].filter_chain_match: another chain has the same`},
		{listener, &listenerv3.Listener{}, `{` + at + `, "filter_chains": [{"filters": [` + tcp + `, ` + tcp + `]}]}`,
			`listener "l": filter_chains[0].filters[0]: it must be the last filter`},
		{listener, &listenerv3.Listener{}, `{` + at + `, "filter_chains": [{"filter_chain_match": {"server_names": ["x"]}}]}`,
			`listener "l": filter_chains[0].filter_chain_match.server_names: is not supported`},
		{routes, &routev3.RouteConfiguration{}, `{"name": "r", "virtual_hosts": [{"name": "v", "domains": ["*"], "routes": ` +
			`[{"match": {"safe_regex": {"regex": "(x{900})"}}, "route": {"cluster": "c"}}]}]}`,
			`routes "r": virtual_hosts[0].routes[0].match.safe_regex.regex: repeats too much`},
		{secret, &tlsv3.Secret{}, `{"name": "s", "tls_certificate": {"certificate_chain": {"inline_string": "x"}, ` +
			`"private_key": {"inline_string": "` + strings.Repeat("k", maxKey+1) + `"}}}`,
			`secret "s": tls_certificate.private_key: has 8193 bytes; the proxy takes 8192`},
		{secret, &tlsv3.Secret{}, `{"name": "s", "validation_context": {"trusted_ca": {"inline_string": "` +
			strings.Repeat("k", maxFile+1) + `"}}}`,
			`secret "s": validation_context.trusted_ca.inline_string: has 1048577 bytes; the proxy takes 1048576`},
		{routes, &routev3.RouteConfiguration{}, `{"name": "r", "virtual_hosts": [{"name": "v"}]}`,
			`routes "r": virtual_hosts[0].domains: is missing`},
		{routes, &routev3.RouteConfiguration{}, `{"name": "r", "virtual_hosts": [{"name": "v", "domains": ["*"], "routes": ` +
			`[{"match": {"safe_regex": {"regex": "("}}, "route": {"cluster": "c"}}]}]}`,
			`routes "r": virtual_hosts[0].routes[0].match.safe_regex.regex: "(" is no regular expression`},
		{routes, &routev3.RouteConfiguration{}, `{"name": "r", "virtual_hosts": [{"name": "v", "domains": ["*"], "routes": ` +
			`[{"match": {"prefix": "/"}, "route": {"cluster": "c", "hash_policy": [{}]}}]}]}`,
			`routes "r": virtual_hosts[0].routes[0].route.hash_policy: is not supported`},
		{routes, &routev3.RouteConfiguration{}, `{"name": "r", "virtual_hosts": [{"name": "v", "domains": ["*"], "routes": ` +
			`[{"match": {"prefix": "/"}, "route": {"cluster": "c", "prefix_rewrite": "/ HTTP/1.1\r\nX: y"}}]}]}`,
			`routes "r": virtual_hosts[0].routes[0].route.prefix_rewrite: has a blank or a control character`},
		{routes, &routev3.RouteConfiguration{}, `{"name": "r", "virtual_hosts": [{"name": "v", "domains": ["*"], "routes": ` +
			`[{"match": {"prefix": "/"}, "route": {"cluster": "c", "host_rewrite_literal": "a\nX: y"}}]}]}`,
			`routes "r": virtual_hosts[0].routes[0].route.host_rewrite_literal: has a blank or a control character`},
		{secret, &tlsv3.Secret{}, `{"name": "s", "tls_certificate": {"private_key": {"inline_string": "-----BEGIN PRIVATE KEY-----\nTOPSECRET"}, ` +
			`"certificate_chain": {"inline_string": "none"}}}`,
			`secret "s": tls_certificate: certificate and key make no pair`},
		{secret, &tlsv3.Secret{}, `{"name": "s", "tls_certificate": {"certificate_chain": {"filename": "/etc/passwd"}}}`,
			`secret "s": tls_certificate.certificate_chain.filename: a control plane may name no files`},
	} {
		err := c.read(encoded(t, c.text, c.m))
		if err == nil || !strings.HasPrefix(err.Error(), c.want) || strings.Contains(err.Error(), "TOPSECRET") {
			t.Errorf("%s: %v, want %s", c.text, err, c.want)
		}
	}
}

// TestAccess: conditions on who calls and what, nested and negated.
func TestAccess(t *testing.T) {
	guest.KernelFree(t)
	var m rbacv3.RBAC
	encoded(t, `{"policies": {"p": {
		"permissions": [{"and_rules": {"rules": [{"header": {"name": ":method", "string_match": {"exact": "GET"}}},
			{"not_rule": {"url_path": {"path": {"prefix": "/admin"}}}}, {"destination_port_range": {"start": 80, "end": 90}}]}}],
		"principals": [{"authenticated": {"principal_name": {"suffix": "/sa/web"}}}, {"direct_remote_ip": {"address_prefix": "10.0.0.0", "prefix_len": 8}}]}}}`, &m)
	a, err := access(&m, true)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		method, path, name, remote string
		port                       uint16
		authenticated, want        bool
	}{
		{"GET", "/", "spiffe://d/ns/n/sa/web", "192.0.2.1", 80, true, true},
		{"GET", "/", "spiffe://d/ns/n/sa/web", "192.0.2.1", 80, false, false},
		{"GET", "/", "spiffe://d/ns/n/sa/other", "192.0.2.1", 80, true, false},
		{"GET", "/", "", "10.1.2.3", 80, false, true},
		{"POST", "/", "", "10.1.2.3", 80, false, false},
		{"GET", "/admin/x", "", "10.1.2.3", 80, false, false},
		{"GET", "/", "", "10.1.2.3", 90, false, false},
	} {
		call := &Call{
			Request:       &http.Request{Method: c.method, URL: &url.URL{}},
			Path:          c.path,
			Names:         []string{c.name},
			Authenticated: c.authenticated,
			Remote: netip.AddrPortFrom(
				netip.MustParseAddr(c.remote),
				1,
			),
			Local: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), c.port),
		}
		if got := a.Passes(call); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	if _, err := access(&m, false); err == nil || !strings.Contains(err.Error(), "a connection has no headers") {
		t.Errorf("headers of a connection: %v", err)
	}
	deep := &rbacv3.Permission{Rule: &rbacv3.Permission_Any{Any: true}}
	for range 2 * maxDepth {
		deep = &rbacv3.Permission{Rule: &rbacv3.Permission_NotRule{NotRule: deep}}
	}
	m.Policies["p"].Permissions = []*rbacv3.Permission{deep}
	if _, err := access(&m, true); err == nil || !strings.Contains(err.Error(), "nested more than") {
		t.Errorf("nested without end: %v", err)
	}
}

// TestSelect: the port of the destination, the narrowest of its ranges, then the transport, then the narrowest source.
func TestSelect(t *testing.T) {
	guest.KernelFree(t)
	prefix := func(s string) []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix(s)} }
	l := &Listener{Default: &Chain{Name: "default"}, Chains: []*Chain{
		{Name: "wide", For: Selection{To: prefix("10.0.0.0/8")}},
		{Name: "narrow from", For: Selection{To: prefix("10.1.0.0/16"), From: prefix("192.0.2.0/24")}},
		{Name: "tls", For: Selection{Transport: TLS}},
		{Name: "plain from", For: Selection{Transport: Plain, From: prefix("192.0.2.0/24")}},
		{Name: "port", For: Selection{To: prefix("10.0.0.0/8"), Port: 81}},
	}}
	for _, c := range []struct {
		to, from string
		secure   bool
		want     string
	}{
		{"10.2.0.1:80", "192.0.2.1", false, "wide"},
		{"10.1.0.1:80", "192.0.2.1", true, "narrow from"},
		{"10.1.0.1:80", "198.51.100.1", false, "default"}, // what was chosen by destination is not taken back
		{"10.1.0.1:81", "192.0.2.1", true, "port"},
		{"127.0.0.1:81", "192.0.2.1", true, "default"},
		{"127.0.0.1:80", "198.51.100.1", true, "tls"},
		{"127.0.0.1:80", "192.0.2.1", false, "plain from"},
		{"127.0.0.1:80", "198.51.100.1", false, "default"},
	} {
		got := l.Select(netip.MustParseAddrPort(c.to), netip.MustParseAddr(c.from), c.secure)
		if got.Name != c.want {
			t.Errorf("%+v: %s", c, got.Name)
		}
	}
}

// TestHosts: exact before suffix before prefix before any.
func TestHosts(t *testing.T) {
	guest.KernelFree(t)
	r, err := ParseRoutes(encoded(t, `{"name": "r", "virtual_hosts": [
		{"name": "any", "domains": ["*"]}, {"name": "exact", "domains": ["a.b.c"]}, {"name": "suffix", "domains": ["*.c"]},
		{"name": "longer", "domains": ["*.b.c"]}, {"name": "prefix", "domains": ["a.*"]}]}`, &routev3.RouteConfiguration{}))
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]string{"A.b.C": "exact", "x.b.c": "longer", "x.c": "suffix", "a.x": "prefix", "x": "any", "": "any"} {
		if h := r.host(host); h.Name != want {
			t.Errorf("%q: %s, want %s", host, h.Name, want)
		}
	}
}

// wildcards has n domains of 1 to 61 letters, in no order.
func wildcards(n int) *Routes {
	h := Host{Name: "v"}
	for i := range n {
		text := fmt.Sprintf("%07x", i) + strings.Repeat("x", i*7%61)
		h.Domains = append(h.Domains, "*"+text, text+"*")
	}
	return &Routes{Hosts: []Host{h}}
}

// TestManyWildcards: the longest come first, those of a length in the order of the configuration; and putting sixteen
// times as many in this order does not take the square of that.
func TestManyWildcards(t *testing.T) {
	guest.KernelFree(t)
	r := wildcards(1000)
	r.prepare()
	for name, list := range map[string][]wildcard{"suffixes": r.index.suffixes, "prefixes": r.index.prefixes} {
		if len(list) != 1000 {
			t.Fatalf("%d %s", len(list), name)
		}
		for i := 1; i < len(list); i++ {
			a, b := list[i-1].text, list[i].text
			if len(a) < len(b) || len(a) == len(b) && a > b { // that is the order in which they were given
				t.Errorf("%s: %q before %q", name, a, b)
			}
		}
	}
	// The CPU time of this thread, so that other work does not count; the least of several, so that a collection of
	// garbage does not either.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cost := func(n int) time.Duration {
		least := time.Duration(math.MaxInt64)
		for range 3 {
			r := wildcards(n)
			began := threadTime(t)
			r.prepare()
			least = min(least, threadTime(t)-began)
		}
		return least
	}
	const n, factor = 4000, 16
	few, many := cost(n), cost(n*factor)
	if ratio := float64(many) / float64(few); ratio > 5*factor {
		t.Errorf("%d wildcards take %s, and %d take %s: %.0f times as long", n, few, n*factor, many, ratio)
	}
}

func threadTime(t *testing.T) time.Duration {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		t.Fatal(err)
	}
	return time.Duration(now.Nano())
}

// FuzzListener: no bytes break the reader, and what it takes can be asked.
func FuzzListener(f *testing.F) {
	f.Add(encoded(f, `{"name": "l", "address": {"socket_address": {"address": "127.0.0.1", "port_value": 1}},
		"filter_chains": [{"filters": [{"name": "t", "typed_config": {
			"@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
			"stat_prefix": "x", "cluster": "c"}}]}]}`, &listenerv3.Listener{}))
	f.Fuzz(func(_ *testing.T, b []byte) {
		if l, err := ParseListener(b); err == nil {
			l.Select(netip.AddrPort{}, netip.Addr{}, true)
		}
	})
}

// FuzzRoutes: the same of routes.
func FuzzRoutes(f *testing.F) {
	f.Add(encoded(f, `{"name": "r", "virtual_hosts": [{"name": "v", "domains": ["*", "a", "*.b", "c.*"], "routes": [
		{"match": {"safe_regex": {"regex": "/a{2,3}[x-z]"}, "headers": [{"name": "h", "string_match": {"prefix": "x"}}]},
		 "route": {"weighted_clusters": {"clusters": [{"name": "c", "weight": 1}]}, "timeout": "1s",
			"retry_policy": {"retry_on": "5xx", "num_retries": 1}}},
		{"match": {"path": "/"}, "direct_response": {"status": 404}}]}]}`, &routev3.RouteConfiguration{}))
	f.Fuzz(func(_ *testing.T, b []byte) {
		r, err := ParseRoutes(b)
		if err != nil {
			return
		}
		request, err := http.NewRequest(http.MethodGet, "http://x.b/aaax", nil)
		if err != nil {
			panic(err) // of these there is none
		}
		r.Find(&Call{Request: request, Path: "/aaax"})
	})
}

// FuzzCluster: the same of a cluster.
func FuzzCluster(f *testing.F) {
	f.Add(encoded(f, `{"name": "c", "connect_timeout": "1s", "load_assignment": {"cluster_name": "c", "endpoints": [
		{"lb_endpoints": [{"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 1}}}}]}]}}`,
		&clusterv3.Cluster{}))
	f.Fuzz(func(_ *testing.T, b []byte) {
		if c, err := ParseCluster(b); err == nil {
			c.Known()
		}
	})
}

// FuzzSecret: the same of a secret, which has a certificate or roots.
func FuzzSecret(f *testing.F) {
	f.Add(encoded(f, `{"name": "s", "tls_certificate": {"certificate_chain": {"inline_string": "x"},
		"private_key": {"inline_string": "the key"}}}`, &tlsv3.Secret{}))
	f.Add(encoded(f, `{"name": "s", "validation_context": {"trusted_ca": {"inline_bytes": "eA=="}}}`, &tlsv3.Secret{}))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := ParseSecret(b, false)
		if err == nil && s.Certificate == nil && s.Roots == nil {
			t.Error("a secret has nothing")
		}
	})
}
