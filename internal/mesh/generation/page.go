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

// memfdName is the kernel's name of the page's file. The file is in memory, and ends with the last process that has it
// open, however that process ends.
const memfdName = "tare-generations"

// Remembered is for how many generations the page knows when they began.
const Remembered = 1 << 17

// layout must change when words does.
const layout = 0x74617265_00000001

// words is the page. One process writes it, others read it.
type words struct {
	layout atomic.Uint64
	_      [7]uint64
	begun  atomic.Uint64 // the latest generation whose change has begun
	_      [7]uint64     // separate cache lines, because they are written in turn
	done   atomic.Uint64 // the latest generation whose change has returned
	_      [7]uint64
	at     [Remembered]atomic.Int64 // when a generation began, ns by pace.Now; by its number modulo Remembered
}

const pageSize = int(unsafe.Sizeof(words{}))

// Page is the page in one process.
type Page struct {
	mem  []byte
	w    *words
	file *os.File // in the process that made it
}

// Create makes a page at generation 0. Other processes find it by this process's id as long as it is open.
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

// Open opens the page of a process for reading. If the process has none, the error is a *fault.Error of code Usage.
func Open(pid int) (*Page, error) {
	missing := func(err error) error {
		return fault.Wrap(err, fault.Usage, "process "+strconv.Itoa(pid),
			"name a process that replaces configuration: tare subject kernelmesh --work replace",
			"it says nothing of generations")
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
			return nil, missing(fmt.Errorf("its page is of another layout"))
		}
		return p, nil
	}
	return nil, missing(os.ErrNotExist)
}

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

// Begin records that a change to generation g begins now.
func (p *Page) Begin(g uint64) {
	p.w.at[g%Remembered].Store(pace.Now())
	p.w.begun.Store(g)
}

// End records that this change has returned.
func (p *Page) End(g uint64) { p.w.done.Store(g) }

// Done returns the latest generation whose change has returned: connections that begin now cannot find an older one.
func (p *Page) Done() uint64 { return p.w.done.Load() }

// Begun returns the latest generation whose change has begun: connections that have ended cannot have found a newer
// one.
func (p *Page) Begun() uint64 { return p.w.begun.Load() }

// BeganAt returns when the change to generation g, which must not be later than Begun, began: ns by pace.Now. If the
// page no longer remembers g, it returns when the oldest one that it remembers began, which is after g began.
func (p *Page) BeganAt(g uint64) int64 {
	for {
		at := p.w.at[g%Remembered].Load()
		// A change writes its time before it increments begun, so that it may overwrite the place of g one generation
		// early.
		oldest := p.w.begun.Load() + 2
		if oldest <= Remembered || g >= oldest-Remembered {
			return at
		}
		g = oldest - Remembered + Remembered/64 // some way off, so that it is not overwritten meanwhile
	}
}

// Close unmaps the page.
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
