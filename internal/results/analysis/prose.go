package analysis

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/lib/stats"
)

// Prose collects one answer, as sentences or as clauses of one sentence, and the estimates that it rests on.
type Prose struct {
	Summary *Summary
	Arm     string
	At      map[string]string // the level

	text     []string // sentences
	clauses  []string // of the current sentence
	apart    bool     // the first clause has its own subject
	own      int      // number of clauses worded by the metrics (Definition.Clause)
	more     bool     // earlier sentences have named the arm and the level
	open     []undecided
	evidence []string // each as "metric arm", in the order of their mention
}

// Peek returns an estimate of the arm without adding it to the evidence; nil if there is none.
func (p *Prose) Peek(metric string) *Estimate { return p.Summary.Find(metric, p.Arm, p.At) }

// Find returns an estimate of the arm and adds it to the evidence; nil if there is none.
func (p *Prose) Find(metric string) *Estimate { return p.Of(metric, p.Arm) }

// Of returns an estimate of the given arm and adds it to the evidence; nil if there is none.
func (p *Prose) Of(metric, arm string) *Estimate {
	e := p.Summary.Find(metric, arm, p.At)
	if e != nil {
		p.Rest(metric, arm)
	}
	return e
}

// Rest adds an estimate to the evidence.
func (p *Prose) Rest(metric, arm string) {
	p.evidence = lists.Include(p.evidence, metric+" "+arm)
}

// Say formats a value of the arm with its interval, or returns "an unknown value".
func (p *Prose) Say(metric string) string { return p.SayOf(metric, p.Arm) }

// SayOf formats a value of the given arm, as Say does for the answer's arm.
func (p *Prose) SayOf(metric, arm string) string {
	e := p.Of(metric, arm)
	if e == nil {
		return "an unknown value"
	}
	return Said(e)
}

// Add adds one or more sentences.
func (p *Prose) Add(format string, args ...any) {
	p.text = append(p.text, fmt.Sprintf(format, args...))
}

// clause adds a clause to the current sentence. The first clause of a sentence must begin with a verb whose subject is
// the arm, or be marked with Prose.standing.
func (p *Prose) clause(e *Estimate, text string) {
	p.clauses = append(p.clauses, text)
	p.Rest(e.Metric, e.Arm)
}

// goOn continues the previous clause: ", of which 3 MB stay". If there is no clause yet, goOn adds one.
func (p *Prose) goOn(e *Estimate, text string) {
	n := len(p.clauses)
	if n == 0 {
		p.clause(e, p.standing(text))
		return
	}
	p.clauses[n-1] += ", " + text
	p.Rest(e.Metric, e.Arm)
}

// opening returns its first argument if the next clause is the first of its sentence, and otherwise its second
// argument.
func (p *Prose) opening(first, other string) string {
	if len(p.clauses) == 0 {
		return first
	}
	return other
}

// standing marks text as a clause that has its own subject. If it is the first clause of its sentence, it follows a
// colon: "candidate: p50 is not resolved".
func (p *Prose) standing(text string) string {
	p.apart = p.apart || len(p.clauses) == 0
	return text
}

// perSentence is the number of clauses after which a new sentence may begin.
const perSentence = 3

// pause ends the current sentence if now is set and the sentence has enough clauses.
func (p *Prose) pause(now bool) {
	if now && len(p.clauses) >= perSentence {
		p.end()
		p.more = true
	}
}

// end turns the current clauses into a sentence about the arm at its level; after a pause the arm is "It".
func (p *Prose) end() {
	begin := p.Where() + p.Arm + " "
	switch {
	case p.more && p.apart:
		begin, p.clauses[0] = "", Capital(p.clauses[0])
	case p.more:
		begin = "It "
	case p.apart:
		begin = strings.TrimSuffix(p.Where(), ": ")
		if begin != "" {
			begin += ", "
		}
		begin += p.Arm + ": "
	}
	p.Add("%s%s.", begin, strings.Join(p.clauses, "; "))
	p.clauses, p.apart = nil, false
}

// Where returns the level for the beginning of an answer: "At rate 1000: ". It is empty if the run has no levels.
func (p *Prose) Where() string {
	if at := p.Summary.At(p.At); at != "" {
		return Capital(at) + ": "
	}
	return ""
}

// Here returns the level for the end of a clause: " at rate 1000". It is empty if the run has no levels.
func (p *Prose) Here() string {
	if at := p.Summary.At(p.At); at != "" {
		return " " + at
	}
	return ""
}

// Empty reports whether no sentence has been added.
func (p *Prose) Empty() bool { return len(p.text) == 0 }

// Answer returns the answer with its evidence.
func (p *Prose) Answer() Answer {
	return Answer{Answer: strings.Join(p.text, " "), Evidence: p.evidence}
}

// base returns the estimate of the same metric in the baseline; nil if there is none.
func (p *Prose) base(e *Estimate) *Estimate { return p.Summary.Find(e.Metric, record.Direct, p.At) }

// baseIsZero reports whether the baseline has none of the metric, so that the arm's value is also the difference. It
// returns false if the baseline's value is withheld or missing, and hence unknown.
func (p *Prose) baseIsZero(e *Estimate) bool {
	if base := p.Summary.estimateOf(e.Metric, record.Direct, "", p.At); base != nil {
		return base.Withheld == "" && base.Value == 0
	}
	return !slices.ContainsFunc(p.Summary.Missing, func(m Missing) bool {
		return m.Metric == e.Metric && m.Arm == record.Direct && maps.Equal(m.Factors, p.At)
	})
}

// moved describes a difference: "is 9 us [5, 13] higher", or why it is not known.
func (p *Prose) moved(e *Estimate) string {
	d := e.Difference
	switch {
	case d == nil:
		return "cannot be compared, because the baseline has none"
	case d.Zero() && !d.BaselineWithheld():
		return "is the same"
	case !d.Resolved:
		return "is not resolved" + p.visible(e)
	case d.Value < 0:
		return "is " + size(d, e.Unit) + " lower"
	}
	return "is " + size(d, e.Unit) + " higher"
}

// foundFrom is the beginning of the reason if a difference is too small to be seen.
const foundFrom = " (found in 80 %: "

// FoundIn returns, in brackets, the size of the effect that 80 % of such runs resolve; empty if it is unknown,
// or 0 because nothing varied.
func (d *Difference) FoundIn(unit string) string {
	if d.Found == nil || *d.Found == 0 {
		return ""
	}
	return foundFrom + quantity.Rough(*d.Found, unit) + ")"
}

// visible returns, in brackets, why a difference is not resolved.
func (p *Prose) visible(e *Estimate) string {
	if d := e.Difference; !d.BaselineWithheld() && d.FoundIn(e.Unit) != "" && math.Abs(d.Value) <= *d.SmallestVisible {
		return d.FoundIn(e.Unit)
	}
	if strings.HasPrefix(e.Difference.Unresolved, LagReason) {
		return " (" + LagReason + ")"
	}
	return " (" + e.Difference.Unresolved + ")"
}

// size formats a difference without its sign.
func size(d *Difference, unit string) string {
	switch {
	case d.Lo == nil:
		return quantity.Value(math.Abs(d.Value), unit) + " (no interval)"
	case d.Value < 0:
		return quantity.Interval(-d.Value, -*d.Hi, -*d.Lo, unit)
	}
	return quantity.Interval(d.Value, *d.Lo, *d.Hi, unit)
}

// Signed formats a difference with its sign, and with its interval if it has one: "+2 us [1, 3]".
func (i Interval) Signed(unit string) string {
	if i.Lo == nil || i.Hi == nil {
		return quantity.DeltaValue(i.Value, unit)
	}
	return quantity.Delta(i.Value, *i.Lo, *i.Hi, unit)
}

// signed formats the difference of an estimate, which must have one.
func (e *Estimate) signed() string { return e.Difference.Signed(e.Unit) }

// Written formats a value, with its interval if it has one.
func (i Interval) Written(unit string) string {
	if i.Lo == nil || i.Hi == nil {
		return quantity.Value(i.Value, unit)
	}
	return quantity.Interval(i.Value, *i.Lo, *i.Hi, unit)
}

// Said formats a value, with its interval unless both ends are equal.
func Said(e *Estimate) string {
	if e.Lo != nil && e.Hi != nil && *e.Lo == *e.Hi {
		return quantity.Value(e.Value, e.Unit)
	}
	return e.Written(e.Unit)
}

// In formats a term of a model in the given unit, with its interval if it has one. It leaves out an interval whose
// width is only rounding error.
func (t Term) In(unit string) string {
	if t.Lo != nil && t.Hi != nil && *t.Hi-*t.Lo < 1e-6*math.Abs(t.Value) {
		return quantity.Value(t.Value, unit)
	}
	return t.Written(unit)
}

// Happened returns the numerator of a pooled share: the number of samples that count in it.
func (e *Estimate) Happened() int { return int(math.Round(e.Value * float64(e.N))) }

// Pooled formats a pooled share as a count and a share with its interval. A count of 0 is shown with an upper bound,
// which depends on how clustered such events are elsewhere. If that is unknown, the bound is on the fraction of trials
// that have any.
func Pooled(e *Estimate) string {
	const million = 1e6
	switch {
	case e.Value == 0 && e.Hi == nil:
		return "none"
	case e.Value == 0 && *e.Hi >= 0.999*stats.NoneBound(e.Trials):
		return fmt.Sprintf("none (fewer than %.0f %% of such trials have any, at 95 %%)", 100**e.Hi)
	case e.Value == 0 && *e.Hi < 1e-3:
		format := "%.2g"
		if *e.Hi*million >= 99.5 {
			format = "%.0f" // without an exponent
		}
		return fmt.Sprintf("none (below "+format+" in a million, at 95 %%)", *e.Hi*million)
	case e.Value == 0:
		return fmt.Sprintf("none (below %s, at 95 %%)", quantity.Rough(*e.Hi, e.Unit))
	case e.Lo == nil || e.Hi == nil:
		return quantity.Thousands(e.Happened())
	case e.Value < 1e-3:
		return fmt.Sprintf("%s (%s in a million)", quantity.Thousands(e.Happened()),
			quantity.Interval(e.Value*million, *e.Lo*million, *e.Hi*million, quantity.Count))
	}
	return fmt.Sprintf("%s (%s)", quantity.Thousands(e.Happened()), quantity.Interval(e.Value, *e.Lo, *e.Hi, e.Unit))
}

// Digits formats a large number with three significant digits.
func Digits(e *Estimate) string {
	if e == nil {
		return "an unknown number of"
	}
	if e.Value < 999.5 { // above that, three digits are a thousand, and %g has an exponent
		return fmt.Sprintf("%.3g", e.Value)
	}
	unit := math.Pow(10, math.Floor(math.Log10(e.Value))-2)
	return quantity.Thousands(int(math.Round(e.Value/unit) * unit))
}

// TimesOf describes a ratio to the baseline: "24 times faster" or "7,400 times as long".
func TimesOf(r *Interval) string {
	switch {
	case r == nil || r.Value <= 0:
		return ""
	case Times(max(r.Value, 1/r.Value)) == "1.0":
		return "about as long"
	case r.Value >= 1:
		return Times(r.Value) + " times as long"
	}
	return Times(1/r.Value) + " times faster"
}

// Times formats a ratio with two or three significant digits.
func Times(x float64) string {
	switch {
	case x < 9.95:
		return fmt.Sprintf("%.1f", x)
	case x < 999.5:
		return fmt.Sprintf("%.0f", x)
	}
	return quantity.Thousands(int(math.Round(x/100)) * 100)
}

// Join joins names for a sentence: "a, b and c".
func Join(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}

// FirstOf shortens a list of names to the first ones, at most the given number, followed by how many more there are. If
// there is only one more, it returns the whole list.
func FirstOf(names []string, most int) []string {
	if more := len(names) - most; more > 1 {
		return append(slices.Clone(names[:most]), fmt.Sprintf("%d more", more))
	}
	return names
}

// Capital returns a text with an initial capital letter.
func Capital(text string) string {
	first, n := utf8.DecodeRuneInString(text)
	if n == 0 {
		return ""
	}
	return string(unicode.ToUpper(first)) + text[n:]
}

// Against describes a metric of the arm at the first and the last level, with a verdict over all levels: at how many
// levels a resolved difference puts it above or below the baseline. Against leaves p at the last level.
func (p *Prose) Against(t *Table, metric string) (ends []string, verdict string) {
	above, below, n := 0, 0, 0
	for i, at := range t.Levels {
		p.At = at
		e := p.Find(metric)
		if e == nil {
			continue
		}
		if i == 0 || i == len(t.Levels)-1 {
			ends = append(ends, Said(e)+p.Here())
		}
		if d := e.Difference; p.Arm != record.Direct && d != nil {
			n++
			switch {
			case d.Resolved && d.Value > 0:
				above++
			case d.Resolved:
				below++
			}
		}
	}
	if n > 0 {
		verdict = verdictOf(p.Summary.Baseline, above, below, n, len(t.Levels))
	}
	return ends, verdict
}

// verdictOf returns the end of a sentence on a comparison at n of all levels: at how many of them a resolved difference
// puts the arm above or below the baseline. At the other levels one of the two has no value.
func verdictOf(base string, above, below, n, levels int) string {
	every := map[bool]string{true: " at every level"}[levels > 1]
	switch {
	case above == levels:
		return ", more than with " + base + every
	case below == levels:
		return ", less than with " + base + every
	case above+below == 0 && n < levels:
		return fmt.Sprintf("; the difference from %s is not resolved at %d of %d levels, and not known elsewhere", base, n,
			levels)
	case above+below == 0:
		return "; the difference from " + base + " is not resolved" + map[bool]string{true: " at any level"}[n > 1]
	}
	var sides []string
	for _, side := range []struct {
		at    int
		words string
	}{
		{above, fmt.Sprintf("more than with %s at %d of %d levels", base, above, levels)},
		{below, fmt.Sprintf("less than with %s at %d of %d levels", base, below, levels)},
		{n - above - below, fmt.Sprintf("not resolved at %d", n-above-below)},
		{levels - n, fmt.Sprintf("not known at %d", levels-n)},
	} {
		if side.at > 0 {
			sides = append(sides, side.words)
		}
	}
	return ", " + Join(sides)
}
