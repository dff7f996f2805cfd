package live

import (
	"cmp"
	"iter"
	"math"
	"slices"
	"strings"
	"time"

	"tare/internal/lib/known"
	"tare/internal/scale/attribution"
	"tare/internal/scale/ledger"
)

// Place is a control group with a name that people use, and the groups in it: a container, else a pod, else a unit of
// systemd. A group without such a name is a place by itself. Top is the path of the group. A field is empty where it
// is unknown or does not apply.
type Place struct {
	Namespace, Pod, Container string
	Unit                      string
	Top                       string
}

// Options of Totals. The zero value names no group and has no limit.
type Options struct {
	// Name finds the place that a control group is in; nil: each group is one.
	Name func(path string) Place
	// Most limits the series of each kind of total: the biggest have one each, and all others share one. 0 is no limit.
	Most int
	// Duty is that of the scale. Run time of eBPF programs is scaled up by it.
	Duty Duty
}

// Totals are sums over the ledgers of a Scale. They never fall. They do no input or output; make them with NewTotals.
type Totals struct {
	o Options

	Capacity time.Duration  // of CPU time
	Part     *time.Duration // ledger.CPU.Part; nil where the whole machine can be seen
	lines    map[string]*count
	twice    int64 // ns that are on more than one line
	ahead    int64 // ns: see Ahead

	Components    *Ranked[ledger.Charged] // CPU time
	ComponentsBPF *Ranked[ledger.Charged] // run time of eBPF programs
	Places        *Ranked[Place]          // CPU time
	Namespaces    *Ranked[string]         // CPU time; those that are gone are kept
	Programs      *Ranked[ProgramKey]     // run time
	Payers        *Ranked[Payer]          // run time, of what could be split
	Unsplit       *Ranked[ProgramKey]     // run time that could not be
	Runs          *Counts[ProgramKey]
	Samples       *Counts[ProgramKey] // that saw a program, of the run time that was split
	Missed        Missed

	programs map[ProgramKey]*program
	counted  bool    // the last ledger has the run time of programs
	on       float64 // seconds for which statistics have been on without a break
	places   placed  // of the groups of the last ledger
	before   placed  // of those of the one before
	begun    []begun // by index of the groups of the last ledger
	work     groupWork
	newest   uint32         // id of an eBPF program; 0 before the first ledger
	Last     *ledger.Ledger // nil before the first
	Gap      time.Duration  // between ledgers: windows that do not begin where the one before ended
	Ticks    int
	Self     Self
	stalls   []stall
}

// Self is what the scale has cost since the totals began. A nil field was never known.
type Self struct {
	CPU                 time.Duration
	BPF, Stats, Witness *time.Duration
	Samples, Lost       uint64
}

type stall struct {
	at      time.Time
	seconds float64
}

// The lines of the budget, beside those of ledger.CPU.
const (
	LineIdle        = "idle"
	LineSteal       = "steal"
	LineUnexplained = "unexplained"
)

// NewTotals makes totals that are all 0.
func NewTotals(o Options) *Totals {
	if o.Name == nil {
		o.Name = func(path string) Place { return Place{Top: path} }
	}
	t := &Totals{
		o: o, lines: map[string]*count{}, programs: map[ProgramKey]*program{}, places: newPlaced(), before: newPlaced(),
		Components: NewRanked[ledger.Charged](o.Most), ComponentsBPF: NewRanked[ledger.Charged](o.Most),
		Places: NewRanked[Place](o.Most), Namespaces: NewRanked[string](o.Most),
		Programs: NewRanked[ProgramKey](o.Most), Payers: NewRanked[Payer](o.Most), Unsplit: NewRanked[ProgramKey](o.Most),
	}
	t.Runs, t.Samples = NewCounts(t.Programs), NewCounts(t.Programs)
	return t
}

// Add adds the ledger of the time since the last one. AddComponents must have been called on it.
func (t *Totals) Add(l *ledger.Ledger) {
	if t.Last != nil {
		t.Gap += max(l.Window.Start.Sub(t.Last.Window.End), 0)
	}
	t.Last = l
	t.Ticks++
	t.budget(l)
	t.components(l)
	t.groups(l)
	t.addPrograms(l)
	t.self(&l.Self)
	if l.Noise != nil {
		t.stalls = append(t.stalls, stall{l.Window.End, l.Noise.LongestSeconds})
	}
	for len(t.stalls) > 0 && l.Window.End.Sub(t.stalls[0].at) > stallWindow {
		t.stalls = t.stalls[1:]
	}
}

// Most is the limit of series that the totals were made with.
func (t *Totals) Most() int { return t.o.Most }

// stallWindow is how far back LongestStall looks.
const stallWindow = time.Minute

// LongestStall is the longest time in seconds for which a CPU was taken away, in the windows that ended in the last
// minute; false where there was no witness.
func (t *Totals) LongestStall() (longest float64, known bool) {
	for _, s := range t.stalls {
		longest = max(longest, s.seconds)
	}
	return longest, len(t.stalls) > 0
}

// grain is how far the lines may be ahead of the capacity, per CPU, by the resolution of the counters: two ticks of the
// slowest clock in use (/proc/stat counts in hundredths of a second).
const grain = 20 * time.Millisecond

// budget adds the lines. Their sum, less what is counted twice and what they are ahead, is the capacity.
//
// The counters of an edge are read one after another, by a process that may be held up between two of them. A line then
// has what belongs to the next window, and as no line falls, their sum is ahead of the capacity until that window makes
// up for it. What they are ahead by more than the readings were apart is on more than one line for good.
func (t *Totals) budget(l *ledger.Ledger) {
	c := &l.CPU
	t.Capacity += duration(c.Capacity)
	if c.Part != nil {
		t.Part = new(known.Or(t.Part, 0) + max(duration(*c.Part), 0))
	}
	line := func(name string, s float64) {
		if t.lines[name] == nil {
			t.lines[name] = &count{}
		}
		t.lines[name].add(ns(s))
	}
	line(LineIdle, c.Waited())
	line(LineSteal, c.Steal)
	line(LineUnexplained, 0)
	for _, l := range c.Lines {
		line(l.Name, l.Seconds)
	}
	t.ahead = -int64(t.Capacity) - t.twice
	for _, n := range t.lines {
		t.ahead += n.shown
	}
	switch {
	case t.ahead < 0:
		t.lines[LineUnexplained].add(-t.ahead)
		t.ahead = 0
	case t.ahead > int64(max(l.Host.CPUs, 1))*(int64(grain)+ns(l.Window.EdgeSeconds)):
		t.twice += t.ahead
		t.ahead = 0
		for _, n := range t.lines {
			n.sum = n.shown
		}
	}
}

// Lines are the lines of the CPU budget in seconds, by name.
func (t *Totals) Lines() map[string]float64 {
	lines := make(map[string]float64, len(t.lines))
	for name, c := range t.lines {
		lines[name] = seconds(c.shown)
	}
	return lines
}

// CountedTwice is CPU time in seconds that is on more than one line, because the kernel's counters overlap. The sum of
// the lines exceeds the capacity by it, and by Ahead.
func (t *Totals) CountedTwice() float64 { return seconds(t.twice) }

// Ahead is CPU time in seconds that the lines have already and the capacity has not yet, because the kernel's counters
// are coarse and are read one after another. It is at most 20 ms for each CPU, and what the last two readings of all
// counters took.
func (t *Totals) Ahead() float64 { return seconds(t.ahead) }

func (t *Totals) components(l *ledger.Ledger) {
	cpu, run := map[ledger.Charged]int64{}, map[ledger.Charged]int64{}
	for _, c := range l.Components {
		if c.CPUSeconds != nil {
			cpu[c.Charged] = ns(*c.CPUSeconds)
		}
		if c.BPFSeconds != nil {
			run[c.Charged] = ns(*c.BPFSeconds)
		}
	}
	always := func(ledger.Charged) bool { return true }
	t.Components.Tick(cpu, always)
	t.ComponentsBPF.Tick(run, always)
}

// placed has the places of control groups. What is needed of a place is kept by its number: places are large keys.
type placed struct {
	all    []Place
	number map[Place]int
	byPath map[string]int
}

func newPlaced() placed { return placed{number: map[Place]int{}, byPath: map[string]int{}} }

func (p *placed) clear() {
	clear(p.all)
	p.all = p.all[:0]
	clear(p.number)
	clear(p.byPath)
}

// of returns the number of a place.
func (p *placed) of(place Place) int {
	n, known := p.number[place]
	if !known {
		n = len(p.all)
		p.all = append(p.all, place)
		p.number[place] = n
	}
	return n
}

// find returns the number of the place of a control group, or of the nearest one above it that has one; false if none
// has.
func (p *placed) find(path string) (n int, found bool) {
	for above := path; ; above = above[:strings.LastIndexByte(above, '/')] {
		if n, known := p.byPath[above]; known {
			return n, true
		}
		if strings.LastIndexByte(above, '/') <= 0 {
			return 0, false
		}
	}
}

// renewal is after how many ticks maps and slices that are used again and again are made anew. They keep the room for
// the most entries that they ever had: a machine that once had thousands of groups would cost memory for good.
const renewal = 64

// groupWork is what groups and Memory work with, which is used again in the next tick.
type groupWork struct {
	order            []int
	used             []int64 // this and the rest by number of a place
	counted, unknown []bool
	listed           []bool // it has a total
	bytes            []int64
	byPlace          map[Place]int64
	spaces           map[string]int64

	held      []held // what Memory goes by, by path
	rest      bool
	different uint64 // times that it was different from the time before
}

// held is what Memory goes by in one group.
type held struct {
	path     string
	place    Place
	memory   *ledger.Memory
	vanished bool
	listed   bool
}

// fit returns a slice of n zero values, in the room of another.
func fit[T any](s []T, n int) []T {
	s = slices.Grow(s[:0], n)[:n]
	clear(s)
	return s
}

// PlaceOf is the place of a control group. A group that is not in the last ledger is newer than the last search for
// groups, or is gone: its place is that of the group around it, where its CPU time is counted too.
func (t *Totals) PlaceOf(path string) Place {
	if n, found := t.places.find(path); found {
		return t.places.all[n]
	}
	return t.o.Name(path)
}

// groups adds what the groups have used, each second to one place: the counter of a group has what the groups in it
// used, so where a place begins inside another its topmost group is added to the one and taken from the other.
//
// A group may be found windows after it came, and its counter then has what it used in all of them. What earlier
// windows have counted in the place around it stays there: the groups that are found late in a place share what that
// place has left in this window, in proportion to their counters, and none gets more than its counter says.
func (t *Totals) groups(l *ledger.Ledger) {
	t.places, t.before = t.before, t.places
	places, w := &t.places, &t.work
	if t.Ticks%renewal < 2 { // one tick for each of the two that take turns
		*places = newPlaced()
		t.begun, *w = nil, groupWork{different: w.different}
	} else {
		places.clear()
	}
	for i := range l.Cgroups {
		path := l.Cgroups[i].Path
		places.byPath[path] = places.of(t.o.Name(path))
	}
	t.begun, w.order = t.begun[:0], fit(w.order, len(l.Cgroups))
	var replaced map[string]bool // a group was made where one had been removed
	for i := range l.Cgroups {
		g := &l.Cgroups[i]
		w.order[i] = i
		t.begun = append(t.begun, t.begins(g.Path))
		if g.Vanished {
			if replaced == nil {
				replaced = map[string]bool{}
			}
			replaced[g.Path] = true
		}
	}
	slices.SortFunc(w.order, func(a, b int) int { return cmp.Compare(l.Cgroups[a].Path, l.Cgroups[b].Path) })
	n := len(places.all)
	w.used, w.counted, w.listed = fit(w.used, n), fit(w.counted, n), fit(w.listed, n)
	var late []lateGroup
	for _, i := range w.order { // those around others come first
		g := &l.Cgroups[i]
		if g.Path == "/" {
			continue // the root group has its line in the budget
		}
		place, around, isTop := t.begun[i].place, t.begun[i].around, t.begun[i].isTop
		if !w.listed[place] && g.CPUSeconds == nil && !t.Places.Has(places.all[place]) {
			continue // it was never known, which is not 0
		}
		w.listed[place] = true
		if !isTop || g.CPUSeconds == nil {
			continue
		}
		w.counted[place] = true
		n := ns(*g.CPUSeconds)
		if around >= 0 && w.counted[around] {
			_, old := t.before.byPath[g.Path]
			if isNew := !old || replaced[g.Path] && !g.Vanished; isNew && t.Ticks > 1 {
				late = append(late, lateGroup{place, around, n})
				continue
			}
			w.used[around] -= n
		}
		w.used[place] += n
	}
	share(late, w.used)
	if w.byPlace == nil {
		w.byPlace, w.spaces = map[Place]int64{}, map[string]int64{}
	}
	clear(w.byPlace)
	clear(w.spaces)
	for n, p := range places.all {
		if w.listed[n] {
			w.byPlace[p] = w.used[n]
			w.spaces[p.Namespace] += w.used[n]
		}
	}
	t.Places.Tick(w.byPlace, func(Place) bool { return false })
	t.Namespaces.Tick(w.spaces, func(string) bool { return true })
	for n, p := range places.all {
		w.listed[n] = t.Places.Has(p)
	}
	t.hold(l)
}

// hold finds out whether what Memory goes by is different from the last time. Of ledgers that were made between two
// readings of memory it is not.
func (t *Totals) hold(l *ledger.Ledger) {
	w := &t.work
	_, omitted, _ := t.Places.Rest()
	same := len(w.held) == len(w.order) && w.rest == (omitted > 0)
	w.rest = omitted > 0
	w.held = slices.Grow(w.held[:0], len(w.order))[:len(w.order)]
	for k, i := range w.order {
		g, n := &l.Cgroups[i], t.begun[i].place
		now := held{g.Path, t.places.all[n], g.Memory, g.Vanished, w.listed[n]}
		if w.held[k] != now {
			w.held[k], same = now, false
		}
	}
	if !same {
		w.different++
	}
}

// MemoryVersion is another number whenever Memory may say something else than before.
func (t *Totals) MemoryVersion() uint64 { return t.work.different }

// lateGroup is a group that may have been there for windows before it was found.
type lateGroup struct {
	place, around int   // by number
	ns            int64 // that its counter has, of all of them
}

// share gives groups that were found late what they have used in this window. Those around others come first.
func share(late []lateGroup, used []int64) {
	in := map[int][]lateGroup{}
	var places []int
	for _, g := range late {
		if in[g.around] == nil {
			places = append(places, g.around)
		}
		in[g.around] = append(in[g.around], g)
	}
	for _, around := range places {
		sum := 0
		counters := make([]int, len(in[around]))
		for i, g := range in[around] {
			counters[i] = int(g.ns)
			sum += counters[i]
		}
		left := min(int64(sum), used[around])
		if left <= 0 {
			continue
		}
		for i, part := range attribution.Apportion(uint64(left), counters, sum) {
			used[around] -= int64(part)
			used[in[around][i].place] += int64(part)
		}
	}
}

// begun is the place of a group and, where the group is the topmost of it, the place around that, by number; -1 where
// no group of the ledger is around it.
type begun struct {
	place, around int
	isTop         bool
}

func (t *Totals) begins(path string) begun {
	b := begun{place: t.places.byPath[path], around: -1, isTop: true}
	if above := path[:max(strings.LastIndexByte(path, '/'), 0)]; above != "" {
		if n, found := t.places.find(above); found {
			b.around = n
			b.isTop = n != b.place
		}
	}
	return b
}

// Memory is the memory in bytes, at the end of the last ledger, of each place that has a total, and of all others
// together (rest). of selects the kind of memory of a group, or returns nil if it is unknown. The memory of a place is
// without that of the places in it. The places are valid until the next call of a method.
func (t *Totals) Memory(of func(*ledger.Memory) *int64) (byPlace iter.Seq2[Place, int64], rest int64) {
	w, n := &t.work, len(t.places.all)
	w.bytes, w.counted, w.unknown = fit(w.bytes, n), fit(w.counted, n), fit(w.unknown, n)
	for i, b := range t.begun {
		g := &t.Last.Cgroups[i]
		if g.Path == "/" || g.Vanished || !b.isTop {
			continue
		}
		var bytes *int64
		if g.Memory != nil {
			bytes = of(g.Memory)
		}
		if bytes == nil {
			w.unknown[b.place] = true
			if b.around >= 0 {
				w.unknown[b.around] = true
			}
			continue
		}
		w.counted[b.place] = true
		w.bytes[b.place] += *bytes
		if b.around >= 0 {
			w.bytes[b.around] -= *bytes
		}
	}
	for n, bytes := range w.bytes {
		if w.counted[n] && !w.unknown[n] && !w.listed[n] {
			rest += max(bytes, 0)
		}
	}
	return func(yield func(Place, int64) bool) {
		for n, place := range t.places.all {
			// Groups are read one after another, so that it may be below 0.
			if w.counted[n] && !w.unknown[n] && w.listed[n] && !yield(place, max(w.bytes[n], 0)) {
				return
			}
		}
	}, rest
}

func (t *Totals) self(s *ledger.Self) {
	t.Self.CPU += duration(s.CPUSeconds)
	t.Self.Samples += uint64(s.Samples)
	t.Self.Lost += s.SamplesLost
	for _, part := range []struct {
		total **time.Duration
		used  *float64
	}{{&t.Self.BPF, s.BPFSeconds}, {&t.Self.Stats, s.StatsSeconds}, {&t.Self.Witness, s.WitnessSeconds}} {
		if part.used == nil {
			continue
		}
		if *part.total == nil {
			*part.total = new(time.Duration)
		}
		**part.total += duration(*part.used)
	}
}

// ns converts seconds to whole nanoseconds, so that sums are exact.
func ns(seconds float64) int64 { return int64(math.Round(seconds * 1e9)) }

func duration(seconds float64) time.Duration { return time.Duration(ns(seconds)) }
