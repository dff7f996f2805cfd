package record

import "slices"

// Stands reports whether the trial's value of a metric is valid: the trial did not fail, and no gate that it tripped
// voids the metric. It does not check whether the trial has the metric at all.
func (v Validity) Stands(metric string) bool {
	switch {
	case v.Failed != "":
		return false
	case v.Valid:
		return true
	}
	_, voided := v.VoidedBy(metric)
	return !voided && len(v.Reasons) > 0 // invalid for an unknown reason: no metric is valid
}

// VoidedBy returns the first reason that voids a metric, and false if there is none.
func (v Validity) VoidedBy(metric string) (Reason, bool) {
	i := slices.IndexFunc(v.Reasons, func(r Reason) bool { return r.VoidsMetric(metric) })
	if i < 0 {
		return Reason{}, false
	}
	return v.Reasons[i], true
}

// Voided returns how many metrics the reasons void, and whether one of them voids all.
func (v Validity) Voided() (metrics int, all bool) {
	names := map[string]bool{}
	for _, r := range v.Reasons {
		all = all || r.Voids == nil
		for _, name := range r.Voids {
			names[name] = true
		}
	}
	return len(names), all
}

// VoidsMetric reports whether the reason voids a metric. A reason without a list, of an old record, voids all.
func (r Reason) VoidsMetric(metric string) bool {
	return r.Voids == nil || slices.Contains(r.Voids, metric)
}
