// Package rights lets tests that run as root do something with fewer rights.
package rights

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"
)

// Without calls the function do on a separate thread that has no capability and reads files as user 65534. Goroutines
// that the function starts have all rights.
func Without(t testing.TB, do func()) {
	t.Helper()
	without(t, func() error { return nil }, do)
}

// WithoutProc is Without on a thread whose /proc hides the processes of other users (hidepid of proc(5)).
func WithoutProc(t testing.TB, do func()) {
	t.Helper()
	without(t, func() error {
		// Group 0 sees everything. Package unix would change the groups of all threads.
		if _, _, failed := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); failed != 0 {
			return failed
		}
		return errors.Join(unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS),
			unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount("proc", "/proc", "proc", 0, "hidepid=2"),
			unix.Setfsgid(65534))
	}, do)
}

func without(t testing.TB, first func() error, do func()) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		err := first()
		if err == nil {
			err = unix.Setfsuid(65534)
		}
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

// Bound removes all capabilities but those to keep from the bounding set of this thread and of processes that it
// starts, so that they can never get the others by executing a program (capabilities(7)). It cannot be undone: the
// goroutine must be locked to its thread, and end with it.
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
