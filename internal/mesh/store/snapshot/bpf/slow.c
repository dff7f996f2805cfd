// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * The program ask with a pause between reading the root and following it, for tests of what a program sees if a change
 * is made during the pause.
 */
#include "store.h"

const volatile __u32 steps = 0;

/* How many runs have begun to pause, and how many have finished. */
__u64 stopped = 0;
__u64 went_on = 0;

static long step(__u32 index, void *state)
{
	*(__u64 *)state += index;
	return 0;
}

static __always_inline void stand_still(void)
{
	__u64 state = 0;

	__sync_fetch_and_add(&stopped, 1);
	bpf_loop(steps, step, &state, 0);
	__sync_fetch_and_add(&went_on, 1);
}

#define SS_PAUSE() stand_still()

#include "ask.c"
