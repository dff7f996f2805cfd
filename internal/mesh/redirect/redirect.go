// Package redirect redirects connections to the sidecar proxies of a mesh, by netfilter rules or by eBPF programs, in
// network namespaces made for the purpose. No rule, interface or program is in the host's network, and all of them
// disappear with the namespaces.
//
// Only kernel modules stay. If veth, nf_tables, nft_nat, nft_redir, nft_tproxy, nf_conntrack, sch_ingress or cls_bpf
// are not built in, the kernel loads them for the whole machine when they are first needed (request_module, in
// net/core/rtnetlink.c, net/netfilter/nf_tables_api.c and net/sched). Check needs them too. They are never unloaded,
// because other processes may have begun to use them.
//
// A trial has two pods: one for the loads and their proxies, and one for the applications and their proxies. A load
// connects to an application's service: an address that no interface has, with the application's port.
//
//	load -> service:port, redirected to proxy.client -> server pod:port, redirected to proxy.server -> application
package redirect

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/link"
	"tare/internal/lib/fault"
	"tare/internal/scale/host/cgroup"
)

// The ways in which connections reach a proxy.
const (
	Explicit = "explicit" // clients connect to the proxy
	IPTables = "iptables" // REDIRECT, with nf_tables rules like those that iptables makes today
	TPROXY   = "tproxy"   // REDIRECT for connections that leave a pod, TPROXY for those that arrive at one
	EBPF     = "ebpf"     // a new destination at connect() in one pod, packets assigned to the proxy's socket in the other
)

// Ways lists all ways. The first is Explicit, which redirects nothing.
var Ways = []string{Explicit, IPTables, TPROXY, EBPF}

// Unchanged reports whether packets that arrive at a pod reach the proxy with their original destination address.
// SO_ORIGINAL_DST then fails, because nothing tracks the connection. Envoy takes the socket's local address instead,
// but only if the socket is transparent (Utility::getOriginalDst in Envoy's source/common/network/utility.cc).
func Unchanged(way string) bool { return way == TPROXY || way == EBPF }

// The addresses of pods are in the range for network benchmarks (RFC 2544). They exist only in the pods' network, so
// every trial can use the same ones.
var (
	clientPrefix = netip.MustParsePrefix("198.18.0.1/30")
	serverPrefix = netip.MustParsePrefix("198.18.0.2/30")

	// Client, Server and Service are the addresses of the two pods and of all services.
	Client  = clientPrefix.Addr()
	Server  = serverPrefix.Addr()
	Service = netip.MustParseAddr("198.18.1.1")
)

// Pods holds two network namespaces that a veth pair connects.
type Pods struct{ Client, Server *link.Namespace }

// NewPods makes both pods, which the caller must close. If the machine cannot make them, the error is of code
// fault.Machine, and the pods are closed already.
func NewPods() (p *Pods, err error) {
	p = &Pods{}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	if p.Client, err = link.NewNamespace(); err != nil {
		return p, err
	}
	if p.Server, err = link.NewNamespace(); err != nil {
		return p, err
	}
	if err := link.Connect(p.Client, p.Server, clientPrefix, serverPrefix); err != nil {
		return p, err
	}
	// No interface has a service's address, so a connection to a service needs the default route.
	return p, p.Client.RouteAll(Server)
}

// Close releases the namespaces, which end with the last process in them.
func (p *Pods) Close() error {
	if p == nil {
		return nil
	}
	return errors.Join(p.Client.Close(), p.Server.Close())
}

// Taken describes a redirection: connections to the address To go to the proxy that listens at Proxy.
type Taken struct{ To, Proxy netip.AddrPort }

// Taking describes which connections are redirected, in both pods.
type Taking struct {
	Way      string
	Outbound []Taken // connections that leave the client's pod
	Inbound  []Taken // connections that arrive at the server's pod

	// For EBPF: the v2 control groups of the loads, and of each proxy beside them.
	Loads   string
	Proxies []string
	// Connections is the number of concurrent connections that a proxy carries.
	Connections int
}

// Rules holds the installed eBPF programs. No rule or program exists any more once the pods and this process have
// ended.
type Rules struct {
	loaded *redirectObjects
	closes []func() error
}

// Install installs the rules or programs in the pods. If the machine cannot redirect connections in this way, the error
// is of code fault.Machine, and its hint names the features that may be missing.
func (t Taking) Install(p *Pods) (r *Rules, err error) {
	r = &Rules{}
	switch t.Way {
	case Explicit:
	case IPTables:
		if err = outward(p.Client, t.Outbound); err == nil {
			err = inward(p.Server, t.Inbound)
		}
	case TPROXY:
		if err = outward(p.Client, t.Outbound); err == nil {
			err = transparent(p.Server, t.Inbound)
		}
	case EBPF:
		err = r.load(p, t)
	default:
		err = fmt.Errorf("unknown way of redirection %q", t.Way)
	}
	if err != nil {
		return nil, errors.Join(explain(err, t.Way), r.Close())
	}
	return r, nil
}

// needs describes which kernel features each way needs.
var needs = map[string]string{
	IPTables: "nf_tables with nat and redirection, and connection tracking (CONFIG_NF_TABLES_IPV4, CONFIG_NFT_NAT, " +
		"CONFIG_NFT_REDIR, CONFIG_NF_CONNTRACK)",
	TPROXY: "nf_tables with nat, redirection and transparent proxies, connection tracking and policy routing " +
		"(CONFIG_NF_TABLES_IPV4, CONFIG_NFT_NAT, CONFIG_NFT_REDIR, CONFIG_NFT_TPROXY, CONFIG_NF_CONNTRACK, " +
		"CONFIG_IP_MULTIPLE_TABLES)",
	EBPF: "CONFIG_CGROUP_BPF, CONFIG_NET_CLS_BPF and CONFIG_NET_SCH_INGRESS; tried with Linux 6.1 and 6.18",
}

// NoHierarchy returns the error, of code fault.Machine, for a machine where no v2 hierarchy of control groups is
// mounted, so that programs cannot be attached. The argument where names the part of the experiment that needs the
// hierarchy, and may be empty.
func NoHierarchy(where string) error {
	return fault.New(fault.Machine, where, cgroup.MountV2, "eBPF programs on sockets are attached to control groups "+
		"v2, and no v2 hierarchy is mounted")
}

// Needs describes which kernel features a way needs, beside network namespaces. It returns "" for Explicit.
func Needs(way string) string { return needs[way] }

// explain adds a hint to an error of installing rules or programs: the features that the kernel may lack. If err wraps
// a *fault.Error, explain returns that unchanged.
func explain(err error, way string) error {
	if known, is := errors.AsType[*fault.Error](err); is {
		return known
	}
	return fault.Wrap(err, fault.Machine, way, "run as root, on a kernel that has "+needs[way]+", as modules or built in",
		"this machine cannot redirect connections by %s", way)
}

// Check checks whether this machine can redirect connections in the given way (see Ways). To find out, it installs
// rules in two pods without processes. Its error is of code fault.Machine.
func Check(way string) error { return check(way, cgroup.Roots{}) }

func check(way string, roots cgroup.Roots) (err error) {
	if way == EBPF {
		// Check has no control group of loads, so the programs on sockets are not attached.
		layout, err := cgroup.Discover(roots)
		if err != nil {
			return err
		}
		if _, is := layout.V2(); !is {
			return NoHierarchy("")
		}
	}
	p, err := NewPods()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	r, err := Taking{
		Way: way, Connections: 1,
		Outbound: []Taken{{netip.AddrPortFrom(Service, 1), netip.AddrPortFrom(loopback, 2)}},
		Inbound:  []Taken{{netip.AddrPortFrom(Server, 1), netip.AddrPortFrom(Server, 2)}},
	}.Install(p)
	if err != nil {
		return err
	}
	return r.Close()
}

// loopback is the address at which the proxies of loads listen.
var loopback = netip.MustParseAddr("127.0.0.1")

// Objects returns the eBPF programs and maps of the rules.
func (r *Rules) Objects() (o kind.Objects) {
	o = kind.Objects{Programs: []kind.Object{}, Maps: []kind.Object{}}
	if r == nil || r.loaded == nil {
		return o
	}
	for _, p := range []*ebpf.Program{r.loaded.RdConnect4, r.loaded.RdSockops, r.loaded.RdGetsockopt, r.loaded.RdIngress} {
		if info, err := p.Info(); err == nil {
			if id, known := info.ID(); known {
				o.Programs = append(o.Programs, kind.Object{ID: uint32(id), Name: info.Name})
			}
		}
	}
	for _, m := range []*ebpf.Map{r.loaded.RdOutbound, r.loaded.RdInbound, r.loaded.RdOrigins, r.loaded.RdOriginals} {
		if info, err := m.Info(); err == nil {
			if id, known := info.ID(); known {
				o.Maps = append(o.Maps, kind.Object{ID: uint32(id), Name: info.Name})
			}
		}
	}
	return o
}

// Close detaches the eBPF programs from the control groups, and closes all programs and maps. The program at the
// interface of the server's pod, and netfilter rules, exist as long as their pods. A second Close does nothing. Close
// of a nil *Rules does nothing either.
func (r *Rules) Close() error {
	if r == nil {
		return nil
	}
	var errs []error
	for i := len(r.closes) - 1; i >= 0; i-- {
		errs = append(errs, r.closes[i]())
	}
	r.closes = nil
	return errors.Join(errs...)
}
