package engine

import (
	"testing"

	"tare/internal/experiment/record"
	"tare/internal/scale/ledger"
	"tare/test/vm/guest"
)

// TestWarnWithoutALedger: a trial that fails before its window has no ledger, but its warnings are in its record.
func TestWarnWithoutALedger(t *testing.T) {
	guest.KernelFree(t)
	x := &trial{record: &record.Trial{}}
	x.Warn("early", "%d lines, and none matches", 7)
	want := ledger.Warning{Code: "early", Message: "7 lines, and none matches"}
	if got := x.record.Warned(); len(got) != 1 || got[0] != want {
		t.Errorf("without a ledger: %+v", got)
	}
	x.record.Ledger = &ledger.Ledger{}
	x.Warn("late", "with one")
	if got := x.record.Warned(); len(got) != 2 || got[0].Code != "early" || got[1].Code != "late" ||
		len(x.record.Warnings) != 1 || len(x.record.Ledger.Warnings) != 1 {
		t.Errorf("with one: %+v", got)
	}
}
