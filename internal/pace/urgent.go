package pace

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A storm of execs can keep everybody outside of its own control group from the CPU for more than a second: the
// kernel's fair scheduler lets a group that always has something to run, but never the same task for long, go on far
// beyond its part (seen on 6.18, with groups of v1, whatever the weights; a loop of a shell does it too). Who is held
// up so can read no counters at the edges of a window. So the scale, which needs little, runs before everybody else
// meanwhile. What it takes stands in its own account as ever.

// schedParam is struct sched_param of sched_setscheduler(2).
type schedParam struct{ priority int32 }

// RunFirst has all threads of this process run before those of the fair scheduler (SCHED_RR), or not any more. What it
// starts meanwhile would do so too.
func RunFirst(on bool) error {
	policy, param := unix.SCHED_NORMAL, schedParam{}
	if on {
		policy, param.priority = unix.SCHED_RR, 1
	}
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fmt.Errorf("listing the threads of this process: %w", err)
	}
	for _, e := range entries {
		tid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		_, _, errno := unix.Syscall(unix.SYS_SCHED_SETSCHEDULER, uintptr(tid), uintptr(policy), uintptr(unsafe.Pointer(&param)))
		if errno != 0 && !errors.Is(errno, unix.ESRCH) {
			return fmt.Errorf("having this process run before others: %w", errno)
		}
	}
	return nil
}
