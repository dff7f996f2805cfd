package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"tare/internal/lib/known"
	"tare/internal/lib/quantity"
	"tare/internal/scale/ledger"
)

// sandboxHead names the columns of sandboxCells.
var sandboxHead = []string{"CPU gross", "net", "tare", "PSS gross", "net", "tare"}

// mostFindings is the maximum number of findings in the text for people; the JSON form has all.
const mostFindings = 20

// sandboxes writes what each sandbox uses by component, how much memory is charged to its own groups and to others, and
// the findings.
func (t *screen) sandboxes(l *ledger.Ledger) {
	if len(l.Sandboxes) == 0 {
		return
	}
	t.line(t.bold(fmt.Sprintf("Sandboxes: %d", len(l.Sandboxes))) +
		"  (PSS: resident memory, pages that processes share divided among them)")
	t.line(grossLine(sandboxHead, "sandbox"))
	shown := t.Ledger.rows(len(l.Sandboxes))
	for i := range l.Sandboxes[:shown] {
		t.sandbox(&l.Sandboxes[i])
	}
	if rest := l.Sandboxes[shown:]; len(rest) > 0 {
		t.line(grossLine(sandboxCells(sumOf(rest)), others(len(rest), "sandbox")))
	}
	t.findings(l)
	t.line("")
}

// sandboxCells returns the cells for the columns of sandboxHead.
func sandboxCells(s *ledger.Sandbox) []string {
	return []string{
		orDash(s.GrossCPU, quantity.Seconds), orDash(s.NetCPU, quantity.Seconds), orDash(s.TareCPU, quantity.Seconds),
		orDash(s.GrossMemory, quantity.Bytes), orDash(s.NetMemory, quantity.Bytes), orDash(s.TareMemory, quantity.Bytes),
	}
}

// sumOf adds up the use of sandboxes. A sum is nil if any of its values is unknown.
func sumOf(all []ledger.Sandbox) *ledger.Sandbox {
	sum := all[0]
	for i := range all[1:] {
		s := &all[1+i]
		sum.GrossCPU, sum.GrossMemory = known.Sum(sum.GrossCPU, s.GrossCPU), known.Sum(sum.GrossMemory, s.GrossMemory)
		sum.NetCPU, sum.NetMemory = known.Sum(sum.NetCPU, s.NetCPU), known.Sum(sum.NetMemory, s.NetMemory)
		sum.TareCPU, sum.TareMemory = known.Sum(sum.TareCPU, s.TareCPU), known.Sum(sum.TareMemory, s.TareMemory)
	}
	return &sum
}

func (t *screen) sandbox(s *ledger.Sandbox) {
	t.line(grossLine(sandboxCells(s), clean(SandboxName(s))))
	if s.Title != "" {
		t.wrap("        ", s.Title)
	}
	for _, c := range s.Components {
		cpu := orDash(c.CPU, quantity.Seconds)
		if c.Processes == 0 && c.Threads == 0 {
			cpu = "-" // a component that is only memory
		}
		t.linef("        %-10s %10s  %s", c.Component, cpu, componentMemory(c))
	}
	if len(s.ByContainer) > 1 {
		for _, c := range s.ByContainer {
			t.linef("        %-10s %10s  %10s  hard memory %s, %s", "container", orDash(c.CPU, quantity.Seconds),
				orDash(known.As(c.Memory, func(m ledger.SandboxMemory) uint64 { return m.PSS }), quantity.Bytes),
				orDash(c.MemoryHard, quantity.Bytes), clean(cmp.Or(c.Name, c.ID[:min(len(c.ID), 12)])))
		}
	}
	if inside, outside := s.ChargedInside, s.ChargedOutside; inside != nil || outside != nil {
		t.wrap("        ", fmt.Sprintf("hard memory charged to its own groups: %s; to groups outside of them: %s",
			orDash(inside, quantity.Bytes), orDash(outside, quantity.Bytes)))
	}
	switch {
	case s.Declared != nil && s.MeasuredOverhead != nil:
		without := ""
		if s.VM {
			without = ", without the guest's kernel"
		}
		t.wrap("        ", fmt.Sprintf("overhead: %s declared (%s), %s measured on the host%s",
			inBytes(s.Declared.MemoryBytes), s.Declared.Source, inBytes(*s.MeasuredOverhead), without))
	case s.MeasuredOverhead != nil && *s.MeasuredOverhead > 0 && s.Runtime != "":
		t.line("        overhead: " + inBytes(*s.MeasuredOverhead) +
			" measured on the host; what was declared is not known here")
	case s.Declared != nil:
		t.wrap("        ", fmt.Sprintf("overhead: %s declared (%s); what it is was not measured",
			inBytes(s.Declared.MemoryBytes), s.Declared.Source))
	}
	for _, note := range s.Notes {
		t.wrap("        ", note)
	}
}

// SandboxName returns the ID of a sandbox with its pod or name, and its runtime. The text may contain any bytes.
func SandboxName(s *ledger.Sandbox) string {
	id := s.ID
	if len(id) == 64 {
		id = id[:12]
	}
	switch {
	case s.Pod != nil && s.Pod.Name != "":
		id += " (" + s.Pod.Namespace + "/" + s.Pod.Name + ")"
	case s.Name != "":
		id += " (" + s.Name + ")"
	}
	how := []string{}
	for _, word := range []string{s.Runtime, s.Engine} {
		if word != "" && !slices.Contains(how, word) {
			how = append(how, word)
		}
	}
	return id + "  " + cmp.Or(strings.Join(how, ", "), "runtime unknown")
}

// componentMemory describes the resident memory of a component by kind of page.
func componentMemory(c ledger.SandboxComponent) string {
	of := fmt.Sprintf("%d processes", c.Processes)
	switch {
	case c.Processes == 1:
		of = "1 process"
	case c.Processes == 0 && c.Threads == 0:
		of = "memory held by its VMM or sentry"
	case c.Processes == 0 && c.Threads == 1:
		of = "1 thread"
	case c.Processes == 0:
		of = fmt.Sprintf("%d threads", c.Threads)
	}
	if c.Memory == nil {
		return fmt.Sprintf("%10s  %s", "-", of)
	}
	kinds := []string{}
	for _, k := range []struct {
		name  string
		bytes *uint64
	}{{"anon", c.Memory.Anon}, {"file", c.Memory.File}, {"shmem", c.Memory.Shmem},
		{"page tables", &c.Memory.PageTables}, {"swapped out", &c.Memory.Swap}} {
		if k.bytes != nil && *k.bytes > 0 {
			kinds = append(kinds, k.name+" "+inBytes(*k.bytes))
		}
	}
	pss := inBytes(c.Memory.PSS)
	return fmt.Sprintf("%10s  %s  %s", pss, of, strings.Join(kinds, ", "))
}

// findings writes the findings of all sandboxes, including those that are not shown.
func (t *screen) findings(l *ledger.Ledger) {
	n := 0
	for _, s := range l.Sandboxes {
		for _, f := range s.Findings {
			if n++; n <= mostFindings {
				t.wrap("  finding: ", f.Message)
			}
		}
	}
	if n > mostFindings {
		t.linef("  and %d more findings; --json has all", n-mostFindings)
	}
}
