// Package privilege drops the capabilities that a process does not need. Tare runs as root. Its servers and load
// generators are separate processes that need no capabilities after their setup, and a process that only reads the
// state of the machine needs few.
package privilege

import (
	"fmt"
	"time"

	"kernel.org/pub/linux/libs/security/libcap/cap"
)

// Drop permanently gives up all capabilities of all threads of this process, including those that it could regain by
// executing a program: neither root's user ID nor a set-user-ID file brings any back. The process keeps its user ID
// and thus access to that user's files: a process of root can still write root's files, including settings below
// /proc/sys.
func Drop() error { return Keep() }

// Keep permanently gives up the capabilities of all threads of this process, apart from the given ones, which it keeps
// if it has them. It sets no_new_privs, so an executed program has no capability that the process did not have
// (cap_bprm_creds_from_file in the kernel's security/commoncap.c). The bounding set then has no further effect and
// stays as it is: to remove its 41 capabilities from all threads, Go's runtime would have to stop the process 41 times.
// The kernel empties the ambient set, because it can only hold inheritable capabilities (cap_capset).
func Keep(some ...cap.Value) error {
	now, err := cap.GetPID(0)
	if err != nil {
		return fmt.Errorf("reading the process's capabilities: %w", err)
	}
	then := cap.NewSet()
	for _, c := range some {
		if c >= cap.MaxBits() {
			continue // this kernel does not have it
		}
		for _, in := range []cap.Flag{cap.Permitted, cap.Effective} {
			has, err := now.GetFlag(in, c)
			if err == nil {
				err = then.SetFlag(in, has, c)
			}
			if err != nil {
				return fmt.Errorf("keeping %s: %w", c, err)
			}
		}
	}
	defer watched()()
	if _, err := cap.Prctlw(prSetNoNewPrivs, 1); err != nil {
		return fmt.Errorf("setting no_new_privs: %w", err)
	}
	if err := then.SetProc(); err != nil {
		return fmt.Errorf("giving up capabilities: %w", err)
	}
	return nil
}

const prSetNoNewPrivs = 38 // PR_SET_NO_NEW_PRIVS, prctl(2)

// watched makes the runtime's monitor watch for stops of this process until the returned function is called. Without
// it, about one stop in a million takes one or two minutes.
//
// Since Go 1.26 (and still in 1.27) a thread that enters a system call first checks whether the process is being
// stopped (runtime.reentersyscall), and only then marks itself as in the call. A stop that begins in between sees the
// thread as running and waits for it while it blocks in the call. The monitor (runtime.sysmon) resolves this at its
// second check; but during a stop it sleeps until the next timer is due, or for a minute if there is none. So some
// timers are pending here. The monitor sleeps until the first of them that has not fired when the process is stopped,
// and then stays awake, because nothing runs that timer.
func watched() (end func()) {
	var timers []*time.Timer
	for after := 10 * time.Millisecond; after <= 10*time.Second; after *= 10 {
		timers = append(timers, time.AfterFunc(after, func() {}))
	}
	return func() {
		for _, t := range timers {
			t.Stop()
		}
	}
}
