// Package calibrate measures known quantities with Tare, which comments here call the scale, and reports how far off it
// is: a clock against another clock, a server with known delays, programs whose run time was measured by other means,
// processes that know how much CPU time and memory they used.
//
// Each planted weight runs in separate processes; the true value never comes from the reading that it is compared
// with. A weight that is out of its tolerance while others used the machine says nothing about the scale: it is
// repeated, and then marked as disturbed.
package calibrate

import (
	"math"
	"time"

	"tare/internal/scale/ledger"
)

// Schema names the JSON form of a Report.
const Schema = "tare.calibration/v1"

// Report is one calibration.
type Report struct {
	Schema   string    `json:"schema"`
	Tare     string    `json:"tare"` // version
	Started  time.Time `json:"started"`
	Seconds  float64   `json:"seconds"`
	Quick    bool      `json:"quick"`
	Machine  Machine   `json:"machine"`
	Weights  []Weight  `json:"weights"`
	Passed   int       `json:"passed"`
	Failed   int       `json:"failed"`
	Unjudged int       `json:"unjudged"` // disturbed weights
	Missing  int       `json:"missing"`  // weights that this machine cannot measure
	Fault    string    `json:"fault,omitempty"`
	Warnings []string  `json:"warnings"`
}

// Machine describes the calibrated machine.
type Machine struct {
	Hostname    string `json:"hostname"`
	Kernel      string `json:"kernel"`
	CPUModel    string `json:"cpu_model"`
	CPUs        int    `json:"cpus"`
	Virtual     string `json:"virtualization"`
	Clocksource string `json:"clocksource"`
	CgroupMode  string `json:"cgroup_mode"`
	Sampler     string `json:"sampler"`
}

// Weight is one known quantity and what the scale measured.
type Weight struct {
	Section   string    `json:"section"`
	Name      string    `json:"name"`
	Unit      string    `json:"unit"`     // as in package quantity
	True      *float64  `json:"true"`     // nil if there is no truth to compare with
	Measured  *float64  `json:"measured"` // nil if it could not be measured; Note says why
	Lo        *float64  `json:"lo"`       // lower end of the 95 % interval, if the reading is an estimate
	Hi        *float64  `json:"hi"`
	Error     *float64  `json:"error"` // measured - true, in the unit
	Tolerance Tolerance `json:"tolerance"`
	Verdict   Verdict   `json:"verdict"`
	// ClosedLoop is the reading of a clock that starts when a request is sent instead of when it should have been sent,
	// and so misses delays before that.
	ClosedLoop *float64 `json:"closed_loop,omitempty"`
	Planted    string   `json:"planted"` // what was planted, and where the truth comes from
	Note       string   `json:"note,omitempty"`
	Tries      int      `json:"tries"`
	// Others is the fraction of the machine that others used meanwhile, the hypervisor among them.
	Others float64 `json:"others"`
	Stolen float64 `json:"stolen"` // fraction of the machine that the hypervisor took meanwhile
	// Stood is set for latencies: the fraction of wake-ups, on all CPUs, that were late by more than 1 ms.
	Stood   float64 `json:"stood,omitempty"`
	Longest float64 `json:"longest,omitempty"` // delay of the latest of these, in seconds
	// Cause says whether the hypervisor or other tasks disturbed a weight that was not judged. Culprits are the other
	// tasks that used the most CPU time meanwhile.
	Cause    ledger.Cause `json:"cause,omitempty"`
	Culprits []Culprit    `json:"culprits,omitempty"`
	// Witness is the source of Others and Stolen: steal-clock or steal-ticks, as in a ledger's noise, or proc-stat if
	// no witness looked.
	Witness string `json:"witness"`
	// Undisturbed is the number of planted things, out of Of, that decided the weight because nothing disturbed them
	// according to the witness. If there were too few of these, all decided it: Undisturbed is then equal to Of for
	// starts, and 0 for single stalls. Of is 0 for weights that are not judged in this way.
	Undisturbed int    `json:"undisturbed,omitempty"`
	Of          int    `json:"of,omitempty"`
	Parts       string `json:"parts,omitempty"` // what Of counts: starts, single stalls

	sensitive bool // other load on the machine can spoil it
	chancy    bool // an estimate that chance alone can put out of tolerance, so the majority of the tries decides
	atLeast   bool // a reading above the truth is no error
	// spoiled reports whether stalls of the machine explain how far off the weight is; nil: there is no such test.
	spoiled func(off float64, s stood) bool
}

// Tolerance is the largest allowed error: the larger of Absolute and Part of the true value, plus HalfWidths of the
// reading's own interval if it is an estimate. If all are 0, the weight is reported and not judged.
type Tolerance struct {
	Absolute   float64 `json:"absolute"` // in the unit of the weight
	Part       float64 `json:"part"`
	HalfWidths float64 `json:"half_widths"`
}

// Allows returns the largest error that is within the tolerance.
func (t Tolerance) Allows(w Weight) float64 {
	allowed := t.Absolute
	if w.True != nil {
		allowed = max(allowed, t.Part*math.Abs(*w.True))
	}
	if w.Lo != nil && w.Hi != nil {
		allowed += t.HalfWidths * (*w.Hi - *w.Lo) / 2
	}
	return allowed
}

// Verdict is the result for a weight.
type Verdict string

// The verdicts.
const (
	Pass      Verdict = "pass"
	Fail      Verdict = "fail"
	Disturbed Verdict = "disturbed" // out of tolerance while others used the machine: not judged
	Told      Verdict = "told"      // information only: there is no truth to compare it with
	Missing   Verdict = "missing"   // this machine cannot measure it
)

// quiet is the fraction of the machine that others may use without counting as a disturbance.
const quiet = 0.05

// judge sets the error and the verdict.
func (w *Weight) judge(meanwhile stood) {
	switch {
	case w.Measured == nil:
		w.Verdict = Missing
		return
	case w.True == nil || w.Tolerance == (Tolerance{}):
		w.Verdict = Told
	}
	if w.True != nil {
		w.Error = new(*w.Measured - *w.True)
	}
	if w.Verdict == Told {
		return
	}
	off := math.Abs(*w.Error)
	if w.atLeast && *w.Error > 0 {
		off = 0
	}
	switch {
	case off <= w.Tolerance.Allows(*w): // false if off is NaN
		w.Verdict = Pass
	case w.sensitive && max(w.Others, w.Stolen) > quiet || w.spoiled != nil && w.spoiled(off, meanwhile):
		w.Verdict = Disturbed
		w.Cause = ledger.Neighbour
		if 2*w.Stolen > w.Others {
			w.Cause = ledger.Hypervisor
		}
	default:
		w.Verdict = Fail
	}
}

// add adds weights and counts their verdicts.
func (r *Report) add(ws ...Weight) {
	for _, w := range ws {
		switch w.Verdict {
		case Pass:
			r.Passed++
		case Fail:
			r.Failed++
		case Disturbed:
			r.Unjudged++
		case Missing:
			r.Missing++
		}
		r.Weights = append(r.Weights, w)
	}
}

// known returns a weight with a truth and a reading.
func known(name, unit string, truth, measured float64, t Tolerance, planted string) Weight {
	return Weight{Name: name, Unit: unit, True: &truth, Measured: &measured, Tolerance: t, Planted: planted}
}

// told returns a weight that is information only: it has a reading but no truth.
func told(name, unit string, measured float64, planted string) Weight {
	return Weight{Name: name, Unit: unit, Measured: &measured, Planted: planted}
}

// missing returns a weight that could not be measured here.
func missing(name, unit, planted, why string) Weight {
	return Weight{Name: name, Unit: unit, Planted: planted, Note: why}
}

func (w Weight) within(lo, hi float64) Weight { w.Lo, w.Hi = &lo, &hi; return w }
func (w Weight) noted(note string) Weight     { w.Note = note; return w }

// by records how many of the planted things decided the weight, out of how many, and what they are.
func (w Weight) by(undisturbed, of int, parts string) Weight {
	w.Undisturbed, w.Of, w.Parts = undisturbed, of, parts
	return w
}

// certain reports whether the weight failed and neither noise nor chance can be the reason: repeats cannot change it.
func (w Weight) certain() bool { return w.Verdict == Fail && !w.sensitive && !w.chancy }

func (w Weight) fragile() Weight { w.sensitive = true; return w }

// estimated marks a reading that chance can put out of tolerance. Nothing else excuses it, unless a test is set with
// Weight.only.
func (w Weight) estimated() Weight { w.chancy = true; return w }

// lower marks a truth that is a lower bound: a higher reading is no error.
func (w Weight) lower() Weight { w.atLeast = true; return w }

// only sets the test for disturbances. This test alone then decides whether the weight was disturbed, however much
// others use the machine.
func (w Weight) only(spoiled func(off float64, s stood) bool) Weight { w.spoiled = spoiled; return w }

// unless marks a weight as one that other load can spoil (sensitive), and adds a test for whether a disturbance
// explains the error.
func (w Weight) unless(spoiled func(off float64, s stood) bool) Weight {
	w.sensitive, w.spoiled = true, spoiled
	return w
}
