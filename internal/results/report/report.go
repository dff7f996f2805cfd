// Package report writes summaries, comparisons, plans and ledgers for people and for programs. All formats show the
// same numbers. None computes anything new, but the benchmark format and the charts in HTML also use values of single
// trials.
package report

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"tare/internal/experiment/load"
	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/lib/stats"
	"tare/internal/results/analysis"
)

// section is a table of the estimates at one level of the factors.
type section struct {
	title string // empty if there are no factors
	rows  []row
}

// row is one arm's estimate of one metric. Only the first row of a metric has its name. The HTML template uses the
// exported fields.
type row struct {
	Metric, Arm, Value, Difference, Visible string

	Takes string // what would resolve a small difference; empty: no forecast
	Muted bool   // nothing was resolved
	first bool   // the metric is a headline
}

// header returns the head of the table.
func header(s *analysis.Summary) row {
	return row{
		Arm: "arm", Value: "value", Difference: "difference to " + baseline(s), Visible: "found in 80 %",
		Takes: "to see " + analysis.Forecast{Part: analysis.ForecastPart}.Size(),
	}
}

// baseline returns the name of the arm with which the others are compared.
func baseline(s *analysis.Summary) string { return cmp.Or(s.Baseline, record.Direct) }

func (r row) cells() []string {
	return []string{r.Metric, r.Arm, r.Value, r.Difference, r.Visible, r.Takes}
}

// sections returns the tables in the order of levels. The twin has no row if there are other arms, because the column
// "found in 80 %" allows for its noise.
func sections(s *analysis.Summary) []section {
	estimates := slices.Clone(s.Estimates)
	slices.SortStableFunc(estimates, func(a, b analysis.Estimate) int { return cmp.Compare(a.Rank, b.Rank) })
	var all []section
	at := map[string]int{}
	for _, e := range s.Estimates { // sections are ordered by level, whatever the order of metrics
		title := titleOf(s, e)
		if _, seen := at[title]; !seen {
			at[title] = len(all)
			all = append(all, section{title: title})
		}
	}
	for _, e := range withoutTwin(estimates, armOfEstimate) {
		sec := &all[at[titleOf(s, e)]]
		sec.rows = append(sec.rows, rowOf(s, e))
	}
	for _, sec := range all {
		for i := len(sec.rows) - 1; i > 0; i-- { // from the end, so that the row before still has its name
			if sec.rows[i].Metric == sec.rows[i-1].Metric {
				sec.rows[i].Metric = ""
			}
		}
	}
	return all
}

// withoutTwin removes the elements of the baseline's twin if there are elements of other arms.
func withoutTwin[T any](all []T, arm func(T) string) []T {
	if !slices.ContainsFunc(all, func(x T) bool { a := arm(x); return a != record.Direct && a != record.AA }) {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(x T) bool { return arm(x) == record.AA })
}

func armOfEstimate(e analysis.Estimate) string { return e.Arm }

func titleOf(s *analysis.Summary, e analysis.Estimate) string {
	return analysis.Capital(s.At(e.Factors))
}

func rowOf(s *analysis.Summary, e analysis.Estimate) row {
	r := row{
		Metric: quantity.Label(e.Metric), Arm: armOf(s, e), Value: e.Written(e.Unit),
		first: slices.Contains(s.Headlines, e.Metric),
	}
	if e.Value == 0 && e.Method == analysis.PooledMethod && e.Hi != nil {
		r.Value = fmt.Sprintf("none in %d (below %s)", e.N, quantity.Rough(*e.Hi, e.Unit))
	}
	if fewer := fewerBlocks(e); fewer != "" {
		r.Value += " (" + fewer + ")"
	}
	d := e.Difference
	if d == nil {
		return r
	}
	switch {
	case e.Withheld != "":
		r.Difference, r.Muted = "withheld", true
	case d.Resolved:
		r.Difference = quantity.Delta(d.Value, *d.Lo, *d.Hi, e.Unit)
		if e.Ratio != nil {
			r.Difference += fmt.Sprintf(" (%s)", percent(e.Ratio.Value))
		}
	case d.BaselineWithheld():
		r.Difference, r.Muted = "not resolved", true
	case d.Zero():
		r.Difference, r.Muted = "the same", true
	case d.Lo == nil:
		r.Difference = quantity.DeltaValue(d.Value, e.Unit) + ", no interval"
	default:
		r.Difference, r.Muted = "not resolved", true
	}
	if d.ToResolve != nil {
		r.Takes = d.ToResolve.String()
	}
	if d.Found != nil {
		r.Visible = quantity.Rough(*d.Found, e.Unit)
		if *d.Found == 0 && baselineIsZero(s, e) {
			r.Visible = "-" // the baseline has none of the metric, so the noise that could hide a difference is unknown
		}
	}
	return r
}

// armOf returns the name of the arm of an estimate, followed by the component if the estimate is of one.
func armOf(s *analysis.Summary, e analysis.Estimate) string {
	return strings.TrimSpace(s.ArmName(e.Arm) + " " + e.Component)
}

// fewerBlocks says how many blocks an estimate rests on, and whether it is withheld. It returns an empty string if the
// estimate is not withheld and rests on all blocks that were run.
func fewerBlocks(e analysis.Estimate) string {
	var words []string
	if e.Withheld != "" {
		words = append(words, "withheld")
	}
	if e.Blocks > 0 && e.Blocks < e.Planned {
		words = append(words, fmt.Sprintf("%d of %d blocks", e.Blocks, e.Planned))
	}
	return strings.Join(words, ": ")
}

// baselineIsZero reports whether the metric is 0 in the baseline, as the run time of a subject's programs is.
func baselineIsZero(s *analysis.Summary, e analysis.Estimate) bool {
	base := lists.Find(s.Estimates, func(b *analysis.Estimate) bool {
		return b.Arm == record.Direct && b.Metric == e.Metric && b.Component == e.Component &&
			maps.Equal(b.Factors, e.Factors)
	})
	return base != nil && base.Value == 0
}

// percent formats a ratio as a change: 1.14 is +14 %.
func percent(ratio float64) string {
	switch change := 100 * (ratio - 1); {
	case change >= 1000:
		return quantity.Value(ratio, quantity.Count) + " times"
	case change <= -99.5 && ratio > 1e-9: // -100 % would be nothing left
		return fmt.Sprintf("%.*f %%", int(math.Ceil(-math.Log10(100*ratio))), change)
	case change >= 10 || change <= -10:
		return fmt.Sprintf("%+.0f %%", change)
	default:
		return fmt.Sprintf("%+.2g %%", change)
	}
}

// notes returns what to know before quoting an estimate. Each note appears once, with the estimates that it is about.
func notes(s *analysis.Summary, run record.Run) (all []string) {
	var names lists.Groups[string, string] // by text
	all = absent(s)
	for _, e := range s.Estimates {
		name := quantity.Label(e.Metric) + " of " + armOf(s, e)
		if len(e.Factors) > 0 {
			name += " " + s.At(e.Factors)
		}
		if e.Withheld != "" {
			all = append(all, name+" is withheld: "+e.Withheld)
		}
		for _, n := range e.Notes {
			names.Add(n, name)
		}
		if d := e.Difference; d != nil && strings.HasPrefix(d.Unresolved, analysis.LagReason) {
			all = append(all, name+" is not resolved: "+d.Unresolved)
		}
	}
	for n, of := range names.All() {
		all = append(all, strings.Join(analysis.FirstOf(of, maxNoted), ", ")+": "+n)
	}
	quantiles := run.Defined().Quantiles(load.Latency)
	for i := 1; i < len(quantiles); i++ {
		if withheld(s, quantiles[i-1].Name, quantiles[i].Name) {
			all = append(all, fmt.Sprintf("%s is withheld: a trial has fewer than %g requests beyond it",
				quantity.Label(quantiles[i].Name), stats.MinBeyond(quantiles[i].Quantile)))
		}
	}
	return all
}

// absent names the arms that did not run, with the reasons.
func absent(s *analysis.Summary) (all []string) {
	for arm, why := range lists.ByKey(s.Absent) {
		all = append(all, fmt.Sprintf("the arm %s did not run: %s", arm, why))
	}
	return all
}

// maxNoted is the maximum number of estimates that a note names.
const maxNoted = 3

// withheld reports whether there are estimates of the first quantile and none of the second, although no gate voided
// the second.
func withheld(s *analysis.Summary, have, lack string) bool {
	is := func(metric string) func(analysis.Estimate) bool {
		return func(e analysis.Estimate) bool { return e.Metric == metric }
	}
	return slices.ContainsFunc(s.Estimates, is(have)) && !slices.ContainsFunc(s.Estimates, is(lack)) &&
		!slices.ContainsFunc(s.Missing, func(m analysis.Missing) bool { return m.Metric == lack })
}

// intervals describes how the intervals were computed, with the confidence that each method reached.
func intervals(s *analysis.Summary) string {
	reached := map[string][2]float64{}
	add := func(name string, confidence float64) {
		if confidence > 0 {
			r, seen := reached[name]
			if !seen {
				r = [2]float64{confidence, confidence}
			}
			reached[name] = [2]float64{min(r[0], confidence), max(r[1], confidence)}
		}
	}
	for _, e := range s.Estimates {
		add("values by "+e.Method, e.Confidence)
		if d := e.Difference; d != nil {
			add("differences by "+d.Method, d.Confidence)
		}
	}
	for _, m := range slices.Concat(s.Models, s.ComponentModels) {
		if m.HasIntervals() {
			add("fitted lines by "+m.Method, stats.Confidence)
		}
	}
	if len(reached) == 0 {
		return "none"
	}
	var said []string
	for name, r := range lists.ByKey(reached) {
		text := fmt.Sprintf("%s, %.1f", name, 100*r[0])
		if r[1] > r[0] {
			text += fmt.Sprintf(" to %.1f", 100*r[1])
		}
		said = append(said, text+" %")
	}
	return strings.Join(said, "; ")
}

// models describes the fitted lines that have a resolved effect of a factor, or no intervals, and the fits that are
// withheld or not linear.
func models(s *analysis.Summary) []string {
	var all []string
	for _, m := range s.Models {
		if m.Withheld != "" {
			all = append(all, fmt.Sprintf("%s of %s: withheld, %s", quantity.Label(m.Metric), s.ArmName(m.Arm), m.Withheld))
			continue
		}
		matters := !m.Linear
		var terms, where []string
		for i, t := range m.Terms {
			matters = matters || i > 0 && t.Value != 0 && (t.Lo == nil || t.Hi == nil || *t.Lo > 0 || *t.Hi < 0)
			if i == 0 {
				terms = append(terms, t.Written(t.Unit)+" fixed")
				continue
			}
			r := m.ValidRange[t.Name]
			terms = append(terms, s.Slope(t, m.Terms[0].Unit, r[1]))
			where = append(where, fmt.Sprintf("%s %s to %s%s", record.FactorName(t.Name), asSet(r[0]), asSet(r[1]),
				s.UnitOf(t.Name)))
		}
		if !matters {
			continue
		}
		line := fmt.Sprintf("%s of %s: %s; R2 %.3f", quantity.Label(m.Metric), s.ArmName(m.Arm),
			strings.Join(terms, ", "), m.R2)
		if m.HeldoutError != nil {
			line += ", held-out error " + heldOutError(*m.HeldoutError)
		}
		line += ", for " + strings.Join(where, ", ")
		if !m.HasIntervals() {
			line += "; without intervals: they take two blocks"
		}
		if !m.Linear {
			line = "NOT A LINE (by " + m.Test + ") " + line
		}
		all = append(all, line)
	}
	return all
}

// heldOutError formats the error of a model at levels that were left out of its fit.
func heldOutError(part float64) string {
	return quantity.Rough(math.Round(1e6*part)/1e6, quantity.Part) // less is a rounding error of the fit
}

// asSet formats a level as it was set: without an exponent.
func asSet(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// validity describes in one sentence which trials and blocks the numbers rest on.
func validity(s *analysis.Summary) string {
	state := "valid"
	if !s.Valid {
		state = "INVALID"
	}
	if s.Partial {
		state += ", PARTIAL"
	}
	text := fmt.Sprintf("%s: %s", state, trialsDone(s.Trials))
	if again := s.Trials.Attempts - s.Trials.Done; again > 0 {
		text += fmt.Sprintf("; %s at trials that were spoiled", quantity.Counted(again, "further attempt"))
	}
	if s.NotRepeated != "" {
		text += "; " + s.NotRepeated
	}
	if s.Stopped != "" {
		text += "; " + s.Stopped
	}
	if s.Blocks == 1 {
		return text + "; 1 complete block"
	}
	return text + fmt.Sprintf("; %d complete blocks", s.Blocks)
}

// trialsDone describes how many trials were run, and how many of them are valid.
func trialsDone(t analysis.Trials) string {
	text := fmt.Sprintf("%d of %d planned trials done", t.Done, t.Planned)
	switch {
	case t.Done == 0:
	case t.Valid == t.Done:
		text += ", all valid"
	case t.Failed == t.Done:
		text += ", all failed"
	case t.Invalid == t.Done:
		text += ", each without some of its metrics"
	default:
		if t.Valid > 0 {
			text += fmt.Sprintf(", %d valid", t.Valid)
		}
		if t.Invalid > 0 {
			text += fmt.Sprintf(", %d without some of their metrics", t.Invalid)
		}
		if t.Failed > 0 {
			text += fmt.Sprintf(", %d failed", t.Failed)
		}
	}
	return text
}

// maxExcluded is the maximum number of excluded trials that are listed; all are in the summary.
const maxExcluded = 10

func excluded(s *analysis.Summary) []string {
	var all []string
	for i, x := range s.Trials.Excluded {
		if i == maxExcluded {
			all = append(all, fmt.Sprintf("and %d more: see %s", len(s.Trials.Excluded)-i, record.TrialsFile))
			break
		}
		// from 1, as in the progress of the run
		line := fmt.Sprintf("trial %d (block %d, %s", x.Index+1, x.Block+1, x.Arm)
		if len(x.Factors) > 0 {
			line += ", " + record.LevelName(x.Factors)
		}
		if len(x.Voids) > 0 {
			line += fmt.Sprintf(") left out of %s: ", quantity.Counted(len(x.Voids), "metric"))
		} else {
			line += ") left out: "
		}
		all = append(all, line+x.Why)
	}
	return all
}

func selfCost(s *analysis.Summary) string {
	return fmt.Sprintf("%s of CPU time in all measured windows, %s resident at most", inSeconds(s.Self.CPUSeconds),
		inBytes(s.Self.RSSBytes))
}

// listed joins the texts that are not empty.
func listed(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(p string) bool { return p == "" }), ", ")
}

// named returns a name and a value; empty if there is no value.
func named(name, value string) string {
	if value == "" {
		return ""
	}
	return name + " " + value
}

// environment describes the machine in two lines.
func environment(run record.Run) []string {
	e := run.Environment
	var size, swap string
	if e.CPUs > 0 {
		size = fmt.Sprintf("%d CPUs", e.CPUs)
	}
	if e.MemoryBytes > 0 {
		size = strings.TrimPrefix(size+", "+quantity.Rough(float64(e.MemoryBytes), quantity.Bytes)+" of memory", ", ")
	}
	if e.SwapBytes > 0 {
		swap = "swap " + quantity.Rough(float64(e.SwapBytes), quantity.Bytes)
	}
	var subjects []string
	for name, version := range lists.ByKey(e.Subjects) {
		subjects = append(subjects, strings.TrimSpace(name+" "+version))
	}
	return []string{
		listed(e.Hostname, e.CPUModel, size, named("virtual", e.Virtual), named("governor", e.Governor), swap),
		listed(e.Distro, named("kernel", e.Kernel), named("cgroups", e.CgroupMode), named("lockdown", e.Lockdown),
			named("clock", e.Clocksource), named("tare", run.Version), listed(subjects...)),
	}
}

// again returns the command that runs the experiment again, quoted for a shell.
func again(run record.Run) string {
	words := make([]string, len(run.Command))
	for i, w := range run.Command {
		words[i] = w
		if w == "" || strings.ContainsAny(w, " \t\n'\"\\$`*?[](){}<>|&;!#~") {
			words[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}

func started(run record.Run) string { return run.Started.UTC().Format(time.DateTime) + " UTC" }
