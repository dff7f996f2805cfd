package write

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/load"
	"tare/internal/experiment/load/running"
	"tare/internal/lib/pace"
)

// worker is one thread with its files. It allocates no memory while it runs without errors.
type worker struct {
	load  *Load
	data  []byte
	names [ringFiles]string

	file int   // index of the current file
	fd   int   // descriptor of the current file; -1: none is open
	at   int64 // bytes in the file so far
	room int64 // bytes that the file may hold

	count    load.Tally
	failures map[failure]int64
	log      *running.Log // nil if stalls are not reported
}

func newWorker(l *Load, part int, data []byte) *worker {
	w := &worker{load: l, data: data, fd: -1, file: ringFiles - 1, count: load.NewTally(), failures: map[failure]int64{}}
	w.room = l.o.Limit / int64(l.o.Workers) / ringFiles
	for i := range w.names {
		w.names[i] = strconv.Itoa(part) + "-" + strconv.Itoa(i)
	}
	return w
}

// failure is a failed step of a write. The zero value means success.
type failure struct {
	step  string // open, write, fsync, fdatasync or close
	errno unix.Errno
}

// String returns the name of the failure in results, such as "write ENOSPC". A short write, which happens when the file
// system runs out of room, is "write short".
func (f failure) String() string {
	if f.errno == 0 {
		return f.step + " short"
	}
	if name := unix.ErrnoName(f.errno); name != "" {
		return f.step + " " + name
	}
	return fmt.Sprintf("%s %d", f.step, int(f.errno))
}

// failed converts the error of a system call to a failure. A nil error becomes the zero failure.
func failed(step string, err error) failure {
	if err == nil {
		return failure{}
	}
	var errno unix.Errno
	if !errors.As(err, &errno) {
		errno = unix.EIO // cannot happen: package unix returns only error numbers
	}
	return failure{step, errno}
}

// again repeats a system call as long as signals of the Go runtime interrupt it.
func again(call func() error) (err error) {
	for err = unix.EINTR; err == unix.EINTR; {
		err = call()
	}
	return err
}

// nextFile opens the next file of the ring and truncates it.
func (w *worker) nextFile() failure {
	if err := w.close(); err != nil {
		return failed("close", err)
	}
	w.file, w.at = (w.file+1)%ringFiles, 0
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_TRUNC | unix.O_NOFOLLOW | unix.O_CLOEXEC
	err := again(func() (err error) {
		w.fd, err = unix.Openat(w.load.dir.FD(), w.names[w.file], flags, 0o600)
		return err
	})
	return failed("open", err)
}

// close closes the open file, if there is one.
func (w *worker) close() error {
	if w.fd < 0 {
		return nil
	}
	fd := w.fd
	w.fd = -1 // the descriptor is free, whatever close returns (close(2))
	if err := unix.Close(fd); err != unix.EINTR {
		return err
	}
	return nil
}

// put does one write. After a failure, the next write starts the next file, which frees the space of an old one.
func (w *worker) put() failure {
	if w.fd < 0 || w.at+int64(len(w.data)) > w.room {
		if f := w.nextFile(); f.step != "" {
			return f
		}
	}
	f := w.append()
	if f.step != "" {
		_ = w.close() // the write has already failed
	}
	return f
}

// append writes at the end of the file, and syncs as configured.
func (w *worker) append() failure {
	n := 0
	err := again(func() (err error) {
		n, err = unix.Write(w.fd, w.data)
		return err
	})
	if err != nil {
		return failed("write", err)
	}
	if w.at += int64(n); n < len(w.data) {
		return failure{step: "write"}
	}
	switch w.load.o.Sync {
	case SyncFile:
		return failed(SyncFile, again(func() error { return unix.Fsync(w.fd) }))
	case SyncData:
		return failed(SyncData, again(func() error { return unix.Fdatasync(w.fd) }))
	}
	return failure{}
}

// restAfterError is the pause after an error in closed loop, in ns. Without it, a closed loop on a failing file system
// would fail as fast as it can.
const restAfterError = 10e6

// run does the writes that are due, until no further write of the window is left or the context ends.
func (w *worker) run(ctx context.Context) (err error) {
	thread, err := pace.LockThread(w.load.o.Spin)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, thread.Close()) }()
	free, rested := w.load.begin, int64(0)
	for ctx.Err() == nil {
		intended, ok := w.load.next(rested)
		if !ok {
			return nil
		}
		sent, err := thread.Until(ctx, intended)
		if err != nil {
			return err
		}
		if w.load.arrivals == nil {
			intended = sent
		} else if sent >= w.load.drained {
			w.skip(intended, sent)
			continue
		}
		f := w.put()
		done := pace.Now()
		w.tally(intended, sent, done, free, f)
		if free = done; f.step != "" {
			rested = done + restAfterError
		}
	}
	return nil
}

// counted reports whether a write belongs to the measured window.
func (w *worker) counted(intended int64) bool {
	return intended >= w.load.warm && intended < w.load.end
}

// skip counts a write that was due but never began.
func (w *worker) skip(intended, now int64) {
	if w.counted(intended) {
		w.count.Intended++
		w.log.Add(intended, now, now, -1, -1, false)
	}
}

// tally counts a write. The argument free is the time at which the thread became idle.
func (w *worker) tally(intended, sent, done, free int64, f failure) {
	lag := int64(-1)
	if w.load.arrivals != nil {
		lag = sent - max(intended, free)
	}
	if done >= w.load.warm { // a write of the warm-up that ends in the window may have delayed later ones
		w.log.Add(intended, sent, done, lag, -1, f.step == "" && done <= w.load.drained)
	}
	counted := w.counted(intended)
	if counted {
		w.count.Began(intended, sent, lag)
	}
	switch {
	case done > w.load.drained: // the write is unfinished
	case f.step == "":
		w.count.Answered(intended, sent, done, w.load.warm, w.load.end)
	case counted:
		w.failures[f]++
	}
}
