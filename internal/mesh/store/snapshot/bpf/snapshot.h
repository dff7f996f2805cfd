/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The snapshot store: a whole configuration is a tree of lines of 64 bytes in one array; a line is both a map element
 * and a cache line. A tree that programs can see is never changed. Each change writes the new parts of the tree, with a
 * copy of the path to the root, into lines that no program can see, and then publishes the new tree with one 64-bit
 * store into line 0. Lines that are no longer in a tree are reused only after an RCU grace period, so a program that
 * reads the root once sees a consistent tree until it ends. (Sleepable programs run outside RCU read-side sections, and
 * cannot use this store. layout.go describes the writer's side.)
 *
 * Every index from a line goes through a lookup, which costs a comparison and an addition in the JIT's code, so that no
 * content of the map can lead a program astray.
 */
#ifndef TARE_STORE_SNAPSHOT_H
#define TARE_STORE_SNAPSHOT_H

#include "store.h"

struct ss_line {
	__u32 w[16];
};

/* The loader sets max_entries. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct ss_line);
} ss_lines SEC(".maps");

/* Line 0. Only the root changes. */
struct ss_super {
	/* bits 0-23: the root's first line; 24, 25: listeners for any IPv4, any IPv6 address exist; above: generation */
	__u64 root;
	__u64 seed; /* of the hash */
	__u32 mask; /* of buckets */
	__u32 listeners; /* lines from the root to its directory of listeners; its directory of clusters is at line 1 */
};

#define SS_ROOT_BITS 24
#define SS_ANY4 (1 << 24)
#define SS_ANY6 (1 << 25)
#define SS_GENERATION 26

/* A bucket: up to 7 listeners, and the line of the next bucket. Unused entries have line 0. */
#define SS_BUCKET 7
#define SS_BUCKET_LINES 4

struct ss_bucket {
	struct {
		__u32 line;
		__u32 tag;
	} entry[SS_BUCKET];
	__u32 more;
	__u32 zero;
};

/*
 * The destination of a connection: none, or the cluster in a slot, or a cluster chosen from the table that begins
 * `where` lines after the listener's first line.
 */
struct ss_target {
	__u32 count; /* 0: refused, 1: a slot, SS_DENY: denied; else the size of the table */
	__u32 where;
};

#define SS_DENY 0xffffffff

struct ss_key {
	__u32 ip[4];
	__u32 port; /* network byte order; the protocol is in the upper half */
};

/* The first line of a listener. The lines after it are its rules. */
struct ss_listener {
	struct ss_key key;
	__u32 rules;
	struct ss_target target; /* for connections that no rule matches */
};

#define SS_RULES 32

/*
 * Prefixes are two numbers, the upper half first, with IPv4 mapped to IPv6. For each half, rest is the number of low
 * bits to ignore, so no prefix is 64 and 64. This form takes few branches to match: the verifier checks all paths
 * through 32 rules.
 */
struct ss_rule {
	__u64 source[2];
	__u64 destination[2];
	__u8 source_rest[2], destination_rest[2];
	__u16 source_port, source_ports; /* the first port, and the number of further ones; host byte order */
	__u16 destination_port, destination_ports;
	struct ss_target target;
	__u32 families; /* SS_SOURCE_6, SS_DESTINATION_6 */
};

/* An IPv6 prefix matches no IPv4-mapped address; as a source, it does not match an unknown one either. */
#define SS_SOURCE_6 1
#define SS_DESTINATION_6 2

/*
 * An entry of an alias table, which chooses by weight in constant time: a uniform choice of an entry, then a comparison
 * of a number below 2^32. Below threshold the result is own, otherwise other.
 */
struct ss_share {
	__u32 threshold;
	__u32 own, other; /* slots of clusters */
	__u32 zero;
};

/* The first half line of a cluster. Its endpoints follow. */
struct ss_cluster {
	__u32 id; /* STORE_NO_CLUSTER if listeners name the cluster and it does not exist */
	__u32 max_connections;
	__u32 count;
	__u32 form; /* 0: endpoints are ss_endpoint4, 1: ss_endpoint6 */
};

struct ss_endpoint4 {
	__u32 threshold;
	__u32 own_ip, other_ip;
	__u16 own_port, other_port;
};

struct ss_endpoint6 {
	__u32 ip[4];
	__u32 port;
	__u32 threshold;
	__u32 other; /* index of an entry */
	__u32 zero;
};

/* Tests make programs pause between reading the root and following it. */
#ifndef SS_PAUSE
#define SS_PAUSE()
#endif

static __always_inline void *ss_at(__u32 line)
{
	return bpf_map_lookup_elem(&ss_lines, &line);
}

static __always_inline __u64 ss_stir(__u64 hash, __u64 with)
{
	hash = (hash ^ with) * 0x9e3779b97f4a7c15ULL;
	return hash ^ hash >> 32;
}

/* The line of the listener with this address, or 0. */
static __always_inline __u32 ss_search(__u32 directory, __u64 seed, __u32 mask, const struct ss_key *key)
{
	__u64 hash = ss_stir(ss_stir(seed, key->ip[0] | (__u64)key->ip[1] << 32), key->ip[2] | (__u64)key->ip[3] << 32);
	__u32 bucket, tag, line;
	struct ss_line *l;
	__u64 i, j; /* the verifier follows 64-bit counters through the stack */

	hash = ss_stir(ss_stir(hash, key->port), 0);
	bucket = hash & mask;
	tag = hash >> 32;
	l = ss_at(directory + (bucket >> 9));
	if (!l)
		return 0;
	line = l->w[bucket >> 5 & 15];
	if (!line)
		return 0;
	l = ss_at(line + (bucket >> 4 & 1));
	if (!l)
		return 0;
	line = l->w[bucket & 15];
	if (!line)
		return 0;
#pragma clang loop unroll(disable)
	for (i = 0; i < SS_BUCKET_LINES; i++) {
		struct ss_bucket *b = ss_at(line);

		if (!b)
			return 0;
#pragma clang loop unroll(disable)
		for (j = 0; j < SS_BUCKET; j++) {
			__u32 found = b->entry[j].line;
			struct ss_listener *at;

			if (!found)
				return 0;
			if (b->entry[j].tag != tag)
				continue;
			at = ss_at(found);
			if (!at)
				return 0;
			if (!((at->key.ip[3] ^ key->ip[3]) | (at->key.ip[2] ^ key->ip[2]) | (at->key.ip[1] ^ key->ip[1]) |
			      (at->key.ip[0] ^ key->ip[0]) | (at->key.port ^ key->port)))
				return found;
		}
		line = b->more;
		if (!line)
			return 0;
	}
	return 0;
}

/*
 * ss_search for an unspecified address, which few connections need. This and ss_rule are global functions, which the
 * verifier checks once each, however many paths lead to them. It also checks the code after a call only once, because
 * it knows nothing about the result.
 */
__attribute__((noinline)) __u32 ss_search_any(const struct ss_key *key, __u32 directory, __u64 seed, __u32 mask)
{
	return key ? ss_search(directory, seed, mask, key) : 0;
}

struct ss_address {
	__u64 half[2];
};

static __always_inline struct ss_address ss_read(const struct address *from)
{
	return (struct ss_address){ { (__u64)bpf_ntohl(from->ip[0]) << 32 | bpf_ntohl(from->ip[1]),
		(__u64)bpf_ntohl(from->ip[2]) << 32 | bpf_ntohl(from->ip[3]) } };
}

/* The bits in which an address differs from a prefix. */
static __always_inline __u64 ss_outside(const struct ss_address *a, const __u64 *prefix, const __u8 *rest)
{
	/* Shift in two steps, because a shift by 64 would be a shift by 0. */
	return (a->half[0] ^ prefix[0]) >> (rest[0] >> 1) >> (rest[0] - (rest[0] >> 1)) |
	       (a->half[1] ^ prefix[1]) >> (rest[1] >> 1) >> (rest[1] - (rest[1] >> 1));
}

/* The line of the first matching rule, of those that begin at a line, or 0. */
__attribute__((noinline)) __u32 ss_rule(const struct question *q, __u32 line, __u32 rules)
{
	struct ss_address source, destination;
	__u16 source_port, destination_port;
	__u32 families = 0;
	__u64 i;

	if (!q)
		return 0;
	source_port = bpf_ntohs(q->from.port);
	destination_port = bpf_ntohs(q->to.port);
	source = ss_read(&q->from);
	destination = ss_read(&q->to);
	if (!source.half[0] && (!source.half[1] || source.half[1] >> 32 == 0xffff))
		families |= SS_SOURCE_6;
	if (!destination.half[0] && destination.half[1] >> 32 == 0xffff)
		families |= SS_DESTINATION_6;
#pragma clang loop unroll(disable)
	for (i = 0; i < SS_RULES; i++) {
		struct ss_rule *r;

		if (i >= rules)
			return 0;
		r = ss_at(line + i);
		if (!r)
			return 0;
		if ((__u16)(source_port - r->source_port) > r->source_ports ||
			(__u16)(destination_port - r->destination_port) > r->destination_ports)
			continue;
		if (!((r->families & families) | ss_outside(&destination, r->destination, r->destination_rest) |
		      ss_outside(&source, r->source, r->source_rest)))
			return line + i;
	}
	return 0;
}

static __always_inline enum verdict ss_endpoint(__u32 line, __u32 random, struct answer *a)
{
	struct ss_cluster *c = ss_at(line);
	__u64 choice;
	__u32 at, form;

	if (!c)
		return REFUSE;
	a->cluster = c->id;
	a->max_connections = c->max_connections;
	if (!c->count)
		return REFUSE;
	a->endpoint.zero = 0;
	choice = (__u64)random * c->count;
	at = choice >> 32;
	form = c->form;
	if (!form) {
		struct ss_endpoint4 *e = ss_at(line + ((at + 2) >> 2));

		if (!e)
			return REFUSE;
		e += (at + 2) & 3;
		a->endpoint.ip[0] = 0;
		a->endpoint.ip[1] = 0;
		a->endpoint.ip[2] = bpf_htonl(0xffff);
		if ((__u32)choice < e->threshold) {
			a->endpoint.ip[3] = e->own_ip;
			a->endpoint.port = e->own_port;
		} else {
			a->endpoint.ip[3] = e->other_ip;
			a->endpoint.port = e->other_port;
		}
	} else {
		struct ss_endpoint6 *e = ss_at(line + ((at + 1) >> 1));

		if (!e)
			return REFUSE;
		e += (at + 1) & 1;
		if ((__u32)choice >= e->threshold) {
			at = e->other;
			e = ss_at(line + ((at + 1) >> 1));
			if (!e)
				return REFUSE;
			e += (at + 1) & 1;
		}
		copy_ip(a->endpoint.ip, e->ip);
		a->endpoint.port = e->port;
	}
	return ACCEPT;
}

static __always_inline enum verdict store_find(const struct question *q, struct answer *a)
{
	struct ss_key key = { .port = q->to.port | q->protocol << 16 };
	struct ss_super *super = ss_at(0);
	__u32 root, line, slot, mask, directory;
	struct ss_target target;
	struct ss_listener *l;
	struct ss_line *n;
	__u64 word, seed;

	a->cluster = STORE_NO_CLUSTER;
	if (!super)
		return PASS;
	word = *(volatile __u64 *)&super->root; /* once: all else follows from it */
	root = word & ((1 << SS_ROOT_BITS) - 1);
	if (!root)
		return PASS;
	SS_PAUSE();
	seed = super->seed;
	mask = super->mask;
	directory = root + super->listeners;

	copy_ip(key.ip, q->to.ip);
	line = ss_search(directory, seed, mask, &key);
	if (!line && word & (SS_ANY4 | SS_ANY6)) {
		bool four = is_ipv4(key.ip);

		if (!(word & (four ? SS_ANY4 : SS_ANY6)))
			return PASS;
		key.ip[0] = 0;
		key.ip[1] = 0;
		key.ip[2] = four ? bpf_htonl(0xffff) : 0;
		key.ip[3] = 0;
		line = ss_search_any(&key, directory, seed, mask);
	}
	if (!line)
		return PASS;
	l = ss_at(line);
	if (!l)
		return PASS;
	target = l->target;
	if (l->rules) {
		__u32 matches = ss_rule(q, line + 1, l->rules);

		if (matches) {
			struct ss_rule *r = ss_at(matches);

			if (!r)
				return REFUSE;
			target = r->target;
		}
	}
	if (!target.count)
		return REFUSE;
	if (target.count == SS_DENY)
		return DENY;
	slot = target.where;
	if (target.count > 1) {
		__u64 choice = (q->random >> 32) * target.count;
		__u32 at = choice >> 32;
		struct ss_share *s = ss_at(line + target.where + (at >> 2));

		if (!s)
			return REFUSE;
		s += at & 3;
		slot = (__u32)choice < s->threshold ? s->own : s->other;
	}
	n = ss_at(root + 1 + (slot >> 13));
	if (!n)
		return REFUSE;
	line = n->w[slot >> 9 & 15];
	if (!line)
		return REFUSE;
	n = ss_at(line + (slot >> 8 & 1));
	if (!n)
		return REFUSE;
	line = n->w[slot >> 4 & 15];
	if (!line)
		return REFUSE;
	n = ss_at(line);
	if (!n)
		return REFUSE;
	line = n->w[slot & 15];
	if (!line)
		return REFUSE;
	a->generation = word >> SS_GENERATION;
	return ss_endpoint(line, (__u32)q->random, a);
}

#endif
