package meshmodel

import (
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"tare/internal/mesh"
)

func endpoints(first, healthy, unhealthy int) (out []mesh.Endpoint) {
	for i := range healthy + unhealthy {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(first), byte(i)}), 80)
		e := mesh.Endpoint{Address: at, Weight: 1, Health: mesh.Healthy}
		if i >= healthy {
			e.Health = mesh.Unhealthy
		}
		out = append(out, e)
	}
	return out
}

func TestFind(t *testing.T) {
	at := netip.MustParseAddrPort
	listener := func(name, address string, clusters ...mesh.WeightedCluster) *mesh.Listener {
		return &mesh.Listener{
			Name: name, Address: at(address), Protocol: mesh.TCP,
			Chains: []mesh.Chain{{Proxy: mesh.Proxy{Clusters: clusters}}},
		}
	}
	c := mesh.NewConfig()
	c.Apply(mesh.Change{
		Clusters: []*mesh.Cluster{
			{Name: "a", Localities: []mesh.Locality{{Endpoints: endpoints(0, 1, 0)}}},
			{Name: "b", Localities: []mesh.Locality{{Endpoints: endpoints(1, 2, 1)}}},
			{Name: "empty"},
		},
		Listeners: []*mesh.Listener{
			listener("one", "10.1.0.1:80", mesh.WeightedCluster{Name: "a", Weight: 1}),
			listener("any", "0.0.0.0:80", mesh.WeightedCluster{Name: "a", Weight: 1},
				mesh.WeightedCluster{Name: "b", Weight: 2}, mesh.WeightedCluster{Name: "empty", Weight: 3},
				mesh.WeightedCluster{Name: "missing", Weight: 4}),
			listener("six", "[::]:80", mesh.WeightedCluster{Name: "a", Weight: 1}),
			listener("nothing", "10.1.0.2:80", mesh.WeightedCluster{Name: "missing", Weight: 1}),
			listener("none", "10.1.0.3:80"),
		},
	})
	for _, x := range []struct {
		to       string
		protocol mesh.Protocol
		want     mesh.Verdict
		parts    []float64 // of the endpoint of a, and of the first endpoint of b
	}{
		{"10.1.0.1:80", mesh.TCP, mesh.Accept, []float64{1, 0}},
		{"[::ffff:10.1.0.1]:80", mesh.TCP, mesh.Accept, []float64{1, 0}},
		{"10.1.0.1:80", mesh.UDP, mesh.Pass, nil},
		{"10.1.0.1:81", mesh.TCP, mesh.Pass, nil},
		{"192.0.2.1:80", mesh.TCP, mesh.Accept, []float64{.1, .1}},
		{"[fd00::1]:80", mesh.TCP, mesh.Accept, []float64{1, 0}},
		{"10.1.0.2:80", mesh.TCP, mesh.Refuse, nil},
		{"10.1.0.3:80", mesh.TCP, mesh.Refuse, nil},
	} {
		got := Find(c, mesh.Question{To: at(x.to), Protocol: x.protocol})
		if got.Verdict != x.want {
			t.Errorf("%s %s: %v, want %v", x.protocol, x.to, got.Verdict, x.want)
		}
		for i, part := range x.parts {
			d := Destination{[]string{"a", "b"}[i], endpoints(i, 1, 0)[0].Address}
			if math.Abs(got.Parts[d]-part) > 1e-9 {
				t.Errorf("%s: %v has %v of the connections, want %v", x.to, d, got.Parts[d], part)
			}
		}
	}
	// A change of a clone leaves the original as it was, and All rebuilds the original.
	clone := Clone(c)
	clone.Apply(mesh.Change{RemovedClusters: []string{"a", "nobody"}, RemovedListeners: []string{"one"}})
	if len(c.Clusters) != 3 || len(clone.Clusters) != 2 || len(clone.Listeners) != 4 {
		t.Errorf("clone: %d and %d clusters, %d listeners", len(c.Clusters), len(clone.Clusters), len(clone.Listeners))
	}
	again := mesh.NewConfig()
	again.Apply(All(c))
	byName := func(a, b *mesh.Listener) int { return strings.Compare(a.Name, b.Name) }
	if len(again.Clusters) != 3 || len(again.Listeners) != 5 || !slices.IsSortedFunc(All(c).Listeners, byName) {
		t.Errorf("all: %v", All(c))
	}
}
