package microvm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
)

// patience is how long processes may take to end when they are killed. One with much memory to give back may take
// seconds.
const patience = 20 * time.Second

// vm is a running virtual machine.
type vm struct {
	cmd     *exec.Cmd
	began   time.Time
	agent   *agent
	monitor net.Conn
	control net.Conn
	streams [3]net.Conn // standard input, output, error
	console role.Tail   // the kernel's last words
	stderr  role.Tail   // QEMU's

	ended    chan struct{} // closed when QEMU has ended
	unserved atomic.Bool   // killed because its virtiofsd ended
}

// socketPair makes a pair of connected sockets: one end for QEMU, one for us.
func socketPair() (theirs *os.File, ours net.Conn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("making a pair of sockets: %w", err)
	}
	f := os.NewFile(uintptr(fds[1]), "port")
	ours, err = net.FileConn(f)
	theirs = os.NewFile(uintptr(fds[0]), "port")
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, nil, errors.Join(err, theirs.Close())
	}
	return theirs, ours, nil
}

// memoryFile makes a file in memory with those contents.
func memoryFile(name string, b []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("making a file in memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := f.Write(b); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// startVM starts QEMU from a thread, in whose namespaces it is; it dies with that thread. env is added to this
// process's environment. It takes QEMU's descriptors out of m.
func startVM(t thread, m *machine, qemu string, initramfs []byte, env []string) (_ *vm, err error) {
	v := &vm{ended: make(chan struct{})}
	var theirs []*os.File
	defer func() {
		for _, f := range theirs {
			_ = f.Close() // QEMU has its own
		}
		if err != nil {
			v.closeAll()
		}
	}()
	var console net.Conn
	open := func(their **os.File, our *net.Conn) {
		if err == nil {
			*their, *our, err = socketPair()
		}
		if err == nil {
			theirs = append(theirs, *their)
		}
	}
	open(&m.console, &console)
	open(&m.qmp, &v.monitor)
	open(&m.ports[0], &v.control)
	for i := range v.streams {
		open(&m.ports[1+i], &v.streams[i])
	}
	if err != nil {
		return nil, err
	}
	if m.initrd, err = memoryFile("initramfs", initramfs); err != nil {
		return nil, err
	}
	theirs = append(theirs, m.initrd)
	if m.nic != nil {
		theirs = append(theirs, m.nic.tap)
	}
	v.cmd = m.command(qemu)
	v.cmd.Dir, v.cmd.Env = "/", append(os.Environ(), env...)
	v.cmd.Stdout, v.cmd.Stderr = &v.stderr, &v.stderr
	v.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, Setpgid: true}
	v.began = time.Now()
	if err = t.do(v.cmd.Start); err != nil {
		return nil, fault.Wrap(err, fault.Machine, qemu, qemuHint, "cannot start QEMU")
	}
	said := make(chan struct{})
	go func() {
		defer close(said)
		var to io.Writer = &v.console
		if m.killed != nil {
			to = io.MultiWriter(to, &killWatch{kill: m.killed})
		}
		_, _ = io.Copy(to, console) // it ends with QEMU
		_ = console.Close()
	}()
	go func() {
		_ = v.cmd.Wait()
		<-said
		close(v.ended)
	}()
	return v, nil
}

// hello waits until the guest's first process speaks.
func (v *vm) hello(ctx context.Context, patience time.Duration) (err error) {
	stop := context.AfterFunc(ctx, func() { _ = v.control.SetReadDeadline(time.Now()) })
	defer stop()
	if v.agent, err = newAgent(v.control, time.Now().Add(patience)); err == nil {
		return ctx.Err()
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("the guest did not boot within %s%s", patience, v.words())
	}
	return fmt.Errorf("the guest did not boot: %w%s", err, v.words())
}

// endGrace is how long QEMU may take to end: its ports and sockets close a moment before.
const endGrace = 5 * time.Second

// killed says whether a signal ended QEMU.
func (v *vm) killed() bool {
	status, ok := v.status()
	return ok && status.Signaled()
}

// status is how QEMU ended; false while it runs.
func (v *vm) status() (syscall.WaitStatus, bool) {
	select {
	case <-v.ended:
		status, ok := v.cmd.ProcessState.Sys().(syscall.WaitStatus)
		return status, ok
	case <-time.After(endGrace):
		return 0, false
	}
}

// words are the last of QEMU and of the guest's kernel.
func (v *vm) words() string {
	said := ""
	if s := v.stderr.Text(); s != "" {
		said += "; QEMU: " + s
	}
	if s := v.console.Text(); s != "" {
		said += "; its kernel: " + s
	}
	return said
}

// end kills QEMU and waits until it has ended.
func (v *vm) end() {
	_ = v.cmd.Process.Kill() // it may have ended
	<-v.ended
	v.closeAll()
}

func (v *vm) closeAll() {
	for _, c := range []net.Conn{v.monitor, v.control, v.streams[0], v.streams[1], v.streams[2]} {
		if c != nil {
			_ = c.Close()
		}
	}
}

// virtiofsd shares a directory with the guest.
type virtiofsd struct {
	cmd    *exec.Cmd
	stderr role.Tail
	ended  chan struct{}
}

func startVirtiofsd(t thread, program, socket, source string, env []string) (*virtiofsd, error) {
	d := &virtiofsd{ended: make(chan struct{})}
	d.cmd = exec.Command(program, "--socket-path="+socket, "-o", "source="+source, "-o", "cache=auto", "-f")
	d.cmd.Dir, d.cmd.Env = "/", append(os.Environ(), env...)
	d.cmd.Stdout, d.cmd.Stderr = &d.stderr, &d.stderr
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, Setpgid: true}
	if err := t.do(d.cmd.Start); err != nil {
		return nil, fault.Wrap(err, fault.Machine, program, virtiofsdHint, "cannot start virtiofsd")
	}
	go func() {
		_ = d.cmd.Wait()
		close(d.ended)
	}()
	deadline := time.Now().Add(BootTimeout)
	for {
		if _, err := os.Lstat(socket); err == nil {
			return d, nil
		}
		select {
		case <-d.ended:
			return nil, fault.New(fault.Machine, program, virtiofsdHint, "virtiofsd ended: %s", d.stderr.Text())
		case <-time.After(time.Millisecond):
		}
		if time.Now().After(deadline) {
			d.end()
			return nil, fault.New(fault.Machine, program, "", "virtiofsd made no socket within %s: %s", BootTimeout,
				d.stderr.Text())
		}
	}
}

// status is how virtiofsd ended; it has.
func (d *virtiofsd) status() syscall.WaitStatus {
	return d.cmd.ProcessState.Sys().(syscall.WaitStatus) // of every process on Linux
}

// end kills virtiofsd and waits until it has ended; its own child dies with it.
func (d *virtiofsd) end() {
	_ = d.cmd.Process.Kill()
	<-d.ended
}

// virtiofsdLock is the file that virtiofsd leaves for a socket.
func virtiofsdLock(socket string) string {
	name := []byte(socket)
	for i, c := range name {
		if c == '/' {
			name[i] = '.'
		}
	}
	return "/var/run/virtiofsd/" + string(name) + ".pid"
}
