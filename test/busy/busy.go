// Package busy provides an eBPF program that takes some microseconds, for tests that weigh a program.
package busy

import (
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
)

// Load loads the program under the given name, with a type that runs only on demand (see Run).
func Load(name string) (*ebpf.Program, error) { return load(name, ebpf.SocketFilter, ebpf.AttachNone) }

// Attach loads the program and runs it whenever a process in the cgroup v2 control group, or below it, opens an
// Internet socket. The program runs in the context of that process and, unlike a kprobe, works on every kernel. Closing
// the link detaches the program and frees it.
func Attach(name, group string) (link.Link, error) {
	p, err := load(name, ebpf.CGroupSock, ebpf.AttachCGroupInetSockCreate)
	if err != nil {
		return nil, err
	}
	defer p.Close() // the link holds it
	return link.AttachCgroup(link.CgroupOptions{Path: group, Attach: ebpf.AttachCGroupInetSockCreate, Program: p})
}

// Filter loads the program as a socket filter. A run takes the given number of microseconds (us) if nothing interrupts
// it, and passes one byte of the packet.
func Filter(name string, us float64) (*ebpf.Program, error) {
	p, err := Load(name)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	took := time.Hour
	for range 50 { // the fastest measurement is the least disturbed one
		_, each, err := p.Benchmark(make([]byte, 14), 20, nil)
		if err != nil {
			return nil, err
		}
		took = min(took, each)
	}
	return loadRounds(name, ebpf.SocketFilter, ebpf.AttachNone, int32(us*rounds*float64(time.Microsecond)/float64(took)))
}

// rounds is the number of iterations of the program's loop, unless Filter chooses another.
const rounds = 2000

func load(name string, kind ebpf.ProgramType, at ebpf.AttachType) (*ebpf.Program, error) {
	return loadRounds(name, kind, at, rounds)
}

func loadRounds(name string, kind ebpf.ProgramType, at ebpf.AttachType, rounds int32) (*ebpf.Program, error) {
	return ebpf.NewProgram(&ebpf.ProgramSpec{Name: name, Type: kind, AttachType: at, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{
			asm.Mov.Imm(asm.R2, 1),
			asm.Mov.Imm(asm.R3, rounds),
			asm.Mul.Imm(asm.R2, 1664525).WithSymbol("step"),
			asm.Sub.Imm(asm.R3, 1),
			asm.JNE.Imm(asm.R3, 0, "step"),
			asm.Mov.Imm(asm.R0, 1),
			asm.Return(),
		}})
}

// Run runs the program the given number of times.
func Run(p *ebpf.Program, times uint32) error {
	_, err := p.Run(&ebpf.RunOptions{Data: make([]byte, 14), Repeat: times}) // at least an Ethernet header must be there
	return err
}
