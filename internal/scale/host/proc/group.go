package proc

import (
	"errors"
	"os/exec"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Group is the process group of a child that leads it. The group's number is the child's pid, which is the child's
// until it has been waited for, and may be another's from then on: so the child is waited for by Wait alone, and
// signals go through Signal. Its methods may be used concurrently.
type Group struct {
	cmd *exec.Cmd

	mu     sync.Mutex
	reaped bool // or about to be
}

// NewGroup is the group of a command that was started as the leader of one (Setpgid or Setsid).
func NewGroup(cmd *exec.Cmd) *Group { return &Group{cmd: cmd} }

// Await waits until the child has ended, and leaves it to be waited for.
func (g *Group) Await() {
	var info unix.Siginfo
	for errors.Is(unix.Waitid(unix.P_PID, g.cmd.Process.Pid, &info, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
	}
}

// Wait waits for the child as its command does.
func (g *Group) Wait() error {
	g.Await()
	g.mu.Lock()
	g.reaped = true
	g.mu.Unlock()
	return g.cmd.Wait()
}

// Signal sends a signal to the group, unless its number may be another's. One that nobody is left to get is no error.
func (g *Group) Signal(s syscall.Signal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.reaped {
		_ = unix.Kill(-g.cmd.Process.Pid, s) // it may have ended by now
	}
}

// Exited says whether the child has ended, by what the kernel says now.
func (g *Group) Exited() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.reaped {
		return true
	}
	var info unix.Siginfo
	for {
		err := unix.Waitid(unix.P_PID, g.cmd.Process.Pid, &info, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil)
		if !errors.Is(err, unix.EINTR) {
			return err == nil && info.Signo != 0 // of a process that runs, nothing is filled in
		}
	}
}
