package pace

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A storm of execs can keep all tasks outside its control group off the CPU for more than a second: the kernel's fair
// scheduler lets a group that is always runnable, but never with the same task for long, exceed its share by far (seen
// on 6.18 with v1 groups, whatever their weights; a shell loop does it too). If Tare were delayed like this, it could
// not read counters at the edges of a window. It needs little CPU time, so it runs before all other tasks during
// windows with such a load. Its cost is reported as usual.

// schedParam is struct sched_param of sched_setscheduler(2).
type schedParam struct{ priority int32 }

// RunFirst makes all threads of this process run before those of the fair scheduler (it sets SCHED_RR) or, if on is
// false, undoes that. Threads and processes that begin meanwhile, including new threads of the Go runtime, have the
// normal scheduler (SCHED_RESET_ON_FORK): otherwise the processes that this one starts would be weighed under another
// scheduler than their own.
func RunFirst(on bool) error {
	set := func(tid int) error { return setScheduler(tid, unix.SCHED_RR|unix.SCHED_RESET_ON_FORK, 1) }
	if !on {
		set = func(tid int) error {
			err := setScheduler(tid, unix.SCHED_NORMAL, 0)
			if errors.Is(err, unix.EPERM) {
				// Only CAP_SYS_NICE may clear the flag, although RLIMIT_RTPRIO is enough to set it.
				err = setScheduler(tid, unix.SCHED_NORMAL|unix.SCHED_RESET_ON_FORK, 0)
			}
			return err
		}
	}
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fmt.Errorf("listing the threads of this process: %w", err)
	}
	var failed error // the error for one thread; the other threads are set nevertheless
	for _, e := range entries {
		tid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if err := set(tid); err != nil && !errors.Is(err, unix.ESRCH) {
			failed = fmt.Errorf("changing the scheduler of this process: %w", err)
		}
	}
	return failed
}

func setScheduler(tid, policy int, priority int32) error {
	param := schedParam{priority}
	_, _, errno := unix.Syscall(unix.SYS_SCHED_SETSCHEDULER, uintptr(tid), uintptr(policy),
		uintptr(unsafe.Pointer(&param)))
	if errno != 0 {
		return errno
	}
	return nil
}
