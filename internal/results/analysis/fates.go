package analysis

import (
	"maps"
	"slices"
	"strings"

	"tare/internal/experiment/load"
	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
	"tare/internal/scale/ledger"
)

// outcome sums up all attempts at one planned trial. All statements about losses are derived from it.
type outcome struct {
	whole  bool            // an attempt is valid in everything
	failed *record.Reason  // every attempt failed: the cause in the first, with its error as the message
	slow   *kept           // the subject did not keep up in an attempt
	fates  map[string]fate // of each metric that an attempt had
}

// fate says whether a metric of a planned trial is known. The zero fate: no attempt had enough samples for it.
type fate struct {
	told   bool
	again  bool            // known from a later attempt, not from the first
	failed bool            // every attempt did
	others bool            // why it is unknown: what voids it in the first attempt that had it, or the failure
	voids  []record.Reason // why it is unknown: all that void it in the first attempt that had it, or the failure
}

// kept compares what a subject that did not keep up did with what was asked of it, per second.
type kept struct{ did, asked float64 }

// outcomeOf sums up the attempts at a planned trial. told reports whether some attempt gives a metric.
func outcomeOf(attempts []record.Trial, defined metric.Set, told func(metric string) bool) *outcome {
	o := &outcome{fates: map[string]fate{}}
	byOthers := map[string]int{} // attempts
	ran := false
	for _, trial := range attempts {
		o.whole = o.whole || valid(trial)
		if trial.Validity.Failed != "" {
			continue
		}
		ran = true
		metrics, _ := Metrics(trial, defined) // histograms that cannot be read are counted elsewhere
		for _, name := range slices.AppendSeq(slices.Collect(maps.Keys(metrics)), maps.Keys(trial.Counts)) {
			if told(name) {
				o.fates[name] = fate{told: true, again: !attempts[0].Validity.Stands(name)}
				continue
			}
			voids := voiding(trial, name)
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

// voiding are the reasons for which a trial cannot tell a metric; there is always one.
func voiding(t record.Trial, metric string) []record.Reason {
	var reasons []record.Reason
	for _, r := range t.Validity.Reasons {
		if r.VoidsMetric(metric) {
			reasons = append(reasons, r)
		}
	}
	if len(reasons) == 0 {
		return []record.Reason{{Cause: ledger.Unknown, Message: "the trial is invalid, and no gate is named"}}
	}
	return reasons
}

// ofTheTrial reports whether a reason was caused by neither the hypervisor nor neighbours, as far as the witness can
// tell.
func ofTheTrial(r record.Reason) bool {
	return r.Cause != ledger.Hypervisor && r.Cause != ledger.Neighbour
}

// behind gives what a subject did of what was asked for, in a trial in which it tripped the gate on the rate itself.
func behind(t record.Trial) (kept, bool) {
	if !slices.ContainsFunc(t.Validity.Reasons,
		func(r record.Reason) bool { return r.Gate == "rate" && r.Cause == ledger.Subject }) {
		return kept{}, false
	}
	var k kept
	for _, r := range t.Loads {
		if r.Mode == load.Open {
			k.did, k.asked = k.did+r.Rate, k.asked+r.TargetRate
		}
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

// why names what a metric was lost to: the gates, with the causes that tripped them. It is empty if the metric is
// known.
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
		if gate == "" {
			return "invalid"
		}
		if r.Cause != "" {
			gate += " (" + string(r.Cause) + ")"
		}
		gates = append(gates, gate)
	}
	slices.Sort(gates)
	return strings.Join(slices.Compact(gates), ", ")
}

// losses returns the first reason for each trial, in the order of blocks, in which an arm at a level has no value of a
// metric. Metrics with too few samples are left out. For an empty metric, it returns what trials failed of in every
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

// count is in how many of the blocks in which the arm ran at the level a metric had such a fate.
func (t *Table) count(key pool, such func(fate) bool) (n int) {
	for _, f := range t.fates(key) {
		if such(f) {
			n++
		}
	}
	return n
}

func told(f fate) bool { return f.told }
