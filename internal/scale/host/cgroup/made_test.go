package cgroup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMade: a directory that seems to come from the future was made before the clock was set back, so its age is not
// known. Otherwise the time of its making does not depend on what the wall clock is set to later.
func TestMade(t *testing.T) {
	top := t.TempDir()
	fd, err := unix.Open(top, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	began := time.Now()
	for name, age := range map[string]time.Duration{"old": time.Hour, "future": -time.Hour} {
		dir := filepath.Join(top, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(dir, began.Add(-age), began.Add(-age)); err != nil {
			t.Fatal(err)
		}
		got := made(fd, name)
		if age < 0 {
			if !got.IsZero() {
				t.Errorf("from the future: %v", got)
			}
			continue
		}
		if off := began.Add(-age).Sub(got); off.Abs() > time.Minute || !strings.Contains(got.String(), " m=") {
			t.Errorf("an hour old: %v, which is off by %v", got, off)
		}
	}
}
