// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0

/*
 * Counts execs, all of them and those of one control group.
 *
 * The hook is the tracepoint sched_process_exec as a raw tracepoint: it is where the kernel itself says that an exec
 * has succeeded, once for each (a script with its interpreter is one), after everything that could still fail; execve's
 * entry and exit are met by attempts too, and not by every way to execute. A raw tracepoint is called as directly as
 * one with BTF types (tp_btf), and asks for no BTF: no argument is read.
 *
 * What is counted cannot be dropped: there is no buffer, and the counters of each CPU are its own. A run can only be
 * left out where this program is running on that CPU already, which the kernel counts (recursion misses).
 */

#include "../../../scale/host/bpf/bpf/types.h"

#define BPF_MAP_TYPE_PERCPU_HASH 5
#define BPF_MAP_TYPE_PERCPU_ARRAY 6

/* Every exec of the machine. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} tare_execs_all SEC(".maps");

/*
 * Those of the watched group, by its id. The entry is there from the start: it cannot be wanting when memory is short.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 1);
	__type(key, __u64);
	__type(value, __u64);
} tare_execs_by SEC(".maps");

SEC("raw_tp/sched_process_exec")
int tare_execs(void *ctx)
{
	__u64 group = bpf_get_current_cgroup_id();
	__u32 zero = 0;
	__u64 *n;

	n = bpf_map_lookup_elem(&tare_execs_all, &zero);
	if (n)
		++*n;
	n = bpf_map_lookup_elem(&tare_execs_by, &group);
	if (n)
		++*n;
	return 0;
}

/* No helper here is for GPL alone, but the tracepoint's programs are held to it. */
char LICENSE[] SEC("license") = "GPL";
