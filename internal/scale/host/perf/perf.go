// Package perf samples what every CPU is doing in the kernel: with a plain perf ring for each CPU, with call chains,
// threads and control groups. User code is left out unless Options.User is set, because eBPF programs run only in the
// kernel. The sampler is deliberately not a BPF program: the kernel refuses to run one tracing program inside another
// (bpf_prog_active), so samples would be lost inside exactly the programs that are being weighed.
//
// With a hardware cycle counter, samples come by NMI and see everything. Without one (most virtual machines) they come
// from an hrtimer (cpu-clock), which cannot fire while interrupts are off, so code there is seen late or not at all.
// Source says which is in use.
package perf

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"tare/internal/lib/lists"
	"tare/internal/scale/host/feature"
	"tare/internal/scale/host/proc"
)

// Source is the event that triggers the samples.
type Source string

// The sources.
const (
	Cycles   Source = "cycles"
	CPUClock Source = "cpu-clock"
)

// DefaultHz is prime, so that samples do not stay in step with timers at round frequencies. It is also bearable for an
// idle machine: a sample wakes an idle CPU, which costs it about 5 us, and 25 to 40 us in one virtual machine.
const DefaultHz = 449

// MaxHz is the highest rate. Interrupts of virtual machines can take 40 us. If the next one is due before one has
// ended, its CPU does nothing else; this rate leaves a margin of a factor of five.
const MaxHz = 5000

// Options configures a sampler. The zero value has sensible defaults.
type Options struct {
	NoTasks bool // no records of threads that start and exit; a storm of execs makes more of them than a ring holds
	User    bool // also sample user code, with its call chains, and do not sample the idle task
	Hz      int  // samples per second and CPU; 0 is DefaultHz
	// RingBytes is the size of one CPU's ring, rounded up to a power of two of pages; 0 holds about a second of deep
	// chains.
	RingBytes int
	NoCycles  bool // use cpu-clock even where there is a hardware counter
	DropRing  bool // silently leave out one CPU: a fault that calibration must detect
}

// Sampler samples all CPUs. It is not safe for concurrent use, except for Wake.
type Sampler struct {
	rings   []*ring
	source  Source
	period  time.Duration
	cgroup  bool
	chain   []uint64
	pending []Symbol // symbols of a program whose load event has not arrived yet
	heads   []uint64
	wake    int      // eventfd that ends Wait
	wakes   *os.File // epoll of the rings and wake
	exact   bool     // the kernel counts what rings have no room for; otherwise lost adds up records of losses
	lost    uint64   // lost samples, according to records of losses
	slowed  uint64   // number of throttling records: the kernel found that sampling took too long
}

// Handler receives the results of a drain. A drain delivers symbols, programs and tasks before samples, so a sample
// never precedes the program that it hit. A nil field is skipped.
type Handler struct {
	Symbol  func(Symbol)
	Program func(ProgramEvent, []Symbol) // with the symbols that belong to it
	Task    func(Task)
	Sample  func(*Sample)
}

// Open returns a sampler, which is off until Enable. The error is a *feature.MissingError if this machine cannot
// sample.
func Open(o Options) (*Sampler, error) {
	if err := Sampling.Err(); err != nil {
		return nil, err
	}
	cpus, err := OnlineCPUs()
	if err != nil {
		return nil, err
	}
	o.Hz = cmp.Or(o.Hz, DefaultHz)
	if o.RingBytes == 0 {
		o.RingBytes = 256 << 10
		if len(cpus) > 64 {
			o.RingBytes = 128 << 10
		}
	}
	pages := 1
	for pages*os.Getpagesize() < o.RingBytes {
		pages *= 2
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("making an eventfd: %w", err)
	}
	s := &Sampler{
		source: CPUClock, cgroup: Cgroups.Err() == nil, exact: Losses.Err() == nil,
		period: time.Second / time.Duration(o.Hz), wake: wake,
	}
	if !o.NoCycles && HardwareCycles.Err() == nil {
		s.source = Cycles
	}
	for _, cpu := range cpus {
		samples := newAttr(s.source, o.Hz, s.cgroup, s.exact)
		if o.User {
			samples.Bits &^= unix.PerfBitExcludeUser | unix.PerfBitExcludeCallchainUser
			samples.Bits |= unix.PerfBitExcludeIdle
		}
		r, err := openRing(samples, sideAttr(samples, !o.NoTasks), cpu, pages)
		if errors.Is(err, unix.ENODEV) {
			continue // it has gone offline
		}
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		s.rings = append(s.rings, r)
	}
	if last := len(s.rings) - 1; o.DropRing && last > 0 {
		if err := s.rings[last].close(); err != nil {
			return nil, errors.Join(err, s.Close())
		}
		s.rings = s.rings[:last]
	}
	if len(s.rings) == 0 {
		return nil, errors.Join(errors.New("opening sampling events: no CPU is online"), s.Close())
	}
	s.heads = make([]uint64, 2*len(s.rings))
	if s.wakes, err = s.epoll(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// epoll returns a descriptor that Go's own poller can wait for. A thread waiting in a system call would occupy a slot
// of Go's scheduler, whose monitor would then poll every 20 us for a while.
func (s *Sampler) epoll() (*os.File, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("making an epoll for the sampling rings: %w", err)
	}
	err = unix.SetNonblock(fd, true) // os.NewFile passes only nonblocking descriptors to Go's poller
	fds := []int{s.wake}
	for _, r := range s.rings {
		fds = append(fds, r.fd)
	}
	for _, of := range fds {
		err = errors.Join(err, unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, of, &unix.EpollEvent{Events: unix.EPOLLIN}))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("waiting for the sampling rings: %w", err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "sampling rings"), nil
}

// cyclesPerSecond is a rough value for a busy CPU: the sampling rate need not be exact, only equal everywhere.
const cyclesPerSecond = 2_500_000_000

const sampleType = unix.PERF_SAMPLE_IP | unix.PERF_SAMPLE_TID | unix.PERF_SAMPLE_TIME | unix.PERF_SAMPLE_CPU |
	unix.PERF_SAMPLE_CALLCHAIN

// Bits of perf_event_attr that x/sys/unix does not name (include/uapi/linux/perf_event.h).
const bitKsymbol, bitBPFEvent = 1 << 29, 1 << 30

func newAttr(source Source, hz int, cgroup, losses bool) *unix.PerfEventAttr {
	a := &unix.PerfEventAttr{
		Type:        unix.PERF_TYPE_SOFTWARE,
		Config:      unix.PERF_COUNT_SW_CPU_CLOCK,
		Size:        uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
		Sample_type: sampleType,
		Bits: unix.PerfBitDisabled | unix.PerfBitExcludeUser | unix.PerfBitExcludeCallchainUser | unix.PerfBitSampleIDAll |
			unix.PerfBitUseClockID,
		Clockid:     unix.CLOCK_MONOTONIC,
		Read_format: unix.PERF_FORMAT_TOTAL_TIME_ENABLED,
		Sample:      uint64(time.Second) / uint64(hz),
	}
	if source == Cycles {
		a.Type, a.Config = unix.PERF_TYPE_HARDWARE, unix.PERF_COUNT_HW_CPU_CYCLES
		// A fixed number of cycles, so that every sample has the same weight. Given a frequency, the kernel would adapt the
		// period of each CPU to its load, and a nearly idle CPU would have as many samples as a busy one.
		a.Sample = cyclesPerSecond / uint64(hz)
	}
	if losses {
		a.Read_format |= unix.PERF_FORMAT_LOST
	}
	if cgroup {
		a.Sample_type |= unix.PERF_SAMPLE_CGROUP
	}
	return a
}

// sideAttr returns the attributes of the event that makes records of programs and threads, given those of the sampling
// event. Both kinds of records have the same trailer.
func sideAttr(of *unix.PerfEventAttr, tasks bool) *unix.PerfEventAttr {
	a := *of
	a.Type, a.Config, a.Sample = unix.PERF_TYPE_SOFTWARE, unix.PERF_COUNT_SW_DUMMY, 0
	if a.Bits |= bitKsymbol | bitBPFEvent; tasks {
		a.Bits |= unix.PerfBitTask
	}
	return &a
}

// Source returns the event that triggers the samples.
func (s *Sampler) Source() Source { return s.source }

// Period returns the time between two samples of one CPU. It is wall time for cpu-clock. For cycles it is only roughly
// the busy kernel time, and must not be used for measurement.
func (s *Sampler) Period() time.Duration { return s.period }

// HasCgroup reports whether samples contain a cgroup id.
func (s *Sampler) HasCgroup() bool { return s.cgroup }

// Lost returns how many samples the kernel has dropped since Open, because a ring was full or the hardware took them
// faster than it could deliver them, and how many other records. If ExactLost is false it includes only losses
// reported by drained records, and all count as samples.
func (s *Sampler) Lost() (samples, others uint64, err error) {
	samples = s.lost
	for _, r := range s.rings {
		if !s.exact {
			break
		}
		if _, err := r.enabled(); err != nil {
			return 0, 0, err
		}
		_, side, err := r.read(r.side)
		if err != nil {
			return 0, 0, err
		}
		samples, others = samples+r.lost, others+side
	}
	return samples, others, nil
}

// Wait waits until a ring is half full, Wake is called, or d has passed.
func (s *Sampler) Wait(d time.Duration) error {
	conn, err := s.wakes.SyscallConn()
	if err == nil {
		err = s.wakes.SetReadDeadline(time.Now().Add(d))
	}
	if err != nil {
		return fmt.Errorf("waiting for the sampling rings: %w", err)
	}
	// Check for earlier events here: the poller reports only what happens while it waits.
	first := true
	err = conn.Read(func(uintptr) (ready bool) {
		ready = !first || s.woken() || slices.ContainsFunc(s.rings, (*ring).halfFull)
		first = false
		return ready
	})
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("waiting for the sampling rings: %w", err)
	}
	s.woken()
	return nil
}

// woken reports whether Wake was called since the last call of woken.
func (s *Sampler) woken() bool {
	var b [8]byte
	n, _ := unix.Read(s.wake, b[:])
	return n > 0
}

// Wake ends the current Wait, or else the next one.
func (s *Sampler) Wake() {
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], 1)
	_, _ = unix.Write(s.wake, b[:]) // fails only if the counter overflows
}

// ExactLost reports whether the kernel counts what it drops immediately. Before Linux 6.0 it does not: a ring reports
// losses with the next record that fits (PERF_RECORD_LOST, __perf_output_begin in kernel/events/ring_buffer.c), so
// losses shortly before sampling stops are reported after it has started again, or never.
func (s *Sampler) ExactLost() bool { return s.exact }

// Throttled returns how often the kernel has throttled the sampler since Open.
func (s *Sampler) Throttled() uint64 { return s.slowed }

// Enable starts sampling.
func (s *Sampler) Enable() error {
	for _, r := range s.rings {
		if err := r.enable(); err != nil {
			return err
		}
	}
	return nil
}

// Disable stops sampling. The rings can still be drained.
func (s *Sampler) Disable() error {
	for _, r := range s.rings {
		if err := r.disable(); err != nil {
			return err
		}
	}
	return nil
}

// Blind returns the CPUs that were not sampled all the time since the last Enable or Blind, not counting time while
// sampling was disabled. When a CPU goes offline, the kernel removes its event for good, without an error, and a CPU
// that comes online later has none.
func (s *Sampler) Blind() ([]int, error) { return s.blind(func() {}) }

// blind is Blind with a hook that runs between rings, for example to simulate that this process gets no CPU time.
func (s *Sampler) blind(between func()) ([]int, error) {
	online, err := OnlineCPUs()
	if err != nil {
		return nil, err
	}
	var longest time.Duration
	for _, r := range s.rings {
		if err := r.look(); err != nil {
			return nil, err
		}
		longest = max(longest, r.on)
		between()
	}
	var blind []int
	for _, r := range s.rings {
		if i := slices.Index(online, r.cpu); i >= 0 {
			online = slices.Delete(online, i, i+1)
		}
		// Rings are enabled and read one after another, so a small difference is not a gap. Comparing with the longest also
		// allows for the kernel's clock being slow, which affects all rings.
		if short := min(longest, r.must) - r.on; short > longest/20+50*time.Millisecond {
			blind = append(blind, r.cpu)
		}
		r.must = 0
	}
	return slices.Sorted(slices.Values(append(blind, online...))), nil
}

// Drain passes everything in the rings to h and empties them. Call it several times a second, and after Wait.
func (s *Sampler) Drain(h *Handler) error {
	// Heads for samples are read before heads for the rest. Whatever happened on any CPU before a delivered sample is
	// therefore within the part of the rings that the first pass reads. Samples beyond their head wait for the next
	// drain.
	n := len(s.rings)
	for i, r := range s.rings {
		s.heads[i] = r.head()
	}
	for i, r := range s.rings {
		s.heads[n+i] = r.head()
	}
	for i, r := range s.rings {
		s.pending = s.pending[:0]
		tail := r.meta.Data_tail
		buf := r.peek(s.heads[n+i])
		if err := records(buf[r.seen-tail:], func(typ uint32, b []byte) error { return s.event(typ, b, h) }); err != nil {
			return fmt.Errorf("reading the sampling ring of CPU %d: %w", r.cpu, err)
		}
		r.seen = s.heads[n+i]
	}
	for i, r := range s.rings {
		err := records(r.buf[:s.heads[i]-r.meta.Data_tail], func(typ uint32, b []byte) (err error) {
			if typ != recordSample || h.Sample == nil {
				return nil
			}
			var smp Sample
			if smp, s.chain, err = decodeSample(b, s.cgroup, s.chain); err == nil {
				h.Sample(&smp)
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("reading the sampling ring of CPU %d: %w", r.cpu, err)
		}
		r.release(s.heads[i])
	}
	return nil
}

// event handles a record other than a sample.
func (s *Sampler) event(typ uint32, b []byte, h *Handler) error {
	switch typ {
	case recordLost: // u64 id, u64 lost
		if !s.exact && len(b) >= 16 {
			s.lost += binary.NativeEndian.Uint64(b[8:])
		}
	case recordLostSamples: // u64 lost
		if len(b) >= 8 {
			s.lost += binary.NativeEndian.Uint64(b)
		}
	case recordThrottle:
		s.slowed++
	case recordFork, recordExit:
		t, err := decodeTask(typ == recordExit, b)
		if err == nil && h.Task != nil {
			h.Task(t)
		}
		return err
	case recordKsymbol:
		sym, ok, err := decodeSymbol(b, sampleIDSize)
		if err != nil || !ok {
			return err
		}
		if !sym.Removed {
			s.pending = append(s.pending, sym)
		}
		if h.Symbol != nil {
			h.Symbol(sym)
		}
	case recordBPFEvent:
		p, ok, err := decodeProgram(b, sampleIDSize)
		if err != nil || !ok {
			return err
		}
		if h.Program != nil {
			h.Program(p, s.pending)
		}
		s.pending = s.pending[:0]
	}
	return nil
}

// Close stops sampling and frees the rings.
func (s *Sampler) Close() error {
	errs := []error{unix.Close(s.wake)}
	if s.wakes != nil {
		errs = append(errs, s.wakes.Close())
	}
	for _, r := range s.rings {
		errs = append(errs, r.close())
	}
	s.rings = nil
	return errors.Join(errs...)
}

// OnlineCPUs returns the numbers of the CPUs that are online.
func OnlineCPUs() ([]int, error) { return onlineCPUs("/sys/devices/system/cpu/online") }

// Leaders returns the descriptors of the sampler's events, by CPU. An event opened with one of them as its leader is
// switched on and off with it. Such events must be closed before the sampler.
func (s *Sampler) Leaders() map[int]int {
	return lists.Keyed(s.rings, func(r *ring) (cpu, fd int) { return r.cpu, r.fd })
}

// onlineCPUs reads a file with a list like "0-3,5".
func onlineCPUs(path string) ([]int, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading which CPUs are online: %w", err)
	}
	cpus, err := proc.CPUs(string(raw))
	if err != nil {
		return nil, fmt.Errorf("reading which CPUs are online from %s: %w", path, err)
	}
	return cpus, nil
}

// opens returns a probe that opens a sampling event with the given properties; found is its result on success.
func opens(source Source, cgroup, losses bool, found string) func() (string, error) {
	return func() (string, error) {
		fd, err := unix.PerfEventOpen(newAttr(source, DefaultHz, cgroup, losses), -1, 0, -1, unix.PERF_FLAG_FD_CLOEXEC)
		if err == nil {
			err = unix.Close(fd)
		}
		if err != nil {
			return "", fmt.Errorf("perf_event_open%s: %w", paranoid(err), err)
		}
		return found, nil
	}
}

// paranoid returns the end of a message about err. It names kernel.perf_event_paranoid if this setting makes the kernel
// deny events to processes without CAP_PERFMON (EACCES of perf_allow_kernel and perf_allow_cpu in
// include/linux/perf_event.h), and is empty if err has another cause.
func paranoid(err error) string {
	level, unread := os.ReadFile("/proc/sys/kernel/perf_event_paranoid")
	if !errors.Is(err, unix.EACCES) || unread != nil {
		return ""
	}
	return " with kernel.perf_event_paranoid = " + strings.TrimSpace(string(level))
}

// The features of this package.
var (
	Sampling = feature.New(feature.Status{
		Name: "sampling",
		Needs: "perf_event_open for all CPUs: CAP_PERFMON or CAP_SYS_ADMIN, CONFIG_PERF_EVENTS, Linux 5.8 (BPF symbols " +
			"in the ring)",
		Lost: "the split of eBPF time by control group and context; totals stay exact",
		Hint: "run as root, or with CAP_PERFMON; or sysctl -w kernel.perf_event_paranoid=0, for all users; in a container " +
			"allow perf_event_open in its seccomp profile as well",
	}, opens(CPUClock, false, false, fmt.Sprintf("a ring for each CPU, %d samples per second", DefaultHz)))
	HardwareCycles = feature.New(feature.Status{
		Name:  "hardware-cycles",
		Needs: "a performance counter of the CPU (bare metal, or a virtual machine with a virtual PMU)",
		Lost:  "samples of code that runs with interrupts off; cpu-clock is used instead",
		Hint:  "give the virtual machine a PMU",
	}, opens(Cycles, false, false, "samples come by NMI"))
	Cgroups = feature.New(feature.Status{
		Name:  "sample-cgroup",
		Needs: "PERF_SAMPLE_CGROUP: Linux 5.7 with CONFIG_CGROUP_PERF",
		Lost:  "the exact control group of a sample on cgroup v2; the thread's group is read from /proc instead",
		Hint:  "boot Linux 5.7 or newer with CONFIG_CGROUP_PERF",
	}, opens(CPUClock, true, false, "samples carry the id of their control group"))
	Losses = feature.New(feature.Status{
		Name:  "sample-losses",
		Needs: "PERF_FORMAT_LOST: Linux 6.0",
		Lost:  "samples that a full ring lost at the end of a window: the ring reports them once it has room again",
		Hint:  "boot Linux 6.0 or newer",
	}, opens(CPUClock, false, true, "lost samples are counted as they are lost"))
)

// Features returns the probes of this package.
func Features() []*feature.Probe { return []*feature.Probe{Sampling, HardwareCycles, Cgroups, Losses} }
