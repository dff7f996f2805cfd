package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/load"
	"tare/internal/experiment/record"
	"tare/test/analysistest"
)

// smallRecord writes a run that can be reported on, compared and planned from.
func smallRecord(t *testing.T, id string) string {
	t.Helper()
	run := record.Run{Schema: record.RunSchema, ID: id, Experiment: "x", Blocks: 8}
	var trials []record.Trial
	for block := range 8 {
		for i, arm := range []string{record.Direct, record.AA, "a"} {
			p := record.PlannedTrial{Index: len(trials), Block: block, Position: i, Arm: arm}
			run.Plan = append(run.Plan, p)
			value := 1 + 0.01*float64(block) + 0.1*float64(i)
			trials = append(trials, record.Trial{
				Schema: record.TrialSchema, PlannedTrial: p, Metrics: map[string]float64{"latency_p50_seconds": value},
				Validity: record.Validity{Valid: true},
			})
		}
	}
	return savedRun(t, id, run, trials)
}

// plannableCosts returns the costs of a run that can be planned from.
func plannableCosts() analysistest.Costs {
	linear := func(x float64) float64 { return 1 + 0.001*x }
	return analysistest.Costs{Experiment: "mesh-rate", Factor: "client.rate", Blocks: 6, Mode: load.Open, CPU: linear,
		BPF: linear, Memory: func(x float64) float64 { return 1e6 * linear(x) }}
}

// savedRun writes a run into a new directory, and returns the directory.
func savedRun(t *testing.T, id string, run record.Run, trials []record.Trial) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), id)
	w, err := record.Create(dir, run)
	if err != nil {
		t.Fatal(err)
	}
	for _, trial := range trials {
		if err := w.Append(trial); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestInterrupted has commands that only read and print hang on a pipe that nobody reads, and interrupts them.
func TestInterrupted(t *testing.T) {
	one, two := smallRecord(t, "one"), smallRecord(t, "two")
	run, trials := plannableCosts().Record()
	costs := savedRun(t, "costs", run, trials)
	for _, args := range [][]string{
		{"report", one}, {"report", one, "--format", "html"}, {"power", one}, {"compare", one, two, "--anyway"},
		{"plan", costs, "--for", "rate=600"},
		{"list"}, {"list", "quickstart"}, {"list", "loads"}, {"doctor"}, {"doctor", "--json"},
	} {
		for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
			name := fmt.Sprint(args, " ", s)
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			fillPipe(t, w)
			var stderr bytes.Buffer
			cmd := exec.Command(bin, args...)
			cmd.Stdout, cmd.Stderr = w, &stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			hangs := func() bool { // a thread of the process is in write(1, ...)
				threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", cmd.Process.Pid))
				for _, thread := range threads {
					if text, _ := os.ReadFile(thread); bytes.HasPrefix(text, fmt.Appendf(nil, "%d 0x1 ", unix.SYS_WRITE)) {
						return true
					}
				}
				return false
			}
			patience := time.Now().Add(time.Minute)
			for !hangs() && time.Now().Before(patience) && len(ended) == 0 {
				time.Sleep(5 * time.Millisecond)
			}
			if err := cmd.Process.Signal(s); err != nil {
				t.Errorf("%s: %v: %s", name, err, stderr.String())
			}
			select {
			case err := <-ended:
				var exit *exec.ExitError
				if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(stderr.String(), "tare: interrupted") {
					t.Errorf("%s: %v: %s", name, err, stderr.String())
				}
			case <-time.After(time.Minute):
				t.Errorf("%s: it does not end", name)
				_ = cmd.Process.Kill()
				<-ended
			}
			if err := errors.Join(r.Close(), w.Close()); err != nil {
				t.Error(err)
			}
		}
	}
}

// fillPipe writes to a pipe until it takes no more.
func fillPipe(t *testing.T, w *os.File) {
	t.Helper()
	fd := int(w.Fd())
	if err := unix.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	var err error
	for err == nil {
		_, err = unix.Write(fd, make([]byte, 4096))
	}
	if !errors.Is(err, unix.EAGAIN) {
		t.Fatal(err)
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		t.Fatal(err)
	}
}
