package tracer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
	"tare/internal/experiment/placement"
	cmdline "tare/internal/experiment/process"
	"tare/internal/experiment/record"
	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
	"tare/internal/lib/param"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/ledger"
	execload "tare/internal/tracing/exec"
	"tare/internal/tracing/execs"
	"tare/internal/workloads/subject/command"
)

// playCommand makes the test binary run as a tracer: play SCOPE CGROUP-ID HOLD [BLIND].
const playCommand = "play"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == placement.EnterCommand {
		err := placement.Enter(os.Args[2:])
		fmt.Fprintln(os.Stderr, err)
		os.Exit(int(fault.CodeOf(err)))
	}
	if len(os.Args) > 4 && os.Args[1] == playCommand {
		if err := play(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// play writes a line for every exec that the kernel counts, with a delay of HOLD, until it is interrupted. It ignores
// execs for a time BLIND.
func play(args []string) error {
	id, err := strconv.ParseUint(args[1], 10, 64)
	if err != nil {
		return err
	}
	hold, err := time.ParseDuration(args[2])
	if err != nil {
		return err
	}
	if len(args) > 3 {
		blind, err := time.ParseDuration(args[3])
		if err != nil {
			return err
		}
		time.Sleep(blind)
	}
	counter, err := execs.Open(id)
	if err != nil {
		return err
	}
	defer counter.Close()
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt)
	fmt.Println("ready")
	type seen struct {
		at time.Time
		n  uint64
	}
	var held []seen
	written := uint64(0)
	for ended := false; !ended; {
		select {
		case <-interrupted:
			ended = true
		case <-time.After(2 * time.Millisecond):
		}
		counts, err := counter.Read()
		if err != nil {
			return err
		}
		n := counts.Group
		if args[0] == string(execload.ScopeMachine) {
			n = counts.All
		}
		held = append(held, seen{time.Now(), n})
		for len(held) > 0 && (ended || time.Since(held[0].at) >= hold) {
			fmt.Print(strings.Repeat("event\n", int(held[0].n-written)))
			written, held = held[0].n, held[1:]
		}
	}
	return nil
}

// aTrial is a fake trial with a load of execs and a tracer; groups and kernel are real. The test makes the execs that
// the load would make.
type aTrial struct {
	kind.Trial // nil: other methods must not be called

	t       *testing.T
	self    string
	dir     string
	layout  *cgroup.Layout
	tree    *placement.Tree
	setup   *kind.Setup
	joined  map[string]any
	ended   chan struct{} // closed when the load has its result
	result  load.Result
	record  record.Trial
	objects *kind.Objects
	raw     json.RawMessage
	codes   []string // codes of the warnings
	during  func()   // called while the load runs, unless it is nil
}

func (x *aTrial) Self() string              { return x.self }
func (x *aTrial) Dir() string               { return x.dir }
func (x *aTrial) Arm() string               { return "mine" }
func (x *aTrial) Setup() *kind.Setup        { return x.setup }
func (x *aTrial) Cgroups() *cgroup.Layout   { return x.layout }
func (x *aTrial) Joined(load string) any    { return x.joined[load] }
func (x *aTrial) Result(string) load.Result { return x.result }
func (x *aTrial) Process(string) kind.Process {
	return loadProcess{ended: x.ended}
}
func (x *aTrial) PartGroup(load string) (kind.Group, error) {
	return x.tree.Group(path.Join(kind.WorkGroup, load), placement.Limits{})
}
func (x *aTrial) SubjectGroup(string, param.Values) (kind.Group, error) {
	return x.tree.Group(kind.SubjectGroup, placement.Limits{})
}
func (x *aTrial) SetSubject(o kind.Objects, raw json.RawMessage) { x.objects, x.raw = &o, raw }
func (x *aTrial) Record() *record.Trial                          { return &x.record }
func (x *aTrial) Fail(err error)                                 { x.t.Errorf("it ended by itself: %v", err) }
func (x *aTrial) Warn(code, _ string, _ ...any)                  { x.codes = append(x.codes, code) }

// loadProcess is the process of a load that ends when the test closes its channel.
type loadProcess struct {
	kind.Process

	ended chan struct{}
}

func (p loadProcess) Finished() <-chan struct{} { return p.ended }
func (p loadProcess) Ended() <-chan struct{}    { return nil }

const loadName = "execs"

var trials int // number of trials so far; each has its own groups

// newTrial makes a trial, to which it joins the load and a tracer with the given options.
func newTrial(t *testing.T, o param.Values) (*aTrial, *execload.Counting, *joined) {
	t.Helper()
	layout, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	trials++
	tree, err := placement.NewTree(layout, fmt.Sprintf("tracer-%d", trials))
	if err != nil {
		t.Fatal(err)
	}
	part := &kind.Part{Kind: commandLine.counted, Options: o, Limits: param.Values{}}
	x := &aTrial{
		t: t, self: self, dir: t.TempDir(), layout: layout, tree: tree, joined: map[string]any{}, ended: make(chan struct{}),
		setup: &kind.Setup{
			Loads: map[string]*kind.Part{loadName: {Kind: kind.Find(kind.Load, execload.Name)}},
			Arms:  map[string]*kind.Part{"mine": part},
		},
		record: record.Trial{Ledger: &ledger.Ledger{}},
	}
	join := func(p *kind.Part, name string) any {
		made, err := p.Kind.(kind.Joiner).Join(x, name, p)
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	counting := join(x.setup.Loads[loadName], loadName).(*execload.Counting)
	x.joined[loadName] = counting
	j := join(part, "mine").(*joined)
	t.Cleanup(func() {
		// In the order of the engine: subjects first, and groups last.
		if err := errors.Join(j.Close(), counting.Close(), tree.Close()); err != nil {
			t.Error(err)
		}
	})
	return x, counting, j
}

// exec makes execs in the load's group.
func (x *aTrial) exec(c *execload.Counting, n int) {
	x.t.Helper()
	for range n {
		if err := c.Probe(x.t.Context()); err != nil {
			x.t.Fatal(err)
		}
	}
}

// run runs a trial in which the load makes a number of execs, and other processes make some after the load has ended.
func (x *aTrial) run(c *execload.Counting, j *joined, made, others int) *record.Events {
	x.t.Helper()
	ctx := x.t.Context()
	must := func(err error) {
		x.t.Helper()
		if err != nil {
			x.t.Fatal(err)
		}
	}
	must(j.Start(ctx))
	x.exec(c, 2) // the load's own start
	must(c.Before(ctx))
	must(c.Begun(ctx, role.Schedule{Begin: pace.Now()}))
	x.exec(c, made)
	if x.during != nil {
		x.during()
	}
	x.result.Counts = map[string]float64{execload.CountMade: float64(made)}
	close(x.ended)
	_, lateAfter := j.Waits()
	time.Sleep(lateAfter + 50*time.Millisecond)
	for range others {
		must(exec.CommandContext(ctx, "true").Run())
	}
	must(c.After(ctx))
	return x.record.Events
}

func playing(scope execload.Scope, args string) param.Values {
	return param.Values{
		"command": "{self} " + playCommand + " " + string(scope) + " {cgroup_id} " + args,
		"lines":   "^event", "scope": string(scope), "ready": "^ready", "drain": "5s", "late-after": "1s",
	}
}

func root(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it counts execs in the kernel")
	}
}

// TestTracerInATrial: events that the kernel counts, delivered events and the harness's own execs are distinguished
// exactly.
func TestTracerInATrial(t *testing.T) {
	root(t)
	x, c, j := newTrial(t, playing(execload.ScopeGroup, "0s"))
	e := x.run(c, j, 7, 3)
	if e.Generated != 7 || e.Counted != 7 || *e.Expected != 7 || *e.AtMost != 7 || *e.Delivered != 7 || *e.Late != 0 {
		t.Errorf("%s", eventsText(e))
	}
	if e.Offset.Counted != 2 || *e.Offset.Delivered != 2 || e.Elsewhere < 3 || e.Scope != "group" || e.SaidLost != nil {
		t.Errorf("%s", eventsText(e))
	}
	found, ok := j.Evidence().(*Evidence)
	if !ok || !slices.Equal(found.Processes, []int{j.running.PID()}) || found.RSSPeak < found.RSS || found.RSS < 1<<20 {
		t.Errorf("found %+v", found)
	}
	var raw map[string]any
	if err := json.Unmarshal(x.raw, &raw); err != nil || x.objects == nil {
		t.Fatalf("%s: %v", x.raw, err)
	}
	for _, name := range []string{
		"programs", "maps", "processes", "rss_bytes", "rss_peak_bytes", "memory_peak_bytes", "cpu_seconds",
	} {
		if _, has := raw[name]; !has {
			t.Errorf("the record of the subject has no %s: %s", name, x.raw)
		}
	}
	if len(x.codes) > 0 {
		t.Errorf("warnings %v", x.codes)
	}
}

// TestWorkerEnded: eBPF objects that a process of the tracer held at the end of the window are attributed to the
// tracer, even if the process ends before the tracer is examined.
func TestWorkerEnded(t *testing.T) {
	root(t)
	x, c, j := newTrial(t, playing(execload.ScopeGroup, "0s"))
	x.during = func() {
		worker := exec.Command("sleep", "60")
		if err := j.group.In("")(worker); err != nil {
			t.Fatal(err)
		}
		pid := worker.Process.Pid
		for until := time.Now().Add(10 * time.Second); !slices.Contains(j.group.Members(), pid); { // it enters by itself
			if time.Now().After(until) {
				t.Fatal("the worker is not in the tracer's group")
			}
			time.Sleep(time.Millisecond)
		}
		x.record.Ledger.Programs = []ledger.Program{{ID: 7, Owners: []ledger.Owner{{PID: pid}}}}
		if err := j.Closed(t.Context()); err != nil {
			t.Error(err)
		}
		_ = worker.Process.Kill()
		_ = worker.Wait()
	}
	x.run(c, j, 7, 0)
	if x.objects.Incomplete || len(x.objects.Programs) != 1 {
		t.Errorf("the tracer's objects are %+v", x.objects)
	}
}

// TestCounterReset: if a group's CPU counter was reset, the tracer's CPU time is unknown.
func TestCounterReset(t *testing.T) {
	root(t)
	x, c, j := newTrial(t, playing(execload.ScopeGroup, "0s"))
	h, _ := x.layout.CPU()
	if h == nil || h.V2 {
		t.Skip("needs cgroup v1: the counters of v2 cannot be written")
	}
	x.during = func() {
		dir, _ := h.Dir(j.group.Path())
		if err := cgroup.Write(dir+"/cpuacct.usage", "0"); err != nil {
			t.Fatal(err)
		}
	}
	x.run(c, j, 7, 0)
	if found := j.Evidence().(*Evidence); found.CPUSeconds != nil || !slices.Contains(x.codes, "counter-reset") {
		t.Errorf("it is said to have used %v s; warnings %v", *found.CPUSeconds, x.codes)
	}
}

// TestLateInATrial: events of the load that are delivered too late count as late, and execs of other processes after
// the load do not.
func TestLateInATrial(t *testing.T) {
	root(t)
	// Only one exec, because on a machine where execs take long, the first of several would be delivered before the last
	// was made.
	held := playing(execload.ScopeGroup, "2s")
	held["late-after"] = "100ms"
	x, c, j := newTrial(t, held)
	e := x.run(c, j, 1, 0)
	for tries := 0; tries < 3 && *e.Offset.Delivered < int64(e.Offset.Counted); tries++ {
		// The machine stood still before the load, so the harness's own execs were delivered in the window.
		x, c, j = newTrial(t, held)
		e = x.run(c, j, 1, 0)
	}
	if *e.Delivered != 1 || *e.Late != 1 {
		t.Errorf("held back for two seconds: %s", eventsText(e))
	}
	x, c, j = newTrial(t, playing(execload.ScopeMachine, "0s"))
	if e := x.run(c, j, 5, 20); e.Counted != 5 || *e.Delivered < 25 || *e.Late != 0 || e.Scope != "machine" {
		t.Errorf("execs of others in the drain: %s", eventsText(e))
	}
}

// TestReadyByProbe: a tracer that does not report when it is ready counts as ready once it has delivered a probe.
func TestReadyByProbe(t *testing.T) {
	root(t)
	for _, blind := range []time.Duration{0, 700 * time.Millisecond} {
		o := playing(execload.ScopeGroup, "0s "+blind.String())
		delete(o, "ready")
		o["ready-probe"] = "true"
		x, c, j := newTrial(t, o)
		e := x.run(c, j, 7, 0)
		if e.Generated != 7 || e.Counted != 7 || *e.Delivered != 7 || *e.Expected != 7 {
			t.Errorf("blind for %v: %s", blind, eventsText(e))
		}
		// The probes are part of the offset. Those that the tracer did not see are counted in it, but not delivered.
		unseen := e.Offset.Counted - *e.Offset.Delivered
		if *e.Offset.Delivered < 3 || blind > 0 && unseen == 0 {
			t.Errorf("blind for %v: %s", blind, eventsText(e))
		}
	}
}

// TestNeverReadyByProbe: the wait for a tracer that delivers nothing ends with an error, and if the tracer ends during
// the wait, the error says why.
func TestNeverReadyByProbe(t *testing.T) {
	tr := shell(`trap 'exit 0' INT; echo nothing; while :; do sleep 0.01; done`)
	tr.Ready = Ready{Probe: true}
	made := 0
	probe := func(context.Context) error { made++; return nil }
	// A nanosecond is over before the first exec. A longer limit can be, too, if the machine stands still.
	for _, limit := range []time.Duration{200 * time.Millisecond, time.Nanosecond} {
		made = 0
		r := start(t, tr, cmdline.Place{}, unasked(t))
		err := r.Ready(t.Context(), limit, probe)
		says := fmt.Sprintf("sh delivered none of %d execs within %v", made, limit)
		if err == nil || !strings.Contains(err.Error(), says) || made == 0 || made > 5 {
			t.Errorf("after %d probes: %v", made, err)
		}
		r.Stop()
	}
	tr = shell(`sleep 0.1; echo no program >&2; exit 3`)
	tr.Ready = Ready{Probe: true}
	r := start(t, tr, cmdline.Place{}, func(error) {})
	err := r.Ready(t.Context(), time.Minute, probe)
	if err == nil || !strings.Contains(err.Error(), "before it was ready: exit status 3; its last words: no program") {
		t.Errorf("one that ends: %v", err)
	}
	cause := errors.New("no exec")
	tr = shell(`trap 'exit 0' INT; while :; do sleep 0.01; done`)
	tr.Ready = Ready{Probe: true}
	r = start(t, tr, cmdline.Place{}, unasked(t))
	if err := r.Ready(t.Context(), time.Minute, func(context.Context) error { return cause }); !errors.Is(err, cause) {
		t.Errorf("where no exec can be made: %v", err)
	}
	r.Stop()
}

// TestGuests: every tracer of the catalogue is a subject, and is checked before a run.
func TestGuests(t *testing.T) {
	events := map[string]*kind.Part{loadName: {Kind: kind.Find(kind.Load, execload.Name)}}
	for _, e := range Catalogue {
		g := kind.Find(kind.Subject, e.Name)
		if e.Name == command.Name {
			g = commandLine.counted // commandLine, which is registered, contains this one
		}
		if g == nil {
			t.Errorf("%s is no subject", e.Name)
			continue
		}
		var names []string
		for _, s := range g.About().Settings {
			if slices.Contains(names, s.Name) {
				t.Errorf("%s has two settings %s", e.Name, s.Name)
			}
			names = append(names, s.Name)
		}
		check := g.(kind.SetupChecker).CheckSetup
		if err := check(&kind.Setup{Loads: events}, "arms.mine", nil); err != nil {
			t.Errorf("%s: %v", e.Name, err)
		}
		want := "a tracer (" + e.Name + ") needs something to trace: give the spec a load of kind exec"
		if err := check(&kind.Setup{}, "arms.mine", nil); err == nil || err.Error() != want {
			t.Errorf("%s without events: %v", e.Name, err)
		}
	}
}

// TestGuestOfACommand: an arbitrary command line is named after its program.
func TestGuestOfACommand(t *testing.T) {
	g := asSubject{Lookup(command.Name)}
	o := param.Values{
		"command": "no-such-tracer-anywhere", "lines": "", "version": "echo v7", "drain": "1s", "late-after": "100ms",
	}
	if err := g.Check(o); err != nil {
		t.Error(err)
	}
	err := g.Check(param.Values{"command": "mine"})
	if err == nil || !strings.HasPrefix(err.Error(), "a tracer of kind command does not say how") {
		t.Errorf("one that nobody can count: %v", err)
	}
	if err := g.Installed(t.Context(), o); fault.CodeOf(err) != fault.Machine ||
		!strings.Contains(err.Error(), "not installed") {
		t.Errorf("one that is not there: %v", err)
	}
	if g.Optional(o) || !g.Optional(param.Values{"optional": "true"}) {
		t.Error("whether a run may go on without it is not as asked")
	}
	if name, version := g.Version(t.Context(), o, "own"); name != "no-such-tracer-anywhere" || version != "v7" {
		t.Errorf("it is %s %s", name, version)
	}
	name, version := asSubject{Lookup("exectrace")}.Version(t.Context(), nil, "own")
	if name != "exectrace" || version != "own" {
		t.Errorf("Tare's own is %s %s", name, version)
	}
	if got := g.tail(o); got != stopTime+1100*time.Millisecond {
		t.Errorf("it takes at most %v", got)
	}
	o["stop"] = "2s"
	if got := g.tail(o); got != 3100*time.Millisecond {
		t.Errorf("told to stop in 2s it takes at most %v", got)
	}
}

func eventsText(e *record.Events) string {
	b, err := json.Marshal(e)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// TestOutstandingBeforeTheLoad: a tracer that still holds events from before the load makes the counts of the load's
// events uncertain.
func TestOutstandingBeforeTheLoad(t *testing.T) {
	root(t)
	x, c, j := newTrial(t, playing(execload.ScopeGroup, "4s")) // later than the load waits for its own start
	x.run(c, j, 3, 0)
	if !slices.Contains(x.codes, "events-outstanding") {
		t.Errorf("warnings %v", x.codes)
	}
}
