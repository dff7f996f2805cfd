package experiment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/cluster"
	"tare/internal/fault"
	"tare/internal/host/cgroup"
	"tare/internal/ledger"
	"tare/internal/load"
	"tare/internal/pace"
	"tare/internal/placement"
	"tare/internal/record"
	"tare/internal/role"
	"tare/internal/subject"
)

// Machine is what trials need of the machine that they run on.
type Machine struct {
	Self       string // path of the tare binary, which starts itself in every role
	Cgroups    *cgroup.Layout
	OpenWindow func() (Window, error) // reads every counter: the first edge
	Share      cluster.Share          // of the machine, that the groups of a trial may have together
	Shared     bool                   // other nodes of the same run have trials on this machine at the same time

	Nodes     Nodes         // where trials on nodes run; null: there are none
	NodeShare cluster.Share // of each
}

// Window is an open window of the meter.
type Window interface {
	Close() (*ledger.Ledger, error) // reads every counter again: the second edge
}

const (
	startLead     = 50 * time.Millisecond // between the start message and the first request, for the loads to be there
	resultTimeout = 30 * time.Second      // from the end of a load's drain to its result
)

// The groups of a trial, below its own. Data planes attach to work, which holds the applications and the loads but not the subject.
const (
	workGroup    = "work"
	subjectGroup = "subject"
)

// trial is one trial under way.
type trial struct {
	machine  Machine
	spec     *Spec // at the trial's level
	index    int   // in the plan; with attempt it makes the groups of each trial others than those before, also to a reader that remembers paths
	attempt  int
	arm      string
	dir      string                               // the run directory, for files that processes read
	seed     uint64                               // of the loads' arrivals
	barrier  func(context.Context) (int64, error) // called when all is set up; when the loads begin, by CLOCK_MONOTONIC in nanoseconds. Null: soon
	late     int64                                // how long after the begin the loads were told of it, ns
	cancel   context.CancelCauseFunc
	tree     *placement.Tree
	work     *placement.Group
	roles    map[string]groupRole // by path of group
	mu       sync.Mutex           // guards started and roles while processes start side by side
	started  []*process
	apps     map[string]string // address by name, of those that serve
	controls map[string]string // where loads that steer an application ask it, by name
	loads    map[string]*process
	wants    map[string]role.Wants // of the loads
	subject  *process
	groups   map[string]*placement.Group // by their names in the tree
	tracing  *tracing                    // null where no events are counted
	found    *tracerReady                // of the tracer, once it was looked at
	ready    *subjectReady
	readyRaw []byte
	readyIn  time.Duration
}

// run runs the trial into t. Whatever happens, every process is gone and every group removed when it returns. The error is why the
// trial failed, as t.Validity says too.
func (x *trial) run(ctx context.Context, t *record.Trial) error {
	t.Started = time.Now()
	t.Clocks, t.Loads = map[string]time.Duration{}, map[string]load.Result{}
	work, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	x.cancel = cancel
	x.roles = map[string]groupRole{}
	x.apps, x.controls, x.loads = map[string]string{}, map[string]string{}, map[string]*process{}
	x.groups, x.wants = map[string]*placement.Group{}, map[string]role.Wants{}

	err := x.measure(work, t)
	begin := time.Now()
	err = errors.Join(err, x.tearDown())
	t.Ended = time.Now()
	t.Clocks["tear-down"] = t.Ended.Sub(begin)
	t.Subject = x.readyRaw

	if err != nil {
		t.Validity.Failed = failure(ctx, err)
		if x.work != nil {
			t.Validity.Cause = failedBy(t.Ledger, path.Dir(x.work.Path()))
		}
		return err
	}
	m := &measurement{spec: x.spec, loads: t.Loads, work: t.Work, ledger: t.Ledger, further: t.Further, tree: path.Dir(x.work.Path()), shared: x.machine.Share.CPUs > 0, subject: x.ready, start: x.readyIn.Seconds(),
		arm: x.arm, events: t.Events, tracer: x.found}
	m.setRoles(x.roles)
	t.Metrics, t.Counts = m.values(), m.counts()
	t.Validity.Reasons = m.reasons(m.trips(), t.Metrics, t.Counts)
	t.Validity.Valid = len(t.Validity.Reasons) == 0
	m.trim()
	return nil
}

// failure is what Validity.Failed says of a trial that ended with err.
func failure(ctx context.Context, err error) string {
	if ctx.Err() != nil {
		return record.Interrupted
	}
	if mend := fault.MendOf(err); mend != "" {
		return err.Error() + "; " + mend
	}
	return err.Error()
}

// measure sets up, opens the window over the loads' measured time, and gathers what they say.
func (x *trial) measure(ctx context.Context, t *record.Trial) error {
	mark := time.Now()
	lap := func(clock string) {
		now := time.Now()
		t.Clocks[clock], mark = now.Sub(mark), now
	}
	if err := x.setUp(ctx); err != nil {
		return fmt.Errorf("setting up: %w", err)
	}
	lap("set-up")
	if err := x.readBefore(ctx, t); err != nil {
		return err
	}

	if x.tracing != nil {
		if err := x.calibrate(ctx); err != nil {
			return err
		}
		lap("offset")
		early := first(true)
		defer func() { _ = first(false) }() // what could be set can be taken back
		defer func() {
			if early != nil && t.Ledger != nil {
				x.warn(t, "not-first", "%v; a storm of execs may have held up the reading of counters", early)
			}
		}()
	}
	barrier := x.barrier
	if barrier == nil {
		barrier = soon
	}
	begin, err := barrier(ctx)
	if err != nil {
		return err
	}
	s := role.Schedule{Begin: begin, Warmup: int64(x.spec.Warmup), Duration: int64(x.spec.Duration)}
	for _, name := range slices.Sorted(maps.Keys(x.loads)) {
		if err := x.loads[name].conn.Send(role.Start, x.scheduleOf(name, s)); err != nil {
			return fmt.Errorf("starting the load %s: %w", name, err)
		}
	}
	x.readEnd(ctx, s.Begin+s.Warmup+s.Duration)
	x.late = max(0, pace.Now()-s.Begin)
	works := x.subject != nil && x.spec.Subject(x.arm).works()
	if works {
		if err := x.subject.conn.Send(role.Start, s); err != nil {
			return fmt.Errorf("starting the work of %s: %w", x.arm, err)
		}
	}
	if err := sleepUntil(ctx, s.Begin+s.Warmup); err != nil {
		return err
	}
	lap("warm-up")
	others := x.machine.others()
	w, err := x.machine.OpenWindow()
	if err != nil {
		return fmt.Errorf("opening the window: %w", err)
	}
	slept := sleepUntil(ctx, s.Begin+s.Warmup+s.Duration)
	t.Ledger, err = w.Close() // even when the sleep was cut short: a window that is open must be closed
	if err = errors.Join(slept, err); err != nil {
		t.Ledger = nil
		return err
	}
	lap("measured")
	if err := x.tellStalls(t.Ledger); err != nil {
		return err
	}
	if others = append(others, x.machine.others()...); len(others) > 0 {
		t.Ledger.Warnings = append(t.Ledger.Warnings, ledger.Warning{Code: record.OtherRun, Message: OtherRun(others)})
	}

	for _, name := range slices.Sorted(maps.Keys(x.loads)) {
		var r load.Result
		timeout := x.spec.Loads[name].Options.duration("drain") + resultTimeout
		if err := x.loads[name].wait(ctx, x.loads[name].result, "result", timeout, &r); err != nil {
			return err
		}
		t.Loads[name] = r
	}
	if works {
		t.Work = &load.Result{}
		if err := x.subject.wait(ctx, x.subject.result, "result", resultTimeout, t.Work); err != nil {
			return err
		}
	}
	if err := x.drainEvents(ctx, t); err != nil {
		return err
	}
	lap("drain")
	if err := x.readAfter(ctx, t); err != nil {
		return err
	}
	return context.Cause(ctx) // an application or the subject may have died and taken nobody with it
}

// OtherRun says that other processes have runs of tare under way on this machine.
func OtherRun(pids []int) string {
	return fmt.Sprintf("another run of tare is under way on this machine (process %d), and the two disturb each other", pids[0])
}

// id names the groups of this attempt at the trial.
func (x *trial) id() string {
	if x.attempt > 0 {
		return fmt.Sprintf("trial-%d-again-%d", x.index, x.attempt)
	}
	return fmt.Sprintf("trial-%d", x.index)
}

// setUp makes the groups and starts the processes: applications, then the subject, which must know where they are, then loads,
// which must find both.
func (x *trial) setUp(ctx context.Context) (err error) {
	newTree := placement.NewTree
	if x.flat() {
		newTree = placement.NewFlatTree
	}
	if x.tree, err = newTree(x.machine.Cgroups, x.id()); err != nil {
		return err
	}
	if err := x.tree.Limit(placement.Limits{CPUs: x.machine.Share.CPUs, Weight: x.machine.Share.Weight}); err != nil {
		return err
	}
	if x.work, err = x.tree.Group(workGroup, placement.Limits{}); err != nil {
		return err
	}
	if err := x.watchExecs(); err != nil {
		return err
	}
	if err := inParallel(x.spec.Applications, func(name string, p *Part) error { return x.startApp(ctx, name, p) }); err != nil {
		return err
	}
	if arm := x.spec.Subject(x.arm); arm != nil {
		if err := x.startSubject(ctx, arm); err != nil {
			return err
		}
	}
	return inParallel(x.spec.Loads, func(name string, p *Part) error { return x.startLoad(ctx, name, p) })
}

func inParallel(parts map[string]*Part, do func(string, *Part) error) error {
	errs := make([]error, len(parts))
	var wg sync.WaitGroup
	for i, name := range slices.Sorted(maps.Keys(parts)) {
		wg.Go(func() { errs[i] = do(name, parts[name]) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err // one is enough to read; the others are most often its echo
		}
	}
	return nil
}

// group makes a group, if it is not there yet.
func (x *trial) group(name string, limits Options) (*placement.Group, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if g := x.groups[name]; g != nil {
		return g, nil
	}
	g, err := x.tree.Group(name, placement.Limits{CPUs: limits.float("cpus"), MemoryBytes: uint64(limits.float("memory")), Pin: int(limits.float("pin"))})
	if err != nil {
		return nil, err
	}
	x.groups[name] = g
	return g, nil
}

// start starts one process in a group of its own.
func (x *trial) start(ctx context.Context, group, as, name string, limits Options, argv []string) (*process, error) {
	g, err := x.group(group, limits)
	if err != nil {
		return nil, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	p, err := launch(name, g, argv, x.cancel)
	if err != nil {
		return nil, err
	}
	x.started = append(x.started, p)
	x.roles[g.Path()] = newRole(as, name)
	return p, nil
}

func (x *trial) startApp(ctx context.Context, name string, part *Part) error {
	argv := append([]string{x.machine.Self}, part.Kind.argv(part.Options, site{})...)
	p, err := x.start(ctx, path.Join(workGroup, name), roleApp, name, part.Limits, argv)
	if err != nil {
		return err
	}
	var ready struct {
		Address string `json:"address"`
		Control string `json:"control"`
	}
	if err := p.wait(ctx, p.ready, "ready message", readyTimeout, &ready); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if ready.Address != "" { // else it serves nobody
		x.apps[name], x.controls[name] = ready.Address, ready.Control
	}
	return nil
}

func (x *trial) startSubject(ctx context.Context, arm *Part) error {
	if arm.Kind.traces != nil {
		return x.startTracer(ctx, arm)
	}
	kind, err := subject.Lookup(arm.Kind.Name)
	if err != nil {
		return err
	}
	place := subject.Place{Self: x.machine.Self, CgroupDir: x.work.V2Dir(), Options: arm.Options}
	if arm.Kind.Serves {
		if place.CgroupDir == "" {
			return fault.New(fault.Machine, arm.Kind.Name, "mount one: mount -t cgroup2 none /sys/fs/cgroup/unified", "it attaches to a cgroup v2 directory, and no v2 hierarchy is mounted")
		}
		services := x.serviceCount(arm.Options, knobServices)
		place.Options, place.ServicesFile = subjectOptions(arm.Options, services), filepath.Join(x.dir, servicesFile)
		if of, ok := arm.Options[knobXDS]; ok {
			place.Options[knobXDS] = x.apps[of]
		} else if err := x.writeServices(place.ServicesFile, services); err != nil {
			return err
		}
	}
	command, err := kind.Command(place)
	if err != nil {
		return err
	}
	if !command.Role {
		return fmt.Errorf("subject %s does not speak the role protocol, and other ways to know that it is ready are not there yet", kind.Name)
	}
	began := time.Now()
	if x.subject, err = x.start(ctx, subjectGroup, roleSubject, x.arm, arm.Limits, command.Argv); err != nil {
		return err
	}
	if err := x.subject.wait(ctx, x.subject.ready, "ready message", readyTimeout, (*rawMessage)(&x.readyRaw)); err != nil {
		return err
	}
	x.readyIn, x.ready = time.Since(began), &subjectReady{}
	return x.subject.decode(x.readyRaw, "ready message", x.ready)
}

// rawMessage keeps JSON as it came.
type rawMessage []byte

func (r *rawMessage) UnmarshalJSON(data []byte) error { *r = slices.Clone(data); return nil }

func (x *trial) startLoad(ctx context.Context, name string, part *Part) error {
	h := fnv.New64a()
	h.Write([]byte(name)) // copies of a load must not start their requests at the same moments
	at := site{address: x.apps[part.To], control: x.controls[part.To], seed: rand.New(rand.NewPCG(x.seed, h.Sum64())).Uint64()}
	if arm := x.spec.Subject(x.arm); arm != nil && arm.Kind.Serves {
		at.address, at.rewritten = x.serviceAddress(part.To), true
		x.own(arm, &at)
	}
	p, err := x.start(ctx, path.Join(workGroup, name), roleLoad, name, part.Limits, append([]string{x.machine.Self}, part.Kind.argv(part.Options, at)...))
	if err != nil {
		return err
	}
	x.mu.Lock()
	x.loads[name] = p
	x.mu.Unlock()
	var ready role.Wants
	if err := p.wait(ctx, p.ready, "ready message", readyTimeout, &ready); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.wants[name] = ready
	return nil
}

const servicesFile = "services.yaml" // in the run directory, of the trial under way

// serviceAddress is the address under which the subject serves an application.
func (x *trial) serviceAddress(app string) string {
	names := slices.Sorted(maps.Keys(x.apps))
	return serviceIP(1 + slices.Index(names, app))
}

// tearDown stops every process and removes the groups. It heeds no context: what was started is always taken away.
func (x *trial) tearDown() error {
	x.mu.Lock() // nothing starts any more: setUp has returned
	started := x.started
	x.mu.Unlock()
	var wg sync.WaitGroup
	for _, p := range started {
		wg.Go(p.stop)
	}
	wg.Wait()
	untraced := x.tracing.close()
	if x.tree == nil {
		return untraced
	}
	if err := x.tree.Close(); err != nil {
		return errors.Join(untraced, fmt.Errorf("removing the trial's control groups: %w", err))
	}
	return untraced
}

// soon is the barrier of a trial that waits for nobody else.
func soon(context.Context) (int64, error) { return pace.Now() + int64(startLead), nil }

// sleepUntil sleeps until CLOCK_MONOTONIC shows at, in nanoseconds. The context can end all but the last two milliseconds, which the
// kernel's own clock times: Go's timers round to about one.
func sleepUntil(ctx context.Context, at int64) error {
	const last = 2 * time.Millisecond
	timer := time.NewTimer(time.Duration(at-pace.Now()) - last)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
	}
	ts := unix.NsecToTimespec(at)
	for {
		if err := unix.ClockNanosleep(unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, &ts, nil); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// trim leaves in the ledger what a trial's record must hold: the groups of the trial and those at the top, the programs that ran or
// are the subject's, and the maps that these use, without those of a large pool. A machine can have thousands of each, and a run thousands of trials.
func (m *measurement) trim() {
	for _, l := range m.ledgers() {
		m.trimOne(l)
	}
}

// ledgers are that of the window and those of the further readings.
func (m *measurement) ledgers() []*ledger.Ledger {
	return append([]*ledger.Ledger{m.ledger}, slices.Collect(maps.Values(m.further))...)
}

func (m *measurement) trimOne(l *ledger.Ledger) {
	l.Cgroups = slices.DeleteFunc(l.Cgroups, func(g ledger.Cgroup) bool {
		return !within(g.Path, m.tree) && (g.Vanished || strings.Count(g.Path, "/") > 1)
	})
	trimNoise(l.Noise, m.tree)
	of := *m
	of.ledger = l
	keep := of.subjectMaps()
	mine := map[uint32]bool{}
	if m.subject != nil {
		for _, o := range m.subject.Programs {
			mine[o.ID] = true
		}
	}
	l.Programs = slices.DeleteFunc(l.Programs, func(p ledger.Program) bool {
		if ran := p.RunCount != nil && *p.RunCount > 0; !ran && !mine[p.ID] {
			return true
		}
		for _, id := range p.MapIDs {
			keep[id] = true
		}
		return false
	})
	for i := range l.Maps {
		outer := &l.Maps[i]
		if len(outer.Inner) <= maxInnerKept {
			continue
		}
		for _, id := range outer.Inner {
			delete(keep, id)
		}
		l.Warnings = append(l.Warnings, ledger.Warning{Code: "inner-maps", Message: fmt.Sprintf(
			"map %d (%s) holds %d maps, which are left out of the record; the metrics of the trial count them", outer.ID, outer.Name, len(outer.Inner))})
		outer.Inner = []uint32{}
	}
	l.Maps = slices.DeleteFunc(l.Maps, func(mp ledger.Map) bool { return !keep[mp.ID] })
}

// maxStallsKept is how many stalls of each kind a record lists: the longest. Loads were told of all.
const maxStallsKept = 256

// trimNoise leaves out where the trial's own processes held a CPU, which is what is measured and no noise, and all but the longest stalls.
func trimNoise(n *ledger.Noise, tree string) {
	if n == nil {
		return
	}
	n.Occupied = slices.DeleteFunc(n.Occupied, func(s ledger.Stall) bool { return within(s.Cgroup, tree) })
	n.Stalls, n.StallsOmitted = longest(n.Stalls, n.StallsOmitted)
	n.Occupied, n.OccupiedMissed = longest(n.Occupied, n.OccupiedMissed)
}

func longest(stalls []ledger.Stall, omitted int) ([]ledger.Stall, int) {
	left := len(stalls) - maxStallsKept
	if left <= 0 {
		return stalls, omitted
	}
	slices.SortStableFunc(stalls, func(a, b ledger.Stall) int { return cmp.Compare(b.Seconds, a.Seconds) })
	stalls = stalls[:maxStallsKept:maxStallsKept]
	slices.SortStableFunc(stalls, func(a, b ledger.Stall) int { return cmp.Compare(a.From, b.From) })
	return stalls, omitted + left
}

// maxInnerKept is how many maps inside one map of maps a record lists: a pool has ten thousand, which are alike.
const maxInnerKept = 64
