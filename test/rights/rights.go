// Package rights lets tests that run as root do something with fewer rights.
package rights

import (
	"fmt"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"
)

// Without calls do on a thread of its own without any capability, which reads files as user 65534. What do hands to
// other goroutines has all rights.
func Without(t testing.TB, do func()) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		err := unix.Setfsuid(65534)
		if err == nil {
			err = unix.Capset(&header, &none[0])
		}
		if err == nil {
			do()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatalf("giving up rights: %v", err)
	}
}

// Bound takes all capabilities but some from what this thread, and processes that it starts, can ever get by executing
// a program (the bounding set of capabilities(7)). It cannot be undone: the goroutine must be locked to its thread, and
// end with it.
func Bound(keep []cap.Value) error {
	for c := range cap.MaxBits() {
		if slices.Contains(keep, c) {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil {
			return fmt.Errorf("dropping %s from the bounding set: %w", c, err)
		}
	}
	return nil
}
