package calibrate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"tare/internal/fault"
	"tare/internal/ledger"
	"tare/internal/placement"
	"tare/internal/quantity"
)

const (
	heavyPart  = 3       // of the runs, in group a; one part is in group b
	mapEntries = 1 << 17 // of 8 bytes: 1 MiB
	sampleHz   = 997     // short runs need many samples
	truthRuns  = 5       // goes of which the middle one counts
)

// bpf weighs programs of known run time: all runs of each, and where they ran.
func (b *bench) bpf(ctx context.Context) error {
	if err := lockMemory(); err != nil {
		return err
	}
	step, err := stepTime()
	if err != nil {
		return err
	}
	for _, d := range []time.Duration{50 * time.Nanosecond, 500 * time.Nanosecond, 5 * time.Microsecond, 50 * time.Microsecond} {
		steps := max(1, int(math.Round(d.Seconds()/step)))
		err := b.weigh(ctx, "bpf", fmt.Sprintf("a program of about %v", d), func(ctx context.Context) ([]Weight, error) { return b.program(ctx, d, steps) })
		if err != nil {
			return err
		}
	}
	return nil
}

// lockMemory lifts the limit to which kernels before 5.11 charge programs and maps.
func lockMemory() error {
	err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY})
	if err != nil && !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("lifting the limit of locked memory: %w", err)
	}
	return nil
}

// maps weighs a map that two programs use.
func (b *bench) maps(ctx context.Context) error {
	if err := lockMemory(); err != nil {
		return err
	}
	return b.weigh(ctx, "maps", "a map of two programs", b.sharedMap)
}

// body is a program that takes steps, each of which needs the one before, and returns 1: to go on. A program without steps is what
// running one takes in itself.
func body(steps int) asm.Instructions {
	if steps == 0 {
		return asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}
	}
	return asm.Instructions{
		asm.Mov.Imm(asm.R2, 88172645),
		asm.Mov.Imm(asm.R3, int32(steps)),
		asm.Mul.Imm(asm.R2, 1664525).WithSymbol("step"), // some cycles of latency each, whatever else the core does
		asm.Mul.Imm(asm.R2, 22695477),
		asm.Mul.Imm(asm.R2, 1103515245),
		asm.Mul.Imm(asm.R2, 69069),
		asm.Sub.Imm(asm.R3, 1),
		asm.JNE.Imm(asm.R3, 0, "step"),
		asm.Mov.Imm(asm.R0, 1),
		asm.Return(),
	}
}

// clockRead reads the kernel's clock once: that much is in the kernel's own count of every run.
func clockRead() asm.Instructions {
	return append(asm.Instructions{asm.FnKtimeGetNs.Call()}, body(0)...)
}

// runTime measures what a run takes, by running the program as a type that the kernel runs on demand, by the CPU clock of the thread that asks
// for it. Statistics are off. Two threads do so side by side, as the two groups will: CPUs that share a core are slower together.
func runTime(instructions asm.Instructions, about time.Duration) (seconds float64, err error) {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "tare_truth", Type: ebpf.SocketFilter, Instructions: instructions, License: "Dual BSD/GPL"})
	if err != nil {
		return 0, fmt.Errorf("loading a program to measure: %w", err)
	}
	defer p.Close()
	repeat := max(int(10*time.Millisecond/max(about, 20*time.Nanosecond)), 100)
	threads := min(2, runtime.NumCPU())
	goes := make([]float64, threads*truthRuns)
	errs := make([]error, threads)
	var running sync.WaitGroup
	for i := range threads {
		running.Go(func() { errs[i] = runOnDemand(p, repeat, goes[i*truthRuns:(i+1)*truthRuns]) })
	}
	running.Wait()
	if err := errors.Join(errs...); err != nil {
		return 0, fmt.Errorf("running a program to measure it: %w", err)
	}
	slices.Sort(goes)
	return goes[len(goes)/2], nil
}

// runOnDemand runs the program again and again, and says what a run took in each go, in seconds.
func runOnDemand(p *ebpf.Program, repeat int, goes []float64) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	packet := make([]byte, 14) // the least that the kernel takes: an Ethernet header
	for i := range goes {
		start := clockNs(unix.CLOCK_THREAD_CPUTIME_ID)
		if _, err := p.Run(&ebpf.RunOptions{Data: packet, Repeat: uint32(repeat)}); err != nil {
			return err
		}
		goes[i] = float64(clockNs(unix.CLOCK_THREAD_CPUTIME_ID)-start) / 1e9 / float64(repeat)
	}
	return nil
}

func stepTime() (float64, error) {
	const steps = 1000
	t, err := runTime(body(steps), 5*time.Microsecond)
	return t / steps, err
}

// program has two groups run a program 3:1. What a run takes is what it adds to the calls that it runs above, by the clock of the processes
// that make them, while statistics and samples are off.
func (b *bench) program(ctx context.Context, about time.Duration, steps int) (ws []Weight, err error) {
	const call = time.Microsecond // a connect() without a program, about
	long := b.length(2*time.Second, 600*time.Millisecond)
	light := int(long / heavyPart / (about + call))
	nothing, err := b.callTime(ctx, 0, int(long/heavyPart/call))
	if err != nil {
		return nil, err
	}
	something, err := b.callTime(ctx, steps, light)
	if err != nil {
		return nil, err
	}
	clock, err := b.clockTime()
	if err != nil {
		return nil, err
	}
	truth := something - nothing

	p, id, err := planted(steps)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	var l *ledger.Ledger
	_, paths, err := b.connectors(ctx, p, light, func(run func() error) (err error) {
		l, err = b.ledgerOf(ctx, sampleHz, run)
		return err
	})
	if err != nil {
		return nil, err
	}
	runs := float64((heavyPart + 1) * light)
	name := fmt.Sprintf("program of %v", about)
	how := fmt.Sprintf("%.0f runs of a program of %d steps above connect(); truth: a call with it (%s) less a call with an empty one (%s), by the callers, without statistics; in the kernel's count of a run is one reading of the clock besides (%s)",
		runs, steps, quantity.Value(something, quantity.Seconds), quantity.Value(nothing, quantity.Seconds), quantity.Value(clock, quantity.Seconds))
	prog := programOf(l, id)
	if prog == nil || prog.NsPerRun == nil {
		return []Weight{missing(name+", time of a run", quantity.Seconds, how, "the program is not in the ledger")}, nil
	}
	ws = append(ws,
		known(name+", runs", quantity.Count, runs, float64(*prog.RunCount), Tolerance{Absolute: 0.5}, "processes that count their calls"),
		// 40 ns: a call takes about 1 us, and is not known better than to some per cent.
		known(name+", time of a run", quantity.Seconds, truth+clock, *prog.NsPerRun/1e9, Tolerance{Absolute: 40e-9, Part: 0.05}, how).fragile())
	if prog.SampledSeconds == nil {
		return append(ws, missing(name+", time by samples", quantity.Seconds, how, "no samples on this machine")), nil
	}
	s := prog.SampledSeconds
	ws = append(ws, known(name+", time by samples", quantity.Seconds, runs*truth, s.Value, Tolerance{Absolute: runs * 40e-9, Part: 0.05, HalfWidths: 2},
		"the sampler alone; "+how).within(s.Lo, s.Hi).fragile())
	ws = append(ws, share(name, prog, paths, how))
	return ws, nil
}

// share is the part of the program's time in group a.
func share(name string, prog *ledger.Program, paths []string, planted string) Weight {
	name += ", part in one of two groups"
	const truth = float64(heavyPart) / (heavyPart + 1)
	for _, s := range prog.Shares {
		if s.Cgroup != nil && *s.Cgroup == paths[0] && s.Context == ledger.Task {
			total := *prog.RunSeconds
			return known(name, quantity.Part, truth, s.Seconds/total, Tolerance{Absolute: 0.01, HalfWidths: 2}, "two groups that run the program 3:1").within(s.Lo/total, s.Hi/total)
		}
	}
	w := known(name, quantity.Part, truth, 0, Tolerance{Absolute: 0.01}, planted).noted("the ledger has no share for the group")
	if len(prog.Shares) > 0 && prog.Shares[0].Note != "" {
		w.Note += ": " + prog.Shares[0].Note
	}
	return w
}

// planted loads a program of so many steps for the connect hook, and gives its id.
func planted(steps int) (*ebpf.Program, uint32, error) {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "tare_weight", Type: ebpf.CGroupSockAddr, AttachType: ebpf.AttachCGroupInet4Connect, Instructions: body(steps), License: "Dual BSD/GPL"})
	if err != nil {
		return nil, 0, fmt.Errorf("loading the planted program: %w", err)
	}
	info, err := p.Info()
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("reading the planted program: %w", err), p.Close())
	}
	id, _ := info.ID()
	return p, uint32(id), nil
}

// callTime is what a call of connect() takes with a program of so many steps above it, in seconds.
func (b *bench) callTime(ctx context.Context, steps, light int) (float64, error) {
	p, _, err := planted(steps)
	if err != nil {
		return 0, err
	}
	defer p.Close()
	results, _, err := b.connectors(ctx, p, light, func(run func() error) error { return run() })
	if err != nil {
		return 0, err
	}
	seconds, calls := 0.0, 0
	for _, r := range results {
		seconds += r.Seconds
		calls += r.Times
	}
	return seconds / float64(calls), nil
}

// clockTime is what one reading of the kernel's clock takes, in seconds.
func (b *bench) clockTime() (float64, error) {
	const short = 20 * time.Nanosecond
	reading, err1 := runTime(clockRead(), 2*short)
	nothing, err2 := runTime(body(0), short)
	return max(reading-nothing, 0), errors.Join(err1, err2)
}

// connectors attaches the program above two groups and has their processes connect, three times as often in the first; each on a CPU of its
// own where there are two. While they do, around runs.
func (b *bench) connectors(ctx context.Context, p *ebpf.Program, light int, around func(run func() error) error) (results []plantedResult, paths []string, err error) {
	h, ok := b.layout.V2()
	if !ok {
		return nil, nil, fault.New(fault.Machine, "bpf", "mount one: mount -t cgroup2 none /sys/fs/cgroup/unified; or leave it out with --only", "programs attach to a cgroup v2 directory, and no v2 hierarchy is mounted")
	}
	at, err := link.AttachCgroup(link.CgroupOptions{Path: filepath.Join(h.Mount, b.tree.Name()), Attach: ebpf.AttachCGroupInet4Connect, Program: p})
	if err != nil {
		return nil, nil, fmt.Errorf("attaching the planted program to the control group: %w", err)
	}
	defer func() { err = errors.Join(err, at.Close()) }()
	var children []*child
	defer func() {
		for _, c := range children {
			err = errors.Join(err, c.stop())
		}
	}()
	times := []int{heavyPart * light, light}
	for i := range times {
		c, g, err := b.start(ctx, placement.Limits{Pin: i + 1}, nil, WeightCommand, "connect")
		if err != nil {
			return nil, nil, err
		}
		children = append(children, c)
		paths = append(paths, g.Path())
	}
	err = around(func() error {
		results, err = order(children, func(i int) any { return connectOrder{times[i]} })
		return err
	})
	return results, paths, err
}

func programOf(l *ledger.Ledger, id uint32) *ledger.Program {
	for i := range l.Programs {
		if l.Programs[i].ID == id {
			return &l.Programs[i]
		}
	}
	return nil
}

// sharedMap has two programs use one map, whose size follows from its entries.
func (b *bench) sharedMap(ctx context.Context) (ws []Weight, err error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "tare_weight", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: mapEntries})
	if err != nil {
		return nil, fmt.Errorf("making the planted map: %w", err)
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil {
		return nil, fmt.Errorf("reading the planted map: %w", err)
	}
	id, _ := info.ID()
	for range 2 {
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "tare_weight", Type: ebpf.SocketFilter, License: "Dual BSD/GPL", Instructions: append(asm.Instructions{
			asm.LoadMapPtr(asm.R1, m.FD())}, body(0)...)})
		if err != nil {
			return nil, fmt.Errorf("loading a program with the planted map: %w", err)
		}
		defer p.Close()
	}
	runtime.KeepAlive(m)
	l, err := b.ledgerOf(ctx, -1, func() error { return sleep(ctx, 100*time.Millisecond) })
	if err != nil {
		return nil, err
	}
	one := *l
	one.Maps = nil
	users := 0
	for _, row := range l.Maps {
		if row.ID == uint32(id) {
			one.Maps = append(one.Maps, row)
			users = len(row.UsedBy)
		}
	}
	const planted = "an array of 131072 values of 8 bytes that two programs use; truth: its entries"
	bytes, _ := one.MapBytes()
	return []Weight{
		// A page: its header, and rounding up.
		known("bytes of a map that two programs use", quantity.Bytes, mapEntries*8, float64(bytes), Tolerance{Absolute: float64(os.Getpagesize())}, planted),
		known("programs that use the map", quantity.Count, 2, float64(users), Tolerance{Absolute: 0.5}, planted),
	}, nil
}
