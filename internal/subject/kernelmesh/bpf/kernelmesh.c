// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * kernelmesh: a service mesh data plane in the kernel, at connection level.
 *
 * A service is an address that no machine has to own. When a process in the cgroup connects to one, the address in its connect() or
 * sendto() is replaced by that of an endpoint, before a route is looked up; from there on the connection is an ordinary one and no
 * packet pays anything. What does not name a service goes on untouched.
 *
 * Addresses are kept in one form, 16 bytes, IPv4 as IPv4-mapped IPv6 (::ffff:a.b.c.d), so that an IPv6 socket which talks IPv4 finds
 * the same services as an IPv4 socket.
 *
 * How user space changes a service under running programs (store.go): the value of km_services never changes while its key is there;
 * a table is replaced by one 64-bit store into km_tables; slots and endpoints are written before a table names them, and are written
 * again only after an RCU grace period since a table named them. Programs run inside one RCU read-side section (the kernel's
 * bpf_prog_run_array_cg), so one run sees one whole table.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

/* From headers that do not compile for BPF: errno-base.h, in.h, socket.h. */
#define ECONNREFUSED 111
#define IPPROTO_UDP 17

char LICENSE[] SEC("license") = "GPL";

/*
 * The planted weight: extra steps of work in each run of the two connect programs, and of the sockops program. Set at load time; at 0
 * the verifier removes the code.
 */
const volatile __u32 tare_steps = 0;
const volatile __u32 tare_sockops_steps = 0;

struct address {
	__u32 ip[4]; /* network byte order; IPv4-mapped for IPv4 */
	__u16 port;  /* network byte order */
	__u16 zero;
};

struct service_key {
	struct address address;
	__u32 protocol; /* IPPROTO_TCP, IPPROTO_UDP */
};

/*
 * One slot for each endpoint that takes traffic (an alias table after Walker and Vose): a uniform slot, then one comparison, is a choice
 * by weight in constant time.
 */
struct slot {
	__u32 threshold; /* of 2^32: below it own, else alias */
	__u32 own;       /* ids of endpoints */
	__u32 alias;
	__u32 zero;
};

struct endpoint {
	struct address address;
	__u32 epoch; /* changes when the id is given to another endpoint; 0 while no table names it */
};

/* Connections of one endpoint. Updated atomically: a connection opens on one CPU and closes on another. */
struct connections {
	__u64 opened;      /* first SYN sent */
	__u64 established;
	__u64 closed;      /* of the established ones */
	__u64 failed;      /* opened, never established */
};

struct service_counters {
	__u64 matched;
	__u64 no_endpoint;
};

struct program_counters {
	__u64 matched; /* acted on: address rewritten, connection counted */
	__u64 passed;  /* nothing matched; went on untouched */
	__u64 no_endpoint;
};

/* What a connected socket asked for, and what it got. Lives and dies with the socket. */
struct origin {
	struct address service;
	struct address endpoint;
	__u32 id;    /* of the endpoint */
	__u32 epoch; /* of the endpoint when it was chosen */
	__u32 state; /* what sockops has counted */
};

enum { CHOSEN, OPENED, ESTABLISHED, CLOSED };

#define FLOWS 8

/* One service that an unconnected UDP socket talks to: it stays with one endpoint, as with conntrack, until the service changes. */
struct flow {
	struct address service;
	struct address endpoint;
	__u64 table;
};

struct flows {
	struct bpf_spin_lock lock; /* sendmsg and recvmsg run without the socket's lock */
	__u32 next;
	struct flow flow[FLOWS];
};

enum program {
	CONNECT4,
	CONNECT6,
	SENDMSG4,
	SENDMSG6,
	RECVMSG4,
	RECVMSG6,
	GETPEERNAME4,
	GETPEERNAME6,
	SOCKOPS,
	PROGRAMS,
};

/* max_entries of 1 are set at load time. */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct service_key);
	__type(value, __u32); /* id of the service */
} km_services SEC(".maps");

/* By id of the service: first slot in bits 0-23, number of slots in 24-39, generation in 40-63. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} km_tables SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct slot);
} km_slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct endpoint);
} km_endpoints SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct connections);
} km_connections SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct service_counters);
} km_svc_counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, PROGRAMS);
	__type(key, __u32);
	__type(value, struct program_counters);
} km_prog_counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct origin);
} km_origins SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct flows);
} km_flows SEC(".maps");

/* One step: a xorshift, each depending on the one before. The helper call keeps both compiler and verifier from removing it. */
static long step(__u32 index, void *state)
{
	__u64 x = *(__u64 *)state;

	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	*(__u64 *)state = x;
	return 0;
}

static __always_inline void spend(__u32 steps)
{
	__u64 x = 88172645463325252ULL;

	if (steps)
		bpf_loop(steps, step, &x, 0);
}

static __always_inline void read4(struct bpf_sock_addr *ctx, struct address *a)
{
	a->ip[0] = 0;
	a->ip[1] = 0;
	a->ip[2] = bpf_htonl(0xffff);
	a->ip[3] = ctx->user_ip4;
	a->port = ctx->user_port;
	a->zero = 0;
}

static __always_inline void write4(struct bpf_sock_addr *ctx, const struct address *a)
{
	ctx->user_ip4 = a->ip[3];
	ctx->user_port = a->port;
}

static __always_inline void read6(struct bpf_sock_addr *ctx, struct address *a)
{
	a->ip[0] = ctx->user_ip6[0];
	a->ip[1] = ctx->user_ip6[1];
	a->ip[2] = ctx->user_ip6[2];
	a->ip[3] = ctx->user_ip6[3];
	a->port = ctx->user_port;
	a->zero = 0;
}

static __always_inline void write6(struct bpf_sock_addr *ctx, const struct address *a)
{
	ctx->user_ip6[0] = a->ip[0];
	ctx->user_ip6[1] = a->ip[1];
	ctx->user_ip6[2] = a->ip[2];
	ctx->user_ip6[3] = a->ip[3];
	ctx->user_port = a->port;
}

static __always_inline bool same(const struct address *a, const struct address *b)
{
	return a->ip[3] == b->ip[3] && a->port == b->port && a->ip[2] == b->ip[2] && a->ip[1] == b->ip[1] && a->ip[0] == b->ip[0];
}

enum verdict { PASS, REWRITE, REFUSE };

static __always_inline enum verdict count(enum program program, enum verdict verdict)
{
	__u32 key = program;
	struct program_counters *c = bpf_map_lookup_elem(&km_prog_counts, &key);

	if (c) {
		if (verdict == PASS)
			c->passed++;
		else if (verdict == REWRITE)
			c->matched++;
		else
			c->no_endpoint++;
	}
	return verdict;
}

/* A service as one run sees it. */
struct service {
	__u32 id;
	__u64 table;
};

static __always_inline bool find_service(const struct address *to, __u32 protocol, struct service *s)
{
	struct service_key key = {.address = *to, .protocol = protocol};
	__u32 *id = bpf_map_lookup_elem(&km_services, &key);
	__u64 *table;

	if (!id)
		return false;
	s->id = *id;
	table = bpf_map_lookup_elem(&km_tables, &s->id);
	if (!table)
		return false;
	s->table = *(volatile __u64 *)table; /* once: it may be replaced between two loads */
	return true;
}

static __always_inline void count_service(const struct service *s, bool chosen)
{
	struct service_counters *c = bpf_map_lookup_elem(&km_svc_counts, &s->id);

	if (!c)
		return;
	if (chosen)
		c->matched++;
	else
		c->no_endpoint++;
}

/*
 * Chooses an endpoint by weight. One random number serves both choices: times the number of slots, its upper half is the slot and its
 * lower half what is left over, uniform within the slot (to slots/2^32).
 */
static __always_inline struct endpoint *choose(const struct service *s, __u32 *id)
{
	__u32 slots = (s->table >> 24) & 0xffff;
	__u64 r = (__u64)bpf_get_prandom_u32() * slots;
	__u32 index = (s->table & 0xffffff) + (r >> 32);
	struct slot *slot;

	if (!slots)
		return NULL;
	slot = bpf_map_lookup_elem(&km_slots, &index);
	if (!slot)
		return NULL;
	*id = (__u32)r < slot->threshold ? slot->own : slot->alias;
	return bpf_map_lookup_elem(&km_endpoints, id);
}

/*
 * connect(): TCP, and UDP that connects. Replaces *to. What was asked for is kept with the socket, where getpeername, recvmsg and
 * sockops find it.
 */
static __always_inline enum verdict do_connect(struct bpf_sock_addr *ctx, struct address *to)
{
	struct origin *o;
	struct endpoint *e;
	struct service s;
	__u32 id;

	if (!find_service(to, ctx->protocol, &s)) {
		/* A socket may connect again, elsewhere: what it was before no longer holds. */
		if (bpf_sk_storage_get(&km_origins, ctx->sk, NULL, 0))
			bpf_sk_storage_delete(&km_origins, ctx->sk);
		return PASS;
	}
	e = choose(&s, &id);
	count_service(&s, e != NULL);
	if (!e) {
		bpf_set_retval(-ECONNREFUSED);
		return REFUSE;
	}
	/* Without memory for it the connection still reaches an endpoint; it is only not counted. */
	o = bpf_sk_storage_get(&km_origins, ctx->sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (o) {
		o->service = *to;
		o->endpoint = e->address;
		o->id = id;
		o->epoch = e->epoch;
		o->state = CHOSEN;
	}
	*to = e->address;
	return REWRITE;
}

/* sendto() on a UDP socket. Not called by the kernel for a connected socket that sends to its peer. */
static __always_inline enum verdict do_sendmsg(struct bpf_sock_addr *ctx, struct address *to)
{
	struct address endpoint;
	bool found = false;
	struct endpoint *e;
	struct service s;
	struct flows *f;
	__u32 id, i;

	if (!find_service(to, IPPROTO_UDP, &s))
		return PASS;
	f = bpf_sk_storage_get(&km_flows, ctx->sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (f) {
		bpf_spin_lock(&f->lock);
#pragma unroll
		for (i = 0; i < FLOWS; i++) {
			if (!found && f->flow[i].table == s.table && same(&f->flow[i].service, to)) {
				endpoint = f->flow[i].endpoint;
				found = true;
			}
		}
		bpf_spin_unlock(&f->lock);
	}
	if (!found) {
		e = choose(&s, &id);
		if (!e) {
			count_service(&s, false);
			bpf_set_retval(-ECONNREFUSED);
			return REFUSE;
		}
		endpoint = e->address;
		if (f) {
			bpf_spin_lock(&f->lock);
			i = f->next++ & (FLOWS - 1);
			f->flow[i].service = *to;
			f->flow[i].endpoint = endpoint;
			f->flow[i].table = s.table;
			bpf_spin_unlock(&f->lock);
		}
	}
	count_service(&s, true);
	*to = endpoint;
	return REWRITE;
}

/* A datagram has come: if from an endpoint that this socket knows by its service, it comes from the service. Replaces *from. */
static __always_inline enum verdict do_recvmsg(struct bpf_sock_addr *ctx, struct address *from)
{
	struct origin *o = bpf_sk_storage_get(&km_origins, ctx->sk, NULL, 0);
	struct address service;
	bool found = false;
	struct flows *f;
	__u32 i;

	if (o && same(&o->endpoint, from)) {
		*from = o->service;
		return REWRITE;
	}
	f = bpf_sk_storage_get(&km_flows, ctx->sk, NULL, 0);
	if (!f)
		return PASS;
	bpf_spin_lock(&f->lock);
#pragma unroll
	for (i = 0; i < FLOWS; i++) {
		if (!found && same(&f->flow[i].endpoint, from)) {
			service = f->flow[i].service;
			found = true;
		}
	}
	bpf_spin_unlock(&f->lock);
	if (!found)
		return PASS;
	*from = service;
	return REWRITE;
}

static __always_inline enum verdict do_getpeername(struct bpf_sock_addr *ctx, struct address *peer)
{
	struct origin *o = bpf_sk_storage_get(&km_origins, ctx->sk, NULL, 0);

	if (!o || !same(&o->endpoint, peer))
		return PASS;
	*peer = o->service;
	return REWRITE;
}

SEC("cgroup/connect4")
int km_connect4(struct bpf_sock_addr *ctx)
{
	struct address to;
	enum verdict v;

	spend(tare_steps);
	read4(ctx, &to);
	v = count(CONNECT4, do_connect(ctx, &to));
	if (v == REWRITE)
		write4(ctx, &to);
	return v != REFUSE;
}

/* Also where an IPv6 socket connects to an IPv4-mapped address: the kernel does not call connect4 then. */
SEC("cgroup/connect6")
int km_connect6(struct bpf_sock_addr *ctx)
{
	struct address to;
	enum verdict v;

	spend(tare_steps);
	read6(ctx, &to);
	v = count(CONNECT6, do_connect(ctx, &to));
	if (v == REWRITE)
		write6(ctx, &to);
	return v != REFUSE;
}

/* Also where an IPv6 socket sends to an IPv4-mapped address: the kernel does not call sendmsg6 then. */
SEC("cgroup/sendmsg4")
int km_sendmsg4(struct bpf_sock_addr *ctx)
{
	struct address to;
	enum verdict v;

	read4(ctx, &to);
	v = count(SENDMSG4, do_sendmsg(ctx, &to));
	if (v == REWRITE)
		write4(ctx, &to);
	return v != REFUSE;
}

SEC("cgroup/sendmsg6")
int km_sendmsg6(struct bpf_sock_addr *ctx)
{
	struct address to;
	enum verdict v;

	read6(ctx, &to);
	v = count(SENDMSG6, do_sendmsg(ctx, &to));
	if (v == REWRITE)
		write6(ctx, &to);
	return v != REFUSE;
}

SEC("cgroup/recvmsg4")
int km_recvmsg4(struct bpf_sock_addr *ctx)
{
	struct address from;

	read4(ctx, &from);
	if (count(RECVMSG4, do_recvmsg(ctx, &from)) == REWRITE)
		write4(ctx, &from);
	return 1;
}

SEC("cgroup/recvmsg6")
int km_recvmsg6(struct bpf_sock_addr *ctx)
{
	struct address from;

	read6(ctx, &from);
	if (count(RECVMSG6, do_recvmsg(ctx, &from)) == REWRITE)
		write6(ctx, &from);
	return 1;
}

SEC("cgroup/getpeername4")
int km_getpeername4(struct bpf_sock_addr *ctx)
{
	struct address peer;

	read4(ctx, &peer);
	if (count(GETPEERNAME4, do_getpeername(ctx, &peer)) == REWRITE)
		write4(ctx, &peer);
	return 1;
}

SEC("cgroup/getpeername6")
int km_getpeername6(struct bpf_sock_addr *ctx)
{
	struct address peer;

	read6(ctx, &peer);
	if (count(GETPEERNAME6, do_getpeername(ctx, &peer)) == REWRITE)
		write6(ctx, &peer);
	return 1;
}

/*
 * Moves the connection of *o on to a state, and counts it at its endpoint. The epoch matters for the first step alone: an id may be given
 * away between connect() and the SYN; once a connection is opened, its endpoint keeps its id until the connection ends.
 */
static __always_inline enum verdict count_connection(struct bpf_sock_ops *ctx, struct origin *o)
{
	struct connections *c = bpf_map_lookup_elem(&km_connections, &o->id);
	struct endpoint *e;

	if (!c)
		return PASS;
	switch (ctx->op) {
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
		e = bpf_map_lookup_elem(&km_endpoints, &o->id);
		if (o->state != CHOSEN || !o->epoch || !e || e->epoch != o->epoch)
			return PASS;
		/* Only now ask for state changes: other sockets in the cgroup are spared the calls. */
		bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG);
		o->state = OPENED;
		__sync_fetch_and_add(&c->opened, 1);
		return REWRITE;
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
		if (o->state != OPENED)
			return PASS;
		o->state = ESTABLISHED;
		__sync_fetch_and_add(&c->established, 1);
		return REWRITE;
	case BPF_SOCK_OPS_STATE_CB:
		if (ctx->args[1] != BPF_TCP_CLOSE)
			return PASS;
		if (o->state == ESTABLISHED)
			__sync_fetch_and_add(&c->closed, 1);
		else if (o->state == OPENED)
			__sync_fetch_and_add(&c->failed, 1);
		else
			return PASS;
		o->state = CLOSED;
		return REWRITE;
	}
	return PASS;
}

SEC("sockops")
int km_sockops(struct bpf_sock_ops *ctx)
{
	enum verdict v = PASS;
	struct bpf_sock *sk;
	struct origin *o;

	spend(tare_sockops_steps);
	switch (ctx->op) {
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
	case BPF_SOCK_OPS_STATE_CB:
		sk = ctx->sk;
		if (!sk)
			break;
		o = bpf_sk_storage_get(&km_origins, sk, NULL, 0);
		if (o)
			v = count_connection(ctx, o);
	}
	count(SOCKOPS, v);
	return 1;
}
