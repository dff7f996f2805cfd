package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tare/internal/experiment/cluster"
	"tare/internal/experiment/kind"
	"tare/internal/experiment/link"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
	"tare/internal/experiment/role"
	"tare/internal/experiment/spec"
	"tare/internal/lib/known"
	"tare/internal/lib/param"
	"tare/internal/scale/ledger"
	"tare/internal/scale/meter"
)

func init() { kind.Register(kind.Subject, guestUnderTest{}) }

// guestUnderTest is a subject whose behaviour each test sets with useGuest.
type guestUnderTest struct{}

const underTestName = "under-test"

var underTest struct {
	prepare func(kind.Preparation) error
	join    func(kind.Trial) any
}

func (guestUnderTest) About() kind.About {
	return kind.About{Name: underTestName, Summary: "of a test"}
}

func (guestUnderTest) Prepare(_ context.Context, p kind.Preparation) error {
	if underTest.prepare == nil {
		return nil
	}
	return underTest.prepare(p)
}

func (guestUnderTest) Join(t kind.Trial, _ string, _ *kind.Part) (any, error) {
	if underTest.join == nil {
		return starter(func(context.Context) error { return nil }), nil
	}
	return underTest.join(t), nil
}

// starter is a subject that only starts.
type starter func(context.Context) error

func (s starter) Start(ctx context.Context) error { return s(ctx) }

// useGuest sets what guestUnderTest does until the test ends.
func useGuest(t *testing.T, prepare func(kind.Preparation) error, join func(kind.Trial) any) {
	underTest.prepare, underTest.join = prepare, join
	t.Cleanup(func() { underTest.prepare, underTest.join = nil, nil })
}

// guestSpec returns a spec with the guest in one arm, with the given further keys.
func guestSpec(keys string) string {
	s := tolerant(shortSpec)
	return strings.Replace(s, "kernelmesh: {subject: kernelmesh, steps: 10}", "mine: {subject: under-test"+keys+"}", 1)
}

// TestPrepare: a guest prepares once for the whole run, its trials find what it made, and that is removed when the run
// has ended, successfully or not.
func TestPrepare(t *testing.T) {
	for _, c := range []struct {
		name, spec   string
		fails, start error
		interrupt    bool
		parts        int
		trials       int
		says         string
	}{
		{name: "one part", spec: guestSpec(""), parts: 1, trials: 3},
		{name: "arms that are alike are one part",
			spec: guestSpec("}\n  other: {subject: under-test"), parts: 1, trials: 4},
		{name: "limits make another part",
			spec: guestSpec("}\n  other: {subject: under-test, limits: {memory: 64MiB}"), parts: 2, trials: 4},
		{name: "the guest cannot", spec: guestSpec(""), fails: errors.New("no image"), parts: 1,
			says: "preparing the run for under-test: no image"},
		{name: "its trials fail", spec: guestSpec(""), start: errors.New("no start"), parts: 1, trials: 3},
		{name: "the run is interrupted", spec: guestSpec(""), interrupt: true, parts: 1, trials: 1, says: "canceled"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g, temporary := newGround(t), ownTemporary(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var made []kind.Preparation
			file := ""
			useGuest(t, func(p kind.Preparation) error {
				made = append(made, p)
				file = filepath.Join(p.Dir, "image", "disk")
				if err := os.Mkdir(filepath.Dir(file), 0o700); err != nil {
					return err
				}
				return errors.Join(os.WriteFile(file, []byte("root"), 0o400), c.fails)
			}, func(tr kind.Trial) any {
				return starter(func(context.Context) error {
					if got, want := tr.Prepared(kind.Subject, underTestName), made[0].Dir; got != want {
						t.Errorf("a trial has %q, prepared was %q", got, want)
					}
					if _, err := os.ReadFile(file); err != nil {
						t.Error(err)
					}
					if got := tr.Prepared(kind.Load, "http"); got != "" {
						t.Errorf("%q is of a guest that prepares nothing", got)
					}
					return c.start
				})
			})
			if c.interrupt {
				g.onOpen = cancel
			}
			_, trials, err := g.run(ctx, mustParse(t, c.spec), quiet)
			if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %q", err, c.says)
			}
			if len(made) != 1 || len(made[0].Parts) != c.parts || made[0].Self == "" || !filepath.IsAbs(made[0].Dir) {
				t.Errorf("prepared %+v, want once, with %d parts", made, c.parts)
			}
			if len(trials) != c.trials {
				t.Errorf("%d trials, want %d", len(trials), c.trials)
			}
			if file != "" && !strings.HasPrefix(file, temporary+"/") {
				t.Errorf("prepared is in %s, not in %s", file, temporary)
			}
			noScratch(t, temporary)
		})
	}
}

// TestNothingPrepared: a run whose guests prepare nothing creates no directory for it.
func TestNothingPrepared(t *testing.T) {
	dir := ownTemporary(t)
	p, err := prepareRun(t.Context(), mustParse(t, shortSpec), "/bin/tare")
	if err != nil {
		t.Fatal(err)
	}
	noScratch(t, dir)
	if got := p.of(kind.Subject, "kernelmesh"); got != "" {
		t.Errorf("it has %q", got)
	}
}

// ownTemporary makes a new directory the system's directory for temporary files for the duration of a test.
func ownTemporary(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	return dir
}

// noScratch reports an error if scratch files are left in a directory.
func noScratch(t *testing.T, dir string) {
	t.Helper()
	if left, err := filepath.Glob(filepath.Join(dir, "tare-scratch-*")); len(left) > 0 || err != nil {
		t.Errorf("left are %v, %v", left, err)
	}
}

// TestNodePrepares: a node prepares for the one trial that it runs, and only for that trial's arm.
func TestNodePrepares(t *testing.T) {
	for arm, want := range map[string]int{"mine": 1, record.Direct: 0} {
		g := newGround(t)
		dir, temporary, made := t.TempDir(), ownTemporary(t), 0
		useGuest(t, func(p kind.Preparation) error {
			made++
			return os.WriteFile(filepath.Join(p.Dir, "image"), nil, 0o600)
		}, func(tr kind.Trial) any {
			return starter(func(context.Context) error {
				_, err := os.Stat(filepath.Join(tr.Prepared(kind.Subject, underTestName), "image"))
				return err
			})
		})
		x := newNodesTrial(g.machine, mustParse(t, guestSpec("")), arm, 0)
		data, err := x.job(record.PlannedTrial{Arm: arm}, 0)
		if err != nil {
			t.Fatal(err)
		}
		a := NodeAgent{Name: "a", Dir: dir, Machine: func(*spec.Spec) (Machine, error) { return g.machine, nil }}
		if _, err := a.Run(t.Context(), cluster.Job{ID: 1, Data: data}, startBarrier); err != nil || made != want {
			t.Errorf("%s: prepared %d times, want %d: %v", arm, made, want, err)
		}
		noScratch(t, temporary)
	}
}

// launching is a subject that runs applications.
type launching struct {
	starter
	launch func(kind.Launch) error
	before func() error
}

func (l launching) Launch(_ context.Context, a kind.Launch) error { return l.launch(a) }
func (l launching) Before(context.Context) error                  { return l.before() }

func (launching) Patience() time.Duration                          { return role.ReadyTimeout }
func (launching) Component(int) string                             { return "" }
func (launching) KilledInside(context.Context) []kind.KilledInside { return nil }

const launchMark = "LAUNCHED_BY_TEST"

// TestLaunch: a subject starts every application in its own way, in the application's group, and loads reach it.
// Another program starts the application here, as a container runtime would.
func TestLaunch(t *testing.T) {
	g := newGround(t)
	var mu sync.Mutex
	var launched []kind.Launch
	useGuest(t, nil, func(kind.Trial) any {
		launch := func(a kind.Launch) error {
			mu.Lock()
			launched = append(launched, a)
			mu.Unlock()
			_, err := a.Start(a.Group, "", slices.Concat([]string{"/usr/bin/env", launchMark + "=" + a.Name}, a.Argv)...)
			return err
		}
		before := func() error {
			for _, a := range launched {
				pids := a.Group.Members()
				if len(pids) != 1 {
					return fmt.Errorf("the group of %s has the processes %v", a.Name, pids)
				}
				environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pids[0]))
				if err != nil || !strings.Contains(string(environ), launchMark+"="+a.Name+"\x00") {
					return fmt.Errorf("%s was not started by the guest: %v", a.Name, err) //nolint:errorlint // it may be nil
				}
			}
			return nil
		}
		return launching{func(context.Context) error { return nil }, launch, before}
	})
	// On a busy machine a load may get no CPU time in a short window; then a longer one is tried.
	for _, window := range []string{"300ms", "1s", "5s"} {
		launched = nil
		s := mustParse(t, strings.Replace(guestSpec(""), "duration: 300ms", "duration: "+window, 1))
		_, trials, err := g.run(t.Context(), s, quiet)
		if err != nil {
			t.Fatal(err)
		}
		idle := slices.IndexFunc(trials, func(tr record.Trial) bool {
			return !tr.Validity.Valid || tr.Loads["client"].Done == 0 || tr.Loads["held"].Done == 0
		})
		if idle < 0 {
			break
		}
		if tr := trials[idle]; window == "5s" || tr.Validity.Failed != "" {
			t.Fatalf("%s: %+v, %+v", tr.Arm, tr.Validity, tr.Loads)
		}
	}
	var names []string
	for _, a := range launched {
		names = append(names, a.Name)
		if a.Part.Name() != "http" || path.Base(a.Group.Path()) != a.Name {
			t.Errorf("%s: the part is %s, in %s", a.Name, a.Part.Name(), a.Group.Path())
		}
	}
	if slices.Sort(names); !slices.Equal(names, []string{"other", "server"}) {
		t.Errorf("launched %v: only in the arm of the guest, each application once", names)
	}
}

// hosting is a subject that launches applications, and returns their addresses.
type hosting struct{ launching }

const elsewhere = "127.0.0.9"

func (hosting) Host(string) (string, error) { return elsewhere, nil }

// TestLaunchInside: a load that must run inside is launched like an application, and no other load is. Applications
// listen where the subject says. In the baseline the load runs as usual.
func TestLaunchInside(t *testing.T) {
	g := newGround(t)
	var mu sync.Mutex
	launched := map[string]kind.Launch{}
	var addresses []string
	useGuest(t, nil, func(tr kind.Trial) any {
		launch := func(a kind.Launch) error {
			mu.Lock()
			launched[a.Name] = a
			mu.Unlock()
			_, err := a.Start(a.Group, "")
			return err
		}
		before := func() error {
			for _, a := range tr.Applications() {
				addresses = append(addresses, a.Address)
			}
			return nil
		}
		return hosting{launching{func(context.Context) error { return nil }, launch, before}}
	})
	loads := "loads:\n  inner: {kind: command, inside: true, command: \"sleep {seconds}\"}\n" +
		"  outer: {kind: command, command: \"sleep {seconds}\"}\n"
	_, trials, err := g.run(t.Context(), mustParse(t, strings.Replace(guestSpec(""), "loads:\n", loads, 1)), quiet)
	if err != nil {
		t.Fatal(err)
	}
	for _, tr := range trials {
		if tr.Validity.Failed != "" || tr.Loads["inner"].Own == nil || tr.Loads["outer"].Own == nil ||
			tr.Loads["client"].Done == 0 {
			t.Errorf("%s: %+v, %d loads", tr.Arm, tr.Validity, len(tr.Loads))
		}
	}
	inner := launched["inner"]
	if len(launched) != 3 || inner.Part == nil || inner.Part.Name() != "command" || len(inner.Dirs) != 1 {
		t.Errorf("launched %v", slices.Sorted(maps.Keys(launched)))
	}
	for _, a := range addresses {
		if !strings.HasPrefix(a, elsewhere+":") {
			t.Errorf("an application listens at %s", a)
		}
	}
	if len(addresses) == 0 {
		t.Error("no application was seen")
	}
}

// networked is a subject that has a private network.
type networked struct {
	starter
	before  func() error
	network string
}

func (n networked) Before(context.Context) error { return n.before() }

func (n networked) Network(kind.Role, string) (string, error) { return n.network, nil }

// TestNetworked: applications and loads run in the network that the subject provides, and find each other there; in the
// baseline they run in the machine's.
func TestNetworked(t *testing.T) {
	g := newGround(t)
	n, err := link.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	var in []string
	useGuest(t, nil, func(tr kind.Trial) any {
		before := func() error {
			at, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", tr.Process("client").PID()))
			in = append(in, at)
			return err
		}
		return networked{func(context.Context) error { return nil }, before, n.Path()}
	})
	_, trials, err := g.run(t.Context(), mustParse(t, guestSpec("")), quiet)
	if err != nil {
		t.Fatal(err)
	}
	for _, tr := range trials {
		if tr.Validity.Failed != "" || tr.Loads["client"].Done == 0 {
			t.Errorf("%s: %+v, %d done", tr.Arm, tr.Validity, tr.Loads["client"].Done)
		}
	}
	want, err := os.Readlink(n.Path())
	if err != nil || len(in) == 0 || in[0] != want {
		t.Errorf("the load ran in %v, want %s; %v", in, want, err)
	}
}

// TestLaunchFails: if the subject cannot start an application, the trial fails with an error that names the
// application.
func TestLaunchFails(t *testing.T) {
	g := newGround(t)
	useGuest(t, nil, func(kind.Trial) any {
		return launching{launch: func(kind.Launch) error { return errors.New("no runtime") }}
	})
	_, trials, err := g.run(t.Context(), mustParse(t, guestSpec("")), quiet)
	if err != nil {
		t.Fatal(err)
	}
	for _, tr := range trials {
		failed := tr.Validity.Failed
		want := "" // the error names the first application in order of name
		if tr.Arm == "mine" {
			want = "setting up: starting other: no runtime"
		}
		if failed != want {
			t.Errorf("%s: %q, want %q", tr.Arm, failed, want)
		}
	}
}

// explaining is a subject that knows why a trial failed.
type explaining struct {
	starter
	explain func(error) error
}

func (e explaining) Explain(err error) error { return e.explain(err) }

// TestExplain: a subject explains why a trial of its arm failed, and is not called for trials of other arms.
func TestExplain(t *testing.T) {
	g := newGround(t)
	useGuest(t, nil, func(kind.Trial) any {
		return explaining{
			func(context.Context) error { return errors.New("nobody answers") },
			func(err error) error { return fmt.Errorf("it had ended; then %w", err) },
		}
	})
	_, trials, err := g.run(t.Context(), mustParse(t, guestSpec("")), quiet)
	if err != nil {
		t.Fatal(err)
	}
	for _, tr := range trials {
		failed := tr.Validity.Failed
		if mine := tr.Arm == "mine"; mine != strings.HasPrefix(failed, "it had ended; then setting up: ") ||
			mine != strings.Contains(failed, "nobody answers") || !mine && failed != "" {
			t.Errorf("%s: %q", tr.Arm, failed)
		}
	}
}

// leaving is a subject that is asked what it left behind.
type leaving struct {
	starter
	removed func() ([]string, error)
}

func (l leaving) Removed() ([]string, error) { return l.removed() }

// TestRemoved: after everything of a trial has ended, a guest reports what it left behind, and that report is never
// lost.
func TestRemoved(t *testing.T) {
	for _, c := range []struct {
		name          string
		left          []string
		err, start    error
		warns, failed string
	}{
		{name: "nothing"},
		{name: "mounts", left: []string{"/run/a", "/run/b"}, warns: "the trial left behind on the machine: /run/a, /run/b"},
		{name: "what spoils the next", err: errors.New("the device is busy"), failed: "the device is busy"},
		{name: "after a failure", left: []string{"/run/a"}, start: errors.New("no start"),
			failed: "no start\nleft behind on the machine: /run/a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGround(t)
			asked := 0
			useGuest(t, nil, func(tr kind.Trial) any {
				start := func(ctx context.Context) error {
					group, err := tr.SubjectGroup("", nil)
					if err != nil {
						return err
					}
					// Nobody waits for it: it is killed.
					return errors.Join(group.In("")(exec.Command("sleep", "600")), c.start)
				}
				return leaving{start, func() ([]string, error) {
					asked++
					g.nothingLeft()
					return c.left, c.err
				}}
			})
			_, trials, err := g.run(t.Context(), mustParse(t, guestSpec("")), quiet)
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(trials, func(tr record.Trial) bool { return tr.Arm == "mine" })
			tr := trials[i]
			if asked != 1 || c.failed == "" != (tr.Validity.Failed == "") || !strings.Contains(tr.Validity.Failed, c.failed) {
				t.Errorf("asked %d times; failed: %q, want %q", asked, tr.Validity.Failed, c.failed)
			}
			var warned []string
			if tr.Ledger != nil {
				for _, w := range tr.Ledger.Warnings {
					if w.Code == record.LeftBehind {
						warned = append(warned, w.Message)
					}
				}
			}
			if got := strings.Join(warned, "; "); got != c.warns {
				t.Errorf("warned %q, want %q", got, c.warns)
			}
		})
	}
}

// busy is a command that speaks the protocol, and uses CPU time until it is asked to end. idle uses none.
var (
	busy = []string{"/bin/sh", "-c", `(while :; do :; done) & echo '{"event":"ready","data":{}}'; cat >/dev/null; kill $!`}
	idle = []string{"/bin/sh", "-c", `echo '{"event":"ready","data":{}}'; cat >/dev/null`}
)

// TestLimitsOfTheSubject: the subject's group has the limits of the arm, even if it was first requested without any.
func TestLimitsOfTheSubject(t *testing.T) {
	g := newGround(t)
	limit := ""
	useGuest(t, nil, func(tr kind.Trial) any {
		return starter(func(context.Context) error {
			group, err := tr.SubjectGroup("", nil)
			if err != nil {
				return err
			}
			h, ok := tr.Cgroups().Controller("cpu")
			if !ok {
				return errors.New("nothing limits CPU time")
			}
			dir, _ := h.Dir(group.Path())
			for _, name := range []string{"cpu.max", "cpu.cfs_quota_us"} {
				if text, err := os.ReadFile(filepath.Join(dir, name)); err == nil {
					limit, _, _ = strings.Cut(strings.TrimSpace(string(text)), " ")
				}
			}
			return nil
		})
	})
	x := newTrial(g.machine, mustParse(t, guestSpec(", limits: {cpus: 0.2}")), record.PlannedTrial{Arm: "mine"}, 0,
		t.TempDir(), 0)
	var tr record.Trial
	if err := x.run(t.Context(), &tr); err != nil {
		t.Fatal(err)
	}
	if limit != "20000" { // us of each 100 ms
		t.Errorf("the limit is %q", limit)
	}
}

// newMeter returns a real meter.
func newMeter(t *testing.T) *meter.Meter {
	t.Helper()
	m, err := meter.New(t.Context(), meter.Options{SampleHz: -1, NoWitness: true, Whole: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// TestComponents: each component of a subject has a group, limits, a charge and values. Together they are the subject,
// in which nothing is counted twice. The meter is real.
func TestComponents(t *testing.T) {
	g := newGround(t)
	m := newMeter(t)
	g.machine.OpenWindow = func(ctx context.Context, at int64) (Window, error) { return m.OpenAt(ctx, at) }
	useGuest(t, nil, func(tr kind.Trial) any {
		return starter(func(ctx context.Context) error {
			for name, argv := range map[string][]string{"proxy": busy, "control": idle} {
				limits := param.Values{}
				if name == "proxy" {
					limits["cpus"] = "0.2"
				}
				p, err := tr.StartSubject(ctx, name, limits, argv)
				if err != nil {
					return err
				}
				if _, err := p.Ready(ctx); err != nil {
					return err
				}
			}
			shim, err := tr.ServingGroup("shim", "server", param.Values{"cpus": "0.1"})
			if err != nil {
				return err
			}
			return shim.In("")(exec.Command("/bin/sh", "-c", "while :; do :; done"))
		})
	})
	spec := mustParse(t, strings.Replace(guestSpec(", limits: {cpus: 1.5}"), "duration: 300ms", "duration: 2s", 1))
	x := newTrial(g.machine, spec, record.PlannedTrial{Arm: "mine"}, 0, t.TempDir(), 0)
	var tr record.Trial
	if err := x.run(t.Context(), &tr); err != nil {
		t.Fatal(err)
	}

	groups := map[string]ledger.Cgroup{}
	for _, group := range tr.Ledger.Cgroups {
		if _, below, is := strings.Cut(group.Path, "/"+kind.SubjectGroup); is {
			groups[below] = group
		}
	}
	tare := func(component, workload string) ledger.Charged {
		return ledger.Charged{Charge: ledger.ChargeTare, Component: component, Workload: workload}
	}
	for below, want := range map[string]ledger.Charged{
		"": tare("", ""), "/proxy": tare("proxy", ""), "/control": tare("control", ""),
		"/shim/server": tare("shim", "server"),
	} {
		if got := groups[below]; got.Role != string(kind.Subject) || got.Charged != want {
			t.Errorf("subject%s: role %q, charged %+v, want %+v", below, got.Role, got.Charged, want)
		}
	}
	// If neighbours leave the proxy less CPU time than its limit, it is not throttled. A period of 100 ms is cut off at
	// each edge.
	proxy, limit := groups["/proxy"], 0.2*(tr.Ledger.Window.Seconds+0.2)
	if used := known.Or(proxy.CPUSeconds, math.Inf(1)); proxy.ThrottledSeconds == nil || used > limit {
		t.Errorf("the proxy was not held by its limit: it used %v s, throttled %v", used, proxy.ThrottledSeconds)
	}
	for _, r := range tr.Validity.Reasons {
		if r.Gate == measured.GateThrottled.Name {
			t.Errorf("a limit that was asked for trips a gate: %s", r.Message)
		}
	}

	const cpus, hard = "subject_cpus", "memory_hard_bytes"
	// Each component is compared with its group's counter, because nobody knows how much CPU time a busy machine gives it.
	for component, of := range map[string]struct {
		below string
		most  float64
		works bool
	}{"proxy": {"/proxy", 0.3, true}, "control": {"/control", 0.05, false}, "shim": {"/shim/server", 0.15, true}} {
		got, used := tr.Components[component], groups[of.below].CPUSeconds
		if v, ok := got[cpus]; !ok || used == nil || math.Abs(v-*used/tr.Ledger.Window.Seconds) > 0.01 || v > of.most ||
			of.works && v <= 0 {
			t.Errorf("%s uses %v CPUs (%v), at most %v; its group %v in %v s", component, v, ok, of.most, used,
				tr.Ledger.Window.Seconds)
		}
		if got[hard] <= 0 {
			t.Errorf("%s: %v", component, got)
		}
		if _, known := got["map_bytes"]; !known {
			t.Errorf("the processes of %s are not known: %v", component, got)
		}
	}
	for name, near := range map[string]float64{cpus: 0.02, hard: 1 << 20} {
		sum := 0.0
		for _, values := range tr.Components {
			sum += values[name]
		}
		if v := tr.Metrics[name]; v < sum-near || v > sum+near+0.2*sum {
			t.Errorf("%s is %g in all, and %g in its components", name, v, sum)
		}
	}
	if len(tr.Components) != 3 {
		t.Errorf("components %v", tr.Components)
	}
	i := slices.IndexFunc(tr.Ledger.Workloads, func(w ledger.Workload) bool { return w.Name == "server" })
	if i < 0 || tr.Ledger.Workloads[i].TareCgroupsCPU == nil ||
		*tr.Ledger.Workloads[i].TareCgroupsCPU < *groups["/shim/server"].CPUSeconds {
		t.Errorf("the shim is not tare of the server: %+v", tr.Ledger.Workloads)
	}
}

// TestOwnMetricsEndNoRun: metrics of what every subject uses do not decide when a run with a precision ends. Kernel
// memory does if the experiment varies the number of services.
func TestOwnMetricsEndNoRun(t *testing.T) {
	own := []string{"subject_cpus", "subject_bpf_cpus", "memory_anon_bytes", "memory_file_bytes", "memory_shmem_bytes"}
	for text, kernel := range map[string]bool{shortSpec: false, memorySpec(", services: 5, fit: true"): true} {
		s := mustParse(t, "precision: 5%\n"+text[:strings.Index(text, "blocks:")]+text[strings.Index(text, "warmup:"):])
		if s.Until != 30*time.Minute {
			t.Fatalf("the spec has no precision: %v", s.Until)
		}
		precise := s.PreciseMetrics()
		for _, name := range own {
			if _, known := measured.Find(name); !known || slices.Contains(precise, name) {
				t.Errorf("%s (known: %v) decides when a run ends", name, known)
			}
		}
		if got := slices.Contains(precise, "memory_kernel_bytes"); got != kernel {
			t.Errorf("memory_kernel_bytes decides: %v, want %v", got, kernel)
		}
	}
}

// counting reads at both edges of the window how often the process of a load has waited.
type counting struct {
	starter
	read func() int64
	at   [2]time.Time
	made [2]int64
}

func (c *counting) Opened(context.Context) error { return c.edge(0) }
func (c *counting) Closed(context.Context) error { return c.edge(1) }
func (c *counting) Evidence() any                { return c.made[1] - c.made[0] }

func (c *counting) edge(i int) error {
	c.at[i], c.made[i] = time.Now(), c.read()
	return nil
}

// TestEdges: a guest reads an additional counter at both edges of the window, and the difference is its evidence.
func TestEdges(t *testing.T) {
	g := newGround(t)
	var mine *counting
	useGuest(t, nil, func(tr kind.Trial) any {
		mine = &counting{starter: func(context.Context) error { return nil }}
		mine.read = func() int64 { return switches(t, tr.Process("held").PID()) }
		return mine
	})
	_, trials, err := g.run(t.Context(), mustParse(t, guestSpec("")), quiet)
	if err != nil {
		t.Fatal(err)
	}
	tr := trials[slices.IndexFunc(trials, func(tr record.Trial) bool { return tr.Arm == "mine" })]
	if tr.Validity.Failed != "" {
		t.Fatal(tr.Validity.Failed)
	}
	w, made := tr.Ledger.Window, mine.made[1]-mine.made[0]
	if mine.at[0].Before(w.Start) || mine.at[1].Before(w.End) {
		t.Errorf("read at %v, and the window was from %v to %v", mine.at, w.Start, w.End)
	}
	if got := string(tr.Evidence[underTestName]); mine.made[0] <= 0 || made < 0 || got != fmt.Sprint(made) {
		t.Errorf("the evidence is %s of %v", got, mine.made)
	}
}

// TestOpenedFails: if a guest fails inside the window of a trial, the window is closed, so that the next trial can open
// one.
func TestOpenedFails(t *testing.T) {
	g := newGround(t)
	open, failed := false, false
	g.machine.OpenWindow = func(_ context.Context, at int64) (Window, error) {
		if open {
			return nil, errors.New("the window before is still open")
		}
		open = true
		return closingWindow{newEmptyWindow(at), &open}, nil
	}
	useGuest(t, nil, func(kind.Trial) any {
		return openedFails{starter: func(context.Context) error { return nil }, failed: &failed}
	})
	_, trials, err := g.run(t.Context(), mustParse(t, strings.Replace(guestSpec(""), "blocks: 1", "blocks: 2", 1)), quiet)
	if err != nil || len(trials) != 6 || !failed {
		t.Fatalf("%d trials, and one failed: %v; %v", len(trials), failed, err)
	}
	for _, tr := range trials {
		if f := tr.Validity.Failed; f != "" && !strings.Contains(f, "no counter") {
			t.Errorf("trial %d: %s", tr.Index, f)
		}
	}
}

// openedFails is a guest that fails inside the window of its first trial.
type openedFails struct {
	starter
	failed *bool
}

func (o openedFails) Opened(context.Context) error {
	if *o.failed {
		return nil
	}
	*o.failed = true
	return errors.New("no counter")
}

// closingWindow records that it was closed.
type closingWindow struct {
	emptyWindow
	open *bool
}

func (w closingWindow) CloseAt(ctx context.Context, at int64) (*ledger.Ledger, error) {
	*w.open = false
	return w.emptyWindow.CloseAt(ctx, at)
}

// switches returns the number of voluntary context switches of all threads of a process (proc_pid_status(5)).
func switches(t *testing.T, pid int) (all int64) {
	t.Helper()
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	for _, file := range threads {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var n int64
		_, rest, _ := strings.Cut(string(data), "\nvoluntary_ctxt_switches:")
		if _, err := fmt.Sscan(rest, &n); err != nil {
			t.Fatalf("%s: %v", data, err)
		}
		all += n
	}
	return all
}
