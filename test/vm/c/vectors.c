// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0

/*
 * Two threads on one processor fill vector registers, each with a different number, and check again and again that the
 * registers still hold it. The program exits with 1 if a register does not, and otherwise with 0 after argv[1] seconds.
 */

#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#ifdef __AVX512F__
#define FILL "vpbroadcastq %0, %%zmm1\n\tvpbroadcastq %0, %%zmm31\n\tkmovw %k0, %%k5\n\t"
#define KEEP "vmovdqu64 %%zmm1, %2\n\tvmovdqu64 %%zmm31, %3\n\tkmovw %%k5, %k1\n\t"
#define CLOBBERS "zmm1", "zmm31", "k5"
#define REST(n) ((n) & 0xffff)
#else
#define FILL "vmovq %0, %%xmm1\n\tvpbroadcastq %%xmm1, %%ymm1\n\tvmovdqa %%ymm1, %%ymm15\n\t"
#define KEEP "vmovdqu %%ymm1, %2\n\tvmovdqu %%ymm15, %3\n\tmov %0, %1\n\t"
#define CLOBBERS "ymm1", "ymm15"
#define REST(n) (n)
#endif

typedef struct {
	unsigned long word[sizeof(void *) * 8 / 8];
} vector;

static time_t end;

static void *check(void *arg)
{
	unsigned long mine = (unsigned long)arg, rest;
	while (time(0) < end) {
		vector a = {{0}}, b = {{0}};
		unsigned long spins = 20000000;
		__asm__ volatile(FILL "1: dec %4\n\tjnz 1b\n\t" KEEP
				 : "+r"(mine), "=&r"(rest), "=m"(a), "=m"(b), "+r"(spins)::CLOBBERS, "memory");
#ifdef __AVX512F__
		int words = 8;
#else
		int words = 4;
#endif
		if ((rest & REST(~0ul)) != REST(mine))
			_exit(1);
		for (int i = 0; i < words; i++)
			if (a.word[i] != mine || b.word[i] != mine)
				_exit(1);
	}
	return 0;
}

int main(int argc, char **argv)
{
	pthread_t other;
	end = time(0) + (argc > 1 ? atoi(argv[1]) : 1);
	if (pthread_create(&other, 0, check, (void *)0x1111111111115a5aul))
		return 2;
	check((void *)0x222222222222a5a5ul);
	pthread_join(other, 0);
	return 0;
}
