package child

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"
	"unicode"

	"tare/internal/lib/fault"
	"tare/internal/scale/host/proc"
)

// Kill kills a process if ours() returns true. It calls ours after it has opened a pidfd, through which it also sends
// the signal, so the signal cannot reach another process that reuses the pid. If pid is this process, it does nothing.
func Kill(pid int, ours func() bool) error {
	if pid == os.Getpid() {
		return nil
	}
	err := proc.Kill(pid, ours)
	if errors.Is(err, fs.ErrPermission) {
		return fault.Wrap(err, fault.Machine, Named(pid), "run 'tare clean' as root, or with CAP_KILL", "it cannot be ended")
	}
	return err
}

// EndAll kills the processes for which meant returns true, and waits until they have ended, but no longer than atMost.
// A process that has not ended by then is an error with the code fault.Machine.
func EndAll(pids []int, meant func(pid int) bool, atMost time.Duration) error {
	for _, pid := range pids {
		if err := Kill(pid, func() bool { return meant(pid) }); err != nil {
			return err
		}
	}
	deadline := time.Now().Add(atMost)
	for _, pid := range pids {
		ended, err := proc.Await(pid, func() bool { return meant(pid) }, max(0, time.Until(deadline)))
		if err != nil {
			return err
		}
		if !ended {
			return fault.New(fault.Machine, Comm(pid), "look at its state (ps -o pid,stat,wchan), then run 'tare clean'",
				"process %d does not end when killed: %s", pid, Doing(pid))
		}
	}
	return nil
}

// Comm returns the name of a process, which the process itself chooses, in a form that is safe to print on a terminal.
func Comm(pid int) string {
	name, _ := proc.FS{}.Comm(pid)
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, name)
}

// Doing describes the present activity of processes and of their descendants, such as "waits in do_epoll_wait".
func Doing(pids ...int) string {
	const most = 4
	var said []string
	for _, pid := range pids[:min(len(pids), most)] {
		if doing := (proc.FS{}).Doing(pid); doing != "" {
			said = append(said, doing)
		}
	}
	return cmp.Or(strings.Join(said, ", "), "no state is known")
}

// Named describes a process in messages.
func Named(pid int) string { return fmt.Sprintf("process %d (%s)", pid, Comm(pid)) }
