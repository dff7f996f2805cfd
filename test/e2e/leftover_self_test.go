package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"tare/test/footprint"
)

// TestLeftoversAreFound tests the search for leftovers: a search that finds nothing would let every other test pass.
func TestLeftoversAreFound(t *testing.T) {
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	dead := fmt.Sprintf("tare-self-p%d-t1", ended.Process.Pid)
	alive := fmt.Sprintf("tare-self-p%d-t%s", os.Getpid(), startTime(t))
	before := look(t)

	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "tare_left", Type: ebpf.SocketFilter, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	for _, name := range []string{dead, alive} {
		makeCgroup(t, name)
		sleep := exec.Command("sleep", "60")
		sleep.Env = append(os.Environ(), "TARE_RUN="+name)
		if err := sleep.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = sleep.Process.Kill()
			_ = sleep.Wait()
		}()
	}
	for i, name := range []string{dead, alive} {
		attributes := netlink.NewLinkAttrs()
		attributes.Name = fmt.Sprintf("tareself%d", i)
		pair := netlink.NewVeth(attributes)
		pair.PeerName = fmt.Sprintf("tarepeer%d", i)
		if err := netlink.LinkAdd(pair); err != nil {
			t.Fatal(err)
		}
		defer netlink.LinkDel(pair)
		if err := netlink.LinkSetAlias(pair, name); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("TMPDIR", t.TempDir())
	for name, locked := range map[string]bool{"tare-scratch-dead": false, "tare-scratch-alive": true} {
		path := filepath.Join(os.TempDir(), name)
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		d, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		if locked {
			if err := unix.Flock(int(d.Fd()), unix.LOCK_SH); err != nil {
				t.Fatal(err)
			}
		}
	}
	mount := func(path string) {
		t.Helper()
		if err := os.MkdirAll(path, 0o700); err != nil {
			t.Fatal(err)
		}
		run(t, "mount", "-t", "tmpfs", "tmpfs", path)
		t.Cleanup(func() { run(t, "umount", path) })
	}
	mount(filepath.Join(os.TempDir(), dead))
	mount(filepath.Join(os.TempDir(), alive))
	mount(filepath.Join(os.TempDir(), "tare-scratch-dead", "rootfs"))
	mount(filepath.Join(os.TempDir(), "tare-scratch-alive", "rootfs"))
	mount(filepath.Join(os.TempDir(), "tare-test-other"))
	held := look(t)
	pin(t, program)
	found := look(t)

	for what, count := range map[string]struct{ got, want int }{
		"cgroups of a dead owner":      {news(before, found, "cgroup ", dead), 1},
		"cgroups of a living owner":    {news(before, found, "cgroup ", alive), 0},
		"processes of a dead owner":    {news(before, found, "process ", dead), 1},
		"processes of a living owner":  {news(before, found, "process ", alive), 0},
		"interfaces of a dead owner":   {news(before, found, "interface ", dead), 1},
		"interfaces of a living owner": {news(before, found, "interface ", alive), 0},
		"abandoned directories":        {news(before, found, "directory ", "tare-scratch-dead"), 1},
		"directories in use":           {news(before, found, "directory ", "tare-scratch-alive"), 0},
		"mounts of a dead owner":       {news(before, found, "mount ", dead), 1},
		"mounts of a living owner":     {news(before, found, "mount ", alive), 0},
		"mounts in abandoned ones":     {news(before, found, "mount ", "tare-scratch-dead"), 1},
		"mounts in directories in use": {news(before, found, "mount ", "tare-scratch-alive"), 0},
		"mounts of others":             {news(before, found, "mount ", "tare-test-other"), 0},
		"programs that a process held": {news(before, held, "eBPF ", "tare_left"), 0},
		"programs that a pin held":     {news(before, found, "eBPF ", "tare_left"), 1},
	} {
		if count.got != count.want {
			t.Errorf("%s: found %d, want %d", what, count.got, count.want)
		}
	}
}

// news counts the things of a kind and with a name that are in the footprint now but not in the one before.
func news(before, now footprint.Footprint, kind, name string) (n int) {
	for what := range now {
		if !before[what] && strings.HasPrefix(what, kind) && strings.Contains(what, name) {
			n++
		}
	}
	return n
}

// pin pins the program in a bpf file system that the test mounts, and closes the program, so that only the pin holds
// it.
func pin(t *testing.T, program *ebpf.Program) {
	t.Helper()
	dir := t.TempDir()
	run(t, "mount", "-t", "bpf", "bpf", dir)
	t.Cleanup(func() { run(t, "umount", dir) })
	if err := program.Pin(filepath.Join(dir, "left")); err != nil {
		t.Fatal(err)
	}
	if err := program.Close(); err != nil {
		t.Fatal(err)
	}
}

// makeCgroup makes a group in one hierarchy of this machine.
func makeCgroup(t *testing.T, name string) (dir string) {
	t.Helper()
	var err error
	for _, root := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup/pids", "/sys/fs/cgroup"} {
		dir = filepath.Join(root, name)
		if err = os.Mkdir(dir, 0o755); err == nil {
			t.Cleanup(func() { _ = os.Remove(dir) })
			return dir
		}
	}
	t.Fatal(err)
	return ""
}

func startTime(t *testing.T) string {
	t.Helper()
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))[19]
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}
