// Package started tells tests when a child process runs its own program.
package started

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// Await waits, at most a minute, until a child executes the program named comm, its name in /proc/PID/comm. Go's
// Cmd.Start returns as soon as the child no longer needs its parent's memory (vfork). That is a moment before it has
// memory of its own, tens of milliseconds in an emulated machine: until then it shows its parent's environment and
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
