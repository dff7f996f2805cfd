package analysis

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"tare/internal/experiment/record"
	"tare/internal/lib/quantity"
)

// The thresholds of the answer on CPU limits.
const (
	heldBack = 0.5  // minimum fraction of throttled periods in a group that is held back by its limit
	grain    = 0.03 // fraction by which a group may exceed its limit in a window: it pays a tick or two back later
)

// limitAnswers returns an answer for each level: whether the eBPF programs' time counts toward the CPU limit. The
// heaviest program decides. Its time counts if a throttled group uses no more than its limit and is charged for what
// the program adds to each connection.
func limitAnswers(s *Summary, t *Table) []Answer {
	if !t.SubjectHas("bpf_cpus") && !t.SubjectHas("limited_bpf_cpus") {
		return nil
	}
	var answers []Answer
	for _, at := range t.Levels {
		p := &Prose{Summary: s, At: at}
		weight := func(arm string) float64 {
			if e := s.Find("bpf_seconds_per_connection", arm, at); e != nil {
				return e.Value
			}
			return 0
		}
		arms := t.Subjects()
		slices.SortStableFunc(arms, func(a, b string) int { return cmp.Compare(weight(b), weight(a)) })
		if len(arms) == 0 {
			continue
		}
		p.Arm = arms[0]
		limit, used, throttled := p.Find("limit_cpus"), p.Find("limited_share"), p.Find("limited_throttled_share")
		each, done := p.Find("limited_cpu_seconds_per_connection"), p.Find("throughput_per_second")
		if limit == nil || used == nil && each == nil {
			continue // no group has a limit, or this machine cannot measure it
		}
		verdict := "Application and programs share the limit: "
		switch {
		case used == nil || used.Lo == nil || throttled == nil || throttled.Lo == nil,
			each == nil || each.Difference == nil || done == nil:
			verdict = "It is unknown whether application and programs share the limit: "
		case *used.Lo > 1+grain:
			verdict = "The limit was exceeded: "
		case *throttled.Lo < heldBack:
			verdict = "No group was held back by its limit, so the run does not show what the limit covers: "
		case !each.Difference.Resolved || each.Difference.Value < 0:
			verdict = "Whether application and programs share the limit is not resolved: "
		}
		p.Add("%swith %s, at a limit of %s, %s.",
			p.Where()+verdict, p.Arm, quantity.Rough(limit.Value, limit.Unit), p.underLimit(used, throttled))
		if each != nil && each.Difference != nil && !each.Difference.BaselineWithheld() && done != nil {
			text := "Against the baseline, the CPU time that they are charged for each connection " + p.moved(each)
			if each.Difference.Resolved {
				text += fmt.Sprintf(": at the %s that are left, %s of the limit", quantity.Rough(done.Value, done.Unit),
					quantity.Rough(each.Difference.Value*done.Value, quantity.CPUs))
			}
			p.Add("%s; throughput %s.", text, p.moved(done))
		}
		took := fmt.Sprintf("By samples eBPF took %s above their tasks", p.Say("limited_bpf_cpus"))
		bpf, cpus := p.Find("limited_bpf_cpus"), p.Find("limited_cpus")
		if bpf != nil && cpus != nil && bpf.Lo != nil && cpus.Hi != nil && *bpf.Lo > *cpus.Hi {
			took += ", more than they were charged: something else held the programs up while they ran"
		}
		p.Add("%s.", took)
		heaviest := p.Arm
		for _, arm := range slices.Compact([]string{heaviest, arms[len(arms)-1]}) { // the lightest arm as well
			p.Arm = arm
			p.Add("With %s: %s", arm, p.contexts())
		}
		p.lighter(arms[1:])
		answers = append(answers, p.Answer())
	}
	return answers
}

// underLimit describes how much of the limit the limited groups used.
func (p *Prose) underLimit(used, throttled *Estimate) string {
	text := "the part of it that the limited groups used is unknown"
	if used != nil {
		text = fmt.Sprintf("the limited groups used %s, %s of it (the fullest group %s of its limit)",
			p.Say("limited_cpus"), Said(used), p.Say("limited_most_share"))
	}
	if throttled != nil {
		text += fmt.Sprintf(", throttled in %s of the periods", Said(throttled))
	}
	return text
}

// contexts describes in which context the programs ran, and whether that counts toward the limit. Whether softirq time
// counts depends on how the kernel was built; the time that the ledger attributes to the groups shows whether it does.
func (p *Prose) contexts() string {
	task, softirq := p.Find("bpf_limited_task_share"), p.Find("bpf_limited_softirq_share")
	inside := p.Find("bpf_limited_inside_share")
	if task == nil || softirq == nil || inside == nil {
		return "there are too few samples to distinguish task context from softirq."
	}
	where := "outside it, because this kernel charges interrupts to no group"
	switch {
	case softirq.Value == 0:
		where = "so softirq makes no difference here"
	case inside.Value > task.Value:
		where = "inside it too, because this kernel charges interrupts to the task that they interrupted"
	}
	text := fmt.Sprintf("of the programs' run time %s was in task context of the limited groups, inside the limit; "+
		"%s in softirq above them, %s", Said(task), Said(softirq), where)
	if elsewhere := 1 - task.Value - softirq.Value; elsewhere >= 0.0005 {
		text += fmt.Sprintf("; %s in other groups, which pay for it", quantity.Rough(elsewhere, quantity.Part))
	}
	return text + "."
}

// lighter adds a sentence on how the lighter programs change the charge for each connection.
func (p *Prose) lighter(arms []string) {
	var parts []string
	for _, arm := range arms {
		if e := p.Of("limited_cpu_seconds_per_connection", arm); e != nil && e.Difference != nil {
			parts = append(parts, "with "+arm+" it "+p.moved(e))
		}
	}
	if len(parts) > 0 {
		p.Add("The charge for each connection with lighter programs: %s.", strings.Join(parts, "; "))
	}
}

// saturationAnswers returns answers about eBPF programs on a machine that the loads saturate. For each arm, they say
// how the programs' share of the machine changes from the first level to the last, and then describe each level.
func saturationAnswers(s *Summary, t *Table) []Answer {
	if !free(t) || !full(t) || !t.SubjectHas("bpf_cpu_share") {
		return nil
	}
	var answers []Answer
	for _, arm := range t.Subjects() {
		if len(t.Levels) > 1 {
			p := &Prose{Summary: s, Arm: arm, At: t.Levels[0]}
			first := p.Find("bpf_cpu_share")
			p.At = t.Levels[len(t.Levels)-1]
			if last := p.Find("bpf_cpu_share"); first != nil && last != nil {
				text := fmt.Sprintf("The part of the machine that the programs of %s take goes from %s %s to %s %s", arm,
					Said(first), s.At(t.Levels[0]), Said(last), s.At(p.At))
				busyLast := p.Say("cpu_busy_share")
				p.At = t.Levels[0]
				p.Add("%s; of the machine %s and %s are busy.", text, p.Say("cpu_busy_share"), busyLast)
				answers = append(answers, p.Answer())
			}
		}
		for _, at := range t.Levels {
			p := &Prose{Summary: s, Arm: arm, At: at}
			if p.saturated(); len(p.text) > 0 {
				answers = append(answers, p.Answer())
			}
		}
	}
	return answers
}

func (p *Prose) saturated() {
	share := p.Find("bpf_cpu_share")
	if share == nil {
		return
	}
	text := fmt.Sprintf("%sthe programs of %s take %s of the machine", p.Where(), p.Arm, Said(share))
	if e := p.Find("bpf_seconds_per_connection"); e != nil {
		text += fmt.Sprintf(", %s per connection", Said(e))
	} else if e := p.Find("bpf_seconds_per_request"); e != nil {
		text += fmt.Sprintf(", %s per request", Said(e))
	}
	if e := p.Of("cpu_busy_share", record.Direct); e != nil {
		text += fmt.Sprintf("; %s of it is busy, and in the baseline %s", p.Say("cpu_busy_share"), Said(e))
	}
	if e := p.Find("app_cpu_share"); e != nil {
		text += fmt.Sprintf("; applications take %s, loads %s", Said(e), p.Say("load_cpu_share"))
	}
	if e := p.Find("throughput_per_second"); e != nil && e.Difference != nil {
		text += fmt.Sprintf("; throughput is %s; against the baseline it %s", Said(e), p.moved(e))
		if e.Ratio != nil && e.Difference.Resolved {
			text += fmt.Sprintf(" (%s)", quantity.DeltaValue(e.Ratio.Value-1, quantity.Part))
		}
	}
	p.Add("%s.", Capital(text))
}
