// Package proc reads what the kernel exposes about the machine and its processes under /proc and /sys: raw counters
// and names without interpretation. Processes come and go while they are read; ErrGone distinguishes a process that is
// gone from a failure.
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

// ErrGone matches (errors.Is) errors about a process or thread that no longer exists.
var ErrGone = errors.New("the process does not exist any more")

// FS reads the files below a root. The zero value reads those of the machine that we run on.
type FS struct {
	Root string // prepended to /proc, /sys, /etc and /boot; for trees of test files
}

func (f FS) path(elem ...string) string {
	return filepath.Join(append([]string{f.Root, "/"}, elem...)...)
}

// text returns the content of a file without surrounding white space; empty if it cannot be read.
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

// ticksPerSecond is USER_HZ, the unit of times in /proc, which each process gets from the kernel (AT_CLKTCK, type 17,
// in its auxiliary vector).
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

// gone replaces errors that mean that a process does not exist by ErrGone.
func gone(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
		return ErrGone
	}
	return err
}

func about(pid int, what string, err error) error {
	return fmt.Errorf("reading %s of process %d: %w", what, pid, err)
}
