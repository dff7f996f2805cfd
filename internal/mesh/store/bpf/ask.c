// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Lets user space query a store: the kernel runs the program on demand, on a packet that holds the question, and
 * returns the packet with the answer. The macro STORE, from the command line, names the header of a design.
 */
#include "store.h"
#include STORE

char LICENSE[] SEC("license") = "GPL";

#define ETHERNET 14 /* the kernel takes this many bytes for the packet's header */

struct exchange {
	struct question question;
	struct answer answer;
};

SEC("tc")
int ask(struct __sk_buff *skb)
{
	void *end = (void *)(long)skb->data_end;
	struct exchange *x = (void *)(long)skb->data + ETHERNET;
	struct question q;
	struct answer a = {};

	if ((void *)(x + 1) > end)
		return -1;
	__builtin_memcpy(&q, &x->question, sizeof(q));
	a.verdict = store_find(&q, &a);
	__builtin_memcpy(&x->answer, &a, sizeof(a));
	return a.verdict;
}
