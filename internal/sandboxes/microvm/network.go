package microvm

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
)

// link is an interface in the sandbox's network namespace that is connected to the guest, as with Kata's model
// "tcfilter" (virtcontainers/network_linux.go): filters on the interface and on a tap device redirect all packets that
// arrive at one to the other. The guest's interface has the name, the addresses and the routes of the host's interface.
type link struct {
	Name      string `json:"name"`
	Index     int    `json:"index"`
	Tap       string `json:"tap"`
	Namespace uint64 `json:"namespace"` // inode number of the network namespace

	mac       string
	mtu       int
	addresses []netlink.Addr
	routes    []netlink.Route
}

// tapName is the name of a sandbox's tap device in its network namespace. The kernel removes the device when its last
// descriptor, which QEMU holds, is closed.
const tapName = "tap0_tare"

// thread is an operating system thread that runs functions one after the other. It can enter namespaces without
// affecting other threads. It ends with this process, and the kernel then kills the processes that were started from
// it.
type thread chan func()

func newThread() thread {
	t := make(thread)
	go func() {
		runtime.LockOSThread() // forever: the thread is in other namespaces
		for f := range t {
			f()
		}
		select {} // the thread must not end before its children
	}()
	return t
}

// do runs a function on the thread, and returns its error.
func (t thread) do(f func() error) error {
	done := make(chan error)
	t <- func() { done <- f() }
	return <-done
}

// onThread runs a function on a new thread, which ends afterwards.
func onThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- f()
	}()
	return <-done
}

// joinNetwork moves this thread into a network namespace, and returns the inode number of the namespace.
func joinNetwork(path string) (uint64, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err == nil {
		defer unix.Close(fd)
		err = unix.Setns(fd, unix.CLONE_NEWNET)
	}
	if err != nil {
		return 0, fault.Wrap(err, fault.Usage, path, "name a network namespace: ip netns add",
			"entering the network namespace")
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, fmt.Errorf("entering the network namespace %s: %w", path, err)
	}
	return st.Ino, nil
}

// findLink returns the Ethernet interface in this thread's network namespace that is up and has addresses other than
// link-local ones, or nil if there is none. Several such interfaces are an error. namespace is the inode number of that
// network namespace, and becomes the link's Namespace.
func findLink(namespace uint64) (*link, error) {
	all, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("looking for network interfaces: %w", err)
	}
	var found *link
	for _, l := range all {
		a := l.Attrs()
		if a.Flags&net.FlagLoopback != 0 || a.EncapType != "ether" || a.Flags&net.FlagUp == 0 {
			continue
		}
		addresses, err := netlink.AddrList(l, netlink.FAMILY_ALL)
		if err != nil {
			return nil, fmt.Errorf("looking for the addresses of %s: %w", a.Name, err)
		}
		addresses = slices.DeleteFunc(addresses, func(a netlink.Addr) bool { return a.IP.IsLinkLocalUnicast() })
		if len(addresses) == 0 {
			continue
		}
		if found != nil {
			return nil, fault.New(fault.Usage, a.Name, "leave one with addresses",
				"more than one network interface is not supported")
		}
		routes, err := netlink.RouteList(l, netlink.FAMILY_ALL)
		if err != nil {
			return nil, fmt.Errorf("looking for the routes by %s: %w", a.Name, err)
		}
		routes = slices.DeleteFunc(routes, func(r netlink.Route) bool { return r.Protocol == unix.RTPROT_KERNEL })
		found = &link{Name: a.Name, Index: a.Index, Tap: tapName, Namespace: namespace,
			mac: a.HardwareAddr.String(), mtu: a.MTU, addresses: addresses, routes: routes}
	}
	return found, nil
}

// makeTap creates the tap device in the network namespace of this thread.
func (l *link) makeTap() (*os.File, error) {
	const device = "/dev/net/tun"
	fd, err := unix.Open(device, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fault.Wrap(err, fault.Machine, device, "modprobe tun", "no tap devices on this machine")
	}
	tap := os.NewFile(uintptr(fd), device)
	request, err := unix.NewIfreq(l.Tap)
	if err == nil {
		request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("making the tap device %s: %w", l.Tap, err), tap.Close())
	}
	return tap, nil
}

// ingressHandle is the handle of an interface's ingress qdisc, whose filters see arriving packets. Qdiscs of the kinds
// ingress and clsact both have this handle, so an interface has at most one of them.
var ingressHandle = netlink.MakeHandle(0xffff, 0)

// filterPriority marks Tare's filters. Priorities of other programs are small or, if the kernel chooses them, large.
const filterPriority = 0x7a7e

// ingressOf returns the qdisc for packets that arrive at an interface, or nil if it has none.
func ingressOf(index int) (netlink.Qdisc, error) {
	all, err := netlink.QdiscList(nil)
	if err != nil {
		return nil, fmt.Errorf("looking for qdiscs: %w", err)
	}
	i := slices.IndexFunc(all, func(q netlink.Qdisc) bool {
		return q.Attrs().LinkIndex == index && q.Attrs().Parent == netlink.HANDLE_INGRESS
	})
	if i < 0 {
		return nil, nil
	}
	return all[i], nil
}

// free returns an error if another program filters the packets that arrive at the interface. It removes an ingress
// qdisc without filters, which does nothing: connect leaves one if it is killed before it has added the filter.
func (l *link) free() error {
	q, err := ingressOf(l.Index)
	if err != nil || q == nil {
		return err
	}
	at := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: l.Index}}
	if filters, err := netlink.FilterList(at, ingressHandle); err == nil && len(filters) == 0 && q.Type() == "ingress" {
		return netlink.QdiscDel(q)
	}
	return fault.New(fault.Machine, l.Name, "name a network namespace without such a qdisc (tc qdisc show dev "+l.Name+")",
		"another program filters the packets of the interface (qdisc %s), which Tare would have to replace", q.Type())
}

// connect redirects packets between the interface and the tap device.
func (l *link) connect() error {
	tap, err := netlink.LinkByName(l.Tap)
	if err != nil {
		return fmt.Errorf("looking for the tap device: %w", err)
	}
	if err := errors.Join(netlink.LinkSetMTU(tap, l.mtu), netlink.LinkSetUp(tap)); err != nil {
		return fmt.Errorf("setting up the tap device: %w", err)
	}
	for _, way := range [][2]int{{l.Index, tap.Attrs().Index}, {tap.Attrs().Index, l.Index}} {
		ingress := &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: way[0], Parent: netlink.HANDLE_INGRESS, Handle: ingressHandle,
		}}
		if err := netlink.QdiscAdd(ingress); err != nil {
			return fault.Wrap(err, fault.Machine, l.Name, "the kernel needs sch_ingress, cls_u32 and act_mirred",
				"cannot redirect packets of the interface, or another program already does")
		}
		filter := &netlink.U32{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: way[0], Parent: ingressHandle, Protocol: unix.ETH_P_ALL,
				Priority: filterPriority},
			Actions: []netlink.Action{&netlink.MirredAction{
				ActionAttrs:  netlink.ActionAttrs{Action: netlink.TC_ACT_STOLEN},
				MirredAction: netlink.TCA_EGRESS_REDIR, Ifindex: way[1],
			}},
		}
		if err := netlink.FilterAdd(filter); err != nil {
			_ = netlink.QdiscDel(ingress) // disconnect recognizes Tare's qdisc by its filter
			return fault.Wrap(err, fault.Machine, l.Name, "the kernel needs cls_u32 and act_mirred",
				"cannot redirect packets of the interface")
		}
	}
	return nil
}

// disconnect removes Tare's filter from the interface, and also the qdisc unless another program has added filters to
// it. It does nothing if the interface has gone with its namespace, or has been replaced. The tap device disappears by
// itself.
func (l *link) disconnect(path string) error {
	return onThread(func() error {
		namespace, err := joinNetwork(path)
		if err != nil || namespace != l.Namespace {
			return nil // the namespace has gone
		}
		found, err := netlink.LinkByName(l.Name)
		if err != nil || found.Attrs().Index != l.Index {
			return nil
		}
		q, err := ingressOf(l.Index)
		if err != nil || q == nil || q.Type() != "ingress" {
			return err
		}
		filters, err := netlink.FilterList(found, ingressHandle)
		if err != nil {
			return fmt.Errorf("looking for the filters of %s: %w", l.Name, err)
		}
		own := slices.IndexFunc(filters, ownFilter)
		switch {
		case own < 0:
			return nil
		case len(filters) > 1: // another program has added some
			err = netlink.FilterDel(filters[own])
		default:
			err = netlink.QdiscDel(q)
		}
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODEV) {
			return nil // the filter or qdisc has gone; EINVAL means that there is no such qdisc
		}
		if err != nil {
			return fmt.Errorf("taking the filters from the interface %s: %w", l.Name, err)
		}
		return nil
	})
}

// ownFilter reports whether a filter is Tare's: it has the priority filterPriority and redirects packets. The target of
// the redirection is not checked, because the tap device may have gone.
func ownFilter(f netlink.Filter) bool {
	u, is := f.(*netlink.U32)
	return is && u.Priority == filterPriority && slices.ContainsFunc(u.Actions, func(a netlink.Action) bool {
		m, is := a.(*netlink.MirredAction)
		return is && m.MirredAction == netlink.TCA_EGRESS_REDIR
	})
}

// Interface indexes in the guest. The kernel creates the loopback interface first.
const (
	guestLoopback = 1
	guestNIC      = 2
)

// networkPlan returns the plan that sets up the guest's network. If l is nil, the guest has only the loopback
// interface.
func networkPlan(l *link) *plan {
	p := &plan{}
	p.add("making a netlink socket", sysSocket, unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC,
		unix.NETLINK_ROUTE).into = other
	send := func(what string, r *nl.NetlinkRequest) {
		b := r.Serialize()
		p.add(what, opNetlink, other, b, len(b))
	}
	up := func(index int, attrs ...nl.NetlinkRequestData) {
		r := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
		m := nl.NewIfInfomsg(unix.AF_UNSPEC)
		m.Index, m.Change, m.Flags = int32(index), unix.IFF_UP, unix.IFF_UP
		r.AddData(m)
		for _, a := range attrs {
			r.AddData(a)
		}
		send(fmt.Sprintf("setting up the guest's interface %d", index), r)
	}
	up(guestLoopback)
	if l != nil {
		up(guestNIC, nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(l.Name)),
			nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(l.mtu))))
		for _, a := range l.addresses {
			send("giving the guest the address "+a.IPNet.String(), addressRequest(a))
		}
		// Routes without a gateway come first, because gateways are reached through them.
		for _, gateways := range []bool{false, true} {
			for _, r := range l.routes {
				if (r.Gw != nil) == gateways {
					send("giving the guest the route "+r.String(), routeRequest(r))
				}
			}
		}
	}
	p.add("closing the netlink socket", sysClose, other)
	return p
}

// ipBytes returns an address in its family's encoding.
func ipBytes(ip net.IP) (family int, b []byte) {
	if v4 := ip.To4(); v4 != nil {
		return unix.AF_INET, v4
	}
	return unix.AF_INET6, ip.To16()
}

func addressRequest(a netlink.Addr) *nl.NetlinkRequest {
	r := nl.NewNetlinkRequest(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	family, b := ipBytes(a.IP)
	m := nl.NewIfAddrmsg(family)
	ones, _ := a.Mask.Size()
	m.Index, m.Prefixlen, m.Scope = guestNIC, uint8(ones), uint8(a.Scope)
	if family == unix.AF_INET6 {
		m.IfAddrmsg.Flags |= unix.IFA_F_NODAD
	}
	r.AddData(m)
	r.AddData(nl.NewRtAttr(unix.IFA_LOCAL, b))
	r.AddData(nl.NewRtAttr(unix.IFA_ADDRESS, b))
	if a.Broadcast != nil && family == unix.AF_INET {
		r.AddData(nl.NewRtAttr(unix.IFA_BROADCAST, a.Broadcast.To4()))
	}
	return r
}

func routeRequest(route netlink.Route) *nl.NetlinkRequest {
	r := nl.NewNetlinkRequest(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_ACK)
	m := nl.NewRtMsg()
	m.Family = uint8(route.Family)
	m.Scope, m.Flags = uint8(route.Scope), uint32(route.Flags)&unix.RTNH_F_ONLINK
	var attrs []*nl.RtAttr
	if route.Dst != nil {
		if ones, _ := route.Dst.Mask.Size(); ones > 0 {
			_, b := ipBytes(route.Dst.IP)
			m.Dst_len = uint8(ones)
			attrs = append(attrs, nl.NewRtAttr(unix.RTA_DST, b))
		}
	}
	if route.Gw != nil {
		_, b := ipBytes(route.Gw)
		attrs = append(attrs, nl.NewRtAttr(unix.RTA_GATEWAY, b))
	}
	if route.Src != nil {
		_, b := ipBytes(route.Src)
		attrs = append(attrs, nl.NewRtAttr(unix.RTA_PREFSRC, b))
	}
	if route.Priority > 0 {
		attrs = append(attrs, nl.NewRtAttr(unix.RTA_PRIORITY, nl.Uint32Attr(uint32(route.Priority))))
	}
	r.AddData(m)
	for _, a := range append(attrs, nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(guestNIC))) {
		r.AddData(a)
	}
	return r
}
