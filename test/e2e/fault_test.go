package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"tare/internal/scale/host/cgroup"
)

// Faults are made, not mocked: each test takes something away from the real machine, for one process alone.

// changed runs tare in a new mount namespace, after the shell commands in change.
func changed(t *testing.T, change string, args ...string) output {
	t.Helper()
	needsRoot(t)
	cmd := exec.Command("unshare", append([]string{"--mount", "--propagation", "private", "sh", "-c", "set -e\n" + change +
		"\nexec \"$@\"", "sh", bin}, args...)...)
	cmd.Dir = t.TempDir()
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	o := output{stdout: stdout.String(), stderr: stderr.String(), code: cmd.ProcessState.ExitCode()}
	if err != nil && o.code < 0 {
		t.Fatalf("%v: %s", err, o)
	}
	return o
}

// TestNoBTF: without BTF the machine can still be weighed, and tare says what is missing.
func TestNoBTF(t *testing.T) {
	leavesNothing(t)
	const noBTF = "mount --bind /dev/null /sys/kernel/btf/vmlinux"
	o := changed(t, noBTF, "weigh", "--for", "300ms", "--json")
	if o.code != 0 {
		t.Fatal(o)
	}
	if l := readLedger(t, o.stdout); !l.CPU.Closes() {
		t.Errorf("the budget does not close: %+v", l.CPU)
	}
	o = changed(t, noBTF, "doctor")
	if o.code != 0 || !strings.Contains(o.stdout, "NO   bpf-btf") {
		t.Errorf("doctor does not say that there is no BTF: %s", o)
	}
}

// readOnly makes the control groups unwritable.
func readOnly(t *testing.T) string {
	t.Helper()
	layout, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	var change strings.Builder
	for _, h := range layout.Hierarchies {
		fmt.Fprintf(&change, "mount -o remount,bind,ro %s\n", h.Mount)
	}
	return change.String()
}

// TestNoCgroupWriteAccess: without write access to control groups an experiment is refused before it begins; the
// machine can still be weighed.
func TestNoCgroupWriteAccess(t *testing.T) {
	leavesNothing(t)
	change := readOnly(t)
	dir := filepath.Join(t.TempDir(), "out")
	o := changed(t, change, "run", "quickstart", "--out", dir)
	if o.code != 3 || !strings.Contains(o.stderr, "read-only") ||
		!strings.Contains(o.stderr, "mount the control groups for writing") {
		t.Errorf("want exit code 3 with the hint: %s", o)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("a run directory was made")
	}
	if o = changed(t, change, "weigh", "--for", "200ms", "--json"); o.code != 0 {
		t.Errorf("weighing needs no write access: %s", o)
	}
}

// TestPortTaken: if a port is in use, the error names the address.
func TestPortTaken(t *testing.T) {
	leavesNothing(t)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	o := tare(t, "app", "http", "--listen", l.Addr().String())
	if (o.code != 2 && o.code != 3) || !strings.Contains(o.stderr, l.Addr().String()) ||
		strings.Count(o.stderr, "\n") < 2 {
		t.Errorf("want the address and a hint: %s", o)
	}
}

// TestWeighToAFullDisk: a ledger that cannot be written is an error, not half a document with exit code 0.
func TestWeighToAFullDisk(t *testing.T) {
	leavesNothing(t)
	needsRoot(t)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skipf("needs /dev/full: %v", err)
	}
	defer full.Close()
	for _, args := range [][]string{{"weigh", "--for", "100ms", "--json"}, {"weigh", "--for", "100ms"}, {"doctor"},
		{"doctor", "--json"}, {"list"}, {"list", "quickstart"}, {"clean"}, {"subject"}, {"--help"}, {"--version"}} {
		cmd := exec.Command(bin, args...)
		cmd.Stdout = full
		var stderr strings.Builder
		cmd.Stderr = &stderr
		err := cmd.Run()
		if cmd.ProcessState.ExitCode() != 3 || !strings.Contains(stderr.String(), "no space left") ||
			!strings.Contains(stderr.String(), "\n      make room") {
			t.Errorf("tare %s: want exit code 3 with the hint: %v: %s", strings.Join(args, " "), err, stderr.String())
		}
	}
}

func TestWeighWrongUse(t *testing.T) {
	leavesNothing(t)
	for _, c := range []struct{ args, want string }{
		{"weigh --for 1ms", "a window lasts from 100ms"},
		{"weigh --for 1", "tare weigh --for: must be a duration with its unit, such as 300ms or 2s, not \"1\""},
		{"weigh --hz abc", "tare weigh --hz: must be a whole number, not \"abc\""},
		{"run quickstart --seed -1", "tare run --seed: must be a whole number, 0 or more, not \"-1\""},
		{"weigh --hz -3", "per second on each CPU"},
		{"weigh --runtime-root /nosuch", "there is no such directory"},
		{"weigh now", "unexpected argument"},
		{"doctor all", "unexpected argument"},
		{"report", "want one run directory"},
		{"report /nosuch", "/nosuch"},
	} {
		o := tare(t, strings.Fields(c.args)...)
		if o.code != 2 || o.stdout != "" || !strings.Contains(o.stderr, c.want) {
			t.Errorf("tare %s: want exit code 2 and %q: %s", c.args, c.want, o)
		}
	}
}
