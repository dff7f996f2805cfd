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
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
	"tare/internal/lib/lists"
	"tare/internal/lib/pace"
	"tare/internal/lib/quantity"
	"tare/internal/lib/stats/interval"
	"tare/internal/scale/attribution"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/perf"
	"tare/internal/scale/ledger"
)

const (
	heavyPart  = 3       // runs in the first group for each run in the second
	mapEntries = 1 << 17 // entries of 8 bytes each: 1 MiB
	sampleHz   = 997     // high, because short runs need many samples
	truthRuns  = 5       // number of measurements; their median counts
)

// bpf weighs programs of known run time: the number and time of all runs of each, and where they ran.
func (b *bench) bpf() ([]planting, error) {
	if err := lockMemory(); err != nil {
		return nil, err
	}
	step, err := fastestStep()
	if err != nil {
		return nil, err
	}
	var zero empty
	all := []planting{{"a program of nothing",
		func(ctx context.Context) ([]Weight, error) { return b.nothing(ctx, &zero) }}}
	for _, d := range []time.Duration{50 * time.Nanosecond, 500 * time.Nanosecond, 5 * time.Microsecond,
		50 * time.Microsecond} {
		steps := max(1, int(math.Round(d.Seconds()/step)))
		all = append(all, planting{fmt.Sprintf("a program of about %v", d),
			func(ctx context.Context) ([]Weight, error) { return b.program(ctx, d, steps, zero) }})
	}
	return all, nil
}

// lockMemory lifts the limit on locked memory, because kernels before 5.11 count programs and maps toward it.
func lockMemory() error {
	err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY})
	if err != nil && !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("lifting the limit of locked memory: %w", err)
	}
	return nil
}

// maps weighs a map that two programs use.
func (b *bench) maps() ([]planting, error) {
	return []planting{{"a map of two programs", b.sharedMap}}, lockMemory()
}

// body returns a program that runs the given number of steps, each of which depends on the one before, and returns 1,
// which allows the connect. Without steps a run costs only its entry and exit.
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

// runTime measures the time of one run: it runs the program on demand as a socket filter, timed by the CPU clock of
// the calling thread, without run statistics. It returns the median of truthRuns measurements of at least 10 ms.
func runTime(instructions asm.Instructions, about time.Duration) (seconds float64, err error) {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "tare_truth", Type: ebpf.SocketFilter, Instructions: instructions,
		License: "Dual BSD/GPL"})
	if err != nil {
		return 0, fmt.Errorf("loading a program to measure: %w", err)
	}
	defer p.Close()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	repeat := max(int(10*time.Millisecond/max(about, 20*time.Nanosecond)), 100)
	packet := make([]byte, 14) // the minimum that the kernel accepts: an Ethernet header
	var goes [truthRuns]float64
	for i := range goes {
		start := pace.Clock(unix.CLOCK_THREAD_CPUTIME_ID)
		if _, err := p.Run(&ebpf.RunOptions{Data: packet, Repeat: uint32(repeat)}); err != nil {
			return 0, fmt.Errorf("running a program to measure it: %w", err)
		}
		goes[i] = float64(pace.Clock(unix.CLOCK_THREAD_CPUTIME_ID)-start) / 1e9 / float64(repeat)
	}
	slices.Sort(goes[:])
	return goes[len(goes)/2], nil
}

// stepTime returns the time of one step, in seconds. The fixed part of a run, which looks shorter when runs follow
// each other, cancels out.
func stepTime() (float64, error) {
	const steps = 2000
	long, err1 := runTime(body(steps), 6*time.Microsecond)
	short, err2 := runTime(body(steps/2), 3*time.Microsecond)
	return (long - short) / (steps / 2), errors.Join(err1, err2)
}

// fastestStep returns the time of one step, in seconds, in the fastest run. It determines the number of steps of a
// program: if something slowed the measurement down, programs would be too short for their samples to be weighed.
func fastestStep() (step float64, err error) {
	const steps = 2000
	fastest := math.Inf(1)
	for range truthRuns {
		run, err := runTime(body(steps), 6*time.Microsecond)
		if err != nil {
			return 0, err
		}
		fastest = min(fastest, run)
	}
	return fastest / steps, nil
}

// empty is the time that the ledger gives for a run of a program that does nothing, in seconds: reading two clocks,
// entry and exit. Every run includes it; the rest is the time of the program's own instructions.
type empty struct {
	counted, sampled float64
	call             float64 // CPU time of the whole call, by the process's clock, at its fastest
}

// nothing weighs a program without steps, whose time becomes the time of an empty run.
func (b *bench) nothing(ctx context.Context, zero *empty) ([]Weight, error) {
	w, err := b.plantProgram(ctx, 0, 0)
	if err != nil {
		return nil, err
	}
	const name = "program of nothing, time of a run"
	how := fmt.Sprintf("%.0f runs of a program that returns at once; this is part of every run, and is subtracted from "+
		"the times below", w.runs)
	if w.program == nil || w.program.NsPerRun == nil {
		return []Weight{w.counted("program of nothing"), missing(name, quantity.Seconds, how, untimed)}, nil
	}
	zero.counted = *w.program.NsPerRun / 1e9
	zero.call = min(w.results[0].Fastest, w.results[1].Fastest)
	ws := []Weight{told(name, quantity.Seconds, zero.counted, how)}
	if s := w.program.SampledSeconds; s != nil {
		zero.sampled = s.Value / w.runs
		ws = append(ws, told("program of nothing, a run by samples", quantity.Seconds, zero.sampled, how).within(s.Lo/w.runs,
			s.Hi/w.runs))
	}
	return ws, nil
}

const untimed = "the ledger has no time of a run"

// counted weighs the number of a program's runs. On a kernel without run statistics, the ledger has the program but no
// count, and the weight is missing. If the ledger does not have the program at all, the weight fails.
func (w weighed) counted(name string) Weight {
	name += ", runs"
	const planted = "processes that count their calls"
	allowed := Tolerance{Absolute: 0.5}
	switch {
	case w.program == nil:
		return known(name, quantity.Count, w.runs, 0, allowed, planted).noted("the program is not in the ledger")
	case w.program.RunCount == nil:
		return missing(name, quantity.Count, planted, "null: this kernel does not count it")
	}
	return known(name, quantity.Count, w.runs, float64(*w.program.RunCount), allowed, planted)
}

// program weighs a program that the processes of two groups run, heavyPart times as often in the first group.
func (b *bench) program(ctx context.Context, about time.Duration, steps int, zero empty) ([]Weight, error) {
	before, err1 := stepTime() // before and after, because the time of a step changes with the CPU's clock rate
	w, err2 := b.plantProgram(ctx, steps, about)
	after, err3 := stepTime()
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	step := (before + after) / 2
	truth, prog := step*float64(steps), w.program
	name := fmt.Sprintf("program of %v", about)
	how := fmt.Sprintf("%.0f runs of a program of %d steps on connect(), less as many runs of one that does nothing; "+
		"truth: steps of %.3f ns, run on demand without statistics", w.runs, steps, step*1e9)
	if prog == nil || prog.NsPerRun == nil {
		return []Weight{w.counted(name), missing(name+", time of a run", quantity.Seconds, how, untimed)}, nil
	}
	// 30 ns, because the first and the last step of a run can overlap with the instructions around them.
	allowed := Tolerance{Absolute: 30e-9, Part: 0.05}
	run := known(name+", time of a run", quantity.Seconds, truth, *prog.NsPerRun/1e9-zero.counted, allowed, how).
		fragile().ran(prog)
	moved := math.Abs(after-before) * float64(steps)
	if math.Abs(*run.Measured-truth) > allowed.Allows(run) {
		// If something interrupts a run and takes its CPU away unseen, that time is in the kernel's figure and not in the
		// truth.
		away := missed(200 * time.Millisecond)
		run = run.noted(fmt.Sprintf("the truth before and after differs by %s; a loop that does nothing misses %.2g %% "+
			"of its time", quantity.Value(moved, quantity.Seconds), 100*away)).
			unless(func(off float64, s stood) bool { return moved+away*truth+s.awaySeconds/w.runs >= off/2 })
	}
	ws := []Weight{w.counted(name), run}
	if s := prog.SampledSeconds; s != nil {
		allowed.Absolute, allowed.HalfWidths = w.runs*allowed.Absolute, 2
		nothing := w.runs * zero.sampled
		bySamples := known(name+", time by samples", quantity.Seconds, w.runs*truth, s.Value-nothing, allowed,
			"the sampler alone; "+how)
		ws = append(ws, bySamples.within(s.Lo-nothing, s.Hi-nothing).
			unless(func(off float64, s stood) bool { return w.withheld || moved*w.runs+s.awaySeconds >= off/2 }))
	} else {
		ws = append(ws, missing(name+", time by samples", quantity.Seconds, how,
			"samples on this machine are no measure of time, or there are none"))
	}
	return append(ws, placed(name, w, how, zero)...), nil
}

// placed weighs what samples say about where a program ran: its share in the first group, and the number of samples in
// each group. It returns nil if there was no sampler.
func placed(name string, w weighed, how string, zero empty) []Weight {
	if w.hz == 0 {
		return nil
	}
	return append([]Weight{share(name, w, how)}, seen(name, w, zero)...)
}

// worthCorrecting is the minimum fraction of a program's run time that stolen time must reach to be subtracted.
const worthCorrecting = 0.01

// ran subtracts the time that the ledger reports as stolen from the time of a run: the kernel counts wall time, and
// the truth is CPU time. The uncertainty of the stolen time widens the tolerance.
func (w Weight) ran(p *ledger.Program) Weight {
	s := p.StolenSeconds
	if s == nil || p.RunSeconds == nil || p.RunCount == nil || s.Value < worthCorrecting**p.RunSeconds {
		return w
	}
	runs := float64(*p.RunCount)
	*w.Measured -= s.Value / runs
	w.Tolerance.HalfWidths = 1
	return w.within(*w.Measured-(s.Hi-s.Value)/runs, *w.Measured+(s.Value-s.Lo)/runs)
}

// weighed is a program that ran in two groups.
type weighed struct {
	runs     float64
	program  *ledger.Program // nil: not in the ledger
	paths    []string
	results  []plantedResult // of the two groups' processes
	hz       float64         // samples per CPU and second; 0: there are none
	cycles   bool            // hz is only approximate: samples are taken by cycles
	withheld bool            // the kernel throttled the sampler, or samples were lost
}

func (b *bench) plantProgram(ctx context.Context, steps int, about time.Duration) (w weighed, err error) {
	const call = time.Microsecond // approximate time of connect() without a program
	light := int(b.length(3*time.Second, time.Second) / (heavyPart + 1) / (about + call))
	p, id, err := planted(steps)
	if err != nil {
		return w, err
	}
	defer p.Close()
	l, results, paths, err := b.connectors(ctx, p, light)
	if err != nil {
		return w, err
	}
	w = weighed{runs: float64((heavyPart + 1) * light), program: programOf(l, id), paths: paths, results: results}
	if period := l.Host.SamplerPeriod; period != nil && *period > 0 {
		w.hz, w.cycles = 1 / *period, l.Host.Sampler == string(perf.Cycles)
	}
	w.withheld = slices.ContainsFunc(l.Warnings, func(x ledger.Warning) bool {
		return x.Code == "sampler-throttled" || x.Code == "samples-lost"
	})
	return w, nil
}

// share weighs the fraction of the program's time that was in the first group. The processes run it in the ratio 3:1,
// but their CPUs may differ in speed, for example if one shares its core with a neighbour. The truth is therefore the
// ratio of the CPU times of their calls.
func share(name string, w weighed, planted string) Weight {
	prog := w.program
	name += ", part in one of two groups"
	a, b := w.results[0].CPUSeconds, w.results[1].CPUSeconds
	expected := a / (a + b)
	// The rest of a call may be slowed down by a different factor than the program.
	unlike := math.Abs(expected - float64(heavyPart)/(heavyPart+1))
	for _, s := range prog.Shares {
		if s.Cgroup != nil && *s.Cgroup == w.paths[0] && s.Context == ledger.Task {
			total := *prog.RunSeconds
			const planted = "two groups that run the program 3:1; truth: the CPU time of their calls by the processes' " +
				"own clocks"
			return known(name, quantity.Part, expected, s.Seconds/total, Tolerance{Absolute: 0.01, HalfWidths: 2}, planted).
				within(s.Lo/total, s.Hi/total).estimated().
				only(func(off float64, s stood) bool { return w.withheld || s.stolenSeconds/(a+b)+unlike >= off })
		}
	}
	missed := known(name, quantity.Part, expected, 0, Tolerance{Absolute: 0.01},
		planted).noted("the ledger has no share for the group")
	if len(prog.Shares) > 0 && prog.Shares[0].Note != "" {
		missed.Note += ": " + prog.Shares[0].Note
	}
	return missed.fragile()
}

// minSeen is the minimum number of samples that must be due on a CPU for their number to be weighed. With so many,
// random variation is small compared with the tolerance.
const minSeen = 50

// minCalls is the minimum duration of a call with the program, in durations of an empty call, for its samples to be
// weighed. The duration of an empty call changes by half or more with the load on the core's other threads; in calls of
// at least minCalls, that matters little.
const minCalls = 4

// seen compares the samples of each group's process, which has a CPU to itself, with the number that is due on that
// CPU, given the number of calls and the duration of the fastest ones. Neither a neighbour nor the hypervisor takes
// samples away from a program that runs, so this finds a CPU whose samples are not read, however noisy the machine is.
func seen(name string, w weighed, zero empty) (ws []Weight) {
	for i, path := range w.paths {
		r := w.results[i]
		due := (r.Fastest - zero.call) * float64(r.Times) * w.hz
		if due < minSeen || r.Fastest < minCalls*zero.call {
			continue
		}
		n := 0
		for _, s := range w.program.Seen {
			if s.Cgroup != nil && *s.Cgroup == path {
				n += s.Samples
			}
		}
		lo, hi := interval.Poisson(n, attribution.Confidence)
		planted := fmt.Sprintf("%d calls on a CPU of its own; truth: their number, times %s, the CPU time of one where "+
			"they were fastest, "+
			"less a call without a program, times the rate of samples", r.Times, quantity.Value(r.Fastest, quantity.Seconds))
		allowed := Tolerance{Part: 0.5, HalfWidths: 1}
		if w.cycles {
			// A CPU may run at a third of the clock rate that the sampler assumes, and that is no error of the scale.
			allowed.Part = 0.8
		}
		x := known(fmt.Sprintf("%s, samples of process %d of 2, at least", name, i+1),
			quantity.Count, due, float64(n), allowed, planted)
		// A throttled sampler resumes at the next tick, and a full ring keeps its first samples: neither explains that there
		// is no sample at all.
		ws = append(ws, x.within(lo, hi).lower().only(func(float64, stood) bool { return w.withheld && n > 0 }))
	}
	return ws
}

// planted loads a program with the given number of steps for the connect hook, and returns it with its ID.
func planted(steps int) (*ebpf.Program, uint32, error) {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "tare_weight", Type: ebpf.CGroupSockAddr,
		AttachType: ebpf.AttachCGroupInet4Connect, Instructions: body(steps), License: "Dual BSD/GPL"})
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

// connectors attaches the program to the parent of two groups and makes a process in each connect, heavyPart times as
// often in the first. The processes run in turn, each on a different CPU: at once, they would slow each other down if
// the CPUs share a core.
func (b *bench) connectors(ctx context.Context, p *ebpf.Program,
	light int) (l *ledger.Ledger, results []plantedResult, paths []string, err error) {
	h, ok := b.layout.V2()
	if !ok {
		return nil, nil, nil, fault.New(fault.Machine, "bpf",
			"leave it out with --only, or "+cgroup.MountV2,
			"programs attach to a cgroup v2 directory, and no v2 hierarchy is mounted")
	}
	at, err := link.AttachCgroup(link.CgroupOptions{Path: filepath.Join(h.Mount, b.tree.Name()),
		Attach: ebpf.AttachCGroupInet4Connect, Program: p})
	if err != nil {
		return nil, nil, nil, fmt.Errorf("attaching the planted program to the control group: %w", err)
	}
	defer func() { err = errors.Join(err, at.Close()) }()
	times := []int{heavyPart * light, light}
	children, paths, err := b.startOn(ctx, []int{1, max(2, runtime.NumCPU())}, "connect") // the first and the last CPU
	defer func() { err = errors.Join(err, stopAll(children)) }()
	if err != nil {
		return nil, nil, nil, err
	}
	l, err = b.ledgerOf(ctx, sampleHz, func() error {
		for i := range children {
			r, err := order(ctx, children[i:i+1], func(int) any { return connectOrder{times[i]} })
			if err != nil {
				return err
			}
			results = append(results, r...)
		}
		return nil
	})
	return l, results, paths, err
}

func programOf(l *ledger.Ledger, id uint32) *ledger.Program {
	return lists.Find(l.Programs, func(p *ledger.Program) bool { return p.ID == id })
}

// sharedMap weighs a map that two programs use. Its true size follows from its entries.
func (b *bench) sharedMap(ctx context.Context) (ws []Weight, err error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "tare_weight", Type: ebpf.Array, KeySize: 4, ValueSize: 8,
		MaxEntries: mapEntries})
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
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "tare_weight", Type: ebpf.SocketFilter, License: "Dual BSD/GPL",
			Instructions: append(asm.Instructions{
				asm.LoadMapPtr(asm.R1, m.FD())}, body(0)...)})
		if err != nil {
			return nil, fmt.Errorf("loading a program with the planted map: %w", err)
		}
		defer p.Close()
	}
	runtime.KeepAlive(m)
	l, err := b.ledgerOf(ctx, -1, func() error { return pace.Sleep(ctx, 100*time.Millisecond) })
	if err != nil {
		return nil, err
	}
	return mapWeights(l, uint32(id)), nil
}

// mapWeights returns the weights of the map with the given ID.
func mapWeights(l *ledger.Ledger, id uint32) []Weight {
	one := *l
	one.Maps = nil
	users := 0
	for _, row := range l.Maps {
		if row.ID == id {
			one.Maps = append(one.Maps, row)
			users = len(row.UsedBy)
		}
	}
	const planted = "an array of 131072 values of 8 bytes that two programs use; truth: its entries"
	bytes, _ := one.MapBytes()
	return []Weight{
		// One page, for the map's header and for rounding up.
		known("bytes of a map that two programs use", quantity.Bytes, mapEntries*8, float64(bytes),
			Tolerance{Absolute: float64(os.Getpagesize())}, planted),
		known("programs that use the map", quantity.Count, 2, float64(users), Tolerance{Absolute: 0.5}, planted),
	}
}
