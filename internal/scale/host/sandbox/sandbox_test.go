package sandbox

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/lib/files"
	"tare/internal/scale/host/cgroup"
	"tare/test/vm/guest"
)

// busyVariable makes this binary run as a busy process, named by its first argument.
const busyVariable = "TARE_TEST_BUSY"

func TestMain(m *testing.M) {
	if os.Getenv(busyVariable) != "" {
		for parent := os.Getppid(); os.Getppid() == parent; { // until it is killed, or its parent ends
		}
	}
	os.Exit(m.Run())
}

// TestLocate interprets paths with names that no fixture has.
func TestLocate(t *testing.T) {
	guest.KernelFree(t)
	hex := strings.Repeat("0123abcd", 8)
	for _, c := range []struct{ path, pod, id, place, driver string }{
		{"/", "", "", "root", ""},
		{"", "", "", "root", ""},
		{"/system.slice/ssh.service", "", "", "service", ""},
		{"/user.slice/user-0.slice/user@0.service/app.slice", "", "", "other", ""},
		{"/kubepods/pod" + testPod, testPod, "", "pod", "cgroupfs"},
		{"/kubepods.slice/kubepods-pod" + strings.ReplaceAll(testPod, "-", "_") + ".slice", testPod, "", "pod", "systemd"},
		{"/kubepods/pod" + testPod + "/" + hex + "/x/y", testPod, hex, "container", "cgroupfs"},
		{"/kubepods/podx/" + hex, "", hex, "container", "cgroupfs"},
		{"/kata_overhead", "", "", "other", ""},
		{"/kata_overhead/s1", "", "s1", "overhead", "cgroupfs"},
		{"/kata_s1", "", "s1", "sandbox", "cgroupfs"},
		{"/a/firecracker/vm/b", "", "vm", "sandbox", "cgroupfs"},
		{"/firecracker/" + hex, "", hex, "sandbox", "cgroupfs"},
		{"/x.slice:runc:abc", "", "abc", "literal", "systemd"},
		{"/system.slice/docker-" + hex[1:] + ".scope", "", "", "other", ""},
		{"/kata_../x", "", "", "other", ""},
		{"/kata_overhead/" + strings.Repeat("x", 129), "", "", "other", ""},
		{"/tare-trial-2-p185-t631/work/web", "", "", "other", ""},
		{"/tare-trial-2-p185-t631/work/web/tare-trial-2-p185-t631-web", "", "tare-trial-2-p185-t631-web", "container",
			"cgroupfs"},
		{"relative/" + hex, "", hex, "container", "cgroupfs"},
	} {
		w := builtin().locate(c.path)
		if got := [4]string{w.pod, w.id, string(w.place), w.driver}; got != [4]string{c.pod, c.id, c.place, c.driver} {
			t.Errorf("%s: %q, want %q", c.path, got, c)
		}
	}
}

// Every expression compiles and has only capture groups that are used, and every component is known.
func TestTable(t *testing.T) {
	guest.KernelFree(t)
	check := func(e expression, groups ...string) {
		if e == nil {
			return
		}
		for _, name := range e().SubexpNames() {
			if name != "" && !slices.Contains(groups, name) {
				t.Errorf("%s: no group %q is read here", e(), name)
			}
		}
	}
	known := func(components ...Component) {
		for _, c := range components {
			if !slices.Contains(Components, c) {
				t.Errorf("there is no component %q", c)
			}
		}
	}
	all := builtin()
	for _, r := range all.Paths {
		check(r.Match, "pod", "id")
		check(r.Under)
		check(r.Not)
	}
	for _, r := range all.Processes {
		if r.StateFlag != "" && !slices.ContainsFunc(all.runtime(r.Runtime).States, func(f stateFiles) bool {
			return f.Anywhere && f.Parse != nil && !strings.Contains(f.File, "/")
		}) {
			t.Errorf("the state of %s, by flag %s, cannot be read", r.Runtime, r.StateFlag)
		}
		check(r.Program)
		check(r.Comm, "pid")
		check(r.Args)
		known(r.Component)
		for _, source := range r.ID {
			check(source.Match, "id")
		}
	}
	for _, r := range all.Threads {
		check(r.Comm)
		known(r.Component)
	}
	for _, r := range all.Rows {
		known(slices.Collect(maps.Keys(r.CPU))...)
		known(slices.Collect(maps.Keys(r.Memory))...)
	}
	for _, r := range all.Findings {
		known(r.Components...)
	}
}

// A process is read again if another process now has its PID, or if it executes another program soon after its start.
func TestReadSeesWhatChanges(t *testing.T) {
	guest.KernelFree(t)
	root := t.TempDir()
	f := &fixture{Cgroups: "v2", Procs: []fixtureProcess{{PID: 10, Comm: "sh", Args: "sh", At: "/x"}}}
	f.unpack(t, root)
	r, err := New(Options{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	read := func(want ...string) {
		t.Helper()
		c, err := r.Read(false)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, s := range c.Sandboxes {
			for _, p := range s.Processes {
				got = append(got, fmt.Sprintf("%s %d %s %s", s.ID, p.PID, p.Component, p.Memory.Path))
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%q, want %q", got, want)
		}
	}
	read()
	shim := fixtureProcess{PID: 10, Comm: "containerd-shim", Args: "containerd-shim-kata-v2 -id s1", At: "/x"}
	f.process(writer{t, root}, shim) // by exec: the directory is the same
	read("s1 10 shim /x")
	for range strangerTurns {
		read("s1 10 shim /x")
	}
	shim.At = "/kata_overhead/s1"
	f.process(writer{t, root}, shim) // it is moved
	for range membershipTurns - 1 {
		if _, err := r.Read(false); err != nil {
			t.Fatal(err)
		}
	}
	read("s1 10 shim /kata_overhead/s1")
	old := filepath.Join(root, "old")
	if err := os.Rename(filepath.Join(root, "proc", "10"), old); err != nil { // keeps its inode
		t.Fatal(err)
	}
	shim.Args = "containerd-shim-kata-v2 -id s2"
	f.process(writer{t, root}, shim)
	read("s1 10 other /kata_overhead/s1") // another process; what its command line says contradicts its group
	if err := os.RemoveAll(filepath.Join(root, "proc", "10")); err != nil {
		t.Fatal(err)
	}
	read()
}

// Processes that an application starts and ends are added and removed, with the same result as a full reading.
func TestReadFollowsAnApplication(t *testing.T) {
	guest.KernelFree(t)
	root, w := t.TempDir(), writer{t, ""}
	w.root = root
	f := &fixture{Cgroups: "v1", Procs: []fixtureProcess{
		{PID: 10, Comm: "sh", Args: "sh", At: "/docker/" + strings.Repeat("a", 64)},
		{PID: 11, PPID: 10, Comm: "sh", Args: "sh", At: "/docker/" + strings.Repeat("a", 64)},
		{PID: 20, Comm: "sh", Args: "sh", At: "/docker/" + strings.Repeat("b", 64)},
	}}
	f.unpack(t, root)
	r, err := New(Options{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	say := func(c *Census, err error) string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		for _, s := range c.Sandboxes {
			slices.SortFunc(s.Processes, func(x, y *Process) int { return x.PID - y.PID })
			fmt.Fprintf(&b, "%.2s:", s.ID)
			for _, p := range s.Processes {
				fmt.Fprintf(&b, " %d %s %.2s %v", p.PID, p.Component, p.Container, p.Memory.Inside)
			}
			for _, g := range s.Groups {
				fmt.Fprintf(&b, " (%d)", g.Processes)
			}
			b.WriteString("\n")
		}
		return b.String()
	}
	say(r.Read(true))
	for _, change := range []func(){
		func() { f.process(w, fixtureProcess{PID: 12, PPID: 11, Comm: "x", Args: "x", At: f.Procs[0].At}) },
		func() { f.process(w, fixtureProcess{PID: 13, Comm: "x", Args: "tini", At: f.Procs[0].At}) },
		func() { os.RemoveAll(filepath.Join(root, "proc", "11")) },
		func() { os.RemoveAll(filepath.Join(root, "proc", "10")) }, // the one that others are compared with
		func() { f.process(w, fixtureProcess{PID: 21, Comm: "x", Args: "x", At: f.Procs[2].At}) },
		func() { os.RemoveAll(filepath.Join(root, "proc", "20")) },
		func() { os.RemoveAll(filepath.Join(root, "proc", "21")) },
	} {
		change()
		turns := say(r.Read(false))
		all, err := New(Options{Root: root})
		if err != nil {
			t.Fatal(err)
		}
		if want := say(all.Read(true)); turns != want {
			t.Errorf("in turns:\n%sa new reader:\n%s", turns, want)
		}
		all.Close()
	}
}

// A container of runc is found by its state in a directory named by the caller.
func TestRuntimeRoots(t *testing.T) {
	guest.KernelFree(t)
	root := t.TempDir()
	f := &fixture{Cgroups: "v2", Procs: []fixtureProcess{{PID: 10, Comm: "app", Args: "app", At: "/lab/one"}}}
	f.unpack(t, root)
	writer{t, root}.file("/tmp/state/one/state.json",
		`{"init_process_pid": 10, "cgroup_paths": {"": "/sys/fs/cgroup/lab/one"}}`)
	for _, c := range []struct {
		roots []string
		want  int
	}{{nil, 0}, {[]string{"/tmp/state"}, 1}, {[]string{"/tmp/other"}, 0}} {
		r, err := New(Options{Root: root, RuntimeRoots: c.roots})
		if err != nil {
			t.Fatal(err)
		}
		census, err := r.Read(true)
		r.Close()
		if err != nil || len(census.Sandboxes) != c.want {
			t.Errorf("%v: %+v, %v", c.roots, census.Sandboxes, err)
		}
		if c.want == 1 && (census.Sandboxes[0].ID != "one" || census.Sandboxes[0].Runtime != "runc") {
			t.Errorf("%+v", census.Sandboxes[0])
		}
	}
}

// Endless files, and names that are not ids, cause neither errors nor growth.
func TestHostileFiles(t *testing.T) {
	guest.KernelFree(t)
	root := t.TempDir()
	long := strings.Repeat("x ", 1<<20)
	f := &fixture{Cgroups: "v2", Procs: []fixtureProcess{
		{PID: 10, Comm: "a) R 1", Args: "qemu-system-x86_64 -name sandbox-../../etc " + long, At: "/x"},
		{PID: 11, Comm: "qemu", Args: "qemu-system-x86_64 -name sandbox-ok " + long, At: "/y"},
		{PID: 12, Comm: "sh", Args: "runsc-gofer --root=/*/*/*/*/* gofer", At: "/" + strings.Repeat("a/", 100)},
		{PID: 13, Comm: "shim", Args: "containerd-shim-kata-v2 -id *", At: "/z"},
		{PID: 14, Comm: "shim", Args: "containerd-shim-kata-v2 -id", At: "/z"},
		{PID: 15, Comm: "exe", Args: "runsc-sandbox --root=/evil boot trap", At: "/docker/" + strings.Repeat("a", 64)},
		{PID: 16, Comm: "sshd", Args: "sshd", At: "/system.slice/ssh.service"},
	}}
	f.unpack(t, root)
	// A directory of state that a container made: a pipe in it, and a file that unites it with others.
	evil := filepath.Join(root, "evil")
	if err := os.Mkdir(evil, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(evil, "ok_sandbox:x.state"), 0o600); err != nil {
		t.Fatal(err)
	}
	writer{t, root}.file("/evil/trap_sandbox:ok.state", `{"goferPid": 11, "sandbox": {"pid": 16}}`)
	for pid, name := range map[string]string{"20": "stat", "21": "cmdline", "22": "cgroup"} { // each has only this file
		writer{t, root}.file("/proc/"+pid+"/"+name, "\x00\x00((\n")
	}
	r, err := New(Options{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c, err := r.Read(true)
	if err != nil {
		t.Fatal(err)
	}
	// A process in the container is the application, whatever it calls itself.
	if len(c.Sandboxes) != 2 || c.Sandboxes[1].ID != "ok" || len(c.Sandboxes[1].Processes) != 1 ||
		len(c.Sandboxes[0].Processes) != 1 || c.Sandboxes[0].Processes[0].Component != Workload {
		t.Errorf("%d sandboxes: %+v", len(c.Sandboxes), c.Sandboxes)
	}
}

// Command lines can name one directory of state a thousand times, in as many ways, and every process a different one.
func TestHostileStateDirectories(t *testing.T) {
	guest.KernelFree(t)
	root := t.TempDir()
	f := &fixture{Cgroups: "v2"}
	for pid := range 20 {
		args := []string{"runsc-sandbox", fmt.Sprintf("--root=/own/%d", pid)}
		if err := os.MkdirAll(filepath.Join(root, "own", fmt.Sprint(pid)), 0o755); err != nil {
			t.Fatal(err)
		}
		if pid < 4 {
			for i := range 1000 {
				spelling := strings.NewReplacer("0", "/", "1", "/.").Replace(fmt.Sprintf("%010b", i))
				args = append(args, "--root=/d"+spelling)
			}
		}
		f.Procs = append(f.Procs, fixtureProcess{PID: 10 + pid, Comm: "exe", At: "/x",
			Args: strings.Join(append(args, fmt.Sprintf("id%d", pid)), " ")})
	}
	f.unpack(t, root)
	if err := os.Mkdir(filepath.Join(root, "d"), 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range maxStates + 1000 {
		if err := os.WriteFile(filepath.Join(root, "d", fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r, err := New(Options{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	before := ownTime()
	if _, err := r.Read(true); err != nil {
		t.Fatal(err)
	}
	took := ownTime() - before
	t.Logf("a census took %v of CPU time", took)
	if n := len(r.named.dirs); n != maxNamed || took > time.Second {
		t.Errorf("a census read %d directories and took %v of CPU time", n, took)
	}
}

func TestNamedState(t *testing.T) {
	guest.KernelFree(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root, to give files away")
	}
	root := t.TempDir()
	tree := files.Tree{Root: root}
	at := func(name string) string { return filepath.Join(root, name) }
	const user = 12345
	for _, c := range []struct {
		dir   string
		owner int
		mode  os.FileMode
		user  uint32
		want  bool
	}{
		{"mine", 0, 0o755, user, true},
		{"theirs", user, 0o700, user, true},
		{"open", 0, 0o777 | os.ModeSticky, 0, false},
		{"shared", user, 0o775, user, false},
		{"another", user, 0o755, user + 1, false},
	} {
		if err := errors.Join(os.Mkdir(at(c.dir), 0o700), os.Chown(at(c.dir), c.owner, 0),
			os.Chmod(at(c.dir), c.mode)); err != nil {
			t.Fatal(err)
		}
		var n namedState
		if got := n.add(tree, "/"+c.dir, "gvisor", c.user); got != c.want {
			t.Errorf("%s: %v, want %v", c.dir, got, c.want)
		}
		if n.add(tree, "/./"+c.dir, "gvisor", c.user) {
			t.Errorf("%s was added twice", c.dir)
		}
	}

	// Many names of a large file, and one of another container whose id begins with the same letters.
	pid := `{"goferPid": 7, "sandbox": {"pid": %d}}`
	w := writer{t, root}
	w.file("mine/box_sandbox:0.state", fmt.Sprintf(pid, 1)+strings.Repeat(" ", maxState-100))
	w.file("mine/boxes_sandbox:0.state", fmt.Sprintf(pid, 2))
	w.file("mine/box_sandbox:0.lock", fmt.Sprintf(pid, 3))
	for i := range 100 {
		if err := os.Link(at("mine/box_sandbox:0.state"), at(fmt.Sprintf("mine/box_sandbox:1%d.state", i))); err != nil {
			t.Fatal(err)
		}
	}
	var n namedState
	n.add(tree, "/mine", "gvisor", 0)
	n.list(tree)
	s := n.read(builtin(), root, "box")
	if s == nil || s.Sandbox != "" || !maps.Equal(s.pids, map[int]role{1: {component: Sentry}, 7: {component: Gofer}}) {
		t.Errorf("the state is %+v", s)
	}
	if n.bytes < -maxState || n.files != maxStates-maxNamedBytes/maxState-1 {
		t.Errorf("%d bytes are left, and %d files of %d", n.bytes, n.files, maxStates)
	}
	if s := n.read(builtin(), root, "boxes"); s != nil {
		t.Errorf("beyond the limit: %+v", s)
	}
}

// On this machine, a process that calls itself a sandbox's VMM is found, with the groups that it is charged to and its
// CPU time; after it has ended it is no longer listed.
func TestReadOnThisMachine(t *testing.T) {
	layout, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	group := fmt.Sprintf("/tare-test-%d-sandbox", os.Getpid())
	var dirs []string
	for i := range layout.Hierarchies {
		h := &layout.Hierarchies[i]
		if dir, ok := h.Dir(group); ok && (h.V2 || h.Has("cpuacct") || h.Has("memory")) {
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.Remove(dir) })
			dirs = append(dirs, dir)
		}
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	busy := exec.Command(exe)
	busy.Args = []string{"qemu-system-x86_64", "-name", "sandbox-here,debug-threads=on"}
	busy.Env = append(os.Environ(), busyVariable+"=1")
	if err := busy.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { busy.Process.Kill(); busy.Wait() }()
	for _, dir := range dirs {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), fmt.Appendln(nil, busy.Process.Pid), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	find := func() *Process {
		c, err := r.Read(false)
		if err != nil {
			t.Fatal(err)
		}
		if s, ok := c.Sandbox("here"); ok {
			return s.Processes[0]
		}
		return nil
	}
	var first uint64
	for range 200 { // it has to run before it has used anything
		p := find()
		if p == nil || p.PID != busy.Process.Pid || p.Component != VMM || p.CPUNs == nil {
			t.Fatalf("the process is %+v", p)
		}
		if p.Memory.Path != group || p.Memory.Place != PlaceOwn || !p.Memory.Inside || p.CPU != p.Memory {
			t.Fatalf("it is charged to %+v and %+v, want %s", p.CPU, p.Memory, group)
		}
		if first == 0 {
			first = *p.CPUNs
		} else if *p.CPUNs > first {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if p := find(); *p.CPUNs <= first {
		t.Errorf("it has used %d ns, and did before", *p.CPUNs)
	}
	c, err := r.Read(false)
	if err != nil {
		t.Fatal(err)
	}
	s, _ := c.Sandbox("here")
	if g := s.Groups[0]; g.Reading == nil || !g.Reading.CPU.UsageNs.OK {
		t.Errorf("the group was not read: %+v", g)
	}
	busy.Process.Kill()
	busy.Wait()
	if p := find(); p != nil {
		t.Errorf("it has ended and is still there: %+v", p)
	}
}

func FuzzLocate(f *testing.F) {
	for _, s := range []string{
		"/", "/kubepods/pod" + testPod, "/kata_overhead/x", "a.slice:b:c", "//", "/x.scope/" + testPod,
	} {
		f.Add(s)
	}
	table := builtin()
	f.Fuzz(func(t *testing.T, path string) {
		w := table.locate(path)
		if w.id != "" && !validID(w.id) {
			t.Errorf("%q has id %q", path, w.id)
		}
		if w.pod != "" && !validID(w.pod) || !strings.HasPrefix(path, w.podPath) {
			t.Errorf("%q is in pod %q at %q", path, w.pod, w.podPath)
		}
	})
}

func FuzzIdentify(f *testing.F) {
	f.Add("qemu-system-x86", "qemu-system-x86_64\x00-name\x00sandbox-a,debug-threads=on\x00", "/usr/bin/qemu", false)
	f.Add("vhost-12", "", "", true)
	f.Add("exe", "runsc-sandbox\x00boot\x00x\x00", "/usr/bin/runsc (deleted)", false)
	table := builtin()
	f.Fuzz(func(t *testing.T, comm, text, exe string, kernel bool) {
		args := arguments([]byte(text))
		c := table.identify(command{comm: comm, exe: exe, args: args, kernel: kernel})
		if c.id != "" && !validID(c.id) {
			t.Errorf("%q gives id %q", args, c.id)
		}
		if c.owner < 0 || c.owner > 1<<26 || len(args) > maxArgs {
			t.Errorf("owner %d, %d arguments", c.owner, len(args))
		}
		table.thread(comm)
	})
}

func FuzzState(f *testing.F) {
	f.Add([]byte(`{"annotations": {"io.kubernetes.cri.sandbox-id": "x", "io.kubernetes.cri.sandbox-memory": "1"}}`))
	f.Add([]byte(`{"pid": 1, "cgroup_paths": {"": "/x"}, "cgroup-path": "/y"}`))
	f.Add([]byte(`{"goferPid": {"val": 3}, "sandbox": {"pid": 1e300}}`))
	table := builtin()
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, rule := range table.States {
			s := &state{pids: map[int]role{}}
			if rule.parse == nil || rule.parse(s, "x_sandbox:y.state", text) != nil {
				continue
			}
			for pid := range s.pids {
				if pid <= 0 {
					t.Errorf("pid %d of %q", pid, text)
				}
			}
			if s.Sandbox != "" && !validID(s.Sandbox) || s.Pod.UID != "" && !validID(s.Pod.UID) {
				t.Errorf("sandbox %q, pod %q of %q", s.Sandbox, s.Pod.UID, text)
			}
		}
	})
}
