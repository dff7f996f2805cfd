package proxyconfig

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestCompileAfter: the result and the errors of a configuration do not depend on the configuration it is compiled
// after.
func TestCompileAfter(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	word := regexp.MustCompile(`[\w./*-]+|"[^"]*"`)
	texts := []string{full, strictMesh, permissiveMesh, sharedMesh}
	words := word.FindAllString(strings.Join(texts, " "), -1)
	text := texts[1]
	var before *Mesh
	taken, refused, kept := 0, 0, 0
	for range 5 * mutations {
		next := text
		if random.IntN(20) == 0 {
			next = texts[random.IntN(len(texts))]
		}
		for range random.IntN(3) {
			at := word.FindAllStringIndex(next, -1)
			one := at[random.IntN(len(at))]
			next = next[:one[0]] + words[random.IntN(len(words))] + next[one[1]:]
		}
		f := file{name: "c.yaml", data: []byte(next)}
		if f.decode() != nil {
			continue
		}
		want, err := f.config.Compile()
		got, also := f.config.CompileAfter(before)
		if fmt.Sprint(err) != fmt.Sprint(also) {
			t.Fatalf("%s\nby itself: %v\nafter another: %v", next, err, also)
		}
		if err != nil {
			refused++
			continue
		}
		taken++
		for _, id := range append(want.Proxies(), "anybody") {
			a, errA := want.For(id)
			b, errB := got.For(id)
			first, _ := encoded(a)
			second, _ := encoded(b)
			if fmt.Sprint(errA) != fmt.Sprint(errB) || first != second {
				t.Fatalf("%s\nafter another, %s is told something else: %v, %v", next, id, errA, errB)
			}
			if before != nil && before.Has(id) && got.Has(id) && before.proxies[id].own == got.proxies[id].own {
				kept++
			}
		}
		text, before = next, got
	}
	t.Logf("%d configurations are taken, with %d parts of proxies kept, and %d refused", taken, kept, refused)
	if taken < mutations || refused < mutations/10 || kept < mutations {
		t.Error("too few of a kind to say anything")
	}
}

// large makes a mesh of many services, each called by some identities and served by one proxy, with discovery by
// policy.
func large(services, calls int) *Config {
	c := &Config{MTLS: "strict", Discovery: "policy"}
	for i := range services {
		name := fmt.Sprint("s", i)
		s := Service{Name: name, Protocol: "http", Address: fmt.Sprintf("10.%d.%d.%d:80", i>>16, i>>8&255, i&255),
			Endpoints: []Endpoint{{Address: fmt.Sprintf("10.%d.%d.%d:80", 100+i>>16, i>>8&255, i&255)}}}
		for j := range calls {
			s.Access = append(s.Access, Access{From: []string{fmt.Sprint("s", (i+j+1)%services)}})
		}
		c.Services = append(c.Services, s)
		c.Proxies = append(c.Proxies, Proxy{ID: "p" + name, Identity: name,
			Inbound: map[string]Inbound{name: {Listen: "0.0.0.0:15006", To: "127.0.0.1:80"}}})
	}
	return c
}

// moved returns a configuration with another endpoint for a service.
func moved(c *Config, service int, address string) *Config {
	next := *c
	next.Services = slices.Clone(c.Services)
	next.Services[service].Endpoints = []Endpoint{{Address: address}}
	return &next
}

// TestOneEndpoint: another endpoint of a service changes only the endpoints that the service's callers receive.
func TestOneEndpoint(t *testing.T) {
	const services, calls = 60, 5
	c := large(services, calls)
	before, err := c.Compile()
	if err != nil {
		t.Fatal(err)
	}
	after, err := moved(c, 7, "10.200.0.1:80").CompileAfter(before)
	if err != nil {
		t.Fatal(err)
	}
	changed := 0
	for _, id := range before.Proxies() {
		a, _ := before.Part(id)
		b, _ := after.Part(id)
		if a == b {
			continue
		}
		changed++
		if a.Own != b.Own || &a.Common.Clusters[0] != &b.Common.Clusters[0] ||
			&a.Common.Listeners[0] != &b.Common.Listeners[0] || &a.Common.Routes[0] != &b.Common.Routes[0] {
			t.Errorf("%s: more than endpoints has changed", id)
		}
	}
	if changed != calls {
		t.Errorf("%d proxies are concerned, want %d", changed, calls)
	}
}

// TestWithEndpoints: WithEndpoints gives the same mesh as compiling the changed configuration.
func TestWithEndpoints(t *testing.T) {
	const text = `
services:
- {name: a, address: "10.0.0.1:80", endpoints: [{address: "10.1.0.1:80"}]}
- {name: b, protocol: http, address: "10.0.0.2:80", endpoints: [{address: "10.1.0.2:80", zone: z}, {address: "10.1.0.3:80"}]}
- {name: u, protocol: udp, endpoints: [{address: "10.1.0.4:80"}]}
- {name: v, protocol: udp, endpoints: [{address: "10.1.0.5:80"}]}
- {name: s, protocol: udp, address: "10.0.0.3:80", split: {u: 1, v: 2}}
- {name: t, address: "10.0.0.4:80", split: {a: 1, n: 2}}
- {name: n, endpoints: [{address: "example.invalid:80"}]}
proxies:
- {id: x}
- {id: y, outbound: {a: "127.0.0.1:1"}, inbound: {b: {listen: "127.0.0.1:2", to: "127.0.0.1:3"}}}
`
	m := compiled(t, text)
	one, other := []Endpoint{{Address: "10.2.0.1:80", Weight: 3}}, []Endpoint{{Address: "10.2.0.2:80", Zone: "z"}}
	for i, of := range []map[string][]Endpoint{
		{"a": one}, {"b": other}, {"a": other, "b": one}, {"u": one}, {"v": other}, {"n": one}, {"a": nil}, {"b": {}},
		{"a": one, "n": {{Address: "other.invalid:80"}}}, {"b": one}, {}, {"a": {{Address: "another.invalid:80"}}},
		{"a": one},
	} {
		next, err := m.WithEndpoints(of)
		if err != nil {
			t.Fatal(i, err)
		}
		want, err := next.config.Compile()
		if err != nil {
			t.Fatal(i, err)
		}
		for name, endpoints := range of {
			if got := next.config.Services[next.names[name].index].Endpoints; !slices.Equal(got, endpoints) {
				t.Errorf("%d: %s has %v", i, name, got)
			}
		}
		for _, id := range want.Proxies() {
			a, _ := want.For(id)
			b, _ := next.For(id)
			first, _ := encoded(a)
			if second, _ := encoded(b); first != second {
				t.Errorf("%d: %s is told something else than by a mesh of its own", i, id)
			}
		}
		m = next
	}
	for _, of := range []map[string][]Endpoint{{"none": one}, {"s": one}, {"a": {{Address: "no"}}}} {
		if _, err := m.WithEndpoints(of); err == nil {
			t.Errorf("%v is taken", of)
		}
	}
}

// BenchmarkChange gives one service another endpoint, which concerns 10 proxies, in meshes of several sizes: with
// WithEndpoints, and by compiling the whole configuration.
func BenchmarkChange(b *testing.B) {
	for _, services := range []int{100, 1000, 10000} {
		c := large(services, 10)
		m, err := c.Compile()
		if err != nil {
			b.Fatal(err)
		}
		address := func(i int) string { return fmt.Sprintf("10.200.0.%d:80", i%250+1) }
		b.Run(fmt.Sprint("alone/", services), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				if m, err = m.WithEndpoints(map[string][]Endpoint{"s7": {{Address: address(i)}}}); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprint("whole/", services), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				c = moved(c, 7, address(i))
				if m, err = c.CompileAfter(m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestAlike: proxies with the same definition, such as the pods of one deployment, share their own resources; others,
// and those with ingress listeners, do not.
func TestAlike(t *testing.T) {
	const text = `
mtls: strict
discovery: policy
services:
  - {name: a, identity: x, protocol: http, endpoints: [{address: "10.1.0.1:1"}], access: [{from: [y]}]}
  - {name: b, identity: y, endpoints: [{address: "10.1.0.2:1"}]}
proxies:
  - {id: one, identity: x, inbound: {a: {listen: "0.0.0.0:1", to: "127.0.0.1:2"}}}
  - {id: two, identity: x, inbound: {a: {listen: "0.0.0.0:1", to: "127.0.0.1:2"}}}
  - {id: port, identity: x, inbound: {a: {listen: "0.0.0.0:1", to: "127.0.0.1:3"}}}
  - {id: silent, identity: x, inbound: {a: {listen: "0.0.0.0:1", to: "127.0.0.1:2"}}, outbound: {}}
  - {id: edge, identity: x, inbound: {a: {listen: "0.0.0.0:1", to: "127.0.0.1:2"}}}
  - {id: other, identity: y, outbound: {a: "127.0.0.1:9"}}
ingress: [{service: a, listen: "0.0.0.0:80", proxy: edge}]
`
	m, err := Parse("mesh.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	own := func(id string) *Resources {
		p, err := m.Part(id)
		if err != nil {
			t.Fatal(err)
		}
		return p.Own
	}
	if own("one") != own("two") {
		t.Error("two proxies that say the same have resources of their own")
	}
	for _, id := range []string{"port", "silent", "edge", "other"} {
		if own(id) == own("one") {
			t.Errorf("%s says something else", id)
		}
	}
	if n := len(own("edge").Listeners); n != len(own("one").Listeners)+1 {
		t.Errorf("the one with callers from outside has %d listeners", n)
	}
}
