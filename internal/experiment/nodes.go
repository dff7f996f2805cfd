package experiment

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"tare/internal/cluster"
	"tare/internal/fault"
	"tare/internal/ledger"
	"tare/internal/load"
	"tare/internal/metric"
	"tare/internal/pace"
	"tare/internal/placement"
	"tare/internal/quantity"
	"tare/internal/record"
	"tare/internal/stats"
)

// Trials on many machines. With nodes, a trial is run whole by an agent at each node (NodeAgent), all with the same begin, and its record is made
// from theirs: loads are merged, metrics are of all nodes together, and each node's own record stands in Trial.Nodes. A node-trial that
// failed is kept and named, and is in no metric; sums over nodes, which would be of too few, are then not given.

// nodesKnob is a setting of the whole experiment, which can be a factor as those of its parts can.
var nodesKnob = Knob{Name: "nodes", Type: TypeCount, Default: "0", Max: 10_000,
	Phrase: map[string]string{"": "on {} nodes", "0": "on this machine alone", "1": "on one node"},
	Doc:    "machines that each run the whole of every trial, all at the same time; 0: the trial runs on this machine alone. See docs/nodes.md"}

// nodes is on how many nodes trials run.
func (s *Spec) nodes() int { return int(s.Whole.float(nodesKnob.Name)) }

// MostNodes is the largest number of nodes of any level.
func (s *Spec) MostNodes() int {
	most := 0
	for _, l := range s.Levels() {
		most = max(most, s.At(l).nodes())
	}
	return most
}

// ScaleNodes fits the spec to n nodes, and says what that leaves out; nothing where all is left as it was. An experiment without nodes runs on all n.
func (s *Spec) ScaleNodes(n int) string {
	at := slices.IndexFunc(s.Factors, func(f Factor) bool { return slices.Equal(f.paths, []string{nodesKnob.Name}) })
	if at < 0 {
		asked := s.nodes()
		if asked > 0 && asked <= n {
			return ""
		}
		s.Whole[nodesKnob.Name] = strconv.Itoa(n)
		if asked == 0 {
			return ""
		}
		return fmt.Sprintf("scaled to %s, from %d", manyNodes(n), asked)
	}
	var kept, left []string
	for _, l := range s.Factors[at].Levels {
		if many, _ := strconv.Atoi(l); many <= n {
			kept = append(kept, l)
		} else {
			left = append(left, l)
		}
	}
	if len(left) == 0 {
		return ""
	}
	if len(kept) == 0 {
		kept = []string{strconv.Itoa(n)}
	}
	s.Factors[at].Levels = kept
	return fmt.Sprintf("scaled to %s: the levels of %s nodes are left out", manyNodes(n), strings.Join(left, ", "))
}

func manyNodes(n int) string {
	if n == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", n)
}

// Nodes are where trials on nodes run: internal/cluster has them.
type Nodes interface {
	// Names are the names of all nodes, in the order in which trials take them.
	Names() []string
	// Ensure has nodes that have gone join again, where that can be done. That one does not is no error: Run tells.
	Ensure(ctx context.Context, names []string) error
	// Run is cluster.Coordinator's.
	Run(ctx context.Context, names []string, share cluster.Share, data json.RawMessage, length, tail time.Duration, begun func(at int64)) []cluster.Outcome
	// Why says more of why a node went; empty where nothing more is known.
	Why(name string) string
	// PIDs are processes of nodes on this machine, and Group the path of their group; none and empty where each is a machine of its own.
	PIDs() []int
	Group() string
}

// nodeJob is what a node is told to run.
type nodeJob struct {
	Spec    json.RawMessage     `json:"spec"` // resolved, at the trial's level
	Planned record.PlannedTrial `json:"planned"`
	Attempt int                 `json:"attempt,omitempty"`
	Seed    uint64              `json:"seed"` // of the trial's arrivals; each node takes its own from it
}

// nodeRecord is what a node sends back.
type nodeRecord struct {
	Trial  record.Trial `json:"trial"`
	Late   int64        `json:"late_ns"` // these three: see record.NodeTrial
	Opened int64        `json:"opened_late_ns"`
	Closed int64        `json:"closed_late_ns"`
}

// lateAllowed is how long after the begin the loads of a node may be told of it, and edgePart how long after the edges of the window its counters may be
// read, as a part of it: what is read later is not of the load any more.
const (
	lateAllowed = 5 * time.Millisecond
	edgePart    = 0.2
	leastEdge   = 20 * time.Millisecond // of short windows
)

// nodesTrial is a trial on nodes, as the coordinator has it.
type nodesTrial struct {
	machine Machine
	spec    *Spec // at the trial's level, without copies
	seed    uint64
	late    time.Duration // how long after an edge of the window the coordinator's own counters were read
}

// edgeAllowed is how long after the edges of the window counters may be read.
func (x *nodesTrial) edgeAllowed() time.Duration {
	return max(time.Duration(edgePart*float64(x.spec.Duration)), leastEdge)
}

// run runs the trial into t. The error is why it failed, as t.Validity says too.
func (x *nodesTrial) run(ctx context.Context, t *record.Trial) error {
	t.Started, t.Clocks, t.Loads = time.Now(), map[string]time.Duration{}, map[string]load.Result{}
	err := x.measure(ctx, t)
	t.Ended = time.Now()
	if err != nil {
		t.Validity.Failed = failure(ctx, err)
		return err
	}
	p := &pooled{spec: x.spec, trial: t, tells: x.machine.Nodes.Group() != "" && x.late <= x.edgeAllowed()}
	if group := x.machine.Nodes.Group(); group != "" {
		p.outside = disturbanceOf(t.Ledger, group, os.Getpid())
	}
	p.gather()
	t.Validity.Reasons = p.judge()
	t.Validity.Valid = len(t.Validity.Reasons) == 0
	p.trim(x.machine.Nodes.Group())
	return nil
}

func (x *nodesTrial) measure(ctx context.Context, t *record.Trial) error {
	if x.machine.Nodes == nil {
		return fault.New(fault.Usage, "nodes", "give --local-nodes or --nodes-listen; see docs/nodes.md", "the trial is to run on nodes, and there are none")
	}
	n, all := x.spec.nodes(), x.machine.Nodes.Names()
	if n > len(all) {
		return fault.New(fault.Usage, "nodes", "set nodes to what there is, or have more join", "the trial is to run on %d nodes, and there are %d", n, len(all))
	}
	names := all[:n]
	mark := time.Now()
	lap := func(clock string) {
		now := time.Now()
		t.Clocks[clock], mark = now.Sub(mark), now
	}
	if err := x.machine.Nodes.Ensure(ctx, names); err != nil {
		return fmt.Errorf("having nodes join again: %w", err)
	}
	lap("join")
	data, err := x.job(t.PlannedTrial, t.Attempt)
	if err != nil {
		return err
	}
	var edges error
	outcomes := x.machine.Nodes.Run(ctx, names, x.machine.NodeShare, data, x.spec.Warmup+x.spec.Duration, x.tail(t.Arm), func(at int64) {
		lap("set-up")
		t.Ledger, edges = x.window(ctx, at+int64(x.spec.Warmup))
		lap("measured")
	})
	lap("drain")
	for _, o := range outcomes {
		t.Nodes = append(t.Nodes, x.nodeTrial(o, t.PlannedTrial, t.Attempt))
	}
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if edges != nil {
		return edges
	}
	if failed := failedNodes(t.Nodes); failed == n {
		if n == 1 {
			return fmt.Errorf("the trial failed at its node, %s: %s", t.Nodes[0].Name, t.Nodes[0].Failed)
		}
		return fmt.Errorf("the trial failed at all of %d nodes; at %s", n, failedAt(t, maxFailedNamed))
	}
	return nil
}

// tail is the longest that a trial may take from the end of its loads to the end of what is waited for.
func (x *nodesTrial) tail(arm string) time.Duration {
	longest := time.Duration(0)
	for _, p := range x.spec.Loads {
		longest = max(longest, p.Options.duration("drain"))
	}
	if p := x.spec.Subject(arm); p != nil {
		longest += p.Options.duration(knobDrain) + p.Options.duration(knobLate) + p.Options.duration("stop")
	}
	return longest
}

// job is the trial as a spec without factors, which a node can run.
func (x *nodesTrial) job(p record.PlannedTrial, attempt int) (json.RawMessage, error) {
	s := *x.spec
	s.Factors, s.Quick, s.Whole = nil, nil, defaults([]Knob{nodesKnob})
	spec, err := json.Marshal(&s)
	if err != nil {
		return nil, fmt.Errorf("encoding the spec for nodes: %w", err)
	}
	data, err := json.Marshal(nodeJob{Spec: spec, Planned: p, Attempt: attempt, Seed: x.seed})
	if err != nil {
		return nil, fmt.Errorf("encoding the trial for nodes: %w", err)
	}
	return data, nil
}

// window is the coordinator's machine between the same two edges; where nodes are machines of their own, it says what the coordinator costs.
func (x *nodesTrial) window(ctx context.Context, from int64) (*ledger.Ledger, error) {
	var early error
	if x.spec.execs() != "" {
		early = first(true)
		defer func() { _ = first(false) }() // what could be set can be taken back
	}
	others := x.machine.others()
	if err := sleepUntil(ctx, from); err != nil {
		return nil, err
	}
	w, err := x.machine.OpenWindow()
	if err != nil {
		return nil, fmt.Errorf("opening the window: %w", err)
	}
	slept := sleepUntil(ctx, from+int64(x.spec.Duration))
	l, err := w.Close()
	if err = errors.Join(slept, err); err != nil {
		return nil, err
	}
	if early != nil {
		l.Warnings = append(l.Warnings, ledger.Warning{Code: "not-first", Message: fmt.Sprintf("%v; storms of execs may have held up the reading of counters", early)})
	}
	x.late = time.Duration(max(0, monotonicOf(l.Window.Start)-from, monotonicOf(l.Window.End)-from-int64(x.spec.Duration)))
	if allowed := x.edgeAllowed(); x.late > allowed {
		l.Warnings = append(l.Warnings, ledger.Warning{Code: "edges-late", Message: fmt.Sprintf("the counters were read %v after an edge of the window, and %v is allowed: the coordinator's machine is too busy", x.late.Round(100*time.Microsecond), allowed)})
	}
	if others = append(others, x.machine.others()...); len(others) > 0 {
		l.Warnings = append(l.Warnings, ledger.Warning{Code: record.OtherRun, Message: OtherRun(others)})
	}
	return l, nil
}

// others are the processes with runs of tare that are no part of this one.
func (m Machine) others() []int {
	if m.Shared {
		return nil
	}
	others := placement.Others(m.Cgroups)
	if m.Nodes != nil {
		ours := m.Nodes.PIDs()
		others = slices.DeleteFunc(others, func(pid int) bool { return slices.Contains(ours, pid) })
	}
	return others
}

// nodeTrial makes the record of one node's part out of what came of it. Half a record, or that of another trial, is none.
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
	var r nodeRecord
	if err := json.Unmarshal(o.Record, &r); err != nil {
		n.Failed = cmp.Or(n.Failed, fmt.Sprintf("its record cannot be decoded: %v", err))
		return n
	}
	if err := checkNodeRecord(r, planned, attempt); err != nil {
		n.Failed = cmp.Or(n.Failed, err.Error())
		return n
	}
	n.Trial = &r.Trial
	switch {
	case r.Trial.Validity.Failed == record.Interrupted && n.Failed != "": // it was told to
	case r.Trial.Validity.Failed != "":
		n.Failed = r.Trial.Validity.Failed
	}
	if o.Begin != 0 && r.Trial.Ledger != nil {
		n.StartedLateNs, n.OpenedLateNs, n.ClosedLateNs = new(r.Late), new(r.Opened), new(r.Closed)
		allowed := x.edgeAllowed()
		switch late, edge := time.Duration(r.Late), time.Duration(max(r.Opened, r.Closed)); {
		case late > lateAllowed:
			n.Failed = cmp.Or(n.Failed, fmt.Sprintf("it began %v late, and %v is allowed", late.Round(100*time.Microsecond), lateAllowed))
		case edge > allowed:
			n.Failed = cmp.Or(n.Failed, fmt.Sprintf("its counters were read %v after an edge of the window, and %v is allowed: its machine is too busy", edge.Round(100*time.Microsecond), allowed))
		}
	}
	return n
}

func checkNodeRecord(r nodeRecord, planned record.PlannedTrial, attempt int) error {
	t := &r.Trial
	switch {
	case t.Schema != record.TrialSchema:
		return fmt.Errorf("its record has the schema %q, not %q", clip(t.Schema), record.TrialSchema)
	case t.Index != planned.Index || t.Arm != planned.Arm || t.Block != planned.Block:
		return fmt.Errorf("its record is of trial %d (%s), not of %d (%s)", t.Index, clip(t.Arm), planned.Index, planned.Arm)
	case t.Attempt != attempt:
		return fmt.Errorf("its record is of attempt %d at trial %d, not of %d", t.Attempt, t.Index, attempt)
	case t.Validity.Failed == "" && (t.Ledger == nil || t.Metrics == nil):
		return errors.New("its record is half a record: it has neither failed nor a ledger and metrics")
	}
	return nil
}

func failedNodes(nodes []record.NodeTrial) int {
	n := 0
	for _, t := range nodes {
		if t.Failed != "" {
			n++
		}
	}
	return n
}

// pooled makes one trial out of those of its nodes.
type pooled struct {
	spec    *Spec
	trial   *record.Trial
	tells   bool            // the trial's ledger is of the machine that all nodes share, and of the window
	outside disturbance     // what others took of that machine; nothing where nodes have machines of their own
	good    []*record.Trial // of the nodes that did not fail
	work    *load.Result    // of their subjects together; null where they do none
}

func (p *pooled) whole() bool { return len(p.good) == len(p.trial.Nodes) }

// gather merges the loads, and makes the metrics and counts.
func (p *pooled) gather() {
	p.good = nil
	for i := range p.trial.Nodes {
		if n := &p.trial.Nodes[i]; n.Failed == "" {
			p.good = append(p.good, n.Trial)
		}
	}
	byName := map[string][]load.Result{}
	for _, t := range p.good {
		for name, r := range t.Loads {
			byName[name] = append(byName[name], r)
		}
	}
	for name, rs := range byName {
		p.trial.Loads[name] = mergeResults(rs)
	}
	p.work = p.mergedWork()
	p.trial.Events = p.events()
	p.trial.Metrics, p.trial.Counts = p.values(), p.counts()
}

// mergedWork is what the subjects did by themselves, where each good node has it.
func (p *pooled) mergedWork() *load.Result {
	var all []load.Result
	for _, t := range p.good {
		if t.Work == nil {
			return nil
		}
		all = append(all, *t.Work)
	}
	if len(all) == 0 {
		return nil
	}
	return new(mergeResults(all))
}

// events adds up the counts of events, where every node has them. What is elsewhere for one of several nodes of one machine is made at another, and counts
// at each.
func (p *pooled) events() *record.Events {
	if !p.whole() {
		return nil
	}
	sum := new(record.Events)
	add := func(to **int64, n *int64, first bool) {
		switch {
		case n == nil:
			*to = nil
		case first:
			*to = new(*n)
		case *to != nil:
			**to += *n
		}
	}
	for i, t := range p.good {
		e := t.Events
		if e == nil {
			return nil
		}
		sum.Scope = e.Scope
		sum.Generated += e.Generated
		sum.Failed += e.Failed
		sum.Counted += e.Counted
		sum.Elsewhere += e.Elsewhere
		sum.Missed += e.Missed
		sum.Offset.Counted += e.Offset.Counted
		add(&sum.Expected, e.Expected, i == 0)
		add(&sum.Delivered, e.Delivered, i == 0)
		add(&sum.Late, e.Late, i == 0)
		add(&sum.AtExit, e.AtExit, i == 0)
		add(&sum.SaidLost, e.SaidLost, i == 0)
		add(&sum.Offset.Delivered, e.Offset.Delivered, i == 0)
	}
	return sum
}

// mergeResults makes one result of those of the same load at many nodes. Slices are not kept: each node's were judged there.
func mergeResults(rs []load.Result) load.Result {
	sum := load.Result{Generator: rs[0].Generator, Mode: rs[0].Mode, Arrivals: rs[0].Arrivals, Errors: map[string]int64{}, Histograms: map[string]string{}}
	encoded := map[string][]string{}
	var running []*load.Running
	for _, r := range rs {
		running = append(running, r.Running)
		sum.Seconds = plus(sum.Seconds, r.Seconds/float64(len(rs)))
		sum.TargetRate = plus(sum.TargetRate, r.TargetRate)
		sum.Rate = plus(sum.Rate, r.Rate)
		sum.Intended += r.Intended
		sum.Sent += r.Sent
		sum.Done += r.Done
		sum.Late += r.Late
		sum.Unfinished += r.Unfinished
		sum.Connections += r.Connections
		sum.MaxConnections += r.MaxConnections
		sum.Opened += r.Opened
		sum.CPUSeconds = plus(sum.CPUSeconds, r.CPUSeconds)
		sum.CPUs = plus(sum.CPUs, r.CPUs)
		for kind, n := range r.Errors {
			sum.Errors[kind] += n
		}
		for name, text := range r.Histograms {
			encoded[name] = append(encoded[name], text)
		}
		for name, v := range r.Counts {
			if sum.Counts == nil {
				sum.Counts = map[string]float64{}
			}
			sum.Counts[name] = plus(sum.Counts[name], v)
		}
	}
	sum.Running = load.MergeRunning(running)
	for name, texts := range encoded {
		if h, err := stats.MergeEncoded(texts...); err == nil && h != nil {
			_ = sum.SetHistogram(name, h) // one that cannot be encoded is not there, and neither are its quantiles
		}
	}
	return sum
}

// plus adds without going beyond what can be written down: a node can send any number.
func plus(a, b float64) float64 { return max(-math.MaxFloat64, min(a+b, math.MaxFloat64)) }

// measurement is of all nodes together: what their loads and the subjects' own work did, merged.
func (p *pooled) measurement() *measurement {
	return &measurement{spec: p.spec, loads: p.trial.Loads, work: p.work, ledger: &ledger.Ledger{}, nodes: p.trial.Nodes}
}

// values are the metrics of all nodes together, each pooled as its definition says. One that a good node lacks is absent.
func (p *pooled) values() map[string]float64 {
	values := map[string]float64{}
	m := p.measurement()
	for i := range Metrics {
		one := &Metrics[i]
		if one.value == nil {
			continue
		}
		var v float64
		var ok bool
		switch one.Pool {
		case metric.Nodes, metric.Merged:
			v, ok = one.value(m)
		default:
			v, ok = p.over(one)
			if !ok && one.Pool == metric.Machine && p.tells && p.whole() {
				whole := *m
				whole.ledger, whole.events = p.trial.Ledger, p.trial.Events
				v, ok = one.value(&whole)
			}
		}
		if ok && !math.IsInf(v, 0) && !math.IsNaN(v) { // a node can send any number
			values[one.Name] = v
		}
	}
	return values
}

// over pools a metric over the nodes; docs/nodes.md has the table.
func (p *pooled) over(m *Metric) (float64, bool) {
	var of, weights []float64
	for _, t := range p.good {
		v, ok := t.Metrics[m.Name]
		if !ok {
			return 0, false
		}
		w, ok := p.weight(m.Pool, t)
		if !ok {
			return 0, false
		}
		of, weights = append(of, v), append(weights, w)
	}
	if len(of) == 0 {
		return 0, false
	}
	switch m.Pool {
	case metric.Sum:
		total := 0.0
		for _, v := range of {
			total += v
		}
		return total, p.whole()
	case metric.Largest:
		return slices.Max(of), true
	}
	total, weight := 0.0, 0.0
	for i, v := range of {
		total += v * weights[i]
		weight += weights[i]
	}
	return total / weight, weight > 0
}

// weight is how much of the work a node did, for costs per piece of it: the sum of costs over the sum of work is then the weighted mean.
func (p *pooled) weight(by metric.Pool, t *record.Trial) (n float64, ok bool) {
	var of func(load.Result) int64
	switch by {
	case metric.PerConnection:
		of = func(r load.Result) int64 { return r.Opened }
	case metric.PerRequest, metric.PerEvent, metric.Machine:
		of = func(r load.Result) int64 { return r.Done }
	default:
		return 1, true
	}
	for load, r := range t.Loads {
		if part := p.spec.Loads[load]; by != metric.PerConnection && by != metric.PerRequest && (part == nil || !part.Kind.execs) {
			continue
		}
		n += float64(of(r))
	}
	return n, n > 0
}

// counts are those of the good nodes added up.
func (p *pooled) counts() map[string]record.Count {
	counts := map[string]record.Count{}
	for _, t := range p.good {
		for name, c := range t.Counts {
			sum := counts[name]
			counts[name] = record.Count{In: sum.In + c.In, Of: sum.Of + c.Of}
		}
	}
	return counts
}

// judge gives what the nodes' own gates found, one line for each gate, and that too many nodes failed. What a gate voids at one node it voids
// for all of them together.
func (p *pooled) judge() []record.Reason {
	var reasons []record.Reason
	at := map[string]int{} // of reasons, by gate
	more := map[string]int{}
	for _, n := range p.trial.Nodes {
		if n.Failed != "" {
			continue
		}
		for _, r := range n.Trial.Validity.Reasons {
			r = p.explained(r)
			if i, ok := at[r.Gate]; ok {
				more[r.Gate]++
				reasons[i].Voids = union(reasons[i].Voids, r.Voids)
				if reasons[i].Cause == ledger.Subject { // at one node at least it was not
					reasons[i].Cause, reasons[i].CauseShare, reasons[i].Culprits = r.Cause, r.CauseShare, r.Culprits
				}
				continue
			}
			at[r.Gate] = len(reasons)
			r.Message = n.Name + ": " + r.Message
			reasons = append(reasons, r)
		}
	}
	for gate, n := range more {
		reasons[at[gate]].Message += fmt.Sprintf(" (and %d more of the gate %s)", n, gate)
	}
	failed, n := failedNodes(p.trial.Nodes), len(p.trial.Nodes)
	if seen, allowed := float64(failed)/float64(n), p.spec.Gates.float(nodesKnob.Name); seen > allowed {
		t := tripped(gateNodes, seen, allowed, "%d of %d nodes failed, and %g %% may; see what the trial's nodes say", failed, n, 100*allowed)
		reasons = append(reasons, reasonsOf([]trip{t}, p.outside, p.trial.Metrics, p.trial.Counts)...)
	}
	return reasons
}

// explained is a reason of one node as one of the trial. A node that shares its machine cannot see what others take of it; the coordinator can.
func (p *pooled) explained(r record.Reason) record.Reason {
	r.Voids = p.voids(r)
	var gate *Gate // of two with a name the later one, which breaks less: what the other breaks is void already
	for _, g := range Gates {
		if g.Name == r.Gate {
			gate = g
		}
	}
	if by, _ := p.outside.by(); by == ledger.Unknown || gate == nil {
		return r
	}
	again := reasonsOf([]trip{{gate, r}}, p.outside, p.trial.Metrics, p.trial.Counts)[0]
	if again.CauseShare == nil {
		return r
	}
	if r.Cause == ledger.Subject { // whose gate spared what its slowness shows in
		r.Voids = union(r.Voids, again.Voids)
	}
	r.Cause, r.CauseShare, r.Culprits = again.Cause, again.CauseShare, again.Culprits
	return r
}

// voids are the metrics of all nodes together that a reason of one node voids: those that it voids there, and what is made of them here.
func (p *pooled) voids(r record.Reason) []string {
	voids := []string{}
	for i := range Metrics {
		name := Metrics[i].Name
		_, value := p.trial.Metrics[name]
		_, count := p.trial.Counts[name]
		of := strings.TrimPrefix(name, "node_max_") // of one node's metric of that name
		if (value || count) && r.VoidsMetric(of) && !(r.Voids == nil && len(Metrics[i].Needs) == 0) {
			voids = append(voids, name)
		}
	}
	slices.Sort(voids)
	return voids
}

func union(a, b []string) []string {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}

// trim leaves out of the nodes' records what the trial's own has, and of its ledger what they have.
func (p *pooled) trim(agents string) {
	roles := map[string]string{}
	for i := range p.trial.Nodes {
		t := p.trial.Nodes[i].Trial
		if t == nil {
			continue
		}
		for name, r := range t.Loads {
			r.Histograms, r.Slices = nil, nil
			t.Loads[name] = r
		}
		if t.Ledger == nil {
			continue
		}
		for _, g := range t.Ledger.Cgroups {
			if g.Role != "" {
				roles[g.Path] = g.Role
			}
		}
		if p.trial.Nodes[i].Failed == "" {
			t.Ledger.Maps = nil
		}
	}
	if p.trial.Ledger == nil {
		return
	}
	if agents != "" {
		roles[agents] = "self"
	}
	m := &measurement{spec: p.spec, ledger: p.trial.Ledger, tree: cmp.Or(agents, "/")}
	m.setRoles(roles)
	m.trim()
}

var nodeMetrics = []Metric{
	{Definition: metric.Definition{Name: "nodes_failed", Unit: quantity.Count, Rank: metric.RankOther, Pool: metric.Nodes, Cost: true, Better: metric.Lower, Needs: needNothing, How: "Nodes at which the trial failed: they are in no other metric. Only of trials on nodes."}, value: func(m *measurement) (float64, bool) {
		return float64(failedNodes(m.nodes)), len(m.nodes) > 0
	}},
	{Definition: metric.Definition{Name: "node_max_cpu_seconds_per_kiloevent", Unit: quantity.Seconds + " per kiloevent", Rank: metric.RankOther, Pool: metric.Nodes, Better: metric.Lower, Needs: needEventCost, How: "The largest `cpu_seconds_per_kiloevent` of a node. Only of trials on nodes, and of tracers."}, value: func(m *measurement) (most float64, ok bool) {
		for _, n := range m.nodes {
			if n.Failed != "" {
				continue
			}
			v, has := n.Trial.Metrics["cpu_seconds_per_kiloevent"]
			if !has {
				return 0, false
			}
			most, ok = max(most, v), true
		}
		return most, ok
	}},
}

// NodeAgent runs the trials that a coordinator tells a node to.
type NodeAgent struct {
	Name     string
	Dir      string                         // for files that processes of a trial read, and the record of the last
	Features []string                       // by which specs may name what they need
	Machine  func(s *Spec) (Machine, error) // that this machine can do it, and what trials need of it
	Ready    func() error                   // called when everything of a trial is set up, before the coordinator is told; may be nil
}

// nodeRecordFile is, in the directory of a node, the record of its last trial.
const nodeRecordFile = "trial.json"

// Run is a cluster.Runner.
func (a NodeAgent) Run(ctx context.Context, job cluster.Job, barrier func(context.Context) (int64, error)) (json.RawMessage, error) {
	var j nodeJob
	if err := json.Unmarshal(job.Data, &j); err != nil {
		return nil, fmt.Errorf("decoding the trial: %w", err)
	}
	s, err := Parse("the coordinator's spec", j.Spec, a.Features)
	if err != nil {
		return nil, err
	}
	m, err := a.Machine(s)
	if err != nil {
		return nil, err
	}
	m.Share = job.Share
	r := nodeRecord{Trial: record.Trial{Schema: record.TrialSchema, PlannedTrial: j.Planned, Attempt: j.Attempt}}
	x := &trial{machine: m, spec: s.copies(), index: j.Planned.Index, attempt: j.Attempt, arm: j.Planned.Arm, dir: a.Dir, seed: a.seed(j.Seed)}
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
		opened, closed := monotonicOf(l.Window.Start), monotonicOf(l.Window.End)
		from := begin + int64(s.Warmup)
		r.Opened, r.Closed = max(0, opened-from), max(0, closed-from-int64(s.Duration))
	}
	text, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encoding the record: %w", err)
	}
	// What was measured stays here until the next trial, whatever becomes of the connection.
	if err := os.WriteFile(filepath.Join(a.Dir, nodeRecordFile), text, 0o644); err != nil && failure == nil {
		failure = fault.Wrap(err, fault.Machine, a.Dir, "make room there", "the node's record cannot be written")
	}
	return text, failure
}

// monotonicOf is when a time was by CLOCK_MONOTONIC, in nanoseconds. The time must be one that was taken in this process.
func monotonicOf(at time.Time) int64 { return pace.Now() - time.Since(at).Nanoseconds() }

// seed is this node's of the trial's: nodes in step would be one load, not many.
func (a NodeAgent) seed(seed uint64) uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, seed, a.Name)
	return h.Sum64()
}

// FailedNodes says in words at which nodes a trial failed, and why; empty where it did at none.
func FailedNodes(t *record.Trial) string { return failedAt(t, len(t.Nodes)) }

// maxFailedNamed is how many nodes the reason of a trial names that failed at all of them. One would hide that they failed for different
// reasons.
const maxFailedNamed = 3

// failedAt is FailedNodes with the first few of the nodes, and how many more there are.
func failedAt(t *record.Trial, most int) string {
	var failed []string
	for _, n := range t.Nodes {
		if n.Failed != "" {
			failed = append(failed, n.Name+": "+n.Failed)
		}
	}
	if more := len(failed) - most; more > 0 {
		failed = append(failed[:most], fmt.Sprintf("and at %d more", more))
	}
	return strings.Join(failed, "; ")
}
