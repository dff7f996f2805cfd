// Package privilege gives up what a process does not need. Tare runs as root; what it puts under load and what makes
// the load are processes of its own that need no capability once they are set up, and what only reads the machine needs
// few.
package privilege

import (
	"fmt"

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
// as it is. To take its 41 capabilities out of all threads, Go's runtime would stop the process 41 times, and one stop
// in some million takes up to a minute.
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
	if _, err := cap.Prctlw(prSetNoNewPrivs, 1); err != nil {
		return fmt.Errorf("setting no_new_privs: %w", err)
	}
	if err := cap.ResetAmbient(); err != nil {
		return fmt.Errorf("emptying the ambient set: %w", err)
	}
	if err := then.SetProc(); err != nil {
		return fmt.Errorf("giving up capabilities: %w", err)
	}
	return nil
}

const prSetNoNewPrivs = 38 // PR_SET_NO_NEW_PRIVS, prctl(2)
