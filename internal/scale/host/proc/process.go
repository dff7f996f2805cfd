package proc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"tare/internal/lib/lists"

	"golang.org/x/sys/unix"
)

// Process is what /proc/<pid>/stat tells of a process (proc_pid_stat(5)).
type Process struct {
	PID   int
	Comm  string
	State byte // R, S, D, Z (dead, not yet waited for), ...
	PPID  int
	// Session is the process that leads its session; 0 where that is in another PID namespace.
	Session int
	// Start is when it started, in ticks of USER_HZ since the machine did. With the PID it names a process for good,
	// unless the PID comes round again within one tick.
	Start   uint64
	Threads int  // of the process that are left, its first one too while nobody has waited for it
	Kernel  bool // a kernel thread
	Forked  bool // it has not executed a program since fork(2)
	// Ticks is the CPU time of its threads, those that have ended too, and ChildTicks that of the children that it has
	// waited for, with theirs: in ticks of USER_HZ, rounded down twice each.
	Ticks, ChildTicks uint64

	exiting bool // it is about to end
}

// Age is how long ago a process started, to a tick of USER_HZ.
func (f FS) Age(pid int) (time.Duration, error) {
	p, err := f.Process(pid)
	if err != nil {
		return 0, err
	}
	return f.Since(p.Start)
}

// Since is how long ago a time is that is given as Process.Start is.
func (FS) Since(start uint64) (time.Duration, error) {
	now, err := sinceBoot()
	return now - time.Duration(float64(start)/ticksPerSecond()*1e9), err
}

// Now is the time as Process.Start gives it: the start of one that starts now.
func (FS) Now() (uint64, error) {
	now, err := sinceBoot()
	return uint64(now.Seconds() * ticksPerSecond()), err
}

func sinceBoot() (time.Duration, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return 0, fmt.Errorf("reading CLOCK_BOOTTIME: %w", err)
	}
	return time.Duration(now.Nano()), nil
}

// Seconds is a time that is given in ticks of USER_HZ.
func (FS) Seconds(ticks uint64) float64 { return float64(ticks) / ticksPerSecond() }

// PF_KTHREAD, PF_EXITING and PF_FORKNOEXEC of include/linux/sched.h.
const (
	pfKthread    = 0x00200000
	pfExiting    = 0x00000004
	pfForkNoExec = 0x00000040
)

// Alive says whether the process can still run. The state is that of its first thread, which may have ended before
// others: one that calls execve kills all of them and waits until the first is dead (de_thread in fs/exec.c), which to
// a reader of /proc is a zombie until its place is taken.
func (p Process) Alive() bool { return !p.firstDead() || p.Threads > 1 }

// Exiting says whether the first thread has ended or is about to; given the number of a thread, whether that one has.
// Then v1 control groups have it in the root group (proc_cgroup_show in kernel/cgroup/cgroup.c).
func (p Process) Exiting() bool { return p.exiting || p.firstDead() }

func (p Process) firstDead() bool { return p.State == 'Z' || p.State == 'X' || p.State == 'x' }

// Ending says whether a living process is sure to end: SIGKILL is pending, or each of its threads is ending or killed. It
// may be seen for seconds yet, while it waits in the kernel or gives its memory back.
func (f FS) Ending(pid int) bool {
	if p, err := f.Process(pid); err != nil || !p.Alive() {
		return false
	}
	if sigkillPending(f.path("proc", strconv.Itoa(pid), "status"), "ShdPnd:") {
		return true
	}
	// One that exits kills its other threads one by one (zap_other_threads in kernel/signal.c), as one does that calls
	// execve(2) and lives on.
	tasks := f.tasks(pid, "stat")
	for _, task := range tasks {
		b, err := os.ReadFile(task)
		if err != nil {
			continue // the thread has ended
		}
		t, err := parseProcess(b)
		if err != nil || !t.Exiting() && !sigkillPending(filepath.Join(filepath.Dir(task), "status"), "SigPnd:") {
			return false
		}
	}
	return len(tasks) > 0
}

// sigkillPending reads one of the sets of pending signals in a file status (proc_pid_status(5)).
func sigkillPending(path, set string) bool {
	b, _ := os.ReadFile(path) // what has ended has none
	for line := range bytes.Lines(b) {
		if value, ok := bytes.CutPrefix(line, []byte(set)); ok {
			signals, err := strconv.ParseUint(string(bytes.TrimSpace(value)), 16, 64)
			return err == nil && signals&(1<<(unix.SIGKILL-1)) != 0
		}
	}
	return false
}

// Process reads /proc/<pid>/stat.
func (f FS) Process(pid int) (p Process, err error) {
	const most = 16 // looks; two were never seen
	for range most {
		var b []byte
		if b, err = f.read(pid, "stat"); err != nil {
			return Process{}, err
		}
		if p, err = parseProcess(b); err != nil {
			return Process{}, about(pid, "stat", err)
		}
		// The kernel counts no threads where the one it found has been waited for meanwhile (do_task_stat in
		// fs/proc/array.c). The process is gone then, or another thread has taken its place.
		if p.Threads > 0 {
			break
		}
	}
	return p, nil
}

func parseProcess(b []byte) (Process, error) {
	// The name may hold anything, brackets and spaces too, so its end is the last bracket.
	open, shut := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 1 || shut < open {
		return Process{}, errors.New("no name in brackets")
	}
	p := Process{Comm: string(b[open+1 : shut])}
	rest := strings.Fields(string(b[shut+1:])) // from field 3, the state
	if len(rest) < 20 || len(rest[0]) != 1 {
		return Process{}, fmt.Errorf("%d fields after the name", len(rest))
	}
	p.State = rest[0][0]
	var flags uint64
	var errs [10]error
	p.PID, errs[0] = strconv.Atoi(string(bytes.TrimSpace(b[:open])))
	p.PPID, errs[1] = strconv.Atoi(rest[1])
	flags, errs[2] = strconv.ParseUint(rest[6], 10, 64)
	p.Start, errs[3] = strconv.ParseUint(rest[19], 10, 64)
	p.Threads, errs[4] = strconv.Atoi(rest[17])
	p.Session, errs[9] = strconv.Atoi(rest[3])
	for i, sum := range []*uint64{&p.Ticks, &p.Ticks, &p.ChildTicks, &p.ChildTicks} { // utime, stime, cutime, cstime
		var n uint64
		n, errs[5+i] = strconv.ParseUint(rest[11+i], 10, 64)
		*sum += n
	}
	p.Kernel, p.Forked, p.exiting = flags&pfKthread != 0, flags&pfForkNoExec != 0, flags&pfExiting != 0
	return p, errors.Join(errs[:]...)
}

// read reads a file of a process; its error matches ErrGone where the process does not exist.
func (f FS) read(pid int, name string) ([]byte, error) {
	b, err := os.ReadFile(f.path("proc", strconv.Itoa(pid), name))
	if err != nil {
		return nil, about(pid, name, gone(err))
	}
	return b, nil
}

// Entry is a process in the list of all. Inode is that of its directory: while the process lives and the kernel keeps
// the directory cached it does not change, and no other process has it, so that a list of entries tells for nothing
// which processes are new (proc_pid_make_inode in fs/proc/base.c gives each a number of its own).
type Entry struct {
	PID   int
	Inode uint64
}

// Entries lists the processes, appending to all. The buffer is used for what the kernel writes.
func (f FS) Entries(all []Entry, buffer []byte) ([]Entry, error) {
	fd, err := unix.Open(f.path("proc"), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	defer unix.Close(fd)
	err = EachDirent(fd, buffer, func(inode uint64, _ byte, name []byte) {
		if pid := entryPID(name); pid > 0 {
			all = append(all, Entry{PID: pid, Inode: inode})
		}
	})
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	return all, nil
}

// EachDirent visits the entries of an open directory, with their types (unix.DT_DIR) and names, which end in a zero
// byte. The buffer is used for what the kernel writes.
func EachDirent(fd int, buffer []byte, visit func(inode uint64, kind byte, name []byte)) error {
	for {
		n, err := unix.ReadDirent(fd, buffer)
		if err != nil || n <= 0 {
			return err
		}
		// struct linux_dirent64: inode u64, offset s64, length u16, type u8, name.
		const header = 19
		for b := buffer[:n]; len(b) >= header; {
			size := int(binary.NativeEndian.Uint16(b[16:]))
			if size < header || size > len(b) {
				break
			}
			visit(binary.NativeEndian.Uint64(b), b[18], b[header:size])
			b = b[size:]
		}
	}
}

// entryPID reads a name that ends in a zero byte; 0 for what is no pid.
func entryPID(name []byte) int {
	pid := 0
	for _, c := range name {
		switch {
		case c == 0:
			return pid
		case c < '0' || c > '9' || pid > 1<<24:
			return 0
		}
		pid = pid*10 + int(c-'0')
	}
	return pid
}

// PIDs lists the processes.
func (f FS) PIDs() ([]int, error) {
	entries, err := f.Entries(nil, make([]byte, 32<<10))
	if err != nil {
		return nil, err
	}
	return lists.Map(entries, func(e Entry) int { return e.PID }), nil
}

// Processes reads all processes, by pid. One that cannot be read, such as one that ends meanwhile, is left out.
func (f FS) Processes() (map[int]Process, error) {
	pids, err := f.PIDs()
	if err != nil {
		return nil, err
	}
	all := make(map[int]Process, len(pids))
	for _, pid := range pids {
		if p, err := f.Process(pid); err == nil {
			all[pid] = p
		}
	}
	return all, nil
}

// Comm is the name of a process, at most 15 bytes; a process may set it as it likes.
func (f FS) Comm(pid int) (string, error) {
	b, err := f.read(pid, "comm")
	return strings.TrimSuffix(string(b), "\n"), err
}

// Exe is the file that a process runs; with " (deleted)" behind it where that was replaced. A kernel thread has none:
// empty.
func (f FS) Exe(pid int) (string, error) {
	exe, err := os.Readlink(f.path("proc", strconv.Itoa(pid), "exe"))
	if err == nil {
		return exe, nil
	}
	if errors.Is(err, os.ErrNotExist) && f.exists(pid) {
		return "", nil
	}
	return "", about(pid, "exe", gone(err))
}

func (f FS) exists(pid int) bool { return f.has("proc/" + strconv.Itoa(pid)) }

// maxStrings is how much of the arguments or of the environment of a process is read, in bytes: as much as the kernel
// lets a program start with (execve(2)). A process may say that they are somewhere else, where there are gigabytes
// (PR_SET_MM of prctl(2)).
const maxStrings = 6 << 20

// Cmdline is the arguments of a process; none for a kernel thread or a zombie.
func (f FS) Cmdline(pid int) ([]string, error) {
	b, err := f.readAtOnce(pid, "cmdline")
	return list(b), err
}

// Getenv is the value of a variable in the environment that a process was started with; false: it has none. A kernel
// thread and a process that has ended or is about to have no environment, or are ErrGone, as the kernel has it. One
// that calls execve has none for a moment, and Getenv waits for it, a second at most and no longer than the patience
// that is left, from which it takes what it waited: after that its error says so. Any process can look as if it did.
//
// Of the time between two looks, 10 ms count: where the whole machine stood still, as virtual ones do for seconds, the
// process has not had that time either.
func (f FS) Getenv(pid int, name string, patience *time.Duration) (value string, has bool, err error) {
	const most, mostUnsure, mostOfALook = time.Second, 50 * time.Millisecond, 10 * time.Millisecond
	var waited, sure time.Duration // sure: what it had waited when it last saw the process becoming another program
	for last := time.Now(); ; time.Sleep(time.Millisecond) {
		b, err := f.readAtOnce(pid, "environ")
		if err != nil {
			return "", false, err
		}
		if len(b) > 0 {
			value, has = variable(b, name)
			return value, has, nil
		}
		if b, err = f.read(pid, "stat"); err != nil {
			return "", false, err
		}
		what, now := becoming(b), time.Now()
		waited, last = waited+min(now.Sub(last), mostOfALook), now
		switch {
		case what == itself:
			return "", false, nil
		case what == itselfOrAnother && (waited > *patience || waited-sure > mostUnsure):
			*patience -= waited
			return "", false, nil
		case waited > min(*patience, most):
			*patience -= waited
			return "", false, about(pid, "environ", errors.New("it is becoming another program (execve)"))
		case what == another:
			sure = waited
		}
	}
}

// variable finds a variable in an environment.
func variable(environment []byte, name string) (value string, has bool) {
	for len(environment) > 0 {
		line, rest, _ := bytes.Cut(environment, []byte{0})
		if value, is := bytes.CutPrefix(line, []byte(name+"=")); is {
			return string(value), true
		}
		environment = rest
	}
	return "", false
}

// readAtOnce is read by a single call, of maxStrings at most. Of a file that is of the process's memory, a second one
// finds nothing more where the process has become another program since the first.
func (f FS) readAtOnce(pid int, name string) ([]byte, error) {
	for size := 32 << 10; ; size = min(2*size, maxStrings) {
		file, err := os.Open(f.path("proc", strconv.Itoa(pid), name))
		if err != nil {
			return nil, about(pid, name, gone(err))
		}
		b := make([]byte, size)
		n, err := file.Read(b)
		_ = file.Close() // it was only read
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, about(pid, name, gone(err))
		}
		if n < size || size == maxStrings {
			return b[:n], nil
		}
	}
}

// What a process is becoming.
const (
	itself = iota
	itselfOrAnother
	another
)

// becoming says, by its stat, what a process is becoming that gave an empty environment. The memory of another program
// is new, and says where the environment is only once that is there: first the begin, as begin and as end, and then the
// end (create_elf_tables in fs/binfmt_elf.c; environ_read in fs/proc/base.c gives nothing before). Where it has both by
// now, the file that was read was opened on the memory before.
//
// A thread that calls execve waits until the first one is dead (de_thread in fs/exec.c). That looks as if the first one
// had ended by itself.
func becoming(stat []byte) int {
	p, err := parseProcess(stat)
	rest := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])) // from field 3
	const envStart, envEnd = 50 - 3, 51 - 3
	if err != nil || p.Kernel || !p.Alive() || len(rest) <= envEnd {
		return itself
	}
	if p.firstDead() {
		return itselfOrAnother
	}
	if p.exiting {
		return itself
	}
	if rest[envEnd] != "0" && rest[envStart] == rest[envEnd] {
		return itselfOrAnother
	}
	return another
}

// list splits strings that each end in a zero byte.
func list(b []byte) []string {
	if len(b) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
}

// Resident is the resident memory of a process in bytes, pages that it shares with others counted in full, and the most
// that it has had so far (VmRSS and VmHWM of proc_pid_status(5)). A process without memory, such as a kernel thread or
// a zombie, has 0.
func (f FS) Resident(pid int) (now, peak uint64, err error) {
	b, err := f.read(pid, "status")
	now, _ = parseKB(b, "VmRSS") // without memory there are no such lines
	peak, _ = parseKB(b, "VmHWM")
	return now, peak, err
}

// ResidentNow is Resident without the peak, for a third of what reading that takes (proc_pid_statm(5)).
func (f FS) ResidentNow(pid int) (uint64, error) {
	b, err := f.read(pid, "statm")
	if err != nil {
		return 0, err
	}
	var size, resident uint64
	if _, err := fmt.Sscan(string(b), &size, &resident); err != nil {
		return 0, about(pid, "statm", err)
	}
	return resident * uint64(os.Getpagesize()), nil
}

// Rollup is the resident memory of a process by kind of page, in bytes, each page divided by the
// number of processes that share it, so that sums over processes count it once. Anon, File and Shmem are nil where the
// kernel tells only their sum (Documentation/ABI/testing/procfs-smaps_rollup: they came in Linux 5.9).
type Rollup struct {
	PSS               uint64
	Anon, File, Shmem *uint64
	Swap              uint64 // SwapPss: not resident
	RSS               uint64 // pages that are shared are counted in full: never to be added up
}

// Rollup reads /proc/<pid>/smaps_rollup, which costs what PSS costs. A kernel thread and a process that has ended and
// that nobody has waited for yet (a zombie) have 0 of each kind. Of one whose first thread alone has ended, the kernel
// shows no memory there (proc_mem_open in fs/proc/base.c looks at that thread), though the others have it: that is an
// error.
func (f FS) Rollup(pid int) (Rollup, error) {
	b, err := f.read(pid, "smaps_rollup")
	if errors.Is(err, ErrGone) {
		switch p, gone := f.Process(pid); {
		case gone != nil:
		case p.Kernel || !p.Alive() || p.exiting && p.Threads <= 1:
			return Rollup{Anon: new(uint64), File: new(uint64), Shmem: new(uint64)}, nil
		default:
			err = about(pid, "smaps_rollup", errors.New("its first thread has ended, so the kernel shows no memory"))
		}
	}
	if err != nil {
		return Rollup{}, err
	}
	r, ok := parseRollup(b)
	if !ok {
		return Rollup{}, about(pid, "smaps_rollup", errors.New("no line Pss"))
	}
	return r, nil
}

// parseRollup reads lines of "Name:   123 kB" after the first.
func parseRollup(b []byte) (r Rollup, ok bool) {
	kind := func(name string) *uint64 {
		if n, told := parseKB(b, name); told {
			return &n
		}
		return nil
	}
	r.Anon, r.File, r.Shmem = kind("Pss_Anon"), kind("Pss_File"), kind("Pss_Shmem")
	r.Swap, _ = parseKB(b, "SwapPss")
	r.RSS, _ = parseKB(b, "Rss")
	r.PSS, ok = parseKB(b, "Pss")
	return r, ok
}

// PageTables is what the page tables of a process take, in bytes (VmPTE of proc_pid_status(5)): kernel memory that is
// charged to its group. A process without memory of its own has 0.
func (f FS) PageTables(pid int) (uint64, error) {
	return f.statusBytes(pid, "VmPTE")
}

// Anon is the anonymous memory of a process that is resident, in bytes (RssAnon of proc_pid_status(5), Linux 4.5). A
// process without memory of its own has 0.
func (f FS) Anon(pid int) (uint64, error) {
	return f.statusBytes(pid, "RssAnon")
}

// statusBytes is a line of a process's status in bytes; 0 where it has none.
func (f FS) statusBytes(pid int, name string) (uint64, error) {
	b, err := f.read(pid, "status")
	n, _ := parseKB(b, name)
	return n, err
}

// parseKB finds a line "name:   123 kB" and gives it in bytes.
func parseKB(b []byte, name string) (uint64, bool) {
	for line := range bytes.Lines(b) {
		key, value, ok := bytes.Cut(line, []byte(":"))
		if !ok || string(key) != name {
			continue
		}
		n, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(string(value)), " kB"), 10, 53)
		return n << 10, err == nil
	}
	return 0, false
}

// Leader is the process that a thread is of, by the number that /proc has for either: a process's is its own. It is 0
// where the kernel does not say.
func (f FS) Leader(tid int) int {
	b, _ := f.read(tid, "status") // what has ended is found to have
	for line := range bytes.Lines(b) {
		if value, ok := bytes.CutPrefix(line, []byte("Tgid:")); ok {
			pid, _ := strconv.Atoi(string(bytes.TrimSpace(value)))
			return pid
		}
	}
	return 0
}

// Runtime is the CPU time that a process of this machine has used, its ended threads included, to the nanosecond. What
// runs at this moment is counted up to the last tick. It works for kernel threads as well.
//
// It is the process's CPU clock (CPUCLOCK_SCHED in include/linux/posix-timers.h, which any process may read): the sum
// of what /proc/<pid>/task/*/schedstat says, for one system call.
func Runtime(pid int) (time.Duration, error) {
	const cpuclockSched = 2
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|cpuclockSched), &ts); err != nil {
		if errors.Is(err, unix.EINVAL) {
			err = ErrGone // the kernel knows no such process
		}
		return 0, about(pid, "the CPU clock", err)
	}
	return time.Duration(ts.Nano()), nil
}
