package session

import (
	"bytes"
	"strings"
	"testing"

	"tare/internal/experiment/engine"
	"tare/internal/experiment/record"
	"tare/internal/lib/terminal"
	"tare/internal/scale/ledger"
	testterminal "tare/test/terminal"
)

// TestProgressIsSafe: messages of nodes and processes, and the names of arms, cannot control the terminal.
func TestProgressIsSafe(t *testing.T) {
	const evil = testterminal.Evil
	for _, onTerminal := range []bool{false, true} {
		var b bytes.Buffer
		p := &progress{w: terminal.Guard(&b), raw: &b, terminal: onTerminal, block: -1}
		planned := record.PlannedTrial{Arm: evil, Factors: map[string]string{evil: evil}}
		for _, trial := range []record.Trial{
			{PlannedTrial: planned, Validity: record.Validity{Failed: evil},
				Warnings: []ledger.Warning{{Code: evil, Message: evil}}},
			{PlannedTrial: planned, Validity: record.Validity{Reasons: []record.Reason{{Gate: evil, Message: evil,
				Cause: evil}}}},
			{PlannedTrial: planned, Validity: record.Validity{Valid: true},
				Nodes:  []record.NodeTrial{{Name: evil, Failed: evil}},
				Ledger: &ledger.Ledger{Warnings: []ledger.Warning{{Code: record.LeftBehind, Message: evil}}}},
		} {
			p.say(engine.Progress{Last: &trial, Next: planned, Note: evil, Why: evil, Open: true})
		}
		p.interrupted()
		p.done()
		testterminal.IsSafe(t, "progress", b.String(), "\r\x1b[K")
		if strings.Contains(b.String(), "\r\x1b[K") != onTerminal {
			t.Errorf("on a terminal: %t, and it wrote %q", onTerminal, b.String())
		}
	}
}

// TestProgressOfFailure: the warnings of a trial that failed before its window are printed below the failure.
func TestProgressOfFailure(t *testing.T) {
	var b bytes.Buffer
	p := &progress{w: terminal.Guard(&b), raw: &b, block: -1}
	p.say(engine.Progress{Last: &record.Trial{Validity: record.Validity{Failed: "it is not ready"},
		Warnings: []ledger.Warning{{Code: "no-line-matches", Message: "7 lines, and none matches"}}}})
	_, after, _ := strings.Cut(b.String(), "it is not ready")
	if !strings.Contains(after, "\n  warning: 7 lines, and none matches\n") {
		t.Errorf("it printed %q", b.String())
	}
}

// TestProgressWarns: only the first warning with each code is printed, and only the warning about another run says that
// one of them should be ended.
func TestProgressWarns(t *testing.T) {
	var b bytes.Buffer
	p := &progress{w: terminal.Guard(&b), raw: &b, block: -1}
	for range 2 {
		trial := record.Trial{Validity: record.Validity{Valid: true}, Ledger: &ledger.Ledger{Warnings: []ledger.Warning{
			{Code: record.OtherRun, Message: "another run is under way"}, {Code: record.LeftBehind, Message: "/run/x is left"}}}}
		p.say(engine.Progress{Last: &trial})
	}
	want := "warning: another run is under way; end one of them and run again\nwarning: /run/x is left\n"
	if b.String() != want {
		t.Errorf("it printed %q, want %q", b.String(), want)
	}
}
