package attribution

import (
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"tare/internal/scale/ledger"
)

func sum(shares []ledger.Share) (ns uint64) {
	for _, s := range shares {
		ns += uint64(math.Round(s.Seconds * 1e9))
	}
	return ns
}

// Shares sum to the total to the nanosecond, whatever the counts.
func TestSharesSumToTheTotal(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	contexts := []ledger.Context{ledger.Task, ledger.Softirq, ledger.Hardirq}
	for range 2000 {
		e := Evidence{RunNs: rng.Uint64N(1 << (1 + rng.UintN(52))), Samples: map[Place]int{}}
		for range rng.IntN(12) {
			e.Samples[Place{strings.Repeat("g", rng.IntN(4)), contexts[rng.IntN(3)]}] += rng.IntN(200)
		}
		shares := Split(e)
		if got := sum(shares); got != e.RunNs {
			t.Fatalf("%+v: shares sum to %d ns", e, got)
		}
		for _, s := range shares {
			if s.Seconds < s.Lo-2e-9 || s.Seconds > s.Hi+2e-9 || s.Lo < 0 || s.Hi > float64(e.RunNs)/1e9+1e-9 {
				t.Fatalf("%+v: share %+v lies outside its interval or the total", e, s)
			}
		}
	}
}

func TestApportionOfHugeTotals(t *testing.T) {
	for _, total := range []uint64{1<<63 + 12345, math.MaxUint64} {
		var got uint64
		for _, ns := range Apportion(total, []int{1, 2, 4}, 7) {
			got += ns
		}
		if got != total {
			t.Errorf("%d: parts sum to %d", total, got)
		}
	}
}

func TestSplitSaysWhatItCannot(t *testing.T) {
	place := func(g string) Place { return Place{g, ledger.Task} }
	cases := []struct {
		name  string
		e     Evidence
		notes []string
	}{
		{"did not run", Evidence{}, nil},
		{"no samples", Evidence{RunNs: 5}, []string{"not split: 0 samples"}},
		{"too few", Evidence{RunNs: 5, Samples: map[Place]int{place("/a"): 24}}, []string{"not split: 24 samples"}},
		{"enough", Evidence{RunNs: 5, Samples: map[Place]int{place("/a"): 25}}, []string{""}},
		{"small places together", Evidence{RunNs: 5e9,
			Samples: map[Place]int{place("/a"): 100, place("/b"): 4, place("/c"): 1}},
			[]string{"", "not split: 2 places"}},
		{"unknown threads", Evidence{RunNs: 5e9, Samples: map[Place]int{place("/a"): 100, place(""): 50}},
			[]string{"", "threads ended"}},
	}
	for _, c := range cases {
		shares := Split(c.e)
		if len(shares) != len(c.notes) {
			t.Errorf("%s: got %d shares, want %d", c.name, len(shares), len(c.notes))
			continue
		}
		for i, s := range shares {
			if !strings.Contains(s.Note, c.notes[i]) || (s.Cgroup == nil) != (c.notes[i] != "") {
				t.Errorf("%s: share %d is %+v, want a note with %q", c.name, i, s, c.notes[i])
			}
		}
	}
}

// A hint names what would have split the program's time: a rate or a window with enough samples for its run time. There
// is no such hint if samples cannot see the program.
func TestHintSplits(t *testing.T) {
	a := Place{"/a", ledger.Task}
	for _, c := range []struct {
		name    string
		e       Evidence
		want    []string
		without string
	}{
		{"a higher rate or a longer window", Evidence{RunNs: 30e6, Samples: map[Place]int{a: 15}, Hz: 499, Seconds: 10},
			[]string{"15 samples", "--hz 1277", "a window of 26 s"}, ""},
		{"no samples at all", Evidence{RunNs: 8e6, Hz: 499, Seconds: 10},
			[]string{"0 samples", "--hz 4751", "a window of 96 s"}, ""},
		{"too little for any rate", Evidence{RunNs: 1e6, Hz: 499, Seconds: 10}, []string{"a window of 762 s"}, "--hz"},
		{"too little", Evidence{RunNs: 1e3, Hz: 499, Seconds: 10}, []string{"ran too little"}, "--"},
		{"out of sight of the samples", Evidence{RunNs: 400e6, Samples: map[Place]int{a: 3}, Hz: 499, Seconds: 10},
			[]string{"3 samples where its run time makes about 200", "interrupts off"}, "--"},
		{"a window that came out short by chance", Evidence{RunNs: 70e6, Samples: map[Place]int{a: 24}, Hz: 499, Seconds: 10},
			[]string{"--hz 547", "a window of 11 s"}, ""},
		{"machine code whose addresses are hidden", Evidence{RunNs: 400e6, Hz: 499, Seconds: 10, Blind: true},
			[]string{"addresses of its machine code are unknown"}, "interrupts"},
		{"no samples were taken", Evidence{RunNs: 400e6}, []string{"0 samples"}, "--"},
	} {
		got := Split(c.e)[0].Note
		for _, want := range c.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: %q lacks %q", c.name, got, want)
			}
		}
		if c.without != "" && strings.Contains(got, c.without) {
			t.Errorf("%s: %q has %q", c.name, got, c.without)
		}
	}
}

func TestSoleIsExactWithoutSamples(t *testing.T) {
	p := Place{"/a", ledger.Task}
	shares := Split(Evidence{RunNs: 1500, Sole: &p})
	if len(shares) != 1 || *shares[0].Cgroup != "/a" || shares[0].Method != ledger.Sole || shares[0].Lo != 1.5e-6 ||
		shares[0].Hi != 1.5e-6 {
		t.Errorf("got %+v", shares)
	}
}

// The 95 % intervals contain the true value in at least 93 % of windows, for even and uneven splits, few samples and
// many.
func TestIntervalsCover(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	const windows = 2000
	for _, truth := range []float64{0.5, 0.75, 0.95} {
		for _, mean := range []int{40, 200, 2000} {
			hits := 0
			for range windows {
				k := 0
				for range mean {
					if rng.Float64() < truth {
						k++
					}
				}
				e := Evidence{RunNs: 1e9, Samples: map[Place]int{{"/a", ledger.Task}: k, {"/b", ledger.Task}: mean - k}}
				for _, s := range Split(e) {
					if s.Cgroup != nil && *s.Cgroup == "/a" && s.Lo <= truth && truth <= s.Hi {
						hits++
					}
				}
			}
			if got := float64(hits) / windows; got < 0.93 {
				t.Errorf("a share of %.2f with %d samples: the interval held it in %.1f %% of windows", truth, mean, 100*got)
			}
		}
	}
}

func TestRuns(t *testing.T) {
	p := func(i int) Frame { return Frame{Program: i} }
	other := Frame{Program: -1}
	softirq, hardirq := Frame{-1, ledger.Softirq}, Frame{-1, ledger.Hardirq}
	cases := []struct {
		name  string
		chain []Frame
		want  []Run
	}{
		{"nothing", []Frame{other, other}, nil},
		{"task", []Frame{p(1), other}, []Run{{1, ledger.Task}}},
		{"helper below a program", []Frame{other, p(1), other}, []Run{{1, ledger.Task}}},
		{"subprogram and callback", []Frame{p(1), other, p(1), p(1)}, []Run{{1, ledger.Task}}},
		{"softirq on the way out of a system call", []Frame{p(1), other, softirq, other}, []Run{{1, ledger.Softirq}}},
		{"softirq on the way out of a hardirq", []Frame{p(1), softirq, other, hardirq, other}, []Run{{1, ledger.Softirq}}},
		{"hardirq", []Frame{p(1), other, hardirq, other}, []Run{{1, ledger.Hardirq}}},
		{"interrupted by another", []Frame{p(2), softirq, hardirq, p(1), other},
			[]Run{{2, ledger.Softirq}, {1, ledger.Task}}},
		{"interrupted by itself", []Frame{p(1), softirq, hardirq, p(1), other}, []Run{{1, ledger.Softirq}, {1, ledger.Task}}},
		{"interrupted, the interrupt runs none", []Frame{other, hardirq, p(1), other}, []Run{{1, ledger.Task}}},
		{"one program inside another", []Frame{p(2), other, p(1)}, []Run{{2, ledger.Task}, {1, ledger.Task}}},
		{"interrupts in interrupts", []Frame{p(1), hardirq, p(2), softirq, hardirq, p(1)},
			[]Run{{1, ledger.Hardirq}, {2, ledger.Softirq}, {1, ledger.Task}}},
		{"nested softirq twice", []Frame{p(1), softirq, p(1), softirq, other}, []Run{{1, ledger.Softirq}}},
	}
	for _, c := range cases {
		if got := Runs(c.chain, nil); !reflect.DeepEqual(got, c.want) && len(got)+len(c.want) > 0 {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
		keep := []Run{{9, ledger.Task}}
		if got := Runs(c.chain, keep); got[0] != (Run{9, ledger.Task}) || len(got) != 1+len(c.want) {
			t.Errorf("%s: appended to another list: got %v", c.name, got)
		}
	}
}

func TestEntry(t *testing.T) {
	for name, want := range map[string]ledger.Context{
		"handle_softirqs": ledger.Softirq, "__do_softirq": ledger.Softirq, "do_softirq": "",
		"asm_sysvec_apic_timer_interrupt": ledger.Hardirq, "sysvec_call_function_single": ledger.Hardirq,
		"asm_exc_page_fault": "", "entry_SYSCALL_64_after_hwframe": "", "el1h_64_irq": ledger.Hardirq,
		"smp_apic_timer_interrupt":    ledger.Hardirq,
		"smp_call_function_many_cond": "", "": "",
		"fred_sysvec_apic_timer_interrupt": ledger.Hardirq, "fred_extint": ledger.Hardirq, "fred_exc_nmi": ledger.Hardirq,
		"asm_fred_entrypoint_kernel": "", "fred_entry_from_user": "", "fred_exc_page_fault": "",
		"xen_pv_evtchn_do_upcall": ledger.Hardirq, "asm_exc_xen_hypervisor_callback": ledger.Hardirq,
	} {
		if got := Entry(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}
