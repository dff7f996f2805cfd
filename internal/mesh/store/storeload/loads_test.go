package storeload

import (
	"net/netip"
	"testing"

	"tare/internal/mesh"
	"tare/test/meshmodel"
)

// TestServices: the model finds every service, and no name, address or endpoint occurs twice, the loads included.
func TestServices(t *testing.T) {
	const n, endpoints = 300, 20
	config := mesh.NewConfig()
	config.Apply(Services(n, endpoints))
	for i := range 50 {
		config.Apply(mesh.Change{Clusters: []*mesh.Cluster{ClusterLoad(i)}, Listeners: []*mesh.Listener{ListenerLoad(i)}})
	}
	if len(config.Clusters) != n+50 || len(config.Listeners) != n+50 {
		t.Fatalf("%d clusters and %d listeners: names are given twice", len(config.Clusters), len(config.Listeners))
	}
	addresses, seen := map[netip.AddrPort]bool{}, map[netip.AddrPort]bool{}
	for _, l := range config.Listeners {
		addresses[l.Address] = true
	}
	for _, c := range config.Clusters {
		for _, l := range c.Localities {
			for _, e := range l.Endpoints {
				if seen[e.Address] {
					t.Fatalf("the endpoint %s is given twice", e.Address)
				}
				seen[e.Address] = true
			}
		}
	}
	if len(addresses) != n+50 {
		t.Errorf("%d addresses of %d listeners", len(addresses), n+50)
	}
	for _, i := range []int{0, 1, n - 1} {
		if a := meshmodel.Find(config, mesh.Question{To: ServiceOf(i), Protocol: mesh.TCP}); a.Verdict != mesh.Accept ||
			len(a.Parts) != endpoints {
			t.Errorf("service %d: %v with %d parts", i, a.Verdict, len(a.Parts))
		}
	}
}

// TestLoads: the loads have what the proposal describes.
func TestLoads(t *testing.T) {
	c, l := ClusterLoad(7), ListenerLoad(0)
	if len(c.Localities) != 10 || len(c.Localities[9].Endpoints) != 1 || len(c.Name) != 6 || c.Breakers.MaxRetries == 0 {
		t.Errorf("%+v", c)
	}
	if len(l.Chains) != 5 || l.Address != netip.MustParseAddrPort("192.168.127.244:80") {
		t.Errorf("%+v", l)
	}
}
