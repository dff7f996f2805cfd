package role

import (
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// TestStopWithoutEnd: a child that was killed is stopped though something that it started holds its output open.
func TestStopWithoutEnd(t *testing.T) {
	argv := []string{"sh", "-c", "sleep 300 & exec sleep 300"}
	p, err := Launch("shim", argv, (*exec.Cmd).Start, func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(-p.PID(), syscall.SIGKILL) }) // its process group
	time.Sleep(200 * time.Millisecond)                                // until there are two of them
	if err := p.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	stopped := make(chan struct{})
	go func() {
		p.Stop()
		close(stopped)
	}()
	select {
	case <-stopped:
	case <-time.After(time.Minute):
		t.Fatal("it waits for ever")
	}
}
