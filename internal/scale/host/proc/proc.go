// Package proc reads what the kernel tells of the machine and its processes under /proc and /sys: counters and names as
// they are, nothing interpreted. Processes come and go while they are read: a process that has gone is ErrGone, to be
// told apart from a failure.
package proc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// ErrGone is matched (errors.Is) by the error about a process or thread that does not exist any more.
var ErrGone = errors.New("the process does not exist any more")

// FS reads the files below a root. The zero value reads those of the machine that we run on.
type FS struct {
	Root string // put before /proc, /sys, /etc and /boot; for trees of test files
}

func (f FS) path(elem ...string) string {
	return filepath.Join(append([]string{f.Root, "/"}, elem...)...)
}

// text is the content of a file without surrounding white space; empty where it cannot be read.
func (f FS) text(elem ...string) string {
	b, err := os.ReadFile(f.path(elem...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func (f FS) has(name string) bool {
	_, err := os.Lstat(f.path(name))
	return err == nil
}

// ticksPerSecond is USER_HZ, the unit of times in /proc, as the kernel tells each process (AT_CLKTCK, type 17, in its
// auxiliary vector).
var ticksPerSecond = sync.OnceValue(func() float64 {
	const clktck, usual = 17, 100
	vector, err := unix.Auxv()
	if err != nil {
		return usual
	}
	for _, pair := range vector {
		if pair[0] == clktck && pair[1] > 0 {
			return float64(pair[1])
		}
	}
	return usual
})

// gone turns the errors by which the kernel says that a process does not exist into ErrGone.
func gone(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
		return ErrGone
	}
	return err
}

func about(pid int, what string, err error) error {
	return fmt.Errorf("reading %s of process %d: %w", what, pid, err)
}
