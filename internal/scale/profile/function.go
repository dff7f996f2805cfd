package profile

import (
	"cmp"
	"path"
	"slices"
	"strings"

	pprof "github.com/google/pprof/profile"
)

// Kind is the kind of code that a function belongs to.
type Kind string

// The kinds of functions.
const (
	User   Kind = "user"
	Kernel Kind = "kernel"
	BPF    Kind = "bpf"
)

// LabelProgram is the label that holds the path of the program that a sample's process runs.
const LabelProgram = "program"

// Function names the code that the CPU time of a sample is attributed to. Each sample has one Function, so the times of
// functions add up to the total. In user code it is the function that ran, without the functions that it called. In the
// kernel it is an entry such as one system call, with all functions that ran for it. For eBPF it is a program, with the
// kernel functions that it called.
type Function struct {
	Kind Kind `json:"kind"`
	// Name is the name of the function (without what differs between builds of it), of the entry into the kernel ("system
	// call read"), or of the program.
	Name string `json:"name"`
	File string `json:"file,omitempty"` // of user code in a library: the library's base name, without its version
}

// Compare orders functions by kind, name and file.
func (f Function) Compare(o Function) int {
	return cmp.Or(cmp.Compare(f.Kind, o.Kind), cmp.Compare(f.Name, o.Name), cmp.Compare(f.File, o.File))
}

// String names the function as reports do: "memcpy (libc.so)", "eBPF program redirect".
func (f Function) String() string {
	switch {
	case f.Kind == BPF:
		return "eBPF program " + f.Name
	case f.File != "":
		return f.Name + " (" + f.File + ")"
	}
	return f.Name
}

// FunctionOf returns the function to which a sample of a profile made by Build is attributed.
//
// A stack has several entries into the kernel if a system call was interrupted, or ran a softirq. Then the innermost
// one counts, such as "softirq net_rx_action" within "system call sendto". An interrupt on top of an eBPF program does
// not count as the program, but what the program itself caused does, such as a page fault.
func FunctionOf(s *pprof.Sample) Function {
	var kernel []string // innermost first
	for i, l := range s.Location {
		name, kind := Frame(l)
		if kind == User {
			break // those further out are user code, too
		}
		if kind == BPF {
			if what, interrupt := entry(kernel); interrupt {
				return Function{Kind: Kernel, Name: what}
			}
			return Function{Kind: BPF, Name: programOf(s.Location[i:])}
		}
		kernel = append(kernel, name)
	}
	if what, _ := entry(kernel); what != "" {
		return Function{Kind: Kernel, Name: what}
	}
	if len(s.Location) == 0 {
		return Function{Kind: User, Name: "[unknown]"}
	}
	name, _ := Frame(s.Location[0])
	f := Function{Kind: User, Name: name}
	file := s.Location[0].Mapping.File // a path, a name such as [vdso], or "" for code of a just-in-time compiler
	if strings.HasPrefix(file, "/") && !slices.Contains(s.Label[LabelProgram], file) {
		f.File = unversioned(path.Base(file))
	}
	return f
}

// bpfCallers are functions of the kernel that call back a function of the program that called them (bpf_iter.c,
// hashtab.c, arraymap.c, ringbuf.c, task_iter.c and helpers.c in kernel/bpf).
var bpfCallers = []string{"bpf_loop", "bpf_for_each_map_elem", "bpf_for_each_hash_elem", "bpf_for_each_array_elem",
	"bpf_user_ringbuf_drain", "bpf_find_vma", "bpf_rbtree_add_impl", "__bpf_rbtree_add"}

// programOf returns the name of the eBPF program that runs the function at the beginning of a stack. Each function of a
// program has a symbol that looks like that of a program (jit_subprogs in kernel/bpf/verifier.c): the program is the
// outermost of the functions that called each other. If these functions cause another program to run, such as one
// attached to a kernel function that they call, a trampoline or a probe is between the two programs in the stack.
func programOf(stack []*pprof.Location) (name string) {
	for _, l := range stack {
		switch called, kind := Frame(l); {
		case kind == BPF:
			name = strings.TrimPrefix(called, "bpf:")
		case !slices.Contains(bpfCallers, called):
			return name
		}
	}
	return name
}

// Frame returns the name and the kind of the function at a location of a profile made by Build. The name of a function
// in user code lacks what differs between builds of it.
func Frame(l *pprof.Location) (string, Kind) {
	switch l.Mapping.File {
	case bpfFile.path:
		return nameOf(l), BPF
	case kernelFile.path:
		return nameOf(l), Kernel
	}
	return stable(nameOf(l)), User
}

// nameOf returns the name of the function at a location.
func nameOf(l *pprof.Location) string {
	if len(l.Line) == 0 {
		return "[no symbol]"
	}
	return l.Line[0].Function.Name
}

// Functions that call the one of interest: on x86-64 do_syscall_64 and, from Linux 6.9 on, x64_sys_call
// (arch/x86/entry/syscall_64.c), which a compiler may leave out of the stack; on arm64 invoke_syscall
// (arch/arm64/kernel/syscall.c); handle_softirqs and, before Linux 6.10, __do_softirq (kernel/softirq.c); kthread
// (kernel/kthread.c). run_ksoftirqd (kernel/softirq.c) is at the bottom of the thread ksoftirqd.
var (
	syscallCallers = []string{"x64_sys_call", "ia32_sys_call", "do_syscall_64", "do_syscall_x64", "__invoke_syscall",
		"invoke_syscall"}
	softirqCallers = []string{"handle_softirqs", "__do_softirq"}
)

const (
	threadCaller = "kthread"
	ksoftirqd    = "run_ksoftirqd"
)

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

// entry returns the innermost entry into the kernel in a chain of kernel functions, which has the innermost first. It
// also reports whether the entry is an interrupt or a softirq whose time the kernel can count separately from tasks.
// The kernel always counts a softirq in ksoftirqd as that thread's time (irqtime_account_irq in
// kernel/sched/cputime.c). If the chain has no known entry, the result is the outermost function; if the chain is
// empty, it is "".
func entry(chain []string) (what string, interrupt bool) {
	for i, name := range chain {
		called := "" // the function that this one called
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
			return strings.TrimSpace("softirq " + called), !slices.Contains(chain[i:], ksoftirqd)
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
	if len(chain) == 0 {
		return "", false
	}
	return chain[len(chain)-1], false
}

// trimAny removes from a name the first of the prefixes that it has.
func trimAny(name string, prefixes []string) string {
	for _, p := range prefixes {
		if rest, is := strings.CutPrefix(name, p); is {
			return rest
		}
	}
	return name
}
