package local

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"tare/internal/fault"
	"tare/internal/host/cgroup"
	"tare/internal/placement"
)

// Rtnetlink, as far as a pair of virtual interfaces needs it. The kernel's side is net/core/rtnetlink.c and drivers/net/veth.c.

// Inside is what a node's own end of its link is called in its network namespace.
const Inside = "eth0"

const (
	linkInfoKind = 1 // IFLA_INFO_KIND
	linkInfoData = 2 // IFLA_INFO_DATA
	vethPeer     = 1 // VETH_INFO_PEER
	headerBytes  = 16
)

var ne = binary.NativeEndian

// attribute is one attribute of rtnetlink, padded.
func attribute(typ uint16, value ...[]byte) []byte {
	n := 4
	for _, v := range value {
		n += len(v)
	}
	b := make([]byte, 4, (n+3)&^3)
	ne.PutUint16(b, uint16(n))
	ne.PutUint16(b[2:], typ)
	for _, v := range value {
		b = append(b, v...)
	}
	return b[:cap(b)]
}

func text(s string) []byte { return append([]byte(s), 0) }

func number(n uint32) []byte { return ne.AppendUint32(nil, n) }

// ask makes one request of the kernel, in the network namespace of this thread, and gives its answer.
func ask(typ, flags uint16, body ...[]byte) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	message := make([]byte, headerBytes)
	for _, b := range body {
		message = append(message, b...)
	}
	ne.PutUint32(message, uint32(len(message)))
	ne.PutUint16(message[4:], typ)
	ne.PutUint16(message[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK|flags)
	if err := unix.Sendto(fd, message, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 8192)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	switch {
	case err != nil:
		return err
	case n < headerBytes+4 || ne.Uint16(answer[4:]) != unix.NLMSG_ERROR:
		return errors.New("the kernel's answer makes no sense")
	}
	if code := int32(ne.Uint32(answer[headerBytes:])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

// link is a struct ifinfomsg for an interface: 0 is one that is to be made.
func link(index int, up bool) []byte {
	b := make([]byte, 16)
	ne.PutUint32(b[4:], uint32(index))
	if up {
		ne.PutUint32(b[8:], unix.IFF_UP)
		ne.PutUint32(b[12:], unix.IFF_UP)
	}
	return b
}

// makePair makes a pair of virtual interfaces: one here, and the other in the network namespace of a process.
func makePair(name, inside string, pid int) error {
	peer := attribute(vethPeer, link(0, false), attribute(unix.IFLA_IFNAME, text(inside)), attribute(unix.IFLA_NET_NS_PID, number(uint32(pid))))
	err := ask(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, link(0, false), attribute(unix.IFLA_IFNAME, text(name)),
		attribute(unix.IFLA_LINKINFO, attribute(linkInfoKind, []byte("veth")), attribute(linkInfoData, peer)))
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return fault.Wrap(err, fault.Machine, name, "load the module veth, or run nodes on machines of their own (--nodes-listen)", "this kernel has no pairs of virtual interfaces")
	case errors.Is(err, unix.EPERM):
		return fault.Wrap(err, fault.Machine, name, "run as root", "no permission to make network interfaces")
	}
	return fault.Wrap(err, fault.Machine, name, "", "cannot make a pair of virtual interfaces")
}

// configure gives the interface of that name an address and, unless it is empty, an alias, and sets it up.
func configure(name, alias string, address netip.Prefix) error {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return fmt.Errorf("looking for the interface %s: %w", name, err)
	}
	if address.IsValid() {
		a := address.Addr().As4()
		body := make([]byte, 8) // struct ifaddrmsg
		body[0], body[1] = unix.AF_INET, byte(address.Bits())
		ne.PutUint32(body[4:], uint32(i.Index))
		err := ask(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, body, attribute(unix.IFA_LOCAL, a[:]), attribute(unix.IFA_ADDRESS, a[:]))
		if err != nil {
			return fmt.Errorf("giving the interface %s the address %s: %w", name, address, err)
		}
	}
	body := [][]byte{link(i.Index, true)}
	if alias != "" {
		body = append(body, attribute(unix.IFLA_IFALIAS, []byte(alias)))
	}
	if err := ask(unix.RTM_NEWLINK, 0, body...); err != nil {
		return fmt.Errorf("setting the interface %s up: %w", name, err)
	}
	return nil
}

// remove removes the interface of that name, and with it its other end. One that has gone is no error: it goes with either end's namespace.
func remove(name string) error {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return nil
	}
	if err := ask(unix.RTM_DELLINK, 0, link(i.Index, false)); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("removing the interface %s: %w", name, err)
	}
	return nil
}

// Clean removes the interfaces of runs that have ended, which are known by their alias, and gives their names. The kernel removes them by itself
// with the namespaces of the agents, but takes its time over it.
func Clean(l *cgroup.Layout) (removed []string, err error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("looking for network interfaces left behind: %w", err)
	}
	var errs []error
	for _, i := range all {
		// What has no alias, or has gone, is not ours. Reading it waits for a removal that is under way.
		alias, _ := os.ReadFile(filepath.Join("/sys/class/net", i.Name, "ifalias"))
		if !placement.Ended(l, strings.TrimSpace(string(alias))) {
			continue
		}
		if err := ask(unix.RTM_DELLINK, 0, link(i.Index, false)); errors.Is(err, unix.ENODEV) {
			continue
		} else if err != nil {
			errs = append(errs, fmt.Errorf("removing the interface %s: %w", i.Name, err))
			continue
		}
		removed = append(removed, i.Name)
	}
	return removed, errors.Join(errs...)
}

// ConfigureInside sets up the network of the namespace that this process has for itself: the loopback and the node's end of its link.
func ConfigureInside(address netip.Prefix) error {
	if err := configure("lo", "", netip.Prefix{}); err != nil {
		return err
	}
	return configure(Inside, "", address)
}

// The addresses for links: of the range for measurements between networks (RFC 2544), which nothing on the internet has.
var (
	linkRange    = netip.MustParsePrefix("198.18.0.0/15")
	linkNetBits  = 24                      // of all links of a run
	linkNetCount = 1 << (linkNetBits - 15) // of those in the range
)

// MostNodes is how many local nodes there can be: a /30 each.
const MostNodes = 64

// freeNet finds a network that neither an address nor a route of this machine overlaps. It begins to look at a place of this process's own.
func freeNet() (netip.Prefix, error) {
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
	return netip.Prefix{}, fault.New(fault.Machine, linkRange.String(), "remove a route or an address in that range", "this machine uses all of the addresses that local nodes could have")
}

// pair is the two addresses of node number i, from 0: this machine's and the node's.
func pair(network netip.Prefix, i int) (here, there netip.Prefix) {
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
	routes, err := os.ReadFile("/proc/net/route")
	if err != nil {
		return nil, fmt.Errorf("listing this machine's routes: %w", err)
	}
	return append(taken, parseRoutes(string(routes))...), nil
}

// parseRoutes reads /proc/net/route: destination and mask are numbers in hex whose bytes in memory are the address.
func parseRoutes(table string) []netip.Prefix {
	var nets []netip.Prefix
	for line := range strings.Lines(table) {
		field := strings.Fields(line)
		if len(field) < 8 {
			continue
		}
		destination, err1 := strconv.ParseUint(field[1], 16, 32)
		mask, err2 := strconv.ParseUint(field[7], 16, 32)
		if err1 != nil || err2 != nil || mask == 0 {
			continue // the heading, and default routes
		}
		var d, m [4]byte
		ne.PutUint32(d[:], uint32(destination))
		ne.PutUint32(m[:], uint32(mask))
		bits, _ := net.IPMask(m[:]).Size()
		nets = append(nets, netip.PrefixFrom(netip.AddrFrom4(d), bits).Masked())
	}
	return nets
}
