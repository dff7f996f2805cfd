package report_test

import (
	"bytes"
	"strings"
	"testing"

	"tare/internal/ledger"
	"tare/internal/report"
)

// weighed is the text of a ledger in which one program ran for 127 ms, of which that many were split.
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
		p.Shares = append(p.Shares, ledger.Share{Cgroup: &group, Context: ledger.Task, Seconds: split, Samples: 40, Method: ledger.Sampled})
		inside = &split
	}
	if split < ran {
		p.Shares = append(p.Shares, ledger.Share{Seconds: ran - split, Note: "not split: 3 samples, 25 are needed; use --hz 997"})
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

// The account does not say "0 s" of eBPF programs that it says ran for 127 ms a few lines below.
func TestLedgerNamesWhatWasNotSplit(t *testing.T) {
	for _, c := range []struct {
		split       float64
		line, group string
	}{
		{0, "B eBPF programs - - 127 ms by the kernel's count, not split: it is inside the other lines", "9.00 s - "},
		{0.1, "B eBPF programs 100 ms 0.50 % counted, split by samples; 27.0 ms more, not split, inside the other lines", "9.00 s 100 ms "},
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
