package record

// Nodes describes, in run.json, the machines of a run that used more than the coordinator's.
type Nodes struct {
	// Local is true if all nodes ran on the coordinator's machine, each with a private network namespace and separate
	// control groups.
	Local bool `json:"local"`
	Count int  `json:"count"` // number of nodes that joined
	// CPUs is, for local nodes, how many CPUs the groups of a trial at one node may use together; 0: no limit.
	CPUs   float64 `json:"cpus_each,omitempty"`
	Scaled string  `json:"scaled,omitempty"` // which parts of the spec were left out because there were too few nodes
	Nodes  []Node  `json:"nodes,omitempty"`  // if each is a separate machine
}

// Node is one machine of a run.
type Node struct {
	Name     string `json:"name"` // the name in the node's certificate
	Hostname string `json:"hostname"`
	Kernel   string `json:"kernel"`
	CPUs     int    `json:"cpus"`
	BootID   string `json:"boot_id"` // equal for two nodes on one machine
}

// NodeTrial is one node's result of a trial. A failed one is kept, but no metric of the trial includes it.
type NodeTrial struct {
	Name string `json:"name"`
	// ClockOffset is the node's CLOCK_MONOTONIC minus the coordinator's, just before the start; nil: it was not read.
	ClockOffset *int64 `json:"clock_offset_ns"`
	ClockError  *int64 `json:"clock_offset_error_ns"` // bound on the error of ClockOffset
	// StartedLateNs is the time from the scheduled start until the loads had received their schedule, by the node's clock.
	// 0: they received it in time; nil: the node sent no ledger.
	StartedLateNs *int64 `json:"started_late_ns"`
	// OpenedLateNs and ClosedLateNs are the times from the edges of the window until the node's counters were read; nil:
	// the node sent no ledger.
	OpenedLateNs *int64 `json:"window_opened_late_ns"`
	ClosedLateNs *int64 `json:"window_closed_late_ns"`
	Failed       string `json:"failed,omitempty"` // why the node's trial failed
	// Trial is the node's record, with a ledger of the node's groups. The histograms of its loads are merged into the
	// histograms of the enclosing trial, and their slices are not kept.
	Trial *Trial `json:"trial,omitempty"`
}
