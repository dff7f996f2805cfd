package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/lib/files"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/proc"
)

// Options configures a Reader. The zero value stands for the machine that this process runs on.
type Options struct {
	Root string // prepended to /proc, /sys and /run; for trees of test files
	// RuntimeRoots are directories passed to a runtime as --root, in addition to the usual ones. A container of runc or
	// crun without an engine is known only from its state there.
	RuntimeRoots []string
}

// Reader takes censuses repeatedly. What cannot change is read once: a process is identified by its PID and the inode
// of its directory, and afterwards only its counters are read. What changes seldom is read in turns. A Reader is not
// safe for concurrent use.
type Reader struct {
	fs       proc.FS
	root     string
	layout   *cgroup.Layout
	resolver *cgroup.Resolver
	groups   *cgroup.Reader
	table    *table

	known    map[int]*known
	entries  []proc.Entry
	buf      []byte
	pass     uint64
	paths    map[string]*where
	examples map[cgroup.Charged]*known // a process of an application in each group, as of the last gather
	states   map[string]*state         // by id; nil if there is none
	named    namedState
	census   *Census
	measured []*Group // those with a Reading
	cost     time.Duration
	budget   int // descriptors that may still be kept open for threads' schedstat
}

// Things that change seldom are not read again in every reading. A constant that ends in Turns is the number of
// readings among which one thing is read again once.
const (
	membershipTurns = 8  // the groups that a process of a sandbox is in
	threadTurns     = 32 // which threads it has, and their groups; a multiple of membershipTurns
	strangerTurns   = 32 // whether another process has become part of a sandbox
	memoryTurns     = 16 // the memory of a group
	settling        = 2  // readings after the first in which a process may still run another program by exec
	maxThreads      = 4096
	maxWhere        = 1 << 14 // cached paths
	maxProcesses    = 1 << 18
)

// known holds what a Reader knows about one process.
type known struct {
	proc.Process
	inode    uint64
	pass     uint64 // the number of the last reading that saw it
	settling int
	claim    claim
	hidden   bool // its executable is unreadable, and its command line is inconclusive
	charged  cgroup.Charged
	threads  []knownThread
	sandbox  *Sandbox // as of the last gather
	process  *Process
	clocks   map[int]int // by thread: the descriptor of its schedstat
}

type knownThread struct {
	tid     int
	comm    string
	rule    *threadRule
	charged cgroup.Charged
}

// New returns a Reader. The caller must close it. The error is a fault with code Machine if /proc is not mounted.
func New(o Options) (_ *Reader, err error) {
	t := builtin()
	r := &Reader{fs: proc.FS{Root: o.Root}, root: filepath.Join("/", o.Root), table: t, known: map[int]*known{},
		buf: make([]byte, maxCommand), paths: map[string]*where{}, states: map[string]*state{}}
	if len(o.RuntimeRoots) > 0 {
		further := *t
		further.States = slices.Clone(t.States)
		for _, dir := range o.RuntimeRoots {
			further.below(dir)
		}
		r.table = &further
	}
	roots := cgroup.Roots{}
	if o.Root != "" {
		roots = cgroup.Roots{Proc: filepath.Join(o.Root, "proc"), Prefix: o.Root}
	}
	if r.layout, err = cgroup.Discover(roots); err != nil {
		return nil, err
	}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		r.budget = int(min(limit.Cur/4, maxThreads))
	}
	r.resolver = r.layout.NewResolver()
	if r.groups, err = cgroup.NewReaderOfSome(r.layout); err != nil {
		return nil, err
	}
	return r, nil
}

// Close closes all files. Censuses remain valid.
func (r *Reader) Close() {
	for _, k := range r.known {
		r.forget(k)
	}
	r.groups.Close()
}

// forget closes the clocks of a process's threads.
func (r *Reader) forget(k *known) {
	for _, fd := range k.clocks {
		unix.Close(fd)
		r.budget++
	}
	k.clocks = nil
}

// Read takes a census. If full is true it checks every process again, otherwise in turns. The result is the same value
// with new counters as long as no process came, went or moved, so it is valid only until the next Read.
func (r *Reader) Read(full bool) (*Census, error) {
	began := ownTime()
	defer func() { r.cost += ownTime() - began }()
	r.pass++
	var err error
	if r.entries, err = r.fs.Entries(r.entries[:0], r.buf); err != nil {
		return nil, err
	}
	if len(r.entries) > maxProcesses {
		return nil, fmt.Errorf("taking a census: more than %d processes", maxProcesses)
	}
	if full || len(r.states) > maxWhere {
		clear(r.states)
		r.named.dirs = r.named.dirs[:0]
	}
	changed := r.census == nil || full
	for _, e := range r.entries {
		changed = r.look(e, full) || changed
	}
	for pid, k := range r.known {
		if k.pass != r.pass {
			r.forget(k)
			delete(r.known, pid)
			changed = changed || k.process != nil && !r.leave(k)
		}
	}
	if changed {
		r.gather()
	}
	r.count(full)
	if full {
		r.census.Hidden = 0
		for _, k := range r.known {
			if k.hidden {
				r.census.Hidden++
			}
		}
	}
	return r.census, nil
}

// look checks one process, and reports whether something about it has changed.
func (r *Reader) look(e proc.Entry, full bool) bool {
	k := r.known[e.PID]
	if k == nil || k.inode != e.Inode {
		if k != nil {
			r.forget(k)
		}
		k = &known{inode: e.Inode, settling: settling, pass: r.pass}
		if !r.identify(k, e.PID) {
			_, was := r.known[e.PID]
			delete(r.known, e.PID)
			return was
		}
		r.known[e.PID] = k
		return !r.join(k) && r.concerns(k)
	}
	k.pass = r.pass
	turns, ours := uint64(strangerTurns), k.process != nil
	if ours {
		turns = membershipTurns
	}
	due := full || k.settling > 0 || (r.pass+uint64(e.PID))%turns == 0
	switch {
	case !due:
		return false
	case ours && !full && k.settling == 0 && !k.claim.unsettled():
		return r.moved(k)
	}
	k.settling = max(k.settling-1, 0)
	fresh := &known{inode: k.inode, pass: k.pass, settling: k.settling, sandbox: k.sandbox, process: k.process,
		clocks: k.clocks}
	if !r.identify(fresh, e.PID) {
		r.forget(k)
		delete(r.known, e.PID)
		return ours
	}
	same := fresh.charged == k.charged && fresh.claim == k.claim && slices.Equal(fresh.threads, k.threads) &&
		fresh.PPID == k.PPID && fresh.Start == k.Start && fresh.Comm == k.Comm
	*k = *fresh
	return !same && (ours || r.concerns(k))
}

// join adds a new process to the sandbox of an application that has another process in the same groups, if nothing
// else is known about it. Applications start processes all the time, and gathering everything again takes ten times as
// long as a reading.
func (r *Reader) join(k *known) bool {
	like := r.examples[k.charged]
	if like == nil || like.process == nil || k.claim.rule != nil || k.Kernel {
		return false
	}
	p := *like.process
	p.PID, p.PPID, p.Start, p.Comm, p.Program = k.PID, k.PPID, k.Start, k.Comm, k.claim.program
	p.Signs, p.CPUNs = []Sign{SignCgroup}, nil
	k.sandbox, k.process = like.sandbox, &p
	k.sandbox.Processes = append(k.sandbox.Processes, &p)
	k.sandbox.tally(&p, 1)
	return true
}

// leave removes an ended process of an application from its sandbox, unless it was the example that join uses. It
// reports whether it did.
func (r *Reader) leave(k *known) bool {
	if k.sandbox == nil || k.claim.rule != nil || k.process.Component != Workload || r.examples[k.charged] == k {
		return false
	}
	k.sandbox.Processes = slices.DeleteFunc(k.sandbox.Processes, func(p *Process) bool { return p == k.process })
	k.sandbox.tally(k.process, -1)
	return true
}

// tally adds n to the process counts of the groups that a process is charged to.
func (s *Sandbox) tally(p *Process, n int) {
	for _, g := range s.Groups {
		if g.Path == p.CPU.Path || g.Path == p.Memory.Path {
			g.Processes += n
		}
	}
}

func (c *claim) unsettled() bool { return c.rule != nil && c.rule.Unsettled }

// concerns reports whether a process may belong to a sandbox.
func (r *Reader) concerns(k *known) bool {
	if k.claim.rule != nil || r.where(k.charged.CPU).key() != "" || r.where(k.charged.Memory).key() != "" {
		return true
	}
	return r.known[k.PPID] != nil && r.known[k.PPID].process != nil
}

// identify reads everything about a process. It returns false if the process is gone.
func (r *Reader) identify(k *known, pid int) bool {
	p, err := r.fs.Process(pid)
	if err != nil || !p.Alive() {
		return false
	}
	k.Process = p
	c := command{comm: p.Comm, kernel: p.Kernel}
	if !p.Kernel {
		text, err := r.read(pid, "cmdline")
		if err != nil {
			return false
		}
		c.args = arguments(text)
	}
	k.claim = r.table.identify(c)
	if k.claim.rule == nil && !p.Kernel {
		if c.exe, err = r.fs.Exe(pid); err == nil && c.exe != "" {
			k.claim = r.table.identify(c)
		}
		k.hidden = errors.Is(err, fs.ErrPermission)
	}
	if p.Kernel && k.claim.rule == nil {
		return true // belongs to no sandbox
	}
	content, err := r.read(pid, "cgroup")
	if err != nil {
		return false
	}
	k.charged = r.resolver.Charged(content)
	if rule := k.claim.rule; rule != nil {
		if rule.Threads {
			k.threads = r.threads(pid)
		}
		if rule.StateFlag != "" {
			r.note(pid, rule, c.args)
		}
	}
	return true
}

// note records the directory of state that a process's command line names, unless the rules have it already.
func (r *Reader) note(pid int, rule *processRule, args []string) {
	dirs := flagValues(args, rule.StateFlag)
	if len(dirs) == 0 {
		return
	}
	dir := filepath.Clean(dirs[len(dirs)-1]) // of a repeated flag, programs take the last value
	if !filepath.IsAbs(dir) || len(dir) > maxPath || r.table.keeps(rule.Runtime, dir) {
		return
	}
	var process unix.Stat_t
	if unix.Stat(filepath.Join(r.root, "proc", strconv.Itoa(pid)), &process) != nil {
		return
	}
	if r.named.add(files.Tree{Root: r.root}, dir, rule.Runtime, process.Uid) {
		clear(r.states)
	}
}

// moved reads the groups of a process and its threads again, and reports whether they have changed.
func (r *Reader) moved(k *known) bool {
	content, err := r.read(k.PID, "cgroup")
	if err != nil {
		return true
	}
	was := k.charged
	k.charged = r.resolver.Charged(content)
	changed := k.charged != was
	if k.claim.rule != nil && k.claim.rule.Threads && (r.pass+uint64(k.PID))%threadTurns == 0 {
		was := k.threads
		k.threads = r.threads(k.PID)
		changed = changed || !slices.Equal(was, k.threads)
	}
	return changed
}

// threads reads the threads of a process except the first.
func (r *Reader) threads(pid int) (all []knownThread) {
	task := filepath.Join(r.root, "proc", strconv.Itoa(pid), "task")
	dir, err := os.Open(task)
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, err := dir.Readdirnames(maxThreads)
	if err != nil {
		return nil
	}
	for _, name := range names {
		tid := number(name)
		if tid == 0 || tid == pid {
			continue
		}
		comm, err := r.readFile(filepath.Join(task, name, "comm"))
		if err != nil {
			continue
		}
		t := knownThread{tid: tid, comm: strings.TrimSuffix(string(comm), "\n")}
		t.rule = r.table.thread(t.comm)
		content, err := r.readFile(filepath.Join(task, name, "cgroup"))
		if err != nil {
			continue
		}
		t.charged = r.resolver.Charged(content)
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b knownThread) int { return a.tid - b.tid })
	return all
}

// arguments splits a command line, which may be truncated.
func arguments(text []byte) []string {
	if len(text) == 0 {
		return nil
	}
	args := strings.SplitN(strings.TrimRight(string(text), "\x00"), "\x00", maxArgs+1)
	return args[:min(len(args), maxArgs)]
}

// read reads the beginning of a file of a process, into a buffer that the next call reuses.
func (r *Reader) read(pid int, name string) ([]byte, error) {
	return r.readFile(filepath.Join(r.root, "proc", strconv.Itoa(pid), name))
}

// where returns what a path shows, and caches it.
func (r *Reader) where(path string) *where {
	w := r.paths[path]
	if w == nil {
		if len(r.paths) >= maxWhere {
			clear(r.paths)
		}
		w = r.table.locate(path)
		r.paths[path] = w
	}
	return w
}

// state returns what runtimes keep about an id, and caches it until the next full reading.
func (r *Reader) state(id string) *state {
	s, ok := r.states[id]
	if !ok {
		s = r.table.states(r.root, id)
		if named := r.named.read(r.table, r.root, id); s == nil {
			s = named
		} else if named != nil {
			s.merge(named)
		}
		r.states[id] = s
	}
	return s
}

// count reads the counters in the census.
func (r *Reader) count(full bool) {
	for _, k := range r.known {
		if p := k.process; p != nil {
			p.CPUNs = r.processTime(p.PID)
			for i := range p.Threads {
				if t := &p.Threads[i]; t.Component != p.Component {
					t.CPUNs = r.threadTime(k, t.TID)
				}
			}
		}
	}
	for i, g := range r.measured {
		// After an error the values are unknown. A group that is gone keeps its last ones, and is not in the next census.
		_ = r.groups.ReadCPUOf(g.Reading)
		if full || g.Reading.Memory == (cgroup.Memory{}) || (r.pass+uint64(i))%memoryTurns == 0 {
			_ = r.groups.ReadMemoryOf(g.Reading)
		}
	}
}

// Times calls f with the CPU time in nanoseconds that each process of the last reading has used so far, whether it is
// in a sandbox or not, with one system call each. It makes no calls in a tree of test files.
func (r *Reader) Times(f func(pid int, start, ns uint64)) {
	for _, k := range r.known {
		if ns := r.processTime(k.PID); ns != nil {
			f(k.PID, k.Start, *ns)
		}
	}
}

// processTime returns the CPU time of a process; nil in a tree of test files, whose processes do not exist.
func (r *Reader) processTime(pid int) *uint64 {
	if r.root != "/" {
		return nil
	}
	d, err := proc.Runtime(pid)
	if err != nil {
		return nil
	}
	return new(uint64(d))
}

// threadTime returns the CPU time of a thread: the first field of its schedstat
// (Documentation/scheduler/sched-stats.rst).
func (r *Reader) threadTime(k *known, tid int) *uint64 {
	fd, open := k.clocks[tid]
	if !open {
		var err error
		name := filepath.Join(r.root, "proc", strconv.Itoa(k.PID), "task", strconv.Itoa(tid), "schedstat")
		if fd, err = unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return nil
		}
		if r.budget > 0 {
			r.budget--
			if k.clocks == nil {
				k.clocks = map[int]int{}
			}
			k.clocks[tid] = fd
		} else {
			defer unix.Close(fd)
		}
	}
	n, err := unix.Pread(fd, r.buf[:256], 0)
	if err != nil || n <= 0 {
		if open { // the thread has ended
			unix.Close(fd)
			r.budget++
			delete(k.clocks, tid)
		}
		return nil
	}
	first, _, _ := strings.Cut(string(r.buf[:n]), " ")
	ns, err := strconv.ParseUint(first, 10, 64)
	if err != nil {
		return nil
	}
	return &ns
}
