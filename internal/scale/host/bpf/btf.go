package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// The kernel's own type information (BTF) is needed for two things: the id of an iterator's function, which the kernel
// asks for when an iterator program is loaded, and the offsets of the few struct fields that the iterators follow.
//
// This scanner exists because of what the alternative costs. cilium/ebpf indexes every named type of vmlinux: 17 ms of
// CPU and 5 MB on a kernel with 5.5 MB of BTF, which is most of what one weighing may spend here. Looking up twenty
// names costs 3 ms and leaves nothing behind. Format: Documentation/bpf/btf.rst.

const vmlinuxBTF = "/sys/kernel/btf/vmlinux"

var errBTF = errors.New("malformed BTF")

// A field names a member of a kernel struct. Members of anonymous structs inside it count as its own.
type field struct{ structure, member string }

// kernelTypes is what the scanner found; a name that this kernel lacks is absent.
type kernelTypes struct {
	functions map[string]uint32 // BTF type id
	offsets   map[field]uint32  // bytes
}

// Kinds of types, as include/uapi/linux/btf.h numbers them.
const (
	btfInt = iota + 1
	btfPtr
	btfArray
	btfStruct
	btfUnion
	btfEnum
	btfFwd
	btfTypedef
	btfVolatile
	btfConst
	btfRestrict
	btfFunc
	btfFuncProto
	btfVar
	btfDatasec
	btfFloat
	btfDeclTag
	btfTypeTag
	btfEnum64
)

const (
	btfMagic      = 0xeb9f
	btfTypeSize   = 12 // struct btf_type
	btfMemberSize = 12 // struct btf_member
	btfMaxDepth   = 8  // of anonymous structs within a struct; the kernel has at most three
)

// readKernelTypes looks functions and fields up in the BTF file of the running kernel.
func readKernelTypes(path string, functions []string, fields []field) (*kernelTypes, error) {
	raw, release, err := mapFile(path)
	if err != nil {
		return nil, err
	}
	defer release()
	types, err := scanBTF(raw, functions, fields)
	if err != nil {
		return nil, fmt.Errorf("reading the types of %s: %w", path, err)
	}
	return types, nil
}

// mapFile gives the content of a file in memory that is not the garbage collector's: it is large and wanted once.
// Kernels before 6.16 refuse to map BTF, so that it is read there.
func mapFile(path string) (data []byte, release func(), err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	size := int(st.Size())
	if size <= 0 {
		return nil, nil, fmt.Errorf("%s is empty", path)
	}
	if data, err = unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_PRIVATE); err == nil {
		return data, func() { _ = unix.Munmap(data) }, nil
	}
	data, err = unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, nil, fmt.Errorf("making room for %s (%d bytes): %w", path, size, err)
	}
	for n := 0; n < size; {
		m, err := f.ReadAt(data[n:], int64(n))
		if m <= 0 {
			_ = unix.Munmap(data)
			return nil, nil, fmt.Errorf("reading %s: %w", path, err)
		}
		n += m
	}
	return data, func() { _ = unix.Munmap(data) }, nil
}

// scanBTF walks all types once. Only little-endian BTF is read: Tare is built for little-endian machines.
func scanBTF(raw []byte, functions []string, fields []field) (*kernelTypes, error) {
	le := binary.LittleEndian
	if len(raw) < 24 || le.Uint16(raw) != btfMagic {
		return nil, fmt.Errorf("%w: header", errBTF)
	}
	body, ok := section(raw, uint64(le.Uint32(raw[4:])), uint64(len(raw)))
	if !ok {
		return nil, fmt.Errorf("%w: header length", errBTF)
	}
	typeOff, typeLen := uint64(le.Uint32(raw[8:])), uint64(le.Uint32(raw[12:]))
	strOff, strLen := uint64(le.Uint32(raw[16:])), uint64(le.Uint32(raw[20:]))
	s := btfScan{}
	if s.types, ok = section(body, typeOff, typeOff+typeLen); !ok {
		return nil, fmt.Errorf("%w: types out of bounds", errBTF)
	}
	if s.strings, ok = section(body, strOff, strOff+strLen); !ok {
		return nil, fmt.Errorf("%w: strings out of bounds", errBTF)
	}

	// A name stands once in the string section, so types are compared by the offset of their name and the strings,
	// which are half of the file, are read for the wanted names alone.
	wantFunction := make(map[uint32]string, len(functions))
	for _, name := range functions {
		if off, ok := s.stringOffset(name); ok {
			wantFunction[off] = name
		}
	}
	wantStruct := make(map[uint32]string)
	for _, f := range fields {
		if off, ok := s.stringOffset(f.structure); ok {
			wantStruct[off] = f.structure
		}
	}

	found := &kernelTypes{functions: map[string]uint32{}, offsets: map[field]uint32{}}
	structs := make(map[string][]uint32)            // offsets into types: a name can stand for several structs
	s.starts = make([]uint32, 1, 1+len(s.types)/24) // type id -> offset into types; id 0 is void
	for off := 0; off < len(s.types); {
		if len(s.types)-off < btfTypeSize {
			return nil, fmt.Errorf("%w: type %d is cut off", errBTF, len(s.starts))
		}
		name, info := le.Uint32(s.types[off:]), le.Uint32(s.types[off+4:])
		kind, vlen := info>>24&0x1f, int(info&0xffff)
		switch kind {
		case btfFunc:
			if n, ok := wantFunction[name]; ok {
				found.functions[n] = uint32(len(s.starts))
			}
		case btfStruct:
			if n, ok := wantStruct[name]; ok {
				structs[n] = append(structs[n], uint32(off))
			}
		}
		s.starts = append(s.starts, uint32(off))
		extra, ok := btfExtra(kind, vlen)
		if !ok {
			return nil, fmt.Errorf("%w: type %d is of unknown kind %d", errBTF, len(s.starts)-1, kind)
		}
		off += btfTypeSize + extra
	}

	for _, f := range fields {
		for _, off := range structs[f.structure] {
			if bits, ok := s.member(int(off), f.member, 0); ok && bits%8 == 0 {
				found.offsets[f] = bits / 8
				break
			}
		}
	}
	return found, nil
}

// section is b[from:to], or false when b is too short.
func section(b []byte, from, to uint64) ([]byte, bool) {
	if from > to || to > uint64(len(b)) {
		return nil, false
	}
	return b[from:to], true
}

// btfExtra is the number of bytes that follow a type's header.
func btfExtra(kind uint32, vlen int) (int, bool) {
	switch kind {
	case btfInt, btfVar, btfDeclTag:
		return 4, true
	case btfPtr, btfFwd, btfTypedef, btfVolatile, btfConst, btfRestrict, btfFunc, btfFloat, btfTypeTag:
		return 0, true
	case btfArray:
		return 12, true
	case btfStruct, btfUnion, btfDatasec, btfEnum64:
		return 12 * vlen, true
	case btfEnum, btfFuncProto:
		return 8 * vlen, true
	}
	return 0, false
}

type btfScan struct {
	types   []byte
	strings []byte
	starts  []uint32
}

// stringOffset finds a whole string in the string section.
func (s *btfScan) stringOffset(name string) (uint32, bool) {
	for pattern, from := []byte(name+"\x00"), 0; ; {
		i := bytes.Index(s.strings[from:], pattern)
		if i < 0 {
			return 0, false
		}
		if at := from + i; at > 0 && s.strings[at-1] == 0 {
			return uint32(at), true
		}
		from += i + 1
	}
}

func (s *btfScan) hasName(off uint32, name string) bool {
	if uint64(off) >= uint64(len(s.strings)) {
		return false
	}
	rest := s.strings[off:]
	return len(rest) > len(name) && rest[len(name)] == 0 && string(rest[:len(name)]) == name
}

// member finds a member's offset, in bits, in the struct or union whose header is at types[off].
func (s *btfScan) member(off int, name string, depth int) (uint32, bool) {
	le := binary.LittleEndian
	info := le.Uint32(s.types[off+4:])
	kind, vlen := info>>24&0x1f, int(info&0xffff)
	if kind != btfStruct && kind != btfUnion || depth > btfMaxDepth {
		return 0, false
	}
	members, ok := section(s.types, uint64(off+btfTypeSize), uint64(off+btfTypeSize+vlen*btfMemberSize))
	if !ok {
		return 0, false
	}
	for ; len(members) > 0; members = members[btfMemberSize:] {
		nameOff, typ, bits := le.Uint32(members), le.Uint32(members[4:]), le.Uint32(members[8:])
		if info>>31 != 0 {
			bits &= 0xffffff // the upper byte is the width of a bit field
		}
		if nameOff != 0 {
			if s.hasName(nameOff, name) {
				return bits, true
			}
			continue
		}
		if uint64(typ) < uint64(len(s.starts)) && typ != 0 {
			if inner, ok := s.member(int(s.starts[typ]), name, depth+1); ok {
				return bits + inner, true
			}
		}
	}
	return 0, false
}
