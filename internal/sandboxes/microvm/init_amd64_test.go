package microvm

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// guest runs the guest's first process as a process of this machine, with sockets as ports. When that process powers
// off the machine, only its PID namespace ends.
type guest struct {
	*agent
	streams [3]net.Conn
	out     [2]bytes.Buffer // standard output and error, to be read after its end
	spoke   chan struct{}   // closed at the first standard output
	read    sync.WaitGroup
}

// first closes a channel at the first write.
type first struct {
	io.Writer
	once  sync.Once
	spoke chan struct{}
}

func (f *first) Write(b []byte) (int, error) {
	defer f.once.Do(func() { close(f.spoke) })
	return f.Writer.Write(b)
}

func startGuest(t *testing.T) *guest {
	t.Helper()
	program := filepath.Join(t.TempDir(), "init")
	if err := os.WriteFile(program, initProgram, 0o755); err != nil {
		t.Fatal(err)
	}
	boot := &plan{}
	for i := range 4 {
		boot.add("setting a flag", sysFcntl, 3+i, unix.F_SETFL, unix.O_NONBLOCK)
		boot.add("taking a port", sysFcntl, 3+i, unix.F_DUPFD_CLOEXEC, 10).into = controlPort + register(i)
		boot.add("closing", sysClose, 3+i)
	}
	script := filepath.Join(t.TempDir(), "plan")
	if err := os.WriteFile(script, boot.encode(), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, script)
	g := &guest{}
	var control net.Conn
	for _, c := range []*net.Conn{&control, &g.streams[0], &g.streams[1], &g.streams[2]} {
		theirs, ours, err := socketPair()
		if err != nil {
			t.Fatal(err)
		}
		*c = ours
		defer theirs.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, theirs)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig: unix.SIGKILL,
		// reboot(2) ends only the PID namespace in which it is called (kernel/pid_namespace.c).
		Cloneflags:  unix.CLONE_NEWPID | unix.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	var err error
	if err = newThread().do(cmd.Start); err != nil {
		t.Skipf("needs namespaces of users: %v", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		for _, c := range append(g.streams[:], control) {
			_ = c.Close()
		}
	})
	if g.agent, err = newAgent(control, time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return g
}

// shell prepares a shell command in the guest; release starts it.
func (g *guest) shell(t *testing.T, command string) *plan {
	t.Helper()
	g.spoke = make(chan struct{})
	g.read.Go(func() { _ = receiveFrames(&first{Writer: &g.out[0], spoke: g.spoke}, g.streams[1]) })
	g.read.Go(func() { _ = receiveFrames(&g.out[1], g.streams[2]) })
	p := &plan{}
	p.add("getting ready", opReady)
	p.add("running the shell", sysExecve, "/bin/sh", []string{"sh", "-c", command},
		[]string{"PATH=/bin:/usr/bin", "X=a b"})
	if err := g.spawn(0, p); err != nil {
		t.Fatal(err)
	}
	return p
}

func (g *guest) code(t *testing.T) unix.WaitStatus {
	t.Helper()
	select {
	case s := <-g.exit:
		g.read.Wait()
		return unix.WaitStatus(s)
	case <-time.After(time.Minute):
		t.Fatal("it does not end")
		return 0
	}
}

// TestStreams: streams are separate, may be binary, may be larger than every buffer on the way, and end when their
// writer does.
func TestStreams(t *testing.T) {
	g := startGuest(t)
	p := g.shell(t, `echo "$X" >&2; cat; exit 3`)
	input := make([]byte, 3<<20)
	_, _ = rand.Read(input)
	go func() { _ = sendFrames(g.streams[0], bytes.NewReader(input)) }()
	time.Sleep(20 * time.Millisecond)
	if g.out[0].Len()+g.out[1].Len() > 0 {
		t.Error("it ran before it was released")
	}
	if err := g.release(p); err != nil {
		t.Fatal(err)
	}
	if code := g.code(t); code.ExitStatus() != 3 {
		t.Errorf("exit status %v", code)
	}
	if !bytes.Equal(g.out[0].Bytes(), input) {
		t.Errorf("%d bytes of %d came back, or others", g.out[0].Len(), len(input))
	}
	if g.out[1].String() != "a b\n" {
		t.Errorf("standard error: %q", g.out[1].String())
	}
}

// TestNobodyReads: a process that writes to a closed stream gets SIGPIPE, and when a process stops reading, the side
// that writes to it is told.
func TestNobodyReads(t *testing.T) {
	g := startGuest(t)
	p := &plan{}
	p.add("getting ready", opReady)
	p.add("running the shell", sysExecve, "/bin/sh", []string{"sh", "-c", "exec <&-; exec yes"},
		[]string{"PATH=/bin:/usr/bin"})
	if err := g.spawn(0, p); err != nil {
		t.Fatal(err)
	}
	g.read.Go(func() { _ = receiveFrames(io.Discard, g.streams[2]) })
	g.read.Go(func() { _ = receiveFrames(&limited{left: 1 << 20}, g.streams[1]) })
	if err := g.release(p); err != nil {
		t.Fatal(err)
	}
	var end [4]byte
	if _, err := io.ReadFull(g.streams[0], end[:]); err != nil || end != [4]byte{} {
		t.Errorf("its input: %v, %v", end, err)
	}
	// Sending more is not an error.
	if err := sendFrames(g.streams[0], strings.NewReader("nobody reads this")); err != nil {
		t.Error(err)
	}
	if code := g.code(t); !code.Signaled() || code.Signal() != unix.SIGPIPE {
		t.Errorf("it ended with %v, not by SIGPIPE", code)
	}
}

// limited is a writer that fails after a number of bytes.
type limited struct{ left int }

func (l *limited) Write(b []byte) (int, error) {
	if l.left -= len(b); l.left < 0 {
		return 0, io.ErrClosedPipe
	}
	return len(b), nil
}

// TestSignals: a signal reaches the process; after its end there is no process to signal.
func TestSignals(t *testing.T) {
	g := startGuest(t)
	p := g.shell(t, `trap 'echo caught; exit 9' USR1; echo ready; while :; do sleep 0.05; done`)
	if err := g.release(p); err != nil {
		t.Fatal(err)
	}
	select {
	case <-g.spoke: // the trap is set
	case <-time.After(time.Minute):
		t.Fatal("it does not begin")
	}
	if err := g.signal(unix.SIGUSR1, false); err != nil {
		t.Fatal(err)
	}
	if code := g.code(t); code.ExitStatus() != 9 || !strings.HasSuffix(g.out[0].String(), "caught\n") {
		t.Errorf("status %v, output %q", code, g.out[0].String())
	}
	if err := g.signal(unix.SIGTERM, false); !errors.Is(err, unix.ESRCH) {
		t.Errorf("a signal to nobody: %v", err)
	}
}

// TestFailures: errors say which call failed: in a plan of the first process, and in the plan of the program before and
// at its execve.
func TestFailures(t *testing.T) {
	g := startGuest(t)
	p := &plan{}
	p.add("ignored", sysChdir, "/nonexistent").ignore = errnos{unix.ENOENT}
	p.add("skips one", sysGetpid).skip = 1
	p.add("skipped", sysChdir, "/nonexistent")
	p.mkdir("/nonexistent/x", 0o755)
	if err := g.run(p); !errors.Is(err, unix.ENOENT) ||
		!strings.Contains(err.Error(), "making the directory /nonexistent/x") {
		t.Errorf("a plan that fails: %v", err)
	}
	broken := []byte{1, 0, 0, 0, 0, 0, 0, 1}
	if _, errno, err := g.request(msgPlan, broken); err != nil || unix.Errno(errno) != unix.EINVAL {
		t.Errorf("a plan that is none: %v, %v", unix.Errno(errno), err)
	}
	far := (&plan{calls: []call{{number: sysChdir, args: []any{"/"}}}}).encode()
	binary.LittleEndian.PutUint32(far[8+instructionSize:], uint32(len(far)))
	if _, errno, err := g.request(msgPlan, far); err != nil || unix.Errno(errno) != unix.EINVAL {
		t.Errorf("a plan with an address outside of it: %v, %v", unix.Errno(errno), err)
	}
	p = &plan{}
	p.add("getting ready", opReady)
	p.add("running what is not there", sysExecve, "/nonexistent", []string{"x"}, []string{})
	if err := g.spawn(0, p); err != nil {
		t.Fatal(err)
	}
	if err := g.release(p); !errors.Is(err, unix.ENOENT) || !strings.Contains(err.Error(), "running what is not there") {
		t.Errorf("a program that is not there: %v", err)
	}
}

// TestSpawnFails: an error in the process's plan is reported before it is ready.
func TestSpawnFails(t *testing.T) {
	g := startGuest(t)
	p := &plan{}
	p.add("entering the root", sysChdir, "/nonexistent")
	p.add("getting ready", opReady)
	if err := g.spawn(0, p); !errors.Is(err, unix.ENOENT) || !strings.Contains(err.Error(), "entering the root") {
		t.Errorf("a process that cannot be set up: %v", err)
	}
}
