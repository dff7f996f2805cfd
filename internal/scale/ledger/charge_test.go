package ledger

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
)

func ptr[T any](v T) *T { return &v }

func group(path string, cpu float64, hard int64, c Charged) Cgroup {
	return Cgroup{Path: path, CPUSeconds: &cpu, Memory: &Memory{Hard: &hard}, Charged: c}
}

func tareProgram(shares ...Share) Program {
	p := Program{ID: 7, Charged: Charged{Charge: ChargeTare}, RunSeconds: ptr(0.0), Shares: shares}
	for i := range shares {
		*p.RunSeconds += shares[i].Seconds
		p.Shares[i].Lo, p.Shares[i].Hi = 0.9*shares[i].Seconds, 1.1*shares[i].Seconds
	}
	return p
}

func tareMap(bytes uint64, chargedTo string) Map {
	return Map{Charged: Charged{Charge: ChargeTare}, Bytes: &bytes, ChargedTo: &chargedTo}
}

var (
	shop = Charged{Charge: ChargeWorkload, Workload: "shop"}
	bank = Charged{Charge: ChargeWorkload, Workload: "bank"}
	tare = Charged{Charge: ChargeTare}
)

// show formats a workload's account, with "-" for unknown values.
func show(w Workload) string {
	var b strings.Builder
	for _, v := range []*float64{w.GrossCPU, w.NetCPU, w.TareCPU, w.TareCgroupsCPU} {
		if v == nil {
			b.WriteString("- ")
			continue
		}
		fmt.Fprintf(&b, "%g ", *v)
	}
	b.WriteString("|")
	for _, v := range []*int64{w.GrossMemory, w.NetMemory, w.TareMemory, w.TareMaps} {
		if v == nil {
			b.WriteString(" -")
			continue
		}
		fmt.Fprintf(&b, " %d", *v)
	}
	return b.String()
}

// settle settles a ledger in which programs and maps are known, even if the test has none.
func settle(l *Ledger) {
	l.Programs, l.Maps = append([]Program{}, l.Programs...), append([]Map{}, l.Maps...)
	l.Settle()
}

// Values that depend on programs or maps that could not be read are nil, with a note. What groups counted is still
// there.
func TestSettleWithoutPrograms(t *testing.T) {
	groups := []Cgroup{group("/a", 2, 100, shop), group("/t", 1, 40, tare)}
	for _, c := range []struct {
		name     string
		programs []Program
		maps     []Map
		want     string
		notes    int
		bpf      bool // the eBPF time of components is known
	}{
		{"all was read", []Program{}, []Map{}, "3 2 1 1 | 140 100 40 0", 0, true},
		{"no maps", []Program{}, nil, "3 2 1 1 | - - - -", 1, true},
		{"no programs", nil, []Map{tareMap(10, "/a")}, "- - - - | - - - -", 2, false},
		{"neither", nil, nil, "- - - - | - - - -", 2, false},
	} {
		l := Ledger{Cgroups: groups, Programs: c.programs, Maps: c.maps,
			CPU: CPU{Attributed: 5, Lines: []CPULine{{Name: LineSelf, Seconds: 1}}}}
		l.Settle()
		l.AddComponents()
		if got := show(l.Workloads[0]); got != c.want || len(l.Workloads[0].Notes) != c.notes {
			t.Errorf("%s: %s, want %s, notes %q", c.name, got, c.want, l.Workloads[0].Notes)
		}
		memory := c.programs != nil && c.maps != nil
		if x := l.Tare; (x.CPU != nil) != c.bpf || (x.BPF != nil) != c.bpf || (x.BPFUnsplit != nil) != c.bpf ||
			(x.Memory != nil) != memory || x.CgroupsCPU == nil || *x.CgroupsCPU != 1 {
			t.Errorf("%s: tare %+v", c.name, *x)
		}
		if len(l.Components) != 4 {
			t.Errorf("%s: components %+v", c.name, l.Components)
		}
		for _, x := range l.Components {
			if (x.BPFSeconds != nil) != c.bpf || (x.BPFOthersSeconds != nil) != c.bpf || (x.BPFUnsplitSeconds != nil) != c.bpf ||
				(x.MapBytes != nil) != memory || x.CPUSeconds == nil {
				t.Errorf("%s: component %+v", c.name, x)
			}
		}
		if pooled := Pool([]*Ledger{&l, &l}); len(pooled) != 1 || (pooled[0].TareCPU != nil) != c.bpf {
			t.Errorf("%s: pooled %+v", c.name, pooled)
		}
	}
}

func TestSettle(t *testing.T) {
	in := func(path string, c Context, s float64) Share { return Share{Cgroup: &path, Context: c, Seconds: s} }
	unplaced, forShop := Share{Seconds: 0.25}, Charged{Charge: ChargeTare, Workload: "shop"}
	named := func(p Program) Program { p.Charged = forShop; return p }
	for _, c := range []struct {
		name string
		l    Ledger
		// By workload: CPU gross, net, tare, groups' part of tare | memory gross, net, tare, maps' part of tare.
		want map[string]string
	}{
		{"a workload alone", Ledger{Cgroups: []Cgroup{group("/a", 2, 100, shop), group("/b", 5, 50, Charged{})}},
			map[string]string{"shop": "2 2 0 0 | 100 100 0 0"}},
		{"one workload: tare's groups serve it", Ledger{Cgroups: []Cgroup{group("/a", 2, 100, shop), group("/t", 1,
			40, tare)}},
			map[string]string{"shop": "3 2 1 1 | 140 100 40 0"}},
		{"two: they serve neither alone", Ledger{Cgroups: []Cgroup{group("/a", 2, 100, shop), group("/b", 3, 60,
			bank), group("/t", 1, 40, tare)}},
			map[string]string{"shop": "2 2 0 0 | 100 100 0 0", "bank": "3 3 0 0 | 60 60 0 0"}},
		{"two: named, or inside the workload's group", Ledger{Cgroups: []Cgroup{
			group("/a", 2, 100, shop), group("/a/proxy", 0.5, 30, tare), group("/b", 3, 60, bank),
			group("/t", 1, 40, Charged{Charge: ChargeTare, Workload: "bank"})}},
			map[string]string{"shop": "2 1.5 0.5 0.5 | 100 70 30 0", "bank": "4 3 1 1 | 100 60 40 0"}},
		{"programs and maps inside", Ledger{
			Cgroups: []Cgroup{group("/a", 2, 100, shop), group("/a/b", 1, 10, Charged{}), group("/t", 1, 40, tare)},
			Programs: []Program{
				tareProgram(in("/a/b/c", Task, 0.5), in("/t", Task, 0.25), in("(idle)", Softirq, 0.125)),
				{ID: 8, Shares: []Share{in("/a", Task, 1)}}, // without a charge: it stays in net
			},
			Maps: []Map{tareMap(20, "/a/b"), tareMap(5, "/t"), tareMap(3, "/x"), {Bytes: ptr(uint64(9)),
				ChargedTo: ptr("/a")}}},
			map[string]string{"shop": "3 1.5 1.5 1 | 140 80 60 20"}},
		{"interrupts apart from tasks", Ledger{
			Host: Host{IRQTime: ptr(true)}, Cgroups: []Cgroup{group("/a", 2, 100, shop)},
			Programs: []Program{tareProgram(in("/a", Task, 0.5), in("/a", Softirq, 0.25))}},
			map[string]string{"shop": "2.25 1.5 0.75 0 | 100 100 0 0"}},
		{"run time beyond the CPU time around it", Ledger{
			Cgroups: []Cgroup{group("/a", 0.25, 100, shop)}, Programs: []Program{tareProgram(in("/a", Task, 0.5))}},
			map[string]string{"shop": "0.25 0 0.25 0 | 100 100 0 0"}},
		{"a part could not be placed", Ledger{
			Cgroups: []Cgroup{group("/a", 2, 100, shop)}, Programs: []Program{tareProgram(in("/a", Task, 0.5),
				unplaced)}},
			map[string]string{"shop": "2 1.5 0.5 0 | 100 100 0 0"}},
		{"nothing could be placed", Ledger{
			Cgroups:  []Cgroup{group("/a", 2, 100, shop), group("/t", 1, 40, tare)},
			Programs: []Program{tareProgram(unplaced)}},
			map[string]string{"shop": "3 - - 1 | 140 100 40 0"}},
		{"next to nothing could not be placed", Ledger{
			Cgroups:  []Cgroup{group("/a", 2, 100, shop), group("/t", 1, 40, tare)},
			Programs: []Program{tareProgram(Share{Seconds: 0.001})}},
			map[string]string{"shop": "3 2 1 1 | 140 100 40 0"}},
		{"nothing could be placed, and interrupts are apart", Ledger{
			Host: Host{IRQTime: ptr(true)}, Cgroups: []Cgroup{group("/a", 2, 100, shop)},
			Programs: []Program{tareProgram(unplaced)}},
			map[string]string{"shop": "- - - 0 | 100 100 0 0"}},
		{"nobody counted", Ledger{
			Cgroups: []Cgroup{group("/a", 2, 100, shop)}, Programs: []Program{{Charged: tare}}},
			map[string]string{"shop": "2 - - 0 | 100 100 0 0"}},
		{"nobody counted what may have run on behalf of the workload above idle CPUs", Ledger{
			Cgroups: []Cgroup{group("/a", 2, 100, shop)}, Programs: []Program{{Charged: forShop, Unloaded: true}}},
			map[string]string{"shop": "- - - - | 100 100 0 0"}},
		{"nobody counted what ran on behalf of another", Ledger{
			Cgroups:  []Cgroup{group("/a", 2, 100, shop), group("/b", 3, 60, bank)},
			Programs: []Program{{Charged: forShop, Unloaded: true}}},
			map[string]string{"shop": "- - - - | 100 100 0 0", "bank": "3 - - 0 | 60 60 0 0"}},
		{"nothing of it could be placed", Ledger{
			Cgroups: []Cgroup{group("/a", 2, 100, shop)}, Programs: []Program{named(tareProgram(unplaced))}},
			map[string]string{"shop": "- - - - | 100 100 0 0"}},
		{"the payer of a map of it is not known", Ledger{
			Cgroups: []Cgroup{group("/a", 2, 100, shop), group("/b", 3, 60, bank)},
			Maps:    []Map{{Charged: forShop, Bytes: ptr(uint64(9))}}},
			map[string]string{"shop": "2 2 0 0 | - - - -", "bank": "3 3 0 0 | 60 - - -"}},
		{"a part of it could not be placed", Ledger{
			Cgroups:  []Cgroup{group("/a", 2, 100, shop)},
			Programs: []Program{named(tareProgram(in("/a", Task, 0.5), in("(idle)", Softirq, 0.125), unplaced))}},
			map[string]string{"shop": "- 1.5 - - | 100 100 0 0"}},
		{"next to nothing of it could not be placed", Ledger{
			Cgroups: []Cgroup{group("/a", 2, 100, shop)},
			Programs: []Program{named(tareProgram(in("/a", Task, 0.5), in("(idle)", Softirq, 0.125),
				Share{Seconds: 0.001}))}},
			map[string]string{"shop": "2.125 1.5 0.625 0.125 | 100 100 0 0"}},
		{"a group of tare is gone", Ledger{
			Cgroups: []Cgroup{group("/a", 2, 100, shop), {Path: "/t", Charged: tare, Vanished: true}}},
			map[string]string{"shop": "- 2 - - | 100 100 0 0"}},
		{"a group inside is gone", Ledger{
			Cgroups: []Cgroup{group("/a", 2, 100, shop), {Path: "/a/b", Vanished: true}}},
			map[string]string{"shop": "2 2 0 0 | 100 100 0 0"}},
		{"memory was not read", Ledger{Cgroups: []Cgroup{{Path: "/a", CPUSeconds: ptr(2.0), Charged: shop}}},
			map[string]string{"shop": "2 2 0 0 | - - 0 0"}},
		{"nobody knows who pays for a map", Ledger{
			Cgroups: []Cgroup{group("/a", 2, 100, shop)}, Maps: []Map{{Charged: tare, Bytes: ptr(uint64(5))}}},
			map[string]string{"shop": "2 2 0 0 | 100 - - -"}},
		{"maps larger than what the group holds", Ledger{
			Cgroups: []Cgroup{group("/a", 2, 100, shop)}, Maps: []Map{tareMap(500, "/a")}},
			map[string]string{"shop": "2 2 0 0 | 100 0 100 100"}},
		{"the scale runs inside", Ledger{
			Cgroups: []Cgroup{group("/a", 2, 100, shop)}, Self: Self{Cgroup: ptr("/a/b")},
			CPU: CPU{Lines: []CPULine{{Name: LineSelf, Seconds: 0.5}}}},
			map[string]string{"shop": "1.5 1.5 0 0 | 100 100 0 0"}},
		{"the root group", Ledger{Cgroups: []Cgroup{group("/", 4, 100, shop), group("/t", 1, 40, tare)}},
			map[string]string{"shop": "4 3 1 1 | 100 60 40 0"}},
		{"above idle CPUs, which the root group does not contain", Ledger{Cgroups: []Cgroup{group("/", 3, 100, shop)},
			Programs: []Program{tareProgram(in("(idle)", Softirq, 2))}},
			map[string]string{"shop": "3 3 0 0 | 100 100 0 0"}},
		{"a load inside", Ledger{Cgroups: []Cgroup{group("/a", 2, 100, shop), group("/a/l", 1, 40,
			Charged{Charge: ChargeLoad})}},
			map[string]string{"shop": "1 1 0 0 | 60 60 0 0"}},
		{"nothing is charged", Ledger{Cgroups: []Cgroup{group("/a", 2, 100, Charged{})}}, map[string]string{}},
	} {
		settle(&c.l)
		got := map[string]string{}
		for _, w := range c.l.Workloads {
			got[w.Name] = show(w)
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s:\n got %v\nwant %v", c.name, got, c.want)
		}
		if (c.l.Tare == nil) != (len(c.want) == 0) {
			t.Errorf("%s: tare %+v", c.name, c.l.Tare)
		}
		again := c.l
		settle(&again)
		if !reflect.DeepEqual(again.Workloads, c.l.Workloads) {
			t.Errorf("%s: settled again: %+v, before %+v", c.name, again.Workloads, c.l.Workloads)
		}
	}
}

// Run time that samples could not place is included only in the upper bound.
func TestSettleBounds(t *testing.T) {
	l := Ledger{Cgroups: []Cgroup{group("/a", 2, 100, shop)},
		Programs: []Program{tareProgram(Share{Cgroup: ptr("/a"), Context: Task, Seconds: 0.5}, Share{Seconds: 0.25})}}
	settle(&l)
	w := l.Workloads[0]
	if b := w.TareBPF; b.Value != 0.5 || !near(b.Lo, 0.45) || !near(b.Hi, 0.8) || len(w.Notes) != 1 {
		t.Errorf("bounds %+v, notes %q", b, w.Notes)
	}
	if *l.Tare.BPFUnsplit != 0.25 || *l.Tare.CPU != 0.75 || *l.Tare.UnassignedCPU != 0 || *l.Tare.CPUTwice != 0 {
		t.Errorf("tare %+v", *l.Tare)
	}
	l = Ledger{Host: Host{IRQTime: ptr(true)}, Cgroups: []Cgroup{group("/a", 2, 100, shop), group("/t", 1, 40, tare)},
		Programs: []Program{tareProgram(Share{Seconds: 0.25})}}
	settle(&l)
	if w := l.Workloads[0]; w.GrossCPU != nil || len(w.Notes) != 1 ||
		!strings.Contains(w.Notes[0], "nor is gross, which is 3.00 s to 3.25 s;") {
		t.Errorf("where interrupts are apart: gross %v, notes %q", w.GrossCPU, w.Notes)
	}
	p := tareProgram(Share{Cgroup: ptr("/a"), Context: Task, Seconds: 0.5}, Share{Seconds: 0.25})
	p.Workload = "shop"
	l = Ledger{Cgroups: []Cgroup{group("/a", 2, 100, shop)}, Programs: []Program{p}}
	settle(&l)
	if w := l.Workloads[0]; len(w.Notes) != 1 || !strings.HasSuffix(w.Notes[0],
		"is in net; tare is not known, nor is gross, which is 2.00 s to 2.25 s") {
		t.Errorf("where a program that names the workload may have run elsewhere: notes %q", w.Notes)
	}
}

// Totals come from counters, so if samples placed nothing, only the split is unknown.
func TestTotalNeedsNoSamples(t *testing.T) {
	proxies := Charged{Charge: ChargeTare}
	for name, c := range map[string]struct {
		groups []Cgroup
		total  float64
		twice  float64
	}{
		"programs alone": {nil, 0.25, 0},
		"one workload":   {[]Cgroup{group("/a", 2, 100, shop)}, 0.25, 0},
		"groups of tare": {[]Cgroup{group("/a", 2, 100, shop), group("/p", 1, 100, proxies)}, 1.25, 0.25},
		"few of tare's":  {[]Cgroup{group("/p", 0.125, 100, proxies)}, 0.375, 0.125},
	} {
		l := Ledger{Cgroups: c.groups, Programs: []Program{tareProgram(Share{Seconds: 0.25})}}
		settle(&l)
		x := l.Tare
		if x.CPU == nil || *x.CPU != c.total || *x.CPUTwice != c.twice || *x.BPFUnsplit != 0.25 || x.BPF != nil {
			t.Errorf("%s: %+v", name, *x)
		}
		for _, w := range l.Workloads {
			if w.TareCPU != nil || w.NetCPU != nil || w.GrossCPU == nil {
				t.Errorf("%s: what samples did not place is split: %+v", name, w)
			}
		}
	}
}

// Stolen run time is in no account.
func TestSettleTakesStolenTimeOut(t *testing.T) {
	p := tareProgram(Share{Cgroup: ptr("/a"), Context: Task, Seconds: 0.5})
	p.StolenSeconds = &Interval{Value: 0.125}
	l := Ledger{Cgroups: []Cgroup{group("/a", 2, 100, shop)}, Programs: []Program{p}}
	settle(&l)
	if got := show(l.Workloads[0]); got != "2 1.625 0.375 0 | 100 100 0 0" {
		t.Error(got)
	}

	// Stolen time is an estimate, so the bounds include its interval.
	for _, c := range []struct {
		name  string
		share Share
		want  Interval
	}{
		{"one place", Share{Cgroup: ptr("/a"), Context: Task, Seconds: 1, Lo: 1, Hi: 1, Method: Sole},
			Interval{Value: 0.75, Lo: 0.25, Hi: 1}},
		{"samples", Share{Cgroup: ptr("/a"), Context: Task, Seconds: 1, Lo: 0.5, Hi: 1, Method: Sampled},
			Interval{Value: 0.75, Lo: 0.125, Hi: 1}},
	} {
		l := Ledger{Cgroups: []Cgroup{group("/a", 2, 100, shop)}, Programs: []Program{
			{Charged: tare, RunSeconds: ptr(1.0), Shares: []Share{c.share}, StolenSeconds: &Interval{Value: 0.25, Lo: 0,
				Hi: 0.75}},
			{Charged: tare, RunSeconds: ptr(0.0)},
		}}
		settle(&l)
		if got := *l.Workloads[0].TareBPF; got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
		l.Programs[1] = Program{Charged: tare, RunSeconds: ptr(0.5), Shares: []Share{{Seconds: 0.5}},
			StolenSeconds: &Interval{Value: 0.25, Lo: 0.125, Hi: 0.5}}
		settle(&l)
		if got := *l.Workloads[0].TareBPF; got.Value != c.want.Value || got.Hi != c.want.Hi+0.375 {
			t.Errorf("%s, and some in no place: %+v", c.name, got)
		}
	}
}

// However charges are assigned, gross = net + tare holds to the nanosecond and the byte, and what tare used is counted
// once: in a workload's gross or as unassigned.
func TestGrossIsNetAndTare(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 2))
	whole := 0
	for n := range 4000 {
		l := randomLedger(rng)
		settle(l)
		ns := func(v *float64) int64 { return int64(math.Round(*v * 1e9)) }
		known := true
		served, servedMemory := int64(0), int64(0)
		for _, w := range l.Workloads {
			if w.NetCPU != nil && w.TareCPU != nil {
				if w.GrossCPU == nil || ns(w.GrossCPU) != ns(w.NetCPU)+ns(w.TareCPU) {
					t.Fatalf("ledger %d: %+v", n, w)
				}
				if *w.NetCPU < 0 || *w.TareCPU < 0 {
					t.Fatalf("ledger %d: less than nothing: %+v", n, w)
				}
				if ns(w.TareCPU) != ns(&w.TareBPF.Value)+ns(w.TareCgroupsCPU) {
					t.Fatalf("ledger %d: tare is not the sum of its parts: %+v", n, w)
				}
				if b := w.TareBPF; b.Lo > b.Value || b.Value > b.Hi {
					t.Fatalf("ledger %d: %+v", n, b)
				}
			}
			if w.NetMemory != nil && w.TareMemory != nil && (w.GrossMemory == nil ||
				*w.GrossMemory != *w.NetMemory+*w.TareMemory) {
				t.Fatalf("ledger %d: %+v", n, w)
			}
			if w.TareCPU == nil || w.TareMemory == nil {
				if known = false; len(w.Notes) == 0 {
					t.Fatalf("ledger %d: something is not known, and nothing says why: %+v", n, w)
				}
				continue
			}
			served, servedMemory = served+ns(w.TareCPU), servedMemory+*w.TareMemory
		}
		if l.Tare == nil || !known || l.Tare.CPU == nil || l.Tare.Memory == nil {
			continue
		}
		whole++
		if placed := ns(l.Tare.CPU) - ns(l.Tare.BPFUnsplit); placed != served+ns(l.Tare.UnassignedCPU) ||
			l.Tare.BPF != nil && placed != ns(l.Tare.CgroupsCPU)+ns(l.Tare.BPF) {
			t.Fatalf("ledger %d: %d ns of tare are on workloads: %+v", n, served, *l.Tare)
		}
		if *l.Tare.Memory != servedMemory+*l.Tare.UnassignedMemory || *l.Tare.UnassignedMemory < 0 ||
			*l.Tare.UnassignedCPU < 0 {
			t.Fatalf("ledger %d: %d bytes of tare are on workloads: %+v", n, servedMemory, *l.Tare)
		}
	}
	if whole < 1000 {
		t.Errorf("only %d ledgers had everything known: the test shows little", whole)
	}
}

// If several windows have too few samples each, all samples together show where the programs ran.
func TestPool(t *testing.T) {
	window := func(cpu float64, inside, elsewhere int) *Ledger {
		p := tareProgram(Share{Seconds: 0.4})
		p.Seen = []Seen{{Cgroup: ptr("/a/x"), Context: Task, Samples: inside}, {Cgroup: ptr("/load"), Context: Task,
			Samples: elsewhere}}
		l := &Ledger{Cgroups: []Cgroup{group("/a", cpu, 100, shop), group("/t", 0.5, 40, tare)},
			Programs: []Program{p}, Maps: []Map{tareMap(10, "/a")}}
		settle(l)
		return l
	}
	if w := window(2, 8, 2).Workloads[0]; w.NetCPU != nil {
		t.Fatalf("the test shows nothing: one window is enough: %+v", w)
	}
	for _, c := range []struct {
		name    string
		windows []*Ledger
		want    string
	}{
		{"of all together", []*Ledger{window(2, 10, 0), window(3, 10, 10), window(4, 10, 0)},
			"3.5 2.7 0.8 0.5 | 140 90 50 10"},
		{"too few", []*Ledger{window(2, 10, 0), window(3, 10, 0)}, "3 - - 0.5 | 140 90 50 10"},
		{"nothing ran", []*Ledger{{Cgroups: []Cgroup{group("/a", 2, 100, shop)}}}, "2 2 0 0 | 100 100 0 0"},
	} {
		for _, l := range c.windows {
			settle(l)
		}
		pooled := Pool(c.windows)
		if len(pooled) != 1 || show(pooled[0]) != c.want {
			t.Errorf("%s: %+v, want %s", c.name, pooled, c.want)
		}
	}
	// The samples of one program do not place another.
	two := func(unseen, cpu float64, samples int) *Ledger {
		seen := tareProgram(Share{Seconds: 0.1})
		seen.Name, seen.Seen = "seen", []Seen{{Cgroup: ptr("/a"), Context: Task, Samples: samples}}
		blind := tareProgram(Share{Seconds: unseen})
		blind.Name = "blind"
		return &Ledger{Cgroups: []Cgroup{group("/a", cpu, 100, shop)}, Programs: []Program{blind, seen}}
	}
	sole, named := two(2, 5, 50), two(0, 5, 50)
	sole.Programs[0].Shares = []Share{{Cgroup: ptr("/a"), Context: Task, Seconds: 2, Lo: 2, Hi: 2, Method: Sole}}
	named.Programs[1].Workload, named.Programs[1].Seen[0].Cgroup = "shop", ptr("(idle)")
	blind := two(2, 5, 50)
	blind.Programs[0].Workload = "shop"
	for _, c := range []struct {
		name   string
		window *Ledger
		want   string
		note   string
	}{
		{"a program that samples cannot see", two(2, 5, 50), "5 - - 0 | 100 100 0 0", "could not place 2.00 s"},
		{"one that ran next to nothing", two(0.005, 5, 50), "5 4.9 0.1 0 | 100 100 0 0", "could not place 5.00 ms"},
		{"one that can only have run in one place", sole, "5 2.9 2.1 0 | 100 100 0 0", ""},
		{"one that names the workload, above idle CPUs", named, "5.1 5 0.1 0.1 | 100 100 0 0", ""},
		{"one that names the workload, and that samples cannot see", blind, "- - - - | 100 100 0 0",
			"gross, net and tare are"},
		{"few samples in each window", two(0, 5, 9), "5 4.9 0.1 0 | 100 100 0 0", ""},
	} {
		settle(c.window)
		w := Pool([]*Ledger{c.window, c.window, c.window})[0]
		notes := strings.Join(w.Notes, "|")
		if show(w) != c.want || !strings.Contains(notes, c.note) || (c.note == "") != (notes == "") {
			t.Errorf("%s: %s, want %s, notes %q", c.name, show(w), c.want, w.Notes)
		}
	}
	other := &Ledger{Cgroups: []Cgroup{group("/b", 2, 100, bank)}}
	settle(other)
	if got := Pool([]*Ledger{window(2, 20, 20), other}); len(got) != 0 || Pool(nil) != nil {
		t.Errorf("workloads that are not in every window: %+v", got)
	}

	rng := rand.New(rand.NewPCG(3, 4))
	for n := range 500 {
		var windows []*Ledger
		for range 1 + rng.IntN(4) {
			l := randomLedger(rng)
			for i := range l.Programs {
				for _, s := range l.Programs[i].Shares {
					l.Programs[i].Seen = append(l.Programs[i].Seen, Seen{Cgroup: s.Cgroup, Context: s.Context,
						Samples: rng.IntN(30)})
				}
			}
			settle(l)
			windows = append(windows, l)
		}
		for _, w := range Pool(windows) {
			known := w.NetCPU != nil && w.TareCPU != nil
			if known && math.Round(*w.GrossCPU*1e9) != math.Round(*w.NetCPU*1e9)+math.Round(*w.TareCPU*1e9) {
				t.Fatalf("pool %d: %s", n, show(w))
			}
			if w.NetCPU != nil && *w.NetCPU < 0 {
				t.Fatalf("pool %d: %s", n, show(w))
			}
			if w.NetMemory != nil && w.TareMemory != nil && *w.GrossMemory != *w.NetMemory+*w.TareMemory {
				t.Fatalf("pool %d: %s", n, show(w))
			}
		}
	}
}

// randomLedger returns a ledger with a tree of groups whose counters include those below, programs with shares in
// random groups, and maps.
func randomLedger(rng *rand.Rand) *Ledger {
	l := &Ledger{}
	if rng.IntN(2) == 0 {
		l.Host.IRQTime = ptr(rng.IntN(2) == 0)
	}
	charges := []Charged{{}, {}, shop, bank, tare, {Charge: ChargeTare, Workload: "bank"}, {Charge: ChargeTare,
		Workload: "nobody"},
		{Charge: ChargeLoad}, {Charge: ChargeSelf}, {Charge: ChargeTare, Component: "proxy"}, {Charge: ChargeWorkload,
			Workload: "shop", Component: "web"}}
	gaps := rng.IntN(8) == 0 // counters that are not known
	var paths []string
	var grow func(path string, depth int) (cpu float64, hard int64)
	grow = func(path string, depth int) (float64, int64) {
		cpu, hard := rng.Float64(), rng.Int64N(1<<30)
		for i := range rng.IntN(4 - depth) {
			c, h := grow(fmt.Sprintf("%s/%c", path, 'a'+i), depth+1)
			cpu, hard = cpu+c, hard+h
		}
		g := group(path, cpu, hard, charges[rng.IntN(len(charges))])
		if gaps && rng.IntN(6) == 0 {
			g.CPUSeconds, g.Memory, g.Vanished = nil, nil, rng.IntN(2) == 0
		}
		l.Cgroups = append(l.Cgroups, g)
		paths = append(paths, path)
		return cpu, hard
	}
	for i := range 1 + rng.IntN(3) {
		grow(fmt.Sprintf("/%c", 'p'+i), 1)
	}
	rng.Shuffle(len(l.Cgroups), func(i, j int) { l.Cgroups[i], l.Cgroups[j] = l.Cgroups[j], l.Cgroups[i] })
	place := func() *string {
		switch rng.IntN(8) {
		case 0:
			return ptr("(idle)")
		case 1:
			return ptr("/")
		case 2:
			return ptr(paths[rng.IntN(len(paths))] + "/gone")
		}
		return ptr(paths[rng.IntN(len(paths))])
	}
	for range rng.IntN(4) {
		p := Program{Charged: charges[rng.IntN(len(charges))]}
		if !gaps || rng.IntN(4) > 0 {
			p = tareProgram()
			for range rng.IntN(5) {
				s := Share{Cgroup: place(), Context: []Context{Task, Softirq, Hardirq}[rng.IntN(3)],
					Seconds: rng.Float64() / 3}
				s.Lo, s.Hi = s.Seconds*0.5, s.Seconds*1.5
				if rng.IntN(6) == 0 {
					s.Cgroup = nil
				}
				p.Shares = append(p.Shares, s)
				*p.RunSeconds += s.Seconds
			}
			p.Charged = charges[rng.IntN(len(charges))]
			if *p.RunSeconds > 0 && rng.IntN(2) == 0 {
				p.StolenSeconds = &Interval{Value: *p.RunSeconds * rng.Float64()}
			}
		}
		l.Programs = append(l.Programs, p)
	}
	for range rng.IntN(5) {
		m := Map{Charged: charges[rng.IntN(len(charges))], Bytes: ptr(rng.Uint64N(1 << 28)), ChargedTo: place()}
		if gaps && rng.IntN(4) == 0 {
			m.Bytes = nil
		}
		if gaps && rng.IntN(4) == 0 {
			m.ChargedTo = nil
		}
		l.Maps = append(l.Maps, m)
	}
	return l
}
