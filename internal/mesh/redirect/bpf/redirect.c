// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Redirects connections to sidecar proxies without netfilter, like meshes that install no iptables rules. One program
 * replaces the address that an application passes to connect(). Another assigns connections that arrive at a pod to the
 * proxy's listening socket, before the kernel looks for a socket. No packet is rewritten.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

/* From headers that do not compile for BPF: in.h, netfilter_ipv4.h, socket.h. */
#define AF_INET 2
#define SOL_IP 0
#define SO_ORIGINAL_DST 80
#define IPPROTO_TCP 6

#define barrier() asm volatile("" ::: "memory")

char LICENSE[] SEC("license") = "GPL";

/* One end of a connection, in network byte order. */
struct end {
	__u32 ip;
	__u16 port;
	__u16 zero;
};

/* As in in.h. */
struct sockaddr_in {
	__u16 family;
	__u16 port;
	__u32 ip;
	__u8 zero[8];
};

/* Where max_entries is 1, the loader sets another value. */

/* Connections that leave the client's pod: maps a redirected destination to the address of the proxy. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct end);
	__type(value, struct end);
} rd_outbound SEC(".maps");

/* Connections that arrive at the server's pod: maps a redirected destination to the address of the proxy. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct end);
	__type(value, struct end);
} rd_inbound SEC(".maps");

/* The address that a client passed to connect(), by its socket. The kernel deletes an element with the socket. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct end);
} rd_origins SEC(".maps");

/*
 * The same address, by the client's end of the connection, which the proxy knows as the peer of its own socket. No
 * program deletes elements at the end of a connection: the map discards those that were not used for the longest time.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct end);
	__type(value, struct end);
} rd_originals SEC(".maps");

/* Attached to connect(): the connection goes straight to the proxy, so the redirection costs nothing per packet. */
SEC("cgroup/connect4")
int rd_connect4(struct bpf_sock_addr *ctx)
{
	struct end to = { ctx->user_ip4, ctx->user_port, 0 };
	struct end *proxy, *origin;

	if (ctx->protocol != IPPROTO_TCP)
		return 1;
	proxy = bpf_map_lookup_elem(&rd_outbound, &to);
	if (!proxy)
		return 1;
	origin = bpf_sk_storage_get(&rd_origins, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!origin)
		return 0; /* the proxy could not learn the destination */
	*origin = to;
	ctx->user_ip4 = proxy->ip;
	ctx->user_port = proxy->port;
	return 1;
}

/*
 * Runs when the client's connection is established. By then its source port is known, but the proxy cannot have
 * accepted it yet, because the last packet of the handshake is sent after this program.
 */
SEC("sockops")
int rd_sockops(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	struct end from = {}, *origin;

	if (ctx->op != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB || ctx->family != AF_INET || !sk)
		return 1;
	origin = bpf_sk_storage_get(&rd_origins, sk, 0, 0);
	if (!origin)
		return 1;
	from.ip = ctx->local_ip4;
	from.port = bpf_htons(ctx->local_port);
	bpf_map_update_elem(&rd_originals, &from, origin, BPF_ANY);
	return 1;
}

/* Answers getsockopt(SO_ORIGINAL_DST), which netfilter answers for connections that it redirects. */
SEC("cgroup/getsockopt")
int rd_getsockopt(struct bpf_sockopt *ctx)
{
	struct sockaddr_in *to = ctx->optval;
	struct bpf_sock *sk = ctx->sk;
	struct end from = {}, *origin;

	if (ctx->level != SOL_IP || ctx->optname != SO_ORIGINAL_DST || !sk || (void *)(to + 1) > ctx->optval_end)
		return 1;
	from.ip = sk->dst_ip4;
	from.port = sk->dst_port;
	origin = bpf_map_lookup_elem(&rd_originals, &from);
	if (!origin)
		return 1;
	to->family = AF_INET;
	to->port = origin->port;
	to->ip = origin->ip;
	__builtin_memset(to->zero, 0, sizeof(to->zero));
	ctx->optlen = sizeof(*to);
	barrier(); /* the compiler would write both at once, which the verifier refuses */
	ctx->retval = 0;
	return 1;
}

/*
 * Attached to the pod's interface, because the proxy's own connections to the application use the loopback interface
 * and must not be redirected. Packets of established connections find their sockets without help.
 */
SEC("tc")
int rd_ingress(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip = (void *)(eth + 1);
	struct tcphdr *tcp = (void *)(ip + 1);
	struct bpf_sock_tuple tuple = {};
	struct end to = {}, *proxy;
	struct bpf_sock *sk;
	bool listens;
	long failed;

	if ((void *)(tcp + 1) > end || eth->h_proto != bpf_htons(ETH_P_IP) || ip->protocol != IPPROTO_TCP || ip->ihl != 5)
		return TC_ACT_OK;
	to.ip = ip->daddr;
	to.port = tcp->dest;
	proxy = bpf_map_lookup_elem(&rd_inbound, &to);
	if (!proxy)
		return TC_ACT_OK;
	tuple.ipv4.saddr = ip->saddr;
	tuple.ipv4.sport = tcp->source;
	if (!tcp->syn || tcp->ack) {
		tuple.ipv4.daddr = ip->daddr;
		tuple.ipv4.dport = tcp->dest;
		sk = bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
		if (sk) {
			listens = sk->state == BPF_TCP_LISTEN; /* no connection yet: this may be the ACK for a SYN cookie */
			bpf_sk_release(sk);
			if (!listens)
				return TC_ACT_OK;
		}
	}
	tuple.ipv4.daddr = proxy->ip;
	tuple.ipv4.dport = proxy->port;
	sk = bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return TC_ACT_SHOT; /* no connection may bypass the proxy */
	failed = bpf_sk_assign(skb, sk, 0);
	bpf_sk_release(sk);
	return failed ? TC_ACT_SHOT : TC_ACT_OK;
}
