package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tare/internal/experiment/child"
	"tare/internal/experiment/placement"
	"tare/internal/experiment/record"
	"tare/internal/experiment/spec"
	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
	_ "tare/internal/mesh/kernelmesh"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/ledger"
	"tare/test/binary"
	"tare/test/owned"
)

// TestMain lets the test binary enter a control group, as tare does when it executes itself.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == placement.EnterCommand {
		err := placement.Enter(os.Args[2:])
		fmt.Fprintln(os.Stderr, err)
		os.Exit(int(fault.CodeOf(err)))
	}
	code := m.Run()
	if dir := filepath.Dir(built.path); built.path != "" {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

// built is the real binary, which plays all roles; it is built for the first test that needs it.
var built struct {
	once sync.Once
	path string
	err  error
}

func build(t *testing.T) string {
	t.Helper()
	built.once.Do(func() {
		dir, err := owned.TempDir("engine")
		if err != nil {
			built.err = err
			return
		}
		built.path, built.err = binary.Build(dir)
	})
	if built.err != nil {
		t.Fatalf("building tare: %v", built.err)
	}
	return built.path
}

// emptyWindow replaces the meter, which has separate tests: these tests are about the course of a trial. Its edges are
// always at the planned times, so no trial is invalid because the machine has other work.
type emptyWindow struct {
	opened time.Time
	from   int64 // CLOCK_MONOTONIC, ns
}

func newEmptyWindow(at int64) emptyWindow {
	if at == 0 {
		at = pace.Now()
	}
	return emptyWindow{time.Now(), at}
}

func (w emptyWindow) CloseAt(ctx context.Context, at int64) (*ledger.Ledger, error) {
	if err := pace.SleepUntil(ctx, at); err != nil {
		return nil, err
	}
	return &ledger.Ledger{Schema: ledger.Schema,
		Window: ledger.Window{Start: w.opened, End: time.Now(), Seconds: float64(at-w.from) / 1e9}}, nil
}

type ground struct {
	t       *testing.T
	machine Machine
	windows int // opened
	onOpen  func()
	again   bool // spoiled trials are repeated, as the spec says; otherwise exactly the planned trials are run
	first   bool // only the first trial of the plan is run
}

func newGround(t *testing.T) *ground {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: control groups and BPF")
	}
	layout, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	g := &ground{t: t, onOpen: func() {}}
	g.machine = Machine{Self: build(t), Cgroups: layout, OpenWindow: func(ctx context.Context, at int64) (Window, error) {
		if err := pace.SleepUntil(ctx, at); err != nil {
			return nil, err
		}
		g.windows++
		g.onOpen()
		return newEmptyWindow(at), nil
	}}
	t.Cleanup(g.nothingLeft)
	return g
}

// nothingLeft reports an error if groups or processes of this test remain.
func (g *ground) nothingLeft() {
	mark := fmt.Sprintf("-p%d-", os.Getpid())
	for _, h := range g.machine.Cgroups.Hierarchies {
		if left, _ := filepath.Glob(filepath.Join(h.Mount, "tare-*"+mark+"*")); len(left) > 0 {
			g.t.Errorf("groups are left: %v", left)
		}
	}
	environs, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, e := range environs {
		if data, err := os.ReadFile(e); err == nil && strings.Contains(string(data), child.Mark+"=tare-trial-") &&
			strings.Contains(string(data), mark) {
			g.t.Errorf("a process is left: %s", e)
		}
	}
}

func (g *ground) run(ctx context.Context, s *spec.Spec,
	progress func(Progress)) (*record.Contents, []record.Trial, error) {
	g.t.Helper()
	if !g.again {
		once := *s
		once.Repeat = 0
		s = &once
	}
	spec, err := json.Marshal(s)
	if err != nil {
		g.t.Fatal(err)
	}
	dir := filepath.Join(g.t.TempDir(), "run")
	plan := Plan(s, 1)
	if g.first {
		plan = plan[:1]
	}
	run := record.Run{Schema: record.RunSchema, Experiment: s.Name, Spec: spec, Seed: 1, Blocks: s.Blocks, Plan: plan}
	w, err := record.Create(dir, run)
	if err != nil {
		g.t.Fatal(err)
	}
	trials, runErr := (&Runner{Machine: g.machine, Spec: s, Record: &run, Writer: w, Progress: progress}).Run(ctx)
	if err := w.Close(); err != nil {
		g.t.Error(err)
	}
	c, err := record.Read(dir)
	if err != nil {
		g.t.Fatal(err)
	}
	if len(c.Trials) != len(trials) {
		g.t.Errorf("%d trials are recorded, %d were run", len(c.Trials), len(trials))
	}
	if _, err := os.Stat(filepath.Join(dir, "services.yaml")); err == nil {
		g.t.Errorf("%s is left", "services.yaml")
	}
	return c, trials, runErr
}

func quiet(Progress) {}

const shortSpec = `name: short
question: Does a trial work?
blocks: 1
warmup: 50ms
duration: 300ms
applications: {server: {kind: http}, other: {kind: http}}
loads:
  client: {kind: http, to: server, rate: 300, connections: 16, keepalive: false}
  held: {kind: http, to: other, mode: closed, connections: 2}
arms:
  kernelmesh: {subject: kernelmesh, steps: 10}
gates: {rate: 0.5, lag: 1s, generator_cpu: 1, errors: 0}
`

// tolerant returns a spec like shortSpec with gates that noise alone does not trip: machines that run tests are not
// steady, and do not always have time for every request.
func tolerant(spec string) string {
	return strings.NewReplacer("gates: {rate: 0.5, lag: 1s,", "gates: {rate: 0, drift: 1000, lag: 60s,",
		"connections: 16,", "connections: 16, drain: 60s,", "connections: 2}", "connections: 2, drain: 60s}").Replace(spec)
}

// TestTrials runs one block with the real processes in real groups: every arm serves every request, through the data
// plane if there is one.
func TestTrials(t *testing.T) {
	g := newGround(t)
	var seen []Progress
	// A neighbour can take the CPU for the whole short window; then the trial has no requests to judge.
	spec := mustParse(t, strings.Replace(tolerant(shortSpec), "duration: 300ms", "duration: 3s", 1))
	c, trials, err := g.run(t.Context(), spec, func(p Progress) { seen = append(seen, p) })
	if err != nil {
		t.Fatal(err)
	}
	if len(trials) != 3 || c.Partial || g.windows != 3 {
		t.Fatalf("%d trials, %d windows, partial %v", len(trials), g.windows, c.Partial)
	}
	for _, tr := range trials {
		if !tr.Validity.Valid {
			t.Errorf("%s: %+v", tr.Arm, tr.Validity)
			continue
		}
		if r := tr.Loads["client"]; r.Done == 0 || r.Opened+r.Late < r.Done || r.Done+r.Unfinished > r.Intended {
			t.Errorf("%s: %+v", tr.Arm, r)
		}
		if tr.Loads["held"].Done == 0 {
			t.Errorf("%s: the closed load did nothing", tr.Arm)
		}
		if (tr.Subject != nil) != (tr.Arm == "kernelmesh") {
			t.Errorf("%s: the subject said %s", tr.Arm, tr.Subject)
		}
		for _, clock := range []string{"set-up", "warm-up", "measured", "drain", "tear-down"} {
			if tr.Clocks[clock] <= 0 {
				t.Errorf("%s: no time for %s", tr.Arm, clock)
			}
		}
		if tr.Metrics["latency_p50_seconds"] <= 0 || tr.Metrics["throughput_per_second"] <= 0 {
			t.Errorf("%s: metrics %v", tr.Arm, tr.Metrics)
		}
		_, bpf := tr.Metrics["bpf_seconds_per_connection"]
		if wantZero := tr.Arm != "kernelmesh"; bpf != wantZero || wantZero && tr.Metrics["bpf_seconds_per_connection"] != 0 {
			t.Errorf("%s: bpf_seconds_per_connection %v, %v; an empty ledger cannot tell it, and without a subject it is 0",
				tr.Arm, tr.Metrics["bpf_seconds_per_connection"], bpf)
		}
	}
	if len(seen) != 4 || seen[0].Last != nil || seen[3].Last == nil || seen[3].Left != 0 || seen[1].Next.Index != 1 {
		t.Errorf("progress: %+v", seen)
	}
}

// TestFailedTrial: if one arm cannot work, its trials are recorded with the reason, and the others continue.
func TestFailedTrial(t *testing.T) {
	g := newGround(t)
	s := mustParse(t, shortSpec)
	s.Arms["kernelmesh"].Options["max-endpoints"] = "1" // there are two
	_, trials, err := g.run(t.Context(), s, quiet)
	if err != nil || len(trials) != 3 {
		t.Fatalf("%d trials: %v", len(trials), err)
	}
	for _, tr := range trials {
		if failed := tr.Validity.Failed != ""; failed != (tr.Arm == "kernelmesh") {
			t.Errorf("%s: %+v", tr.Arm, tr.Validity)
		}
		if tr.Validity.Failed != "" && (tr.Metrics != nil || tr.Validity.Valid) {
			t.Errorf("a failed trial has metrics %v", tr.Metrics)
		}
	}
}

// TestDeadApplication: an application that dies during the window fails the trial at once, and the error names it.
func TestDeadApplication(t *testing.T) {
	g := newGround(t)
	s := mustParse(t, shortSpec)
	s.Duration = time.Minute
	g.onOpen = func() {
		dirs, _ := filepath.Glob(filepath.Join(v2(t, g.machine.Cgroups),
			fmt.Sprintf("tare-trial-*-p%d-*/work/server/cgroup.procs", os.Getpid())))
		if len(dirs) != 1 {
			t.Errorf("groups of the application: %v", dirs)
			return
		}
		procs, _ := os.ReadFile(dirs[0])
		for _, pid := range strings.Fields(string(procs)) {
			if err := exec.Command("kill", "-9", pid).Run(); err != nil {
				t.Errorf("killing the application: %v", err)
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	began := time.Now()
	_, trials, err := g.run(ctx, s, func(p Progress) {
		if p.Done == 1 {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) || len(trials) != 1 {
		t.Fatalf("%d trials: %v", len(trials), err)
	}
	if want := "server ended during the trial: signal: killed"; !strings.Contains(trials[0].Validity.Failed, want) {
		t.Errorf("got %q, want %q", trials[0].Validity.Failed, want)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("the trial went on for %v", took)
	}
}

func v2(t *testing.T, l *cgroup.Layout) string {
	t.Helper()
	h, ok := l.V2()
	if !ok {
		t.Skip("needs cgroup v2")
	}
	return h.Mount
}

// TestInterrupted: if the context ends during a window, the trial is ended and recorded as interrupted.
func TestInterrupted(t *testing.T) {
	g := newGround(t)
	s := mustParse(t, shortSpec)
	s.Duration = time.Minute
	ctx, cancel := context.WithCancel(t.Context())
	g.onOpen = cancel
	c, trials, err := g.run(ctx, s, quiet)
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	if len(trials) != 1 || trials[0].Validity.Failed != "interrupted" || !c.Partial {
		t.Errorf("trials: %+v; partial %v", trials, c.Partial)
	}
}

// TestHopeless: if nothing works, the run is given up, with the exit code and hint of the cause.
func TestHopeless(t *testing.T) {
	g := newGround(t)
	g.machine.OpenWindow = func(context.Context, int64) (Window, error) {
		return nil, fault.New(fault.Machine, "meter", "fix it", "broken")
	}
	s := mustParse(t, shortSpec)
	s.Blocks = 4
	_, trials, err := g.run(t.Context(), s, quiet)
	if len(trials) != 3 || fault.CodeOf(err) != fault.Machine || fault.HintOf(err) != "fix it" {
		t.Errorf("%d trials, %v, hint %q", len(trials), err, fault.HintOf(err))
	}
	if !slices.ContainsFunc(trials, func(tr record.Trial) bool {
		return strings.Contains(tr.Validity.Failed, "meter: broken; fix it")
	}) {
		t.Errorf("%q", trials[0].Validity.Failed)
	}
}
