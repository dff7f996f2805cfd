// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0

/*
 * Two iterators report what nothing else reports, or what all other ways report at a much higher cost:
 *
 *  - which control group the kernel charges for a map: neither the info call nor fdinfo contains it;
 *  - which processes hold which programs, maps and links: the alternative is to read every link in /proc/<pid>/fd.
 *
 * Everything else is read by id, which needs no program of ours and costs less.
 *
 * Structs of the kernel are read through CO-RE relocations: the loader finds the offsets of their fields in the running
 * kernel.
 */

#include "types.h"
#include <bpf/bpf_core_read.h>

/* The fields of the kernel's types that are read. */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct kernfs_node {
	__u64 id;
};
struct cgroup {
	struct kernfs_node *kn;
};
struct cgroup_subsys_state {
	struct cgroup *cgroup;
};
struct mem_cgroup {
	struct cgroup_subsys_state css;
};
struct obj_cgroup {
	struct mem_cgroup *memcg;
};
struct bpf_map {
	__u32 id;
	struct obj_cgroup *objcg; /* since 5.18 */
	struct mem_cgroup *memcg; /* 5.11 to 5.17 */
};
struct bpf_prog_aux {
	__u32 id;
};
struct bpf_prog {
	struct bpf_prog_aux *aux;
};
struct bpf_link {
	__u32 id;
};
struct file {
	void *f_op;
	void *private_data;
};
struct task_struct {
	int tgid;
	struct task_struct *group_leader;
	char comm[16];
};
#pragma clang attribute pop

/* The kinds of files that the holders iterator reports. */
enum kind {
	KIND_MAP,
	KIND_PROG,
	KIND_LINK,
	KIND_PERF,
	KINDS,
};

/*
 * The kind of a file is known by the address of its operations. The iterator learns these addresses from one descriptor
 * of each kind that the reader opens, so that it need not trust names or kernel symbols.
 */
struct samples {
	__u32 tgid; /* 0: report; else learn from the descriptors of this process */
	__u32 fd[KINDS];
};

/* All that is shared with the loader: the value of one map. */
struct state {
	struct samples samples;
	__u64 operations[KINDS]; /* struct file_operations, by address */
};

struct state shared SEC(".data.shared");

/* What the iterators write. */
struct map_charge {
	__u32 map_id;
	__u32 known;     /* 0: the pointers to the group could not be followed */
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
 * These make bpf2go generate Go types for the records. No program refers to the section that they are in, so it is
 * never loaded.
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

/* Reads a context's pointer as a plain number: the verifier does not restrict what is computed from numbers. */
static __always_inline void *pointer_at(const __u64 *field)
{
	__u64 v = 0;

	bpf_probe_read_kernel(&v, sizeof(v), field);
	return (void *)v;
}

SEC("iter/bpf_map")
int tare_maps(struct map_context *ctx)
{
	struct bpf_map *map = pointer_at(&ctx->map);
	struct map_charge out = {};
	struct obj_cgroup *objcg;
	struct mem_cgroup *memcg;
	void *owner;

	if (!map)
		return 0;
	out.map_id = BPF_CORE_READ(map, id);
	if (bpf_core_field_exists(map->objcg)) {
		owner = objcg = BPF_CORE_READ(map, objcg);
		memcg = objcg ? BPF_CORE_READ(objcg, memcg) : 0;
	} else {
		owner = memcg = BPF_CORE_READ(map, memcg);
	}
	if (memcg)
		out.cgroup_id = BPF_CORE_READ(memcg, css.cgroup, kn, id);
	out.known = !owner || out.cgroup_id;
	bpf_seq_write(ctx->meta->seq, &out, sizeof(out));
	return 0;
}

SEC("iter/task_file")
int tare_holders(struct file_context *ctx)
{
	struct task_struct *task = pointer_at(&ctx->task);
	struct file *file = pointer_at(&ctx->file);
	struct held out = {};
	void *object;
	__u64 op;
	__u32 i;

	if (!task || !file)
		return 0;
	op = (__u64)BPF_CORE_READ(file, f_op);
	out.tgid = BPF_CORE_READ(task, tgid);
	if (shared.samples.tgid) {
		if (out.tgid != shared.samples.tgid)
			return 0;
#pragma unroll
		for (i = 0; i < KINDS; i++) {
			if (shared.samples.fd[i] == ctx->fd)
				shared.operations[i] = op;
		}
		return 0;
	}

	object = BPF_CORE_READ(file, private_data);
	if (op == shared.operations[KIND_MAP]) {
		out.kind = KIND_MAP;
		out.id = BPF_CORE_READ((struct bpf_map *)object, id);
	} else if (op == shared.operations[KIND_PROG]) {
		out.kind = KIND_PROG;
		out.id = BPF_CORE_READ((struct bpf_prog *)object, aux, id);
	} else if (op == shared.operations[KIND_LINK]) {
		out.kind = KIND_LINK;
		out.id = BPF_CORE_READ((struct bpf_link *)object, id);
	} else if (op == shared.operations[KIND_PERF]) {
		out.kind = KIND_PERF;
		out.id = ctx->fd;
	} else {
		return 0;
	}
	BPF_CORE_READ_STR_INTO(&out.comm, task, group_leader, comm);
	bpf_seq_write(ctx->meta->seq, &out, sizeof(out));
	return 0;
}

/* bpf_probe_read_kernel and bpf_seq_write are for programs under the GPL. */
char LICENSE[] SEC("license") = "GPL";
