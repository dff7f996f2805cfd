package cgroup

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
	"tare/internal/scale/host/proc"
	"tare/test/deep"
	"tare/test/rights"
)

// TestMain keeps the first thread, because that one stands for the process, and the tests move only other threads into
// groups.
func TestMain(m *testing.M) {
	runtime.LockOSThread()
	os.Exit(m.Run())
}

// errorsOf reads everything.
func errorsOf(r *Reader) error { return errors.Join(r.Refresh(), r.ReadCPU(), r.ReadMemory()) }

func val(n uint64) Value { return Value{N: n, OK: true} }

func (r *Reader) find(t testing.TB, path string) *Group {
	t.Helper()
	if g := r.live[path]; g != nil {
		return g
	}
	t.Fatalf("there is no group %s among %d", path, len(r.groups))
	return nil
}

func TestReaderFixtures(t *testing.T) {
	v1 := func(n uint64) Memory {
		return Memory{Current: val(9000 + n), Peak: val(9900 + n), Anon: val(2000 + n), File: val(4000 + n),
			Shmem:  val(1000 + n),
			Kernel: val(800 + n), Sock: val(30 + n), InactiveFile: val(500 + n)}
	}
	v2 := func(n uint64) Memory {
		m := v1(n)
		m.SlabReclaimable = val(300 + n)
		return m
	}
	without := func(m Memory, fields ...string) Memory {
		for _, f := range fields {
			reflect.ValueOf(&m).Elem().FieldByName(f).SetZero()
		}
		return m
	}
	for layout, want := range map[string]map[string]Group{
		"v1": {
			"/":          {CPU: CPU{val(1e6), val(1000), val(10), val(1), 0}, Memory: v1(1)},
			"/docker":    {CPU: CPU{val(2e6), val(2000), val(20), val(2), 0}, Memory: v1(2)},
			"/docker/aa": {CPU: CPU{val(3e6), val(3000), val(30), val(3), 0}, Memory: v1(3)},
		},
		"v2": {
			"/":             {CPU: CPU{UsageNs: val(1e8)}, Memory: without(v2(100), "Current", "Peak")},
			"/system.slice": {CPU: CPU{val(1e6), val(1000), val(10), val(1), 0}, Memory: v2(1)},
			"/user.slice":   {CPU: CPU{val(3e6), val(3000), val(30), val(3), 0}, Memory: without(v2(3), "Peak")},
		},
		"hybrid": {
			"/":      {CPU: CPU{val(1e6), val(1000), val(10), val(1), 0}, Memory: v1(1)},
			"/both":  {CPU: CPU{val(2e6), val(2000), val(20), val(2), 0}, Memory: v1(2)},
			"/only2": {CPU: CPU{UsageNs: val(52e6)}},
			"/apart": {Memory: without(v1(7), "Peak", "Kernel", "Sock")},
		},
	} {
		t.Run(layout, func(t *testing.T) {
			r, err := NewReader(fixture(t, layout))
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			for range 2 { // the second time, files are already open
				if err := errorsOf(r); err != nil {
					t.Fatal(err)
				}
				for path, w := range want {
					g := r.find(t, path)
					if g.CPU != w.CPU {
						t.Errorf("%s: CPU %+v, want %+v", path, g.CPU, w.CPU)
					}
					if g.Memory != w.Memory {
						t.Errorf("%s: memory %+v, want %+v", path, g.Memory, w.Memory)
					}
					if g.Vanished {
						t.Errorf("%s has vanished", path)
					}
				}
			}
			if n := map[string]int{"v1": 3, "v2": 10, "hybrid": 4}[layout]; len(r.Groups()) != n {
				t.Errorf("%d groups, want %d", len(r.Groups()), n)
			}
		})
	}
}

// TestNoKernelMemory: a kernel that does not charge its own memory to groups reports 0 for it. That is not what they
// use.
func TestNoKernelMemory(t *testing.T) {
	for cmdline, charges := range map[string]bool{
		"quiet": true, "quiet cgroup.memory=nosocket,nokmem": false, "cgroup.memory=nokmem quiet": false,
		"cgroup.memory=nobpf": true, "x.cgroup.memory=nokmem": true,
	} {
		l := fixture(t, "v1")
		proc := t.TempDir()
		if err := os.WriteFile(filepath.Join(proc, "cmdline"), []byte(cmdline+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		l.roots.Proc = proc
		r, err := NewReader(l)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if err := errorsOf(r); err != nil {
			t.Fatal(err)
		}
		if g := r.find(t, "/docker"); g.Memory.Kernel.OK != charges || !g.Memory.Anon.OK {
			t.Errorf("%q: %+v", cmdline, g.Memory)
		}
	}
}

// TestRootUsage: the usage of the machine's root of v2 is that of its parts, because older kernels add stolen time to
// usage_usec. A root that is only that of a container (it has cgroup.events) counts its tasks.
func TestRootUsage(t *testing.T) {
	files := map[string]string{
		"proc/self/mountinfo":              "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
		"proc/self/cgroup":                 "0::/\n",
		"sys/fs/cgroup/cgroup.controllers": "",
		"sys/fs/cgroup/cpu.stat":           "usage_usec 13\nuser_usec 6\nsystem_usec 4\n",
	}
	for _, want := range []uint64{10e3, 13e3} {
		root := writeTree(t, files)
		l, err := Discover(Roots{Proc: root + "/proc", Prefix: root})
		if err != nil {
			t.Fatal(err)
		}
		r, err := NewReader(l)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if err := r.ReadCPU(); err != nil || r.find(t, "/").CPU.UsageNs != val(want) {
			t.Errorf("%+v, %v; want %d ns", r.find(t, "/").CPU, err, want)
		}
		files["sys/fs/cgroup/cgroup.events"] = ""
	}
}

// TestControllersDisabled: what belongs to a controller is unknown while the controller is disabled for a group, and
// known again afterwards.
func TestControllersDisabled(t *testing.T) {
	root := writeTree(t, map[string]string{
		"proc/self/mountinfo":              "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
		"proc/self/cgroup":                 "0::/\n",
		"sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
		"sys/fs/cgroup/a/memory.current":   "5\n",
		"sys/fs/cgroup/a/memory.stat":      "anon 4\n",
		"sys/fs/cgroup/a/cpu.stat":         "usage_usec 3\nnr_periods 2\n",
	})
	l, err := Discover(Roots{Proc: root + "/proc", Prefix: root})
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewReader(l)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	g := r.find(t, "/a")
	check := func(when string, cpu CPU, memory Memory) {
		t.Helper()
		if err := errorsOf(r); err != nil || g.CPU != cpu || g.Memory != memory {
			t.Errorf("%s: %+v, %+v, %v; want %+v, %+v", when, g.CPU, g.Memory, err, cpu, memory)
		}
	}
	cpu, memory := CPU{UsageNs: val(3000), Periods: val(2)}, Memory{Current: val(5), Anon: val(4)}
	check("enabled", cpu, memory)
	dir := filepath.Join(root, "sys/fs/cgroup/a")
	err = errors.Join(os.Rename(dir+"/memory.current", root+"/memory.current"),
		os.Rename(dir+"/memory.stat", root+"/memory.stat"),
		os.WriteFile(dir+"/cpu.stat", []byte("usage_usec 3\n"), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	check("disabled", CPU{UsageNs: val(3000)}, Memory{})
	err = errors.Join(os.Rename(root+"/memory.current", dir+"/memory.current"),
		os.Rename(root+"/memory.stat", dir+"/memory.stat"),
		os.WriteFile(dir+"/cpu.stat", []byte("usage_usec 3\nnr_periods 2\n"), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	check("enabled again", cpu, memory)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if check("removed", cpu, memory); !g.Vanished {
		t.Error("it has not vanished")
	}
}

// TestMountPointsAreNotGroups: a directory on which another file system is mounted is left out, like /proc here.
func TestMountPointsAreNotGroups(t *testing.T) {
	below, err := subdirs(unix.AT_FDCWD, "/", make([]byte, 4096))
	if err != nil || len(below) == 0 {
		t.Fatalf("%d directories, %v", len(below), err)
	}
	if slices.ContainsFunc(below, func(d subdir) bool { return d.name == "proc" }) {
		t.Error("/proc is taken for a part of the file system of /")
	}
}

// groupsOf returns the hierarchies of this machine that a Reader reads.
func groupsOf(t testing.TB, l *Layout) []*Hierarchy {
	t.Helper()
	r, err := NewReader(l)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var hs []*Hierarchy
	for _, t := range r.trees {
		hs = append(hs, t.Hierarchy)
	}
	return hs
}

// makeGroup creates a group with the given path in every given hierarchy, and removes it at the end of the test.
func makeGroup(t testing.TB, hs []*Hierarchy, path string) (remove func()) {
	t.Helper()
	var dirs []string
	remove = func() {
		for _, d := range dirs {
			for range 100 { // a process that has just died may still hold it
				if err := os.Remove(d); !errors.Is(err, unix.EBUSY) {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
		}
		dirs = nil
	}
	t.Cleanup(remove)
	for _, h := range hs {
		d := h.Mount + path
		if err := os.Mkdir(d, 0o755); errors.Is(err, os.ErrPermission) || errors.Is(err, unix.EROFS) {
			t.Skipf("needs write access to %s", h.Mount)
		} else if err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, d)
	}
	return remove
}

// TestOneGroupFails: if the files of a group cannot be read, its values are unknown and those of the others are known.
// A reader of a few groups returns an error, and one of all groups names the group.
func TestOneGroupFails(t *testing.T) {
	root := t.TempDir()
	if err := os.CopyFS(root, os.DirFS("testdata/v2")); err != nil {
		t.Fatal(err)
	}
	const broken = "/user.slice"
	for _, file := range []string{"cpu.stat", "memory.stat"} {
		path := filepath.Join(root, "sys/fs/cgroup", broken, file)
		if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o755)); err != nil { // EISDIR
			t.Fatal(err)
		}
	}
	l, err := Discover(Roots{Proc: filepath.Join(root, "proc"), Prefix: root})
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewReader(l)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, read := range []func() error{r.ReadCPU, r.ReadMemory} {
		if err := read(); !errors.Is(err, unix.EISDIR) || !strings.Contains(err.Error(), broken) {
			t.Errorf("reading gives %v", err)
		}
	}
	if u := r.Unread(); len(u) != 1 || u[0].Path != broken {
		t.Errorf("unread are %v", u)
	}
	if g := r.find(t, broken); g.CPU != (CPU{}) || g.Memory != (Memory{}) {
		t.Errorf("of a group that cannot be read %+v and %+v are known", g.CPU, g.Memory)
	}
	g := r.find(t, broken) // values of an earlier reading are cleared
	g.CPU.UsageNs, g.Memory.Current = val(1), val(1)
	if err := errors.Join(r.ReadCPUOf(g), r.ReadMemoryOf(g)); !errors.Is(err, unix.EISDIR) || g.CPU != (CPU{}) ||
		g.Memory != (Memory{}) {
		t.Errorf("read alone it gives %v, %+v and %+v", err, g.CPU, g.Memory)
	}
	if g := r.find(t, "/system.slice"); !g.CPU.UsageNs.OK || !g.Memory.Current.OK {
		t.Errorf("of another %+v and %+v are known", g.CPU, g.Memory)
	}
}

// makeDeep creates nested groups, down to one whose path is too long for one system call, and removes them at the end.
func makeDeep(t *testing.T, hs []*Hierarchy, top, name string, depth int) {
	t.Helper()
	for _, h := range hs {
		parent, err := unix.Open(h.Mount+top, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(parent) })
		in := parent
		for range depth {
			in = deep.Directory(t, in, name)
		}
	}
}

// TestDeepGroups: a group whose path is longer than PATH_MAX is read like any other. One whose path is far longer is
// named, its values are unknown, and the other groups are still read.
func TestDeepGroups(t *testing.T) {
	l, err := Discover(Roots{})
	if err != nil {
		t.Fatal(err)
	}
	hs := groupsOf(t, l)
	top := fmt.Sprintf("/tare-test-deep-%d", os.Getpid())
	makeGroup(t, hs, top)
	name := strings.Repeat("x", 250)
	makeDeep(t, hs, top, name, maxRel/251+2)
	r, err := NewReaderOf(l, []string{top[1:]})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := errorsOf(r); err != nil {
		t.Fatal(err)
	}
	deepest := ""
	for _, g := range r.Groups() {
		if len(g.Path) > len(deepest) {
			deepest = g.Path
		}
		if !g.CPU.UsageNs.OK {
			t.Errorf("the CPU time of a group with a path of %d bytes is not known", len(g.Path))
		}
	}
	if len(deepest) < 3*unix.PathMax || len(deepest) > maxRel {
		t.Errorf("the deepest of %d groups has a path of %d bytes", len(r.Groups()), len(deepest))
	}
	unread := r.Unread()
	if len(unread) != 1 || unread[0].Path != deepest+"/"+name || !strings.Contains(unread[0].Err.Error(), "longer than") {
		t.Errorf("%d groups are said to be unread: %v", len(unread), unread)
	}
	if err := errorsOf(r); err != nil || len(r.Unread()) != 1 || r.find(t, deepest).Vanished {
		t.Errorf("a second time: %v, %d unread", err, len(r.Unread()))
	}
	walked, unseen := "", ""
	sleeper := exec.Command("sleep", "60")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	defer sleeper.Wait()
	defer sleeper.Process.Kill()
	err = Walk(hs[0].Mount, func(rel string, dir int) {
		if len(rel) > len(walked) {
			walked = rel
		}
		var st unix.Stat_t
		if err := unix.Fstat(dir, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
			t.Errorf("the descriptor of %.40s: %v", rel, err)
		}
		if rel != deepest {
			return
		}
		fd, err := unix.Openat(dir, "cgroup.procs", unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Error(err)
			return
		}
		defer unix.Close(fd)
		if _, err := unix.Write(fd, []byte(strconv.Itoa(sleeper.Process.Pid))); err != nil {
			t.Error(err)
		}
	}, func(rel string, _ error) { unseen += rel })
	if err != nil || walked != deepest || unseen != deepest+"/"+name {
		t.Errorf("Walk visits %d bytes at most and not %d, %v", len(walked), len(unseen), err)
	}
	if got := Members([]string{hs[0].Mount + top}); !slices.Equal(got, []int{sleeper.Process.Pid}) {
		t.Errorf("members %v, want %d alone", got, sleeper.Process.Pid)
	}
}

// spin keeps a CPU busy.
func spin(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
	}
}

// inside runs f on a thread that is in the group. It works only with v1 cpuacct, where single threads can be in other
// groups.
func inside(t *testing.T, h *Hierarchy, path string, f func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine and leaves the group
		err := os.WriteFile(h.Mount+path+"/tasks", fmt.Append(nil, unix.Gettid()), 0)
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestReaderMachine(t *testing.T) {
	l := machine(t)
	hs := groupsOf(t, l)
	name := fmt.Sprintf("/tare-test-%d-reader", os.Getpid())
	r, err := NewReader(l)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	before := len(r.Groups())
	root := r.find(t, "/")
	if err := errorsOf(r); err != nil {
		t.Fatal(err)
	}
	if !root.CPU.UsageNs.OK || root.CPU.UsageNs.N == 0 {
		t.Errorf("the root has used %+v", root.CPU)
	}

	remove := makeGroup(t, hs, name)
	if err := errorsOf(r); err != nil {
		t.Fatal(err)
	}
	g := r.find(t, name)
	if g.Vanished || g.CPU.UsageNs != val(0) {
		t.Errorf("the new group: %+v", g)
	}
	if h, ok := l.Controller("memory"); ok && !h.V2 && !g.Memory.Current.OK {
		t.Errorf("the new group's memory: %+v", g.Memory)
	}
	if h, ok := l.V2(); ok {
		id, err := ID(h.Mount + name)
		if err != nil {
			t.Error(err)
		}
		ids, err := l.IDs()
		if err != nil || ids[id] != name {
			t.Errorf("cgroup id %d is %q, %v", id, ids[id], err)
		}
	}

	cpu, v1 := l.Controller("cpuacct")
	if v1 {
		inside(t, cpu, name, func() {
			if p, err := l.PathOf(unix.Gettid()); err != nil || p != name {
				t.Errorf("a thread in %s is in %q, %v", name, p, err)
			}
			if p, err := l.PathOf(os.Getpid()); err != nil || p == name {
				t.Errorf("its process is in %q, %v", p, err)
			}
			spin(30 * time.Millisecond)
		})
	}
	if err := r.ReadCPU(); err != nil {
		t.Fatal(err)
	}
	used := g.CPU.UsageNs
	if v1 && used.N < 1e6 {
		t.Errorf("30 ms of spinning were counted as %d ns", used.N)
	}

	remove()
	if err := errors.Join(r.ReadCPU(), r.ReadMemory()); err != nil {
		t.Fatal(err)
	}
	if !g.Vanished || g.CPU.UsageNs != used {
		t.Errorf("the group that was removed: %+v, had used %+v", g, used)
	}

	makeGroup(t, hs, name)
	if err := errorsOf(r); err != nil {
		t.Fatal(err)
	}
	again := r.find(t, name)
	if again == g || again.Vanished || !g.Vanished || again.CPU.UsageNs != val(0) {
		t.Errorf("the group that was made again: %+v", again)
	}
	if n := len(r.Groups()) - before; n < 2 {
		t.Errorf("%d groups came, want two", n)
	}
}

// A group may disappear between being found and being read, and may be removed and created again between two searches.
func TestReaderRaces(t *testing.T) {
	l := machine(t)
	hs := groupsOf(t, l)
	name := fmt.Sprintf("/tare-test-%d-race", os.Getpid())
	remove := makeGroup(t, hs, name)
	r, err := NewReader(l)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	g := r.find(t, name)
	remove()
	if err := errors.Join(r.ReadCPU(), r.ReadMemory()); err != nil {
		t.Fatal(err)
	}
	if !g.Vanished || g.CPU.UsageNs.OK {
		t.Errorf("%+v", g)
	}

	remove = makeGroup(t, hs, name)
	if err := errorsOf(r); err != nil {
		t.Fatal(err)
	}
	g = r.find(t, name)
	remove()
	makeGroup(t, hs, name)
	if err := errorsOf(r); err != nil {
		t.Fatal(err)
	}
	if again := r.find(t, name); again == g || !g.Vanished || again.Vanished || !again.CPU.UsageNs.OK {
		t.Errorf("first %+v\nagain %+v", g, again)
	}
}

// TestReaderLosesAHierarchy: if a group is removed in one hierarchy and remains in another, what was read in the first
// is unknown. A group that is removed from all of them keeps the last values.
func TestReaderLosesAHierarchy(t *testing.T) {
	for _, c := range []struct {
		removed             []string
		cpu, memory, vanish bool
	}{
		{[]string{"cpu,cpuacct"}, false, true, false},
		{[]string{"memory"}, true, false, false},
		{[]string{"cpu,cpuacct", "memory"}, true, true, true},
	} {
		root := t.TempDir()
		if err := os.CopyFS(root, os.DirFS("testdata/v1")); err != nil {
			t.Fatal(err)
		}
		l, err := Discover(Roots{Proc: root + "/proc", Prefix: root})
		if err != nil {
			t.Fatal(err)
		}
		r, err := NewReader(l)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if err := errorsOf(r); err != nil {
			t.Fatal(err)
		}
		g := r.find(t, "/docker/aa")
		for _, h := range c.removed {
			if err := os.RemoveAll(root + "/sys/fs/cgroup/" + h + "/docker/aa"); err != nil {
				t.Fatal(err)
			}
		}
		if err := errorsOf(r); err != nil {
			t.Fatal(err)
		}
		if g.CPU.UsageNs.OK != c.cpu || g.CPU.Periods.OK != c.cpu || g.Memory.Anon.OK != c.memory || g.Vanished != c.vanish {
			t.Errorf("removed from %v: %+v, want CPU time %t, memory %t, vanished %t", c.removed, g, c.cpu, c.memory, c.vanish)
		}
	}
}

// TestRenamedUnderAnother: if a v1 group has a new name and another has its old one, it is recognized as renamed,
// whichever of the two is found first.
func TestRenamedUnderAnother(t *testing.T) {
	for _, names := range [][2]string{{"aa", "bb"}, {"bb", "aa"}} {
		root := t.TempDir()
		if err := os.CopyFS(root, os.DirFS("testdata/v1")); err != nil {
			t.Fatal(err)
		}
		docker := root + "/sys/fs/cgroup/cpu,cpuacct/docker/"
		if err := os.Rename(docker+"aa", docker+"x"); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(docker+"x", docker+names[0]); err != nil {
			t.Fatal(err)
		}
		l, err := Discover(Roots{Proc: root + "/proc", Prefix: root})
		if err != nil {
			t.Fatal(err)
		}
		r, err := NewReader(l)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if err := errorsOf(r); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(docker+names[0], docker+names[1]); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(docker+names[0], os.DirFS(docker+names[1])); err != nil {
			t.Fatal(err)
		}
		if err := errorsOf(r); err != nil {
			t.Fatal(err)
		}
		first, second := r.find(t, "/docker/"+names[0]), r.find(t, "/docker/"+names[1])
		if first.Renamed || !second.Renamed {
			t.Errorf("%s became %s: renamed are %v, %v, want false, true", names[0], names[1], first.Renamed, second.Renamed)
		}
	}
}

// TestRenamedAbove: groups below a group at the top that has a new name are not read under their old names, because the
// renamed group counts what they use. Refresh finds their new names.
func TestRenamedAbove(t *testing.T) {
	root := t.TempDir()
	if err := os.CopyFS(root, os.DirFS("testdata/v1")); err != nil {
		t.Fatal(err)
	}
	l, err := Discover(Roots{Proc: root + "/proc", Prefix: root})
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewReader(l)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	old := r.find(t, "/docker/aa")
	if err := errors.Join(r.Refresh(), r.ReadCPU(), os.Rename(root+"/sys/fs/cgroup/cpu,cpuacct/docker",
		root+"/sys/fs/cgroup/cpu,cpuacct/podman"), r.RefreshTop(), r.ReadCPU()); err != nil {
		t.Fatal(err)
	}
	if g := r.find(t, "/podman"); !g.Renamed || !g.CPU.UsageNs.OK || old.CPU.UsageNs.OK {
		t.Errorf("the renamed group %+v, and one below it %+v", g, old)
	}
	if err := errors.Join(r.Refresh(), r.ReadCPU()); err != nil {
		t.Fatal(err)
	}
	if g := r.find(t, "/podman/aa"); !g.Renamed || !g.CPU.UsageNs.OK {
		t.Errorf("the group below it %+v", g)
	}
}

// TestLivePath: v1 shows an exiting thread in the root, although that may not be its group.
func TestLivePath(t *testing.T) {
	const stat = "7 (a) %s 1 7 7 0 -1 %d 0 0 0 0 0 0 0 0 20 0 1 0 100 0 0"
	for _, c := range []struct {
		layout, groups, state string
		flags                 int
		want                  string // empty: gone
	}{
		{"v1", "4:cpu,cpuacct:/\n", "R", 0, "/"},
		{"v1", "4:cpu,cpuacct:/\n", "R", 4, ""}, // PF_EXITING
		{"v1", "4:cpu,cpuacct:/\n", "Z", 4, ""},
		{"v1", "4:cpu,cpuacct:/\n", "", 0, ""}, // it has ended since its group was read
		{"v1", "4:cpu,cpuacct:/docker\n", "R", 4, "/docker"},
		{"v2", "0::/\n", "R", 4, "/"},
	} {
		r := fixture(t, c.layout).NewResolver()
		r.proc = t.TempDir() + "/proc"
		files := map[string]string{"cgroup": c.groups}
		if c.state != "" {
			files["stat"] = fmt.Sprintf(stat, c.state, c.flags)
		}
		if err := os.MkdirAll(r.proc+"/7", 0o755); err != nil {
			t.Fatal(err)
		}
		for name, content := range files {
			if err := os.WriteFile(r.proc+"/7/"+name, []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := r.LivePath(7); got != c.want || errors.Is(err, proc.ErrGone) != (c.want == "") {
			t.Errorf("%+v: %q, %v", c, got, err)
		}
	}
}

// TestReaderForgets: a long-lived reader holds only the groups that exist.
func TestReaderForgets(t *testing.T) {
	l := machine(t)
	hs := groupsOf(t, l)
	top := fmt.Sprintf("/tare-test-%d-churn", os.Getpid())
	makeGroup(t, hs, top)
	name := func(i int) string { return fmt.Sprintf("%s/%d", top, i) }
	makeGroup(t, hs, name(0))
	r, err := NewReaderOf(l, []string{top[1:]}) // other groups of the machine come and go, and take descriptors
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := errorsOf(r); err != nil {
		t.Fatal(err)
	}
	stays := r.find(t, name(0))
	budget := r.budget
	var last *Group
	for i := 1; i < 40; i++ {
		remove := makeGroup(t, hs, name(i%3+1)) // the same names come again
		if err := errorsOf(r); err != nil {
			t.Fatal(err)
		}
		last = r.find(t, name(i%3+1))
		remove()
		if err := r.Refresh(); err != nil {
			t.Fatal(err)
		}
		r.Forget()
		if i == 20 {
			r.Lean()
		}
	}
	mine := func(path string) bool { return strings.HasPrefix(path, top+"/") }
	held := 0
	for _, g := range r.Groups() {
		if mine(g.Path) {
			held++
		}
	}
	for path := range r.live {
		if mine(path) {
			held++
		}
	}
	for _, tree := range r.trees {
		for rel := range tree.nodes {
			if mine(tree.Identity(rel)) {
				held++
			}
		}
	}
	if want := 2 + len(r.trees); held != want {
		t.Errorf("it holds %d, want %d: the group that stays, and nothing of the 39 others", held, want)
	}
	if r.budget < budget {
		t.Errorf("%d descriptors are still open", budget-r.budget)
	}
	if !last.Vanished || !last.CPU.UsageNs.OK {
		t.Errorf("what was read of a group is lost: %+v", last)
	}
	if err := errorsOf(r); err != nil || r.find(t, name(0)) != stays || stays.Vanished {
		t.Errorf("the group that stays: %+v, %v", stays, err)
	}
}

// ownGroups creates five groups, one of which contains the others, and returns the name of that one. The reader must
// read no others: it allocates memory for each group of the machine that comes and goes.
func ownGroups(t *testing.T, l *Layout, name string) []string {
	t.Helper()
	hs := groupsOf(t, l)
	top := fmt.Sprintf("tare-test-%d-%s", os.Getpid(), name)
	makeGroup(t, hs, "/"+top)
	for i := range 4 {
		makeGroup(t, hs, fmt.Sprintf("/%s/%d", top, i))
	}
	return []string{top}
}

// TestReaderDescriptors: a reader keeps as many files open as its budget allows, and still reads the others.
func TestReaderDescriptors(t *testing.T) {
	l := machine(t)
	own := ownGroups(t, l, "descriptors")
	count := func() int {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(fds)
	}
	before := count()
	for _, budget := range []int{3, 1000} {
		r, err := NewReaderOf(l, own)
		if err != nil {
			t.Fatal(err)
		}
		r.budget = budget
		open := func() {
			t.Helper()
			for range 3 {
				if err := errorsOf(r); err != nil {
					t.Fatal(err)
				}
			}
			want := budget - r.budget + len(r.trees)
			if r.noting {
				want++
			}
			if n := count() - before; n != want {
				t.Errorf("%d descriptors are open, want %d", n, want)
			}
			for _, g := range r.Groups() {
				if !g.CPU.UsageNs.OK || !g.Memory.Current.OK && g.Memory != (Memory{}) {
					t.Errorf("of %s this is known: %+v", g.Path, g)
				}
			}
		}
		open()
		if allocs := testing.AllocsPerRun(10, func() { _ = r.ReadCPU() }); allocs > 0 {
			t.Errorf("%.1f allocations beyond the budget", allocs)
		}
		if budget == 3 && r.budget != 0 {
			t.Errorf("%d more may be opened", r.budget)
		}
		r.Lean()
		open()
		r.Close()
		if n := count(); n != before {
			t.Errorf("%d descriptors are open after Close, %d before", n, before)
		}
	}
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	l := machine(t)
	r, err := NewReaderOf(l, ownGroups(t, l, "steady"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := errorsOf(r); err != nil {
		t.Fatal(err)
	}
	res := l.NewResolver()
	for name, f := range map[string]func(){
		"ReadCPU":       func() { _ = r.ReadCPU() },
		"ReadMemory":    func() { _ = r.ReadMemory() },
		"Resolver.Path": func() { _, _ = res.Path(1) },
	} {
		if n := testing.AllocsPerRun(20, f); n > 0 {
			t.Errorf("%s: %.1f allocations", name, n)
		}
	}
}

func TestResolverGone(t *testing.T) {
	l := machine(t)
	if _, err := l.PathOf(1 << 30); !errors.Is(err, proc.ErrGone) {
		t.Errorf("got %v", err)
	}
}

func TestFeatures(t *testing.T) {
	for _, p := range Features() {
		s := p.Status()
		if s.Name == "" || s.Needs == "" || s.Lost == "" || s.Detail == "" || s.Available != (s.Hint == "") {
			t.Errorf("%+v", s)
		}
		t.Logf("%-20s %v: %s", s.Name, s.Available, s.Detail)
	}
	// Only groups of this process: others may be probing at the same time.
	if left, _ := filepath.Glob(fmt.Sprintf("/sys/fs/cgroup/*/tare-probe*-p%d-t*", os.Getpid())); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestProbeNames: groups created for probes are named like the trees of runs, so 'tare clean' finds them.
func TestProbeNames(t *testing.T) {
	name, err := probeName("probe-peak")
	if want := fmt.Sprintf("tare-probe-peak-p%d-t", os.Getpid()); err != nil || !strings.HasPrefix(name, want) {
		t.Errorf("%q, %v, want %s and its start time", name, err, want)
	}
}

func TestParseUint(t *testing.T) {
	for in, want := range map[string]Value{
		"0\n": val(0), "18446744073709551615": val(1<<64 - 1), "18446744073709551616": {}, "": {}, "\n": {}, "max\n": {},
		"-1": {}, "1 2": {}, " 7 ": val(7),
	} {
		if got := parseUint([]byte(in)); got != want {
			t.Errorf("%q: %+v, want %+v", in, got, want)
		}
	}
}

func FuzzParsers(f *testing.F) {
	for _, s := range []string{"usage_usec 5\nnr_periods 3\n", "throttled_usec 18446744073709551615", "anon 1\nfile",
		"total_rss 9\n\n \n", "12\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var g Group
		for _, parse := range []func(*Group, []byte){parseUsage, parseThrottling, parseCPUStat, parseRootCPUStat,
			parseCurrent, parsePeak, parseKernel, parseSock, parseMemoryStat1, parseMemoryStat2} {
			parse(&g, b)
		}
		for i, v := 0, reflect.ValueOf(g.Memory); i < v.NumField(); i++ {
			if x := v.Field(i).Interface().(Value); !x.OK && x.N != 0 {
				t.Errorf("%+v", g.Memory)
			}
		}
	})
}

// BenchmarkReader300 measures the cost of finding groups, reading both edges of a window and reading memory once, with
// 300 groups in addition to the machine's. cpu-ms/op is the user and system time of the process.
func BenchmarkReader300(b *testing.B) {
	l := machine(b)
	hs := groupsOf(b, l)
	base := fmt.Sprintf("/tare-test-%d-bench", os.Getpid())
	// Cleanups run last first: the parent, made first, goes last.
	makeGroup(b, hs, base)
	for i := range 299 {
		makeGroup(b, hs, fmt.Sprintf("%s/g%d", base, i))
	}
	cpu := func() time.Duration {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	run := func(name string, f func(b *testing.B)) {
		b.Run(name, func(b *testing.B) {
			before := cpu()
			for b.Loop() {
				f(b)
			}
			b.ReportMetric(float64(cpu()-before)/1e6/float64(b.N), "cpu-ms/op")
		})
	}
	must := func(b *testing.B, err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	run("window", func(b *testing.B) {
		r, err := NewReader(l)
		must(b, err)
		must(b, r.ReadCPU())
		must(b, r.Refresh())
		must(b, r.ReadCPU())
		must(b, r.ReadMemory())
		r.Close()
	})
	r, err := NewReader(l)
	must(b, err)
	defer r.Close()
	must(b, errorsOf(r))
	run("ReadCPU", func(b *testing.B) { must(b, r.ReadCPU()) })
	run("ReadMemory", func(b *testing.B) { must(b, r.ReadMemory()) })
	run("Refresh", func(b *testing.B) { must(b, r.Refresh()) })
	res := l.NewResolver()
	run("Resolver.Path", func(b *testing.B) { _, err := res.Path(1); must(b, err) })
}

// An error about a group that may not be listed or read says which right is missing.
func TestReaderWithoutRights(t *testing.T) {
	l, err := Discover(Roots{})
	if err != nil {
		t.Fatal(err)
	}
	hs := groupsOf(t, l)
	name := fmt.Sprintf("tare-test-rights-%d", os.Getpid())
	top := "/" + name
	defer makeGroup(t, hs, top)()
	for _, h := range hs {
		if err := os.Chmod(h.Mount+top, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	check := func(what string, err error) {
		t.Helper()
		if fault.CodeOf(err) != fault.Machine || !strings.Contains(fault.HintOf(err), "CAP_DAC_READ_SEARCH") {
			t.Errorf("%s: got %v (%q)", what, err, fault.HintOf(err))
		}
	}
	rights.Without(t, func() {
		r, err := NewReaderOf(l, []string{name}) // a group without subgroups is not listed
		if err != nil {
			t.Errorf("a group without others in it: %v", err)
			return
		}
		defer r.Close()
		check("reading CPU time", r.ReadCPU())
		check("reading memory", r.ReadMemory())
	})
	defer makeGroup(t, hs, top+"/below")()
	rights.Without(t, func() {
		r, err := NewReaderOf(l, []string{name})
		if err == nil {
			r.Close()
		}
		check("listing", err)
		r, err = newReader(l, []string{top}, true)
		if err != nil {
			t.Errorf("leaving out what may not be listed: %v", err)
			return
		}
		defer r.Close()
		if all := r.Unread(); len(all) != 1 || all[0].Path != top || !errors.Is(all[0].Err, unix.EACCES) {
			t.Errorf("what may not be listed: %v", all)
		}
		if err := r.Refresh(); err != nil {
			t.Errorf("looking again: %v", err)
		}
	})
}
