// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0

/*
 * Counts execs, all of them and those of watched control groups.
 *
 * The hook is the tracepoint sched_process_exec as a raw tracepoint: it is where the kernel itself says that an exec
 * has succeeded, once for each (a script with its interpreter is one), after everything that could still fail; execve's
 * entry and exit are met by attempts too, and not by every way to execute. A raw tracepoint is called as directly as
 * one with BTF types (tp_btf), and asks for no BTF: no argument is read.
 *
 * What is counted cannot be dropped: there is no buffer, and the counters of each CPU are its own. A run can only be
 * left out where this program is running on that CPU already, which the kernel counts (recursion misses).
 */

/* The types that bpf_helpers.h wants, declared here: the headers that have them differ from machine to machine. */
typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;

#include <bpf/bpf_helpers.h>

#define BPF_MAP_TYPE_PERCPU_HASH 5
#define BPF_MAP_TYPE_PERCPU_ARRAY 6

#define GROUPS 1024 /* room to spare: Go watches one */

/* Every exec of the machine. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} tare_execs_all SEC(".maps");

/*
 * Those of watched groups, by the id of the group. All entries are there from the start: none can be wanting when
 * memory is short.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, GROUPS);
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
