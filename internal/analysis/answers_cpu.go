package analysis

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"tare/internal/quantity"
	"tare/internal/record"
)

// evidence collects the estimates that an answer quotes.
type evidence struct {
	s    *Summary
	at   factors
	arm  string
	used []string
}

// get is an estimate that is quoted; null where there is none.
func (v *evidence) get(metric string) *Estimate { return v.of(metric, v.arm) }

func (v *evidence) of(metric, arm string) *Estimate {
	e := v.s.Find(metric, arm, v.at)
	if e != nil && !slices.Contains(v.used, metric+" "+arm) {
		v.used = append(v.used, metric+" "+arm)
	}
	return e
}

// say writes an estimate with its interval; "an unknown part" where there is none.
func (v *evidence) say(metric string) string {
	e := v.get(metric)
	if e == nil {
		return "an unknown part"
	}
	return written(e.Value, e.Lo, e.Hi, e.Unit)
}

// The marks by which the answer on CPU limits is given.
const (
	heldBack = 0.5  // part of the periods in which a group that its limit holds is throttled, at least
	grain    = 0.03 // what a window can show beyond the limit: a tick or two of overrun, paid back in a later period
)

// limitAnswers say, for each level, whether the programs' time is inside the limit. What decides is the heaviest program: held by its
// limit, the group must take no more than that with the program, and be charged for what the program adds to each connection.
func limitAnswers(s *Summary, t *table) []Answer {
	var answers []Answer
	for _, at := range t.levels {
		v := &evidence{s: s, at: at}
		weight := func(arm string) float64 {
			if e := s.Find("bpf_seconds_per_connection", arm, at); e != nil {
				return e.Value
			}
			return 0
		}
		arms := t.subjects()
		slices.SortStableFunc(arms, func(a, b string) int { return cmp.Compare(weight(b), weight(a)) })
		if len(arms) == 0 {
			continue
		}
		v.arm = arms[0]
		limit, used, throttled := v.get("limit_cpus"), v.get("limited_share"), v.get("limited_throttled_share")
		each, done := v.get("limited_cpu_seconds_per_connection"), v.get("throughput_per_second")
		if limit == nil || used == nil || throttled == nil {
			continue // no group has a limit, or this machine cannot tell
		}
		verdict := "Yes: "
		switch {
		case used.Lo == nil || throttled.Lo == nil || each == nil || each.Difference == nil || done == nil:
			verdict = "Too little to say: "
		case *used.Lo > 1+grain:
			verdict = "No, it was exceeded: "
		case *throttled.Lo < heldBack:
			verdict = "Not shown, for the limit did not hold anybody back: "
		case !each.Difference.Resolved || each.Difference.Value < 0:
			verdict = "Not resolved: "
		}
		var b strings.Builder
		if len(at) > 0 {
			fmt.Fprintf(&b, "At %s: ", Level(at))
		}
		fmt.Fprintf(&b, "%swith %s, at a limit of %s, the limited groups used %s, %s of it (the fullest group %s of its own), throttled in %s of the periods. ",
			verdict, v.arm, quantity.Rough(limit.Value, limit.Unit), v.say("limited_cpus"), v.say("limited_share"), v.say("limited_most_share"), v.say("limited_throttled_share"))
		if each != nil && each.Difference != nil && done != nil {
			c := clauses{s: s, arm: v.arm, at: at}
			fmt.Fprintf(&b, "The CPU time that they are charged for each connection %s than without the programs: at the %s that are left, %s of the limit; throughput %s. ",
				c.moved(each), quantity.Rough(done.Value, done.Unit), quantity.Rough(each.Difference.Value*done.Value, quantity.CPUs), c.moved(done))
		}
		fmt.Fprintf(&b, "By samples eBPF took %s above their tasks", v.say("limited_bpf_cpus"))
		if bpf, cpus := v.get("limited_bpf_cpus"), v.get("limited_cpus"); bpf != nil && cpus != nil && bpf.Lo != nil && cpus.Hi != nil && *bpf.Lo > *cpus.Hi {
			b.WriteString(", more than they were charged: something else held the programs up while they ran")
		}
		fmt.Fprintf(&b, ". With %s: %s", v.arm, v.contexts())
		if lightest := arms[len(arms)-1]; lightest != v.arm {
			w := &evidence{s: s, at: at, arm: lightest, used: v.used}
			fmt.Fprintf(&b, " With %s: %s", lightest, w.contexts())
			v.used = w.used
		}
		if lighter := v.lighter(arms[1:]); lighter != "" {
			b.WriteString(" " + lighter)
		}
		answers = append(answers, Answer{Answer: b.String(), Evidence: v.used})
	}
	return answers
}

// contexts says in which context the programs ran, and whether that is inside the limit. Whether softirq is depends on how the kernel was
// built, and shows in what the ledger put inside.
func (v *evidence) contexts() string {
	task, softirq, inside := v.get("bpf_limited_task_share"), v.get("bpf_limited_softirq_share"), v.get("bpf_limited_inside_share")
	if task == nil || softirq == nil || inside == nil {
		return "there are too few samples to tell task context from softirq."
	}
	where := "outside it, for this kernel takes interrupts out of the time of groups"
	switch {
	case softirq.Value == 0:
		where = "so softirq decides nothing here"
	case inside.Value > task.Value:
		where = "inside it too, for this kernel leaves interrupts in the time of the task that they interrupted"
	}
	text := fmt.Sprintf("of the programs' run time %s was in task context of the limited groups, inside the limit; %s in softirq above them, %s", v.say("bpf_limited_task_share"), v.say("bpf_limited_softirq_share"), where)
	if elsewhere := 1 - task.Value - softirq.Value; elsewhere >= 0.0005 {
		text += fmt.Sprintf("; %s in other groups, which pay for it", quantity.Rough(elsewhere, quantity.Part))
	}
	return text + "."
}

// lighter says what the lighter programs add to the charge.
func (v *evidence) lighter(arms []string) string {
	var parts []string
	for _, arm := range arms {
		if e := v.of("limited_cpu_seconds_per_connection", arm); e != nil && e.Difference != nil {
			parts = append(parts, "with "+arm+" it "+(&clauses{s: v.s, arm: arm, at: v.at}).moved(e))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return "The charge for each connection with lighter programs: " + strings.Join(parts, "; ") + "."
}

// saturationAnswers say, for each arm, how the programs' part of the machine goes over the levels, and then each level by itself.
func saturationAnswers(s *Summary, t *table) []Answer {
	var answers []Answer
	for _, arm := range t.subjects() {
		if len(t.levels) > 1 {
			first, last := &evidence{s: s, arm: arm, at: t.levels[0]}, &evidence{s: s, arm: arm, at: t.levels[len(t.levels)-1]}
			if a, b := first.get("bpf_cpu_share"), last.get("bpf_cpu_share"); a != nil && b != nil {
				answers = append(answers, Answer{
					Answer: fmt.Sprintf("From %s to %s the part of the machine that the programs of %s take goes from %s to %s; of the machine %s and %s are busy.",
						Level(first.at), Level(last.at), arm, first.say("bpf_cpu_share"), last.say("bpf_cpu_share"), first.say("cpu_busy_share"), last.say("cpu_busy_share")),
					Evidence: first.used,
				})
			}
		}
		for _, at := range t.levels {
			v := &evidence{s: s, arm: arm, at: at}
			if v.get("bpf_cpu_share") == nil {
				continue
			}
			var b strings.Builder
			if len(at) > 0 {
				fmt.Fprintf(&b, "At %s: ", Level(at))
			}
			fmt.Fprintf(&b, "the programs of %s take %s of the machine", arm, v.say("bpf_cpu_share"))
			if e := v.get("bpf_seconds_per_connection"); e != nil {
				fmt.Fprintf(&b, ", %s per connection", written(e.Value, e.Lo, e.Hi, e.Unit))
			}
			if e := v.of("cpu_busy_share", record.Direct); e != nil {
				fmt.Fprintf(&b, "; %s of it is busy, and without the programs %s", v.say("cpu_busy_share"), written(e.Value, e.Lo, e.Hi, e.Unit))
			}
			if e := v.get("app_cpu_share"); e != nil {
				fmt.Fprintf(&b, "; applications take %s, loads %s", written(e.Value, e.Lo, e.Hi, e.Unit), v.say("load_cpu_share"))
			}
			if e := v.get("throughput_per_second"); e != nil && e.Difference != nil {
				c := clauses{s: s, arm: arm, at: at}
				fmt.Fprintf(&b, "; throughput is %s; against the same without the programs it %s", written(e.Value, e.Lo, e.Hi, e.Unit), c.moved(e))
				if e.Ratio != nil && e.Difference.Resolved {
					fmt.Fprintf(&b, " (%s)", quantity.DeltaValue(e.Ratio.Value-1, quantity.Part))
				}
			}
			answers = append(answers, Answer{Answer: b.String() + ".", Evidence: v.used})
		}
	}
	return answers
}
