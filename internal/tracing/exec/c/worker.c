// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0

/*
 * Executes a program again and again, and counts exactly how often. By default, one such process runs on each CPU. The
 * role (exec.go) starts these workers, and reads their counts in the memory that it shares with each of them.
 *
 * It is written in C, without a library, because the cost of an exec begins with the process that makes it: a fork of a
 * Go program copies page tables of many megabytes, and its runtime has threads that would have to be stopped. The
 * worker's memory is a few pages, which it shares with the child until the child executes (CLONE_VM | CLONE_VFORK, as
 * posix_spawn does).
 */

#include "sys.h"

#define LAYOUT 0x7461726500000002 /* "tare", and a number that changes with struct shared */

#define CLOCK_MONOTONIC 1
#define CLOCK_PROCESS_CPUTIME_ID 2
#define TIMER_ABSTIME 1
#define PROT_READ 1
#define PROT_WRITE 2
#define MAP_SHARED 1
#define MAP_POPULATE 0x8000
#define PR_SET_NAME 15
#define PR_SET_TIMERSLACK 29
#define RUSAGE_CHILDREN (-1)
#define SIG_SETMASK 2
#define SIGCHLD 17
#define CLONE_VM 0x100
#define CLONE_VFORK 0x4000
#define AT_EMPTY_PATH 0x1000

/* Descriptors from the role. The first is the file of this program, from which it was started. */
#define FD_SELF 3
#define FD_SHARED 4
#define FD_TARGET 5

#define SECOND 1000000000ul
#define LONGEST (100 * SECOND) /* ns; longer times count as this one */
#define NAP (20 * SECOND / 1000) /* the longest sleep between two checks of the stop flag, ns */

/*
 * Histograms have the layout of HdrHistogram, with lowest value 1 and highest value LONGEST; they have 3 significant
 * digits, and 2 for slices.
 */
#define FINE_BITS 10
#define FINE 28672
#define COARSE_BITS 7
#define COARSE 3968
#define SLICES 20
#define CODES 256

enum state {
	STATE_READY = 1,
	STATE_DONE,    /* the schedule is over */
	STATE_STOPPED, /* the role stopped it before that */
	STATE_LAYOUT,  /* the role was compiled with a different struct shared, or the CPU's number is too large */
	STATE_ORPHAN,  /* the role had ended before the worker began */
	STATE_FAILED,  /* a system call failed that never should: step is its number, and error the errno */
};

enum kind { KIND_CLONE, KIND_EXEC, KIND_KILLED, KIND_EXITED, KINDS };

struct fine {
	u64 n, sum;
	u64 counts[FINE];
};

struct coarse {
	u64 n;
	u64 counts[COARSE];
};

/* The memory that the role and a worker share. Times are ns of CLOCK_MONOTONIC. `shared` in shared.go is the same. */
struct shared {
	/* Set by the role before it starts the worker. */
	u64 layout;
	u64 size;
	u64 parent; /* process id of the role */
	u64 cpu;    /* number of the CPU to run on */
	u8 name[16];
	u8 argv0[16];
	u8 argv1[64]; /* "<worker>.", room for a number, and zero to the end */

	/* Set by the role before it starts the work. */
	u64 rate; /* starts per 1,000 seconds over all workers; 0: as fast as possible */
	u64 part, parts; /* this worker is number part of parts */
	u64 begin, warm, end;
	u64 spin; /* how long the worker spins before an exec at most, ns */

	/* Set by the role at any time. */
	u64 stop;

	/* Set by the worker. */
	u64 state;
	u64 step, error;
	u64 made, failed; /* since the start */
	u64 intended, sent, done, late; /* of the execs that were intended in the window */
	u64 finished; /* execs that ended in the window, whenever they were intended */
	u64 cpu_before, cpu_after; /* CPU time of the worker and its children before and after the window's execs, ns */
	u64 child_error; /* errno of execveat in the child, which shares this memory */
	u64 errors[KINDS][CODES]; /* failures of execs that were intended in the window */
	struct fine latency, service, lag, own_lag;
	struct coarse slices[SLICES];
};

struct timespec {
	s64 sec, nsec;
};

static u64 clock(int which)
{
	struct timespec t;

	sys2(SYS_clock_gettime, which, &t);
	return (u64)t.sec * SECOND + (u64)t.nsec;
}

static u64 now(void)
{
	return clock(CLOCK_MONOTONIC);
}

/* The CPU time of this process, and of the children that it has reaped, ns. */
static u64 cpu_time(void)
{
	struct {
		s64 user_sec, user_usec, system_sec, system_usec, rest[14];
	} u;

	sys2(SYS_getrusage, RUSAGE_CHILDREN, &u);
	return clock(CLOCK_PROCESS_CPUTIME_ID) + (u64)(u.user_sec + u.system_sec) * SECOND +
		(u64)(u.user_usec + u.system_usec) * 1000;
}

static void count(u64 *counts, int bits, u64 ns)
{
	int bucket;

	if (ns < 1)
		ns = 1;
	if (ns > LONGEST)
		ns = LONGEST;
	bucket = 63 - __builtin_clzl(ns | ((2ul << bits) - 1)) - bits;
	counts[((u64)bucket << bits) + (ns >> bucket)]++;
}

static void record(struct fine *h, u64 ns)
{
	h->n++;
	h->sum += ns;
	count(h->counts, FINE_BITS, ns);
}

/* Records the final state and ends the process. */
static __attribute__((noreturn)) void finish(struct shared *s, enum state state, u64 step, s64 error)
{
	s->step = step;
	s->error = (u64)error;
	__atomic_store_n(&s->state, state, __ATOMIC_RELEASE);
	quit(state == STATE_DONE || state == STATE_STOPPED ? 0 : 1);
}

static int stopped(struct shared *s)
{
	return __atomic_load_n(&s->stop, __ATOMIC_RELAXED) != 0;
}

/*
 * Waits until a time or the stop, and returns the time then. Like pace.Thread, it learns how late the kernel wakes it,
 * asks to be woken that much earlier, and spins for the rest: the margin settles at a value that one wake-up in ten
 * exceeds.
 */
static u64 wait_until(struct shared *s, u64 at, u64 *margin)
{
	const u64 step = 250; /* ns */

	for (;;) {
		u64 t = now(), wake = at - *margin;
		struct timespec ts;

		if (t >= at || stopped(s))
			return t;
		if (wake <= t)
			continue;
		if (wake - t > NAP)
			wake = t + NAP;
		ts.sec = (s64)(wake / SECOND);
		ts.nsec = (s64)(wake % SECOND);
		sys4(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, 0);
		t = now();
		if (t > wake + *margin)
			*margin = *margin + 9 * step < s->spin ? *margin + 9 * step : s->spin;
		else
			*margin = *margin > step ? *margin - step : 0;
	}
}

/* The child's arguments, in the parent's memory, which the child shares. */
struct order {
	struct shared *s;
	const u8 **argv, **envp;
};

/* The child. It has a separate stack, because the parent's must be unchanged when the parent continues. */
static __attribute__((noreturn, used)) void child(struct order *o)
{
	/* The path is empty: it is the zero byte that ends argv[0]. */
	s64 r = sys5(SYS_execveat, FD_TARGET, o->s->argv0 + sizeof(o->s->argv0) - 1, o->argv, o->envp, AT_EMPTY_PATH);

	__atomic_store_n(&o->s->child_error, (u64)-r, __ATOMIC_RELAXED);
	quit(127);
}

/* Starts the child, and returns when the child has executed or ended. Returns its process id, or a negative errno. */
static s64 spawn(struct order *o, u8 *stack_top)
{
	const u64 flags = CLONE_VM | CLONE_VFORK | SIGCHLD;
#if defined(__x86_64__)
	register s64 r10 __asm__("r10") = 0;
	register void *r8 __asm__("r8") = (void *)child; /* clone does not use it with these flags */
	register void *r9 __asm__("r9") = o;
	s64 ret;

	__asm__ volatile("syscall\n\t"
			 "test %%rax, %%rax\n\t"
			 "jnz 1f\n\t"
			 "xor %%ebp, %%ebp\n\t"
			 "mov %%r9, %%rdi\n\t"
			 "call *%%r8\n"
			 "1:"
			 : "=a"(ret)
			 : "0"((s64)SYS_clone), "D"(flags), "S"(stack_top), "d"(0l), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory", "cc");
	return ret;
#else
	register s64 x8 __asm__("x8") = SYS_clone;
	register s64 x0 __asm__("x0") = (s64)flags;
	register void *x1 __asm__("x1") = stack_top;
	register s64 x2 __asm__("x2") = 0;
	register s64 x3 __asm__("x3") = 0;
	register s64 x4 __asm__("x4") = 0;
	register void *x5 __asm__("x5") = (void *)child;
	register void *x6 __asm__("x6") = o;

	__asm__ volatile("svc #0\n\t"
			 "cbnz x0, 1f\n\t"
			 "mov x29, #0\n\t"
			 "mov x0, x6\n\t"
			 "blr x5\n"
			 "1:"
			 : "+r"(x0)
			 : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5), "r"(x6)
			 : "memory", "cc", "x30");
	return x0;
#endif
}

/* Writes a number in decimal digits, followed by a zero byte. */
static void print(u8 *to, u64 n)
{
	u8 digits[20];
	int i = 0;

	do {
		digits[i++] = (u8)('0' + n % 10);
		n /= 10;
	} while (n);
	while (i)
		*to++ = digits[--i];
	*to = 0;
}

/* Makes one attempt. Returns true if the program was executed; otherwise kind and code give the reason. */
static int attempt(struct shared *s, struct order *o, u8 *stack_top, u64 *done, int *kind, u64 *code)
{
	int status = 0;
	s64 pid, waited;

	__atomic_store_n(&s->child_error, 0, __ATOMIC_RELAXED);
	pid = spawn(o, stack_top);
	if (pid < 0) {
		*done = now();
		*kind = KIND_CLONE;
		*code = (u64)-pid;
		return 0;
	}
	waited = sys4(SYS_wait4, pid, &status, 0, 0);
	/*
	 * The time is read only now, because the kernel resumes this process as soon as the child has released its memory, in
	 * the middle of the exec. Programs attached to the exec run after that, and their time belongs to the exec.
	 */
	*done = now();
	if (waited != pid)
		finish(s, STATE_FAILED, SYS_wait4, waited < 0 ? -waited : 0);
	*code = __atomic_load_n(&s->child_error, __ATOMIC_RELAXED);
	*kind = KIND_EXEC;
	if (*code)
		return 0;
	/*
	 * If an exec fails after the point of no return, the kernel kills the child. A signal from elsewhere after the exec
	 * looks the same.
	 */
	*kind = KIND_KILLED;
	*code = (u64)status & 0x7f;
	if (*code)
		return 0;
	*kind = KIND_EXITED;
	*code = ((u64)status >> 8) & 0xff;
	return *code == 0;
}

/* Makes execs on the schedule. */
static void run(struct shared *s)
{
	u8 stack[8192] __attribute__((aligned(16)));
	const u8 *argv[3] = {s->argv0, s->argv1, 0}, *envp[1] = {0};
	struct order o = {s, argv, envp};
	u64 window = s->end - s->warm, margin = s->spin / 2, sequence = 0, idle_since = 0;
	u64 next = 0, step = 0, rest = 0, fraction = 0;
	u8 *number = s->argv1;
	int measuring = 0, over = 0;

	while (*number)
		number++;
	if (s->rate) {
		/*
		 * This worker's k-th start is number part + k * parts of all workers' starts. The computation uses integers and keeps
		 * the remainder, so that a gap of 1/3 ms does not drift.
		 */
		step = s->parts * 1000 * SECOND / s->rate;
		rest = s->parts * 1000 * SECOND % s->rate;
		next = s->begin + s->part * 1000 * SECOND / s->rate;
		fraction = s->part * 1000 * SECOND % s->rate;
	}
	wait_until(s, s->begin, &margin);
	for (;;) {
		u64 intended, sent, done, code, free = idle_since;
		int kind, counts;

		if (s->rate) {
			intended = next;
			next += step;
			fraction += rest;
			if (fraction >= s->rate) {
				fraction -= s->rate;
				next++;
			}
		} else {
			intended = now();
		}
		if (stopped(s))
			finish(s, STATE_STOPPED, 0, 0);
		if (intended >= s->end)
			break;
		counts = intended >= s->warm;
		if (counts && !measuring) {
			measuring = 1;
			s->cpu_before = cpu_time();
		}
		s->intended += (u64)counts;
		if (over)
			continue; /* the window ended before this exec could be sent: it counts only as intended */
		sent = s->rate ? wait_until(s, intended, &margin) : intended;
		if (stopped(s))
			finish(s, STATE_STOPPED, 0, 0);
		if (sent >= s->end) {
			over = 1;
			continue;
		}
		print(number, sequence++);
		if (attempt(s, &o, stack + sizeof(stack), &done, &kind, &code)) {
			s->made++;
			s->finished += done >= s->warm && done < s->end;
			if (counts) {
				s->done++;
				s->late += done > s->end;
				record(&s->latency, done - intended);
				record(&s->service, done - sent);
				struct coarse *slice = &s->slices[(intended - s->warm) * SLICES / window];
				slice->n++;
				count(slice->counts, COARSE_BITS, done - intended);
			}
		} else {
			s->failed++;
			if (counts)
				s->errors[kind][code < CODES ? code : CODES - 1]++;
		}
		idle_since = done;
		if (counts) {
			s->sent++;
			if (s->rate) {
				record(&s->lag, sent - intended);
				record(&s->own_lag, sent - (free > intended ? free : intended));
			}
		}
	}
	if (!measuring)
		s->cpu_before = cpu_time();
	s->cpu_after = cpu_time();
	finish(s, STATE_DONE, 0, 0);
}

/*
 * Sets the signal state that a program expects. Children would inherit what this process inherits from the role, such
 * as ignored signals.
 */
static void reset_signals(void)
{
	u64 none = 0, fallback[4] = {0, 0, 0, 0};
	int i;

	for (i = 1; i <= 64; i++)
		sys4(SYS_rt_sigaction, i, fallback, 0, sizeof(none));
	sys4(SYS_rt_sigprocmask, SIG_SETMASK, &none, 0, sizeof(none));
}

ENTRY void _start(void)
{
	struct shared *s = (struct shared *)sys6(SYS_mmap, 0, sizeof(struct shared), PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_POPULATE, FD_SHARED, 0);
	u64 cpus[128];
	s64 r;
	u32 i;
	u8 byte = 1;

	if ((u64)s > -4096ul)
		quit(2);
	if (s->layout != LAYOUT || s->size != sizeof(*s))
		finish(s, STATE_LAYOUT, 0, 0);
	/* This process asked for the signal of its parent's death; the parent may have died before that. */
	if ((u64)sys1(SYS_getppid, 0) != s->parent)
		finish(s, STATE_ORPHAN, 0, 0);
	reset_signals();
	sys1(SYS_close, FD_SELF);
	sys1(SYS_close, FD_SHARED);
	sys2(SYS_prctl, PR_SET_NAME, s->name);
	r = sys2(SYS_prctl, PR_SET_TIMERSLACK, 1);
	if (r < 0)
		finish(s, STATE_FAILED, SYS_prctl, -r);
	for (i = 0; i < sizeof(cpus) / sizeof(*cpus); i++)
		((volatile u64 *)cpus)[i] = 0;
	if (s->cpu >= 8 * sizeof(cpus))
		finish(s, STATE_LAYOUT, 0, 0);
	cpus[s->cpu / 64] |= 1ul << s->cpu % 64;
	r = sys3(SYS_sched_setaffinity, 0, sizeof(cpus), cpus);
	if (r < 0)
		finish(s, STATE_FAILED, SYS_sched_setaffinity, -r);
	__atomic_store_n(&s->state, STATE_READY, __ATOMIC_RELEASE);
	/* Write a byte to report readiness, and read one that starts the work. If the pipe ends, the role has ended. */
	sys3(SYS_write, 1, &byte, 1);
	if (sys3(SYS_read, 0, &byte, 1) != 1)
		finish(s, STATE_STOPPED, 0, 0);
	run(s);
	quit(2);
}
