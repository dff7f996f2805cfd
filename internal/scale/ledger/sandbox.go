package ledger

import "tare/internal/lib/known"

// Sandbox is a container, a pod, or a virtual machine that acts as one: what its processes use, the groups that the
// kernel charges, and its declared overhead.
//
// It has two accounts of memory, which must not be added up. Components hold the processes' resident memory as PSS
// (proportional set size): a page that several processes share is divided among them, so sums count it once. Groups
// hold what the kernel charges: this includes page cache and kernel memory, and a page is charged to the group that
// touched it first. gross = net + tare holds for PSS.
type Sandbox struct {
	ID          string      `json:"id"`
	Pod         *SandboxPod `json:"pod"`            // nil outside Kubernetes
	Name        string      `json:"name,omitempty"` // of the container, outside Kubernetes; empty if unknown
	Runtime     string      `json:"runtime"`
	Engine      string      `json:"engine"`
	Driver      string      `json:"driver"`
	VM          bool        `json:"vm"`          // the application is inside a virtual machine
	Arrangement string      `json:"arrangement"` // such as kata-systemd-only; empty if none fits
	Title       string      `json:"title"`       // of the arrangement
	Containers  []string    `json:"containers"`  // ids

	Components []SandboxComponent `json:"components"`
	// ByContainer holds what each container uses, in the order of Containers. It leaves out what serves the sandbox from
	// outside its containers, such as a shim.
	ByContainer []SandboxContainer `json:"by_container"`

	// Net is the application, Tare what serves it. For a virtual machine Net is the whole guest, including its kernel and
	// page cache, because the host cannot distinguish them; Notes say so.
	GrossCPU    *float64 `json:"gross_cpu_seconds"`
	NetCPU      *float64 `json:"net_cpu_seconds"`
	TareCPU     *float64 `json:"tare_cpu_seconds"`
	GrossMemory *uint64  `json:"gross_memory_pss_bytes"`
	NetMemory   *uint64  `json:"net_memory_pss_bytes"`
	TareMemory  *uint64  `json:"tare_memory_pss_bytes"`

	Groups []SandboxGroup `json:"groups"`
	// ChargedInside and ChargedOutside are hard memory of the groups that belong to this sandbox alone, inside and
	// outside its pod (or its own groups, if there is no pod). nil if there are none, or if unknown.
	ChargedInside  *int64 `json:"charged_inside_hard_bytes"`
	ChargedOutside *int64 `json:"charged_outside_hard_bytes"`

	Declared *SandboxOverhead `json:"declared_overhead"` // nil if this machine does not know it
	// MeasuredOverhead is tare's memory that cannot be reclaimed: anonymous and shared memory by PSS, and page tables.
	MeasuredOverhead *uint64 `json:"measured_overhead_bytes"`

	Findings  []SandboxFinding `json:"findings"`
	Processes []SandboxProcess `json:"processes"`
	Notes     []string         `json:"notes"` // why something is unknown, or what a value includes
}

// SandboxPod names a pod.
type SandboxPod struct {
	UID       string `json:"uid"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

// SandboxOverhead is the declared overhead of a sandbox: podFixed of its RuntimeClass.
type SandboxOverhead struct {
	MemoryBytes uint64 `json:"memory_bytes"`
	Source      string `json:"source"` // where it was read
}

// SandboxFinding is a noteworthy property of a sandbox.
type SandboxFinding struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// ComponentGuest is the memory of a guest, or of the applications of a user-space kernel, which its VMM or sentry
// holds as shared memory.
const ComponentGuest = "guest"

// SandboxComponent holds the use of CPU time and memory by the processes and threads of one kind in a sandbox.
type SandboxComponent struct {
	Component string         `json:"component"`
	Charge    Charge         `json:"charge"` // ChargeWorkload: in net; ChargeTare: in tare
	Processes int            `json:"processes"`
	Threads   int            `json:"threads"`     // threads in processes of another component
	CPU       *float64       `json:"cpu_seconds"` // nil if unknown
	Memory    *SandboxMemory `json:"memory"`      // nil for threads, which share a process's memory, or if not read
}

// SandboxContainer holds the use of CPU time and memory by one container of a sandbox.
type SandboxContainer struct {
	ID        string `json:"id"`
	Name      string `json:"name,omitempty"` // as in Name.Container; empty if unknown
	Processes int    `json:"processes"`      // in its group, at the end of the window
	// CPU and MemoryHard are those of its group, as in Cgroup; nil if its group is not listed.
	CPU        *float64       `json:"cpu_seconds"`
	MemoryHard *int64         `json:"memory_hard_bytes"`
	Memory     *SandboxMemory `json:"memory"` // resident memory of its processes; nil if one of them could not be read
}

// SandboxMemory is resident memory by kind of page, as PSS. Anon, File and Shmem are nil if the kernel exposes only
// their sum.
type SandboxMemory struct {
	PSS        uint64  `json:"pss"`
	Anon       *uint64 `json:"anon"`
	File       *uint64 `json:"file"`
	Shmem      *uint64 `json:"shmem"`
	Swap       uint64  `json:"swap_pss"`    // not resident, and in no sum
	PageTables uint64  `json:"page_tables"` // kernel memory, not in PSS
}

// Add adds the memory of another process.
func (m *SandboxMemory) Add(o *SandboxMemory) {
	m.PSS, m.Swap, m.PageTables = m.PSS+o.PSS, m.Swap+o.Swap, m.PageTables+o.PageTables
	m.Anon, m.File, m.Shmem = known.Sum(m.Anon, o.Anon), known.Sum(m.File, o.File), known.Sum(m.Shmem, o.Shmem)
}

// SandboxGroup is a control group to which the kernel charges part of a sandbox. CPU and Memory are nil if the group
// does not belong to this sandbox alone, or is within another listed group, whose path is then in Within.
type SandboxGroup struct {
	Path      string   `json:"path"`
	Place     string   `json:"place"`
	Inside    bool     `json:"inside"` // within the sandbox's pod, or its own group if there is no pod
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
	KnownBy      []string        `json:"known_by"` // the evidence for Component
	CPUCgroup    string          `json:"cpu_cgroup"`
	MemoryCgroup string          `json:"memory_cgroup"`
	CPU          *float64        `json:"cpu_seconds"` // threads included
	Memory       *SandboxMemory  `json:"memory"`
	Threads      []SandboxThread `json:"threads,omitempty"`
}

// SandboxThread is a thread whose component or group differs from that of its process.
type SandboxThread struct {
	TID       int      `json:"tid"`
	Comm      string   `json:"comm"`
	Component string   `json:"component"`
	CPUCgroup string   `json:"cpu_cgroup"`
	CPU       *float64 `json:"cpu_seconds"`
}
