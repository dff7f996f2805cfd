package meter

import (
	"testing"

	"tare/internal/scale/attribution"
	"tare/internal/scale/host/bpf"
	"tare/internal/scale/host/perf"
	"tare/internal/scale/ledger"
)

// TestFindingsWhileDraining: what a window's findings read is not what the next window's drain changes at the same
// time: the sampler's counters, and the names of groups.
func TestFindingsWhileDraining(t *testing.T) {
	c := collectorWith(&perf.Sampler{}, &locator{names: newGroupNames()})
	c.addText([]bpf.Program{{ID: 7, JITed: []bpf.Range{{Start: 0x1000, Len: 0x100}}}})
	at, _ := c.stackOf([]uint64{0x1010}, c.text.epoch(1))
	c.cells[cell{at, c.locator.names.number("/a")}] = 3
	next := c.cut(2, 2)
	if err := c.sum(); err != nil {
		t.Fatal(err)
	}
	c.sampler, *next.locator.names = nil, groupNames{}
	f, err := c.findings(func([]uint64) (map[uint64]ledger.Context, error) { return nil, nil })
	if place := (attribution.Place{Group: "/a", Context: ledger.Task}); err != nil || f.places[7][place] != 3 {
		t.Errorf("found %v, %v", f.places, err)
	}
}
