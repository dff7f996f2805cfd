package meter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"tare/internal/lib/fault"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/perf"
	"tare/internal/scale/profile"
)

// Limits on what a profile keeps, and on the cost of reading processes while it is taken.
const (
	maxProfileStacks    = 1 << 16
	maxProfileProcesses = 1 << 13
	maxFrames           = 1 << 20      // of all stacks together
	maxMapped           = 64 << 20     // approximate size of all processes' mappings, in bytes
	mappedPerDrain      = 1 << 20      // approximate size of the mappings read in one drain, in bytes
	rereadProcessAfter  = int64(100e6) // ns, the least time between two readings of a process
)

// Stacks samples the code that runs on all CPUs, in the kernel and in user space, for a profile. It has its own
// sampler, so the sampler that divides the time of eBPF programs is not affected. Samples are triggered by a clock:
// code that runs with interrupts disabled is seen at the place that enables them.
type Stacks struct {
	sampler *perf.Sampler
	locator *locator
	window  profile.Window
	index   map[string]int // index in window.Stacks, by key
	key     []byte         // identifies a stack: process, group and addresses
	current map[uint32]*readProcess
	ended   []uint32 // processes in current that have ended; samples of them may still arrive
	reads   uint32   // number of times that a process was read
	frames  int
	budget  int   // bytes of mappings that this drain may still read
	left    int   // bytes of mappings that may still be kept
	err     error // of the first drain that failed
	begun   bool
	from    int64 // samples between from and to count, in ns of CLOCK_MONOTONIC
	to      int64
	stop    chan struct{}
	done    chan struct{}
}

// readProcess is a process as it was last read.
type readProcess struct {
	*profile.Process

	at     int64
	number uint32
}

// OpenStacks prepares to take hz samples per second on each CPU. The caller must call End, whether or not it called
// Begin.
func OpenStacks(hz int) (*Stacks, error) {
	layout, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		return nil, err
	}
	s := &Stacks{
		index: map[string]int{}, current: map[uint32]*readProcess{}, stop: make(chan struct{}), done: make(chan struct{}),
		left: maxMapped,
	}
	if s.sampler, err = perf.Open(perf.Options{Hz: hz, User: true, NoCycles: true}); err != nil {
		return nil, fault.Wrap(err, fault.Machine, "--pprof", "'tare doctor' says what sampling needs",
			"no stacks can be taken")
	}
	s.locator = newLocator(layout, newGroupNames(), s.sampler.HasCgroup())
	s.window.Period = s.sampler.Period()
	return s, nil
}

// Begin begins to take samples. Only samples between two times by CLOCK_MONOTONIC, in nanoseconds, are kept; 0 and
// math.MaxInt64 keep all.
func (s *Stacks) Begin(from, to int64) error {
	s.from, s.to = from, to
	s.window.Start = time.Now()
	if err := s.sampler.Enable(); err != nil {
		return fmt.Errorf("sampling stacks: %w", err)
	}
	s.begun = true
	go s.run()
	return nil
}

func (s *Stacks) run() {
	defer close(s.done)
	for {
		if s.err = s.sampler.Wait(drainEvery); s.err == nil {
			s.err = s.drain()
		}
		if s.err != nil {
			return
		}
		select {
		case <-s.stop:
			return
		case <-time.After(drainPause):
		}
	}
}

// End ends sampling, closes s, and returns the samples; nil if sampling had not begun.
func (s *Stacks) End() (*profile.Window, error) {
	if !s.begun {
		return nil, s.sampler.Close()
	}
	s.window.Length = min(time.Since(s.window.Start), time.Duration(s.to-s.from))
	err := s.halt()
	if err == nil {
		err = s.drain()
	}
	if err == nil {
		s.window.Lost, s.window.LostRecords, err = s.sampler.Lost()
		s.window.Slowed = s.sampler.Throttled()
	}
	if err == nil {
		s.window.Blind, err = s.sampler.Blind()
	}
	if err = errors.Join(err, s.sampler.Close()); err != nil {
		return nil, fmt.Errorf("sampling stacks: %w", err)
	}
	return &s.window, nil
}

// halt stops the sampler, and waits until the goroutine that drains it has ended.
func (s *Stacks) halt() error {
	err := s.sampler.Disable()
	close(s.stop)
	s.sampler.Wake()
	<-s.done
	return errors.Join(err, s.err)
}

func (s *Stacks) drain() error {
	s.locator.begin()
	s.budget = mappedPerDrain
	err := s.sampler.Drain(&perf.Handler{Symbol: s.symbol, Task: s.task, Sample: s.sample})
	s.locator.end()
	return err
}

// symbol keeps the names of eBPF programs that are unloaded: samples are named when all have been taken.
func (s *Stacks) symbol(c perf.Symbol) {
	if c.Removed {
		s.window.Remove(profile.Code{Start: c.Start, End: c.Start + uint64(c.Len), Until: c.Time, Name: c.Name})
	}
}

// task forgets a process if a new process now has its ID, and records which processes have ended.
func (s *Stacks) task(t perf.Task) {
	s.locator.task(t)
	switch _, known := s.current[t.PID]; {
	case !known || t.PID != t.TID:
	case t.Exit:
		s.ended = append(s.ended, t.PID)
	default:
		delete(s.current, t.PID)
	}
}

func (s *Stacks) sample(p *perf.Sample) {
	if p.Time < s.from || p.Time >= s.to {
		return
	}
	if p.PID == 0 { // not the idle task, which is not sampled, but a process hidden by a PID namespace
		s.window.Hidden++
		return
	}
	process, group := s.process(p), s.locator.group(p)
	s.key = binary.NativeEndian.AppendUint32(s.key[:0], p.PID)
	s.key = binary.NativeEndian.AppendUint32(s.key, process.number)
	s.key = binary.NativeEndian.AppendUint32(s.key, uint32(group))
	s.key = binary.NativeEndian.AppendUint32(s.key, uint32(len(p.Chain)))
	for _, chain := range [][]uint64{p.Chain, p.User} {
		for _, a := range chain {
			s.key = binary.NativeEndian.AppendUint64(s.key, a)
		}
	}
	i, is := s.index[string(s.key)]
	if !is || s.window.Changed(p.Chain, s.window.Stacks[i].At, p.Time) {
		s.frames += len(p.Chain) + len(p.User)
		if len(s.window.Stacks) == maxProfileStacks || s.frames > maxFrames {
			s.window.Left++
			return
		}
		i = len(s.window.Stacks)
		s.index[string(s.key)] = i
		name := ""
		if group != groupUnknown {
			name = s.locator.names.names[group]
		}
		s.window.Stacks = append(s.window.Stacks, profile.Stack{
			Process: process.Process, Group: name,
			Kernel: append([]uint64(nil), p.Chain...), User: append([]uint64(nil), p.User...),
		})
	}
	s.window.Stacks[i].Count++
	s.window.Stacks[i].At = p.Time
}

// process returns the process of a sample. It reads the process again if the sample's code is in none of the mappings
// that are known: the process has mapped another file, or runs another program.
func (s *Stacks) process(p *perf.Sample) *readProcess {
	was := s.current[p.PID]
	if was == nil && len(s.current) == maxProfileProcesses {
		for _, pid := range s.ended {
			delete(s.current, pid)
		}
		s.ended = s.ended[:0]
	}
	full := s.budget <= 0 || s.left <= 0
	if was == nil && (full || len(s.current) == maxProfileProcesses) {
		s.window.Unread++
		return &readProcess{}
	}
	has := was != nil && (len(p.User) == 0 || was.Process != nil && was.Has(p.User[0]))
	if has || full || was != nil && p.Time-was.at < rereadProcessAfter {
		return was
	}
	s.reads++
	now := &readProcess{at: p.Time, number: s.reads}
	if was != nil {
		now.Process = was.Process // kept if the process has ended and cannot be read
	}
	if read, err := profile.Read(int(p.PID)); err == nil {
		now.Process = read
		size := 100
		for _, m := range read.Mappings {
			size += 100 + len(m.Path)
		}
		s.budget, s.left = s.budget-size, s.left-size
	}
	s.current[p.PID] = now
	return now
}
