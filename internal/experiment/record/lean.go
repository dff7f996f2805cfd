package record

import (
	"fmt"
	"slices"

	"tare/internal/lib/text"
	"tare/internal/scale/ledger"
)

// skipped decodes a member of a document by ignoring it.
type skipped struct{}

func (*skipped) UnmarshalJSON([]byte) error { return nil }

// leanTrial decodes the parts of a trial that a report, a comparison or a plan needs. It ignores the rest of the
// record, such as single stalls, maps, sandboxes, further readings, and the ledgers of nodes.
type leanTrial struct {
	Trial
	Metrics    map[string]*float64            `json:"metrics"`
	Components map[string]map[string]*float64 `json:"components"`
	Counts     map[string]leanCount           `json:"counts"`
	Ledger     *leanLedger                    `json:"ledger"`
	Further    skipped                        `json:"further"`
	Clocks     skipped                        `json:"clocks_ns"`
	Nodes      []leanNode                     `json:"nodes"`
}

type leanCount struct {
	In *int `json:"in"`
	Of *int `json:"of"`
}

type leanLedger struct {
	ledger.Ledger
	Maps      skipped `json:"maps"`
	Sandboxes skipped `json:"sandboxes"`
	Noise     skipped `json:"noise"`
}

type leanNode struct {
	NodeTrial
	Trial *leanNodeTrial `json:"trial"`
}

// leanNodeTrial decodes the parts of a node's own record that are needed.
type leanNodeTrial struct {
	PlannedTrial
	Metrics map[string]*float64 `json:"metrics"`
}

// lean decodes a line of trials.jsonl. It returns an error for a line that would take too much memory, or is not JSON.
func lean(line []byte, names *names) (Trial, error) {
	var l leanTrial
	if err := unmarshal(line, &l); err != nil {
		return Trial{}, err
	}
	t := l.Trial
	var err error
	if t.Metrics, err = values(names, l.Metrics); err != nil {
		return Trial{}, err
	}
	if l.Ledger != nil {
		t.Ledger = &l.Ledger.Ledger
		t.Ledger.Cgroups = slices.Clip(slices.Clone(slices.DeleteFunc(t.Ledger.Cgroups, func(g ledger.Cgroup) bool {
			return g.Role == "" && g.Charge == ""
		})))
		for i := range t.Ledger.Programs {
			p := &t.Ledger.Programs[i]
			p.Owners, p.Attached, p.Shares, p.MapIDs = nil, nil, nil, nil
		}
	}
	for _, n := range l.Nodes {
		if n.Trial != nil {
			own := Trial{PlannedTrial: n.Trial.PlannedTrial}
			if own.Metrics, err = values(names, n.Trial.Metrics); err != nil {
				return Trial{}, err
			}
			n.NodeTrial.Trial = &own
		}
		t.Nodes = append(t.Nodes, n.NodeTrial)
	}
	t.Arm = names.one(t.Arm)
	t.Factors = shared(names, t.Factors)
	for name, c := range l.Counts {
		if c.In == nil || c.Of == nil {
			return Trial{}, fmt.Errorf("its count %q has no \"in\" or \"of\"", text.ClipTo(name, 60))
		}
		if t.Counts == nil {
			t.Counts = map[string]Count{}
		}
		t.Counts[names.one(name)] = Count{*c.In, *c.Of}
	}
	for name, of := range l.Components {
		if t.Components == nil {
			t.Components = map[string]map[string]float64{}
		}
		if t.Components[name], err = values(names, of); err != nil {
			return Trial{}, err
		}
	}
	if p := t.Profile; p != nil {
		for i := range p.Functions {
			f := &p.Functions[i]
			f.Part, f.Name, f.File = names.one(f.Part), names.one(f.Name), names.one(f.File)
		}
	}
	for name, r := range t.Loads {
		r.Slices, r.Own = nil, nil
		t.Loads[name] = r
	}
	return t, nil
}

// values copies metrics, and takes the strings of their names from the argument names, so that all trials share these
// strings. It refuses a JSON null, which Tare never writes and which would decode to 0.
func values(names *names, of map[string]*float64) (map[string]float64, error) {
	if of == nil {
		return nil, nil
	}
	m := make(map[string]float64, len(of))
	for name, v := range of {
		if v == nil {
			return nil, fmt.Errorf("its metric %q is null", text.ClipTo(name, 60))
		}
		m[names.one(name)] = *v
	}
	return m, nil
}

// tooLarge is the error of a document that exceeds the bounds, as opposed to a torn line.
type tooLarge struct{ error }

// names holds one copy of each name that occurs in the trials of a run.
type names map[string]string

// maxNames limits the names that are shared. Further names are not.
const maxNames = 10_000

func (n *names) one(name string) string {
	if one, has := (*n)[name]; has {
		return one
	}
	if *n == nil {
		*n = names{}
	}
	if len(*n) < maxNames {
		(*n)[name] = name
	}
	return name
}

// shared copies a map, and takes the strings of its keys from the argument names, so that all trials share them.
func shared[V any](names *names, of map[string]V) map[string]V {
	if of == nil {
		return nil
	}
	m := make(map[string]V, len(of))
	for key, v := range of {
		m[names.one(key)] = v
	}
	return m
}
