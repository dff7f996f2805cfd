package measured

import (
	"slices"

	"tare/internal/experiment/record"
)

// Futile is how many further attempts in a row must have lost a metric as well for none to be made for its sake.
const Futile = 6

// Vain counts, for each metric, the further attempts in a row, over the whole run, that lost it as well. Beside a
// neighbour that never rests nearly all lose the same, and a run that makes them takes longer and learns nothing; what
// is lost now and then is worth another. It goes by gates and never by what was measured.
type Vain map[string]int

// Worth reports whether a further attempt at a trial that lost these metrics is not futile: for one of them at least.
func (v Vain) Worth(lost []string) bool {
	return slices.ContainsFunc(lost, func(name string) bool { return v[name] < Futile })
}

// GaveUp reports whether there is a metric for whose sake no trial is run again.
func (v Vain) GaveUp() bool {
	for _, n := range v {
		if n >= Futile {
			return true
		}
	}
	return false
}

// Saw counts an attempt that ended. Once it was futile for a metric, only the first attempt at another trial shows that
// trials can tell it again.
func (v Vain) Saw(t *record.Trial) {
	lost := LostToOthers(t)
	if t.Attempt > 0 {
		for _, name := range lost {
			v[name]++
		}
	}
	if t.Validity.Failed != "" || slices.Contains(lost, Everything) {
		return // it shows nothing
	}
	for name, n := range v {
		if !slices.Contains(lost, name) && (t.Attempt > 0) != (n >= Futile) {
			v[name] = 0
		}
	}
}
