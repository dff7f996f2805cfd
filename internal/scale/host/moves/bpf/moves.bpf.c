// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0

/*
 * Notes processes that leave control groups, and what they use until they end.
 *
 * A process leaves when it is moved (tracepoint cgroup_attach_task, which reports writes to cgroup.procs and to tasks),
 * when clone3(2) with CLONE_INTO_CGROUP creates it in another group, and when its parent had left before it was
 * created. The first tracepoint does not say which group a task comes from, so members are recorded by PID from their
 * creation on. (fentry would show it, but not every kernel allows that.) At the tracepoint sched_process_fork a child
 * is already in its group and has not run yet.
 */

#include "../../bpf/bpf/types.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

#define BPF_MAP_TYPE_HASH 1
#define BPF_MAP_TYPE_ARRAY 2
#define BPF_ANY 0
#define BPF_F_NO_PREALLOC 1

#define HOMES 1024	   /* maxHomes in moves.go */
#define MEMBERS 65536	   /* processes in homes */
#define LEFT 4096	   /* maxLeft in moves.go */
#define DEEPEST 32	   /* levels above a task's group in which its home is looked for */
#define GRAIN 10000000	   /* ns: se.sum_exec_runtime of a running task lacks the time since the last tick (100 Hz) */

/* The fields of the kernel's types that are read. The loader finds their offsets. */
struct kernfs_node {
	__u64 id;
	const char *name;
} __attribute__((preserve_access_index));

struct cgroup;

struct cgroup_root;

struct cgroup_subsys_state {
	struct cgroup *cgroup;
	struct cgroup_subsys_state *parent;
} __attribute__((preserve_access_index));

struct cgroup {
	struct cgroup_subsys_state self;
	struct kernfs_node *kn;
	struct cgroup_root *root;
} __attribute__((preserve_access_index));

struct css_set {
	struct cgroup_subsys_state *subsys[1];
	struct cgroup *dfl_cgrp;
} __attribute__((preserve_access_index));

enum cgroup_subsys_id { cpuacct_cgrp_id = 2 };

struct sched_entity {
	__u64 sum_exec_runtime;
} __attribute__((preserve_access_index));

typedef struct {
	int counter;
} atomic_t;

struct signal_struct {
	atomic_t live;
} __attribute__((preserve_access_index));

struct task_struct {
	int pid;
	int tgid;
	char comm[16];
	__u64 start_time;
	struct css_set *cgroups;
	struct signal_struct *signal;
	struct sched_entity se;
} __attribute__((preserve_access_index));

const volatile __u32 tare_v2; /* CPU time is counted by groups of v2, and not by cpuacct of v1 */

/* The same as the type left in moves.go. */
struct left {
	__u64 home; /* the group that it left */
	__u64 to;   /* the group in which it is or was */
	__u64 at;   /* when it left, CLOCK_MONOTONIC ns */
	__u64 used; /* upper bound of the CPU time of its threads that have ended, ns */
	__u64 before; /* CPU time that the moved thread had used by then, ns */
	__u32 moved;  /* the id of that thread */
	__u32 ended;
	char comm[16];
	char name[64]; /* last part of the path of the group where it is */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, HOMES);
	__type(key, __u64); /* id of a group */
	__type(value, __u64); /* the same */
} tare_homes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MEMBERS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);   /* tgid */
	__type(value, __u64); /* its home */
} tare_members SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, LEFT);
	__type(key, __u32); /* tgid */
	__type(value, struct left);
} tare_left SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} tare_lost SEC(".maps"); /* number of processes that found no room in tare_members or tare_left */

static __attribute__((always_inline)) struct cgroup *group_of(struct task_struct *task)
{
	struct css_set *set = BPF_CORE_READ(task, cgroups);
	struct cgroup_subsys_state *css = 0;

	if (tare_v2)
		return BPF_CORE_READ(set, dfl_cgrp);
	if (!bpf_core_enum_value_exists(enum cgroup_subsys_id, cpuacct_cgrp_id))
		return 0;
	__u32 cpuacct = bpf_core_enum_value(enum cgroup_subsys_id, cpuacct_cgrp_id);
	__u64 at = (__u64)set + bpf_core_field_offset(struct css_set, subsys) + cpuacct * sizeof(void *);

	bpf_probe_read_kernel(&css, sizeof(css), (void *)at);
	return BPF_CORE_READ(css, cgroup);
}

/* Returns the id of the home that is the group itself or the nearest above it; 0: none. */
static __attribute__((noinline)) __u64 home_of(struct cgroup *group)
{
	for (int i = 0; i < DEEPEST && group; i++) {
		__u64 id = BPF_CORE_READ(group, kn, id);

		if (bpf_map_lookup_elem(&tare_homes, &id))
			return id;
		group = BPF_CORE_READ(group, self.parent, cgroup);
	}
	return 0;
}

static __attribute__((always_inline)) void put(void *map, __u32 tgid, void *value)
{
	__u32 zero = 0;

	if (bpf_map_update_elem(map, &tgid, value, BPF_ANY)) {
		__u64 *lost = bpf_map_lookup_elem(&tare_lost, &zero);

		if (lost)
			__sync_fetch_and_add(lost, 1);
	}
}

static __attribute__((always_inline)) void leave(struct task_struct *task, __u64 home, struct cgroup *to, __u64 before)
{
	struct left l = {.home = home, .before = before, .at = bpf_ktime_get_ns()};

	l.to = BPF_CORE_READ(to, kn, id);
	l.moved = BPF_CORE_READ(task, pid);
	BPF_CORE_READ_STR_INTO(&l.comm, task, comm);
	bpf_probe_read_kernel_str(l.name, sizeof(l.name), BPF_CORE_READ(to, kn, name));
	put(&tare_left, BPF_CORE_READ(task, tgid), &l);
}

SEC("tp_btf/cgroup_attach_task")
int BPF_PROG(tare_attach, struct cgroup *to, const char *path, struct task_struct *task)
{
	struct cgroup *now = group_of(task);
	__u32 tgid = BPF_CORE_READ(task, tgid);

	if (!now || BPF_CORE_READ(now, root) != BPF_CORE_READ(to, root))
		return 0; /* another hierarchy */
	struct left *l = bpf_map_lookup_elem(&tare_left, &tgid);
	__u64 *home = bpf_map_lookup_elem(&tare_members, &tgid), there = home_of(to);

	if (l && l->home == there) {
		bpf_map_delete_elem(&tare_left, &tgid); /* it is back: its clocks tell */
	} else if (l) {
		l->to = BPF_CORE_READ(to, kn, id);
		bpf_probe_read_kernel_str(l->name, sizeof(l->name), BPF_CORE_READ(to, kn, name));
	} else if (home && *home != there) {
		leave(task, *home, to, BPF_CORE_READ(task, se.sum_exec_runtime));
	} else if (!home && there) {
		put(&tare_members, tgid, &there);
	}
	return 0;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(tare_fork, struct task_struct *parent, struct task_struct *child)
{
	__u32 tgid = BPF_CORE_READ(parent, tgid), new = BPF_CORE_READ(child, tgid);

	if (tgid == new)
		return 0; /* a thread */
	__u64 *known = bpf_map_lookup_elem(&tare_members, &tgid), home = known ? *known : 0;

	if (!home)
		return 0;
	put(&tare_members, new, &home);
	if (BPF_CORE_READ(parent, cgroups) == BPF_CORE_READ(child, cgroups) && !bpf_map_lookup_elem(&tare_left, &tgid))
		return 0;
	struct cgroup *to = group_of(child);

	if (home != home_of(to))
		leave(child, home, to, 0);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(tare_exit, struct task_struct *task)
{
	__u32 tgid = BPF_CORE_READ(task, tgid);
	int ended = BPF_CORE_READ(task, signal, live.counter) <= 0;
	struct left *l = bpf_map_lookup_elem(&tare_left, &tgid);

	if (ended)
		bpf_map_delete_elem(&tare_members, &tgid);
	if (!l)
		return 0;
	if (ended)
		l->ended = 1;
	if (home_of(group_of(task)) == l->home)
		return 0; /* a thread that stayed */
	__u64 since = BPF_CORE_READ(task, start_time), used = BPF_CORE_READ(task, se.sum_exec_runtime) + GRAIN;

	if (since < l->at)
		since = l->at;
	since = bpf_ktime_get_ns() - since;
	if (BPF_CORE_READ(task, pid) == l->moved)
		used -= l->before;
	__sync_fetch_and_add(&l->used, used < since ? used : since);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
