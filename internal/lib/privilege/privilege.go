// Package privilege drops the capabilities that a process does not need. Tare runs as root. Its servers and load
// generators are separate processes that need none after their setup, and a process that only reads the machine needs
// few.
package privilege

import (
	"fmt"
	"time"

	"kernel.org/pub/linux/libs/security/libcap/cap"
)

// Drop gives up all capabilities of all threads of this process for good, its own and those that it could regain by
// executing a program: neither root's user ID nor a set-user-ID file brings any back. It keeps its user ID, and with it
// access to that user's files: a process of root can still write what belongs to root, settings below /proc/sys among
// it.
func Drop() error { return Keep() }

// Keep gives up all capabilities of all threads of this process but some, for good: of these it keeps those that it
// has. It sets no_new_privs, with which a program that is executed has no capability that the process did not have
// (cap_bprm_creds_from_file in the kernel's security/commoncap.c). The bounding set then limits nothing more, and stays
// as it is: to take its 41 capabilities out of all threads, Go's runtime would stop the process 41 times. The ambient
// set is emptied by the kernel, as it holds nothing that is not inheritable (cap_capset).
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

// watched has the runtime's monitor look after stops of this process until the function that it returns is called.
// Without that one stop in some million takes one or two minutes.
//
// Since Go 1.26 (and still in 1.27) a thread that enters a system call looks whether the process is being stopped first
// (runtime.reentersyscall), and only then says that it is in the call. A stop that begins in between finds it running
// and waits for it, while it blocks in the call. The monitor (runtime.sysmon) ends that, at its second look; but during
// a stop it sleeps until a timer is due, or for a minute where there is none. So some are pending here: it sleeps until
// the first that has not run when the process is stopped, and stays awake then, as nothing runs that.
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
