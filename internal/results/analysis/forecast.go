package analysis

import (
	"fmt"
	"math"
	"strings"
	"time"

	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/lib/stats"
)

// ForecastPart is the size of the difference that forecasts are made for, as a fraction of the baseline's value.
const ForecastPart = 0.05

// mostForecast is the largest number of blocks that an answer mentions as a forecast; tables show larger numbers, too.
const mostForecast = 1000

// Forecast holds the number of blocks with which 8 of 10 runs would resolve a difference of some size, if the noise
// stays as it is.
type Forecast struct {
	Part    float64 `json:"part"`         // the difference, as a fraction of the baseline's value
	Blocks  int     `json:"blocks"`       // in total
	Seconds float64 `json:"more_seconds"` // time for the blocks that the run does not have yet
}

// String formats the forecast: "40 blocks, 5 min more".
func (f Forecast) String() string {
	text := quantity.Thousands(f.Blocks) + " blocks"
	if f.Seconds > 0 {
		text += ", " + quantity.Wait(time.Duration(f.Seconds*float64(time.Second))) + " more"
	}
	return text
}

// Size formats the size of the difference: "5 %".
func (f Forecast) Size() string { return fmt.Sprintf("%g %%", 100*f.Part) }

// forecast sets ToResolve of the differences that noise left unresolved. It leaves out those for which a difference of
// ForecastPart would already have been resolved.
func (s *Summary) forecast(trials []record.Trial) {
	type key struct{ metric, arm, component, level string }
	keyOf := func(e *Estimate, arm string) key {
		return key{e.Metric, arm, e.Component, record.LevelKey(e.Factors)}
	}
	known := map[key]*Estimate{}
	for i := range s.Estimates {
		known[keyOf(&s.Estimates[i], s.Estimates[i].Arm)] = &s.Estimates[i]
	}
	perBlock := secondsPerBlock(trials)
	for i := range s.Estimates {
		e := &s.Estimates[i]
		d, base := e.Difference, known[keyOf(e, record.Direct)]
		if d == nil || base == nil || d.Resolved || d.Lo == nil || e.Arm == record.AA || !byNoise(d) || e.Withheld != "" {
			continue
		}
		half := d.half()
		if twin := known[keyOf(e, record.AA)]; twin != nil && twin.Difference != nil && twin.Difference.Lo != nil {
			half = max(half, twin.Difference.half())
		}
		n, ok := stats.BlocksToResolve(d.N, half, ForecastPart*math.Abs(base.Value))
		if ok && n > d.N {
			d.ToResolve = &Forecast{
				Part: ForecastPart, Blocks: n, Seconds: math.Round(float64(n-d.N) * perBlock),
			}
		}
	}
}

// byNoise reports whether more blocks could resolve a difference. They cannot if lag, losses or a withheld baseline
// left it unresolved.
func byNoise(d *Difference) bool {
	return d.SmallestVisible != nil && !d.BaselineWithheld() && !strings.HasPrefix(d.Unresolved, LagReason) &&
		!strings.HasPrefix(d.Unresolved, LossReason)
}

// undecided is a difference that is not resolved, with its name for readers.
type undecided struct {
	label string
	e     *Estimate
}

// leave defers a difference that is not resolved to the end of the answer, because results come first.
func (p *Prose) leave(e *Estimate, label string) {
	p.open = append(p.open, undecided{label, e})
	p.Rest(e.Metric, e.Arm)
}

// difference adds a clause on a difference, or leaves it for the end if it is not resolved.
func (p *Prose) difference(e *Estimate, label string) {
	if p.unresolved(e) {
		p.leave(e, label)
		return
	}
	p.clause(e, p.standing(label+" "+p.moved(e)))
}

// unresolved reports whether a difference is neither resolved nor exactly 0, or must not be stated.
func (p *Prose) unresolved(e *Estimate) bool {
	d := e.Difference
	return !d.Resolved && !d.Zero() || d.BaselineWithheld()
}

// endUnresolved names the differences that are not resolved, grouped by reason, and says what would resolve them. If
// the answer has no other result, this is the answer.
func (p *Prose) endUnresolved() {
	if len(p.open) == 0 {
		return
	}
	var reasons lists.Groups[string, string] // from reason to labels
	worst, forecasts := undecided{}, 0
	for _, u := range p.open {
		reason, label := p.visible(u.e), u.label
		if strings.HasPrefix(reason, foundFrom) { // the reason differs for each
			reason, label = "", label+reason
		}
		reasons.Add(reason, label)
		if f := u.e.Difference.ToResolve; f != nil && f.Blocks <= mostForecast {
			if forecasts++; worst.e == nil || f.Blocks > worst.e.Difference.ToResolve.Blocks {
				worst = u
			}
		}
	}
	begin := "Not resolved"
	if len(p.text) == 0 {
		begin = strings.TrimSuffix(p.Where(), ": ")
		if begin != "" {
			begin += ", "
		}
		begin += p.Arm + ": no difference is resolved"
	}
	for reason, labels := range reasons.All() {
		p.Add("%s%s: %s.", begin, reason, Join(labels))
		begin = "Not resolved"
	}
	if worst.e != nil {
		what := ""
		if forecasts < len(p.open) {
			what = " in " + worst.label
		} else if forecasts > 1 {
			what = " in each of these"
		}
		f := worst.e.Difference.ToResolve
		p.Add("To see a change of %s%s would take about %s.", f.Size(), what, f)
	}
	p.open = nil
}
