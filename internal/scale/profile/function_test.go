package profile

import (
	"strings"
	"testing"

	pprof "github.com/google/pprof/profile"
)

// sampleOf is a sample of a stack, innermost function first: a name is of the kernel, one with a file of that file.
func sampleOf(stack string) *pprof.Sample {
	s := &pprof.Sample{}
	for frame := range strings.FieldsSeq(stack) {
		file, name, user := strings.Cut(frame, "!")
		if !user {
			file, name = kernelFile.path, frame
		}
		if bpf, is := strings.CutPrefix(frame, "bpf:"); is {
			file, name = bpfFile.path, "bpf:"+bpf
		}
		l := &pprof.Location{Mapping: &pprof.Mapping{File: file}}
		if name != "" {
			l.Line = []pprof.Line{{Function: &pprof.Function{Name: name}}}
		}
		s.Location = append(s.Location, l)
	}
	return s
}

// TestFunctionOf: the stacks are as Linux 6.18 has them on x86-64, and as its sources have them on arm64.
func TestFunctionOf(t *testing.T) {
	for _, c := range []struct {
		stack string
		want  Function
	}{
		{
			"/bin/web!parse /bin/web!main",
			Function{User, "parse", "web"},
		},
		{
			"/usr/lib/libc.so.6! /bin/web!main",
			Function{User, "[no symbol]", "libc.so.6"},
		},
		{
			"[unknown]![unknown]",
			Function{User, "[unknown]", ""},
		},
		{
			"",
			Function{User, "[unknown]", ""},
		},
		{
			"copy_page do_read __x64_sys_read do_syscall_64 entry_SYSCALL_64_after_hwframe /bin/web!f",
			Function{Kernel, "system call read", ""},
		},
		{
			"vfs_write ksys_write do_syscall_64 entry_SYSCALL_64_after_hwframe",
			Function{Kernel, "system call write", ""},
		},
		{
			"do_syscall_64 entry_SYSCALL_64_after_hwframe",
			Function{Kernel, "system call", ""},
		},
		{
			"schedule exit_to_user_mode_loop do_syscall_64 entry_SYSCALL_64_after_hwframe",
			Function{Kernel, "system call exit_to_user_mode_loop", ""},
		},
		{
			"tcp_recvmsg __arm64_sys_recvfrom invoke_syscall el0_svc_common do_el0_svc el0_svc",
			Function{Kernel, "system call recvfrom", ""},
		},
		{
			"tcp_v4_rcv net_rx_action handle_softirqs do_softirq __x64_sys_sendto do_syscall_64",
			Function{Kernel, "softirq net_rx_action", ""},
		},
		{
			"tcp_v4_rcv net_rx_action __do_softirq do_softirq __x64_sys_sendto do_syscall_64",
			Function{Kernel, "softirq net_rx_action", ""},
		},
		{
			"clear_page handle_mm_fault exc_page_fault asm_exc_page_fault /bin/web!f",
			Function{Kernel, "page fault", ""},
		},
		{
			"clear_page exc_page_fault asm_exc_page_fault _copy_from_user ksys_write do_syscall_64",
			Function{Kernel, "page fault", ""},
		},
		{
			"hrtimer_interrupt __sysvec_apic_timer_interrupt sysvec_apic_timer_interrupt asm_sysvec_apic_timer_interrupt",
			Function{Kernel, "interrupt apic_timer_interrupt", ""},
		},
		{
			"handle_edge_irq common_interrupt asm_common_interrupt",
			Function{Kernel, "interrupt", ""},
		},
		{
			"process_one_work worker_thread kthread ret_from_fork ret_from_fork_asm",
			Function{Kernel, "kernel thread worker_thread", ""},
		},
		{
			"strange stranger",
			Function{Kernel, "stranger", ""},
		},
		{
			"bpf_loop bpf:probe tracing __x64_sys_read do_syscall_64 /bin/web!f",
			Function{BPF, "probe", ""},
		},
	} {
		if got := FunctionOf(sampleOf(c.stack)); got != c.want {
			t.Errorf("%q is of %+v, want %+v", c.stack, got, c.want)
		}
	}
}
