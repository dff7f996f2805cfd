// Package sandbox tells which process belongs to which sandbox, as which component, and where it is charged.
//
// No single sign is trusted: the paths of control groups, command lines, parents and the state that runtimes keep each
// say something, and a process whose command line names a sandbox while its group is somebody else's service is itself
// a finding. What is known of a runtime is in its file, such as runtime_kata.go, and what is known of an engine in
// another, such as engine_docker.go; both register it. The rest of the code knows none of them. Where Tare itself runs
// containers in a runtime (internal/sandboxes), the runtime's file says how.
//
// Files are read below a root, so that a tree of test files can stand for a machine. What others can write (command
// lines, names of groups, state) is bounded before it is kept.
package sandbox

import (
	"tare/internal/scale/host/cgroup"
)

// Component is what a process or thread does in its sandbox.
type Component string

// The components.
const (
	Workload  Component = "workload"  // the application
	Init      Component = "init"      // holds the sandbox open, or starts the application: pause, tini, runc init
	VMM       Component = "vmm"       // the virtual machine monitor: its main thread and what has no name of its own
	VCPU      Component = "vcpu"      // a thread that runs the guest
	IO        Component = "io"        // a thread of the VMM or the kernel that does the guest's input and output
	Virtiofsd Component = "virtiofsd" // serves the guest's files
	Shim      Component = "shim"      // the engine's hold on the sandbox
	Sentry    Component = "sentry"    // gVisor's kernel
	Gofer     Component = "gofer"     // serves the sentry's files
	Monitor   Component = "monitor"   // watches: conmon, kata-monitor
	Engine    Component = "engine"    // containerd, CRI-O, the kubelet: they serve all sandboxes
	Other     Component = "other"     // in the sandbox's groups, for a reason that the table does not know
)

// Components lists them in the order in which they are shown.
var Components = []Component{
	Workload, Init, VMM, VCPU, IO, Virtiofsd, Sentry, Gofer, Shim, Monitor, Engine, Other,
}

// Infrastructure says whether the component serves the application, rather than being it. The memory and CPU time of a
// VCPU are the guest's: the application's and its kernel's together, which the host cannot tell apart.
func (c Component) Infrastructure() bool { return c != Workload && c != VCPU }

// Place is what kind of group something is charged to.
type Place string

// The places.
const (
	PlacePod       Place = "pod"       // the group of a pod itself
	PlaceContainer Place = "container" // of a container; for a runtime of virtual machines, of the whole sandbox
	PlaceSandbox   Place = "sandbox"   // of a sandbox, by a name that only sandbox runtimes give
	PlaceOverhead  Place = "overhead"  // made for what a runtime keeps outside of the pod
	PlaceHelper    Place = "helper"    // of a monitor
	PlaceLiteral   Place = "literal"   // a directory whose name is systemd's notation of a group
	PlaceOwn       Place = "own"       // some other group, in which there is nothing but one sandbox
	PlaceService   Place = "service"   // of a service of the machine
	PlaceRoot      Place = "root"
	PlaceOther     Place = "other"
)

// Sign is what an identity rests on.
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
	Inside bool // it is one of the sandbox's own groups: below its pod, or its own where there is no pod
}

// Thread is a thread whose component or whose groups are not those of its process.
type Thread struct {
	TID         int
	Comm        string
	Component   Component
	CPU, Memory Location // Memory is its process's: memory is charged by the thread-group leader
	CPUNs       *uint64  // CPU time that it has used, in nanoseconds; nil where it could not be read
}

// Process is a process of a sandbox, or one that serves all of them.
type Process struct {
	PID, PPID   int
	Start       uint64 // as proc.Process.Start
	Comm        string
	Program     string // base name of its command
	Component   Component
	Sandbox     string // id; empty for what serves all
	Container   string // id, where it is in the group of one
	Signs       []Sign
	CPU, Memory Location
	Threads     []Thread // of VMMs
	Kernel      bool     // a thread of the kernel that works for the sandbox
	CPUNs       *uint64  // CPU time that it has used, with all threads, in nanoseconds; nil where it could not be read
}

// Pod is what is known of a sandbox's pod; empty outside Kubernetes.
type Pod struct{ UID, Namespace, Name string }

// Overhead is what was declared for a sandbox (podFixed of its RuntimeClass), as far as this machine knows.
type Overhead struct {
	MemoryBytes uint64
	Source      string // where it was read
}

// Group is a group that a sandbox, or a part of it, is charged to.
type Group struct {
	Location
	Processes int           // of the sandbox, that are charged to it
	Within    string        // the group of the sandbox that it is below; empty where it is below none
	Reading   *cgroup.Group // its counters; nil where others are in it as well, or where it is within another
	alone     bool
}

// Finding is something about a sandbox that is worth saying.
type Finding struct{ Code, Message string }

// Sandbox is a container, a pod, or a virtual machine that stands for one.
type Sandbox struct {
	ID      string
	Pod     Pod
	Name    string // of the container, as its engine's files have it; empty in a pod, and where it is not known
	Runtime string // empty where it is not known
	Flavour string // go or rs, of Kata
	Engine  string
	Driver  string // systemd or cgroupfs, by how groups are called
	VM      bool   // the application is inside a virtual machine
	// GuestMemory are the components whose shared memory is the application's, or the guest's that holds it.
	GuestMemory []Component
	Row         string // how it is arranged: name of the row of the table; empty where none fits
	Title       string // of the row
	Containers  []string
	Processes   []*Process
	Groups      []*Group
	Empty       []string // groups of containers below the pod in which there is no process
	Declared    *Overhead
}

// Census is all sandboxes of a machine.
type Census struct {
	Memory    string // v1 or v2: the hierarchy that counts memory
	Sandboxes []*Sandbox
	Shared    []*Process // what serves all sandboxes
	Hidden    int        // processes whose program may not be read, as of the last full reading: they may be of sandboxes
}
