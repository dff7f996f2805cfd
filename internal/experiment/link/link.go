// Package link makes pairs of virtual network interfaces into network namespaces, gives them unused addresses, and
// removes those of runs that have ended.
package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"tare/internal/experiment/placement"
	"tare/internal/lib/fault"
)

// Inside is what the far end of a link is called in its network namespace.
const Inside = "eth0"

// MakePair makes a pair of virtual interfaces: one here, and the other in a network namespace. A kernel without them,
// and a lack of permission, are errors of code fault.Machine.
//
// A namespace is an open descriptor and never the number of a process in it, which the kernel also takes: when the
// process ends, its number becomes another's, and the interface would end up there. While a process becomes another
// program, it may also be found without namespaces (de_thread in fs/exec.c, get_net_ns_by_pid in
// net/core/net_namespace.c).
func MakePair(name, inside string, into *Namespace) error {
	attributes := netlink.NewLinkAttrs()
	attributes.Name = name
	pair := netlink.NewVeth(attributes)
	pair.PeerName, pair.PeerNamespace = inside, netlink.NsFd(into.FD())
	return cannotPair(netlink.LinkAdd(pair), name)
}

// cannotPair explains why a pair could not be made; nil where it was.
func cannotPair(err error, name string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EOPNOTSUPP):
		return fault.Wrap(err, fault.Machine, name,
			"load the module veth",
			"this kernel has no pairs of virtual interfaces")
	case errors.Is(err, unix.EPERM):
		return fault.Wrap(err, fault.Machine, name, "run as root, or with CAP_NET_ADMIN",
			"no permission to make network interfaces")
	}
	return fault.Wrap(err, fault.Machine, name, "", "cannot create a pair of virtual interfaces")
}

// Configure gives the interface of that name an address and, unless it is empty, an alias, and sets it up.
func Configure(name, alias string, address netip.Prefix) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("looking for the interface %s: %w", name, err)
	}
	if address.IsValid() {
		network := &net.IPNet{IP: address.Addr().AsSlice(), Mask: net.CIDRMask(address.Bits(), address.Addr().BitLen())}
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: network}); err != nil {
			return fmt.Errorf("giving the interface %s the address %s: %w", name, address, err)
		}
	}
	if alias != "" {
		if err := netlink.LinkSetAlias(link, alias); err != nil {
			return fmt.Errorf("giving the interface %s the alias %s: %w", name, alias, err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("setting the interface %s up: %w", name, err)
	}
	return nil
}

// Remove removes the interface of that name, and with it its other end. One that has gone is no error: it goes with
// either end's namespace.
func Remove(name string) error {
	link, err := netlink.LinkByName(name)
	if _, gone := errors.AsType[netlink.LinkNotFoundError](err); gone {
		return nil
	}
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("removing the interface %s: %w", name, err)
	}
	return nil
}

// Clean removes the interfaces of runs that have ended, which are known by their alias, and gives their names. The
// kernel removes them by itself with the namespaces at their far ends, but takes its time over it.
func Clean(o *placement.Owners) (removed []string, err error) {
	all, err := netlink.LinkList()
	// If some came or went meanwhile, those that stayed are in it.
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("looking for network interfaces left behind: %w", err)
	}
	var errs []error
	for _, link := range all {
		a := link.Attrs()
		if !o.Ended(a.Alias, "the network interface "+a.Name) {
			continue // somebody else's, or of a run that goes on
		}
		if o.DryRun {
			removed = append(removed, a.Name)
			continue
		}
		if err := netlink.LinkDel(link); errors.Is(err, unix.ENODEV) {
			continue
		} else if err != nil {
			errs = append(errs, cannotRemove(err, a.Name))
			continue
		}
		removed = append(removed, a.Name)
	}
	return removed, errors.Join(errs...)
}

// cannotRemove explains why an interface could not be removed.
func cannotRemove(err error, name string) error {
	if errors.Is(err, unix.EPERM) {
		return fault.Wrap(err, fault.Machine, name, "run as root, or with CAP_NET_ADMIN",
			"no permission to remove the network interface")
	}
	return fmt.Errorf("removing the interface %s: %w", name, err)
}

// ConfigureInside sets up the network of the namespace that this process has for itself: the loopback and the far end
// of its link.
func ConfigureInside(address netip.Prefix) error {
	if err := Configure("lo", "", netip.Prefix{}); err != nil {
		return err
	}
	return Configure(Inside, "", address)
}

// The addresses for links: of the range for measurements between networks (RFC 2544), which nothing on the internet
// has.
var (
	linkRange    = netip.MustParsePrefix("198.18.0.0/15")
	linkNetBits  = 24                      // of all links of a run
	linkNetCount = 1 << (linkNetBits - 15) // of those in the range
)

// MostPairs is how many pairs a network has addresses for: a /30 each.
const MostPairs = 64

// FreeNet finds a network that neither an address nor a route of this machine overlaps, for MostPairs pairs. It begins
// to look at a place of this process's own.
func FreeNet() (netip.Prefix, error) {
	taken, err := takenNets()
	if err != nil {
		return netip.Prefix{}, err
	}
	base := ne32(linkRange.Addr())
	for i := range linkNetCount {
		at := base + uint32((os.Getpid()+i)%linkNetCount)<<(32-linkNetBits)
		p := netip.PrefixFrom(addr32(at), linkNetBits)
		free := true
		for _, t := range taken {
			free = free && !t.Overlaps(p)
		}
		if free {
			return p, nil
		}
	}
	return netip.Prefix{}, fault.New(fault.Machine, linkRange.String(), "remove a route or an address in that range",
		"all addresses that links could have are in use on this machine")
}

// Addresses are the two addresses of pair number i of a network, from 0: this machine's and the far end's.
func Addresses(network netip.Prefix, i int) (here, there netip.Prefix) {
	at := ne32(network.Addr()) + uint32(4*i)
	return netip.PrefixFrom(addr32(at+1), 30), netip.PrefixFrom(addr32(at+2), 30)
}

func ne32(a netip.Addr) uint32 { b := a.As4(); return binary.BigEndian.Uint32(b[:]) }

func addr32(n uint32) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], n)
	return netip.AddrFrom4(b)
}

// takenNets are the networks of this machine's addresses and routes, the default routes apart.
func takenNets() ([]netip.Prefix, error) {
	var taken []netip.Prefix
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("listing this machine's addresses: %w", err)
	}
	for _, a := range addresses {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() {
			taken = append(taken, p.Masked())
		}
	}
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	// If some came or went meanwhile, those that stayed are in it.
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("listing this machine's routes: %w", err)
	}
	for _, r := range routes {
		if p, err := netip.ParsePrefix(r.Dst.String()); err == nil && p.Bits() > 0 {
			taken = append(taken, p)
		}
	}
	return taken, nil
}
