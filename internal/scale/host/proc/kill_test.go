package proc

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestKill: Kill spares a process if meant returns false, and otherwise ends it; Await waits for that.
func TestKill(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	isNot, is := func() bool { return false }, func() bool { return true }
	if err := Kill(pid, isNot); err != nil {
		t.Error(err)
	}
	if ended, err := Await(pid, is, 0); ended || err != nil {
		t.Fatalf("a process that was not meant has ended: %v, %v", ended, err)
	}
	if ended, err := Await(pid, isNot, -1); !ended || err != nil {
		t.Errorf("another process was waited for: %v, %v", ended, err)
	}
	if err := Kill(pid, is); err != nil {
		t.Error(err)
	}
	if ended, err := Await(pid, is, time.Minute); !ended || err != nil {
		t.Errorf("it has ended: %v, %v", ended, err)
	}
	_ = cmd.Wait() // it was killed
	if err := Kill(pid, is); err != nil {
		t.Errorf("of one that is gone: %v", err)
	}
	if ended, err := Await(pid, is, -1); !ended || err != nil {
		t.Errorf("one that is gone was waited for: %v, %v", ended, err)
	}
}

// TestKillGroup: a PID whose process is gone, but which is still the number of a process group, counts as no process.
func TestKillGroup(t *testing.T) {
	cmd := exec.Command("sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.Output() // waits for the shell, the group's leader
	if err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	defer syscall.Kill(-pid, syscall.SIGKILL)
	member, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		t.Fatal(err)
	}
	if group, err := syscall.Getpgid(member); err != nil || group != pid {
		t.Fatalf("%d is in group %d, not %d: %v", member, group, pid, err)
	}
	if err := Kill(pid, func() bool { t.Error("it was found"); return false }); err != nil {
		t.Error(err)
	}
	if ended, err := Await(pid, func() bool { return true }, time.Second); !ended || err != nil {
		t.Errorf("ended %t, %v", ended, err)
	}
}
