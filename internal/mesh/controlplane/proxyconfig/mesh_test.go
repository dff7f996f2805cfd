package proxyconfig

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
)

// TestFor checks the names of the resources that each proxy of a mesh with discovery by policy receives.
func TestFor(t *testing.T) {
	m := compiled(t, strictMesh)
	for _, c := range []struct{ id, clusters, endpoints, listeners, routes string }{
		{"frontend-1", "web blue h2 rpc greet echo local", "web blue h2 rpc greet echo",
			"web h2 rpc greet echo local ingress:h2", "web h2 rpc local"},
		{"web-1", "h2 inbound:closed inbound:greet inbound:h2 inbound:rpc inbound:web", "h2",
			"h2 inbound:closed inbound:greet inbound:h2 inbound:rpc inbound:web ingress:web ingress:h2",
			"h2 inbound:h2 inbound:rpc inbound:web"},
		{"blue-1", "h2 inbound:blue", "h2", "h2 inbound:blue", "h2 inbound:blue"},
	} {
		r, err := m.For(c.id)
		if err != nil {
			t.Fatal(err)
		}
		got := struct{ id, clusters, endpoints, listeners, routes string }{id: c.id}
		add := func(to *string, name string) { *to = strings.TrimSpace(*to + " " + name) }
		for _, x := range r.Clusters {
			add(&got.clusters, x.GetName())
		}
		for _, x := range r.Endpoints {
			add(&got.endpoints, x.GetClusterName())
		}
		for _, x := range r.Listeners {
			add(&got.listeners, x.GetName())
		}
		for _, x := range r.Routes {
			add(&got.routes, x.GetName())
		}
		if got != c {
			t.Errorf("got  %+v\nwant %+v", got, c)
		}
	}
	if _, err := m.For("stranger"); !errors.Is(err, ErrUnknownProxy) {
		t.Errorf("a stranger: %v", err)
	}
	if id := m.Identity("web-1"); id != "spiffe://mesh.local/ns/default/sa/web" || m.Identity("stranger") != "" {
		t.Errorf("web-1 is %q", id)
	}
}

// TestNoText: text that becomes part of an encoded message must be UTF-8, and an error says where it is not. A
// configuration that was not read from YAML can contain anything.
func TestNoText(t *testing.T) {
	const no = "a\xff"
	service := func(name string, match Match) *Config {
		return &Config{Services: []Service{{Name: name, Address: "1.2.3.4:80", Protocol: "http",
			Routes: []Route{{Match: match}}, Endpoints: []Endpoint{{Address: "1.2.3.4:81"}}}}}
	}
	for _, c := range []*Config{
		service("web", Match{Path: "/" + no}), service("web", Match{Prefix: "/" + no}), service("web", Match{Regex: no}),
		service("web", Match{Method: no}), service("web", Match{Headers: map[string]string{no: "b"}}),
		service("web", Match{Headers: map[string]string{"b": no}}),
	} {
		if _, err := c.Compile(); err == nil || !strings.HasPrefix(err.Error(), "service web: routes[0]: match: ") {
			t.Errorf("%+v: %v", c.Services[0].Routes[0].Match, err)
		}
	}
	if _, err := service(no, Match{}).Compile(); err == nil || !strings.HasPrefix(err.Error(), "services[0]: name: ") {
		t.Errorf("the name of a service: %v", err)
	}
}

// A proxy with an empty outbound has no listeners for its application.
func TestNoOutbound(t *testing.T) {
	m := compiled(t, "services: [{name: a, address: 1.2.3.4:5}]\nproxies: [{id: x, outbound: {}}, {id: y}]")
	x, _ := m.For("x")
	y, _ := m.For("y")
	if len(x.Listeners) != 0 || len(y.Listeners) != 1 || len(x.Clusters) != 1 {
		t.Errorf("%d and %d listeners, %d clusters", len(x.Listeners), len(y.Listeners), len(x.Clusters))
	}
}

// Proxies share the messages that they have in common, and also the lists if they have no resources of the type
// themselves.
func TestSharing(t *testing.T) {
	var text strings.Builder
	text.WriteString("mtls: strict\nservices:\n")
	const services, proxies = 50, 40
	for i := range services {
		fmt.Fprintf(&text, "- {name: s%d, protocol: http, identity: s, address: \"10.0.0.%d:80\", "+
			"endpoints: [{address: \"10.1.0.%d:80\"}]}\n", i, i+1, i+1)
	}
	text.WriteString("proxies:\n")
	for i := range proxies {
		fmt.Fprintf(&text, "- {id: p%d, identity: s", i)
		if i >= proxies/2 {
			text.WriteString(`, inbound: {s0: {listen: "0.0.0.0:15006", to: "127.0.0.1:80"}}`)
		}
		text.WriteString("}\n")
	}
	m := compiled(t, text.String())
	first, _ := m.For("p0")
	last, _ := m.For(fmt.Sprintf("p%d", proxies-1))
	messages := map[any]bool{}
	for _, id := range m.Proxies() {
		r, err := m.For(id)
		if err != nil {
			t.Fatal(err)
		}
		with := first
		if len(r.Clusters) != len(first.Clusters) {
			with = last
		}
		if &r.Endpoints[0] != &first.Endpoints[0] || with.Clusters[0] != r.Clusters[0] ||
			with.Routes[len(with.Routes)-1] != r.Routes[len(r.Routes)-1] {
			t.Errorf("%s has messages or lists of its own", id)
		}
		for _, x := range r.Clusters {
			messages[x] = true
		}
		for _, x := range r.Listeners {
			messages[x] = true
		}
		for _, x := range r.Routes {
			messages[x] = true
		}
	}
	if want := 3*services + 3; len(messages) != want {
		t.Errorf("%d messages for %d proxies, want %d", len(messages), proxies, want)
	}
}

// BenchmarkCompile compiles a mesh of 1,000 services with policies, and 2,000 proxies that serve them and call 10
// each.
func BenchmarkCompile(b *testing.B) {
	const services, proxies, calls = 1000, 2000, 10
	c := &Config{MTLS: "strict", Discovery: "policy"}
	for i := range services {
		s := Service{Name: fmt.Sprint("s", i), Protocol: "http", Identity: fmt.Sprint("s", i),
			Address:   fmt.Sprintf("10.0.%d.%d:80", i/250, i%250+1),
			Endpoints: []Endpoint{{Address: fmt.Sprintf("10.1.%d.%d:80", i/250, i%250+1)}},
			Routes:    []Route{{Name: "api", Match: Match{Prefix: "/api", Method: "GET"}}}}
		a := Access{Routes: []string{"api"}}
		for j := range calls {
			a.From = append(a.From, fmt.Sprint("s", (i+j)%services))
		}
		s.Access = []Access{a}
		c.Services = append(c.Services, s)
	}
	for i := range proxies {
		s := fmt.Sprint("s", i%services)
		c.Proxies = append(c.Proxies, Proxy{ID: fmt.Sprint("p", i), Identity: s,
			Inbound: map[string]Inbound{s: {Listen: "0.0.0.0:15006", To: "127.0.0.1:80"}}})
	}
	for b.Loop() {
		m, err := c.Compile()
		if err != nil {
			b.Fatal(err)
		}
		r, err := m.For("p1")
		if err != nil || len(r.Listeners) != calls+1 || len(r.Clusters) != calls+1 {
			b.Fatal(len(r.Listeners), len(r.Clusters), err)
		}
	}
}

// TestTaking: the permission of a route covers exactly the requests that go to that route, so that access to one route
// gives no access to another.
func TestTaking(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	pick := func(list ...string) string { return list[random.IntN(len(list))] }
	asked := 0
	for range 60 {
		s := &service{Service: &Service{Name: "s"}}
		for range 1 + random.IntN(6) {
			r := Route{Name: "r", Match: Match{Method: pick("", "", "GET", "POST")}}
			switch random.IntN(4) {
			case 0:
				r.Match.Path = pick("/", "/a", "/a/b", "/a/b/1", "/b")
			case 1:
				r.Match.Prefix = pick("/", "/a", "/a/", "/a/b", "/b")
			case 2:
				r.Match.Regex = pick("/a.*", "/.*/1", "/[ab]", "/b")
			}
			if random.IntN(2) == 0 {
				r.Match.Headers = map[string]string{pick("x", "y"): pick("1", "2", "*")}
			}
			s.Routes = append(s.Routes, Route{})
			s.Routes[len(s.Routes)-1] = r
			s.Routes[len(s.Routes)-1].Name = fmt.Sprint("r", len(s.Routes))
		}
		if err := s.readRoutes(); err != nil {
			t.Fatal(err)
		}
		for range 20 {
			q := request{path: pick("/", "/a", "/a/b", "/a/b/1", "/b", "/b/1"), headers: map[string]string{
				":method": pick("GET", "POST", "PUT")}}
			for _, name := range []string{"x", "y"} {
				if value := pick("", "1", "2", "3"); value != "" {
					q.headers[name] = value
				}
			}
			first := slices.IndexFunc(s.routes, func(r *route) bool { return q.has(both(r.permissions())) })
			for i := range s.routes {
				p, _ := s.taking(i)
				if got := q.has(p); got != (i == first) {
					t.Fatalf("%+v goes to route %d, and the permission of route %d is %v\n%+v", q, first, i, got, s.Routes)
				}
				asked++
			}
		}
	}
	t.Logf("%d requests", asked)
}

// request is a request with the properties that RBAC sees.
type request struct {
	path    string
	headers map[string]string
}

func (q request) has(p *rbacv3.Permission) bool {
	text := func(m *matcherv3.StringMatcher, is string) bool {
		switch m := m.GetMatchPattern().(type) {
		case *matcherv3.StringMatcher_Exact:
			return is == m.Exact
		case *matcherv3.StringMatcher_Prefix:
			return strings.HasPrefix(is, m.Prefix)
		}
		return regexp.MustCompile("^(?:" + m.GetSafeRegex().GetRegex() + ")$").MatchString(is)
	}
	switch r := p.GetRule().(type) {
	case *rbacv3.Permission_Any:
		return true
	case *rbacv3.Permission_NotRule:
		return !q.has(r.NotRule)
	case *rbacv3.Permission_AndRules:
		return !slices.ContainsFunc(r.AndRules.GetRules(), func(p *rbacv3.Permission) bool { return !q.has(p) })
	case *rbacv3.Permission_OrRules:
		return slices.ContainsFunc(r.OrRules.GetRules(), q.has)
	case *rbacv3.Permission_UrlPath:
		return text(r.UrlPath.GetPath(), q.path)
	}
	h := p.GetHeader()
	value, present := q.headers[h.GetName()]
	return present && (h.GetPresentMatch() || text(h.GetStringMatch(), value))
}

// TestRedirected: a proxy's listener for redirected connections accepts only those, and the same listener of another
// proxy is unchanged.
func TestRedirected(t *testing.T) {
	const text = `
services: [{name: web, protocol: http, endpoints: [{address: "127.0.0.1:80"}]}]
proxies:
  - {id: a, outbound: {web: "127.0.0.1:8001"}, redirected: {web: {from: "192.0.2.1:80", transparent: true}}}
  - {id: b, outbound: {web: "127.0.0.1:8001"}}
`
	m := compiled(t, text)
	for id, want := range map[string]int{"a": 1, "b": 0} {
		r, err := m.For(id)
		if err != nil || len(r.Listeners) != 1 || len(r.Listeners[0].FilterChains) != 1 {
			t.Fatalf("%s: %d listeners, %v", id, len(r.Listeners), err)
		}
		l := r.Listeners[0]
		match := l.FilterChains[0].GetFilterChainMatch()
		if len(l.ListenerFilters) != want || len(match.GetPrefixRanges()) != want ||
			l.GetTransparent().GetValue() != (want == 1) || match.GetDestinationPort().GetValue() != uint32(80*want) {
			t.Errorf("%s: %v", id, l)
		}
	}
	for from, to := range map[string]string{
		`redirected: {web`:   `redirected: {other`,
		`"192.0.2.1:80"`:     `"192.0.2.1"`,
		`protocol: http`:     `protocol: udp`,
		`{id: a, outbound: `: `{id: a, inbound: {web: {listen: "127.0.0.1:9", to: "127.0.0.1:10"}}, outbound: `,
	} {
		if _, err := Parse("mesh.yaml", []byte(strings.Replace(text, from, to, 1))); err == nil ||
			!strings.Contains(err.Error(), "redirected") {
			t.Errorf("%s: %v", to, err)
		}
	}
}
