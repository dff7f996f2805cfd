// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * A known weight that is not Tare's: a cgroup program that bpftool loads and attaches, and that spends its time on
 * nothing. Tests put it under connections whose number they know, and compare what Tare says of it with what they know.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

/* Of 2 to 10 ns each, by machine: tests put in what makes a run as long as they want it. */
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
