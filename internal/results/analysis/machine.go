package analysis

import (
	"cmp"
	"encoding/json"
	"maps"
	"path"
	"slices"

	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
	"tare/internal/lib/known"
	"tare/internal/scale/attribution"
	"tare/internal/scale/ledger"
)

// This file describes the use of the machine, from the ledgers of all trials of an arm together. Like curves and counts
// of events, its results are computed from the trials when a run is read, and are not in the summary.

// Budget is the sum of the CPU budgets of all valid trials of an arm at a level. It is a sum, because the parts of a
// sum or mean add up to the capacity, and medians do not.
type Budget struct {
	Arm            string
	Factors        map[string]string
	Trials         int
	Capacity, Idle float64      // seconds
	Parts          []BudgetPart // in the order of BudgetParts, without 0s; with Idle they add up to Capacity
	// Unplaced is the eBPF time, in seconds, that stays in other parts for lack of samples; 0 if negligible.
	Unplaced float64
}

// Held is the memory that the groups of one role (app, load or subject) hold at the end of the window. Each value is a
// mean over the valid trials of an arm at a level, without the trials in which the field is unknown for some group.
type Held struct {
	Arm     string
	Factors map[string]string
	Role    string
	Bytes   map[string]float64 // by field; a field that no trial knows is absent
}

// weighed holds the valid trials of an arm at a level.
type weighed struct {
	place
	trials []record.Trial
}

// byPlace groups the valid trials with a ledger, in the order of levels and arms.
func byPlace(trials []record.Trial) []weighed {
	return suchByPlace(trials, func(t record.Trial) bool { return t.Ledger != nil })
}

func suchByPlace(trials []record.Trial, such func(record.Trial) bool) []weighed {
	places := map[levelArm]weighed{}
	for _, t := range trials {
		if !valid(t) || !such(t) {
			continue
		}
		key := levelArm{record.LevelKey(t.Factors), t.Arm}
		places[key] = weighed{place{t.Arm, levelOf(t.Factors)}, append(places[key].trials, t)}
	}
	return slices.SortedFunc(maps.Values(places), func(a, b weighed) int { return comparePlaces(a.place, b.place) })
}

// Budgets returns the budget of each arm at each level.
func Budgets(trials []record.Trial) []Budget {
	var all []Budget
	for _, w := range byPlace(trials) {
		b := Budget{Arm: w.arm, Factors: w.at, Trials: len(w.trials)}
		sums := map[string]float64{}
		for _, t := range w.trials {
			b.Capacity += t.Ledger.CPU.Capacity
			b.Idle += t.Ledger.CPU.Waited()
			for name, v := range cpuOf(t.Ledger) {
				sums[name] += v
			}
		}
		if !(b.Capacity > 0) || !Usable(b.Capacity) || !Usable(b.Idle) {
			continue
		}
		if left := placeBPF(sums, w.trials); left > 1e-6*b.Capacity && Usable(left) {
			b.Unplaced = left
		}
		for _, part := range BudgetParts {
			if v := sums[part.Name]; v != 0 && Usable(v) {
				b.Parts = append(b.Parts, BudgetPart{part.Bar, part.Name, v})
			}
		}
		all = append(all, b)
	}
	return all
}

// The bars of the CPU budget. Infrastructure and application have separate bars.
const (
	barApplication    = "application"
	barInfrastructure = "infrastructure"
	barMachine        = "rest of the machine"
)

// The parts that hold eBPF time. Programs that are not the subject's may run on the machine as well.
const (
	partBPF      = "subject's eBPF programs"
	partOtherBPF = "other eBPF programs"
)

// BudgetPart is a part of the CPU budget, with the bar that it is drawn in.
type BudgetPart struct {
	Bar, Name string
	Seconds   float64
}

// BudgetParts lists the parts in the order of the bars, without values.
var BudgetParts = []BudgetPart{
	{Bar: barApplication, Name: "application processes"}, {Bar: barApplication, Name: "load generator"},
	{Bar: barInfrastructure, Name: partBPF}, {Bar: barInfrastructure, Name: "subject's processes"},
	{Bar: barMachine, Name: partOtherBPF}, {Bar: barMachine, Name: "kernel threads"},
	{Bar: barMachine, Name: "interrupts on idle CPUs"}, {Bar: barMachine, Name: "root group"},
	{Bar: barMachine, Name: partOther}, {Bar: barMachine, Name: "tare itself"},
	{Bar: barMachine, Name: "steal"}, {Bar: barMachine, Name: "unexplained"},
}

// cpuOf splits one ledger's budget into parts, in seconds. With idle time they add up to the capacity.
func cpuOf(l *ledger.Ledger) map[string]float64 {
	parts := map[string]float64{"steal": l.CPU.Steal, "unexplained": l.CPU.Unexplained}
	if len(l.CPU.Lines) == 0 {
		parts[partOther] = l.CPU.Attributed
	}
	for _, line := range l.CPU.Lines {
		name := partOther // an unknown line, of a later version, must not be lost
		switch line.Name {
		case ledger.LineRoot:
			name = "root group"
		case ledger.LineKernel:
			name = "kernel threads"
		case ledger.LineBPF:
			name = partBPF // includes other programs until placeBPF splits them
		case ledger.LineInterrupts:
			name = "interrupts on idle CPUs"
		case ledger.LineSelf:
			name = "tare itself"
		}
		parts[name] += line.Seconds
	}
	weighed := map[string]string{} // parts, by the paths of groups
	for i := range l.Cgroups {
		if g := &l.Cgroups[i]; g.CPUSeconds != nil && rolePart[g.Role] != "" {
			weighed[g.Path] = rolePart[g.Role]
		}
	}
	for i := range l.Cgroups {
		g := &l.Cgroups[i]
		name := rolePart[g.Role]
		if name == "" || g.CPUSeconds == nil {
			continue
		}
		own := *g.CPUSeconds
		if g.BPFInsideSeconds != nil {
			own -= *g.BPFInsideSeconds // the eBPF line contains it
		}
		parts[name] += own
		parts[partAt(weighed, path.Dir(g.Path))] -= own // the enclosing group's counter includes it
	}
	return parts
}

const partOther = "other control groups"

// partAt returns the budget part of the nearest group, at a path or above it, that has one.
func partAt(parts map[string]string, path string) string {
	return cmp.Or(ledger.At(parts, path), partOther)
}

// placeBPF moves eBPF time out of the parts that still contain it because single windows were too short to split it.
// The total is known exactly; where it ran is estimated from the samples of all trials of an arm together, like the
// pooled shares in the summary. placeBPF then separates the subject's programs from others. It returns the seconds that
// could not be placed for lack of samples.
func placeBPF(parts map[string]float64, trials []record.Trial) (left float64) {
	seen := map[string]int{}
	all := 0
	var total, mine float64
	for _, t := range trials {
		l := t.Ledger
		own := subjectPrograms(t)
		roles := map[string]string{}
		for _, g := range l.Cgroups {
			if part := rolePart[g.Role]; part != "" {
				roles[g.Path] = part
			}
		}
		for _, p := range l.Programs {
			if p.RunSeconds != nil {
				total += *p.RunSeconds
				if own[p.ID] {
					mine += *p.RunSeconds
				}
			}
			for _, s := range p.Seen {
				switch {
				case s.Cgroup == nil:
					continue
				case *s.Cgroup == attribution.Idle:
					seen["interrupts on idle CPUs"] += s.Samples
				case *s.Cgroup == "/":
					seen["root group"] += s.Samples
				default:
					seen[partAt(roles, *s.Cgroup)] += s.Samples
				}
				all += s.Samples
			}
		}
	}
	left = max(total-parts[partBPF], 0)
	if want := left; all >= minPlaced {
		for name, n := range seen {
			part := min(want*float64(n)/float64(all), max(parts[name], 0)) // a part never gives more than it has
			parts[name] -= part
			parts[partBPF] += part
			left -= part
		}
	}
	if total > 0 {
		others := parts[partBPF] * (1 - mine/total)
		parts[partBPF] -= others
		parts[partOtherBPF] += others
	}
	return max(left, 0)
}

// subjectPrograms returns the IDs of the programs that the subject of a trial reported as loaded.
func subjectPrograms(t record.Trial) map[uint32]bool {
	var ready struct {
		Programs []struct {
			ID uint32 `json:"id"`
		} `json:"programs"`
	}
	own := map[uint32]bool{}
	if json.Unmarshal(t.Subject, &ready) == nil {
		for _, p := range ready.Programs {
			own[p.ID] = true
		}
	}
	return own
}

// minPlaced is the minimum number of samples, over all trials of an arm, for an estimate of where its eBPF time ran.
const minPlaced = 25

// rolePart gives the budget part of control groups by their role.
var rolePart = map[string]string{"app": "application processes", "load": "load generator",
	"subject": "subject's processes"}

// memoryFields are the kinds of memory that a group holds, in the order of the table. The first four are the parts of
// hard and soft memory.
var memoryFields = []struct {
	name string
	of   func(*ledger.Memory) *float64
}{
	{"anon", func(x *ledger.Memory) *float64 { return inBytes(x.Anon) }},
	{"shmem", func(x *ledger.Memory) *float64 { return inBytes(x.Shmem) }},
	{"kernel", func(x *ledger.Memory) *float64 {
		v := inBytes(x.Kernel)
		if slab := inBytes(x.SlabReclaimable); v != nil && slab != nil {
			*v -= *slab
		}
		return v
	}},
	{"soft", func(x *ledger.Memory) *float64 { return inBytes(x.Soft) }},
	{"hard", func(x *ledger.Memory) *float64 { return inBytes(x.Hard) }},
	{"working set", func(x *ledger.Memory) *float64 { return inBytes(x.WorkingSet) }},
	{"peak", func(x *ledger.Memory) *float64 { return inBytes(x.Peak) }},
}

// MemoryParts is the number of MemoryFields that are parts of hard and soft memory. The other fields are sums of these
// parts, or amounts at other moments.
const MemoryParts = 4

// MemoryFields returns the fields of Held.Bytes in order.
func MemoryFields() []string {
	names := make([]string, len(memoryFields))
	for i, f := range memoryFields {
		names[i] = f.name
	}
	return names
}

func inBytes[N uint64 | int64](v *N) *float64 {
	return known.As(v, func(n N) float64 { return float64(n) })
}

// Memory returns what the groups of each role hold, by level, arm and role.
func Memory(trials []record.Trial) []Held {
	var all []Held
	for _, w := range byPlace(trials) {
		for _, role := range slices.Sorted(maps.Keys(rolePart)) {
			h, n := Held{Arm: w.arm, Factors: w.at, Role: role, Bytes: map[string]float64{}}, map[string]float64{}
			for _, t := range w.trials {
				for name, v := range heldBy(t.Ledger, role) {
					h.Bytes[name] += v
					n[name]++
				}
			}
			for name := range h.Bytes {
				h.Bytes[name] /= n[name]
			}
			if len(h.Bytes) > 0 {
				all = append(all, h)
			}
		}
	}
	return all
}

// heldBy returns what the groups of a role hold in one ledger, by field. It leaves out fields that are unknown for one
// of them. A group inside another one of the role is not counted again.
func heldBy(l *ledger.Ledger, role string) map[string]float64 {
	groups := measured.Topmost(l, func(g *ledger.Cgroup) bool { return g.Role == role })
	bytes := map[string]float64{}
	for _, f := range memoryFields {
		var parts []*float64
		for _, g := range groups {
			if g.Memory == nil {
				return nil
			}
			parts = append(parts, f.of(g.Memory))
		}
		if sum := known.Sum(parts...); sum != nil && len(parts) > 0 {
			bytes[f.name] = *sum
		}
	}
	return bytes
}
