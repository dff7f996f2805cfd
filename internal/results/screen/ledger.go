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

// rate converts a time or a count in a window to one per second; CPU time becomes a number of CPUs.
func rate(l *ledger.Ledger, v *float64) *float64 {
	return known.As(v, func(v float64) float64 { return v / l.Window.Seconds })
}

func used(l *ledger.Ledger, seconds *float64) Cell { return CPUs(rate(l, seconds)) }

// ledgerTable is a table that shows a ledger.
type ledgerTable struct {
	Table

	rows   func(*ledger.Ledger) []*Row
	unread func(*ledger.Ledger) bool // reports whether the number of rows is unknown; nil: it is always known
}

// ledgerTables are the tabs of a ledger, in their order.
var ledgerTables = []ledgerTable{components, programs, groups, sandboxes, maps}

// LedgerTables returns the tables of a ledger.
func LedgerTables() []Table {
	return lists.Map(ledgerTables, func(t ledgerTable) Table { return t.Table })
}

// OfLedger returns the picture of a ledger, and adds components to the ledger if it has none.
func OfLedger(l *ledger.Ledger) *Picture {
	if l.Components == nil {
		l.AddComponents()
	}
	p := &Picture{Of: l.Host.Hostname, Note: "Linux " + l.Host.Kernel, End: l.Window.End, Seconds: l.Window.Seconds,
		CPUs: float64(l.Host.CPUs), Busy: busy(l), Parts: report.BudgetParts(l.CPU), Capacity: l.CPU.Capacity,
		Warnings: lists.Map(l.Warnings, func(w ledger.Warning) string { return w.Message })}
	for _, t := range ledgerTables {
		p.Rows = append(p.Rows, Rows{t.rows(l), t.unread != nil && t.unread(l)})
	}
	return p
}

// busy returns the fraction of the machine's CPU time in which something ran.
func busy(l *ledger.Ledger) float64 {
	c := l.CPU
	return min(max((c.Busy())/max(c.Capacity, 1e-9), 0), 1)
}

var components = ledgerTable{
	Table: Table{
		Name: "components", Last: "component", None: "no components",
		Columns: []Column{
			{"CPUs", 8, 0}, {"eBPF", 8, 0}, {"others", 8, 0}, {"unsplit", 9, 0}, {"hard", 9, 0}, {"maps", 9, 0},
		},
		Amount: InCPUs,
	},
	rows: func(l *ledger.Ledger) (rows []*Row) {
		for _, c := range l.Components {
			name := "what no rule names"
			if c.Charge != "" {
				name = report.ChargeWords(c.Charged)
			}
			rows = append(rows, &Row{Key: fmt.Sprintf("%q", c.Charged), Name: name, Cells: []Cell{
				used(l, c.CPUSeconds), used(l, c.BPFSeconds), used(l, c.BPFOthersSeconds), used(l, c.BPFUnsplitSeconds),
				Size(c.MemoryHardBytes), Size(c.MapBytes),
			}})
		}
		return rows
	},
}

var programs = ledgerTable{
	Table: Table{
		Name: "eBPF", Last: "program, and who pays", None: "no eBPF program but those of the scale is loaded",
		Columns: []Column{
			{"CPUs", 8, 0}, {"runs/s", 9, 0}, {"per run", 9, 0}, {"id", 9, 0}, {"type", 18, 100},
		},
		Amount: InCPUs,
	},
	rows: func(l *ledger.Ledger) (rows []*Row) {
		titles := l.Titles()
		for i := range l.Programs {
			if p := &l.Programs[i]; !p.Own {
				rows = append(rows, programRow(l, p, titles))
			}
		}
		return rows
	},
	unread: func(l *ledger.Ledger) bool { return l.Programs == nil },
}

func programRow(l *ledger.Ledger, p *ledger.Program, titles ledger.Titles) *Row {
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
	r := &Row{Key: key, Name: name, Cells: []Cell{
		used(l, p.RunSeconds),
		Number(rate(l, runs), func(v float64) string { return quantity.Rough(v, quantity.Count) }),
		Number(perRun, func(v float64) string { return quantity.Value(v, quantity.Seconds) }),
		{strconv.FormatUint(uint64(p.ID), 10), float64(p.ID), true}, word(p.Type),
	}}
	for _, s := range p.Shares {
		place := fmt.Sprint(known.Or(s.Cgroup, ""), " ", s.Context)
		if s.Cgroup == nil {
			place, _, _ = strings.Cut(s.Note, ":") // what follows may contain numbers that change
		}
		r.Below = append(r.Below, &Row{Key: key + " share " + place, Name: shareWords(s, p.RunSeconds, titles),
			Cells: []Cell{used(l, &s.Seconds)}})
	}
	note := func(what string, all []string) {
		if len(all) > 0 {
			r.Below = append(r.Below, &Row{Key: key + what, Name: what + " " + strings.Join(all, ", ")})
		}
	}
	note("attached:", p.Attached)
	note("held by", owners(p.Owners))
	return r
}

// shareWords describes where a share of a program's run time was spent, with its interval.
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

var groups = ledgerTable{
	Table: Table{
		Name: "groups", Last: "control group", None: "no control groups",
		Columns: []Column{
			{"CPUs", 8, 0}, {"itself", 8, 0}, {"eBPF", 8, 0}, {"hard", 9, 0}, {"soft", 9, 100}, {"throttled", 11, 110},
		},
		Amount: InCPUs, Tree: true,
	},
	rows: groupRows,
}

// groupRows returns the control groups as a tree. The kernel counts a group with all groups below it; "itself" leaves
// those out.
func groupRows(l *ledger.Ledger) (top []*Row) {
	tree := report.NewGroupTree(l)
	all := make([]*Row, len(l.Cgroups))
	for i := range l.Cgroups {
		g := &l.Cgroups[i]
		r := &Row{Key: g.Path, Name: g.Title()}
		if g.Vanished {
			r.Key += fmt.Sprint(" removed ", i)
			r.Name += " (removed)"
		}
		inside := g.BPFInsideSeconds
		if left := l.CPU.BPFUnsplit; inside != nil && *inside == 0 && left != nil && *left > 0 {
			inside = nil // some of the time that could not be split may have been spent here
		}
		memory := cmp.Or(g.Memory, new(ledger.Memory))
		r.Cells = []Cell{used(l, g.CPUSeconds), used(l, tree.OwnCPU(i)), used(l, inside), Size(memory.Hard),
			Size(memory.Soft), used(l, g.ThrottledSeconds)}
		all[i] = r
	}
	for i, r := range all {
		above := tree.Above(i)
		if g := &l.Cgroups[i]; g.Charge != "" && (above < 0 || l.Cgroups[above].Charged != g.Charged) {
			r.Name += "  [" + report.ChargeWords(g.Charged) + "]"
		}
		if above < 0 {
			r.Open = true
			top = append(top, r)
			continue
		}
		r.Full = r.Name
		r.Name = strings.TrimPrefix(strings.TrimPrefix(r.Name, l.Cgroups[above].Title()), "/")
		all[above].Below = append(all[above].Below, r)
	}
	return top
}

var sandboxes = ledgerTable{
	Table: Table{
		Name: "sandboxes", Last: "sandbox", None: "no container, pod or virtual machine was found",
		Columns: []Column{
			{"CPUs", 8, 0}, {"net", 8, 0}, {"tare", 8, 0}, {"PSS", 8, 0}, {"net", 8, 0}, {"tare", 8, 0},
		},
		Amount: InCPUs,
	},
	rows: func(l *ledger.Ledger) (rows []*Row) {
		for i := range l.Sandboxes {
			rows = append(rows, sandboxRow(l, &l.Sandboxes[i]))
		}
		return rows
	},
	unread: func(l *ledger.Ledger) bool { return l.Sandboxes == nil },
}

func sandboxRow(l *ledger.Ledger, s *ledger.Sandbox) *Row {
	r := &Row{Key: s.ID, Name: report.SandboxName(s), Cells: []Cell{
		used(l, s.GrossCPU), used(l, s.NetCPU), used(l, s.TareCPU), Size(s.GrossMemory), Size(s.NetMemory),
		Size(s.TareMemory),
	}}
	for _, c := range s.Components {
		cells := make([]Cell, 6)
		side := 1
		if c.Charge == ledger.ChargeTare {
			side = 2
		}
		if c.Processes > 0 || c.Threads > 0 {
			cells[side] = used(l, c.CPU)
		}
		cells[3+side] = unknown
		if c.Memory != nil {
			cells[3+side] = Size(&c.Memory.PSS)
		}
		r.Below = append(r.Below, &Row{Key: s.ID + " component " + c.Component, Name: c.Component, Cells: cells})
	}
	for i, f := range s.Findings {
		r.Below = append(r.Below, &Row{Key: fmt.Sprint(s.ID, " finding ", i), Name: "finding: " + f.Message})
	}
	for i, note := range s.Notes {
		r.Below = append(r.Below, &Row{Key: fmt.Sprint(s.ID, " note ", i), Name: note})
	}
	return r
}

var maps = ledgerTable{
	Table: Table{
		Name: "maps", Last: "map", None: "no eBPF maps",
		Columns: []Column{
			{"bytes", 9, 0}, {"entries", 10, 0}, {"id", 9, 0}, {"type", 18, 0}, {"method", 13, 110},
		},
		Amount: bytesOf,
	},
	rows: func(l *ledger.Ledger) (rows []*Row) {
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
}

func mapRow(m *ledger.Map, programs map[uint32]string, titles ledger.Titles) *Row {
	name := cmp.Or(m.Name, "(no name)")
	if m.Charge != "" {
		name += "  [" + report.ChargeWords(m.Charged) + "]"
	}
	key := strconv.FormatUint(uint64(m.ID), 10)
	entries := float64(m.MaxEntries)
	r := &Row{Key: key, Name: name, Cells: []Cell{
		Size(m.Bytes), {strconv.FormatUint(uint64(m.MaxEntries), 10), entries, true}, {key, float64(m.ID), true},
		word(m.Type), word(m.BytesMethod),
	}}
	note := func(what, says string) {
		r.Below = append(r.Below, &Row{Key: key + what, Name: what + " " + says})
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
