package calibrate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/load"
	"tare/internal/experiment/placement"
	"tare/internal/lib/fault"
	"tare/internal/lib/lists"
	"tare/internal/lib/pace"
	"tare/internal/lib/self"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/proc"
	"tare/internal/scale/ledger"
	"tare/internal/scale/meter"
)

// Sections are the parts of a calibration, in order.
var Sections = []string{"clock", "latency", "bpf", "maps", "cpu", "memory", "noise"}

// Options configures a calibration.
type Options struct {
	Self  string                     // path of the tare binary, which runs itself as the planted processes
	Quick bool                       // run the short form
	Only  []string                   // sections; empty: all
	Fault Fault                      // defect to build in, to see that it is found
	Say   func(section, what string) // called before each planting; may be nil
}

// Fault is a defect that is built into the scale on purpose, to see that calibration finds it.
type Fault string

// The faults.
const (
	NoFault     Fault = ""
	FastClock   Fault = "clock5"      // the scale's clock is 5 % fast
	DropSamples Fault = "dropsamples" // the ring of one CPU is never read, and nothing reports it
	MapsTwice   Fault = "mapstwice"   // a map counts once for each program that uses it
)

// ParseFault parses the name of a fault.
func ParseFault(s string) (Fault, error) {
	switch f := Fault(s); f {
	case NoFault, FastClock, DropSamples, MapsTwice:
		return f, nil
	}
	return NoFault, fault.New(fault.Usage, s, fmt.Sprintf("use %s, %s or %s", FastClock, DropSamples, MapsTwice),
		"no such fault")
}

// bench holds the state of a calibration that all sections use. Its methods wrap the scale itself, and build in the
// fault.
type bench struct {
	o        Options
	layout   *cgroup.Layout
	tree     *placement.Tree
	began    time.Time
	epoch    int64 // ns by pace.Now
	groups   int
	retried  time.Duration // time spent on tries that were repeated, for whatever reason
	seen     []observed    // how others used the machine while the current weight was planted, by package witness
	children map[int]bool  // PIDs of all processes that were ever planted
	report   *Report
}

// Run calibrates. Report.Verdict says whether the scale is within tolerance. If some sections could not be weighed, Run
// returns an error along with the report of the others. If a weight is out of tolerance as well, the error is nil, and
// the report has warnings in its place.
func Run(ctx context.Context, o Options) (r *Report, err error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	b := &bench{o: o, began: time.Now(), epoch: pace.Now(), children: map[int]bool{}}
	if b.layout, err = cgroup.Discover(cgroup.Roots{}); err != nil {
		return nil, err
	}
	m := proc.FS{}.Machine()
	b.report = &Report{
		Schema: Schema, Tare: self.Version, Started: b.began, Quick: o.Quick, Fault: string(o.Fault), Weights: []Weight{},
		Warnings: []string{},
		Machine: Machine{Hostname: m.Hostname, Kernel: m.Kernel, CPUModel: m.CPUModel, CPUs: m.CPUs, Virtual: m.Virtual,
			Clocksource: m.Clocksource, CgroupMode: b.layout.Mode},
	}
	if b.tree, err = placement.NewTree(b.layout, "calibrate"); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.tree.Close()) }()
	sections := map[string]func() ([]planting, error){
		"clock": b.clock, "latency": b.latency, "bpf": b.bpf, "maps": b.maps, "cpu": b.cpu, "memory": b.memory,
		"noise": b.noise,
	}
	var broken []error
	for _, name := range Sections {
		if len(o.Only) > 0 && !slices.Contains(o.Only, name) {
			continue
		}
		if err := b.section(ctx, name, sections[name]); err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			broken = append(broken, fmt.Errorf("calibrating %s: %w", name, err))
		}
	}
	b.report.Seconds = time.Since(b.began).Seconds()
	return b.report, b.report.excuse(broken)
}

// excuse returns the error of sections that could not be weighed. If a weight is out of tolerance, which matters more,
// these errors only become warnings.
func (r *Report) excuse(broken []error) error {
	if r.Failed == 0 {
		return errors.Join(broken...)
	}
	r.Warnings = append(r.Warnings, lists.Map(broken, error.Error)...)
	return nil
}

func (o *Options) check() error {
	for _, name := range o.Only {
		if !slices.Contains(Sections, name) {
			return fault.New(fault.Usage, "--only "+name, "use some of "+strings.Join(Sections, ","), "no such section")
		}
	}
	if o.Say == nil {
		o.Say = func(string, string) {}
	}
	return nil
}

// minJudged is the minimum number of judged weights for a section to count as weighed.
const minJudged = 1

// unweighed returns the sections that have weights to judge, but fewer than minJudged that could be judged.
func (r *Report) unweighed() (names []string) {
	for _, section := range Sections {
		if judged, of := r.Judged(section); of > 0 && judged < minJudged {
			names = append(names, section)
		}
	}
	return names
}

// Judged returns the number of a section's weights that were judged, and the number of all its weights, which includes
// disturbed and missing ones. Neither number includes weights that are only informational.
func (r *Report) Judged(section string) (judged, of int) {
	for _, w := range r.Weights {
		switch {
		case w.Section != section || w.Verdict == Told:
			continue
		case w.Verdict == Pass || w.Verdict == Fail:
			judged++
		}
		of++
	}
	return judged, of
}

// Verdict returns nil if all judged weights are within tolerance, an error with code Exceeded if one is not, because
// the scale itself is then wrong, and one with code Invalid if no weight of a section could be judged.
func (r *Report) Verdict() error {
	var failed []string
	for _, w := range r.Weights {
		if w.Verdict == Fail {
			failed = append(failed, w.Section+": "+w.Name)
		}
	}
	all, unweighed := r.Passed+r.Failed+r.Unjudged, r.unweighed()
	switch {
	case r.Failed > 0:
		return fault.New(fault.Exceeded, "calibration",
			"the table shows by how much; docs/calibration.md says what each weight rests on",
			"%d of %d weights are out of tolerance: %s", r.Failed, all, strings.Join(failed, "; "))
	case len(unweighed) > 0:
		return fault.New(fault.Invalid, "calibration",
			"run it again when the machine is idle, or leave these sections out with --only",
			"no weight of %s could be judged, and %d of %d in all were not: the table says why",
			strings.Join(unweighed, " and "), r.Unjudged+r.Missing, all+r.Missing)
	}
	return nil
}

// tries is the maximum number of times that a weight is measured if noise or chance can spoil it.
const tries = 3

// quickRetries is the total time of repeats after which a quick calibration no longer repeats disturbed weights.
const quickRetries = 8 * time.Second

// quickRepeats is the time after which a quick calibration repeats only a weight that passed as often as it failed.
const quickRepeats = 75 * time.Second

// late reports whether there is no time left for repeats.
func (b *bench) late() bool { return b.o.Quick && time.Since(b.began) > quickRepeats }

// planting is a known cost that is planted on the machine and then read with the scale.
type planting struct {
	what  string
	plant func(context.Context) ([]Weight, error)
}

// section weighs the plantings of a section in turn.
func (b *bench) section(ctx context.Context, name string, plantings func() ([]planting, error)) error {
	all, err := plantings()
	if err != nil {
		return err
	}
	for _, p := range all {
		if err := b.weigh(ctx, name, p); err != nil {
			return err
		}
	}
	return nil
}

// weigh plants a known cost and reads it. It repeats this, up to the limit tries, while others disturb a weight, and
// until two tries agree on each weight that noise or chance can spoil. A single try of such a weight never ends the
// repeats because it passed, which would be biased.
func (b *bench) weigh(ctx context.Context, section string, p planting) error {
	b.o.Say(section, p.what)
	var all [][]Weight
	for {
		start := time.Now()
		ws, err := b.try(ctx, section, p)
		switch {
		case err != nil && (len(all) == 0 || ctx.Err() != nil):
			return err
		case err != nil: // the earlier tries still count
			b.report.Warnings = append(b.report.Warnings, fmt.Sprintf("%s was not weighed again: %v", section, err))
			b.report.add(majority(all)...)
			return nil
		}
		all = append(all, ws)
		stands := majority(all)
		took := time.Since(start)
		late := b.late() || b.o.Quick && b.retried+took > quickRetries
		disturbed := slices.ContainsFunc(stands, func(w Weight) bool { return w.Verdict == Disturbed })
		again := disturbed && !late || open(all) && !b.late() || split(all)
		if len(all) == tries || !again || slices.ContainsFunc(stands, Weight.certain) {
			b.report.add(stands...)
			return nil
		}
		b.retried += took
	}
}

// try weighs once, and measures how much others used the machine meanwhile.
func (b *bench) try(ctx context.Context, section string, p planting) ([]Weight, error) {
	before, err := usage()
	if err != nil {
		return nil, err
	}
	ended := func() (stood, error) { return stood{}, nil }
	if section == "latency" {
		ended = wakeUps(ctx)
	}
	b.seen = nil
	ws, err := p.plant(ctx)
	s, seen := ended()
	if err = errors.Join(err, seen); err != nil {
		var few unanswered
		if !errors.As(err, &few) {
			return nil, fmt.Errorf("%s: %w", p.what, err)
		}
		ws = []Weight{few.weight(p.what)}
	}
	after, err := usage()
	if err != nil {
		return nil, err
	}
	d, ok := disturbanceOf(b.seen, b.report.Machine.CPUs, b.ours)
	if !ok {
		d = after.disturbance(before)
	}
	s.disturbedBy(d)
	for i := range ws {
		w := &ws[i]
		w.Section, w.Witness, w.Others, w.Stolen, w.Stood, w.Longest = section, d.witness, s.away, s.stolen, s.part, s.longest
		w.judge(s)
		if w.Verdict == Disturbed {
			w.Culprits = d.culprits
		}
	}
	return ws, nil
}

// judged counts the tries in which a weight passed and in which it failed.
func judged(all [][]Weight, name string) (passed, failed int) {
	for _, try := range all {
		for _, w := range try {
			switch {
			case w.Name != name:
			case w.Verdict == Pass:
				passed++
			case w.Verdict == Fail:
				failed++
			}
		}
	}
	return passed, failed
}

// open reports whether the tries do not agree yet on some weight that noise or chance can spoil: it has neither passed
// twice nor failed twice.
func open(all [][]Weight) bool {
	return anySpoilable(all, func(passed, failed int) bool { return passed+failed > 0 && max(passed, failed) < 2 })
}

// split reports whether some weight that noise or chance can spoil passed as often as it failed.
func split(all [][]Weight) bool {
	return anySpoilable(all, func(passed, failed int) bool { return passed > 0 && passed == failed })
}

func anySpoilable(all [][]Weight, is func(passed, failed int) bool) bool {
	return slices.ContainsFunc(all[len(all)-1], func(w Weight) bool {
		return (w.sensitive || w.chancy) && is(judged(all, w.Name))
	})
}

// majority combines all tries into one verdict for each weight, by the first rule that applies:
//   - a weight that neither noise nor chance can spoil fails if it ever failed;
//   - a weight passes if it passed more often than it failed;
//   - it fails if it failed in more than half of the tries, or failed and was never disturbed;
//   - it is disturbed if it ever was;
//   - it keeps its last verdict.
//
// Weights are matched by name. The other fields are those of the last try with the combined verdict.
func majority(all [][]Weight) []Weight {
	stands := slices.Clone(all[len(all)-1])
	for i, last := range stands {
		by := map[Verdict]*Weight{}
		for _, try := range all {
			for j := range try {
				if w := &try[j]; w.Name == last.Name {
					by[w.Verdict] = w
				}
			}
		}
		passed, failed := judged(all, last.Name)
		fails, disturbed := by[Fail], by[Disturbed]
		switch {
		case fails != nil && !fails.sensitive && !fails.chancy:
			stands[i] = *fails
		case passed > failed:
			stands[i] = *by[Pass]
		case fails != nil && (2*failed > len(all) || disturbed == nil):
			stands[i] = *fails
		case disturbed != nil:
			stands[i] = *disturbed
		}
		stands[i].Tries = len(all)
	}
	return stands
}

// used holds CPU time in seconds: busy, stolen and capacity are of the machine, and ours is of this process and of its
// children that have ended.
type used struct{ busy, capacity, ours, stolen float64 }

// usage reads the CPU time. Child processes only count once they have been waited for, so all of them must have ended.
func usage() (u used, err error) {
	s, err := proc.FS{}.Stat()
	if err != nil {
		return u, err
	}
	u.busy, u.capacity = s.Busy(), s.Busy()+s.Waiting()
	u.stolen = s.Steal
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var r unix.Rusage
		if err := unix.Getrusage(who, &r); err != nil {
			return u, fmt.Errorf("reading the CPU time of this process: %w", err)
		}
		u.ours += float64(r.Utime.Nano()+r.Stime.Nano()) / 1e9
	}
	return u, nil
}

// disturbance returns what other processes used since an earlier reading, by the kernel's counters. It is the fallback
// if there is no witness, and cannot name the others.
func (u used) disturbance(since used) disturbance {
	d := disturbance{witness: counters, capacity: max(0, u.capacity-since.capacity), stolen: max(0, u.stolen-since.stolen)}
	d.foreign = max(0, u.busy-since.busy-(u.ours-since.ours)-d.stolen)
	return d
}

// now reads the scale's clock, in ns.
func (b *bench) now() int64 {
	now := pace.Now()
	if b.o.Fault == FastClock {
		return now + (now-b.epoch)/20
	}
	return now
}

// clockScale is the factor by which FastClock speeds up the scale's clock. It is applied to times that other processes
// have measured, whose clocks lack the fault.
func (b *bench) clockScale() float64 {
	if b.o.Fault == FastClock {
		return 1.05
	}
	return 1
}

// histogram returns a load's histogram as the scale's clock would have measured it.
func (b *bench) histogram(r *load.Result, name string) (histogram, error) {
	h, err := r.Histogram(name)
	if err != nil || h == nil {
		return nil, errors.Join(err, fmt.Errorf("the load gave no %s", name))
	}
	return fromHDR(h).scaled(b.clockScale()), nil
}

// ledgerOf calls do, and returns the ledger of the time that the call takes.
func (b *bench) ledgerOf(ctx context.Context, hz int, do func() error) (l *ledger.Ledger, err error) {
	o := meter.Options{SampleHz: hz, Whole: true}
	if b.o.Fault == DropSamples {
		o.DropRing = true
	}
	m, err := meter.New(ctx, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	w, err := m.Open()
	if err != nil {
		return nil, err
	}
	done := do()
	l, err = w.Close()
	if err = errors.Join(done, err); err != nil {
		return nil, err
	}
	b.observe(observed{l.Noise, l.Window.Seconds})
	b.report.Machine.Sampler = l.Host.Sampler
	if b.o.Fault == MapsTwice {
		l.Maps = oncePerProgram(l.Maps)
	}
	return l, nil
}

// oncePerProgram builds in the fault MapsTwice: it lists each map once for each program that uses it.
func oncePerProgram(maps []ledger.Map) (twice []ledger.Map) {
	for _, m := range maps {
		for range max(len(m.UsedBy), 1) {
			twice = append(twice, m)
		}
	}
	return twice
}

// group makes a control group for one planted process, with a unique name.
func (b *bench) group(limits placement.Limits) (*placement.Group, error) {
	b.groups++
	return b.tree.Group(fmt.Sprintf("w%d", b.groups), limits)
}

// length returns its second argument in a quick calibration, and otherwise its first.
func (b *bench) length(full, quick time.Duration) time.Duration {
	if b.o.Quick {
		return quick
	}
	return full
}
