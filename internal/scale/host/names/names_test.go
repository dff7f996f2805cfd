package names

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"golang.org/x/sys/unix"

	"tare/internal/scale/host/sandbox"
	"tare/internal/scale/ledger"
	"tare/test/vm/guest"
)

// fixture describes a machine, as read from a file in testdata, and the expected names of its groups.
type fixture struct {
	From   string            `yaml:"from"` // the source of the files' format
	Files  map[string]string `yaml:"files"`
	Owners map[string]int    `yaml:"owners"` // of files that do not belong to root
	Names  map[string]struct {
		Namespace, Pod, Container, Unit, Image string
		Labels                                 map[string]string
		Top                                    string // the expected Name.Top; empty: the group itself
	} `yaml:"names"`
}

// The ids of fixtures, and the uid of their pod.
const testPod = "6f2f4b1c-92a0-4c63-8d0e-0d5b7f3a9e11"

func hex(digits string) string { return strings.Repeat(digits, 64/len(digits)) }

func expand(s string) string {
	return strings.NewReplacer("$A", hex("a1b2c3d4"), "$B", hex("b0b1b2b3"), "$C", hex("c0ffee00"), "$N", hex("dead0001"),
		"$P_.", strings.ReplaceAll(testPod, "-", "_")+".", "$P", testPod).Replace(s)
}

func writeFile(t testing.TB, root, name, content string) {
	t.Helper()
	name = filepath.Join(root, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(content), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// TestFixtures looks up the groups of each machine in both orders: a pod's own group gets its name from any container,
// whenever that was seen.
func TestFixtures(t *testing.T) {
	guest.KernelFree(t)
	paths, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(paths) < 8 {
		t.Fatalf("%d fixtures, %v", len(paths), err)
	}
	for _, file := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var f fixture
			if err := yaml.UnmarshalWithOptions([]byte(expand(string(text))), &f, yaml.Strict()); err != nil {
				t.Fatal(err)
			}
			root := t.TempDir()
			for name, content := range f.Files {
				writeFile(t, root, name, content)
			}
			for name, owner := range f.Owners {
				if err := os.Chown(filepath.Join(root, name), owner, owner); err != nil {
					t.Fatal(err)
				}
			}
			groups := slices.Sorted(maps.Keys(f.Names))
			for range 2 {
				r := Open(Options{Root: root})
				for _, g := range groups {
					r.Of(g)
				}
				for _, g := range groups {
					want := f.Names[g]
					n := ledger.Name{Namespace: want.Namespace, Pod: want.Pod, Container: want.Container, Unit: want.Unit,
						Image: want.Image, Labels: want.Labels}
					if n.Top = g; want.Top != "" {
						n.Top = path.Join(g, want.Top)
					}
					of := sandbox.WhoseIs(n.Top) // the path has the ids
					if n.PodUID = of.Pod; !beside(of.Place) {
						n.ContainerID = of.ID
					}
					if got := r.Of(g); fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", n) {
						t.Errorf("%s:\n%+v, want\n%+v", g, got, n)
					}
				}
				slices.Reverse(groups)
			}
		})
	}
}

// clock is a clock that tests advance.
type clock struct{ time.Time }

func (c *clock) now() time.Time { return c.Time }

// machine returns an empty machine, with a resolver whose clock stands still.
func machine(t *testing.T) (root string, r *Resolver, c *clock) {
	t.Helper()
	root, c = t.TempDir(), &clock{time.Unix(1e9, 0)}
	r = Open(Options{Root: root})
	r.now = c.now
	return root, r, c
}

const bundles = "/run/containerd/io.containerd.runtime.v2.task/k8s.io/"

func bundle(name string) string {
	return `{"annotations": {"io.kubernetes.cri.container-name": "` + name +
		`", "io.kubernetes.cri.sandbox-name": "web-0", "io.kubernetes.cri.sandbox-namespace": "shop"}}`
}

// TestFilesThatComeLater: a missing file is looked for again, but not at each tick.
func TestFilesThatComeLater(t *testing.T) {
	guest.KernelFree(t)
	root, r, c := machine(t)
	group := "/kubepods/pod" + testPod + "/" + hex("a")
	if n := r.Of(group); n.Container != "" || n.Top != group {
		t.Fatalf("%+v", n)
	}
	writeFile(t, root, bundles+hex("a")+"/config.json", bundle("late"))
	c.Time = c.Add(firstWait - 1)
	if n := r.Of(group); n.Container != "" {
		t.Errorf("it was looked for again after %v: %+v", firstWait-1, n)
	}
	c.Time = c.Add(1)
	if n := r.Of(group); n.Container != "late" {
		t.Errorf("it was not looked for again: %+v", n)
	}
	// What is found is not read again.
	if err := os.RemoveAll(filepath.Join(root, "run")); err != nil {
		t.Fatal(err)
	}
	c.Time = c.Add(time.Hour)
	if n := r.Of(group); n.Container != "late" || n.Pod != "web-0" {
		t.Errorf("the name is gone: %+v", n)
	}
	// Another container of the pod has the pod's name before its own, and is looked up less and less often.
	other := "/kubepods/pod" + testPod + "/" + hex("b")
	tries, next := 0, time.Time{}
	for range 600 {
		n := r.Of(other)
		if n.Pod != "web-0" || n.Container != "" {
			t.Fatalf("%+v", n)
		}
		if e := r.known[other]; e.retry != next {
			tries, next = tries+1, e.retry
		}
		c.Time = c.Add(time.Second)
	}
	if want := 14; tries != want { // after 0, 2, 6, 14, 30 and 62 s, and then each minute
		t.Errorf("%d tries in ten minutes, want %d", tries, want)
	}
}

// TestForget: groups that have gone are forgotten, and so are pods and users without remaining groups.
func TestForget(t *testing.T) {
	guest.KernelFree(t)
	root, r, _ := machine(t)
	writeFile(t, root, bundles+hex("a")+"/config.json", bundle("web"))
	pod := "/kubepods/pod" + testPod
	groups := []string{pod, pod + "/" + hex("a"), "/system.slice/ssh.service",
		"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + hex("b") + ".scope"}
	for _, g := range groups {
		r.Of(g)
	}
	r.forget(func(path string) bool { return path == pod })
	if n := r.Of(pod); len(r.known) != 1 || len(r.places) != 1 || n.Pod != "web-0" {
		t.Errorf("%d paths, %d places, %+v", len(r.known), len(r.places), n)
	}
	r.forget(func(string) bool { return false })
	if len(r.known) != 0 || len(r.pods) != 0 {
		t.Errorf("%d paths, %d pods", len(r.known), len(r.pods))
	}
}

// TestFill: the groups of a ledger get names, the same value at each tick. A group that belongs to no container or unit
// gets none, and one whose name is not known yet gets its ids.
func TestFill(t *testing.T) {
	guest.KernelFree(t)
	root, r, c := machine(t)
	writeFile(t, root, bundles+hex("a")+"/config.json", bundle("web"))
	pod := "/kubepods/pod" + testPod
	fill := func(paths ...string) *ledger.Ledger {
		l := &ledger.Ledger{}
		for _, path := range paths {
			l.Cgroups = append(l.Cgroups, ledger.Cgroup{Path: path})
		}
		r.Fill(l)
		return l
	}
	paths := []string{"/", "/kubepods", pod, pod + "/" + hex("a"), pod + "/" + hex("b"), "/system.slice/ssh.service"}
	first := fill(paths...)
	want := []*ledger.Name{nil, nil, {Namespace: "shop", Pod: "web-0", PodUID: testPod, Top: pod},
		{Namespace: "shop", Pod: "web-0", PodUID: testPod, Container: "web", ContainerID: hex("a"), Top: paths[3]},
		{Namespace: "shop", Pod: "web-0", PodUID: testPod, ContainerID: hex("b"), Top: paths[4]},
		{Unit: "ssh.service", Top: paths[5]}}
	for i, g := range first.Cgroups {
		if !reflect.DeepEqual(g.Name, want[i]) {
			t.Errorf("%s: %+v, want %+v", g.Path, g.Name, want[i])
		}
	}
	writeFile(t, root, bundles+hex("b")+"/config.json", bundle("late"))
	c.Time = c.Add(firstWait)
	second := fill(paths...)
	if second.Cgroups[3].Name != first.Cgroups[3].Name {
		t.Error("a name was made again")
	}
	if n := second.Cgroups[4].Name; n.Container != "late" || first.Cgroups[4].Name.Container != "" {
		t.Errorf("%+v; in the ledger before %+v", n, first.Cgroups[4].Name)
	}
	l := &ledger.Ledger{Cgroups: second.Cgroups, Sandboxes: []ledger.Sandbox{{Pod: &ledger.SandboxPod{UID: testPod},
		ByContainer: []ledger.SandboxContainer{{ID: hex("b")}, {ID: hex("c")}}}, {ID: hex("d")}}}
	r.Fill(l)
	if s := l.Sandboxes[0]; s.Pod.Name != "web-0" || s.Pod.Namespace != "shop" || s.ByContainer[0].Name != "late" ||
		s.ByContainer[1].Name != "" || l.Sandboxes[1].Pod != nil {
		t.Errorf("sandboxes: %+v of %+v", s, s.Pod)
	}
	if fill(paths[:2]...); len(r.known) != 2 {
		t.Errorf("%d paths are remembered", len(r.known))
	}
	if l := fill("/kubepods/" + hex("c")); len(l.Warnings) != 0 || l.Cgroups[0].Name.ContainerID != hex("c") {
		t.Errorf("a container that has ended: %+v, %+v", l.Warnings, l.Cgroups[0].Name)
	}
}

// TestWarnings: one warning for all containers names the missing volume, until it is mounted.
func TestWarnings(t *testing.T) {
	guest.KernelFree(t)
	root, r, c := machine(t)
	say := func() string {
		var all []string
		for _, w := range r.warnings() {
			all = append(all, w.Code+": "+w.Message)
		}
		return strings.ReplaceAll(strings.Join(all, "\n"), root, "/host")
	}
	if r.Of("/system.slice/ssh.service"); say() != "" {
		t.Errorf("without containers: %s", say())
	}
	for _, g := range []string{"/kubepods/pod" + testPod + "/" + hex("a"), "/kubepods/pod" + testPod + "/" + hex("b"),
		"/kubepods.slice/cri-containerd-" + hex("c") + ".scope", "/docker/" + hex("d"),
		"/machine.slice/libpod-" + hex("e") + ".scope", "/crio-" + hex("f")} {
		r.Of(g)
	}
	var lines []string
	for _, c := range []struct{ count, volume string }{
		{"4 containers", "/run"}, // those of containerd, CRI-O, and an engine that the path does not show
		{"1 container", "/var/lib/containers/storage/overlay-containers"},
		{"1 container", "/var/lib/docker/containers"},
	} {
		lines = append(lines, fmt.Sprintf("names-not-mounted: %s without a name: their engine has no files in /host%s. "+
			"Where Tare runs in a container, mount the machine's %[2]s there, read-only (in Kubernetes a hostPath volume)",
			c.count, c.volume))
	}
	want := strings.Join(lines, "\n")
	for range 2 { // at each tick
		if got := say(); got != want {
			t.Errorf("nothing is mounted:\n%s\nwant\n%s", got, want)
		}
	}
	for _, dir := range []string{"/run/containerd", "/run/containers", "/var/lib/docker/containers",
		"/var/lib/containers/storage/overlay-containers"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c.Time = c.Add(firstWait)
	for g := range r.known {
		r.Of(g)
	}
	if say() != "" {
		t.Errorf("all is mounted, and the containers have ended: %s", say())
	}
}

// TestDenied: if a runtime's files may not be read, the warning says which right is missing.
func TestDenied(t *testing.T) {
	guest.KernelFree(t)
	root, r, c := machine(t)
	name := bundles + hex("a") + "/config.json"
	writeFile(t, root, name, bundle("web"))
	file := filepath.Join(root, name)
	if err := errors.Join(os.Chmod(filepath.Dir(root), 0o755), os.Chmod(file, 0o600)); err != nil {
		t.Fatal(err)
	}
	group := "/kubepods/" + hex("a")
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and not unlocked: the thread ends with the goroutine
		if err := unix.Setfsuid(65534); err != nil {
			t.Error(err)
		}
		r.Of(group)
	}()
	<-done
	want := "1 container without a name: open " + file + ": permission denied; run as root, or with CAP_DAC_READ_SEARCH"
	if w := r.warnings(); len(w) != 1 || w[0].Code != codeDenied || w[0].Message != want {
		t.Errorf("%+v, want %s", w, want)
	}
	c.Time = c.Add(firstWait)
	if n := r.Of(group); n.Container != "web" || len(r.warnings()) != 0 {
		t.Errorf("%+v, %+v", n, r.warnings())
	}
}

// TestHostileFiles: a file that does not belong to root, is too large or is outside the machine's directory is not
// read, and text from files is bounded and safe to display.
func TestHostileFiles(t *testing.T) {
	guest.KernelFree(t)
	root, r, clock := machine(t)
	outside := t.TempDir()
	writeFile(t, outside, "config.json", bundle("outside"))
	dir := func(c string) string { return filepath.Join(root, bundles, hex(c)) }
	for _, c := range []string{"a", "b", "c", "d", "e", "f", "1", "2"} {
		if err := os.MkdirAll(dir(c), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	file := func(c string) string { return filepath.Join(dir(c), "config.json") }
	many := make([]string, 1000)
	for i := range many {
		many[i] = fmt.Sprintf(`\"k%03d\": \"%s\"`, i, strings.Repeat("v", 300))
	}
	long := strings.Replace(bundle(strings.Repeat("n", 4000)), `"annotations": {`,
		`"annotations": {"io.kubernetes.cri-o.Labels": "{`+strings.Join(many, ",")+`}", `, 1)
	writeFile(t, root, bundles+hex("e")+"/config.json", bundle("others may write"))
	if err := errors.Join(
		os.Symlink(filepath.Join(outside, "config.json"), file("a")), // absolute: below the root there is none
		os.Symlink("../../../../../../../../../../.."+filepath.Join(outside, "config.json"), file("b")),
		unix.Mkfifo(file("c"), 0o600),
		os.WriteFile(file("d"), append([]byte(bundle("large")), make([]byte, 1<<20)...), 0o644),
		os.Chmod(file("e"), 0o666),
		os.WriteFile(file("f"), []byte(bundle("of another user")), 0o644), os.Chown(file("f"), 12345, 12345),
		os.WriteFile(file("1"), []byte(long), 0o644),
		os.WriteFile(file("2"), []byte(bundle(`\u001b[2J\u202e`+"\xff")), 0o644),
	); err != nil {
		t.Fatal(err)
	}
	for _, c := range []string{"a", "b", "c", "d", "e", "f"} {
		if n := r.Of("/kubepods/" + hex(c)); n.Container != "" {
			t.Errorf("%s was read: %+v", c, n)
		}
	}
	n := r.Of("/kubepods/" + hex("1"))
	if len(n.Container) != maxText || !strings.HasSuffix(n.Container, "nn...") || len(n.Labels) != maxLabels ||
		len(n.Labels["k031"]) != maxText {
		t.Errorf("%d bytes of a name, %d labels of %d bytes", len(n.Container), len(n.Labels), len(n.Labels["k031"]))
	}
	if n := r.Of("/kubepods/" + hex("2")); n.Container != `\x1b[2J\u202e`+"\ufffd" {
		t.Errorf("%q", n.Container)
	}
	// Links that belong to root and stay within the machine's directory are followed, such as one from /var/lib/docker to
	// another disk.
	writeFile(t, root, "/data/docker/containers/"+hex("3")+"/config.v2.json", `{"Name": "/linked"}`)
	if err := errors.Join(os.MkdirAll(filepath.Join(root, "var/lib"), 0o755),
		os.Symlink("/data/docker", filepath.Join(root, "var/lib/docker"))); err != nil {
		t.Fatal(err)
	}
	clock.Time = clock.Add(firstWait)
	if n := r.Of("/docker/" + hex("3")); n.Container != "linked" {
		t.Errorf("%+v", n)
	}
	// A user cannot lead the reader to files elsewhere.
	writeFile(t, root, "/etc/passwd", "ann:x:1000:1000::/home/ann:/bin/sh\n")
	list := "/home/ann/.local/share/containers/storage/overlay-containers/"
	writeFile(t, root, "/root/containers.json", `[{"id": "`+hex("4")+`", "names": ["of root"]}]`)
	writeFile(t, root, list+"x", "")
	if err := os.Symlink("/root/containers.json", filepath.Join(root, list, "containers.json")); err != nil {
		t.Fatal(err)
	}
	if n := r.Of("/user.slice/user-1000.slice/user@1000.service/libpod-" + hex("4") + ".scope"); n.Container != "" {
		t.Errorf("%+v", n)
	}
	for _, id := range []string{"../../../etc", "..", "%2e%2e", strings.Repeat("g", 64), hex("A")} {
		if generated(id) {
			t.Errorf("%q became a part of a file's name", id)
		}
	}
}

// FuzzOf: the name of any path is safe to display and within the limits, and its Top is the path or above it.
func FuzzOf(f *testing.F) {
	for _, s := range []string{"/", "", "//", "/kubepods/pod" + testPod + "/" + hex("a"), `/system.slice/a\x2db.service`,
		"/docker/" + hex("a") + "/docker/" + hex("b"), "/user.slice/user-1.slice/user@1.service/x.slice", `/\x.scope`,
		"/x.slice:a:b/c.scope", "relative.service", "a.s////x.slice:a:b/l:x.slice:a:b.scope",
		"/libpod-conmon-" + hex("a") + ".scope"} {
		f.Add(s)
	}
	r := Open(Options{Root: f.TempDir()})
	f.Fuzz(func(t *testing.T, group string) {
		n := r.Of(group)
		check(t, n)
		if !strings.HasPrefix(group, n.Top) || len(n.Top) < len(group) && (n.Top == "" || group[len(n.Top)] != '/') {
			t.Errorf("%q belongs to %q", group, n.Top)
		}
		if n.Unit != "" && n.Container != "" {
			t.Errorf("%q: %+v", group, n)
		}
	})
}

// FuzzFiles: whatever is in the files of engines, names are safe to display and within the limits.
func FuzzFiles(f *testing.F) {
	f.Add([]byte(bundle("a")), true)
	f.Add([]byte(`[{"id": "`+hex("a")+`", "names": ["a"], "metadata": "{}"}]`), false)
	f.Add([]byte(`{"Name": "/a", "Config": {"Labels": {"io.kubernetes.docker.type": "podsandbox", "x": "y"}}}`), true)
	f.Add([]byte(`{"annotations": {"io.kubernetes.cri-o.Labels": "{\"a\": 1}", "io.kubernetes.pod.uid": "../x"}}`), false)
	f.Add([]byte(`[null]`), false)
	root := f.TempDir()
	f.Fuzz(func(t *testing.T, content []byte, inPod bool) {
		for _, name := range []string{bundles + hex("a") + "/config.json", "/var/lib/docker/containers/" + hex("a") +
			"/config.v2.json", "/var/lib/containers/storage/overlay-containers/containers.json"} {
			writeFile(t, root, name, string(content))
			r := Open(Options{Root: root})
			group := "/x/" + hex("a")
			if inPod {
				group = "/kubepods/pod" + testPod + "/" + hex("a")
			}
			check(t, r.Of(group))
			check(t, r.Of(path.Dir(group)))
			if err := os.Remove(filepath.Join(root, name)); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// FuzzHome: a home is an absolute path, and not the root.
func FuzzHome(f *testing.F) {
	f.Add("root:x:0:0:root:/root:/bin/bash\nann:x:1000:1000::/home/../home/ann:/bin/sh\n", uint32(1000))
	f.Add("a:x:1:1::/:/bin/sh\nb:x:1:1::x:\n:::::\n", uint32(1))
	f.Fuzz(func(t *testing.T, passwd string, uid uint32) {
		if home := homeIn(passwd, uid); home != "" && (!path.IsAbs(home) || path.Clean(home) != home || home == "/") {
			t.Errorf("%q", home)
		}
	})
}

func check(t *testing.T, n ledger.Name) {
	t.Helper()
	texts := []string{n.Namespace, n.Pod, n.PodUID, n.Container, n.ContainerID, n.Unit, n.Image}
	for k, v := range n.Labels {
		texts = append(texts, k, v)
	}
	for _, s := range texts {
		if len(s) > maxText || clip(s) != s {
			t.Errorf("%q", s)
		}
	}
	if len(n.Labels) > maxLabels {
		t.Errorf("%d labels", len(n.Labels))
	}
}
