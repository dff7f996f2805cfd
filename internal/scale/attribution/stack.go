package attribution

import (
	"slices"
	"strings"

	"tare/internal/scale/ledger"
)

// Run is one program that was running when a sample was taken, and the context that it ran in.
type Run struct {
	Program int // as in Frame.Program
	Context ledger.Context
}

// Frame describes one frame of a kernel call chain.
type Frame struct {
	Program int            // index of the BPF program whose machine code the frame is in; -1 for anything else
	Entry   ledger.Context // Softirq or Hardirq if the frame is the kernel's entry into that context, else empty
}

// Runs finds the programs in a call chain, which has the innermost frame first, and appends them to a slice. A
// program's context is given by the first entry frame further out in the chain. If a program was interrupted and the
// interrupt runs another one, both are in the chain and both are returned, because the kernel's statistics count wall
// time for both. One program in one context counts once, however many of its subprograms and callbacks are in the
// chain.
func Runs(chain []Frame, into []Run) []Run {
	first := len(into)
	waiting := first // runs from here on have no context yet
	for _, f := range chain {
		if f.Entry != "" {
			for i := waiting; i < len(into); i++ {
				into[i].Context = f.Entry
			}
			into = dedupe(into, first, waiting)
			waiting = len(into)
			continue
		}
		if f.Program >= 0 && !has(into[waiting:], f.Program) {
			into = append(into, Run{Program: f.Program})
		}
	}
	for i := waiting; i < len(into); i++ {
		into[i].Context = ledger.Task
	}
	return dedupe(into, first, waiting)
}

func has(runs []Run, program int) bool {
	return slices.ContainsFunc(runs, func(r Run) bool { return r.Program == program })
}

// dedupe drops the elements of runs[waiting:] that are also in runs[first:waiting].
func dedupe(runs []Run, first, waiting int) []Run {
	kept := runs[:waiting]
	for _, r := range runs[waiting:] {
		seen := false
		for _, k := range runs[first:waiting] {
			seen = seen || k == r
		}
		if !seen {
			kept = append(kept, r)
		}
	}
	return kept
}

// ChainContext returns the context of the innermost frame, which is that of the CPU at the time of the sample.
func ChainContext(chain []Frame) ledger.Context {
	for _, f := range chain {
		if f.Entry != "" {
			return f.Entry
		}
	}
	return ledger.Task
}

// Entry returns the context that a kernel function enters, given its name; empty for any other function. Exceptions
// (page faults, system calls) are not interrupts: they belong to the task.
//
// Softirq: __do_softirq, and handle_softirqs since Linux 6.10 (kernel/softirq.c). Hardirq on x86: the entry stubs of
// arch/x86/entry (asm_sysvec_*, asm_common_interrupt, asm_exc_nmi) and their C halves (sysvec_*, common_interrupt).
// With FRED (Linux 6.9, arch/x86/entry/entry_fred.c): fred_extint, fred_sysvec_* and fred_exc_nmi; the
// asm_fred_entrypoint_* before them are not used, because system calls and exceptions enter there too. In a
// paravirtual guest of Xen: asm_exc_xen_hypervisor_callback and xen_pv_evtchn_do_upcall. On arm64: el{0,1}_interrupt,
// vectors such as el1h_64_irq and el0t_64_fiq, and their handlers (arch/arm64/kernel/entry-common.c). Before Linux 5.8
// on x86: do_IRQ, smp_*_interrupt, and stubs such as apic_timer_interrupt.
func Entry(name string) ledger.Context {
	switch name {
	case "__do_softirq", "handle_softirqs", "__softirqentry_text_start":
		return ledger.Softirq
	case "common_interrupt", "asm_common_interrupt", "do_IRQ", "ret_from_intr", "apic_timer_interrupt",
		"reschedule_interrupt", "call_function_interrupt", "call_function_single_interrupt", "asm_exc_nmi", "exc_nmi",
		"asm_exc_nmi_noist", "fred_extint", "fred_exc_nmi", "asm_exc_xen_hypervisor_callback", "exc_xen_hypervisor_callback",
		"xen_pv_evtchn_do_upcall", "el1_interrupt", "el0_interrupt", "el1h_64_irq", "el1h_64_fiq", "el1t_64_irq",
		"el0t_64_irq", "el0t_64_fiq", "el0t_32_irq",
		"el1h_64_irq_handler", "el0t_64_irq_handler", "gic_handle_irq", "generic_handle_arch_irq":
		return ledger.Hardirq
	}
	if strings.HasPrefix(name, "asm_sysvec_") || strings.HasPrefix(name, "sysvec_") ||
		strings.HasPrefix(name, "fred_sysvec_") ||
		strings.HasPrefix(name, "smp_") && strings.HasSuffix(name, "_interrupt") {
		return ledger.Hardirq
	}
	return ""
}
