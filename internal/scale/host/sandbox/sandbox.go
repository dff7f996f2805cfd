// Package sandbox determines which sandbox each process belongs to, which component of the sandbox it is, and which
// control groups it is charged to.
//
// No single sign is trusted: the paths of control groups, command lines, parents and the state that runtimes keep are
// all considered, and a process whose command line names a sandbox while its group belongs to an unrelated service is
// itself a finding. Each runtime has a file with what is known about it, such as runtime_kata.go, and so has each
// engine, such as engine_docker.go. These files register it; the rest of the code knows no particular runtime or
// engine. If Tare itself runs containers in a runtime (internal/sandboxes), the runtime's file says how.
//
// Files are read below a root, so a tree of test files can stand for a machine. Input that others control (command
// lines, names of groups, state) is limited in size before it is kept.
package sandbox

import (
	"tare/internal/scale/host/cgroup"
)

// Component names the purpose of a process or thread in its sandbox.
type Component string

// The components.
const (
	Workload  Component = "workload"  // the application
	Init      Component = "init"      // holds the sandbox open, or starts the application: pause, tini, runc init
	VMM       Component = "vmm"       // the virtual machine monitor, without its threads that are another component
	VCPU      Component = "vcpu"      // a thread that runs the guest
	IO        Component = "io"        // a thread of the VMM or the kernel that does the guest's I/O
	Virtiofsd Component = "virtiofsd" // serves the guest's files
	Shim      Component = "shim"      // connects the engine to the sandbox
	Sentry    Component = "sentry"    // gVisor's kernel
	Gofer     Component = "gofer"     // serves the sentry's files
	Monitor   Component = "monitor"   // watches: conmon, kata-monitor
	Engine    Component = "engine"    // containerd, CRI-O, the kubelet: they serve all sandboxes
	Other     Component = "other"     // in the sandbox's groups for an unknown reason
)

// Components lists the components in display order.
var Components = []Component{
	Workload, Init, VMM, VCPU, IO, Virtiofsd, Sentry, Gofer, Shim, Monitor, Engine, Other,
}

// Infrastructure reports whether the component serves the application, rather than being it. The memory and CPU time
// of a VCPU belong to the guest: to the application and its kernel together, which the host cannot distinguish.
func (c Component) Infrastructure() bool { return c != Workload && c != VCPU }

// Place is the kind of group that something is charged to.
type Place string

// The places.
const (
	PlacePod       Place = "pod"       // the group of a pod itself
	PlaceContainer Place = "container" // the group of a container; with a virtual machine, that of the whole sandbox
	PlaceSandbox   Place = "sandbox"   // the group of a sandbox, with a name that only sandbox runtimes give
	PlaceOverhead  Place = "overhead"  // a group created for what a runtime keeps outside the pod
	PlaceHelper    Place = "helper"    // the group of a monitor
	PlaceLiteral   Place = "literal"   // a directory named in systemd's notation of a group
	PlaceOwn       Place = "own"       // another group that contains only one sandbox
	PlaceService   Place = "service"   // the group of a system service
	PlaceRoot      Place = "root"
	PlaceOther     Place = "other"
)

// Sign is a piece of evidence for a process's identity.
type Sign string

// The signs.
const (
	SignCgroup  Sign = "cgroup"
	SignCommand Sign = "command line"
	SignParent  Sign = "parent"
	SignState   Sign = "runtime state"
	SignName    Sign = "name of the thread"
)

// Location is a group that something is charged to.
type Location struct {
	Path   string // identity of the group
	Place  Place
	Inside bool // it is one of the sandbox's own groups: below its pod, or its own if there is no pod
}

// Thread is a thread whose component or groups differ from those of its process.
type Thread struct {
	TID         int
	Comm        string
	Component   Component
	CPU, Memory Location // Memory is that of its process, because the kernel charges the thread-group leader
	CPUNs       *uint64  // CPU time used so far, in nanoseconds; nil if it could not be read
}

// Process is a process of a sandbox, or one that serves all sandboxes.
type Process struct {
	PID, PPID   int
	Start       uint64 // as in proc.Process.Start
	Comm        string
	Program     string // base name of its command
	Component   Component
	Sandbox     string // id; empty if it serves all sandboxes
	Container   string // id of the container whose group it is in
	Signs       []Sign
	CPU, Memory Location
	Threads     []Thread // only of VMMs, and of shims that may contain one
	Kernel      bool     // a kernel thread that works for the sandbox
	CPUNs       *uint64  // CPU time used so far, including all threads, in nanoseconds; nil if it could not be read
}

// Pod identifies a sandbox's pod; its fields are empty outside Kubernetes, or if unknown.
type Pod struct{ UID, Namespace, Name string }

// Overhead is the overhead that was declared for a sandbox (podFixed of its RuntimeClass), as far as this machine
// knows.
type Overhead struct {
	MemoryBytes uint64
	Source      string // where it was read
}

// Group is a group that a sandbox, or some of it, is charged to.
type Group struct {
	Location
	Processes int           // processes of the sandbox that are charged to it
	Within    string        // the group of the sandbox that contains it; empty if there is none
	Reading   *cgroup.Group // its counters; nil if others are in it as well, or if Within is set
	alone     bool
}

// Finding is a noteworthy property of a sandbox.
type Finding struct{ Code, Message string }

// Sandbox is a container, a pod, or a virtual machine that stands for one.
type Sandbox struct {
	ID      string
	Pod     Pod
	Name    string // of the container, from its engine's files; empty in a pod, and if unknown
	Runtime string // empty if unknown
	Flavour string // go or rs, for Kata
	Engine  string
	Driver  string // systemd or cgroupfs, from the names of its groups
	VM      bool   // the application is inside a virtual machine
	// GuestMemory are the components whose shared memory belongs to the application, or to its guest.
	GuestMemory []Component
	Row         string // name of the row of the table that describes it; empty if none does
	Title       string // of the row
	Containers  []string
	Processes   []*Process
	Groups      []*Group
	Empty       []string // groups of containers below the pod that contain no process
	Declared    *Overhead
}

// Census lists all sandboxes of a machine.
type Census struct {
	Memory    string // v1 or v2: the hierarchy that counts memory
	Sandboxes []*Sandbox
	Shared    []*Process // processes that serve all sandboxes
	// Hidden counts processes whose program could not be read, as of the last full reading. They may belong to sandboxes.
	Hidden int
}
