package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// writeSpec is an experiment whose window is longer than its test.
const writeSpec = `name: writes
question: Are files removed?
blocks: 1
warmup: 0s
duration: 1m
loads: {files: {kind: write, rate: 100}}
`

// TestWriteLeavesNoFiles: the files of a load go with a run that is interrupted, and at the latest with the next 'tare
// clean' after one that was killed. A killed run's load may see the end of its input before it is killed itself, and
// remove its files; so the test makes a directory like that of a load that had no such chance.
func TestWriteLeavesNoFiles(t *testing.T) {
	needsRoot(t)
	for name, end := range map[string]syscall.Signal{"interrupted": syscall.SIGINT, "killed": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			leavesNothing(t)
			dir := t.TempDir()
			env := []string{"TMPDIR=" + dir}
			p := command{args: []string{"run", specFile(t, writeSpec)}, env: env}.start(t)
			awaitFile(t, p, filepath.Join(dir, "tare-scratch-write-*", "0-0"))
			p.signal(t, end)
			o := p.wait(t)
			if end == syscall.SIGKILL {
				dead := filepath.Join(dir, "tare-scratch-write-dead")
				if err := os.Mkdir(dead, 0o700); err != nil {
					t.Fatal(err)
				}
				clean := command{args: []string{"clean"}, env: env}.start(t).wait(t)
				if clean.code != 0 || !strings.Contains(clean.stdout, "removed the directory "+dead) {
					t.Error(clean)
				}
			} else if o.code != 4 {
				t.Error(o)
			}
			if left, err := os.ReadDir(dir); len(left) > 0 || err != nil {
				t.Errorf("left are %v, %v", left, err)
			}
		})
	}
}

// awaitFile waits until a file is there that is not empty.
func awaitFile(t *testing.T, p *process, pattern string) {
	t.Helper()
	for {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			if info, err := os.Stat(path); err == nil && info.Size() > 0 {
				return
			}
		}
		select {
		case <-p.done:
			t.Fatalf("it ended before there was %s: %s", pattern, p.wait(t))
		case <-time.After(10 * time.Millisecond):
		}
	}
}
