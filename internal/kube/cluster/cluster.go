// Package cluster is the account of a cluster over one window: the ledgers of its nodes, added up by workload,
// namespace, component, node and container. Start reading at Merger.
//
// It holds types and arithmetic only: it asks no API and no node. Names come from the cluster, identity from the
// kernel: a pod is found by the UID that its control groups have. Its JSON form is a contract (schema
// tare.cluster/v1).
//
// Units are seconds and bytes. A pointer field is nil where the figure is not known, which is not zero.
package cluster

import (
	"time"

	"tare/internal/scale/charge"
	"tare/internal/scale/ledger"
)

// Schema names the JSON form.
const Schema = "tare.cluster/v1"

// Node is what is known of one node: the answer of its agent, and what the cluster says of it.
type Node struct {
	Name   string
	Failed string         // why it did not answer; empty where it did
	Ledger *ledger.Ledger // settled, as agents send it; nil where the node did not answer. Add keeps nothing of it
	Clock  Clock
	// Root is the control group of the node in its ledger, where the node is a part of a machine. Where it is empty, the
	// node has the whole machine, or, on a machine that several nodes share, the pods that the cluster placed there.
	Root string

	Capacity, Allocatable Resources
}

// Clock is a node's clock, compared with that of the machine that asked the nodes.
type Clock struct {
	OffsetSeconds      *float64 `json:"offset_seconds"`      // the node's minus the asker's; nil: not measured
	UncertaintySeconds *float64 `json:"uncertainty_seconds"` // the true offset is within this of it
}

// Resources are amounts as Kubernetes counts them; nil where they are not known.
type Resources struct {
	CPUs        *float64 `json:"cpus"`
	MemoryBytes *int64   `json:"memory_bytes"`
}

// Pod is a pod as the cluster sees it.
type Pod struct {
	Namespace string
	Name      string
	UID       string
	// ConfigHash is the UID of a static pod on its node, from the annotation kubernetes.io/config.hash: its mirror in the
	// cluster has another UID.
	ConfigHash string
	Node       string
	Labels     map[string]string
	// OwnerKind and Owner name the workload, with a ReplicaSet resolved to its Deployment. Empty: the pod has no owner.
	OwnerKind, Owner string
	Containers       []Container
}

// Container is a container of a pod.
type Container struct {
	Name  string
	ID    string // as the runtime has it, without "containerd://"; names the container where the node's files do not
	Class Class
}

// Class is how a container got into its pod.
type Class string

// The classes.
const (
	App      Class = "app"
	Init     Class = "init"
	Sidecar  Class = "sidecar"  // an init container with restartPolicy Always
	Injected Class = "injected" // added to the pod by an injector
)

// Options say how to merge.
type Options struct {
	// Start and End are the window that the nodes were asked for, by the asker's clock. Zero: that of the nodes.
	Start, End time.Time
	// Machines are the identities of the nodes' machines, by name of the node, such as their boot ids. What several nodes
	// share is counted once. A node that has none has a machine to itself.
	Machines map[string]string
	// Spread spreads what serves a node over its workloads: CPU time in proportion to gross CPU time, and each kind of
	// memory in proportion to gross memory of that kind. What a node without workloads uses stays shared.
	Spread bool
	// Containers asks for rows of containers, of which a large cluster has hundreds of thousands.
	Containers bool
	// Rules are of charge.ParseClusterFile. They come before what nodes and the cluster say: the first that matches a
	// container counts. One without container= leaves sidecars, and what holds a pod open, as they are.
	Rules []charge.Rule
	// Match says which pods have rows of their own; nil: all. What others use is in rows "other pods", so that sums stay.
	Match func(*Pod) bool
}

// Cluster is the account. The rows of each view add up to Total.
type Cluster struct {
	Schema   string    `json:"schema"`
	Start    time.Time `json:"start"`
	End      time.Time `json:"end"`
	Asked    int       `json:"nodes_asked"`
	Answered int       `json:"nodes_answered"`
	Spread   bool      `json:"spread"` // see Options.Spread
	Capacity Budget    `json:"capacity"`
	Total    Usage     `json:"total"`

	Nodes      []NodeAccount `json:"nodes"`    // of all nodes, those that did not answer among them
	Machines   []Machine     `json:"machines"` // those that several nodes share
	Workloads  []*Row        `json:"workloads"`
	Namespaces []*Row        `json:"namespaces"`
	Components []*Row        `json:"components"`
	Containers []*Row        `json:"containers"`
	Warnings   []Warning     `json:"warnings"`
}

// Budget is the CPU time of machines, each counted once:
//
//	idle + steal + attributed + unexplained = capacity
type Budget struct {
	CPUs        float64 `json:"cpus"`
	Capacity    float64 `json:"capacity_seconds"`
	Idle        float64 `json:"idle_seconds"` // without what was stolen from idle CPUs
	Steal       float64 `json:"steal_seconds"`
	Attributed  float64 `json:"attributed_seconds"`
	Unexplained float64 `json:"unexplained_seconds"`
	// MemoryBytes is the memory of the machines, as the cluster says it; nil where one is not known.
	MemoryBytes *int64 `json:"memory_bytes"`
}

// Usage is what something used: gross = net + tare.
type Usage struct {
	CPU  Split `json:"cpu_seconds"`
	CPUs Split `json:"cpus"` // the same, divided by the length of each node's window
	// BPF is run time of eBPF programs, in anybody's name, above its tasks as far as samples placed it. It is a part of
	// CPU.
	BPF        Split `json:"bpf_seconds"`
	Hard       Split `json:"memory_hard_bytes"` // at the end of the window, as all memory
	Soft       Split `json:"memory_soft_bytes"`
	WorkingSet Split `json:"memory_working_set_bytes"`
}

// Split is one figure of Usage. Where a part is not known, such as the CPU time of a container that ended in the
// window, what contains it is nil, and so is what the kernel counts together with it: Known has then what counters
// say.
type Split struct {
	Gross *float64 `json:"gross"`
	Net   *float64 `json:"net"`
	Tare  *float64 `json:"tare"`
	// Shared is the part of tare that serves a whole node; the rest serves one pod.
	Shared *float64 `json:"shared"`
	// Other is the part of net that no rule names: neither a workload nor infrastructure.
	Other *float64 `json:"other"`
	Known *Known   `json:"known,omitempty"` // nil where all is known
}

// Known is what is known of a figure: counters lack the parts that are not, or have them on the side of the group
// around them.
type Known struct {
	Net     float64 `json:"net"`
	Tare    float64 `json:"tare"`
	Missing int     `json:"missing_parts"`
}

// Row is what one part of the cluster used. Which names it has depends on the view; those that do not apply are empty.
type Row struct {
	Namespace string `json:"namespace,omitempty"`
	Kind      string `json:"kind,omitempty"` // of the workload: Deployment, ..., Pod; or empty
	Workload  string `json:"workload,omitempty"`
	Pod       string `json:"pod,omitempty"`
	Container string `json:"container,omitempty"`
	Node      string `json:"node,omitempty"`
	Component string `json:"component,omitempty"`
	Usage
}

// NodeAccount is one node.
type NodeAccount struct {
	Name   string     `json:"name"`
	Failed string     `json:"failed,omitempty"` // why it did not answer; everything below is then nil
	Start  *time.Time `json:"start"`            // by the asker's clock, as far as the offset is known
	End    *time.Time `json:"end"`
	Clock  Clock      `json:"clock"`
	// Machine is the index in Cluster.Machines of the machine that it shares; nil where it has one to itself.
	Machine *int `json:"machine"`
	// Budget closes by itself. It is nil for a node that shares its machine: that has the budget.
	Budget     *Budget  `json:"budget"`
	BPFUnsplit *float64 `json:"bpf_unsplit_seconds"` // run time of eBPF programs that samples could not place
	Usage      *Usage   `json:"usage"`
	Components []*Row   `json:"components"` // the rows add up to Usage
	Reserve    *Reserve `json:"reserve"`
}

// Machine is a machine that several nodes share. Usage is of what is no node's part: threads of the kernel,
// interrupts, and groups of others.
type Machine struct {
	Identity string   `json:"identity"`
	Nodes    []string `json:"nodes"`
	Budget   Budget   `json:"budget"`
	Usage    Usage    `json:"usage"`
}

// Reserve compares what a node holds back from pods with what its own daemons used in the window: all that is shared
// and in no pod.
type Reserve struct {
	Capacity    Resources `json:"capacity"`
	Allocatable Resources `json:"allocatable"`
	Reserved    Resources `json:"reserved"` // capacity - allocatable; of memory it contains the eviction threshold
	Used        Resources `json:"used"`     // of memory the working set
	// Suggested is Used with headroom: see the constants.
	Suggested Resources `json:"suggested"`
}

// The headroom of Reserve.Suggested. One window shows no peak: weigh under load before setting it.
const (
	HeadroomCPU    = 1.5
	HeadroomMemory = 1.25
	StepCPUs       = 0.01    // CPUs are rounded up to it
	StepMemory     = 1 << 20 // bytes are rounded up to it
)

// Warning is something that the reader must know before quoting the account.
type Warning struct {
	Code    string   `json:"code"` // short and stable
	Message string   `json:"message"`
	About   []string `json:"about"` // the first nodes, or pods as node: namespace/pod, that it is about
	Count   int      `json:"count"` // how often there was reason for it
}
