// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0

/* For a test: keeps the interrupts of a CPU off for a time, in a timer interrupt. */

#include "../../bpf/bpf/types.h"

#define BPF_MAP_TYPE_ARRAY 2

const volatile __u64 length = 0; /* nanoseconds */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} runs SEC(".maps");

static long until(__u32 i, void *ctx)
{
	return bpf_ktime_get_ns() >= *(__u64 *)ctx;
}

SEC("perf_event")
int tare_test_spin(void *ctx)
{
	__u64 end = bpf_ktime_get_ns() + length;
	__u32 zero = 0;
	__u64 *n = bpf_map_lookup_elem(&runs, &zero);

	if (n)
		++*n;
	bpf_loop(1 << 23, until, &end, 0);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
