package report

import (
	"cmp"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"

	"tare/internal/lib/known"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/scale/charge"
	"tare/internal/scale/ledger"
)

// LedgerOptions select the rows of a ledger in the text for people. Each table sums up what it leaves out in a row
// "other", so that it adds up. The formats for programs have everything.
type LedgerOptions struct {
	Top   int // rows of a table, the biggest first; 0: 10, negative: all
	Depth int // levels of control groups below the root; deeper groups are added to the row above them; 0: all
	// Match holds patterns of control groups; only matching groups and those below them get a row; empty: all. Groups that
	// a rule for charges names always have a row.
	Match []string
}

// matches reports whether a control group may have a row.
func (o LedgerOptions) matches(path string) bool {
	return len(o.Match) == 0 ||
		slices.ContainsFunc(o.Match, func(pattern string) bool { return charge.Within(pattern, path) })
}

// unmatched warns of patterns that no control group matches: a wrong pattern must not look like a group that uses
// nothing.
func (t *screen) unmatched(groups []ledger.Cgroup) {
	for _, pattern := range t.Ledger.Match {
		if !slices.ContainsFunc(groups, func(g ledger.Cgroup) bool { return charge.Within(pattern, g.Path) }) {
			t.wrap("warning: ", fmt.Sprintf("--match %s matches none of the %s", clean(pattern),
				quantity.Counted(len(groups), "control group")))
		}
	}
}

// rows returns how many of n things get a row.
func (o LedgerOptions) rows(n int) int {
	if o.Top < 0 {
		return n
	}
	return min(n, cmp.Or(o.Top, 10))
}

// Ledger writes a ledger for people: the budget, components and workloads, the heaviest programs with where they
// ran, the heaviest groups with their eBPF part, maps, the cost of Tare itself, and warnings.
func Ledger(w io.Writer, l *ledger.Ledger, o Options) error {
	t := newText(w, o)
	t.titles = l.Titles()
	t.line(t.bold("Weighed for "+inSeconds(l.Window.Seconds)) +
		fmt.Sprintf(": %s, Linux %s, %d CPUs, cgroup %s, samples by %s",
			clean(l.Host.Hostname), clean(l.Host.Kernel), l.Host.CPUs, l.Host.CgroupMode, cmp.Or(l.Host.Sampler, "nothing")))
	t.line("")
	t.budget(l)
	t.components(l)
	t.workloads(l)
	t.sandboxes(l)
	t.noise(l)
	t.programs(withoutOwn(l))
	t.groups(l)
	t.maps(l)
	t.line(t.bold("The scale itself"))
	t.wrap("  ", selfLine(l))
	if len(l.Warnings) > 0 {
		t.line("")
	}
	t.unmatched(l.Cgroups)
	for _, x := range l.Warnings {
		t.wrap("warning: ", x.Message)
	}
	_, err := io.WriteString(w, t.b.String())
	return err
}

// SeriesText writes each ledger as Ledger does, under a heading with the time of its window.
func SeriesText(w io.Writer, all iter.Seq[*ledger.Ledger], o Options) error {
	before := ""
	return each(all, func(l *ledger.Ledger) error {
		head := fmt.Sprintf("%s%s to %s", before, l.Window.Start.Format("2006-01-02 15:04:05.0"),
			l.Window.End.Format("15:04:05.0 MST"))
		before = "\n"
		if err := put(w, newText(w, o).bold(head)+"\n", "the time of a ledger"); err != nil {
			return err
		}
		return Ledger(w, l, o)
	})
}

// each writes ledgers in turn until there are no more, or one cannot be written.
func each(all iter.Seq[*ledger.Ledger], write func(*ledger.Ledger) error) error {
	for l := range all {
		if err := write(l); err != nil {
			return err
		}
	}
	return nil
}

// withoutOwn returns a copy of a ledger without Tare's own programs, because the section on Tare itself has their cost.
func withoutOwn(l *ledger.Ledger) *ledger.Ledger {
	others := *l
	others.Programs = slices.DeleteFunc(slices.Clone(l.Programs), func(p ledger.Program) bool { return p.Own })
	return &others
}

// Part is one part of the CPU budget, with the sign that draws it, so that no meaning depends on color alone.
type Part struct {
	Line    string // the name of the line in a ledger, such as "ebpf"
	Name    string // the name for people
	Seconds float64
	Sign    rune
	Note    string // how it was measured
	Unknown bool   // Seconds is unknown, not 0
}

// BudgetParts returns the parts of the CPU budget, which add up to its capacity.
func BudgetParts(c ledger.CPU) []Part {
	signs := map[string]rune{
		ledger.LineGroups: '#', ledger.LineRoot: '=', ledger.LineKernel: 'k', ledger.LineBPF: 'B', ledger.LineInterrupts: 'i',
		ledger.LineSelf: 't',
	}
	names := map[string]string{
		ledger.LineGroups: "control groups, without eBPF", ledger.LineRoot: "processes in the root group",
		ledger.LineKernel: "kernel threads",
		ledger.LineBPF:    "eBPF programs", ledger.LineInterrupts: "interrupts on idle CPUs", ledger.LineSelf: "tare itself",
	}
	parts := make([]Part, 0, len(c.Lines)+3)
	for _, line := range c.Lines {
		if left := c.BPFUnsplit; line.Name == ledger.LineBPF && left != nil && *left > 0 {
			parts = append(parts, notSplit(line, *left, names[line.Name], signs[line.Name]))
			continue
		}
		parts = append(parts, Part{Line: line.Name, Name: cmp.Or(names[line.Name], line.Name), Seconds: line.Seconds,
			Sign: cmp.Or(signs[line.Name], '+'), Note: line.Method})
	}
	idle := Part{Line: "idle", Name: "idle", Seconds: c.Waited(), Sign: '.', Note: "counted"}
	if c.IdleStolen != nil && *c.IdleStolen > 0 {
		idle.Note = fmt.Sprintf("counted, without %s that were stolen from idle CPUs", inSeconds(*c.IdleStolen))
	}
	left := Part{Line: "unexplained", Name: "unexplained", Seconds: c.Unexplained, Sign: '?', Note: "remainder"}
	if c.ChargedStolen != nil && *c.ChargedStolen > 0 {
		left.Note = fmt.Sprintf("remainder; up to %s of it may be stolen time that the kernel charged to tasks as well",
			inSeconds(*c.ChargedStolen))
	}
	return append(parts, idle, Part{Line: "steal", Name: "steal", Seconds: c.Steal, Sign: 's', Note: "counted"}, left)
}

// notSplit returns the eBPF part of the budget if some or all eBPF time could not be split. That time is inside the
// other parts, and is not 0.
func notSplit(line ledger.CPULine, left float64, name string, sign rune) Part {
	p := Part{Line: line.Name, Name: name, Seconds: line.Seconds, Sign: sign, Unknown: line.Method == ledger.MethodNone}
	took := inSeconds(left)
	if p.Unknown {
		p.Note = took + " by the kernel's count, not split: it is inside the other lines"
	} else {
		p.Note = line.Method + "; " + took + " more, not split, inside the other lines"
	}
	return p
}

// components writes what each component used, if there are rules.
func (t *screen) components(l *ledger.Ledger) {
	if len(l.Components) == 0 {
		return
	}
	t.line(t.bold("Components") + ": their CPU times add up to the " +
		inSeconds(l.CPU.Attributed) + " on the lines above")
	t.linef("  %10s %14s %10s %10s %10s  %s", "CPU", "eBPF in others", "not placed", "hard mem.", "maps", "component")
	for _, c := range l.Components {
		name := "all that no rule names"
		if c.Charge != "" {
			name = clean(ChargeWords(c.Charged))
		}
		t.linef("  %10s %14s %10s %10s %10s  %s", orDash(c.CPUSeconds, quantity.Seconds),
			orDash(c.BPFOthersSeconds, quantity.Seconds), orDash(c.BPFUnsplitSeconds, quantity.Seconds),
			orDash(c.MemoryHardBytes, quantity.Bytes), orDash(c.MapBytes, quantity.Bytes), name)
	}
	t.line("")
}

// workloads writes gross, net and tare of each workload, and tare in total, if there are rules.
func (t *screen) workloads(l *ledger.Ledger) {
	if l.Tare == nil {
		return
	}
	t.line(t.bold(grossTitle))
	if len(l.Workloads) > 0 {
		t.line(grossLine(grossHead, "workload"))
	}
	for _, w := range l.Workloads {
		t.line(grossLine(grossCells(w), clean(w.Name)))
		if b := w.TareBPF; b != nil && b.Hi > 0 {
			t.linef("          tare: %s [%s, %s] in eBPF programs inside its groups, %s in groups that serve it",
				inSeconds(b.Value), inSeconds(b.Lo), inSeconds(b.Hi), orDash(w.TareCgroupsCPU, quantity.Seconds))
		}
		for _, note := range w.Notes {
			t.wrap("          ", clean(note))
		}
	}
	x := l.Tare
	t.linef("  tare in total: %s of CPU time, %s of hard memory", orDash(x.CPU, quantity.Seconds),
		orDash(x.Memory, quantity.Bytes))
	if left := x.BPFUnsplit; x.CPU != nil && left != nil && *left > 0 {
		text := fmt.Sprintf("of that, %s by the kernel's count in eBPF programs that samples could not place",
			inSeconds(*left))
		if twice := x.CPUTwice; twice != nil && *twice > 0 {
			text += fmt.Sprintf("; up to %s of it may have run in tare's own groups, and is then counted twice",
				inSeconds(*twice))
		}
		t.wrap("  ", text)
	}
	if left, held := x.UnassignedCPU, x.UnassignedMemory; left != nil && *left > 0 || held != nil && *held > 0 {
		t.wrap("  ", fmt.Sprintf("of that, %s of CPU time and %s of hard memory are in no workload's gross: which workload "+
			"they serve is not known",
			orDash(left, quantity.Seconds), orDash(held, quantity.Bytes)))
	}
	t.line("")
}

const (
	namedOccupants = 3
	// heldLong is the minimum time, in seconds, for which a task must hold a CPU to be worth reporting: several times the
	// slice of a time-sharing scheduler.
	heldLong = 0.010
)

// noise writes what disturbed the machine: always the stolen time, and also the tasks that held a CPU for at least
// heldLong.
func (t *screen) noise(l *ledger.Ledger) {
	n := l.Noise
	if n == nil {
		return
	}
	t.line(t.bold("Noise: ") + fmt.Sprintf("%s stolen by the hypervisor (%.2f %% of the CPU time), longest "+
		"stall %s; by %s", inSeconds(n.StolenSeconds),
		100*n.StolenSeconds/max(l.CPU.Capacity, 1e-9), inSeconds(n.LongestSeconds), n.Witness))
	if n.Late > 0 {
		t.linef("  checks for stolen time that were late because interrupts were off: %d, by up to %s", n.Late,
			inSeconds(n.LongestLate))
	}
	longest := 0.0
	for _, s := range n.Occupied {
		longest = max(longest, s.Seconds)
	}
	if longest >= heldLong && len(n.Busiest) > 0 {
		t.line("  a task held a CPU for up to " + inSeconds(longest) + "; seen running most:")
		for _, o := range n.Busiest[:min(namedOccupants, len(n.Busiest))] {
			t.linef("  %10s  %s, process %d, in %s", inSeconds(o.Seconds), clean(o.Comm), o.PID,
				cmp.Or(t.group(o.Cgroup), "an unknown group"))
		}
	}
	t.line("")
}

func (t *screen) budget(l *ledger.Ledger) {
	parts := BudgetParts(l.CPU)
	t.line(t.bold(fmt.Sprintf("CPU time: %s on %d CPUs", inSeconds(l.CPU.Capacity), l.Host.CPUs)))
	t.line("  [" + Bar(parts, l.CPU.Capacity, 64) + "]")
	for _, p := range parts {
		if p.Unknown {
			t.linef("  %c %-30s %10s %7s    %s", p.Sign, p.Name, "-", "-", t.faint(p.Note))
			continue
		}
		t.linef("  %c %-30s %10s %7.2f %%  %s", p.Sign, p.Name, inSeconds(p.Seconds),
			100*p.Seconds/max(l.CPU.Capacity, 1e-9), t.faint(p.Note))
	}
	t.line("")
}

// Bar draws the parts of a capacity in seconds, each with its sign, in exactly the given number of cells.
func Bar(parts []Part, capacity float64, cells int) string {
	var bar strings.Builder
	drawn, upTo := 0, 0.0
	for _, p := range parts {
		upTo += max(p.Seconds, 0)
		for ; drawn < int(min(upTo/max(capacity, 1e-9), 1)*float64(cells)+0.5) && drawn < cells; drawn++ {
			bar.WriteRune(p.Sign)
		}
	}
	return bar.String() + strings.Repeat(" ", cells-drawn)
}

func (t *screen) programs(l *ledger.Ledger) {
	if l.Programs == nil {
		t.line(t.bold("eBPF programs: not known") + ", for the reason in the warnings")
		t.line("")
		return
	}
	ran := slices.DeleteFunc(slices.Clone(l.Programs), func(p ledger.Program) bool {
		return p.RunCount == nil || *p.RunCount == 0 || p.RunSeconds == nil
	})
	total := 0.0
	for _, p := range ran {
		total += *p.RunSeconds
	}
	t.line(t.bold(fmt.Sprintf("eBPF programs: %d, of which %d ran for %s in all", len(l.Programs), len(ran),
		inSeconds(total))))
	if len(ran) > 0 {
		t.linef("  %6s  %-16s %-18s %10s %10s %10s", "id", "name", "type", "runs/s", "per run", "run time")
	}
	shown := t.Ledger.rows(len(ran))
	for _, p := range ran[:shown] {
		perRun := known.As(p.NsPerRun, func(ns float64) float64 { return ns / 1e9 })
		t.line(fmt.Sprintf("  %6d  %-16s %-18s %10s %10s %10s", p.ID, clean(cmp.Or(p.Name, "(no name)")), p.Type,
			perSecond(*p.RunCount, l),
			orDash(perRun, quantity.Seconds), inSeconds(*p.RunSeconds)) +
			side(p.Charged))
		for i, s := range p.Shares {
			if i == 4 && len(p.Shares) > 5 {
				rest := 0.0
				for _, s := range p.Shares[i:] {
					rest += s.Seconds
				}
				t.linef("          %5.1f %%  %s", 100*rest / *p.RunSeconds, others(len(p.Shares)-i, "place"))
				break
			}
			t.line("          " + t.share(s, *p.RunSeconds))
		}
	}
	if rest := ran[shown:]; len(rest) > 0 {
		runs, seconds := uint64(0), 0.0
		for _, p := range rest {
			runs, seconds = runs+*p.RunCount, seconds+*p.RunSeconds
		}
		t.linef("  %6s  %-35s %10s %10s %10s", "", others(len(rest), "program"), perSecond(runs, l),
			inSeconds(seconds/float64(runs)), inSeconds(seconds))
	}
	t.line("")
}

func perSecond(n uint64, l *ledger.Ledger) string {
	return quantity.Rough(float64(n)/l.Window.Seconds, quantity.Count)
}

func (t *screen) group(path string) string { return clean(t.titles.Of(path)) }

func (t *screen) share(s ledger.Share, total float64) string {
	if s.Cgroup == nil {
		return fmt.Sprintf("%5.1f %%  %s", 100*s.Seconds/total, s.Note)
	}
	if s.Method == ledger.Sole {
		return fmt.Sprintf("%5.1f %%  in %s, %s: the only place it can run", 100*s.Seconds/total, t.group(*s.Cgroup),
			s.Context)
	}
	return fmt.Sprintf("%5.1f %% [%.1f, %.1f]  in %s, %s  (%d samples)", 100*s.Seconds/total, 100*s.Lo/total,
		100*s.Hi/total, t.group(*s.Cgroup), s.Context, s.Samples)
}

// side returns the owner of something, in brackets, to follow its name.
func side(c ledger.Charged) string {
	if c.Charge == "" {
		return ""
	}
	return "  [" + clean(ChargeWords(c)) + "]"
}

// ChargeWords describes a charge: "shop", or "tare of shop: proxy". The text may contain any bytes.
func ChargeWords(c ledger.Charged) string {
	words := string(c.Charge)
	switch {
	case c.Charge == ledger.ChargeWorkload:
		words = c.Workload
	case c.Workload != "":
		words += " of " + c.Workload
	}
	if c.Component != "" {
		words += ": " + c.Component
	}
	return words
}

// others names the row that stands for n things without a row.
func others(n int, thing string) string { return "other (" + quantity.Counted(n, thing) + ")" }

func (t *screen) maps(l *ledger.Ledger) {
	if l.Maps == nil {
		t.line(t.bold("eBPF maps: not known") + ", for the reason in the warnings")
		t.line("")
		return
	}
	bytes, unknown := l.MapBytes()
	head := fmt.Sprintf("eBPF maps: %d with %s, each counted once", len(l.Maps), inBytes(bytes))
	if unknown > 0 {
		head += fmt.Sprintf("; the size of %d is not known", unknown)
	}
	t.line(t.bold(head))
	shown := t.Ledger.rows(len(l.Maps))
	for _, m := range l.Maps[:shown] {
		users := lists.Map(m.UsedBy, func(id uint32) string { return fmt.Sprint(id) })
		holders := lists.Map(m.HeldBy, func(h ledger.Owner) string { return clean(h.Comm) })
		slices.Sort(holders)
		charged := "unknown"
		if m.ChargedTo != nil {
			charged = t.group(*m.ChargedTo)
		}
		t.line(fmt.Sprintf("  %10s %-9s %-16s %-14s charged to %s, held by %s, used by programs %s",
			orDash(m.Bytes, quantity.Bytes), m.BytesMethod,
			clean(cmp.Or(m.Name, "(no name)")), m.Type, charged, orNone(slices.Compact(holders)),
			orNone(users)) + side(m.Charged))
	}
	if shown < len(l.Maps) {
		var rest *uint64 // nil if no map has a known size
		for _, m := range l.Maps[shown:] {
			if m.Bytes != nil {
				rest = new(*m.Bytes + known.Or(rest, 0))
			}
		}
		t.linef("  %10s %s", orDash(rest, quantity.Bytes), others(len(l.Maps)-shown, "map"))
	}
	t.line("")
}

func selfLine(l *ledger.Ledger) string {
	s := l.Self
	out := fmt.Sprintf("%s of CPU time, setup included (%.2f %% of one CPU over the window), at most %s resident; %d "+
		"samples, %d lost",
		inSeconds(s.CPUSeconds), 100*s.CPUSeconds/max(l.Window.Seconds, 1e-9),
		inBytes(s.RSSBytes), s.Samples, s.SamplesLost)
	if s.BPFSeconds != nil && s.BPFBytes != nil {
		out += fmt.Sprintf("; own eBPF %s, %s", inSeconds(*s.BPFSeconds), inBytes(*s.BPFBytes))
	}
	if s.StatsSeconds != nil {
		out += fmt.Sprintf("; the kernel's run statistics cost the programs about %s", inSeconds(*s.StatsSeconds))
	}
	if s.WitnessSeconds != nil {
		out += fmt.Sprintf("; the witness of stolen time cost about %s (%.2f %% of one CPU)",
			inSeconds(*s.WitnessSeconds), 100**s.WitnessSeconds/max(l.Window.Seconds, 1e-9))
	}
	if s.SandboxSeconds != nil && s.SmapsSeconds != nil {
		out += fmt.Sprintf("; finding and reading sandboxes took %s of that, %s of it their resident memory",
			inSeconds(*s.SandboxSeconds), inSeconds(*s.SmapsSeconds))
	}
	return out + "."
}

func inSeconds(v float64) string { return quantity.Value(v, quantity.Seconds) }

func inBytes[N uint64 | int64 | float64](v N) string {
	return quantity.Value(float64(v), quantity.Bytes)
}

func orDash[N uint64 | int64 | float64](v *N, unit string) string {
	if v == nil {
		return "-"
	}
	return quantity.Value(float64(*v), unit)
}

func orNone(list []string) string {
	switch {
	case len(list) == 0:
		return "none"
	case len(list) > 4:
		return strings.Join(list[:4], " ") + fmt.Sprintf(" and %d more", len(list)-4)
	}
	return strings.Join(list, " ")
}
