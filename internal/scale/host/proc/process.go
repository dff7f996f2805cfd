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

// Process is a process as described by /proc/<pid>/stat (proc_pid_stat(5)).
type Process struct {
	PID   int
	Comm  string
	State byte // R, S, D, Z (dead, but not yet waited for), ...
	PPID  int
	// Session is the PID of the leader of its session; 0 if the leader is in another PID namespace.
	Session int
	// Start is when it started, in ticks of USER_HZ since boot. It makes the PID unique, unless the PID is reused within
	// one tick.
	Start   uint64
	Threads int  // number of threads left, including a dead first thread until it has been waited for
	Kernel  bool // a kernel thread
	Forked  bool // it has not executed a program since fork(2)
	// Ticks is the CPU time of its threads, including those that have ended. ChildTicks is the CPU time of the children
	// that it has waited for, and of the children that those had waited for. Both are in ticks of USER_HZ, and each is the
	// sum of two values that the kernel rounds down.
	Ticks, ChildTicks uint64

	exiting bool // it is about to end
}

// Age returns how long ago a process started, with the resolution of USER_HZ.
func (f FS) Age(pid int) (time.Duration, error) {
	p, err := f.Process(pid)
	if err != nil {
		return 0, err
	}
	return f.Since(p.Start)
}

// Since returns the time since start, which is in the unit of Process.Start.
func (FS) Since(start uint64) (time.Duration, error) {
	now, err := sinceBoot()
	return now - time.Duration(float64(start)/ticksPerSecond()*1e9), err
}

// Now returns the current time in the unit of Process.Start.
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

// Seconds converts ticks of USER_HZ to seconds.
func (FS) Seconds(ticks uint64) float64 { return float64(ticks) / ticksPerSecond() }

// PF_KTHREAD, PF_EXITING and PF_FORKNOEXEC of include/linux/sched.h.
const (
	pfKthread    = 0x00200000
	pfExiting    = 0x00000004
	pfForkNoExec = 0x00000040
)

// Alive reports whether the process can still run. State is that of its first thread, which may have ended before
// others: a thread that calls execve kills all others and waits until the first is dead (de_thread in fs/exec.c), and
// until its place is taken the first appears as a zombie in /proc.
func (p Process) Alive() bool { return !p.firstDead() || p.Threads > 1 }

// Exiting reports whether the first thread has ended or is about to. If p was read by the id of another thread, it
// reports this about that thread. On v1, an exiting thread appears in the root control group (proc_cgroup_show in
// kernel/cgroup/cgroup.c).
func (p Process) Exiting() bool { return p.exiting || p.firstDead() }

func (p Process) firstDead() bool { return p.State == 'Z' || p.State == 'X' || p.State == 'x' }

// Ending reports whether a living process is sure to end: SIGKILL is pending, or each of its threads is exiting or
// killed. It may remain visible for seconds while it waits in the kernel or frees its memory.
func (f FS) Ending(pid int) bool {
	if p, err := f.Process(pid); err != nil || !p.Alive() {
		return false
	}
	if sigkillPending(f.path("proc", strconv.Itoa(pid), "status"), "ShdPnd:") {
		return true
	}
	// A process that exits kills its other threads one by one (zap_other_threads in kernel/signal.c), but so does one
	// that calls execve(2) and continues to live.
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

// sigkillPending reports whether a set of pending signals in a status file contains SIGKILL (proc_pid_status(5)).
func sigkillPending(path, set string) bool {
	b, _ := os.ReadFile(path) // a process that has ended has none
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
	const most = 16 // attempts; two failures in a row were never observed
	for range most {
		var b []byte
		if b, err = f.read(pid, "stat"); err != nil {
			return Process{}, err
		}
		if p, err = parseProcess(b); err != nil {
			return Process{}, about(pid, "stat", err)
		}
		// The kernel reports no threads if the one that it found has been waited for in the meantime (do_task_stat in
		// fs/proc/array.c). The process is then gone, or another thread has taken its place.
		if p.Threads > 0 {
			break
		}
	}
	return p, nil
}

func parseProcess(b []byte) (Process, error) {
	// The name may contain anything, including parentheses and spaces, so it ends at the last parenthesis.
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

// read reads a file of a process. Its error matches ErrGone if the process does not exist.
func (f FS) read(pid int, name string) ([]byte, error) {
	b, err := os.ReadFile(f.path("proc", strconv.Itoa(pid), name))
	if err != nil {
		return nil, about(pid, name, gone(err))
	}
	return b, nil
}

// Entry is one process in the list of all processes. Inode is the number of its directory: it does not change while the
// process lives and the kernel keeps the directory cached, and no other process has it. A list of entries therefore
// shows at no extra cost which processes are new (proc_pid_make_inode in fs/proc/base.c assigns each a unique number).
type Entry struct {
	PID   int
	Inode uint64
}

// Entries appends an entry for every process to all. buffer is scratch space for the system calls.
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
// byte. buffer is scratch space for the system calls.
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

// entryPID parses a name that ends in a zero byte; 0 if it is not a PID.
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

// PIDs returns the PIDs of all processes.
func (f FS) PIDs() ([]int, error) {
	entries, err := f.Entries(nil, make([]byte, 32<<10))
	if err != nil {
		return nil, err
	}
	return lists.Map(entries, func(e Entry) int { return e.PID }), nil
}

// Processes reads all processes, by PID. Those that cannot be read, for example because they end in the meantime, are
// left out.
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

// Comm returns the name of a process, at most 15 bytes; a process may set it to anything.
func (f FS) Comm(pid int) (string, error) {
	b, err := f.read(pid, "comm")
	return strings.TrimSuffix(string(b), "\n"), err
}

// Exe returns the file that a process runs, with the suffix " (deleted)" if it was replaced. It is empty for a kernel
// thread.
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

// maxStrings is how many bytes of a process's arguments or environment are read: as much as the kernel lets a program
// start with (execve(2)). A process may point these elsewhere, to gigabytes (PR_SET_MM of prctl(2)).
const maxStrings = 6 << 20

// Cmdline returns the arguments of a process; none for a kernel thread or a zombie.
func (f FS) Cmdline(pid int) ([]string, error) {
	b, err := f.readAtOnce(pid, "cmdline")
	return list(b), err
}

// Getenv returns the value of a variable in the environment that a process was started with; has is false if there is
// no such variable. For a kernel thread, and for a process that has ended or is about to, it returns no variable or
// ErrGone, depending on the kernel. A process that calls execve has no environment for a moment. Getenv then waits, for
// a second at most and no longer than patience. If there is still no environment, Getenv subtracts the time waited from
// patience and returns an error, or no variable if the process may simply have none. Any process can make itself appear
// to be in this state.
//
// At most 10 ms between two attempts count as waited: if the whole machine stood still, as virtual ones do for
// seconds, the process had no time to run either.
func (f FS) Getenv(pid int, name string, patience *time.Duration) (value string, has bool, err error) {
	const most, mostUnsure, mostOfALook = time.Second, 50 * time.Millisecond, 10 * time.Millisecond
	// sure is the value of waited when it was last certain that the process was becoming another program.
	var waited, sure time.Duration
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

// readAtOnce reads a file of a process with a single call, up to maxStrings. If the file shows the process's memory, a
// second call would find nothing more if the process has executed another program in between.
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

// The results of becoming: whether a process stays the program that it is, or becomes another one by execve(2).
const (
	itself = iota
	itselfOrAnother
	another
)

// becoming returns what a process with an empty environment is becoming, from its stat. The kernel records in two steps
// where the environment of a new program is: it first sets both start and end to the start, and later sets the end
// (create_elf_tables in fs/binfmt_elf.c; until then, environ_read in fs/proc/base.c returns nothing). If both are set
// by now, the environ file was opened on the previous memory.
//
// A thread that calls execve waits until the first one is dead (de_thread in fs/exec.c). That looks as if the first
// one had ended by itself.
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

// list splits a sequence of zero-terminated strings.
func list(b []byte) []string {
	if len(b) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
}

// Resident returns the resident memory of a process in bytes, with shared pages counted in full, and its peak so far
// (VmRSS and VmHWM of proc_pid_status(5)). A process without memory, such as a kernel thread or a zombie, has 0.
func (f FS) Resident(pid int) (now, peak uint64, err error) {
	b, err := f.read(pid, "status")
	now, _ = parseKB(b, "VmRSS") // without memory there are no such lines
	peak, _ = parseKB(b, "VmHWM")
	return now, peak, err
}

// ResidentNow is Resident without the peak, at a third of the cost (proc_pid_statm(5)).
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

// Rollup is the resident memory of a process by kind of page, in bytes. Each page is divided by the number of
// processes that share it, so sums over processes count it once. Anon, File and Shmem are nil if the kernel exposes
// only their sum (before Linux 5.9: Documentation/ABI/testing/procfs-smaps_rollup).
type Rollup struct {
	PSS               uint64
	Anon, File, Shmem *uint64
	Swap              uint64 // SwapPss: not resident
	RSS               uint64 // shared pages are counted in full, so it must not be added up
	Huge              uint64 // huge pages of hugetlbfs, shared ones in full; not in other fields (smaps_hugetlb_range)
}

// Rollup reads /proc/<pid>/smaps_rollup, for which the kernel walks the page tables. A kernel thread and a zombie have
// 0 of each kind. If only the first thread of a process has ended, the kernel shows no memory (proc_mem_open in
// fs/proc/base.c checks that thread), although the others have it: that is an error.
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

// parseRollup parses lines of "Name:   123 kB" after the first.
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
	shared, _ := parseKB(b, "Shared_Hugetlb")
	private, _ := parseKB(b, "Private_Hugetlb")
	r.Huge = shared + private
	r.PSS, ok = parseKB(b, "Pss")
	return r, ok
}

// PageTables returns the size of a process's page tables in bytes (VmPTE of proc_pid_status(5)): kernel memory that is
// charged to its group. A process without memory has 0.
func (f FS) PageTables(pid int) (uint64, error) {
	return f.statusBytes(pid, "VmPTE")
}

// Anon returns the resident anonymous memory of a process in bytes (RssAnon of proc_pid_status(5), since Linux 4.5). A
// process without memory has 0.
func (f FS) Anon(pid int) (uint64, error) {
	return f.statusBytes(pid, "RssAnon")
}

// statusBytes returns a line of a process's status in bytes; 0 if there is no such line.
func (f FS) statusBytes(pid int, name string) (uint64, error) {
	b, err := f.read(pid, "status")
	n, _ := parseKB(b, name)
	return n, err
}

// parseKB finds a line "name:   123 kB" and returns its value in bytes.
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

// Leader returns the PID of the process that a thread belongs to; for a PID, the same number. It is 0 if the kernel
// does not expose it.
func (f FS) Leader(tid int) int {
	b, _ := f.read(tid, "status") // empty if the thread has ended
	for line := range bytes.Lines(b) {
		if value, ok := bytes.CutPrefix(line, []byte("Tgid:")); ok {
			pid, _ := strconv.Atoi(string(bytes.TrimSpace(value)))
			return pid
		}
	}
	return 0
}

// Runtime returns the CPU time that a process of this machine has used, including its ended threads, in nanoseconds.
// Threads running at this moment are counted up to the last tick. It also works for kernel threads.
//
// It reads the process's CPU clock (CPUCLOCK_SCHED in include/linux/posix-timers.h, which any process may read), which
// is the sum of /proc/<pid>/task/*/schedstat at the cost of one system call.
func Runtime(pid int) (time.Duration, error) {
	const cpuclockSched = 2
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|cpuclockSched), &ts); err != nil {
		if errors.Is(err, unix.EINVAL) {
			err = ErrGone // there is no such process
		}
		return 0, about(pid, "the CPU clock", err)
	}
	return time.Duration(ts.Nano()), nil
}
