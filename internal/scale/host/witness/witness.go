// Package witness looks at every CPU about 450 times a second and reports what disturbed the machine: when a CPU stood
// still because the hypervisor ran something else, which tasks held a CPU for long, and which processes were seen
// running.
//
// A look is a run of a small BPF program in a timer interrupt of its CPU. It reads the steal clock, which the
// hypervisor maintains in nanoseconds (struct kvm_steal_time in arch/x86/include/uapi/asm/kvm_para.h), and the
// kernel's own account of idle time. After a stall, the look comes late and is the first thing that runs, so the stall
// ended there. A look that comes late although nothing was stolen is counted separately: interrupts were off, or a
// tracing program was running. That never counts as noise, because the subject may be the cause.
package witness

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -cc clang -cflags "-O2 -g -Wall -Werror" witness bpf/witness.bpf.c

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
	"tare/internal/scale/host/feature"
	"tare/internal/scale/host/perf"
)

// Source says where stolen time is read from.
type Source string

// The sources.
const (
	Clock Source = "steal-clock" // the hypervisor's clock, always up to date
	Ticks Source = "steal-ticks" // the kernel's counter, updated at its ticks
)

// DefaultHz is the number of looks per second and CPU. It equals the sampler's default, so that both share an
// interrupt.
const DefaultHz = perf.DefaultHz

// Options configures a witness. The zero value has sensible defaults.
type Options struct {
	// Leaders are the events of a sampler, by CPU. The witness joins them: it is switched on and off with them, and its
	// looks happen in the same interrupts, so an idle CPU is woken only once. Without leaders, the witness is independent.
	Leaders map[int]int
	// LeaderPeriod is the time between two samples of the leaders. The witness looks at each sample, or at every second,
	// third, ... if they are frequent.
	LeaderPeriod time.Duration
	Types        *btf.Cache // the kernel's types, if already read; nil: Open reads them
	Program      *Program   // shared with other witnesses; nil: the witness has its own
	// NoOccupants leaves out who held the CPUs, which is most of the work of a witness: a seventh of the CPU time of an
	// agent that is scraped every 15 s.
	NoOccupants bool
}

// Witness looks at the CPUs while it is enabled. It is not safe for concurrent use.
type Witness struct {
	objects witnessObjects
	reader  *ringbuf.Reader
	record  ringbuf.Record
	events  []event
	source  Source
	period  time.Duration
	id      uint32
	without bool // Options.NoOccupants

	silent bool      // some CPU runs no timer while it is idle
	wakes  link.Link // runs a look when a CPU leaves idle; nil unless enabled and needed

	looks  []Look // intervals in which something was stolen, since Begin
	spans  []span // of occupants, since Begin
	begin  []state
	names  names
	folded folded
	pids   []uint32 // scratch space for a batch of processes
	values []process
}

// event is the timer of one CPU.
type event struct {
	cpu, fd int
	joined  bool // switched on and off with the sampler
}

// record and state are the structures of the same names in bpf/witness.bpf.c; a test compares their layout.
type record struct {
	Kind, CPU                                    uint32
	Last, Now, Stolen, Idle, LateOrSeen, FirstAt uint64
	PID, TGID                                    uint32
	Comm                                         [16]byte
}

const (
	kindStall    = 1
	kindOccupant = 2
)

type state struct {
	Last, Due, Steal, Idle, Looks                  uint64
	Stolen, Small, SmallLo, SmallHi                uint64
	Late, Longest, Lost                            uint64
	Slept, Waited, Before, First, HeldStolen, Held uint64
	PID, TGID                                      uint32
	Comm                                           [16]byte
	Queue                                          uint64 // address of the CPU's run queue
	Asked                                          uint64
}

// process is a value of the map of processes.
type process struct {
	Looks uint64
	Comm  [16]byte
}

// The per-CPU variables of the kernel that the program reads (bpf/witness.bpf.c).
const (
	runQueues = "runqueues"
	stealTime = "steal_time"
	cpuStat   = "kernel_cpustat"
	tickSched = "tick_cpu_sched"
)

// The values of steal_source in the program.
const (
	sourceClock uint32 = 1
	sourceTicks uint32 = 2
)

// Open loads the program and creates the events; no look is taken until Enable, or until the leaders are enabled. The
// error is a *feature.MissingError if this machine does not support a witness.
func Open(o Options) (*Witness, error) {
	w, err := open(o)
	if err != nil {
		if missing := Witnessing.Err(); missing != nil { // only checked now, because the probe opens a witness too
			return nil, missing
		}
	}
	return w, fault.Wrap(err, fault.Machine, "", "try again; 'tare doctor' says what this machine has",
		"what others do to the machine cannot be watched")
}

func open(o Options) (w *Witness, err error) {
	w = &Witness{period: time.Second / DefaultHz, without: o.NoOccupants}
	if len(o.Leaders) > 0 {
		// Use the longest multiple of the leaders' period that does not exceed the witness's own.
		w.period = o.LeaderPeriod * max(w.period/o.LeaderPeriod, 1)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Close())
			w = nil
		}
	}()
	if err := w.load(cmp.Or(o.Program, &Program{}), cmp.Or(o.Types, btf.NewCache())); err != nil {
		return w, err
	}
	if w.reader, err = ringbuf.NewReader(w.objects.TareStalls); err != nil {
		return w, fmt.Errorf("mapping the ring of the witness: %w", err)
	}
	cpus, err := perf.OnlineCPUs()
	if err != nil {
		return w, err
	}
	if err := w.findQueues(cpus); err != nil {
		return w, err
	}
	for _, cpu := range cpus {
		leader, ok := o.Leaders[cpu]
		if !ok {
			leader = -1
		}
		err := w.openEvent(cpu, leader)
		if errors.Is(err, unix.ENODEV) {
			continue // it has gone offline
		}
		if err != nil {
			return w, err
		}
	}
	return w, nil
}

// load loads the program for this kernel: with the steal clock if the hypervisor maintains one, else with the kernel's
// counter.
func (w *Witness) load(p *Program, types *btf.Cache) error {
	if err := p.fit(types); err != nil {
		return err
	}
	if _, ok := p.places[runQueues]; !ok {
		return errors.New("this kernel does not show the address of its per-CPU variable runqueues")
	}
	if _, ok := p.places[stealTime]; ok {
		if err := w.loadWith(p, sourceClock); err != nil {
			return err
		}
		kept, err := w.objects.TareClock.Run(&ebpf.RunOptions{})
		switch {
		case err != nil:
			return fmt.Errorf("asking whether the hypervisor keeps the steal clock: %w", err)
		case int32(kept) < 0:
			return errors.New("the run queue of a CPU is not where this program looks for it")
		case kept == 1:
			w.source = Clock
			return nil
		}
		if err := w.objects.Close(); err != nil {
			return fmt.Errorf("unloading the program of the witness: %w", err)
		}
	}
	if _, ok := p.places[cpuStat]; !ok {
		return errors.New("this kernel does not show the address of its per-CPU variable kernel_cpustat")
	}
	w.source = Ticks
	return w.loadWith(p, sourceTicks)
}

// findQueues runs a program on every CPU, which finds the CPU's run queue from the running task and records it for the
// looks. Looks cannot rely on the task that they see, because the idle task may be linked to another CPU's queue. On a
// CPU that this process may not use, the first look that sees another task finds the queue.
func (w *Witness) findQueues(cpus []int) (err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	all, err := pace.AllowedCPUs()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pace.RunOn(all...)) }()
	for _, cpu := range cpus {
		if pace.RunOn(cpu) != nil {
			continue
		}
		if _, err := w.objects.TareClock.Run(&ebpf.RunOptions{}); err != nil {
			return fmt.Errorf("finding the run queue of CPU %d: %w", cpu, err)
		}
	}
	if err := w.objects.TareClock.Close(); err != nil { // it is no longer needed
		return fmt.Errorf("unloading the program that found the run queues: %w", err)
	}
	return nil
}

// kernelVariables returns the offsets of the variables in the section of per-CPU variables, by name, as far as this
// kernel has and exposes them.
func kernelVariables(kernel *btf.Spec) (map[string]int64, error) {
	var section *btf.Datasec
	if err := kernel.TypeByName(".data..percpu", &section); err != nil {
		return nil, fmt.Errorf("looking up the per-CPU variables of the kernel: %w", err)
	}
	places := map[string]int64{}
	for _, v := range section.Vars {
		switch name := v.Type.TypeName(); name {
		case runQueues, stealTime, cpuStat, tickSched:
			places[name] = int64(v.Offset)
		}
	}
	return places, nil
}

func (w *Witness) loadWith(p *Program, source uint32) error {
	spec, kernel := p.spec.Copy(), p.places
	flag := map[bool]uint32{true: 1}
	_, idle := kernel[tickSched]
	for name, value := range map[string]any{
		"steal_source": source, "idle_known": flag[idle], "occupants": flag[!w.without], "period": uint64(w.period),
		"steal_time_at":     kernel[stealTime] - kernel[runQueues],
		"kernel_cpustat_at": kernel[cpuStat] - kernel[runQueues],
		"tick_cpu_sched_at": kernel[tickSched] - kernel[runQueues],
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return fmt.Errorf("setting %s of the witness: %w", name, err)
		}
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return fmt.Errorf("counting the CPUs of this machine: %w", err)
	}
	spec.Maps["tare_looks"].MaxEntries = uint32(cpus)
	spec.Maps["tare_stalls"].MaxEntries = ringBytes(cpus)
	spec.Maps["tare_busiest"].MaxEntries = mostProcesses(cpus)
	if w.without {
		spec.Maps["tare_busiest"].MaxEntries = 1
	}
	if err := spec.LoadAndAssign(&w.objects, nil); err != nil {
		return fmt.Errorf("loading the program of the witness: %w", err)
	}
	info, err := w.objects.TareWitness.Info()
	if err != nil {
		return fmt.Errorf("reading about the program of the witness: %w", err)
	}
	if id, ok := info.ID(); ok {
		w.id = uint32(id)
	}
	return nil
}

// ringBytes returns the size of the ring. A record takes 88 bytes with its header, a busy CPU switches tasks about 250
// times a second, and the ring is drained five times a second.
func ringBytes(cpus int) uint32 {
	n := uint32(1 << 17)
	for n < uint32(cpus)*(16<<10) && n < 1<<23 {
		n *= 2
	}
	return n
}

// mostProcesses returns how many processes the map of those that were seen running can hold. Each CPU sets aside up to
// 128 free entries of an LRU map. If none is left for another CPU, the kernel drops the newest entries of that one
// (before Linux 6.16, see d4adf1c9ee77 "bpf: Adjust free target to avoid global starvation of LRU map"). Like that
// commit, mostProcesses leaves half of the map to all CPUs together.
func mostProcesses(cpus int) uint32 { return max(4096, 2*128*uint32(cpus)) }

func (w *Witness) openEvent(cpu, leader int) error {
	attr := unix.PerfEventAttr{
		Type:    unix.PERF_TYPE_SOFTWARE,
		Config:  unix.PERF_COUNT_SW_CPU_CLOCK,
		Size:    uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
		Sample:  uint64(w.period),
		Bits:    unix.PerfBitUseClockID, // the events of a group must use the same clock
		Clockid: unix.CLOCK_MONOTONIC,
	}
	if leader < 0 {
		attr.Bits |= unix.PerfBitDisabled
	}
	fd, err := unix.PerfEventOpen(&attr, -1, cpu, leader, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("opening the witness's event on CPU %d: %w", cpu, err)
	}
	w.events = append(w.events, event{cpu, fd, leader >= 0})
	if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_SET_BPF, w.objects.TareWitness.FD()); err != nil {
		return fmt.Errorf("attaching the witness to its event on CPU %d: %w", cpu, err)
	}
	return nil
}

// Program returns the id of the program that looks.
func (w *Witness) Program() uint32 { return w.id }

// Reset forgets everything. It must not be called while looks are taken.
func (w *Witness) Reset() error {
	for cpu := range w.cpus() {
		var before state
		if err := w.objects.TareLooks.Lookup(cpu, &before); err != nil {
			return fmt.Errorf("reading what the witness knows of CPU %d: %w", cpu, err)
		}
		if err := w.objects.TareLooks.Update(cpu, state{Queue: before.Queue}, ebpf.UpdateAny); err != nil {
			return fmt.Errorf("clearing the state of the witness: %w", err)
		}
	}
	if err := w.clearProcesses(); err != nil {
		return err
	}
	if err := w.drain(func(*record) {}); err != nil {
		return err
	}
	w.looks, w.spans, w.begin, w.folded = nil, nil, nil, folded{}
	return nil
}

func (w *Witness) cpus() uint32 { return w.objects.TareLooks.MaxEntries() }

// Enable starts looking. A witness that has joined a sampler starts with it, and must be enabled after it. Enable
// takes a few periods.
func (w *Witness) Enable() error {
	if err := w.ioctl(unix.PERF_EVENT_IOC_ENABLE, "enabling"); err != nil {
		return err
	}
	return w.watchSilent()
}

// Disable stops looking. What has been seen can still be drained.
func (w *Witness) Disable() error {
	err := w.ioctl(unix.PERF_EVENT_IOC_DISABLE, "disabling")
	if w.wakes != nil {
		err = errors.Join(err, w.wakes.Close())
		w.wakes = nil
	}
	return err
}

func (w *Witness) ioctl(req uint, what string) error {
	for _, e := range w.events {
		if e.joined {
			continue
		}
		if err := unix.IoctlSetInt(e.fd, req, 0); err != nil {
			return fmt.Errorf("%s the witness's event on CPU %d: %w", what, e.cpu, err)
		}
	}
	return nil
}

// Settle looks at every CPU that has had no look since the given time (CLOCK_MONOTONIC, ns), so that stalls until that
// time are known in full. It waits for the end of a stall in progress.
func (w *Witness) Settle(after int64) error {
	states, err := w.states()
	if err != nil {
		return err
	}
	for _, e := range w.events {
		if int64(states[e.cpu].Last) > after {
			continue
		}
		// The kernel runs the program on that CPU by an interrupt (bpf_prog_test_run_raw_tp in net/bpf/test_run.c).
		_, err := w.objects.TareAsked.Run(&ebpf.RunOptions{CPU: uint32(e.cpu), Flags: unix.BPF_F_TEST_RUN_ON_CPU})
		if err != nil && !errors.Is(err, unix.ENXIO) { // ENXIO: it has gone offline
			return fmt.Errorf("looking at CPU %d: %w", e.cpu, err)
		}
	}
	if len(w.begin) == len(states) { // a CPU that was busy at the beginning may have turned out to be silent
		if states, err = w.states(); err != nil {
			return err
		}
		w.silent = w.silent || w.isSilent(w.begin, states)
	}
	return nil
}

// silentAfter is the number of periods within which every CPU with a working timer gets a look.
const silentAfter = 4

// watchSilent attaches a program that looks at each CPU as it leaves idle, if the timer of some CPU does not fire.
// Finding out takes a few periods.
func (w *Witness) watchSilent() (err error) {
	if w.wakes != nil {
		return nil
	}
	if !w.silent {
		before, err := w.states()
		if err != nil {
			return err
		}
		time.Sleep(silentAfter * w.period)
		after, err := w.states()
		if err != nil {
			return err
		}
		w.silent = w.isSilent(before, after)
	}
	if !w.silent {
		return nil
	}
	w.wakes, err = link.AttachRawTracepoint(link.RawTracepointOptions{Name: "sched_switch", Program: w.objects.TareWakes})
	if err != nil {
		return fmt.Errorf("watching CPUs that leave idle: %w", err)
	}
	return nil
}

// isSilent reports whether some CPU had far fewer looks than its timer should have caused.
func (w *Witness) isSilent(before, after []state) bool {
	return slices.ContainsFunc(w.events, func(e event) bool {
		b, a := before[e.cpu], after[e.cpu]
		due := time.Duration(a.Last-b.Last) / w.period // until its last look
		return a.Looks == b.Looks || 4*(a.Looks-b.Looks) < 3*uint64(due)
	})
}

// states returns what the program has recorded about each CPU, by CPU number.
func (w *Witness) states() ([]state, error) {
	out := make([]state, w.cpus())
	for cpu := range out {
		if err := w.objects.TareLooks.Lookup(uint32(cpu), &out[cpu]); err != nil {
			return nil, fmt.Errorf("reading the state of the witness: %w", err)
		}
	}
	return out, nil
}

// drain passes every record in the ring to handle.
func (w *Witness) drain(handle func(*record)) error {
	w.reader.SetDeadline(time.Unix(1, 0)) // do not wait: records arrive without a wake-up
	for {
		err := w.reader.ReadInto(&w.record)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading the ring of the witness: %w", err)
		}
		if len(w.record.RawSample) < int(unsafe.Sizeof(record{})) {
			return fmt.Errorf("reading the ring of the witness: a record of %d bytes", len(w.record.RawSample))
		}
		handle((*record)(unsafe.Pointer(&w.record.RawSample[0])))
	}
}

// Close stops looking and releases all resources. A witness that has joined a sampler must be closed before it.
func (w *Witness) Close() error {
	var errs []error
	if w.wakes != nil {
		errs = append(errs, w.wakes.Close())
		w.wakes = nil
	}
	for _, e := range w.events {
		errs = append(errs, unix.Close(e.fd))
	}
	w.events = nil
	if w.reader != nil {
		errs = append(errs, w.reader.Close())
		w.reader = nil
	}
	return errors.Join(append(errs, w.objects.Close())...)
}

// Witnessing is the feature required by this package.
var Witnessing = feature.New(feature.Status{
	Name: "witness",
	Needs: "perf_event_open for all CPUs and BPF programs on perf events with the kernel's types: CAP_BPF and " +
		"CAP_PERFMON, CONFIG_DEBUG_INFO_BTF, Linux 5.11",
	Lost: "when a CPU stood still or another task held it; stolen time inside idle time and inside the run time of " +
		"eBPF programs",
	Hint: "run as root, or with CAP_BPF and CAP_PERFMON, on Linux 5.11 or newer with BTF",
}, func() (string, error) {
	w, err := open(Options{})
	if err != nil {
		return "", err
	}
	source := w.source
	if err := w.Close(); err != nil {
		return "", err
	}
	return strconv.Itoa(DefaultHz) + " looks per second and CPU, stolen time from the " + string(source), nil
})

// Features returns the probes of this package.
func Features() []*feature.Probe { return []*feature.Probe{Witnessing} }
