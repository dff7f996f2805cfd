package analysis

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"tare/internal/experiment/record"
	"tare/internal/lib/quantity"
)

// The marks by which the answer on CPU limits is given.
const (
	heldBack = 0.5  // part of the periods in which a group that its limit holds is throttled, at least
	grain    = 0.03 // what a window can show beyond the limit: a tick or two of overrun, paid back in a later period
)

// limitAnswers say, for each level, whether the programs' time is inside the limit. What decides is the heaviest
// program: held by its limit, the group must take no more than that with the program, and be charged for what the
// program adds to each connection.
func limitAnswers(s *Summary, t *table) []Answer {
	var answers []Answer
	for _, at := range t.levels {
		p := &prose{s: s, at: at}
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
		p.arm = arms[0]
		limit, used, throttled := p.find("limit_cpus"), p.find("limited_share"), p.find("limited_throttled_share")
		each, done := p.find("limited_cpu_seconds_per_connection"), p.find("throughput_per_second")
		if limit == nil || used == nil && each == nil {
			continue // no group has a limit, or this machine cannot tell
		}
		verdict := "Application and programs share the limit: "
		switch {
		case used == nil || used.Lo == nil || throttled == nil || throttled.Lo == nil,
			each == nil || each.Difference == nil || done == nil:
			verdict = "There is too little to say whether application and programs share the limit: "
		case *used.Lo > 1+grain:
			verdict = "The limit was exceeded: "
		case *throttled.Lo < heldBack:
			verdict = "The limit did not hold anybody back, so it does not show what it limits: "
		case !each.Difference.Resolved || each.Difference.Value < 0:
			verdict = "Whether application and programs share the limit is not resolved: "
		}
		p.add("%swith %s, at a limit of %s, %s.",
			p.where()+verdict, p.arm, quantity.Rough(limit.Value, limit.Unit), p.underLimit(used, throttled))
		if each != nil && each.Difference != nil && done != nil {
			p.add("The CPU time that they are charged for each connection %s than without the programs: "+
				"at the %s that are left, %s of the limit; throughput %s.", p.moved(each), quantity.Rough(done.Value, done.Unit),
				quantity.Rough(each.Difference.Value*done.Value, quantity.CPUs), p.moved(done))
		}
		took := fmt.Sprintf("By samples eBPF took %s above their tasks", p.say("limited_bpf_cpus"))
		bpf, cpus := p.find("limited_bpf_cpus"), p.find("limited_cpus")
		if bpf != nil && cpus != nil && bpf.Lo != nil && cpus.Hi != nil && *bpf.Lo > *cpus.Hi {
			took += ", more than they were charged: something else held the programs up while they ran"
		}
		p.add("%s.", took)
		heaviest := p.arm
		for _, arm := range slices.Compact([]string{heaviest, arms[len(arms)-1]}) { // and the lightest
			p.arm = arm
			p.add("With %s: %s", arm, p.contexts())
		}
		p.lighter(arms[1:])
		answers = append(answers, p.answer())
	}
	return answers
}

// underLimit says how much of the limit the limited groups used, as far as that can be told.
func (p *prose) underLimit(used, throttled *Estimate) string {
	text := "what the limited groups used of it cannot be told"
	if used != nil {
		text = fmt.Sprintf("the limited groups used %s, %s of it (the fullest group %s of its own)",
			p.say("limited_cpus"), said(used), p.say("limited_most_share"))
	}
	if throttled != nil {
		text += fmt.Sprintf(", throttled in %s of the periods", said(throttled))
	}
	return text
}

// contexts says in which context the programs ran, and whether that is inside the limit. Whether softirq is depends on
// how the kernel was built, and shows in what the ledger put inside.
func (p *prose) contexts() string {
	task, softirq := p.find("bpf_limited_task_share"), p.find("bpf_limited_softirq_share")
	inside := p.find("bpf_limited_inside_share")
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
	text := fmt.Sprintf("of the programs' run time %s was in task context of the limited groups, inside the limit; "+
		"%s in softirq above them, %s", said(task), said(softirq), where)
	if elsewhere := 1 - task.Value - softirq.Value; elsewhere >= 0.0005 {
		text += fmt.Sprintf("; %s in other groups, which pay for it", quantity.Rough(elsewhere, quantity.Part))
	}
	return text + "."
}

// lighter says what the lighter programs add to the charge.
func (p *prose) lighter(arms []string) {
	var parts []string
	for _, arm := range arms {
		if e := p.of("limited_cpu_seconds_per_connection", arm); e != nil && e.Difference != nil {
			parts = append(parts, "with "+arm+" it "+p.moved(e))
		}
	}
	if len(parts) > 0 {
		p.add("The charge for each connection with lighter programs: %s.", strings.Join(parts, "; "))
	}
}

// saturationAnswers say, for each arm, how the programs' part of the machine goes over the levels, and then each level
// by itself.
func saturationAnswers(s *Summary, t *table) []Answer {
	var answers []Answer
	for _, arm := range t.subjects() {
		if len(t.levels) > 1 {
			p := &prose{s: s, arm: arm, at: t.levels[0]}
			first := p.find("bpf_cpu_share")
			p.at = t.levels[len(t.levels)-1]
			if last := p.find("bpf_cpu_share"); first != nil && last != nil {
				text := fmt.Sprintf("The part of the machine that the programs of %s take goes from %s %s to %s %s", arm,
					said(first), s.At(t.levels[0]), said(last), s.At(p.at))
				busyLast := p.say("cpu_busy_share")
				p.at = t.levels[0]
				p.add("%s; of the machine %s and %s are busy.", text, p.say("cpu_busy_share"), busyLast)
				answers = append(answers, p.answer())
			}
		}
		for _, at := range t.levels {
			p := &prose{s: s, arm: arm, at: at}
			if p.saturated(); len(p.text) > 0 {
				answers = append(answers, p.answer())
			}
		}
	}
	return answers
}

// saturated words one level.
func (p *prose) saturated() {
	share := p.find("bpf_cpu_share")
	if share == nil {
		return
	}
	text := fmt.Sprintf("%sthe programs of %s take %s of the machine", p.where(), p.arm, said(share))
	if e := p.find("bpf_seconds_per_connection"); e != nil {
		text += fmt.Sprintf(", %s per connection", said(e))
	} else if e := p.find("bpf_seconds_per_request"); e != nil {
		text += fmt.Sprintf(", %s per request", said(e))
	}
	if e := p.of("cpu_busy_share", record.Direct); e != nil {
		text += fmt.Sprintf("; %s of it is busy, and without the programs %s", p.say("cpu_busy_share"), said(e))
	}
	if e := p.find("app_cpu_share"); e != nil {
		text += fmt.Sprintf("; applications take %s, loads %s", said(e), p.say("load_cpu_share"))
	}
	if e := p.find("throughput_per_second"); e != nil && e.Difference != nil {
		text += fmt.Sprintf("; throughput is %s; against the same without the programs it %s", said(e), p.moved(e))
		if e.Ratio != nil && e.Difference.Resolved {
			text += fmt.Sprintf(" (%s)", quantity.DeltaValue(e.Ratio.Value-1, quantity.Part))
		}
	}
	p.add("%s.", Capital(text))
}
