package analysis

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"tare/internal/experiment/record"
	"tare/internal/lib/quantity"
	"tare/internal/lib/stats"
)

// prose collects one answer and the estimates that it rests on: sentence by sentence, or as clauses of one sentence.
type prose struct {
	s        *Summary
	arm      string
	at       factors
	text     []string // sentences
	clauses  []string // of the sentence under way
	apart    bool     // the first of them has a subject of its own
	own      int      // clauses in words of the metrics' own
	more     bool     // sentences before have named the arm and the level
	open     []undecided
	evidence []string // "metric arm", in the order in which they are quoted
}

// peek is an estimate of the arm that is looked at and not quoted; nil where there is none.
func (p *prose) peek(metric string) *Estimate { return p.s.Find(metric, p.arm, p.at) }

// find is an estimate of the arm that is quoted; nil where there is none.
func (p *prose) find(metric string) *Estimate { return p.of(metric, p.arm) }

// of is an estimate of any arm that is quoted; nil where there is none.
func (p *prose) of(metric, arm string) *Estimate {
	e := p.s.Find(metric, arm, p.at)
	if e != nil {
		p.rest(metric, arm)
	}
	return e
}

// rest notes that the answer rests on an estimate.
func (p *prose) rest(metric, arm string) {
	if name := metric + " " + arm; !slices.Contains(p.evidence, name) {
		p.evidence = append(p.evidence, name)
	}
}

// say is a value of the arm with its interval; "an unknown value" where the run does not have it.
func (p *prose) say(metric string) string { return p.sayOf(metric, p.arm) }

func (p *prose) sayOf(metric, arm string) string {
	e := p.of(metric, arm)
	if e == nil {
		return "an unknown value"
	}
	return said(e)
}

// add adds a sentence, or several.
func (p *prose) add(format string, args ...any) {
	p.text = append(p.text, fmt.Sprintf(format, args...))
}

// clause adds a clause to the sentence under way. Its first has the verb that the subject goes with, or stands apart.
func (p *prose) clause(e *Estimate, text string) {
	p.clauses = append(p.clauses, text)
	p.rest(e.Metric, e.Arm)
}

// goOn goes on with the clause before: ", of which 3 MB stay". Where there is none it begins one.
func (p *prose) goOn(e *Estimate, text string) {
	n := len(p.clauses)
	if n == 0 {
		p.clause(e, p.standing(text))
		return
	}
	p.clauses[n-1] += ", " + text
	p.rest(e.Metric, e.Arm)
}

// opening is what stands before a clause if it is the first of its sentence, and otherwise what stands before it as
// another.
func (p *prose) opening(first, other string) string {
	if len(p.clauses) == 0 {
		return first
	}
	return other
}

// standing is a clause with a subject of its own. As the first of its sentence it stands after a colon: "candidate: p50
// is not resolved".
func (p *prose) standing(text string) string {
	p.apart = p.apart || len(p.clauses) == 0
	return text
}

// perSentence is how many clauses a sentence has before another begins, where there are many.
const perSentence = 3

// pause ends the sentence under way if it is time to, and it has as many clauses as one can read.
func (p *prose) pause(now bool) {
	if now && len(p.clauses) >= perSentence {
		p.end()
		p.more = true
	}
}

// end makes a sentence of the clauses under way, about the arm at its level; after a pause, of the arm as "it".
func (p *prose) end() {
	begin := p.where() + p.arm + " "
	switch {
	case p.more && p.apart:
		begin, p.clauses[0] = "", Capital(p.clauses[0])
	case p.more:
		begin = "It "
	case p.apart:
		begin = strings.TrimSuffix(p.where(), ": ")
		if begin != "" {
			begin += ", "
		}
		begin += p.arm + ": "
	}
	p.add("%s%s.", begin, strings.Join(p.clauses, "; "))
	p.clauses, p.apart = nil, false
}

// where begins an answer with its level: "At rate 1000: ". Where the run has no levels it is empty.
func (p *prose) where() string {
	if at := p.s.At(p.at); at != "" {
		return Capital(at) + ": "
	}
	return ""
}

// here ends a clause with its level: " at rate 1000". Where the run has no levels it is empty.
func (p *prose) here() string {
	if at := p.s.At(p.at); at != "" {
		return " " + at
	}
	return ""
}

func (p *prose) answer() Answer {
	return Answer{Answer: strings.Join(p.text, " "), Evidence: p.evidence}
}

// base is the same metric of the baseline; nil where it has none.
func (p *prose) base(e *Estimate) *Estimate { return p.s.Find(e.Metric, record.Direct, p.at) }

// baseIsZero says whether what the arm has is also what it adds: the baseline has none of it.
func (p *prose) baseIsZero(e *Estimate) bool {
	base := p.base(e)
	return base == nil || base.Value == 0
}

// moved words a difference: "is 9 us [5, 13] higher", or why it says nothing.
func (p *prose) moved(e *Estimate) string {
	d := e.Difference
	switch {
	case d == nil:
		return "cannot be compared, because the baseline has none"
	case d.Lo != nil && *d.Lo == 0 && *d.Hi == 0:
		return "is the same"
	case !d.Resolved:
		return "is not resolved" + p.visible(e)
	case d.Value < 0:
		return "is " + size(d, e.Unit) + " lower"
	}
	return "is " + size(d, e.Unit) + " higher"
}

// smallestVisible is how the reason begins where a difference is too small to be seen.
const smallestVisible = " (smallest visible "

// visible says why a difference is not resolved.
func (p *prose) visible(e *Estimate) string {
	if v, ok := p.s.VisibleIn(e); ok && math.Abs(e.Difference.Value) <= v {
		return smallestVisible + quantity.Rough(v, e.Unit) + ")"
	}
	if strings.HasPrefix(e.Difference.Unresolved, LagReason) {
		return " (" + LagReason + ")"
	}
	return " (" + e.Difference.Unresolved + ")"
}

// size is a difference without its sign.
func size(d *Difference, unit string) string {
	switch {
	case d.Lo == nil:
		return quantity.Value(math.Abs(d.Value), unit) + " (no interval)"
	case d.Value < 0:
		return quantity.Interval(-d.Value, -*d.Hi, -*d.Lo, unit)
	}
	return quantity.Interval(d.Value, *d.Lo, *d.Hi, unit)
}

func written(v float64, lo, hi *float64, unit string) string {
	if lo == nil || hi == nil {
		return quantity.Value(v, unit)
	}
	return quantity.Interval(v, *lo, *hi, unit)
}

// said is a value with its interval, where it has one that is wider than nothing.
func said(e *Estimate) string {
	if e.Lo != nil && e.Hi != nil && *e.Lo == *e.Hi {
		return quantity.Value(e.Value, e.Unit)
	}
	return written(e.Value, e.Lo, e.Hi, e.Unit)
}

// term is the same of a term of a model, whose rounding errors are no width.
func term(t Term, unit string) string {
	if t.Lo != nil && t.Hi != nil && *t.Hi-*t.Lo < 1e-6*math.Abs(t.Value) {
		return quantity.Value(t.Value, unit)
	}
	return written(t.Value, t.Lo, t.Hi, unit)
}

// happened is how often what is pooled in an estimate was seen.
func happened(e *Estimate) int { return int(math.Round(e.Value * float64(e.N))) }

// pooled is how often something was seen, and how often that is with its interval. What was never seen is bounded by
// how many came together where some were seen: where nothing is known of that, only how many trials may have any.
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
		return fmt.Sprintf("%s (%s in a million)", quantity.Thousands(happened(e)),
			quantity.Interval(e.Value*million, *e.Lo*million, *e.Hi*million, quantity.Count))
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

// count is a whole number of events.
func count(x float64) string { return quantity.Thousands(int(math.Round(x))) }

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return quantity.Thousands(n) + " " + what + "s"
}

// part is x of y in words: as a share, or per million where it is small.
func part(x, of float64) string {
	switch {
	case of <= 0:
		return "of none"
	case x/of < 1e-3:
		return fmt.Sprintf("%.3g in a million", 1e6*x/of)
	}
	return quantity.Value(x/of, quantity.Part)
}

// timesOf words a ratio to the baseline: "24 times faster" or "7,400 times as long".
func timesOf(r *Ratio) string {
	switch {
	case r == nil || r.Value <= 0:
		return ""
	case factor(max(r.Value, 1/r.Value)) == "1.0":
		return "about as long"
	case r.Value >= 1:
		return factor(r.Value) + " times as long"
	}
	return factor(1/r.Value) + " times faster"
}

// factor is a number of times with as many digits as say something.
func factor(x float64) string {
	switch {
	case x < 10:
		return fmt.Sprintf("%.1f", x)
	case x < 1000:
		return fmt.Sprintf("%.0f", x)
	}
	text := fmt.Sprintf("%.0f", x/100)
	return text[:len(text)-1] + "," + text[len(text)-1:] + "00"
}

// changeOf words a ratio to the baseline as a change in per cent: "36 % [34, 38] less".
func changeOf(r *Ratio) string {
	if r.Value < 1 {
		return quantity.Interval(1-r.Value, 1-*r.Hi, 1-*r.Lo, quantity.Part) + " less"
	}
	return quantity.Interval(r.Value-1, *r.Lo-1, *r.Hi-1, quantity.Part) + " more"
}

// join is a list as it is read.
func join(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}

// Capital is a text as it begins a sentence.
func Capital(text string) string {
	first, n := utf8.DecodeRuneInString(text)
	if n == 0 {
		return ""
	}
	return string(unicode.ToUpper(first)) + text[n:]
}
