package analysis

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"tare/internal/quantity"
	"tare/internal/record"
)

// wording is how an experiment speaks of itself. An experiment without one is answered in the generic words.
type wording struct {
	subject string // what stands for an arm at the start of a sentence; empty: the arm's name

	// answer gives the answers of a valid run where the generic words would miss the question; null: the generic words.
	answer func(*Summary, *table) []Answer
}

// wordings is the registry, by the name of the experiment.
var wordings = map[string]wording{
	"quickstart":         {subject: "The data plane"},
	"ebpf-cpu-limit":     {answer: limitAnswers},
	"ebpf-saturation":    {answer: saturationAnswers},
	"ebpf-stress":        {answer: stressAnswers},
	"ebpf-memory":        {answer: memoryAnswers},
	"config-flush":       {answer: flushAnswers},
	"config-scale":       {answer: scaleAnswers},
	"config-consistency": {answer: consistencyAnswers},
	"config-path":        {answer: pathAnswers},
	"config-push":        {answer: pushAnswers},
	"trace-exec":         {answer: traceAnswers},
	"trace-starved":      {answer: traceAnswers},
	"trace-scaling":      {answer: traceAnswers},
}

// Level writes one value of each factor: "connections 64, rate 1000".
func Level(level map[string]string) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(level)) {
		parts = append(parts, FactorName(name)+" "+level[name])
	}
	return strings.Join(parts, ", ")
}

// FactorName is a factor as people call it: what is set in all arms ("arms.*.services") needs no path.
func FactorName(name string) string {
	return strings.TrimPrefix(strings.TrimPrefix(name, "arms."), "*.")
}

// Find is the estimate of one metric of one arm at one level; nil where there is none that may be quoted.
func (s *Summary) Find(metric, arm string, level map[string]string) *Estimate {
	for i := range s.Estimates {
		if e := &s.Estimates[i]; e.Metric == metric && e.Arm == arm && e.Withheld == "" && maps.Equal(e.Factors, level) {
			return e
		}
	}
	return nil
}

// Visible is the smallest difference in a metric that the A/A twins let the run see at one level.
func (s *Summary) Visible(metric string, level map[string]string) (float64, bool) {
	for _, m := range s.MDE {
		if m.Metric == metric && maps.Equal(m.Factors, level) {
			return m.Value, true
		}
	}
	return 0, false
}

// VisibleIn is the smallest difference that can be seen in the arm of an estimate, or what the twins show where the arm has no
// interval of its own.
func (s *Summary) VisibleIn(e *Estimate) (float64, bool) {
	if d := e.Difference; d != nil && d.SmallestVisible != nil {
		return *d.SmallestVisible, true
	}
	return s.Visible(e.Metric, e.Factors)
}

// ArmName is what people call an arm: the baseline by its subject, where it has one.
func (s *Summary) ArmName(arm string) string {
	switch {
	case s.Baseline == "":
	case arm == record.Direct:
		return s.Baseline + " (baseline)"
	case arm == record.AA:
		return s.Baseline + " (again)"
	}
	return arm
}

// answer says in words what each arm adds, at each level. Every clause rests on an estimate, which is named as evidence.
func (s *Summary) answer(run record.Run, t *table) {
	if !s.Valid {
		s.Answers = append(s.Answers, Answer{Question: s.Question, Answer: "No answer: the run is invalid. " + strings.Join(s.InvalidReasons, ". ") + "."})
		return
	}
	if own := wordings[s.Experiment].answer; own != nil {
		for _, a := range own(s, t) {
			a.Question, a.Answer = s.Question, s.partly()+a.Answer
			s.Answers = append(s.Answers, a)
		}
		s.Answers = append(s.Answers, s.missingAnswers(run, t)...)
		return
	}
	arms := askedArms(run, t)
	if slices.Contains(arms, record.Direct) {
		arms = []string{record.AA} // a run of the baseline alone is about its noise
	}
	for _, arm := range arms {
		for _, at := range s.everyLevel(run, t) {
			c := clauses{s: s, arm: arm, at: at, loads: slices.Sorted(maps.Keys(t.loads))}
			c.cost()
			c.latency()
			c.throughput()
			c.memory()
			c.rest()
			c.missing(run, t)
			if len(c.parts) == 0 {
				continue
			}
			subject := wordings[s.Experiment].subject
			if subject == "" || len(arms) > 1 {
				subject = arm
			}
			text := subject + " " + strings.Join(c.parts, "; ") + "."
			if len(at) > 0 {
				text = "At " + Level(at) + ": " + text
			}
			s.Answers = append(s.Answers, Answer{Question: s.Question, Answer: s.partly() + text, Evidence: c.evidence})
		}
	}
}

// partly is how an answer from a partial run begins.
func (s *Summary) partly() string {
	if !s.Partial {
		return ""
	}
	return fmt.Sprintf("From a partial run (%d of %d trials): ", s.Trials.Done, s.Trials.Planned)
}

// subjects are the arms beside the baseline and its twin.
func (t *table) subjects() []string {
	return slices.DeleteFunc(slices.Clone(t.arms), func(a string) bool { return a == record.Direct || a == record.AA })
}

// clauses collects the parts of one sentence; the first has the verb that the subject goes with.
type clauses struct {
	s        *Summary
	arm      string
	at       factors
	loads    []string // names of the run's loads
	parts    []string
	evidence []string
}

func (c *clauses) find(metric string) *Estimate { return c.s.Find(metric, c.arm, c.at) }

func (c *clauses) add(e *Estimate, text string) {
	c.parts = append(c.parts, text)
	c.evidence = append(c.evidence, e.Metric+" "+e.Arm)
}

// kinds of time that a cost is given in, by the start of the metric's name, and what each is called.
var times = []struct{ prefix, name string }{{"bpf_seconds_per_", "kernel time"}, {"cpu_seconds_per_", "CPU time"}}

// cost speaks of the time that each unit of work costs, the metrics *_seconds_per_*.
func (c *clauses) cost() {
	for _, kind := range times {
		for i := range c.s.Estimates {
			e := &c.s.Estimates[i]
			per, ok := strings.CutPrefix(e.Metric, kind.prefix)
			if !ok || e.Arm != c.arm || !maps.Equal(e.Factors, c.at) {
				continue
			}
			what := kind.name + " per " + strings.ReplaceAll(per, "_", " ")
			text := c.adds(e, what)
			if kind.prefix == "bpf_seconds_per_" && c.baseIsZero(e) {
				text += c.loadsPart()
			}
			c.add(e, text)
			break // per connection and per request say the same twice
		}
	}
}

// base is the same metric of the baseline; nil where it has none.
func (c *clauses) base(e *Estimate) *Estimate { return c.s.Find(e.Metric, record.Direct, c.at) }

// baseIsZero says whether what the arm has is also what it adds: the baseline has none of it.
func (c *clauses) baseIsZero(e *Estimate) bool {
	base := c.base(e)
	return base == nil || base.Value == 0
}

// loadsPart says how much of the arm's eBPF time ran in the control groups of the loads, by their name. It is a part of all that the arm
// ran, so it says nothing of a difference to a baseline that runs programs, too.
func (c *clauses) loadsPart() string {
	share := c.find("bpf_client_share")
	if share == nil || len(c.loads) == 0 {
		return ""
	}
	c.evidence = append(c.evidence, share.Metric+" "+share.Arm)
	where := "loads' cgroups"
	if len(c.loads) == 1 {
		where = c.loads[0] + "'s cgroup"
	}
	return fmt.Sprintf(", %.0f %% of it in the %s", 100*share.Value, where)
}

// adds words a cost: "adds 3.1 us [2.8, 3.4] of kernel time per connection".
func (c *clauses) adds(e *Estimate, what string) string {
	d := e.Difference
	switch {
	case d == nil:
		return "takes " + written(e.Value, e.Lo, e.Hi, e.Unit) + " of " + what
	case len(c.parts) > 0:
		return what + " " + c.moved(e)
	case d.Lo != nil && !d.Resolved:
		return "adds no " + what + " that is resolved" + c.visible(e)
	case d.Value < 0:
		return "saves " + size(d, e.Unit) + " of " + what
	}
	return "adds " + size(d, e.Unit) + " of " + what
}

// latency speaks of quantiles: "p50 is 9 us [5, 13] higher". A difference of quantiles is not what one request gains or
// loses. Where the machine stood still too often, it speaks of the requests that no stall touched, and says so.
func (c *clauses) latency() {
	of, while := "latency_", ""
	share, running := c.s.whileRunning(c.at)
	if running {
		of, while = of+runningPrefix, " while the machine was running"
	}
	for _, q := range []string{"p50", "p99", "p999"} {
		if e := c.find(of + q + "_seconds"); e != nil && e.Difference != nil {
			name := quantileName(q) + while
			if len(c.parts) == 0 {
				name = "shows latency whose " + name
			}
			c.add(e, name+" "+c.moved(e))
			continue
		}
		if all := c.find("latency_" + q + "_seconds"); running && len(c.parts) > 0 && all != nil && all.Difference != nil {
			c.parts = append(c.parts, fmt.Sprintf("%s%s cannot be told: the machine's stalls touched %s of the requests",
				quantileName(q), while, quantity.Rough(share, quantity.Part)))
		}
	}
}

// quantileName is what people call a quantile: p99.9.
func quantileName(q string) string {
	return strings.TrimPrefix(quantity.Label("latency_"+q+"_seconds"), "latency ")
}

func (c *clauses) throughput() {
	// At a fixed rate the throughput is what was asked for; a difference says something only where it is resolved.
	if e := c.find("throughput_per_second"); e != nil && e.Difference != nil && e.Difference.Resolved {
		name := "throughput"
		if len(c.parts) == 0 {
			name = "has a " + name + " that"
		}
		c.add(e, name+" "+c.moved(e))
	}
}

// memory speaks of what the arm holds where the baseline holds nothing, and else of how much more or less that is.
func (c *clauses) memory() {
	for _, m := range []struct{ metric, of, name string }{
		{"memory_hard_bytes", "of hard memory", "hard memory"}, {"map_bytes", "of maps", "memory in maps"},
	} {
		e := c.find(m.metric)
		switch {
		case e == nil || e.Value == 0 && c.baseIsZero(e):
		case c.baseIsZero(e):
			text := quantity.Rough(e.Value, e.Unit) + " " + m.of
			if len(c.parts) == 0 {
				text = "holds " + text
			}
			c.add(e, text)
		case e.Difference != nil:
			text := m.name + " " + c.moved(e)
			if len(c.parts) == 0 {
				text = "has " + m.name + " that " + c.moved(e)
			}
			c.add(e, text)
		}
	}
}

// atMost is how many resolved differences a sentence names beside those that every sentence speaks of.
const atMost = 3

// rest names the resolved differences that no clause has spoken of, the largest in proportion first, one of each family of metrics
// (those whose names begin alike). How late the generator was is a check of the run and no result.
func (c *clauses) rest() {
	type found struct {
		e    *Estimate
		text string
		by   float64 // part of the larger of the two values
	}
	spoken := map[string]bool{"lag": true, "own": true}
	_, running := c.s.whileRunning(c.at)
	for _, named := range c.evidence {
		spoken[family(named)] = true
	}
	var all []found
	for i := range c.s.Estimates {
		e := &c.s.Estimates[i]
		if e.Arm != c.arm || !maps.Equal(e.Factors, c.at) || spoken[family(e.Metric)] {
			continue
		}
		if running != strings.Contains(e.Metric, "_"+runningPrefix) && c.hasTwin(e.Metric) {
			continue // of all requests and of the undisturbed ones, answers speak of one
		}
		if base := c.base(e); base != nil && e.Difference != nil && e.Difference.Resolved {
			size := max(math.Abs(e.Value), math.Abs(base.Value))
			all = append(all, found{e, c.moved(e), math.Abs(e.Difference.Value) / size})
		}
	}
	slices.SortStableFunc(all, func(a, b found) int {
		return cmp.Or(cmp.Compare(b.by, a.by), cmp.Compare(partFirst(a.e), partFirst(b.e)), cmp.Compare(a.e.Metric, b.e.Metric))
	})
	named := 0
	for _, f := range all {
		if named == atMost {
			break
		}
		if spoken[family(f.e.Metric)] {
			continue
		}
		spoken[family(f.e.Metric)] = true
		named++
		name := quantity.Label(f.e.Metric)
		if len(c.parts) == 0 {
			name = "differs in the " + name + ", which"
		}
		c.add(f.e, name+" "+f.text)
	}
}

// hasTwin reports whether a metric is told both of all requests and of those that no stall touched.
func (c *clauses) hasTwin(metric string) bool {
	other := strings.Replace(metric, "_"+runningPrefix, "_", 1)
	if other == metric {
		other = strings.Replace(metric, "_p", "_"+runningPrefix+"p", 1)
	}
	return other != metric && c.s.Find(other, c.arm, c.at) != nil
}

// partFirst ranks a part of a whole before the same as a count: it says more by itself.
func partFirst(e *Estimate) int {
	if e.Unit == quantity.Part {
		return 0
	}
	return 1
}

// family is what the names of related metrics begin with: "latency", "memory", "events".
func family(metric string) string {
	name, _, _ := strings.Cut(metric, "_")
	return name
}

// moved words a difference: "is 9 us [5, 13] higher", or why it says nothing.
func (c *clauses) moved(e *Estimate) string {
	d := e.Difference
	switch {
	case d.Lo != nil && *d.Lo == 0 && *d.Hi == 0:
		return "is the same"
	case !d.Resolved:
		return "is not resolved" + c.visible(e)
	case d.Value < 0:
		return "is " + size(d, e.Unit) + " lower"
	}
	return "is " + size(d, e.Unit) + " higher"
}

func (c *clauses) visible(e *Estimate) string {
	if v, ok := c.s.VisibleIn(e); ok && math.Abs(e.Difference.Value) <= v {
		return " (smallest visible " + quantity.Rough(v, e.Unit) + ")"
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
