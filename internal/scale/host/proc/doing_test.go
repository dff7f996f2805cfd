package proc

import (
	"fmt"
	"os/exec"
	"regexp"
	"syscall"
	"testing"
	"time"
)

// TestDoing describes a process that waits, with a child that runs and one that is stopped.
func TestDoing(t *testing.T) {
	cmd := exec.Command("sh", "-c", "while :; do :; done & sleep 300 & kill -STOP $!; wait")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() })
	t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	// BusyBox runs its sleep from /proc/self/exe.
	want := regexp.MustCompile(fmt.Sprintf(`^"sh" \(%d\) waits( in [a-z0-9_.]+)?, "sh" \(\d+\) runs, "(sleep|busybox|sh|exe)" \(\d+\) is stopped( in [a-z0-9_.]+)?$`, cmd.Process.Pid))
	said := ""
	for range 1000 { // the processes may not have started yet
		if said = (FS{}).Doing(cmd.Process.Pid); want.MatchString(said) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if !want.MatchString(said) {
		t.Errorf("%s, want %v", said, want)
	}
	gone := exec.Command("true")
	if err := gone.Start(); err != nil {
		t.Fatal(err)
	}
	ended := regexp.MustCompile(fmt.Sprintf(`^"[^"]+" \(%d\) has ended$`, gone.Process.Pid))
	for range 1000 {
		if said = (FS{}).Doing(gone.Process.Pid); ended.MatchString(said) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if !ended.MatchString(said) {
		t.Errorf("%s, want %v", said, ended)
	}
	if err := gone.Wait(); err != nil {
		t.Fatal(err)
	}
	if said := (FS{}).Doing(gone.Process.Pid); said != "" {
		t.Errorf("of a process that is gone: %s", said)
	}
}
