// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Asks a store from user space: the kernel runs the program on demand, on a packet that holds the question, and hands
 * back the packet, which then holds the answer. STORE is the header of a design, given to the compiler.
 */
#include "store.h"
#include STORE

char LICENSE[] SEC("license") = "GPL";

#define ETHERNET 14 /* the kernel takes that much for the header of a packet */

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
