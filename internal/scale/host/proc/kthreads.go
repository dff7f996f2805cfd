package proc

import (
	"errors"
	"io/fs"
	"slices"
	"time"
)

// KernelThread is a thread of the kernel itself. In a PID namespace of a container there are none to be seen, nor where
// procfs is mounted with hidepid.
type KernelThread struct {
	PID     int
	Comm    string
	Runtime time.Duration // CPU time since it was started, as of the last Read
	New     bool          // found by Refresh: all that it has used it has used since
	Gone    bool          // it has ended; Runtime is what was last read
}

// KernelThreads reads the CPU time of the kernel's threads. They are found once, by looking at every process, and then
// read with one system call each. It is for one goroutine.
type KernelThreads struct {
	fs      FS
	known   map[int]bool // processes that were looked at
	threads []KernelThread
}

// KernelThreads finds the kernel's threads.
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

// Threads lists every kernel thread that was ever seen and is not forgotten; until Forget a thread keeps its index.
func (k *KernelThreads) Threads() []KernelThread { return k.threads }

// Forget drops the threads that have ended. Those that are left are not New.
func (k *KernelThreads) Forget() {
	k.threads = slices.DeleteFunc(k.threads, func(t KernelThread) bool { return t.Gone })
	for i := range k.threads {
		k.threads[i].New = false
	}
}

// Refresh finds new threads. It looks only at processes that it has not seen.
func (k *KernelThreads) Refresh() error {
	pids, err := k.fs.PIDs()
	if err != nil {
		return err
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

// look adds a process that it has not looked at before, if it is a thread of the kernel.
func (k *KernelThreads) look(pid int) error {
	if k.known[pid] {
		return nil
	}
	p, err := k.fs.Process(pid)
	if errors.Is(err, ErrGone) || errors.Is(err, fs.ErrPermission) { // with hidepid=1 it is listed and hidden
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
		k.threads = append(k.threads, KernelThread{PID: pid, Comm: p.Comm, New: true})
	}
	return nil
}

// RefreshNew finds new threads by the list of children of the thread that starts them all (kthreadd): one
// file, where Refresh lists every process. It finds none where the kernel has no such list (CONFIG_PROC_CHILDREN).
func (k *KernelThreads) RefreshNew() error {
	for _, pid := range k.fs.childrenOf(k.fs.path("proc", kthreadd, "task", kthreadd, "children")) {
		if err := k.look(pid); err != nil {
			return err
		}
	}
	return nil
}

// kthreadd is the PID of the thread that starts all others (rest_init in init/main.c). In another PID namespace it is
// that of any process, whose children are looked at in vain. It is one thread.
const kthreadd = "2"

// Read reads the threads' CPU time.
func (k *KernelThreads) Read() error {
	for i := range k.threads {
		t := &k.threads[i]
		if t.Gone {
			continue
		}
		d, err := Runtime(t.PID)
		switch {
		case err == nil:
			t.Runtime = d
		case errors.Is(err, ErrGone):
			t.Gone = true
		default:
			return err
		}
	}
	return nil
}
