package role

import (
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestEndWithoutEOF: the end of a child is noticed though something that it started holds its output open.
func TestEndWithoutEOF(t *testing.T) {
	argv := []string{"sh", "-c", "sleep 300 & exec sleep 300"}
	failed := make(chan error, 1)
	p, err := Launch("shim", argv, (*exec.Cmd).Start, func(err error) { failed <- err })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(-p.PID(), syscall.SIGKILL) }) // its process group
	time.Sleep(200 * time.Millisecond)                                // until there are two of them
	if err := p.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-failed:
		if !strings.Contains(err.Error(), "shim ended during the trial: signal: killed") {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("nobody notices")
	}
	p.Stop()
}
