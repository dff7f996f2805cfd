package proxy

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
)

// parentSignal is what ends the process with its parent (PR_SET_PDEATHSIG); 0: nothing. The kernel keeps it by thread,
// and whoever started the process has set it on its first, on which initialisation runs.
var parentSignal = func() (signal int32) {
	if unix.Prctl(unix.PR_GET_PDEATHSIG, uintptr(unsafe.Pointer(&signal)), 0, 0, 0) != nil {
		return 0
	}
	return signal
}()

// parent is the process that the signal is about, as initialisation found it.
var parent = os.Getppid()

// giveUpRoot makes the process somebody else's, for good. It dies with its parent all the same: the kernel forgets that
// signal as the user changes (commit_creds in kernel/cred.c), so that it is set again, on every thread that there is.
func giveUpRoot(uid, gid int) error {
	if uid == 0 {
		return nil
	}
	refused := func(err error, flag, needs, what string) error {
		return fault.Wrap(err, fault.Machine, flag, "run as root or with "+needs+", or leave it out", "%s", what)
	}
	if err := syscall.Setgroups(nil); err != nil {
		return refused(err, "--gid", "CAP_SETGID", "groups cannot be given up")
	}
	if err := syscall.Setgid(gid); err != nil {
		return refused(err, "--gid", "CAP_SETGID", "the process cannot become that group's")
	}
	if err := syscall.Setuid(uid); err != nil {
		return refused(err, "--uid", "CAP_SETUID", "the process cannot become that user's")
	}
	if parentSignal == 0 {
		return nil
	}
	return endWith(parent, parentSignal)
}

// endWith has a signal come when the parent ends, on every thread that there is. It is an error where that has happened
// already: then no signal will come, and the process is to end by itself.
func endWith(parent int, signal int32) error {
	if _, _, e := syscall.AllThreadsSyscall(syscall.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(signal), 0); e != 0 {
		return fmt.Errorf("choosing what ends the process: %w", e)
	}
	if now := os.Getppid(); now != parent {
		return fmt.Errorf("the parent, process %d, ended while the proxy gave up root: its parent is process %d now",
			parent, now)
	}
	return nil
}

// tellTimeout bounds how long one who asks for the counters may take to read them.
const tellTimeout = time.Second

// tellAt tells whoever connects to a socket the counters of the moment, as JSON, until end is called.
func tellAt(path string, word func() any) (end func(), err error) {
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listening for who asks for statistics: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("listening for who asks for statistics: %w", err)
	}
	var telling sync.WaitGroup
	telling.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.SetDeadline(time.Now().Add(tellTimeout))
			_ = json.NewEncoder(c).Encode(word()) // whoever asked may have gone
			c.Close()
		}
	})
	return func() {
		l.Close()
		telling.Wait()
	}, nil
}
