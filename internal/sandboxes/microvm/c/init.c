// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0

/*
 * The first process of the guest. It decides nothing: what is mounted, which modules are loaded, how the container is
 * set up, all comes from the host, as plans. A plan is a list of system calls and their data. This program runs plans,
 * carries the streams of the one process that it starts, and reports how that process ended.
 *
 * argv[1] is the path of the first plan, which must leave descriptors of the four ports in registers 1 to 4: control,
 * standard input, standard output, standard error. Numbers are little-endian. agent.go and plan.go are the host's side.
 */

#include "../../../tracing/exec/c/sys.h"

typedef unsigned short u16;
typedef int s32;

#define SYS_open 2
#define SYS_poll 7
#define SYS_munmap 11
#define SYS_dup2 33
#define SYS_sendto 44
#define SYS_recvfrom 45
#define SYS_kill 62
#define SYS_setsid 112
#define SYS_reboot 169
#define SYS_faccessat 269
#define SYS_signalfd4 289
#define SYS_pipe2 293

#define EINTR 4
#define EAGAIN 11
#define ENOMEM 12
#define EINVAL 22
#define EPIPE 32
#define EPROTO 71
#define ETIMEDOUT 110

#define O_NONBLOCK 04000
#define O_CLOEXEC 02000000
#define POLLIN 1
#define POLLOUT 4
#define POLLERR 8
#define SIGKILL 9
#define SIGPIPE 13
#define SIGCHLD 17
#define SIG_BLOCK 0
#define SIG_UNBLOCK 1
#define SIG_SETMASK 2
#define WNOHANG 1
#define PROT_RW 3
#define MAP_PRIVATE_ANONYMOUS 0x22
#define F_SETFL 4
#define SYS_fcntl 72

/* A message consists of this header, followed by size bytes. */
struct header {
	u32 kind, size;
};

enum kind {
	MSG_PLAN = 1,  /* run a plan here */
	MSG_SPAWN = 2, /* a u64 of clone flags and a plan, which runs in a new process; the streams are that process's */
	MSG_GO = 3,    /* let that process continue after its OP_READY */
	MSG_SIGNAL = 4, /* u32 signal, u32 all: for the process, or for all processes here */
	MSG_POWEROFF = 5,
	MSG_HELLO = 100,  /* u32 version */
	MSG_RESULT = 101, /* struct result: the answer to any message up to MSG_SIGNAL */
	MSG_EXIT = 102,   /* u32 wait status of the process; its streams have ended */
};

#define VERSION 1
#define MESSAGE_MAX (4u << 20)

struct result {
	s32 index; /* of the instruction that failed; -1 if none did */
	s32 error; /* its errno */
};

/* Operations of an instruction, other than system calls. */
#define OP_WAIT_FILE 0x10000 /* path, milliseconds: wait until the file exists */
#define OP_NETLINK 0x10001   /* descriptor, message, length: send the message and wait for the kernel's answer */
#define OP_READY 0x10002     /* report that everything is set up, and wait for MSG_GO */

struct instruction {
	u32 number;
	u16 registers; /* bit i: argument i is the number of a register, and stands for that register's value */
	u8 into;       /* the register for the result; 0 for none */
	u8 unused;
	u32 skip;      /* number of instructions to skip if this one succeeds */
	u32 ignore[3]; /* values of errno that do not count as errors */
	u64 arguments[6];
};

/* A plan: this header, instructions, relocations (u32 offsets of u64 that hold offsets and become addresses), data. */
struct plan {
	u32 instructions, relocations;
};

#define REGISTERS 64

/* The child writes a result to its parent, with READY as the index, or the index of the instruction that failed. */
#define READY (-2)

#define CHUNK 32764 /* with the header of 4 bytes, the most that the kernel accepts in one write to a port */

/* A stream from the process. Data from its pipe waits here until the port accepts it as a frame. */
struct outward {
	s32 pipe, port; /* pipe is -1 before the process starts, and once the stream has ended */
	u32 have, sent; /* bytes in frame, and how many of them have been sent */
	s32 done;       /* the frame of length 0, which ends the stream, was added */
	u8 frame[4 + CHUNK];
};

/* The stream to the process. */
struct inward {
	s32 pipe, port;
	u32 left;       /* bytes of the current frame that have not arrived */
	u32 head, size; /* of the frame's header: bytes that have arrived, and the value so far */
	u32 from, to;   /* the range of buffer that is not yet in the pipe */
	s32 over;       /* the end of the stream has arrived */
	u8 buffer[CHUNK];
};

struct state {
	s64 reg[REGISTERS];
	s32 control, signals;
	s32 pid;    /* of the process; 0 before it starts, -1 after its end */
	s32 status; /* the wait status of the process */
	s32 report; /* pipe from the child, until it executes its program; -1 if there is none */
	s32 go;     /* pipe to the child */
	s32 owed;   /* an answer to MSG_SPAWN or MSG_GO has not been sent yet */
	s32 told;   /* MSG_EXIT has been sent */
	struct outward out[2];
	struct inward in;
};

struct pollfd {
	s32 fd;
	short events, revents;
};

static inline s64 sys0(s64 n) { return sys6(n, 0, 0, 0, 0, 0, 0); }

static void wait_for(s32 fd, short events)
{
	struct pollfd p = {fd, events, 0};

	sys3(SYS_poll, &p, 1, -1);
}

/* transfer reads or writes all size bytes, whether or not the descriptor blocks. It returns 0 or a negative errno. */
static s64 transfer(s64 call, s32 fd, void *at, u64 size)
{
	u8 *p = at;

	while (size > 0) {
		s64 n = sys3(call, fd, p, size);

		if (n == -EINTR)
			continue;
		if (n == -EAGAIN) {
			wait_for(fd, call == SYS_read ? POLLIN : POLLOUT);
			continue;
		}
		if (n <= 0)
			return n < 0 ? n : -EPIPE;
		p += n;
		size -= (u64)n;
	}
	return 0;
}

static void close_fd(s32 *fd)
{
	if (*fd >= 0)
		sys1(SYS_close, *fd);
	*fd = -1;
}

static __attribute__((noreturn)) void power_off(void)
{
	sys4(SYS_reboot, 0xfee1dead, 672274793, 0x4321fedc, 0); /* LINUX_REBOOT_CMD_POWER_OFF */
	quit(1);
}

static void say(struct state *s, u32 kind, void *body, u32 size)
{
	struct {
		struct header h;
		u8 body[8];
	} m;

	m.h.kind = kind;
	m.h.size = size;
	for (u32 i = 0; i < size && i < sizeof(m.body); i++)
		m.body[i] = ((volatile u8 *)body)[i];
	if (transfer(SYS_write, s->control, &m, sizeof(m.h) + size) < 0)
		power_off(); /* the host has gone */
}

static void say_result(struct state *s, s32 index, s32 error)
{
	struct result r = {index, error};

	say(s, MSG_RESULT, &r, sizeof(r));
}

static void nap(void) { sys3(SYS_poll, 0, 0, 1); }

static s64 wait_file(u64 path, u64 ms)
{
	for (u64 i = 0; i <= ms; i++) {
		if (sys4(SYS_faccessat, -100, path, 0, 0) == 0)
			return 0;
		nap();
	}
	return -ETIMEDOUT;
}

/* netlink sends one request that asks for an acknowledgement, and returns the error in the acknowledgement. */
static s64 netlink(s64 fd, u64 message, u64 size)
{
	u8 answer[1024];
	s64 n = sys6(SYS_sendto, fd, (s64)message, (s64)size, 0, 0, 0);

	if (n < 0)
		return n;
	n = sys6(SYS_recvfrom, fd, (s64)answer, sizeof(answer), 0, 0, 0);
	if (n < 0)
		return n;
	/* struct nlmsghdr has 16 bytes, with the type at offset 4. After a header of type NLMSG_ERROR (2), an s32 follows. */
	if (n < 20 || *(u16 *)(answer + 4) != 2)
		return -EPROTO;
	return *(s32 *)(answer + 16);
}

/* ready reports to the parent that everything is set up, and waits until the parent lets it continue. */
static s64 ready(struct state *s)
{
	struct result r = {READY, 0};
	u8 c;
	s64 err = transfer(SYS_write, s->report, &r, sizeof(r));

	return err < 0 ? err : transfer(SYS_read, s->go, &c, 1);
}

/* run returns the index of the instruction that failed (0 if the plan is malformed) and sets *error, or returns -1. */
static s32 run(struct state *s, u8 *at, u64 size, s32 *error)
{
	struct plan *p = (struct plan *)at;
	struct instruction *all = (struct instruction *)(at + sizeof(*p));
	u64 need = sizeof(*p);

	*error = EINVAL;
	if (size < need)
		return 0;
	need += (u64)p->instructions * sizeof(*all) + (u64)p->relocations * 4;
	if (size < need)
		return 0;
	u32 *relocations = (u32 *)&all[p->instructions];

	for (u32 i = 0; i < p->relocations; i++) {
		if (relocations[i] > size - 8)
			return 0;
		*(u64 *)(at + relocations[i]) += (u64)at;
	}
	for (u32 i = 0; i < p->instructions; i++) {
		struct instruction *in = &all[i];
		s64 a[6], r;

		for (u32 k = 0; k < 6; k++)
			a[k] = in->registers & (1 << k) ? s->reg[in->arguments[k] % REGISTERS] : (s64)in->arguments[k];
		switch (in->number) {
		case OP_WAIT_FILE:
			r = wait_file((u64)a[0], (u64)a[1]);
			break;
		case OP_NETLINK:
			r = netlink(a[0], (u64)a[1], (u64)a[2]);
			break;
		case OP_READY:
			r = ready(s);
			break;
		default:
			r = sys6(in->number, a[0], a[1], a[2], a[3], a[4], a[5]);
		}
		if (r < 0 && r > -4096) {
			s32 e = (s32)-r;

			if (e != (s32)in->ignore[0] && e != (s32)in->ignore[1] && e != (s32)in->ignore[2]) {
				*error = e;
				return (s32)i;
			}
			continue;
		}
		if (in->into)
			s->reg[in->into % REGISTERS] = r;
		i += in->skip;
	}
	*error = 0;
	return -1;
}

/* child runs in the new process. It sets up the streams and runs the plan, which should end by executing a program. */
static __attribute__((noreturn)) void child(struct state *s, s32 std[3], u8 *plan, u64 size)
{
	u64 none = 0;
	struct result r;

	for (s32 i = 0; i < 3; i++)
		sys2(SYS_dup2, std[i], i); /* the pipes' descriptors are all above 2, and are closed by the exec */
	sys0(SYS_setsid);
	sys4(SYS_rt_sigprocmask, SIG_SETMASK, &none, 0, 8);
	r.index = run(s, plan, size, &r.error);
	if (r.index < 0)
		r.error = EINVAL; /* the plan did not end by executing a program */
	transfer(SYS_write, s->report, &r, sizeof(r));
	quit(127);
}

static s64 spawn(struct state *s, u8 *body, u64 size)
{
	s32 in[2], out[2], err[2], report[2], go[2];

	if (s->pid != 0 || size < 8)
		return -EINVAL;
	if (sys2(SYS_pipe2, in, O_CLOEXEC) < 0 || sys2(SYS_pipe2, out, O_CLOEXEC) < 0 ||
	    sys2(SYS_pipe2, err, O_CLOEXEC) < 0 || sys2(SYS_pipe2, report, O_CLOEXEC) < 0 ||
	    sys2(SYS_pipe2, go, O_CLOEXEC) < 0)
		return -ENOMEM;
	s64 pid = sys5(SYS_clone, *(u64 *)body | SIGCHLD, 0, 0, 0, 0);

	if (pid < 0)
		return pid;
	if (pid == 0) {
		s32 std[3] = {in[0], out[1], err[1]};

		s->report = report[1];
		s->go = go[0];
		sys1(SYS_close, in[1]);
		sys1(SYS_close, go[1]);
		child(s, std, body + 8, size - 8);
	}
	sys1(SYS_close, in[0]);
	sys1(SYS_close, out[1]);
	sys1(SYS_close, err[1]);
	sys1(SYS_close, report[1]);
	sys1(SYS_close, go[0]);
	s->pid = (s32)pid;
	s->report = report[0];
	s->go = go[1];
	s->in.pipe = in[1];
	s->out[0].pipe = out[0];
	s->out[1].pipe = err[0];
	sys3(SYS_fcntl, in[1], F_SETFL, O_NONBLOCK);
	sys3(SYS_fcntl, out[0], F_SETFL, O_NONBLOCK);
	sys3(SYS_fcntl, err[0], F_SETFL, O_NONBLOCK);
	return 0;
}

/* command processes one message from the host. */
static void command(struct state *s)
{
	struct header h;
	s32 error = 0, index = -1;

	if (transfer(SYS_read, s->control, &h, sizeof(h)) < 0 || h.size > MESSAGE_MAX)
		power_off();
	u64 room = h.size > 0 ? h.size : 1;
	s64 at = sys6(SYS_mmap, 0, (s64)room, PROT_RW, MAP_PRIVATE_ANONYMOUS, -1, 0);

	if (at < 0 && at > -4096)
		power_off();
	if (transfer(SYS_read, s->control, (u8 *)at, h.size) < 0)
		power_off();
	switch (h.kind) {
	case MSG_PLAN:
		index = run(s, (u8 *)at, h.size, &error);
		say_result(s, index, error);
		break;
	case MSG_SPAWN:
		error = (s32)-spawn(s, (u8 *)at, h.size);
		if (error)
			say_result(s, 0, error);
		else
			s->owed = 1; /* until the child is ready */
		break;
	case MSG_GO:
		if (s->go < 0 || s->report < 0) {
			say_result(s, 0, EINVAL);
			break;
		}
		s->owed = 1;
		transfer(SYS_write, s->go, &error, 1);
		close_fd(&s->go);
		break;
	case MSG_SIGNAL: {
		u32 *body = (u32 *)at;

		if (h.size != 8)
			error = EINVAL;
		else if (s->pid > 0)
			error = (s32)-sys2(SYS_kill, body[1] ? -1 : s->pid, body[0]);
		else
			error = 3; /* ESRCH */
		say_result(s, error ? 0 : -1, error);
		break;
	}
	default:
		power_off();
	}
	sys2(SYS_munmap, at, room);
}

/* reported processes a result from the child, which it sends before it executes its program. */
static void reported(struct state *s)
{
	struct result r = {-1, 0};
	s64 n = sys3(SYS_read, s->report, &r, sizeof(r));

	if (n == -EINTR)
		return;
	if (n == sizeof(r) && r.index == READY) {
		r.index = -1;
	} else {
		/* The pipe ends when the child executes its program, or is killed. */
		if (n != sizeof(r))
			r.index = -1, r.error = 0;
		close_fd(&s->report);
		close_fd(&s->go);
	}
	if (s->owed)
		say_result(s, r.index, r.error);
	s->owed = 0;
}

static void reap(struct state *s)
{
	u8 info[128];
	s32 status;
	s64 pid;

	while (sys3(SYS_read, s->signals, info, sizeof(info)) > 0)
		;
	while ((pid = sys4(SYS_wait4, -1, &status, WNOHANG, 0)) > 0) {
		if (pid == s->pid) {
			s->pid = -1;
			s->status = status;
		}
	}
}

/* put_end adds the frame that ends the stream. */
static void put_end(struct outward *o)
{
	*(u32 *)o->frame = 0;
	o->have = 4;
	o->sent = 0;
	o->done = 1;
	close_fd(&o->pipe);
}

static void from_pipe(struct outward *o)
{
	s64 n = sys3(SYS_read, o->pipe, o->frame + 4, CHUNK);

	if (n == -EINTR || n == -EAGAIN)
		return;
	if (n <= 0) {
		put_end(o);
		return;
	}
	*(u32 *)o->frame = (u32)n;
	o->have = 4 + (u32)n;
	o->sent = 0;
}

static void to_port(struct outward *o)
{
	s64 n = sys3(SYS_write, o->port, o->frame + o->sent, o->have - o->sent);

	if (n > 0)
		o->sent += (u32)n;
	if (o->sent == o->have)
		o->sent = o->have = 0;
}

/* unread: any data from the host on this port means that the host does not read the stream any more. */
static void unread(struct outward *o)
{
	u8 b[16];

	if (sys3(SYS_read, o->port, b, sizeof(b)) > 0)
		close_fd(&o->pipe); /* the process gets SIGPIPE */
}

/* drop_input: the process reads no more input. Tells the host, and discards what the host still sends. */
static void drop_input(struct inward *i)
{
	u32 end = 0;

	if (i->pipe < 0)
		return;
	close_fd(&i->pipe);
	if (!i->over)
		transfer(SYS_write, i->port, &end, sizeof(end));
}

static void to_pipe(struct inward *i)
{
	while (i->from < i->to) {
		s64 n = i->pipe < 0 ? i->to - i->from : sys3(SYS_write, i->pipe, i->buffer + i->from, i->to - i->from);

		if (n == -EAGAIN || n == -EINTR)
			return;
		if (n < 0) {
			drop_input(i);
			continue;
		}
		i->from += (u32)n;
	}
	if (i->over && i->pipe >= 0)
		close_fd(&i->pipe);
}

static void from_port(struct inward *i)
{
	s64 n;

	if (i->left == 0) { /* a header of 4 bytes, which may arrive in parts */
		u8 b;

		n = sys3(SYS_read, i->port, &b, 1);
		if (n != 1)
			return;
		i->size |= (u32)b << (8 * i->head);
		if (++i->head < 4)
			return;
		i->left = i->size;
		i->head = i->size = 0;
		if (i->left == 0) {
			i->over = 1;
			to_pipe(i);
		}
		return;
	}
	n = sys3(SYS_read, i->port, i->buffer, i->left < CHUNK ? i->left : CHUNK);
	if (n <= 0)
		return;
	i->left -= (u32)n;
	i->from = 0;
	i->to = (u32)n;
	to_pipe(i);
}

static void serve(struct state *s)
{
	for (;;) {
		/* The order is: control, signals, report, input port, input pipe, and the pipe and port of both outputs. */
		struct pollfd p[9];
		struct inward *i = &s->in;
		s32 begun = s->pid != 0;

		p[0] = (struct pollfd){s->control, POLLIN, 0};
		p[1] = (struct pollfd){s->signals, POLLIN, 0};
		p[2] = (struct pollfd){s->report, POLLIN, 0};
		p[3] = (struct pollfd){begun && i->from == i->to && !i->over ? i->port : -1, POLLIN, 0};
		/* Even if no data waits for the pipe, an error on it shows that its reader has gone. */
		p[4] = (struct pollfd){i->pipe, i->from < i->to ? POLLOUT : 0, 0};
		for (u32 k = 0; k < 2; k++) {
			struct outward *o = &s->out[k];

			p[5 + 2 * k] = (struct pollfd){o->have == 0 ? o->pipe : -1, POLLIN, 0};
			p[6 + 2 * k] = (struct pollfd){begun && !o->done ? o->port : -1, POLLIN, 0};
			if (o->have > 0)
				p[6 + 2 * k] = (struct pollfd){o->port, POLLOUT, 0};
		}
		if (sys3(SYS_poll, p, 9, -1) < 0)
			continue;
		if (p[2].revents)
			reported(s);
		if (p[1].revents & POLLIN)
			reap(s);
		if (p[3].revents & POLLIN)
			from_port(i);
		if (p[4].revents & POLLERR)
			drop_input(i);
		if (p[4].revents & POLLOUT)
			to_pipe(i);
		for (u32 k = 0; k < 2; k++) {
			struct outward *o = &s->out[k];

			if (p[6 + 2 * k].revents & POLLOUT)
				to_port(o);
			if (p[6 + 2 * k].revents & POLLIN && o->have == 0 && !o->done)
				unread(o);
			if (p[5 + 2 * k].revents && o->have == 0 && o->pipe >= 0)
				from_pipe(o);
			if (begun && o->pipe < 0 && !o->done && o->have == 0)
				put_end(o);
		}
		if (s->pid == -1 && !s->told && s->report < 0 && s->out[0].done && s->out[0].have == 0 &&
		    s->out[1].done && s->out[1].have == 0) {
			s->told = 1;
			close_fd(&i->pipe);
			say(s, MSG_EXIT, &s->status, 4);
		}
		if (p[0].revents & POLLIN)
			command(s);
	}
}

/* boot runs the first plan. */
static void boot(struct state *s, char *path)
{
	s64 fd = sys3(SYS_open, path, O_CLOEXEC, 0);
	s64 at = sys6(SYS_mmap, 0, MESSAGE_MAX, PROT_RW, MAP_PRIVATE_ANONYMOUS, -1, 0);
	s64 n = 0, got = 0;
	s32 error;

	if (fd < 0 || (at < 0 && at > -4096))
		quit(100);
	while (got < MESSAGE_MAX && (n = sys3(SYS_read, fd, at + got, MESSAGE_MAX - (u64)got)) > 0)
		got += n;
	sys1(SYS_close, fd);
	s32 failed = run(s, (u8 *)at, (u64)got, &error);

	if (failed >= 0)
		quit(failed + 1); /* the kernel's panic message contains it: Attempted to kill init! exitcode=0x0000<this>00 */
	sys2(SYS_munmap, at, MESSAGE_MAX);
}

static __attribute__((noreturn, used)) void start(u64 *stack)
{
	u64 mask = 1ul << (SIGCHLD - 1) | 1ul << (SIGPIPE - 1);
	u64 wanted = 1ul << (SIGCHLD - 1);
	u32 version = VERSION;
	struct state s;

	for (u32 k = 0; k < REGISTERS; k++)
		((volatile s64 *)s.reg)[k] = 0;
	s.pid = s.status = s.owed = s.told = 0;
	s.report = s.go = -1;
	s.in.pipe = -1;
	s.in.left = s.in.head = s.in.size = s.in.from = s.in.to = 0;
	s.in.over = 0;
	for (u32 k = 0; k < 2; k++) {
		s.out[k].pipe = -1;
		s.out[k].have = s.out[k].sent = 0;
		s.out[k].done = 0;
	}
	if (stack[0] < 2)
		quit(101);
	sys4(SYS_rt_sigprocmask, SIG_BLOCK, &mask, 0, 8);
	s.signals = (s32)sys4(SYS_signalfd4, -1, &wanted, 8, O_CLOEXEC | O_NONBLOCK);
	boot(&s, (char *)stack[2]);
	s.control = (s32)s.reg[1];
	s.in.port = (s32)s.reg[2];
	s.out[0].port = (s32)s.reg[3];
	s.out[1].port = (s32)s.reg[4];
	say(&s, MSG_HELLO, &version, 4);
	serve(&s);
	quit(102);
}

/* At entry, the stack pointer points to the number of arguments, which the arguments follow. */
__attribute__((naked, used, noreturn)) void _start(void)
{
	__asm__ volatile("xor %ebp, %ebp; mov %rsp, %rdi; and $-16, %rsp; call start");
}
