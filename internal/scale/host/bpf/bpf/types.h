/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */

/* bpf_helpers.h, after the types that it needs: the headers that define them differ from machine to machine. */
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
