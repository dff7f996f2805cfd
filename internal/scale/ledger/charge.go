package ledger

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"tare/internal/lib/known"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
)

// Charge is the side that a control group, program or map is accounted to. Empty means unknown.
type Charge string

// The charges.
const (
	ChargeWorkload Charge = "workload" // an application, for which gross, tare and net are distinguished
	ChargeTare     Charge = "tare"     // infrastructure that serves workloads
	ChargeLoad     Charge = "load"     // what generates load for a workload
	ChargeSelf     Charge = "self"     // the measuring process, with its own eBPF programs and maps
)

// Charged is a charge with the workload and component that it is for.
type Charged struct {
	Charge Charge `json:"charge"`
	// Workload is the workload's name. With ChargeTare it is the one workload served, or empty for infrastructure that
	// serves all workloads.
	Workload  string `json:"workload"`
	Component string `json:"component,omitempty"` // a named part of the subject, such as proxy.client
}

// Workload is the account of one workload: the workload's own use, and the use of infrastructure on its behalf.
// gross = net + tare holds to the nanosecond and the byte whenever all three are known. A part is nil if this kernel
// lacks a counter for it, and Notes say why.
//
// Memory is hard memory (Memory.Hard) at the end of the window.
type Workload struct {
	Name    string   `json:"name"`
	Cgroups []string `json:"cgroups"` // the topmost groups charged to it

	GrossCPU *float64 `json:"gross_cpu_seconds"`
	NetCPU   *float64 `json:"net_cpu_seconds"`
	TareCPU  *float64 `json:"tare_cpu_seconds"`
	// TareBPF is the part of TareCPU in which tare's eBPF programs ran on top of the workload's own tasks, according to
	// Program.Shares. Its bounds are those of the shares and of stolen time (Program.StolenSeconds). Time that samples
	// could not place (Tare.BPFUnsplit) may belong here too: Hi includes all of it, Value none.
	TareBPF *Interval `json:"tare_bpf_seconds"`
	// TareCgroupsCPU is the rest of TareCPU: control groups that serve this workload, and eBPF programs that serve it but
	// ran in neither its groups nor tare's. It is nil, and so are TareCPU and GrossCPU, if the run time of such programs
	// is unknown, or if samples could not place a part of it that exceeds a thousandth of the CPU time of the workload's
	// groups.
	TareCgroupsCPU *float64 `json:"tare_cgroups_cpu_seconds"`

	GrossMemory *int64 `json:"gross_memory_hard_bytes"`
	NetMemory   *int64 `json:"net_memory_hard_bytes"`
	TareMemory  *int64 `json:"tare_memory_hard_bytes"`
	// TareMaps is the part of TareMemory in maps of tare that the kernel charges to the workload's own groups.
	TareMaps          *int64 `json:"tare_map_bytes"`
	TareCgroupsMemory *int64 `json:"tare_cgroups_memory_hard_bytes"` // the rest of TareMemory

	Notes []string `json:"notes"` // why something is unknown or only a bound
}

// Tare is the account of all infrastructure, whichever workload it served.
type Tare struct {
	CPU        *float64 `json:"cpu_seconds"`         // CgroupsCPU + BPF + BPFUnsplit
	CgroupsCPU *float64 `json:"cgroups_cpu_seconds"` // CPU time of tare's control groups
	// BPF is the run time of tare's programs outside tare's control groups, as far as samples placed it; nil if samples
	// placed none of it.
	BPF *float64 `json:"bpf_seconds"`
	// BPFUnsplit is the run time of tare's programs that samples could not place.
	BPFUnsplit *float64 `json:"bpf_unsplit_seconds"`
	// CPUTwice bounds how much of CPU is counted twice: the part of BPFUnsplit that ran in tare's control groups is in
	// CgroupsCPU as well.
	CPUTwice *float64 `json:"cpu_twice_at_most_seconds"`
	// UnassignedCPU is CPU without BPFUnsplit and without the workloads' TareCPU.
	UnassignedCPU *float64 `json:"unassigned_cpu_seconds"`

	Memory           *int64 `json:"memory_hard_bytes"`
	UnassignedMemory *int64 `json:"unassigned_memory_hard_bytes"`
}

// Settle derives Workloads and Tare from the charges of groups, programs and maps. A group without a charge inherits
// the charge of the nearest group above it that has one. Tare inside a workload's group serves that workload unless it
// names another. Settle may be called again after charges have changed.
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

// charged reports whether anything is charged to a workload or to tare.
func (l *Ledger) charged() bool {
	on := func(c Charged) bool { return c.Charge == ChargeWorkload || c.Charge == ChargeTare }
	return slices.ContainsFunc(l.Cgroups, func(g Cgroup) bool { return on(g.Charged) }) ||
		slices.ContainsFunc(l.Programs, func(p Program) bool { return on(p.Charged) }) ||
		slices.ContainsFunc(l.Maps, func(m Map) bool { return on(m.Charged) })
}

// IRQApart reports whether the kernel keeps interrupts out of the CPU time of the group at path.
func (l *Ledger) IRQApart(path string) bool {
	machine, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return known.Or(l.Host.IRQTime, slices.Contains(l.Host.IRQTimeOn, machine))
}

// anyIRQApart reports whether the kernel keeps interrupts out of the CPU time of some groups.
func (l *Ledger) anyIRQApart() bool { return known.Or(l.Host.IRQTime, len(l.Host.IRQTimeOn) > 0) }

// newSettlement returns a settlement that contains what groups used, added up by charge.
func newSettlement(l *Ledger) *settlement {
	s := &settlement{l: l, index: groupIndex(l.Cgroups), cpu: map[Charged]*sum{}, memory: map[Charged]*sum{},
		tops: map[Charged][]string{}, noPrograms: l.Programs == nil, noMaps: l.Programs == nil || l.Maps == nil}
	s.addGroups()
	s.takeSelf()
	s.findWorkloads()
	return s
}

// groupIndex returns the charge of each listed group by path.
func groupIndex(groups []Cgroup) map[string]Charged {
	index := make(map[string]Charged, len(groups))
	for i := range groups {
		g := &groups[i]
		if old, twice := index[g.Path]; !twice ||
			// A group that was removed and made again is listed twice.
			old.Charge == "" {
			index[g.Path] = g.Charged
		}
	}
	return index
}

// At returns the index's entry for path, or else for the nearest listed group above it.
func At[T any](index map[string]T, path string) T {
	if at, listed := index[path]; listed {
		return at
	}
	return Above(index, path)
}

// Above returns the index's entry for the nearest listed group above path, or the zero value.
func Above[T any](index map[string]T, path string) (c T) {
	found := path == "/"
	Ancestors(path, func(p string) {
		if at, listed := index[p]; listed && !found && p != path {
			c, found = at, true
		}
	})
	return c
}

// spread charges each group without a charge like the nearest group above it.
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

// sum adds up whole nanoseconds or bytes, some of which may be unknown.
type sum struct {
	n       int64
	known   int      // parts that are known
	unknown []string // groups whose part is unknown
}

func (s *sum) add(sign int64, n *int64, group string) {
	if n == nil {
		s.unknown = append(s.unknown, group)
		return
	}
	s.n += sign * *n
	s.known++
}

// value returns the sum, or nil if a part is unknown. It returns 0 for a negative sum, which occurs because counters
// are not read at the same instant.
func (s *sum) value() *int64 {
	switch {
	case s == nil:
		return new(int64)
	case len(s.unknown) > 0:
		return nil
	}
	return new(max(s.n, 0))
}

// knownPart returns the sum of the known parts; nil if there are parts but none is known. The result may be negative
// if all parts are known. Otherwise it is at least 0, because what was subtracted may belong to an unknown part.
func (s *sum) knownPart() *int64 {
	switch {
	case s == nil:
		return new(int64)
	case len(s.unknown) > 0 && s.known == 0:
		return nil
	case len(s.unknown) > 0:
		return new(max(s.n, 0))
	}
	return new(s.n)
}

// settlement holds the working state of Settle. Times are whole nanoseconds, so parts add up exactly.
type settlement struct {
	l           *Ledger
	index       map[string]Charged
	cpu, memory map[Charged]*sum // by charge; each group's time and memory counted once
	tops        map[Charged][]string
	names       []string             // of the workloads, sorted
	own         map[string][]Charged // by workload: the charges of its groups
	serving     map[string][]Charged // by workload: the charges of tare that serves it
	tares       []Charged            // all charges of tare

	unsplit, placed int64  // run time of tare's programs: the part that samples could not place, and the rest
	unsplitMost     int64  // unsplit, if as little as possible of it was stolen
	bpfUnknown      string // why the run time of tare's programs is unknown; empty if it is known
	// inside and apart hold, by workload, the run time of tare's programs in the workload's groups. The CPU time of these
	// groups contains inside, but not apart.
	inside, apart map[string]int64
	bounds        map[string]Interval
	tareApart     map[Charged]int64 // run time in tare's own groups that is not in their CPU time
	elsewhere     map[string]int64  // run time in other groups, by workload served; "" for no particular one
	unplaced      map[string]*sum   // by workload: run time of programs that name it and that samples could not place

	maps          map[string]*sum // by workload: bytes of tare's maps charged to its groups
	mapsElsewhere map[string]*sum // bytes charged to neither a workload's groups nor tare's
	mapsUnplaced  bool            // the kernel does not expose to which group some of tare's maps are charged
	unplacedFor   map[string]bool // the workloads that such maps serve
	// noPrograms is true if programs could not be read. noMaps is true if programs or maps could not be read, because
	// which maps are tare's follows from the programs that use them.
	noPrograms, noMaps bool
}

func nanoseconds(seconds *float64) *int64 {
	return known.As(seconds, func(s float64) int64 { return int64(math.Round(s * 1e9)) })
}

func seconds(ns *int64) *float64 {
	return known.As(ns, func(ns int64) float64 { return float64(ns) / 1e9 })
}

// addGroups adds up CPU time and memory by charge. A group's counters include its descendants. If one charge begins
// inside another, its top group is therefore added to the inner charge and subtracted from the outer.
func (s *settlement) addGroups() {
	for _, g := range s.l.Cgroups {
		over := Above(s.index, g.Path)
		if g.Charge == "" || g.Charged == over {
			continue
		}
		s.tops[g.Charged] = append(s.tops[g.Charged], g.Path)
		hard := new(int64) // a vanished group holds nothing
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

// sumOf returns the sum for key, and makes it if necessary.
func sumOf[K comparable](sums map[K]*sum, key K) *sum {
	if sums[key] == nil {
		sums[key] = &sum{}
	}
	return sums[key]
}

// takeSelf subtracts the CPU time of the measuring process from the charge of the group that it was started in, if any.
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

// chargeOf returns the charge of the group at path, or of the nearest listed group above it. It returns no charge for
// attribution.Idle, which is not a path but stands for interrupts on idle CPUs: no group's CPU time contains them, not
// even the root's.
func (s *settlement) chargeOf(path string) Charged {
	if !strings.HasPrefix(path, "/") {
		return Charged{}
	}
	return At(s.index, path)
}

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

// has reports whether there is a workload with the given name.
func (s *settlement) has(name string) bool {
	_, found := slices.BinarySearch(s.names, name)
	return found
}

// serves returns the workload that tare with the charge c serves. It returns false if that is ambiguous or the
// workload has no groups.
func (s *settlement) serves(c Charged) (string, bool) {
	if c.Workload != "" {
		return c.Workload, s.has(c.Workload)
	}
	if len(s.names) == 1 {
		return s.names[0], true
	}
	return "", false
}

// addPrograms places the run time of tare's programs, without stolen time.
func (s *settlement) addPrograms() {
	s.inside, s.apart, s.elsewhere, s.tareApart = map[string]int64{}, map[string]int64{}, map[string]int64{},
		map[Charged]int64{}
	s.bounds, s.unplaced = map[string]Interval{}, map[string]*sum{}
	if s.noPrograms {
		s.bpfUnknown = "the machine's eBPF programs could not be read"
	}
	for i := range s.l.Programs {
		p := &s.l.Programs[i]
		if p.Charge != ChargeTare {
			continue
		}
		placed, most := int64(0), int64(0)
		ran, known := p.split(func(share Share, ns int64) {
			if share.Cgroup == nil {
				most += *nanoseconds(&share.Hi)
				return
			}
			placed += ns
			counted := share.Context == Task || !s.l.IRQApart(*share.Cgroup)
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
			sumOf(s.unplaced, s.servedBy(p.Charged)).add(1, nil, "")
			continue
		}
		unsplit := max(ran-placed, 0) // shares are rounded
		sumOf(s.unplaced, s.servedBy(p.Charged)).add(1, &unsplit, "")
		s.placed, s.unsplit, s.unsplitMost = s.placed+placed, s.unsplit+unsplit, s.unsplitMost+max(most, unsplit)
	}
}

// outside returns the run time of tare's programs that samples placed and that is not in the CPU time of tare's own
// groups.
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

// lost reports whether samples placed none of the run time of tare's programs although that run time exceeds a
// thousandth of the given time, which may contain it.
func (s *settlement) lost(of *int64) bool {
	return s.placed == 0 && matters(&s.unsplit, of)
}

// matters reports whether run time exceeds a thousandth of a total that may or may not contain it. It returns true if
// the run time is unknown (nil), and for any run time above 0 if the total is unknown.
func matters(ns, of *int64) bool { return ns == nil || *ns > 0 && (of == nil || *ns > *of/1000) }

// servedBy returns the workload that a program or map names as the one it serves, or "" if the ledger does not have
// it.
func (s *settlement) servedBy(c Charged) string {
	if s.has(c.Workload) {
		return c.Workload
	}
	return ""
}

// addMaps places the memory of tare's maps by the group that the kernel charges for it.
func (s *settlement) addMaps() {
	s.maps, s.mapsElsewhere, s.unplacedFor = map[string]*sum{}, map[string]*sum{}, map[string]bool{}
	for _, m := range s.l.Maps {
		if m.Charge != ChargeTare {
			continue
		}
		bytes := m.size()
		if m.ChargedTo == nil {
			s.mapsUnplaced = true
			if w := s.servedBy(m.Charged); w != "" {
				s.unplacedFor[w] = true
			}
			continue
		}
		switch c := s.chargeOf(*m.ChargedTo); c.Charge {
		case ChargeWorkload:
			sumOf(s.maps, c.Workload).add(1, bytes, *m.ChargedTo)
		case ChargeTare: // already in the memory of that group
		default:
			sumOf(s.mapsElsewhere, s.servedBy(m.Charged)).add(1, bytes, *m.ChargedTo)
		}
	}
}

// size returns the memory of a map; nil if unknown.
func (m *Map) size() *int64 {
	return known.As(m.Bytes, func(n uint64) int64 { return int64(n) })
}

// self returns the CPU time of the measuring process in nanoseconds; nil if no line has it.
func (c *CPU) self() *int64 {
	for _, line := range c.Lines {
		if line.Name == LineSelf {
			return nanoseconds(&line.Seconds)
		}
	}
	return nil
}

// total returns the sum over some charges, nil if a part is unknown, and the groups whose part is unknown.
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
	if s.noPrograms { // tare's programs may have run elsewhere
		groups = nil
	}
	inside := s.inside[name]
	if cpu != nil { // run time is wall time and can exceed the CPU time around it
		inside = min(inside, *cpu)
	}
	apart := s.apart[name]
	// Programs that name the workload may also have run on idle CPUs or in groups without a charge.
	least, hidden := known.Sum(cpu, &apart, groups), matters(s.unplaced[name].value(), cpu)
	if hidden {
		groups = nil
	}
	gross := ""
	if least != nil && (hidden || s.l.anyIRQApart()) {
		gross = fmt.Sprintf(", nor is gross, which is %s to %s",
			quantity.Value(float64(*least)/1e9, quantity.Seconds),
			quantity.Value(float64(*least+s.unsplitMost)/1e9, quantity.Seconds))
	}
	switch {
	case s.noPrograms, s.bpfUnknown != "" && hidden:
		note("%s: gross, net and tare are not known", s.bpfUnknown)
	case s.bpfUnknown != "":
		note("%s: net and tare are not known", s.bpfUnknown)
	case s.lost(cpu):
		note("samples could not place any of the %s that eBPF programs of tare ran: net and tare are not "+
			"known%s; use a longer --for or a higher --hz",
			quantity.Value(float64(s.unsplit)/1e9, quantity.Seconds), gross)
	default:
		bpf := inside + apart
		value, b := float64(bpf)/1e9, s.bounds[name]
		w.TareBPF = &Interval{Value: value, Lo: min(b.Lo, value), Hi: max(b.Hi, value) + float64(s.unsplitMost)/1e9}
		if hidden {
			gross = "; tare is not known" + gross
		} else {
			gross = ""
		}
		if s.unsplit > 0 {
			note("samples could not place %s that eBPF programs of tare ran: any of it that ran here is in net%s",
				quantity.Value(float64(s.unsplit)/1e9, quantity.Seconds), gross)
		}
		w.NetCPU = seconds(known.Sum(cpu, known.Minus(&inside)))
		w.TareCPU = seconds(known.Sum(&bpf, groups))
		w.GrossCPU = seconds(known.Sum(cpu, &apart, groups))
	}
	if w.TareBPF == nil && !s.l.anyIRQApart() {
		// Wherever tare's programs ran, the CPU time of the groups contains their time. If samples could not place too much
		// of it, the variable groups is nil, and therefore GrossCPU too.
		w.GrossCPU = seconds(known.Sum(cpu, groups))
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
	if s.noMaps || s.unplacedFor[w.Name] {
		elsewhere, inside = nil, nil
	}
	groups = known.Sum(groups, elsewhere)
	switch {
	case s.noMaps:
		note("which eBPF maps are tare's could not be read: gross, net and tare memory are not known")
	case s.unplacedFor[w.Name]:
		note("the kernel does not show which group pays for some maps of tare that serve this workload: gross, net and " +
			"tare memory are not known")
	case s.mapsUnplaced:
		inside = nil
		note("the kernel does not show which group pays for some maps of tare: net and tare memory are not known")
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

// some abbreviates a list to its first element and the number of others.
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
