package bpf

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// Interfaces and what hangs on them, of the network namespace that Tare runs in. Other namespaces are not entered.

// A device is one network interface.
type device struct {
	name string
	xdp  []uint32 // program ids
}

const (
	tcIngress = 0xfffffff2 // the two hooks of a clsact qdisc: TC_H_CLSACT | TC_H_MIN_INGRESS, TC_H_MIN_EGRESS
	tcEgress  = 0xfffffff3
	tcaBPFID  = 11 // TCA_BPF_ID
	iflaXDP   = 43 // IFLA_XDP
)

// devices lists the interfaces by index.
func devices() (map[uint32]device, error) {
	request := make([]byte, 16) // struct ifinfomsg: all families, all interfaces
	out := map[uint32]device{}
	err := dump(unix.RTM_GETLINK, request, func(typ uint16, body []byte) {
		if typ != unix.RTM_NEWLINK || len(body) < 16 {
			return
		}
		var d device
		attributes(body[16:], func(typ uint16, value []byte) {
			switch typ {
			case unix.IFLA_IFNAME:
				d.name = cString(value)
			case iflaXDP:
				attributes(value, func(typ uint16, value []byte) {
					const first, last = 4, 7 // IFLA_XDP_PROG_ID, and by mode: driver, generic, hardware
					if typ >= first && typ <= last && len(value) >= 4 {
						if id := binary.NativeEndian.Uint32(value); id != 0 {
							d.xdp = append(d.xdp, id)
						}
					}
				})
			}
		})
		out[binary.NativeEndian.Uint32(body[4:])] = d
	})
	if err != nil {
		return nil, fmt.Errorf("listing network interfaces: %w", err)
	}
	return out, nil
}

// tcAttachments finds BPF classifiers on clsact qdiscs.
func tcAttachments(found func(ifindex, program uint32, hook string)) error {
	const size = 20 // struct tcmsg: family and padding, ifindex, handle, parent, info
	var clsact []uint32
	err := dump(unix.RTM_GETQDISC, make([]byte, size), func(typ uint16, body []byte) {
		if typ != unix.RTM_NEWQDISC || len(body) < size {
			return
		}
		attributes(body[size:], func(typ uint16, value []byte) {
			if typ == unix.TCA_KIND && cString(value) == "clsact" {
				clsact = append(clsact, binary.NativeEndian.Uint32(body[4:]))
			}
		})
	})
	if err != nil {
		return fmt.Errorf("listing queueing disciplines: %w", err)
	}
	for _, ifindex := range clsact {
		for hook, parent := range map[string]uint32{"ingress": tcIngress, "egress": tcEgress} {
			request := make([]byte, size)
			binary.NativeEndian.PutUint32(request[4:], ifindex)
			binary.NativeEndian.PutUint32(request[12:], parent)
			err := dump(unix.RTM_GETTFILTER, request, func(typ uint16, body []byte) {
				if typ != unix.RTM_NEWTFILTER || len(body) < size {
					return
				}
				attributes(body[size:], func(typ uint16, value []byte) {
					if typ != unix.TCA_OPTIONS {
						return
					}
					attributes(value, func(typ uint16, value []byte) {
						if typ == tcaBPFID && len(value) >= 4 {
							found(ifindex, binary.NativeEndian.Uint32(value), hook)
						}
					})
				})
			})
			if err != nil {
				return fmt.Errorf("listing the filters of interface %d: %w", ifindex, err)
			}
		}
	}
	return nil
}

// attributes walks a list of rtnetlink attributes; what is cut off is left out.
func attributes(b []byte, visit func(typ uint16, value []byte)) {
	for len(b) >= 4 {
		n, typ := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])
		if n < 4 || n > len(b) {
			return
		}
		visit(typ&0x3fff, b[4:n]) // without the flags for nesting and byte order
		b = b[min(len(b), (n+3)&^3):]
	}
}

// dump makes one rtnetlink request for a list.
func dump(typ uint16, request []byte, visit func(typ uint16, body []byte)) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	const header = 16 // struct nlmsghdr
	ne := binary.NativeEndian
	msg := make([]byte, header, header+len(request))
	ne.PutUint32(msg, uint32(header+len(request)))
	ne.PutUint16(msg[4:], typ)
	ne.PutUint16(msg[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	if err := unix.Sendto(fd, append(msg, request...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	buf := make([]byte, 65536)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		done, err := messages(buf[:n], visit)
		if done || err != nil {
			return err
		}
	}
}

// messages walks one datagram of a dump; done is true when the last message was in it.
func messages(b []byte, visit func(typ uint16, body []byte)) (done bool, err error) {
	const header = 16
	ne := binary.NativeEndian
	for len(b) >= header {
		n := int(ne.Uint32(b))
		if n < header || n > len(b) {
			return true, fmt.Errorf("a netlink message of %d bytes in %d", n, len(b))
		}
		switch typ := ne.Uint16(b[4:]); typ {
		case unix.NLMSG_DONE:
			return true, nil
		case unix.NLMSG_ERROR:
			if n < header+4 {
				return true, fmt.Errorf("a netlink error of %d bytes", n)
			}
			if code := int32(ne.Uint32(b[header:])); code != 0 {
				return true, unix.Errno(-code)
			}
			return true, nil
		default:
			visit(typ, b[header:n])
		}
		b = b[min(len(b), (n+3)&^3):]
	}
	return false, nil
}
