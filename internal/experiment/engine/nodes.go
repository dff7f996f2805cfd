package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	"tare/internal/experiment/cluster"
	"tare/internal/experiment/load"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/placement"
	"tare/internal/experiment/record"
	"tare/internal/experiment/role"
	"tare/internal/experiment/spec"
	"tare/internal/lib/fault"
	"tare/internal/lib/files"
	"tare/internal/lib/text"
	"tare/internal/scale/ledger"
)

// This file runs trials on many machines. An agent at each node (NodeAgent) runs the whole trial, and all begin at the
// same time. The coordinator makes the trial's record from the records of the nodes: it merges the loads, the metrics
// cover all nodes together, and Trial.Nodes has the record of each node. A node whose trial failed is recorded and
// named, and left out of the metrics. Sums over nodes are then left out too, because they would be incomplete.

// Nodes runs trials on nodes. Package internal/experiment/cluster implements it.
type Nodes interface {
	// Names returns the names of all nodes, in the order in which trials use them.
	Names() []string
	// Ensure tries to get lost nodes to join again. A node that does not join is not an error here, but in Run.
	Ensure(ctx context.Context, names []string) error
	// Run has the contract of cluster.Coordinator.Run.
	Run(ctx context.Context, names []string, share cluster.Share, data json.RawMessage, length, tail time.Duration,
		begun func(at int64)) []cluster.Outcome
	// Why returns more about why a node was lost, or "".
	Why(name string) string
	// PIDs returns the pids of the agents on this machine, and Group the path of their control group. They return nil and
	// "" if each node is a separate machine.
	PIDs() []int
	Group() string
}

// nodeJob describes the trial that a node runs.
type nodeJob struct {
	Spec    json.RawMessage     `json:"spec"` // resolved, at the trial's level
	Planned record.PlannedTrial `json:"planned"`
	Attempt int                 `json:"attempt,omitempty"`
	Seed    uint64              `json:"seed"` // seed of the trial's arrivals; each node derives its own from it
}

// nodeRecord is the record that a node sends.
type nodeRecord struct {
	Trial  record.Trial `json:"trial"`
	Late   int64        `json:"late_ns"` // Late, Opened and Closed: see record.NodeTrial
	Opened int64        `json:"opened_late_ns"`
	Closed int64        `json:"closed_late_ns"`
}

// lateAllowed is the longest time after the scheduled start at which a node's loads may receive their schedule.
//
// edgePart and leastEdge limit the delay with which a node's counters are read after the edges of the window, because
// later readings do not describe the load: the limit is the fraction edgePart of the window, but at least leastEdge.
const (
	lateAllowed = 5 * time.Millisecond
	edgePart    = 0.2
	leastEdge   = 20 * time.Millisecond
)

// maxFailedNamed limits the failed nodes that an error names if a trial failed at all nodes. It is more than one,
// because nodes may fail for different reasons.
const maxFailedNamed = 3

// nodesTrial is a trial on nodes, as the coordinator runs it.
type nodesTrial struct {
	machine Machine
	level   *spec.Spec // the spec at the trial's level, without copies, which the nodes receive
	spec    *spec.Spec // level as the trial's arm runs it
	seed    uint64
	late    time.Duration // how long after an edge of the window the coordinator's counters were read

	recorded int // bytes of the nodes' records
}

func newNodesTrial(m Machine, level *spec.Spec, arm string, seed uint64) *nodesTrial {
	return &nodesTrial{machine: m, level: level, spec: level.As(arm), seed: seed}
}

// edgeAllowed returns how long after an edge of the window the counters may be read.
func (x *nodesTrial) edgeAllowed() time.Duration {
	return max(time.Duration(edgePart*float64(x.spec.Duration)), leastEdge)
}

// run runs the trial and records it in t. If the trial failed, the error says why, as t.Validity does.
func (x *nodesTrial) run(ctx context.Context, t *record.Trial) error {
	t.Started, t.Clocks, t.Loads = time.Now(), map[string]time.Duration{}, map[string]load.Result{}
	err := x.measure(ctx, t)
	t.Ended = time.Now()
	if err != nil {
		t.Validity.Failed = Failure(ctx, err)
		if n := x.machine.Nodes; n != nil && n.Group() != "" { // the ledger says nothing about nodes on other machines
			t.Validity.Cause = measured.FailedBy(t.Ledger, x.trees(t.Ledger)...)
		}
		return err
	}
	p := &measured.Pool{
		Setup: &x.spec.Setup, Trial: t, Tells: x.machine.Nodes.Group() != "" && x.late <= x.edgeAllowed(),
	}
	if x.machine.Nodes.Group() != "" {
		p.Outside = measured.DisturbanceOf(t.Ledger, os.Getpid(), x.trees(t.Ledger)...)
	}
	p.Gather()
	p.Outside.Mixed = p.Strays()
	t.Validity.Reasons = p.Judge()
	t.Validity.Valid = len(t.Validity.Reasons) == 0
	p.Trim(x.machine.Nodes.Group())
	return nil
}

// trees returns the paths of the trial's groups on this machine, which the nodes share: the group of the agents, and
// the groups in the ledger that agents made for the trial, even agents that sent no record. The ledger may be nil.
func (x *nodesTrial) trees(l *ledger.Ledger) []string {
	trees := []string{x.machine.Nodes.Group()}
	if l == nil {
		return trees
	}
	agents := x.machine.Nodes.PIDs()
	for _, g := range l.Cgroups {
		if pid, ok := placement.OwnerOf(path.Base(g.Path)); ok && slices.Contains(agents, pid) {
			trees = append(trees, g.Path)
		}
	}
	return trees
}

func (x *nodesTrial) measure(ctx context.Context, t *record.Trial) error {
	if x.machine.Nodes == nil {
		return fault.New(fault.Usage, "nodes", "give --local-nodes or --nodes-listen; see docs/nodes.md",
			"the trial is to run on nodes, and there are none")
	}
	n, all := x.spec.Nodes(), x.machine.Nodes.Names()
	if n > len(all) {
		return fault.New(fault.Usage, "nodes", "set nodes to what there is, or have more join",
			"the trial is to run on %d nodes, and there are %d", n, len(all))
	}
	names, lap := all[:n], laps(t)
	if err := x.machine.Nodes.Ensure(ctx, names); err != nil {
		return fmt.Errorf("having nodes join again: %w", err)
	}
	lap("join")
	data, err := x.job(t.PlannedTrial, t.Attempt)
	if err != nil {
		return err
	}
	var edges error
	length, tail := x.spec.Warmup+x.spec.Duration, x.tail(t.Arm)
	outcomes := x.machine.Nodes.Run(ctx, names, x.machine.NodeShare, data, length, tail, func(at int64) {
		lap("set-up")
		t.Ledger, edges = x.window(ctx, at+int64(x.spec.Warmup))
		lap("measured")
	})
	lap("drain")
	for i := range outcomes {
		t.Nodes = append(t.Nodes, x.nodeTrial(outcomes[i], t.PlannedTrial, t.Attempt))
		outcomes[i].Record = nil // nodeTrial has decoded it
	}
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if edges != nil {
		return edges
	}
	if failed := measured.FailedNodes(t.Nodes); failed == n {
		if n == 1 {
			return fmt.Errorf("the trial failed at its node, %s: %s", t.Nodes[0].Name, t.Nodes[0].Failed)
		}
		return fmt.Errorf("the trial failed at all of %d nodes; at %s", n, t.FailedNodes(maxFailedNamed))
	}
	return nil
}

// tail returns the longest time from the end of a trial's loads until its results are complete.
func (x *nodesTrial) tail(arm string) time.Duration {
	longest := time.Duration(0)
	for _, p := range x.spec.Loads {
		longest = max(longest, p.Options.Duration("drain"))
	}
	if p := x.spec.Of(arm); p != nil {
		longest += p.Kind.About().Tail.With(p.Options)
	}
	return longest
}

// job encodes the trial for a node, with a spec without factors.
func (x *nodesTrial) job(p record.PlannedTrial, attempt int) (json.RawMessage, error) {
	one, err := json.Marshal(x.level.OneTrial())
	if err != nil {
		return nil, fmt.Errorf("encoding the spec for nodes: %w", err)
	}
	data, err := json.Marshal(nodeJob{Spec: one, Planned: p, Attempt: attempt, Seed: x.seed})
	if err != nil {
		return nil, fmt.Errorf("encoding the trial for nodes: %w", err)
	}
	return data, nil
}

// window returns the ledger of the coordinator's machine for the window that the nodes measure. If each node is a
// separate machine, this ledger shows the coordinator's cost.
func (x *nodesTrial) window(ctx context.Context, from int64) (l *ledger.Ledger, err error) {
	if x.spec.EventLoad() != "" {
		done := runFirst()
		defer func() { done(l) }()
	}
	if l, err = x.machine.window(ctx, from, from+int64(x.spec.Duration)); err != nil {
		return nil, err
	}
	opened, closed := edgesLate(l, from, x.spec.Duration)
	x.late = time.Duration(max(opened, closed))
	if allowed := x.edgeAllowed(); x.late > allowed {
		l.Warn("edges-late", "the counters were read %v after an edge of the window, and %v is allowed: "+
			"the coordinator's machine is too busy", x.late.Round(100*time.Microsecond), allowed)
	}
	return l, nil
}

// edgesLate returns how long after the edges of a window its counters were read, in ns. The argument from is the time
// at which the window was to open.
func edgesLate(l *ledger.Ledger, from int64, length time.Duration) (opened, closed int64) {
	opened, closed = measured.MonotonicOf(l.Window.Start)-from, measured.MonotonicOf(l.Window.End)-from-int64(length)
	return max(0, opened), max(0, closed)
}

// nodeTrial makes the record of one node from its outcome. It rejects an incomplete record, or the record of another
// trial.
func (x *nodesTrial) nodeTrial(o cluster.Outcome, planned record.PlannedTrial, attempt int) record.NodeTrial {
	n := record.NodeTrial{Name: o.Name}
	if o.Clock != nil {
		n.ClockOffset, n.ClockError = new(o.Clock.Ahead.Nanoseconds()), new(o.Clock.Error.Nanoseconds())
	}
	if o.Failed != nil {
		n.Failed = o.Failed.Error()
		if more := x.machine.Nodes.Why(o.Name); more != "" {
			n.Failed += "; " + more
		}
	}
	if o.Record == nil {
		n.Failed = cmp.Or(n.Failed, "it sent no record")
		return n
	}
	r, err := decodeNodeRecord(o.Record)
	if err == nil {
		err = checkNodeRecord(r, planned, attempt)
	}
	if err == nil {
		err = x.makeRoom(&r.Trial)
	}
	if err != nil {
		n.Failed = cmp.Or(n.Failed, err.Error())
		return n
	}
	n.Trial = &r.Trial
	switch {
	case r.Trial.Validity.Failed == record.Interrupted && n.Failed != "": // n.Failed says why it was interrupted
	case r.Trial.Validity.Failed != "":
		n.Failed = r.Trial.Validity.Failed
	}
	if o.Begin != 0 && r.Trial.Ledger != nil {
		n.StartedLateNs, n.OpenedLateNs, n.ClosedLateNs = new(r.Late), new(r.Opened), new(r.Closed)
		allowed := x.edgeAllowed()
		switch late, edge := time.Duration(r.Late), time.Duration(max(r.Opened, r.Closed)); {
		case late > lateAllowed:
			n.Failed = cmp.Or(n.Failed, fmt.Sprintf("it began %v late, and %v is allowed: its machine or the network is "+
				"too busy", late.Round(100*time.Microsecond), lateAllowed))
		case edge > allowed:
			n.Failed = cmp.Or(n.Failed, fmt.Sprintf("its counters were read %v after an edge of the window, "+
				"and %v is allowed: its machine is too busy", edge.Round(100*time.Microsecond), allowed))
		}
	}
	return n
}

// Limits of the records of nodes, encoded again after decoding, because two bytes of a node's JSON can become hundreds
// in the file of trials. A usual record has some 100 KB. If the trial's line becomes too long for readers of the file,
// record.Writer leaves out details.
const (
	maxNodeRecord  = 8 << 20  // bytes
	maxNodeRecords = 48 << 20 // bytes, of all nodes of a trial
)

func decodeNodeRecord(text json.RawMessage) (r nodeRecord, err error) {
	if err := role.CheckValues(text); err != nil {
		return r, fmt.Errorf("its record has %w", err)
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("its record cannot be decoded: %w", err)
	}
	return r, nil
}

// makeRoom counts the bytes of a node's record, and returns an error if the record is too large, alone or together with
// the records counted before.
func (x *nodesTrial) makeRoom(t *record.Trial) error {
	text, err := json.Marshal(t)
	if err != nil {
		return fmt.Errorf("its record cannot be written: %w", err)
	}
	if len(text) > maxNodeRecord {
		return fmt.Errorf("its record would have %d MiB, and %d are allowed", len(text)>>20, maxNodeRecord>>20)
	}
	if x.recorded += len(text); x.recorded > maxNodeRecords {
		return fmt.Errorf("its record does not fit: those of all nodes have more than %d MiB", maxNodeRecords>>20)
	}
	return nil
}

func checkNodeRecord(r nodeRecord, planned record.PlannedTrial, attempt int) error {
	t := &r.Trial
	switch {
	case t.Schema != record.TrialSchema:
		return fmt.Errorf("its record has the schema %q, not %q", text.Clip(t.Schema), record.TrialSchema)
	case t.Index != planned.Index || t.Arm != planned.Arm || t.Block != planned.Block:
		return fmt.Errorf("its record is of trial %d (%s), not of %d (%s)",
			t.Index, text.Clip(t.Arm), planned.Index, planned.Arm)
	case t.Attempt != attempt:
		return fmt.Errorf("its record is of attempt %d at trial %d, not of %d", t.Attempt, t.Index, attempt)
	case t.Validity.Failed == "" && (t.Ledger == nil || t.Metrics == nil):
		return errors.New("its record is incomplete: it has neither a failure nor a ledger with metrics")
	case len(t.Nodes) > 0:
		return errors.New("its record contains records of other nodes")
	case r.Late < 0 || r.Opened < 0 || r.Closed < 0:
		return errors.New("its record was begun or its counters were read before the time")
	}
	for _, name := range slices.Sorted(maps.Keys(t.Loads)) {
		l := t.Loads[name]
		if err := l.Check(); err != nil {
			return fmt.Errorf("its record has an impossible value of the load %q: %w", text.Clip(name), err)
		}
	}
	if t.Work != nil {
		if err := t.Work.Check(); err != nil {
			return fmt.Errorf("its record has an impossible value of the subject's work: %w", err)
		}
	}
	return nil
}

// NodeAgent runs trials for a coordinator.
type NodeAgent struct {
	Name string
	// Dir holds files that processes of a trial read, and the record of the last trial.
	Dir      string
	Features []string // the names that specs may use in "needs"
	// Machine checks that this machine can run a spec, and returns the Machine for its trial.
	Machine func(s *spec.Spec) (Machine, error)
	// Ready is called when a trial is set up, before the coordinator is notified; may be nil.
	Ready func() error

	// AllowCommands allows specs to name commands, files and addresses (Spec.CheckReach).
	AllowCommands bool
}

// nodeRecordFile is the record of a node's last trial, in the node's directory.
const nodeRecordFile = "trial.json"

// Run implements cluster.Runner.
func (a NodeAgent) Run(
	ctx context.Context, job cluster.Job, barrier cluster.Barrier,
) (sent json.RawMessage, err error) {
	var j nodeJob
	if err := json.Unmarshal(job.Data, &j); err != nil {
		return nil, fmt.Errorf("decoding the trial: %w", err)
	}
	s, err := spec.Parse("the coordinator's spec", j.Spec, a.Features)
	if err != nil {
		return nil, err
	}
	if err := a.check(s, j.Planned, job.Share); err != nil {
		return nil, err
	}
	m, err := a.Machine(s)
	if err != nil {
		return nil, err
	}
	m.Share = job.Share
	r := nodeRecord{Trial: record.Trial{Schema: record.TrialSchema, PlannedTrial: j.Planned, Attempt: j.Attempt}}
	prepared := newPrepared()
	prepared.addTrial(s, j.Planned.Arm)
	defer func() { err = errors.Join(err, prepared.remove()) }()
	if err := prepared.prepare(ctx, m.Self); err != nil {
		return nil, err
	}
	x := newTrial(m, s.As(j.Planned.Arm).WithCopies(), j.Planned, j.Attempt, a.Dir, a.seed(j.Seed))
	x.prepared = prepared
	var begin int64
	x.barrier = func(ctx context.Context) (int64, error) {
		if a.Ready != nil {
			if err := a.Ready(); err != nil {
				return 0, err
			}
		}
		at, err := barrier(ctx)
		begin = at
		return at, err
	}
	failure := x.run(ctx, &r.Trial)
	if failure != nil && ctx.Err() != nil {
		failure = context.Cause(ctx)
	}
	r.Late = x.late
	if l := r.Trial.Ledger; l != nil {
		r.Opened, r.Closed = edgesLate(l, begin+int64(s.Warmup), s.Duration)
	}
	text, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encoding the record: %w", err)
	}
	// The results stay here until the next trial, even if the connection fails.
	if err := files.Replace(filepath.Join(a.Dir, nodeRecordFile), text, 0o644); err != nil && failure == nil {
		failure = fault.Wrap(err, fault.Machine, a.Dir, "make room there", "the node's record cannot be written")
	}
	return text, failure
}

// maxShare is more CPUs than any machine has.
const maxShare = 1 << 20

// check returns an error for a trial that a genuine coordinator would not send, or that this node does not allow.
func (a NodeAgent) check(s *spec.Spec, planned record.PlannedTrial, share cluster.Share) error {
	switch {
	case len(s.Factors) > 0 || s.Nodes() > 0:
		return errors.New("the trial's spec has factors or nodes, and a node runs one trial at one level")
	case !slices.Contains(s.AllArms(), planned.Arm):
		return fmt.Errorf("the trial is of the arm %q, which its spec does not have", text.Clip(planned.Arm))
	case planned.Index < 0 || planned.Index > math.MaxInt32:
		return fmt.Errorf("there is no trial %d", planned.Index)
	case !(share.CPUs >= 0 && share.CPUs <= maxShare && share.Weight >= 0 && share.Weight <= 1):
		return fmt.Errorf("no trial can have %g CPUs with a weight of %g", share.CPUs, share.Weight)
	case a.AllowCommands:
		return nil
	}
	return s.CheckReach(a.Name)
}

// seed derives this node's seed from the trial's: nodes with the same arrivals would not be independent loads.
func (a NodeAgent) seed(seed uint64) uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, seed, a.Name)
	return h.Sum64()
}
