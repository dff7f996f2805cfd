// Package rights lets tests that run as root do something with fewer rights.
package rights

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
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
