/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * What a store's header gives to programs: its maps, and
 *
 *	static __always_inline enum verdict store_find(const struct question *q, struct answer *a);
 *
 * which answers one question, and fills in *a for ACCEPT; for any verdict a->cluster. All of *q and *a must have been
 * written before: they are handed to global functions, which need Linux 5.12. Programs run inside one RCU read-side
 * section, so what they have found does not go away under them; whether it is whole is the store's promise.
 *
 * Addresses are in one form, 16 bytes, IPv4 as IPv4-mapped IPv6 (::ffff:a.b.c.d).
 */
#ifndef TARE_STORE_H
#define TARE_STORE_H

#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

struct address {
	__u32 ip[4]; /* network byte order */
	__u16 port;  /* network byte order */
	__u16 zero;
};

static __always_inline void copy_ip(__u32 *to, const __u32 *from)
{
	to[0] = from[0];
	to[1] = from[1];
	to[2] = from[2];
	to[3] = from[3];
}

static __always_inline bool is_ipv4(const __u32 *ip)
{
	return !ip[0] && !ip[1] && ip[2] == bpf_htonl(0xffff);
}

/* In the order of package mesh. */
enum verdict { PASS, ACCEPT, REFUSE, DENY };

struct question {
	struct address from; /* all zero where the source is not known yet */
	struct address to;
	__u32 protocol; /* 6 TCP, 17 UDP */
	__u32 zero;
	/* Two independent random numbers, uniform over 32 bits: the upper half chooses the cluster, the lower the endpoint. */
	__u64 random;
};

/* No cluster was chosen, or the one that was does not exist. */
#define STORE_NO_CLUSTER 0xffffffff

struct answer {
	struct address endpoint;
	__u32 cluster;         /* its number, stable while the cluster is there; also where it has no endpoint: REFUSE */
	__u32 max_connections; /* of the cluster; 0: no limit */
	__u32 verdict;         /* filled in by who asks */
	__u64 generation;      /* of the configuration, where the store has one; else 0 */
};

#endif
