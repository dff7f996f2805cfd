// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0

/*
 * exectrace: one program that sees every exec, and writes a record of it to a ring buffer.
 *
 * It is attached to the tracepoint sched_process_exec, by its BTF (tp_btf). The kernel passes there once for each
 * successful exec and for no other, when the new program's memory, name and credentials are set, before its first
 * instruction. Lockdown in integrity mode allows the program. In confidentiality mode the kernel refuses it, because it
 * calls bpf_probe_read_kernel (LOCKDOWN_BPF_READ_KERNEL in kernel/trace/bpf_trace.c).
 *
 * Every exec that passes the filter is counted as seen before anything else happens to it. From then on it is in the
 * ring, or is counted as lost.
 */
#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

/* The parts of kernel structs that the program reads. Their offsets are relocated at load time (CO-RE). */
#define relocated __attribute__((preserve_access_index))

struct mm_struct {
	unsigned long arg_start;
	unsigned long arg_end;
} relocated;

struct ns_common {
	unsigned int inum;
} relocated;

struct pid_namespace {
	struct ns_common ns;
} relocated;

struct upid { /* not relocated: it is the element of an array. Its 16 bytes are the same since Linux 4.15. */
	int nr;
	struct pid_namespace *ns;
};

struct pid {
	unsigned int level;
	struct upid numbers[]; /* one for each PID namespace that the process is in, from the initial one to its own */
} relocated;

struct task_struct {
	struct mm_struct *mm;
	struct task_struct *real_parent;
	struct pid *thread_pid;
	int tgid;
} relocated;

struct linux_binprm {
	const char *filename;
} relocated;

#define NAME_BYTES 4096  /* of a file name with its zero byte: PATH_MAX */
#define ARGS_BYTES 16384 /* the most bytes of arguments: a value of a per-CPU array is at most 32 KiB */
#define MAX_LEVEL 32     /* of a PID namespace: the kernel's MAX_PID_NS_LEVEL */

enum flags {
	ARGS_CUT = 1,        /* there were more bytes of arguments than args_bytes */
	ARGS_UNREADABLE = 2, /* their pages were not in memory, and a program here cannot wait for them */
	NAME_UNREADABLE = 4,
};

/*
 * One exec, as stored in the ring. The file name follows, without a zero byte, and then the arguments as in the new
 * process's memory, each with a zero byte.
 */
struct event {
	__u64 time;   /* CLOCK_BOOTTIME, nanoseconds */
	__u64 cgroup; /* id in the v2 hierarchy */
	__u32 pid;
	__u32 ppid;
	__u32 uid; /* of the new program, in the initial user namespace */
	__u32 flags;
	__u16 name_bytes;
	__u16 args_bytes;
	__u8 comm[16];
	__u32 zero;
};

struct record {
	struct event head;
	char text[NAME_BYTES + ARGS_BYTES];
};

/*
 * Counters of one CPU, on a separate cache line. `lost` precedes `seen` here, and the reader reads it first, so that
 * the reader never finds more lost than seen.
 */
struct counts {
	__u64 lost; /* execs for which the ring had no room */
	__u64 seen; /* execs that passed the filter */
	__u64 unused[6];
};

/* The reader's state, set by the reader. The program sets AWAKE when it wakes the reader, so that only one CPU does. */
enum reader {
	AWAKE, /* it will check the ring before it sleeps again */
	RESTS, /* it sleeps for a while after a batch, unless the ring fills up */
	IDLE,  /* it found no event, and sleeps until there is one */
};

struct state {
	__u32 reader;
};

/* The loader sets the size. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} exec_ring SEC(".maps");

/* By CPU; the loader sets the size. The reader maps it, and reads it without system calls. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counts);
} exec_counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct state);
} exec_state SEC(".maps");

/* Buffer in which a record is built. Only its used part is copied to the ring, and its size is not known before. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct record);
} exec_scratch SEC(".maps");

/* The control group that is traced, together with the groups below it. */
struct {
	__uint(type, BPF_MAP_TYPE_CGROUP_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} exec_groups SEC(".maps");

/* Set by the loader. */
const volatile __u32 filtered = 0;   /* only the group of exec_groups is traced */
const volatile __u32 namespace = 0;  /* inode of the only PID namespace that is traced, with those below it; 0: all */
const volatile __u32 args_bytes = 0; /* how many bytes of each exec's arguments are kept */
const volatile __u64 wake_bytes = 0; /* a reader that rests is woken when the ring holds this many bytes */

/*
 * Wakes the reader if it sleeps and has a reason to wake. The record is already committed to the ring (a full barrier),
 * and the reader checks the ring again after it has set its state, so one of the two notices the other, and no event is
 * overlooked. Only a record can wake the reader; this one is empty, and discarded.
 */
static __always_inline void wake(void)
{
	__u32 zero = 0, reader;
	struct state *state = bpf_map_lookup_elem(&exec_state, &zero);
	void *nothing;

	if (!state)
		return;
	reader = *(volatile __u32 *)&state->reader;
	if (reader == AWAKE || (reader == RESTS && bpf_ringbuf_query(&exec_ring, BPF_RB_AVAIL_DATA) < wake_bytes))
		return;
	nothing = bpf_ringbuf_reserve(&exec_ring, 8, 0);
	if (!nothing)
		return; /* full, so the reader was woken before, or its time is up soon */
	if (__sync_lock_test_and_set(&state->reader, AWAKE) == AWAKE)
		bpf_ringbuf_discard(nothing, BPF_RB_NO_WAKEUP); /* another CPU was faster */
	else
		bpf_ringbuf_discard(nothing, BPF_RB_FORCE_WAKEUP);
}

/* Reports whether a process is in the traced PID namespace or below it. */
static __always_inline int in_namespace(struct pid *pid)
{
	unsigned int i, level = pid->level, inum;
	struct upid number;

	for (i = 0; i <= level && i <= MAX_LEVEL; i++) {
		/* older verifiers refuse to read an array of unknown length directly */
		if (!bpf_probe_read_kernel(&number, sizeof(number), pid->numbers + i) &&
		    !bpf_probe_read_kernel(&inum, sizeof(inum), &number.ns->ns.inum) && inum == namespace)
			return 1;
	}
	return 0;
}

SEC("tp_btf/sched_process_exec")
int tare_exectrace(__u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	struct linux_binprm *bprm = (void *)ctx[2];
	__u32 zero = 0, cpu = bpf_get_smp_processor_id();
	__u64 name = 0, args = 0, start, end;
	struct counts *counts;
	struct record *r;
	struct mm_struct *mm;
	long n;

	if (filtered && bpf_current_task_under_cgroup(&exec_groups, 0) != 1)
		return 0;
	if (namespace && !in_namespace(task->thread_pid))
		return 0;
	counts = bpf_map_lookup_elem(&exec_counts, &cpu);
	r = bpf_map_lookup_elem(&exec_scratch, &zero);
	if (!counts || !r)
		return 0; /* does not happen: both have an element for each CPU */
	/* nothing else runs this program on this CPU meanwhile; a run left out for that reason is counted by the kernel */
	counts->seen++;

	r->head.time = bpf_ktime_get_boot_ns();
	r->head.cgroup = bpf_get_current_cgroup_id();
	r->head.pid = bpf_get_current_pid_tgid() >> 32;
	r->head.ppid = task->real_parent->tgid;
	r->head.uid = (__u32)bpf_get_current_uid_gid();
	r->head.flags = 0;
	bpf_get_current_comm(r->head.comm, sizeof(r->head.comm));

	n = bpf_probe_read_kernel_str(r->text, NAME_BYTES, bprm->filename);
	if (n > 0 && n <= NAME_BYTES)
		name = n - 1;
	else
		r->head.flags |= NAME_UNREADABLE;

	mm = task->mm;
	if (mm) {
		start = mm->arg_start;
		end = mm->arg_end;
		if (end > start)
			args = end - start;
		if (args > args_bytes) {
			args = args_bytes;
			r->head.flags |= ARGS_CUT;
		}
		if (args > ARGS_BYTES)
			args = ARGS_BYTES;
		if (bpf_probe_read_user(r->text + name, args, (void *)start)) {
			args = 0;
			r->head.flags |= ARGS_UNREADABLE;
		}
	}
	r->head.name_bytes = name;
	r->head.args_bytes = args;

	if (bpf_ringbuf_output(&exec_ring, r, sizeof(r->head) + name + args, BPF_RB_NO_WAKEUP)) {
		counts->lost++;
		return 0;
	}
	wake();
	return 0;
}

/*
 * These make bpf2go generate Go declarations of the types. No program refers to the section of these variables, so it
 * is never loaded.
 */
struct event *unused_event __attribute__((unused));
enum flags *unused_flags __attribute__((unused));
enum reader *unused_reader __attribute__((unused));

char LICENSE[] SEC("license") = "GPL";
