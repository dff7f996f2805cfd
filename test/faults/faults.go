// Package faults runs tare and makes one of its system calls fail, or kills tare at that call. The calls are real ones
// of real runs: a seccomp filter hands those that touch files, control groups, mounts, namespaces and eBPF to this
// package (see seccomp_unotify(2)). The package counts the calls of tare's own processes by class, and answers one of
// them with an error. All others, and those of programs that tare starts, go on as if nothing had happened.
package faults

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"tare/test/binary"
)

// Class is a kind of system call: the call's name, and the kind of place of its file or, for bpf(), the command.
type Class struct {
	Call  string `json:"call"`
	Place string `json:"place"`
}

func (c Class) String() string { return c.Call + "/" + c.Place }

// Fault says what to do at the N-th call of a class, counted from 1: fail with Errno, or kill. The zero value does
// nothing.
type Fault struct {
	Class Class         `json:"class"`
	N     int           `json:"n"`
	Kill  bool          `json:"kill,omitempty"` // SIGKILL to tare itself, not to its children
	Errno syscall.Errno `json:"errno,omitempty"`
}

func (f Fault) String() string {
	what := "fails with " + unix.ErrnoName(f.Errno)
	if f.Kill {
		what = "kill -9"
	}
	return fmt.Sprintf("%s #%d: %s", f.Class, f.N, what)
}

// Result describes how a run ended.
type Result struct {
	Counts         map[Class]int // calls of tare's own processes; with a fault, only its system call, up to the fault
	Hit            string        // the call at which the fault was made; empty if it was never reached
	Code           int           // exit code; -1 if a signal ended tare
	TimedOut       bool
	Stdout, Stderr string
}

// Runner runs a binary under faults.
type Runner struct {
	Tare  string // the binary, by an absolute path
	under string // test/faults/under
}

// New returns a runner of the binary tare. It builds the program that applies the filter into dir.
func New(dir, tare string) (*Runner, error) {
	r := &Runner{Tare: tare, under: filepath.Join(dir, "under")}
	return r, binary.Program(r.under, "./test/faults/under")
}

// Run runs tare with the arguments and the fault in dir. A run that takes longer than limit gets SIGQUIT, which makes
// it print its goroutines, and is then killed.
func (r *Runner) Run(ctx context.Context, dir string, f Fault, limit time.Duration, args ...string) (*Result, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("making a socket pair: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	defer ours.Close()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, r.under, append([]string{f.Class.Call, r.Tare}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &stdout, &stderr
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGQUIT) }
	cmd.WaitDelay = 5 * time.Second // not a deadline: how long descendants may hold the output
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		return nil, fmt.Errorf("starting: %w", err)
	}
	s := &supervisor{tare: r.Tare, dir: dir, fault: f, pid: cmd.Process.Pid, counts: map[Class]int{}}
	supervised := make(chan error, 1)
	go func() { supervised <- s.run(ours) }()
	err = cmd.Wait()
	result := &Result{
		Counts: s.counts, Code: cmd.ProcessState.ExitCode(), TimedOut: ctx.Err() != nil,
		Stdout: stdout.String(), Stderr: stderr.String(),
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) && ctx.Err() == nil {
		return nil, fmt.Errorf("waiting: %w\n%s", err, stderr.Bytes())
	}
	// Descendants that tare left behind still have the filter. The caller looks for them, so do not wait for their end.
	select {
	case err = <-supervised:
	case <-time.After(10 * time.Second):
		s.stop()
		err = <-supervised
	}
	result.Hit = s.hit
	return result, err
}

// Choose picks a fault by seed from the counts of a run without a fault: first a class, so that rare kinds of calls
// have the same chance as frequent ones, then one of its calls and an error that this call can have.
func Choose(seed uint64, counts map[Class]int) Fault {
	rng := rand.New(rand.NewPCG(seed, 0))
	var classes []Class
	for c := range counts {
		classes = append(classes, c)
	}
	slices.SortFunc(classes, func(a, b Class) int {
		return cmp.Or(cmp.Compare(a.Call, b.Call), cmp.Compare(a.Place, b.Place))
	})
	c := classes[rng.IntN(len(classes))]
	f := Fault{Class: c, N: 1 + rng.IntN(counts[c])}
	if rng.IntN(4) == 0 {
		f.Kill = true
		return f
	}
	possible := errorsOf[c.Call]
	f.Errno = possible[rng.IntN(len(possible))]
	return f
}

// errorsOf are errors that each call can have on a sound kernel (their manual pages): no memory, no space, no rights,
// no descriptors, a broken disk.
var errorsOf = map[string][]syscall.Errno{
	"openat":    {unix.EACCES, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EIO, unix.ENOENT, unix.ENOSPC},
	"openat2":   {unix.EACCES, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EIO, unix.ENOENT, unix.ENOSPC},
	"mkdir":     {unix.EACCES, unix.ENOSPC, unix.ENOMEM, unix.EROFS, unix.EBUSY},
	"mkdirat":   {unix.EACCES, unix.ENOSPC, unix.ENOMEM, unix.EROFS, unix.EBUSY},
	"rmdir":     {unix.EBUSY, unix.EACCES, unix.EROFS},
	"unlinkat":  {unix.EBUSY, unix.EACCES, unix.EROFS, unix.EIO},
	"renameat":  {unix.EACCES, unix.ENOSPC, unix.EIO, unix.EXDEV},
	"renameat2": {unix.EACCES, unix.ENOSPC, unix.EIO, unix.EXDEV},
	"symlinkat": {unix.EACCES, unix.ENOSPC, unix.EROFS},
	"linkat":    {unix.EACCES, unix.ENOSPC, unix.EROFS},
	"read":      {unix.EIO, unix.ENOMEM},
	"pread64":   {unix.EIO, unix.ENOMEM},
	"write":     {unix.ENOSPC, unix.EIO, unix.EDQUOT, unix.EINVAL, unix.EBUSY, unix.ENOMEM},
	"pwrite64":  {unix.ENOSPC, unix.EIO, unix.EDQUOT},
	"ftruncate": {unix.EIO, unix.EFBIG},
	"fallocate": {unix.ENOSPC, unix.EIO},
	"fsync":     {unix.EIO, unix.ENOSPC},
	"fchmod":    {unix.EPERM, unix.EROFS},
	"fchmodat":  {unix.EPERM, unix.EROFS},
	"fchownat":  {unix.EPERM, unix.EROFS},
	"getdents":  {unix.EIO, unix.ENOMEM},
	"bpf":       {unix.EPERM, unix.ENOMEM, unix.EINVAL, unix.E2BIG, unix.EAGAIN},
	"perf_open": {unix.EPERM, unix.ENOMEM, unix.EMFILE, unix.EINVAL, unix.ENODEV},
	"mount":     {unix.EPERM, unix.ENOMEM, unix.EBUSY},
	"umount":    {unix.EBUSY, unix.EPERM},
	"unshare":   {unix.EPERM, unix.ENOMEM, unix.ENOSPC},
	"setns":     {unix.EPERM, unix.ENOMEM, unix.EINVAL},
	"memfd":     {unix.EMFILE, unix.ENOMEM},
	"inotify":   {unix.ENOSPC, unix.ENOMEM},
	"flock":     {unix.EWOULDBLOCK, unix.ENOLCK},
}
