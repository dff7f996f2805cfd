package record

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"tare/internal/lib/fault"
)

// TestContinue: an unfinished copy of a run directory continues where it ended, in pieces of any size, and accepts only
// its own run.
func TestContinue(t *testing.T) {
	run := Run{Schema: RunSchema, ID: "one", Plan: []PlannedTrial{{Arm: Direct}, {Index: 1, Arm: Direct}}}
	of := filepath.Join(t.TempDir(), "of")
	w, err := Create(of, run)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range run.Plan {
		if err := w.Append(Trial{Schema: TrialSchema, PlannedTrial: p}); err != nil {
			t.Fatal(err)
		}
	}
	lines, err := os.ReadFile(filepath.Join(of, TrialsFile))
	if err != nil || int64(len(lines)) != w.Size() {
		t.Fatalf("%d bytes, of which it knows %d: %v", len(lines), w.Size(), err)
	}
	dir := filepath.Join(t.TempDir(), "copy")
	if err := Free(dir); err != nil {
		t.Error(err)
	}
	for at := int64(0); at < w.Size(); {
		c, err := Continue(dir, run)
		if err != nil {
			t.Fatal(err)
		}
		if c.Size() != at {
			t.Fatalf("it has %d bytes, want %d", c.Size(), at)
		}
		next := min(at+37, w.Size())
		if at > 0 { // the power failed while more was written
			if err := os.Truncate(filepath.Join(dir, TrialsFile), at+4096); err != nil {
				t.Fatal(err)
			}
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			if c, err = Continue(dir, run); err != nil || c.Size() != at {
				t.Fatalf("with zeros at its end it has %d bytes, want %d: %v", c.Size(), at, err)
			}
		}
		if err := c.Copy(lines[at:next]); err != nil {
			t.Fatal(err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		at = next
		if r, err := Read(dir); err != nil || len(r.Trials) != bytes.Count(lines[:at], []byte("\n")) {
			t.Fatalf("of %d bytes it reads %d trials: %v", at, len(r.Trials), err)
		}
	}
	run.ID = "two"
	if _, err := Continue(dir, run); fault.CodeOf(err) != fault.Usage || !strings.Contains(err.Error(), "is not empty") {
		t.Errorf("another run: %v", err)
	}
	if err := Free(dir); fault.CodeOf(err) != fault.Usage {
		t.Errorf("a directory in use: %v", err)
	}
	run.ID = "one"
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := Continue(dir, run); err == nil || !strings.Contains(err.Error(), "not yours alone") {
		t.Errorf("a directory of everybody: %v", err)
	}
}

// In a directory that others can write to, nothing is opened: Continue would wait for a pipe, and a file can be as
// large as its owner likes.
func TestContinueHostile(t *testing.T) {
	at := func(name string) string { return filepath.Join(t.TempDir(), name) }
	open, large, pipe := at("open"), at("large"), at("pipe")
	if err := errors.Join(os.Mkdir(open, 0o755), os.Chmod(open, 0o777),
		syscall.Mkfifo(filepath.Join(open, RunFile), 0o644), os.Mkdir(large, 0o755),
		os.WriteFile(filepath.Join(large, RunFile), nil, 0o644),
		os.Truncate(filepath.Join(large, RunFile), 1<<40), syscall.Mkfifo(pipe, 0o644)); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{
		open: "the run directory is not yours alone", large: "the run directory is not empty", pipe: "not a directory",
	} {
		done := make(chan error, 1)
		go func() {
			_, err := Continue(dir, Run{Schema: RunSchema, ID: "one"})
			done <- err
		}()
		select {
		case err := <-done:
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %s", filepath.Base(dir), err, want)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%s: Continue waits", filepath.Base(dir))
		}
	}
}

// TestContinueKeepsNothingOpen: Continue takes over an empty directory, and after Close no descriptor of it is open.
func TestContinueKeepsNothingOpen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "empty")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	w, err := Continue(dir, Run{Schema: RunSchema, ID: "one"})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	descriptors, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range descriptors {
		if at, err := os.Readlink("/proc/self/fd/" + d.Name()); err == nil && strings.HasPrefix(at, dir) {
			t.Errorf("descriptor %s of %s is open", d.Name(), at)
		}
	}
}
