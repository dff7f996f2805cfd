// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * For the test TestTorn: reads a value whose words are all the same, with a pause in the middle as long as an interrupt
 * can make it, and returns how many words differ. bpf/value.h uses the maps that it does because of the results.
 */
#include "store.h"

char LICENSE[] SEC("license") = "GPL";

#define WORDS 64

struct plain {
	__u64 words[WORDS];
};

struct locked {
	struct bpf_spin_lock lock;
	__u32 zero;
	__u64 words[WORDS];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16);
	__type(key, __u32);
	__type(value, struct plain);
} torn_hash SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16);
	__type(key, __u32);
	__type(value, struct plain);
} torn_prealloc SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct plain);
} torn_array SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct locked);
} torn_locked SEC(".maps");

static __always_inline int differ(volatile __u64 *words)
{
	__u64 first = words[0];
	int n = 0;

	for (int i = 0; i < WORDS; i++) {
		n += words[i] != first;
		if (i == WORDS / 2) {
			for (int j = 0; j < 20000; j++)
				asm volatile("" ::: "memory");
		}
	}
	return n;
}

#define READ(name)                                              \
	SEC("tc") int read_##name(struct __sk_buff *skb)        \
	{                                                       \
		__u32 zero = 0;                                 \
		struct plain *v = bpf_map_lookup_elem(&torn_##name, &zero); \
                                                                \
		return v ? differ(v->words) : -1;               \
	}

READ(hash)
READ(prealloc)
READ(array)

SEC("tc") int read_locked(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct locked *v = bpf_map_lookup_elem(&torn_locked, &zero);
	int n;

	if (!v)
		return -1;
	bpf_spin_lock(&v->lock);
	n = differ(v->words);
	bpf_spin_unlock(&v->lock);
	return n;
}
