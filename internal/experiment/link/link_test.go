package link

import (
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
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

// TestTakenNets: the networks of addresses and of routes count as taken; a default route takes none.
func TestTakenNets(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes network namespaces")
	}
	var both [2]*Namespace
	for i := range both {
		n, err := NewNamespace()
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		both[i] = n
	}
	here, there := netip.MustParsePrefix("198.18.7.1/30"), netip.MustParsePrefix("198.18.7.2/30")
	if err := Connect(both[0], both[1], here, there); err != nil {
		t.Fatal(err)
	}
	if err := both[0].RouteAll(there.Addr()); err != nil {
		t.Fatal(err)
	}
	var taken []netip.Prefix
	err := both[0].Do(func() error {
		to, err := netlink.ParseIPNet("198.19.0.0/16")
		if err == nil {
			err = netlink.RouteAdd(&netlink.Route{Dst: to, Gw: there.Addr().AsSlice()})
		}
		if err == nil {
			taken, err = takenNets()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(taken, netip.Prefix.Compare)
	want := []netip.Prefix{
		netip.MustParsePrefix("127.0.0.0/8"), here.Masked(), netip.MustParsePrefix("198.19.0.0/16"),
	}
	if got := slices.Compact(taken); !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}
