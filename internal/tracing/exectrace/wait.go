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

// waiter is how the reader sleeps: in the poller of the Go runtime, on the ring and on a timer of the kernel's. A
// thread that waits in a system call of its own has the runtime look after it, every 20 us at first, and a timer of the
// runtime's wakes three times for each: on a quiet machine both cost many times what the events do.
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
	if err := unix.SetNonblock(fd, true); err != nil { // what the runtime's poller takes
		unix.Close(fd)
		return nil, err
	}
	w.ring = os.NewFile(uintptr(fd), "ring buffer")
	if w.alarm, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC); err != nil {
		return nil, err
	}
	w.timer = os.NewFile(uintptr(w.alarm), "timer")
	for _, f := range []*os.File{w.ring, w.timer} {
		if err := f.SetReadDeadline(time.Time{}); err != nil { // of what cannot be polled
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

// poll passes wake-ups on, until the file is closed. The poller goes by edges: it comes back when the program wakes, or
// the time is up, and not whenever there is something to read.
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

// wait sleeps for a time at most (0: for ever), in a state that the program knows, or until something comes by one of
// the channels. It may wake without cause. It does not sleep where there is cause to wake already: for that the ring is
// looked at again after the state was set (see wake of the program).
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
		panic(fmt.Sprintf("setting a timer: %v", err)) // the time is one, and the descriptor a timer
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
