package meter

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/cilium/ebpf/btf"

	"tare/internal/lib/fault"
	"tare/internal/scale/host/bpf"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/feature"
	"tare/internal/scale/host/perf"
	"tare/internal/scale/ledger"
)

// Part is one kind of data that a window reads, with the time that reading it took. If a part fails, the ledger lacks
// its data and nothing else. The exception is CPU time: without its counters at both edges there is no ledger.
type Part struct {
	Name string
	Took time.Duration // wall time of all its readings in the window
	Err  error         // why some or all of it could not be read; nil on success
}

// The names of parts.
const (
	PartCPU      = "cpu"      // CPU time of the machine, of control groups and of kernel threads
	PartMemory   = "memory"   // memory of control groups
	PartPrograms = "programs" // eBPF programs, their counters and holders
	PartMaps     = "maps"     // eBPF maps
	PartSamples  = "samples"  // what splits the run time of programs
	PartWitness  = "witness"  // stolen time and who held the CPUs
)

// windowParts holds the parts of a window. A part without a name is not enabled. A meter has the parts with which its
// windows begin: their errors say what this machine lacks.
type windowParts struct{ cpu, memory, programs, maps, samples, witness Part }

func (p *windowParts) all() []*Part {
	return []*Part{&p.cpu, &p.memory, &p.programs, &p.maps, &p.samples, &p.witness}
}

// newParts returns the parts that the options enable.
func newParts(o Options) windowParts {
	p := windowParts{cpu: Part{Name: PartCPU}, memory: Part{Name: PartMemory}, programs: Part{Name: PartPrograms},
		maps: Part{Name: PartMaps}}
	if o.SampleHz >= 0 {
		p.samples.Name = PartSamples
	}
	if !o.NoWitness {
		p.witness.Name = PartWitness
	}
	return p
}

// Parts returns the parts of a closed window, in a fixed order. Parts that the meter's options disable are absent.
func (w *Window) Parts() []Part {
	var asked []Part
	for _, p := range w.parts.all() {
		if p.Name == "" {
			continue
		}
		asked = append(asked, *p)
		if of := &asked[len(asked)-1]; p == &w.parts.programs || p == &w.parts.maps {
			of.Err = cmp.Or(of.Err, w.unlisted)
		}
	}
	return asked
}

// read runs a step of reading a part, and records how long it took and the first error.
func (p *Part) read(step func() error) error {
	began := monotonic()
	err := step()
	p.Took += time.Duration(monotonic() - began)
	p.Err = cmp.Or(p.Err, err)
	return err
}

// try runs a step of reading a part, unless the part has failed before. The window can go on without the part, so the
// error is nil unless the meter must be whole.
func (w *Window) try(p *Part, step func() error) error {
	if p.Err != nil {
		return nil
	}
	return w.must(p, step)
}

// must is like try, but runs the step even if the part has failed, for steps such as switching something off.
func (w *Window) must(p *Part, step func() error) error {
	if err := p.read(step); err != nil && w.m.whole {
		return err
	}
	return nil
}

// lack disables parts that the meter could not open on this machine, with a warning in each ledger.
func (m *Meter) lack(what ledger.Warning, err error, of ...*Part) {
	for _, p := range of {
		p.Err = err
	}
	m.warnings = append(m.warnings, because(what, err))
}

// because appends to a warning the error that caused it, and its hint.
func because(w ledger.Warning, err error) ledger.Warning {
	w.Message += ": " + withHint(err)
	return w
}

// withHint returns the text of an error, followed by its hint.
func withHint(err error) string {
	hint := fault.HintOf(err)
	if missing := (*feature.MissingError)(nil); hint == "" && errors.As(err, &missing) {
		hint = missing.Hint
	}
	if hint == "" {
		return err.Error()
	}
	return err.Error() + "; " + hint
}

// The warnings that say what a ledger lacks without a part.
var (
	noPrograms = ledger.Warning{Code: "no-programs",
		Message: "the run time of eBPF programs, and the memory of programs and maps, are not known"}
	noStatistics = ledger.Warning{Code: "no-statistics",
		Message: "how often and how long eBPF programs run is not known"}
	staleList = ledger.Warning{Code: "stale-programs",
		Message: "who holds eBPF programs, what they are attached to and the memory of maps are as they were read last"}
	neverListed = ledger.Warning{Code: staleList.Code,
		Message: "who holds eBPF programs, what they are attached to and the memory of maps are not known"}
	noMaps    = ledger.Warning{Code: "no-maps", Message: "the memory of eBPF maps is not known"}
	noSamples = ledger.Warning{Code: "no-samples", Message: "eBPF time cannot be split by control group"}
	noWitness = ledger.Warning{Code: "no-witness", Message: "only the sum of stolen time is known, and not how much of " +
		"it is in idle time or in the run time of eBPF programs"}
)

// openPrograms opens the reader of programs and maps, and enables run statistics.
func (m *Meter) openPrograms(types *btf.Cache) (err error) {
	if m.bpf, err = bpf.Open(bpf.Options{Types: types, Iterators: &m.shared.iterators}); err != nil {
		if m.bpf = nil; m.whole {
			return err
		}
		m.uncounted = true
		m.lack(noPrograms, err, &m.parts.programs, &m.parts.maps)
		return nil
	}
	m.list = m.bpf.Snapshot
	return m.openStatistics()
}

// openStatistics switches the kernel's run statistics on, if the options ask for it.
func (m *Meter) openStatistics() error {
	if m.uncounted {
		return nil
	}
	err := m.enableStatistics()
	m.countable = err == nil
	if err == nil || m.whole {
		return err
	}
	m.uncounted = true
	m.lack(noStatistics, err)
	return nil
}

// openGroups opens the reader of control groups. A meter that need not be whole omits groups that it may not read, and
// each ledger names these.
func (m *Meter) openGroups() (err error) {
	open := cgroup.NewReaderOfReadable
	if m.whole {
		open = cgroup.NewReader
	}
	m.groups, err = open(m.layout)
	return err
}

// openKernel finds the kernel's threads. Every machine has some: if none are found, they are hidden from this process.
func (m *Meter) openKernel() (err error) {
	if m.kernel, err = m.fs.KernelThreads(); err != nil {
		return err
	}
	m.noKernel = len(m.kernel.Threads()) == 0
	if m.noKernel && !m.hidden { // if hidden, there is a warning already
		m.warn("kernel-hidden", "the processes of others are hidden (/proc is mounted with hidepid): the CPU time of kernel "+
			"threads cannot be told from that of the root group, and rules that name processes match those that can be seen; "+
			"run as root, or with CAP_SYS_PTRACE")
	}
	return m.findRoot()
}

// findRoot finds out whether this process may list the processes in the root group, whose CPU time v2 does not count.
func (m *Meter) findRoot() error {
	_, err := m.readRoot()
	if m.whole || !errors.Is(err, fs.ErrPermission) {
		return err
	}
	m.rootError = err
	m.warn("no-root-usage", "the CPU time of processes outside control groups is part of what is unexplained: %v; run as "+
		"root, or with CAP_DAC_READ_SEARCH", err)
	return nil
}

// openSampler opens the sampler.
func (m *Meter) openSampler(o Options) (err error) {
	m.sampler, err = perf.Open(perf.Options{Hz: o.SampleHz, DropRing: o.DropRing,
		NoTasks: sampleNames(m.layout, perf.Cgroups.Err() == nil)})
	if err != nil {
		m.sampler = nil
		return m.mayLack(noSamples, err, &m.parts.samples)
	}
	return nil
}

// mayLack is like lack, but for an optional feature: a meter that must be whole fails only if the error is not
// feature.ErrMissing.
func (m *Meter) mayLack(what ledger.Warning, err error, of *Part) error {
	if m.whole && !errors.Is(err, feature.ErrMissing) {
		return err
	}
	m.lack(what, err, of)
	return nil
}

// readEdge reads the counters of CPU time. If it fails, so does the window.
func (w *Window) readEdge() (e edge, err error) {
	err = w.parts.cpu.read(func() (err error) {
		e, err = w.m.readEdge()
		return err
	})
	return e, err
}

// findings returns what the samples show; nil if they could not be read.
func (w *Window) findings() (found *findings, err error) {
	err = w.try(&w.parts.samples, func() error {
		f, err := w.collector.findings(w.m.lookUp)
		if err == nil {
			found = &f
		}
		return err
	})
	return found, err
}

// readCounters reads the counters of programs at an edge, which two windows may share; nil if they could not be read.
func (w *Window) readCounters() (programs []bpf.Program, err error) {
	if w.m.bpf == nil {
		return nil, nil
	}
	err = w.must(&w.parts.programs, func() (err error) {
		programs, err = w.m.bpf.ReadCounters()
		return err
	})
	return programs, err
}

// readMemory reads the memory of all groups. The ledger names groups that could not be read.
func (w *Window) readMemory() error {
	if err := w.m.unlessNamed(w.parts.memory.read(w.m.groups.ReadMemory)); err != nil {
		return err
	}
	return w.parts.memory.read(w.m.lookElsewhere)
}

// readInventory reads programs and maps; the result is nil if programs could not be read. Maps do not depend on the
// counters of programs, and are read even if those could not be. If only this reading fails, the result is that of an
// earlier one, or nil if there is none (see listed): the counters of programs were read, and the run time that they
// show must not be lost.
func (w *Window) readInventory() (s *bpf.Snapshot, err error) {
	if w.m.bpf == nil {
		return nil, nil
	}
	programs := &w.parts.programs
	before := programs.Err
	err = w.must(programs, func() (err error) {
		s, err = w.m.list()
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case s == nil && before == nil:
		w.unlisted, programs.Err = programs.Err, nil
		return w.m.snapshot, nil
	case s == nil:
		w.parts.maps.Err = programs.Err
		return nil, nil
	}
	w.parts.programs.Took -= s.MapsTook
	w.parts.maps.Took = s.MapsTook
	if w.m.whole {
		return s, s.MapsErr
	}
	return s, nil
}

// listed returns the programs and maps for an account, given the counted programs. If they have never been listed, but
// were counted, the result is the counted programs, without holders. The meter does not store that result, so the next
// window lists them in any case.
func (w *Window) listed(counted []bpf.Program) *bpf.Snapshot {
	if w.m.snapshot == nil && w.unlisted != nil {
		return &bpf.Snapshot{Programs: counted, MapsErr: w.unlisted}
	}
	return w.m.snapshot
}

// failed warns of the parts that failed in this window. What the machine lacks is in the meter's warnings, and unread
// warns of groups that could not be read.
func (a *account) failed() {
	had, has := &a.m.parts, &a.w.parts
	if a.snapshot != nil {
		has.maps.Err = a.snapshot.MapsErr
	}
	for _, f := range []struct {
		before, now *Part
		lost        ledger.Warning
	}{
		{&had.programs, &has.programs, noPrograms}, {&had.maps, &has.maps, noMaps},
		{&had.samples, &has.samples, noSamples}, {&had.witness, &has.witness, noWitness},
	} {
		again := f.now == &has.maps && errors.Is(f.now.Err, cmp.Or(has.programs.Err, a.w.unlisted)) // they failed together
		if f.now.Err != nil && f.before.Err == nil && !again {
			f.lost.Message += " in this window"
			a.warnings = append(a.warnings, because(f.lost, f.now.Err))
		}
	}
	if err := a.w.unlisted; err != nil {
		lost := staleList
		if a.m.snapshot == nil {
			lost = neverListed
		}
		a.warnings = append(a.warnings, because(lost, err))
	}
	if late := a.w.unwatched; late > 0 {
		a.warn("late-samples", "samples and looks at the CPUs began %v after the window: they had failed before it", late)
	}
}

// unreadGroups returns an error if some groups could not be read.
func (w *Window) unreadGroups() error {
	all := w.m.groups.Unread()
	if len(all) == 0 {
		return nil
	}
	return fmt.Errorf("%d control groups could not be read, among them %.200s: %w", len(all), all[0].Path,
		all[0].Err)
}
