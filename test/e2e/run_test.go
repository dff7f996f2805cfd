package e2e

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	_ "tare/internal/all" // every guest
	"tare/internal/experiment/load"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
	"tare/internal/experiment/spec"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/ledger"
	"tare/test/long"
	"tare/test/owned"
)

// shortSpec is an experiment of short trials at a rate that any machine holds. A stall longer than its window trips no
// gate, and the run is valid even if others spoil every trial.
const shortSpec = `name: short
question: Does a run work?
blocks: 2
warmup: 50ms
duration: 300ms
applications: {server: {kind: http}}
loads: {client: {kind: http, to: server, rate: 100, connections: 16, keepalive: false}}
arms: {kernelmesh: {subject: kernelmesh}}
gates: {rate: 0, errors: 1, lag: 60s, drift: 1000, generator_cpu: 1, invalid: 1}
`

// specFile writes a spec, and returns its path.
func specFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "spec.yaml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func needsRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: control groups and BPF")
	}
}

func TestRun(t *testing.T) {
	needsRoot(t)
	leavesNothing(t)
	dir := filepath.Join(t.TempDir(), "out")
	o := tare(t, "run", specFile(t, shortSpec), "--out", dir, "--seed", "5", "--set", "rate=100,200")
	if o.code != 0 {
		t.Fatal(o)
	}
	c, err := record.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(firstAttempts(c)) != 12 || c.Partial || c.Run.Seed != 5 {
		t.Errorf("%d trials, partial %v, seed %d", len(c.Trials), c.Partial, c.Run.Seed)
	}
	counted := false // or others kept tare from reading its counters in time
	for _, tr := range c.Trials {
		if tr.Validity.Failed != "" || !tr.Validity.Valid && !disturbed(tr) {
			t.Errorf("trial %d, %s: %+v", tr.Index, tr.Arm, tr.Validity)
		}
		if kernelmeshCounted(t, tr) && tr.Arm == "kernelmesh" {
			counted = true
		}
		counted = counted || slices.ContainsFunc(tr.Validity.Reasons, byOthers)
	}
	if !counted {
		t.Errorf("no trial shows the cost of kernelmesh: %s", o)
	}
	for _, file := range []string{record.SummaryFile, record.ReportFile} {
		if _, err := os.Stat(filepath.Join(dir, file)); err != nil {
			t.Error(err)
		}
	}
	for _, want := range []string{"Does a run work?", "tare run"} {
		if !strings.Contains(o.stdout, want) {
			t.Errorf("the report lacks %q: %s", want, o)
		}
	}
	// Each spoiled trial, and each other run on the machine, has a line too.
	more := strings.Count(o.stderr, "\ntrial ") + strings.Count(o.stderr, "\nwarning: another run of tare")
	if n := strings.Count(o.stderr, "\n"); n-more > 4 || strings.Contains(o.stderr, "\r") {
		t.Errorf("progress that is not for a terminal is a line for each block: %s", o)
	}
	if again := tare(t, "report", dir); again.code != 0 || !strings.Contains(again.stdout, "Does a run work?") {
		t.Errorf("reporting again: %s", again)
	}
	if again := tare(t, "run", specFile(t, shortSpec), "--out", dir); again.code != 2 ||
		!strings.Contains(again.stderr, "not empty") {
		t.Errorf("running over a run: %s", again)
	}
}

// kernelmeshCounted: of the arms, only kernelmesh takes time in eBPF programs for a connection. The result is false if
// the trial cannot show this, because the cost is void or no connection was opened in the window.
func kernelmeshCounted(t *testing.T, tr record.Trial) bool {
	t.Helper()
	const cost = "bpf_seconds_per_connection"
	if !tr.Validity.Stands(cost) ||
		!slices.ContainsFunc(slices.Collect(maps.Values(tr.Loads)), func(r load.Result) bool { return r.Opened > 0 }) {
		return false
	}
	// Beside others, the counters' window can be over before the load opens its connections.
	d := measured.DisturbanceOf(tr.Ledger, 0)
	busy := d.Stolen+d.Foreign >= 0.25
	if v, ok := tr.Metrics[cost]; !ok || (v > 0) != (tr.Arm == "kernelmesh") && !busy {
		t.Errorf("trial %d, %s: %s is %g, there %v: %+v", tr.Index, tr.Arm, cost, v, ok, tr.Validity)
	}
	return true
}

// disturbed reports whether other work on this machine, the hypervisor, or a stall of tare itself at an edge of the
// window is the cause of all that voids a trial.
func disturbed(tr record.Trial) bool {
	return !slices.ContainsFunc(tr.Validity.Reasons, func(r record.Reason) bool {
		return !byOthers(r) && r.Gate != "window"
	})
}

func byOthers(r record.Reason) bool {
	return r.Cause == ledger.Neighbour || r.Cause == ledger.Hypervisor
}

func TestRunWrongUse(t *testing.T) {
	leavesNothing(t)
	for _, c := range []struct {
		name string
		args []string
		want []string
	}{
		{"no experiment", []string{"run"}, []string{"want one experiment"}},
		{"misspelt", []string{"run", "quikstart"}, []string{"no such experiment", `did you mean "quickstart"?`}},
		{"unknown", []string{"run", "nosuch"}, []string{"no such experiment", "the built-in experiments are "}},
		{"no file", []string{"run", "./nosuch.yaml"}, []string{"./nosuch.yaml: the spec cannot be read"}},
		{"wrong spec", []string{"run", specFile(t, strings.Replace(shortSpec, "warmup", "wramup", 1))},
			[]string{`spec.yaml:4:1: there is no key "wramup" in a spec; did you mean "warmup"?`}},
		{"no blocks", []string{"run", "quickstart", "--blocks", "0"}, []string{"--blocks: must be at least 1, got 0"}},
		{"wrong setting", []string{"run", "quickstart", "--set", "raet=5"}, []string{`did you mean "rate"?`}},
		{"wrong flag", []string{"run", "quickstart", "--bocks", "5"}, []string{"unknown flag: --bocks"}},
		{"unknown spec", []string{"list", "nosuch"}, []string{"no such experiment"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := tare(t, c.args...)
			if o.code != 2 || o.stdout != "" {
				t.Error(o)
			}
			for _, want := range c.want {
				if !strings.Contains(o.stderr, want) {
					t.Errorf("lacks %q: %s", want, o)
				}
			}
		})
	}
}

func TestRunNotRoot(t *testing.T) {
	needsRoot(t) // to be somebody else
	leavesNothing(t)
	dir, err := owned.TempDir("e2e")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	o := command{args: []string{"run", "quickstart"}, user: 65534, dir: dir}.start(t).wait(t)
	if o.code != 3 || !strings.Contains(o.stderr, "root") {
		t.Error(o)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("it left %v", left)
	}
}

func TestList(t *testing.T) {
	o := tare(t, "list")
	if o.code != 0 || !strings.Contains(o.stdout, "quickstart\n") || !strings.Contains(o.stdout, "takes about") {
		t.Error(o)
	}
	o = tare(t, "list", "quickstart")
	if o.code != 0 {
		t.Fatal(o)
	}
	if _, err := spec.Parse("list", []byte(o.stdout), []string{"bpf-syscall", "bpf-stats", "sampling"}); err != nil {
		t.Errorf("what it prints is no spec: %v", err)
	}
}

// TestRunInterrupted: Ctrl-C leaves a partial run that can be reported; a second one changes nothing.
func TestRunInterrupted(t *testing.T) {
	needsRoot(t)
	leavesNothing(t)
	dir := filepath.Join(t.TempDir(), "out")
	p := command{args: []string{"run", specFile(t, shortSpec), "--blocks", "100", "--out", dir}}.start(t)
	whileItRuns(t, p, func() bool {
		lines, _ := os.ReadFile(filepath.Join(dir, record.TrialsFile))
		return strings.Count(string(lines), "\n") >= 2
	})
	p.signal(t, syscall.SIGINT)
	time.Sleep(20 * time.Millisecond)
	p.signal(t, syscall.SIGINT)
	o := p.wait(t)
	if o.code != 4 || !strings.Contains(o.stderr, "interrupted: the run is partial") {
		t.Error(o)
	}
	c, err := record.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if !c.Partial || len(c.Trials) < 2 {
		t.Errorf("%d trials, partial %v", len(c.Trials), c.Partial)
	}
	if r := tare(t, "report", dir); r.code != 0 || !strings.Contains(r.stdout, "partial") && !strings.Contains(r.stdout,
		"PARTIAL") {
		t.Errorf("reporting the partial run: %s", r)
	}
}

// whileItRuns waits until so() is true, and fails the test if the process ends before.
func whileItRuns(t *testing.T, p *process, so func() bool) {
	t.Helper()
	for !so() {
		select {
		case <-p.done:
			t.Fatalf("it ended too early: %s", p.wait(t))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// TestRunKilled kills a run at random moments. tare clean then leaves nothing of it, and the trials that had ended can
// be read; what is not of the run stays as it was: another group with a name like those of runs, a process in it, a
// program.
func TestRunKilled(t *testing.T) {
	needsRoot(t)
	leavesNothing(t)
	bystander := bystand(t)
	for range long.Repeat(5, 20) {
		before := look(t)
		dir := filepath.Join(t.TempDir(), "out")
		p := command{args: []string{"run", specFile(t, shortSpec), "--blocks", "100", "--out", dir}}.start(t)
		moment := time.Duration(rand.Int64N(int64(1500 * time.Millisecond)))
		time.Sleep(moment)
		p.signal(t, syscall.SIGKILL)
		p.wait(t)
		if o := tare(t, "clean"); o.code != 0 {
			t.Errorf("killed after %v: %s", moment, o)
		}
		for _, what := range leftSince(t, before) {
			t.Errorf("killed after %v: left behind: %s", moment, what)
		}
		bystander.unharmed(t)
		if _, err := os.Stat(filepath.Join(dir, record.RunFile)); err != nil {
			continue // killed before it had begun
		}
		if _, err := record.Read(dir); err != nil {
			t.Errorf("killed after %v: %v", moment, err)
		}
	}
}

// bystander is what another user has on the machine: control groups, and a process in them.
type bystander struct {
	groups  []string
	process *exec.Cmd
	ended   chan struct{}
}

func bystand(t *testing.T) *bystander {
	t.Helper()
	b := &bystander{process: exec.Command("sleep", "600"), ended: make(chan struct{})}
	layout, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.process.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(b.ended)
		_ = b.process.Wait()
	}()
	t.Cleanup(func() {
		_ = b.process.Process.Kill()
		<-b.ended
		for _, dir := range b.groups {
			removeGroup(t, dir)
		}
	})
	for _, h := range layout.Hierarchies {
		if !h.V2 && !h.Has("cpu") && !h.Has("cpuacct") && !h.Has("memory") {
			continue
		}
		dir := filepath.Join(h.Mount, fmt.Sprintf("tare-test-bystander-%d", os.Getpid()))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		b.groups = append(b.groups, dir)
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(b.process.Process.Pid)),
			0); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func (b *bystander) unharmed(t *testing.T) {
	t.Helper()
	select {
	case <-b.ended:
		t.Fatal("a process that is not of the run was ended")
	default:
	}
	for _, dir := range b.groups {
		procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil || strings.TrimSpace(string(procs)) != strconv.Itoa(b.process.Process.Pid) {
			t.Fatalf("a group that is not of the run holds %q (%v), not its process %d", procs, err, b.process.Process.Pid)
		}
	}
}

// TestRunDiskFull: if a disk fills up, the run ends with an error that names it, and keeps the trials that had ended.
func TestRunDiskFull(t *testing.T) {
	needsRoot(t)
	leavesNothing(t)
	disk := t.TempDir()
	// Room for run.json, which has the definitions of all metrics, and for some trials of twenty blocks.
	if err := unix.Mount("tare-test", disk, "tmpfs", 0, "size=192k"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(disk, 0); err != nil {
			t.Error(err)
		}
	}()
	dir := filepath.Join(disk, "out")
	o := tare(t, "run", specFile(t, shortSpec), "--blocks", "20", "--out", dir)
	if o.code != 3 || !strings.Contains(o.stderr, filepath.Join(dir, record.TrialsFile)) ||
		!strings.Contains(o.stderr, "no space left") {
		t.Error(o)
	}
	c, err := record.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Trials) == 0 || !c.Partial {
		t.Errorf("%d trials are kept, partial %v", len(c.Trials), c.Partial)
	}
}
