package redirect

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"

	"github.com/cilium/ebpf"
	ebpflink "github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"tare/internal/experiment/link"
)

// end has the layout of struct end in redirect.c.
type end [8]byte

func endOf(a netip.AddrPort) (e end) {
	ip := a.Addr().As4()
	copy(e[:], ip[:])
	binary.BigEndian.PutUint16(e[4:], a.Port())
	return e
}

// load loads the programs and attaches them. The programs for outgoing connections are attached to the control group of
// the loads, unless t.Loads is empty. The program that answers proxies' getsockopt() with the original destination is
// attached to the control groups of the proxies. The program for arriving packets is attached to the interface of the
// server's pod.
func (r *Rules) load(p *Pods, t Taking) error {
	spec, err := loadRedirect()
	if err != nil {
		return fmt.Errorf("reading the programs: %w", err)
	}
	spec.Maps[redirectMapRdOutbound].MaxEntries = uint32(max(1, len(t.Outbound)))
	spec.Maps[redirectMapRdInbound].MaxEntries = uint32(max(1, len(t.Inbound)))
	// The map has room for twice the possible number of connections, because a map of type LRU drops elements before it
	// is full.
	spec.Maps[redirectMapRdOriginals].MaxEntries = uint32(2 * max(64, t.Connections) * max(1, len(t.Outbound)))
	var loaded redirectObjects
	if err := spec.LoadAndAssign(&loaded, nil); err != nil {
		return fmt.Errorf("loading the programs: %w", err)
	}
	r.loaded = &loaded
	r.closes = append(r.closes, loaded.Close)
	for _, fill := range []struct {
		into *ebpf.Map
		all  []Taken
	}{{loaded.RdOutbound, t.Outbound}, {loaded.RdInbound, t.Inbound}} {
		for _, taken := range fill.all {
			if err := fill.into.Put(endOf(taken.To), endOf(taken.Proxy)); err != nil {
				return fmt.Errorf("writing the redirected addresses: %w", err)
			}
		}
	}
	// The program for getsockopt is attached first: a proxy must be able to ask about every redirected connection.
	for _, dir := range t.Proxies {
		if err := r.attach(dir, loaded.RdGetsockopt, ebpf.AttachCGroupGetsockopt); err != nil {
			return err
		}
	}
	if err := classify(p.Server, loaded.RdIngress); err != nil {
		return err
	}
	if t.Loads == "" {
		return nil
	}
	if err := r.attach(t.Loads, loaded.RdSockops, ebpf.AttachCGroupSockOps); err != nil {
		return err
	}
	return r.attach(t.Loads, loaded.RdConnect4, ebpf.AttachCGroupInet4Connect)
}

// attach attaches a program to the control group in a directory, until Close. It uses a link, which the kernel removes
// when this process ends.
func (r *Rules) attach(dir string, p *ebpf.Program, as ebpf.AttachType) error {
	cgroup, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("opening a control group: %w", err)
	}
	defer cgroup.Close()
	// Not ebpflink.AttachCgroup: on kernels without links it attaches the program without a link, and the attachment would
	// outlive this process.
	l, err := ebpflink.AttachRawLink(ebpflink.RawLinkOptions{Target: int(cgroup.Fd()), Program: p, Attach: as})
	if err != nil {
		return fmt.Errorf("attaching %v to %s: %w", p, dir, err)
	}
	r.closes = append(r.closes, l.Close)
	return nil
}

// classify attaches a program to the interface of a pod, for packets that arrive there. The program stays attached as
// long as the interface exists.
func classify(pod *link.Namespace, p *ebpf.Program) error {
	return pod.Do(func() error {
		inside, err := netlink.LinkByName(link.Inside)
		if err != nil {
			return fmt.Errorf("looking for the interface of a pod: %w", err)
		}
		index := inside.Attrs().Index
		err = netlink.QdiscAdd(&netlink.GenericQdisc{QdiscType: "clsact", QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
		}})
		if err != nil {
			return fmt.Errorf("adding the queueing discipline clsact: %w", err)
		}
		err = netlink.FilterAdd(&netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{
				LinkIndex: index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 1,
			},
			Fd: p.FD(), Name: "rd_ingress", DirectAction: true,
		})
		if err != nil {
			return fmt.Errorf("attaching a program to the interface of a pod: %w", err)
		}
		return nil
	})
}
