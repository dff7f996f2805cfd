package subject

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/record"
	"tare/internal/sandboxes/oci"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/proc"
	"tare/internal/scale/host/sandbox"
)

// Evidence holds what is known about the sandboxes of a trial.
type Evidence struct {
	Runtime string `json:"runtime"`

	// AvailableBefore and AvailableInWindow are the machine's MemAvailable, in bytes, before anything was started and at
	// the end of the window.
	AvailableBefore   uint64  `json:"available_before_bytes"`
	AvailableInWindow *uint64 `json:"available_in_window_bytes"`
	// MachineBefore and MachineInWindow hold the machine's memory counters at these two times, and Balance accounts for
	// the change between them. Balance is nil if one of its parts is unknown.
	MachineBefore   proc.Memory  `json:"machine_before"`
	MachineInWindow *proc.Memory `json:"machine_in_window"`
	Balance         *Balance     `json:"balance"`

	// ReadySeconds is the time from the launch of the first application until all were ready.
	ReadySeconds float64 `json:"ready_seconds"`

	Sandboxes []Sandbox `json:"sandboxes"`

	// Pictured holds the memory from the loads' start message until the end of the window, and where it was charged.
	record.Pictured
}

// Sandbox is one application or load, with the processes that run it.
type Sandbox struct {
	Name      string    `json:"name"`             // of the application or load
	Cgroup    string    `json:"cgroup"`           // path of the control group that stands for its pod
	Status    string    `json:"status,omitempty"` // reported by the runtime at the end of the window
	Times     oci.Times `json:"times"`
	Processes []Process `json:"processes"`
}

// Process is one process of a sandbox, at the end of the window.
type Process struct {
	PID       int    `json:"pid"`
	Component string `json:"component"`
	Comm      string `json:"comm"`
	Threads   int    `json:"threads"`
	// MemoryCgroup and CPUCgroup are the groups to which the process is charged: the group of its first thread, which owns
	// its memory, and the group that counts its CPU time.
	MemoryCgroup string `json:"memory_cgroup"`
	CPUCgroup    string `json:"cpu_cgroup"`
	// ThreadCgroups holds, by group, the number of threads that are charged to groups other than CPUCgroup. It is set only
	// for virtual machines. With version 1 of control groups, single threads can be moved.
	ThreadCgroups map[string]int `json:"thread_cgroups,omitempty"`
	CPUSeconds    *float64       `json:"cpu_seconds"` // in the window; nil if unknown
	// CPUElsewhere is, by group, the part of CPUSeconds that is charged to groups other than CPUCgroup. A runtime of
	// virtual machines can move the threads of virtual CPUs.
	CPUElsewhere map[string]float64 `json:"cpu_elsewhere_seconds,omitempty"`
	Resident
	// SameMemoryAs is the pid of another process with the same address space, to which the memory is attributed, or 0 if
	// there is none. gVisor runs the threads of an application as processes that share an address space.
	SameMemoryAs int `json:"same_memory_as,omitempty"`
}

// The components. The names are those that a census of the machine uses.
const (
	Workload  = string(sandbox.Workload)  // the application's own code; with gVisor, the stubs that run it
	Shim      = string(sandbox.Shim)      // stays with a container, for its streams and its exit status
	Sentry    = string(sandbox.Sentry)    // gVisor's kernel
	Gofer     = string(sandbox.Gofer)     // serves files to the sentry
	VMM       = string(sandbox.VMM)       // runs a virtual machine, with the application inside
	Virtiofsd = string(sandbox.Virtiofsd) // serves files to a virtual machine
	Monitor   = string(sandbox.Monitor)   // any other process that the runtime left running
)

// Components lists all components.
var Components = []string{Workload, Shim, Sentry, Gofer, VMM, Virtiofsd, Monitor}

// componentOf returns the component of a process of a sandbox, by its command line if that is known, and otherwise by
// whether the process is in the pod's group. A process that is about to execute the application counts as the
// application.
func componentOf(comm string, cmdline []string, inPod bool) string {
	c := sandbox.ComponentOf(comm, cmdline)
	switch {
	case slices.Contains(Components, string(c)):
		return string(c)
	case inPod:
		return Workload
	}
	return Monitor
}

// find finds the processes of each sandbox: those in its groups, and those that its shim has started elsewhere.
func (j *joined) find() map[*sandboxed][]int {
	children := map[int][]int{}
	if !j.plain() {
		all, _ := proc.FS{}.Processes() // if this fails, none are found
		for pid, p := range all {
			if p.Alive() {
				children[p.PPID] = append(children[p.PPID], pid)
			}
		}
	}
	found := map[*sandboxed][]int{}
	for _, s := range j.inOrder() {
		pids := s.group.Members()
		if s.shim != nil {
			pids = append(pids, s.shim.Members()...)
		}
		j.mu.Lock()
		pid := s.pid
		j.mu.Unlock()
		for next := []int{pid}; len(next) > 0 && pid > 0; next = next[1:] {
			next = append(next, children[next[0]]...)
			pids = append(pids, next[0])
		}
		slices.Sort(pids)
		found[s] = slices.Compact(pids)
	}
	return found
}

// cpuTimes returns the CPU time that each process has used. It leaves out processes that end in the meantime.
func cpuTimes(found map[*sandboxed][]int) map[proc.Identity]time.Duration {
	times := map[proc.Identity]time.Duration{}
	for _, pids := range found {
		for _, pid := range pids {
			p, err := (proc.FS{}).Process(pid)
			if err != nil {
				continue
			}
			if t, err := proc.Runtime(pid); err == nil {
				times[proc.Identity{PID: pid, Start: p.Start}] = t
			}
		}
	}
	return times
}

// cpuSince returns, by PID, the CPU seconds that each process has used since an earlier call of cpuTimes. before is the
// result of that call. If a process did not exist then, all of its CPU time counts.
func cpuSince(found map[*sandboxed][]int, before map[proc.Identity]time.Duration) map[int]float64 {
	used := map[int]float64{}
	for id, t := range cpuTimes(found) {
		used[id.PID] = (t - before[id]).Seconds()
	}
	return used
}

// describe adds all processes to the evidence, except those that end in the meantime. used has the CPU seconds of each
// process in the window. threads has, for each process, the CPU time that its threads had used when the window opened,
// if threads may be charged elsewhere. describe returns the processes of all sandboxes.
func (j *joined) describe(found map[*sandboxed][]int, used map[int]float64, threads map[int]map[int]time.Duration) (
	all []Process) {
	groups := j.trial.Cgroups().NewResolver()
	for _, s := range j.inOrder() {
		told := Sandbox{Name: s.name, Cgroup: s.group.Path(), Processes: processesOf(groups, s, found[s])}
		for i := range told.Processes {
			p := &told.Processes[i]
			if seconds, known := used[p.PID]; known {
				p.CPUSeconds = &seconds
			}
			p.CPUElsewhere = elsewhere(groups, *p, threads[p.PID])
		}
		j.evidence.Sandboxes = append(j.evidence.Sandboxes, told)
		all = append(all, told.Processes...)
	}
	return all
}

// processesOf returns the processes of a sandbox, without those that end in the meantime.
func processesOf(groups *cgroup.Resolver, s *sandboxed, pids []int) []Process {
	all := []Process{}
	inPod := s.group.Members()
	for _, pid := range pids {
		p, err := processOf(groups, pid, slices.Contains(inPod, pid))
		if err != nil {
			continue
		}
		same := func(o Process) bool { return o.SameMemoryAs == 0 && sameMemory(o, p) }
		if i := slices.IndexFunc(all, same); i >= 0 {
			p.SameMemoryAs = all[i].PID
		}
		all = append(all, p)
	}
	return all
}

// sameMemory reports whether two processes share an address space (KCMP_VM of kcmp(2)). If that call fails, sameMemory
// compares the components of the processes and the sizes of their memory. A process without resident memory shares
// none.
func sameMemory(a, b Process) bool {
	if a.RSS == 0 || b.RSS == 0 {
		return false
	}
	const kcmpVM = 1
	order, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(a.PID), uintptr(b.PID), kcmpVM, 0, 0, 0)
	if errno != 0 {
		return a.Component == b.Component && a.Resident == b.Resident
	}
	return order == 0
}

func processOf(r *cgroup.Resolver, pid int, inPod bool) (p Process, err error) {
	fs := proc.FS{}
	p.PID = pid
	if p.Comm, err = fs.Comm(pid); err != nil {
		return p, err
	}
	cmdline, err := fs.Cmdline(pid)
	if err != nil {
		return p, err
	}
	p.Component = componentOf(p.Comm, cmdline, inPod)
	if p.Resident, err = residentOf(fs, pid); err != nil {
		return p, err
	}
	threads, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "task"))
	if err != nil {
		return p, fmt.Errorf("counting the threads of process %d: %w", pid, err)
	}
	p.Threads = len(threads)
	groups, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return p, fmt.Errorf("reading the control groups of process %d: %w", pid, err)
	}
	charged := r.Charged(groups)
	p.MemoryCgroup, p.CPUCgroup = charged.Memory, charged.CPU
	if p.Component == VMM {
		for _, t := range threads {
			tid, err := strconv.Atoi(t.Name())
			if err != nil {
				continue
			}
			if group, err := r.Path(tid); err == nil && group != p.CPUCgroup { // an error means that the thread has ended
				if p.ThreadCgroups == nil {
					p.ThreadCgroups = map[string]int{}
				}
				p.ThreadCgroups[group]++
			}
		}
	}
	// A process that ends is in no group: v1 then reports the root (proc_cgroup_show in kernel/cgroup/cgroup.c).
	if now, err := fs.Process(pid); err != nil || now.Exiting() && now.Threads <= 1 {
		return p, fmt.Errorf("process %d: %w", pid, proc.ErrGone)
	}
	return p, nil
}

// Resident is the resident memory of a process, in bytes. RSS counts in full the pages that several processes map; the
// other fields count the process's share of such pages.
type Resident struct {
	RSS   uint64 `json:"rss_bytes"`
	PSS   uint64 `json:"pss_bytes"`
	Anon  uint64 `json:"pss_anon_bytes"` // Anon, File and Shmem are parts of PSS
	File  uint64 `json:"pss_file_bytes"`
	Shmem uint64 `json:"pss_shmem_bytes"`
}

func residentOf(fs proc.FS, pid int) (Resident, error) {
	r, err := fs.Rollup(pid)
	if err != nil || r.PSS == 0 {
		return Resident{RSS: r.RSS}, err
	}
	if r.Anon == nil || r.File == nil || r.Shmem == nil {
		return Resident{}, fmt.Errorf("process %d: resident memory by kind of page needs Linux 5.9", pid)
	}
	return Resident{RSS: r.RSS, PSS: r.PSS, Anon: *r.Anon, File: *r.File, Shmem: *r.Shmem}, nil
}
