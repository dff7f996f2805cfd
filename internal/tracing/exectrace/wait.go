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

// waiter lets the reader sleep in the Go runtime's poller, on the ring and on a kernel timer. On a quiet machine, the
// alternatives would cost many times as much as the events: the runtime checks a thread that waits in a system call, at
// first every 20 us, and a runtime timer causes three wake-ups each time.
type waiter struct {
	kernel  *kernel
	ring    *os.File
	timer   *os.File
	alarm   int           // descriptor of the timer
	woken   chan struct{} // receives a value when the program or the timer wakes the reader
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
	if err := unix.SetNonblock(fd, true); err != nil { // the runtime's poller requires this
		unix.Close(fd)
		return nil, err
	}
	w.ring = os.NewFile(uintptr(fd), "ring buffer")
	if w.alarm, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC); err != nil {
		return nil, err
	}
	w.timer = os.NewFile(uintptr(w.alarm), "timer")
	for _, f := range []*os.File{w.ring, w.timer} {
		if err := f.SetReadDeadline(time.Time{}); err != nil { // fails if the file cannot be polled
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

// poll forwards wake-ups until the file is closed. The poller is edge-triggered: it reports when the program wakes the
// reader or the timer expires, not whenever there is something to read.
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

// wait sets the reader's state, which the program reads, and sleeps until the reader is woken, until atMost is over (0:
// no limit), or until a channel is ready. It reports whether the channel ended is closed, and whether it has received
// from the channel tell. It may return without a reason. It does not sleep if there is already a reason to wake,
// because it checks the ring again after setting the state (see the comment on waking in exectrace.bpf.c).
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
