package profile

import (
	"path"
	"slices"
	"strings"

	pprof "github.com/google/pprof/profile"
)

// Kind is which code a function is of.
type Kind string

// The kinds of functions.
const (
	User   Kind = "user"
	Kernel Kind = "kernel"
	BPF    Kind = "bpf"
)

// Function is what one sample's CPU time counts for, so that the times of functions add up to the whole. Of user code
// it is the function that ran, without what it called; of the kernel all that was done for one way into it, whichever
// functions did it; and an eBPF program with the kernel functions that it called.
type Function struct {
	Kind Kind   `json:"kind"`
	Name string `json:"name"`           // of the function, of the way into the kernel ("system call read"), of the program
	File string `json:"file,omitempty"` // of user code: the base name of the program or library
}

// FunctionOf is the function that a sample of Build's counts for.
//
// The kernel has been entered in several ways at once where a system call is interrupted, or runs what an interrupt
// left to do: then the innermost one counts, such as "softirq net_rx_action" below "system call sendto".
func FunctionOf(s *pprof.Sample) Function {
	var kernel []string // innermost first
	for _, l := range s.Location {
		name := nameOf(l)
		switch l.Mapping.File {
		case bpfFile.path:
			return Function{Kind: BPF, Name: strings.TrimPrefix(name, "bpf:")}
		case kernelFile.path:
			kernel = append(kernel, name)
		}
	}
	if len(kernel) > 0 {
		return Function{Kind: Kernel, Name: entry(kernel)}
	}
	if len(s.Location) == 0 {
		return Function{Kind: User, Name: "[unknown]"}
	}
	l := s.Location[0]
	f := Function{Kind: User, Name: nameOf(l), File: path.Base(l.Mapping.File)}
	if strings.HasPrefix(l.Mapping.File, "[") {
		f.File = ""
	}
	return f
}

// Frame is the name and the kind of the function of a location of Build's.
func Frame(l *pprof.Location) (string, Kind) {
	switch l.Mapping.File {
	case bpfFile.path:
		return nameOf(l), BPF
	case kernelFile.path:
		return nameOf(l), Kernel
	}
	return nameOf(l), User
}

// nameOf is the name of the function of a location.
func nameOf(l *pprof.Location) string {
	if len(l.Line) == 0 {
		return "[no symbol]"
	}
	return l.Line[0].Function.Name
}

// The functions from which system calls and deferred interrupts are called: on x86-64 do_syscall_64
// (arch/x86/entry/syscall_64.c), on arm64 invoke_syscall (arch/arm64/kernel/syscall.c); handle_softirqs and, before
// Linux 6.9, __do_softirq (kernel/softirq.c); kthread (kernel/kthread.c).
var callers = map[string]string{
	"do_syscall_64": "system call", "invoke_syscall": "system call",
	"handle_softirqs": "softirq", "__do_softirq": "softirq",
	"kthread": "kernel thread",
}

// Beginnings of the names of functions that do a system call, by architecture and by how the compiler inlined them
// (include/linux/syscalls.h), and of those that handle an interrupt (arch/x86/include/asm/idtentry.h).
var (
	callPrefixes      = []string{"__x64_sys_", "__ia32_sys_", "__arm64_sys_", "__do_sys_", "__se_sys_", "ksys_", "__sys_"}
	interruptPrefixes = []string{"sysvec_", "__sysvec_", "asm_sysvec_"}
)

// faults are functions that handle a page fault: arch/x86/mm/fault.c, arch/arm64/mm/fault.c.
var faults = []string{"exc_page_fault", "asm_exc_page_fault", "do_page_fault", "do_translation_fault", "do_mem_abort"}

// interrupts are functions that handle an interrupt of a device: arch/x86/kernel/irq.c and
// arch/arm64/kernel/entry-common.c.
var interrupts = []string{"common_interrupt", "asm_common_interrupt", "el0_interrupt", "el1_interrupt"}

// entry is the innermost way into the kernel of a chain of its functions, innermost first; its outermost function where
// none is known.
func entry(chain []string) string {
	for i, name := range chain {
		if what := callers[name]; what != "" {
			if i == 0 {
				return what
			}
			return what + " " + trimAny(chain[i-1], callPrefixes)
		}
		if slices.Contains(faults, name) {
			return "page fault"
		}
		if slices.Contains(interrupts, name) {
			return "interrupt"
		}
		if is := trimAny(name, interruptPrefixes); is != name {
			return "interrupt " + is
		}
	}
	return chain[len(chain)-1]
}

// trimAny takes the first of some beginnings off a name that has it.
func trimAny(name string, prefixes []string) string {
	for _, p := range prefixes {
		if rest, is := strings.CutPrefix(name, p); is {
			return rest
		}
	}
	return name
}
