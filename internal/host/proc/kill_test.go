package proc

import (
	"os/exec"
	"testing"
	"time"
)

// TestKill: a process that is not the one meant lives on; the one that is ends, and is waited for.
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
