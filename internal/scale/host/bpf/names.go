package bpf

import "fmt"

// The kernel's names of its types, as bpftool prints them. A type newer than these tables is printed as its number.

var programTypes = []string{
	"unspec", "socket_filter", "kprobe", "sched_cls", "sched_act", "tracepoint", "xdp", "perf_event", "cgroup_skb",
	"cgroup_sock", "lwt_in", "lwt_out", "lwt_xmit", "sock_ops", "sk_skb", "cgroup_device", "sk_msg", "raw_tracepoint",
	"cgroup_sock_addr", "lwt_seg6local", "lirc_mode2", "sk_reuseport", "flow_dissector", "cgroup_sysctl",
	"raw_tracepoint_writable", "cgroup_sockopt", "tracing", "struct_ops", "ext", "lsm", "sk_lookup", "syscall",
	"netfilter",
}

var mapTypes = []string{
	"unspec", "hash", "array", "prog_array", "perf_event_array", "percpu_hash", "percpu_array", "stack_trace",
	"cgroup_array", "lru_hash", "lru_percpu_hash", "lpm_trie", "array_of_maps", "hash_of_maps", "devmap", "sockmap",
	"cpumap", "xskmap", "sockhash", "cgroup_storage", "reuseport_sockarray", "percpu_cgroup_storage", "queue", "stack",
	"sk_storage", "devmap_hash", "struct_ops", "ringbuf", "inode_storage", "task_storage", "bloom_filter", "user_ringbuf",
	"cgrp_storage", "arena",
}

const (
	mapArrayOfMaps = 12
	mapHashOfMaps  = 13
	mapSockmap     = 15
	mapSockhash    = 18
)

var linkTypes = []string{
	"unspec", "raw_tracepoint", "tracing", "cgroup", "iter", "netns", "xdp", "perf_event", "kprobe_multi", "struct_ops",
	"netfilter", "tcx", "uprobe_multi", "netkit", "sockmap",
}

const (
	linkRawTracepoint = iota + 1
	linkTracing
	linkCgroup
	linkIter
	linkNetns
	linkXDP
	linkPerfEvent
	linkKprobeMulti
	linkStructOps
	linkNetfilter
	linkTCX
	linkUprobeMulti
	linkNetkit
	linkSockmap
)

// attachTypes are the names of the hooks, without the family, which the target already contains: "cgroup:/web
// connect4".
var attachTypes = []string{
	"ingress", "egress", "sock_create", "sock_ops", "stream_parser", "stream_verdict", "device", "msg_verdict", "bind4",
	"bind6", "connect4", "connect6", "post_bind4", "post_bind6", "sendmsg4", "sendmsg6", "lirc_mode2", "flow_dissector",
	"sysctl", "recvmsg4", "recvmsg6", "getsockopt", "setsockopt", "tp_btf", "fentry", "fexit", "fmod_ret", "lsm", "iter",
	"getpeername4", "getpeername6", "getsockname4", "getsockname6", "xdp_devmap", "sock_release", "xdp_cpumap",
	"sk_lookup", "xdp", "skb_verdict", "reuseport", "reuseport_migrate", "perf_event", "kprobe_multi", "lsm_cgroup",
	"struct_ops", "netfilter", "ingress", "egress", "uprobe_multi", "connect_unix", "sendmsg_unix", "recvmsg_unix",
	"getpeername_unix", "getsockname_unix", "primary", "peer", "kprobe_session", "uprobe_session",
}

// cgroupAttachTypes lists the numbers of the hooks in control groups, by the number of the program type that they
// accept.
var cgroupAttachTypes = map[uint32][]uint32{
	8:  {0, 1},                                                             // cgroup_skb
	9:  {2, 12, 13, 34},                                                    // cgroup_sock
	13: {3},                                                                // sock_ops
	15: {6},                                                                // cgroup_device
	18: {8, 9, 10, 11, 14, 15, 19, 20, 29, 30, 31, 32, 49, 50, 51, 52, 53}, // cgroup_sock_addr
	23: {18},                                                               // cgroup_sysctl
	25: {21, 22},                                                           // cgroup_sockopt
}

// sockmapAttachTypes are the hooks of socket maps.
var sockmapAttachTypes = []uint32{4, 5, 7, 38}

// deviceAttachTypes are the hooks of interfaces for BPF_PROG_ATTACH, by the link type with the same hooks.
var deviceAttachTypes = map[uint32][]uint32{linkTCX: {46, 47}, linkNetkit: {54, 55}}

const attachFlowDissector = 17

// Program types that can be attached without a link to something other than a control group.
const (
	progTypeSchedCLS      = 3
	progTypeSchedACT      = 4
	progTypeXDP           = 6
	progTypeSkSKB         = 14
	progTypeSkMsg         = 16
	progTypeFlowDissector = 22
)

func typeName(names []string, n uint32) string {
	if int64(n) < int64(len(names)) {
		return names[n]
	}
	return fmt.Sprintf("type %d", n)
}
