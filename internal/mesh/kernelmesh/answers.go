package kernelmesh

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"tare/internal/experiment/record"
	"tare/internal/lib/quantity"
	"tare/internal/results/analysis"
)

func init() {
	analysis.Register(analysis.Family{Metrics: []string{"map_after_bytes"}, Answer: memoryAnswers})
	analysis.Register(analysis.Family{Metrics: []string{"map_by_program_bytes"}, Answer: memoryAnswers, General: true})
}

// prose writes this package's answers.
type prose struct{ analysis.Prose }

// memoryAnswers returns an answer for each arm: how large the maps are without services, how much each service adds,
// what other ways of counting would report, which control group the maps are charged to, and what is left when services
// are removed.
func memoryAnswers(s *analysis.Summary, t *analysis.Table) []analysis.Answer {
	var all []analysis.Answer
	for _, arm := range t.Subjects() {
		if len(t.Levels) == 0 {
			break
		}
		p := &prose{analysis.Prose{Summary: s, Arm: arm, At: t.Levels[len(t.Levels)-1]}}
		if s.Find("map_bytes", arm, p.At) == nil {
			continue
		}
		p.mapModel()
		p.otherCounts(t)
		p.charged()
		p.downAgain(t)
		all = append(all, p.Answer())
	}
	return all
}

// mapModel describes the fixed size of the maps and what a service adds, counting each map once.
func (p *prose) mapModel() {
	for _, m := range p.Summary.Models {
		if m.Metric != "map_bytes" || m.Arm != p.Arm || m.Withheld != "" || len(m.Terms) != 2 {
			continue
		}
		fixed, each := m.Terms[0], m.Terms[1]
		if factor := record.FactorName(each.Name); factor[strings.LastIndex(factor, ".")+1:] != servicesKey {
			continue // a sweep of something else, such as endpoints
		}
		r := m.ValidRange[each.Name]
		span := fmt.Sprintf("from %s to %s services", number(r[0]), number(r[1]))
		switch {
		case !m.Linear:
			p.Add("%s: the maps take %s%s, each counted once; %s they do not grow linearly "+
				"(on average %s and %s per service).",
				p.Arm, p.Say("map_bytes"), p.Here(), span, fixed.In(fixed.Unit), each.In(quantity.Bytes))
		case m.Flat():
			p.Add("%s: the maps take %s, each counted once, %s.", p.Arm, p.Say("map_bytes"), span)
		default:
			p.Add("%s: the maps take %s plus %s per service: %s%s, each counted once (a line %s).", p.Arm,
				fixed.In(fixed.Unit), each.In(quantity.Bytes), p.Say("map_bytes"), p.Here(), span)
		}
		return
	}
	p.Add("%s: the maps take %s%s, each counted once.", p.Arm, p.Say("map_bytes"), p.Here())
}

// otherCounts describes what other ways of counting would report for the maps: by max_entries, and as a sum over
// programs.
func (p *prose) otherCounts(t *analysis.Table) {
	var once, often, real []float64
	for _, at := range t.Levels {
		for metric, into := range map[string]*[]float64{
			"map_declared_bytes": &once, "map_by_program_bytes": &often, "map_bytes": &real,
		} {
			if e := p.Summary.Find(metric, p.Arm, at); e != nil {
				*into = append(*into, e.Value)
			}
		}
	}
	if len(often) == 0 || len(once) == 0 || len(often) != len(real) {
		return
	}
	p.Find("map_declared_bytes")
	p.Find("map_by_program_bytes")
	span := func(xs []float64) string {
		lo, hi := slices.Min(xs), slices.Max(xs)
		if lo == hi {
			return quantity.Value(lo, quantity.Bytes) + " at every level"
		}
		return quantity.Value(lo, quantity.Bytes) + " to " + quantity.Value(hi, quantity.Bytes)
	}
	last := len(often) - 1
	p.Add("Kernels 5.11 to 6.3, which count by max_entries, would report %s for the same maps, and their sum over the "+
		"programs that use them is %s: %.1f times what they take.",
		span(once), span(often), often[last]/real[last])
}

// charged describes which control group the maps are charged to.
func (p *prose) charged() {
	share, kernel, hard := p.Find("map_charged_share"), p.Find("memory_kernel_bytes"), p.Find("memory_hard_bytes")
	if share == nil {
		p.Add("This kernel does not report which control group the maps are charged to.")
	} else {
		p.Add("%s of the bytes are charged to the data plane's own control group, whoever uses them.",
			quantity.Value(share.Value, quantity.Part))
	}
	if kernel != nil && hard != nil {
		text := strings.TrimSpace(p.Here() + " that group holds")
		p.Add("%s %s of kernel memory, and %s of hard memory in all: the rest is the process itself.",
			analysis.Capital(text), analysis.Said(kernel), analysis.Said(hard))
	}
}

// downAgain describes what load adds, and what is left when all services but a few have been removed.
func (p *prose) downAgain(t *analysis.Table) {
	before, loaded, after := p.Find("map_before_bytes"), p.Find("map_bytes"), p.Find("map_after_bytes")
	if before == nil || loaded == nil || after == nil {
		return
	}
	load := "Load does not change the maps' size"
	if d := loaded.Value - before.Value; math.Abs(d) >= 1 {
		load = "Load changes the maps' size by " + quantity.Value(d, quantity.Bytes)
	}
	p.Add("%s.", load)
	text := fmt.Sprintf("After the services are removed, the maps keep %s", analysis.Said(after))
	if first := p.Summary.Find("map_bytes", p.Arm, t.Levels[0]); first != nil && !maps.Equal(t.Levels[0], p.At) {
		text += fmt.Sprintf("; a fresh start %s needs %s", p.Summary.At(t.Levels[0]), analysis.Said(first))
	}
	kBefore, kAfter := p.Find("memory_kernel_before_bytes"), p.Find("memory_kernel_after_bytes")
	if kBefore != nil && kAfter != nil {
		text += fmt.Sprintf(". The group's kernel memory goes from %s to %s", analysis.Said(kBefore), analysis.Said(kAfter))
		if freed := before.Value - after.Value; freed > 100e3 && kBefore.Value-kAfter.Value < freed/2 {
			text += ": the memory of deleted entries is not given back"
		}
	}
	p.Add("%s.", text)
}

// number formats a level for people.
func number(v float64) string {
	if v == math.Trunc(v) && math.Abs(v) < 1e12 {
		return quantity.Thousands(int(v))
	}
	return fmt.Sprintf("%g", v)
}
