package proxyconfig

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"tare/internal/lib/fault"
	"tare/internal/mesh"
	"tare/internal/mesh/xds/translate"
	"tare/test/meshmodel"
)

const full = `
services:
  - name: web
    address: 10.96.0.1:80
    policy: random
    max_connections: 100
    connect_timeout: 250ms
    zones: {a: 3, b: 1}
    endpoints:
      - {address: 127.0.0.1:8080, weight: 3, zone: a}
      - {address: "[fd00::1]:8081", health: draining, zone: a}
      - {address: 127.0.0.1:8082, health: unhealthy, zone: b, priority: 1}
    allow:
      - {from: [10.0.0.0/8, 192.168.1.1], to: ["10.96.0.0/16"], ports: ["80", 8000-8999]}
    deny:
      - {from: [10.6.6.6]}
  - name: v1
    endpoints: [{address: 127.0.0.1:9001}]
  - name: v2
    endpoints: [{address: v2.local:9002}]
  - name: canary
    address: "[fd00::2]:53"
    protocol: udp
    split: {v1: 90, v2: 10}
resources:
  - "@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
    name: raw
    type: STATIC
    load_assignment:
      cluster_name: raw
      endpoints:
        - lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 1}}}}]
  - "@type": type.googleapis.com/envoy.config.listener.v3.Listener
    name: rawlistener
    address: {socket_address: {address: 10.96.0.9, port_value: 80}}
    filter_chains:
      - filters:
          - name: tcp
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
              stat_prefix: raw
              cluster: raw
`

// TestPlainWords: the data plane accepts everything that a mesh file can express without raw resources, and the result
// has the right meaning.
func TestPlainWords(t *testing.T) {
	r := shared(t, full)
	config := mesh.NewConfig()
	assigned := map[string][]mesh.Locality{}
	marshal := func(m proto.Message) []byte {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, m := range r.Endpoints {
		a, err := translate.ParseAssignment(marshal(m))
		if err != nil {
			t.Fatal(err)
		}
		assigned[a.Name] = a.Localities
	}
	for _, m := range r.Clusters {
		c, err := translate.ParseCluster(marshal(m))
		if err != nil {
			t.Fatal(err)
		}
		switch c.Discovery {
		case translate.EDS:
			config.Clusters[c.Name] = c.With(assigned[c.Name])
		case translate.DNS:
			config.Clusters[c.Name] = c.At(func(string) []netip.Addr { return []netip.Addr{netip.MustParseAddr("127.0.0.2")} })
		default:
			config.Clusters[c.Name] = c.Known()
		}
	}
	for _, m := range r.Listeners {
		l, err := translate.ParseListener(marshal(m))
		if err != nil {
			t.Fatal(err)
		}
		config.Listeners[l.Name] = l
	}
	c := config.Clusters["web"]
	if c.Policy != mesh.Random || c.Breakers.MaxConnections != 100 || c.ConnectTimeout.String() != "250ms" ||
		len(c.Localities) != 2 || c.Localities[0].Weight != 3 || c.Localities[1].Priority != 1 {
		t.Errorf("web: %+v", c)
	}
	for _, c := range []struct {
		from, to string
		protocol mesh.Protocol
		want     string
	}{
		{"10.1.1.1:5", "10.96.0.1:80", mesh.TCP, "accept web 127.0.0.1:8080"},
		{"192.168.1.1:5", "10.96.0.1:80", mesh.TCP, "accept web 127.0.0.1:8080"},
		{"192.168.1.2:5", "10.96.0.1:80", mesh.TCP, "deny"},
		{"10.6.6.6:5", "10.96.0.1:80", mesh.TCP, "deny"},
		{"10.1.1.1:5", "10.96.0.1:81", mesh.TCP, "pass"},
		{"10.1.1.1:5", "10.96.0.9:80", mesh.TCP, "accept raw 127.0.0.1:1"},
	} {
		a := meshmodel.Find(config, mesh.Question{From: netip.MustParseAddrPort(c.from), To: netip.MustParseAddrPort(c.to),
			Protocol: c.protocol})
		got := a.Verdict.String()
		for d := range a.Parts {
			got += " " + d.Cluster + " " + d.Endpoint.String()
		}
		if got != c.want {
			t.Errorf("%s to %s: got %s, want %s", c.from, c.to, got, c.want)
		}
	}
	a := meshmodel.Find(config, mesh.Question{To: netip.MustParseAddrPort("[fd00::2]:53"), Protocol: mesh.UDP})
	want := map[meshmodel.Destination]float64{
		{Cluster: "canary", Endpoint: netip.MustParseAddrPort("127.0.0.1:9001")}: 0.9,
		{Cluster: "canary", Endpoint: netip.MustParseAddrPort("127.0.0.2:9002")}: 0.1}
	for d, part := range want {
		if math.Abs(a.Parts[d]-part) > 1e-6 || len(a.Parts) != len(want) {
			t.Errorf("canary: %+v", a)
		}
	}
}

// wrongFiles contains invalid files with one error each. Dashes and a part of the error's text, with the line number
// where that is certain, stand on a line before each file.
const wrongFiles = `
---- c.yaml:1: unknown field "nmae"
services: [{nmae: x}]
---- services[0]: name is missing
services: [{}]
---- service a is given twice
services: [{name: a}, {name: a}]
---- address: "b:1" has no IP address
services: [{name: a, address: b:1}]
---- "1.2.3.4" is not host:port
services: [{name: a, address: 1.2.3.4}]
---- has no port from 1 to 65535
services: [{name: a, address: 1.2.3.4:0}]
---- "best" is neither round-robin nor random
services: [{name: a, policy: best}]
---- "sctp" is none of tcp, udp, http
services: [{name: a, address: 1.2.3.4:1, protocol: sctp}]
---- "ill" is none of healthy
services: [{name: a, endpoints: [{address: 1.2.3.4:5, health: ill}]}]
---- there is no endpoint in z
services: [{name: a, endpoints: [{address: 1.2.3.4:5}], zones: {z: 1}}]
---- "5" is not a duration
services: [{name: a, connect_timeout: 5}]
---- there is no service b with endpoints
services: [{name: a, address: 1.2.3.4:1, split: {b: 1}}]
---- need an address
services: [{name: a, deny: [{}]}]
---- deny[0]: from: "x" is neither
services: [{name: a, address: 1.2.3.4:1, deny: [{from: [x]}]}]
---- "9-8" is neither a port nor
services: [{name: a, address: 1.2.3.4:1, allow: [{ports: [9-8]}]}]
---- resources[0]
resources: [{"@type": type.googleapis.com/envoy.config.cluster.v3.Cluster, x: 1}]
---- is none of clusters, endpoints
resources: [{"@type": type.googleapis.com/google.protobuf.Duration, value: 1s}]
---- c.yaml:4: the configuration is wrong: service b: protocol: "sctp"
services:
  - name: a
  - name: b
    protocol: sctp
---- c.yaml:1: the configuration is wrong: mtls: "maybe" is none of
mtls: maybe
---- c.yaml:2: the configuration is wrong: mtls: needs proxies

mtls: strict
---- c.yaml:2: the configuration is wrong: discovery: "all"

discovery: all
---- c.yaml:3: the configuration is wrong: trust_domain: "A B"


trust_domain: A B
---- c.yaml:3: the configuration is wrong: service a: routes: only
services:
- name: a
  routes:
  - match: {path: /}
---- c.yaml:7: the configuration is wrong: service a: routes[0]: match: path: "x" is no path
services:
- name: a
  protocol: http
  routes:
  - match:
      prefix: /
      path: x
---- c.yaml:6: the configuration is wrong: service a: routes[0]: match: regex:
services:
- name: a
  protocol: http
  routes:
  - match:
      regex: (
---- routes[0]: match: give one of
services:
- name: a
  protocol: http
  routes:
  - match: {path: /a, prefix: /b}
---- c.yaml:5: the configuration is wrong: service a: routes[0]: to: there is no service b
services:
- name: a
  protocol: http
  routes:
  - to: {b: 1}
---- to: a: a weight must be 1 or more
services:
- name: a
  protocol: http
  routes:
  - to: {a: 0}
---- timeout: "1" is not a duration
services:
- name: a
  protocol: http
  routes:
  - timeout: 1
---- retries: on[0]: "luck" is neither
services:
- name: a
  protocol: http
  routes:
  - retries: {attempts: 1, on: [luck]}
---- retries: attempts: must be 1 or more
services:
- name: a
  protocol: http
  routes:
  - retries: {on: [5xx]}
---- "X-A" is not a header name in lower case
services:
- name: a
  protocol: http
  routes:
  - match: {headers: {X-A: b}}
---- routes[1]: name: route r is given twice
services:
- name: a
  protocol: http
  routes: [{name: r}, {name: r}]
---- access: needs proxies
services:
- {name: a, protocol: http, access: [{from: [a]}]}
---- access: cannot be enforced without mtls
proxies: [{id: a, identity: a}]
services:
- {name: a, protocol: http, access: [{from: [a]}]}
---- access[0]: from[0]: "spiffe://mesh.local/ns/a/sa/b/c": not an identity
mtls: strict
proxies: [{id: a, identity: a}]
services:
- {name: a, protocol: http, access: [{from: [a/b/c]}]}
---- access[0]: from[0]: "spiffe://other.local/ns/a/sa/b": not an identity of trust domain mesh.local
mtls: strict
proxies: [{id: a, identity: a}]
services:
- {name: a, protocol: http, access: [{from: ["spiffe://other.local/ns/a/sa/b"]}]}
---- access[0]: from: is missing
mtls: strict
proxies: [{id: a, identity: a}]
services:
- {name: a, protocol: http, access: [{}]}
---- access[0]: routes[0]: there is no route r
mtls: strict
proxies: [{id: a, identity: a}]
services:
- {name: a, protocol: http, access: [{from: [a], routes: [r]}]}
---- udp has no identity
mtls: strict
proxies: [{id: a, identity: a}]
services:
- {name: a, protocol: udp, identity: a}
---- access: nothing enforces it
mtls: strict
proxies: [{id: a, identity: a}]
services:
- {name: a, endpoints: [{address: 1.2.3.4:5}], access: [{from: [a]}]}
---- deny: a mesh with proxies has access by identity
proxies: [{id: a, identity: a}]
services:
- {name: a, address: 1.2.3.4:5, deny: [{}]}
---- c.yaml:3: the configuration is wrong: proxy a: identity: is missing
mtls: strict
proxies:
- id: a
---- proxy a is given twice
proxies: [{id: a}, {id: a}]
---- proxies[0]: id is missing
proxies: [{identity: a}]
---- c.yaml:4: the configuration is wrong: proxy a: inbound: x: there is no service x
proxies:
- id: a
  inbound:
    x: {listen: 1.2.3.4:5, to: 1.2.3.4:6}
---- c.yaml:4: the configuration is wrong: proxy a: outbound: there is no service x
proxies:
- id: a
  outbound:
    x: 1.2.3.4:5
---- inbound: x: to: "6" is not host:port
services: [{name: x}]
proxies:
- id: a
  inbound: {x: {listen: 1.2.3.4:5, to: 6}}
---- x and inbound:x both listen at 1.2.3.4, port 5
services: [{name: x, address: 1.2.3.4:5}]
proxies:
- id: a
  inbound: {x: {listen: 1.2.3.4:5, to: 1.2.3.4:6}}
---- ingress: needs proxies
services: [{name: x}]
ingress: [{service: x, listen: 1.2.3.4:5, proxy: a}]
---- c.yaml:4: the configuration is wrong: ingress[0]: proxy: there is no proxy b
services: [{name: x}]
proxies: [{id: a, identity: a}]
ingress:
- {service: x, listen: 1.2.3.4:5, proxy: b}
---- udp has no ingress
mtls: strict
proxies: [{id: a, identity: a}]
services: [{name: x, protocol: udp}]
ingress: [{service: x, listen: 1.2.3.4:5, proxy: a}]
---- are reserved
services: [{name: "inbound:x"}]
---- udp cannot serve the traffic from a, a tcp service
services: [{name: a, address: 1.2.3.4:1, split: {b: 1}}, {name: b, protocol: udp}]
---- protocol: must be given
services:
- {name: a, address: 1.2.3.4:1, protocol: http, split: {b: 1}}
- {name: c, address: 1.2.3.4:2, split: {b: 1}}
- {name: b}
---- b: udp services that others are split into have no zones
services:
- {name: a, address: 1.2.3.4:1, protocol: udp, split: {b: 1, c: 1}}
- {name: c}
- {name: b, endpoints: [{address: 1.2.3.4:1, priority: 1}]}
`

// bomb returns six lists in a few hundred bytes. Each but the first has 9 aliases of the list before it, so that the
// last stands for 531,441 values.
func bomb(indent string) string {
	text := indent + "x0: &x0 [a, a, a, a, a, a, a, a, a]\n"
	for i := 1; i < 6; i++ {
		list := strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*x%d, ", i-1), 9), ", ")
		text += fmt.Sprintf("%sx%d: &x%d [%s]\n", indent, i, i, list)
	}
	return text
}

// TestWrongLines: errors name the right line of a file, even if two parts of the file contradict each other.
func TestWrongLines(t *testing.T) {
	all := strings.Split(wrongFiles, "\n---- ")[1:]
	const deep = "c.yaml:1: brackets or lists are nested\n"
	all = append(all, "the file is not valid UTF-8\na: \xff", deep+"a: "+strings.Repeat("[", 200),
		deep+strings.Repeat("- ", 200)+"x", "c.yaml:4: its aliases stand for more\nresources:\n-\n"+bomb("  "))
	if r := shared(t, ""); len(r.Clusters) > 0 {
		t.Errorf("an empty file: %+v", r)
	}
	for _, one := range all {
		want, text, _ := strings.Cut(one, "\n")
		_, err := Parse("c.yaml", []byte(text))
		if err == nil || !strings.Contains(err.Error(), want) || fault.CodeOf(err) != fault.Usage {
			t.Errorf("%s\ngot  %v\nwant %s", text, err, want)
		}
	}
}

// everyType are resources of every type in Envoy's format.
const everyType = `
resources:
  - "@type": type.googleapis.com/envoy.config.route.v3.RouteConfiguration
    name: r
    virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: c}}]}]
  - "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret
    name: s
    validation_context: {trusted_ca: {inline_string: x}}
  - "@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
    name: c
    transport_socket:
      name: tls
      typed_config: {"@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext, sni: x}
  - "@type": type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment
    cluster_name: c
  - "@type": type.googleapis.com/envoy.config.listener.v3.Listener
    name: l
    filter_chains:
      - transport_socket:
          name: tls
          typed_config: {"@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext}
        filters:
          - name: http
            typed_config:
              "@type": >-
                type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
              rds: {route_config_name: r, config_source: {ads: {}}}
              http_filters:
                - name: router
                  typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
`

func TestEveryType(t *testing.T) {
	r := shared(t, everyType)
	if len(r.Routes) != 1 || len(r.Secrets) != 1 || len(r.Clusters) != 1 || len(r.Endpoints) != 1 ||
		len(r.Listeners) != 1 {
		t.Errorf("got %+v", r)
	}
}

// shared returns what a mesh without proxies sends to every node.
func shared(t *testing.T, text string) Resources {
	t.Helper()
	m, err := Parse("mesh.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	r, err := m.Shared()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// FuzzParse: every error is a usage error, and an accepted file gives resources that can be encoded, to the same bytes
// every time.
func FuzzParse(f *testing.F) {
	f.Add([]byte(full))
	f.Add([]byte(everyType))
	f.Add([]byte(strictMesh))
	f.Add([]byte(permissiveMesh))
	f.Add([]byte("services: [{name: a, address: 1.2.3.4:1, split: {b: 1}}]"))
	f.Fuzz(parses)
}

// parses checks the result of parsing any bytes.
func parses(t *testing.T, b []byte) {
	m, err := Parse("c.yaml", b)
	if err != nil {
		if fault.CodeOf(err) != fault.Usage {
			t.Error(err)
		}
		return
	}
	again, err := Parse("c.yaml", b)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range append(m.Proxies(), "anybody") {
		r, err := m.For(id)
		other, also := again.For(id)
		if (err == nil) != (also == nil) || err != nil && len(m.Proxies()) == 0 {
			t.Fatal(err, also)
		}
		first, errA := encoded(r)
		second, errB := encoded(other)
		if first != second || errA != nil || errB != nil {
			t.Errorf("%s is told other bytes the second time: %v, %v", id, errA, errB)
		}
	}
}

// TestMutations parses files with shuffled words: unlike most inputs of fuzzing, many of these are valid.
func TestMutations(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	word := regexp.MustCompile(`[\w./*-]+|"[^"]*"`)
	all := []string{full, strictMesh, permissiveMesh, sharedMesh}
	words := word.FindAllString(strings.Join(all, " "), -1)
	taken := 0
	for range mutations {
		text := all[random.IntN(len(all))]
		for range 1 + random.IntN(3) {
			at := word.FindAllStringIndex(text, -1)
			one := at[random.IntN(len(at))]
			text = text[:one[0]] + words[random.IntN(len(words))] + text[one[1]:]
		}
		if _, err := Parse("c.yaml", []byte(text)); err == nil {
			taken++
		}
		parses(t, []byte(text))
		if t.Failed() {
			t.Fatal(text)
		}
	}
	t.Logf("%d of %d are taken", taken, mutations)
}

const mutations = 100

// encoded returns all messages as bytes.
func encoded(r Resources) (string, error) {
	var all []proto.Message
	all = append(all, messages(r.Clusters)...)
	all = append(all, messages(r.Endpoints)...)
	all = append(all, messages(r.Listeners)...)
	all = append(all, messages(r.Routes)...)
	all = append(all, messages(r.Secrets)...)
	var out strings.Builder
	for _, m := range all {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&out, "%d:%s", len(b), b)
	}
	return out.String(), nil
}

func messages[T proto.Message](list []T) (out []proto.Message) {
	for _, m := range list {
		out = append(out, m)
	}
	return out
}
