// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0

/*
 * Notes which processes the kernel kills because memory is short.
 *
 * The hook is the tracepoint mark_victim (mm/oom_kill.c) as a raw tracepoint. There the kernel names the process that
 * it kills, once for each thread group, before it sends the signal. No other interface does: memory.events and
 * memory.oom_control only count, and the kernel's log is text for people. The tracepoint's argument is the task since
 * Linux 6.8, and its PID before that. With only a PID, more is known about the victim only if it is the task that asked
 * for memory, as it usually is.
 */

#include "../../bpf/bpf/types.h"
#include <bpf/bpf_core_read.h>

#define BPF_MAP_TYPE_QUEUE 22
#define BPF_ANY 0

#define VICTIMS 64	   /* maxVictims in oom.go */
#define MOST_PIDS (1 << 22) /* PID_MAX_LIMIT in include/linux/threads.h; a pointer into the kernel is larger */

/* The fields of the kernel's types that are read. The loader finds their offsets. */
struct kernfs_node {
	__u64 id;
	const char *name;
} __attribute__((preserve_access_index));

struct cgroup {
	struct kernfs_node *kn;
} __attribute__((preserve_access_index));

struct cgroup_subsys_state {
	struct cgroup *cgroup;
	struct cgroup_subsys_state *parent;
} __attribute__((preserve_access_index));

typedef struct {
	long counter;
} atomic_long_t;

struct page_counter {
	atomic_long_t usage; /* pages */
	unsigned long max;
} __attribute__((preserve_access_index));

struct mem_cgroup {
	struct cgroup_subsys_state css; /* its first member */
	struct page_counter memory;
} __attribute__((preserve_access_index));

struct css_set {
	struct cgroup_subsys_state *subsys[1];
} __attribute__((preserve_access_index));

enum cgroup_subsys_id { memory_cgrp_id = 4 };

struct qstr {
	const unsigned char *name;
} __attribute__((preserve_access_index));

struct dentry {
	struct qstr d_name;
} __attribute__((preserve_access_index));

struct path {
	struct dentry *dentry;
} __attribute__((preserve_access_index));

struct file {
	struct path f_path;
} __attribute__((preserve_access_index));

struct mm_struct {
	struct file *exe_file;
} __attribute__((preserve_access_index));

struct task_struct {
	int tgid;
	char comm[16];
	struct css_set *cgroups;
	struct mm_struct *mm;
} __attribute__((preserve_access_index));

struct bpf_raw_tracepoint_args {
	__u64 args[1];
};

#define DEEPEST 8	      /* levels above a victim's group in which its limit is looked for */
#define UNLIMITED (1ul << 50) /* pages; PAGE_COUNTER_MAX is larger (include/linux/page_counter.h) */
#define SLACK 1024	      /* pages by which usage may be below a limit that was reached (MEMCG_CHARGE_BATCH) */

/* The same as the type victim in oom.go. */
struct victim {
	__u64 group; /* of the memory controller: id of its directory */
	__u64 limited; /* id of the group whose limit was reached; 0: none */
	__u64 limit;   /* the limit of that group, in pages */
	__u32 pid;
	char comm[16];
	char program[32];
	char group_name[132];
};

struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, VICTIMS);
	__uint(value_size, sizeof(struct victim));
} tare_victims SEC(".maps");

/* Finds the nearest group, from the victim's own up, that has used all it may. */
static __attribute__((always_inline)) void limit_of(struct victim *v, struct cgroup_subsys_state *css)
{
#pragma unroll
	for (int i = 0; i < DEEPEST; i++) {
		struct mem_cgroup *group = (void *)css;

		if (!css)
			return;
		unsigned long max = BPF_CORE_READ(group, memory.max);
		long used = BPF_CORE_READ(group, memory.usage.counter);

		if (max < UNLIMITED && (unsigned long)used + SLACK >= max) {
			v->limit = max;
			v->limited = BPF_CORE_READ(css, cgroup, kn, id);
			return;
		}
		css = BPF_CORE_READ(css, parent);
	}
}

SEC("raw_tp/mark_victim")
int tare_oom(struct bpf_raw_tracepoint_args *ctx)
{
	__u64 first = ctx->args[0];
	struct task_struct *task = (void *)first;
	struct victim v = {};

	if (first <= MOST_PIDS) {
		v.pid = first;
		task = (void *)bpf_get_current_task();
		if (BPF_CORE_READ(task, tgid) != v.pid)
			goto out;
	}
	v.pid = BPF_CORE_READ(task, tgid);
	BPF_CORE_READ_STR_INTO(&v.comm, task, comm);
	bpf_probe_read_kernel_str(v.program, sizeof(v.program), BPF_CORE_READ(task, mm, exe_file, f_path.dentry, d_name.name));

	struct css_set *set = BPF_CORE_READ(task, cgroups);
	struct cgroup_subsys_state *css = 0;
	__u32 memory = bpf_core_enum_value(enum cgroup_subsys_id, memory_cgrp_id);
	__u64 at = (__u64)set + bpf_core_field_offset(struct css_set, subsys) + memory * sizeof(void *);

	bpf_probe_read_kernel(&css, sizeof(css), (void *)at);
	struct kernfs_node *node = BPF_CORE_READ(css, cgroup, kn);

	v.group = BPF_CORE_READ(node, id);
	limit_of(&v, css);
	bpf_probe_read_kernel_str(v.group_name, sizeof(v.group_name), BPF_CORE_READ(node, name));
out:
	bpf_map_push_elem(&tare_victims, &v, BPF_ANY);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
