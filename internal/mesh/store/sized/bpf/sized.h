/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The store sized: records in flat hash maps, one for each size class. A key is the class in the upper 8 bits, and an
 * index in the lower 24. The loader sets the sizes of the maps.
 */
#ifndef TARE_SIZED_H
#define TARE_SIZED_H

#include <stddef.h>
#include "store.h"

#define REC_SLOTS 200

struct sized_64 { char bytes[64]; };
struct sized_192 { char bytes[192]; };
struct sized_296 { char bytes[296]; };
struct sized_1600 { char bytes[1600]; };

#define SIZED_CLASS(name, size)                        \
	struct {                                       \
		__uint(type, BPF_MAP_TYPE_HASH);       \
		__uint(map_flags, BPF_F_NO_PREALLOC);  \
		__uint(max_entries, 1);                \
		__type(key, __u32);                    \
		__type(value, struct size);            \
	} name SEC(".maps")

SIZED_CLASS(sized_small, sized_64);
SIZED_CLASS(sized_strings, sized_192);
SIZED_CLASS(sized_large, sized_296); /* for messages above 64 bytes, which no supported configuration has */
SIZED_CLASS(sized_arrays, sized_1600);

#define REC_LISTENERS sized_listeners
#define REC_CLUSTERS sized_clusters
#define REC_MESSAGE(k) ({ __u32 rec_key = (k); bpf_map_lookup_elem(&sized_small, &rec_key); })
#define REC_STRING(k) ({ __u32 rec_key = (k); bpf_map_lookup_elem(&sized_strings, &rec_key); })
#define REC_REPEATED(k) ({ __u32 rec_key = (k); bpf_map_lookup_elem(&sized_arrays, &rec_key); })

struct sized_listener_key { __u64 words[5]; };
struct sized_cluster_key { char name[192]; };

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct sized_listener_key);
	__type(value, struct sized_64);
} sized_listeners SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct sized_cluster_key);
	__type(value, struct sized_64);
} sized_clusters SEC(".maps");

#include "records.h"

#endif
