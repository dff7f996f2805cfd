package placement

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"tare/internal/experiment/child"
	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/proc"
)

// EnterCommand is the hidden command with which the binary starts itself again to enter a group. Its arguments are for
// Enter.
const EnterCommand = "_enter"

// startRequest asks the starting thread to start a command.
type startRequest struct {
	cmd  *exec.Cmd
	done chan error
}

// serveStarts starts processes, all from one thread that lives as long as the tree. A process that is to die with its
// parent gets the signal when the thread that started it ends, not the parent process (PR_SET_PDEATHSIG(2const)).
func (t *Tree) serveStarts() {
	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() {
		// The first thread of a process never ends, so it blocks while another thread serves.
		go t.serveStarts()
		<-t.exited
		runtime.UnlockOSThread()
		return
	}
	defer close(t.exited) // still locked: the thread ends with the goroutine
	for r := range t.start {
		r.done <- r.cmd.Start()
	}
}

// Start starts a command inside the group: the program runs there from its first instruction. The program dies with
// this process, however this process ends. The caller prepares cmd as usual (arguments, pipes, context) and waits for
// it. This binary starts itself again as EnterCommand, which enters the group and then becomes the program; Start sets
// the arguments for that. If the program cannot be run, Start therefore succeeds, and the process fails with the reason
// on its standard error.
func (g *Group) Start(cmd *exec.Cmd) error { return g.StartIn(cmd, "") }

// In returns a Starter that calls StartIn with the given network.
func (g *Group) In(network string) child.Starter {
	return func(cmd *exec.Cmd) error { return g.StartIn(cmd, network) }
}

// StartIn starts a command like Start, but in the network namespace at a path, which must exist until the program
// runs. Empty: this process's namespace.
func (g *Group) StartIn(cmd *exec.Cmd, network string) error {
	if cmd.Err != nil {
		return fmt.Errorf("starting a process in %s: %w", g.name, cmd.Err)
	}
	if len(os.Args) > 1 && os.Args[1] == EnterCommand {
		// A binary that does not implement the command would start itself endlessly.
		return fmt.Errorf("starting a process in %s: this process was started as %s, and is to become another program",
			g.name, EnterCommand)
	}
	t := g.tree
	args := append(slices.Clone(enterArgs), "--group="+g.name, "--pin="+strconv.Itoa(g.pin), "--network="+network)
	for _, h := range t.hs {
		args = append(args, t.entry(h, g.name))
	}
	cmd.Args = slices.Concat(args, []string{"--", cmd.Path}, cmd.Args)
	cmd.Path = "/proc/self/exe"
	cmd.Env = append(cmd.Environ(), child.Mark+"="+t.name)
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &unix.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = unix.SIGKILL

	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return fmt.Errorf("starting a process in %s: the tree is closed", g.name)
	}
	if g.inner {
		return fault.New(fault.Usage, g.name, "start it in one of them",
			"a group that has groups in it cannot have processes")
	}
	g.used = true
	r := startRequest{cmd, make(chan error, 1)}
	t.start <- r
	if err := <-r.done; err != nil {
		return fmt.Errorf("starting a process in %s: %w", g.name, err)
	}
	// The process is not reaped before Start returns, so its pid cannot have been reused.
	p, err := proc.FS{}.Process(cmd.Process.Pid)
	if err != nil {
		_ = cmd.Process.Kill()
		go cmd.Wait() // Wait may block while other processes hold the command's output open
		return fmt.Errorf("starting a process in %s: %w", g.name, err)
	}
	t.started[p.PID] = starting{p.Start, g.name}
	return nil
}

// enterArgs are the first arguments of a process that is about to enter a group.
var enterArgs = []string{"tare", EnterCommand}

// enterNetwork moves this thread, and the program that it becomes, into a network namespace.
func enterNetwork(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("entering a network namespace: %w", err)
	}
	defer f.Close()
	if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("entering the network namespace %s: %w", path, err)
	}
	return nil
}

// pinTo restricts this process to the n-th of its allowed CPUs, counted from 1 and wrapping around.
func pinTo(n int) error {
	cpus, err := pace.AllowedCPUs()
	if err != nil {
		return err
	}
	return pace.RunOn(cpus[(n-1)%len(cpus)])
}

// Enter is the body of EnterCommand. args are flags and directories of groups, "--", the path of a program, and its
// argv. Enter moves this process into the groups and becomes the program. It returns only with an error, which has the
// code fault.Machine if a group could not be entered and fault.Usage if the program could not be run.
func Enter(args []string) error {
	i := slices.Index(args, "--")
	if i < 0 || len(args) < i+3 {
		return fault.New(fault.Usage, EnterCommand, "",
			"the arguments are not directories, --, and a program with its arguments")
	}
	flags := pflag.NewFlagSet(EnterCommand, pflag.ContinueOnError)
	flags.Usage = func() {}
	group := flags.String("group", "", "name of the group, for the mark of what is started in it")
	pin := flags.Uint("pin", 0, "the one CPU that the process runs on, as in Limits; 0: all")
	network := flags.String("network", "", "path of the network namespace that the program runs in; empty: this one")
	if err := flags.Parse(args[:i]); err != nil {
		return fault.Wrap(err, fault.Usage, EnterCommand, "", "the arguments are not those of Group.Start")
	}
	// The death signal belongs to a thread, and only the thread that becomes the program survives.
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("asking to die with the parent: %w", err)
	}
	if o, ok := parseTreeName(os.Getenv(child.Mark)); ok && os.Getppid() != o.PID {
		return fmt.Errorf("the run that started this process has ended")
	}
	markByFile(os.Getenv(child.Mark)) // before the group is entered, so that the cost is not charged to the group
	markByLimit(os.Getenv(child.Mark), *group)
	if *pin > 0 {
		if err := pinTo(int(*pin)); err != nil {
			return err
		}
	}
	if *network != "" {
		if err := enterNetwork(*network); err != nil {
			return err
		}
	}
	for _, dir := range flags.Args() {
		if err := cgroup.Write(filepath.Join(dir, "cgroup.procs"), "0"); err != nil {
			return fault.Wrap(err, fault.Machine, dir, "see 'tare doctor'", "entering the control group")
		}
	}
	program := args[i+1]
	err := unix.Exec(program, args[i+2:], os.Environ())
	return fault.Wrap(err, fault.Usage, program, "", "cannot run %s", strings.Join(args[i+2:], " "))
}

// The range of descriptors for marks by file. It is above the descriptors that programs rely on, and below 64, because
// the first table of descriptors that the kernel gives a process has 64 entries (NR_OPEN_DEFAULT in
// include/linux/fdtable.h).
const (
	firstMarkFD = 32
	lastMarkFD  = 63
)

// markByFile marks this process as part of a tree by an open file, in addition to the environment. The program that it
// becomes may overwrite its environment, as servers do that show a title in ps, and may close the file, as some
// daemons do, but hardly both. Forks inherit the file. It is empty, in memory, and has the name of the tree; no other
// user can open it. Errors are ignored.
func markByFile(tree string) {
	for fd := firstMarkFD; fd <= lastMarkFD; fd++ { // this run may be inside another run
		if markOfFD(os.Getpid(), fd) != "" {
			_ = unix.Close(fd) // nothing was written to it
		}
	}
	fd, err := unix.MemfdCreate(tree, unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate(tree, unix.MFD_CLOEXEC)
	}
	if err != nil {
		return
	}
	defer unix.Close(fd)
	_, _ = unix.FcntlInt(uintptr(fd), unix.F_DUPFD, firstMarkFD) // fails if that is above the limit of open files
}

// markOfFD returns the name of the tree that a descriptor of a process names as a mark (markByFile), or "" if it is no
// mark. Another process can pass the process a file with a name of its choice (SCM_RIGHTS of unix(7)). A file is
// therefore ignored if its owner is neither this user nor the process's, or if its run began after the process.
func markOfFD(pid, fd int) string {
	path := fmt.Sprintf("/proc/%d/fd/%d", pid, fd)
	file, _ := os.Readlink(path) // "/memfd:NAME (deleted)" (proc_pid_fd(5))
	name, is := strings.CutPrefix(file, "/memfd:")
	name, _ = strings.CutSuffix(name, " (deleted)")
	owner, ok := parseTreeName(name)
	if !is || !ok {
		return ""
	}
	var st, of unix.Stat_t // the owner of a memfd is always the user who made it
	if unix.Stat(path, &st) != nil || unix.Stat(fmt.Sprintf("/proc/%d", pid), &of) != nil {
		return ""
	}
	if int64(st.Uid) != int64(os.Geteuid()) && st.Uid != of.Uid {
		return ""
	}
	if p, err := (proc.FS{}).Process(pid); err != nil || p.Start < owner.Start && owner.Namespace == 0 {
		return ""
	}
	return name
}

// markByLimit marks this process as part of a tree once more, by its limit of file locks (RLIMIT_LOCKS), which the
// kernel has not enforced since Linux 2.4.25 (getrlimit(2)). A program may start others with an empty environment and
// without open files, as daemons do, but they still inherit the limit. Errors are ignored.
func markByLimit(tree, group string) {
	if _, ok := parseTreeName(tree); ok {
		// Raising the limit, for a run inside another run, needs root.
		_ = unix.Setrlimit(unix.RLIMIT_LOCKS, &unix.Rlimit{Cur: groupMark(tree, group), Max: limitMark(tree)})
	}
}

// limitMark returns the hard limit that marks a process as part of a tree: finite, but too large to occur by chance.
func limitMark(tree string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(tree)) // never fails
	return 1<<62 | h.Sum64()>>2
}

// groupMark returns the soft limit that marks a process as started in a group of a tree. It is below every hard limit
// that limitMark returns.
func groupMark(tree, group string) uint64 { return limitMark(tree+"/"+group) >> 1 }

// limitOf returns the limit of file locks of a process, or 0 if it cannot be read.
func limitOf(pid int) (limit unix.Rlimit) {
	if err := unix.Prlimit(pid, unix.RLIMIT_LOCKS, nil, &limit); err != nil {
		return unix.Rlimit{}
	}
	return limit
}
