package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"tare/internal/experiment/record"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/ledger"
	"tare/test/long"
)

// needsPrograms skips a test for which a program is missing that test/setup installs.
func needsPrograms(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("needs %s: run test/setup", name)
		}
	}
}

// runSpec runs a spec in its short form, and returns the first attempts at its trials.
func runSpec(t *testing.T, spec string) []record.Trial {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "spec.yaml"), []byte(spec), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"run", "./spec.yaml", "--quick", "--seed", "1", "--out", "run"}
	out := command{args: args, dir: dir}.start(t).wait(t)
	c, err := record.Read(filepath.Join(dir, "run"))
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	trials := firstAttempts(c)
	for _, tr := range trials {
		if tr.Validity.Failed != "" {
			t.Fatalf("%s at %v failed: %s", tr.Arm, tr.Factors, tr.Validity.Failed)
		}
	}
	return trials
}

// TestCommandsPage runs the example of docs/commands.md: nginx under wrk and under Tare's own load. Each load reports
// its measurements in other metrics, and the server's CPU time is measured under both.
func TestCommandsPage(t *testing.T) {
	long.Test(t, "8 s: the experiment of docs/commands.md")
	needsRoot(t)
	needsPrograms(t, "nginx", "wrk")
	page, err := os.ReadFile("../../docs/commands.md")
	if err != nil {
		t.Fatal(err)
	}
	example := regexp.MustCompile("(?s)```yaml\n(name: clocks\n.*?)```").FindSubmatch(page)
	if example == nil {
		t.Fatal("docs/commands.md has no example")
	}
	trials := runSpec(t, string(example[1]))
	if len(trials) != 4 {
		t.Fatalf("%d trials", len(trials))
	}
	for _, tr := range trials {
		m := tr.Metrics
		ours, theirs := m["throughput_per_second"], m["tool_rate_per_second"]
		if wrk := tr.Factors["load"] == "wrk"; wrk != (theirs > 0) || wrk == (ours > 0) ||
			wrk != (m["tool_latency_p50_seconds"] > 0) || wrk == (m["latency_p50_seconds"] > 0) {
			t.Errorf("under %s: %v", tr.Factors["load"], m)
		}
		// CPU time is counted by control group, so it is there whichever program makes the load. Both programs are pinned,
		// and work without a pause.
		if m["app_cpu_share"] <= 0 || m["load_cpu_share"] <= 0 {
			t.Errorf("under %s the server used %v of the machine, the load %v", tr.Factors["load"], m["app_cpu_share"],
				m["load_cpu_share"])
		}
	}
	var own struct {
		Said struct{ Requests, Rate, Seconds float64 }
	}
	wrk := slices.IndexFunc(trials, func(tr record.Trial) bool { return tr.Factors["load"] == "wrk" })
	if err := json.Unmarshal(trials[wrk].Loads["wrk"].Own, &own); err != nil {
		t.Fatal(err)
	}
	if s := own.Said; s.Requests == 0 || s.Requests/s.Seconds < 0.9*s.Rate || s.Requests/s.Seconds > 1.1*s.Rate {
		t.Errorf("wrk says %+v", s)
	}
}

// TestObservedApplication: a server that already runs in its own control group is weighed there, and left as it was.
func TestObservedApplication(t *testing.T) {
	needsRoot(t)
	layout, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	h, ok := layout.CPU()
	if !ok {
		t.Skip("needs a hierarchy of control groups that counts CPU time")
	}
	name := fmt.Sprintf("e2e-observed-%d", os.Getpid())
	dir := filepath.Join(h.Mount, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	}()
	address := unusedAddress(t)
	server := exec.Command(bin, "app", "http", "--listen", address)
	defer startTied(t, server)()
	pid := strconv.Itoa(server.Process.Pid)
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(pid), 0); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		c, err := net.Dial("tcp", address)
		if err == nil {
			_ = c.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	identity := h.Identity("/" + name)
	spec := fmt.Sprintf(`name: observed
question: What does it cost a server to serve?
blocks: 1
warmup: 200ms
duration: 500ms
applications: {web: {kind: command, observe: "cgroup:%s", address: "%s"}}
loads: {client: {kind: http, to: web, rate: 2000}}
`, identity, address)
	const tries = 3 // a busy machine may spoil both trials of a run
	for try, compared := 1, 0; compared == 0; try++ {
		if try > tries {
			t.Fatalf("in %d runs, no trial has figures of the load's window", tries)
		}
		for _, tr := range runSpec(t, spec) {
			groups, client := tr.Ledger.Cgroups, tr.Loads["client"]
			i := slices.IndexFunc(groups, func(g ledger.Cgroup) bool { return g.Path == identity })
			if i < 0 || groups[i].Role != "app" || groups[i].Workload != "web" || groups[i].CPUSeconds == nil {
				t.Fatalf("the group %s is not in the record as the application: %+v", identity, groups)
			}
			if windowCut(tr) || starved(tr) || *client.Finished == 0 || tr.Ledger.Window.Seconds > 1.1*client.Seconds {
				t.Logf("%s has figures of another window: %+v", tr.Arm, tr.Validity)
				continue
			}
			compared++
			// The cost of a request includes the server's part.
			used, done := *groups[i].CPUSeconds, float64(client.Done)
			if m := tr.Metrics; used <= 0 || m["app_cpu_share"] <= 0 || m["cpu_seconds_per_request"] <= used/done {
				t.Errorf("the server used %v s for %v requests: %v", used, done, m)
			}
		}
	}
	if now, err := layout.PathOf(server.Process.Pid); err != nil || now != identity {
		t.Errorf("the server is in %s now, %v", now, err)
	}
}

// unusedAddress returns a loopback address at which no process listens.
func unusedAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
