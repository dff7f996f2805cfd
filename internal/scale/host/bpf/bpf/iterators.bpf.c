// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0

/*
 * Two iterators tell what nothing else does, or not cheaply:
 *
 *  - to which control group the kernel charges a map: no info call and no fdinfo has it;
 *  - which processes hold which programs, maps and links: the alternative is to read every link in /proc/<pid>/fd.
 *
 * Everything else is read by id, which needs no program of ours and costs less.
 *
 * Structs of the kernel are followed by offsets that the loader writes into `shared.offsets`, found in the kernel's own
 * BTF. That is what a CO-RE relocation would do too, but for the price of looking up a few names instead of indexing
 * all types (see btf.go). An offset of NONE means that this kernel has no such field.
 */

/* The types that bpf_helpers.h wants, declared here: the headers that have them differ from machine to machine. */
typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;

#include <bpf/bpf_helpers.h>

#define NONE 0xffffffff

struct offsets {
	__u32 map_id;
	__u32 map_objcg; /* since 5.18 */
	__u32 map_memcg; /* 5.11 to 5.17 */
	__u32 objcg_memcg;
	__u32 memcg_css;
	__u32 css_cgroup;
	__u32 cgroup_kn;
	__u32 kn_id;
	__u32 file_op;
	__u32 file_private;
	__u32 task_tgid;
	__u32 task_leader;
	__u32 task_comm;
	__u32 prog_aux;
	__u32 aux_id;
	__u32 link_id;
};

/* The kinds of files that the owners iterator reports. */
enum kind {
	KIND_MAP,
	KIND_PROG,
	KIND_LINK,
	KIND_PERF,
	KINDS,
};

/*
 * A file is known by its operations. Their addresses are learnt from descriptors of the reader's own, one of each kind,
 * so that neither names nor kernel symbols are trusted.
 */
struct samples {
	__u32 tgid; /* 0: report; else learn from the descriptors of this process */
	__u32 fd[KINDS];
};

/* All that is shared with the loader: the value of one map. */
struct state {
	struct offsets offsets;
	struct samples samples;
	__u64 operations[KINDS]; /* struct file_operations, by address */
};

struct state shared SEC(".data.shared");

/* What the iterators write. */
struct map_charge {
	__u32 map_id;
	__u32 known;     /* 0: the way to the group could not be followed */
	/* in the hierarchy of the memory controller; 0: charged to none, which is how maps of the root group look */
	__u64 cgroup_id;
};

struct held {
	__u32 kind;
	__u32 id; /* of the map, program or link; the descriptor's number for a perf event */
	__u32 tgid;
	char comm[16];
};

/*
 * These make bpf2go write the records down in Go; no program refers to the section that they are in, so it is never
 * loaded.
 */
struct map_charge *unused_map_charge __attribute__((unused));
struct held *unused_held __attribute__((unused));

/*
 * The contexts, as the kernel's bpf_iter__bpf_map and bpf_iter__task_file lay them out: a stable interface since 5.8.
 */
struct meta {
	void *seq;
};

struct map_context {
	struct meta *meta;
	__u64 map;
};

struct file_context {
	struct meta *meta;
	__u64 task;
	__u32 fd __attribute__((aligned(8)));
	__u64 file;
};

static __always_inline __u64 read_at(__u64 base, __u32 offset)
{
	__u64 v = 0;

	if (!base || offset == NONE)
		return 0;
	bpf_probe_read_kernel(&v, sizeof(v), (void *)(base + offset));
	return v;
}

/* A context's pointers are read as plain numbers: the verifier lets no one add a variable offset to a typed pointer. */
static __always_inline __u64 context_u64(const __u64 *field)
{
	__u64 v = 0;

	bpf_probe_read_kernel(&v, sizeof(v), field);
	return v;
}

SEC("iter/bpf_map")
int tare_maps(struct map_context *ctx)
{
	__u64 map = context_u64(&ctx->map);
	struct map_charge out = {};
	__u64 owner, memcg;

	if (!map)
		return 0;
	out.map_id = read_at(map, shared.offsets.map_id);
	if (shared.offsets.map_objcg != NONE) {
		owner = read_at(map, shared.offsets.map_objcg);
		memcg = read_at(owner, shared.offsets.objcg_memcg);
	} else {
		owner = memcg = read_at(map, shared.offsets.map_memcg);
	}
	if (memcg) {
		__u64 css = memcg + shared.offsets.memcg_css; /* embedded */
		__u64 cgroup = read_at(css, shared.offsets.css_cgroup);

		out.cgroup_id = read_at(read_at(cgroup, shared.offsets.cgroup_kn), shared.offsets.kn_id);
	}
	out.known = !owner || out.cgroup_id;
	bpf_seq_write(ctx->meta->seq, &out, sizeof(out));
	return 0;
}

SEC("iter/task_file")
int tare_holders(struct file_context *ctx)
{
	__u64 task = context_u64(&ctx->task), file = context_u64(&ctx->file), op, object, leader;
	struct held out = {};
	__u32 i;

	if (!task || !file)
		return 0;
	op = read_at(file, shared.offsets.file_op);
	if (shared.samples.tgid) {
		if ((__u32)read_at(task, shared.offsets.task_tgid) != shared.samples.tgid)
			return 0;
#pragma unroll
		for (i = 0; i < KINDS; i++) {
			if (shared.samples.fd[i] == ctx->fd)
				shared.operations[i] = op;
		}
		return 0;
	}

	object = read_at(file, shared.offsets.file_private);
	if (op == shared.operations[KIND_MAP]) {
		out.kind = KIND_MAP;
		out.id = read_at(object, shared.offsets.map_id);
	} else if (op == shared.operations[KIND_PROG]) {
		out.kind = KIND_PROG;
		out.id = read_at(read_at(object, shared.offsets.prog_aux), shared.offsets.aux_id);
	} else if (op == shared.operations[KIND_LINK]) {
		out.kind = KIND_LINK;
		out.id = read_at(object, shared.offsets.link_id);
	} else if (op == shared.operations[KIND_PERF]) {
		out.kind = KIND_PERF;
		out.id = ctx->fd;
	} else {
		return 0;
	}
	out.tgid = read_at(task, shared.offsets.task_tgid);
	leader = read_at(task, shared.offsets.task_leader);
	bpf_probe_read_kernel_str(out.comm, sizeof(out.comm), (void *)(leader + shared.offsets.task_comm));
	bpf_seq_write(ctx->meta->seq, &out, sizeof(out));
	return 0;
}

/* bpf_probe_read_kernel and bpf_seq_write are for programs under the GPL. */
char LICENSE[] SEC("license") = "GPL";
