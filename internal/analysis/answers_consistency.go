package analysis

import (
	"fmt"
	"math"
	"strings"

	"tare/internal/quantity"
	"tare/internal/record"
	"tare/internal/stats"
)

// promises is how much of a change each design of a store promises to show at once, by its name; a test holds them against the designs.
var promises = map[string]string{"naive": "per record", "pooled": "per record", "sized": "per record", "value": "per resource", "snapshot": "per change"}

// consistencyAnswers say first which stores lost or misled no connection, and then of each how many connections came where, and for how long old
// endpoints were seen.
func consistencyAnswers(s *Summary, t *table) []Answer {
	var all []Answer
	for _, at := range t.levels {
		verdict := &words{s: s, at: at}
		var clean, misled, lost []string
		var each []Answer
		for _, arm := range append([]string{record.Direct}, t.subjects()...) {
			w := &words{s: s, arm: arm, at: at}
			wrong, failed := verdict.find("wrong_connect_share", arm), verdict.find("failed_connect_share", arm)
			if wrong == nil || failed == nil {
				continue
			}
			name := s.storeName(arm)
			switch {
			case wrong.Value > 0:
				misled = append(misled, name)
			case failed.Value > 0:
				lost = append(lost, name)
			default:
				clean = append(clean, name)
			}
			w.consistency()
			each = append(each, w.answer())
		}
		if len(each) == 0 {
			continue
		}
		if len(t.levels) > 1 {
			verdict.add("At %s:", Level(at))
		}
		if len(clean) > 0 {
			verdict.add("With %s no connection came to an endpoint in neither the old nor the new set, and none failed.", join(clean))
		}
		if len(lost) > 0 {
			verdict.add("With %s none came to a wrong endpoint, and some failed.", join(lost))
		}
		if len(misled) > 0 {
			verdict.add("With %s some came to what is in neither set.", join(misled))
		}
		all = append(append(all, verdict.answer()), each...)
	}
	return all
}

// storeName is the name of an arm's design, without "(baseline)".
func (s *Summary) storeName(arm string) string {
	if arm == record.Direct && s.Baseline != "" {
		return s.Baseline
	}
	return arm
}

// consistency words what one arm did to connections.
func (w *words) consistency() {
	wrong := w.find("wrong_connect_share", w.arm)
	name := w.s.ArmName(w.arm)
	design, _, _ := strings.Cut(w.s.storeName(w.arm), ":")
	if p := promises[design]; p != "" {
		name += " (whole " + p + ")"
	}
	text := fmt.Sprintf("%s: of %s connections %s came to what is in neither the old nor the new set", name, quantity.Thousands(wrong.N), pooled(wrong))
	if kinds := w.wrongKinds(); kinds != "" {
		text += ": " + kinds
	}
	for _, m := range []struct{ metric, what string }{{"failed_connect_share", "failed"}, {"backward_connect_share", "came to an old endpoint after one before had come to a new one"}} {
		if e := w.find(m.metric, w.arm); e != nil {
			text += fmt.Sprintf("; %s %s", pooled(e), m.what)
		}
	}
	w.add("%s.", text)
	if e := w.find("old_endpoint_max_seconds", w.arm); e != nil {
		text := fmt.Sprintf("Old endpoints were seen for at most %s after a change began", said(e))
		if p50 := w.find("old_endpoint_p50_seconds", w.arm); p50 != nil {
			text += fmt.Sprintf(", and for %s in the median of the changes of which they were seen", said(p50))
		}
		w.add("%s.", text)
	}
	if e, each := w.find("replacements_per_second", w.arm), w.find("replacement_seconds", w.arm); e != nil && each != nil {
		w.add("It made %s changes a second, each in %s, beside %s connections a second.", digits(e), said(each), digits(w.find("throughput_per_second", w.arm)))
	}
}

// wrongKinds is what wrong connections came to, where there are any.
func (w *words) wrongKinds() string {
	var kinds []string
	for _, m := range []struct{ metric, what string }{
		{"stale_connect_share", "to endpoints of older sets"}, {"torn_connect_share", "to endpoints of no set, parts of two"}, {"missed_connect_share", "past the mesh, to the service's own address"},
	} {
		if e := w.find(m.metric, w.arm); e != nil && e.Value > 0 {
			kinds = append(kinds, quantity.Thousands(happened(e))+" "+m.what)
		}
	}
	return strings.Join(kinds, ", ")
}

// happened is how often what is pooled in an estimate was seen.
func happened(e *Estimate) int { return int(math.Round(e.Value * float64(e.N))) }

// pooled is how often something was seen, and how often that is with its interval. What was never seen is bounded by trials, for what is lost is
// often lost in bursts: where nothing is known of their size, only how many trials may have any.
func pooled(e *Estimate) string {
	const million = 1e6
	switch {
	case e.Value == 0 && e.Hi == nil:
		return "none"
	case e.Value == 0 && *e.Hi >= 0.999*stats.NoneBound(e.Trials):
		return fmt.Sprintf("none (fewer than %.0f %% of such trials have any, at 95 %%)", 100**e.Hi)
	case e.Value == 0 && *e.Hi < 1e-3:
		return fmt.Sprintf("none (below %.2g in a million, at 95 %%)", *e.Hi*million)
	case e.Value == 0:
		return fmt.Sprintf("none (below %s, at 95 %%)", quantity.Rough(*e.Hi, e.Unit))
	case e.Lo == nil || e.Hi == nil:
		return quantity.Thousands(happened(e))
	case e.Value < 1e-3:
		return fmt.Sprintf("%s (%s in a million)", quantity.Thousands(happened(e)), quantity.Interval(e.Value*million, *e.Lo*million, *e.Hi*million, quantity.Count))
	}
	return fmt.Sprintf("%s (%s)", quantity.Thousands(happened(e)), quantity.Interval(e.Value, *e.Lo, *e.Hi, e.Unit))
}

// digits is a large number in as many digits as say something.
func digits(e *Estimate) string {
	if e == nil {
		return "an unknown number of"
	}
	if e.Value < 1000 {
		return fmt.Sprintf("%.3g", e.Value)
	}
	unit := math.Pow(10, math.Floor(math.Log10(e.Value))-2)
	return quantity.Thousands(int(math.Round(e.Value/unit) * unit))
}

// join is a list as it is read.
func join(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}

// pathAnswers say for each store what its programs take of a connection at the ends of the scale, beside the baseline.
func pathAnswers(s *Summary, t *table) []Answer {
	var all []Answer
	for _, arm := range append([]string{record.Direct}, t.subjects()...) {
		w := &words{s: s, arm: arm}
		if w.path(t); len(w.text) > 0 {
			all = append(all, w.answer())
		}
	}
	return all
}

// path words the time of the programs at the first and the last level, and at how many levels it is above the baseline's.
func (w *words) path(t *table) {
	ends, above, below, n := w.against(t, "bpf_seconds_per_connection")
	if len(ends) == 0 {
		return
	}
	text := fmt.Sprintf("%s: a connection takes %s in the programs", w.s.ArmName(w.arm), join(ends))
	switch {
	case n == 0:
	case below == n:
		text += ", less than with " + w.s.Baseline + " at every level"
	case above > 0:
		text += fmt.Sprintf(", more than with %s at %d of %d levels", w.s.Baseline, above, n)
	default:
		text += fmt.Sprintf(", less than with %s at %d of %d levels and at no level more that is resolved", w.s.Baseline, below, n)
	}
	w.add("%s.", text)
	if e := w.find("connect_p50_seconds", w.arm); e != nil {
		w.add("The whole of connect() takes %s in the median at %s.", said(e), Level(w.at))
	}
}
