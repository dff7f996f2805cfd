package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// So many packages' tests run at a time, while go test links those that come next: each test binary starts as this
// command, which waits for its turn and then becomes the binary.

// turnCommand is the first argument of this command where it is to wait for its turn.
const turnCommand = "_turn"

// turns gives one process after another its turn, until one before has ended.
type turns struct {
	dir      string
	listener *net.UnixListener
	serving  sync.WaitGroup
}

// openTurns begins to give turns to processes that were started with flag of the returned turns, to so many at a time.
func openTurns(atOnce int) (*turns, error) {
	dir, err := os.MkdirTemp("", "tare-test-turns-")
	if err != nil {
		return nil, err
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "socket"), Net: "unix"})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	t := &turns{dir: dir, listener: listener}
	for range atOnce {
		t.serving.Go(t.serve)
	}
	return t, nil
}

// flag is that of go test which has its binaries wait.
func (t *turns) flag() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("-exec=%s %s %s", self, turnCommand, t.listener.Addr()), nil
}

func (t *turns) Close() error {
	err := t.listener.Close()
	t.serving.Wait()
	return errors.Join(err, os.RemoveAll(t.dir))
}

func (t *turns) serve() {
	for {
		conn, err := t.listener.AcceptUnix()
		if err != nil {
			return // closed
		}
		if err := give(conn); err != nil {
			fmt.Fprintln(os.Stderr, "giving a test its turn:", err)
		}
	}
}

// give lets the process at the other end begin, and waits for its end. It holds no file that the tests would inherit.
func give(conn *net.UnixConn) error {
	defer conn.Close()
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	var peerErr error
	if err := raw.Control(func(fd uintptr) {
		peer, peerErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil || peerErr != nil {
		return errors.Join(err, peerErr)
	}
	process, err := unix.PidfdOpen(int(peer.Pid), 0)
	if errors.Is(err, unix.ESRCH) {
		return nil // it was interrupted while it waited
	}
	if err != nil {
		return fmt.Errorf("opening process %d: %w", peer.Pid, err)
	}
	defer unix.Close(process)
	if _, err := conn.Write([]byte{1}); err != nil {
		return nil // the same
	}
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}}, -1)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// takeTurn waits until the runner at socket gives this process its turn, and becomes the command.
func takeTurn(socket string, command []string) error {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	if _, err := conn.Read([]byte{0}); err != nil {
		return fmt.Errorf("waiting for its turn: %w", err)
	}
	path, err := exec.LookPath(command[0])
	if err != nil {
		return err
	}
	return unix.Exec(path, command, os.Environ())
}
