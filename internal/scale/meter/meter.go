// Package meter opens a window on the machine, closes it, and returns the ledger. At both edges it reads the kernel's
// counters by one clock and in one order, and in between it takes samples; packages attribution and ledger do the
// arithmetic.
package meter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"time"

	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
	"tare/internal/lib/known"
	"tare/internal/lib/pace"
	"tare/internal/lib/self"
	"tare/internal/scale/host/bpf"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/ksym"
	"tare/internal/scale/host/perf"
	"tare/internal/scale/host/proc"
	"tare/internal/scale/host/witness"
	"tare/internal/scale/ledger"
)

// Options configures a meter. The zero value has sensible defaults.
type Options struct {
	SampleHz int // samples per second and CPU; 0 is perf.DefaultHz, negative disables sampling
	// NoStatistics leaves the kernel's run statistics off. How often and how long programs run is then unknown, and runs
	// are not slowed down by counting.
	NoStatistics bool
	NoWitness    bool // do not observe stolen time and which tasks hold the CPUs
	// DrainEvery is how often samples are taken out of their rings, which hold about a second's worth; 0 is 200 ms. Each
	// drain costs about 50 us of CPU time, even if the rings are empty. If samples do not contain their group, threads
	// that have ended by the time of the drain are assumed to be in the group of the thread that created them.
	DrainEvery time.Duration
	// Lean makes ledgers cheaper by leaving out which processes held the CPUs, the peak memory and TCP memory of groups,
	// and their throttling where it is in a separate file (v1). This halves the cost of reading groups on v1. A process
	// whose memory and CPU time are counted in different groups (v1) is noticed up to a minute late.
	Lean bool
	// Whole makes New and windows fail if programs, maps, run statistics or control groups cannot be read. Otherwise the
	// ledger omits them and has a warning. Samples and the witness may be missing in either case if the machine lacks the
	// feature.
	Whole bool
	// Sandboxes reads the counters of sandboxes just before each edge of a window; nil: no sandboxes are read. This delays
	// the edge, unless the edge was requested for a given time.
	Sandboxes *Sandboxes
	DropRing  bool // a fault that calibration must detect: see perf.Options
	// Shared holds what several meters of a process have in common; nil if the meter shares nothing.
	Shared *Shared
}

// Meter holds what is opened once: readers, the kernel's run statistics, the sampler. It is not safe for concurrent
// use.
type Meter struct {
	fs        proc.FS
	host      ledger.Host
	layout    *cgroup.Layout
	groups    *cgroup.Reader
	kernel    *proc.KernelThreads
	shared    *Shared
	sharing   bool // shared also belongs to other meters
	bpf       *bpf.Inventory
	symbols   *ksym.Table
	stats     io.Closer
	sampler   *perf.Sampler    // nil without sampling
	witness   *witness.Witness // nil without one
	lookCost  *float64         // seconds that one look of the witness costs; nil if unknown
	uncounted bool             // the kernel's run statistics are off: runs and run time of programs are unknown
	countable bool             // run statistics can be switched on
	whole     bool             // see Options
	parts     windowParts      // the enabled parts, with the errors of those that this machine lacks
	noKernel  bool             // kernel threads are hidden from this process
	rootError error            // why the processes in the root group cannot be listed
	noHzFull  string           // the CPUs without ticks; empty: none
	untrusted *float64         // proc.Stat.IRQ when the clock was first seen unstable; nil while it is stable

	sandboxes  *Sandboxes // see Options
	drainEvery time.Duration
	entries    map[uint64]ledger.Context // kernel addresses that were looked up
	statsCost  *float64                  // seconds that run statistics add to one run of a program; nil if unknown
	warnings   []ledger.Warning          // from New; they hold for every window
	reported   time.Duration             // CPU time of this process that earlier ledgers have reported
	open       bool
	preparing  time.Duration     // how long the last prepare took
	switching  time.Duration     // how long the last switchOn took
	fastest    time.Duration     // the shortest time that reading an edge took so far
	hidden     bool              // some of the machine's processes are invisible to this process
	part       bool              // only some of the machine's control groups are visible
	snapshot   *bpf.Snapshot     // the latest
	elsewhere  map[string]string // why the memory of a group is unknown, by path: see lookElsewhere
	looked     time.Time         // when lookElsewhere last ran
	lookEvery  time.Duration     // minimum time between runs of lookElsewhere
	list       func() (*bpf.Snapshot, error)
	memory     map[*cgroup.Group]knownMemory // as shown in ledgers
	spare      map[*cgroup.Group]cgroup.CPU  // from an edge that is no longer needed, for reuse
	edges      int                           // number of edges read
}

// renewal is the number of edges after which reused maps are replaced. A map keeps room for the most entries that it
// ever had, and thousands of groups may have come and gone.
const renewal = 64

// New opens everything, or, without Options.Whole, as much as this machine and the rights of this process allow; each
// ledger then warns of what is missing. The caller must close the meter. The error is a *fault.Error with code Machine
// if the machine cannot be weighed.
func New(_ context.Context, o Options) (m *Meter, err error) {
	shared := cmp.Or(o.Shared, &Shared{})
	shared.mu.Lock()
	defer shared.mu.Unlock()
	m = &Meter{uncounted: o.NoStatistics, whole: o.Whole, parts: newParts(o), drainEvery: o.DrainEvery,
		sandboxes: o.Sandboxes, entries: map[uint64]ledger.Context{}, reported: selfTime(), shared: shared,
		sharing: o.Shared != nil}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.Close())
			m = nil
		}
	}()
	types := btf.NewCache()
	if err := m.openPrograms(types); err != nil {
		return m, err
	}
	if m.layout, err = cgroup.Discover(cgroup.Roots{}); err != nil {
		return m, err
	}
	if m.layout.Mode == cgroup.ModeNone {
		return m, fault.New(fault.Machine, "", cgroup.Mount,
			"no control groups are mounted, so CPU time and memory cannot be told apart")
	}
	if err := m.openGroups(); err != nil {
		return m, err
	}
	if o.Lean {
		m.groups.Lean()
		m.lookEvery = time.Minute
	}
	m.describe()
	m.warnOfClocks()
	if m.hidden = !initialNamespace("pid", proc.InitialPIDNamespace); m.hidden {
		m.warn("pid-namespace", "this process is in a separate PID namespace: samples of processes outside of it cannot "+
			"be told from those of an idle CPU, and kernel threads cannot be seen; run in the machine's PID namespace")
	}
	if err := m.openKernel(); err != nil {
		return m, err
	}
	m.part = !m.layout.Whole()

	if o.SampleHz >= 0 {
		if err := m.openSampler(o); err != nil {
			return m, err
		}
		if m.sampler != nil {
			m.symbols = ksym.Open()
			m.host.Sampler = string(m.sampler.Source())
			m.host.SamplerPeriod = new(m.sampler.Period().Seconds())
			if m.sampler.Source() == perf.CPUClock {
				m.warn("cpu-clock", "no hardware counter: samples cannot be taken while interrupts are off, so programs there "+
					"are seen late or not at all")
			}
		}
	}
	if !o.NoWitness {
		if err := m.openWitness(o, types); err != nil {
			return m, err
		}
	}
	return m, nil
}

// openWitness opens the witness. It joins a sampler driven by the same clock, so that the two wake an idle CPU only
// once.
func (m *Meter) openWitness(o Options, types *btf.Cache) (err error) {
	of := witness.Options{Types: types, Program: &m.shared.witness, NoOccupants: o.Lean}
	if m.sampler != nil && m.sampler.Source() == perf.CPUClock {
		of.Leaders, of.LeaderPeriod = m.sampler.Leaders(), m.sampler.Period()
	}
	if m.witness, err = witness.Open(of); err != nil {
		m.witness = nil
		return m.mayLack(noWitness, err, &m.parts.witness)
	}
	cost := &m.shared.lookCost
	if o.Lean {
		cost = &m.shared.leanLookCost
	}
	if m.lookCost, err = cost.measure(m.witness.MeasureCost); err != nil {
		m.warn("witness-cost", "the cost of the witness is not known: %v", err)
	}
	return nil
}

// enableStatistics switches the kernel's run statistics on, after measuring what they cost.
func (m *Meter) enableStatistics() (err error) {
	cost, costErr := m.shared.statsCost.measure(bpf.MeasureStatsCost)
	if m.stats, err = bpf.EnableStats(); err != nil {
		return err
	}
	if m.statsCost = cost; costErr != nil {
		m.warn("stats-cost", "the cost of the kernel's run statistics is not known: %v", costErr)
	}
	return nil
}

func (m *Meter) describe() {
	machine := m.fs.Machine()
	m.host = ledger.Host{
		Hostname: machine.Hostname, Kernel: machine.Kernel, CPUs: machine.CPUs, PossibleCPUs: machine.Possible,
		CPUModel:   machine.CPUModel,
		CgroupMode: m.layout.Mode, CgroupCPU: m.layout.CPUMode(),
		Clocksource: machine.Clocksource, IRQTime: machine.IRQTime, Tare: self.Version,
	}
	m.noHzFull = machine.NoHzFull
	if now, err := m.fs.Stat(); err == nil {
		m.judgeIRQTime(now)
	}
}

// judgeIRQTime updates host.IRQTime: a kernel that takes interrupts out of tasks' CPU time may stop when it finds the
// clock unstable. From then on only growth of its count of interrupt time proves that it has not.
func (m *Meter) judgeIRQTime(now proc.Stat) {
	switch {
	case m.untrusted == nil && !known.Or(m.host.IRQTime, false):
		return // it never did, or that is unknown for another reason
	case m.fs.StableClock():
		m.untrusted = nil
	case m.untrusted == nil:
		m.untrusted = &now.IRQ
	}
	m.host.IRQTime = nil
	if m.untrusted == nil || now.IRQ > *m.untrusted {
		m.host.IRQTime = new(true)
	}
}

func (m *Meter) warnOfClocks() {
	if clock := m.host.Clocksource; clock != "tsc" && clock != "arch_sys_counter" && clock != "kvm-clock" {
		m.warn("clocksource", "the clocksource %s is slow to read: taking timestamps costs more than with tsc", clock)
	}
	if m.noHzFull != "" {
		m.warn("nohz-full", "CPUs %s run without ticks (nohz_full): the CPU time of a task that runs alone on one of them "+
			"is counted up to 1 s late, so use windows of minutes", m.noHzFull)
	}
}

func (m *Meter) warn(code, format string, args ...any) {
	m.warnings = append(m.warnings, ledger.Warning{Code: code, Message: fmt.Sprintf(format, args...)})
}

// Close turns run statistics off and releases all resources.
func (m *Meter) Close() error {
	var errs []error
	if m.witness != nil { // its events are attached to those of the sampler
		errs = append(errs, m.witness.Close())
	}
	if m.sampler != nil {
		errs = append(errs, m.sampler.Close())
	}
	if m.symbols != nil {
		errs = append(errs, m.symbols.Close())
	}
	if m.groups != nil {
		m.groups.Close()
	}
	if m.stats != nil {
		errs = append(errs, m.stats.Close())
	}
	if m.bpf != nil {
		errs = append(errs, m.bpf.Close())
	}
	if m.shared != nil && !m.sharing {
		m.shared.Close()
	}
	*m = Meter{}
	return errors.Join(errs...)
}

// edge holds all counters at one time.
type edge struct {
	at     int64         // CLOCK_MONOTONIC, ns
	took   time.Duration // time taken to read all counters
	wall   time.Time
	stat   proc.Stat
	groups map[*cgroup.Group]cgroup.CPU
	kernel []time.Duration // by index of proc.KernelThreads
	root   map[int]time.Duration
	self   time.Duration
}

// readEdge reads the counters of CPU time. What is slow and can be done earlier, such as finding new groups, is left
// to prepare, so the counters are read close together.
//
// On a busy machine this process may be preempted in between, and the counters would then be from different times, so
// readEdge retries a few times. The last reading counts, because what is read next must follow it closely, and the
// ledger says how long it took.
func (m *Meter) readEdge() (edge, error) { return m.readClosely(m.readEdgeOnce) }

// readClosely implements readEdge with the given reading function.
func (m *Meter) readClosely(once func() (edge, error)) (e edge, err error) {
	for range edgeTries {
		if e, err = once(); err != nil {
			break
		}
		fastest := m.fastest
		if fastest == 0 || e.took < fastest {
			m.fastest = e.took
		}
		if e.took < edgeTime || e.took < 2*fastest && 2*e.took > fastest { // otherwise one of the two was held up
			break
		}
	}
	return e, err
}

const (
	edgeTries = 4
	edgeTime  = 8 * time.Millisecond // a faster reading is never retried; 300 groups take 1 to 3 ms, 3000 groups 15 ms
)

func (m *Meter) readEdgeOnce() (e edge, err error) {
	whole := m.kernel != nil // false for a light meter, which weighs only some of the machine
	e.at, e.wall = monotonic(), time.Now()
	if whole {
		if e.stat, err = m.fs.Stat(); err != nil {
			return e, err
		}
	}
	if err = m.unlessNamed(m.groups.ReadCPU()); err != nil {
		return e, err
	}
	if whole {
		if err = m.kernel.Read(); err != nil {
			return e, err
		}
		if e.root, err = m.readRoot(); err != nil {
			return e, err
		}
	}
	e.self = selfTime()
	e.took = time.Duration(monotonic() - e.at)
	groups := m.groups.Groups()
	if m.edges++; m.edges%renewal < 2 { // once for each of the two maps that alternate
		m.spare = nil
	}
	if m.edges%renewal == 0 {
		m.memory = maps.Collect(maps.All(m.memory))
	}
	if e.groups, m.spare = m.spare, nil; e.groups == nil {
		e.groups = make(map[*cgroup.Group]cgroup.CPU, len(groups))
	}
	clear(e.groups)
	for _, g := range groups {
		e.groups[g] = g.CPU
	}
	if whole {
		for _, t := range m.kernel.Threads() {
			e.kernel = append(e.kernel, t.Runtime)
		}
	}
	return e, nil
}

// unlessNamed drops the error of a group that could not be read: the ledger names the group (account.unread), and what
// it used is unknown. Missing rights remain an error if the ledger must be whole.
func (m *Meter) unlessNamed(err error) error {
	if m.whole && errors.Is(err, unix.EACCES) {
		return err
	}
	return nil
}

// prepare finds new groups and kernel threads, and measures how long that takes.
func (m *Meter) prepare() error {
	began := monotonic()
	defer func() { m.preparing = time.Duration(monotonic() - began) }()
	if err := m.groups.Refresh(); err != nil {
		return err
	}
	return m.kernel.Refresh()
}

// prepareTop finds only what is new at the top: groups that no other group contains, and kernel threads. No other
// counter in the budget contains what these use. (New groups below the top are counted in their ancestors until the
// next prepare.)
func (m *Meter) prepareTop() error {
	if err := m.groups.RefreshTop(); err != nil {
		return err
	}
	return m.kernel.RefreshNew()
}

// prepare does the work that precedes an edge: it reads the edge of the sandboxes, and calls the given function, which
// finds new groups and kernel threads.
func (w *Window) prepare(with func() error) error {
	if w.m.sandboxes != nil {
		w.m.sandboxes.ReadEdge()
	}
	return w.parts.cpu.read(with)
}

// Window is an open window.
type Window struct {
	m         *Meter
	first     edge
	opening   time.Duration // time taken to read the first edge and the programs' counters
	programs  map[bpf.Key]bpf.Counters
	collector *collector    // nil without sampling
	watching  bool          // the witness is watching
	uncounted bool          // as in Meter, in this window
	parts     windowParts   // with time taken and errors so far
	unwatched time.Duration // time after the first edge that neither samples nor the witness cover
	unlisted  error         // why programs and maps could not be listed again
	stop      chan struct{}
	done      chan error // receives the result of the draining goroutine, which then ends
}

func newWindow(m *Meter) *Window {
	return &Window{m: m, parts: m.parts, uncounted: m.uncounted, stop: make(chan struct{}), done: make(chan error, 1)}
}

// Open reads all counters, which is the first edge. Only one window of a meter can be open at a time.
func (m *Meter) Open() (*Window, error) { return m.OpenAt(context.Background(), 0) }

// A window is prepared before its first edge in two steps. First sampling and the witness start. Then, as late as
// possible, new groups and kernel threads are found: those that appear between this step and the edge are charged even
// with what they use before the edge. Each step is allowed twice the time that it took last, but at least the time
// given here, and at most mostAhead, because rings fill up in the meantime.
const (
	switchAhead  = 60 * time.Millisecond // it takes less than 1 ms, but 10 to 45 ms the first time
	prepareAhead = 10 * time.Millisecond
	mostAhead    = 500 * time.Millisecond
)

// ahead returns how long before its deadline a step must start, in nanoseconds, given how long it took last time.
func ahead(took, least time.Duration) int64 { return int64(min(max(2*took, least), mostAhead)) }

// OpenAt is like Open, but the first edge is at the given CLOCK_MONOTONIC time in nanoseconds. As much work as possible
// is done before that time: the work takes tenths of a second on a machine with thousands of control groups, and a
// window that began it only at the given time would miss the beginning of what it measures. The edge is late if the
// given time is too near. If the context ends first, the error is its cause.
func (m *Meter) OpenAt(ctx context.Context, at int64) (w *Window, err error) {
	if m.open {
		return nil, errors.New("opening a window: the one before is still open")
	}
	prepare := at - ahead(m.preparing, prepareAhead)
	if err := pace.SleepUntil(ctx, prepare-ahead(m.switching, switchAhead)); err != nil {
		return nil, err
	}
	w = newWindow(m)
	opened := w // returning nil clears w
	defer func() {
		if err != nil {
			err = errors.Join(err, opened.switchOff())
		}
	}()
	began := monotonic()
	if err := w.switchOn(); err != nil {
		return nil, err
	}
	m.switching = time.Duration(monotonic() - began)
	if err := pace.SleepUntil(ctx, prepare); err != nil {
		return nil, err
	}
	// Otherwise what has appeared since New would count as new in the window, with all that it used before.
	if err := w.prepare(m.prepare); err != nil {
		return nil, err
	}
	m.forgetGroups() // groups and kernel threads come and go as long as the meter lives
	m.kernel.Forget()
	if err := w.drain(); err != nil {
		return nil, err
	}
	if err := pace.SleepUntil(ctx, at); err != nil {
		return nil, err
	}
	if w.watching {
		if err := w.try(&w.parts.witness, m.witness.Begin); err != nil {
			return nil, err
		}
	}
	if w.collector != nil {
		if err := w.try(&w.parts.samples, w.collector.begin); err != nil {
			return nil, err
		}
	}
	if w.first, err = w.readEdge(); err != nil {
		return nil, err
	}
	w.first.forget()
	programs, err := w.readCounters()
	if err != nil {
		return nil, err
	}
	w.opening = time.Duration(monotonic() - w.first.at)
	if w.collector != nil {
		w.collector.from = monotonic()
		w.collector.addText(programs)
	}
	w.programs = countersOf(programs)
	go w.run()
	m.open = true
	return w, nil
}

// switchOn starts sampling and the witness.
func (w *Window) switchOn() error {
	m := w.m
	if m.witness != nil {
		if err := w.try(&w.parts.witness, m.witness.Reset); err != nil {
			return err
		}
		w.watching = true
	}
	if m.sampler != nil {
		w.collector = newCollector(m.sampler, m.layout, m.hidden)
		if err := w.try(&w.parts.samples, w.collector.start); err != nil {
			return err
		}
	}
	if m.witness == nil {
		return nil
	}
	return w.try(&w.parts.witness, m.witness.Enable)
}

// switchOff stops sampling and the witness if the window could not be opened or continued.
func (w *Window) switchOff() error {
	var errs []error
	if w.m.sampler != nil {
		errs = append(errs, w.m.sampler.Disable())
	}
	if w.m.witness != nil {
		errs = append(errs, w.m.witness.Disable())
	}
	return errors.Join(errs...)
}

// run drains the rings until the window is closed.
func (w *Window) run() {
	for {
		began := time.Now()
		err := w.wait(cmp.Or(w.m.drainEvery, drainEvery))
		if err == nil && w.stopped(drainPause-time.Since(began)) {
			break
		}
		if err == nil {
			err = w.drain()
		}
		if err != nil {
			w.done <- err
			return
		}
	}
	w.done <- nil
}

// wait waits until the rings need draining, the duration d has passed, or the window ends, whichever comes first.
func (w *Window) wait(d time.Duration) error {
	if w.collector == nil || w.parts.samples.Err != nil {
		w.stopped(d)
		return nil
	}
	if err := w.m.sampler.Wait(d); err != nil { // not counted as time taken by the part
		return w.try(&w.parts.samples, func() error { return err })
	}
	return nil
}

// stopped waits for the end of the window, but no longer than d, and reports whether it has come.
func (w *Window) stopped(d time.Duration) bool {
	if d > 0 {
		select {
		case <-w.stop:
		case <-time.After(d):
		}
	}
	select {
	case <-w.stop:
		return true
	default:
		return false
	}
}

// drain empties the sampler's rings and then the witness's, so that each stall can be matched with the sample taken as
// it ended.
func (w *Window) drain() error {
	now := monotonic()
	if w.collector != nil {
		if err := w.try(&w.parts.samples, w.collector.drain); err != nil {
			return err
		}
	}
	if !w.watching {
		if w.collector != nil {
			w.collector.join(now) // forgets what only the witness's stalls would need
		}
		return nil
	}
	return w.try(&w.parts.witness, func() error {
		if w.collector == nil {
			return w.m.witness.Drain(nil)
		}
		err := w.m.witness.Drain(w.collector.stall)
		w.collector.join(now)
		return err
	})
}

// halt stops the draining goroutine.
func (w *Window) halt() error {
	close(w.stop)
	if w.collector != nil {
		w.m.sampler.Wake()
	}
	return <-w.done
}

// finish ends sampling and the witness. Samples count until the time to. It returns the witness's account of the time
// between the edges, or nil without a witness.
func (w *Window) finish(last edge, to int64) (seen *witness.Account, err error) {
	m := w.m
	err = w.halt()
	if w.watching && last.at > 0 {
		err = errors.Join(err, w.try(&w.parts.witness, func() error { return m.witness.Settle(last.at) }))
	}
	if w.watching {
		err = errors.Join(err, w.must(&w.parts.witness, m.witness.Disable))
	}
	if w.collector != nil { // whatever failed, sampling must end
		err = errors.Join(err, w.must(&w.parts.samples, func() error { return w.collector.finish(to) }))
	}
	if err != nil || !w.watching {
		return nil, err
	}
	if err := w.drain(); err != nil {
		return nil, err
	}
	if w.collector != nil {
		w.collector.join(forever)
	}
	err = w.try(&w.parts.witness, func() (err error) {
		seen, err = m.witness.End(w.first.at, last.at)
		return err
	})
	if w.parts.witness.Err != nil {
		seen = nil
	}
	return seen, err
}

// Close reads all counters again and returns the ledger.
func (w *Window) Close() (*ledger.Ledger, error) { return w.close(w.prepare(w.m.prepare)) }

// CloseAt is like Close, but the second edge is at the given CLOCK_MONOTONIC time in nanoseconds. On a machine with
// thousands of control groups it takes tenths of a second to find new ones and to read all, and a window that began
// this only at the given time would extend past what it measures. New groups are therefore found before that time, and
// reading begins before it by as long as the reading at the first edge took. If the context ends first, the window is
// closed at once, and the error is the context's cause.
func (w *Window) CloseAt(ctx context.Context, at int64) (*ledger.Ledger, error) {
	at -= int64(w.opening)
	ended := pace.SleepUntil(ctx, at-2*int64(w.m.preparing)) // it may take longer than last time
	err := w.prepare(w.m.prepare)
	if ended == nil {
		ended = pace.SleepUntil(ctx, at)
	}
	l, err := w.close(err)
	if err = errors.Join(ended, err); err != nil {
		return nil, err
	}
	return l, nil
}

// close reads all counters again unless err is set, and ends the window in any case.
func (w *Window) close(err error) (*ledger.Ledger, error) {
	m := w.m
	m.open = false
	var last edge
	if err == nil {
		last, err = w.readEdge()
	}
	var programs []bpf.Program
	if err == nil {
		programs, err = w.readCounters()
	}
	to := monotonic() // what runs from now on is in no counter
	seen, ferr := w.finish(last, to)
	if err = errors.Join(err, ferr); err != nil {
		return nil, err
	}
	if err := w.readSlow(); err != nil {
		return nil, err
	}
	return w.account(last, programs, seen)
}

// readSlow reads what the edge does not wait for: memory, and the list of programs and maps.
func (w *Window) readSlow() (err error) {
	if err := w.readMemory(); err != nil {
		return err
	}
	w.m.snapshot, err = w.readInventory()
	return err
}

func (w *Window) account(last edge, programs []bpf.Program, seen *witness.Account) (*ledger.Ledger, error) {
	w.parts.cpu.Err = w.unreadGroups()
	a := account{m: w.m, w: w, last: last, programs: programs, seen: seen, snapshot: w.listed(programs)}
	if w.collector != nil {
		w.collector.addText(programs) // gives names to code whose loading was only partly seen
		var err error
		if a.found, err = w.findings(); err != nil {
			return nil, err
		}
	}
	return a.ledger(), nil
}

func monotonic() int64 { return pace.Clock(unix.CLOCK_MONOTONIC) }

// selfTime returns the CPU time of this process.
func selfTime() time.Duration { return time.Duration(pace.Clock(unix.CLOCK_PROCESS_CPUTIME_ID)) }
