package report_test

import (
	"bytes"
	"strings"
	"testing"

	"tare/internal/results/report"
	"tare/internal/scale/ledger"
)

// weighed returns the text of a ledger in which one program ran for 127 ms. Samples place the given seconds of that
// time in control groups.
func weighed(t *testing.T, split float64) string {
	t.Helper()
	const ran = 0.127
	runs, each, group := uint64(1000), 127e3, "/app"
	u := ledger.Usage{Capacity: 20, Idle: 10, Groups: 9, Root: 1, NotSplit: ran - split}
	p := ledger.Program{ID: 7, Name: "probe", Type: "tracing", RunCount: &runs, NsPerRun: &each}
	seconds := ran
	p.RunSeconds = &seconds
	var inside *float64
	if split > 0 {
		u.BPF = []ledger.BPFTime{{Where: ledger.InGroups, Context: ledger.Task, Seconds: split}}
		p.Shares = append(p.Shares, ledger.Share{Cgroup: &group, Context: ledger.Task, Seconds: split, Samples: 40,
			Method: ledger.Sampled})
		inside = &split
	}
	if split < ran {
		p.Shares = append(p.Shares, ledger.Share{Seconds: ran - split,
			Note: "not split: 3 samples, 25 are needed; use --hz 997"})
	}
	cpu := 9.0
	l := ledger.Ledger{
		CPU: ledger.Budget(u), Programs: []ledger.Program{p},
		Cgroups: []ledger.Cgroup{{Path: group, CPUSeconds: &cpu, BPFSeconds: inside, BPFInsideSeconds: inside}},
	}
	l.Window.Seconds = 10
	var b bytes.Buffer
	if err := report.Ledger(&b, &l, report.Options{Width: 100}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func lineOf(text, with string) string {
	for _, line := range strings.Split(text, "\n") {
		if strings.Contains(line, with) {
			return strings.Join(strings.Fields(line), " ")
		}
	}
	return ""
}

// TestLedgerNamesWhatWasNotSplit: the budget does not give "0 s" for eBPF programs if the table below it says that they
// ran for 127 ms.
func TestLedgerNamesWhatWasNotSplit(t *testing.T) {
	for _, c := range []struct {
		split       float64
		line, group string
	}{
		{0, "B eBPF programs - - 127 ms by the kernel's count, not split: it is inside the other lines", "9.00 s - "},
		{0.1, "B eBPF programs 100 ms 0.50 % counted, split by samples; 27.0 ms more, not split, inside the other lines",
			"9.00 s 100 ms "},
		{0.127, "B eBPF programs 127 ms 0.64 % counted, split by samples", "9.00 s 127 ms "},
	} {
		text := weighed(t, c.split)
		if got := lineOf(text, "eBPF programs  "); got != c.line {
			t.Errorf("%g s were split: %q\nwant %q", c.split, got, c.line)
		}
		if got := lineOf(text, "-  /app"); !strings.HasPrefix(got, c.group) {
			t.Errorf("%g s were split: the group's line is %q, want %q", c.split, got, c.group)
		}
	}
}

// TestLedgerWithoutPrograms: programs and maps that could not be read are not shown as empty lists.
func TestLedgerWithoutPrograms(t *testing.T) {
	l := ledger.Ledger{CPU: ledger.Budget(ledger.Usage{Capacity: 20, Idle: 10, Groups: 10, NoBPF: true, NoKernel: true})}
	for _, c := range []struct{ want, never string }{
		{"eBPF programs: not known", "eBPF programs: 0"}, {"eBPF maps: not known", "eBPF maps: 0"},
		{"control groups, without eBPF", "kernel threads"},
	} {
		var b bytes.Buffer
		if err := report.Ledger(&b, &l, report.Options{Width: 110}); err != nil {
			t.Fatal(err)
		}
		if text := b.String(); !strings.Contains(text, c.want) || strings.Contains(text, c.never) {
			t.Errorf("want %q and never %q in\n%s", c.want, c.never, text)
		}
	}
}

// TestLedgerPrograms: the programs that ran are shown wherever they are in the list, even if the time of a run is
// unknown.
func TestLedgerPrograms(t *testing.T) {
	none, once, zero, never := uint64(0), uint64(1), 0.0, (*float64)(nil)
	l := ledger.Ledger{Programs: []ledger.Program{
		{ID: 1, Name: "sleeper", RunCount: &none, RunSeconds: &zero},
		{ID: 2, Name: "quick", RunCount: &once, RunSeconds: &zero, NsPerRun: &zero},
		{ID: 3, Name: "untimed", RunCount: &once, RunSeconds: &zero, NsPerRun: never},
		{ID: 4, Name: "unknown", RunCount: &once},
	}}
	l.Window.Seconds = 10
	var b bytes.Buffer
	if err := report.Ledger(&b, &l, report.Options{Width: 110}); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	if strings.Contains(text, "sleeper") || !strings.HasSuffix(lineOf(text, "quick"), " 0 s 0 s") ||
		!strings.HasSuffix(lineOf(text, "untimed"), " - 0 s") ||
		!strings.Contains(text, "eBPF programs: 4, of which 2 ran") ||
		!strings.Contains(lineOf(text, "quick"), " 0.10 ") {
		t.Error(text)
	}
}

// TestUnmatched: a pattern that matches no control group is named, and does not look like groups that use nothing.
func TestUnmatched(t *testing.T) {
	l := ledger.Ledger{Cgroups: []ledger.Cgroup{{Path: "/"}, {Path: "/pods"}, {Path: "/pods/shop"}}}
	var b bytes.Buffer
	o := report.Options{Width: 110, Ledger: report.LedgerOptions{Match: []string{"/pod/*", "/pods/*"}}}
	if err := report.Ledger(&b, &l, o); err != nil {
		t.Fatal(err)
	}
	if text := b.String(); strings.Count(text, "--match") != 1 ||
		!strings.Contains(text, "warning: --match /pod/* matches none of the 3 control groups") {
		t.Error(text)
	}
}

// TestLedgerTellsGrossNetAndTare checks the exact text about workloads for a ledger with charges.
func TestLedgerTellsGrossNetAndTare(t *testing.T) {
	at := func(v float64) *float64 { return &v }
	text := func(s string) *string { return &s }
	group := func(path string, cpu float64, hard int64, c ledger.Charged) ledger.Cgroup {
		return ledger.Cgroup{Path: path, CPUSeconds: &cpu, Memory: &ledger.Memory{Hard: &hard}, Charged: c}
	}
	tare := ledger.Charged{Charge: ledger.ChargeTare}
	shop, bank := ledger.Charged{Charge: ledger.ChargeWorkload, Workload: "shop"},
		ledger.Charged{Charge: ledger.ChargeWorkload, Workload: "bank"}
	runs, size := uint64(1000), uint64(3<<20)
	ledgerOf := func(charges ...ledger.Cgroup) *ledger.Ledger {
		l := &ledger.Ledger{CPU: ledger.Budget(ledger.Usage{Capacity: 20, Idle: 10, Groups: 10}), Cgroups: charges,
			Programs: []ledger.Program{}, Maps: []ledger.Map{}}
		l.Window.Seconds, l.Host.CPUs = 10, 2
		return l
	}
	several := ledgerOf(group("/pods/shop", 4, 100<<20, shop), group("/pods/shop/envoy", 1, 30<<20,
		ledger.Charged{Charge: ledger.ChargeTare, Component: "proxy"}),
		group("/pods/bank", 2, 50<<20, bank), group("/system/agent", 0.5, 20<<20, tare), group("/k6", 1, 10<<20,
			ledger.Charged{Charge: ledger.ChargeLoad}),
		ledger.Cgroup{Path: "/system/gone", Vanished: true})
	several.Programs = []ledger.Program{{Charged: tare, ID: 7, Name: "cil_from", Type: "sched_cls", RunCount: &runs,
		NsPerRun: at(7e5), RunSeconds: at(0.7),
		Shares: []ledger.Share{
			{Cgroup: text("/pods/shop"), Context: ledger.Task, Seconds: 0.4, Lo: 0.35, Hi: 0.45, Samples: 40,
				Method: ledger.Sampled},
			{Cgroup: text("/k6"), Context: ledger.Task, Seconds: 0.2, Lo: 0.15, Hi: 0.25, Samples: 20,
				Method: ledger.Sampled},
			{Seconds: 0.1, Hi: 0.7, Note: "not split: 2 places with fewer than 5 samples each"},
		}}}
	several.Maps = []ledger.Map{{Charged: tare, ID: 9, Name: "cil_ct", Type: "hash", Bytes: &size,
		BytesMethod: "exact", ChargedTo: text("/pods/shop")}}
	one := ledgerOf(group("/pods/shop", 4, 100<<20, shop), group("/system/agent", 0.5, 20<<20, tare))
	one.Programs = []ledger.Program{{Charged: tare, ID: 7, Name: "cil_from", RunCount: &runs, NsPerRun: at(1e5),
		RunSeconds: at(0.1),
		Shares:     []ledger.Share{{Seconds: 0.1, Hi: 0.1, Note: "not split: 0 samples, 25 are needed"}}}}
	none := ledgerOf(group("/system/agent", 0.5, 20<<20, tare))
	var b bytes.Buffer
	for _, l := range []*ledger.Ledger{several, one, none} {
		l.Settle()
		l.AddComponents()
		if err := report.Ledger(&b, l, report.Options{Width: 110}); err != nil {
			t.Fatal(err)
		}
		b.WriteString("\n")
	}
	golden(t, "workloads.txt", b.Bytes())
}
