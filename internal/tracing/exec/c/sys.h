// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0

/*
 * System calls without a C library, for x86_64 and aarch64. The programs use no library, global variable or string, so
 * that they consist only of their machine code (package freestanding makes the executables).
 */

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long u64;
typedef long s64;

#if defined(__x86_64__)
#define SYS_read 0
#define SYS_write 1
#define SYS_close 3
#define SYS_mmap 9
#define SYS_rt_sigaction 13
#define SYS_rt_sigprocmask 14
#define SYS_clone 56
#define SYS_exit 60
#define SYS_wait4 61
#define SYS_getrusage 98
#define SYS_getppid 110
#define SYS_prctl 157
#define SYS_sched_setaffinity 203
#define SYS_clock_gettime 228
#define SYS_clock_nanosleep 230
#define SYS_execveat 322

static inline s64 sys6(s64 n, s64 a, s64 b, s64 c, s64 d, s64 e, s64 f)
{
	register s64 r10 __asm__("r10") = d;
	register s64 r8 __asm__("r8") = e;
	register s64 r9 __asm__("r9") = f;
	s64 ret;

	__asm__ volatile("syscall"
		: "=a"(ret)
		: "0"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
		: "rcx", "r11", "memory");
	return ret;
}

/* At a program's entry rsp is a multiple of 16. A function expects rsp + 8 to be one, as it is after a call. */
#define ENTRY __attribute__((noreturn, used, force_align_arg_pointer))

#elif defined(__aarch64__)
#define SYS_close 57
#define SYS_read 63
#define SYS_write 64
#define SYS_exit 93
#define SYS_clock_gettime 113
#define SYS_clock_nanosleep 115
#define SYS_sched_setaffinity 122
#define SYS_rt_sigaction 134
#define SYS_rt_sigprocmask 135
#define SYS_getrusage 165
#define SYS_prctl 167
#define SYS_getppid 173
#define SYS_clone 220
#define SYS_mmap 222
#define SYS_wait4 260
#define SYS_execveat 281

static inline s64 sys6(s64 n, s64 a, s64 b, s64 c, s64 d, s64 e, s64 f)
{
	register s64 x8 __asm__("x8") = n;
	register s64 x0 __asm__("x0") = a;
	register s64 x1 __asm__("x1") = b;
	register s64 x2 __asm__("x2") = c;
	register s64 x3 __asm__("x3") = d;
	register s64 x4 __asm__("x4") = e;
	register s64 x5 __asm__("x5") = f;

	__asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
	return x0;
}

#define ENTRY __attribute__((noreturn, used))

#else
#error "this machine's system calls are not known here"
#endif

#define sys1(n, a) sys6(n, (s64)(a), 0, 0, 0, 0, 0)
#define sys2(n, a, b) sys6(n, (s64)(a), (s64)(b), 0, 0, 0, 0)
#define sys3(n, a, b, c) sys6(n, (s64)(a), (s64)(b), (s64)(c), 0, 0, 0)
#define sys4(n, a, b, c, d) sys6(n, (s64)(a), (s64)(b), (s64)(c), (s64)(d), 0, 0)
#define sys5(n, a, b, c, d, e) sys6(n, (s64)(a), (s64)(b), (s64)(c), (s64)(d), (s64)(e), 0)

static inline __attribute__((noreturn)) void quit(int code)
{
	for (;;)
		sys1(SYS_exit, code);
}
