// Package cluster computes the account of a cluster over one window: the ledgers of its nodes, added up by workload,
// namespace, component, node and container. Start reading at Merger.
//
// The package holds only types and arithmetic, and contacts neither the API server nor nodes. Names come from the
// cluster, identity from the kernel: a pod is found by the UID in the paths of its control groups. The JSON form of the
// account is a contract (schema tare.cluster/v1).
//
// Units are seconds and bytes. A pointer field is nil if the figure is unknown, which differs from zero.
package cluster

import (
	"time"

	"tare/internal/scale/charge"
	"tare/internal/scale/ledger"
)

// Schema is the schema of the JSON form.
const Schema = "tare.cluster/v1"

// Node is one node: the answer of its agent, and its description in the cluster.
type Node struct {
	Name   string
	Failed string         // why it did not answer; empty if it did
	Ledger *ledger.Ledger // settled (Ledger.Settle), as agents send it; nil without an answer. Add does not keep it
	Clock  Clock
	// Root is the control group of the node in its ledger, if the node is only a part of a machine. If it is empty, the
	// node has the whole machine or, on a machine that several nodes share, the pods that the cluster placed on the node.
	Root string

	Capacity, Allocatable Resources
}

// Clock compares a node's clock with that of the machine that asked the nodes.
type Clock struct {
	OffsetSeconds      *float64 `json:"offset_seconds"`      // the node's clock minus the asker's; nil if not measured
	UncertaintySeconds *float64 `json:"uncertainty_seconds"` // the true offset differs by at most this
}

// Resources are amounts as Kubernetes counts them; nil if they are unknown.
type Resources struct {
	CPUs        *float64 `json:"cpus"`
	MemoryBytes *int64   `json:"memory_bytes"`
}

// Pod is a pod as the cluster describes it.
type Pod struct {
	Namespace string
	Name      string
	UID       string
	// ConfigHash is the UID of a static pod on its node, which the kubelet writes in an annotation of the pod's mirror in
	// the cluster. The mirror has another UID.
	ConfigHash string
	Node       string
	Labels     map[string]string
	// OwnerKind and Owner name the workload, with a ReplicaSet resolved to its Deployment. They are empty if the pod has
	// no owner.
	OwnerKind, Owner string
	Containers       []Container
}

// Container is a container of a pod.
type Container struct {
	Name  string
	ID    string // the runtime's, without "containerd://"; identifies the container if the node's files do not name it
	Class Class
}

// Class says how a container got into its pod.
type Class string

// The classes.
const (
	App      Class = "app"
	Init     Class = "init"
	Sidecar  Class = "sidecar"  // an init container with restartPolicy Always
	Injected Class = "injected" // added to the pod by an injector
)

// Options configure how ledgers are merged.
type Options struct {
	// Start and End are the window for which the nodes were asked, by the asker's clock. If they are zero, the nodes' own
	// windows are used.
	Start, End time.Time
	// Machines has, by name of a node, the identity of its machine, such as a boot id. What several nodes share is
	// counted once. A node without an entry has a machine to itself.
	Machines map[string]string
	// Spread distributes what serves a node over its workloads: CPU time in proportion to gross CPU time, and each kind
	// of memory in proportion to gross memory of that kind. On a node without workloads it stays shared.
	Spread bool
	// Containers enables rows of containers, of which a large cluster has hundreds of thousands.
	Containers bool
	// Rules are from charge.ParseClusterFile. They take precedence over the charges by nodes and the cluster, and the
	// first rule that matches a container applies. A rule without container= does not change sidecars and pause
	// containers.
	Rules []charge.Rule
	// Match reports whether a pod gets separate rows; nil means all. The usage of other pods is in rows "(other pods)",
	// so sums are unaffected.
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

	Nodes      []NodeAccount `json:"nodes"`    // all nodes, including those that did not answer
	Machines   []Machine     `json:"machines"` // machines that several nodes share
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
	Idle        float64 `json:"idle_seconds"` // without time stolen from idle CPUs
	Steal       float64 `json:"steal_seconds"`
	Attributed  float64 `json:"attributed_seconds"`
	Unexplained float64 `json:"unexplained_seconds"`
	// MemoryBytes is the memory of the machines, as reported by the cluster; nil if it is unknown for one of them.
	MemoryBytes *int64 `json:"memory_bytes"`
}

// Usage holds what one part of the cluster used. In each figure, gross = net + tare.
type Usage struct {
	CPU  Split `json:"cpu_seconds"`
	CPUs Split `json:"cpus"` // CPU divided by the length of each node's window
	// BPF is the run time of eBPF programs, whoever loaded them, while tasks of this part of the cluster were on the CPU,
	// as far as samples show it. It is included in CPU.
	BPF        Split `json:"bpf_seconds"`
	Hard       Split `json:"memory_hard_bytes"` // at the end of the window, like all memory
	Soft       Split `json:"memory_soft_bytes"`
	WorkingSet Split `json:"memory_working_set_bytes"`
}

// Split is one figure of Usage. If a part is unknown, such as the CPU time of a container that ended in the window,
// every figure that contains it is nil, and so is every figure that the kernel counts together with it. Known then has
// the values of the counters.
type Split struct {
	Gross *float64 `json:"gross"`
	Net   *float64 `json:"net"`
	Tare  *float64 `json:"tare"`
	// Shared is the part of tare that serves a whole node; the rest serves one pod.
	Shared *float64 `json:"shared"`
	// Other is the part of net that no rule names: neither a workload nor infrastructure.
	Other *float64 `json:"other"`
	Known *Known   `json:"known,omitempty"` // nil if everything is known
}

// Known is the known part of a figure. Unknown parts are missing from the counters, or are counted on the side of the
// enclosing group.
type Known struct {
	Net     float64 `json:"net"`
	Tare    float64 `json:"tare"`
	Missing int     `json:"missing_parts"`
}

// Row is the usage of one part of the cluster. The view decides which names are set; the others are empty.
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

// NodeAccount is the account of one node.
type NodeAccount struct {
	Name   string     `json:"name"`
	Failed string     `json:"failed,omitempty"` // why it did not answer; all fields below except Clock are then nil
	Start  *time.Time `json:"start"`            // by the asker's clock, if the offset is known
	End    *time.Time `json:"end"`
	Clock  Clock      `json:"clock"`
	// Machine is the index in Cluster.Machines of the machine that it shares; nil if it has one to itself.
	Machine *int `json:"machine"`
	// Budget adds up for this node alone. It is nil for a node that shares its machine, which then has the budget.
	Budget     *Budget  `json:"budget"`
	BPFUnsplit *float64 `json:"bpf_unsplit_seconds"` // run time of eBPF programs that samples could not place
	Usage      *Usage   `json:"usage"`
	Components []*Row   `json:"components"` // the rows add up to Usage
	Reserve    *Reserve `json:"reserve"`
}

// Machine is a machine that several nodes share. Usage covers what belongs to none of these nodes: kernel threads,
// interrupts, and other groups.
type Machine struct {
	Identity   string   `json:"identity"`
	Nodes      []string `json:"nodes"`
	Budget     Budget   `json:"budget"`
	Usage      Usage    `json:"usage"`
	Components []*Row   `json:"components"` // the rows add up to Usage
}

// Reserve compares what a node holds back from pods with the usage of its own daemons in the window, which is
// everything that is shared and in no pod.
type Reserve struct {
	Capacity    Resources `json:"capacity"`
	Allocatable Resources `json:"allocatable"`
	Reserved    Resources `json:"reserved"` // capacity - allocatable; for memory this includes the eviction threshold
	// Used is, for memory, the working set. It is nil if a part of it is unknown, or if rules name too little of
	// what runs outside of pods.
	Used Resources `json:"used"`
	// Suggested is Used plus headroom: see the constants below.
	Suggested Resources `json:"suggested"`
}

// The headroom of Reserve.Suggested. One window does not show peaks: weigh under load before applying it.
const (
	HeadroomCPU    = 1.5
	HeadroomMemory = 1.25
	StepCPUs       = 0.01    // CPUs are rounded up to a multiple of it
	StepMemory     = 1 << 20 // bytes are rounded up to a multiple of it
)

// Warning is something that the reader must know before quoting the account.
type Warning struct {
	Code    string   `json:"code"` // short and stable
	Message string   `json:"message"`
	About   []string `json:"about"` // the first nodes, or pods as "node: namespace/pod", that it concerns
	Count   int      `json:"count"` // how often it was raised
}
