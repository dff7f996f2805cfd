// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0

/*
 * Counts execs: all of the machine's, and those of one control group.
 *
 * The program is attached to the tracepoint sched_process_exec, as a raw tracepoint. The kernel passes there once for
 * each successful exec (a script and its interpreter are one), after every step that can fail. The entry and exit of
 * execve would also see failed attempts, and would miss other ways to exec. A raw tracepoint costs as little per call
 * as one with BTF types (tp_btf), and needs no BTF, because the program reads no argument.
 *
 * Counted execs cannot be dropped: there is no buffer, and each CPU has separate counters. The kernel skips a run only
 * if the program is already running on the CPU, and counts that as a recursion miss.
 */

#include "../../../scale/host/bpf/bpf/types.h"

#define BPF_MAP_TYPE_PERCPU_HASH 5
#define BPF_MAP_TYPE_PERCPU_ARRAY 6

/* Execs of the whole machine. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} tare_execs_all SEC(".maps");

/*
 * Execs of the watched group, by its id. The entry exists from the start: adding it could fail for lack of memory.
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

/* No helper here is GPL-only, so the kernel would load the program under any license (bpf_licensing.rst). */
char LICENSE[] SEC("license") = "GPL";
