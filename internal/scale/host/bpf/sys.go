package bpf

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// This package makes these calls of bpf(2) itself. cilium/ebpf has all of them, but its Info reads every instruction,
// line and function record of a program and parses fdinfo by reflection. That suits a loader, but is 15 times as
// expensive as reading only the counters. The layouts are in include/uapi/linux/bpf.h. The kernel adds fields to
// attributes and infos only at their end.

// Commands of bpf(2).
const (
	cmdMapLookup     = 1
	cmdMapGetNextKey = 4
	cmdProgGetNextID = 11
	cmdMapGetNextID  = 12
	cmdProgGetFDByID = 13
	cmdMapGetFDByID  = 14
	cmdObjGetInfo    = 15
	cmdProgQuery     = 16
	cmdTaskFDQuery   = 20
	cmdLinkGetFDByID = 30
	cmdLinkGetNextID = 31
)

// bpf repeats the call after a signal, which may also be reported as EAGAIN. The call takes microseconds and does not
// block, so it bypasses Go's scheduler. Addresses inside attr are unsafe.Pointer and never integers, because a stack
// can move.
func bpf(cmd int, attr unsafe.Pointer, size uintptr) (int, error) {
	for tries := 0; ; tries++ {
		r, _, errno := unix.RawSyscall(unix.SYS_BPF, uintptr(cmd), uintptr(attr), size)
		switch {
		case errno == 0:
			return int(r), nil
		case errno == unix.EINTR, errno == unix.EAGAIN && tries < 20:
		default:
			return -1, errno
		}
	}
}

// isGone reports whether an object went away between being listed and being read.
func isGone(err error) bool { return errors.Is(err, unix.ENOENT) }

// nextID returns the next id after the given one, for the kind of object that cmd lists; ok is false at the end.
func nextID(cmd int, id uint32) (next uint32, ok bool, err error) {
	attr := struct{ start, next, flags uint32 }{start: id}
	_, err = bpf(cmd, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	if isGone(err) {
		return 0, false, nil
	}
	return attr.next, err == nil, err
}

// fdByID opens an object. A descriptor keeps its object alive, so every caller must close it at once.
func fdByID(cmd int, id, flags uint32) (int, error) {
	attr := struct{ id, next, flags uint32 }{id: id, flags: flags}
	return bpf(cmd, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
}

// objInfo fills info, of size bytes, and returns how many of them the kernel knows.
func objInfo(fd int, info unsafe.Pointer, size uintptr) (known uintptr, err error) {
	attr := struct {
		fd, len uint32
		info    unsafe.Pointer
	}{uint32(fd), uint32(size), info}
	_, err = bpf(cmdObjGetInfo, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	return uintptr(attr.len), err
}

// progInfo is struct bpf_prog_info.
type progInfo struct {
	Type, ID                      uint32
	Tag                           [8]byte
	JitedLen, XlatedLen           uint32
	JitedInsns, XlatedInsns       unsafe.Pointer
	LoadTime                      uint64
	UID, NrMapIDs                 uint32
	MapIDs                        unsafe.Pointer
	Name                          [16]byte
	Ifindex, GPL                  uint32
	NetnsDev, NetnsIno            uint64
	NrJitedKsyms, NrJitedFuncLens uint32
	JitedKsyms, JitedFuncLens     unsafe.Pointer
	BTFID, FuncInfoRecSize        uint32
	FuncInfo                      uint64
	NrFuncInfo, NrLineInfo        uint32
	LineInfo, JitedLineInfo       uint64
	NrJitedLineInfo, LineRecSize  uint32
	JitedLineRecSize, NrProgTags  uint32
	ProgTags                      uint64
	RunTimeNs, RunCnt             uint64
	RecursionMisses               uint64
	VerifiedInsns                 uint32
	AttachBTFObjID, AttachBTFID   uint32
	_                             uint32
}

// mapInfo is struct bpf_map_info.
type mapInfo struct {
	Type, ID, KeySize, ValueSize, MaxEntries, Flags uint32
	Name                                            [16]byte
	Ifindex, VmlinuxValueTypeID                     uint32
	NetnsDev, NetnsIno                              uint64
	BTFID, BTFKeyTypeID, BTFValueTypeID, _          uint32
	Extra                                           uint64
}

// linkInfo is struct bpf_link_info; the layout of Union depends on the type of link.
type linkInfo struct {
	Type, ID, ProgID, _ uint32
	Union               [48]byte
}

// cString returns the text before the first NUL.
func cString(b []byte) string { return unix.ByteSliceToString(b) }
