package syscalls

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/load"
	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
)

// call is one rung of the ladder.
type call struct {
	name  string
	short string // name in answers
	doc   string // description in the documentation
	once  func(*ladder) error
}

var calls = []call{
	{"getpid", "getpid", "`getpid`, which does nothing", func(*ladder) error { unix.Getpid(); return nil }},
	{"read", "a read", "`read` of a byte from /dev/zero", func(l *ladder) error {
		_, err := unix.Read(l.zero, l.buf[:])
		return err
	}},
	{"write", "a write", "`write` of a byte to /dev/null", func(l *ladder) error {
		_, err := unix.Write(l.null, l.buf[:])
		return err
	}},
	{"open", "an open", "`open` of /dev/null, with its `close`", func(*ladder) error { return open("/dev/null") }},
	{"open_root", "an open in the root file system",
		"`open` of a file of the root file system (the tare binary), with its `close`",
		func(l *ladder) error { return open(l.self) }},
	{"connect", "a connect", "`connect` to a TCP port of the loopback, without the `socket` before and the " +
		"`close` after it",
		(*ladder).connect},
	{"fork", "a fork", "`fork` of a process of some 10 MB until the child, which exits at once, was waited for",
		func(*ladder) error { return fork() }},
	{"exec", "an exec", "starting a program until it was waited for (`vfork`, `execve` of busybox `true`)",
		func(*ladder) error { return execute() }},
}

// ladder is a running load. Only one thread uses it.
type ladder struct {
	batch      time.Duration
	zero, null int
	buf        [1]byte
	self       string
	listener   int
	address    unix.Sockaddr
	connected  int64 // ns that the connect calls alone took, in a batch of connects
}

func newLadder(batch time.Duration) (_ *ladder, err error) {
	l := &ladder{batch: batch, zero: -1, null: -1, listener: -1}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	// This is the path of the file itself. Opening a path through /proc would cost more, and would need capabilities.
	if l.self, err = os.Executable(); err != nil {
		return nil, err
	}
	if l.zero, err = unix.Open("/dev/zero", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return nil, fmt.Errorf("opening /dev/zero: %w", err)
	}
	if l.null, err = unix.Open("/dev/null", unix.O_WRONLY|unix.O_CLOEXEC, 0); err != nil {
		return nil, fmt.Errorf("opening /dev/null: %w", err)
	}
	if l.listener, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return nil, fmt.Errorf("making a socket: %w", err)
	}
	loopback := &unix.SockaddrInet4{}
	copy(loopback.Addr[:], net.IPv4(127, 0, 0, 1).To4())
	if err := errors.Join(unix.Bind(l.listener, loopback), unix.Listen(l.listener, 16)); err != nil {
		return nil, fmt.Errorf("listening on the loopback: %w", err)
	}
	l.address, err = unix.Getsockname(l.listener)
	if err != nil {
		return nil, fmt.Errorf("listening on the loopback: %w", err)
	}
	if _, err := os.Stat(busybox); err != nil {
		return nil, fault.Wrap(err, fault.Machine, busybox, "apt-get install busybox-static", "there is no program to start")
	}
	return l, nil
}

func (l *ladder) close() {
	for _, fd := range []int{l.zero, l.null, l.listener} {
		if fd >= 0 {
			_ = unix.Close(fd) // nothing was written
		}
	}
}

func open(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// connect makes a connection and closes it with a reset, so that no port stays in TIME_WAIT. Only the connect call
// itself is timed.
func (l *ladder) connect() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	err = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	if err == nil {
		began := pace.Now()
		err = unix.Connect(fd, l.address)
		l.connected += pace.Now() - began
	}
	if err == nil {
		var other int
		if other, _, err = unix.Accept4(l.listener, unix.SOCK_CLOEXEC); err == nil {
			err = unix.Close(other)
		}
	}
	return errors.Join(err, unix.Close(fd))
}

// fork forks this process. The child exits at once, by a direct system call, because nothing else of a Go process works
// in it.
func fork() error {
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	if pid == 0 {
		for {
			unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
	}
	return wait(int(pid))
}

const busybox = "/bin/busybox"

func execute() error {
	pid, err := syscall.ForkExec(busybox, []string{"true"}, &syscall.ProcAttr{})
	if err != nil {
		return err
	}
	return wait(pid)
}

func wait(pid int) error {
	var ws unix.WaitStatus
	for {
		_, err := unix.Wait4(pid, &ws, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err == nil && ws.ExitStatus() != 0 {
			err = fmt.Errorf("a child ended with status %#x", int(ws))
		}
		return err
	}
}

// most is the maximum number of batch times that are kept for one kind of call: enough for minutes.
const most = 1 << 20

// run makes batches of calls until the window ends. The next batch is always of the kind that has taken the least time
// so far: if starting a program takes a hundred thousand times as long as the cheapest call, as on an emulated
// processor, taking turns would leave hardly any time for the cheapest call. A batch counts if it is inside the window
// and lasts at least half as long as it should. The first few batches of a kind are shorter: they have only a call or
// two, whose time is distorted by the clock and a cold cache. Calls do not count as requests, because a rate over all
// kinds has no meaning. The counts of the result are, for each kind, the median over batches of the time per call, in
// seconds. A kind without a batch in the window has no count.
func (l *ladder) run(ctx context.Context, s role.Schedule) (*load.Result, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := pace.Sleep(ctx, time.Duration(s.Begin-pace.Now())); err != nil {
		return nil, err
	}
	warm := s.Begin + s.Warmup
	end := warm + s.Duration
	sizes, times := make([]int, len(calls)), make([][]float64, len(calls))
	r := &load.Result{
		Generator: name, Mode: load.Outside, Seconds: float64(s.Duration) / 1e9, Errors: map[string]int64{},
		Counts: map[string]float64{}, Histograms: map[string]string{},
	}
	spent := make([]int64, len(calls)) // ns by kind, since the warm-up or the window began
	open := s.Warmup == 0
	for now := pace.Now(); now < end; {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if !open && now >= warm {
			open = true
			clear(spent)
		}
		i := least(spent)
		n := max(1, sizes[i])
		l.connected = 0
		began := pace.Now()
		for range n {
			if err := calls[i].once(l); err != nil {
				return nil, fmt.Errorf("calling %s: %w", calls[i].name, err)
			}
		}
		now = pace.Now()
		took := now - began
		spent[i] += took
		sizes[i] = next(n, took, l.batch)
		full := 2*took >= int64(l.batch)
		if l.connected > 0 {
			took = l.connected
		}
		if full && began >= warm && now <= end && len(times[i]) < most {
			times[i] = append(times[i], float64(took)/1e9/float64(n))
		}
	}
	for i, c := range calls {
		if t := times[i]; len(t) > 0 {
			slices.Sort(t)
			r.Counts[c.name+"_seconds"] = (t[(len(t)-1)/2] + t[len(t)/2]) / 2
		}
	}
	return r, nil
}

// least returns the index of the first minimum.
func least(all []int64) int {
	first := 0
	for i, v := range all {
		if v < all[first] {
			first = i
		}
	}
	return first
}

// next returns the number of calls in the next batch, given how long n calls took. It returns at most 2*n, because the
// last batch may have been interrupted.
func next(n int, took int64, batch time.Duration) int {
	each := max(1, took/int64(n))
	return max(1, min(2*n, int(int64(batch)/each)))
}
