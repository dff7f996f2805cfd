package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Map is one eBPF map.
type Map struct {
	ID         uint32
	Name       string // empty if the creator gave none
	Type       string // as bpftool prints it
	KeySize    uint32 // bytes
	ValueSize  uint32 // bytes
	MaxEntries uint32

	// Bytes is memlock in the map's fdinfo, which bpftool prints; nil if it could not be read. BytesMethod says what
	// memlock means on this kernel. Inner maps are not included, because they are separate maps.
	Bytes       *uint64
	BytesMethod BytesMethod

	// ChargedTo is the path of the control group that is charged for the map, in the memory controller's hierarchy; nil if
	// the kernel does not expose it.
	ChargedTo *string
	Inner     []uint32 // ids of the maps inside a map of maps
	UsedBy    []uint32 // ids of the programs that use it, directly or through a map of maps
	HeldBy    []Holder // processes with a descriptor of it; a pin in bpffs has no process
	Own       bool     // it belongs to this process: see markOwn

	typ uint32
}

// BytesMethod is the kernel's definition of the size of a map.
type BytesMethod string

// The methods. They are detected by the kernel's behaviour and never by its version, because distributions backport
// patches.
const (
	BytesExact BytesMethod = "exact" // since 6.4 the map counts its own memory (bpf_map_ops.map_mem_usage)
	// BytesEstimate: Linux 5.11 to 6.3, entries x (key + value), rounded up to pages; 0 for a ring buffer.
	BytesEstimate BytesMethod = "estimate"
	// BytesChargedPages: before Linux 5.11, the pages charged to the creator's locked-memory limit.
	BytesChargedPages BytesMethod = "charged-pages"
)

// maxInner is the maximum number of entries that are read from a map of maps. A service mesh has thousands of inner
// maps at most; a map with a million entries would take a second to walk.
const maxInner = 16384

// maxInnerTime limits the time for which a map of maps is read: before Linux 6.8 each look-up in a map of maps waits
// some milliseconds for an RCU grace period (maybe_wait_bpf_programs in kernel/bpf/syscall.c), which would delay a
// ledger.
const maxInnerTime = 200 * time.Millisecond

// errSlow means that maxInnerTime passed before the end of the map.
var errSlow = errors.New("this kernel takes long over each look-up in a map of maps: the rest was not looked at")

const openReadOnly = 1 << 3 // BPF_F_RDONLY

// readMap reads everything that one descriptor provides.
func (v *Inventory) readMap(fd int) (Map, error) {
	var info mapInfo
	if _, err := objInfo(fd, unsafe.Pointer(&info), unsafe.Sizeof(info)); err != nil {
		return Map{}, err
	}
	m := Map{
		ID: info.ID, Name: cString(info.Name[:]), Type: typeName(mapTypes, info.Type), typ: info.Type,
		KeySize: info.KeySize, ValueSize: info.ValueSize, MaxEntries: info.MaxEntries,
		BytesMethod: v.bytesMethod,
	}
	if n, ok := v.memlock(fd); ok {
		m.Bytes = &n
	}
	if m.typ == mapArrayOfMaps || m.typ == mapHashOfMaps {
		inner, err := innerMaps(fd, &m)
		m.Inner = inner
		switch {
		case errors.Is(err, unix.EPERM):
			v.warn("bpf-inner-maps", "map %d (%s) cannot be read: its inner maps are not known", m.ID, m.Name)
		case err != nil:
			v.warn("bpf-inner-maps", "reading the inner maps of map %d (%s): %v", m.ID, m.Name, err)
		case m.MaxEntries > maxInner:
			v.warn("bpf-inner-maps", "map %d (%s) has room for %d maps: only the first %d entries were looked at", m.ID, m.Name,
				m.MaxEntries, maxInner)
		}
	}
	return m, nil
}

// memlock reads the size of a map or program from the fdinfo of its descriptor.
func (v *Inventory) memlock(fd int) (uint64, bool) {
	path := strconv.AppendInt(append(v.path[:0], "/proc/self/fdinfo/"...), int64(fd), 10)
	path = append(path, 0)
	v.path = path
	info, err := openatRaw(path)
	if err != nil {
		return 0, false
	}
	defer unix.Close(info)
	if v.text == nil {
		v.text = make([]byte, 4096) // fdinfo of a map is about 300 bytes
	}
	n, err := unix.Read(info, v.text)
	if err != nil || n < 0 {
		return 0, false
	}
	return fdinfoField(v.text[:n], "memlock")
}

// openatRaw opens a path that ends in NUL, without the copy that a string needs.
func openatRaw(path []byte) (int, error) {
	dir := unix.AT_FDCWD
	r, _, errno := unix.Syscall6(unix.SYS_OPENAT, uintptr(dir), uintptr(unsafe.Pointer(&path[0])),
		unix.O_RDONLY|unix.O_CLOEXEC, 0, 0, 0)
	if errno != 0 {
		return -1, errno
	}
	return int(r), nil
}

// fdinfoField finds "name:\t123" in a text of /proc/<pid>/fdinfo.
func fdinfoField(text []byte, name string) (uint64, bool) {
	for line := range bytes.Lines(text) {
		if key, value, ok := bytes.Cut(line, []byte(":")); ok && string(key) == name {
			n, err := strconv.ParseUint(string(bytes.TrimSpace(value)), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// innerMaps returns the ids of the maps inside a map of maps; after an error, those found so far. A look-up from user
// space returns the inner map's id. There is only one level: the kernel rejects deeper nesting.
func innerMaps(fd int, m *Map) ([]uint32, error) {
	if m.ValueSize != 4 {
		return nil, fmt.Errorf("its values are %d bytes, not ids", m.ValueSize)
	}
	seen := make(map[uint32]bool)
	ids := []uint32{}
	add := func(value []byte) {
		if id := binary.LittleEndian.Uint32(value); id != 0 && !seen[id] {
			seen[id] = true
			ids = append(ids, id)
		}
	}
	key, next, value := make([]byte, m.KeySize), make([]byte, m.KeySize), make([]byte, 4)
	until := time.Now().Add(maxInnerTime)
	for i := uint32(0); i < min(m.MaxEntries, maxInner); i++ {
		if i%16 == 15 && time.Now().After(until) {
			return ids, errSlow
		}
		if m.typ == mapArrayOfMaps {
			binary.LittleEndian.PutUint32(key, i)
		} else {
			from := key
			if i == 0 {
				from = nil
			}
			err := mapElement(cmdMapGetNextKey, fd, from, next)
			if isGone(err) {
				return ids, nil
			}
			if err != nil {
				return ids, err
			}
			key, next = next, key
		}
		switch err := mapElement(cmdMapLookup, fd, key, value); {
		case isGone(err): // an empty slot
		case err != nil:
			return ids, err
		default:
			add(value)
		}
	}
	return ids, nil
}

// mapElement is BPF_MAP_LOOKUP_ELEM or BPF_MAP_GET_NEXT_KEY, which have the same layout.
func mapElement(cmd, fd int, key, out []byte) error {
	attr := struct {
		fd, _ uint32
		key   unsafe.Pointer
		out   unsafe.Pointer
		flags uint64
	}{fd: uint32(fd), out: unsafe.Pointer(unsafe.SliceData(out))}
	if key != nil {
		attr.key = unsafe.Pointer(unsafe.SliceData(key))
	}
	_, err := bpf(cmd, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	return err
}

// probeBytesMethod finds out what memlock means here, from two small maps. If maps count their own memory, the size of
// an array is not a multiple of a page, because it includes the header. If the kernel estimates, a ring buffer, which
// has neither keys nor values, has size 0.
func (v *Inventory) probeBytesMethod() (BytesMethod, error) {
	array, err := v.probeMap(ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		return "", err
	}
	if array%uint64(unix.Getpagesize()) != 0 {
		return BytesExact, nil
	}
	ring, err := v.probeMap(ebpf.MapSpec{Type: ebpf.RingBuf, MaxEntries: uint32(unix.Getpagesize())})
	if err != nil {
		return "", err
	}
	if ring == 0 {
		return BytesEstimate, nil
	}
	return BytesChargedPages, nil
}

func (v *Inventory) probeMap(spec ebpf.MapSpec) (uint64, error) {
	spec.Name = "tare_probe"
	m, err := ebpf.NewMap(&spec)
	if err != nil {
		return 0, fmt.Errorf("making a map to probe with: %w", err)
	}
	defer m.Close()
	n, ok := v.memlock(m.FD())
	if !ok {
		return 0, errors.New("fdinfo of a map has no memlock")
	}
	return n, nil
}
