package istiod

import (
	"net/netip"
	"testing"
)

// TestObjects checks services and scopes as objects of Istio.
func TestObjects(t *testing.T) {
	s := Service{Name: "web", Address: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: "TCP",
		Endpoints: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:8080"), netip.MustParseAddrPort("127.0.0.2:8081")}}
	for _, c := range []struct {
		got                   Object
		namespace, name, spec string
	}{
		{s.Object(), "default", "web", `{"addresses":["10.96.0.1"],"endpoints":[` +
			`{"address":"127.0.0.1","ports":{"main":8080}},{"address":"127.0.0.2","ports":{"main":8081}}],` +
			`"hosts":["web.mesh.test"],"location":"MESH_INTERNAL",` +
			`"ports":[{"name":"main","number":80,"protocol":"TCP"}],"resolution":"STATIC"}`},
		{Service{Name: "none", Namespace: "shop", Address: s.Address, Protocol: "HTTP"}.Object(), "shop", "none",
			`{"addresses":["10.96.0.1"],"endpoints":[],"hosts":["none.mesh.test"],"location":"MESH_INTERNAL",` +
				`"ports":[{"name":"main","number":80,"protocol":"HTTP"}],"resolution":"STATIC"}`},
		{Scope("shop", s), "shop", "scope", `{"egress":[{"hosts":["*/web.mesh.test"]}]}`},
		{Scope("shop"), "shop", "scope", `{"egress":[{"hosts":[]}]}`},
	} {
		if c.got.Namespace != c.namespace || c.got.Name != c.name || string(c.got.Spec) != c.spec {
			t.Errorf("%s %s/%s: %s\nwant %s", c.got.Kind, c.got.Namespace, c.got.Name, c.got.Spec, c.spec)
		}
	}
}
