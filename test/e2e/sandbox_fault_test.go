package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/record"
)

// TestOutOfMemory: what the kernel kills because a limit leaves it no memory is named, plainly and in a container.
func TestOutOfMemory(t *testing.T) {
	needsRoot(t)
	leavesNothing(t)
	spec := sandboxSpec(runtimeFor(t, "runc"), `
loads:
  hungry: {kind: command, command: "tail /dev/zero", inside: true, limits: {memory: 64MiB}}
`)
	dir := filepath.Join(t.TempDir(), "out")
	o := command{args: []string{"run", specFile(t, spec), "--out", dir}, timeout: 3 * time.Minute}.start(t).wait(t)
	const says = `out of memory: the kernel killed process \d+ \(tail\) of the load hungry in the control group `
	if o.code != 3 || !regexp.MustCompile(says).MatchString(o.stderr) {
		t.Errorf("want exit code 3 with the victim: %s", o)
	}
	c, err := record.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	const plainly = says + `/tare-trial-\d+-p\d+-t\d+/work/hungry, which may have 67\.1 MB`
	for _, tr := range c.Trials {
		want := plainly
		if tr.Arm == "inside" {
			want = says
		}
		if !regexp.MustCompile(want).MatchString(tr.Validity.Failed) || tr.Validity.Cause != "" {
			t.Errorf("%s: %q, caused by %q", tr.Arm, tr.Validity.Failed, tr.Validity.Cause)
		}
	}
	if len(c.Trials) != 3 {
		t.Errorf("%d trials", len(c.Trials))
	}
}

// TestFullDiskUnderFio: a disk that has no room for the file of one trial costs that trial, and no other.
func TestFullDiskUnderFio(t *testing.T) {
	needsRoot(t)
	leavesNothing(t)
	runtimeFor(t, "fio")
	disk := t.TempDir()
	if err := unix.Mount("tare-test", disk, "tmpfs", 0, "size=192m"); err != nil {
		t.Skipf("cannot mount: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	spec := sandboxSpec(runtimeFor(t, "runc"), "loads:\n  fio: {kind: fio, size: 16MiB, direct: false}\n")
	spec = strings.Replace(spec, "repeat: 100%", "repeat: 0%", 1)
	dir := filepath.Join(disk, "out")
	p := command{args: []string{"run", specFile(t, spec), "--out", dir}, timeout: 3 * time.Minute}.start(t)
	const victim = 2 // of the three trials
	seen, filled := map[string]bool{}, false
	for running := true; running; {
		select {
		case <-p.done:
			running = false
		case <-time.After(2 * time.Millisecond):
		}
		now, err := filepath.Glob(filepath.Join(dir, "fio-*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range now {
			seen[d] = true
		}
		switch filler := filepath.Join(disk, "filler"); {
		case len(seen) == victim && !filled:
			fill(t, disk, filler, 12<<20) // enough for the record and a small file, and not for one of 16 MiB
			filled = true
		case len(seen) == victim && len(now) == 0:
			_ = os.Remove(filler) // it may be gone
		}
	}
	o := p.wait(t)
	if o.code != 0 && o.code != 4 {
		t.Fatal(o)
	}
	c, err := record.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	failed := 0
	for _, tr := range c.Trials {
		if why := strings.ToLower(tr.Validity.Failed); why != "" {
			failed++
			if !strings.Contains(why, "no space left on device") {
				t.Errorf("%s: %s", tr.Arm, why)
			}
		}
	}
	if len(c.Trials) != 3 || failed != 1 {
		t.Errorf("%d of %d trials failed: %s", failed, len(c.Trials), o)
	}
}

// fill takes all of a file system but some bytes.
func fill(t *testing.T, disk, name string, but int64) {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(disk, &st); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, int64(st.Bavail)*st.Bsize-but); err != nil {
		t.Fatal(err)
	}
}
