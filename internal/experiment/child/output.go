package child

import (
	"errors"
	"os"
	"os/exec"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	pause     = 5 * time.Millisecond // between two looks, unless Output.Pause says otherwise
	pipeBytes = 1 << 20              // 200 MB/s between two looks; what any user may have (/proc/sys/fs/pipe-max-size)
	readBytes = 256 << 10            // at once
	rounds    = 16                   // of reads of one pipe in one look
)

// Output polls what a process writes: its pipes are read every few milliseconds. So neither does the process pay for
// waking a reader with every line, nor the machine for the reader's running.
type Output struct {
	// Take gets each piece of a stream, 0 for standard output and 1 for standard error, and nil at the stream's end.
	Take func(stream int, piece []byte)
	// Pause is the time to the next look after one that found n bytes; nil: 5 ms.
	Pause func(n int) time.Duration

	sync.Mutex // held during Take and Pause

	pipes  [2]*pipe
	buf    []byte
	looked sync.WaitGroup
}

// pipe is one stream; its reading end does not block.
type pipe struct {
	fd     int
	open   bool
	writer *os.File
	tail   *Tail
}

// open makes the pipes of a command.
func (o *Output) open(cmd *exec.Cmd, tails *[2]Tail) error {
	for i := range o.pipes {
		var fds [2]int
		err := unix.Pipe2(fds[:], unix.O_CLOEXEC)
		if err == nil {
			o.pipes[i] = &pipe{fd: fds[0], open: true, writer: os.NewFile(uintptr(fds[1]), "output"), tail: &tails[i]}
			err = unix.SetNonblock(fds[0], true)
		}
		if err != nil {
			o.close()
			return err
		}
		_, _ = unix.FcntlInt(uintptr(fds[0]), unix.F_SETPIPE_SZ, pipeBytes) // a smaller one does as well
	}
	cmd.Stdout, cmd.Stderr = o.pipes[0].writer, o.pipes[1].writer
	return nil
}

// close closes what is open.
func (o *Output) close() {
	for _, p := range o.pipes {
		if p != nil {
			_ = p.writer.Close() // a second time is harmless
			if p.open {
				p.open = false
				_ = unix.Close(p.fd) // nothing was written
			}
		}
	}
}

// begin begins to read, once the process has its ends of the pipes.
func (o *Output) begin(started bool) {
	if !started {
		o.close()
		return
	}
	for _, p := range o.pipes {
		_ = p.writer.Close() // the process has its own
	}
	o.buf = make([]byte, readBytes)
	o.looked.Go(func() {
		for {
			wait, open := o.read()
			if !open {
				return
			}
			time.Sleep(wait)
		}
	})
}

// end reads what is left, as long as others hold the pipes open but at most so long.
func (o *Output) end(linger time.Duration) {
	for deadline := time.Now().Add(linger); o.Read() && time.Now().Before(deadline); {
		time.Sleep(pause)
	}
	o.Lock()
	o.close()
	o.Unlock()
	o.looked.Wait()
}

// Read takes what is in the pipes now. It is false when both have ended.
func (o *Output) Read() bool {
	_, open := o.read()
	return open
}

func (o *Output) read() (wait time.Duration, open bool) {
	o.Lock()
	defer o.Unlock()
	total := 0
	for i, p := range o.pipes {
		for n := 0; p.open && n < rounds; n++ {
			got, err := unix.Read(p.fd, o.buf)
			if got > 0 {
				total += got
				_, _ = p.tail.Write(o.buf[:got]) // it never fails
				o.Take(i, o.buf[:got])
			}
			switch {
			case errors.Is(err, unix.EAGAIN):
				n = rounds
			case errors.Is(err, unix.EINTR):
			case err != nil || got == 0:
				p.open = false
				o.Take(i, nil)
				_ = unix.Close(p.fd) // nothing was written
			case got < len(o.buf)/2:
				n = rounds // that was all
			}
		}
		open = open || p.open
	}
	if o.Pause != nil {
		return o.Pause(total), open
	}
	return pause, open
}
