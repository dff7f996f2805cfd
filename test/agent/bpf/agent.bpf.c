// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * A weight that is known by the clock: each connection made under it takes busy_ns longer, whatever the machine's
 * speed. It is no part of Tare; tests and benches plant it.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

const volatile __u64 busy_ns = 100000;

/* One look at the clock takes 20 to 100 ns, so these are enough for some milliseconds. */
#define LOOKS 100000

static long look(__u32 index, void *until)
{
	return bpf_ktime_get_ns() >= *(__u64 *)until;
}

SEC("cgroup/connect4")
int planted(struct bpf_sock_addr *ctx)
{
	__u64 until = bpf_ktime_get_ns() + busy_ns;

	bpf_loop(LOOKS, look, &until, 0);
	return 1; /* the connection goes on */
}
