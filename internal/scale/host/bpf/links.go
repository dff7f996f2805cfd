package bpf

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Link is one attachment that the kernel keeps as an object.
type Link struct {
	ID        uint32
	Type      string // as bpftool prints it
	ProgramID uint32 // 0 for a link without a program (struct_ops)
	Target    string // what the program is attached to: "cgroup:/web connect4", "xdp:lo", "raw_tracepoint:sched_switch"
	HeldBy    []Holder

	typ, attachType uint32
	cgroup          uint64
	ifindex         uint32
}

// nameSize is the room for the name of a tracepoint, function or file; a longer one is truncated.
const nameSize = 256

// readLink reads everything that one descriptor provides. Targets that need other readers (control groups, interfaces)
// are named later.
func (v *Inventory) readLink(fd int) (Link, error) {
	if v.link == nil {
		v.link, v.name = new(linkInfo), make([]byte, nameSize)
	}
	info := v.link
	*info = linkInfo{}
	if _, err := objInfo(fd, unsafe.Pointer(info), unsafe.Sizeof(*info)); err != nil {
		return Link{}, err
	}
	// The kernel writes names to a buffer, and the place of the buffer's address in info depends on the type that the
	// first call returned. So there is a second call.
	if at, ok := nameField(info.Type); ok {
		*info = linkInfo{}
		clear(v.name)
		le := binary.LittleEndian
		// v.name is on the heap, which does not move, and lives as long as v.
		le.PutUint64(info.Union[at:], uint64(uintptr(unsafe.Pointer(&v.name[0]))))
		le.PutUint32(info.Union[at+8:], nameSize)
		// ENOSPC: truncated
		if _, err := objInfo(fd, unsafe.Pointer(info), unsafe.Sizeof(*info)); err != nil && err != unix.ENOSPC {
			return Link{}, err
		}
	}
	return parseLink(info, cString(v.name)), nil
}

// nameField returns the offset, in the union of link info, of the pointer to the buffer for a name. The length of the
// buffer follows the pointer.
func nameField(typ uint32) (offset int, ok bool) {
	switch typ {
	case linkRawTracepoint, linkIter:
		return 0, true
	case linkPerfEvent: // the same place for tracepoints, functions and files
		return 8, true
	}
	return 0, false
}

// parseLink parses the union of link info.
func parseLink(info *linkInfo, name string) Link {
	le := binary.LittleEndian
	word := func(at int) uint32 { return le.Uint32(info.Union[at:]) }
	l := Link{ID: info.ID, Type: typeName(linkTypes, info.Type), ProgramID: info.ProgID, typ: info.Type}
	l.Target = l.Type
	switch info.Type {
	case linkRawTracepoint:
		l.Target = "raw_tracepoint:" + name
	case linkTracing:
		// The object is the BTF of the kernel or a module, or the program being traced.
		l.Target = fmt.Sprintf("%s:btf %d/%d", typeName(attachTypes, word(0)), word(4), word(8))
	case linkCgroup:
		l.cgroup, l.attachType = le.Uint64(info.Union[:]), word(8)
	case linkIter:
		l.Target = "iter:" + name
	case linkNetns:
		l.Target = fmt.Sprintf("netns:%d %s", word(0), typeName(attachTypes, word(4)))
	case linkXDP:
		l.ifindex = word(0)
	case linkPerfEvent:
		l.Target = perfTarget(word(0), name)
	case linkKprobeMulti:
		l.Target = fmt.Sprintf("kprobe_multi:%d functions", word(8))
	case linkStructOps:
		l.Target = fmt.Sprintf("struct_ops:map %d", word(0))
	case linkNetfilter:
		l.Target = fmt.Sprintf("netfilter:family %d hook %d priority %d", word(0), word(4), int32(word(8)))
	case linkTCX, linkNetkit:
		l.ifindex, l.attachType = word(0), word(4)
	case linkUprobeMulti:
		l.Target = fmt.Sprintf("uprobe_multi:%d places", word(36))
	case linkSockmap:
		l.Target = fmt.Sprintf("sockmap:map %d %s", word(0), typeName(attachTypes, word(4)))
	}
	return l
}

// perfTarget returns what a perf event link is attached to, which the kernel provides since Linux 6.6; typ is of enum
// bpf_perf_event_type.
func perfTarget(typ uint32, name string) string {
	families := []string{"", "uprobe", "uretprobe", "kprobe", "kretprobe", "tracepoint", "perf_event"}
	if typ == 0 || int64(typ) >= int64(len(families)) {
		return "perf_event"
	}
	if name == "" {
		return families[typ]
	}
	return families[typ] + ":" + name
}
