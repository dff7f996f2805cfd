package proc

import (
	"errors"
	"io/fs"
	"slices"
	"time"

	"tare/internal/lib/lists"
)

// KernelThread is a thread of the kernel itself. None are visible in a container's PID namespace, or if procfs is
// mounted with hidepid.
type KernelThread struct {
	PID     int
	Comm    string
	Runtime time.Duration // CPU time since it was started, as of the last Read
	New     bool          // found since the first Refresh or the last Forget: all of Runtime is from that time
	Gone    bool          // it has ended; Runtime is the last value read

	start uint64 // see Process.Start
}

// KernelThreads reads the CPU time of kernel threads. It finds them once, by checking every process, and then reads
// each with one system call. It is not safe for concurrent use.
type KernelThreads struct {
	fs      FS
	known   map[int]bool // processes that were checked
	threads []KernelThread
}

// KernelThreads finds the kernel threads.
func (f FS) KernelThreads() (*KernelThreads, error) {
	k := &KernelThreads{fs: f}
	if err := k.Refresh(); err != nil {
		return nil, err
	}
	for i := range k.threads {
		k.threads[i].New = false
	}
	return k, nil
}

// Threads returns every kernel thread seen and not forgotten; a thread keeps its index until Forget.
func (k *KernelThreads) Threads() []KernelThread { return k.threads }

// Forget drops the threads that have ended. The remaining ones are no longer New.
func (k *KernelThreads) Forget() {
	k.threads = slices.DeleteFunc(k.threads, func(t KernelThread) bool { return t.Gone })
	for i := range k.threads {
		k.threads[i].New = false
	}
}

// Refresh finds new threads. It checks only processes that it has not seen, and threads that have run since the last
// Read: their PIDs may have been reused.
func (k *KernelThreads) Refresh() error {
	pids, err := k.fs.PIDs()
	if err != nil {
		return err
	}
	for i := range k.threads {
		t := &k.threads[i]
		if t.Gone || t.Runtime == 0 { // it has not been read
			continue
		}
		if d, err := Runtime(t.PID); err == nil && d != t.Runtime {
			k.recheck(t)
		}
	}
	seen := make(map[int]bool, len(pids))
	for _, pid := range pids {
		seen[pid] = true
		if err := k.look(pid); err != nil {
			return err
		}
	}
	k.known = seen
	for i := range k.threads {
		t := &k.threads[i]
		t.Gone = t.Gone || !seen[t.PID]
	}
	return nil
}

// recheck ends a thread if another process has its PID.
func (k *KernelThreads) recheck(t *KernelThread) {
	if p, err := k.fs.Process(t.PID); err == nil && p.Start != t.start {
		k.end(t)
	}
}

// end marks a thread as gone, so that the next process with its PID is checked again.
func (k *KernelThreads) end(t *KernelThread) {
	t.Gone = true
	delete(k.known, t.PID)
}

// look adds a process that it has not checked before, if it is a kernel thread.
func (k *KernelThreads) look(pid int) error {
	if k.known[pid] {
		return nil
	}
	p, err := k.fs.Process(pid)
	// hidepid=1 lists processes but does not let us read them
	if errors.Is(err, ErrGone) || errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return err
	}
	if k.known == nil {
		k.known = map[int]bool{}
	}
	k.known[pid] = true
	if p.Kernel {
		k.threads = append(k.threads, KernelThread{PID: pid, Comm: p.Comm, New: true, start: p.Start})
	}
	return nil
}

// RefreshNew finds new threads in the list of children of kthreadd, the thread that starts them all. That is one file,
// whereas Refresh lists every process. It finds none if the kernel has no such list (CONFIG_PROC_CHILDREN). Of threads
// that are not in the list, it checks whether another process has their PID.
func (k *KernelThreads) RefreshNew() error {
	children := k.fs.childrenOf(k.fs.path("proc", kthreadd, "task", kthreadd, "children"))
	alive := lists.Keyed(children, func(pid int) (int, bool) { return pid, true })
	for i := range k.threads {
		if t := &k.threads[i]; len(alive) > 0 && !alive[t.PID] && !t.Gone {
			k.recheck(t) // the kernel may leave out one that is alive (get_children_proc in fs/proc/array.c)
		}
	}
	for _, pid := range children {
		if err := k.look(pid); err != nil {
			return err
		}
	}
	return nil
}

// kthreadd is the PID of the thread that starts all others (rest_init in init/main.c). It has only one thread. In
// another PID namespace the number may be that of any process, and checking its children finds nothing.
const kthreadd = "2"

// Read reads the CPU time of each thread.
func (k *KernelThreads) Read() error {
	for i := range k.threads {
		t := &k.threads[i]
		if t.Gone {
			continue
		}
		d, err := Runtime(t.PID)
		switch {
		case err == nil && d < t.Runtime:
			k.recheck(t)
		case err == nil:
			t.Runtime = d
		case errors.Is(err, ErrGone):
			k.end(t)
		default:
			return err
		}
	}
	return nil
}
