package calibrate

import (
	"cmp"
	"errors"
	"os"
	"slices"
	"strings"
	"time"

	"tare/internal/lib/lists"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/feature"
	"tare/internal/scale/host/witness"
	"tare/internal/scale/ledger"
)

// counters is the name of the witness if disturbances were read from /proc/stat, because no witness ran.
const counters = "proc-stat"

// Culprit is a source of disturbance: the processes of one name in one control group.
type Culprit struct {
	Comm   string  `json:"comm"`
	Cgroup string  `json:"cgroup"` // empty if it could not be read
	Part   float64 `json:"part"`   // fraction of the machine's CPU time that they used
}

// maxCulprits is the maximum number of culprits that are listed for a weight.
const maxCulprits = 3

// leastCulprit is the minimum fraction of the machine's CPU time that a culprit used.
const leastCulprit = 0.005

// observed holds what the witness saw in one window.
type observed struct {
	noise   *ledger.Noise // nil: there was no witness
	seconds float64       // length of the window
}

// disturbance holds how much of the machine others used while a weight was planted.
type disturbance struct {
	witness  string  // the witness's clock; "proc-stat" if there was no witness
	capacity float64 // CPU seconds of all windows together
	stolen   float64 // CPU seconds that the hypervisor took
	foreign  float64 // CPU seconds of tasks that do not belong to the calibration
	culprits []Culprit
}

// owner reports whether a process belongs to the calibration.
type owner func(pid int, cgroup string) bool

// ours reports whether a process is this one or a planted one. A planted process that ended before its control group
// was read is recognized by its PID.
func (b *bench) ours(pid int, group string) bool {
	if pid == os.Getpid() || b.children[pid] {
		return true
	}
	return b.tree != nil && group != "" && cgroup.Within(group, b.tree.Path())
}

// disturbanceOf sums up what the witness saw. ok is false if some window had no witness, or there was no window.
func disturbanceOf(windows []observed, cpus int, ours owner) (d disturbance, ok bool) {
	type who struct{ comm, cgroup string }
	seconds := map[who]float64{}
	for _, w := range windows {
		if w.noise == nil {
			return disturbance{}, false
		}
		d.witness = w.noise.Witness
		d.capacity += w.seconds * float64(cpus)
		d.stolen += w.noise.StolenSeconds
		seen, held := 0.0, 0.0
		for _, o := range w.noise.Busiest {
			if !ours(o.PID, o.Cgroup) && !ledger.KernelThread(o.Comm) {
				seen += o.Seconds
				seconds[who{o.Comm, o.Cgroup}] += o.Seconds
			}
		}
		for _, s := range w.noise.Occupied {
			if foreign(s, ours) {
				held += s.Seconds
			}
		}
		d.foreign += max(seen, held)
	}
	if d.capacity <= 0 {
		return disturbance{}, false
	}
	for k, s := range seconds {
		if part := s / d.capacity; part >= leastCulprit {
			d.culprits = append(d.culprits, Culprit{Comm: k.comm, Cgroup: k.cgroup, Part: part})
		}
	}
	slices.SortFunc(d.culprits, func(a, b Culprit) int {
		return cmp.Or(cmp.Compare(b.Part, a.Part), strings.Compare(a.Comm, b.Comm), strings.Compare(a.Cgroup, b.Cgroup))
	})
	d.culprits = d.culprits[:min(len(d.culprits), maxCulprits)]
	return d, true
}

// foreign reports whether a task of an unrelated program caused a stall. Kernel threads do not count, because they work
// on behalf of other tasks, perhaps the calibration's own.
func foreign(s ledger.Stall, ours owner) bool {
	return s.Cause == ledger.Neighbour && !ours(s.PID, s.Cgroup) && !ledger.KernelThread(s.Comm)
}

// span is a period of time, in ns by CLOCK_MONOTONIC.
type span struct{ from, to int64 }

// anyCPU stands for all CPUs.
const anyCPU = -1

// spansOf returns the periods in which a CPU, or any CPU if cpu is anyCPU, stalled or was held by an unrelated task for
// at least the given seconds. The periods are disjoint and in order. known is false if there was no witness or it saw
// more stalls than it could keep.
func spansOf(n *ledger.Noise, ours owner, cpu int, least float64) (spans []span, known bool) {
	if n == nil || n.StallsOmitted > 0 || n.OccupiedMissed > 0 {
		return nil, false
	}
	merged := n.Spans(func(s ledger.Stall) bool {
		return (cpu == anyCPU || s.CPU == cpu) && s.Seconds >= least && (s.Cause == ledger.Hypervisor || foreign(s, ours))
	})
	spans = append(spans, lists.Map(merged, func(s [2]int64) span { return span{s[0], s[1]} })...)
	return spans, true
}

// touched reports whether one of several spans, disjoint and in order, overlaps a period of time.
func touched(spans []span, from, to int64) bool {
	i, _ := slices.BinarySearchFunc(spans, from, func(s span, at int64) int {
		if s.to <= at {
			return -1
		}
		return 1
	})
	return i < len(spans) && spans[i].from < to
}

// watched calls do while a witness runs. If no witness can run on this machine, nothing is observed.
func watched[T any](do func() (T, error)) (did T, o observed, err error) {
	w, err := witness.Start(witness.Options{})
	switch {
	case errors.Is(err, feature.ErrMissing):
		did, err = do()
		return did, o, err
	case err != nil:
		return did, o, err
	}
	begin := time.Now()
	did, done := do()
	o.noise, err = w.Stop()
	o.seconds = time.Since(begin).Seconds()
	return did, o, errors.Join(done, err)
}

// observe keeps what the witness saw, for the current weight.
func (b *bench) observe(o observed) { b.seen = append(b.seen, o) }
