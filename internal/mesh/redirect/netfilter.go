package redirect

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"tare/internal/experiment/link"
)

// The mark of packets for transparent proxies, and the number of the routing table for marked packets. Both numbers are
// the defaults of Istio.
const (
	proxyMark  = 0x539
	proxyTable = 133
)

// outward redirects connections that processes of a pod open. Its nat chain is at the local output hook, as in the
// rules of Istio and Linkerd.
func outward(pod *link.Namespace, all []Taken) error {
	return rules(pod, nftables.Chain{
		Name: "output", Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookOutput,
		Priority: nftables.ChainPriorityNATDest,
	}, all, redirected)
}

// inward redirects connections that arrive at a pod from outside, but not connections between the pod's processes.
func inward(pod *link.Namespace, all []Taken) error {
	return rules(pod, nftables.Chain{
		Name: "prerouting", Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPrerouting,
		Priority: nftables.ChainPriorityNATDest,
	}, all, func(t Taken) []expr.Any { return append(arriving(), redirected(t)...) })
}

// transparent delivers packets that arrive at a pod to a proxy's socket, unchanged. Its rules mark the packets and
// assign them to the socket, and a routing rule delivers marked packets locally, in the pod. Meshes that preserve
// clients' addresses need this.
func transparent(pod *link.Namespace, all []Taken) error {
	err := rules(pod, nftables.Chain{
		Name: "divert", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting,
		Priority: nftables.ChainPriorityMangle,
	}, all, func(t Taken) []expr.Any { return append(arriving(), diverted(t)...) })
	if err != nil {
		return err
	}
	return pod.Do(func() error {
		rule := netlink.NewRule()
		rule.Mark, rule.Table, rule.Family = proxyMark, proxyTable, netlink.FAMILY_V4
		if err := netlink.RuleAdd(rule); err != nil {
			return fmt.Errorf("adding the routing rule for marked packets: %w", err)
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return fmt.Errorf("looking for the loopback interface: %w", err)
		}
		all := &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
		err = netlink.RouteAdd(&netlink.Route{
			LinkIndex: lo.Attrs().Index, Dst: all, Table: proxyTable, Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST,
		})
		if err != nil {
			return fmt.Errorf("adding the route for marked packets: %w", err)
		}
		return nil
	})
}

// rules creates a table with one chain in the pod's network. The chain has a rule for each element of the slice all.
func rules(pod *link.Namespace, chain nftables.Chain, all []Taken, rule func(Taken) []expr.Any) error {
	if err := hasNetfilter(); err != nil {
		return err
	}
	c, err := nftables.New(nftables.WithNetNSFd(pod.FD()))
	if err != nil {
		return fmt.Errorf("opening netfilter: %w", err)
	}
	chain.Table = c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "tare-" + chain.Name})
	made := c.AddChain(&chain)
	for _, t := range all {
		c.AddRule(&nftables.Rule{Table: chain.Table, Chain: made, Exprs: rule(t)})
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("adding rules to netfilter: %w", err)
	}
	return nil
}

// hasNetfilter returns an error if the kernel has no netfilter.
func hasNetfilter() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("opening netfilter: %w", os.NewSyscallError("socket", err))
	}
	return unix.Close(fd)
}

// The nftables registers that the expressions below use.
const (
	register1 = 1
	register2 = 2
)

// arriving returns expressions that match packets that arrive on the pod's interface.
func arriving() []expr.Any {
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, link.Inside)
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: register1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: register1, Data: name},
	}
}

// of returns expressions that match TCP packets to t.To, and that count the matching packets.
func of(t Taken) []expr.Any {
	ip := t.To.Addr().As4()
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: register1, Data: []byte{unix.IPPROTO_TCP}},
		// The destination, in the IPv4 header (RFC 791) and in the TCP header (RFC 9293).
		&expr.Payload{DestRegister: register1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
		&expr.Cmp{Op: expr.CmpOpEq, Register: register1, Data: ip[:]},
		&expr.Payload{DestRegister: register1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: register1, Data: binary.BigEndian.AppendUint16(nil, t.To.Port())},
		&expr.Counter{},
	}
}

// redirected returns the expressions of a rule that redirects connections to t.To to the port of t.Proxy on this host.
func redirected(t Taken) []expr.Any {
	return append(of(t),
		&expr.Immediate{Register: register1, Data: binary.BigEndian.AppendUint16(nil, t.Proxy.Port())},
		&expr.Redir{RegisterProtoMin: register1, Flags: unix.NF_NAT_RANGE_PROTO_SPECIFIED},
	)
}

// diverted returns the expressions of a rule that marks packets to t.To, and assigns them to the socket at t.Proxy.
func diverted(t Taken) []expr.Any {
	ip := t.Proxy.Addr().As4()
	return append(of(t),
		&expr.Immediate{Register: register1, Data: binaryutil.NativeEndian.PutUint32(proxyMark)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: register1},
		&expr.Immediate{Register: register1, Data: ip[:]},
		&expr.Immediate{Register: register2, Data: binary.BigEndian.AppendUint16(nil, t.Proxy.Port())},
		&expr.TProxy{
			Family: unix.NFPROTO_IPV4, TableFamily: unix.NFPROTO_IPV4, RegAddr: register1, RegPort: register2,
		},
		&expr.Verdict{Kind: expr.VerdictAccept},
	)
}
