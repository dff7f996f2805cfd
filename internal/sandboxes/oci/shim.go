package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/link"
	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
	"tare/internal/sandboxes/microvm"
	"tare/internal/scale/host/proc"
)

// ShimCommand is the hidden command with which the tare binary runs as a container's shim. Job.Args returns its
// arguments.
const ShimCommand = "_shim"

// idFlag precedes the id of the container, as with containerd's shims, so that tools can find out to which container
// the process belongs.
const idFlag = "-id"

// Args returns the arguments with which the tare binary runs as the shim of a job that was written to path.
func (j Job) Args(path string) []string { return []string{ShimCommand, idFlag, j.Container.ID, path} }

// Job describes a shim's work: it creates and starts a container with the shim's standard streams, waits for its end,
// and deletes it. It forwards signals to the container. If the container does not end after the parent has closed
// standard input, the shim kills it.
type Job struct {
	Container Container `json:"container"`

	// Own means that the shim has a separate network namespace, which it must set up. If a pair of virtual interfaces
	// (package link) leads into the namespace, Address is the address of the interface inside. Otherwise it is invalid.
	Own     bool         `json:"own_network"`
	Address netip.Prefix `json:"address,omitzero"`
}

// Times holds the times of events of a container, by CLOCK_MONOTONIC in nanoseconds. A time is 0 if the event has not
// happened.
type Times struct {
	Create  int64 `json:"create_ns"`  // when the runtime's create command began
	Created int64 `json:"created_ns"` // when the runtime's create command had ended
	Started int64 `json:"started_ns"` // when the runtime's start command had ended
	Told    int64 `json:"told_ns"`    // when the parent first sent a signal, or closed standard input
	Exited  int64 `json:"exited_ns"`  // when the container's process had ended
	Deleted int64 `json:"deleted_ns"` // when the runtime's delete command had ended

	PID    int  `json:"pid"`              // the process that the runtime reports
	Killed bool `json:"killed,omitempty"` // the shim killed the container, which did not end by itself

	// OutOfMemory lists the processes that a guest's kernel killed because it was out of memory, if the runtime reports
	// them.
	OutOfMemory []microvm.Kill `json:"out_of_memory,omitempty"`
}

// The files in the directory of a job.
const (
	jobFile   = "job.json"
	timesFile = "times.json"
	saidFile  = "said.json"
)

// Write writes the job to a file in a directory, and returns the file's path.
func (j Job) Write(dir string) (string, error) {
	path := filepath.Join(dir, jobFile)
	return path, writeJSON(path, j)
}

// ReadTimes reads the times of the job in a directory. Times that the shim has not recorded yet are 0.
func ReadTimes(dir string) (t Times, err error) {
	text, err := os.ReadFile(filepath.Join(dir, timesFile))
	if errors.Is(err, os.ErrNotExist) {
		return t, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &t)
	}
	if err != nil {
		return t, fmt.Errorf("reading the times of a container: %w", err)
	}
	return t, nil
}

func writeJSON(path string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// endTime is the time that the container gets to end after its standard input has ended. Then the shim kills it.
const endTime = 1500 * time.Millisecond

// shim is the state of a running shim.
type shim struct {
	Job
	dir    string
	reaper *reaper

	mu    sync.Mutex
	times Times
}

// Shim runs a container's shim (ShimCommand). It returns the exit status of the container, which is 128 plus the
// signal's number if a signal killed the container.
func Shim(args []string) (status int, err error) {
	if len(args) != 3 || args[0] != idFlag {
		return 0, fault.New(fault.Usage, ShimCommand, "tare calls this command itself",
			"it takes the id of a container and the path of a job")
	}
	path := args[2]
	s := &shim{dir: filepath.Dir(path)}
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &s.Job)
	}
	if err != nil {
		return 0, fault.Wrap(err, fault.Usage, path, "tare calls this command itself", "it is no job of a shim")
	}
	// This process becomes the parent of processes that the runtime leaves running, so that it can wait for them.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 0, fmt.Errorf("becoming the parent of orphans: %w", err)
	}
	if err := s.network(); err != nil {
		return 0, err
	}
	s.reaper = newReaper()
	return s.run()
}

// network sets up the shim's network namespace, if it has a separate one: the loopback interface and, if the job has an
// address, the end of the pair of interfaces, which already exists.
func (s *shim) network() error {
	if !s.Own {
		return nil
	}
	if !s.Address.IsValid() {
		return link.Configure("lo", "", netip.Prefix{})
	}
	return link.ConfigureInside(s.Address)
}

func (s *shim) run() (int, error) {
	c := s.Container
	// From now on the streams belong to the container: this process does not read them.
	s.note(func(t *Times) { t.Create = pace.Now() })
	defer s.delete()
	if err := s.command("create", "--bundle", c.Bundle, "--pid-file", c.pidFile(), c.ID); err != nil {
		return 0, err
	}
	pid, err := readPID(c.pidFile())
	if err != nil {
		return 0, err
	}
	s.note(func(t *Times) { t.Created, t.PID = pace.Now(), pid })
	if err := s.command("start", c.ID); err != nil {
		return 0, err
	}
	s.note(func(t *Times) { t.Started = pace.Now() })
	ended, own := s.reaper.ended(pid), s.reaper.isChild(pid)
	if !own {
		ended = endOf(pid)
	}
	go s.forward()
	go s.watchInput(ended)
	<-ended
	s.note(func(t *Times) { t.Exited = pace.Now() })
	if !own {
		return s.saidStatus(), nil
	}
	ws := s.reaper.status(pid)
	if ws.Signaled() {
		return 128 + int(ws.Signal()), nil
	}
	return ws.ExitStatus(), nil
}

// isChild reports whether a process is a child of this one. Processes that a runtime leaves behind become children of
// this one, unless the runtime keeps a parent running that waits for them, as it may for a virtual machine. A process
// that has ended was a child if the reaper waited for it.
func (r *reaper) isChild(pid int) bool {
	if p, err := (proc.FS{}).Process(pid); err == nil {
		return p.PPID == os.Getpid()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	_, known := r.known[pid]
	return known
}

// endOf returns a channel that is closed when a process has ended. The process need not be a child.
func endOf(pid int) <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = proc.Await(pid, func() bool { return true }, -1) // a process that cannot be opened has ended
	}()
	return ended
}

// The interval between checks of a container's state, and the maximum number of checks: some runtimes report a
// container as stopped only a moment after its end.
const (
	stopStep  = 20 * time.Millisecond
	stopSteps = 50
)

// saidStatus returns the container's exit status from an annotation of its state, once the runtime reports that the
// container has stopped. It returns 0 if the runtime does not report the status, or does not report the stop in time.
func (s *shim) saidStatus() int {
	for range stopSteps {
		var state State
		text, err := s.said("state", s.Container.ID)
		if err != nil || json.Unmarshal(text, &state) != nil {
			return 0
		}
		if state.Status == "stopped" {
			status, _ := strconv.Atoi(state.Annotations[microvm.Annotation+"exit_code"])
			s.note(func(t *Times) { t.OutOfMemory = state.OutOfMemory() })
			return status
		}
		time.Sleep(stopStep)
	}
	return 0
}

// said returns the output of a command of the runtime. The output goes through a file, because the reaper waits for all
// children.
func (s *shim) said(args ...string) ([]byte, error) {
	out, err := os.Create(filepath.Join(s.dir, saidFile))
	if err != nil {
		return nil, err
	}
	defer out.Close()
	ws, err := s.reaper.runTo(out.Fd(), s.Container.Runtime.command(s.Container.Root, args...))
	if err == nil && ws.ExitStatus() != 0 {
		err = fmt.Errorf("%s %s failed with exit status %d", s.Container.Runtime.Name, args[0], ws.ExitStatus())
	}
	if err != nil {
		return nil, err
	}
	return os.ReadFile(out.Name())
}

// command runs a command of the runtime with the streams of this process, to which the runtime prints its errors.
func (s *shim) command(args ...string) error {
	ws, err := s.reaper.run(s.Container.Runtime.command(s.Container.Root, args...))
	if err != nil {
		return err
	}
	if ws.ExitStatus() != 0 {
		return fault.New(fault.Machine, s.Container.Runtime.Name+" "+args[0], "its own messages are above this line",
			"it failed with exit status %d", ws.ExitStatus())
	}
	return nil
}

func (s *shim) note(set func(*Times)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	set(&s.times)
	_ = writeJSON(filepath.Join(s.dir, timesFile), s.times) // an error only means that the evidence lacks the times
}

// forward forwards signals to the container.
func (s *shim) forward() {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2)
	for got := range signals {
		s.told()
		number, ok := got.(syscall.Signal)
		if !ok {
			continue
		}
		_ = s.command("kill", s.Container.ID, strings.TrimPrefix(unix.SignalName(number), "SIG")) // it may have ended
	}
}

func (s *shim) told() {
	s.note(func(t *Times) {
		if t.Told == 0 {
			t.Told = pace.Now()
		}
	})
}

// watchInput kills the container if it is still running some time after its standard input has ended.
func (s *shim) watchInput(ended <-chan struct{}) {
	fds := []unix.PollFd{{Fd: 0}} // POLLHUP, which is always reported, means that all writers have closed the pipe
	for {
		if _, err := unix.Poll(fds, -1); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	s.told()
	select {
	case <-ended:
		return
	case <-time.After(endTime):
	}
	s.note(func(t *Times) { t.Killed = true })
	_ = s.command("kill", s.Container.ID, "KILL") // the container may have ended
}

// delete removes the container.
func (s *shim) delete() {
	_ = s.command("delete", "--force", s.Container.ID) // if this fails, the leftovers are found at the end of the trial
	s.note(func(t *Times) { t.Deleted = pace.Now() })
}

func readPID(path string) (int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("reading which process the runtime created: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 0 {
		return 0, fmt.Errorf("the runtime created process %q", text)
	}
	return pid, nil
}

// reaper waits for all children, including those that the runtime left behind, because some runtimes consider a zombie
// to be a running process.
type reaper struct {
	mu     sync.Mutex
	known  map[int]unix.WaitStatus // children that have ended, by pid
	waited map[int]chan struct{}   // channels that reap closes when a child has ended, by pid
}

func newReaper() *reaper {
	r := &reaper{known: map[int]unix.WaitStatus{}, waited: map[int]chan struct{}{}}
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	go func() {
		for range children {
			r.reap()
		}
	}()
	return r
}

func (r *reaper) reap() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, unix.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		r.known[pid] = ws
		if c := r.waited[pid]; c != nil {
			close(c)
			delete(r.waited, pid)
		}
	}
}

// ended returns a channel that is closed when a child has ended. It must be called only once for each child.
func (r *reaper) ended(pid int) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := make(chan struct{})
	if _, has := r.known[pid]; has {
		close(c)
		return c
	}
	r.waited[pid] = c
	return c
}

func (r *reaper) status(pid int) unix.WaitStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known[pid]
}

// run runs a program with the streams of this process.
func (r *reaper) run(argv []string) (unix.WaitStatus, error) { return r.runTo(1, argv) }

// runTo runs a program with standard output redirected.
func (r *reaper) runTo(out uintptr, argv []string) (unix.WaitStatus, error) {
	r.mu.Lock() // so that the child is not reaped before an older entry with its pid is deleted
	pid, err := syscall.ForkExec(argv[0], argv, &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, out, 2}})
	if err == nil {
		delete(r.known, pid) // an entry of an earlier child
	}
	r.mu.Unlock()
	if err != nil {
		return 0, fmt.Errorf("starting %s: %w", argv[0], err)
	}
	<-r.ended(pid)
	return r.status(pid), nil
}

// Abandon deletes the container of a job whose shim has ended, if the runtime still has it.
func (j Job) Abandon(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	if _, err := j.Container.State(ctx); err != nil {
		return nil // the runtime does not have the container
	}
	return j.Container.Delete(ctx)
}
