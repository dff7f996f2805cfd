package meter

import (
	"cmp"
	"errors"
	"maps"
	"math/bits"
	"slices"
	"time"

	"tare/internal/scale/attribution"
	"tare/internal/scale/host/bpf"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/perf"
	"tare/internal/scale/host/witness"
	"tare/internal/scale/ledger"
)

// drainEvery is how often the rings are drained: often enough that a thread seen in a sample usually still exists when
// its group is looked up, and seldom enough to cost little.
const drainEvery = 200 * time.Millisecond

// drainPause is the minimum time between two drains, however full the rings are: a storm of execs can fill one in 80
// ms.
const drainPause = 20 * time.Millisecond

// maxStacks bounds the distinct call chains of a window.
const maxStacks = 1 << 15

// collector folds samples into counts of (call chain, group) while a window is open. Names are looked up once, at the
// end of the window.
type collector struct {
	sampler *perf.Sampler
	text    *text
	locator *locator
	names   []string // of the groups, by number; set by sum

	from, to int64 // CLOCK_MONOTONIC ns: samples outside are not part of this window
	listed   int64 // when the programs that existed at the beginning of the window were listed
	stacks   []stack
	index    map[uint64]int32
	cells    map[cell]int
	idle     map[int32]int   // by stack: samples of the idle task
	hidden   bool            // tasks of other PID namespaces look like the idle task
	loaded   map[uint32]bool // programs that were loaded while the window was open
	samples  int
	dropped  int // samples dropped because of maxStacks

	before, in losses // before the window, and during it
	blind      []int  // the CPUs that were not sampled for at least a part of the window

	next *collector // the next window's collector, which gets the samples from c.to on; nil if there is none

	recent  map[uint32][]moment // by CPU: the latest samples that may contain a program
	stalls  []witness.Look      // not yet matched with samples
	stalled []stalledStack
}

// losses counts what the sampler had no room for, and how often the kernel throttled it.
type losses struct{ samples, records, slowed uint64 }

func (c *collector) losses() (l losses, err error) {
	l.slowed = c.sampler.Throttled()
	l.samples, l.records, err = c.sampler.Lost()
	return l, err
}

// moment is when a stack was seen.
type moment struct {
	at    int64
	stack int32
}

// stalledStack is a stall and the stack that was running as it ended.
type stalledStack struct {
	stack int32
	look  witness.Look
}

type stack struct {
	chain []uint64
	epoch int32
}

type cell struct{ stack, group int32 }

func newCollector(s *perf.Sampler, layout *cgroup.Layout, hidden bool) *collector {
	locator := newLocator(layout, newGroupNames(), s.HasCgroup())
	locator.hidden = hidden
	return collectorWith(s, locator)
}

func collectorWith(s *perf.Sampler, locator *locator) *collector {
	return &collector{
		sampler: s, text: newText(), locator: locator, hidden: locator.hidden,
		loaded: map[uint32]bool{}, index: map[uint64]int32{}, cells: map[cell]int{}, idle: map[int32]int{},
		to:     forever,
		recent: map[uint32][]moment{},
	}
}

// addText records where the machine code of programs is.
func (c *collector) addText(programs []bpf.Program) {
	for i := range programs {
		for _, r := range programs[i].JITed {
			if !programs[i].Vanished {
				c.text.add(r.Start, r.Len, programs[i].ID)
			}
		}
	}
}

// start begins sampling. Window.run then empties the rings until the window ends. No sample counts until c.from is set.
func (c *collector) start() error {
	c.from = forever
	return c.sampler.Enable()
}

// begin records what was lost before the window, to subtract it.
func (c *collector) begin() (err error) {
	c.before, err = c.losses()
	return err
}

// finish ends sampling and drains the remaining samples, of which those taken before the given time count. It must not
// run concurrently with other drains.
func (c *collector) finish(to int64) error {
	c.to = to
	return errors.Join(c.sampler.Disable(), c.drain(), c.sum())
}

// cut ends the collector's window and returns the collector of the next window. Sampling continues. The argument to is
// the end of the window, and listed is the time at which programs were last listed. Records of programs that were
// loaded or unloaded after that time count for both collectors; for older programs, the caller must call addText on the
// new collector. The rings still hold undrained records: the old collector drains them and passes on those that belong
// to the new one. After that, the caller must call sum on the old collector.
func (c *collector) cut(to, listed int64) *collector {
	locator := c.locator
	// Most of these groups and threads have gone by now, so start afresh.
	if max(len(locator.names.names), len(locator.ids)) > maxGroupNames || len(locator.threads) > maxThreads {
		hidden := locator.hidden
		locator = newLocator(locator.layout, newGroupNames(), c.sampler.HasCgroup())
		locator.hidden = hidden
	}
	c.to, c.next = to, collectorWith(c.sampler, locator)
	c.next.from, c.next.listed = to, listed
	return c.next
}

const (
	maxGroupNames = 1 << 13
	maxThreads    = 1 << 14
)

// sum computes the losses during the collector's time. All records of that time must have been drained. After sum,
// findings reads nothing that the next collector changes, so it may run while that one drains.
func (c *collector) sum() (err error) {
	c.names = c.locator.names.names
	var berr error
	c.blind, berr = c.sampler.Blind()
	all, err := c.losses()
	c.in.samples = all.samples - min(all.samples, c.before.samples)
	c.in.records = all.records - min(all.records, c.before.records)
	c.in.slowed = all.slowed - c.before.slowed
	if c.next != nil {
		c.next.before = all
	}
	return errors.Join(err, berr)
}

func (c *collector) drain() error {
	c.locator.begin()
	err := c.sampler.Drain(&perf.Handler{
		Symbol: func(s perf.Symbol) {
			c.text.symbol(s)
			if c.next != nil && s.Time >= c.next.listed {
				c.next.text.symbol(s)
			}
		},
		Program: c.program,
		Task:    c.locator.task,
		Sample:  c.sample,
	})
	c.locator.end()
	return err
}

func (c *collector) program(p perf.ProgramEvent, s []perf.Symbol) {
	c.text.name(p.ID, s)
	if !p.Unloaded && p.Time >= c.from && p.Time < c.to {
		c.loaded[p.ID] = true
	}
	if c.next != nil && p.Time >= c.next.listed {
		c.next.program(p, s)
	}
}

func (c *collector) sample(s *perf.Sample) {
	if c.next != nil && s.Time >= c.to {
		c.next.sample(s)
		return
	}
	if s.Time < c.from || s.Time >= c.to {
		return
	}
	c.samples++
	idle := s.PID == 0 && !c.hidden
	if !idle && !c.mayRun(s.Chain) {
		return
	}
	at, ok := c.stackOf(s.Chain, c.text.epoch(s.Time))
	if !ok {
		c.dropped++
		return
	}
	if idle {
		c.idle[at]++
	}
	if mayRun := c.mayRun(s.Chain); !idle || mayRun {
		c.cells[cell{at, c.locator.group(s)}]++
		if mayRun {
			c.recent[s.CPU] = append(c.recent[s.CPU], moment{s.Time, at})
		}
	}
}

// stall stores a stall for join.
func (c *collector) stall(l witness.Look) {
	if c.next != nil && l.Now >= c.to {
		c = c.next
	}
	c.stalls = append(c.stalls, l)
}

// sameInterrupt is the maximum time between the witness's look and the sample of one interrupt, in nanoseconds:
// normally a few microseconds, more if the call chain is deep.
const sameInterrupt = 100_000

// join finds what ran as stalls ended, from the samples that were taken together with the looks. All samples until upTo
// must have been drained.
func (c *collector) join(upTo int64) {
	waiting := c.stalls[:0]
	for _, l := range c.stalls {
		if l.Now+sameInterrupt > upTo {
			waiting = append(waiting, l)
			continue
		}
		if l.Now < c.from || l.Now >= c.to || !l.AtEnd() {
			continue
		}
		all := c.recent[uint32(l.CPU)]
		i, _ := slices.BinarySearchFunc(all, l.Now-sameInterrupt, func(m moment, t int64) int { return cmp.Compare(m.at, t) })
		for ; i < len(all) && all[i].at <= l.Now+sameInterrupt; i++ {
			c.stalled = append(c.stalled, stalledStack{all[i].stack, l})
			break
		}
	}
	c.stalls = waiting
	oldest := upTo
	for _, l := range waiting {
		oldest = min(oldest, l.Now)
	}
	for cpu, all := range c.recent {
		i, _ := slices.BinarySearchFunc(all, oldest-2*sameInterrupt,
			func(m moment, t int64) int { return cmp.Compare(m.at, t) })
		c.recent[cpu] = slices.Delete(all, 0, i)
	}
}

// mayRun reports whether a chain may contain a program. It is a quick test.
func (c *collector) mayRun(chain []uint64) bool {
	return slices.ContainsFunc(chain, c.text.mayHold)
}

// stackOf returns the index of a call chain in c.stacks, and adds the chain if it is new. It returns false if there are
// too many. Chains with the same 64-bit hash count as the same chain.
func (c *collector) stackOf(chain []uint64, epoch int32) (int32, bool) {
	h := uint64(epoch) + 0x9e3779b97f4a7c15
	for _, a := range chain {
		hi, lo := bits.Mul64(h^a, 0x9fb21c651e98df25)
		h = hi ^ lo
	}
	if at, ok := c.index[h]; ok {
		return at, true
	}
	if len(c.stacks) >= maxStacks {
		return 0, false
	}
	at := int32(len(c.stacks))
	c.stacks = append(c.stacks, stack{append([]uint64(nil), chain...), epoch})
	c.index[h] = at
	return at, true
}

// findings holds the results that the samples of a window lead to.
type findings struct {
	places         map[uint32]map[attribution.Place]int // by program id
	idleInterrupts int                                  // samples of interrupts on an idle CPU
	loaded         map[uint32]bool
	samples        int
	lost           losses
	dropped        int
	unsure         map[uint32]bool              // programs whose samples may belong to others
	blind          []int                        // CPUs that were not sampled for a part of the window
	hits           map[uint32][]attribution.Hit // by program id: stalls during which it was running
}

// findings analyses the chains. entries(addrs) returns the context that each address enters, if any.
func (c *collector) findings(entries func(addrs []uint64) (map[uint64]ledger.Context, error)) (findings, error) {
	f := findings{
		places: map[uint32]map[attribution.Place]int{}, loaded: c.loaded, blind: c.blind, unsure: c.text.unsure(),
		samples: c.samples, dropped: c.dropped, lost: c.in,
	}
	seen := map[uint64]bool{}
	var addrs []uint64
	for _, s := range c.stacks {
		for _, a := range s.chain {
			if !seen[a] && !c.text.mayHold(a) {
				seen[a] = true
				addrs = append(addrs, a)
			}
		}
	}
	entry, err := entries(addrs)
	if err != nil {
		return f, err
	}

	// Stacks are processed in order of epoch, so only one view at a time is kept. There may be many epochs, because
	// programs may come and go all the time.
	var view []span
	viewed := int32(-1)
	programs := map[uint32]int{} // id to number for attribution
	var ids []uint32
	frames := func(s stack, into []attribution.Frame) []attribution.Frame {
		if s.epoch != viewed {
			view, viewed = c.text.view(s.epoch), s.epoch
		}
		for _, a := range s.chain {
			fr := attribution.Frame{Program: -1, Entry: entry[a]}
			if id, ok := find(view, a); ok {
				n, known := programs[id]
				if !known {
					n = len(ids)
					programs[id] = n
					ids = append(ids, id)
				}
				fr.Program = n
			}
			into = append(into, fr)
		}
		return into
	}

	var chain []attribution.Frame
	byEpoch := func(a, b int32) int { return cmp.Compare(c.stacks[a].epoch, c.stacks[b].epoch) }
	for _, at := range slices.SortedFunc(maps.Keys(c.idle), byEpoch) {
		chain = frames(c.stacks[at], chain[:0])
		if attribution.ChainContext(chain) != ledger.Task {
			f.idleInterrupts += c.idle[at]
		}
	}
	var runs []attribution.Run
	for _, cl := range slices.SortedFunc(maps.Keys(c.cells), func(a, b cell) int { return byEpoch(a.stack, b.stack) }) {
		n := c.cells[cl]
		chain = frames(c.stacks[cl.stack], chain[:0])
		runs = attribution.Runs(chain, runs[:0])
		for _, r := range runs {
			id := ids[r.Program]
			if f.places[id] == nil {
				f.places[id] = map[attribution.Place]int{}
			}
			f.places[id][attribution.Place{Group: c.names[cl.group], Context: r.Context}] += n
		}
	}
	f.hits = map[uint32][]attribution.Hit{}
	for _, s := range c.stalled {
		chain = frames(c.stacks[s.stack], chain[:0])
		runs = attribution.Runs(chain, runs[:0])
		hit := map[uint32]bool{}
		for _, r := range runs {
			hit[ids[r.Program]] = true
		}
		for id := range hit {
			f.hits[id] = append(f.hits[id], attribution.Hit{Stolen: float64(s.look.Stolen) / 1e9,
				Late: float64(s.look.Late) / 1e9})
		}
	}
	return f, nil
}
