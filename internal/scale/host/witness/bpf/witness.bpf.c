// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0

/*
 * Looks at one CPU, many times a second: how much of its time was stolen since the last look, and who has held it.
 *
 * The hook is a perf event of the kernel's own clock (cpu-clock), one for each CPU: a timer interrupt, the first thing
 * that runs on a CPU that the hypervisor took away and gave back. A look costs some 100 ns, and a record is written
 * only when something has happened.
 *
 * It is not the sampler's event. While a tracing program runs on a CPU, the kernel runs no program of a perf event
 * there (bpf_overflow_handler in kernel/events/core.c, bpf_prog_active): a sampler made of such a program would miss
 * exactly the programs that are weighed. The witness can afford that: a look that is left out makes the next one late,
 * and the steal clock misses nothing.
 */

#include "../../bpf/bpf/types.h"
#include <bpf/bpf_core_read.h>

#define BPF_MAP_TYPE_ARRAY 2
#define BPF_MAP_TYPE_LRU_HASH 9
#define BPF_MAP_TYPE_RINGBUF 27
#define BPF_NOEXIST 1
#define BPF_RB_NO_WAKEUP 1

/* The fields of the kernel's types that are read. The loader finds their offsets in the running kernel. */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct kvm_steal_time {
	__u64 steal;
	__u32 version;
};
struct kernel_cpustat {
	__u64 cpustat[10];
};
struct tick_sched {
	__s64 idle_sleeptime;
	__s64 iowait_sleeptime;
};
struct sched_info {
	unsigned long long run_delay;
};
struct rq {
	int cpu;
};
struct cfs_rq {
	struct rq *rq;
	int idle;
};
struct sched_entity {
	struct cfs_rq *cfs_rq;
	struct sched_entity *parent;
	struct cfs_rq *my_q;
};
struct task_struct {
	struct sched_entity se;
	int pid;
	int tgid;
	unsigned int policy;
	unsigned long nvcsw;
	unsigned long nivcsw;
	struct sched_info sched_info;
};
#pragma clang attribute pop

#define SCHED_IDLE 5    /* include/uapi/linux/sched.h */
#define CPUTIME_STEAL 7 /* enum cpu_usage_stat in include/linux/kernel_stat.h */

/* Where the stolen time is read from: set by the loader, see Source in witness.go. */
#define STEAL_CLOCK 1
#define STEAL_TICKS 2
const volatile __u32 steal_source = 0;
const volatile __u32 idle_known = 0; /* the kernel keeps the time that each CPU was idle */
/*
 * The offsets of the kernel's per-CPU variables from the CPU's run queue, which is one of them, in bytes. The kernel's
 * BTF has their offsets in the section of all per-CPU variables. bpf_per_cpu_ptr would find them by the symbol table,
 * but on many kernels that has only functions (CONFIG_KALLSYMS_ALL is off).
 */
const volatile __s64 steal_time_at = 0;     /* struct kvm_steal_time steal_time */
const volatile __s64 kernel_cpustat_at = 0; /* struct kernel_cpustat kernel_cpustat */
const volatile __s64 tick_cpu_sched_at = 0; /* struct tick_sched tick_cpu_sched */
const volatile __u64 period = 2004008; /* nanoseconds between looks */
const volatile __u32 occupants = 1;    /* report who holds the CPU, and count looks by process */

/* The least stolen time of an interval for which a record is written, in nanoseconds. */
#define WORTH 100000

struct record { /* see record in witness.go */
	__u32 kind;
	__u32 cpu;
	__u64 last; /* time of the previous look */
	__u64 now;  /* time of this look */
	__u64 stolen;
	__u64 idle;
	__u64 late;  /* by how much this look came late; for an occupant: the last look that saw it */
	__u64 first; /* for an occupant: the first look that saw it */
	__u32 pid;
	__u32 tgid;
	char comm[16];
};
#define KIND_STALL 1
#define KIND_OCCUPANT 2

/* What is known about a CPU; see state in witness.go. */
struct state {
	__u64 last;
	__u64 due;
	__u64 steal;
	__u64 idle;
	__u64 looks;
	__u64 stolen;   /* since the start, in all */
	__u64 small;    /* the part of stolen in intervals without a record */
	__u64 small_lo; /* lower and upper bound of the part of small that was also idle time */
	__u64 small_hi;
	__u64 late;     /* looks that came late although nothing was stolen */
	__u64 longest;  /* the longest delay among them, ns */
	__u64 lost;     /* records that found no room */
	/* The task that the last look saw, if it was not idle. */
	__u64 slept;  /* times that it slept */
	__u64 waited; /* nanoseconds that it waited for a CPU */
	__u64 before; /* the look before the first that saw it */
	__u64 first;
	__u64 held_stolen;
	__u64 held; /* looks that saw it, except the first */
	__u32 pid;
	__u32 tgid;
	char comm[16];
	__u64 rq; /* the run queue of this CPU; 0 until a task has shown it */
	__u64 asked; /* a look that the loader asked for is under way */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* CPUs */
	__type(key, __u32);
	__type(value, struct state);
} tare_looks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 18);
} tare_stalls SEC(".maps");

struct process {
	__u64 looks;
	char comm[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct process);
} tare_busiest SEC(".maps");

static __always_inline __u64 min64(__u64 a, __u64 b)
{
	return a < b ? a : b;
}

static __always_inline __u64 stolen_clock(__u64 rq)
{
	__u64 v = 0;

	if (steal_source == STEAL_CLOCK)
		bpf_core_read(&v, sizeof(v), &((struct kvm_steal_time *)(rq + steal_time_at))->steal);
	if (steal_source == STEAL_TICKS)
		bpf_core_read(&v, sizeof(v), &((struct kernel_cpustat *)(rq + kernel_cpustat_at))->cpustat[CPUTIME_STEAL]);
	return v;
}

static __always_inline __u64 idle_clock(__u64 rq)
{
	__s64 idle = 0, iowait = 0;
	struct tick_sched *t = (struct tick_sched *)(rq + tick_cpu_sched_at);

	if (idle_known) {
		/* The kernel ends the idle stretch before it calls a timer (tick_nohz_irq_enter), so both are up to date. */
		bpf_core_read(&idle, sizeof(idle), &t->idle_sleeptime);
		bpf_core_read(&iowait, sizeof(iowait), &t->iowait_sleeptime);
	}
	return idle + iowait;
}

/*
 * Returns the run queue of this CPU, to which the running task points; 0 if the kernel's structures are not as
 * expected.
 */
static __always_inline __u64 run_queue(struct task_struct *t, __u32 cpu)
{
	struct cfs_rq *c = t->se.cfs_rq;
	struct rq *rq;

	if (!c)
		return 0;
	rq = c->rq;
	if (!rq || rq->cpu != cpu)
		return 0;
	return (__u64)rq;
}

/*
 * Returns for how long the task has waited for a CPU since it was created, in ns. If this has hardly grown since the
 * last look, and the task has not slept, it has held the CPU. Where the kernel does not count this, it is estimated.
 */
static __always_inline __u64 waited(struct task_struct *t)
{
	if (bpf_core_field_exists(t->sched_info.run_delay))
		return t->sched_info.run_delay;
	return t->nivcsw * period;
}

/*
 * Reports a task that held the CPU from the first look that saw it to the last, once a look no longer sees it. That
 * look can be late, because on some virtual machines an idle CPU does not run our timer. The occupant had left before
 * the CPU became idle.
 */
static __always_inline void occupant_leaves(struct state *s, __u32 cpu, __u64 now, __u64 idle)
{
	struct record *r;

	if (s->pid && s->held) {
		r = bpf_ringbuf_reserve(&tare_stalls, sizeof(*r), 0);
		if (r) {
			r->kind = KIND_OCCUPANT;
			r->cpu = cpu;
			r->last = s->before;
			r->now = now - min64(idle, now - s->last);
			r->stolen = s->held_stolen;
			r->idle = 0;
			r->late = s->last;
			r->first = s->first;
			r->pid = s->pid;
			r->tgid = s->tgid;
			__builtin_memcpy(r->comm, s->comm, sizeof(r->comm));
			bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
		} else {
			s->lost++;
		}
	}
	s->pid = 0;
	s->held = 0;
}

static __always_inline void interval(struct state *s, __u32 cpu, __u64 now, __u64 stolen, __u64 idle, int beat)
{
	__u64 wall = now - s->last, late = now - s->due;
	struct record *r;

	idle = min64(idle, wall);
	s->stolen += stolen;
	if (beat && late > stolen + period / 2) {
		s->late++;
		if (late - stolen > s->longest)
			s->longest = late - stolen;
	}
	if (stolen < WORTH) {
		s->small += stolen;
		s->small_hi += min64(stolen, idle);
		if (stolen + idle > wall)
			s->small_lo += min64(stolen, idle) < stolen + idle - wall ? min64(stolen, idle) : stolen + idle - wall;
		return;
	}
	r = bpf_ringbuf_reserve(&tare_stalls, sizeof(*r), 0);
	if (!r) {
		s->lost++;
		return;
	}
	__builtin_memset(r, 0, sizeof(*r));
	r->kind = KIND_STALL;
	r->cpu = cpu;
	r->last = s->last;
	r->now = now;
	r->stolen = stolen;
	r->idle = idle;
	r->late = late;
	if (!beat && idle >= stolen && idle > wall / 2) {
		/* The CPU slept most of the time, and the hypervisor was late to wake it: the stall was at the end. */
		r->last = now - stolen;
		r->idle = stolen;
	}
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
}

#define GROUPS 16 /* levels of nested groups, at most */

/*
 * Returns whether the task yields at once to any other that wants the CPU and so delays none: the CPU is as good as
 * idle. It does so at idle priority in no group, or if its outermost group is idle (cpu.idle). In any other group its
 * priority counts only within the group, which has its own share of the CPU. The same holds in sessions, where the
 * kernel groups tasks by session (CONFIG_SCHED_AUTOGROUP).
 */
static __always_inline int gives_way(struct task_struct *t)
{
	struct sched_entity *e, *up;

	if (!bpf_core_field_exists(t->se.parent) || !t->se.parent)
		return t->policy == SCHED_IDLE;
	e = t->se.parent;
	for (int i = 0; i < GROUPS; i++) {
		up = e->parent;
		if (!up)
			return bpf_core_field_exists(e->my_q->idle) && e->my_q && e->my_q->idle > 0;
		e = up;
	}
	return 0;
}

/* Looks at this CPU. beat: the timer called, and not the CPU leaving idle or the loader. */
static __always_inline int look(struct state *s, __u32 cpu, __u64 now, int beat)
{
	__u64 rq, steal, idle, slept = 0, stolen = 0;
	struct task_struct *t = bpf_get_current_task_btf();
	__u32 pid = t->pid, tgid = t->tgid;

	rq = run_queue(t, cpu);
	if (rq)
		s->rq = rq;
	else
		rq = s->rq; /* the idle task of a CPU is not always linked to it */
	if (!rq)
		return 0;
	steal = stolen_clock(rq);
	idle = idle_clock(rq);
	if (s->last) {
		if (beat && (now < s->due || now - s->due > 1000 * period)) /* the timer was set again: another beat */
			s->due = now;
		if (steal > s->steal)
			stolen = steal - s->steal;
		slept = idle - s->idle;
		interval(s, cpu, now, stolen, slept, beat);
		/* The timer keeps its beat even when it is late. A delay that recurs each time means that the beat has moved. */
		if (beat && now - s->due < period / 2)
			s->due += (now - s->due) / 16;
		if (now >= s->due)
			s->due += ((now - s->due) / period + 1) * period;
	} else {
		s->due = now + period;
	}
	s->steal = steal;
	s->idle = idle;
	s->looks++;

	if (occupants && pid && !gives_way(t)) {
		if (s->pid == pid && s->slept == t->nvcsw && waited(t) - s->waited < period / 4) {
			s->held++;
			s->held_stolen += stolen;
		} else {
			occupant_leaves(s, cpu, now, slept);
			s->pid = pid;
			s->tgid = tgid;
			s->slept = t->nvcsw;
			/* It came after the CPU was idle. */
			s->before = s->last ? s->last + min64(slept, now - s->last) : now;
			s->first = now;
			s->held_stolen = 0;
			bpf_get_current_comm(s->comm, sizeof(s->comm));
		}
		s->waited = waited(t);
		struct process *p = bpf_map_lookup_elem(&tare_busiest, &tgid);
		if (p) {
			__sync_fetch_and_add(&p->looks, 1);
		} else {
			struct process new = { .looks = 1 };
			__builtin_memcpy(new.comm, s->comm, sizeof(new.comm));
			bpf_map_update_elem(&tare_busiest, &tgid, &new, BPF_NOEXIST);
		}
	} else if (s->pid) {
		occupant_leaves(s, cpu, now, slept);
	}
	s->last = now;
	return 0;
}

SEC("perf_event")
int tare_witness(void *ctx)
{
	__u64 now = bpf_ktime_get_ns();
	__u32 cpu = bpf_get_smp_processor_id();
	struct state *s = bpf_map_lookup_elem(&tare_looks, &cpu);

	return s && !s->asked ? look(s, cpu, now, 1) : 0;
}

/*
 * Looks when a CPU leaves idle, if the last look is more than a period ago. It is attached only where an idle CPU does
 * not run our timer, as was seen on virtual machines. Without it, looks would be far apart there, and it would be
 * unknown where between them a stall was.
 */
SEC("raw_tp/sched_switch")
int tare_wakes(void *ctx)
{
	__u64 now;
	__u32 cpu;
	struct state *s;

	if (bpf_get_current_pid_tgid()) /* before the switch: the task that leaves; the idle task is 0 */
		return 0;
	cpu = bpf_get_smp_processor_id();
	s = bpf_map_lookup_elem(&tare_looks, &cpu);
	if (!s || !s->last || s->asked)
		return 0;
	now = bpf_ktime_get_ns();
	return now > s->last + period ? look(s, cpu, now, 0) : 0;
}

/*
 * Looks now. The loader runs it on a CPU without attaching it: the edges of a window cannot wait for an idle CPU, on
 * which our timer was seen to be 0.3 s late. On other CPUs nothing interrupts it. On the loader's own CPU our timer
 * may: the timer's look is then left out.
 */
SEC("raw_tp/sched_switch")
int tare_asked(void *ctx)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct state *s = bpf_map_lookup_elem(&tare_looks, &cpu);

	if (!s)
		return 0;
	s->asked = 1;
	barrier();
	look(s, cpu, bpf_ktime_get_ns(), 0);
	barrier();
	s->asked = 0;
	return 0;
}

/*
 * The loader runs it on every CPU without attaching it. It records the CPU's run queue for the looks, and returns
 * whether the hypervisor maintains the steal clock, whose version then increases with each change.
 */
SEC("raw_tp/sched_switch")
int tare_clock(void *ctx)
{
	__u32 cpu = bpf_get_smp_processor_id(), version = 0;
	__u64 rq = run_queue(bpf_get_current_task_btf(), cpu);
	struct state *s = bpf_map_lookup_elem(&tare_looks, &cpu);

	if (!rq || !s)
		return -1;
	s->rq = rq;
	if (steal_source == STEAL_CLOCK)
		bpf_core_read(&version, sizeof(version), &((struct kvm_steal_time *)(rq + steal_time_at))->version);
	return version != 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
