package e2e

import (
	"errors"
	"os/exec"
	"testing"

	"tare/test/footprint"
)

// leavesNothing fails the test if, at its end, there is something of tare's on the machine that was not there before.
func leavesNothing(t *testing.T) {
	t.Helper()
	before := look(t)
	t.Cleanup(func() {
		for _, what := range leftSince(t, before) {
			t.Errorf("left behind: %s", what)
		}
	})
}

// leftSince returns everything of tare's that is on the machine now but was not at an earlier look.
func leftSince(t *testing.T, before footprint.Footprint) []string {
	t.Helper()
	left, err := before.Left()
	if err != nil {
		t.Fatal(err)
	}
	return left
}

// look returns everything of tare's on the machine that has lost its owner. It skips the test without bpftool.
func look(t *testing.T) footprint.Footprint {
	t.Helper()
	f, err := footprint.Look()
	if errors.Is(err, exec.ErrNotFound) {
		t.Skipf("needs bpftool, to look for what is left behind: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	return f
}
