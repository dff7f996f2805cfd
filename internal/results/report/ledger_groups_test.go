package report

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"tare/internal/lib/known"
	"tare/internal/lib/quantity"
	"tare/internal/scale/ledger"
)

// group returns a control group with the given milliseconds of CPU time and bytes of hard memory.
func group(path string, cpu, hard int64, c ledger.Charged) ledger.Cgroup {
	return ledger.Cgroup{Path: path, Charged: c, CPUSeconds: new(float64(cpu) / 1e3), Memory: &ledger.Memory{Hard: &hard}}
}

// TestGroupRows: leaves come first, other groups have a row for what they use without the groups below, groups that a
// rule names always have a row, and the rows add up whatever is left out.
func TestGroupRows(t *testing.T) {
	shop, none := ledger.Charged{Charge: ledger.ChargeWorkload, Workload: "shop"}, ledger.Charged{}
	groups := []ledger.Cgroup{
		group("/", 10_000, 0, none),
		group("/system.slice", 6_000, 0, none), group("/system.slice/a.service", 4_000, 0, none),
		group("/system.slice/b.service", 1_500, 0, none), group("/system.slice/c.service", 500, 0, none),
		group("/pods", 3_000, 0, none), group("/pods/bank", 2_800, 0, none), group("/pods/shop", 200, 0, shop),
		group("/pods/shop/app", 150, 0, shop), group("/pods/shop/pause", 10, 0, shop), group("/idle", 0, 0, none),
	}
	for _, c := range []struct {
		o    LedgerOptions
		want string
	}{
		{LedgerOptions{}, "4.00 s /system.slice/a.service; 2.80 s /pods/bank; 1.50 s /system.slice/b.service; " +
			"500 ms /system.slice/c.service; 150 ms /pods/shop/app  [shop]; 10.0 ms /pods/shop/pause  [shop]; " +
			"1.00 s / (in itself); 40.0 ms /pods/shop (in itself)  [shop]; 0 s other (3)"},
		{LedgerOptions{Top: 2}, "4.00 s /system.slice/a.service; 2.80 s /pods/bank; " +
			"200 ms /pods/shop (with 2 below it)  [shop]; 3.00 s other (6)"},
		{LedgerOptions{Depth: 1}, "6.00 s /system.slice (with 3 below it); 200 ms /pods/shop (with 2 below it)  [shop]; " +
			"2.80 s /pods (with 1 below it); 1.00 s / (in itself); 0 s other (1)"},
		{LedgerOptions{Match: []string{"/pods"}}, "2.80 s /pods/bank; 150 ms /pods/shop/app  [shop]; " +
			"10.0 ms /pods/shop/pause  [shop]; 40.0 ms /pods/shop (in itself)  [shop]; 7.00 s other (7)"},
	} {
		rows, other, sum := NewGroupTree(&ledger.Ledger{Cgroups: groups}).rows(c.o)
		var got []string
		for i := range rows {
			got = append(got, secondsOf(rows[i].used[usedCPU])+" "+rows[i].name(false))
		}
		got = append(got, fmt.Sprintf("%s other (%d)", secondsOf(other.used[usedCPU]), other.groups))
		if text := strings.Join(got, "; "); text != c.want {
			t.Errorf("%+v:\n%s\nwant\n%s", c.o, text, c.want)
		}
		if all := secondsOf(sum[usedCPU]); all != quantity.Value(10, quantity.Seconds) {
			t.Errorf("%+v: the total is %s", c.o, all)
		}
	}
}

// TestGroupRowsOfV2: the counter of the root includes more than tasks, so the CPU time of its tasks is taken from the
// budget.
func TestGroupRowsOfV2(t *testing.T) {
	l := &ledger.Ledger{Host: ledger.Host{CgroupMode: "v2"}, CPU: ledger.CPU{Root: new(0.2)}, Cgroups: []ledger.Cgroup{
		group("/", 16_200, 1, ledger.Charged{}), group("/a", 10_000, 0, ledger.Charged{}), {Path: "/gone", Vanished: true},
	}}
	for _, want := range []string{
		"10.0 s /a; 200 ms / (in itself); total 10.2 s", "10.0 s /a; - / (in itself); total 10.0 s",
	} {
		rows, _, sum := NewGroupTree(l).rows(LedgerOptions{})
		var got []string
		for i := range rows {
			got = append(got, secondsOf(rows[i].used[usedCPU])+" "+rows[i].name(false))
		}
		if text := strings.Join(append(got, "total "+secondsOf(sum[usedCPU])), "; "); text != want {
			t.Errorf("%s\nwant\n%s", text, want)
		}
		l.CPU.Root = nil // as in ledgers of older versions
	}
}

// TestGroupRowsSayWhatIsNotCounted: CPU time of a group without a counter is in the row of one above it, which says so.
func TestGroupRowsSayWhatIsNotCounted(t *testing.T) {
	groups := []ledger.Cgroup{
		group("/", 10, 30, ledger.Charged{}), group("/a", 4, 10, ledger.Charged{}),
		{Path: "/b", Memory: &ledger.Memory{Hard: new(int64(20))}},
		{Path: "/b/c", Memory: &ledger.Memory{Hard: new(int64(5))}},
	}
	rows, _, _ := NewGroupTree(&ledger.Ledger{Cgroups: groups}).rows(LedgerOptions{})
	var got []string
	for i := range rows {
		got = append(got, secondsOf(rows[i].used[usedCPU])+" "+rows[i].name(false))
	}
	want := "4.00 ms /a; - /b/c; 6.00 ms / (in itself, with the CPU time of 2 that are not counted); - /b (in itself)"
	if text := strings.Join(got, "; "); text != want {
		t.Errorf("%s\nwant\n%s", text, want)
	}
}

// TestTotalSaysWhatIsNotWeighed: the total of memory says how many groups it lacks: those whose memory is unknown and
// in that of no group above. Groups that are gone have none, and no memory at all needs no count.
func TestTotalSaysWhatIsNotWeighed(t *testing.T) {
	none := ledger.Charged{}
	for want, groups := range map[string][]ledger.Cgroup{
		"-  total, without the memory of 2 groups: unknown": {
			{Path: "/"}, group("/a", 4, 10, none), {Path: "/a/in"}, {Path: "/b"}, {Path: "/b/c"},
			{Path: "/gone", Vanished: true},
		},
		"-  total": {{Path: "/"}, {Path: "/b"}, {Path: "/b/c"}},
	} {
		var s screen
		s.groups(&ledger.Ledger{Cgroups: groups})
		if text := s.b.String(); !strings.Contains(text, want+"\n") {
			t.Errorf("%q is not in %s", want, text)
		}
	}
}

// TestGroupRowsAddUp: whatever counters are missing and whatever is left out, each group is in one row, and the rows
// add up to the sum of the topmost known counters.
func TestGroupRowsAddUp(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		groups := []ledger.Cgroup{{Path: "/"}}
		for range r.IntN(30) {
			above := groups[r.IntN(len(groups))].Path
			g := ledger.Cgroup{Path: strings.TrimSuffix(above, "/") + "/" + string(rune('a'+r.IntN(8)))}
			if r.IntN(5) == 0 {
				g.Charged = ledger.Charged{Charge: ledger.ChargeTare, Component: string(rune('x' + r.IntN(2)))}
			}
			groups = append(groups, g)
		}
		for i := range groups {
			if r.IntN(4) > 0 {
				groups[i].CPUSeconds = new(r.Float64())
			}
			groups[i].Vanished = r.IntN(10) == 0
		}
		r.Shuffle(len(groups), func(i, j int) { groups[i], groups[j] = groups[j], groups[i] })
		tree := NewGroupTree(&ledger.Ledger{Cgroups: groups})
		var want *int64 // sum of the counters that have no known counter above them
		for i := range groups {
			n := groups[i].CPUNanoseconds()
			if n != nil && tree.Nearest(i, func(j int) bool { return groups[j].CPUSeconds != nil }) < 0 {
				want = known.Sum(n, orZero(want))
			}
		}
		o := LedgerOptions{Top: r.IntN(6) - 1, Depth: r.IntN(4)}
		if r.IntN(2) == 0 {
			o.Match = []string{"/**/*b*"}
		}
		rows, other, sum := tree.rows(o)
		var got usage
		got.add(other.used)
		in := other.groups
		for i := range rows {
			got.add(rows[i].used)
			in += rows[i].groups
		}
		if in != len(groups) || fmt.Sprint(secondsOf(got[usedCPU]), secondsOf(sum[usedCPU])) !=
			fmt.Sprint(secondsOf(want), secondsOf(want)) {
			t.Fatalf("%d groups of %d in rows, %s of %s, and a total of %s: %+v of %+v", in, len(groups),
				secondsOf(got[usedCPU]), secondsOf(want), secondsOf(sum[usedCPU]), o, groups)
		}
		for i := range groups {
			if tree.named(i) && !slices.ContainsFunc(rows, func(r groupRow) bool { return r.Cgroup == &groups[i] }) {
				t.Fatalf("%s has no row: %+v of %+v", groups[i].Path, o, groups)
			}
		}
	}
}

// orZero returns n, or a pointer to 0 if n is nil.
func orZero(n *int64) *int64 {
	if n == nil {
		return new(int64)
	}
	return n
}
