package exectrace

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// waiter is how the reader sleeps: in the Go runtime's poller, on the ring and on a kernel timer. The alternatives
// cost many times what the events do on a quiet machine: the runtime monitors a thread that waits in a system call,
// every 20 us at first, and a runtime timer causes three wake-ups each time.
type waiter struct {
	kernel  *kernel
	ring    *os.File
	timer   *os.File
	alarm   int           // descriptor of the timer
	woken   chan struct{} // by the program or the timer
	polling sync.WaitGroup
}

func newWaiter(k *kernel) (_ *waiter, err error) {
	w := &waiter{kernel: k, woken: make(chan struct{}, 1)}
	defer func() {
		if err != nil {
			w.close()
			err = fmt.Errorf("waiting for the ring buffer: %w", err)
		}
	}()
	fd, err := unix.FcntlInt(uintptr(k.objects.ExecRing.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil { // as the runtime's poller requires
		unix.Close(fd)
		return nil, err
	}
	w.ring = os.NewFile(uintptr(fd), "ring buffer")
	if w.alarm, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC); err != nil {
		return nil, err
	}
	w.timer = os.NewFile(uintptr(w.alarm), "timer")
	for _, f := range []*os.File{w.ring, w.timer} {
		if err := f.SetReadDeadline(time.Time{}); err != nil { // fails if it cannot be polled
			return nil, err
		}
		conn, err := f.SyscallConn()
		if err != nil {
			return nil, err
		}
		w.polling.Go(func() { w.poll(conn) })
	}
	return w, nil
}

// poll forwards wake-ups, until the file is closed. The poller is edge-triggered: it returns when the program wakes
// it, or the time is over, and not whenever there is something to read.
func (w *waiter) poll(conn syscall.RawConn) {
	_ = conn.Read(func(uintptr) (done bool) {
		select {
		case w.woken <- struct{}{}:
		default:
		}
		return false
	})
}

func (w *waiter) close() {
	for _, f := range []*os.File{w.ring, w.timer} {
		if f != nil {
			f.Close() // nothing was written
		}
	}
	w.polling.Wait()
}

// wait sets the reader's state, which the program reads, and sleeps until it is woken, for at most a time (0: no
// limit), or until one of the channels has something. It may wake without a reason. It does not sleep if there is
// already a reason to wake: it checks the ring again after setting the state (see wake of the program).
func (w *waiter) wait(state exectraceReader, atMost time.Duration,
	ended <-chan struct{}, tell <-chan os.Signal) (end, told bool) {
	k := w.kernel
	atomic.StoreUint32(k.reader, uint32(state))
	defer atomic.StoreUint32(k.reader, uint32(exectraceReaderAWAKE))
	if waiting := k.ring.waiting(); waiting >= k.wakeBytes || waiting > 0 && state == exectraceReaderIDLE {
		atMost = 1
	}
	if err := unix.TimerfdSettime(w.alarm, 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(atMost))},
		nil); err != nil {
		panic(fmt.Sprintf("setting a timer: %v", err)) // cannot happen: the time is valid, and the descriptor is a timer
	}
	select {
	case <-ended:
		return true, false
	case <-tell:
		return false, true
	case <-w.woken:
		return false, false
	}
}
