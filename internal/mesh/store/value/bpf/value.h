/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The store value: one map value for each cluster and for each listener, written by one system call.
 *
 * Values are not in hashes, by name or address, because a hash may reuse the memory of a replaced element while a
 * program still reads it: TestTorn sees mixtures of values in both kinds of hashes on Linux 6.1, and on 6.18 in
 * preallocated ones. So values are in arrays, whose elements never move, and the kernel replaces a value under the lock
 * in it (BPF_F_LOCK), which readers take as well. A slot of an array can be given to another resource; each value
 * therefore names its owner, and a reader that finds a different owner looks again.
 */
#ifndef TARE_VALUE_H
#define TARE_VALUE_H

#include "store.h"

/* Limits by size class: endpoints of a cluster; rules and choices of a listener. */
#define VALUE_SMALL_ENDPOINTS 16
#define VALUE_MEDIUM_ENDPOINTS 64
#define VALUE_LARGE_ENDPOINTS 1024
#define VALUE_SHORT_RULES 4
#define VALUE_SHORT_CHOICES 8
#define VALUE_LONG_RULES 32
#define VALUE_LONG_CHOICES 64

#define VALUE_CLASS(word) ((__u32)(word) >> 28)
#define VALUE_SLOT(word) ((__u32)(word)&0xfffffff)

/*
 * An entry of an alias table (Walker, Vose), which chooses by weight in constant time: a uniform choice of an index,
 * then one comparison.
 */
struct value_endpoint {
	__u32 ip[4];
	__u16 port;
	__u16 alias;
	__u32 threshold; /* of 2^32: below it the choice is this entry, otherwise alias */
};

struct value_choice {
	__u32 cluster;
	__u32 epoch; /* changes when the cluster's number is given to another cluster */
	__u32 alias;
	__u32 threshold;
};

struct value_rule {
	__u32 source[4], source_mask[4];
	__u32 destination[4], destination_mask[4];
	__u16 source_port, source_ports; /* the first port, and the number of further ones; host byte order */
	__u16 destination_port, destination_ports;
	__u8 families; /* VALUE_SOURCE_6, VALUE_DESTINATION_6 */
	__u8 verdict;
	__u8 first, count; /* choices */
	__u32 zero;
};

/* An IPv6 prefix matches no IPv4-mapped address; as a source, it does not match an unknown one either. */
#define VALUE_SOURCE_6 1
#define VALUE_DESTINATION_6 2

struct value_key {
	struct address address; /* for any address of a family, the family's unspecified address */
	__u32 protocol;
};

#define VALUE_CLUSTER(class, n)                          \
	struct value_of_##class {                        \
		struct bpf_spin_lock lock;               \
		__u32 cluster;                           \
		__u32 epoch;                             \
		__u32 count; /* of endpoints */          \
		__u32 max_connections;                   \
		__u32 zero;                              \
		struct value_endpoint endpoints[n];      \
	};                                               \
	struct {                                         \
		__uint(type, BPF_MAP_TYPE_ARRAY);        \
		__uint(max_entries, 1);                  \
		__type(key, __u32);                      \
		__type(value, struct value_of_##class);  \
	} value_##class SEC(".maps")

#define VALUE_LISTENER(class, n_rules, n_choices)        \
	struct value_of_##class {                        \
		struct bpf_spin_lock lock;               \
		struct value_key key;                    \
		__u32 count; /* of rules */              \
		struct value_rule rules[n_rules];        \
		struct value_choice choices[n_choices];  \
	};                                               \
	struct {                                         \
		__uint(type, BPF_MAP_TYPE_ARRAY);        \
		__uint(max_entries, 1);                  \
		__type(key, __u32);                      \
		__type(value, struct value_of_##class);  \
	} value_##class SEC(".maps")

/* Where max_entries is 1, the loader sets another value. */
VALUE_CLUSTER(small, VALUE_SMALL_ENDPOINTS);
VALUE_CLUSTER(medium, VALUE_MEDIUM_ENDPOINTS);
VALUE_CLUSTER(large, VALUE_LARGE_ENDPOINTS);
VALUE_LISTENER(short, VALUE_SHORT_RULES, VALUE_SHORT_CHOICES);
VALUE_LISTENER(long, VALUE_LONG_RULES, VALUE_LONG_CHOICES);

/*
 * Where a listener is: its class (0 short, 1 long) in bits 28-31, and its slot below. It is only a hint, which the
 * reader checks against the value.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct value_key);
	__type(value, __u32);
} value_keys SEC(".maps");

/*
 * Where a cluster is, by its number: class + 1 in bits 28-31, slot below; 1: the cluster has no endpoints; 0: it does
 * not exist. No cluster has number 0; its element counts the listeners for any address.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} value_places SEC(".maps");

#define VALUE_STALE (-1) /* the value belongs to another resource: look again */

/* Reads a word exactly once: the compiler must not read it again, or with a different width, after it was checked. */
#define value_once(x) (*(volatile typeof(x) *)&(x))

static __always_inline bool value_is4(const struct address *a)
{
	return !a->ip[0] && !a->ip[1] && a->ip[2] == bpf_htonl(0xffff);
}

static __always_inline bool value_matches(const struct value_rule *r, const struct question *q, __u32 families,
	__u16 from, __u16 to)
{
	__u32 differ = (__u32)r->families & families;

#pragma unroll
	for (int i = 0; i < 4; i++)
		differ |= ((q->from.ip[i] ^ r->source[i]) & r->source_mask[i]) |
			((q->to.ip[i] ^ r->destination[i]) & r->destination_mask[i]);
	return !differ && (__u16)(from - r->source_port) <= r->source_ports &&
		(__u16)(to - r->destination_port) <= r->destination_ports;
}

/*
 * Finds the first rule that matches, and chooses a cluster by the upper half of the random number. For short listeners
 * it is inlined. For long ones it is a global function, as value_try is, which the verifier checks once, however many
 * paths lead to it.
 */
#define VALUE_ROUTE(linkage, class, n_rules, n_choices)                                                             \
	linkage int value_route_##class(__u32 slot, const struct value_key *key, const struct question *q, __u32 families,\
					struct value_choice *out)                                                   \
	{                                                                                                           \
		struct value_of_##class *v = bpf_map_lookup_elem(&value_##class, &slot);                            \
		int verdict = REFUSE;                                                                               \
		__u16 from, to;                                                                                     \
                                                                                                                    \
		if (!v || !key || !q || !out)                                                                       \
			return VALUE_STALE;                                                                         \
		from = bpf_ntohs(q->from.port);                                                                     \
		to = bpf_ntohs(q->to.port);                                                                         \
		bpf_spin_lock(&v->lock);                                                                            \
		if ((v->key.address.ip[0] ^ key->address.ip[0]) | (v->key.address.ip[1] ^ key->address.ip[1]) |     \
		    (v->key.address.ip[2] ^ key->address.ip[2]) | (v->key.address.ip[3] ^ key->address.ip[3]) |     \
		    (v->key.address.port ^ key->address.port) | (v->key.protocol ^ key->protocol)) {                \
			bpf_spin_unlock(&v->lock);                                                                  \
			return VALUE_STALE;                                                                         \
		}                                                                                                   \
		for (__u32 i = 0; i < n_rules; i++) {                                                               \
			struct value_rule *r = &v->rules[i];                                                        \
                                                                                                                    \
			if (i >= v->count)                                                                          \
				break;                                                                              \
			if (!value_matches(r, q, families, from, to))                                               \
				continue;                                                                           \
			verdict = r->verdict;                                                                       \
			if (verdict == ACCEPT) {                                                                    \
				__u64 x = (q->random >> 32) * r->count;                                             \
				__u32 at = r->first + (__u32)(x >> 32);                                             \
                                                                                                                    \
				asm volatile("" : "+r"(at));                                                        \
				if (at >= n_choices)                                                                \
					break;                                                                      \
				if ((__u32)x >= v->choices[at].threshold) {                                         \
					at = v->choices[at].alias;                                                  \
					asm volatile("" : "+r"(at));                                                \
					if (at >= n_choices)                                                        \
						break;                                                              \
				}                                                                                   \
				out->cluster = v->choices[at].cluster;                                              \
				out->epoch = v->choices[at].epoch;                                                  \
			}                                                                                           \
			break;                                                                                      \
		}                                                                                                   \
		bpf_spin_unlock(&v->lock);                                                                          \
		return verdict;                                                                                     \
	}

/* Chooses an endpoint by the lower half of the random number. */
#define VALUE_CHOOSE(class, n)                                                                                      \
	static __always_inline int value_choose_##class(__u32 slot, const struct value_choice *from, __u32 random,  \
							struct answer *a)                                           \
	{                                                                                                           \
		struct value_of_##class *v = bpf_map_lookup_elem(&value_##class, &slot);                               \
		__u32 at;                                                                                           \
		__u64 x;                                                                                            \
                                                                                                                    \
		if (!v)                                                                                             \
			return VALUE_STALE;                                                                         \
		bpf_spin_lock(&v->lock);                                                                            \
		if (v->cluster != from->cluster || v->epoch != from->epoch)                                         \
			goto stale;                                                                                 \
		x = (__u64)random * v->count;                                                                       \
		at = x >> 32;                                                                                       \
		asm volatile("" : "+r"(at));                                                                        \
		if (at >= n)                                                                                        \
			goto stale;                                                                                 \
		if ((__u32)x >= v->endpoints[at].threshold) {                                                       \
			at = v->endpoints[at].alias;                                                                \
			asm volatile("" : "+r"(at));                                                                \
			if (at >= n)                                                                                \
				goto stale;                                                                         \
		}                                                                                                   \
		a->endpoint.ip[0] = v->endpoints[at].ip[0];                                                         \
		a->endpoint.ip[1] = v->endpoints[at].ip[1];                                                         \
		a->endpoint.ip[2] = v->endpoints[at].ip[2];                                                         \
		a->endpoint.ip[3] = v->endpoints[at].ip[3];                                                         \
		a->endpoint.port = v->endpoints[at].port;                                                           \
		a->endpoint.zero = 0;                                                                               \
		a->max_connections = v->max_connections;                                                            \
		bpf_spin_unlock(&v->lock);                                                                          \
		a->cluster = from->cluster;                                                                         \
		a->generation = 0;                                                                                  \
		return ACCEPT;                                                                                      \
	stale:                                                                                                      \
		bpf_spin_unlock(&v->lock);                                                                          \
		return VALUE_STALE;                                                                                 \
	}

VALUE_ROUTE(static __always_inline, short, VALUE_SHORT_RULES, VALUE_SHORT_CHOICES)
VALUE_ROUTE(__attribute__((noinline)), long, VALUE_LONG_RULES, VALUE_LONG_CHOICES)
VALUE_CHOOSE(small, VALUE_SMALL_ENDPOINTS)
VALUE_CHOOSE(medium, VALUE_MEDIUM_ENDPOINTS)
VALUE_CHOOSE(large, VALUE_LARGE_ENDPOINTS)

__attribute__((noinline)) int value_try(const struct question *q, __u32 families, struct answer *a)
{
	struct value_choice choice = {};
	__u32 zero = 0, *where;
	struct value_key key;
	__u64 *place;
	__u32 word;
	int verdict;

	if (!q || !a)
		return REFUSE;
	key = (struct value_key){ .address = q->to, .protocol = q->protocol };
	where = bpf_map_lookup_elem(&value_keys, &key);
	if (!where) {
		place = bpf_map_lookup_elem(&value_places, &zero);
		if (!place || !*place)
			return PASS;
		key.address.ip[3] = 0;
		if (!value_is4(&q->to))
			key.address.ip[0] = key.address.ip[1] = key.address.ip[2] = 0;
		where = bpf_map_lookup_elem(&value_keys, &key);
		if (!where)
			return PASS;
	}
	word = value_once(*where);
	if (VALUE_CLASS(word))
		verdict = value_route_long(VALUE_SLOT(word), &key, q, families, &choice);
	else
		verdict = value_route_short(VALUE_SLOT(word), &key, q, families, &choice);
	if (verdict != ACCEPT)
		return verdict;

	place = bpf_map_lookup_elem(&value_places, &choice.cluster);
	if (!place)
		return VALUE_STALE;
	word = value_once(*place);
	switch (VALUE_CLASS(word)) {
	case 0:
		if (word)
			a->cluster = choice.cluster;
		return REFUSE;
	case 1:
		return value_choose_small(VALUE_SLOT(word), &choice, q->random, a);
	case 2:
		return value_choose_medium(VALUE_SLOT(word), &choice, q->random, a);
	default:
		return value_choose_large(VALUE_SLOT(word), &choice, q->random, a);
	}
}

/*
 * A try finds the value of another resource only if a resource has moved between two reads; the next try finds the new
 * place. If three tries fail, the connection is refused: no answer is ever taken from an inconsistent configuration.
 */
static __always_inline enum verdict store_find(const struct question *q, struct answer *a)
{
	__u32 families = 0;
	int verdict;

	a->cluster = STORE_NO_CLUSTER;
	if (value_is4(&q->to))
		families |= VALUE_DESTINATION_6;
	if (value_is4(&q->from) || !(q->from.ip[0] | q->from.ip[1] | q->from.ip[2] | q->from.ip[3]))
		families |= VALUE_SOURCE_6;
	for (int i = 0; i < 3; i++) {
		verdict = value_try(q, families, a);
		if (verdict != VALUE_STALE)
			return verdict;
	}
	return REFUSE;
}

#endif
