// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0

/*
 * exectrace: one program that sees every exec, and puts what there is to say of it into a ring buffer.
 *
 * It hangs on the tracepoint sched_process_exec, by its BTF (tp_btf): the kernel passes there once for every exec that
 * succeeded and for no other, when the new program's memory, name and rights are in place and before its first
 * instruction; the tracepoint has been there since 3.4 with the same arguments; and it is no trampoline, which a locked
 * down kernel would refuse.
 *
 * Every exec that passes the filter is counted as seen before anything else can happen to it. From there on it is in
 * the ring, or counted as lost.
 */
#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

/* What of the kernel is read. Offsets are relocated when the program is loaded (CO-RE). */
#define relocated __attribute__((preserve_access_index))

struct mm_struct {
	unsigned long arg_start;
	unsigned long arg_end;
} relocated;

struct task_struct {
	struct mm_struct *mm;
	struct task_struct *real_parent;
	int tgid;
} relocated;

struct linux_binprm {
	const char *filename;
} relocated;

#define NAME_BYTES 4096  /* of a file name with its zero byte: PATH_MAX */
#define ARGS_BYTES 16384 /* of arguments at most: a value of a per-CPU array is at most 32 KiB */

enum flags {
	ARGS_CUT = 1,        /* there are more bytes of arguments than were asked for */
	ARGS_UNREADABLE = 2, /* the page was not in memory: a program here cannot wait for it */
	NAME_UNREADABLE = 4,
};

/*
 * One exec, as it lies in the ring. The file name follows, without a zero byte, and then the arguments as the new
 * process has them, each with one.
 */
struct event {
	__u64 time;   /* CLOCK_BOOTTIME, nanoseconds */
	__u64 cgroup; /* id in the v2 hierarchy */
	__u32 pid;
	__u32 ppid;
	__u32 uid; /* that the new program runs with, as the initial user namespace counts */
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
 * Counters of one CPU, on a line of the cache of their own. `lost` comes before `seen`, and is read before it, so that
 * a reader never finds more lost than seen.
 */
struct counts {
	__u64 lost; /* execs that the ring had no room for */
	__u64 seen; /* execs that passed the filter */
	__u64 unused[6];
};

/* What the reader does, as it says itself. A program that wakes it makes it AWAKE, so that it is woken once. */
enum reader {
	AWAKE, /* it looks at the ring before it sleeps again */
	RESTS, /* it sleeps for a while after a batch, unless the ring fills up */
	IDLE,  /* it found nothing, and sleeps until there is something */
};

struct state {
	__u32 reader;
};

/* Size set at load time. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} exec_ring SEC(".maps");

/* By CPU; size set at load time. The reader maps it, and reads without system calls. */
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

/* Where a record is put together: only what is used of it goes into the ring, and its size is not known before. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct record);
} exec_scratch SEC(".maps");

/* The control group that is traced, with those below it. */
struct {
	__uint(type, BPF_MAP_TYPE_CGROUP_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} exec_groups SEC(".maps");

/* Set at load time. */
const volatile __u32 filtered = 0;   /* only the group of exec_groups is traced */
const volatile __u32 args_bytes = 0; /* that are kept of each exec's arguments */
const volatile __u64 wake_bytes = 0; /* in the ring that wake a reader who rests */

/*
 * Wakes the reader if it sleeps and has cause to wake. This comes after the record has been committed to the ring,
 * which is a full barrier, and the reader looks at the ring again after it has said that it sleeps: one of the two sees
 * the other, so that no event lies there unnoticed. A wake-up needs a record; this one is empty, and nobody reads it.
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
 * These make bpf2go write the types down in Go; no program refers to the section that they are in, so it is never
 * loaded.
 */
struct event *unused_event __attribute__((unused));
enum flags *unused_flags __attribute__((unused));
enum reader *unused_reader __attribute__((unused));

char LICENSE[] SEC("license") = "GPL";
