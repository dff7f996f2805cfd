package calibrate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
)

// WeightCommand is the hidden command with which the binary runs itself as a planted process.
const WeightCommand = "_weight"

// burnOrder tells a process to use a share of a CPU for some time.
type burnOrder struct {
	Share   float64 `json:"share"`
	Seconds float64 `json:"seconds"`
}

// connectOrder tells a process to connect a socket a number of times.
type connectOrder struct {
	Times int `json:"times"`
}

// memoryOrder tells a process to take memory, in bytes.
type memoryOrder struct {
	Anon  int    `json:"anon"`
	File  int    `json:"file"`
	Shmem int    `json:"shmem"`
	Sock  int    `json:"sock"`
	Dir   string `json:"dir"` // directory for the file
}

// plantedResult holds what a planted process measured about itself. Fields that do not apply to its kind are 0.
type plantedResult struct {
	CPUSeconds float64 `json:"cpu_seconds"`
	Times      int     `json:"times"`
	Fastest    float64 `json:"fastest"` // CPU seconds of one call in the fastest, undisturbed piece
	SockBytes  uint64  `json:"sock_bytes"`
}

// Plant runs a planted process on conn: burn, connect or memory. It carries out the order in the start message, sends
// the result, and keeps its resources until the parent closes its end.
func Plant(_ context.Context, args []string, conn *role.Conn) error {
	kind := strings.Join(args, " ")
	plants := map[string]func(role.Message) (plantedResult, func(), error){"burn": burn, "connect": connect,
		"memory": takeMemory}
	plant, ok := plants[kind]
	if !ok {
		return fault.New(fault.Usage, WeightCommand, "", "%q is not a planted process", kind)
	}
	if err := conn.Send(role.Ready, struct{}{}); err != nil {
		return err
	}
	m, err := conn.Receive()
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		return err
	}
	r, release, err := plant(m)
	defer release()
	if err != nil {
		return err
	}
	if err := conn.Send(role.Result, r); err != nil {
		return err
	}
	if _, err := conn.Receive(); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

func none() {}

func processTime() int64 { return pace.Clock(unix.CLOCK_PROCESS_CPUTIME_ID) }

// burn uses its share of each 10 ms, by its thread's CPU clock.
func burn(m role.Message) (r plantedResult, _ func(), err error) {
	var o burnOrder
	if err := decode(m, &o); err != nil {
		return r, none, err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const period = 10e6 // ns
	before := processTime()
	threadTime := func() int64 { return pace.Clock(unix.CLOCK_THREAD_CPUTIME_ID) }
	begin, own := pace.Now(), threadTime()
	for k := 1.0; k*period <= o.Seconds*1e9; k++ {
		for threadTime()-own < int64(k*period*o.Share) && pace.Now()-begin < int64(o.Seconds*1e9) {
		}
		time.Sleep(time.Duration(begin + int64(k*period) - pace.Now()))
	}
	r.CPUSeconds = float64(processTime()-before) / 1e9
	return r, none, nil
}

// connect repeatedly connects a UDP socket to the loopback address. An eBPF program on the connect hook runs each time,
// and nothing is ever sent.
func connect(m role.Message) (r plantedResult, _ func(), err error) {
	var o connectOrder
	if err := decode(m, &o); err != nil {
		return r, none, err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return r, none, fmt.Errorf("making a socket: %w", err)
	}
	defer unix.Close(fd)
	to := unix.RawSockaddrInet4{Family: unix.AF_INET, Port: 9 << 8, Addr: [4]byte{127, 0, 0, 1}} // the discard port
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const pieces = 500 // each of a time slice or less, so that some run undisturbed
	each := max(o.Times/pieces, 1)
	begin := pace.Clock(unix.CLOCK_THREAD_CPUTIME_ID)
	last := begin
	for ; r.Times < o.Times; r.Times++ {
		if r.Times > 0 && r.Times%each == 0 {
			now := pace.Clock(unix.CLOCK_THREAD_CPUTIME_ID)
			if took := float64(now-last) / 1e9 / float64(each); r.Fastest == 0 || took < r.Fastest {
				r.Fastest = took
			}
			last = now
		}
		// A raw call bypasses Go's scheduler, which checks on other calls every 20 us: its timer would interrupt the program
		// on this CPU, and add a tenth to its run time.
		if _, _, e := unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&to)),
			unsafe.Sizeof(to)); e != 0 {
			return r, none, fmt.Errorf("connecting the %dth time: %w", r.Times+1, e)
		}
	}
	r.CPUSeconds = float64(pace.Clock(unix.CLOCK_THREAD_CPUTIME_ID)-begin) / 1e9
	return r, none, nil
}

// takeMemory takes memory of every kind that a control group counts.
func takeMemory(m role.Message) (r plantedResult, release func(), err error) {
	var free []func()
	release = func() {
		for _, f := range free {
			f()
		}
	}
	var o memoryOrder
	if err := decode(m, &o); err != nil {
		return r, release, err
	}
	take := func(fd, size, flags int, what string) error {
		mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, flags)
		if err != nil {
			return fmt.Errorf("mapping %s: %w", what, err)
		}
		free = append(free, func() { _ = unix.Munmap(mem) })
		for i := 0; i < len(mem); i += os.Getpagesize() {
			mem[i] = 1
		}
		return nil
	}
	if err := take(-1, o.Anon, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, "memory"); err != nil {
		return r, release, err
	}
	fd, err := unix.MemfdCreate("tare-weight", unix.MFD_CLOEXEC)
	if err != nil {
		return r, release, fmt.Errorf("making shared memory: %w", err)
	}
	free = append(free, func() { unix.Close(fd) })
	if err := unix.Ftruncate(fd, int64(o.Shmem)); err != nil {
		return r, release, fmt.Errorf("making shared memory: %w", err)
	}
	if err := take(fd, o.Shmem, unix.MAP_SHARED, "shared memory"); err != nil {
		return r, release, err
	}
	if o.File > 0 {
		f, err := os.CreateTemp(o.Dir, "tare-weight-")
		if err != nil {
			return r, release, err
		}
		free = append(free, func() { f.Close() })
		if err := os.Remove(f.Name()); err != nil { // the file stays usable while it is open
			return r, release, err
		}
		block := make([]byte, 64<<10) // private memory, negligible compared with the planted amount
		for left := o.File; left > 0; left -= len(block) {
			if _, err := f.Write(block[:min(left, len(block))]); err != nil {
				return r, release, fmt.Errorf("writing a file in %s: %w", filepath.Dir(f.Name()), err)
			}
		}
	}
	if o.Sock > 0 {
		n, closeAll, err := fillSockets(o.Sock)
		free = append(free, closeAll)
		if err != nil {
			return r, release, err
		}
		r.SockBytes = n
	}
	return r, release, nil
}

// fillSockets sends over a loopback TCP connection whose other end never reads, and returns the bytes that the kernel
// holds for both ends. The caller must call release, even after an error.
func fillSockets(bytes int) (held uint64, release func(), err error) {
	var open []io.Closer
	release = func() {
		for _, c := range open {
			c.Close()
		}
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("filling socket buffers: %w", err)
		}
	}()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, release, err
	}
	open = append(open, listener)
	dialer := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		return control(c, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 2*bytes) })
	}}
	out, err := dialer.Dial("tcp4", listener.Addr().String())
	if err != nil {
		return 0, release, err
	}
	open = append(open, out)
	in, err := listener.Accept()
	if err != nil {
		return 0, release, err
	}
	open = append(open, in)
	block := make([]byte, 64<<10)
	_ = out.SetWriteDeadline(time.Now().Add(time.Second)) // the buffers are full by then
	for sent := 0; sent < bytes && err == nil; {
		n, failed := out.Write(block[:min(len(block), bytes-sent)])
		if sent += n; errors.Is(failed, os.ErrDeadlineExceeded) {
			break
		}
		err = failed
	}
	time.Sleep(50 * time.Millisecond) // for data in transit to arrive
	for _, end := range []net.Conn{out, in} {
		raw, failed := end.(syscall.Conn).SyscallConn()
		if failed == nil {
			failed = control(raw, func(fd int) error {
				n, err := socketMemory(fd)
				held += n
				return err
			})
		}
		err = errors.Join(err, failed)
	}
	return held, release, err
}

// control calls a function with the file descriptor of a connection.
func control(c syscall.RawConn, do func(fd int) error) error {
	var failed error
	err := c.Control(func(fd uintptr) { failed = do(int(fd)) })
	return errors.Join(err, failed)
}

func decode(m role.Message, v any) error {
	if m.Event != role.Start {
		return fmt.Errorf("waiting for start: got %s", m.Event)
	}
	if err := json.Unmarshal(m.Data, v); err != nil {
		return fmt.Errorf("decoding the start message: %w", err)
	}
	return nil
}
