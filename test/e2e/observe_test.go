package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"tare/internal/experiment/record"
	"tare/internal/scale/host/cgroup"
)

const observeSpec = `name: observe
question: What does it use?
blocks: 1
warmup: 100ms
duration: 300ms
applications:
  server: {kind: http}
loads:
  client: {kind: http, to: server, rate: 200}
arms:
  group: {subject: command, observe: "cgroup:/%s"}
  process: {subject: command, observe: "pid:%d"}
`

// TestObserved: a command that runs already is found, by its control group and by its process, charged to the subject,
// and left as it was.
func TestObserved(t *testing.T) {
	leavesNothing(t)
	layout, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	h, ok := layout.CPU()
	if !ok {
		t.Skip("needs control groups that count CPU time")
	}
	name := fmt.Sprintf("observed-%d", os.Getpid())
	dir := filepath.Join(h.Mount, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skipf("needs to make a control group: %v", err)
	}
	t.Cleanup(func() {
		for range 50 { // until the kernel has let the process go
			if err = os.Remove(dir); err == nil {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
		t.Errorf("removing the group: %v", err)
	})
	agent := exec.Command("sleep", "infinity")
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = agent.Process.Kill() // it may have ended, which is an error already
		_ = agent.Wait()
	})
	procs := filepath.Join(dir, "cgroup.procs")
	if err := os.WriteFile(procs, []byte(strconv.Itoa(agent.Process.Pid)), 0o644); err != nil {
		t.Fatal(err)
	}
	spec := filepath.Join(t.TempDir(), "observe.yaml")
	if err := os.WriteFile(spec, fmt.Appendf(nil, observeSpec, name, agent.Process.Pid), 0o644); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "run")
	if o := tare(t, "run", spec, "--out", out); o.code != 0 && o.code != 4 { // noise may spoil so short a window
		t.Fatal(o)
	}
	c, err := record.Read(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, tr := range firstAttempts(c) {
		if tr.Validity.Failed != "" {
			t.Errorf("%s failed: %s", tr.Arm, tr.Validity.Failed)
			continue
		}
		observed := tr.Arm == "group" || tr.Arm == "process"
		role := ""
		for _, g := range tr.Ledger.Cgroups {
			if g.Path == "/"+name {
				role = g.Role
			}
		}
		if want := map[bool]string{true: "subject"}[observed]; role != want {
			t.Errorf("%s: the role of its group is %q, want %q", tr.Arm, role, want)
		}
		if !observed {
			continue
		}
		var found struct {
			Observed  string
			Processes []struct{ PID int }
		}
		if err := json.Unmarshal(tr.Evidence["command"], &found); err != nil {
			t.Fatal(err)
		}
		if len(found.Processes) != 1 || found.Processes[0].PID != agent.Process.Pid || tr.Metrics["rss_bytes"] < 100e3 {
			t.Errorf("%s: found %+v, %g bytes", tr.Arm, found, tr.Metrics["rss_bytes"])
		}
	}
	text, err := os.ReadFile(procs)
	if err != nil || strings.TrimSpace(string(text)) != strconv.Itoa(agent.Process.Pid) {
		t.Errorf("its group holds %q now, %v", text, err)
	}
}
