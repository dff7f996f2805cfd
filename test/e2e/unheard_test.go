package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"tare/internal/experiment/record"
	"tare/test/long"
	"tare/test/started"
)

// deaf returns the write end of a pipe whose read end is closed.
func deaf(t *testing.T) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	t.Cleanup(func() { w.Close() })
	return w
}

// TestRunUnheard: a run whose output no process reads any more ('tare run ... | head') goes on to its end, and leaves
// nothing but its directory.
func TestRunUnheard(t *testing.T) {
	needsRoot(t)
	leavesNothing(t)
	dir := filepath.Join(t.TempDir(), "out")
	cmd := exec.Command(bin, "run", specFile(t, shortSpec), "--out", dir)
	cmd.Stdout, cmd.Stderr = deaf(t), deaf(t)
	if err := cmd.Run(); err != nil {
		t.Errorf("it ended with %v", err)
	}
	c, err := record.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(firstAttempts(c)) != 6 || c.Partial {
		t.Errorf("%d trials, partial %v", len(c.Trials), c.Partial)
	}
	if _, err := os.Stat(filepath.Join(dir, record.ReportFile)); err != nil {
		t.Error(err)
	}
	if strings.Contains(strings.Join(c.Run.Command, " "), "--out") {
		t.Errorf("the command that runs it again writes over it: %q", c.Run.Command)
	}
}

// TestUnheard: commands that only print exit with 0 and no message when nobody reads their output.
func TestUnheard(t *testing.T) {
	leavesNothing(t)
	for _, args := range [][]string{{"list"}, {"list", "quickstart"}, {"doctor", "--json"}, {"--help"},
		{"weigh", "--for", "100ms"}} {
		if args[0] == "weigh" && os.Geteuid() != 0 {
			continue
		}
		var stderr strings.Builder
		cmd := exec.Command(bin, args...)
		cmd.Stdout, cmd.Stderr = deaf(t), &stderr
		if err := cmd.Run(); err != nil || stderr.String() != "" {
			t.Errorf("tare %s: %v: %s", strings.Join(args, " "), err, stderr.String())
		}
	}
}

// TestSignalledAtTheBeginning: whenever a signal comes while a run starts, the run either has not begun or ends as an
// interrupted one, and leaves nothing. A command that was started with nohup ignores SIGHUP.
func TestSignalledAtTheBeginning(t *testing.T) {
	needsRoot(t)
	leavesNothing(t)
	// A signal ends tare at once until tare handles it. Getting that far takes less CPU time than printing the version,
	// which varies from one time to another.
	var starting time.Duration
	for range 5 {
		starting = max(starting, 2*cpuTimeOf(t, command{args: []string{"--version"}}.start(t)))
	}
	for n := range long.Repeat(10, 40) {
		i := n * 40 / long.Repeat(10, 40) // in the same span of time
		s := []syscall.Signal{syscall.SIGHUP, syscall.SIGTERM}[i%2]
		if signal.Ignored(syscall.SIGHUP) {
			s = syscall.SIGTERM // tare ignores SIGHUP too if these tests were started with nohup
		}
		dir := filepath.Join(t.TempDir(), "out")
		p := command{args: []string{"run", specFile(t, shortSpec), "--blocks", "100", "--out", dir}}.start(t)
		moment := time.Duration(i) * 2 * time.Millisecond
		time.Sleep(moment)
		p.signal(t, s)
		o := p.wait(t)
		listens := cpuTimeOf(t, p) > starting
		_, err := os.Stat(dir)
		begun := err == nil
		if o.code == -1 && (begun || listens) || o.code == 0 || begun && o.code != 4 {
			t.Errorf("%s after %v, begun %v: %s", s, moment, begun, o)
		}
	}
	cmd := exec.Command("nohup", bin, "weigh", "--for", "600ms")
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Skipf("needs nohup: %v", err)
	}
	if err := started.Await(cmd.Process.Pid, filepath.Base(bin)); err != nil { // nohup ignores the signal by now
		t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond)
	// it may have ended already
	_ = cmd.Process.Signal(syscall.SIGHUP)
	// the signal came after 300 ms, and it went on
	if err := cmd.Wait(); err != nil || !regexp.MustCompile(`Weighed for ([6-9][0-9]{2} ms|[0-9.]+ s)`).MatchString(out.String()) {
		t.Errorf("with nohup: %v: %s", err, out.String())
	}
}

// cpuTimeOf waits for the end of a process, and returns the CPU time that it has used.
func cpuTimeOf(t *testing.T, p *process) time.Duration {
	t.Helper()
	p.wait(t)
	return p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()
}

// TestTwoRunsAtOnce: two runs at once disturb each other, and both say so, in what they print and in their records.
func TestTwoRunsAtOnce(t *testing.T) {
	needsRoot(t)
	leavesNothing(t)
	const warning = "another run of tare is under way on this machine (process %d)"
	first, second := filepath.Join(t.TempDir(), "out"), filepath.Join(t.TempDir(), "out")
	p := command{args: []string{"run", specFile(t, shortSpec), "--blocks", "100", "--out", first}}.start(t)
	whileItRuns(t, p, func() bool {
		lines, _ := os.ReadFile(filepath.Join(first, record.TrialsFile))
		return strings.Count(string(lines), "\n") >= 1
	})
	q := command{args: []string{"run", specFile(t, shortSpec), "--out", second}}.start(t)
	o := q.wait(t)
	p.signal(t, syscall.SIGINT)
	of := p.wait(t)
	for _, run := range []struct {
		name, dir string
		o         output
		other     int
	}{{"first", first, of, q.pid}, {"second", second, o, p.pid}} {
		if n := strings.Count(run.o.stderr, "warning: "+fmt.Sprintf(warning, run.other)); n != 1 {
			t.Errorf("the %s warned %d times: %s", run.name, n, run.o)
		}
		if !strings.Contains(run.o.stdout, "another run of tare was under way on this machine in ") {
			t.Errorf("the report of the %s: %s", run.name, run.o)
		}
		c, err := record.Read(run.dir)
		if err != nil {
			t.Fatal(err)
		}
		warned := 0
		for _, trial := range c.Trials {
			if trial.Ledger != nil && strings.Contains(fmt.Sprint(trial.Ledger.Warnings), record.OtherRun) {
				warned++
			}
		}
		if warned == 0 {
			t.Errorf("no trial of the %s run has the warning", run.name)
		}
	}
	alone := tare(t, "run", specFile(t, shortSpec), "--blocks", "1", "--out", filepath.Join(t.TempDir(), "out"))
	if strings.Contains(alone.stderr+alone.stdout, "another run") {
		t.Errorf("alone: %s", alone)
	}
}

// TestTooFewOpenFiles: if descriptors run out, the error says so, wherever that happens.
func TestTooFewOpenFiles(t *testing.T) {
	needsRoot(t)
	leavesNothing(t)
	said := 0
	for _, n := range []int{12, 16, 20} {
		cmd := exec.Command("sh", "-c", fmt.Sprintf("ulimit -n %d; exec \"$@\"", n), "sh", bin, "run", specFile(t, shortSpec),
			"--blocks", "1", "--out", filepath.Join(t.TempDir(), "out"))
		out, _ := cmd.CombinedOutput()
		if !strings.Contains(string(out), "too many open files") {
			continue
		}
		said++
		if !strings.Contains(string(out), "raise the limit of open files: ulimit -n") {
			t.Errorf("with %d files: %s", n, out)
		}
	}
	if said == 0 {
		t.Error("there were enough descriptors each time: the test says nothing")
	}
}
