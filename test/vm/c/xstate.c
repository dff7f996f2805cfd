// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0

/*
 * A kernel in user mode keeps the vector registers of its processes in buffers that hold AVX, with ptrace
 * (struct _xstate in arch/x86/um/os-Linux/registers.c, up to Linux 6.12). The host reads into a buffer of any size, but
 * takes back nothing less than all that its processor has (xstateregs_set in arch/x86/kernel/fpu/regset.c): on one with
 * AVX-512 no process can run. This library, which is loaded before the others (LD_PRELOAD), stands between the two: it
 * keeps what does not fit into a buffer, by the buffer's address, and puts it back.
 *
 * The kernel in user mode asks from one thread alone.
 */

typedef unsigned long u64;

#define SYS_mmap 9
#define SYS_ptrace 101
#define PTRACE_PEEKUSR 3
#define PTRACE_GETREGSET 0x4204
#define PTRACE_SETREGSET 0x4205
#define NT_X86_XSTATE 0x202
#define EIO 5
#define ENOMEM 12

struct iovec {
	void *base;
	u64 len;
};

#define STATE_MAX 16384 /* bytes; 11008 with AVX-512 and AMX */
#define HEADER 512      /* where the bits of the components that are in use are */
#define FITS 7          /* of these: x87, SSE, AVX */
#define SLOTS 16384     /* processes and threads at a time, a power of 2 */

struct slot {
	void *buffer;
	char state[STATE_MAX];
};

extern int *__errno_location(void);

static struct slot *slots; /* by a hash of the buffer's address */
static char state[STATE_MAX];

static long call(long n, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
	__asm__ volatile("syscall"
			 : "+a"(n)
			 : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return n;
}

static long fail(long error)
{
	*__errno_location() = error;
	return -1;
}

static void copy(void *to, const void *from, u64 n)
{
	__asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n)::"memory");
}

static struct slot *find(void *buffer)
{
	if (!slots) { /* zeroes that take memory only where they are written to */
		long at = call(SYS_mmap, 0, SLOTS * sizeof(struct slot), 3, 0x4022, -1, 0);
		if (at < 0)
			return 0;
		slots = (struct slot *)at;
	}
	u64 h = (u64)buffer / 64 * 0x9e3779b97f4a7c15u >> 32;
	for (u64 i = 0; i < SLOTS; i++) {
		struct slot *s = &slots[(h + i) % SLOTS];
		if (!s->buffer || s->buffer == buffer)
			return s;
	}
	return 0;
}

static long get(long pid, struct iovec *want)
{
	struct iovec all = {state, STATE_MAX};
	struct slot *s = find(want->base);
	if (!s)
		return fail(ENOMEM);
	long r = call(SYS_ptrace, PTRACE_GETREGSET, pid, NT_X86_XSTATE, (long)&all, 0, 0);
	if (r < 0)
		return fail(-r);
	if (want->len > all.len)
		want->len = all.len;
	copy(want->base, state, want->len);
	s->buffer = want->base;
	copy(s->state, state, all.len);
	return 0;
}

static long set(long pid, struct iovec *want)
{
	struct iovec all = {state, STATE_MAX};
	struct slot *s = find(want->base);
	if (!s)
		return fail(ENOMEM);
	/* How much the host takes; and what is there is right for a process that was never asked for its own. */
	long r = call(SYS_ptrace, PTRACE_GETREGSET, pid, NT_X86_XSTATE, (long)&all, 0, 0);
	if (r < 0)
		return fail(-r);
	if (want->len > all.len)
		return fail(EIO);
	if (s->buffer)
		copy(state, s->state, all.len);
	u64 *used = (u64 *)(state + HEADER), beyond = *used & ~(u64)FITS;
	copy(state, want->base, want->len);
	*used = (*used & FITS) | beyond;
	r = call(SYS_ptrace, PTRACE_SETREGSET, pid, NT_X86_XSTATE, (long)&all, 0, 0);
	return r < 0 ? fail(-r) : 0;
}

/* The C library's, which for the three requests to peek returns what is there. */
long ptrace(int request, ...)
{
	__builtin_va_list list;
	__builtin_va_start(list, request);
	long pid = __builtin_va_arg(list, int);
	long address = __builtin_va_arg(list, long);
	long data = __builtin_va_arg(list, long);
	__builtin_va_end(list);
	if (address == NT_X86_XSTATE && request == PTRACE_GETREGSET)
		return get(pid, (struct iovec *)data);
	if (address == NT_X86_XSTATE && request == PTRACE_SETREGSET)
		return set(pid, (struct iovec *)data);
	long word = 0;
	int peeks = request > 0 && request <= PTRACE_PEEKUSR;
	long r = call(SYS_ptrace, request, pid, address, peeks ? (long)&word : data, 0, 0);
	if (r < 0)
		return fail(-r);
	return peeks ? word : r;
}
