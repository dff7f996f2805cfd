package probe

import (
	"fmt"
	"slices"

	"tare/internal/experiment/record"
	"tare/internal/lib/quantity"
	"tare/internal/results/analysis"
)

func init() {
	analysis.Register(analysis.Family{Metrics: []string{"sched_delay_max_seconds"}, Answer: stressAnswers})
}

// prose writes this package's answers.
type prose struct{ analysis.Prose }

// usableDelay is the longest wait for a CPU, in seconds, with which a machine still counts as usable: a person at a
// terminal still gets an answer, and health checks, which allow a second or more, still pass.
const usableDelay = 1.0

// stressAnswers returns one answer for each arm and level, about the effect of heavy programs on the machine, and
// before these an answer that says whether the machine stays usable. The longest waits are maxima over all trials,
// because "at most" with a median would promise too much.
func stressAnswers(s *analysis.Summary, t *analysis.Table) []analysis.Answer {
	if !t.SubjectHas("bpf_cpu_share") {
		return nil
	}
	var all []analysis.Answer
	longest, most := 0.0, analysis.Prose{Summary: s}
	for _, arm := range t.Subjects() {
		for _, at := range t.Levels {
			p := &prose{analysis.Prose{Summary: s, Arm: arm, At: at}}
			waits := t.Column(at, arm, "sched_delay_max_seconds")
			share := p.Of("bpf_cpu_share", arm)
			if len(waits) == 0 || share == nil {
				continue
			}
			if wait := slices.Max(waits); wait > longest {
				longest, most.Arm, most.At = wait, arm, at
			}
			p.stress(t, slices.Max(waits))
			all = append(all, p.Answer())
		}
	}
	if len(all) == 0 {
		return nil
	}
	verdict := "The machine stays usable"
	without := longestWait(t, record.Direct, record.AA)
	switch {
	case longest > usableDelay && without > usableDelay/2:
		verdict = fmt.Sprintf("Whether the machine stays usable is unknown, because without the programs a task waited "+
			"up to %s too",
			quantity.Value(without, quantity.Seconds))
	case longest > usableDelay:
		verdict = "The machine does not stay usable"
	}
	ended := "All trials ended by themselves."
	if s.Trials.Failed > 0 {
		ended = fmt.Sprintf("%d of %d trials failed.", s.Trials.Failed, s.Trials.Done)
	}
	most.Add("%s, in this sense: a task that wanted a CPU, and had no part in the programs, waited %s at the longest%s, "+
		"and up to %s counts as usable. %s",
		verdict, quantity.Value(longest, quantity.Seconds), most.Here(), quantity.Value(usableDelay, quantity.Seconds), ended)
	most.Find("sched_delay_max_seconds")
	return append([]analysis.Answer{most.Answer()}, all...)
}

// longestWait returns the longest wait over all trials of the given arms, in seconds.
func longestWait(t *analysis.Table, arms ...string) (longest float64) {
	for _, at := range t.Levels {
		for _, arm := range arms {
			longest = slices.Max(append(t.Column(at, arm, "sched_delay_max_seconds"), longest))
		}
	}
	return longest
}

// stress writes the answer for one level.
func (p *prose) stress(t *analysis.Table, longest float64) {
	run := p.Find("bpf_run_seconds")
	text := fmt.Sprintf("%sa task that wants a CPU waits %s at the median", p.Where(), p.Say("sched_delay_p50_seconds"))
	if p99 := p.Find("sched_delay_p99_seconds"); p99 != nil {
		text += fmt.Sprintf(", %s at the 99th percentile", analysis.Said(p99))
	}
	text += fmt.Sprintf(" and %s at the longest", quantity.Value(longest, quantity.Seconds))
	if run != nil && run.Value > 0.01 { // the time slices of other tasks hide shorter runs
		text += fmt.Sprintf(", %.1f runs", longest/run.Value)
	}
	if base := t.Column(p.At, record.Direct, "sched_delay_max_seconds"); len(base) > 0 {
		text += fmt.Sprintf(" (with the CPUs as busy but without the programs: %s and %s)",
			p.SayOf("sched_delay_p50_seconds", record.Direct), quantity.Value(slices.Max(base), quantity.Seconds))
	}
	p.Add("%s.", analysis.Capital(text))
	if run != nil {
		p.Add("One run takes %s.", analysis.Said(run))
	}
	p.Add("The programs take %s of the machine's CPU time, which is busy to %s.",
		p.Say("bpf_cpu_share"), p.Say("cpu_busy_share"))
	work, base := p.Find("throughput_per_second"), p.Of("throughput_per_second", record.Direct)
	switch {
	case work == nil || base == nil || work.Difference == nil:
	case work.Difference.Lo != nil && !work.Difference.Resolved:
		p.Add("Throughput is %s; the difference is not resolved.", p.Say("throughput_per_second"))
	case work.Ratio != nil:
		p.Add("Throughput goes from %s to %s, %s of it.", analysis.Said(base), analysis.Said(work),
			work.Ratio.Written(quantity.Part))
	}
}
