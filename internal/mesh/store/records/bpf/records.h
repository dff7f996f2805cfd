/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The record tree, for programs: messages as large as their protobuf-c structs, with keys of records in place of
 * pointers. Package records writes and describes it. A design's header must define, before it includes this one:
 *
 *	REC_SLOTS                    the maximum number of elements in a repeated field
 *	REC_LISTENERS, REC_CLUSTERS  the maps in which trees begin
 *	REC_MESSAGE(key), REC_STRING(key), REC_REPEATED(key)
 *	                             the record of that class; NULL if there is none, and for key 0
 *
 * The first 24 bytes of a message are protobuf-c's header in Kmesh. Programs do not need that header, so these bytes
 * hold the data that programs need and Kmesh has no field for.
 */
#ifndef TARE_RECORDS_H
#define TARE_RECORDS_H

/*
 * Replaces a pointer of 8 bytes in protobuf-c. In repeated fields from which programs choose by weight, upto is the sum
 * of the weights up to and including this element's.
 */
struct rec_slot {
	__u32 key;
	__u32 upto;
};

struct rec_slots {
	struct rec_slot slot[REC_SLOTS];
};

struct rec_string {
	char text[192];
};

/* An address; also the key of a listener. */
struct rec_address {
	__u32 ip[4]; /* network byte order; IPv4 is mapped */
	__u64 zero;
	__u32 protocol;
	__u32 port; /* host byte order */
	__u32 ipv4; /* a field of Kmesh's, which programs do not use */
	__u32 zero2;
};

struct rec_listener {
	__u32 first; /* 1 + the index of the chain that takes every connection; 0: the rules decide */
	__u32 rules_n;
	struct rec_slot rules;
	__u64 zero;
	struct rec_slot name;
	struct rec_slot address;
	__u64 chains_n;
	struct rec_slot chains;
	__u64 status;
};

/* Programs use the first rule that matches. */
struct rec_rule {
	__u32 source[4];
	__u32 destination[4];
	__u16 source_from, source_to; /* host byte order, inclusive; 0 to 0 is any */
	__u16 destination_from, destination_to;
	__u8 source_bits, destination_bits; /* of 128 */
	__u8 flags;
	__u8 zero;
	__u32 chain; /* 1 + the chain's index; 0: denied */
	__u32 zero2[4];
};

enum {
	REC_SOURCE = 1,       /* a source prefix is given */
	REC_DESTINATION = 2,
	REC_SOURCE_V6 = 4,    /* the prefix is IPv6, and contains no IPv4 address */
	REC_DESTINATION_V6 = 8,
};

#define REC_RULES 32 /* mesh.MaxRules */

struct rec_chain {
	__u64 base[3];
	struct rec_slot match;
	__u64 filters_n;
	struct rec_slot filters;
	struct rec_slot name;
};

struct rec_filter {
	__u64 base[3];
	struct rec_slot name;
	__u32 which; /* field number of config's type: 2 is tcp_proxy */
	__u32 zero;
	struct rec_slot config;
};

enum { REC_CLUSTER = 2, REC_WEIGHTED = 10 };

struct rec_proxy {
	__u64 base[3];
	struct rec_slot stat_prefix;
	__u32 attempts;
	/* REC_CLUSTER: cluster is a name; REC_WEIGHTED: it is a struct rec_weighted; 0: there is no cluster */
	__u32 which;
	struct rec_slot cluster;
};

struct rec_weighted {
	__u64 base[3];
	__u64 clusters_n;
	struct rec_slot clusters;
};

struct rec_cluster_weight {
	__u64 base[3];
	struct rec_slot name;
	__u32 weight;
	__u32 zero;
};

struct rec_cluster {
	__u32 id;
	__u32 zero[5];
	struct rec_slot name;
	__u32 connect_timeout; /* ms */
	__u32 policy;
	struct rec_slot breakers;
	struct rec_slot assignment;
	__u64 status;
};

struct rec_breakers {
	__u64 base[3];
	__u32 priority;
	__u32 max_connections;
	__u32 max_pending;
	__u32 max_requests;
	__u32 max_retries;
	__u32 max_pools;
};

struct rec_assignment {
	__u64 base[3];
	struct rec_slot name;
	__u64 localities_n;
	struct rec_slot localities;
};

struct rec_locality {
	__u64 base[3];
	__u64 endpoints_n;
	struct rec_slot endpoints;
	__u32 weight;
	__u32 priority;
	__u32 connections;
	__u32 zero;
};

struct rec_endpoint {
	__u64 base[3];
	struct rec_slot address;
};

/* Package records contains the offsets of the fields of these structs. */
_Static_assert(sizeof(struct rec_listener) == 64 && sizeof(struct rec_cluster) == 64 && sizeof(struct rec_rule) == 64,
	"of 64 bytes");
_Static_assert(sizeof(struct rec_address) == 40 && sizeof(struct rec_string) == 192, "as in the keys");
_Static_assert(sizeof(struct rec_chain) == 56 && sizeof(struct rec_filter) == 48 && sizeof(struct rec_proxy) == 48 &&
	sizeof(struct rec_locality) == 56 && sizeof(struct rec_breakers) == 48 && sizeof(struct rec_assignment) == 48,
	"as their structs in protobuf-c");

static __always_inline bool rec_within(const __u32 *ip, const __u32 *prefix, __u32 bits)
{
#pragma unroll
	for (__u32 i = 0; i < 4; i++) {
		__u32 mask;

		if (bits <= 32 * i)
			return true;
		mask = bits >= 32 * (i + 1) ? ~0U : ~0U << ((32 - (bits & 31)) & 31);
		if ((ip[i] ^ prefix[i]) & bpf_htonl(mask))
			return false;
	}
	return true;
}

/*
 * Whether a rule matches a connection. This and rec_pick are global functions, which the verifier checks once each. If
 * they were inlined, there would be more paths through the program than it accepts.
 */
__attribute__((noinline)) int rec_matches(const struct rec_rule *r, const struct question *q)
{
	__u16 from, to;
	__u8 flags;

	if (!r || !q)
		return false;
	from = bpf_ntohs(q->from.port);
	to = bpf_ntohs(q->to.port);
	flags = r->flags;
	if ((r->source_from || r->source_to) && (from < r->source_from || from > r->source_to))
		return false;
	if ((r->destination_from || r->destination_to) && (to < r->destination_from || to > r->destination_to))
		return false;
	if (flags & REC_SOURCE) {
		if (!(q->from.ip[0] | q->from.ip[1] | q->from.ip[2] | q->from.ip[3]))
			return false; /* not known yet */
		if ((flags & REC_SOURCE_V6) && is_ipv4(q->from.ip))
			return false;
		if (!rec_within(q->from.ip, r->source, r->source_bits))
			return false;
	}
	if (flags & REC_DESTINATION) {
		if ((flags & REC_DESTINATION_V6) && is_ipv4(q->to.ip))
			return false;
		if (!rec_within(q->to.ip, r->destination, r->destination_bits))
			return false;
	}
	return true;
}

/* Sets *chain to 1 + the index of the chain of the first rule that matches. */
static __always_inline enum verdict rec_chain_of(const struct rec_listener *l, const struct question *q, __u32 *chain)
{
	struct rec_slots *rules = REC_REPEATED(l->rules.key);

	if (!rules)
		return REFUSE;
	for (__u32 i = 0; i < REC_RULES; i++) {
		struct rec_rule *r;

		if (i >= l->rules_n)
			break;
		r = REC_MESSAGE(rules->slot[i].key);
		if (!r)
			break;
		if (rec_matches(r, q)) {
			*chain = r->chain;
			return *chain ? ACCEPT : DENY;
		}
	}
	return REFUSE;
}

/*
 * Makes the compiler compare and use the same copy of an index; before Linux 6.2, verifiers cannot relate two copies.
 */
#define rec_only(i) asm volatile("" : "+r"(i))

static __always_inline __u32 rec_upto(const struct rec_slots *slots, __u64 i)
{
	rec_only(i);
	return i < REC_SLOTS ? slots->slot[i].upto : 0;
}

static __always_inline __u32 rec_key_of(const struct rec_slots *slots, __u64 i)
{
	rec_only(i);
	return i < REC_SLOTS ? slots->slot[i].key : 0;
}

/*
 * Chooses by weight: a binary search for the first of n slots whose upto is above point. Returns the slot's index, or
 * at least REC_SLOTS if there is none.
 */
__attribute__((noinline)) __u32 rec_pick(const struct rec_slots *slots, __u32 n, __u32 point)
{
	__u32 at = 0;

	if (!slots)
		return REC_SLOTS;
#pragma unroll
	for (__u32 step = 128; step; step >>= 1) {
		__u32 i = at + step - 1;

		if (i < n && i < REC_SLOTS && rec_upto(slots, i) <= point)
			at += step;
	}
	return at < n ? at : REC_SLOTS;
}

/* Maps a random number to a point in a repeated field, below the sum of all weights. */
static __always_inline __u32 rec_point(const struct rec_slots *slots, __u32 n, __u32 random)
{
	return (__u64)random * rec_upto(slots, n - 1) >> 32;
}

/* The name of the cluster to which a chain's connection goes. */
static __always_inline struct rec_string *rec_cluster_name(const struct rec_chain *c, __u32 random)
{
	struct rec_cluster_weight *one;
	struct rec_weighted *weighted;
	struct rec_filter *filter;
	struct rec_proxy *proxy;
	struct rec_slots *slots;
	__u32 n, at;

	slots = REC_REPEATED(c->filters.key);
	if (!slots)
		return NULL;
	filter = REC_MESSAGE(slots->slot[0].key);
	if (!filter)
		return NULL;
	proxy = REC_MESSAGE(filter->config.key);
	if (!proxy)
		return NULL;
	if (proxy->which == REC_CLUSTER)
		return REC_STRING(proxy->cluster.key);
	if (proxy->which != REC_WEIGHTED)
		return NULL;
	weighted = REC_MESSAGE(proxy->cluster.key);
	if (!weighted)
		return NULL;
	slots = REC_REPEATED(weighted->clusters.key);
	if (!slots)
		return NULL;
	n = weighted->clusters_n;
	at = rec_pick(slots, n, rec_point(slots, n, random));
	one = REC_MESSAGE(rec_key_of(slots, at));
	if (!one)
		return NULL;
	return REC_STRING(one->name.key);
}

static __always_inline enum verdict rec_endpoint_of(const struct rec_cluster *c, __u32 random, struct answer *a)
{
	struct rec_assignment *assignment;
	struct rec_locality *locality;
	struct rec_endpoint *endpoint;
	struct rec_breakers *breakers;
	struct rec_address *address;
	struct rec_slots *slots;
	__u32 n, point, at;

	a->cluster = c->id;
	assignment = REC_MESSAGE(c->assignment.key);
	if (!assignment)
		return REFUSE;
	slots = REC_REPEATED(assignment->localities.key);
	if (!slots)
		return REFUSE;
	n = assignment->localities_n;
	point = rec_point(slots, n, random);
	at = rec_pick(slots, n, point);
	if (at > 0)
		point -= rec_upto(slots, at - 1); /* what is left chooses inside the locality */
	locality = REC_MESSAGE(rec_key_of(slots, at));
	if (!locality)
		return REFUSE;
	slots = REC_REPEATED(locality->endpoints.key);
	if (!slots)
		return REFUSE;
	at = rec_pick(slots, locality->endpoints_n, point);
	endpoint = REC_MESSAGE(rec_key_of(slots, at));
	if (!endpoint)
		return REFUSE;
	address = REC_MESSAGE(endpoint->address.key);
	if (!address)
		return REFUSE;
	__builtin_memcpy(a->endpoint.ip, address->ip, sizeof(a->endpoint.ip));
	a->endpoint.port = bpf_htons(address->port);
	breakers = REC_MESSAGE(c->breakers.key);
	if (breakers)
		a->max_connections = breakers->max_connections;
	return ACCEPT;
}

/* A missing record means that the configuration is being replaced: the connection is refused. */
static __always_inline enum verdict store_find(const struct question *q, struct answer *a)
{
	struct rec_address key = {};
	struct rec_listener *listener;
	struct rec_cluster *cluster;
	struct rec_string *name;
	struct rec_slots *chains;
	struct rec_chain *chain;
	enum verdict verdict;
	__u32 index;

	a->cluster = STORE_NO_CLUSTER;
	__builtin_memcpy(key.ip, q->to.ip, sizeof(key.ip));
	key.port = bpf_ntohs(q->to.port);
	key.protocol = q->protocol;
	listener = bpf_map_lookup_elem(&REC_LISTENERS, &key);
	if (!listener) {
		/* the unspecified address of the family */
		if (!is_ipv4(key.ip))
			key.ip[2] = 0;
		key.ip[0] = key.ip[1] = key.ip[3] = 0;
		listener = bpf_map_lookup_elem(&REC_LISTENERS, &key);
		if (!listener)
			return PASS;
	}
	index = listener->first;
	if (!index) {
		verdict = rec_chain_of(listener, q, &index);
		if (verdict != ACCEPT)
			return verdict;
	}
	chains = REC_REPEATED(listener->chains.key);
	if (!chains)
		return REFUSE;
	chain = REC_MESSAGE(rec_key_of(chains, index - 1));
	if (!chain)
		return REFUSE;
	name = rec_cluster_name(chain, q->random >> 32);
	if (!name)
		return REFUSE;
	cluster = bpf_map_lookup_elem(&REC_CLUSTERS, name);
	if (!cluster)
		return REFUSE;
	return rec_endpoint_of(cluster, q->random, a);
}

#endif
