// Package link makes pairs of virtual network interfaces that reach into network namespaces, gives them unused
// addresses, and removes interfaces that ended runs have left behind.
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

// Inside is the name of the far end of a link in its network namespace.
const Inside = "eth0"

// MakePair makes a pair of virtual interfaces: one here, and the other in a network namespace. A kernel without them,
// or a lack of permission, is an error with the code fault.Machine.
//
// The namespace is given by a descriptor, not by the pid of a process in it, which the kernel also accepts: the pid
// may be reused after the process ends, and the interface would end up in another namespace. During execve a process
// may also appear to have no namespaces (de_thread in fs/exec.c, get_net_ns_by_pid in net/core/net_namespace.c).
func MakePair(name, inside string, into *Namespace) error {
	attributes := netlink.NewLinkAttrs()
	attributes.Name = name
	pair := netlink.NewVeth(attributes)
	pair.PeerName, pair.PeerNamespace = inside, netlink.NsFd(into.FD())
	return cannotPair(netlink.LinkAdd(pair), name)
}

// cannotPair explains why a pair could not be made; it returns nil for nil.
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

// Configure gives an interface an alias and an address, unless they are empty, and brings the interface up.
func Configure(name, alias string, address netip.Prefix) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("looking for the interface %s: %w", name, err)
	}
	if alias != "" {
		if err := netlink.LinkSetAlias(link, alias); err != nil {
			return fmt.Errorf("giving the interface %s the alias %s: %w", name, alias, err)
		}
	}
	if address.IsValid() {
		network := &net.IPNet{IP: address.Addr().AsSlice(), Mask: net.CIDRMask(address.Bits(), address.Addr().BitLen())}
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: network}); err != nil {
			return fmt.Errorf("giving the interface %s the address %s: %w", name, address, err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("setting the interface %s up: %w", name, err)
	}
	return nil
}

// Remove removes an interface with the given alias, and thereby its other end. It is not an error if the interface is
// gone already: the kernel removes it with the namespace of either end. An interface with the name and another alias
// stays: it belongs to a run in another PID namespace, where this run's pid, and so the name, can occur too.
func Remove(name, alias string) error {
	link, err := netlink.LinkByName(name)
	if _, gone := errors.AsType[netlink.LinkNotFoundError](err); gone {
		return nil
	}
	if err == nil && link.Attrs().Alias == alias {
		err = netlink.LinkDel(link)
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("removing the interface %s: %w", name, err)
	}
	return nil
}

// Clean removes the interfaces of runs that have ended, which it recognizes by their alias, and returns their names.
// The kernel also removes them with the namespaces at their far ends, but later.
func Clean(o *placement.Owners) (removed []string, err error) {
	all, err := netlink.LinkList()
	// The list of an interrupted dump still has the interfaces that existed throughout.
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("looking for network interfaces left behind: %w", err)
	}
	var errs []error
	for _, link := range all {
		a := link.Attrs()
		if !o.Ended(a.Alias, "the network interface "+a.Name) {
			continue // not of a run of tare, or of a run that may still go on
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

// ConfigureInside sets up the network in this process's own namespace: the loopback and the far end of its link.
func ConfigureInside(address netip.Prefix) error {
	if err := Configure("lo", "", netip.Prefix{}); err != nil {
		return err
	}
	return Configure(Inside, "", address)
}

// The addresses for links are from the range for benchmarks of network devices (RFC 2544), which the internet does not
// use.
var (
	linkRange    = netip.MustParsePrefix("198.18.0.0/15")
	linkNetBits  = 24                      // prefix length of a network, which holds all links of a run
	linkNetCount = 1 << (linkNetBits - 15) // such networks in the range
)

// MostPairs is the number of pairs for which a network has addresses. Each pair takes a /30.
const MostPairs = 64

// FreeNet finds a network that overlaps no address or route of this machine and has room for MostPairs pairs. The
// search starts at an offset that depends on the pid, so that concurrent runs differ.
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

// Addresses returns the two addresses of pair i (from 0) of a network: this machine's and the far end's.
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

// takenNets returns the networks of this machine's addresses and routes, without the default routes.
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
	// The list of an interrupted dump still has the routes that existed throughout.
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
