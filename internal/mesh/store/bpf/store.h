/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * What the header of a store provides to programs: the store's maps, and
 *
 *	static __always_inline enum verdict store_find(const struct question *q, struct answer *a);
 *
 * which answers one question. It sets a->cluster, and for ACCEPT the rest of *a. Callers must initialize all of *q and
 * *a, which the verifier requires of arguments of global functions (Linux 5.12). Programs run inside one RCU read-side
 * section, so memory that they have found stays valid; how consistent its content is depends on the store.
 *
 * Addresses have one form, of 16 bytes; an IPv4 address is IPv4-mapped IPv6 (::ffff:a.b.c.d).
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

/* The same values as mesh.Verdict. */
enum verdict { PASS, ACCEPT, REFUSE, DENY };

struct question {
	struct address from; /* the IP is all zero if the source is not known yet */
	struct address to;
	__u32 protocol; /* 6 TCP, 17 UDP */
	__u32 zero;
	/* Two independent, uniform 32-bit numbers: the upper half chooses the cluster, the lower half the endpoint. */
	__u64 random;
};

/* No cluster was chosen, or the chosen one does not exist. */
#define STORE_NO_CLUSTER 0xffffffff

struct answer {
	struct address endpoint;
	__u32 cluster;         /* its number, stable while the cluster exists; also set if it has no endpoint (REFUSE) */
	__u32 max_connections; /* of the cluster; 0: no limit */
	__u32 verdict;         /* set by the caller of store_find */
	__u64 generation;      /* of the configuration; 0 if the store has no generations */
};

#endif
