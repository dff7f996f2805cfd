package e2e

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"tare/internal/experiment/record"
)

// TestReplacedBinary puts another binary in the place of tare's in the middle of a run. All trials are made with the
// binary that began the run; otherwise arms of different versions would be compared.
func TestReplacedBinary(t *testing.T) {
	t.Parallel()
	needsRoot(t)
	leavesNothing(t)
	base := t.TempDir()
	own, dir := filepath.Join(base, "tare"), filepath.Join(base, "out")
	data, err := os.ReadFile(bin)
	if err := errors.Join(err, os.WriteFile(own, data, 0o755)); err != nil {
		t.Fatal(err)
	}
	p := command{args: []string{"run", specFile(t, shortSpec), "--out", dir, "--seed", "5"}, binary: own,
		timeout: 3 * time.Minute}.start(t)
	for {
		if lines, _ := os.ReadFile(filepath.Join(dir, record.TrialsFile)); bytes.Contains(lines, []byte("\n")) {
			break
		}
		select {
		case <-p.done:
			t.Fatalf("it ended before its first trial: %s", p.wait(t))
		case <-time.After(10 * time.Millisecond):
		}
	}
	other := filepath.Join(base, "other")
	if err := os.WriteFile(other, []byte("#!/bin/sh\nexit 9\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(other, own); err != nil {
		t.Fatal(err)
	}
	if o := p.wait(t); o.code != 0 {
		t.Fatal(o)
	}
	c, err := record.Read(dir)
	if err != nil || c.Partial {
		t.Fatalf("partial %v: %v", c.Partial, err)
	}
	for _, tr := range c.Trials {
		if tr.Validity.Failed != "" || !tr.Validity.Valid && !disturbed(tr) {
			t.Errorf("trial %d, %s: %+v", tr.Index, tr.Arm, tr.Validity)
		}
	}
}
