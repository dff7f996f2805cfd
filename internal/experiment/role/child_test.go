package role

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"tare/test/started"
)

// TestEndWithoutEOF: the end of a child is noticed even if a process that it started holds its output open.
func TestEndWithoutEOF(t *testing.T) {
	argv := []string{"sh", "-c", "sleep 300 & exec sleep 300"}
	failed := make(chan error, 1)
	p, err := Launch("shim", argv, (*exec.Cmd).Start, func(err error) { failed <- err })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(-p.PID(), syscall.SIGKILL) }) // its process group
	time.Sleep(200 * time.Millisecond)                                // until both processes exist
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

// TestSilence: the error about a missing message of a child describes what the child is doing.
func TestSilence(t *testing.T) {
	p, err := Launch("mute", []string{"sleep", "300"}, (*exec.Cmd).Start, func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	if err := started.Await(p.PID(), "sleep"); err != nil {
		t.Fatal(err)
	}
	_, err = p.ReadyWithin(t.Context(), time.Second) // deadline under test
	want := fmt.Sprintf(`mute gave no ready message within 1s: "sleep" (%d) waits`, p.PID())
	if err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

// TestHang: for a role of this binary that hangs, the error says where.
func TestHang(t *testing.T) {
	t.Setenv(hangs, "1")
	p, err := Launch("stuck", []string{os.Args[0]}, (*exec.Cmd).Start, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	if _, err := p.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	err = p.Result(t.Context(), time.Second, nil) // deadline under test
	for _, want := range []string{
		"[chan receive] tare/internal/experiment/role.hang",
		"[IO wait] tare/internal/experiment/role.(*Conn).Receive", // waits in Go's poller, not in a system call
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// hangs is the variable that makes the test binary run as a role that hangs once it is ready.
const hangs = "TARE_TEST_HANGS"

func TestMain(m *testing.M) {
	if os.Getenv(hangs) != "" {
		conn := Stdio()
		_ = conn.Send(Ready, nil)
		go conn.Receive()
		hang(make(chan struct{}))
	}
	os.Exit(m.Run())
}

//go:noinline
func hang(c chan struct{}) {
	go func() { time.Sleep(time.Hour); close(c) }()
	<-c
}
