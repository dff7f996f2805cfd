package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Interfaces and what hangs on them, of the network namespace that Tare runs in. Other namespaces are not entered.

// A device is one network interface.
type device struct {
	name string
	xdp  []uint32 // program ids
}

// devices lists the interfaces by index.
//
// The attributes are read here and not by the library's LinkList, which parses everything that hangs on every interface
// and knows one XDP program of each: an interface may have one for each mode.
func devices() (map[uint32]device, error) {
	messages, err := dump(unix.RTM_GETLINK, unix.RTM_NEWLINK, nl.NewIfInfomsg(unix.AF_UNSPEC))
	if err != nil {
		return nil, fmt.Errorf("listing network interfaces: %w", err)
	}
	out := map[uint32]device{}
	for _, body := range messages {
		if index, d, ok := parseDevice(body); ok {
			out[index] = d
		}
	}
	return out, nil
}

// parseDevice reads a message of type RTM_NEWLINK.
func parseDevice(body []byte) (index uint32, d device, ok bool) {
	if len(body) < unix.SizeofIfInfomsg {
		return 0, device{}, false
	}
	for typ, value := range attributes(body[unix.SizeofIfInfomsg:]) {
		switch typ {
		case unix.IFLA_IFNAME:
			d.name = cString(value)
		case unix.IFLA_XDP:
			for typ, value := range attributes(value) {
				// IFLA_XDP_PROG_ID, and by mode: driver, generic, hardware.
				if typ < nl.IFLA_XDP_PROG_ID || typ > nl.IFLA_XDP_PROG_ID+3 || len(value) < 4 {
					continue
				}
				if id := binary.NativeEndian.Uint32(value); id != 0 {
					d.xdp = append(d.xdp, id)
				}
			}
		}
	}
	return uint32(nl.DeserializeIfInfomsg(body).Index), d, true
}

// tcAttachments finds BPF classifiers on clsact qdiscs.
func tcAttachments(found func(ifindex, program uint32, hook string)) error {
	qdiscs, err := dump(unix.RTM_GETQDISC, unix.RTM_NEWQDISC, &nl.TcMsg{})
	if err != nil {
		return fmt.Errorf("listing queueing disciplines: %w", err)
	}
	for _, qdisc := range qdiscs {
		if len(qdisc) < nl.SizeofTcMsg || !isClsact(qdisc) {
			continue
		}
		ifindex := nl.DeserializeTcMsg(qdisc).Ifindex
		hooks := map[string]uint32{"ingress": netlink.HANDLE_MIN_INGRESS, "egress": netlink.HANDLE_MIN_EGRESS}
		for hook, parent := range hooks {
			filters, err := dump(unix.RTM_GETTFILTER, unix.RTM_NEWTFILTER, &nl.TcMsg{Ifindex: ifindex, Parent: parent})
			if err != nil {
				return fmt.Errorf("listing the filters of interface %d: %w", ifindex, err)
			}
			for _, filter := range filters {
				if program, ok := classifier(filter); ok {
					found(uint32(ifindex), program, hook)
				}
			}
		}
	}
	return nil
}

// isClsact reads a message of type RTM_NEWQDISC.
func isClsact(body []byte) bool {
	for typ, value := range attributes(body[nl.SizeofTcMsg:]) {
		if typ == nl.TCA_KIND && cString(value) == "clsact" {
			return true
		}
	}
	return false
}

// classifier reads a message of type RTM_NEWTFILTER: the id of the program, if it is of a BPF classifier.
func classifier(body []byte) (program uint32, ok bool) {
	if len(body) < nl.SizeofTcMsg {
		return 0, false
	}
	kind := ""
	for typ, value := range attributes(body[nl.SizeofTcMsg:]) {
		switch typ {
		case nl.TCA_KIND: // comes before the options, whose meaning depends on it
			kind = cString(value)
		case nl.TCA_OPTIONS:
			if kind != "bpf" {
				continue
			}
			for typ, value := range attributes(value) {
				if typ == nl.TCA_BPF_ID && len(value) >= 4 {
					return binary.NativeEndian.Uint32(value), true
				}
			}
		}
	}
	return 0, false
}

// attributes walks a list of rtnetlink attributes. A list that is cut off is left out.
func attributes(b []byte) iter.Seq2[int, []byte] {
	return func(yield func(int, []byte) bool) {
		// Attributes are padded to four bytes, and the library relies on it.
		list, err := nl.ParseRouteAttr(b[:len(b)&^(unix.RTA_ALIGNTO-1)])
		if err != nil {
			return
		}
		for _, a := range list {
			if !yield(int(a.Attr.Type&nl.NLA_TYPE_MASK), a.Value) {
				return
			}
		}
	}
}

// dump makes one rtnetlink request for a list, and gives the bodies of the answers.
func dump(request int, answer uint16, body nl.NetlinkRequestData) ([][]byte, error) {
	const attempts = 3
	for i := 1; ; i++ {
		r := nl.NewNetlinkRequest(request, unix.NLM_F_DUMP)
		r.AddData(body)
		messages, err := r.Execute(unix.NETLINK_ROUTE, answer)
		if errors.Is(err, nl.ErrDumpInterrupted) { // the list changed while the kernel wrote it
			if i < attempts {
				continue
			}
			err = nil // it changes all the time: what there is of it is as good as the next would be
		}
		return messages, err
	}
}
