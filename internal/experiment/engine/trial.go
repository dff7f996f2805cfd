package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	pprof "github.com/google/pprof/profile"

	"tare/internal/experiment/containment"
	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/placement"
	"tare/internal/experiment/record"
	"tare/internal/experiment/role"
	"tare/internal/experiment/spec"
	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
	"tare/internal/scale/host/oom"
	"tare/internal/scale/profile"
)

// startLead is the time between the start message and the first request, in which the loads receive the message.
const startLead = 50 * time.Millisecond

// ResultTimeout limits the time from the end of a load's drain until its result arrives.
const ResultTimeout = 30 * time.Second

// trial is one trial under way: one arm at one level, with fresh processes. This file is its life from top to bottom:
// run sets up, measures and tears down. Methods for the hooks of guests are in hooks.go.
type trial struct {
	machine  Machine
	spec     *spec.Spec // at the trial's level; each copy of a part is a part
	arm      string
	subject  *kind.Part // the arm's subject; nil: none
	index    int        // place in the plan; index and attempt make the names of the trial's groups unique
	attempt  int
	dir      string                               // a temporary directory, for files that processes read
	seed     uint64                               // of the loads' arrivals
	prepared *prepared                            // the files that guests prepared for the run; nil: none
	barrier  func(context.Context) (int64, error) // called after setup; returns when loads begin, CLOCK_MONOTONIC ns
	late     int64                                // ns from the loads' start until all had their schedule; 0: in time

	cancel context.CancelCauseFunc
	record *record.Trial
	tree   *placement.Tree
	work   *placement.Group

	mu         sync.Mutex                    // guards the fields below while processes start in parallel
	groups     map[string]*placement.Group   // by name in the tree
	roles      map[string]measured.GroupRole // by path of the group
	started    []*role.Child
	apps       map[string]kind.App // the applications that serve loads
	loads      map[string]*role.Child
	wants      map[string]role.Wants // of the loads
	joined     map[string]any        // the value that Join of each application and load returned; nil if it does not join
	own        any                   // the value that Join of the subject returned; nil if it does not join
	worker     *role.Child           // the subject's process that does measured work; nil if it does none
	objects    *kind.Objects         // of the subject
	pids       map[string][]int      // pids of the subject's processes at the end of the window, by component
	killed     *oom.Watch            // processes killed because memory was short; nil: not watched
	startTime  time.Duration         // time from the start of the subject until it was ready
	evidence   map[string]any        // results of kind.Evidence, by the guest's name
	subjectRaw json.RawMessage
	profile    *pprof.Profile                       // of the window; nil: none
	keep       func(name string, data []byte) error // writes a profile to the run directory
}

func newTrial(m Machine, s *spec.Spec, p record.PlannedTrial, attempt int, dir string, seed uint64) *trial {
	return &trial{
		machine: m, spec: s, arm: p.Arm, subject: s.Of(p.Arm), index: p.Index, attempt: attempt, dir: dir, seed: seed,
		barrier: startBarrier, groups: map[string]*placement.Group{}, roles: map[string]measured.GroupRole{},
		apps: map[string]kind.App{}, loads: map[string]*role.Child{}, wants: map[string]role.Wants{},
		joined: map[string]any{}, evidence: map[string]any{},
	}
}

// run runs the trial and records it in t. When it returns, even with an error, every process has ended and every group
// is removed. If the trial failed, the error says why, as t.Validity does.
func (x *trial) run(ctx context.Context, t *record.Trial) error {
	t.Started = time.Now()
	t.Clocks, t.Loads = map[string]time.Duration{}, map[string]load.Result{}
	work, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	x.cancel, x.record = cancel, t
	programs := x.programs()

	err := x.measure(work)
	if e, ok := x.own.(kind.Explainer); ok && err != nil && ctx.Err() == nil {
		err = e.Explain(err)
	}
	killed := x.outOfMemory()
	switch {
	case killed == "":
	case err != nil:
		err = fault.Wrap(err, fault.Machine, "", "raise the limit, or ask for less", "out of memory: %s", killed)
	default:
		x.Warn("out-of-memory", "out of memory, and the trial went on: %s", killed)
	}
	begin := time.Now()
	err = errors.Join(err, x.tearDown())
	t.Ended = time.Now()
	t.Clocks["tear-down"] = t.Ended.Sub(begin)
	x.warnOfPrograms(programs)
	t.Subject = x.subjectRaw

	if err != nil {
		t.Validity.Failed = Failure(ctx, err)
		if x.work != nil && killed == "" {
			t.Validity.Cause = measured.FailedBy(t.Ledger, x.treePath())
		}
		return err
	}
	if t.Evidence, err = encodeEvidence(x.evidence); err != nil {
		t.Validity.Failed = err.Error()
		return err
	}
	m := &measured.Measured{
		Setup: &x.spec.Setup, Tree: x.treePath(), Shared: x.machine.Share.CPUs > 0, Subject: x.objects,
		Evidence: x.evidence, Start: x.startTime.Seconds(), Processes: x.pids,
	}
	m.Into(t, x.roles)
	if err := x.keepProfile(m); err != nil {
		t.Profile = nil
		x.Warn(record.NoProfile, "the trial has no profile: %v", err)
	}
	return nil
}

// keepProfile records where CPU time went and writes the profile, if stacks were sampled.
func (x *trial) keepProfile(m *measured.Measured) error {
	if x.profile == nil || x.keep == nil {
		return nil
	}
	t := x.record
	t.Profile = m.Profile(x.profile)
	name := fmt.Sprintf("%s@%s.pb.gz", t.Arm, x.id()) // no arm has an @ in its name
	t.Profile.File = path.Join(record.ProfileDir, name)
	var b bytes.Buffer
	if err := x.profile.Write(&b); err != nil {
		return fmt.Errorf("encoding the profile of %s: %w", x.id(), err)
	}
	return x.keep(name, b.Bytes())
}

func encodeEvidence(evidence map[string]any) (map[string]json.RawMessage, error) {
	var encoded map[string]json.RawMessage
	for guest, v := range evidence {
		text, err := json.Marshal(v)
		if err != nil {
			return nil, fmt.Errorf("encoding the evidence of %s: %w", guest, err)
		}
		if encoded == nil {
			encoded = map[string]json.RawMessage{}
		}
		encoded[guest] = text
	}
	return encoded, nil
}

// Failure returns the text of Validity.Failed for a trial that ended with err.
func Failure(ctx context.Context, err error) string {
	if ctx.Err() != nil {
		return record.Interrupted
	}
	if hint := fault.HintOf(err); hint != "" {
		return err.Error() + "; " + hint
	}
	return err.Error()
}

// measure sets up, opens the window over the loads' measured time, and collects their results.
func (x *trial) measure(ctx context.Context) error {
	t, lap := x.record, laps(x.record)
	before := x.groupPaths()
	if err := x.setUp(ctx); err != nil {
		return fmt.Errorf("setting up: %w", err)
	}
	lap("set-up")
	if err := each(x.parts(), func(h kind.Before) error { return h.Before(ctx) }); err != nil {
		return err
	}
	if x.spec.EventLoad() != "" {
		lap("offset") // Before measured the offset of the load's events
		done := runFirst()
		defer func() { done(t.Ledger) }()
	}

	s, err := x.begin(ctx)
	if err != nil {
		return err
	}
	_, launches := x.own.(kind.Launcher) // a launcher's runtime moves processes between groups
	watch, err := x.tree.Watch(!launches)
	if err != nil {
		return err
	}
	defer watch.Close()
	w, err := x.machine.open(ctx, s.Begin+s.Warmup, s.Begin+s.Warmup+s.Duration)
	if err != nil {
		return err
	}
	defer w.abandon() // if the trial fails in its window
	if err := each(x.parts(), func(h kind.Opened) error { return h.Opened(ctx) }); err != nil {
		return err
	}
	lap("warm-up")
	if t.Ledger, err = w.closeAt(ctx, s.Begin+s.Warmup+s.Duration); err != nil {
		return err
	}
	if err := each(x.parts(), func(h kind.Closed) error { return h.Closed(ctx) }); err != nil {
		return err
	}
	lap("measured")
	x.pids = x.processesByComponent()
	strays, err := watch.End()
	if err != nil {
		return fmt.Errorf("looking at the processes of %s: %w", x.tree.Name(), err)
	}
	if where := containment.Describe(strays, "the trial"); where != "" {
		x.Warn(measured.WarnStrays, "%s: what it uses is not known; start it so that it stays in its group (without "+
			"systemd-run --scope, or options about control groups)", where)
	}
	if err := watch.Unseen(); err != nil {
		x.Warn(measured.WarnUnseen, "%s", containment.MayBeMissing("the trial", err.Error()))
	}
	x.warnOfBeside(before)
	measured.MarkRoles(t.Ledger, x.roles) // some of the groups may be outside the trial's tree

	if err := x.results(ctx); err != nil {
		return err
	}
	if err := each(x.parts(), func(h kind.After) error { return h.After(ctx) }); err != nil {
		return err
	}
	lap("drain")
	if w.sampled != nil { // before the processes end: names are read from the files that they have mapped
		x.profile, err = profile.OfLedger(w.sampled, t.Ledger)
		w.unstacked = errors.Join(w.unstacked, err)
		lap("profile")
	}
	if w.unstacked != nil {
		x.Warn(record.NoProfile, "the trial has no profile: %v", w.unstacked)
	}
	if e, ok := x.own.(kind.Evidence); ok {
		x.evidence[x.subject.Name()] = e.Evidence()
	}
	for name, part := range x.spec.Loads {
		if e, ok := x.joined[name].(kind.Evidence); ok {
			x.evidence[part.Name()] = e.Evidence()
		}
	}
	return context.Cause(ctx) // an application or the subject may have exited unexpectedly
}

// parts returns the values that Join returned for the subject, then for the loads by name, then for the applications
// by name. The value of a part that did not join is nil.
func (x *trial) parts() []any {
	parts := []any{x.own}
	for _, of := range []map[string]*kind.Part{x.spec.Loads, x.spec.Applications} {
		for _, name := range slices.Sorted(maps.Keys(of)) {
			parts = append(parts, x.joined[name])
		}
	}
	return parts
}

// each calls a hook of every part that implements it, until one fails.
func each[H any](parts []any, call func(H) error) error {
	for _, part := range parts {
		if h, has := part.(H); has {
			if err := call(h); err != nil {
				return err
			}
		}
	}
	return nil
}

// setUp makes the groups and starts the processes: applications, then the subject, which must know where they are,
// then loads, which must find both.
func (x *trial) setUp(ctx context.Context) (err error) {
	if err := x.makeTree(); err != nil {
		return err
	}
	x.watchMemory()
	for _, of := range []map[string]*kind.Part{x.spec.Applications, x.spec.Loads} {
		for _, name := range slices.Sorted(maps.Keys(of)) {
			if x.joined[name], err = x.join(name, of[name]); err != nil {
				return err
			}
		}
	}
	if x.own, err = x.join(x.arm, x.subject); err != nil {
		return err
	}
	err = inParallel(x.spec.Applications, func(name string, p *kind.Part) error { return x.startApp(ctx, name, p) })
	if err != nil {
		return err
	}
	if x.subject != nil {
		began := time.Now()
		if err := x.startSubject(ctx); err != nil {
			return err
		}
		x.startTime = time.Since(began)
		if s, ok := x.own.(kind.StartTimer); ok {
			x.startTime = s.StartTime()
		}
		if x.objects == nil { // it runs, but reported no eBPF objects
			x.objects = &kind.Objects{}
		}
	}
	return inParallel(x.spec.Loads, func(name string, p *kind.Part) error { return x.startLoad(ctx, name, p) })
}

// join makes a part join the trial. The result is nil if the part does not join trials.
func (x *trial) join(name string, part *kind.Part) (any, error) {
	if part != nil {
		if j, ok := part.Kind.(kind.Joiner); ok {
			joined, err := j.Join(x, name, part)
			if err != nil { // joined may hold a nil pointer, and so be a non-nil interface
				return nil, err
			}
			return joined, nil
		}
	}
	return nil, nil
}

// makeTree makes the trial's groups. Data planes attach to the group x.work, which holds the applications and the
// loads but not the subject.
func (x *trial) makeTree() (err error) {
	newTree := placement.NewTree
	if x.flat() {
		newTree = placement.NewFlatTree
	}
	if x.tree, err = newTree(x.machine.Cgroups, x.id()); err != nil {
		return err
	}
	share := placement.Limits{CPUs: x.machine.Share.CPUs, Weight: x.machine.Share.Weight}
	if err := x.tree.Limit(share); err != nil {
		return err
	}
	x.work, err = x.tree.Group(kind.WorkGroup, placement.Limits{})
	return err
}

// flat reports whether the scheduler should see the trial's groups as one, because a load starts thousands of
// processes. With cgroup v2 a flat tree cannot limit CPUs, so flat returns false for a trial with such limits.
func (x *trial) flat() bool {
	if h, ok := x.machine.Cgroups.Controller("cpu"); ok && h.V2 {
		for _, sec := range x.spec.Sections() {
			for _, p := range sec.Parts {
				if _, limited := p.Limits["cpus"]; limited && (!sec.Weighs() || p == x.subject) {
					return false
				}
			}
		}
	}
	return x.spec.EventLoad() != ""
}

// id returns the name of the groups of this attempt at the trial.
func (x *trial) id() string {
	if x.attempt > 0 {
		return fmt.Sprintf("trial-%d-again-%d", x.index, x.attempt)
	}
	return fmt.Sprintf("trial-%d", x.index)
}

// treePath returns the path of the trial's own group.
func (x *trial) treePath() string { return path.Dir(x.work.Path()) }

func inParallel(parts map[string]*kind.Part, do func(string, *kind.Part) error) error {
	errs := make([]error, len(parts))
	var wg sync.WaitGroup
	for i, name := range slices.Sorted(maps.Keys(parts)) {
		wg.Go(func() { errs[i] = do(name, parts[name]) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err // the others are usually consequences of this one
		}
	}
	return nil
}

func (x *trial) startApp(ctx context.Context, name string, part *kind.Part) error {
	var app kind.App
	if s, ok := x.joined[name].(kind.Server); ok {
		var err error
		if app, err = s.Serve(ctx); err != nil {
			return fmt.Errorf("starting %s: %w", name, err)
		}
	} else {
		host, err := x.Host(name)
		if err != nil {
			return err
		}
		var ready struct {
			Address string `json:"address"`
		}
		p, raw, err := x.startPart(ctx, kind.Application, name, part, kind.Site{Host: host})
		if err == nil {
			err = p.Decode(raw, "ready message", &ready)
		}
		if err != nil {
			return err
		}
		app = kind.App{Address: ready.Address, Ready: raw}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if app.Address != "" { // otherwise it serves no loads
		x.apps[name] = app
	}
	return nil
}

// patience returns how long an application or a load may take to be ready.
func (x *trial) patience() time.Duration {
	if l, launches := x.own.(kind.Launcher); launches {
		return l.Patience()
	}
	return role.ReadyTimeout
}

// startSubject starts the subject: with its hook if it has one, otherwise as a process of this binary.
func (x *trial) startSubject(ctx context.Context) error {
	if s, ok := x.own.(kind.Starter); ok {
		return s.Start(ctx)
	}
	argv, err := x.argv(kind.Subject, x.subject, kind.Site{})
	if err != nil {
		return err
	}
	p, err := x.StartSubject(ctx, "", x.subject.Limits, argv)
	if err != nil {
		return err
	}
	raw, err := p.Ready(ctx)
	if err != nil {
		return err
	}
	var o kind.Objects
	if err := json.Unmarshal(raw, &o); err != nil {
		return fmt.Errorf("decoding the ready message of %s: %w", x.arm, err)
	}
	x.SetSubject(o, raw)
	return nil
}

// LoadSeed returns the seed of one load of a trial. Seeds differ, because copies must not start their requests at the
// same moments.
func LoadSeed(trial uint64, name string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	return rand.New(rand.NewPCG(trial, h.Sum64())).Uint64()
}

func (x *trial) startLoad(ctx context.Context, name string, part *kind.Part) error {
	app := x.apps[part.To]
	at := kind.Site{
		Address: app.Address, Ready: app.Ready, Subject: x.own, SubjectReady: x.subjectRaw,
		Seed: LoadSeed(x.seed, name),
	}
	if a, serves := x.own.(kind.Addresser); serves && part.To != "" {
		var err error
		if at.Address, err = a.Address(part.To); err != nil {
			return err
		}
		network, err := x.network(kind.Load, name)
		if err != nil {
			return err
		}
		at.Served = network == "" // in a network of the subject, connections need not end on this machine
	}
	if g, ok := x.joined[name].(kind.Generator); ok {
		return g.Aim(ctx, at)
	}
	p, raw, err := x.startPart(ctx, kind.Load, name, part, at)
	if err != nil {
		return err
	}
	var wants role.Wants
	if err := p.Decode(raw, "ready message", &wants); err != nil {
		return err
	}
	wants.Heard(pace.Now())
	x.mu.Lock()
	defer x.mu.Unlock()
	x.loads[name], x.wants[name] = p, wants
	return nil
}

// startPart starts the process of an application or a load at a site, and returns its ready message.
func (x *trial) startPart(
	ctx context.Context, as kind.Role, name string, part *kind.Part, at kind.Site,
) (*role.Child, json.RawMessage, error) {
	argv, err := x.argv(as, part, at)
	if err != nil {
		return nil, nil, err
	}
	begin, err := x.Begin(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	p, err := x.start(name, argv, begin)
	if err != nil {
		return nil, nil, err
	}
	within := max(x.patience(), part.Kind.About().ReadyWithin.With(part.Options))
	raw, err := p.ReadyWithin(ctx, within)
	return p, raw, err
}

// argv returns the command line that starts a part at a site, as a role of this binary.
func (x *trial) argv(as kind.Role, part *kind.Part, at kind.Site) ([]string, error) {
	command, err := kind.Command(as, part.Kind, at)
	if err != nil {
		return nil, err
	}
	return slices.Concat([]string{x.machine.Self}, command, part.Options.Args(part.Settings())), nil
}

// begin sends the schedule to the loads and to a subject that does measured work, and starts the loads that guests
// generate.
func (x *trial) begin(ctx context.Context) (role.Schedule, error) {
	begin, err := x.barrier(ctx)
	if err != nil {
		return role.Schedule{}, err
	}
	s := role.Schedule{Begin: begin, Warmup: int64(x.spec.Warmup), Duration: int64(x.spec.Duration)}
	for _, name := range slices.Sorted(maps.Keys(x.loads)) {
		told := x.wants[name].Translate(s)
		told.Stalls = x.wants[name].Stalls
		if err := x.loads[name].Send(role.Start, told); err != nil {
			return s, fmt.Errorf("starting the load %s: %w", name, err)
		}
	}
	if err := each(x.parts(), func(h kind.Begun) error { return h.Begun(ctx, s) }); err != nil {
		return s, err
	}
	x.late = max(0, pace.Now()-s.Begin)
	if x.worker != nil {
		if err := x.worker.Send(role.Start, s); err != nil {
			return s, fmt.Errorf("starting the work of %s: %w", x.arm, err)
		}
	}
	return s, x.generators(func(name string, g kind.Generator) error {
		if err := pace.SleepUntil(ctx, s.Begin); err != nil {
			return err
		}
		if err := g.Generate(ctx, s); err != nil {
			return fmt.Errorf("starting the load %s: %w", name, err)
		}
		return nil
	})
}

// generators calls a function for each load whose guest generates it, in order of names, until one fails.
func (x *trial) generators(call func(name string, g kind.Generator) error) error {
	for _, name := range slices.Sorted(maps.Keys(x.spec.Loads)) {
		if g, ok := x.joined[name].(kind.Generator); ok {
			if err := call(name, g); err != nil {
				return err
			}
		}
	}
	return nil
}

// startBarrier is the barrier of a trial that runs on this machine alone: loads begin startLead from now.
func startBarrier(context.Context) (int64, error) { return pace.Now() + int64(startLead), nil }

// results sends the machine's stalls in the window to the loads that want them, and collects the results of the loads
// and of the subject's own work.
func (x *trial) results(ctx context.Context) error {
	t := x.record
	stalls := measured.StallsOf(t.Ledger, x.treePath(), x.machine.Shared)
	names := slices.Sorted(maps.Keys(x.loads))
	for _, name := range names {
		if !x.wants[name].Stalls {
			continue
		}
		if err := x.loads[name].Send(role.Halts, stalls); err != nil {
			return fmt.Errorf("telling the load %s of stalls: %w", name, err)
		}
	}
	for _, name := range names {
		var r load.Result
		p, timeout := x.loads[name], x.spec.Loads[name].Options.Duration("drain")+ResultTimeout
		if err := p.Result(ctx, timeout, &r); err != nil {
			return err
		}
		t.Loads[name] = r
	}
	err := x.generators(func(name string, g kind.Generator) error {
		r, err := g.Result(ctx)
		if err != nil {
			return fmt.Errorf("the load %s: %w", name, err)
		}
		t.Loads[name] = r
		return nil
	})
	if err == nil && x.worker != nil {
		t.Work = &load.Result{}
		err = x.worker.Result(ctx, ResultTimeout, t.Work)
	}
	return err
}

// tearDown stops every process and removes the groups. It takes no context: an interrupted trial is cleaned up too.
func (x *trial) tearDown() error {
	x.mu.Lock() // nothing is started any more: setUp has returned
	started := x.started
	x.mu.Unlock()
	var wg sync.WaitGroup
	for _, p := range started {
		wg.Go(p.Stop)
	}
	for _, part := range x.parts() {
		if s, stops := part.(kind.Stopper); stops {
			wg.Go(s.Stop)
		}
	}
	wg.Wait()
	var errs []error
	for _, part := range x.parts() {
		if c, ok := part.(interface{ Close() error }); ok {
			errs = append(errs, c.Close())
		}
	}
	if x.killed != nil {
		errs = append(errs, x.killed.Close())
	}
	if x.tree != nil {
		if err := x.tree.Close(); err != nil {
			errs = append(errs, fmt.Errorf("removing the trial's control groups: %w", err))
		}
	}
	return errors.Join(append(errs, x.lookForLeft())...)
}

// lookForLeft asks guests what they left behind on the machine, and warns of it. If the trial has no ledger, it also
// returns an error.
func (x *trial) lookForLeft() error {
	var errs []error
	for _, part := range x.parts() {
		h, tells := part.(kind.Removed)
		if !tells {
			continue
		}
		left, err := h.Removed()
		errs = append(errs, err)
		if text := strings.Join(left, ", "); text != "" {
			x.Warn(record.LeftBehind, "the trial left behind on the machine: %s", text)
			if x.record.Ledger == nil {
				errs = append(errs, fmt.Errorf("left behind on the machine: %s", text))
			}
		}
	}
	return errors.Join(errs...)
}
