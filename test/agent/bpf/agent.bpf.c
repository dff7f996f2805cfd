// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * A program of known cost: each connection from the cgroup that it is attached to takes busy_ns longer by the clock,
 * however fast the machine is. It is no part of Tare; tests and benches plant it.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

const volatile __u64 busy_ns = 100000;

/* Reading the clock takes 20 to 100 ns, so this many readings suffice for a busy_ns of at least 2 ms. */
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
