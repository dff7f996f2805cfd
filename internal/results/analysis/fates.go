package analysis

import (
	"maps"
	"slices"
	"strings"

	"tare/internal/experiment/load"
	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
	"tare/internal/scale/ledger"
)

// outcome sums up all attempts at one planned trial. All statements about losses are derived from it.
type outcome struct {
	whole  bool            // some attempt is valid in every metric
	failed *record.Reason  // set if every attempt failed: the cause and the error of the first
	slow   *kept           // set if the subject fell behind the asked rate in some attempt
	fates  map[string]fate // by metric that some attempt recorded
}

// fate says whether a metric of a planned trial is known and, if not, why. The zero value means that no attempt had
// enough samples for the metric.
type fate struct {
	told   bool            // some attempt has a valid value
	again  bool            // known only from a later attempt than the first
	failed bool            // every attempt failed
	others bool            // every attempt lost it to the hypervisor or to neighbours alone
	voids  []record.Reason // why it is unknown: all reasons in the first attempt that had the metric, or the failure
}

// kept holds the rate that a subject reached and the rate that was asked of it, per second.
type kept struct{ did, asked float64 }

// outcomeOf sums up the attempts at a planned trial. readings holds what the record of each attempt says, in the same
// order. told(metric) reports whether some attempt gives a valid value of the metric.
func outcomeOf(attempts []record.Trial, readings []reading, told func(metric string) bool) *outcome {
	o := &outcome{fates: map[string]fate{}}
	byOthers := map[string]int{} // attempts that lost a metric to others alone
	ran := false
	for i, trial := range attempts {
		o.whole = o.whole || valid(trial)
		if trial.Validity.Failed != "" {
			continue
		}
		ran = true
		names := slices.Collect(maps.Keys(readings[i].metrics))
		names = slices.AppendSeq(slices.AppendSeq(names, maps.Keys(trial.Counts)), maps.Keys(readings[i].lost))
		for _, name := range names {
			if told(name) {
				_, lost := readings[0].lost[name]
				o.fates[name] = fate{told: true, again: lost || !attempts[0].Validity.Stands(name)}
				continue
			}
			voids := voiding(trial, readings[i], name)
			if _, known := o.fates[name]; !known {
				o.fates[name] = fate{voids: voids}
			}
			if !slices.ContainsFunc(voids, ofTheTrial) {
				byOthers[name]++
			}
		}
		if k, behind := behind(trial); behind && o.slow == nil {
			o.slow = &k
		}
	}
	for name, n := range byOthers {
		f := o.fates[name]
		f.others = n == len(attempts)
		o.fates[name] = f
	}
	if !ran {
		v := attempts[0].Validity
		o.failed = &record.Reason{Message: v.Failed, Cause: v.Cause}
	}
	return o
}

// voiding returns the reasons why a trial cannot give a metric; there is always at least one.
func voiding(t record.Trial, r reading, metric string) []record.Reason {
	var reasons []record.Reason
	for _, r := range t.Validity.Reasons {
		if r.VoidsMetric(metric) {
			reasons = append(reasons, r)
		}
	}
	lost, known := r.lost[metric]
	switch {
	case len(reasons) > 0:
		return reasons
	case known:
		return []record.Reason{lost}
	}
	return []record.Reason{{Gate: reasonUnnamed, Cause: ledger.Unknown,
		Message: "the trial is invalid, and no gate is named"}}
}

// Reasons why a trial that tripped no gate has no value. They take the place of a gate.
const (
	reasonUnanswered = "unanswered"
	reasonAnswers    = "answers"
	reasonUnnamed    = "invalid"
)

// amongUnanswered is the reason if a quantile is above all the latencies that a trial measured. Such a trial does not
// count as one with too few samples, because those that do have a value are the better trials.
var amongUnanswered = record.Reason{Gate: reasonUnanswered, Cause: ledger.Unknown,
	Message: "the quantile is among the requests that were not answered"}

// answersUnknown is the reason if a metric needs the number of answers in the window (metric.Definition.Answers), and
// the version of Tare that recorded the trial did not count them. The slower a trial is, the more likely it lacks that
// number, so it does not count as one with too few samples either.
var answersUnknown = record.Reason{Gate: reasonAnswers, Cause: ledger.Unknown,
	Message: "a queue built up, and the version that recorded it did not count the answers in the window"}

// ofTheTrial reports whether a reason was caused by the trial itself, as far as the witness can tell, rather than by
// the hypervisor or neighbours.
func ofTheTrial(r record.Reason) bool {
	return r.Cause != ledger.Hypervisor && r.Cause != ledger.Neighbour
}

// behind returns the rates reached and asked, and whether the subject itself tripped the rate gate.
func behind(t record.Trial) (kept, bool) {
	if !slices.ContainsFunc(t.Validity.Reasons,
		func(r record.Reason) bool { return r.Gate == "rate" && r.Cause == ledger.Subject }) {
		return kept{}, false
	}
	var k kept
	for _, r := range t.Loads {
		if r.Mode != load.Open {
			continue
		}
		if _, known := r.Answers(); !known {
			return kept{}, false // the rate of such an older record counts answers that came after the window
		}
		k.did, k.asked = k.did+r.Rate, k.asked+r.TargetRate
	}
	return k, k.asked > 0
}

// fates returns the fate of a metric in each block in which the arm ran at a level.
func (t *Table) fates(key pool) map[int]fate {
	all := map[int]fate{}
	for block, o := range t.outcomes[levelArm{key.level, key.arm}] {
		all[block] = o.fates[key.metric]
		if o.failed != nil {
			all[block] = fate{failed: true, voids: []record.Reason{*o.failed}}
		}
	}
	return all
}

// why names the gates that voided the metric, with the causes that tripped them, or tooFew, "failed" or "invalid". It
// returns an empty string if the metric is known.
func (f fate) why() string {
	switch {
	case f.told:
		return ""
	case f.failed:
		return "failed"
	case len(f.voids) == 0:
		return tooFew
	}
	var gates []string
	for _, r := range f.voids {
		gate := r.Gate
		if gate == "" || gate == reasonUnnamed {
			return reasonUnnamed
		}
		if r.Cause != "" {
			gate += " (" + string(r.Cause) + ")"
		}
		gates = append(gates, gate)
	}
	slices.Sort(gates)
	return strings.Join(slices.Compact(gates), ", ")
}

// losses returns the first reason of each trial of an arm at a level that lost a metric, in the order of blocks.
// Trials with too few samples are left out. For an empty metric it returns only the trials that failed in every
// attempt.
func (t *Table) losses(key pool) []record.Reason {
	var all []record.Reason
	fates := t.fates(key)
	for _, f := range lists.ByKey(fates) {
		if !f.told && len(f.voids) > 0 {
			all = append(all, f.voids[0])
		}
	}
	return all
}

// count returns the number of blocks, among those in which the arm ran at the level, in which the fate of the metric
// meets the given condition.
func (t *Table) count(key pool, such func(fate) bool) (n int) {
	for _, f := range t.fates(key) {
		if such(f) {
			n++
		}
	}
	return n
}

func told(f fate) bool { return f.told }
