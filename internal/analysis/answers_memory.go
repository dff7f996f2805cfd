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

// usableDelay is the longest wait for a CPU up to which a machine is called usable, in seconds: a person at a terminal still gets an answer,
// and health checks, which allow a second or more, still pass.
const usableDelay = 1.0

// words collects one answer and the estimates that it rests on.
type words struct {
	s        *Summary
	arm      string
	at       factors
	text     []string
	evidence []string
}

func (w *words) find(metric, arm string) *Estimate {
	e := w.s.Find(metric, arm, w.at)
	if e != nil && !slices.Contains(w.evidence, metric+" "+arm) {
		w.evidence = append(w.evidence, metric+" "+arm)
	}
	return e
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

// say gives a value of the arm with its interval; "unknown" where the run does not have it.
func (w *words) say(metric, arm string) string {
	e := w.find(metric, arm)
	if e == nil {
		return "an unknown value"
	}
	return said(e)
}

func (w *words) add(format string, args ...any) {
	w.text = append(w.text, fmt.Sprintf(format, args...))
}

func (w *words) answer() Answer {
	return Answer{Question: w.s.Question, Answer: strings.Join(w.text, " "), Evidence: w.evidence}
}

// stressAnswers says what heavy programs do to the machine at each level, and first whether it stays usable. The longest waits are those of
// all trials together, for "at most" of a median would promise too much.
func stressAnswers(s *Summary, t *table) []Answer {
	var all []Answer
	longest, most := 0.0, words{s: s}
	for _, arm := range t.subjects() {
		for _, at := range t.levels {
			w := &words{s: s, arm: arm, at: at}
			waits := t.column(at, arm, "sched_delay_max_seconds")
			share := w.find("bpf_cpu_share", arm)
			if len(waits) == 0 || share == nil {
				continue
			}
			if wait := slices.Max(waits); wait > longest {
				longest, most.arm, most.at = wait, arm, at
			}
			w.stress(t, slices.Max(waits))
			all = append(all, w.answer())
		}
	}
	if len(all) == 0 {
		return nil
	}
	verdict := "Yes, it stays usable"
	without := t.longestWait(record.Direct, record.AA)
	switch {
	case longest > usableDelay && without > usableDelay/2:
		verdict = fmt.Sprintf("It cannot be told whether it stays usable, for without the programs a task waited up to %s too", quantity.Value(without, quantity.Seconds))
	case longest > usableDelay:
		verdict = "No, it does not stay usable"
	}
	most.add("%s, in this sense: a task that wanted a CPU, and had no part in the programs, waited %s at the longest (%s), and up to %s counts as usable. All trials ended by themselves.",
		verdict, quantity.Value(longest, quantity.Seconds), Level(most.at), quantity.Value(usableDelay, quantity.Seconds))
	if s.Trials.Failed > 0 {
		most.text[0] = strings.Replace(most.text[0], "All trials ended by themselves.", fmt.Sprintf("%d of %d trials failed.", s.Trials.Failed, s.Trials.Done), 1)
	}
	most.find("sched_delay_max_seconds", most.arm)
	return append([]Answer{most.answer()}, all...)
}

// longestWait is the longest wait of all trials of some arms, in seconds.
func (t *table) longestWait(arms ...string) (longest float64) {
	for _, at := range t.levels {
		for _, arm := range arms {
			longest = slices.Max(append(t.column(at, arm, "sched_delay_max_seconds"), longest))
		}
	}
	return longest
}

// stress words one level.
func (w *words) stress(t *table, longest float64) {
	w.add("At %s:", Level(w.at))
	run := w.find("bpf_run_seconds", w.arm)
	text := fmt.Sprintf("a task that wants a CPU waits %s at the median", w.say("sched_delay_p50_seconds", w.arm))
	if p99 := w.find("sched_delay_p99_seconds", w.arm); p99 != nil {
		text += fmt.Sprintf(", %s at the 99th percentile", said(p99))
	}
	text += fmt.Sprintf(" and %s at the longest", quantity.Value(longest, quantity.Seconds))
	if run != nil && run.Value > 0.01 { // shorter ones are lost among the time slices of other tasks
		text += fmt.Sprintf(", %.1f runs", longest/run.Value)
	}
	if base := t.column(w.at, record.Direct, "sched_delay_max_seconds"); len(base) > 0 {
		text += fmt.Sprintf(" (with the CPUs as busy but without the programs: %s and %s)", w.say("sched_delay_p50_seconds", record.Direct), quantity.Value(slices.Max(base), quantity.Seconds))
	}
	w.add("%s.", text)
	if run != nil {
		w.add("One run takes %s.", said(run))
	}
	w.add("The programs take %s of the machine's CPU time, which is busy to %s.", w.say("bpf_cpu_share", w.arm), w.say("cpu_busy_share", w.arm))
	work, base := w.find("throughput_per_second", w.arm), w.find("throughput_per_second", record.Direct)
	switch {
	case work == nil || base == nil || work.Difference == nil:
	case work.Difference.Lo != nil && !work.Difference.Resolved:
		w.add("Throughput is %s; the difference is not resolved.", w.say("throughput_per_second", w.arm))
	case work.Ratio != nil:
		w.add("Throughput goes from %s to %s, %s of it.", w.say("throughput_per_second", record.Direct), w.say("throughput_per_second", w.arm),
			written(work.Ratio.Value, work.Ratio.Lo, work.Ratio.Hi, quantity.Part))
	}
}

// memoryAnswers says for each way of sizing the maps what is fixed, what a service adds, what other ways of counting would say, to whom the maps
// are charged, and what is left when services go.
func memoryAnswers(s *Summary, t *table) []Answer {
	var all []Answer
	for _, arm := range t.subjects() {
		if len(t.levels) == 0 {
			break
		}
		w := &words{s: s, arm: arm, at: t.levels[len(t.levels)-1]}
		if s.Find("map_bytes", arm, w.at) == nil {
			continue
		}
		w.mapModel(t)
		w.otherCounts(t)
		w.charged()
		w.downAgain(t)
		all = append(all, w.answer())
	}
	return all
}

// mapModel: fixed and per service, each map once.
func (w *words) mapModel(t *table) {
	top := w.at
	for _, m := range w.s.Models {
		if m.Metric != "map_bytes" || m.Arm != w.arm || len(m.Terms) != 2 {
			continue
		}
		fixed, each := m.Terms[0], m.Terms[1]
		text := fmt.Sprintf("%s: each map counted once, %s and %s for each service", w.arm,
			term(fixed, fixed.Unit), term(each, quantity.Bytes))
		r := m.ValidRange[each.Name]
		text += fmt.Sprintf(", from %g to %g services", r[0], r[1])
		if !m.Linear {
			text += " (not a straight line, by its lack of fit)"
		}
		w.add("%s; %s at the most.", text, w.say("map_bytes", w.arm))
		return
	}
	w.add("%s: each map counted once, %s at %s.", w.arm, w.say("map_bytes", w.arm), Level(top))
}

// otherCounts: what lists of programs with the memory of their maps come to.
func (w *words) otherCounts(t *table) {
	var once, often, real []float64
	for _, at := range t.levels {
		for metric, into := range map[string]*[]float64{"map_declared_bytes": &once, "map_by_program_bytes": &often, "map_bytes": &real} {
			if e := w.s.Find(metric, w.arm, at); e != nil {
				*into = append(*into, e.Value)
			}
		}
	}
	if len(often) == 0 || len(once) == 0 || len(often) != len(real) {
		return
	}
	w.find("map_declared_bytes", w.arm)
	w.find("map_by_program_bytes", w.arm)
	span := func(xs []float64) string {
		lo, hi := slices.Min(xs), slices.Max(xs)
		if lo == hi {
			return quantity.Value(lo, quantity.Bytes) + " at every number of services"
		}
		return quantity.Value(lo, quantity.Bytes) + " to " + quantity.Value(hi, quantity.Bytes)
	}
	last := len(often) - 1
	w.add("By max_entries, as kernels 5.11 to 6.3 count, the same maps are %s, and once for each program that uses them %s: %.1f times what they take.",
		span(once), span(often), often[last]/real[last])
}

// charged: to whom.
func (w *words) charged() {
	share, kernel, hard := w.find("map_charged_share", w.arm), w.find("memory_kernel_bytes", w.arm), w.find("memory_hard_bytes", w.arm)
	if share == nil {
		w.add("To whom the maps are charged, this kernel does not tell.")
	} else {
		w.add("%s of the bytes are charged to the data plane's own control group, whoever uses them.", quantity.Value(share.Value, quantity.Part))
	}
	if kernel != nil && hard != nil {
		w.add("At %s that group holds %s of kernel memory, and %s of hard memory in all: the rest is the process itself.", Level(w.at), said(kernel), said(hard))
	}
}

// downAgain: what load adds, and what is left when all services but a few have gone.
func (w *words) downAgain(t *table) {
	before, loaded, after := w.find("map_before_bytes", w.arm), w.find("map_bytes", w.arm), w.find("map_after_bytes", w.arm)
	if before == nil || loaded == nil || after == nil {
		return
	}
	load := "Load changes nothing in the maps' size"
	if d := loaded.Value - before.Value; math.Abs(d) >= 1 {
		load = "Load changes the maps' size by " + quantity.Value(d, quantity.Bytes)
	}
	w.add("%s.", load)
	text := fmt.Sprintf("When the services go again, the maps say %s", said(after))
	if first := w.s.Find("map_bytes", w.arm, t.levels[0]); first != nil && !maps.Equal(t.levels[0], w.at) {
		text += fmt.Sprintf(" (a fresh start at %s: %s)", Level(t.levels[0]), said(first))
	}
	kBefore, kAfter := w.find("memory_kernel_before_bytes", w.arm), w.find("memory_kernel_after_bytes", w.arm)
	if kBefore != nil && kAfter != nil {
		text += fmt.Sprintf(", and the group's kernel memory goes from %s to %s", said(kBefore), said(kAfter))
		if freed := before.Value - after.Value; freed > 100e3 && kBefore.Value-kAfter.Value < freed/2 {
			text += ": the kernel keeps what was deleted, for these maps"
		}
	}
	w.add("%s.", text)
}
