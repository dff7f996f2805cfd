package microvm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/child"
	"tare/internal/lib/fault"
)

// patience limits the wait for killed processes to end, because freeing a lot of memory can take seconds.
const patience = 20 * time.Second

// vm is a running virtual machine.
type vm struct {
	child.Process // QEMU
	began         time.Time
	agent         *agent
	monitor       net.Conn
	control       net.Conn
	streams       [3]net.Conn // standard input, output, error
	console       child.Tail  // the last output of the guest's kernel

	unserved atomic.Bool // QEMU was killed because its virtiofsd ended
}

// socketPair creates a pair of connected sockets: one for a child process (QEMU or the shim), and one for this process.
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

// memoryFile creates a file in memory with the given content.
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

// startVM starts QEMU from a thread. QEMU inherits the thread's namespaces, and dies with the thread. env is added to
// this process's environment. startVM sets m's sockets and initrd. When it returns, they and m.nic.tap are closed.
func startVM(t thread, m *machine, qemu string, initramfs []byte, env []string) (_ *vm, err error) {
	v := &vm{}
	var theirs []*os.File
	if m.nic != nil {
		theirs = append(theirs, m.nic.tap)
	}
	defer func() {
		for _, f := range theirs {
			_ = f.Close() // QEMU has a copy
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
	said := make(chan struct{})
	v.began = time.Now()
	if err = start(t, &v.Process, m.command(qemu), env, func() error { <-said; return nil }); err != nil {
		return nil, fault.Wrap(err, fault.Machine, qemu, qemuHint, "cannot start QEMU")
	}
	go func() {
		defer close(said)
		var to io.Writer = &v.console
		if m.killed != nil {
			to = io.MultiWriter(to, &killWatch{kill: m.killed})
		}
		_, _ = io.Copy(to, console) // ends with QEMU
		_ = console.Close()
	}()
	return v, nil
}

// start starts a process from a thread. The process inherits the thread's namespaces, and dies with the thread.
func start(t thread, p *child.Process, cmd child.Command, env []string, exited func() error) error {
	cmd.Dir, cmd.Env = "/", env
	return child.Start(p, cmd, child.Options{Name: filepath.Base(cmd.Argv[0]), Begin: child.On(t.do), Exited: exited})
}

// hello waits for the first message of the guest's first process, at most for the duration patience, and sets v.agent.
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

// endGrace limits the wait for QEMU to end by itself after its ports and sockets have been closed.
const endGrace = 5 * time.Second

// killed reports whether a signal ended QEMU.
func (v *vm) killed() bool {
	status, ok := v.exit()
	return ok && status.Signaled()
}

// exit waits up to endGrace for QEMU to end, and returns its wait status. It returns false if QEMU is still running.
func (v *vm) exit() (syscall.WaitStatus, bool) {
	select {
	case <-v.Ended():
		return v.Status(), true
	case <-time.After(endGrace):
		return 0, false
	}
}

// words returns the last output of QEMU and of the guest's kernel.
func (v *vm) words() string {
	said := ""
	if s := v.Tail(); s != "" {
		said += "; QEMU: " + s
	}
	if s := v.console.Text(); s != "" {
		said += "; its kernel: " + s
	}
	return said
}

// end kills QEMU and waits until it has ended.
func (v *vm) end() {
	v.Kill()
	v.closeAll()
}

func (v *vm) closeAll() {
	for _, c := range []net.Conn{v.monitor, v.control, v.streams[0], v.streams[1], v.streams[2]} {
		if c != nil {
			_ = c.Close()
		}
	}
}

// startVirtiofsd starts a virtiofsd, which shares a directory with the guest, and waits until its socket exists.
func startVirtiofsd(t thread, program, socket, source string, env []string) (*child.Process, error) {
	d := new(child.Process)
	cmd := child.Command{Argv: []string{program, "--socket-path=" + socket, "-o", "source=" + source, "-o", "cache=auto",
		"-f"}}
	if err := start(t, d, cmd, env, nil); err != nil {
		return nil, fault.Wrap(err, fault.Machine, program, virtiofsdHint, "cannot start virtiofsd")
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), BootTimeout,
		fmt.Errorf("virtiofsd made no socket within %s", BootTimeout))
	defer cancel()
	err := d.Await(ctx, time.Millisecond, func() bool {
		_, err := os.Lstat(socket)
		return err == nil
	})
	if err == nil {
		return d, nil
	}
	hint := virtiofsdHint
	if ctx.Err() != nil {
		hint = ""
		err = d.WithLastWords(err)
		d.Kill()
	}
	return nil, fault.New(fault.Machine, program, hint, "%v", err)
}

// virtiofsdLock returns the path of the file that virtiofsd leaves behind for a socket.
func virtiofsdLock(socket string) string {
	return "/var/run/virtiofsd/" + strings.ReplaceAll(socket, "/", ".") + ".pid"
}
