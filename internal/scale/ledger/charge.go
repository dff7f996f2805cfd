package ledger

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"tare/internal/lib/known"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
)

// Charge is the side that a control group, program or map belongs to; empty: unknown.
type Charge string

// The charges.
const (
	ChargeWorkload Charge = "workload" // an application, whose gross, tare and net are told apart
	ChargeTare     Charge = "tare"     // infrastructure that serves workloads
	ChargeLoad     Charge = "load"     // what puts a workload to work
	ChargeSelf     Charge = "self"     // the scale itself
)

// Charged says whose something is.
type Charged struct {
	Charge Charge `json:"charge"`
	// Workload names the workload; with the charge tare, the one workload that this serves. Empty with tare: it
	// serves all.
	Workload  string `json:"workload"`
	Component string `json:"component,omitempty"` // a named part of what is weighed, such as proxy.client
}

// Workload is what one workload used, and what infrastructure used on its behalf: gross = net + tare, to the
// nanosecond and the byte, wherever the three are known. A part that needs a counter which this kernel lacks is
// nil, and Notes say why.
//
// Memory is hard memory (Memory.Hard) at the end of the window.
type Workload struct {
	Name    string   `json:"name"`
	Cgroups []string `json:"cgroups"` // the topmost groups that are charged to it

	GrossCPU *float64 `json:"gross_cpu_seconds"`
	NetCPU   *float64 `json:"net_cpu_seconds"`
	TareCPU  *float64 `json:"tare_cpu_seconds"`
	// TareBPF is the part of TareCPU that tare's eBPF programs ran above the workload's own tasks, by their shares.
	// What samples could not place (Tare.BPFUnsplit) may be more of it: Hi contains all of that, and Value none.
	TareBPF *Interval `json:"tare_bpf_seconds"`
	// TareCgroupsCPU is the rest of TareCPU: control groups that serve this workload, and its own programs of tare
	// elsewhere.
	TareCgroupsCPU *float64 `json:"tare_cgroups_cpu_seconds"`

	GrossMemory *int64 `json:"gross_memory_hard_bytes"`
	NetMemory   *int64 `json:"net_memory_hard_bytes"`
	TareMemory  *int64 `json:"tare_memory_hard_bytes"`
	// TareMaps is the part of TareMemory in maps of tare that the kernel charges to the workload's own groups.
	TareMaps          *int64 `json:"tare_map_bytes"`
	TareCgroupsMemory *int64 `json:"tare_cgroups_memory_hard_bytes"` // the rest of TareMemory

	Notes []string `json:"notes"` // why something is not known, or is a bound
}

// Tare is all that infrastructure used, on whosever behalf.
type Tare struct {
	CPU        *float64 `json:"cpu_seconds"`         // CgroupsCPU + BPF + BPFUnsplit: all that counters say
	CgroupsCPU *float64 `json:"cgroups_cpu_seconds"` // its control groups
	// BPF is run time of its programs outside of its control groups, as far as samples placed it; nil where they placed
	// nothing of what ran.
	BPF *float64 `json:"bpf_seconds"`
	// BPFUnsplit is run time of its programs that samples could not place.
	BPFUnsplit *float64 `json:"bpf_unsplit_seconds"`
	// CPUTwice is how much of CPU may be counted twice, at most: the part of BPFUnsplit that ran in its control groups
	// is in CgroupsCPU as well.
	CPUTwice *float64 `json:"cpu_twice_at_most_seconds"`
	// UnassignedCPU is CPU without BPFUnsplit and what is in the workloads' gross.
	UnassignedCPU *float64 `json:"unassigned_cpu_seconds"`

	Memory           *int64 `json:"memory_hard_bytes"`
	UnassignedMemory *int64 `json:"unassigned_memory_hard_bytes"`
}

// Settle derives Workloads and Tare from the charges of groups, programs and maps. A group without a charge gets
// that of the nearest group above it that has one, and tare inside a workload's group serves that workload unless
// it names another. Settle may be called again after charges have changed.
func (l *Ledger) Settle() {
	l.Workloads, l.Tare = []Workload{}, nil
	l.spread()
	if !l.charged() {
		return
	}
	s := newSettlement(l)
	s.addPrograms()
	s.addMaps()
	l.Workloads = append(l.Workloads, lists.Map(s.names, s.workload)...)
	l.Tare = s.tare()
}

// charged says whether anything is a workload's, or tare.
func (l *Ledger) charged() bool {
	on := func(c Charged) bool { return c.Charge == ChargeWorkload || c.Charge == ChargeTare }
	return slices.ContainsFunc(l.Cgroups, func(g Cgroup) bool { return on(g.Charged) }) ||
		slices.ContainsFunc(l.Programs, func(p Program) bool { return on(p.Charged) }) ||
		slices.ContainsFunc(l.Maps, func(m Map) bool { return on(m.Charged) })
}

// irqApart says whether the kernel takes interrupts out of tasks' and groups' CPU time.
func (l *Ledger) irqApart() bool { return l.Host.IRQTime != nil && *l.Host.IRQTime }

// newSettlement sums what groups used by charge.
func newSettlement(l *Ledger) *settlement {
	s := &settlement{l: l, index: groupIndex(l.Cgroups), cpu: map[Charged]*sum{}, memory: map[Charged]*sum{},
		tops: map[Charged][]string{}, noPrograms: l.Programs == nil, noMaps: l.Programs == nil || l.Maps == nil}
	s.addGroups()
	s.takeSelf()
	s.findWorkloads()
	return s
}

// groupIndex is the charge of each listed group by path.
func groupIndex(groups []Cgroup) map[string]Charged {
	index := make(map[string]Charged, len(groups))
	for i := range groups {
		g := &groups[i]
		if old, twice := index[g.Path]; !twice ||
			old.Charge == "" { // a group that was removed and made again stands twice
			index[g.Path] = g.Charged
		}
	}
	return index
}

// At returns what an index by path has for the group at path, or else for the nearest listed group above it.
func At[T any](index map[string]T, path string) T {
	if at, listed := index[path]; listed {
		return at
	}
	return Above(index, path)
}

// Above returns what an index by path has for the nearest listed group above path.
func Above[T any](index map[string]T, path string) (c T) {
	found := path == "/"
	Ancestors(path, func(p string) {
		if at, listed := index[p]; listed && !found && p != path {
			c, found = at, true
		}
	})
	return c
}

// spread gives the groups without a charge that of the nearest group above them.
func (l *Ledger) spread() {
	if !slices.ContainsFunc(l.Cgroups, func(g Cgroup) bool { return g.Charged != Charged{} || g.Rule != "" }) {
		return
	}
	index := groupIndex(l.Cgroups)
	rules := make(map[string]string, len(l.Cgroups))
	for i := range l.Cgroups {
		g := &l.Cgroups[i]
		rules[g.Path] = cmp.Or(rules[g.Path], g.Rule)
	}
	order := make([]int, len(l.Cgroups))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(len(l.Cgroups[a].Path),
			len(l.Cgroups[b].Path))
	})
	for _, i := range order {
		g := &l.Cgroups[i]
		over := Above(index, g.Path)
		switch {
		case g.Charge == "":
			g.Charged = cmp.Or(index[g.Path], over)
			g.Rule = cmp.Or(rules[g.Path], Above(rules, g.Path))
		case g.Charge == ChargeTare && g.Workload == "" && over.Workload != "":
			g.Workload = over.Workload
		}
		index[g.Path], rules[g.Path] = g.Charged, g.Rule
	}
}

// sum is a sum of whole nanoseconds or bytes, of which some may not be known.
type sum struct {
	n       int64
	unknown []string // groups whose part is not known
}

func (s *sum) add(sign int64, n *int64, group string) {
	if n == nil {
		s.unknown = append(s.unknown, group)
		return
	}
	s.n += sign * *n
}

// value is the sum, never below 0: two counters are not read at quite the same time.
func (s *sum) value() *int64 {
	switch {
	case s == nil:
		return new(int64)
	case len(s.unknown) > 0:
		return nil
	}
	return new(max(s.n, 0))
}

// settlement is the work of Settle. Times are whole nanoseconds, so that parts sum exactly.
type settlement struct {
	l           *Ledger
	index       map[string]Charged
	cpu, memory map[Charged]*sum // of groups, each group's time and memory once
	tops        map[Charged][]string
	names       []string             // of the workloads, sorted
	own         map[string][]Charged // by workload: of its groups
	serving     map[string][]Charged // by workload: of tare that serves it
	tares       []Charged            // all of tare

	unsplit, placed int64            // run time of tare's programs
	bpfUnknown      string           // why the run time of tare's programs is not known; empty where it is
	inside, apart   map[string]int64 // by workload: above its tasks, within its groups' CPU time and not
	bounds          map[string]Interval
	tareApart       map[Charged]int64 // above the tasks of tare's own groups, and not in their CPU time
	elsewhere       map[string]int64  // in neither, by the workload that the programs serve; "" for none in particular

	maps          map[string]*sum // bytes of tare's maps charged to a workload's groups
	mapsElsewhere map[string]*sum // in neither a workload's groups nor tare's
	mapsUnplaced  bool            // the kernel does not tell where some are charged
	// Programs, or programs or maps, could not be read: which maps are tare's rests on the programs that use them.
	noPrograms, noMaps bool
}

func nanoseconds(seconds *float64) *int64 {
	return known.As(seconds, func(s float64) int64 { return int64(math.Round(s * 1e9)) })
}

func seconds(ns *int64) *float64 {
	return known.As(ns, func(ns int64) float64 { return float64(ns) / 1e9 })
}

// addGroups sums CPU time and memory by charge. A group's counters hold those of the groups below it: where a
// charge begins inside another, its top group is added to the one and taken from the other.
func (s *settlement) addGroups() {
	for _, g := range s.l.Cgroups {
		over := Above(s.index, g.Path)
		if g.Charge == "" || g.Charged == over {
			continue
		}
		s.tops[g.Charged] = append(s.tops[g.Charged], g.Path)
		hard := new(int64) // what has gone holds nothing
		if !g.Vanished {
			hard = nil
			if g.Memory != nil {
				hard = g.Memory.Hard
			}
		}
		move := func(sums map[Charged]*sum, n *int64) {
			sumOf(sums, g.Charged).add(1, n, g.Path)
			if over.Charge != "" {
				sumOf(sums, over).add(-1, n, g.Path)
			}
		}
		move(s.cpu, nanoseconds(g.CPUSeconds))
		move(s.memory, hard)
	}
}

// sumOf is the sum of a key, which is made where there is none.
func sumOf[K comparable](sums map[K]*sum, key K) *sum {
	if sums[key] == nil {
		sums[key] = &sum{}
	}
	return sums[key]
}

// takeSelf takes the scale's own CPU time out of the group that it was started in, if that is charged to somebody.
func (s *settlement) takeSelf() {
	if s.l.Self.Cgroup == nil {
		return
	}
	c := s.chargeOf(*s.l.Self.Cgroup)
	if c.Charge == ChargeSelf || s.cpu[c] == nil {
		return
	}
	if self := s.l.CPU.self(); self != nil {
		s.cpu[c].add(-1, self, *s.l.Self.Cgroup)
	}
}

// chargeOf is the charge of the group at path, or of the nearest listed group above it.
func (s *settlement) chargeOf(path string) Charged { return At(s.index, path) }

func (s *settlement) findWorkloads() {
	names := map[string]bool{}
	for c := range s.tops {
		if c.Charge == ChargeWorkload {
			names[c.Workload] = true
		}
	}
	s.names = slices.Sorted(maps.Keys(names))
	s.own, s.serving = map[string][]Charged{}, map[string][]Charged{}
	for c := range s.tops {
		switch of, known := s.serves(c); {
		case c.Charge == ChargeWorkload:
			s.own[c.Workload] = append(s.own[c.Workload], c)
		case c.Charge == ChargeTare:
			if s.tares = append(s.tares, c); known {
				s.serving[of] = append(s.serving[of], c)
			}
		}
	}
}

// has says whether there is a workload of that name.
func (s *settlement) has(name string) bool {
	_, found := slices.BinarySearch(s.names, name)
	return found
}

// serves is the workload on whose behalf tare with the charge c works, where that can be told.
func (s *settlement) serves(c Charged) (string, bool) {
	if c.Workload != "" {
		return c.Workload, s.has(c.Workload)
	}
	if len(s.names) == 1 {
		return s.names[0], true
	}
	return "", false
}

// addPrograms places the run time of tare's programs, without what was stolen inside of it.
func (s *settlement) addPrograms() {
	s.inside, s.apart, s.elsewhere, s.tareApart = map[string]int64{}, map[string]int64{}, map[string]int64{},
		map[Charged]int64{}
	s.bounds = map[string]Interval{}
	if s.noPrograms {
		s.bpfUnknown = "the machine's eBPF programs could not be read"
	}
	for i := range s.l.Programs {
		p := &s.l.Programs[i]
		if p.Charge != ChargeTare {
			continue
		}
		placed := int64(0)
		ran, known := p.split(func(share Share, ns int64) {
			if share.Cgroup == nil {
				return
			}
			placed += ns
			counted := share.Context == Task || !s.l.irqApart()
			switch at := s.chargeOf(*share.Cgroup); at.Charge {
			case ChargeWorkload:
				if counted {
					s.inside[at.Workload] += ns
				} else {
					s.apart[at.Workload] += ns
				}
				b := s.bounds[at.Workload]
				b.Lo, b.Hi = b.Lo+share.Lo, b.Hi+share.Hi
				s.bounds[at.Workload] = b
			case ChargeTare:
				if !counted {
					s.tareApart[at] += ns
				}
			default:
				s.elsewhere[s.servedBy(p.Charged)] += ns
			}
		})
		if !known {
			s.bpfUnknown = fmt.Sprintf("how long program %d (%s) of tare ran is not known", p.ID, cmp.Or(p.Name,
				"no name"))
		}
		s.placed, s.unsplit = s.placed+placed, s.unsplit+max(ran-placed, 0) // shares are rounded
	}
}

// outside is the run time of tare's programs that samples placed and that is not in the CPU time of tare's own groups.
func (s *settlement) outside() (ns int64) {
	for _, by := range []map[string]int64{s.inside, s.apart, s.elsewhere} {
		for _, n := range by {
			ns += n
		}
	}
	for _, n := range s.tareApart {
		ns += n
	}
	return ns
}

// lost says whether samples placed nothing of what tare's programs ran, and it is more than a thousandth of what it
// may be a part of.
func (s *settlement) lost(of *int64) bool {
	return s.placed == 0 && s.unsplit > 0 && (of == nil || s.unsplit > *of/1000)
}

// servedBy is the workload that a program or map names as the one it serves, if the ledger has it.
func (s *settlement) servedBy(c Charged) string {
	if s.has(c.Workload) {
		return c.Workload
	}
	return ""
}

// addMaps places the memory of tare's maps by the group that the kernel charges for it.
func (s *settlement) addMaps() {
	s.maps, s.mapsElsewhere = map[string]*sum{}, map[string]*sum{}
	for _, m := range s.l.Maps {
		if m.Charge != ChargeTare {
			continue
		}
		bytes := m.size()
		if m.ChargedTo == nil {
			s.mapsUnplaced = true
			continue
		}
		switch c := s.chargeOf(*m.ChargedTo); c.Charge {
		case ChargeWorkload:
			sumOf(s.maps, c.Workload).add(1, bytes, *m.ChargedTo)
		case ChargeTare: // it is in the memory of that group
		default:
			sumOf(s.mapsElsewhere, s.servedBy(m.Charged)).add(1, bytes, *m.ChargedTo)
		}
	}
}

// size is the memory of a map; nil where it is not known.
func (m *Map) size() *int64 {
	return known.As(m.Bytes, func(n uint64) int64 { return int64(n) })
}

// self is the CPU time of the scale itself, in nanoseconds; nil where no line has it.
func (c *CPU) self() *int64 {
	for _, line := range c.Lines {
		if line.Name == LineSelf {
			return nanoseconds(&line.Seconds)
		}
	}
	return nil
}

// total is the sum over some charges.
func total(sums map[Charged]*sum, of []Charged) (all *int64, unknown []string) {
	all = new(int64)
	for _, c := range of {
		if s := sums[c]; s != nil {
			all = known.Sum(all, s.value())
			unknown = append(unknown, s.unknown...)
		}
	}
	slices.Sort(unknown)
	return all, slices.Compact(unknown)
}

func (s *settlement) workload(name string) Workload {
	w := Workload{Name: name, Cgroups: []string{}, Notes: []string{}}
	note := func(format string, args ...any) { w.Notes = append(w.Notes, fmt.Sprintf(format, args...)) }
	own, serving := s.own[name], s.serving[name]
	for _, c := range own {
		w.Cgroups = append(w.Cgroups, s.tops[c]...)
	}
	slices.Sort(w.Cgroups)
	w.Cgroups = slices.Compact(w.Cgroups)

	cpu, unknown := total(s.cpu, own)
	groups, unknownTare := total(s.cpu, serving)
	if unknown = append(unknown, unknownTare...); len(unknown) > 0 {
		note("the CPU time of %s is not known", some(unknown))
	}
	for _, c := range serving {
		groups = known.Sum(groups, new(s.tareApart[c]))
	}
	if ns := s.elsewhere[name]; ns > 0 {
		groups = known.Sum(groups, &ns)
	}
	if s.noPrograms { // they may have run elsewhere
		groups = nil
	}
	inside := s.inside[name]
	if cpu != nil { // run time is wall time and can exceed the CPU time around it
		inside = min(inside, *cpu)
	}
	apart := s.apart[name]
	switch {
	case s.noPrograms:
		note("%s: gross, net and tare are not known", s.bpfUnknown)
	case s.bpfUnknown != "":
		note("%s: net and tare are not known", s.bpfUnknown)
	case s.lost(cpu):
		gross := ""
		if least := known.Sum(cpu, groups); least != nil && s.l.irqApart() {
			gross = fmt.Sprintf(", nor is gross, which is %s to %s",
				quantity.Value(float64(*least)/1e9, quantity.Seconds),
				quantity.Value(float64(*least+s.unsplit)/1e9, quantity.Seconds))
		}
		note("samples could not place any of the %s that eBPF programs of tare ran: net and tare are not "+
			"known%s; use a longer --for or a higher --hz",
			quantity.Value(float64(s.unsplit)/1e9, quantity.Seconds), gross)
	default:
		bpf := inside + apart
		value, b := float64(bpf)/1e9, s.bounds[name]
		w.TareBPF = &Interval{Value: value, Lo: min(b.Lo, value), Hi: max(b.Hi, value) + float64(s.unsplit)/1e9}
		if s.unsplit > 0 {
			note("samples could not place %s that eBPF programs of tare ran: any of it that ran here is in net",
				quantity.Value(float64(s.unsplit)/1e9, quantity.Seconds))
		}
		w.NetCPU = seconds(known.Sum(cpu, known.Minus(&inside)))
		w.TareCPU = seconds(known.Sum(&bpf, groups))
		w.GrossCPU = seconds(known.Sum(cpu, &apart, groups))
	}
	if w.TareBPF == nil && !s.l.irqApart() {
		w.GrossCPU = seconds(known.Sum(cpu, groups)) // wherever programs ran, it is in the groups' CPU time
	}
	w.TareCgroupsCPU = seconds(groups)
	s.weighMemory(&w, own, serving, note)
	return w
}

func (s *settlement) weighMemory(w *Workload, own, serving []Charged, note func(string, ...any)) {
	hard, unknown := total(s.memory, own)
	groups, unknownTare := total(s.memory, serving)
	if unknown = append(unknown, unknownTare...); len(unknown) > 0 {
		note("the hard memory of %s is not known", some(unknown))
	}
	elsewhere, inside := s.mapsElsewhere[w.Name].value(), s.maps[w.Name].value()
	if s.noMaps {
		elsewhere, inside = nil, nil
	}
	groups = known.Sum(groups, elsewhere)
	switch {
	case s.noMaps:
		note("which eBPF maps are tare's could not be read: gross, net and tare memory are not known")
	case s.mapsUnplaced:
		inside = nil
		note("the kernel does not tell which group pays for some maps of tare: net and tare memory are not known")
	case inside == nil || elsewhere == nil:
		note("the size of some maps of tare is not known")
	case hard != nil:
		inside = new(min(*inside, *hard)) // estimates can exceed what the group holds
	}
	w.TareMaps, w.TareCgroupsMemory = inside, groups
	w.GrossMemory = known.Sum(hard, groups)
	w.NetMemory = known.Sum(hard, known.Minus(inside))
	w.TareMemory = known.Sum(inside, groups)
}

// some names the first few of a list.
func some(list []string) string {
	if len(list) == 1 {
		return list[0]
	}
	return fmt.Sprintf("%s and %d more", list[0], len(list)-1)
}

func (s *settlement) tare() *Tare {
	t := &Tare{}
	groups, _ := total(s.cpu, s.tares)
	t.CgroupsCPU = seconds(groups)
	assigned, assignedMemory := new(int64), new(int64)
	for _, w := range s.l.Workloads {
		assigned = known.Sum(assigned, nanoseconds(w.TareCPU))
		assignedMemory = known.Sum(assignedMemory, w.TareMemory)
	}
	if s.bpfUnknown == "" {
		outside := s.outside()
		all := known.Sum(groups, &outside)
		t.CPU, t.UnassignedCPU = seconds(known.Sum(all, &s.unsplit)), seconds(known.Sum(all, known.Minus(assigned)))
		t.BPFUnsplit = seconds(&s.unsplit)
		if !s.lost(groups) {
			t.BPF = seconds(&outside)
		}
		if groups != nil {
			twice := min(s.unsplit, *groups)
			t.CPUTwice = seconds(&twice)
		}
	}
	memory, _ := total(s.memory, s.tares)
	if s.mapsUnplaced || s.noMaps {
		memory = nil
	}
	for _, m := range s.mapsElsewhere {
		memory = known.Sum(memory, m.value())
	}
	for _, w := range s.l.Workloads {
		memory = known.Sum(memory, w.TareMaps)
	}
	t.Memory, t.UnassignedMemory = memory, known.Sum(memory, known.Minus(assignedMemory))
	return t
}
