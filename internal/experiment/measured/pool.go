package measured

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/scale/ledger"
)

// Pool makes the record of one trial from the records of its nodes.
type Pool struct {
	Setup   *kind.Setup // at the trial's level, without copies
	Trial   *record.Trial
	Tells   bool        // the trial's ledger covers the machine that all nodes share, over the window
	Outside Disturbance // what other processes used of that machine; zero if nodes are separate machines

	good []*record.Trial // records of the nodes at which the trial did not fail
}

func (p *Pool) whole() bool { return len(p.good) == len(p.Trial.Nodes) }

// Gather merges the loads, and makes the metrics and counts.
func (p *Pool) Gather() {
	p.good = nil
	for i := range p.Trial.Nodes {
		if n := &p.Trial.Nodes[i]; n.Failed == "" {
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
		p.Trial.Loads[name] = load.Merge(rs)
	}
	p.Trial.Work = p.mergedWork()
	p.Trial.Events = p.events()
	p.Trial.Metrics, p.Trial.Counts, p.Trial.Components = p.values(), p.counts(), p.components()
}

// Strays reports whether processes of a node's trial were outside its control groups.
func (p *Pool) Strays() bool {
	return slices.ContainsFunc(p.good, func(t *record.Trial) bool { return stray(t.Ledger) != nil })
}

// mergedWork returns the work that the subjects did by themselves, or nil unless each good node has it.
func (p *Pool) mergedWork() *load.Result {
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
	return new(load.Merge(all))
}

// events adds up the counts of events, if every node has them. With several nodes on one machine, an event of one node
// also counts as "elsewhere" at each of the others.
func (p *Pool) events() *record.Events {
	if !p.whole() {
		return nil
	}
	return record.MergeEvents(lists.Map(p.good, func(t *record.Trial) *record.Events { return t.Events }))
}

// measurement returns the merged results of the loads and of the subjects' own work on all nodes.
func (p *Pool) measurement() *Measured {
	return &Measured{Setup: p.Setup, Trial: record.Trial{
		Loads: p.Trial.Loads, Work: p.Trial.Work, Ledger: &ledger.Ledger{}, Nodes: p.Trial.Nodes,
	}}
}

// values returns the metrics of all nodes together, each pooled as its definition says. A metric that a good node lacks
// is absent, unless it is computed from the merged results of the loads or from the ledger of a shared machine.
func (p *Pool) values() map[string]float64 {
	values := map[string]float64{}
	m := p.measurement()
	for _, one := range Metrics() {
		if one.Value == nil {
			continue
		}
		var v float64
		var ok bool
		switch one.Pool {
		case metric.Nodes, metric.Merged:
			v, ok = one.Value(m)
		default:
			v, ok = p.Over(&one)
			if !ok && one.Pool == metric.Machine && p.Tells && p.whole() {
				whole := *m
				whole.Ledger, whole.Events = p.Trial.Ledger, p.Trial.Events
				v, ok = one.Value(&whole)
			}
		}
		if ok && !math.IsInf(v, 0) && !math.IsNaN(v) { // a node can send any number
			values[one.Name] = v
		}
	}
	return values
}

// Over pools a metric over the nodes; docs/nodes.md has a table.
func (p *Pool) Over(m *Metric) (float64, bool) {
	return p.over(m, func(t *record.Trial) map[string]float64 { return t.Metrics })
}

// components returns the metrics of each component that a good node has, pooled in the same way as the metrics of the
// whole subject.
func (p *Pool) components() map[string]map[string]float64 {
	all := map[string]map[string]float64{}
	for _, t := range p.good {
		for component := range t.Components {
			all[component] = map[string]float64{}
		}
	}
	for component, values := range all {
		for _, m := range Metrics() {
			if m.Component == nil {
				continue
			}
			v, ok := p.over(&m, func(t *record.Trial) map[string]float64 { return t.Components[component] })
			if ok && !math.IsInf(v, 0) && !math.IsNaN(v) {
				values[m.Name] = v
			}
		}
	}
	maps.DeleteFunc(all, func(_ string, values map[string]float64) bool { return len(values) == 0 })
	if len(all) == 0 {
		return nil
	}
	return all
}

// over pools a metric from the values of each good node's trial. It returns false if one of them lacks the metric.
func (p *Pool) over(m *Metric, values func(*record.Trial) map[string]float64) (float64, bool) {
	var of, weights []float64
	for _, t := range p.good {
		v, ok := values(t)[m.Name]
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

// weight returns how much of the work a node did in the window; false if it did none or that is unknown. It weights
// costs per piece of work, so that the mean is the sum of costs over the sum of work.
func (p *Pool) weight(by metric.Pool, t *record.Trial) (n float64, ok bool) {
	var of func(*load.Result) (int64, bool)
	switch by {
	case metric.PerConnection:
		of = func(r *load.Result) (int64, bool) { return r.Opened, true }
	case metric.PerRequest, metric.PerEvent, metric.Machine:
		of = (*load.Result).Answers
	case metric.PerExpected:
		if t.Events == nil || t.Events.Expected == nil {
			return 1, true // there is no tracer, so its cost is 0 whatever the weight
		}
		return float64(*t.Events.Expected), *t.Events.Expected > 0
	default:
		return 1, true
	}
	for load, r := range t.Loads {
		if part := p.Setup.Loads[load]; by != metric.PerConnection && by != metric.PerRequest &&
			(part == nil || !part.MakesEvents()) {
			continue
		}
		did, known := of(&r)
		if !known {
			return 0, false
		}
		n += float64(did)
	}
	return n, n > 0
}

// counts adds up the counts of the good nodes.
func (p *Pool) counts() map[string]record.Count {
	counts := map[string]record.Count{}
	for _, t := range p.good {
		for name, c := range t.Counts {
			sum := counts[name]
			counts[name] = record.Count{In: sum.In + c.In, Of: sum.Of + c.Of}
		}
	}
	return counts
}

// Judge returns one reason for each gate that tripped at a node, and another if too many nodes failed. What a gate
// voids at one node, it voids for all nodes together.
func (p *Pool) Judge() []record.Reason {
	var reasons []record.Reason
	at := map[string]int{} // index in reasons, by gate
	more := map[string]int{}
	for _, n := range p.Trial.Nodes {
		if n.Failed != "" {
			continue
		}
		for _, r := range n.Trial.Validity.Reasons {
			r = p.explained(r)
			if i, ok := at[r.Gate]; ok {
				more[r.Gate]++
				reasons[i].Voids = union(reasons[i].Voids, r.Voids)
				if reasons[i].Cause == ledger.Subject { // r may have another cause, which then counts for all nodes
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
	failed, n := FailedNodes(p.Trial.Nodes), len(p.Trial.Nodes)
	if seen, allowed := float64(failed)/float64(n), p.Setup.Gates.Float(GateNodes.Name); seen > allowed {
		t := Tripped(GateNodes, seen, allowed, "%d of %d nodes failed, and %g %% may fail; see the errors "+
			"of the trial's nodes",
			failed, n, 100*allowed)
		reasons = append(reasons, ReasonsOf([]Trip{t}, p.Outside, p.Trial.Metrics, p.Trial.Counts)...)
	}
	return reasons
}

// explained turns a reason of one node into a reason of the trial. A node that shares its machine does not know how
// much of it other processes use, but the coordinator does.
func (p *Pool) explained(r record.Reason) record.Reason {
	r.Voids = p.voids(r)
	// If two gates share the name, gate is the later one. Which of them it is matters below only if the subject was the
	// cause: then the metrics with Outcome that the gate voids are added. The later gate of such a pair voids no more of
	// these than the earlier, and all other metrics that the tripped gate voids are in r.Voids already.
	var gate *Gate
	for _, g := range Gates() {
		if g.Name == r.Gate {
			gate = g
		}
	}
	if by, _ := p.Outside.By(); by == ledger.Unknown || gate == nil {
		return r
	}
	again := ReasonsOf([]Trip{{gate, r}}, p.Outside, p.Trial.Metrics, p.Trial.Counts)[0]
	if again.CauseShare == nil {
		return r
	}
	if r.Cause == ledger.Subject { // with the subject as the cause, the gate spared metrics with Outcome
		r.Voids = union(r.Voids, again.Voids)
	}
	r.Cause, r.CauseShare, r.Culprits = again.Cause, again.CauseShare, again.Culprits
	return r
}

// voids returns the metrics of all nodes together that a reason of one node voids: the metrics that it voids at the
// node, and the metrics that are computed from these.
func (p *Pool) voids(r record.Reason) []string {
	voids := []string{}
	for _, m := range Metrics() {
		name := m.Name
		_, value := p.Trial.Metrics[name]
		_, count := p.Trial.Counts[name]
		of := cmp.Or(m.Of, name)
		if (value || count) && r.VoidsMetric(of) && !(r.Voids == nil && len(m.Needs) == 0) {
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

// Trim removes the histograms and slices of loads from the nodes' records and, unless the trial failed at the node, the
// maps. It then charges the trial's ledger as the nodes' ledgers are charged, and trims it (Measured.Trim). agents is
// the path of the group of the nodes' agents, or empty if each node is a separate machine.
func (p *Pool) Trim(agents string) {
	roles := map[string]GroupRole{}
	objects := NodesObjects{programs: map[uint32]ledger.Charged{}, maps: map[uint32]ledger.Charged{}}
	for i := range p.Trial.Nodes {
		t := p.Trial.Nodes[i].Trial
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
				roles[g.Path] = GroupRole{Role: kind.Role(g.Role), Charged: g.Charged}
			}
		}
		objects.add(t.Ledger)
		if p.Trial.Nodes[i].Failed == "" {
			t.Ledger.Maps = nil
		}
	}
	if p.Trial.Ledger == nil {
		return
	}
	if agents != "" {
		roles[agents] = NewRole(kind.Self, "")
		objects.charge(p.Trial.Ledger)
	}
	m := &Measured{Setup: p.Setup, Trial: record.Trial{Ledger: p.Trial.Ledger}, Tree: cmp.Or(agents, "/")}
	m.SetRoles(roles)
	m.Trim()
}

var nodeMetrics = []Metric{
	{Definition: metric.Definition{Name: "nodes_failed", Unit: quantity.Count, Rank: metric.RankOther, Pool: metric.Nodes,
		Cost: true, Better: metric.Lower, Needs: NeedNothing,
		How: "Nodes at which the trial failed, which are in no other metric. Only of trials on nodes."},
		Value: func(m *Measured) (float64, bool) {
			return float64(FailedNodes(m.Nodes)), len(m.Nodes) > 0
		}},
}

// FailedNodes counts the nodes at which a trial failed.
func FailedNodes(nodes []record.NodeTrial) int {
	n := 0
	for _, t := range nodes {
		if t.Failed != "" {
			n++
		}
	}
	return n
}
