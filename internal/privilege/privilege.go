// Package privilege gives up what a process no longer needs. Tare runs as root; what it puts under load and what makes
// the load are processes of its own that need no capability once they are set up.
package privilege

import (
	"errors"
	"fmt"

	"kernel.org/pub/linux/libs/security/libcap/cap"
)

// Drop gives up all capabilities of all threads of this process for good, its own and those that it could regain by
// executing a program (capabilities(7)): the bounding set is emptied, and no_new_privs is set, so that neither root's
// user ID nor a set-user-ID file brings any back. It keeps its user ID, and with it access to that user's files: a
// process of root can still write what belongs to root, settings below /proc/sys among it.
//
// A process without CAP_SETPCAP cannot empty its bounding set. It keeps that, which gives it nothing with no_new_privs.
func Drop() error {
	bounding, err := cap.GetPID(0)
	if err != nil {
		return fmt.Errorf("reading the process's capabilities: %w", err)
	}
	if may, err := bounding.GetFlag(cap.Effective, cap.SETPCAP); err == nil && may {
		if err := dropBounding(); err != nil {
			return err
		}
	}
	if _, err := cap.Prctlw(prSetNoNewPrivs, 1); err != nil {
		return fmt.Errorf("setting no_new_privs: %w", err)
	}
	if err := cap.ResetAmbient(); err != nil {
		return fmt.Errorf("emptying the ambient set: %w", err)
	}
	if err := cap.NewSet().SetProc(); err != nil {
		return fmt.Errorf("giving up capabilities: %w", err)
	}
	return nil
}

const prSetNoNewPrivs = 38 // PR_SET_NO_NEW_PRIVS, prctl(2)

// dropBounding empties the bounding set.
func dropBounding() error {
	var all []error
	for c := range cap.MaxBits() {
		if in, err := cap.GetBound(c); err != nil || !in {
			continue
		}
		if err := cap.DropBound(c); err != nil {
			all = append(all, fmt.Errorf("dropping %s from the bounding set: %w", c, err))
		}
	}
	return errors.Join(all...)
}
