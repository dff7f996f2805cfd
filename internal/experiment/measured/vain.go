package measured

import (
	"slices"

	"tare/internal/experiment/record"
)

// Futile is the number of consecutive repeats that lost a metric after which no trial is repeated for that metric.
const Futile = 6

// Vain counts, for each metric and over the whole run, consecutive repeats that also lost the metric. Under a constant
// disturbance nearly all attempts fail in the same way, and repeating them takes long and yields nothing; an
// occasional loss is worth another attempt. Only gates count here, never measured values.
type Vain map[string]int

// Worth reports whether a further attempt at a trial that lost these metrics is worthwhile, for at least one of them.
func (v Vain) Worth(lost []string) bool {
	return slices.ContainsFunc(lost, func(name string) bool { return v[name] < Futile })
}

// GaveUp reports whether there is a metric for which no trial is repeated.
func (v Vain) GaveUp() bool {
	for _, n := range v {
		if n >= Futile {
			return true
		}
	}
	return false
}

// Saw counts an attempt that has ended. A repeat that does not lose a metric resets the metric's count. Once repeats
// are futile for a metric, only a first attempt that does not lose it resets the count.
func (v Vain) Saw(t *record.Trial) {
	lost := LostToOthers(t)
	if t.Attempt > 0 {
		for _, name := range lost {
			v[name]++
		}
	}
	if t.Validity.Failed != "" || slices.Contains(lost, Everything) {
		return // such an attempt shows nothing
	}
	for name, n := range v {
		if !slices.Contains(lost, name) && (t.Attempt > 0) != (n >= Futile) {
			v[name] = 0
		}
	}
}
