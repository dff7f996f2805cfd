package live

import (
	"cmp"
	"iter"
	"math"
	"slices"
	"strings"
	"time"

	"tare/internal/lib/known"
	"tare/internal/scale/ledger"
)

// Place is a container, a pod or a systemd unit (the first of these that applies), with all control groups in it. A
// group outside of these is a separate place. Top is the path of the place's topmost group. A field is empty if it is
// unknown or does not apply.
type Place struct {
	Namespace, Pod, Container string
	Unit                      string
	Top                       string
}

// Options configures Totals. The zero value names no groups and has no limit.
type Options struct {
	// Name returns the place of a control group. If it is nil, each group is a separate place.
	Name func(path string) Place
	// Most limits the number of separate totals of each kind: the biggest keys have one each, and all others share one. 0
	// is no limit.
	Most int
	// Duty is that of the Scale. Run time of eBPF programs is scaled up by its factor.
	Duty Duty
}

// Totals holds sums over the ledgers of a Scale, which never decrease. It does no input or output; create it with
// NewTotals.
type Totals struct {
	o Options

	Capacity time.Duration  // CPU time that was available
	Part     *time.Duration // sum of ledger.CPU.Part; nil if the whole machine is visible
	lines    map[string]*count
	twice    int64 // ns that are on more than one line: see CountedTwice
	ahead    int64 // ns: see Ahead

	Components    *Ranked[ledger.Charged] // CPU time
	ComponentsBPF *Ranked[ledger.Charged] // run time of eBPF programs
	Places        *Ranked[Place]          // CPU time
	Namespaces    *Ranked[string]         // CPU time; namespaces that are gone are kept
	Programs      *Ranked[ProgramKey]     // run time
	Payers        *Ranked[Payer]          // run time that could be split
	Unsplit       *Ranked[ProgramKey]     // run time that could not be split
	Runs          *Counts[ProgramKey]
	Samples       *Counts[ProgramKey] // samples that the split of run time was based on
	Counted       bool                // some ledger had the run time of programs
	Missed        Missed

	programs map[ProgramKey]*program
	counted  bool    // the last ledger has the run time of programs
	on       float64 // seconds for which statistics have been on without a break
	places   placed  // of the groups of the last ledger
	begun    []begun // by index of the groups of the last ledger
	work     groupWork
	newest   uint32         // highest id of an eBPF program so far; 0 before the first ledger
	Last     *ledger.Ledger // nil before the first
	Gap      time.Duration  // sum of the times between windows that do not follow each other directly
	Ticks    int
	Self     Self
	stalls   []stall
}

// Self holds the cost of this process since the totals began. A field is nil if it was never known.
type Self struct {
	CPU                 time.Duration
	BPF, Stats, Witness *time.Duration
	Samples, Lost       uint64
}

type stall struct {
	at      time.Time
	seconds float64
}

// Lines of the budget, in addition to those of ledger.CPU.
const (
	LineIdle        = "idle"
	LineSteal       = "steal"
	LineUnexplained = "unexplained"
)

// NewTotals returns totals that are all 0.
func NewTotals(o Options) *Totals {
	if o.Name == nil {
		o.Name = func(path string) Place { return Place{Top: path} }
	}
	t := &Totals{
		o: o, lines: map[string]*count{}, programs: map[ProgramKey]*program{}, places: newPlaced(),
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
	factor := 1.0
	if l.Programs != nil {
		factor = t.factor(l)
	}
	t.budget(l)
	t.components(l, factor)
	t.groups(l)
	t.addPrograms(l, factor)
	t.self(&l.Self)
	if l.Noise != nil {
		t.stalls = append(t.stalls, stall{l.Window.End, l.Noise.LongestSeconds})
	}
	for len(t.stalls) > 0 && l.Window.End.Sub(t.stalls[0].at) > stallWindow {
		t.stalls = t.stalls[1:]
	}
}

// Most returns Options.Most.
func (t *Totals) Most() int { return t.o.Most }

// stallWindow is how far back LongestStall looks.
const stallWindow = time.Minute

// LongestStall returns the longest time in seconds for which a CPU was taken away, in windows that ended in the last
// minute; false if there was no witness.
func (t *Totals) LongestStall() (longest float64, known bool) {
	for _, s := range t.stalls {
		longest = max(longest, s.seconds)
	}
	return longest, len(t.stalls) > 0
}

// grain is how far the lines may be ahead of the capacity, per CPU, because of the resolution of the counters: two
// ticks of the slowest clock in use (/proc/stat counts in hundredths of a second).
const grain = 20 * time.Millisecond

// budget adds the lines. Their sum, minus what is counted twice and minus the amount by which it is ahead, is the
// capacity.
//
// The counters of an edge are not read at the same instant, and the process may be held up between two of them. A line
// may then include time of the next window, and because lines never decrease, their sum is ahead of the capacity until
// that window makes up for it. If it is ahead by more than the time between the readings explains, the excess is on
// more than one line for good.
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

// Lines returns the lines of the CPU budget in seconds, by name.
func (t *Totals) Lines() map[string]float64 {
	lines := make(map[string]float64, len(t.lines))
	for name, c := range t.lines {
		lines[name] = seconds(c.shown)
	}
	return lines
}

// CountedTwice returns CPU time in seconds that is on more than one line because the kernel's counters overlap. The
// sum of the lines exceeds the capacity by CountedTwice + Ahead.
func (t *Totals) CountedTwice() float64 { return seconds(t.twice) }

// Ahead returns CPU time in seconds that is already in the lines but not yet in the capacity, because the kernel's
// counters are coarse and not read at the same instant. It is at most 20 ms for each CPU plus the time that the last
// two readings of all counters took.
func (t *Totals) Ahead() float64 { return seconds(t.ahead) }

// components adds what components have used. It multiplies the run time of eBPF programs by factor.
func (t *Totals) components(l *ledger.Ledger, factor float64) {
	cpu, run := map[ledger.Charged]int64{}, map[ledger.Charged]int64{}
	for i := range l.Components {
		c := &l.Components[i]
		used, ran := c.Accrued()
		if used != nil {
			cpu[c.Charged] = *used
		}
		if ran != nil {
			run[c.Charged] = int64(math.Round(float64(*ran) * factor))
		}
	}
	always := func(ledger.Charged) bool { return true }
	t.Components.Tick(cpu, always)
	t.ComponentsBPF.Tick(run, always)
}

// placed maps control groups to places. Places are large keys, so other data refers to them by number.
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

// find returns the number of the place of a control group, or of its nearest ancestor that has one; false if there is
// none.
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

// renewal is the number of ticks after which reused maps and slices are replaced. They keep room for the most entries
// that they ever had, so a machine that once had thousands of groups would cost memory for good.
const renewal = 64

// groupWork is the working memory of groups and Memory, reused in the next tick.
type groupWork struct {
	order            []int
	used             []int64 // by number of a place, as are the fields below, down to around
	counted, unknown []bool
	listed           []bool // the place has a total
	bytes            []int64
	around           []int // number of the nearest counted place around it, plus 1; 0 is none
	byPlace          map[Place]int64
	spaces           map[string]int64

	held      []held // what Memory depends on, by path
	rest      bool
	different uint64 // number of changes of held
}

// held holds the properties of one group that the result of Memory depends on.
type held struct {
	path     string
	place    Place
	memory   *ledger.Memory
	vanished bool
	listed   bool
}

// fit returns a slice of n zero values, reusing the memory of s.
func fit[T any](s []T, n int) []T {
	s = slices.Grow(s[:0], n)[:n]
	clear(s)
	return s
}

// PlaceOf returns the place of a control group. A group that is not in the last ledger appeared after the last search
// for groups, or is gone: its place is that of its nearest ancestor, where its CPU time is counted too.
func (t *Totals) PlaceOf(path string) Place {
	if n, found := t.places.find(path); found {
		return t.places.all[n]
	}
	return t.o.Name(path)
}

// groups adds what the groups have used, each second to one place. The counter of a group includes its descendants, so
// if a place begins inside another, its topmost group is added to the inner place and subtracted from the outer. What a
// group used while its CPU time was unknown, as in the ledger in which a group is found late, stays with the place
// around it.
func (t *Totals) groups(l *ledger.Ledger) {
	places, w := &t.places, &t.work
	if t.Ticks%renewal == 0 {
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
	for i := range l.Cgroups {
		w.order[i] = i
		t.begun = append(t.begun, t.begins(l.Cgroups[i].Path))
	}
	slices.SortFunc(w.order, func(a, b int) int { return cmp.Compare(l.Cgroups[a].Path, l.Cgroups[b].Path) })
	n := len(places.all)
	w.used, w.counted, w.listed, w.around = fit(w.used, n), fit(w.counted, n), fit(w.listed, n), fit(w.around, n)
	for _, i := range w.order { // ancestors come first
		g := &l.Cgroups[i]
		if g.Path == "/" {
			continue // the root group has its line in the budget
		}
		place, around, isTop := t.begun[i].place, t.begun[i].around, t.begun[i].isTop
		// The time of an inner place is in the counter of the nearest place around it that has one.
		if around >= 0 && !w.counted[around] {
			around = w.around[around] - 1
		}
		if isTop {
			w.around[place] = around + 1
		}
		if !w.listed[place] && g.CPUSeconds == nil && !t.Places.Has(places.all[place]) {
			continue // it was never known, which is not 0
		}
		w.listed[place] = true
		if !isTop || g.CPUSeconds == nil {
			continue
		}
		w.counted[place] = true
		n := ns(*g.CPUSeconds)
		if around >= 0 {
			w.used[around] -= n
		}
		w.used[place] += n
	}
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

// hold records what Memory depends on, and notes whether that has changed since the last tick. Between two readings of
// memory it usually has not.
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

// MemoryVersion returns a number that changes whenever the result of Memory may have changed.
func (t *Totals) MemoryVersion() uint64 { return t.work.different }

// begun holds, by number, the place of a group and, if the group is the place's topmost, the place around it. around
// is -1 if the ledger has no group around it.
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

// Memory returns the memory, in bytes, at the end of the last ledger. byPlace yields the memory of each place that has
// a total, if it is known. rest is the memory of all other places together, or nil if it is unknown for one of them.
// of(memory) returns the wanted kind of memory of a group, or nil if it is unknown. The memory of a place excludes
// places inside it. The iterator is valid until the next method call.
func (t *Totals) Memory(of func(*ledger.Memory) *int64) (byPlace iter.Seq2[Place, int64], rest *int64) {
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
	sum, isKnown := int64(0), true
	for n, bytes := range w.bytes {
		switch {
		case w.listed[n]:
		case w.unknown[n]:
			isKnown = false
		case w.counted[n]:
			sum += max(bytes, 0)
		}
	}
	if isKnown {
		rest = &sum
	}
	return func(yield func(Place, int64) bool) {
		for n, place := range t.places.all {
			// Groups are not read at the same instant, so it may be below 0.
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
