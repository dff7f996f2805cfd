package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/record"
	"tare/internal/sandboxes/oci"
	"tare/test/long"
)

// TestOutOfMemory: the error names the process that the kernel killed because of a memory limit, both in a container
// and without one.
func TestOutOfMemory(t *testing.T) {
	needsRoot(t)
	leavesNothing(t)
	spec := sandboxSpec(runtimeFor(t, "runc"), `
loads:
  hungry: {kind: command, command: "tail /dev/zero", inside: true, limits: {memory: 64MiB}}
`)
	// tail uses up its memory in half a second, or later on a busy machine, and that ends the trial.
	spec = strings.Replace(spec, "duration: 500ms", "duration: 30s", 1)
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

// TestOutOfMemoryInside: in gVisor and in a virtual machine, the failure names the killed process, the kernel that
// killed it, and the limit that was reached. The arms that had enough memory are measured.
func TestOutOfMemoryInside(t *testing.T) {
	long.Test(t, "20 s: virtual machines with too little memory")
	needsRoot(t)
	// A plain process does not have the host name "sandbox", and allocates nothing.
	const hungry = "sh -c 'read h < /proc/sys/kernel/hostname; if [ $h = sandbox ]; then " +
		"dd if=/dev/zero of=/dev/null bs=192M count=1; dd if=/dev/zero of=/dev/null bs=512M count=1; exit 1; fi; " +
		"echo up; exec sleep 60'"
	const byHost = `the kernel killed process \d+ \(%s\), the %s of its sandbox, of the application hungry in the ` +
		`control group /tare-trial-\d+-p\d+-t\d+/work/hungry/%s, which may have %s`
	const byGuest = `the guest's own kernel killed process \d+ \(dd\) of the application hungry inside the sandbox, ` +
		`where %s`
	name := `tare-trial-\d+-p\d+-t\d+-hungry`
	above := ` MB with all in /tare-trial-\d+-p\d+-t\d+/work/hungry: `
	for arm, c := range map[string]struct{ settings, says string }{
		"runsc":   {"runtime: %q", fmt.Sprintf(byHost, "exe, program runsc", "sentry", name, "440"+above)},
		"bundle":  {"runtime: %q, memory: 128MiB", fmt.Sprintf(byHost, "exe, program runsc", "sentry", name, "134 MB: ")},
		"microvm": {"runtime: %q, memory: 1GiB", fmt.Sprintf(byHost, "qemu-system-x86", "VMM", "kata_"+name, "440"+above)},
		"guest":   {"runtime: %q, memory: 64MiB", fmt.Sprintf(byGuest, "the limit of its container is 67.1 MB")},
	} {
		t.Run(arm, func(t *testing.T) {
			leavesNothing(t)
			runtime, env := "microvm", []string(nil)
			if strings.Contains(c.says, "runsc") {
				runtime = runtimeFor(t, "runsc")
			} else {
				env = microvm(t).env
			}
			spec := sandboxSpec(runtime, fmt.Sprintf(`
applications:
  hungry: {kind: command, command: %q, ready-line: up, ready-timeout: 2m, limits: {memory: 420MiB}}
loads:
  probe: {kind: probe}
`, hungry))
			spec = strings.NewReplacer("500ms", "100ms", "repeat: 100%", "repeat: 0%",
				fmt.Sprintf("runtime: %q", runtime), fmt.Sprintf(c.settings, runtime)+", ready-timeout: 2m").Replace(spec)
			dir := filepath.Join(t.TempDir(), "out")
			run := command{args: []string{"run", specFile(t, spec), "--out", dir}, env: env, timeout: 4 * time.Minute}
			o := run.start(t).wait(t)
			if o.code != 0 && o.code != 4 {
				t.Fatal(o)
			}
			done, err := record.Read(dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, tr := range done.Trials {
				want := regexp.MustCompile("^$")
				if tr.Arm == "inside" {
					want = regexp.MustCompile("^out of memory: " + c.says)
				}
				if !want.MatchString(tr.Validity.Failed) {
					t.Errorf("%s: %q, want %q", tr.Arm, tr.Validity.Failed, want)
				}
			}
			if len(done.Trials) != 3 {
				t.Errorf("%d trials", len(done.Trials))
			}
		})
	}
}

// TestFullDiskUnderFio: a disk that has no room for the file of one trial costs that trial, and no other.
func TestFullDiskUnderFio(t *testing.T) {
	t.Parallel()
	needsRoot(t)
	leavesNothing(t)
	runtimeFor(t, "fio")
	disk := t.TempDir()
	if err := unix.Mount("tare-test", disk, "tmpfs", 0, "size=512m"); err != nil {
		t.Skipf("cannot mount: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	spec := sandboxSpec(runtimeFor(t, "runc"), "loads:\n  fio: {kind: fio, size: 16MiB, direct: false}\n")
	spec = strings.Replace(spec, "repeat: 100%", "repeat: 0%", 1)
	for n := range 5 {
		dir := filepath.Join(disk, fmt.Sprint("out", n))
		o, inTime := runOnFullDisk(t, disk, spec, dir)
		if !inTime {
			continue // fio made its file before the disk was full, so this run shows nothing
		}
		if o.code != 0 && o.code != 4 {
			t.Fatal(o)
		}
		c, err := record.Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, tr := range c.Trials {
			full := strings.Contains(strings.ToLower(tr.Validity.Failed), "no space left on device")
			if tr.Arm == "inside" && !full || tr.Arm != "inside" && tr.Validity.Failed != "" {
				t.Errorf("%s: %q", tr.Arm, tr.Validity.Failed)
			}
		}
		if len(c.Trials) != 3 {
			t.Errorf("%d trials: %s", len(c.Trials), o)
		}
		return
	}
	t.Fatal("the disk was never full before fio had begun")
}

// runOnFullDisk runs a spec with its output and files on a disk, which it fills as soon as a sandbox has its root file
// system, and for as long as the sandbox has files there. It reports whether it did so before fio made its file.
func runOnFullDisk(t *testing.T, disk, spec, dir string) (o output, inTime bool) {
	t.Helper()
	p := command{args: []string{"run", specFile(t, spec), "--out", dir}, env: []string{"TMPDIR=" + disk},
		timeout: 3 * time.Minute}.start(t)
	filler, filled := filepath.Join(disk, "filler"), false
	defer os.Remove(filler)
	for running := true; running; {
		select {
		case <-p.done:
			running = false
		case <-time.After(2 * time.Millisecond):
		}
		sandboxes := globbed(t, filepath.Join(oci.StateDir, fmt.Sprintf("tare-trial-*-p%d-*", p.pid), "*", "config.json"))
		files := globbed(t, filepath.Join(disk, "tare-scratch-run-*", "fio-*"))
		switch {
		case !filled && len(sandboxes) > 0:
			fill(t, disk, filler)
			filled, inTime = true, len(globbed(t, filepath.Join(disk, "tare-scratch-run-*", "fio-*", "file"))) == 0
		case filled && (len(sandboxes) == 0 || len(files) == 0): // what follows needs the room
			_ = os.Remove(filler) // it may be gone
		}
	}
	return p.wait(t), inTime
}

func globbed(t *testing.T, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// fill leaves 12 MiB of a file system free: enough for the record, and too little for a file of 16 MiB.
func fill(t *testing.T, disk, name string) {
	t.Helper()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for {
		var st unix.Statfs_t
		if err := unix.Statfs(disk, &st); err != nil {
			t.Fatal(err)
		}
		err := unix.Fallocate(int(f.Fd()), 0, 0, int64(st.Bavail)*st.Bsize-12<<20)
		if err == nil {
			return
		}
		if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EINTR) { // somebody else was faster
			t.Fatal(err)
		}
	}
}
