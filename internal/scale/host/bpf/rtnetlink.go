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

// Interfaces and their attachments according to rtnetlink, in the network namespace of the calling thread.

// device is one network interface.
type device struct {
	name string
	xdp  []uint32 // program ids
}

// devices returns the interfaces by index; after an error, those that could be listed.
//
// It parses attributes itself and does not use the library's LinkList, which parses everything attached to every
// interface but returns only one XDP program for each: an interface may have one for each mode.
func devices() (map[uint32]device, error) {
	messages, err := dump(unix.RTM_GETLINK, unix.RTM_NEWLINK, nl.NewIfInfomsg(unix.AF_UNSPEC))
	out := map[uint32]device{}
	for _, body := range messages {
		if index, d, ok := parseDevice(body); ok {
			out[index] = d
		}
	}
	if err != nil {
		return out, fmt.Errorf("listing network interfaces: %w", err)
	}
	return out, nil
}

// parseDevice parses a message of type RTM_NEWLINK.
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
				// IFLA_XDP_PROG_ID, and one for each mode: driver, generic, hardware.
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

// maxClasses bounds the traffic classes in one network namespace whose filters are listed, with one request for each.
const maxClasses = 4096

// tcAttachments finds BPF classifiers: in the ingress and egress of interfaces (clsact, ingress), and on the root and
// the classes of other queueing disciplines. place is in the notation of tc(8): "ingress", "parent 1:10".
func tcAttachments(found func(ifindex, program uint32, place string)) error {
	qdiscs, err := dump(unix.RTM_GETQDISC, unix.RTM_NEWQDISC, &nl.TcMsg{})
	var errs []error
	if err != nil {
		errs = append(errs, fmt.Errorf("listing queueing disciplines: %w", err))
	}
	filters := func(ifindex int32, parent uint32, place string) {
		list, err := dump(unix.RTM_GETTFILTER, unix.RTM_NEWTFILTER, &nl.TcMsg{Ifindex: ifindex, Parent: parent})
		if err != nil {
			errs = append(errs, fmt.Errorf("listing the filters of interface %d, %s: %w", ifindex, place, err))
		}
		for _, filter := range list {
			if program, ok := classifier(filter); ok {
				found(uint32(ifindex), program, place)
			}
		}
	}
	classes := 0
	for _, qdisc := range qdiscs {
		kind, ok := kindOf(qdisc)
		if !ok {
			continue
		}
		q := nl.DeserializeTcMsg(qdisc)
		switch kind {
		case "clsact":
			filters(q.Ifindex, netlink.HANDLE_MIN_EGRESS, "egress")
			fallthrough
		case "ingress":
			filters(q.Ifindex, netlink.HANDLE_MIN_INGRESS, "ingress")
			continue
		}
		if q.Handle == 0 { // Created by the kernel by default. At the root, its filters are listed without a handle.
			if q.Parent == netlink.HANDLE_ROOT {
				filters(q.Ifindex, 0, "root")
			}
			continue
		}
		filters(q.Ifindex, q.Handle, parentName(q.Handle))
		list, err := dump(unix.RTM_GETTCLASS, unix.RTM_NEWTCLASS, &nl.TcMsg{Ifindex: q.Ifindex, Parent: q.Handle})
		if err != nil {
			errs = append(errs, fmt.Errorf("listing the classes of interface %d: %w", q.Ifindex, err))
		}
		for _, class := range list {
			if _, ok := kindOf(class); !ok {
				continue
			}
			if classes++; classes > maxClasses {
				errs = append(errs, fmt.Errorf("there are more than %d classes of traffic: the filters of the rest were not "+
					"looked at", maxClasses))
				return firstOf(errs)
			}
			handle := nl.DeserializeTcMsg(class).Handle
			filters(q.Ifindex, handle, parentName(handle))
		}
	}
	return firstOf(errs)
}

// parentName formats a handle like tc(8).
func parentName(handle uint32) string {
	if minor := handle & 0xffff; minor != 0 {
		return fmt.Sprintf("parent %x:%x", handle>>16, minor)
	}
	return fmt.Sprintf("parent %x:", handle>>16)
}

// kindOf returns the kind in a message of type RTM_NEWQDISC, RTM_NEWTCLASS or RTM_NEWTFILTER.
func kindOf(body []byte) (kind string, ok bool) {
	if len(body) < nl.SizeofTcMsg {
		return "", false
	}
	name := firstAttribute(body[nl.SizeofTcMsg:], nl.TCA_KIND)
	return cString(name), name != nil
}

const (
	actBPFParms = 2 // TCA_ACT_BPF_PARMS, include/uapi/linux/tc_act/tc_bpf.h
	actBPFID    = 9 // TCA_ACT_BPF_ID
)

// action is a BPF program called by filters.
type action struct{ index, program uint32 }

// actions returns the actions of kind bpf that are used by a filter.
func actions() ([]action, error) {
	one := nl.NewRtAttr(1, nil)
	one.AddRtAttr(nl.TCA_ACT_KIND, nl.ZeroTerminated("bpf"))
	table := nl.NewRtAttr(nl.TCA_ACT_TAB, nil)
	table.AddChild(one)
	messages, err := dump(unix.RTM_GETACTION, unix.RTM_GETACTION, &nl.TcActionMsg{}, table)
	var out []action
	for _, body := range messages {
		out = append(out, parseActions(body)...)
	}
	if err != nil {
		return out, fmt.Errorf("listing the actions of filters: %w", err)
	}
	return out, nil
}

// parseActions parses an answer to RTM_GETACTION.
func parseActions(body []byte) (out []action) {
	if len(body) < nl.SizeofTcActionMsg {
		return nil
	}
	for _, one := range attributes(firstAttribute(body[nl.SizeofTcActionMsg:], nl.TCA_ACT_TAB)) {
		options := firstAttribute(one, nl.TCA_ACT_OPTIONS)
		parms, id := firstAttribute(options, actBPFParms), firstAttribute(options, actBPFID)
		if len(parms) < 20 || len(id) < 4 { // struct tc_act_bpf: index, capab, action, refcnt, bindcnt
			continue
		}
		a := action{index: binary.NativeEndian.Uint32(parms), program: binary.NativeEndian.Uint32(id)}
		if bound := binary.NativeEndian.Uint32(parms[16:]) != 0; bound && a.program != 0 {
			out = append(out, a)
		}
	}
	return out
}

// classifier parses a message of type RTM_NEWTFILTER: it returns the program's id if the filter is a BPF classifier.
func classifier(body []byte) (program uint32, ok bool) {
	if len(body) < nl.SizeofTcMsg {
		return 0, false
	}
	list := body[nl.SizeofTcMsg:]
	id := firstAttribute(firstAttribute(list, nl.TCA_OPTIONS), nl.TCA_BPF_ID)
	if cString(firstAttribute(list, nl.TCA_KIND)) != "bpf" || len(id) < 4 {
		return 0, false
	}
	return binary.NativeEndian.Uint32(id), true
}

// firstAttribute returns the first attribute of a type in a list; nil if there is none.
func firstAttribute(list []byte, typ int) []byte {
	for t, value := range attributes(list) {
		if t == typ {
			return value
		}
	}
	return nil
}

// attributes iterates over a list of rtnetlink attributes. It yields nothing if the list is truncated.
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

// dump makes one rtnetlink request for a list, and returns the bodies of the answers; after an error, those received.
func dump(request int, answer uint16, body ...nl.NetlinkRequestData) ([][]byte, error) {
	const attempts = 3
	for i := 1; ; i++ {
		r := nl.NewNetlinkRequest(request, unix.NLM_F_DUMP)
		for _, part := range body {
			r.AddData(part)
		}
		messages, err := r.Execute(unix.NETLINK_ROUTE, answer)
		if errors.Is(err, unix.EOPNOTSUPP) { // a kernel without queueing disciplines, classifiers or actions
			return nil, nil
		}
		if !errors.Is(err, nl.ErrDumpInterrupted) || i == attempts { // the list changed while the kernel wrote it
			return messages, err
		}
	}
}
