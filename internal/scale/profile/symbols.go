package profile

import (
	"bytes"
	"cmp"
	"debug/elf"
	"debug/gosym"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"tare/internal/lib/files"
)

// Bounds of what is read of a file that a process has mapped, which may be anyone's.
const (
	maxTable = 64 << 20  // bytes of a table of symbols, of its names, or of a table of Go
	maxAll   = 256 << 20 // of the tables of all files together
	maxNotes = 64 << 10  // bytes of a section of notes
	maxFiles = 4096      // files whose symbols are read
)

// Files names addresses of user code by the symbols of the files that processes have mapped: the table of symbols, that
// of dynamic linking where there is none, or Go's table of functions.
type Files struct {
	kernel func([]uint64) ([]string, error)
	read   map[file]*object
	left   uint64 // bytes of tables that may still be read
}

// NewFiles takes names of the kernel's addresses from elsewhere (ksym.Table.Resolve).
func NewFiles(kernel func(addresses []uint64) ([]string, error)) *Files {
	return &Files{kernel: kernel, read: map[file]*object{}, left: maxAll}
}

// Kernel is Symbols'.
func (f *Files) Kernel(addresses []uint64) ([]string, error) { return f.kernel(addresses) }

// User is Symbols'. Code in no file has the name of its mapping, such as [vdso].
func (f *Files) User(p *Process, m *Mapping, offset uint64) string {
	if m.Inode == 0 {
		return cmp.Or(m.Path, "[anonymous]")
	}
	return f.object(p, m).name(offset)
}

// BuildID is Symbols'.
func (f *Files) BuildID(p *Process, m *Mapping) string {
	if m.Inode == 0 {
		return ""
	}
	return f.object(p, m).buildID
}

// object is what is known of the file of a mapping: nothing where it cannot be read.
func (f *Files) object(p *Process, m *Mapping) *object {
	of := file{m.Path, m.Device, m.Inode}
	o := f.read[of]
	if o == nil && len(f.read) < maxFiles {
		o = &object{}
		if r, err := open(p, m); err == nil {
			o = readObject(r, &f.left)
			r.Close()
		}
		f.read[of] = o
	}
	if o == nil {
		o = &object{}
	}
	return o
}

// open opens the very file that is mapped, if it still is; or the one at its path in the process's file system, or in
// this one's once the process has ended, if that has the same inode.
func open(p *Process, m *Mapping) (*os.File, error) {
	// The inode of a file on overlayfs may be another than that in the list of mappings.
	if now, err := Read(p.PID); err == nil && slices.Contains(now.Mappings, *m) {
		if f, err := files.Open(fmt.Sprintf("/proc/%d/map_files/%x-%x", p.PID, m.Start, m.End)); err == nil {
			return f, nil
		}
	}
	for _, root := range []string{fmt.Sprintf("/proc/%d/root", p.PID), ""} {
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

// object is what names addresses in an ELF file.
type object struct {
	buildID string
	loads   []elf.ProgHeader
	symbols []symbol // by address
	lines   *gosym.Table
}

type symbol struct {
	start, size uint64
	name        string
}

// readObject reads what it can of a file, with tables of at most left bytes: a damaged one has fewer names.
func readObject(f *os.File, left *uint64) *object {
	o := &object{}
	e, err := elf.NewFile(f)
	if err != nil {
		return o
	}
	for _, p := range e.Progs {
		if p.Type == elf.PT_LOAD {
			o.loads = append(o.loads, p.ProgHeader)
		}
	}
	o.buildID = buildID(e)
	if o.symbols = functions(e, elf.SHT_SYMTAB, e.Symbols, left); len(o.symbols) > 0 {
		return o
	}
	if o.lines = goFunctions(e, left); o.lines == nil {
		o.symbols = functions(e, elf.SHT_DYNSYM, e.DynamicSymbols, left)
	}
	return o
}

// take says whether sections may be read, and takes their size from what is left.
func take(left *uint64, sections ...*elf.Section) bool {
	size := uint64(0)
	for _, s := range sections {
		if s.Flags&elf.SHF_COMPRESSED != 0 || s.FileSize > maxTable {
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

// functions reads a table of symbols.
func functions(
	e *elf.File, kind elf.SectionType, read func() ([]elf.Symbol, error), left *uint64,
) (all []symbol) {
	table := e.SectionByType(kind)
	if table == nil || int(table.Link) >= len(e.Sections) || !take(left, table, e.Sections[table.Link]) {
		return nil
	}
	found, err := read()
	if err != nil {
		return nil
	}
	for _, s := range found {
		t := elf.ST_TYPE(s.Info)
		if (t == elf.STT_FUNC || t == elf.STT_GNU_IFUNC) && s.Section != elf.SHN_UNDEF && s.Name != "" {
			all = append(all, symbol{s.Value, s.Size, s.Name})
		}
	}
	// of several at one address the one with the largest size; one in assembler may have none
	slices.SortStableFunc(all, func(a, b symbol) int {
		return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(b.size, a.size))
	})
	return slices.CompactFunc(all, func(a, b symbol) bool { return a.start == b.start })
}

// goFunctions reads Go's table of functions, which a stripped binary has as well; nil where there is none. The table is
// the file's own: package gosym says that it cannot be trusted with one that was made to harm, and panics at worst.
func goFunctions(e *elf.File, left *uint64) (t *gosym.Table) {
	table, text := e.Section(".gopclntab"), e.Section(".text")
	if table == nil {
		table = e.Section(".data.rel.ro.gopclntab")
	}
	if table == nil || text == nil || !take(left, table) {
		return nil
	}
	b, err := table.Data()
	if err != nil {
		return nil
	}
	defer func() {
		if recover() != nil {
			t = nil
		}
	}()
	t, err = gosym.NewTable(nil, gosym.NewLineTable(b, text.Addr))
	if err != nil || len(t.Funcs) == 0 {
		return nil
	}
	return t
}

// buildID is the GNU build id in hexadecimal, or Go's.
func buildID(e *elf.File) string {
	for _, s := range e.Sections {
		if s.Type != elf.SHT_NOTE || s.FileSize > maxNotes || s.Flags&elf.SHF_COMPRESSED != 0 {
			continue
		}
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

// name is the function at an offset in the file; empty where none is known.
func (o *object) name(offset uint64) string {
	for _, p := range o.loads {
		if offset < p.Off || offset-p.Off >= p.Filesz {
			continue
		}
		address := offset - p.Off + p.Vaddr
		if o.lines != nil {
			return goName(o.lines, address)
		}
		i, exact := slices.BinarySearchFunc(o.symbols, address,
			func(s symbol, a uint64) int { return cmp.Compare(s.start, a) })
		if !exact {
			i--
		}
		if i < 0 {
			return ""
		}
		s := o.symbols[i]
		if s.size > 0 && address-s.start >= s.size {
			return ""
		}
		return s.name // without a size it ends where the next begins
	}
	return ""
}

func goName(t *gosym.Table, address uint64) (name string) {
	defer func() {
		if recover() != nil { // see goFunctions
			name = ""
		}
	}()
	if f := t.PCToFunc(address); f != nil {
		return f.Name
	}
	return ""
}
