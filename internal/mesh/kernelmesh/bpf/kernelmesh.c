// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * kernelmesh: a service mesh data plane in the kernel, at connection level.
 *
 * A service is an address that no machine has to own. When a process in the cgroup connects to a service, a program
 * replaces the address in its connect() or sendto() with that of an endpoint, before the kernel looks up a route. From
 * then on the connection is an ordinary one, and its packets cost nothing extra. Other addresses are left unchanged.
 *
 * The endpoint is chosen by a store (store_find of internal/mesh/store). STORE is the header of the store's design,
 * given to the compiler with -D; each design has a separate object.
 *
 * All addresses have one form: 16 bytes, with IPv4 as IPv4-mapped IPv6 (::ffff:a.b.c.d), so that an IPv6 socket that
 * uses IPv4 finds the same services as an IPv4 socket.
 */
#include "store.h"
#include STORE

/* Copied from headers that do not compile for BPF: errno-base.h, in.h. */
#define ECONNREFUSED 111
#define IPPROTO_TCP 6
#define IPPROTO_UDP 17

char LICENSE[] SEC("license") = "GPL";

/*
 * Numbers of extra steps of work in each run of the two connect programs, and of the sockops program, which add a known
 * cost. They are set at load time; if a number is 0, the verifier removes the code.
 */
const volatile __u32 tare_steps = 0;
const volatile __u32 tare_sockops_steps = 0;

/*
 * The source address that rules assume for sockets that are bound to no address; all zero if it is unknown. Network
 * byte order.
 */
const volatile __u32 km_source4 = 0;
const volatile __u32 km_source6[4] = {};

/* All cluster numbers are below this limit, which is set at load time. */
const volatile __u32 km_ids = 1;

/*
 * Connections of one cluster. Updated atomically, because a connection may open on one CPU and close on another.
 *
 * The epoch changes when the cluster is removed and its number becomes free. A connection whose origin has another
 * epoch belongs to a former cluster with the same number, so it is not counted here.
 */
struct cluster {
	__u64 open;   /* open connections in bits 0-31, the epoch in bits 32-63 */
	__u64 opened; /* connections whose first SYN was sent; this and the counts below continue over all epochs */
	__u64 established;
	__u64 closed; /* of the established connections */
	__u64 failed; /* opened, but never established */
};

/* The outcomes, on one CPU, of the lookups that chose a cluster. */
struct cluster_counters {
	__u64 matched;     /* got an endpoint */
	__u64 no_endpoint; /* refused: the cluster has none */
	__u64 overflow;    /* refused: the cluster has reached its limit of open connections */
	__u64 zero;
};

/* The outcomes of the runs of one program; each run has one outcome. */
struct program_counters {
	__u64 passed;       /* nothing matched; left unchanged */
	__u64 matched;      /* rewrote an address, or counted a connection */
	__u64 no_endpoint;  /* refused: nothing can serve the matching service */
	__u64 denied;       /* by RBAC */
	__u64 overflow;     /* refused: the cluster has reached its limit of open connections */
	__u64 unconfigured; /* refused: there is no configuration yet */
};

/* The service that a socket connected to, and the endpoint that it got. Freed with the socket. */
struct origin {
	struct address service;
	struct address endpoint;
	__u32 cluster;
	__u32 epoch; /* of the cluster when the cluster was chosen */
	__u32 state; /* how far sockops has counted the connection */
};

enum { CHOSEN, OPENED, ESTABLISHED, CLOSED };

#define FLOWS 32

/*
 * One service to which an unconnected UDP socket sends. The socket keeps the same endpoint, as under conntrack, until
 * the configuration changes. The flow is kept after that, for replies that are still to come.
 */
struct flow {
	struct address service;
	struct address endpoint;
	__u32 cluster;
	__u32 generation; /* of the configuration; 0: not in use */
	/*
	 * The value of flows->sent when the socket last used this flow. Several flows have the same endpoint if services
	 * share it, or if it has moved between services; a reply then belongs to the flow that was used last.
	 */
	__u64 sent;
};

struct flows {
	struct bpf_spin_lock lock; /* sendmsg and recvmsg run without the socket's lock */
	__u32 used; /* number of flows, from the first on, that have ever been used */
	__u64 sent; /* number of datagrams to services */
	struct flow flow[FLOWS];
};

/* What user space sets for all programs. */
struct state {
	__u32 generation; /* changes with each change of the configuration; never 0 */
	__u32 closed;     /* refuse everything, because there is no configuration yet */
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

/* The loader replaces each max_entries of 1, except that of km_state. */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct state);
} km_state SEC(".maps");

/* By cluster number. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cluster);
} km_clusters SEC(".maps");

/*
 * The counters of all clusters on the first CPU, then of all on the second, and so on. Not a per-CPU array, because
 * user space cannot map one, and would need a system call to read each element.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cluster_counters);
} km_counts SEC(".maps");

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

/*
 * One step is a xorshift, which depends on the step before. Because the helper bpf_loop runs the steps, neither the
 * compiler nor the verifier can remove them.
 */
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
	copy_ip(a->ip, ctx->user_ip6);
	a->port = ctx->user_port;
	a->zero = 0;
}

static __always_inline void write6(struct bpf_sock_addr *ctx, const struct address *a)
{
	copy_ip(ctx->user_ip6, a->ip);
	ctx->user_port = a->port;
}

static __always_inline bool same(const struct address *a, const struct address *b)
{
	return a->ip[3] == b->ip[3] && a->port == b->port && a->ip[2] == b->ip[2] && a->ip[1] == b->ip[1] &&
		a->ip[0] == b->ip[0];
}

/* The outcome of a run of a program. */
enum outcome { PASSED, MATCHED, NO_ENDPOINT, DENIED, OVERFLOW, UNCONFIGURED };

static __always_inline enum outcome count(enum program program, enum outcome outcome)
{
	__u32 key = program;
	struct program_counters *c = bpf_map_lookup_elem(&km_prog_counts, &key);

	if (!c)
		return outcome;
	switch (outcome) {
	case PASSED:
		c->passed++;
		break;
	case MATCHED:
		c->matched++;
		break;
	case NO_ENDPOINT:
		c->no_endpoint++;
		break;
	case DENIED:
		c->denied++;
		break;
	case OVERFLOW:
		c->overflow++;
		break;
	case UNCONFIGURED:
		c->unconfigured++;
		break;
	}
	return outcome;
}

/* Returns 1 if the system call proceeds. Otherwise it fails: with EPERM if RBAC denies it, else with ECONNREFUSED. */
static __always_inline int goes_on(enum outcome outcome)
{
	if (outcome <= MATCHED)
		return 1;
	if (outcome != DENIED)
		bpf_set_retval(-ECONNREFUSED);
	return 0;
}

static __always_inline void count_cluster(__u32 id, enum outcome outcome)
{
	struct cluster_counters *c;
	__u32 key;

	if (id >= km_ids)
		return;
	key = bpf_get_smp_processor_id() * km_ids + id;
	c = bpf_map_lookup_elem(&km_counts, &key);
	if (!c)
		return;
	switch (outcome) {
	case MATCHED:
		c->matched++;
		break;
	case NO_ENDPOINT:
		c->no_endpoint++;
		break;
	case OVERFLOW:
		c->overflow++;
		break;
	default:
		break;
	}
}

static __always_inline struct state *state(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&km_state, &zero);
}

/* Replaces an unknown source with the one that user space has set. */
static __always_inline void suppose_source(struct question *q)
{
	if (q->from.ip[0] | q->from.ip[1] | q->from.ip[2] | q->from.ip[3])
		return;
	if (q->to.ip[0] | q->to.ip[1] || q->to.ip[2] != bpf_htonl(0xffff)) {
		q->from.ip[0] = km_source6[0];
		q->from.ip[1] = km_source6[1];
		q->from.ip[2] = km_source6[2];
		q->from.ip[3] = km_source6[3];
	} else if (km_source4) {
		q->from.ip[2] = bpf_htonl(0xffff);
		q->from.ip[3] = km_source4;
	}
}

/* Asks the store for an endpoint; returns PASSED if the store has no such service. */
static __always_inline enum outcome ask(struct question *q, struct answer *a)
{
	suppose_source(q);
	q->zero = 0;
	q->random = (__u64)bpf_get_prandom_u32() << 32 | bpf_get_prandom_u32();
	switch (store_find(q, a)) {
	case PASS:
		return PASSED;
	case ACCEPT:
		return MATCHED;
	case REFUSE:
		count_cluster(a->cluster, NO_ENDPOINT);
		return NO_ENDPOINT;
	case DENY:
		break;
	}
	return DENIED;
}

/*
 * Loops over flows hold a lock, so they cannot use bpf_loop, and the verifier follows every path through them. It can
 * merge paths only if they leave behind no value that it knows, such as an index, and no condition whose result it
 * knows. So one loop finds the value of sent that identifies the flow, and a second loop finds the flow.
 */

/* Returns 0 if two addresses are the same, without a branch. */
static __always_inline __u32 differ(const struct address *a, const struct address *b)
{
	return (a->ip[3] ^ b->ip[3]) | (a->port ^ b->port) | (a->ip[2] ^ b->ip[2]) | (a->ip[1] ^ b->ip[1]) |
		(a->ip[0] ^ b->ip[0]);
}

/* Finds the flow to a service in this generation, copies its endpoint into *a, and marks the flow as just used. */
static __always_inline bool use_flow(struct flows *f, const struct address *service, __u32 generation, struct answer *a)
{
	bool found = false;
	__u32 i;

	bpf_spin_lock(&f->lock);
#pragma clang loop unroll(disable)
	for (i = 0; i < FLOWS && i < f->used; i++) {
		if (differ(&f->flow[i].service, service) | (f->flow[i].generation ^ generation))
			continue;
		a->endpoint = f->flow[i].endpoint;
		a->cluster = f->flow[i].cluster;
		f->flow[i].sent = ++f->sent;
		found = true;
		break;
	}
	bpf_spin_unlock(&f->lock);
	return found;
}

/* Keeps the store's answer in place of the least recently used flow. */
static __always_inline void add_flow(struct flows *f, const struct address *service, __u32 generation, struct answer *a)
{
	__u64 oldest = ~0ULL;
	__u32 i;

	bpf_spin_lock(&f->lock);
#pragma clang loop unroll(disable)
	for (i = 0; i < FLOWS; i++) {
		/* If there is a flow to the same endpoint, from before a change, replace that one. */
		if (!(differ(&f->flow[i].service, service) | differ(&f->flow[i].endpoint, &a->endpoint)))
			f->flow[i].sent = 0;
		if (f->flow[i].sent < oldest)
			oldest = f->flow[i].sent;
	}
#pragma clang loop unroll(disable)
	for (i = 0; i < FLOWS; i++) {
		if (f->flow[i].sent != oldest)
			continue;
		f->flow[i].service = *service;
		f->flow[i].endpoint = a->endpoint;
		f->flow[i].cluster = a->cluster;
		f->flow[i].generation = generation;
		f->flow[i].sent = ++f->sent;
		if (f->used <= i)
			f->used = i + 1;
		break;
	}
	bpf_spin_unlock(&f->lock);
}

/* Replaces the endpoint *from with the service of its most recently used flow; returns false if it has none. */
static __always_inline bool find_service(struct flows *f, struct address *from)
{
	bool found = false;
	__u64 last = 0;
	__u32 i;

	bpf_spin_lock(&f->lock);
#pragma clang loop unroll(disable)
	for (i = 0; i < FLOWS && i < f->used; i++) {
		if (!differ(&f->flow[i].endpoint, from) && f->flow[i].sent > last)
			last = f->flow[i].sent;
	}
#pragma clang loop unroll(disable)
	for (i = 0; i < FLOWS && i < f->used; i++) {
		if (differ(&f->flow[i].endpoint, from) || f->flow[i].sent != last)
			continue;
		*from = f->flow[i].service;
		found = true;
		break;
	}
	bpf_spin_unlock(&f->lock);
	return found;
}

/*
 * Called when the socket connects or sends to an address that is not a service, so that datagrams from there keep that
 * address as their source. Forgets the flows to it and, unless the socket is still connected, the socket's origin.
 */
static __always_inline void expect_itself(struct bpf_sock *sk, const struct address *to)
{
	struct origin *o = bpf_sk_storage_get(&km_origins, sk, NULL, 0);
	struct flows *f = bpf_sk_storage_get(&km_flows, sk, NULL, 0);
	__u32 i;

	if (o && !differ(&o->endpoint, to) && sk->state != BPF_TCP_ESTABLISHED)
		bpf_sk_storage_delete(&km_origins, sk);
	if (!f)
		return;
	bpf_spin_lock(&f->lock);
#pragma clang loop unroll(disable)
	for (i = 0; i < FLOWS && i < f->used; i++) {
		if (differ(&f->flow[i].endpoint, to))
			continue;
		f->flow[i].endpoint.port = 0; /* no datagram comes from there */
		f->flow[i].generation = 0;
		f->flow[i].sent = 0;
	}
	bpf_spin_unlock(&f->lock);
}

/*
 * connect() on a TCP or UDP socket. The caller has filled in q->from and q->to; q->to is replaced. The service is kept
 * with the socket, where getpeername, recvmsg and sockops find it.
 */
static __always_inline enum outcome do_connect(struct bpf_sock_addr *ctx, struct question *q)
{
	struct state *now = state();
	struct cluster *c = NULL;
	enum outcome outcome;
	struct answer a = {};
	struct origin *o;
	__u64 open = 0;

	if (!now)
		return PASSED;
	if (now->closed)
		return UNCONFIGURED;
	q->protocol = ctx->protocol;
	outcome = ask(q, &a);
	if (outcome == PASSED) {
		/* The socket may have been connected to a service before. */
		if (bpf_sk_storage_get(&km_origins, ctx->sk, NULL, 0))
			bpf_sk_storage_delete(&km_origins, ctx->sk);
		if (q->protocol == IPPROTO_UDP)
			expect_itself(ctx->sk, &q->to);
		return PASSED;
	}
	if (outcome != MATCHED)
		return outcome;
	c = bpf_map_lookup_elem(&km_clusters, &a.cluster);
	if (c)
		open = *(volatile __u64 *)&c->open;
	/* sockops counts a connection only at its first SYN, so connections on several CPUs can pass this check at once. */
	if (a.max_connections && (__u32)open >= a.max_connections && q->protocol == IPPROTO_TCP) {
		count_cluster(a.cluster, OVERFLOW);
		return OVERFLOW;
	}
	count_cluster(a.cluster, MATCHED);
	/* If there is no memory for the origin, the connection still reaches an endpoint, but is not counted. */
	o = bpf_sk_storage_get(&km_origins, ctx->sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (o) {
		o->service = q->to;
		o->endpoint = a.endpoint;
		o->cluster = a.cluster;
		o->epoch = open >> 32;
		o->state = CHOSEN;
	}
	q->to = a.endpoint;
	return MATCHED;
}

/*
 * sendto() on a UDP socket. The kernel does not run this program for a connected socket that sends to its peer.
 */
static __always_inline enum outcome do_sendmsg(struct bpf_sock_addr *ctx, struct question *q)
{
	struct state *now = state();
	enum outcome outcome;
	struct answer a = {};
	bool found = false;
	__u32 generation;
	struct flows *f;

	if (!now)
		return PASSED;
	if (now->closed)
		return UNCONFIGURED;
	/* Read before the store is asked, so that the store's answer is no older than this generation. */
	generation = *(volatile __u32 *)&now->generation;
	q->protocol = IPPROTO_UDP;
	f = bpf_sk_storage_get(&km_flows, ctx->sk, NULL, 0);
	if (f)
		found = use_flow(f, &q->to, generation, &a);
	if (!found) {
		outcome = ask(q, &a);
		if (outcome == PASSED)
			expect_itself(ctx->sk, &q->to);
		if (outcome != MATCHED)
			return outcome;
		f = bpf_sk_storage_get(&km_flows, ctx->sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
		if (f)
			add_flow(f, &q->to, generation, &a);
	}
	count_cluster(a.cluster, MATCHED);
	q->to = a.endpoint;
	return MATCHED;
}

/*
 * A datagram has arrived. If it is from an endpoint that the socket reached through a service, *from is replaced with
 * the service.
 */
static __always_inline enum outcome do_recvmsg(struct bpf_sock_addr *ctx, struct address *from)
{
	struct origin *o = bpf_sk_storage_get(&km_origins, ctx->sk, NULL, 0);
	struct flows *f;

	if (o && !same(&o->endpoint, from))
		o = NULL;
	/* A socket that is no longer connected may have sent to the endpoint through another service since. */
	if (!o || ctx->sk->state != BPF_TCP_ESTABLISHED) {
		f = bpf_sk_storage_get(&km_flows, ctx->sk, NULL, 0);
		if (f && find_service(f, from))
			return MATCHED;
	}
	if (!o)
		return PASSED;
	*from = o->service;
	return MATCHED;
}

static __always_inline enum outcome do_getpeername(struct bpf_sock_addr *ctx, struct address *peer)
{
	struct origin *o = bpf_sk_storage_get(&km_origins, ctx->sk, NULL, 0);

	if (!o || !same(&o->endpoint, peer))
		return PASSED;
	*peer = o->service;
	return MATCHED;
}

/*
 * Sets *a to the source of a connection before it has a route: the IP address and the port that the socket is bound to.
 * If the socket is bound to no IP address, that part is all zero; without a port, the port is 0.
 */
static __always_inline void source4(struct bpf_sock_addr *ctx, __u32 ip, struct address *a)
{
	struct bpf_sock *sk = ctx->sk;

	a->ip[0] = 0;
	a->ip[1] = 0;
	a->ip[2] = ip ? bpf_htonl(0xffff) : 0;
	a->ip[3] = ip;
	a->port = sk ? bpf_htons(sk->src_port) : 0;
	a->zero = 0;
}

SEC("cgroup/connect4")
int km_connect4(struct bpf_sock_addr *ctx)
{
	struct question q;
	enum outcome v;

	spend(tare_steps);
	read4(ctx, &q.to);
	source4(ctx, ctx->sk ? ctx->sk->src_ip4 : 0, &q.from);
	v = count(CONNECT4, do_connect(ctx, &q));
	if (v == MATCHED)
		write4(ctx, &q.to);
	return goes_on(v);
}

/* Also runs if an IPv6 socket connects to an IPv4-mapped address; the kernel then does not run connect4. */
SEC("cgroup/connect6")
int km_connect6(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	struct question q = {};
	enum outcome v;

	spend(tare_steps);
	read6(ctx, &q.to);
	if (sk) {
		copy_ip(q.from.ip, sk->src_ip6);
		q.from.port = bpf_htons(sk->src_port);
	}
	v = count(CONNECT6, do_connect(ctx, &q));
	if (v == MATCHED)
		write6(ctx, &q.to);
	return goes_on(v);
}

/* Also runs if an IPv6 socket sends to an IPv4-mapped address; the kernel then does not run sendmsg6. */
SEC("cgroup/sendmsg4")
int km_sendmsg4(struct bpf_sock_addr *ctx)
{
	struct question q;
	enum outcome v;

	read4(ctx, &q.to);
	source4(ctx, ctx->msg_src_ip4, &q.from);
	v = count(SENDMSG4, do_sendmsg(ctx, &q));
	if (v == MATCHED)
		write4(ctx, &q.to);
	return goes_on(v);
}

SEC("cgroup/sendmsg6")
int km_sendmsg6(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	struct question q = {};
	enum outcome v;

	read6(ctx, &q.to);
	copy_ip(q.from.ip, ctx->msg_src_ip6);
	if (sk)
		q.from.port = bpf_htons(sk->src_port);
	v = count(SENDMSG6, do_sendmsg(ctx, &q));
	if (v == MATCHED)
		write6(ctx, &q.to);
	return goes_on(v);
}

SEC("cgroup/recvmsg4")
int km_recvmsg4(struct bpf_sock_addr *ctx)
{
	struct address from;

	read4(ctx, &from);
	if (count(RECVMSG4, do_recvmsg(ctx, &from)) == MATCHED)
		write4(ctx, &from);
	return 1;
}

SEC("cgroup/recvmsg6")
int km_recvmsg6(struct bpf_sock_addr *ctx)
{
	struct address from;

	read6(ctx, &from);
	if (count(RECVMSG6, do_recvmsg(ctx, &from)) == MATCHED)
		write6(ctx, &from);
	return 1;
}

SEC("cgroup/getpeername4")
int km_getpeername4(struct bpf_sock_addr *ctx)
{
	struct address peer;

	read4(ctx, &peer);
	if (count(GETPEERNAME4, do_getpeername(ctx, &peer)) == MATCHED)
		write4(ctx, &peer);
	return 1;
}

SEC("cgroup/getpeername6")
int km_getpeername6(struct bpf_sock_addr *ctx)
{
	struct address peer;

	read6(ctx, &peer);
	if (count(GETPEERNAME6, do_getpeername(ctx, &peer)) == MATCHED)
		write6(ctx, &peer);
	return 1;
}

/* How many times to try to update a number that other CPUs change meanwhile. */
#define TRIES 16

/* Adds to the open connections of a cluster, if its epoch is still that of the connection. */
static __always_inline bool add_open(struct cluster *c, __u32 epoch, __u64 by)
{
	__u64 old = *(volatile __u64 *)&c->open, seen, i; /* the verifier follows 64-bit counters */

#pragma clang loop unroll(disable)
	for (i = 0; i < TRIES; i++) {
		if (old >> 32 != epoch)
			return false;
		seen = __sync_val_compare_and_swap(&c->open, old, old + by);
		if (seen == old)
			return true;
		old = seen;
	}
	__sync_fetch_and_add(&c->open, by); /* others were quicker each time, so it is in use */
	return true;
}

/* Advances the state of the connection of *o, and counts the connection at its cluster. */
static __always_inline enum outcome count_connection(struct bpf_sock_ops *ctx, struct origin *o)
{
	struct cluster *c = bpf_map_lookup_elem(&km_clusters, &o->cluster);
	__u32 was = o->state;

	if (!c)
		return PASSED;
	switch (ctx->op) {
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
		if (was != CHOSEN || !add_open(c, o->epoch, 1))
			return PASSED;
		/* Ask for state changes only now, so that other sockets in the cgroup do not cause any calls. */
		bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG);
		o->state = OPENED;
		__sync_fetch_and_add(&c->opened, 1);
		return MATCHED;
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
		if (was != OPENED)
			return PASSED;
		o->state = ESTABLISHED;
		if (*(volatile __u64 *)&c->open >> 32 != o->epoch)
			return PASSED;
		__sync_fetch_and_add(&c->established, 1);
		return MATCHED;
	case BPF_SOCK_OPS_STATE_CB:
		if (ctx->args[1] != BPF_TCP_CLOSE || (was != ESTABLISHED && was != OPENED))
			return PASSED;
		o->state = CLOSED;
		if (!add_open(c, o->epoch, -1))
			return PASSED;
		if (was == ESTABLISHED)
			__sync_fetch_and_add(&c->closed, 1);
		else
			__sync_fetch_and_add(&c->failed, 1);
		return MATCHED;
	}
	return PASSED;
}

SEC("sockops")
int km_sockops(struct bpf_sock_ops *ctx)
{
	enum outcome v = PASSED;
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
