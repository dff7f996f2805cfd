// Package started starts child processes for tests, and waits until a child has executed its program.
package started

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// Await waits, at most a minute, until a child executes the program named comm, its name in /proc/PID/comm. Go's
// Cmd.Start returns as soon as the child no longer needs its parent's memory (vfork). For a moment after that, tens of
// milliseconds in an emulated machine, the child has no memory yet, and /proc shows its parent's environment and
// arguments (exec_mmap in fs/exec.c).
func Await(pid int, comm string) error {
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		now, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if err != nil {
			return err
		}
		name := strings.TrimSuffix(string(now), "\n")
		if name == comm {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("process %d is %q after a minute, not %q", pid, name, comm)
		}
	}
}

// Piped starts a command with a pipe to its input and one from its output.
func Piped(t testing.TB, cmd *exec.Cmd) (in io.WriteCloser, out io.ReadCloser) {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if out, err = cmd.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return in, out
}
