package profile

import (
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"tare/internal/lib/files"
)

// Limits on reading the files that processes have mapped. The content of these files is not trusted.
const (
	maxSections = 4096      // sections of a file
	maxNames    = 4 << 20   // bytes of a file's section names, if each were as long as the whole table of names
	maxTable    = 64 << 20  // bytes of a table of symbols, and of its names
	maxAll      = 256 << 20 // bytes of the tables of all files together
	maxNotes    = 64 << 10  // bytes of the sections of notes of a file
	maxFiles    = 4096      // files whose symbols are read
	maxTries    = 8         // processes without the file after which it is no longer looked for
)

// Files implements Symbols. It names addresses of user code by the symbols of the files that processes have mapped:
// from the symbol table, or Go's table of functions if that is stripped, or the dynamic symbol table.
type Files struct {
	kernel func([]uint64) ([]string, error)
	files  map[file]*object
	left   uint64 // bytes of tables and notes that may still be read

	read func(pid int) (*Process, error)
	last *Process // the process read last, as it was then; nil if it had ended
	pid  int      // PID of last; 0 before the first reading
}

// NewFiles returns Files that name the kernel's addresses by the given function, such as ksym.Table.Resolve.
func NewFiles(kernel func(addresses []uint64) ([]string, error)) *Files {
	return &Files{kernel: kernel, files: map[file]*object{}, left: maxAll, read: Read}
}

// Kernel implements Symbols.
func (f *Files) Kernel(addresses []uint64) ([]string, error) { return f.kernel(addresses) }

// User implements Symbols. Code that is in no file has the name of its mapping, such as [vdso].
func (f *Files) User(m *Mapping, offset uint64) string {
	if m.Inode == 0 {
		return cmp.Or(m.Path, "[anonymous]")
	}
	if o := f.files[m.file()]; o != nil {
		return o.name(offset)
	}
	return ""
}

// Find implements Symbols.
func (f *Files) Find(p *Process, m *Mapping) (buildID string) {
	if m.Inode == 0 {
		return ""
	}
	o := f.files[m.file()]
	if o == nil {
		if len(f.files) == maxFiles {
			return ""
		}
		o = &object{}
		f.files[m.file()] = o
	}
	if o.found || len(o.without) == maxTries {
		return o.buildID
	}
	now, pid := f.now(p.PID), p.PID
	if now == nil {
		pid = 0 // one entry for all processes that have ended: the file can only be at its path
	}
	if slices.Contains(o.without, pid) {
		return ""
	}
	r, err := open(now, m)
	if err != nil {
		o.without = append(o.without, pid)
		return ""
	}
	defer r.Close()
	o.found = true
	o.read(r, &f.left)
	return o.buildID
}

// now returns a process as it is now; nil if it has ended. Consecutive calls for the same process read it once: it may
// have mapped many files, and have a long list of mappings.
func (f *Files) now(pid int) *Process {
	if pid != f.pid {
		f.pid = pid
		f.last, _ = f.read(pid) // nil with an error
	}
	return f.last
}

// open opens the file that is mapped, if a process still has it mapped. Otherwise it opens the file at the same path,
// seen by that process or by this one, provided that it has the same inode. The process is nil if it has ended.
func open(p *Process, m *Mapping) (*os.File, error) {
	var roots []string
	if p != nil {
		// Do not look for it by path and inode: on overlayfs the inode of a file may differ from that in the list of
		// mappings.
		if slices.Contains(p.Mappings, *m) {
			if f, err := files.Open(fmt.Sprintf("/proc/%d/map_files/%x-%x", p.PID, m.Start, m.End)); err == nil {
				return f, nil
			}
		}
		roots = append(roots, fmt.Sprintf("/proc/%d/root", p.PID))
	}
	for _, root := range append(roots, "") {
		f, err := files.Open(root + m.Path)
		if err != nil {
			continue
		}
		if hasInode(f, m.Inode) {
			return f, nil
		}
		f.Close()
	}
	return nil, errors.New("the file that was mapped is not there any more")
}

func hasInode(f *os.File, inode uint64) bool {
	var st unix.Stat_t
	return unix.Fstat(int(f.Fd()), &st) == nil && st.Ino == inode
}

// object holds what is needed to name addresses in an ELF file.
type object struct {
	found   bool
	without []int // processes that did not have the file any more, by PID; 0 stands for those that have ended
	buildID string
	loads   []elf.ProgHeader
	symbols []symbol // by address
	names   []byte   // names of the symbols, each terminated by a zero byte
}

type symbol struct {
	start, size uint64
	name        uint32 // its offset in names
}

// read reads what it can of a file; a damaged one has fewer names. It reads at most *left bytes of tables and notes,
// and subtracts their size from *left.
func (o *object) read(r io.ReaderAt, left *uint64) {
	f := &steady{ReaderAt: r, parts: map[int64][]byte{}}
	if !f.sane() {
		return
	}
	e, err := elf.NewFile(f)
	if err != nil {
		return
	}
	for _, p := range e.Progs {
		if p.Type == elf.PT_LOAD {
			o.loads = append(o.loads, p.ProgHeader)
		}
	}
	o.buildID = buildID(e, left)
	for _, read := range []func(){
		func() { o.readSymbols(e, elf.SHT_SYMTAB, left) },
		func() { o.readGo(e, left) },
		func() { o.readSymbols(e, elf.SHT_DYNSYM, left) },
	} {
		if read(); len(o.symbols) > 0 {
			break
		}
	}
}

// steady is a file of which some parts are read only once. Its owner may write to it, so another reading could differ
// from the one that was checked.
type steady struct {
	io.ReaderAt
	parts map[int64][]byte // as they were read, by offset
}

// ReadAt implements io.ReaderAt.
func (f *steady) ReadAt(b []byte, at int64) (int, error) {
	n, err := f.ReaderAt.ReadAt(b, at)
	for from, part := range f.parts {
		if lo, hi := max(at, from), min(at+int64(n), from+int64(len(part))); lo < hi {
			copy(b[lo-at:hi-at], part[lo-from:])
		}
	}
	return n, err
}

// keep reads a part of the file into v, and keeps it.
func (f *steady) keep(at int64, v any) error {
	part := make([]byte, binary.Size(v))
	if _, err := f.ReadAt(part, at); err != nil {
		return err
	}
	f.parts[at] = part
	_, err := binary.Decode(part, binary.LittleEndian, v)
	return err
}

// sane reports whether a file has the header of a 64-bit, little-endian ELF file, with few sections and short tables of
// their names: package debug/elf reads both whatever their size, and sections may share a long name, which the package
// copies for each. It calls keep for the parts that it reads.
func (f *steady) sane() bool {
	var h elf.Header64
	if err := f.keep(0, &h); err != nil {
		return false
	}
	if string(h.Ident[:4]) != elf.ELFMAG || h.Ident[elf.EI_CLASS] != byte(elf.ELFCLASS64) ||
		h.Ident[elf.EI_DATA] != byte(elf.ELFDATA2LSB) || h.Shnum == 0 || h.Shnum > maxSections || h.Shentsize != 64 ||
		h.Shstrndx >= h.Shnum || h.Shoff > 1<<62 || h.Phnum > maxSections || h.Phentsize != 56 {
		return false
	}
	var names elf.Section64
	if err := f.keep(int64(h.Shoff)+int64(h.Shstrndx)*int64(h.Shentsize), &names); err != nil {
		return false
	}
	return names.Size <= maxNames/uint64(h.Shnum) && elf.SectionFlag(names.Flags)&elf.SHF_COMPRESSED == 0
}

// take reports whether sections may be read, and if so subtracts their size from *left. Compressed sections, of which
// those named .zdebug have no flag, may not.
func take(left *uint64, sections ...*elf.Section) bool {
	size := uint64(0)
	for _, s := range sections {
		if s.Flags&elf.SHF_COMPRESSED != 0 || strings.HasPrefix(s.Name, ".zdebug") || s.FileSize > maxTable ||
			s.Type == elf.SHT_NOBITS {
			return false
		}
		size += s.FileSize
	}
	if size > *left {
		return false
	}
	*left -= size
	return true
}

// readSymbols reads the functions in a symbol table (Elf64_Sym in elf(5)). Names are not copied until they are needed:
// many symbols may share a long one.
func (o *object) readSymbols(e *elf.File, kind elf.SectionType, left *uint64) {
	table := e.SectionByType(kind)
	if table == nil || int(table.Link) >= len(e.Sections) || !take(left, table, e.Sections[table.Link]) {
		return
	}
	b, err := table.Data()
	names, nerr := e.Sections[table.Link].Data()
	if err != nil || nerr != nil {
		return
	}
	for ; len(b) >= elf.Sym64Size; b = b[elf.Sym64Size:] {
		name, kind := e.ByteOrder.Uint32(b), elf.ST_TYPE(b[4])
		if kind != elf.STT_FUNC && kind != elf.STT_GNU_IFUNC ||
			elf.SectionIndex(e.ByteOrder.Uint16(b[6:])) == elf.SHN_UNDEF ||
			uint64(name) >= uint64(len(names)) || names[name] == 0 {
			continue
		}
		o.symbols = append(o.symbols, symbol{e.ByteOrder.Uint64(b[8:]), e.ByteOrder.Uint64(b[16:]), name})
	}
	// Of several symbols at one address, keep the one with the largest size; a symbol from assembly code may have size 0.
	slices.SortStableFunc(o.symbols, func(a, b symbol) int {
		return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(b.size, a.size))
	})
	o.symbols = slices.CompactFunc(o.symbols, func(a, b symbol) bool { return a.start == b.start })
	o.names = names
}

// The magic numbers of Go's table of functions, in Go 1.18 and from Go 1.20 on, and the size of its header in bytes
// (pcHeader in runtime/symtab.go).
const (
	magicGo118   = 0xfffffff0
	magicGo120   = 0xfffffff1
	goHeaderSize = 8 + 8*8
)

// readGo reads the functions in Go's table, which a stripped binary has too. Addresses in the table are relative to
// the beginning of Go's code, which is found with the program's entry point, a function _rt0_*_linux. If the entry
// point is in C code instead, there are no names.
func (o *object) readGo(e *elf.File, left *uint64) {
	table := e.Section(".gopclntab")
	if table == nil {
		table = e.Section(".data.rel.ro.gopclntab")
	}
	if table == nil || !take(left, table) {
		return
	}
	b, err := table.Data()
	if err != nil || len(b) < goHeaderSize || b[7] != 8 {
		return
	}
	if magic := e.ByteOrder.Uint32(b); magic != magicGo118 && magic != magicGo120 {
		return
	}
	field := func(i int) uint64 { return e.ByteOrder.Uint64(b[8+8*i:]) }
	count, size := field(0), uint64(len(b))
	if field(3) > size || field(7) > size || count > (size-field(7))/8 {
		return
	}
	names, funcs := b[field(3):], b[field(7):]
	var all []symbol
	base, known := uint64(0), false
	for i := range count {
		entry, at := e.ByteOrder.Uint32(funcs[8*i:]), uint64(e.ByteOrder.Uint32(funcs[8*i+4:]))
		if at+8 > uint64(len(funcs)) {
			continue
		}
		name := e.ByteOrder.Uint32(funcs[at+4:])
		if uint64(name) >= uint64(len(names)) {
			continue
		}
		if !known && bytes.HasPrefix(names[name:], []byte("_rt0_")) {
			called, _, _ := bytes.Cut(names[name:min(len(names), int(name)+maxName)], []byte{0})
			if known = bytes.HasSuffix(called, []byte("_linux")); known { // _rt0_amd64_linux
				base = e.Entry - uint64(entry)
			}
		}
		all = append(all, symbol{start: uint64(entry), name: name})
	}
	if !known {
		return
	}
	for i := range all {
		all[i].start += base
	}
	slices.SortStableFunc(all, func(a, b symbol) int { return cmp.Compare(a.start, b.start) })
	o.symbols, o.names = all, names
}

// buildID returns the GNU build ID in hexadecimal, or Go's build ID, whichever note comes first; empty if there is
// none. It reduces *left by the size of the sections that it reads.
func buildID(e *elf.File, left *uint64) string {
	notes := uint64(maxNotes) // bytes that may still be read
	for _, s := range e.Sections {
		if s.Type != elf.SHT_NOTE || s.FileSize > notes || !take(left, s) {
			continue
		}
		notes -= s.FileSize
		b, err := s.Data()
		if err != nil {
			continue
		}
		for len(b) >= 12 {
			name, desc := uint64(e.ByteOrder.Uint32(b)), uint64(e.ByteOrder.Uint32(b[4:]))
			kind := e.ByteOrder.Uint32(b[8:])
			aligned := func(n uint64) uint64 { return (n + 3) &^ 3 }
			if 12+aligned(name)+aligned(desc) > uint64(len(b)) {
				break
			}
			owner, value := b[12:12+name], b[12+aligned(name):12+aligned(name)+desc]
			switch {
			case kind == 3 && bytes.Equal(owner, []byte("GNU\x00")): // NT_GNU_BUILD_ID
				return hex.EncodeToString(value)
			case kind == 4 && bytes.Equal(owner, []byte("Go\x00\x00")): // the linker's: cmd/internal/buildid
				return strings.ToValidUTF8(string(value), "")
			}
			b = b[12+aligned(name)+aligned(desc):]
		}
	}
	return ""
}

// name returns the name of the function at an offset in the file; empty if it is not known.
func (o *object) name(offset uint64) string {
	for _, p := range o.loads {
		if offset < p.Off || offset-p.Off >= p.Filesz {
			continue
		}
		address := offset - p.Off + p.Vaddr
		i, exact := slices.BinarySearchFunc(o.symbols, address,
			func(s symbol, a uint64) int { return cmp.Compare(s.start, a) })
		if !exact {
			i--
		}
		if i < 0 {
			return ""
		}
		s := o.symbols[i]
		// A function without a size extends to the next.
		if s.size > 0 && address-s.start >= s.size {
			return ""
		}
		name := o.names[s.name:min(len(o.names), int(s.name)+maxName+1)]
		name, _, _ = bytes.Cut(name, []byte{0})
		return string(name)
	}
	return ""
}
