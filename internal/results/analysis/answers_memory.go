package analysis

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"tare/internal/experiment/record"
	"tare/internal/lib/quantity"
)

// usableDelay is the longest wait for a CPU up to which a machine is called usable, in seconds: a person at a terminal
// still gets an answer, and health checks, which allow a second or more, still pass.
const usableDelay = 1.0

// stressAnswers says what heavy programs do to the machine at each level, and first whether it stays usable. The
// longest waits are those of all trials together, for "at most" of a median would promise too much.
func stressAnswers(s *Summary, t *table) []Answer {
	var all []Answer
	longest, most := 0.0, prose{s: s}
	for _, arm := range t.subjects() {
		for _, at := range t.levels {
			p := &prose{s: s, arm: arm, at: at}
			waits := t.column(at, arm, "sched_delay_max_seconds")
			share := p.of("bpf_cpu_share", arm)
			if len(waits) == 0 || share == nil {
				continue
			}
			if wait := slices.Max(waits); wait > longest {
				longest, most.arm, most.at = wait, arm, at
			}
			p.stress(t, slices.Max(waits))
			all = append(all, p.answer())
		}
	}
	if len(all) == 0 {
		return nil
	}
	verdict := "The machine stays usable"
	without := t.longestWait(record.Direct, record.AA)
	switch {
	case longest > usableDelay && without > usableDelay/2:
		verdict = fmt.Sprintf("Whether the machine stays usable cannot be told, for without the programs a task waited up to %s too",
			quantity.Value(without, quantity.Seconds))
	case longest > usableDelay:
		verdict = "The machine does not stay usable"
	}
	ended := "All trials ended by themselves."
	if s.Trials.Failed > 0 {
		ended = fmt.Sprintf("%d of %d trials failed.", s.Trials.Failed, s.Trials.Done)
	}
	most.add("%s, in this sense: a task that wanted a CPU, and had no part in the programs, waited %s at the longest%s, "+
		"and up to %s counts as usable. %s",
		verdict, quantity.Value(longest, quantity.Seconds), most.here(), quantity.Value(usableDelay, quantity.Seconds), ended)
	most.find("sched_delay_max_seconds")
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
func (p *prose) stress(t *table, longest float64) {
	run := p.find("bpf_run_seconds")
	text := fmt.Sprintf("%sa task that wants a CPU waits %s at the median", p.where(), p.say("sched_delay_p50_seconds"))
	if p99 := p.find("sched_delay_p99_seconds"); p99 != nil {
		text += fmt.Sprintf(", %s at the 99th percentile", said(p99))
	}
	text += fmt.Sprintf(" and %s at the longest", quantity.Value(longest, quantity.Seconds))
	if run != nil && run.Value > 0.01 { // shorter ones are lost among the time slices of other tasks
		text += fmt.Sprintf(", %.1f runs", longest/run.Value)
	}
	if base := t.column(p.at, record.Direct, "sched_delay_max_seconds"); len(base) > 0 {
		text += fmt.Sprintf(" (with the CPUs as busy but without the programs: %s and %s)",
			p.sayOf("sched_delay_p50_seconds", record.Direct), quantity.Value(slices.Max(base), quantity.Seconds))
	}
	p.add("%s.", Capital(text))
	if run != nil {
		p.add("One run takes %s.", said(run))
	}
	p.add("The programs take %s of the machine's CPU time, which is busy to %s.",
		p.say("bpf_cpu_share"), p.say("cpu_busy_share"))
	work, base := p.find("throughput_per_second"), p.of("throughput_per_second", record.Direct)
	switch {
	case work == nil || base == nil || work.Difference == nil:
	case work.Difference.Lo != nil && !work.Difference.Resolved:
		p.add("Throughput is %s; the difference is not resolved.", p.say("throughput_per_second"))
	case work.Ratio != nil:
		p.add("Throughput goes from %s to %s, %s of it.", said(base), said(work),
			written(work.Ratio.Value, work.Ratio.Lo, work.Ratio.Hi, quantity.Part))
	}
}

// memoryAnswers says for each way of sizing the maps what is fixed, what a service adds, what other ways of counting
// would say, to whom the maps are charged, and what is left when services go.
func memoryAnswers(s *Summary, t *table) []Answer {
	var all []Answer
	for _, arm := range t.subjects() {
		if len(t.levels) == 0 {
			break
		}
		p := &prose{s: s, arm: arm, at: t.levels[len(t.levels)-1]}
		if s.Find("map_bytes", arm, p.at) == nil {
			continue
		}
		p.mapModel(t)
		p.otherCounts(t)
		p.charged()
		p.downAgain(t)
		all = append(all, p.answer())
	}
	return all
}

// mapModel: fixed and per service, each map once.
func (p *prose) mapModel(t *table) {
	for _, m := range p.s.Models {
		if m.Metric != "map_bytes" || m.Arm != p.arm || len(m.Terms) != 2 {
			continue
		}
		fixed, each := m.Terms[0], m.Terms[1]
		r := m.ValidRange[each.Name]
		span := fmt.Sprintf("from %s to %s services", number(r[0]), number(r[1]))
		switch grown := each.Value * (r[1] - r[0]); {
		case !m.Linear:
			p.add("%s: the maps take %s%s, each counted once; %s they grow in no straight line (on average %s and %s per service).",
				p.arm, p.say("map_bytes"), p.here(), span, term(fixed, fixed.Unit), term(each, quantity.Bytes))
		case grown < material*fixed.Value:
			p.add("%s: the maps take %s, each counted once, %s.", p.arm, p.say("map_bytes"), span)
		default:
			p.add("%s: the maps take %s plus %s per service: %s%s, each counted once (a line %s).", p.arm,
				term(fixed, fixed.Unit), term(each, quantity.Bytes), p.say("map_bytes"), p.here(), span)
		}
		return
	}
	p.add("%s: the maps take %s%s, each counted once.", p.arm, p.say("map_bytes"), p.here())
}

// otherCounts: what lists of programs with the memory of their maps come to.
func (p *prose) otherCounts(t *table) {
	var once, often, real []float64
	for _, at := range t.levels {
		for metric, into := range map[string]*[]float64{"map_declared_bytes": &once, "map_by_program_bytes": &often, "map_bytes": &real} {
			if e := p.s.Find(metric, p.arm, at); e != nil {
				*into = append(*into, e.Value)
			}
		}
	}
	if len(often) == 0 || len(once) == 0 || len(often) != len(real) {
		return
	}
	p.find("map_declared_bytes")
	p.find("map_by_program_bytes")
	span := func(xs []float64) string {
		lo, hi := slices.Min(xs), slices.Max(xs)
		if lo == hi {
			return quantity.Value(lo, quantity.Bytes) + " at every number of services"
		}
		return quantity.Value(lo, quantity.Bytes) + " to " + quantity.Value(hi, quantity.Bytes)
	}
	last := len(often) - 1
	p.add("Kernels 5.11 to 6.3, which count by max_entries, would report %s for the same maps, and their sum over the "+
		"programs that use them is %s: %.1f times what they take.",
		span(once), span(often), often[last]/real[last])
}

// charged: to whom.
func (p *prose) charged() {
	share, kernel, hard := p.find("map_charged_share"), p.find("memory_kernel_bytes"), p.find("memory_hard_bytes")
	if share == nil {
		p.add("This kernel does not tell to whom the maps are charged.")
	} else {
		p.add("%s of the bytes are charged to the data plane's own control group, whoever uses them.",
			quantity.Value(share.Value, quantity.Part))
	}
	if kernel != nil && hard != nil {
		text := strings.TrimSpace(p.here() + " that group holds")
		p.add("%s %s of kernel memory, and %s of hard memory in all: the rest is the process itself.",
			Capital(text), said(kernel), said(hard))
	}
}

// downAgain: what load adds, and what is left when all services but a few have gone.
func (p *prose) downAgain(t *table) {
	before, loaded, after := p.find("map_before_bytes"), p.find("map_bytes"), p.find("map_after_bytes")
	if before == nil || loaded == nil || after == nil {
		return
	}
	load := "Load does not change the maps' size"
	if d := loaded.Value - before.Value; math.Abs(d) >= 1 {
		load = "Load changes the maps' size by " + quantity.Value(d, quantity.Bytes)
	}
	p.add("%s.", load)
	text := fmt.Sprintf("After the services are removed, the maps keep %s", said(after))
	if first := p.s.Find("map_bytes", p.arm, t.levels[0]); first != nil && !maps.Equal(t.levels[0], p.at) {
		text += fmt.Sprintf("; a fresh start %s needs %s", p.s.At(t.levels[0]), said(first))
	}
	kBefore, kAfter := p.find("memory_kernel_before_bytes"), p.find("memory_kernel_after_bytes")
	if kBefore != nil && kAfter != nil {
		text += fmt.Sprintf(". The group's kernel memory goes from %s to %s", said(kBefore), said(kAfter))
		if freed := before.Value - after.Value; freed > 100e3 && kBefore.Value-kAfter.Value < freed/2 {
			text += ": the memory of deleted entries is not given back"
		}
	}
	p.add("%s.", text)
}

// number is a level as people write it.
func number(v float64) string {
	if v == math.Trunc(v) && math.Abs(v) < 1e12 {
		return quantity.Thousands(int(v))
	}
	return fmt.Sprintf("%g", v)
}
