package link

import (
	"net/netip"
	"slices"
	"testing"
)

func TestAddresses(t *testing.T) {
	p := netip.MustParsePrefix("198.18.7.0/24")
	seen := map[netip.Addr]bool{}
	for i := range MostPairs {
		here, there := Addresses(p, i)
		if here.Masked() != there.Masked() || here.Addr() == there.Addr() || seen[here.Addr()] || !p.Contains(there.Addr()) {
			t.Errorf("pair %d: %v, %v", i, here, there)
		}
		seen[here.Addr()], seen[there.Addr()] = true, true
	}
	free, err := FreeNet()
	if err != nil || free.Bits() != 24 || !linkRange.Contains(free.Addr()) {
		t.Errorf("%v, %v", free, err)
	}
}

func TestParseRoutes(t *testing.T) {
	const table = `Iface	Destination	Gateway 	Flags	RefCnt	Use	Metric	Mask		MTU	Window	IRTT
eth0	00000000	0102A8C0	0003	0	0	0	00000000	0	0	0
eth0	0002A8C0	00000000	0001	0	0	0	00FFFFFF	0	0	0
tun0	000012C6	00000000	0001	0	0	0	0000FFFF	0	0	0
bad	zz	0	0	0	0	0	0
`
	want := []netip.Prefix{netip.MustParsePrefix("192.168.2.0/24"), netip.MustParsePrefix("198.18.0.0/16")}
	if got := parseRoutes(table); !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}
