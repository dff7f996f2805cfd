package proc

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Kill kills a process if meant confirms, by returning true, that it is the intended one. Kill calls meant while it
// holds the process by a descriptor (pidfd_open(2)), so that the PID cannot be reused. A process that has already ended
// is not an error.
func Kill(pid int, meant func() bool) error {
	fd, err := hold(pid)
	if fd < 0 {
		return err
	}
	defer unix.Close(fd)
	if !meant() {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("killing process %d: %w", pid, err)
	}
	return nil
}

// Await waits until a process has ended, and reports whether it has. It gives up after atMost, or never if that is
// negative. Like Kill, it calls meant while the PID cannot be reused: if meant returns false, the process has ended.
func Await(pid int, meant func() bool, atMost time.Duration) (ended bool, err error) {
	fd, err := hold(pid)
	if fd < 0 {
		return err == nil, err
	}
	defer unix.Close(fd)
	if !meant() {
		return true, nil
	}
	wait := -1
	if atMost >= 0 {
		wait = int(atMost / time.Millisecond)
	}
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, wait)
		switch {
		case errors.Is(err, unix.EINTR): // the Go runtime's own signals
		case err != nil:
			return false, fmt.Errorf("waiting for the end of process %d: %w", pid, err)
		default:
			return n > 0, nil
		}
	}
}

// hold returns a descriptor of a process, or -1 and no error if there is none. Linux 6.1 returned EINVAL for the PID
// of a process that was gone: pidfd_create() in kernel/pid.c does that if the number is still that of a process group.
func hold(pid int) (fd int, err error) {
	fd, err = unix.PidfdOpen(pid, 0)
	switch {
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.EINVAL):
		return -1, nil
	case err != nil:
		return -1, fmt.Errorf("taking hold of process %d: %w", pid, err)
	}
	return fd, nil
}
