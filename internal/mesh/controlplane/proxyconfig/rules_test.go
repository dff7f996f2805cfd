package proxyconfig

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"tare/internal/mesh"
	"tare/internal/mesh/xds/translate"
	"tare/test/meshmodel"
)

// TestRules compares the filter chains that rules are compiled to, evaluated by the data plane's own model of Envoy's
// choice of a chain, with the rules themselves.
func TestRules(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	pool := []string{"10.0.0.0/8", "10.1.0.0/16", "10.1.2.3", "10.1.2.0/24", "0.0.0.0/0", "192.168.0.0/16", "10.96.0.1",
		"10.96.0.0/12", "fd00::/8", "fd00::1", "::/0"}
	addresses := []string{"10.0.0.1", "10.1.0.1", "10.1.2.3", "10.1.2.4", "192.168.1.1", "8.8.8.8", "10.96.0.1",
		"10.97.0.1", "fd00::1", "fd00::2", "2001::1"}
	some := func(n int) (out []string) {
		for range random.IntN(n) {
			out = append(out, pool[random.IntN(len(pool))])
		}
		return out
	}
	rules := func() (out []Rule) {
		for range random.IntN(4) {
			r := Rule{From: some(4), To: some(3)}
			if random.IntN(3) == 0 {
				r.Ports = []string{[]string{"80", "81", "79-90"}[random.IntN(3)]}
			}
			out = append(out, r)
		}
		return out
	}
	asked := 0
	for i := range 240 {
		s := Service{Name: "s", Address: []string{"10.96.0.1:80", "0.0.0.0:80", "[::]:80", "[fd00::1]:80"}[i%4],
			Deny: rules(), Allow: rules(), Endpoints: []Endpoint{{Address: "127.0.0.1:1"}}}
		if i%8 >= 4 && !netip.MustParseAddrPort(s.Address).Addr().IsUnspecified() {
			s.Protocol = "udp"
		}
		m, err := (&Config{Services: []Service{s}}).Compile()
		if err != nil {
			t.Fatal(err)
		}
		r, err := m.Shared()
		if err != nil {
			t.Fatal(err)
		}
		l, config := r.Listeners[0], mesh.NewConfig()
		b, err := proto.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		listener, err := translate.ParseListener(b)
		if err != nil {
			continue // more rules than the data plane accepts
		}
		config.Listeners["s"] = listener
		config.Clusters["s"] = &mesh.Cluster{Name: "s", Localities: []mesh.Locality{{
			Endpoints: []mesh.Endpoint{{Address: netip.MustParseAddrPort("127.0.0.1:1"), Weight: 1}}}}}
		at := netip.MustParseAddrPort(s.Address)
		for _, from := range addresses {
			for _, to := range addresses {
				q := mesh.Question{From: netip.AddrPortFrom(netip.MustParseAddr(from), 1000),
					To: netip.AddrPortFrom(netip.MustParseAddr(to), 80), Protocol: listener.Protocol}
				family := q.From.Addr().Is4() == at.Addr().Is4() && q.To.Addr().Is4() == at.Addr().Is4()
				if !family || !at.Addr().IsUnspecified() && q.To.Addr() != at.Addr() {
					continue
				}
				want := mesh.Accept
				if held(s.Deny, q) || len(s.Allow) > 0 && !held(s.Allow, q) {
					want = mesh.Deny
				}
				if got := meshmodel.Find(config, q).Verdict; got != want {
					t.Fatalf("%s to %s: got %v, want %v by %+v\n%v", from, to, got, want, s, l)
				}
				asked++
			}
		}
	}
	if asked < 1000 {
		t.Errorf("only %d connections were asked about", asked)
	}
}

// held says whether one of the rules matches a connection.
func held(rules []Rule, q mesh.Question) bool {
	in := func(list []string, a netip.Addr) bool {
		return len(list) == 0 || slices.ContainsFunc(list, func(text string) bool {
			p, err := netip.ParsePrefix(text)
			if err != nil {
				p = netip.MustParsePrefix(fmt.Sprintf("%s/%d", text, netip.MustParseAddr(text).BitLen()))
			}
			return p.Contains(a)
		})
	}
	return slices.ContainsFunc(rules, func(r Rule) bool {
		port := len(r.Ports) == 0 || r.Ports[0] != "81"
		return in(r.From, q.From.Addr()) && in(r.To, q.To.Addr()) && port
	})
}
