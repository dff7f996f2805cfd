package meter

import (
	"testing"

	"tare/internal/host/perf"
)

// An address means the program that was there at the time of the sample, while programs come, go, and reuse each
// other's place.
func TestTextFollowsPrograms(t *testing.T) {
	x := newText()
	x.add(0x1000, 0x100, 7, always)
	x.add(0x1000, 0x100, 7, always) // found again by a later reading
	x.symbol(perf.Symbol{Time: 100, Start: 0x2000, Len: 0x80, Name: "bpf_prog_0123456789abcdef_new"})
	x.name(8, []perf.Symbol{{Start: 0x2000}})
	x.symbol(perf.Symbol{Time: 150, Start: 0x3000, Len: 0x80, Name: "bpf_trampoline_1"})
	x.symbol(perf.Symbol{Time: 200, Start: 0x1000, Len: 0x100, Removed: true})
	x.symbol(perf.Symbol{Time: 300, Start: 0x1000, Len: 0x40, Name: "bpf_prog_0123456789abcdef_next"})
	x.name(9, []perf.Symbol{{Start: 0x1000}})

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

// Records of several CPUs come in the order of their rings, not of time.
func TestEpochsComeInAnyOrder(t *testing.T) {
	x := newText()
	x.symbol(perf.Symbol{Time: 300, Start: 0x2000, Len: 1, Name: "bpf_prog_0123456789abcdef_b"})
	x.symbol(perf.Symbol{Time: 100, Start: 0x1000, Len: 1, Name: "bpf_prog_0123456789abcdef_a"})
	x.name(1, []perf.Symbol{{Start: 0x1000}})
	x.name(2, []perf.Symbol{{Start: 0x2000}})
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
