package generation

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
)

// memfdName is the name of the file in memory (memfd_create) that holds the page. The kernel frees the file once no
// process has it open or mapped, so it needs no cleanup even if processes are killed.
const memfdName = "tare-generations"

// Remembered is the number of generations, up to the latest, for which the page holds the time when they began.
const Remembered = 1 << 17

// layout identifies the layout of the type words, and must be changed together with that type.
const layout = 0x74617265_00000001

// words is the content of the page. One process writes it, others read it.
type words struct {
	layout atomic.Uint64
	_      [7]uint64
	begun  atomic.Uint64 // the latest generation whose change has begun
	_      [7]uint64     // keeps begun and done, which are written in turn, on separate cache lines
	done   atomic.Uint64 // the latest generation whose change has returned
	_      [7]uint64
	at     [Remembered]atomic.Int64 // when generation g began, in ns of pace.Now, at index g % Remembered
}

const pageSize = int(unsafe.Sizeof(words{}))

// Page is a mapping of the page of generations into this process.
type Page struct {
	mem  []byte
	w    *words
	file *os.File // nil except in the process that created the page
}

// Create makes a page at generation 0, and maps it for writing. Until Close, other processes can open it by the ID of
// this process.
func Create() (*Page, error) {
	fd, err := unix.MemfdCreate(memfdName, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("making a file in memory: %w", err)
	}
	file := os.NewFile(uintptr(fd), memfdName)
	if err := file.Truncate(int64(pageSize)); err != nil {
		return nil, fmt.Errorf("sizing a file in memory: %w", cleanUp(err, file))
	}
	p, err := mapPage(file, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return nil, cleanUp(err, file)
	}
	p.file = file
	p.w.at[0].Store(pace.Now())
	p.w.layout.Store(layout)
	return p, nil
}

func cleanUp(err error, file *os.File) error {
	_ = file.Close() // the other error says more
	return err
}

// Open maps the page of a process for reading. If the process has none, or its page cannot be read, the error is a
// *fault.Error of code Usage. The mapping stays valid after the process has ended.
func Open(pid int) (*Page, error) {
	missing := func(err error) error {
		return fault.Wrap(err, fault.Usage, "process "+strconv.Itoa(pid),
			"name a process that replaces configuration: tare subject kernelmesh --work replace",
			"the process does not publish the generation of its configuration")
	}
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		return nil, missing(err)
	}
	for _, fd := range fds {
		target, err := os.Readlink(fd)
		if err != nil || !strings.HasPrefix(target, "/memfd:"+memfdName) {
			continue
		}
		file, err := os.Open(fd)
		if err != nil {
			return nil, missing(err)
		}
		p, err := mapPage(file, unix.PROT_READ)
		if err = cleanUp(err, file); err != nil {
			return nil, missing(err)
		}
		if p.w.layout.Load() != layout {
			_ = p.Close()
			return nil, missing(fmt.Errorf("it was written by another version of Tare"))
		}
		return p, nil
	}
	return nil, missing(os.ErrNotExist)
}

// mapPage maps a page. The caller may close the file afterwards.
func mapPage(file *os.File, protection int) (*Page, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("reading the size of the page of generations: %w", err)
	}
	if info.Size() != int64(pageSize) { // an access beyond its end would cause SIGBUS
		return nil, fmt.Errorf("the page of generations has %d bytes, not %d", info.Size(), pageSize)
	}
	mem, err := unix.Mmap(int(file.Fd()), 0, pageSize, protection, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mapping the page of generations: %w", err)
	}
	return &Page{mem: mem, w: (*words)(unsafe.Pointer(unsafe.SliceData(mem)))}, nil
}

// Begin records that a change to generation g begins now. Only the process that has created the page may call it.
func (p *Page) Begin(g uint64) {
	p.w.at[g%Remembered].Store(pace.Now())
	p.w.begun.Store(g)
}

// End records that the change to generation g has returned. Only the process that has created the page may call it.
func (p *Page) End(g uint64) { p.w.done.Store(g) }

// Done returns the latest generation whose change has returned: connections that begin now cannot find an older one.
func (p *Page) Done() uint64 { return p.w.done.Load() }

// Begun returns the latest generation whose change has begun: connections that have ended cannot have found a newer
// one.
func (p *Page) Begun() uint64 { return p.w.begun.Load() }

// BeganAt returns the time at which the change to generation g began, in ns of pace.Now. g must not be later than
// Begun. If the page does not hold that time any more, BeganAt returns the time of one of the oldest generations in the
// page, which began later than g.
func (p *Page) BeganAt(g uint64) int64 {
	for {
		at := p.w.at[g%Remembered].Load()
		// A change writes its time before it advances begun, so the time of g may already be overwritten although begun
		// is one short of g + Remembered.
		oldest := p.w.begun.Load() + 2
		if oldest <= Remembered || g >= oldest-Remembered {
			return at
		}
		g = oldest - Remembered + Remembered/64 // not the very oldest, which may be overwritten meanwhile
	}
}

// Close unmaps the page. The Page cannot be used afterwards.
func (p *Page) Close() error {
	err := unix.Munmap(p.mem)
	p.mem, p.w = nil, nil
	if p.file != nil {
		if e := p.file.Close(); err == nil {
			err = e
		}
	}
	if err != nil {
		return fmt.Errorf("closing the page of generations: %w", err)
	}
	return nil
}
