package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestColumn(t *testing.T) {
	for want, o := range map[string]outcome{
		"quiet":     {Stolen: 0.019},
		"steal":     {Stolen: 0.02},
		"neighbour": {Stolen: 0.3, Neighbour: true},
	} {
		if got := o.column(); got != want {
			t.Errorf("%+v is in column %s, want %s", o, got, want)
		}
	}
}

// TestResume: outcomes are read again, even if the last line was cut short, and the table shows those of the latest
// binary by their condition.
func TestResume(t *testing.T) {
	c := campaign{state: filepath.Join(t.TempDir(), "state.jsonl")}
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i, o := range []outcome{
		{Kind: "budget", Tare: "old", Held: false, Values: map[string]float64{"remainder": 0.5}},
		{Kind: "budget", Tare: "new", Held: true, Values: map[string]float64{"remainder": 0.001}},
		{Kind: "budget", Tare: "new", Held: false, Values: map[string]float64{"remainder": -0.03}},
		{Kind: "budget", Tare: "new", Held: true, Neighbour: true, Stolen: 0.1,
			Values: map[string]float64{"remainder": 0.01}},
	} {
		o.At = at.Add(time.Duration(i) * time.Minute)
		if err := c.append(o); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.OpenFile(c.state, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"kind":"budget","at":`); err != nil {
		t.Fatal(err)
	}
	f.Close()
	// A line that is added after one that was cut short begins on a new line.
	if err := c.append(outcome{Kind: "aa", Tare: "new", At: at}); err != nil {
		t.Fatal(err)
	}
	found, err := read(c.state)
	if err != nil || len(found) != 5 {
		t.Fatalf("%d outcomes, %v", len(found), err)
	}
	var b strings.Builder
	if err := printTable(&b, found, false); err != nil {
		t.Fatal(err)
	}
	const want = "| the CPU budget of an idle machine closes within 2 % | **1 of 2**; remainder -1.45 (-3 to 0.1) %; " +
		"stolen 0 % | **1 of 1**; remainder 1 %; stolen 10 % | - |\n"
	if !strings.Contains(b.String(), want) {
		t.Errorf("the table is\n%s\nand lacks\n%s", b.String(), want)
	}
}

func TestChooseKinds(t *testing.T) {
	if chosen, err := chooseKinds("aa,budget"); err != nil || len(chosen) != 2 || chosen[1].name != "budget" {
		t.Errorf("%v, %v", chosen, err)
	}
	if _, err := chooseKinds("budgets"); err == nil {
		t.Error("a kind that does not exist was chosen")
	}
}
