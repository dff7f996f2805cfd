/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The stores naive and pooled. Each record is the only element of an array map, and a map of maps holds that map by
 * the record's key. Record 0 is for user space: in naive it holds the free keys. The loader sets the sizes of the
 * maps.
 */
#ifndef TARE_MAPINMAP_H
#define TARE_MAPINMAP_H

#include <stddef.h>
#include "store.h"

#define MIM_VALUE 1300
#define REC_SLOTS 162

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct {
		__uint(type, BPF_MAP_TYPE_ARRAY);
		__uint(max_entries, 1);
		__type(key, __u32);
		__uint(value_size, MIM_VALUE); /* with __type, BTF would have only the type's name, not its size */
	});
} mim_records SEC(".maps");

struct mim_listener_key { __u64 words[5]; };
struct mim_cluster_key { char name[192]; };
struct mim_top { char bytes[64]; };

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct mim_listener_key);
	__type(value, struct mim_top);
} mim_listeners SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct mim_cluster_key);
	__type(value, struct mim_top);
} mim_clusters SEC(".maps");

static __always_inline void *mim_record(__u32 key)
{
	__u32 first = 0;
	void *inner;

	if (!key)
		return NULL;
	inner = bpf_map_lookup_elem(&mim_records, &key);
	if (!inner)
		return NULL;
	return bpf_map_lookup_elem(inner, &first);
}

#define REC_LISTENERS mim_listeners
#define REC_CLUSTERS mim_clusters
#define REC_MESSAGE(key) mim_record(key)
#define REC_STRING(key) mim_record(key)
#define REC_REPEATED(key) mim_record(key)

#include "records.h"

#endif
