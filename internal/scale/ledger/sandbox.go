package ledger

import "tare/internal/lib/known"

// Sandbox is a container, a pod, or a virtual machine that stands for one: what its processes use, to which groups the
// kernel charges it, and what was declared for it.
//
// It has two accounts of memory, which are never added up. Components say what processes have resident, by PSS: a page
// that several share is divided among them, so that sums count it once. Groups say what the kernel charges: page cache
// and kernel memory included, and whoever touched a page first pays for it. gross = net + tare holds in the first.
type Sandbox struct {
	ID          string      `json:"id"`
	Pod         *SandboxPod `json:"pod"`            // nil outside Kubernetes
	Name        string      `json:"name,omitempty"` // of the container, outside Kubernetes; empty where it is not known
	Runtime     string      `json:"runtime"`
	Engine      string      `json:"engine"`
	Driver      string      `json:"driver"`
	VM          bool        `json:"vm"`          // the application is inside a virtual machine
	Arrangement string      `json:"arrangement"` // name of a row of docs/weigh-sandboxes.md; empty where none fits
	Title       string      `json:"title"`       // of the arrangement
	Containers  []string    `json:"containers"`  // ids

	Components []SandboxComponent `json:"components"`
	// ByContainer is the same split by container, in the order of Containers. What serves the sandbox outside of its
	// containers, such as a shim, is in none of them.
	ByContainer []SandboxContainer `json:"by_container"`

	// Net is the application, Tare what serves it. Of a virtual machine Net is the whole guest, its kernel and its
	// page cache included, for the host cannot tell them apart: Notes say so.
	GrossCPU    *float64 `json:"gross_cpu_seconds"`
	NetCPU      *float64 `json:"net_cpu_seconds"`
	TareCPU     *float64 `json:"tare_cpu_seconds"`
	GrossMemory *uint64  `json:"gross_memory_pss_bytes"`
	NetMemory   *uint64  `json:"net_memory_pss_bytes"`
	TareMemory  *uint64  `json:"tare_memory_pss_bytes"`

	Groups []SandboxGroup `json:"groups"`
	// ChargedInside and ChargedOutside are hard memory of the groups that are the sandbox's alone, inside its pod (or
	// its own groups, where there is no pod) and outside of it. nil where there is none, or it is not known.
	ChargedInside  *int64 `json:"charged_inside_hard_bytes"`
	ChargedOutside *int64 `json:"charged_outside_hard_bytes"`

	Declared *SandboxOverhead `json:"declared_overhead"` // nil where this machine does not know it
	// MeasuredOverhead is memory of tare that cannot be reclaimed: anonymous and shared memory by PSS, and page tables.
	MeasuredOverhead *uint64 `json:"measured_overhead_bytes"`

	Findings  []SandboxFinding `json:"findings"`
	Processes []SandboxProcess `json:"processes"`
	Notes     []string         `json:"notes"` // why something is not known, or what it holds
}

// SandboxPod names a pod.
type SandboxPod struct {
	UID       string `json:"uid"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

// SandboxOverhead is what was declared for a sandbox: podFixed of its RuntimeClass.
type SandboxOverhead struct {
	MemoryBytes uint64 `json:"memory_bytes"`
	Source      string `json:"source"` // where it was read
}

// SandboxFinding is something about a sandbox that is worth saying.
type SandboxFinding struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// ComponentGuest is the memory of a guest, or of the applications of a kernel in user space, which its VMM or sentry
// holds as shared memory.
const ComponentGuest = "guest"

// SandboxComponent is the part that processes and threads of one kind have in a sandbox.
type SandboxComponent struct {
	Component string         `json:"component"`
	Charge    Charge         `json:"charge"` // ChargeWorkload: in net; ChargeTare: in tare
	Processes int            `json:"processes"`
	Threads   int            `json:"threads"`     // of processes of another component
	CPU       *float64       `json:"cpu_seconds"` // nil where it is not known
	Memory    *SandboxMemory `json:"memory"`      // nil where it was not read, and for threads, which have none
}

// SandboxContainer is what one container of a sandbox uses.
type SandboxContainer struct {
	ID        string `json:"id"`
	Name      string `json:"name,omitempty"` // as of Name.Container; empty where it is not known
	Processes int    `json:"processes"`      // at the end of the window, in its group
	// CPU and MemoryHard are of its group, as Cgroup has them; nil where it has none that is listed.
	CPU        *float64       `json:"cpu_seconds"`
	MemoryHard *int64         `json:"memory_hard_bytes"`
	Memory     *SandboxMemory `json:"memory"` // resident memory of its processes; nil where that of one was not read
}

// SandboxMemory is resident memory by kind of page, as PSS. Anon, File and Shmem are nil where the kernel tells only
// their sum.
type SandboxMemory struct {
	PSS        uint64  `json:"pss"`
	Anon       *uint64 `json:"anon"`
	File       *uint64 `json:"file"`
	Shmem      *uint64 `json:"shmem"`
	Swap       uint64  `json:"swap_pss"`    // not resident, in no sum
	PageTables uint64  `json:"page_tables"` // kernel memory, not in PSS
}

// Add adds the memory of another process.
func (m *SandboxMemory) Add(o *SandboxMemory) {
	m.PSS, m.Swap, m.PageTables = m.PSS+o.PSS, m.Swap+o.Swap, m.PageTables+o.PageTables
	m.Anon, m.File, m.Shmem = known.Sum(m.Anon, o.Anon), known.Sum(m.File, o.File), known.Sum(m.Shmem, o.Shmem)
}

// SandboxGroup is a control group that a part of a sandbox is charged to. CPU and Memory are nil where the group is not
// the sandbox's alone, or is within another that is listed.
type SandboxGroup struct {
	Path      string   `json:"path"`
	Place     string   `json:"place"`
	Inside    bool     `json:"inside"` // the sandbox's pod, or its own group where there is no pod
	Within    string   `json:"within,omitempty"`
	Processes int      `json:"processes"`
	CPU       *float64 `json:"cpu_seconds"`
	Memory    *Memory  `json:"memory"`
}

// SandboxProcess is a process of a sandbox.
type SandboxProcess struct {
	PID          int             `json:"pid"`
	Comm         string          `json:"comm"`
	Program      string          `json:"program"`
	Component    string          `json:"component"`
	Container    string          `json:"container,omitempty"`
	KnownBy      []string        `json:"known_by"` // the signs that this rests on
	CPUCgroup    string          `json:"cpu_cgroup"`
	MemoryCgroup string          `json:"memory_cgroup"`
	CPU          *float64        `json:"cpu_seconds"` // threads included
	Memory       *SandboxMemory  `json:"memory"`
	Threads      []SandboxThread `json:"threads,omitempty"`
}

// SandboxThread is a thread whose component or group is not that of its process.
type SandboxThread struct {
	TID       int      `json:"tid"`
	Comm      string   `json:"comm"`
	Component string   `json:"component"`
	CPUCgroup string   `json:"cpu_cgroup"`
	CPU       *float64 `json:"cpu_seconds"`
}
