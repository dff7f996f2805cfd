package analysis

import (
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

// Find is the estimate of one metric of one arm at one level; nil where there is none.
func (s *Summary) Find(metric, arm string, level map[string]string) *Estimate {
	for i := range s.Estimates {
		if e := &s.Estimates[i]; e.Metric == metric && e.Arm == arm && maps.Equal(e.Factors, level) {
			return e
		}
	}
	return nil
}

// Visible is the smallest difference in a metric that the run can see at one level.
func (s *Summary) Visible(metric string, level map[string]string) (float64, bool) {
	for _, m := range s.MDE {
		if m.Metric == metric && maps.Equal(m.Factors, level) {
			return m.Value, true
		}
	}
	return 0, false
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
func (s *Summary) answer(t *table) {
	if !s.Valid {
		s.Answers = append(s.Answers, Answer{Question: s.Question, Answer: "No answer: the run is invalid. " + strings.Join(s.InvalidReasons, ". ") + "."})
		return
	}
	if own := wordings[s.Experiment].answer; own != nil {
		for _, a := range own(s, t) {
			a.Question, a.Answer = s.Question, s.partly()+a.Answer
			s.Answers = append(s.Answers, a)
		}
		return
	}
	arms := t.subjects()
	if len(arms) == 0 && slices.Contains(t.arms, record.AA) {
		arms = []string{record.AA} // a run of the baseline alone is about its noise
	}
	for _, arm := range arms {
		for _, at := range t.levels {
			c := clauses{s: s, arm: arm, at: at}
			c.cost()
			c.latency()
			c.throughput()
			c.memory()
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
			if share := c.find("bpf_client_share"); kind.prefix == "bpf_seconds_per_" && share != nil {
				text += fmt.Sprintf(", %.0f %% of it in the client's cgroup", 100*share.Value)
				c.evidence = append(c.evidence, share.Metric+" "+share.Arm)
			}
			c.add(e, text)
			break // per connection and per request say the same twice
		}
	}
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

func (c *clauses) memory() {
	for _, m := range []struct{ metric, what string }{{"memory_hard_bytes", "of hard memory"}, {"map_bytes", "of maps"}} {
		e := c.find(m.metric)
		if e == nil || e.Value == 0 {
			continue
		}
		text := quantity.Rough(e.Value, e.Unit) + " " + m.what
		if len(c.parts) == 0 {
			text = "holds " + text
		}
		c.add(e, text)
	}
}

// moved words a difference: "is 9 us [5, 13] higher", or why it says nothing.
func (c *clauses) moved(e *Estimate) string {
	d := e.Difference
	switch {
	case !d.Resolved:
		return "is not resolved" + c.visible(e)
	case d.Value < 0:
		return "is " + size(d, e.Unit) + " lower"
	}
	return "is " + size(d, e.Unit) + " higher"
}

func (c *clauses) visible(e *Estimate) string {
	if v, ok := c.s.Visible(e.Metric, e.Factors); ok && math.Abs(e.Difference.Value) <= v {
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
