package faults

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"tare/test/faults/filter"
)

// call is struct seccomp_notif of the kernel (include/uapi/linux/seccomp.h).
type call struct {
	id     uint64
	thread uint32
	flags  uint32
	nr     int32
	arch   uint32
	ip     uint64
	args   [6]uint64
}

// answer is struct seccomp_notif_resp.
type answer struct {
	id    uint64
	value int64
	err   int32
	flags uint32
}

// supervisor receives the calls of a run and answers them.
type supervisor struct {
	tare, dir string
	fault     Fault
	pid       int // of tare itself

	counts map[Class]int
	hit    string

	mu      sync.Mutex
	stopped bool
}

// stop makes run return. Calls that are made afterwards fail with ENOSYS.
func (s *supervisor) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
}

func (s *supervisor) ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopped
}

// run answers calls until every process that the filter is on has ended.
func (s *supervisor) run(socket *os.File) error {
	listener, err := receive(socket)
	if err != nil {
		return err
	}
	defer unix.Close(listener)
	for !s.ended() {
		ready := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
		n, err := unix.Poll(ready, 100)
		switch {
		case err == unix.EINTR || err == nil && n == 0:
			continue
		case err != nil:
			return fmt.Errorf("waiting for calls: %w", err)
		case ready[0].Revents&unix.POLLIN == 0: // POLLHUP: nobody is left
			return nil
		}
		var c call
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_RECV,
			uintptr(unsafe.Pointer(&c))); errno != 0 {
			if errno == unix.ENOENT || errno == unix.EINTR { // the thread was killed meanwhile
				continue
			}
			return fmt.Errorf("receiving a call: %w", errno)
		}
		a := s.decide(&c)
		a.id = c.id
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_SEND,
			uintptr(unsafe.Pointer(&a))); errno != 0 && errno != unix.ENOENT {
			return fmt.Errorf("answering a call: %w", errno)
		}
	}
	return nil
}

// receive takes the descriptor that test/faults/under sends.
func receive(socket *os.File) (int, error) {
	raw, err := socket.SyscallConn()
	if err != nil {
		return -1, err
	}
	var n, oobn int
	data, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	var failed error
	if err := raw.Read(func(fd uintptr) bool {
		n, oobn, _, _, failed = unix.Recvmsg(int(fd), data, oob, unix.MSG_CMSG_CLOEXEC)
		return failed != unix.EAGAIN
	}); err != nil {
		return -1, err
	}
	if failed != nil || n == 0 {
		return -1, fmt.Errorf("no descriptor came: %w", errors.Join(failed, io.EOF))
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(messages) != 1 {
		return -1, fmt.Errorf("reading the message with the descriptor: %w", errors.Join(err, io.ErrUnexpectedEOF))
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return -1, fmt.Errorf("reading the descriptor: %w", errors.Join(err, io.ErrUnexpectedEOF))
	}
	return fds[0], nil
}

// decide counts the call if tare made it, and returns its answer: to go on, or to fail if it is the fault's call.
func (s *supervisor) decide(c *call) answer {
	goOn := answer{flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
	if s.hit != "" {
		return goOn // the calls after the fault are not counted
	}
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", c.thread))
	if err != nil || exe != s.tare {
		return goOn
	}
	class, path, ok := s.classify(c)
	if !ok {
		return goOn
	}
	s.counts[class]++
	if class != s.fault.Class || s.counts[class] != s.fault.N {
		return goOn
	}
	s.hit = fmt.Sprintf("%s %s by thread %d", class, path, c.thread)
	if s.fault.Kill {
		_ = unix.Kill(s.pid, unix.SIGKILL) // it is not reaped yet, so no other process has its PID
		return goOn
	}
	return answer{err: -int32(s.fault.Errno)}
}

// classify returns the class of a call, and the path of its file if it has one. ok is false for calls that do not
// count, such as reads from a pipe.
func (s *supervisor) classify(c *call) (class Class, path string, ok bool) {
	name := filter.Calls[uint32(c.nr)]
	process := fmt.Sprintf("/proc/%d", c.thread)
	switch {
	case name == "bpf":
		return Class{name, strconv.FormatUint(c.args[0], 10)}, "", true
	case filter.Descriptor[name]:
		path, err := os.Readlink(filepath.Join(process, "fd", strconv.Itoa(int(int32(c.args[0])))))
		if err != nil || !strings.HasPrefix(path, "/") { // a pipe, a socket, an event
			return class, "", false
		}
		return Class{name, s.place(path)}, path, true
	case filter.At[name]:
		path = stringAt(process, c.args[1])
		if !filepath.IsAbs(path) {
			from := filepath.Join(process, "cwd")
			if fd := int32(c.args[0]); fd >= 0 {
				from = filepath.Join(process, "fd", strconv.Itoa(int(fd)))
			}
			dir, err := os.Readlink(from)
			if err != nil {
				return class, "", false
			}
			path = filepath.Join(dir, path)
		}
		return Class{name, s.place(path)}, path, true
	case name == "mkdir" || name == "rmdir":
		path = stringAt(process, c.args[0])
		return Class{name, s.place(path)}, path, true
	case name == "symlinkat":
		path = stringAt(process, c.args[2])
		return Class{name, s.place(path)}, path, true
	}
	return Class{name, "-"}, "", true
}

// place returns the kind of place that a path leads to.
func (s *supervisor) place(path string) string {
	for _, p := range []struct{ prefix, place string }{
		{s.dir, "run directory"}, {"/sys/fs/cgroup", "cgroup"}, {"/proc", "proc"}, {"/sys", "sys"}, {"/dev", "dev"},
		{"/run", "run"}, {os.TempDir(), "temporary"},
	} {
		if strings.HasPrefix(path, p.prefix) {
			return p.place
		}
	}
	return "elsewhere"
}

// stringAt reads a path from the memory of a thread that waits for the answer to its call.
func stringAt(process string, at uint64) string {
	memory, err := os.Open(filepath.Join(process, "mem"))
	if err != nil {
		return ""
	}
	defer memory.Close()
	buffer := make([]byte, 4096)
	n, _ := memory.ReadAt(buffer, int64(at)) // the mapping may end before the buffer is full
	text, _, _ := bytes.Cut(buffer[:n], []byte{0})
	return string(text)
}
