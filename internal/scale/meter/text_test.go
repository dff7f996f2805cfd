package meter

import (
	"testing"

	"tare/internal/scale/host/perf"
)

// An address refers to the program that was there at the time of the sample, while programs come, go, and reuse each
// other's addresses.
func TestTextFollowsPrograms(t *testing.T) {
	x := newText()
	x.add(0x1000, 0x100, 7)
	x.add(0x1000, 0x100, 7) // found again by a later reading
	x.symbol(perf.Symbol{Time: 100, Start: 0x2000, Len: 0x80, Name: "bpf_prog_0123456789abcdef_new"})
	x.name(8, []perf.Symbol{{Time: 100, Start: 0x2000}})
	x.symbol(perf.Symbol{Time: 150, Start: 0x3000, Len: 0x80, Name: "bpf_trampoline_1"})
	x.symbol(perf.Symbol{Time: 200, Start: 0x1000, Len: 0x100, Removed: true})
	x.symbol(perf.Symbol{Time: 300, Start: 0x1000, Len: 0x40, Name: "bpf_prog_0123456789abcdef_next"})
	x.name(9, []perf.Symbol{{Time: 300, Start: 0x1000}})

	cases := []struct {
		at      int64
		addr    uint64
		program uint32
	}{
		{50, 0x1000, 7}, {50, 0x10ff, 7}, {50, 0x1100, 0}, {50, 0xfff, 0}, {50, 0x2000, 0},
		{120, 0x2010, 8}, {120, 0x1000, 7}, {160, 0x3000, 0},
		{200, 0x1000, 0}, {250, 0x1010, 0}, {250, 0x2010, 8},
		{300, 0x1010, 9}, {400, 0x1041, 0},
	}
	for _, c := range cases {
		got, ok := find(x.view(x.epoch(c.at)), c.addr)
		if got != c.program || ok != (c.program != 0) {
			t.Errorf("at %d, %#x: got program %d, want %d", c.at, c.addr, got, c.program)
		}
		if c.program != 0 && !x.mayHold(c.addr) {
			t.Errorf("%#x fails the quick test", c.addr)
		}
	}
}

// A program is unloaded on one CPU, and another is loaded in its place on a second CPU, whose ring is read first.
func TestTextOfSeveralCPUs(t *testing.T) {
	x := newText()
	x.add(0x1000, 0x100, 1)
	x.symbol(perf.Symbol{Time: 150, Start: 0x1000, Len: 0x80, Name: "bpf_prog_0123456789abcdef_b"})
	x.name(2, []perf.Symbol{{Time: 150, Start: 0x1000}})
	x.symbol(perf.Symbol{Time: 100, Start: 0x1000, Len: 0x100, Removed: true})
	// A program that was listed before the record of its load was read.
	x.add(0x2000, 0x100, 3)
	x.symbol(perf.Symbol{Time: 160, Start: 0x2000, Len: 0x100, Name: "bpf_prog_0123456789abcdef_c"})
	x.name(3, []perf.Symbol{{Time: 160, Start: 0x2000}})
	for _, c := range []struct {
		at      int64
		addr    uint64
		program uint32
	}{{50, 0x1010, 1}, {120, 0x1010, 0}, {200, 0x1010, 2}, {200, 0x1090, 0}, {50, 0x2010, 3}, {200, 0x2010, 3}} {
		if got, _ := find(x.view(x.epoch(c.at)), c.addr); got != c.program {
			t.Errorf("at %d, %#x: got program %d, want %d", c.at, c.addr, got, c.program)
		}
	}
	if got := x.unsure(); len(got) > 0 {
		t.Errorf("unsure are %v", got)
	}
}

// If a record was lost, the code of two programs overlaps in time and place, and samples there may belong to either.
func TestUnsure(t *testing.T) {
	const name = "bpf_prog_0123456789abcdef_x"
	x := newText()
	x.add(0x1000, 0x100, 1)
	x.add(0x2000, 0x100, 2)
	x.add(0x3000, 0x100, 3)
	x.symbol(perf.Symbol{Time: 100, Start: 0x1000, Len: 0x100, Removed: true})
	x.symbol(perf.Symbol{Time: 200, Start: 0x1000, Len: 0x40, Name: name})
	x.name(4, []perf.Symbol{{Time: 200, Start: 0x1000}})
	if got := x.unsure(); len(got) > 0 {
		t.Errorf("nothing was lost, and unsure are %v", got)
	}
	x.symbol(perf.Symbol{Time: 300, Start: 0x2080, Len: 0x100, Name: name}) // the removal of 2 was not seen
	x.name(5, []perf.Symbol{{Time: 300, Start: 0x2080}})
	// By the end, 3 was unloaded and 6 was loaded, without records.
	x.add(0x3000, 0x80, 6)
	x.symbol(perf.Symbol{Time: 400, Start: 0x4000, Len: 0x100, Name: name}) // its name was lost, and nothing else
	for id, want := range map[uint32]bool{0: false, 1: false, 2: true, 3: true, 4: false, 5: true, 6: true} {
		if got := x.unsure()[id]; got != want {
			t.Errorf("program %d: unsure %v, want %v", id, got, want)
		}
	}
}

// Records of several CPUs come in the order of their rings, not of time.
func TestEpochsComeInAnyOrder(t *testing.T) {
	x := newText()
	x.symbol(perf.Symbol{Time: 300, Start: 0x2000, Len: 1, Name: "bpf_prog_0123456789abcdef_b"})
	x.symbol(perf.Symbol{Time: 100, Start: 0x1000, Len: 1, Name: "bpf_prog_0123456789abcdef_a"})
	x.name(1, []perf.Symbol{{Time: 100, Start: 0x1000}})
	x.name(2, []perf.Symbol{{Time: 300, Start: 0x2000}})
	for at, want := range map[int64]int32{99: 0, 100: 1, 299: 1, 300: 2, 999: 2} {
		if got := x.epoch(at); got != want {
			t.Errorf("time %d is in epoch %d, want %d", at, got, want)
		}
	}
	if got, _ := find(x.view(1), 0x1000); got != 1 {
		t.Errorf("in the epoch after the first load: program %d at its place", got)
	}
	if _, ok := find(x.view(1), 0x2000); ok {
		t.Error("the second program is there before it was loaded")
	}
}
