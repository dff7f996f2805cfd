package live

import (
	"math"
	"time"

	"tare/internal/lib/stats/interval"
	"tare/internal/scale/attribution"
	"tare/internal/scale/ledger"
)

// ProgramKey identifies an eBPF program. The kernel assigns ids in sequence, and reuses one only after 2^31 others.
type ProgramKey struct {
	ID  uint32
	Tag string
}

// Payer is a program and a place that runs it, and so pays for it.
type Payer struct {
	Program ProgramKey
	Place   Place
}

// Idle is the place of programs that ran in interrupts on an idle CPU.
var Idle = Place{Top: attribution.Idle}

// unplaced is the place of threads that ended before their group could be read.
var unplaced = Place{}

// program holds what is known about one eBPF program over time. Its run time is split once there are enough samples,
// however many windows that takes.
type program struct {
	last    ledger.Program
	counted bool // some ledger had its run time

	pending int64         // run time in ns that has not been split yet
	seen    map[Place]int // by place: samples of the program while pending has accumulated
	since   time.Time     // when pending was last 0

	payers map[Place]*payer // places that run time was split to
	gone   bool             // it was unloaded in the last ledger, which still lists it
	phases phases
}

// phases holds how long a program ran in the phases in which statistics were on. Each phase represents one cycle of the
// Duty.
type phases struct {
	n         int
	now, last float64 // seconds, in this phase and in the previous one
	squares   float64 // sum over phases of (this - last)^2
}

// end ends a phase, if there is one.
func (p *phases) end() {
	if p.n > 0 {
		p.squares += (p.now - p.last) * (p.now - p.last)
	}
	p.last, p.now = p.now, 0
	p.n++
}

// scalingError returns half the width of the 95 % interval, in seconds, of the program's total run time as estimated
// from the phases; false for fewer than four phases. Each phase is a random part of its cycle, so the variance is that
// of stratified sampling with one draw per stratum, estimated from differences of neighbours (Cochran, Sampling
// Techniques, 1977, 5A.12). These differences include changes between cycles, so the interval is not too narrow.
func (p *phases) scalingError(d Duty) (float64, bool) {
	const least = 4
	if d.On == 0 || p.n < least {
		return 0, false
	}
	f := d.Factor()
	variance := float64(p.n) * f * f * (1 - 1/f) * p.squares / float64(2*(p.n-1))
	// Neighbouring differences overlap, so n of them have two thirds of the degrees of freedom of n independent draws.
	sampled := interval.Student(2*float64(p.n-1)/3, attribution.Confidence) * math.Sqrt(variance)
	return sampled + f*max(p.now, p.last), true // the sum includes all or nothing of the current cycle
}

// payer holds the part of a program's run time that was split to one place. Once MinShare samples have seen the program
// there, this time moves to Totals.Payers.
type payer struct {
	ns      int64 // not yet in Totals.Payers
	samples int   // since the program was first seen
}

// patience is the time after which run time counts as unsplit if there are still too few samples to split it.
const patience = 10 * time.Minute

func (t *Totals) addPrograms(l *ledger.Ledger, factor float64) {
	if l.Programs == nil {
		return // they could not be read, which does not mean that they are gone
	}
	used, paid, unsplit := map[ProgramKey]int64{}, map[Payer]int64{}, map[ProgramKey]int64{}
	runs, samples := map[ProgramKey]uint64{}, map[ProgramKey]uint64{}
	t.missed(l)
	alive := make(map[ProgramKey]bool, len(l.Programs))
	ended := t.counted && l.CPU.BPFUnsplit == nil // a phase with statistics has ended
	t.counted = l.CPU.BPFUnsplit != nil
	for i := range l.Programs {
		lp := &l.Programs[i]
		key := ProgramKey{lp.ID, lp.Tag}
		alive[key] = !lp.Unloaded
		p := t.programs[key]
		if p == nil || p.gone {
			p = &program{seen: map[Place]int{}, payers: map[Place]*payer{}, since: l.Window.Start}
			t.programs[key] = p
		}
		p.last = *lp
		if ended {
			p.phases.end()
		}
		used[key] += 0
		if lp.RunSeconds == nil {
			continue
		}
		p.counted, t.Counted = true, true
		ran := ns(*lp.RunSeconds * factor)
		used[key] = ran
		unsplit[key] += 0 // a counter starts at 0
		runs[key] = uint64(math.Round(float64(*lp.RunCount) * factor))
		p.phases.now += *lp.RunSeconds * factor / t.o.Duty.Factor()
		samples[key] += t.split(p, lp, ran, l.Window.End, func(place Place, ns int64) {
			if place == unplaced {
				unsplit[key] += ns
			} else {
				paid[Payer{key, place}] += ns
			}
		})
	}
	isThere := func(p Place) bool {
		_, there := t.places.number[p]
		return there || p == Idle
	}
	for key, p := range t.programs {
		if p.gone {
			delete(t.programs, key)
			continue
		}
		if !alive[key] { // its name is needed until its totals have ended
			unsplit[key] += p.waiting()
			p.gone, p.pending, p.payers = true, 0, nil
			continue
		}
		for place, held := range p.payers {
			if !isThere(place) {
				unsplit[key] += held.ns
				delete(p.payers, place)
			}
		}
	}
	isAlive := func(key ProgramKey) bool { return alive[key] }
	t.Programs.Tick(used, isAlive)
	t.Runs.Tick(runs)
	t.Samples.Tick(samples)
	t.Unsplit.Tick(unsplit, isAlive)
	t.Payers.Tick(paid, func(p Payer) bool { return alive[p.Program] && isThere(p.Place) })
}

// Missed counts eBPF programs with run time that is in no total: the kernel drops a program's statistics when it is
// unloaded.
type Missed struct {
	// Unloaded counts known programs that were unloaded. How long such a program ran after its last reading is unknown,
	// but on each CPU it is at most the time between two readings.
	Unloaded uint64
	// Unseen counts programs that were loaded and unloaded between two readings. The kernel assigns ids in sequence
	// (bpf_prog_alloc_id in kernel/bpf/syscall.c), so each id that no reading saw is one of them. Ids above the newest
	// program seen are counted once a newer one is seen.
	Unseen uint64
}

// missed counts the programs whose run time cannot be known.
func (t *Totals) missed(l *ledger.Ledger) {
	newest, fresh := t.newest, uint64(0)
	for i := range l.Programs {
		p := &l.Programs[i]
		if p.Unloaded && p.RunSeconds == nil && l.CPU.BPFUnsplit != nil {
			t.Missed.Unloaded++
		}
		if p.ID > t.newest {
			newest, fresh = max(newest, p.ID), fresh+1
		}
	}
	if t.newest > 0 {
		t.Missed.Unseen += uint64(newest-t.newest) - fresh
	}
	t.newest = newest
}

// factor returns the factor by which the run time in a ledger must be multiplied. A phase with statistics represents
// one cycle, even if it was longer than intended because the process was stopped. If it was longer than a cycle, it
// represents only itself.
func (t *Totals) factor(l *ledger.Ledger) float64 {
	d := t.o.Duty
	if d.On == 0 || l.CPU.BPFUnsplit == nil {
		t.on = 0
		return d.Factor()
	}
	left := max(d.On.Seconds()-t.on, 0)
	t.on += l.Window.Seconds
	if l.Window.Seconds <= left {
		return d.Factor()
	}
	return max(d.Factor()*left/l.Window.Seconds, 1)
}

// split adds run time and distributes what can be split: it calls to(place, ns) for the part of each place, and
// to(unplaced, ns) for a part that no place will get. It returns the number of samples that the split was based on.
func (t *Totals) split(p *program, lp *ledger.Program, ran int64, now time.Time, to func(Place, int64)) uint64 {
	if len(lp.Shares) == 1 && lp.Shares[0].Method == ledger.Sole {
		to(t.placeOf(lp.Shares[0].Cgroup), ran)
		return 0
	}
	if t.Last.Host.Sampler == "" { // nothing saw where it ran, and samples of later windows do not show it
		to(unplaced, ran)
		return 0
	}
	p.pending += ran
	n := 0
	for _, s := range lp.Seen {
		p.seen[t.placeOf(s.Cgroup)] += s.Samples
	}
	for _, k := range p.seen {
		n += k
	}
	dealt := 0
	switch {
	case p.pending == 0:
		p.since = now
		return 0
	case n >= attribution.MinSamples:
		p.deal(n, to)
		dealt = n
	case now.Sub(p.since) < patience:
		return 0
	default:
		to(unplaced, p.pending)
	}
	p.pending, p.since = 0, now
	clear(p.seen)
	return uint64(dealt)
}

// deal splits the pending time in proportion to n samples. The part of samples without a place goes to unplaced. The
// part of a place is held back until the place has been seen often enough to be named.
func (p *program) deal(n int, to func(Place, int64)) {
	places := make([]Place, 0, len(p.seen))
	counts := make([]int, 0, len(p.seen))
	for place, k := range p.seen {
		places, counts = append(places, place), append(counts, k)
	}
	for i, part := range attribution.Apportion(uint64(max(p.pending, 0)), counts, n) {
		place := places[i]
		if place == unplaced {
			to(unplaced, int64(part))
			continue
		}
		held := p.payers[place]
		if held == nil {
			held = &payer{}
			p.payers[place] = held
		}
		held.ns += int64(part)
		held.samples += counts[i]
		if held.samples >= attribution.MinShare {
			to(place, held.ns)
			held.ns = 0
		}
	}
}

// waiting returns the run time in ns that is in neither Payers nor Unsplit yet.
func (p *program) waiting() int64 {
	sum := p.pending
	for _, held := range p.payers {
		sum += held.ns
	}
	return sum
}

func (t *Totals) placeOf(group *string) Place {
	switch {
	case group == nil || *group == "":
		return unplaced
	case *group == attribution.Idle:
		return Idle
	default:
		return t.PlaceOf(*group)
	}
}

// Program is one eBPF program as of the last ledger.
type Program struct {
	*ledger.Program
	Counted bool    // whether its run time was ever known; if not, its totals are 0 because nothing was counted
	Pending float64 // run time in seconds that is not split yet; the rest is in Payers or Unsplit
	// ScalingError is half the width of the 95 % interval of the run time, in seconds, as far as it is due to statistics
	// being on for only part of the time. nil if they are always on, and for the first cycles.
	ScalingError *float64
}

// Each calls f with each program of the last ledger.
func (t *Totals) Each(f func(ProgramKey, Program)) {
	for key, p := range t.programs {
		one := Program{Program: &p.last, Counted: p.counted, Pending: seconds(p.waiting())}
		if e, known := p.phases.scalingError(t.o.Duty); known {
			one.ScalingError = &e
		}
		f(key, one)
	}
}
