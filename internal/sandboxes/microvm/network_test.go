package microvm

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestDisconnect: disconnect removes a sandbox's filter and qdisc, and nothing that belongs to other programs.
func TestDisconnect(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes network namespaces")
	}
	of := func(index int) netlink.QdiscAttrs {
		return netlink.QdiscAttrs{LinkIndex: index, Parent: netlink.HANDLE_INGRESS, Handle: ingressHandle}
	}
	filter := func(index, to int) error {
		return netlink.FilterAdd(&netlink.U32{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: ingressHandle, Protocol: unix.ETH_P_ALL, Priority: 1},
			Actions: []netlink.Action{&netlink.MirredAction{
				ActionAttrs:  netlink.ActionAttrs{Action: netlink.TC_ACT_STOLEN},
				MirredAction: netlink.TCA_EGRESS_REDIR, Ifindex: to,
			}},
		})
	}
	ingress := func(l *link, tap netlink.Link) error {
		if err := netlink.QdiscAdd(&netlink.Ingress{QdiscAttrs: of(l.Index)}); err != nil {
			return err
		}
		return filter(l.Index, tap.Attrs().Index)
	}
	for _, c := range []struct {
		name   string
		others func(*link, netlink.Link) error // called before the sandbox connects
		free   bool                            // whether link.free succeeds
		after  func(*link, netlink.Link) error
		left   string // expected at the end: the qdisc and the number of its filters
	}{
		{"alone", nil, true, nil, "none"},
		{"whose tap device has gone", nil, true, func(_ *link, tap netlink.Link) error {
			return netlink.LinkDel(tap)
		}, "none"},
		{"with a filter of another program", nil, true, func(l *link, tap netlink.Link) error {
			return filter(l.Index, tap.Attrs().Index)
		}, "ingress 1"},
		{"clsact", func(l *link, _ netlink.Link) error {
			return netlink.QdiscAdd(&netlink.Clsact{QdiscAttrs: of(l.Index)})
		}, false, nil, "clsact 0"},
		{"ingress without a filter, as after kill -9", func(l *link, _ netlink.Link) error {
			return netlink.QdiscAdd(&netlink.Ingress{QdiscAttrs: of(l.Index)})
		}, true, nil, "none"},
		{"ingress with a redirection, and the device has gone", ingress, false, func(_ *link, tap netlink.Link) error {
			return netlink.LinkDel(tap)
		}, "ingress 1"},
	} {
		err := onThread(func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			f, err := os.Open("/proc/thread-self/ns/net")
			if err != nil {
				return err
			}
			defer f.Close()
			path := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
			l := &link{Name: "eth0", Tap: tapName, mtu: 1500}
			if l.Namespace, err = joinNetwork(path); err != nil {
				return err
			}
			for _, name := range []string{l.Name, l.Tap} {
				pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "0"}
				if err := netlink.LinkAdd(pair); err != nil {
					return err
				}
			}
			eth0, err := netlink.LinkByName(l.Name)
			if err != nil {
				return err
			}
			tap, err := netlink.LinkByName(l.Tap)
			if err != nil {
				return err
			}
			l.Index = eth0.Attrs().Index
			if c.others != nil {
				if err := c.others(l, tap); err != nil {
					return err
				}
			}
			if err := l.free(); (err == nil) != c.free {
				t.Errorf("%s: free: %v", c.name, err)
			}
			if err := l.connect(); (err == nil) != c.free {
				return fmt.Errorf("connect: %w", err)
			}
			if c.after != nil {
				if err := c.after(l, tap); err != nil {
					return err
				}
			}
			if err := l.disconnect(path); err != nil {
				return err
			}
			left := "none"
			q, err := ingressOf(l.Index)
			if q != nil {
				filters, _ := netlink.FilterList(eth0, ingressHandle)
				left = fmt.Sprint(q.Type(), " ", len(filters))
			}
			if left != c.left {
				t.Errorf("%s: left %s, want %s", c.name, left, c.left)
			}
			return err
		})
		if err != nil && strings.Contains(err.Error(), "not supported") {
			t.Skipf("needs veth and traffic control: %v", err)
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
