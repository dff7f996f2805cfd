package cgroup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tare/internal/scale/host/mount"
)

func fixture(t testing.TB, name string) *Layout {
	t.Helper()
	root, err := filepath.Abs(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	l, err := Discover(Roots{Proc: root + "/proc", Prefix: root})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func machine(t testing.TB) *Layout {
	t.Helper()
	l, err := Discover(Roots{})
	if err != nil {
		t.Fatal(err)
	}
	if l.Mode == ModeNone {
		t.Skip("needs control groups")
	}
	return l
}

func TestDiscoverFixtures(t *testing.T) {
	for name, want := range map[string]struct {
		memory, cpu, cpuacct string // mount points
		v2                   bool
	}{
		"v1":     {memory: "/sys/fs/cgroup/memory", cpu: "/sys/fs/cgroup/cpu,cpuacct", cpuacct: "/sys/fs/cgroup/cpu,cpuacct"},
		"v2":     {memory: "/sys/fs/cgroup", cpu: "/sys/fs/cgroup", v2: true},
		"hybrid": {memory: "/sys/fs/cgroup/memory", cpu: "/sys/fs/cgroup/cpu", cpuacct: "/sys/fs/cgroup/cpuacct", v2: true},
	} {
		t.Run(name, func(t *testing.T) {
			l := fixture(t, name)
			if l.Mode != name {
				t.Errorf("mode %s", l.Mode)
			}
			if _, ok := l.V2(); ok != want.v2 {
				t.Errorf("v2 found: %v", ok)
			}
			for c, mount := range map[string]string{"memory": want.memory, "cpu": want.cpu, "cpuacct": want.cpuacct} {
				h, ok := l.Controller(c)
				if ok != (mount != "") {
					t.Errorf("%s found: %v", c, ok)
				} else if ok && h.Mount != filepath.Join(l.roots.Prefix, mount) {
					t.Errorf("%s at %s, want %s", c, h.Mount, mount)
				}
			}
		})
	}
}

// writeTree writes files below a new directory.
func writeTree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, "->") {
			if err := os.Symlink(content, strings.TrimSuffix(p, "->")); err != nil {
				t.Fatal(err)
			}
		} else if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestDiscoverNamespaces(t *testing.T) {
	const v2 = " /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
	for _, c := range []struct {
		name, root, own   string
		pids              map[string]string // identities, by path in /proc/<pid>/cgroup
		dirs              map[string]string // directories below the mount, by identity; "-" for none
		directoriesOnDisk []string
		file              string // in the group that is mounted
		whole             bool
	}{
		{
			name: "own namespace, own mount", root: "/", own: "/", whole: true,
			pids: map[string]string{"/": "/", "/app": "/app", "/../other": "/../other"},
			dirs: map[string]string{"/": "", "/app": "/app", "/../other": "-"},
		},
		{
			name: "no namespace, a part is mounted", root: "/docker/aa", own: "/docker/aa",
			pids: map[string]string{"/docker/aa": "/docker/aa", "/other": "/other"},
			dirs: map[string]string{"/docker/aa": "", "/docker/aa/x": "/x", "/docker/aab": "-", "/other": "-"},
		},
		{
			name: "own namespace, mount from above", root: "/../..", own: "/in", whole: true,
			directoriesOnDisk: []string{"a/b/in", "a/c/in"},
			pids:              map[string]string{"/": "/a/b", "/in": "/a/b/in", "/../c": "/a/c"},
			dirs:              map[string]string{"/a/b/in": "/a/b/in", "/": ""},
		},
		{
			name: "own namespace, mount of a namespace around it", root: "/..", own: "/", file: "cgroup.events",
			directoriesOnDisk: []string{"pod"},
			pids:              map[string]string{"/": "/pod"},
			dirs:              map[string]string{"/pod": "/pod", "/": ""},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := map[string]string{
				"proc/77/mountinfo":                "30 1 0:26 " + c.root + v2,
				"proc/77/cgroup":                   "0::" + c.own + "\n",
				"proc/self->":                      "77",
				"sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
			}
			for i, d := range c.directoriesOnDisk {
				procs := "1\n77\n"
				if i > 0 {
					procs = "177\n"
				}
				files["sys/fs/cgroup/"+d+"/cgroup.procs"] = procs
			}
			if c.file != "" {
				files["sys/fs/cgroup/"+c.file] = ""
			}
			root := writeTree(t, files)
			l, err := Discover(Roots{Proc: root + "/proc", Prefix: root})
			if err != nil {
				t.Fatal(err)
			}
			h, ok := l.V2()
			if !ok || l.Mode != ModeV2 {
				t.Fatalf("no v2 hierarchy in %+v", l)
			}
			if got := l.Whole(); got != c.whole {
				t.Errorf("all of the machine's groups can be seen: %v, want %v", got, c.whole)
			}
			r := l.NewResolver()
			for p, want := range c.pids {
				for range 2 { // the second time from memory
					if got := r.identity([]byte("3:cpu:/wrong\n0::" + p + "\n")); got != want {
						t.Errorf("identity of %s is %s, want %s", p, got, want)
					}
				}
			}
			for id, want := range c.dirs {
				dir, ok := h.Dir(id)
				if !ok {
					dir = "-"
				}
				if want != "-" {
					want = root + "/sys/fs/cgroup" + want
				}
				if dir != want {
					t.Errorf("directory of %s is %s, want %s", id, dir, want)
				}
				if rel, inside := strings.CutPrefix(dir, h.Mount); inside && h.Identity(rel) != id {
					t.Errorf("identity of %s is %s, want %s", rel, h.Identity(rel), id)
				}
			}
		})
	}
}

func TestDiscoverNone(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"no kernel support": {"proc/self/mountinfo": "22 28 0:20 / /sys rw - sysfs sysfs rw\n"},
		"nothing mounted":   {"proc/self/mountinfo": "", "proc/self/cgroup": "1:cpu:/\n0::/\n"},
		"namespace not found": {"proc/self/mountinfo": "30 1 0:26 /.. /c rw - cgroup2 none rw\n",
			"proc/self/cgroup": "0::/\n"},
		"only a sibling": {"proc/self/mountinfo": "30 1 0:26 /../x /c rw - cgroup2 none rw\n",
			"proc/self/cgroup": "0::/\n"},
		"lines of other forms": {"proc/self/mountinfo": "x\n1 2 - cgroup2\n1 2 a:b / / rw - cgroup2 a b\n",
			"proc/self/cgroup": "::\n0\n1:cpu:relative\n"},
	} {
		t.Run(name, func(t *testing.T) {
			root := writeTree(t, files)
			l, err := Discover(Roots{Proc: root + "/proc", Prefix: root})
			if err != nil || l.Mode != ModeNone || len(l.Hierarchies) > 0 {
				t.Fatalf("%+v, %v", l, err)
			}
			r, err := NewReader(l)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			if err := errorsOf(r); err != nil || len(r.Groups()) > 0 {
				t.Errorf("%d groups, %v", len(r.Groups()), err)
			}
		})
	}
	if _, err := Discover(Roots{Proc: t.TempDir()}); err == nil {
		t.Error("no error without proc")
	}
}

func TestResolverFixtures(t *testing.T) {
	for _, c := range []struct {
		layout string
		pid    int
		want   string
	}{
		{"v2", 41, "/kubepods.slice/kubepods-burstable.slice/" +
			"kubepods-burstable-pod5b2c1d3e_0f1a_4c7b_9d2e_8a6f4b3c2d1e.slice/cri-containerd-" +
			strings.Repeat("0123456789abcdef", 4) + ".scope"},
		{"v2", 42, "/system.slice/gone.service"},
		{"v1", 41, "/docker/aa:with:colons"},
		{"hybrid", 41, "/both"},
		{"hybrid", 42, "/only2"},
	} {
		if got, err := fixture(t, c.layout).PathOf(c.pid); err != nil || got != c.want {
			t.Errorf("%s, process %d: %q, %v; want %q", c.layout, c.pid, got, err, c.want)
		}
	}
}

func FuzzDiscovery(f *testing.F) {
	for _, n := range []string{"v1", "v2", "hybrid"} {
		m, err1 := os.ReadFile("testdata/" + n + "/proc/self/mountinfo")
		c, err2 := os.ReadFile("testdata/" + n + "/proc/self/cgroup")
		if err1 != nil || err2 != nil {
			f.Fatal(err1, err2)
		}
		f.Add(m, c)
	}
	f.Add([]byte("1 2 0:3 /.. / rw - cgroup2 x y"), []byte("0::/..\n"))
	f.Fuzz(func(t *testing.T, mountinfo, own []byte) {
		mounts := cgroupMounts(mount.Parse(mountinfo))
		for _, m := range parseMembership(own) {
			if !strings.HasPrefix(m.path, "/") {
				t.Errorf("path %q", m.path)
			}
			h, ok := pick(m, mounts, Roots{Proc: "testdata/none"})
			if !ok {
				continue
			}
			if dir, ok := h.Dir(h.fromProc(m.path)); ok && h.Root == "/" && !strings.HasPrefix(dir, h.Mount) {
				t.Errorf("%q of %+v is in %q", m.path, h, dir)
			}
		}
		v1, v2 := Hierarchy{Root: "/"}, Hierarchy{Root: "/", V2: true}
		r := Resolver{v1: &v1, v2: &v2, seen: [3]map[string]string{{}, {}, {}}}
		if id := r.identity(own); id != "" && id[0] != '/' {
			t.Errorf("identity %q", id)
		}
	})
}
