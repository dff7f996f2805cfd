package pace

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// policies returns how many threads of this process have each scheduling policy, according to sched_getscheduler(2).
func policies(t *testing.T) map[int]int {
	t.Helper()
	found := map[int]int{}
	tasks, err := filepath.Glob("/proc/self/task/*")
	if err != nil || len(tasks) == 0 {
		t.Fatalf("no threads: %v", err)
	}
	for _, task := range tasks {
		tid, err := strconv.Atoi(filepath.Base(task))
		if err != nil {
			t.Fatal(err)
		}
		policy, _, errno := unix.Syscall(unix.SYS_SCHED_GETSCHEDULER, uintptr(tid), 0, 0)
		if errno == 0 {
			found[int(policy)]++
		}
	}
	return found
}

// childPolicy returns the scheduling policy of a process that it starts: field 41 of proc_pid_stat(5).
func childPolicy(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("cat", "/proc/self/stat").Output()
	if err != nil {
		t.Fatal(err)
	}
	_, after, ok := strings.Cut(string(out), ") ")
	fields := strings.Fields(after)
	if !ok || len(fields) < 39 {
		t.Fatalf("/proc/self/stat is %q", out)
	}
	return fields[41-3]
}

// TestRunFirst: this process runs before others, but processes that it starts meanwhile do not.
func TestRunFirst(t *testing.T) {
	before := policies(t)
	if err := RunFirst(true); errors.Is(err, os.ErrPermission) {
		t.Skipf("needs CAP_SYS_NICE, and a control group with a real-time budget: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := RunFirst(false); err != nil {
			t.Error(err)
		}
	}()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, _, errno := unix.Syscall(unix.SYS_SCHED_GETSCHEDULER, uintptr(unix.Gettid()), 0, 0)
	if errno != 0 || own&^unix.SCHED_RESET_ON_FORK != unix.SCHED_RR {
		t.Errorf("the policy of a thread of this process is %#x (%v), want SCHED_RR", own, errno)
	}
	for range 20 { // by whichever thread
		if p := childPolicy(t); p != strconv.Itoa(unix.SCHED_NORMAL) {
			t.Fatalf("a process that was started meanwhile has scheduling policy %s, want %d (SCHED_NORMAL)", p,
				unix.SCHED_NORMAL)
		}
	}
	if err := RunFirst(false); err != nil {
		t.Fatal(err)
	}
	for policy, n := range policies(t) {
		if policy != unix.SCHED_NORMAL {
			t.Errorf("at the end %d threads have policy %#x; before: %v", n, policy, before)
		}
	}
}
