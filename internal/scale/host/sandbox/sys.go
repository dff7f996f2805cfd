package sandbox

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/lib/pace"
)

// ownTime returns the CPU time of this process. The difference between two calls is the cost of a reading between them,
// because Tare does nothing else meanwhile.
func ownTime() time.Duration { return time.Duration(pace.Clock(unix.CLOCK_PROCESS_CPUTIME_ID)) }

// readFile reads the beginning of a file into the reader's buffer.
func (r *Reader) readFile(name string) ([]byte, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	n := 0
	for n < len(r.buf) {
		m, err := unix.Read(fd, r.buf[n:])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, err
		case m == 0:
			return r.buf[:n], nil
		}
		n += m
	}
	return r.buf[:n], nil
}
