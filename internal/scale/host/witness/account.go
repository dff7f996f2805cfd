package witness

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/scale/ledger"
)

// Look is one interval between two looks at a CPU in which at least 0.1 ms was stolen. Times are CLOCK_MONOTONIC in
// nanoseconds.
type Look struct {
	CPU       int
	Last, Now int64 // the previous look, and this one
	Stolen    int64 // stolen time in the interval, ns
	// Idle is how long the CPU was idle in the interval by the kernel's clock, which continues while the CPU is stolen.
	Idle int64
	Late int64 // delay of the look at Now
}

// AtEnd reports whether the stall ended with the look: a look that was due while the CPU was away happens as soon as
// the CPU is back. Looks are also late for other reasons, but rarely by as much.
func (l Look) AtEnd() bool { return l.Late >= lateByStall || 2*l.Late >= l.Stolen }

const lateByStall = 50_000 // ns; timers of an undisturbed virtual machine were late by up to 30 us

// place returns when the stall was: up to the look if it is known to have ended there, else anywhere in the interval.
func (l Look) place() (from, to int64) {
	if l.AtEnd() {
		return max(l.Last, l.Now-l.Stolen), l.Now
	}
	return l.Last, l.Now
}

// part returns the fraction of the stall that lies in a window.
func (l Look) part(from, to int64) float64 {
	a, b := l.place()
	return partOf(a, b, from, to)
}

// partOf returns the fraction of the time from a to b that lies in a window; 0 if that time has no length.
func partOf(a, b, from, to int64) float64 {
	if b <= a {
		return 0
	}
	return float64(max(min(b, to)-max(a, from), 0)) / float64(b-a)
}

// idleStolen bounds how much of the stolen time the kernel also counts as idle. Stolen and idle time lie in the same
// interval, so they overlap by at least the excess of their sum over its length, and by at most the shorter of the two.
func (l Look) idleStolen() (lo, hi int64) {
	hi = min(l.Stolen, l.Idle)
	lo = min(max(l.Stolen+l.Idle-(l.Now-l.Last), 0), hi)
	return lo, hi
}

// span is a stretch in which one task held a CPU.
type span struct {
	cpu         int
	before      int64 // the look before the first one that saw it
	first, last int64 // first and last look that saw it
	after       int64 // the first look that did not see it
	stolen      int64
	pid         int // of the process
	comm        string
}

// folded holds the sums over looks that were dropped because there were too many.
type folded struct {
	n              int
	stolen, lo, hi int64
	spans          int
}

// maxKept bounds the intervals, and the spans, that are kept individually while a window is open.
const maxKept = 4 * ledger.MaxStalls

// Account holds what a witness saw in a window.
type Account struct {
	Noise  ledger.Noise
	Stolen float64 // seconds in the window, over all CPUs
	// IdleStolen is the part of Stolen that the kernel also counts as idle, in seconds: the middle of the possible range,
	// off by at most IdleStolenError.
	IdleStolen, IdleStolenError float64
	// Lost counts records that did not fit into the ring: their time is in the sums, but they are not in the lists.
	Lost  uint64
	Looks uint64
}

// stale is the maximum age, in periods, of the last look at a CPU when a window begins.
const stale = 4

// Begin marks the start of a window and forgets what was seen before it.
func (w *Witness) Begin() (err error) {
	if err := w.Settle(monotonic() - int64(stale*w.period)); err != nil {
		return err
	}
	if err := w.clearProcesses(); err != nil {
		return err
	}
	w.looks, w.spans, w.folded = nil, nil, folded{}
	w.begin, err = w.states()
	return err
}

// past reports whether a look was before the window.
func (w *Witness) past(cpu int, at int64) bool {
	return cpu < len(w.begin) && at <= int64(w.begin[cpu].Last)
}

// Drain reads what the program has recorded. Call it several times a second. It calls seen, which may be nil, with each
// interval, in order of time for each CPU.
func (w *Witness) Drain(seen func(Look)) error {
	err := w.drain(func(r *record) {
		switch r.Kind {
		case kindStall:
			l := Look{CPU: int(r.CPU), Last: int64(r.Last), Now: int64(r.Now), Stolen: int64(r.Stolen), Idle: int64(r.Idle),
				Late: int64(r.LateOrSeen)}
			if w.past(l.CPU, l.Now) {
				return
			}
			w.looks = append(w.looks, l)
			if seen != nil {
				seen(l)
			}
		case kindOccupant:
			if w.past(int(r.CPU), int64(r.Now)) {
				return
			}
			w.spans = append(w.spans, span{
				cpu: int(r.CPU), before: int64(r.Last), first: int64(r.FirstAt), last: int64(r.LateOrSeen), after: int64(r.Now),
				stolen: int64(r.Stolen), pid: int(r.TGID), comm: text(r.Comm[:]),
			})
			w.names.resolve(int(r.TGID))
		}
	})
	if err != nil {
		return err
	}
	w.compact()
	return w.lookAtProcesses(false)
}

func text(b []byte) string { return unix.ByteSliceToString(b) }

// compact drops the shortest intervals and spans if there are too many, but no interval of the last second, in which a
// window may still end.
func (w *Witness) compact() {
	if len(w.looks) > maxKept {
		recent := w.looks[len(w.looks)-1].Now - int64(time.Second)
		w.looks = forget(w.looks, func(l Look) int64 {
			if l.Now > recent {
				return l.Stolen + int64(time.Hour)
			}
			return l.Stolen
		}, func(l Look) {
			lo, hi := l.idleStolen()
			w.folded.n++
			w.folded.stolen += l.Stolen
			w.folded.lo += lo
			w.folded.hi += hi
		})
	}
	if len(w.spans) > maxKept {
		w.spans = forget(w.spans, span.held, func(span) { w.folded.spans++ })
	}
}

// forget keeps the half with the largest weights, in their original order.
func forget[T any](all []T, weight func(T) int64, forgotten func(T)) []T {
	weights := make([]int64, len(all))
	for i, v := range all {
		weights[i] = weight(v)
	}
	slices.Sort(weights)
	atLeast := weights[len(weights)/2]
	kept := all[:0]
	for _, v := range all {
		if weight(v) >= atLeast {
			kept = append(kept, v)
		} else {
			forgotten(v)
		}
	}
	return kept
}

// held returns for how long the task held the CPU, in nanoseconds without stolen time: from the midpoint between the
// looks around its beginning to the midpoint between those around its end.
func (s span) held() int64 { return max((s.last+s.after-s.first-s.before)/2-s.stolen, 0) }

// End returns the account of a window, whose edges lie between Begin and now. Looking must have ended.
func (w *Witness) End(from, to int64) (*Account, error) {
	a, _, err := w.end(from, to)
	return a, err
}

// Roll is like End, but for a window that is followed by another: what was seen after the end of this one is kept for
// the next. Looking continues.
func (w *Witness) Roll(from, to int64) (*Account, error) {
	a, states, err := w.end(from, to)
	if err != nil {
		return nil, err
	}
	w.looks = slices.DeleteFunc(w.looks, func(l Look) bool { return l.Now <= to })
	w.spans = slices.DeleteFunc(w.spans, func(s span) bool { return s.after <= to })
	w.begin, w.folded = states, folded{}
	return a, w.clearProcesses()
}

// end returns the account, and the states of the CPUs that it is based on.
func (w *Witness) end(from, to int64) (*Account, []state, error) {
	states, err := w.states()
	if err != nil {
		return nil, nil, err
	}
	if err := w.Drain(nil); err != nil {
		return nil, nil, err
	}
	if err := w.lookAtProcesses(true); err != nil {
		return nil, nil, err
	}
	if len(w.begin) != len(states) {
		return nil, nil, errors.New("closing a window of the witness that was not begun")
	}
	for _, s := range holding(states) {
		w.names.resolve(s.pid)
	}
	a := w.account(states, from, to)
	a.Noise.Busiest, err = w.busiest()
	return a, states, err
}

// holding returns the tasks that hold a CPU now, which have no record until they leave it.
func holding(states []state) (now []span) {
	for cpu, s := range states {
		if s.PID != 0 && s.Held > 0 {
			now = append(now, span{
				cpu: cpu, before: int64(s.Before), first: int64(s.First), last: int64(s.Last), after: int64(s.Last),
				stolen: int64(s.HeldStolen), pid: int(s.TGID), comm: text(s.Comm[:]),
			})
		}
	}
	return now
}

// account computes the account.
func (w *Witness) account(states []state, from, to int64) *Account {
	a := &Account{Noise: ledger.Noise{Witness: string(w.source), PeriodSeconds: w.period.Seconds()}}
	var stolen, lo, hi float64 // ns
	var recorded int64
	for _, l := range w.looks {
		recorded += l.Stolen
		part := l.part(from, to)
		if part == 0 {
			continue
		}
		least, most := l.idleStolen()
		stolen += part * float64(l.Stolen)
		lo += part * float64(least)
		hi += part * float64(most)
		a.Noise.Stalls = append(a.Noise.Stalls, ledger.Stall{
			CPU: l.CPU, From: l.Last, To: l.Now, Seconds: float64(l.Stolen) / 1e9, Cause: ledger.Hypervisor,
			Idle: least+most > l.Stolen,
		})
		a.Noise.LongestSeconds = max(a.Noise.LongestSeconds, float64(l.Stolen)/1e9)
	}
	recorded += w.folded.stolen
	stolen, lo, hi = stolen+float64(w.folded.stolen), lo+float64(w.folded.lo), hi+float64(w.folded.hi)
	var all, small int64
	for cpu, s := range states {
		b := w.begin[cpu]
		all += int64(s.Stolen - b.Stolen)
		small += int64(s.Small - b.Small)
		stolen += float64(s.Small - b.Small)
		lo += float64(s.SmallLo - b.SmallLo)
		hi += float64(s.SmallHi - b.SmallHi)
		a.Lost += s.Lost - b.Lost
		a.Looks += s.Looks - b.Looks
		if s.Late > b.Late { // s.Longest may be from before the window, and is then an upper bound
			a.Noise.Late += int(s.Late - b.Late)
			a.Noise.LongestLate = max(a.Noise.LongestLate, float64(s.Longest)/1e9)
		}
	}
	if a.Lost > 0 { // included in the program's sums but in no record
		lost := float64(max(all-small-recorded, 0))
		stolen += lost
		hi += lost
	}
	a.Stolen, a.IdleStolen, a.IdleStolenError = stolen/1e9, (lo+hi)/2e9, (hi-lo)/2e9
	a.Noise.StolenSeconds = a.Stolen
	a.Noise.Stalls, a.Noise.StallsOmitted = longest(a.Noise.Stalls)
	a.Noise.StallsOmitted += w.folded.n
	for _, s := range slices.Concat(w.spans, holding(states)) {
		if s.after <= from || s.before >= to {
			continue
		}
		a.Noise.Occupied = append(a.Noise.Occupied, ledger.Stall{
			CPU: s.cpu, From: s.before, To: s.after, Cause: ledger.Neighbour,
			Seconds: partOf(s.before, s.after, from, to) * float64(s.held()) / 1e9,
			PID:     s.pid, Comm: s.comm, Cgroup: w.names.cgroup(s.pid),
		})
	}
	a.Noise.Occupied, a.Noise.OccupiedMissed = longest(a.Noise.Occupied)
	a.Noise.OccupiedMissed += w.folded.spans
	return a
}

// longest keeps the longest stalls, in order of time, and returns how many it left out.
func longest(all []ledger.Stall) (kept []ledger.Stall, omitted int) {
	if len(all) > ledger.MaxStalls {
		slices.SortStableFunc(all, func(a, b ledger.Stall) int { return cmp.Compare(b.Seconds, a.Seconds) })
		omitted = len(all) - ledger.MaxStalls
		all = all[:ledger.MaxStalls]
	}
	slices.SortFunc(all, func(a, b ledger.Stall) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.CPU, b.CPU))
	})
	if all == nil {
		all = []ledger.Stall{}
	}
	return all, omitted
}
