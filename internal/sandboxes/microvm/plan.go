package microvm

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// plan is a list of system calls with their data, which the guest's first process runs (c/init.c). Apart from plans,
// that process knows nothing about sandboxes.
type plan struct {
	calls []call
	data  []byte
	// pointers are the offsets in data at which there are pointers into data.
	pointers []int
}

// call is one system call of a plan.
type call struct {
	number uint32
	args   []any // int, uint32, uintptr, register, string, []byte, or []string (with a null pointer added at its end)
	into   register
	ignore errnos // error numbers that do not count as errors
	skip   int    // number of calls to skip if this one succeeds
	what   string // describes the call in errors
}

// errnos holds up to three error numbers, because struct instruction in c/init.c has room for three.
type errnos [3]unix.Errno

// register is the number of a register of a plan, which holds the result of a call for later calls. The registers of
// the ports are fixed in c/init.c.
type register uint8

const (
	controlPort register = iota + 1
	stdinPort
	stdoutPort
	stderrPort
	scratch // a file that a plan closes again at once
	other   // a netlink socket
)

// Operations other than system calls (c/init.c).
const (
	opWaitFile = 0x10000 + iota
	opNetlink
	opReady
)

// add adds a call and returns it, so that its other fields can be set.
func (p *plan) add(what string, number uint32, args ...any) *call {
	p.calls = append(p.calls, call{number: number, args: args, what: what})
	return &p.calls[len(p.calls)-1]
}

// saying converts the guest's answer, the index of a call and an errno, to an error. It returns nil if the plan
// succeeded.
func (p *plan) saying(index, errno int32) error {
	if index < 0 && errno == 0 {
		return nil
	}
	what := "running a plan"
	if index >= 0 && int(index) < len(p.calls) {
		what = p.calls[index].what
	}
	return fmt.Errorf("%s: %w", what, unix.Errno(errno))
}

// put appends bytes to the data and returns their offset.
func (p *plan) put(b []byte) int {
	at := len(p.data)
	p.data = append(p.data, b...)
	return at
}

// instructionSize is the size of struct instruction in c/init.c.
const instructionSize = 72

// encode returns the plan in the wire format.
func (p *plan) encode() []byte {
	p.data, p.pointers = nil, nil
	instructions := make([]byte, instructionSize*len(p.calls))
	var inArgs []int // offsets in instructions of the arguments that point into data
	for i, c := range p.calls {
		b := instructions[i*instructionSize:]
		le := binary.LittleEndian
		le.PutUint32(b, c.number)
		var registers uint16
		for k, arg := range c.args {
			at := 24 + 8*k
			var v uint64
			pointer := true
			switch arg := arg.(type) {
			case string:
				v = uint64(p.put(append([]byte(arg), 0)))
			case []byte:
				v = uint64(p.put(arg))
			case []string:
				v = uint64(p.vector(arg))
			default:
				pointer = false
				switch arg := arg.(type) {
				case register:
					registers |= 1 << k
					v = uint64(arg)
				case int:
					v = uint64(arg)
				case uintptr:
					v = uint64(arg)
				case uint32:
					v = uint64(arg)
				default:
					panic(fmt.Sprintf("an argument of type %T in a plan", arg))
				}
			}
			le.PutUint64(b[at:], v)
			if pointer {
				inArgs = append(inArgs, i*instructionSize+at)
			}
		}
		le.PutUint16(b[4:], registers)
		b[6] = byte(c.into)
		le.PutUint32(b[8:], uint32(c.skip))
		for k, errno := range c.ignore {
			le.PutUint32(b[12+4*k:], uint32(errno))
		}
	}
	const header = 8
	relocations := len(inArgs) + len(p.pointers)
	base := header + len(instructions) + 4*relocations
	out := make([]byte, 0, base+len(p.data)+8)
	le := binary.LittleEndian
	out = le.AppendUint32(out, uint32(len(p.calls)))
	out = le.AppendUint32(out, uint32(relocations))
	for _, at := range inArgs {
		le.PutUint64(instructions[at:], le.Uint64(instructions[at:])+uint64(base))
	}
	out = append(out, instructions...)
	for _, at := range inArgs {
		out = le.AppendUint32(out, uint32(header+at))
	}
	for _, at := range p.pointers {
		le.PutUint64(p.data[at:], le.Uint64(p.data[at:])+uint64(base))
		out = le.AppendUint32(out, uint32(base+at))
	}
	return append(out, p.data...)
}

// vector appends strings to the data, and a list of pointers to them that ends with a null pointer. It returns the
// list's offset.
func (p *plan) vector(list []string) int {
	var at []int
	for _, s := range list {
		at = append(at, p.put(append([]byte(s), 0)))
	}
	begin := len(p.data)
	for _, a := range at {
		p.pointers = append(p.pointers, len(p.data))
		p.data = binary.LittleEndian.AppendUint64(p.data, uint64(a))
	}
	p.data = append(p.data, make([]byte, 8)...)
	return begin
}

// The methods below add calls that many plans need.

func (p *plan) mkdir(path string, mode int) {
	p.add("making the directory "+path, sysMkdir, path, mode).ignore = errnos{unix.EEXIST}
}

func (p *plan) mount(source, target, kind string, flags uintptr, data string) *call {
	return p.add(fmt.Sprintf("mounting %s (%s) on %s", source, kind, target), sysMount, source, target, kind, flags,
		data)
}

// write writes a value to an existing file.
func (p *plan) write(path, value string) {
	p.add("opening "+path, sysOpen, path, unix.O_WRONLY|unix.O_CLOEXEC, 0).into = scratch
	p.add(fmt.Sprintf("writing %q to %s", value, path), sysWrite, scratch, []byte(value), len(value))
	p.add("closing "+path, sysClose, scratch)
}

// load loads a kernel module.
func (p *plan) load(path string) {
	p.add("opening "+path, sysOpen, path, unix.O_RDONLY|unix.O_CLOEXEC, 0).into = scratch
	p.add("loading "+path, sysFinitModule, scratch, "", 0).ignore = errnos{unix.EEXIST}
	p.add("closing "+path, sysClose, scratch)
}
