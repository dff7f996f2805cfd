// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * A program of known cost that is not Tare's: bpftool loads it and attaches it to a cgroup, and it computes nothing
 * useful. Tests make a known number of connections in the cgroup, and compare Tare's results with the known cost.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

/* A step takes 2 to 10 ns, depending on the machine. Tests set the number of steps that gives the wanted run time. */
const volatile __u32 weight_steps = 800;

static long step(__u32 index, void *state)
{
	__u64 x = *(__u64 *)state;

	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	*(__u64 *)state = x;
	return 0;
}

SEC("cgroup/connect4")
int weight(struct bpf_sock_addr *ctx)
{
	__u64 x = 88172645463325252ULL;

	bpf_loop(weight_steps, step, &x, 0);
	return x != 0; /* always 1, for a xorshift never gets to 0: the connection goes on */
}
