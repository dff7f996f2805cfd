package sandbox

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"tare/internal/scale/host/proc"
	"tare/test/vm/guest"
)

// fixture describes a machine, as read from a file in testdata, and the expected result for each of its processes.
type fixture struct {
	Title   string            `yaml:"title"`
	Cgroups string            `yaml:"cgroups"` // v1, v2, hybrid
	Row     string            `yaml:"row"`
	Sandbox expected          `yaml:"sandbox"`
	Also    []expected        `yaml:"also"` // further sandboxes
	Procs   []fixtureProcess  `yaml:"processes"`
	Groups  map[string]string `yaml:"groups"` // further groups, with "anon=1 shmem=2 limit=3" in MB
	Files   map[string]string `yaml:"files"`
	Says    []string          `yaml:"says"` // findings: code, a colon, and the message
}

type expected struct {
	ID         string   `yaml:"id"`
	Runtime    string   `yaml:"runtime"`
	Engine     string   `yaml:"engine"`
	Driver     string   `yaml:"driver"`
	Pod        string   `yaml:"pod"`
	Name       string   `yaml:"name"` // namespace/name of its pod, else its container's
	Containers []string `yaml:"containers"`
	VM         bool     `yaml:"vm"`
	Declared   string   `yaml:"declared"` // MB, a space, a part of the source
}

type fixtureProcess struct {
	PID     int             `yaml:"pid"`
	PPID    int             `yaml:"ppid"`
	Comm    string          `yaml:"comm"`
	Args    string          `yaml:"args"` // separated by spaces
	Exe     string          `yaml:"exe"`
	Kernel  bool            `yaml:"kernel"`
	At      string          `yaml:"at"` // one path, or "cpu=/a memory=/b"
	PSS     int             `yaml:"pss"`
	Is      string          `yaml:"is"`     // "COMPONENT", "COMPONENT CONTAINER-ID", "shared COMPONENT" or "none"
	In      string          `yaml:"in"`     // id of its sandbox, if that is not the first
	Signs   string          `yaml:"signs"`  // separated by commas
	Charged string          `yaml:"places"` // "cpu memory", each with + if it is inside
	Threads []fixtureThread `yaml:"threads"`
}

type fixtureThread struct {
	TID  int    `yaml:"tid"`
	Comm string `yaml:"comm"`
	At   string `yaml:"at"`
	Is   string `yaml:"is"`
}

const testPod = "6f2f4b1c-92a0-4c63-8d0e-0d5b7f3a9e11"

// expand replaces the names of ids in fixtures with ids.
func expand(s string) string {
	hex := func(digits string) string { return strings.Repeat(digits, 64/len(digits)) }
	kind := "/system.slice/docker-" + hex("dead0001") + ".scope/kubelet.slice/kubelet-kubepods.slice/" +
		"kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod0123456789abcdef0123456789abcdef.slice"
	return strings.NewReplacer("$K", kind, "$A", hex("a1b2c3d4"), "$B", hex("b0b1b2b3"), "$C", hex("c0ffee00"),
		"$N", hex("dead0001"), "$P_", strings.ReplaceAll(testPod, "-", "_"), "$P", testPod).Replace(s)
}

func loadFixture(t testing.TB, file string) *fixture {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var f fixture
	if err := yaml.UnmarshalWithOptions([]byte(expand(string(text))), &f, yaml.Strict()); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return &f
}

// controllers lists the hierarchies of a machine by mode: the second field in /proc/<pid>/cgroup, and the mount point.
var controllers = map[string][][2]string{
	"v1":     {{"cpu,cpuacct", "cpu,cpuacct"}, {"memory", "memory"}, {"name=systemd", "systemd"}},
	"v2":     {{"", ""}},
	"hybrid": {{"cpu,cpuacct", "cpu,cpuacct"}, {"memory", "memory"}, {"", "unified"}},
}

// unpack creates the tree of files that stands for the machine.
func (f *fixture) unpack(t testing.TB, root string) {
	t.Helper()
	w := writer{t, root}
	var mounts, own strings.Builder
	for i, c := range controllers[f.Cgroups] {
		point := strings.TrimSuffix("/sys/fs/cgroup/"+c[1], "/")
		fstype, options := "cgroup", "rw,"+c[0]
		if c[0] == "" {
			fstype, options = "cgroup2", "rw"
			w.file(point+"/cgroup.controllers", map[string]string{"v2": "cpu io memory pids"}[f.Cgroups]+"\n")
		}
		w.file(point+"/cgroup.procs", "")
		fmt.Fprintf(&mounts, "%d 1 0:%d / %s rw - %s %s %s\n", 30+i, 30+i, point, fstype, fstype, options)
		fmt.Fprintf(&own, "%s\n", f.line(i, c[0], "/"))
	}
	w.file("/proc/self/mountinfo", mounts.String())
	w.file("/proc/self/cgroup", own.String())
	for _, p := range f.Procs {
		f.process(w, p)
	}
	for path, content := range f.Groups {
		f.group(w, path, content)
	}
	for path, content := range f.Files {
		w.file(path, content)
	}
}

type writer struct {
	t    testing.TB
	root string
}

func (w writer) file(name, content string) {
	w.t.Helper()
	name = filepath.Join(w.root, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		w.t.Fatal(err)
	}
}

// line returns one line of /proc/<pid>/cgroup.
func (f *fixture) line(i int, controllers, path string) string {
	if controllers == "" {
		return "0::" + path
	}
	return fmt.Sprintf("%d:%s:%s", i+2, controllers, path)
}

// membership returns the text of /proc/<pid>/cgroup for a process at a place, and creates the groups.
func (f *fixture) membership(w writer, at string) string {
	var lines []string
	for i, c := range controllers[f.Cgroups] {
		path := at
		if strings.HasPrefix(at, "cpu=") {
			cpu, memory, _ := strings.Cut(strings.TrimPrefix(at, "cpu="), " memory=")
			path = cpu
			if c[0] == "memory" {
				path = memory
			}
		}
		if f.Cgroups == "hybrid" && c[0] == "" {
			path = "/" // unused in hybrid mode
		}
		lines = append(lines, f.line(i, c[0], path))
		f.group(w, path, "")
	}
	return strings.Join(lines, "\n") + "\n"
}

// group creates a group in all hierarchies, with the memory that content gives.
func (f *fixture) group(w writer, path, content string) {
	values := map[string]int{}
	for _, field := range strings.Fields(content) {
		name, value, _ := strings.Cut(field, "=")
		n, err := strconv.Atoi(value)
		if err != nil {
			w.t.Fatal(err)
		}
		values[name] = n * 1e6
	}
	for _, c := range controllers[f.Cgroups] {
		dir := "/sys/fs/cgroup/" + c[1] + path + "/"
		if err := os.MkdirAll(filepath.Join(w.root, dir), 0o755); err != nil {
			w.t.Fatal(err)
		}
		if content == "" {
			continue
		}
		switch c[0] {
		case "memory":
			w.file(dir+"memory.stat", fmt.Sprintf("total_rss %d\ntotal_cache %d\ntotal_shmem %d\n", values["anon"],
				values["shmem"]+values["file"], values["shmem"]))
			w.file(dir+"memory.usage_in_bytes", fmt.Sprintln(values["anon"]+values["shmem"]+values["file"]))
			if n, ok := values["limit"]; ok {
				w.file(dir+"memory.limit_in_bytes", fmt.Sprintln(n))
			}
		case "":
			w.file(dir+"memory.stat", fmt.Sprintf("anon %d\nfile %d\nshmem %d\n", values["anon"],
				values["shmem"]+values["file"], values["shmem"]))
			w.file(dir+"memory.current", fmt.Sprintln(values["anon"]+values["shmem"]+values["file"]))
			if n, ok := values["limit"]; ok {
				w.file(dir+"memory.max", fmt.Sprintln(n))
			}
		}
	}
}

func (f *fixture) process(w writer, p fixtureProcess) {
	dir := fmt.Sprintf("/proc/%d/", p.PID)
	flags := 0x400000
	if p.Kernel {
		flags |= 0x200000
	}
	stat := func(id int, comm string) string {
		return fmt.Sprintf("%d (%s) S %d 1 1 0 -1 %d 0 0 0 0 5 7 0 0 20 0 1 0 %d 0 0\n", id, comm, max(p.PPID, 1), flags,
			1000+p.PID)
	}
	w.file(dir+"stat", stat(p.PID, p.Comm))
	w.file(dir+"comm", p.Comm+"\n")
	args := ""
	if p.Args != "" {
		args = strings.Join(strings.Fields(p.Args), "\x00") + "\x00"
	}
	w.file(dir+"cmdline", args)
	w.file(dir+"cgroup", f.membership(w, p.At))
	if p.Exe != "" {
		if err := os.Symlink(p.Exe, filepath.Join(w.root, dir, "exe")); err != nil {
			w.t.Fatal(err)
		}
	}
	if p.PSS > 0 {
		w.file(dir+"smaps_rollup", fmt.Sprintf("00400000-7fff0000 ---p 00000000 00:00 0    [rollup]\n"+
			"Rss: %d kB\nPss: %d kB\nPss_Anon: %d kB\nPss_File: 0 kB\nPss_Shmem: 0 kB\n", p.PSS*2, p.PSS, p.PSS))
	}
	w.file(fmt.Sprintf("%stask/%d/comm", dir, p.PID), p.Comm+"\n")
	for _, thread := range p.Threads {
		task := fmt.Sprintf("%stask/%d/", dir, thread.TID)
		at := thread.At
		if at == "" {
			at = p.At
		}
		w.file(task+"comm", thread.Comm+"\n")
		w.file(task+"cgroup", f.membership(w, at))
		w.file(task+"schedstat", "1000000 0 1\n")
		w.file(task+"stat", stat(thread.TID, thread.Comm))
	}
}

// sizesOf reads PSS, as tare weigh does.
func sizesOf(root string) Sizes {
	fs := proc.FS{Root: root}
	return func(p *Process) (uint64, string, bool) {
		r, err := fs.Rollup(p.PID)
		return r.PSS, "PSS", err == nil && r.PSS > 0
	}
}

// Every process and thread of every fixture is identified as the fixture says, and so are the arrangement and the
// findings.
func TestFixtures(t *testing.T) {
	guest.KernelFree(t)
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) < 30 {
		t.Fatalf("%d fixtures, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			f := loadFixture(t, file)
			root := t.TempDir()
			f.unpack(t, root)
			r, err := New(Options{Root: root})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			c, err := r.Read(true)
			if err != nil {
				t.Fatal(err)
			}
			f.check(t, c, root)
			// Partial readings give the same result.
			for range 2 * membershipTurns {
				if c, err = r.Read(false); err != nil {
					t.Fatal(err)
				}
			}
			f.check(t, c, root)
		})
	}
}

func (f *fixture) check(t *testing.T, c *Census, root string) {
	t.Helper()
	byPID := map[int]*Process{}
	for _, s := range c.Sandboxes {
		for _, p := range s.Processes {
			byPID[p.PID] = p
			if p.Sandbox != s.ID {
				t.Errorf("process %d says that it is in %s, and is listed in %s", p.PID, p.Sandbox, s.ID)
			}
		}
	}
	for _, p := range c.Shared {
		byPID[p.PID] = p
	}
	for _, want := range f.Procs {
		f.checkProcess(t, want, byPID[want.PID])
	}
	expectedSandboxes := f.Also
	if f.Sandbox.ID != "" {
		expectedSandboxes = append([]expected{f.Sandbox}, f.Also...)
	}
	if len(c.Sandboxes) != len(expectedSandboxes) {
		t.Errorf("%d sandboxes, want %d", len(c.Sandboxes), len(expectedSandboxes))
		for _, s := range c.Sandboxes {
			t.Logf("%+v", *s)
		}
	}
	var says []string
	for i, want := range expectedSandboxes {
		s, ok := c.Sandbox(want.ID)
		if !ok {
			t.Errorf("no sandbox %s", want.ID)
			continue
		}
		if i == 0 && s.Row != f.Row {
			t.Errorf("the row is %q, want %q", s.Row, f.Row)
		}
		got := expected{ID: s.ID, Name: s.Name, Runtime: s.Runtime, Engine: s.Engine, Driver: s.Driver, Pod: s.Pod.UID,
			Containers: s.Containers, VM: s.VM}
		if s.Pod.Name != "" {
			got.Name = s.Pod.Namespace + "/" + s.Pod.Name
		}
		declared := ""
		if s.Declared != nil {
			declared = fmt.Sprintf("%d %s", s.Declared.MemoryBytes/1e6, s.Declared.Source)
		}
		if (declared == "") != (want.Declared == "") || !strings.HasPrefix(declared, want.Declared) {
			t.Errorf("declared is %q, want %q", declared, want.Declared)
		}
		want.Declared = ""
		if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
			t.Errorf("the sandbox is\n%+v, want\n%+v", got, want)
		}
		for _, x := range c.Findings(s, sizesOf(root)) {
			says = append(says, x.Code+": "+x.Message)
		}
	}
	if !slices.Equal(says, f.Says) {
		t.Errorf("the findings are\n%s\nwant\n%s", strings.Join(says, "\n"), strings.Join(f.Says, "\n"))
	}
}

func (f *fixture) checkProcess(t *testing.T, want fixtureProcess, p *Process) {
	t.Helper()
	if want.Is == "none" || want.Is == "" {
		if p != nil {
			t.Errorf("process %d (%s) is %s of %s, want nothing", want.PID, want.Args, p.Component, p.Sandbox)
		}
		return
	}
	if p == nil {
		t.Errorf("process %d (%s) is nothing, want %s", want.PID, want.Args, want.Is)
		return
	}
	is := strings.TrimSpace(string(p.Component) + " " + p.Container)
	in := want.In
	if in == "" {
		in = f.Sandbox.ID
	}
	if p.Sandbox == "" {
		is, in = "shared "+is, ""
	}
	if is != want.Is || p.Sandbox != in {
		t.Errorf("process %d (%s) is %q in %q, want %q in %q", want.PID, want.Args, is, p.Sandbox, want.Is, in)
	}
	if want.Signs != "" {
		var signs []string
		for _, s := range p.Signs {
			signs = append(signs, string(s))
		}
		if got := strings.Join(signs, ", "); got != want.Signs {
			t.Errorf("process %d is known by %q, want %q", want.PID, got, want.Signs)
		}
	}
	if want.Charged != "" {
		if got := placed(p.CPU) + " " + placed(p.Memory); got != want.Charged {
			t.Errorf("process %d is charged to %q, want %q", want.PID, got, want.Charged)
		}
	}
	for _, wt := range want.Threads {
		i := slices.IndexFunc(p.Threads, func(t Thread) bool { return t.TID == wt.TID })
		switch {
		case wt.Is == "" && i >= 0:
			t.Errorf("thread %d (%s) is listed as %+v", wt.TID, wt.Comm, p.Threads[i])
		case wt.Is == "":
		case i < 0:
			t.Errorf("thread %d (%s) is not listed, want %s", wt.TID, wt.Comm, wt.Is)
		default:
			if got := string(p.Threads[i].Component) + " " + placed(p.Threads[i].CPU); got != wt.Is {
				t.Errorf("thread %d (%s) is %q, want %q", wt.TID, wt.Comm, got, wt.Is)
			}
		}
	}
}

// placed returns a place, with + if it is inside the sandbox's own groups.
func placed(l Location) string {
	if l.Inside {
		return string(l.Place) + "+"
	}
	return string(l.Place)
}

// Every row and every finding of the table has a fixture that shows it.
func TestEveryRowHasAFixture(t *testing.T) {
	guest.KernelFree(t)
	table := builtin()
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	rows, codes := map[string]bool{}, map[string]bool{}
	for _, file := range files {
		f := loadFixture(t, file)
		rows[f.Row] = true
		for _, s := range f.Says {
			code, _, _ := strings.Cut(s, ":")
			codes[code] = true
		}
		if f.Title == "" {
			t.Errorf("%s has no title", file)
		}
	}
	for _, r := range table.Rows {
		if !rows[r.Name] {
			t.Errorf("no fixture shows row %s", r.Name)
		}
	}
	for _, f := range table.Findings {
		if !codes[f.Code] {
			t.Errorf("no fixture shows finding %s", f.Code)
		}
	}
}

// Sandbox finds a sandbox by its id.
func (c *Census) Sandbox(id string) (*Sandbox, bool) {
	i, ok := slices.BinarySearchFunc(c.Sandboxes, id, func(s *Sandbox, id string) int { return cmp.Compare(s.ID, id) })
	if !ok {
		return nil, false
	}
	return c.Sandboxes[i], true
}
