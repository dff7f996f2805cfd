package bpf

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"tare/internal/lib/files"
)

// Key identifies a program uniquely: the kernel reuses ids after 2^31 of them, but no two programs are loaded in the
// same nanosecond.
type Key struct {
	ID       uint32
	LoadTime time.Duration // since boot, as CLOCK_BOOTTIME counts
}

// Counters are what the kernel has counted for a program since it was loaded, on all CPUs. RunCount and RunNs do not
// change while run statistics are off.
type Counters struct {
	RunCount        uint64
	RunNs           uint64  // wall-clock nanoseconds inside the program, including interrupts
	RecursionMisses *uint64 // runs skipped because the program was already running; nil before Linux 5.12
}

// Range is a stretch of kernel text.
type Range struct {
	Start uint64 // address
	Len   uint64 // bytes
}

// Program is one eBPF program.
type Program struct {
	ID       uint32
	Name     string // empty if the loader gave none; only 15 bytes if the rest is unknown
	Type     string // as bpftool prints it
	Tag      string // hash of the instructions, hexadecimal
	LoadTime time.Duration
	// LoadedAt is LoadTime on the wall clock: the current difference between CLOCK_REALTIME and CLOCK_BOOTTIME, plus
	// LoadTime. It changes when the clock is set; LoadTime never does.
	LoadedAt time.Time
	Counters

	// JITed are the ranges of machine code, one for each subprogram. Empty if the program is interpreted or addresses are
	// hidden.
	JITed       []Range
	JITedBytes  uint64 // machine code
	XlatedBytes uint64 // verified instructions, which the kernel keeps in addition
	MapIDs      []uint32
	BTFID       uint32 // 0 without type information

	Owners []Holder // processes that hold it, or a link or perf event that attaches it
	// Attached lists targets such as "cgroup:/web connect4 (link 7)", "xdp:lo" or "tracepoint:sched_switch". An attached
	// program may have none: see attach.go for what the kernel does not list.
	Attached []string
	Own      bool // it belongs to this process: see markOwn
	Vanished bool // it was unloaded; counters are the last values read

	typ uint32
}

// Key distinguishes the program from others with the same id.
func (p *Program) Key() Key { return Key{p.ID, p.LoadTime} }

// MemoryBytes returns the size of machine code and instructions. The verifier's records, BTF and page padding are not
// included, because nothing counts them.
func (p *Program) MemoryBytes() uint64 { return p.JITedBytes + p.XlatedBytes }

// infoWithMisses is the size of struct bpf_prog_info since Linux 5.12. The size that the kernel reports shows which
// counters it has.
const infoWithMisses = unsafe.Offsetof(progInfo{}.RecursionMisses) + 8

func countersOf(info *progInfo, known uintptr) Counters {
	c := Counters{RunCount: info.RunCnt, RunNs: info.RunTimeNs}
	if known >= infoWithMisses {
		c.RecursionMisses = new(info.RecursionMisses)
	}
	return c
}

// cutName is the length to which the kernel truncates a program's name (BPF_OBJ_NAME_LEN of bpf.h, minus the final 0).
const cutName = 15

// fullName replaces a name that may have been truncated with that of the program's function, if type information has
// it, as bpftool does (get_prog_full_name in its common.c).
func (v *Inventory) fullName(p *Program) {
	if len(p.Name) != cutName || p.BTFID == 0 {
		return
	}
	if name, known := v.names[p.Key()]; known {
		p.Name = name
		return
	}
	program, err := ebpf.NewProgramFromID(ebpf.ProgramID(p.ID))
	if err != nil {
		return // it is gone
	}
	defer program.Close()
	info, err := program.Info()
	if err != nil {
		return
	}
	if functions, err := info.FuncInfos(); err == nil && len(functions) > 0 &&
		strings.HasPrefix(functions[0].Func.Name, p.Name) {
		p.Name = functions[0].Func.Name
	}
}

// programScratch is scratch space for the lists of one program; it grows to the largest program of the machine.
type programScratch struct {
	mapIDs []uint32
	ksyms  []uint64
	lens   []uint32
}

// readProgram reads everything that one descriptor provides. hidden is true if the kernel hides the addresses of
// machine code.
func (s *programScratch) readProgram(fd int, boot time.Time) (p Program, hidden bool, err error) {
	if s.mapIDs == nil {
		s.mapIDs, s.ksyms, s.lens = make([]uint32, 64), make([]uint64, 64), make([]uint32, 64)
	}
	for {
		info := progInfo{
			NrMapIDs: uint32(len(s.mapIDs)), MapIDs: unsafe.Pointer(&s.mapIDs[0]),
			NrJitedKsyms: uint32(len(s.ksyms)), JitedKsyms: unsafe.Pointer(&s.ksyms[0]),
			NrJitedFuncLens: uint32(len(s.lens)), JitedFuncLens: unsafe.Pointer(&s.lens[0]),
		}
		known, err := objInfo(fd, unsafe.Pointer(&info), unsafe.Sizeof(info))
		if err != nil {
			return Program{}, false, err
		}
		// The kernel writes as much as fits and returns the full length.
		if n := int(info.NrMapIDs); n > len(s.mapIDs) {
			s.mapIDs = make([]uint32, 2*n)
			continue
		}
		if n := int(max(info.NrJitedKsyms, info.NrJitedFuncLens)); n > len(s.ksyms) {
			s.ksyms, s.lens = make([]uint64, 2*n), make([]uint32, 2*n)
			continue
		}
		p = Program{
			ID: info.ID, Name: cString(info.Name[:]), Type: typeName(programTypes, info.Type), typ: info.Type,
			Tag: hex.EncodeToString(info.Tag[:]), LoadTime: time.Duration(info.LoadTime),
			LoadedAt:   boot.Add(time.Duration(info.LoadTime)),
			Counters:   countersOf(&info, known),
			JITedBytes: uint64(info.JitedLen), XlatedBytes: uint64(info.XlatedLen),
			MapIDs: append([]uint32{}, s.mapIDs[:info.NrMapIDs]...),
			BTFID:  info.BTFID,
		}
		hidden = info.JitedLen > 0 && (info.JitedKsyms == nil || info.JitedFuncLens == nil)
		if info.JitedLen > 0 && !hidden {
			for i := range min(info.NrJitedKsyms, info.NrJitedFuncLens) {
				if s.ksyms[i] != 0 {
					p.JITed = append(p.JITed, Range{s.ksyms[i], uint64(s.lens[i])})
				}
			}
		}
		return p, hidden, nil
	}
}

// eachProgram opens every program of the machine in turn. A program that goes away in the meantime is left out.
func (v *Inventory) eachProgram(visit func(id uint32, fd int) error) error {
	return v.eachObject("program", cmdProgGetNextID, cmdProgGetFDByID, 0, visit)
}

// eachObject opens every object of a kind in turn. An object that the kernel refuses to open is left out with a
// warning: a security module can deny single objects (security_bpf_prog, security_bpf_map).
func (v *Inventory) eachObject(what string, nextCmd, openCmd int, flags uint32,
	visit func(id uint32, fd int) error,
) error {
	var refused []uint32
	defer func() {
		if n := len(refused); n > 0 {
			v.warn("bpf-unread", "BPF %ss that the kernel refuses to show: %d, among them %v: they are missing "+
				"from all lists and sums", what, n, refused[:min(n, 5)])
		}
	}()
	for id := uint32(0); ; {
		next, ok, err := nextID(nextCmd, id)
		if err != nil {
			return fmt.Errorf("listing BPF %ss: %w", what, err)
		}
		if !ok {
			return nil
		}
		id = next
		err = withObject(openCmd, id, flags, func(fd int) error { return visit(id, fd) })
		switch {
		case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
			refused = append(refused, id)
		case err != nil:
			return fmt.Errorf("reading BPF %s %d: %w", what, id, err)
		}
	}
}

// withObject opens an object while visit runs. It skips an object that is gone, or not yet ready (EAGAIN, for a link).
func withObject(openCmd int, id, flags uint32, visit func(fd int) error) error {
	fd, err := fdByID(openCmd, id, flags)
	if isGone(err) || errors.Is(err, unix.EAGAIN) {
		return nil
	}
	if err != nil {
		return err
	}
	defer files.CloseRaw(fd)
	return visit(fd)
}

// bootTime returns when CLOCK_BOOTTIME was zero, by the current wall clock.
func bootTime() (time.Time, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return time.Time{}, fmt.Errorf("reading CLOCK_BOOTTIME: %w", err)
	}
	return time.Now().Round(0).Add(-time.Duration(ts.Nano())), nil
}
