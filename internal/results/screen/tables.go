package screen

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"tare/internal/lib/known"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/results/report"
	"tare/internal/scale/ledger"
)

// table is what one tab shows of a ledger.
type table struct {
	name    string
	columns []column // before the name of a row
	last    string   // title of the name of a row
	rows    func(*ledger.Ledger) []*row
	tree    bool                            // what is below a row is a thing of the same kind
	unread  func(*ledger.Ledger) bool       // how many there are is not known; nil: it is
	none    func(*ledger.Ledger) string     // why there are no rows
	amount  func(value float64) string      // a value of the history
	used    func(*row) (v float64, is bool) // the value of a row that the history has
}

func (t *table) isUnread(l *ledger.Ledger) bool { return t.unread != nil && t.unread(l) }

// count is how many things the rows are.
func (t *table) count(rows []*row) (n int) {
	for _, r := range rows {
		if n++; t.tree {
			n += t.count(r.below)
		}
	}
	return n
}

// column is a column of numbers or short words.
type column struct {
	title string
	cells int
	least int // columns of a terminal from which on it is shown
}

// row is one thing of a table, with what belongs to it.
type row struct {
	key   string // the same in each ledger; no other row of the table has it
	name  string // may hold any bytes
	full  string // the name where name is a part of it; empty: the same
	cells []cell
	below []*row
	open  bool // below is shown unless a person folds it
}

func (r *row) fullName() string { return cmp.Or(r.full, r.name) }

// cell is a value of a row. The zero value is one that does not apply.
type cell struct {
	text  string
	value float64 // to sort by
	known bool
}

// unknown is a value that applies, and is not known.
var unknown = cell{text: "-"}

func number(v *float64, write func(float64) string) cell {
	if v == nil {
		return unknown
	}
	return cell{write(*v), *v, true}
}

func size[N int64 | uint64](n *N) cell {
	return number(known.As(n, func(n N) float64 { return float64(n) }), bytesOf)
}

func word(s string) cell { return cell{text: shown(s, 18)} }

// rate is a time or a count in a window as one per second: CPU time then is a number of CPUs.
func rate(l *ledger.Ledger, v *float64) *float64 {
	return known.As(v, func(v float64) float64 { return v / l.Window.Seconds })
}

func used(l *ledger.Ledger, seconds *float64) cell { return number(rate(l, seconds), cpus) }

// firstCell is the history of most tables.
func firstCell(r *row) (float64, bool) {
	if len(r.cells) == 0 {
		return 0, false
	}
	return r.cells[0].value, r.cells[0].known
}

func inCPUs(v float64) string { return quantity.Value(v, quantity.CPUs) }

// tables are the tabs, in their order.
var tables = []table{components, programs, groups, sandboxes, maps}

var components = table{
	name: "components", last: "component",
	columns: []column{
		{"CPUs", 8, 0}, {"eBPF", 8, 0}, {"others", 8, 0}, {"unsplit", 9, 0}, {"hard", 9, 0}, {"maps", 9, 0},
	},
	rows: func(l *ledger.Ledger) (rows []*row) {
		for i, c := range l.Components {
			name := "what no rule names"
			if c.Charge != "" {
				name = report.ChargeWords(c.Charged)
			}
			rows = append(rows, &row{key: fmt.Sprint(name, " ", i), name: name, cells: []cell{
				used(l, c.CPUSeconds), used(l, c.BPFSeconds), used(l, c.BPFOthersSeconds), used(l, c.BPFUnsplitSeconds),
				size(c.MemoryHardBytes), size(c.MapBytes),
			}})
		}
		return rows
	},
	none:   func(*ledger.Ledger) string { return "no components" },
	amount: inCPUs, used: firstCell,
}

var programs = table{
	name: "eBPF", last: "program, and who pays",
	columns: []column{{"CPUs", 8, 0}, {"runs/s", 9, 0}, {"per run", 9, 0}, {"id", 9, 0}, {"type", 18, 100}},
	rows: func(l *ledger.Ledger) (rows []*row) {
		titles := l.Titles()
		for i := range l.Programs {
			if p := &l.Programs[i]; !p.Own {
				rows = append(rows, programRow(l, p, titles))
			}
		}
		return rows
	},
	unread: func(l *ledger.Ledger) bool { return l.Programs == nil },
	none:   func(*ledger.Ledger) string { return "no eBPF program but those of the scale is loaded" },
	amount: inCPUs, used: firstCell,
}

func programRow(l *ledger.Ledger, p *ledger.Program, titles ledger.Titles) *row {
	runs := known.As(p.RunCount, func(n uint64) float64 { return float64(n) })
	perRun := known.As(p.NsPerRun, func(ns float64) float64 { return ns / 1e9 })
	name := cmp.Or(p.Name, "(no name)")
	if p.Unloaded {
		name += " (unloaded)"
	}
	if p.Charge != "" {
		name += "  [" + report.ChargeWords(p.Charged) + "]"
	}
	key := fmt.Sprint(p.ID, " ", p.Tag)
	r := &row{key: key, name: name, cells: []cell{
		used(l, p.RunSeconds),
		number(rate(l, runs), func(v float64) string { return strconv.FormatFloat(v, 'f', 0, 64) }),
		number(perRun, func(v float64) string { return quantity.Value(v, quantity.Seconds) }),
		{strconv.FormatUint(uint64(p.ID), 10), float64(p.ID), true}, word(p.Type),
	}}
	for i, s := range p.Shares {
		r.below = append(r.below, &row{key: fmt.Sprint(key, " share ", i), name: shareWords(s, p.RunSeconds, titles),
			cells: []cell{used(l, &s.Seconds)}})
	}
	note := func(what string, all []string) {
		if len(all) > 0 {
			r.below = append(r.below, &row{key: key + what, name: what + " " + strings.Join(all, ", ")})
		}
	}
	note("attached:", p.Attached)
	note("held by", owners(p.Owners))
	return r
}

// shareWords say where a part of a program's run time ran, with the interval of that part.
func shareWords(s ledger.Share, total *float64, titles ledger.Titles) string {
	whole := known.Or(total, 0)
	part := func(v float64) string {
		if whole <= 0 {
			return "-"
		}
		return strconv.FormatFloat(100*v/whole, 'f', 1, 64)
	}
	group := titles.Of(known.Or(s.Cgroup, ""))
	switch {
	case s.Cgroup == nil:
		return part(s.Seconds) + " %  " + cmp.Or(s.Note, "not split")
	case s.Method == ledger.Sole:
		return fmt.Sprintf("%s %%  %s, %s: the only place", part(s.Seconds), group, s.Context)
	}
	return fmt.Sprintf("%s %% [%s, %s]  %s, %s, %d samples", part(s.Seconds), part(s.Lo), part(s.Hi), group,
		s.Context, s.Samples)
}

func owners(all []ledger.Owner) []string {
	return lists.Map(all, func(o ledger.Owner) string { return fmt.Sprintf("%s (%d)", o.Comm, o.PID) })
}

var groups = table{
	name: "groups", last: "control group",
	columns: []column{
		{"CPUs", 8, 0}, {"itself", 8, 0}, {"eBPF", 8, 0}, {"hard", 9, 0}, {"soft", 9, 100}, {"throttled", 11, 110},
	},
	rows:   groupRows,
	tree:   true,
	none:   func(*ledger.Ledger) string { return "no control groups" },
	amount: inCPUs, used: firstCell,
}

// groupRows are the control groups as a tree. The kernel counts a group with all below it; "itself" is without.
func groupRows(l *ledger.Ledger) (top []*row) {
	tree := report.NewGroupTree(l.Cgroups)
	all := make([]*row, len(l.Cgroups))
	for i := range l.Cgroups {
		g := &l.Cgroups[i]
		r := &row{key: g.Path, name: g.Title()}
		if g.Vanished {
			r.key += fmt.Sprint(" removed ", i)
			r.name += " (removed)"
		}
		inside := g.BPFInsideSeconds
		if left := l.CPU.BPFUnsplit; inside != nil && *inside == 0 && left != nil && *left > 0 {
			inside = nil // what could not be split may have run here
		}
		memory := cmp.Or(g.Memory, new(ledger.Memory))
		r.cells = []cell{used(l, g.CPUSeconds), used(l, tree.OwnCPU(i)), used(l, inside), size(memory.Hard),
			size(memory.Soft), used(l, g.ThrottledSeconds)}
		all[i] = r
	}
	for i, r := range all {
		above := tree.Above(i)
		if g := &l.Cgroups[i]; g.Charge != "" && (above < 0 || l.Cgroups[above].Charged != g.Charged) {
			r.name += "  [" + report.ChargeWords(g.Charged) + "]"
		}
		if above < 0 {
			r.open = true
			top = append(top, r)
			continue
		}
		r.full = r.name
		r.name = strings.TrimPrefix(strings.TrimPrefix(r.name, l.Cgroups[above].Title()), "/")
		all[above].below = append(all[above].below, r)
	}
	return top
}

var sandboxes = table{
	name: "sandboxes", last: "sandbox",
	columns: []column{
		{"CPUs", 8, 0}, {"net", 8, 0}, {"tare", 8, 0}, {"PSS", 8, 0}, {"net", 8, 0}, {"tare", 8, 0},
	},
	rows: func(l *ledger.Ledger) (rows []*row) {
		for i := range l.Sandboxes {
			rows = append(rows, sandboxRow(l, &l.Sandboxes[i]))
		}
		return rows
	},
	unread: func(l *ledger.Ledger) bool { return l.Sandboxes == nil },
	none:   func(*ledger.Ledger) string { return "no container, pod or virtual machine was found" },
	amount: inCPUs, used: firstCell,
}

func sandboxRow(l *ledger.Ledger, s *ledger.Sandbox) *row {
	r := &row{key: s.ID, name: report.SandboxName(s), cells: []cell{
		used(l, s.GrossCPU), used(l, s.NetCPU), used(l, s.TareCPU), size(s.GrossMemory), size(s.NetMemory),
		size(s.TareMemory),
	}}
	for i, c := range s.Components {
		cells := make([]cell, 6)
		side := 1
		if c.Charge == ledger.ChargeTare {
			side = 2
		}
		if c.Processes > 0 || c.Threads > 0 {
			cells[side] = used(l, c.CPU)
		}
		cells[3+side] = unknown
		if c.Memory != nil {
			cells[3+side] = size(&c.Memory.PSS)
		}
		r.below = append(r.below, &row{key: fmt.Sprint(s.ID, " component ", i), name: c.Component, cells: cells})
	}
	for i, f := range s.Findings {
		r.below = append(r.below, &row{key: fmt.Sprint(s.ID, " finding ", i), name: "finding: " + f.Message})
	}
	for i, note := range s.Notes {
		r.below = append(r.below, &row{key: fmt.Sprint(s.ID, " note ", i), name: note})
	}
	return r
}

var maps = table{
	name: "maps", last: "map",
	columns: []column{{"bytes", 9, 0}, {"entries", 10, 0}, {"id", 9, 0}, {"type", 18, 0}, {"method", 13, 110}},
	rows: func(l *ledger.Ledger) (rows []*row) {
		names := map[uint32]string{}
		for i := range l.Programs {
			names[l.Programs[i].ID] = l.Programs[i].Name
		}
		titles := l.Titles()
		for i := range l.Maps {
			rows = append(rows, mapRow(&l.Maps[i], names, titles))
		}
		return rows
	},
	unread: func(l *ledger.Ledger) bool { return l.Maps == nil },
	none:   func(*ledger.Ledger) string { return "no eBPF maps" },
	amount: bytesOf, used: firstCell,
}

func mapRow(m *ledger.Map, programs map[uint32]string, titles ledger.Titles) *row {
	name := cmp.Or(m.Name, "(no name)")
	if m.Charge != "" {
		name += "  [" + report.ChargeWords(m.Charged) + "]"
	}
	key := strconv.FormatUint(uint64(m.ID), 10)
	entries := float64(m.MaxEntries)
	r := &row{key: key, name: name, cells: []cell{
		size(m.Bytes), {strconv.FormatUint(uint64(m.MaxEntries), 10), entries, true}, {key, float64(m.ID), true},
		word(m.Type), word(m.BytesMethod),
	}}
	note := func(what, says string) {
		r.below = append(r.below, &row{key: key + what, name: what + " " + says})
	}
	note("charged to", titles.Of(known.Or(m.ChargedTo, "an unknown group")))
	if len(m.HeldBy) > 0 {
		note("held by", strings.Join(owners(m.HeldBy), ", "))
	}
	for _, id := range m.UsedBy {
		note(fmt.Sprint("used by program ", id), programs[id])
	}
	return r
}
