package placement

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/child"
	"tare/internal/experiment/containment"
	"tare/internal/lib/fault"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/proc"
	"tare/test/started"
	"tare/test/vm/guest"
)

const (
	helperEnv = "TARE_TEST_HELPER" // makes the test binary run as a helper instead of running tests
	nginxEnv  = "TARE_TEST_NGINX"  // path of a configuration
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == EnterCommand {
		err := Enter(os.Args[2:])
		fmt.Fprintln(os.Stderr, err)
		os.Exit(int(fault.CodeOf(err)))
	}
	switch os.Getenv(helperEnv) {
	case "owner":
		os.Exit(ownTree())
	case "owner of nginx":
		os.Exit(ownTree("nginx", "-e", "stderr", "-c", os.Getenv(nginxEnv)))
	case "owner of daemons":
		os.Exit(ownTree("bash", "-c", daemon))
	case "container":
		os.Exit(enterContainer())
	case "owner in a container":
		mountInside()
		os.Exit(ownTree())
	case "cleaner in a container":
		mountInside()
		os.Exit(cleanInside())
	case "nobody":
		os.Exit(tryAsNobody())
	}
	os.Exit(m.Run())
}

// ownTree creates a tree with two processes in it, of the given program or of sleep, prints their PIDs and the tree's
// name, and waits to be killed.
func ownTree(argv ...string) int {
	if len(argv) == 0 {
		argv = []string{"sleep", "1000"}
	}
	l, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		return 1
	}
	t, err := NewTree(l, "test")
	if err != nil {
		return 1
	}
	for _, name := range []string{"app", "work/client"} {
		g, err := t.Group(name, Limits{})
		if err != nil {
			return 1
		}
		cmd := exec.Command(argv[0], argv[1:]...)
		if err := g.Start(cmd); err != nil {
			return 1
		}
		fmt.Println(t.Name(), cmd.Process.Pid)
	}
	fmt.Println("ready")
	for {
		time.Sleep(time.Hour)
	}
}

func tryAsNobody() int {
	l, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		return 1
	}
	if err := unix.Setuid(65534); err != nil {
		return 1
	}
	_, err = NewTree(l, "test")
	fmt.Println(err, fault.HintOf(err))
	return int(fault.CodeOf(err))
}

func machine(t *testing.T) *cgroup.Layout {
	t.Helper()
	l, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	if os.Getuid() != 0 || len(hierarchies(l)) == 0 {
		t.Skip("needs root and control groups")
	}
	return l
}

func newTree(t *testing.T, l *cgroup.Layout) *Tree {
	t.Helper()
	tree, err := NewTree(l, "test-"+strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-")))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.Close(); err != nil {
			t.Error(err)
		}
	})
	return tree
}

// traces lists the directories of a tree.
func traces(l *cgroup.Layout, name string) []string {
	var found []string
	for _, h := range hierarchies(l) {
		if _, err := os.Lstat(filepath.Join(h.Mount, name)); err == nil {
			found = append(found, filepath.Join(h.Mount, name))
		}
	}
	return found
}

// eventually waits for something that another process is about to do.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !f(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it did not come about that %s", what)
		}
	}
}

func gone(pid int) bool {
	p, err := proc.FS{}.Process(pid)
	return err != nil || !p.Alive()
}

func TestNames(t *testing.T) {
	for name, want := range map[string]proc.Identity{
		"tare-quickstart-p12-t345":                   {PID: 12, Start: 345},
		"tare-a-p1-t2-p3-t4":                         {PID: 3, Start: 4},
		"tare-a-n4026532501-p7-t8":                   {PID: 7, Start: 8, Namespace: 4026532501},
		"tare-a-n1-n4026532501-p7-t8":                {PID: 7, Start: 8, Namespace: 4026532501},
		"tare-a-n01-p7-t8":                           {PID: 7, Start: 8}, // an id
		"tare-n4026532501-p7-t8":                     {PID: 7, Start: 8},
		"tare-foo":                                   {},
		"tarefoo":                                    {},
		"tare-foo-12-345":                            {},
		"tare--p1-t2":                                {},
		"tare-x-p0-t2":                               {},
		"tare-x-p1-t2 ":                              {},
		"tare-x-p1-t99999999999999999999":            {},
		"tare-x-p9999999999-t9":                      {PID: 9999999999, Start: 9},
		"tare-../../etc-p1-t2":                       {},
		"tare-X-p1-t2":                               {},
		"xtare-a-p1-t2":                              {},
		"tare-a-p1-t2/../x":                          {},
		"tare-" + strings.Repeat("a", 65) + "-p1-t2": {},
	} {
		if got, ok := parseTreeName(name); ok != (want != proc.Identity{}) || ok && got != want {
			t.Errorf("%q: %+v, %v; want %+v", name, got, ok, want)
		}
	}
	l := &cgroup.Layout{}
	for _, id := range []string{"", "A", "a/b", "..", "-a", "a b", strings.Repeat("a", 65)} {
		if _, err := NewTree(l, id); fault.CodeOf(err) != fault.Usage {
			t.Errorf("id %q: %v", id, err)
		}
	}
	if _, err := NewTree(l, "a"); fault.CodeOf(err) != fault.Machine || fault.HintOf(err) == "" {
		t.Errorf("without control groups: %v", err)
	}
}

func TestPlacement(t *testing.T) {
	l := machine(t)
	tree := newTree(t, l)
	for _, m := range tree.Missing() {
		t.Log("missing: ", m)
	}
	g, err := tree.Group("work/client", Limits{})
	if err != nil {
		t.Fatal(err)
	}
	// The program first prints its groups.
	cmd := exec.Command("sh", "-c", `cat /proc/self/cgroup; echo "$TARE_RUN $0 $1"; cat`, "a b", "--")
	stdin, err1 := cmd.StdinPipe()
	stdout, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, g.Start(cmd)); err != nil {
		t.Fatal(err)
	}
	in := map[string]bool{}
	lines := bufio.NewScanner(stdout)
	for lines.Scan() && strings.Contains(lines.Text(), ":/") {
		f := strings.SplitN(lines.Text(), ":", 3)
		in[f[1]] = f[2] == g.Path()
	}
	if want := tree.Name() + " a b --"; lines.Text() != want {
		t.Errorf("the program was told %q, want %q", lines.Text(), want)
	}
	for _, h := range tree.hs {
		if key := strings.Join(h.Controllers, ","); !in[key] && !(h.V2 && in[""]) {
			t.Errorf("the program is not in the group of %s: %v", h.Mount, in)
		}
	}
	if p, err := l.PathOf(cmd.Process.Pid); err != nil || p != g.Path() {
		t.Errorf("it is in %q, %v; want %q", p, err, g.Path())
	}
	if _, v2 := l.V2(); v2 {
		if _, err := os.Stat(filepath.Join(g.V2Dir(), "cgroup.procs")); err != nil {
			t.Error(err)
		}
	}
	if exe, err := (proc.FS{}).Exe(cmd.Process.Pid); err != nil || strings.Contains(exe, "test") {
		t.Errorf("it runs %s, %v", exe, err)
	}

	// A group has either subgroups or processes.
	if _, err := tree.Group("work/client/deeper", Limits{}); fault.CodeOf(err) != fault.Usage {
		t.Errorf("a group below processes: %v", err)
	}
	if _, err := tree.Group("work/client", Limits{}); fault.CodeOf(err) != fault.Usage {
		t.Errorf("a group twice: %v", err)
	}
	if err := tree.groups["work"].Start(exec.Command("true")); fault.CodeOf(err) != fault.Usage {
		t.Errorf("a process above groups: %v", err)
	}
	for _, name := range []string{"", "/a", "a/", "a//b", "../a", "a/../b", "A", strings.Repeat("a/", 9) + "a"} {
		if _, err := tree.Group(name, Limits{}); fault.CodeOf(err) != fault.Usage {
			t.Errorf("group %q: %v", name, err)
		}
	}

	stdin.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

func TestProgramsThatCannotRun(t *testing.T) {
	tree := newTree(t, machine(t))
	g, err := tree.Group("app", Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Start(exec.Command("no-such-program-anywhere")); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("not in PATH: %v", err)
	}
	file := filepath.Join(t.TempDir(), "not-a-program")
	if err := os.WriteFile(file, []byte{0}, 0o755); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	cmd := exec.Command(file)
	cmd.Stderr = &out
	if err := g.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != int(fault.Usage) ||
		!strings.Contains(out.String(), "cannot run") {
		t.Errorf("%v, %q", err, out.String())
	}
	for _, args := range [][]string{nil, {"--"}, {"a", "b"}, {"--", "x"}} {
		if err := Enter(args); fault.CodeOf(err) != fault.Usage {
			t.Errorf("entering %q: %v", args, err)
		}
	}
}

func TestLimits(t *testing.T) {
	l := machine(t)
	tree := newTree(t, l)
	read := func(controller string, g *Group, file1, file2 string) string {
		h, _ := l.Controller(controller)
		file := file1
		if h.V2 {
			file = file2
		}
		b, err := os.ReadFile(filepath.Join(tree.dir(h, g.name), file))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(b))
	}
	limits := Limits{CPUs: 0.2, MemoryBytes: 64 << 20}
	g, err := tree.Group("limited", limits)
	if len(tree.Missing()) > 0 {
		if fault.CodeOf(err) != fault.Machine || fault.HintOf(err) == "" {
			t.Errorf("limits without controllers: %v", err)
		}
		t.Skip("needs the controllers cpu and memory: ", tree.Missing())
	}
	if err != nil {
		t.Fatal(err)
	}
	if q := read("cpu", g, "cpu.cfs_quota_us", "cpu.max"); q != "20000" && q != "20000 100000" {
		t.Errorf("quota %q", q)
	}
	if m := read("memory", g, "memory.limit_in_bytes", "memory.max"); m != strconv.Itoa(64<<20) {
		t.Errorf("memory limit %q", m)
	}
	if _, err := tree.Group("tiny", Limits{CPUs: 0.001}); fault.CodeOf(err) != fault.Usage {
		t.Errorf("a limit below what the kernel takes: %v", err)
	}

	// The quota has an effect, which the reader sees.
	reader, err := cgroup.NewReader(l)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	cmd := exec.Command("sh", "-c", "while :; do :; done")
	if err := g.Start(cmd); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(reader.Groups(), func(c *cgroup.Group) bool { return c.Path == g.Path() })
	if i < 0 {
		t.Fatalf("the reader has no group %s", g.Path())
	}
	eventually(t, "the group was throttled", func() bool {
		if err := reader.ReadCPU(); err != nil {
			t.Fatal(err)
		}
		c := reader.Groups()[i].CPU
		return c.ThrottledPeriods.N > 2 && c.ThrottledNs.N > 0 && c.Periods.N >= c.ThrottledPeriods.N && c.UsageNs.N > 1e6
	})
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
}

func TestClose(t *testing.T) {
	l := machine(t)
	tree, err := NewTree(l, "test-close")
	if err != nil {
		t.Fatal(err)
	}
	g, err := tree.Group("a/b/c", Limits{})
	if err != nil {
		t.Fatal(err)
	}
	// A child of a child, which has left its parent's session and ignores what can be ignored.
	cmd := exec.Command("sh", "-c", `trap "" TERM HUP INT; setsid sh -c 'echo $$; exec sleep 1000' & sleep 1000`)
	out, err := cmd.StdoutPipe()
	if err := errors.Join(err, g.Start(cmd)); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	grandchild, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := tree.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if left := traces(l, tree.Name()); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	_ = cmd.Wait() // killed
	if !gone(grandchild) {
		t.Error("the grandchild lives")
	}
	if _, err := tree.Group("x", Limits{}); err == nil {
		t.Error("a group in a closed tree")
	}
	if err := g.Start(exec.Command("true")); err == nil {
		t.Error("a process in a closed tree")
	}
}

// A process that is just entering its group when the tree is closed has ended when Close returns.
func TestCloseOnTheWay(t *testing.T) {
	l := machine(t)
	for range 30 {
		tree := newTree(t, l)
		g, err := tree.Group("app", Limits{})
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("sleep", "600")
		if err := g.Start(cmd); err != nil {
			t.Fatal(err)
		}
		if err := tree.Close(); err != nil {
			t.Fatal(err)
		}
		if mark := markOf(cmd.Process.Pid, new(time.Second)); mark != "" {
			t.Fatalf("process %d of %s still runs", cmd.Process.Pid, mark)
		}
		_ = cmd.Wait()
	}
}

// A process without a mark is ended too; none has a mark at the moment in which it executes another program.
func TestCloseEndsWhatHasNoMark(t *testing.T) {
	for _, tool := range []string{"bash", "setpriv"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("needs " + tool)
		}
	}
	l := machine(t)
	tree := newTree(t, l)
	g, err := tree.Group("app", Limits{})
	if err != nil {
		t.Fatal(err)
	}
	var close strings.Builder
	for fd := firstMarkFD; fd <= lastMarkFD; fd++ {
		fmt.Fprintf(&close, "exec %d>&-; ", fd)
	}
	cmd := exec.Command("setpriv", "--pdeathsig", "clear", "env", "-i", "bash", "-c", close.String()+"exec sleep 600")
	if err := g.Start(cmd); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	eventually(t, "the mark is gone", func() bool {
		return child.Comm(pid) == "sleep" && markOf(pid, new(time.Second)) == ""
	})
	for _, h := range hierarchies(l) { // out of its groups, like a process that has not entered them yet
		if err := cgroup.Write(filepath.Join(h.Mount, "cgroup.procs"), strconv.Itoa(pid)); err != nil {
			t.Fatal(err)
		}
	}
	if err := tree.Close(); err != nil {
		t.Fatal(err)
	}
	p, err := proc.FS{}.Process(pid)
	if err == nil && p.Alive() {
		t.Errorf("process %d still runs", pid)
		_ = cmd.Process.Kill()
	}
	_ = cmd.Wait()
}

// TestOnTheWay: from the moment that Start returns, a process is entering its group or in it, even if a busy machine
// holds it up.
func TestOnTheWay(t *testing.T) {
	guest.Slow(t)
	tree := newTree(t, machine(t))
	g, err := tree.Group("work", Limits{})
	if err != nil {
		t.Fatal(err)
	}
	starts := 300 // in about three of them, the process has no arguments yet when Start returns
	if testing.Short() {
		starts = 10
	}
	for range 8 * runtime.NumCPU() {
		busy := exec.Command("sh", "-c", "while :; do :; done")
		busy.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
		if err := busy.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = busy.Process.Kill(); _ = busy.Wait() }()
	}
	for range starts {
		cmd := exec.Command("sleep", "600")
		if err := g.Start(cmd); err != nil {
			t.Fatal(err)
		}
		p, err := proc.FS{}.Process(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		if !tree.onTheWay(p) && !slices.Contains(g.Members(), p.PID) {
			args, err := proc.FS{}.Cmdline(p.PID)
			t.Errorf("process %d (%s) is neither: arguments %q, %v, in the group %v", p.PID, p.Comm, args, err, g.Members())
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

// TestWatch: a process that has left its group, in any hierarchy or with any thread, is found whatever it has done to
// its marks, and no other is. It is ended with the tree.
func TestWatch(t *testing.T) {
	l := machine(t)
	tree := newTree(t, l)
	other, err := NewTree(l, "test-watch-other")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	start := func(of *Tree, name string) (*Group, int) {
		t.Helper()
		g, err := of.Group(name, Limits{})
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("env", "-i", "sleep", "600")
		if err := g.Start(cmd); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		eventually(t, "it has entered, and runs", func() bool {
			comm, err := proc.FS{}.Comm(cmd.Process.Pid)
			return err == nil && comm == "sleep" && slices.Equal(g.Members(), []int{cmd.Process.Pid})
		})
		return g, cmd.Process.Pid
	}
	memory, ok := l.Controller("memory")
	if !ok {
		t.Fatal("this machine counts no memory")
	}
	_, stays := start(tree, "stays")
	beside, left := start(tree, "leaves")
	_, moved := start(tree, "moves")
	_, remembers := start(tree, "remembers")
	_, unmarked := start(tree, "unmarked")
	_, foreign := start(other, "foreign")
	if err := unix.Prlimit(unmarked, unix.RLIMIT_LOCKS, &unix.Rlimit{Cur: 1000, Max: 1000}, nil); err != nil {
		t.Fatal(err)
	}
	move := func(pid int, to func(h *cgroup.Hierarchy) string) {
		t.Helper()
		for _, h := range hierarchies(l) {
			if dir := to(h); dir != "" {
				if err := cgroup.Write(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(pid)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	root := func(h *cgroup.Hierarchy) string { return h.Mount }
	watch := func(apart bool) map[int]containment.Stray {
		t.Helper()
		w, err := tree.Watch(apart)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		strays, err := w.End()
		if err != nil {
			t.Fatal(err)
		}
		found := map[int]containment.Stray{}
		for _, s := range strays {
			found[s.PID] = s
		}
		return found
	}
	if found := watch(true); len(found) > 0 {
		t.Errorf("nothing has left, and found are %+v", found)
	}
	for _, pid := range []int{left, unmarked, foreign} {
		move(pid, root)
	}
	move(moved, func(h *cgroup.Hierarchy) string { return beside.tree.dir(h, beside.name) })
	move(remembers, func(h *cgroup.Hierarchy) string {
		if h == memory {
			return h.Mount
		}
		return ""
	})
	found := watch(true)
	for pid, group := range map[int]string{left: "/", unmarked: "/", moved: beside.Path(), remembers: "/"} {
		if found[pid].Group != group || found[pid].Comm != "sleep" {
			t.Errorf("process %d was found in %+v, want group %s", pid, found[pid], group)
		}
		delete(found, pid)
	}
	if len(found) > 0 {
		t.Errorf("also found are %+v (%d stays, %d is of another tree)", found, stays, foreign)
	}
	if found := watch(false); len(found) != 3 || found[moved].PID > 0 {
		t.Errorf("found are %+v, and what is in another group of the tree may be there", found)
	}
	if err := tree.Close(); err != nil {
		t.Fatal(err)
	}
	for _, pid := range []int{left, unmarked, remembers} {
		if p, err := (proc.FS{}).Process(pid); err == nil && p.Alive() {
			t.Errorf("process %d outlived its tree", pid)
		}
	}
}

// A binary that does not serve EnterCommand, such as a test without a TestMain for it, must not execute itself
// endlessly.
func TestStartOnTheWay(t *testing.T) {
	tree := newTree(t, machine(t))
	g, err := tree.Group("app", Limits{})
	if err != nil {
		t.Fatal(err)
	}
	was := os.Args
	defer func() { os.Args = was }()
	os.Args = []string{"tare", EnterCommand}
	cmd := exec.Command("true")
	if err := g.Start(cmd); err == nil {
		_ = cmd.Wait()
		t.Error("a process that is on its way into a group started another")
	}
}

// Processes must outlive the thread of the caller of Start, which Go may end at any time.
func TestStartFromThreadThatEnds(t *testing.T) {
	tree := newTree(t, machine(t))
	g, err := tree.Group("app", Limits{})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("cat")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	started, tid := make(chan error), 0
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends here
		tid = unix.Gettid()
		started <- g.Start(cmd)
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	if tid != os.Getpid() {
		eventually(t, "the thread ended", func() bool {
			_, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", tid))
			return err != nil
		})
	}
	stdin.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("the process did not end by itself: %v", err)
	}
}

// startOwner starts a process that owns a tree, and returns it with the tree's name and the processes in it.
func startOwner(t *testing.T) (owner *exec.Cmd, tree string, pids []int) {
	t.Helper()
	return startOwnerAs(t, "owner", &unix.SysProcAttr{})
}

func startOwnerAs(t *testing.T, part string, attr *unix.SysProcAttr) (owner *exec.Cmd, tree string, pids []int) {
	t.Helper()
	owner = exec.Command("/proc/self/exe")
	owner.Env = append(os.Environ(), helperEnv+"="+part)
	owner.SysProcAttr = attr
	owner.Stderr = os.Stderr
	out, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = owner.Process.Kill()
		_ = owner.Wait()
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "ready" {
		var pid int
		if _, err := fmt.Sscan(lines.Text(), &tree, &pid); err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	if len(pids) != 2 {
		t.Fatalf("the owner said %q", lines.Text())
	}
	return owner, tree, pids
}

// startMarked starts a process that is marked as belonging to a tree, or an unmarked one if tree is empty. The mark is
// visible when startMarked returns.
func startMarked(tree string) (*exec.Cmd, error) {
	cmd := exec.Command("sleep", "1000")
	if tree != "" {
		cmd.Env = append(os.Environ(), child.Mark+"="+tree)
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if err := started.Await(cmd.Process.Pid, "sleep"); err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil, err
	}
	return cmd, nil
}

func TestClean(t *testing.T) {
	l := machine(t)
	// These must be kept: groups with similar names, and a tree with a live owner.
	var foreign []string
	for _, h := range hierarchies(l) {
		for _, name := range []string{"tare-test-%d", "taretest%d"} {
			dir := filepath.Join(h.Mount, fmt.Sprintf(name, os.Getpid()))
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.Remove(dir) })
			foreign = append(foreign, dir)
		}
	}
	living := newTree(t, l)

	owner, tree, pids := startOwner(t)
	// A foreign process in the tree, and a process of the run that has left it.
	start := func(tree string) *exec.Cmd {
		t.Helper()
		cmd, err := startMarked(tree)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		return cmd
	}
	alien, stray := start(""), start(tree)
	for _, dir := range traces(l, tree) {
		if err := cgroup.Write(filepath.Join(dir, "app", "cgroup.procs"), strconv.Itoa(alien.Process.Pid)); err != nil {
			t.Fatal(err)
		}
	}

	clean := func() Report {
		t.Helper()
		r, err := Clean(l)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := clean(); slices.Contains(r.Trees, tree) || gone(pids[0]) || gone(stray.Process.Pid) {
		t.Fatalf("with a living owner: %+v", r)
	}
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the owner is dead", func() bool { return gone(owner.Process.Pid) })
	eventually(t, "its processes died with it", func() bool { return gone(pids[0]) && gone(pids[1]) })

	first := len(traces(l, tree)) > 0 // nobody else has cleaned this machine meanwhile
	dry := NewOwners(l)
	dry.DryRun = true
	would, err := dry.Clean()
	dry.Close()
	of := func(all []Process, pid int) bool {
		return slices.ContainsFunc(all, func(p Process) bool { return p.PID == pid && p.Tree == tree })
	}
	if err != nil || first && (!slices.Contains(would.Trees, tree) || !of(would.Killed, stray.Process.Pid) ||
		!of(would.Moved, alien.Process.Pid)) {
		t.Errorf("a dry run gives %+v, %v", would, err)
	}
	if gone(stray.Process.Pid) || first && len(traces(l, tree)) == 0 {
		t.Error("a dry run has changed something")
	}
	r := clean()
	if first && !slices.Contains(r.Trees, tree) || slices.Contains(r.Trees, living.Name()) {
		t.Errorf("removed %v", r.Trees)
	}
	if left := traces(l, tree); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if len(traces(l, living.Name())) != len(living.hs) {
		t.Error("the tree of a living owner was touched")
	}
	for _, dir := range foreign {
		if _, err := os.Stat(dir); err != nil {
			t.Errorf("somebody else's group: %v", err)
		}
	}
	moved := slices.ContainsFunc(r.Moved, func(p Process) bool { return p.PID == alien.Process.Pid && p.Comm == "sleep" })
	if gone(alien.Process.Pid) || first && !moved {
		t.Errorf("somebody else's process: %+v", r)
	}
	if p, err := l.PathOf(alien.Process.Pid); err != nil || strings.Contains(p, "tare") {
		t.Errorf("somebody else's process is in %q, %v", p, err)
	}
	eventually(t, "the stray was killed", func() bool { return gone(stray.Process.Pid) })
	if r = clean(); slices.Contains(r.Trees, tree) {
		t.Errorf("the second time: %+v", r)
	}
}

// holdAtExit keeps a process from ending after it is killed, until release is called: its first thread stops while
// exiting (PTRACE_O_TRACEEXIT in ptrace(2)), as if it waited in the kernel. release must be called from the same
// goroutine.
func holdAtExit(t *testing.T, pid int) (release func()) {
	t.Helper()
	runtime.LockOSThread() // a tracer is a thread
	if _, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, unix.PTRACE_O_TRACEEXIT, 0,
		0); errno != 0 {
		runtime.UnlockOSThread()
		t.Skipf("needs ptrace(2): %v", errno)
	}
	return sync.OnceFunc(func() {
		defer runtime.UnlockOSThread()
		eventually(t, "it has stopped on its way out", func() bool { return unix.PtraceDetach(pid) == nil })
	})
}

// TestCleanWaitsForEnding: Clean waits for an owner that was killed but has not ended, and keeps its tree if it does
// not end.
func TestCleanWaitsForEnding(t *testing.T) {
	l := machine(t)
	owner, tree, _ := startOwner(t)
	release := holdAtExit(t, owner.Process.Pid)
	defer release()
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	o := NewOwners(l)
	o.waitEnd = time.Now() // as if Clean had already waited for it
	if ended, left := o.Ended(tree, "x"), (Left{What: "x", Tree: tree, Ending: owner.Process.Pid}); ended ||
		!slices.Equal(o.Left(), []Left{left}) {
		t.Errorf("of an owner that does not end: ended %t, left %+v, want %+v", ended, o.Left(), left)
	}
	o.Close()
	report := make(chan Report)
	go func() {
		r, err := Clean(l)
		if err != nil {
			t.Error(err)
		}
		report <- r
	}()
	select {
	case r := <-report:
		t.Fatalf("while the owner was ending: %+v", r)
	case <-time.After(100 * time.Millisecond): // not a deadline, but the duration of the check
	}
	release()
	if r := <-report; !slices.Contains(r.Trees, tree) {
		t.Errorf("when the owner had ended: %+v", r)
	}
}

// TestCleanEndsOwners: a process of a dead run may own a tree, as the agent of a local node does. Both are removed by
// one call, and a dry run lists both.
func TestCleanEndsOwners(t *testing.T) {
	l := machine(t)
	self, err := proc.FS{}.Process(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(child.Mark, fmt.Sprintf("tare-test-dead-p%d-t%d", self.PID, self.Start+1)) // a run that never existed
	owner, tree, _ := startOwner(t)
	dry := NewOwners(l)
	dry.DryRun = true
	defer dry.Close()
	would, err := dry.Clean()
	if err != nil || !slices.Contains(would.Trees, tree) || gone(owner.Process.Pid) {
		t.Errorf("a dry run gives %+v, %v", would, err)
	}
	r, err := Clean(l)
	if err != nil || !slices.Contains(r.Trees, tree) || len(traces(l, tree)) > 0 {
		t.Errorf("%+v, %v; left: %v", r, err, traces(l, tree))
	}
}

// TestPutBack: a process that was moved by mistake, because it has the PID of the intended one, is moved back to its
// parent's group; the intended one stays where it was moved.
func TestPutBack(t *testing.T) {
	l := machine(t)
	tree := newTree(t, l)
	g, err := tree.Group("app", Limits{})
	if err != nil {
		t.Fatal(err)
	}
	parent := exec.Command("sh", "-c", "sleep 1000 & wait")
	if err := g.Start(parent); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = parent.Process.Kill()
		_ = parent.Wait()
	})
	for _, dir := range traces(l, tree.Name()) {
		group, above := filepath.Join(dir, "app"), filepath.Dir(dir)
		var child proc.Process
		eventually(t, "its child runs", func() bool {
			for _, pid := range cgroup.Members([]string{group}) {
				if p, err := (proc.FS{}).Process(pid); err == nil && p.PPID == parent.Process.Pid {
					child = p
				}
			}
			return child.PID != 0
		})
		before := child
		before.Start--
		for _, c := range []struct {
			meant proc.Process
			back  bool
		}{{child, false}, {before, true}} {
			if err := cgroup.Write(filepath.Join(above, "cgroup.procs"), strconv.Itoa(child.PID)); err != nil {
				t.Fatal(err)
			}
			other, err := putBack(child.PID, c.meant, above)
			is := slices.Contains(cgroup.Members([]string{group}), child.PID)
			if err != nil || other != c.back || is != c.back {
				t.Errorf("%s: put back %t, in its group %t, want %t: %v", group, other, is, c.back, err)
			}
		}
	}
}

// TestCleanRemovesProbes: a process that was killed while probing whether it can create groups leaves a group in one
// hierarchy; Clean removes it.
func TestCleanRemovesProbes(t *testing.T) {
	l := machine(t)
	const name = "tare-probe-p99999999-t1"
	dir := filepath.Join(hierarchies(l)[0].Mount, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(dir)
	report, err := Clean(l)
	if err != nil || !slices.Contains(report.Trees, name) {
		t.Errorf("%+v, %v", report, err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there: %v", dir, err)
	}
}

// TestCleanEndsWhatHidItsEnvironment: nginx overwrites its environment with its title, and its workers outlive it.
// Clean still ends them, but not a process that holds the file of another name.
func TestCleanEndsWhatHidItsEnvironment(t *testing.T) {
	l := machine(t)
	if _, err := exec.LookPath("nginx"); err != nil {
		t.Skip("needs nginx")
	}
	conf := filepath.Join(t.TempDir(), "nginx.conf")
	text := fmt.Sprintf("daemon off; worker_processes 2; pid %s.pid; events {} http { access_log off; }\n", conf)
	if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv(nginxEnv, conf)
	isWorker := func(pid int) bool {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		return strings.HasPrefix(string(line), "nginx: worker")
	}
	owner, tree, masters := startOwnerAs(t, "owner of nginx", &unix.SysProcAttr{})
	var workers []int
	eventually(t, "nginx has its workers", func() bool {
		workers = workers[:0]
		for _, pid := range l.Members([]string{tree}) {
			if isWorker(pid) {
				workers = append(workers, pid)
			}
		}
		return len(workers) == 4
	})
	t.Cleanup(func() {
		for _, pid := range workers {
			_ = proc.Kill(pid, func() bool { return isWorker(pid) })
		}
	})
	for _, pid := range workers {
		if mark, has, err := (proc.FS{}).Getenv(pid, child.Mark, new(time.Second)); err != nil || has {
			t.Fatalf("it does not hide its environment: %q, %v", mark, err)
		}
	}
	stranger := exec.Command("sleep", "1000")
	file, err := unix.MemfdCreate("tare-test-p1", 0)
	if err != nil {
		t.Fatal(err)
	}
	stranger.ExtraFiles = []*os.File{os.NewFile(uintptr(file), "")}
	for len(stranger.ExtraFiles) < firstMarkFD {
		stranger.ExtraFiles = append(stranger.ExtraFiles, stranger.ExtraFiles[0])
	}
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stranger.Process.Kill()
		_ = stranger.Wait()
	})

	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the masters died with the owner", func() bool { return gone(masters[0]) && gone(masters[1]) })
	eventually(t, "the owner has died", func() bool {
		return NewOwners(l).Ended(tree, "")
	})
	first := len(traces(l, tree)) > 0 // nobody else has cleaned this machine meanwhile
	r, err := Clean(l)
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range workers {
		eventually(t, "a worker has ended", func() bool { return gone(pid) })
		if !slices.ContainsFunc(r.Killed, func(p Process) bool { return p.PID == pid && p.Tree == tree }) && first {
			t.Errorf("the worker %d is not among those killed: %+v", pid, r)
		}
	}
	if left := traces(l, tree); len(left) > 0 || len(r.Moved) > 0 && first {
		t.Errorf("left: %v; %+v", left, r)
	}
	if gone(stranger.Process.Pid) {
		t.Error("a stranger with an open file of another name was killed")
	}
}

// daemon starts a process that has neither the environment nor the open files of its ancestors, and outlives them.
const daemon = `for i in {3..255}; do exec {i}>&-; done; setsid env -i sleep 1000 & wait`

// TestCleanEndsDaemons: Clean ends a process even if it has cleared its environment and closed all files.
func TestCleanEndsDaemons(t *testing.T) {
	l := machine(t)
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("needs bash")
	}
	owner, tree, shells := startOwnerAs(t, "owner of daemons", &unix.SysProcAttr{})
	var daemons []int
	isDaemon := func(pid int) bool { return child.Comm(pid) == "sleep" && markOf(pid, new(time.Second)) == "" }
	eventually(t, "the daemons run", func() bool {
		daemons = slices.DeleteFunc(l.Members([]string{tree}), func(pid int) bool { return !isDaemon(pid) })
		return len(daemons) == 2
	})
	t.Cleanup(func() {
		for _, pid := range daemons {
			_ = proc.Kill(pid, func() bool { return isDaemon(pid) })
		}
	})
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait() // killed
	eventually(t, "the shells died with the owner", func() bool { return gone(shells[0]) && gone(shells[1]) })
	r, err := Clean(l)
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range daemons {
		if !slices.ContainsFunc(r.Killed, func(p Process) bool { return p.PID == pid && p.Tree == tree }) {
			t.Errorf("the daemon %d is not among those killed: %+v", pid, r)
		}
		eventually(t, "a daemon has ended", func() bool { return gone(pid) })
	}
	if left := traces(l, tree); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestComm(t *testing.T) {
	file := filepath.Join(t.TempDir(), "\x1b[31mx")
	if err := os.Symlink("/bin/sleep", file); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(file, "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	eventually(t, "it has its name", func() bool { return child.Comm(cmd.Process.Pid) == "?[31mx" })
}

// A process of a dead run that did not die with it (here it never requested that) is killed inside its group.
func TestCleanKillsInside(t *testing.T) {
	l := machine(t)
	self, err := proc.FS{}.Process(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	tree := fmt.Sprintf("tare-test-inside-p%d-t%d", self.PID, self.Start+1) // an owner that never existed
	cmd, err := startMarked(tree)
	if err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() { waited <- cmd.Wait() }()
	for _, h := range hierarchies(l) {
		dir := filepath.Join(h.Mount, tree, "deep/er")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := cgroup.Write(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(cmd.Process.Pid)); err != nil {
			t.Fatal(err)
		}
	}
	r, err := Clean(l)
	if err != nil {
		t.Fatal(err)
	}
	<-waited
	if !slices.Contains(r.Killed, Process{PID: cmd.Process.Pid, Comm: "sleep", Tree: tree}) ||
		!slices.Contains(r.Trees, tree) {
		t.Errorf("%+v", r)
	}
	if left := traces(l, tree); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestNoWriteAccess(t *testing.T) {
	machine(t)
	t.Run("read-only", func(t *testing.T) {
		dir := t.TempDir()
		if err := unix.Mount("none", dir, "tmpfs", unix.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(dir, 0); err != nil {
				t.Error(err)
			}
		})
		l := &cgroup.Layout{Mode: cgroup.ModeV2, Hierarchies: []cgroup.Hierarchy{{Mount: dir, Root: "/", V2: true}}}
		if _, err := NewTree(l, "test"); fault.CodeOf(err) != fault.Machine || !errors.Is(err, unix.EROFS) ||
			fault.HintOf(err) == "" {
			t.Errorf("got %v", err)
		}
	})
	t.Run("not root", func(t *testing.T) {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), helperEnv+"=nobody")
		out, err := cmd.Output()
		if cmd.ProcessState.ExitCode() != int(fault.Machine) || !strings.Contains(string(out), "run as root") {
			t.Errorf("%v, %s", err, out)
		}
	})
}

// BenchmarkStart compares starting a process inside a group with starting it normally. Both run true and wait for it.
func BenchmarkStart(b *testing.B) {
	l, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		b.Fatal(err)
	}
	tree, err := NewTree(l, "test-bench")
	if err != nil {
		b.Skip(err)
	}
	defer tree.Close()
	g, err := tree.Group("app", Limits{})
	if err != nil {
		b.Fatal(err)
	}
	for name, start := range map[string]func(*exec.Cmd) error{"placed": g.Start, "plain": (*exec.Cmd).Start} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				cmd := exec.Command("true")
				if err := errors.Join(start(cmd), cmd.Wait()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
