package profile

import (
	"slices"
	"strings"
	"testing"

	pprof "github.com/google/pprof/profile"
)

// sampleOf returns a sample of a process that runs /bin/web, given its stack, innermost function first. A function
// without a file is the kernel's.
func sampleOf(stack string) *pprof.Sample {
	s := &pprof.Sample{Label: map[string][]string{LabelProgram: {"/bin/web"}}}
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

// TestInterruptsApart: if groups' counters exclude interrupts, the time of interrupts is in no group's time.
func TestInterruptsApart(t *testing.T) {
	w := &Window{Period: 1e7, Stacks: []Stack{
		{Group: "/a", User: []uint64{1}, Count: 3}, {Group: "/a", Kernel: []uint64{0x100, 0x200}, Count: 2},
		{Group: "/a", Kernel: []uint64{0x100, 0x300}, Count: 1},
	}}
	names := interrupting{0x100: "tcp_v4_rcv", 0x1ff: "handle_softirqs", 0x2ff: "do_syscall_64"}
	for apart, want := range map[bool][]int64{false: {50e6, 33333333, 16666667}, true: {75e6, 20e6, 25e6}} {
		p, err := Build(w, names, map[string]Group{"/a": {Seconds: new(0.1)}}, apart)
		if err != nil {
			t.Fatal(err)
		}
		var got []int64
		for i, s := range p.Sample {
			got = append(got, s.Value[1])
			if is := s.Label[LabelContext] != nil; is != (apart && i == 1) {
				t.Errorf("apart: %v: sample %d has the context %q", apart, i, s.Label[LabelContext])
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("apart: %v: %v, want %v", apart, got, want)
		}
	}
}

// TestKsoftirqd: the kernel counts softirqs in ksoftirqd as that thread's time, but counts an interrupt of the thread
// separately.
func TestKsoftirqd(t *testing.T) {
	w := &Window{Period: 1e7, Stacks: []Stack{
		{Group: "/", Kernel: []uint64{0x100, 0x200, 0x400, 0x500}, Count: 500},
		{Group: "/", Kernel: []uint64{0x600, 0x500}, Count: 10},
		{Group: "/", Kernel: []uint64{0x700, 0x200, 0x400, 0x500}, Count: 2},
	}}
	names := interrupting{0x100: "net_rx_action", 0x1ff: "handle_softirqs", 0x3ff: "run_ksoftirqd", 0x4ff: "kthread",
		0x600: "worker_thread", 0x700: "common_interrupt"}
	p, err := Build(w, names, map[string]Group{"/": {Seconds: new(5.1)}}, true)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct {
		ns int64
		of string
		is bool
	}{{5e9, "softirq net_rx_action", false}, {1e8, "kernel thread worker_thread", false}, {2e7, "interrupt", true}} {
		s := p.Sample[i]
		if is := s.Label[LabelContext] != nil; s.Value[1] != want.ns || is != want.is || FunctionOf(s).Name != want.of {
			t.Errorf("%s has %d ns, apart: %v; want %+v", FunctionOf(s).Name, s.Value[1], is, want)
		}
	}
}

// interrupting implements Symbols with given names of kernel addresses.
type interrupting map[uint64]string

func (n interrupting) Kernel(addresses []uint64) (names []string, err error) {
	for _, a := range addresses {
		names = append(names, n[a])
	}
	return names, nil
}
func (interrupting) User(*Mapping, uint64) string   { return "" }
func (interrupting) Find(*Process, *Mapping) string { return "" }

// TestFunctionOf uses stacks as observed on Linux 6.18 on x86-64, and as its sources imply on arm64.
func TestFunctionOf(t *testing.T) {
	for _, c := range []struct {
		stack string
		want  Function
	}{
		{
			"/bin/web!parse /bin/web!main",
			Function{User, "parse", ""},
		},
		{
			"/usr/lib/libc.so.6! /bin/web!main",
			Function{User, "[no symbol]", "libc.so"},
		},
		{
			"[unknown]![unknown]",
			Function{User, "[unknown]", ""},
		},
		{
			"![anonymous] /bin/web!main",
			Function{User, "[anonymous]", ""},
		},
		{
			"[vdso]![vdso] /bin/web!main",
			Function{User, "[vdso]", ""},
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
			"vfs_read ksys_read __x64_sys_read x64_sys_call do_syscall_64 entry_SYSCALL_64_after_hwframe",
			Function{Kernel, "system call read", ""},
		},
		{
			"/lib/libz.so.1.2.13!deflate /bin/web!main",
			Function{User, "deflate", "libz.so"},
		},
		{
			"/bin/web!_ZN3web5parse17h9a35ad26eb2bed8dE /bin/web!main",
			Function{User, "_ZN3web5parseE", ""},
		},
		{
			"/lib/libc-2.31.so!memcpy /bin/web!main",
			Function{User, "memcpy", "libc.so"},
		},
		{
			"/bin/other!parse /bin/web!main",
			Function{User, "parse", "other"},
		},
		{
			"vfs_write ksys_write do_syscall_64 entry_SYSCALL_64_after_hwframe",
			Function{Kernel, "system call write", ""},
		},
		{
			"do_syscall_64 entry_SYSCALL_64_after_hwframe",
			Function{Kernel, "entry and exit of system calls", ""},
		},
		{
			"schedule exit_to_user_mode_loop do_syscall_64 entry_SYSCALL_64_after_hwframe",
			Function{Kernel, "entry and exit of system calls", ""},
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
		{
			"bpf:parse bpf:probe __x64_sys_read do_syscall_64",
			Function{BPF, "probe", ""},
		},
		{
			"htab_map_hash bpf:count bpf_for_each_hash_elem bpf:each bpf_loop bpf:probe __x64_sys_read do_syscall_64",
			Function{BPF, "probe", ""},
		},
		{
			"bpf:inner kprobe_ftrace_handler htab_map_update_elem bpf:parse bpf:outer __x64_sys_read do_syscall_64",
			Function{BPF, "inner", ""},
		},
		{
			"bpf:helper bpf:fentry bpf_trampoline_6442548012 bpf:traced bpf_prog_run __x64_sys_read do_syscall_64",
			Function{BPF, "fentry", ""},
		},
		{
			"tcp_v4_rcv net_rx_action handle_softirqs irq_exit_rcu sysvec_apic_timer_interrupt bpf:probe __x64_sys_read",
			Function{Kernel, "softirq net_rx_action", ""},
		},
		{
			"hrtimer_interrupt sysvec_apic_timer_interrupt asm_sysvec_apic_timer_interrupt bpf_loop bpf:probe __x64_sys_read",
			Function{Kernel, "interrupt apic_timer_interrupt", ""},
		},
		{
			"clear_page exc_page_fault asm_exc_page_fault copy_from_user_nofault bpf_probe_read_user bpf:probe __x64_sys_read",
			Function{BPF, "probe", ""},
		},
		{
			"bpf:tc cls_bpf_classify net_rx_action handle_softirqs irq_exit_rcu sysvec_apic_timer_interrupt bpf:probe",
			Function{BPF, "tc", ""},
		},
	} {
		if got := FunctionOf(sampleOf(c.stack)); got != c.want {
			t.Errorf("%q is of %+v, want %+v", c.stack, got, c.want)
		}
	}
}

// TestBPFName: symbols of eBPF programs contain a tag, unlike kernel functions with similar names.
func TestBPFName(t *testing.T) {
	for symbol, want := range map[string]string{
		"bpf_prog_0123456789abcdef_my_prog": "bpf:my_prog", "bpf_prog_0123456789abcdef": "bpf:0123456789abcdef",
		"bpf_prog_load": "", "bpf_prog_run_array": "", "bpf_prog_0123456789abcdeg_x": "", "bpf_prog_": "", "tcp_sendmsg": "",
	} {
		if got, is := bpfName(symbol); got != want || is != (want != "") {
			t.Errorf("%s is %q, %v; want %q", symbol, got, is, want)
		}
	}
}
