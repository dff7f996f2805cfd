package microvm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"tare/internal/experiment/placement"
	"tare/internal/lib/fault"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/proc"
)

// bundle makes a bundle that a sandbox can run, and returns its directory and configuration.
func bundle(t *testing.T) (string, *specs.Spec) {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "rootfs/etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir, &specs.Spec{
		Version: "1.0.2",
		Process: &specs.Process{Args: []string{"sh"}, Cwd: "/"},
		Root:    &specs.Root{Path: "rootfs"},
		Mounts:  []specs.Mount{{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid"}}},
		Linux:   &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.NetworkNamespace}, {Type: specs.PIDNamespace}}},
	}
}

// TestCheck: unsupported settings are refused by name. The configuration is accepted before each case changes it.
func TestCheck(t *testing.T) {
	yes := true
	limit := int64(1)
	for _, c := range []struct {
		says   string
		change func(*specs.Spec)
	}{
		{"", func(*specs.Spec) {}},
		{"ociVersion", func(s *specs.Spec) { s.Version = "2.0.0" }},
		{"process.args", func(s *specs.Spec) { s.Process.Args = nil }},
		{"process.args", func(s *specs.Spec) { s.Process = nil }},
		{"process.cwd", func(s *specs.Spec) { s.Process.Cwd = "tmp" }},
		{"root.path", func(s *specs.Spec) { s.Root.Path = "nowhere" }},
		{"root.path", func(s *specs.Spec) { s.Root = nil }},
		{"process.terminal", func(s *specs.Spec) { s.Process.Terminal = true }},
		{"apparmorProfile", func(s *specs.Spec) { s.Process.ApparmorProfile = "x" }},
		{"seccomp", func(s *specs.Spec) { s.Linux.Seccomp = &specs.LinuxSeccomp{} }},
		{"uidMappings", func(s *specs.Spec) { s.Linux.UIDMappings = []specs.LinuxIDMapping{{Size: 1}} }},
		{"createContainer", func(s *specs.Spec) { s.Hooks = &specs.Hooks{CreateContainer: []specs.Hook{{Path: "/x"}}} }},
		{"host's network", func(s *specs.Spec) { s.Linux.Namespaces = s.Linux.Namespaces[1:] }},
		{"twice", func(s *specs.Spec) { s.Linux.Namespaces = append(s.Linux.Namespaces, s.Linux.Namespaces[1]) }},
		{"pid namespace", func(s *specs.Spec) { s.Linux.Namespaces[1].Path = "/proc/1/ns/pid" }},
		{"user namespace", func(s *specs.Spec) { s.Linux.Namespaces[1].Type = specs.UserNamespace }},
		{"unknown namespace", func(s *specs.Spec) { s.Linux.Namespaces[1].Type = "moon" }},
		{"rootfsPropagation unbindable", func(s *specs.Spec) { s.Linux.RootfsPropagation = "unbindable" }},
		{"systemd", func(s *specs.Spec) { s.Linux.CgroupsPath = "a.slice:cri:x" }},
		{"cgroupsPath", func(s *specs.Spec) { s.Linux.CgroupsPath = "/a/../../b" }},
		{"blockIO", func(s *specs.Spec) { s.Linux.Resources = &specs.LinuxResources{BlockIO: &specs.LinuxBlockIO{}} }},
		{"resources.memory", func(s *specs.Spec) {
			s.Linux.Resources = &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit, DisableOOMKiller: &yes}}
		}},
		{"resources.cpu", func(s *specs.Spec) {
			s.Linux.Resources = &specs.LinuxResources{CPU: &specs.LinuxCPU{Cpus: "0"}}
		}},
		{"type \"nfs\"", func(s *specs.Spec) { s.Mounts[0].Type = "nfs" }},
		{"destination", func(s *specs.Spec) { s.Mounts[0].Destination = "proc" }},
		{"option \"shared\"", func(s *specs.Spec) { s.Mounts[0].Options = []string{"shared"} }},
		{"no such file", func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/x", Type: "bind", Source: "/nonexistent"})
		}},
		{"RLIMIT_MOON", func(s *specs.Spec) { s.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_MOON"}} }},
		{"CAP_MOON", func(s *specs.Spec) {
			s.Process.Capabilities = &specs.LinuxCapabilities{Bounding: []string{"CAP_MOON"}}
		}},
		{"of type \"q\" is invalid", func(s *specs.Spec) {
			s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/x", Type: "q"}}
		}},
		{"zero byte", func(s *specs.Spec) { s.Process.Env = []string{"A=\x00"} }},
	} {
		dir, s := bundle(t)
		c.change(s)
		err := check(s, dir)
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("want an error with %q: %v", c.says, err)
		}
	}
}

// TestPlans: every configuration that check accepts can be planned, and the root becomes read-only last.
func TestPlans(t *testing.T) {
	dir, s := bundle(t)
	s.Root.Readonly = true
	s.Linux.MaskedPaths = []string{"/proc/keys"}
	p, err := containerPlan(s, nil, environment(s.Process, filepath.Join(dir, "rootfs")))
	if err != nil {
		t.Fatal(err)
	}
	at := func(what string) int {
		return slices.IndexFunc(p.calls, func(c call) bool { return strings.Contains(c.what, what) })
	}
	order := []int{at("changing the root"), at("(proc) on /proc"), at("the device /dev/null"),
		at("/dev/null () on /proc/keys"),
		at(" () on /"), at("setting the user"), at("looking for the program"), at("getting ready"), at("running")}
	order[4] = slices.IndexFunc(p.calls, func(c call) bool {
		return c.number == sysMount && c.args[1] == "/" &&
			c.args[3] == uintptr(unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY)
	})
	if slices.Contains(order, -1) || !slices.IsSorted(order) {
		t.Errorf("the steps come in another order, or one is missing: %v", order)
	}
	b := p.encode()
	if n := binary.LittleEndian.Uint32(b); int(n) != len(p.calls) {
		t.Errorf("%d instructions of %d", n, len(p.calls))
	}
}

func TestEnvironment(t *testing.T) {
	dir, _ := bundle(t)
	rootfs := filepath.Join(dir, "rootfs")
	if err := os.WriteFile(filepath.Join(rootfs, "etc/passwd"),
		[]byte("root:x:0:0:root:/root:/bin/sh\nbroken\nme:x:7:7::/home/me:/bin/sh\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		uid  uint32
		env  []string
		home string
	}{{7, nil, "/home/me"}, {0, []string{"HOME="}, "/root"}, {8, nil, "/"}, {7, []string{"HOME=/x"}, "/x"}} {
		p := &specs.Process{User: specs.User{UID: c.uid}, Env: c.env}
		if got := lookup(environment(p, rootfs), "HOME"); got != c.home {
			t.Errorf("user %d with %q is at home in %q, not %q", c.uid, c.env, got, c.home)
		}
	}
	for _, c := range []struct {
		program string
		paths   []string
	}{
		{"/bin/sh", []string{"/bin/sh"}}, {"./sh", []string{"./sh"}}, {"sh", []string{"/bin/sh", "/usr/bin/sh"}},
	} {
		if got := candidates(c.program, []string{"PATH=/nowhere", "PATH=/bin:/usr/bin"}); !slices.Equal(got, c.paths) {
			t.Errorf("%s may be at %q", c.program, got)
		}
	}
}

// TestGroups: the groups have the paths that Kata's Go runtime uses.
func TestGroups(t *testing.T) {
	for _, c := range []struct {
		only               bool
		root, path         string
		sandbox, overheads string
	}{
		{true, "/", "/kubepods/pod1/abc", "/kubepods/pod1/kata_abc", ""},
		{false, "/", "/kubepods/pod1/abc", "/kubepods/pod1/kata_abc", "/kata_overhead/id"},
		{false, "/tare-x", "pod/abc", "/tare-x/pod/kata_abc", "/tare-x/kata_overhead/id"},
		{true, "/", "", "/vc/kata_id", ""},
	} {
		o := Options{SandboxCgroupOnly: c.only, CgroupRoot: c.root, OverheadParent: "/kata_overhead"}
		if s, over := sandboxGroup(o, c.path, "id"), overheadGroup(o, "id"); s != c.sandbox || over != c.overheads {
			t.Errorf("%+v: %q and %q", c, s, over)
		}
	}
}

// TestPlanGroups: an existing group is never taken over; missing parents of a new one are recorded, parents first.
func TestPlanGroups(t *testing.T) {
	l, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	if len(groupHierarchies(l)) == 0 {
		t.Skip("needs control groups with a memory controller")
	}
	s := &sandbox{SandboxGroup: "/tare-test-none/a/kata_b"}
	if err := s.planGroups(l, nil); err != nil {
		t.Fatal(err)
	}
	h := groupHierarchies(l)[0].Mount
	want := []string{h + "/tare-test-none", h + "/tare-test-none/a", h + "/tare-test-none/a/kata_b"}
	if !slices.Equal(s.Groups[:3], want) {
		t.Errorf("%q, not %q", s.Groups[:3], want)
	}
	if err := (&sandbox{SandboxGroup: "/"}).planGroups(l, nil); fault.CodeOf(err) != fault.Usage {
		t.Errorf("a group that exists: %v", err)
	}
}

func TestOptions(t *testing.T) {
	o, err := NewOptions(map[string]string{"memory": "512", "accel": AccelTCG})
	if err != nil {
		t.Fatal(err)
	}
	o, err = o.annotated(map[string]string{Annotation + "memory": "300", "somebody.else": "x",
		Annotation + "sandbox_cgroup_only": "false"})
	if err != nil || o.MemoryMiB != 300 || o.Accel != AccelTCG || o.SandboxCgroupOnly {
		t.Errorf("%+v, %v", o, err)
	}
	for key, v := range map[string]string{"memory": "1", "accel": "warp", "rootfs": "nfs", "cgroup_root": "../x",
		"moon": "1", "sandbox_cgroup_only": "maybe"} {
		if _, err := o.annotated(map[string]string{Annotation + key: v}); fault.CodeOf(err) != fault.Usage {
			t.Errorf("%s=%s: %v", key, v, err)
		}
	}
}

// TestLeft: which sandboxes Clean removes, and which it leaves alone.
func TestLeft(t *testing.T) {
	self, err := processOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	dead := self
	dead.Start++ // the pid was reused
	ended := "tare-x-" + proc.Identity{PID: 2147483646, Start: 1, Namespace: self.Namespace}.String()
	l, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	owners := placement.NewOwners(l)
	defer owners.Close()
	for _, c := range []struct {
		what string
		box  sandbox
		left bool
	}{
		{"runs", sandbox{Status: specs.StateRunning, Shim: self, VMM: self}, false},
		{"its shim was killed", sandbox{Status: specs.StateRunning, Shim: dead, VMM: self}, true},
		{"is being created", sandbox{Status: specs.StateCreating, Creator: self}, false},
		{"its creator was killed before there was a shim", sandbox{Status: specs.StateCreating, Creator: dead}, true},
		{"both were killed", sandbox{Status: specs.StateCreating, Creator: dead, Shim: dead}, true},
		{"stopped, and waits to be deleted", sandbox{Status: specs.StateStopped, Shim: dead, VMM: dead}, false},
		{"its machine was killed", sandbox{Status: specs.StateStopped, Shim: dead, VMM: dead, Failure: "QEMU ended"}, true},
		{"of a run that has ended", sandbox{Status: specs.StateRunning, Shim: self, VMM: self, Run: ended}, true},
		{"stopped, of a run that has ended", sandbox{Status: specs.StateStopped, Shim: dead, VMM: dead, Run: ended}, true},
	} {
		if got := c.box.left(owners); got != c.left {
			t.Errorf("%s: left behind is %v", c.what, got)
		}
	}
}

// TestSettle: the shim writes the exit code just before it exits. A state that was read before that, while the shim
// has exited since, is read again, so that no stopped container lacks its exit code.
func TestSettle(t *testing.T) {
	dead, code := process{PID: 2147483646, Start: 1}, 137
	for _, c := range []struct {
		what  string
		reads []sandbox
	}{
		{"it exits meanwhile", []sandbox{
			{Status: specs.StateRunning, Shim: dead}, {Status: specs.StateStopped, Shim: dead, ExitCode: &code},
		}},
		{"it has exited", []sandbox{{Status: specs.StateStopped, Shim: dead, ExitCode: &code}}},
	} {
		t.Run(c.what, func(t *testing.T) {
			reads := 0
			s, err := settle(func() (*sandbox, error) {
				reads++
				return &c.reads[reads-1], nil
			})
			if err != nil {
				t.Fatal(err)
			}
			got := s.state()
			if got.Status != specs.StateStopped || got.Annotations[Annotation+"exit_code"] != "137" || reads != len(c.reads) {
				t.Errorf("after %d reads: %+v", reads, got)
			}
		})
	}
}

// TestNewName: the creator of a sandbox can be parsed from the temporary name of its directory.
func TestNewName(t *testing.T) {
	for _, c := range []struct {
		creator process
		name    string
	}{
		{process{12, 345, 0}, ",new-12-345-a-1-2"}, // by an older Tare
		{process{12, 345, 4026532501}, ",new-n4026532501-12-345-a-1-2"},
	} {
		if got := newName(c.creator, "a-1-2"); got != c.name {
			t.Errorf("got %s, want %s", got, c.name)
		}
		if creator, id, ok := parseNewName(c.name); creator != c.creator || id != "a-1-2" || !ok {
			t.Errorf("%s: %+v, %s, %v", c.name, creator, id, ok)
		}
	}
	if _, _, ok := parseNewName("a-1-2"); ok {
		t.Error("the name of a sandbox is that of one which begins")
	}
}

// TestFrames: frames from a guest are checked against the limit before memory is allocated.
func TestFrames(t *testing.T) {
	huge := binary.LittleEndian.AppendUint32(nil, frameMax+1)
	if err := receiveFrames(io.Discard, bytes.NewBuffer(huge)); err == nil || errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a frame that is too large: %v", err)
	}
	message := append(binary.LittleEndian.AppendUint32(nil, msgHello), 0xff, 0xff, 0xff, 0xff)
	if _, _, err := readMessage(bytes.NewReader(message)); err == nil || errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a message that is too large: %v", err)
	}
	var b bytes.Buffer
	if err := sendFrames(&b, strings.NewReader("hello")); err != nil ||
		b.String() != "\x05\x00\x00\x00hello\x00\x00\x00\x00" {
		t.Errorf("%q, %v", b.String(), err)
	}
}

func TestParseSignal(t *testing.T) {
	for in, want := range map[string]unix.Signal{"TERM": 15, "SIGKILL": 9, "usr1": 10, "9": 9, "34": 34, "MOON": 0,
		"-1": 0, "65": 0, "": 0} {
		if got, err := ParseSignal(in); got != want || (err != nil) != (want == 0) {
			t.Errorf("%q is %d: %v", in, got, err)
		}
	}
}

// TestTSC: two measurements of the rate agree.
func TestTSC(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("other processors have no time stamp counter")
	}
	a, b := float64(tscKHz()), float64(tscKHz())
	if a == 0 || math.Abs(a-b) > a/1000 {
		t.Errorf("%g and %g kHz", a, b)
	}
}

// TestSharedGroups: if two sandboxes have the same parent group, the one that is removed last removes it.
func TestSharedGroups(t *testing.T) {
	l, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	hs := groupHierarchies(l)
	if len(hs) == 0 || os.Geteuid() != 0 {
		t.Skip("needs root, and control groups with a memory controller")
	}
	top := fmt.Sprintf("/tare-test-shared-%d", os.Getpid())
	for _, order := range [][2]int{{0, 1}, {1, 0}} {
		var made []*sandbox
		for _, name := range []string{"a", "b"} {
			s := &sandbox{SandboxGroup: top + "/vc/kata_" + name}
			if err := s.planGroups(l, made); err != nil {
				t.Fatal(err)
			}
			if err := s.makeGroups(); err != nil {
				t.Skipf("needs control groups that can be made: %v", err)
			}
			made = append(made, s)
		}
		for _, i := range order {
			if err := made[i].removeGroups(); err != nil {
				t.Error(err)
			}
		}
		for _, h := range hs {
			if _, err := os.Lstat(h.Mount + top); err == nil {
				t.Errorf("removed in the order %v, %s is left", order, h.Mount+top)
			}
		}
	}
}

// TestAddThreads: on v1 one thread moves; on v2 its whole process does.
func TestAddThreads(t *testing.T) {
	l, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	var tested []bool
	for i := range l.Hierarchies {
		h := &l.Hierarchies[i]
		if !h.V2 && !h.Has("cpu") || slices.Contains(tested, h.V2) {
			continue
		}
		group := fmt.Sprintf("tare-test-threads-%d", os.Getpid())
		dir := filepath.Join(h.Mount, group)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Skipf("needs control groups that can be made: %v", err)
		}
		tested = append(tested, h.V2)
		// A Go program, because its process has more than one thread.
		cmd := exec.Command(os.Args[0], "-test.run", "^TestWaits$")
		cmd.Env = append(os.Environ(), "TARE_TEST_WAITS=1")
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		tasks := filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid), "task")
		var tids []int
		for range 200 {
			entries, _ := os.ReadDir(tasks)
			if len(entries) > 1 {
				tid, _ := strconv.Atoi(entries[1].Name())
				tids = []int{tid}
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if len(tids) == 0 {
			t.Fatal("the other process has one thread")
		}
		if err := addThreads([]*cgroup.Hierarchy{h}, group, tids); err != nil {
			t.Error(err)
		}
		procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			t.Fatal(err)
		}
		leader, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid), "cgroup"))
		if err != nil {
			t.Fatal(err)
		}
		if moved := strings.Contains(string(leader), group); moved != h.V2 || len(procs) == 0 {
			t.Errorf("v2 is %v, and the whole process moved: %v; in the group: %q", h.V2, moved, procs)
		}
		_ = stdin.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
		s := &sandbox{Groups: []string{dir}, SandboxGroup: "/" + group}
		if err := s.removeGroups(); err != nil {
			t.Error(err)
		}
	}
	if len(tested) == 0 {
		t.Skip("needs control groups")
	}
}

// TestWaits is the other process of TestAddThreads.
func TestWaits(t *testing.T) {
	if os.Getenv("TARE_TEST_WAITS") == "" {
		return
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// TestKillsWithoutEnd: kills beyond the maximum do not cause writes of the state.
func TestKillsWithoutEnd(t *testing.T) {
	s := &shim{box: &sandbox{dir: t.TempDir()}, spec: &specs.Spec{Linux: &specs.Linux{}}}
	killed, state := s.killed(64), filepath.Join(s.box.dir, stateName)
	for i := range 1000 {
		killed(false, fmt.Sprint("process ", i))
		if err := os.Remove(state); (err == nil) != (i < maxKills) {
			t.Fatalf("after %d kills: %v", i+1, err)
		}
	}
	if len(s.box.OutOfMemory) != maxKills {
		t.Errorf("%d kills are recorded", len(s.box.OutOfMemory))
	}
}

// TestKillWatch: killed processes are recognized on the guest's console, whatever their names contain, and wherever a
// Write ends.
func TestKillWatch(t *testing.T) {
	const console = "[    6.1] Memory cgroup out of memory: Killed process 80 (dd) total-vm:201388kB, " +
		"anon-rss:65024kB\r\n" +
		"[    6.2] dd invoked oom-killer: gfp_mask=0xcc0\r\n" +
		"[    7.0] Out of memory: Killed process 81 (a) (b\x1b[) total-vm:1kB, anon-rss:2kB\r\n" +
		"[    7.1] Out of memory: Killed process 82 (" + "0123456789012345678" + ") total-vm:1kB\r\n" // a name has 15 bytes
	const want = "true process 80 (dd), false process 81 (a) (b?[), "
	for _, step := range []int{1, 7, len(console)} {
		got := ""
		w := &killWatch{kill: func(group bool, process string) { got += fmt.Sprint(group, " ", process, ", ") }}
		for rest := console + strings.Repeat("x", 3*maxLine) + "\n"; rest != ""; {
			n := min(step, len(rest))
			if took, err := w.Write([]byte(rest[:n])); took != n || err != nil {
				t.Fatal(took, err)
			}
			rest = rest[n:]
		}
		if got != want {
			t.Errorf("in steps of %d: %q, want %q", step, got, want)
		}
	}
}
