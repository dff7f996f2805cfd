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

// LabelProgram is the label of samples that says the file of the program that the process runs.
const LabelProgram = "program"

// Function is what one sample's CPU time counts for, so that the times of functions add up to the whole. Of user code
// it is the function that ran, without what it called; of the kernel all that was done for one way into it, whichever
// functions did it; and an eBPF program with the kernel functions that it called.
type Function struct {
	Kind Kind   `json:"kind"`
	Name string `json:"name"`           // of the function, of the way into the kernel ("system call read"), of the program
	File string `json:"file,omitempty"` // of user code in a library: its base name, without its version
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
		what, _ := entry(kernel)
		return Function{Kind: Kernel, Name: what}
	}
	if len(s.Location) == 0 {
		return Function{Kind: User, Name: "[unknown]"}
	}
	l := s.Location[0]
	f := Function{Kind: User, Name: nameOf(l)}
	if file := l.Mapping.File; !strings.HasPrefix(file, "[") && !slices.Contains(s.Label[LabelProgram], file) {
		f.File = unversioned(path.Base(file))
	}
	return f
}

// unversioned is the name of a library without its version, and without what the kernel adds where it was replaced, so
// that functions of two versions are compared.
func unversioned(file string) string {
	file = strings.TrimSuffix(file, " (deleted)")
	if i := strings.Index(file, ".so."); i >= 0 {
		return file[:i+len(".so")]
	}
	return file
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

// Functions that call what was asked for: on x86-64 do_syscall_64 and, from Linux 6.9 on, x64_sys_call
// (arch/x86/entry/syscall_64.c), which a compiler may leave out of the stack; on arm64 invoke_syscall
// (arch/arm64/kernel/syscall.c); handle_softirqs and, before Linux 6.9, __do_softirq (kernel/softirq.c); kthread
// (kernel/kthread.c).
var (
	syscallCallers = []string{"x64_sys_call", "ia32_sys_call", "do_syscall_64", "do_syscall_x64", "__invoke_syscall",
		"invoke_syscall"}
	softirqCallers = []string{"handle_softirqs", "__do_softirq"}
)

const threadCaller = "kthread"

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

// entry is the innermost way into the kernel of a chain of its functions, innermost first, and whether that is an
// interrupt or a softirq; its outermost function where none is known.
func entry(chain []string) (what string, interrupt bool) {
	for i, name := range chain {
		called := "" // by this function
		if i > 0 {
			called = chain[i-1]
		}
		switch {
		case slices.Contains(syscallCallers, name):
			if call := trimAny(called, callPrefixes); call != called {
				return "system call " + call, false
			}
			return "entry and exit of system calls", false
		case slices.Contains(softirqCallers, name):
			return strings.TrimSpace("softirq " + called), true
		case name == threadCaller:
			return strings.TrimSpace("kernel thread " + called), false
		case slices.Contains(faults, name):
			return "page fault", false
		case slices.Contains(interrupts, name):
			return "interrupt", true
		}
		if is := trimAny(name, interruptPrefixes); is != name {
			return "interrupt " + is, true
		}
	}
	return chain[len(chain)-1], false
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
