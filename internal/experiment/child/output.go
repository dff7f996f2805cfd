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
	pause     = 5 * time.Millisecond // between two reads, unless Output.Pause is set
	pipeBytes = 1 << 20              // the default limit (/proc/sys/fs/pipe-max-size); enough for 200 MB/s
	readBytes = 256 << 10            // the most that one read(2) returns
	rounds    = 16                   // the most reads of one pipe in a row
)

// Output polls a process's output: its pipes are read every few milliseconds. This way the process does not pay for
// waking a reader with every line, and the machine does not pay for running that reader.
type Output struct {
	// Take receives each piece of a stream, 0 for standard output and 1 for standard error, and nil at the stream's end.
	Take func(stream int, piece []byte)
	// Pause returns how long to wait for the next read after a read of n bytes; nil: 5 ms.
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
		_, _ = unix.FcntlInt(uintptr(fds[0]), unix.F_SETPIPE_SZ, pipeBytes) // if it fails, the pipe is merely smaller
	}
	cmd.Stdout, cmd.Stderr = o.pipes[0].writer, o.pipes[1].writer
	return nil
}

// close closes the ends of the pipes that are still open.
func (o *Output) close() {
	for _, p := range o.pipes {
		if p != nil {
			_ = p.writer.Close() // closing twice is harmless
			if p.open {
				p.open = false
				_ = unix.Close(p.fd) // this end only reads, so an error loses nothing
			}
		}
	}
}

// begin starts reading once the process has its ends of the pipes, or closes the pipes if the process did not start.
func (o *Output) begin(started bool) {
	if !started {
		o.close()
		return
	}
	for _, p := range o.pipes {
		_ = p.writer.Close() // the process has its own copy
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

// end reads the rest of the output until the pipes end or, while other processes hold them open, for up to linger.
func (o *Output) end(linger time.Duration) {
	for deadline := time.Now().Add(linger); o.Read() && time.Now().Before(deadline); {
		time.Sleep(pause)
	}
	o.Lock()
	o.close()
	o.Unlock()
	o.looked.Wait()
}

// Read reads the output that is in the pipes now, and passes it to Take. It returns false when both streams have ended.
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
				_, _ = p.tail.Write(o.buf[:got]) // Tail.Write never fails
				o.Take(i, o.buf[:got])
			}
			switch {
			case errors.Is(err, unix.EAGAIN):
				n = rounds
			case errors.Is(err, unix.EINTR):
			case err != nil || got == 0:
				p.open = false
				o.Take(i, nil)
				_ = unix.Close(p.fd) // nothing was written to this end, so no data can be lost
			case got < len(o.buf)/2:
				n = rounds // this read has emptied the pipe
			}
		}
		open = open || p.open
	}
	if o.Pause != nil {
		return o.Pause(total), open
	}
	return pause, open
}
