package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/placement"
	"tare/internal/lib/fault"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/proc"
	"tare/internal/scale/ledger"
	"tare/test/started"
	"tare/test/vm/guest"
)

const containerA = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestParseTarget(t *testing.T) {
	guest.KernelFree(t)
	for text, want := range map[string]string{
		"pid:1234": "pid:1234", " pid:+7": "pid:7",
		"cgroup:/system.slice/nginx.service/": "cgroup:/system.slice/nginx.service",
		"cgroup:/":                            "cgroup:/", "unit:nginx": "unit:nginx.service",
		"unit:user-0.slice":       "unit:user-0.slice",
		`unit:getty@tty1.service`: "unit:getty@tty1.service", "container:0123456789AB": "container:0123456789ab",
		"container:" + containerA: "container:" + containerA,
	} {
		got, err := ParseTarget(text)
		if err != nil || got.String() != want {
			t.Errorf("%s is read as %s, %v; want %s", text, got, err, want)
		}
	}
	for text, says := range map[string]string{
		"nginx": "not a process, control group, unit or container", "pdi:1": `did you mean "pid"?`, "pid:": "not a process",
		"pid:0": "not a process", "pid:-1": "not a process", "pid:99999999999": "not a process", "cgroup:x": "not the path",
		"cgroup:/a/../../etc": "not the path", "unit:": "not a systemd unit", "unit:a/b": "not a systemd unit",
		"unit:..": "not a systemd unit", "container:web": "not the id of a container",
		"container:0123": "not the id of a container",
	} {
		_, err := ParseTarget(text)
		if err == nil || !strings.Contains(err.Error(), says) || fault.CodeOf(err) != fault.Usage || fault.HintOf(err) == "" {
			t.Errorf("%s: %v, want %q", text, err, says)
		}
	}
}

// FuzzParseTarget: a target that is formatted and parsed again is the same.
func FuzzParseTarget(f *testing.F) {
	longest := "unit:" + strings.Repeat("x", 255) // bytes of a unit's name, with its suffix
	for _, seed := range []string{"pid:1", "cgroup:/a//b", "cgroup:/ /", "unit:x", longest,
		longest[:len(longest)-len(".service")], "container:" + containerA, "pid:\x00", ":"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := ParseTarget(text)
		if err != nil {
			if fault.CodeOf(err) != fault.Usage {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		if b, err := ParseTarget(a.String()); err != nil || a != b {
			t.Errorf("%q is %v, which is read as %v, %v", text, a, b, err)
		}
	})
}

// machine creates a tree of files for a machine with v2 control groups: groups with their processes by PID, and the
// PIDs of parents.
func machine(t *testing.T, groups map[string][]int, parents map[int]int) Finder {
	t.Helper()
	root := t.TempDir()
	put := func(name, text string) {
		name = filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("proc/self/mountinfo", "30 1 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n")
	put("proc/self/cgroup", "0::/\n")
	put("sys/fs/cgroup/cgroup.controllers", "cpu memory\n")
	for group, pids := range groups {
		var list strings.Builder
		for _, pid := range pids {
			list.WriteString(strconv.Itoa(pid) + "\n")
			put("proc/"+strconv.Itoa(pid)+"/cgroup", "0::"+group+"\n")
			state := "S"
			if parents[pid] < 0 {
				state = "Z"
			}
			put("proc/"+strconv.Itoa(pid)+"/stat", strconv.Itoa(pid)+" (p"+strconv.Itoa(pid)+") "+state+" "+
				strconv.Itoa(max(parents[pid], 1))+strings.Repeat(" 0", 17)+" "+strconv.Itoa(pid*10)+" 0 0\n")
		}
		put("sys/fs/cgroup"+group+"/cgroup.procs", list.String())
	}
	l, err := cgroup.Discover(cgroup.Roots{Proc: filepath.Join(root, "proc"), Prefix: root})
	if err != nil {
		t.Fatal(err)
	}
	return Finder{Layout: l, Proc: proc.FS{Root: root}, Self: 99}
}

// literal is the group of a container whose runtime used systemd's notation as the name of a directory.
var literal = "/system.slice/containerd.service/" +
	"kubepods-pod36b6d6be_73b1_4506_9af3_69b3985edafa.slice:cri-containerd:" + strings.Repeat("c", 64)

func usualMachine(t *testing.T) Finder {
	return machine(t, map[string][]int{
		"/":                               {1, 2},
		"/init.scope":                     {1},
		"/system.slice":                   nil,
		"/system.slice/nginx.service":     {50, 51},
		"/system.slice/nginx.service/sub": {52},
		"/system.slice/dead.service":      nil,
		"/system.slice/docker-" + containerA + ".scope":                                             {60, 61},
		"/system.slice/docker-" + strings.Replace(containerA, "01234567", "01234568", 1) + ".scope": {63},
		"/system.slice/libpod-conmon-" + containerA + ".scope":                                      {64},
		"/kubepods/pod5b2c/" + strings.Repeat("f", 64):                                              {65},
		literal:                               {66},
		"/vc/kata_" + strings.Repeat("e", 64): {67},
		"/user.slice/quadlet.service/libpod-payload-" + strings.Repeat("d", 64): {68},
		"/user.slice/user-0.slice/session-1.scope":                              {90, 91, 99},
		"/user.slice/user-1.slice/app.service":                                  {70},
		"/user.slice/user-2.slice/app.service":                                  {71},
	}, map[int]int{51: 50, 52: 50, 61: 60, 99: 90, 91: 90, 2: -1})
}

// TestFind: a named target is found with its group and its processes, and nothing is changed.
func TestFind(t *testing.T) {
	guest.KernelFree(t)
	f := usualMachine(t)
	for text, want := range map[string]struct {
		path string
		pids []int
	}{
		"pid:50":                                 {"/system.slice/nginx.service", []int{50, 51, 52}},
		"pid:51":                                 {"", []int{51}}, // its parent is in the same group
		"pid:91":                                 {"", []int{91}}, // tare is in the same group
		"cgroup:/system.slice/nginx.service":     {"/system.slice/nginx.service", []int{50, 51, 52}},
		"cgroup:/system.slice/nginx.service/sub": {"/system.slice/nginx.service/sub", []int{52}},
		"unit:nginx":                             {"/system.slice/nginx.service", []int{50, 51, 52}},
		"container:" + containerA:                {"/system.slice/docker-" + containerA + ".scope", []int{60, 61}},
		"container:0123456789ab":                 {"/system.slice/docker-" + containerA + ".scope", []int{60, 61}},
		"container:ffffffff":                     {"/kubepods/pod5b2c/" + strings.Repeat("f", 64), []int{65}},
		"container:cccccccc":                     {literal, []int{66}},
		"container:eeeeeeee":                     {"/vc/kata_" + strings.Repeat("e", 64), []int{67}},
		"container:dddddddd": {"/user.slice/quadlet.service/libpod-payload-" + strings.Repeat("d", 64),
			[]int{68}},
	} {
		target, err := ParseTarget(text)
		if err != nil {
			t.Fatal(err)
		}
		e, err := f.Find(target)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if e.Path != want.path || !slices.Equal(e.PIDs, want.pids) || (e.Dir == "") != (want.path == "") {
			t.Errorf("%s is %q in %s with %v, want %q with %v", text, e.Path, e.Dir, e.PIDs, want.path, want.pids)
		}
		if err := e.Refresh(); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestNotFound: errors distinguish a target that is gone, one that is ambiguous, and tare itself.
func TestNotFound(t *testing.T) {
	guest.KernelFree(t)
	f := usualMachine(t)
	for text, says := range map[string]string{
		"pid:12345":          "there is no such process",
		"pid:2":              "the process p2 has ended",
		"pid:99":             "tare itself is a child of p99",
		"pid:90":             "tare itself is a child of p90",
		"cgroup:/":           "tare itself runs in it",
		"cgroup:/user.slice": "tare itself runs in it",
		"cgroup:/user.slice/user-0.slice/session-1.scope": "tare itself runs in it",
		"cgroup:/none":       "there is no control group /none",
		"unit:none":          "no control group has that name",
		"unit:app":           "2 control groups have that name: /user.slice/user-1.slice/app.service, /user.slice/user-2",
		"container:abcdef01": "no control group has that name",
		"unit:user.slice":    "tare itself runs in it",
	} {
		target, err := ParseTarget(text)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.Find(target)
		if err == nil || !strings.Contains(err.Error(), says) || fault.CodeOf(err) != fault.Usage || fault.HintOf(err) == "" {
			t.Errorf("%s: %v, want %q", text, err, says)
		}
	}
	// A short id that two containers begin with.
	_, err := f.Find(Target{ByContainer, "0123456"})
	if err == nil || !strings.Contains(err.Error(), "2 control groups have that name") {
		t.Errorf("two containers: %v", err)
	}
}

// TestThread: a thread, which has a directory in /proc too, is not mistaken for a process: its children and its CPU
// time belong to its process.
func TestThread(t *testing.T) {
	tids := make(chan int)
	over := make(chan struct{})
	defer close(over)
	for range 2 { // at least one of them is not the first thread
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			tids <- unix.Gettid()
			<-over
		}()
	}
	tid := <-tids
	if other := <-tids; tid == os.Getpid() {
		tid = other
	}
	l, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = (Finder{Layout: l, Self: 1}).Find(Target{ByPID, strconv.Itoa(tid)})
	if says := fmt.Sprintf("it is a thread of the process %d", os.Getpid()); err == nil ||
		!strings.Contains(err.Error(), says) || fault.CodeOf(err) != fault.Usage {
		t.Errorf("%v, want %q", err, says)
	}
}

// TestGone: an error says if a target disappears while it is observed.
func TestGone(t *testing.T) {
	guest.KernelFree(t)
	f := usualMachine(t)
	var all []*Existing
	for _, text := range []string{"pid:70", "unit:nginx", "container:ffffffff"} {
		target, err := ParseTarget(text)
		if err != nil {
			t.Fatal(err)
		}
		e, err := f.Find(target)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	// Another process has the PID, the unit has no process, and the container's group is gone.
	other := filepath.Join(f.Proc.Root, "proc/70/stat")
	text, err := os.ReadFile(other)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(other, []byte(strings.Replace(string(text), " 700 ", " 701 ", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{all[1].Dir, filepath.Join(all[1].Dir, "sub")} {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.RemoveAll(all[2].Dir); err != nil {
		t.Fatal(err)
	}
	for i, says := range []string{"the process has ended", "no process is left in it", "its control group was removed"} {
		if err := all[i].Refresh(); err == nil || !strings.Contains(err.Error(), says) || fault.CodeOf(err) != fault.Invalid {
			t.Errorf("%s: %v, want %q", all[i].Target, err, says)
		}
	}
}

// TestObserve: a process of this machine is observed by its PID and by its group, and continues to run.
func TestObserve(t *testing.T) {
	g := group(t)
	cmd := exec.Command("sleep", "60")
	if err := g.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for dir := dirOf(t, g); len(cgroup.Members([]string{dir})) == 0; { // wait until the process has entered the group
	}
	l, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	tree := path.Dir(g.Path())
	for target, want := range map[Target]string{
		{ByPID, strconv.Itoa(cmd.Process.Pid)}: g.Path(),
		{ByCgroup, g.Path()}:                   g.Path(),
		{ByUnit, path.Base(tree)}:              tree, // a name that no other group has
	} {
		e, err := Finder{Layout: l}.Find(target)
		if err != nil {
			t.Errorf("%s: %v", target, err)
			continue
		}
		if e.Path != want || !slices.Equal(e.PIDs, []int{cmd.Process.Pid}) {
			t.Errorf("%s is %q with %v, want %q with %d", target, e.Path, e.PIDs, want, cmd.Process.Pid)
		}
		found, err := e.Found(&ledger.Ledger{})
		if err != nil || len(found.Processes) != 1 || found.RSS == 0 {
			t.Errorf("%s: %+v, %v", target, found, err)
		}
	}
	if cmd.ProcessState != nil {
		t.Error("it was stopped")
	}
	own := Target{ByPID, strconv.Itoa(os.Getpid())}
	if _, err := (Finder{Layout: l}).Find(own); err == nil {
		t.Error("tare observes itself")
	}
}

// watched returns the observed target for a group, with the watch started.
func watched(t *testing.T, g *placement.Group) *Existing {
	t.Helper()
	l, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	e, err := Finder{Layout: l}.Find(Target{ByCgroup, g.Path()})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Watch(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func moveTo(t *testing.T, g *placement.Group, pid int) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dirOf(t, g), "cgroup.procs"), fmt.Appendln(nil, pid), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestStrays: a process that was started from an observed group and is in another group is named, even if its parent
// has ended, unless it is this process or an ancestor of it.
func TestStrays(t *testing.T) {
	g, other := group(t), group(t)
	cmd := exec.Command("sh", "-c", "sleep 60 & sleep 60 & wait")
	if err := g.Start(cmd); err != nil {
		t.Fatal(err)
	}
	children := func() []int {
		return slices.DeleteFunc(WithDescendants(proc.FS{}, []int{cmd.Process.Pid}), func(pid int) bool {
			return pid == cmd.Process.Pid
		})
	}
	t.Cleanup(func() {
		for _, pid := range children() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for len(children()) < 2 {
		time.Sleep(time.Millisecond)
	}
	for _, pid := range children() {
		if err := started.Await(pid, "sleep"); err != nil {
			t.Fatal(err)
		}
	}
	e := watched(t, g)
	if stray, err := e.Strays(); stray != "" || err != nil {
		t.Errorf("%q, %v, and all are in the group", stray, err)
	}
	if why := e.Unseen(); (why == "") != (e.watch.Unseen() == nil) {
		t.Errorf("what leaves is not seen: %q", why)
	}
	withFirst := *e // as if PID 1, whose children are not watched, were in the group
	withFirst.PIDs = append([]int{1}, e.PIDs...)
	if why := withFirst.Unseen(); !strings.Contains(why, "may not be known") || !strings.Contains(why, "it holds PID 1") {
		t.Errorf("beside PID 1: %q", why)
	}
	left := children()[0]
	moveTo(t, other, left)
	if err := e.Refresh(); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("process %d (sleep) of what cgroup:%s has started is in the control group %s: what it uses is "+
		"not known", left, g.Path(), other.Path())
	if stray, err := e.Strays(); !strings.Contains(stray, want) || err != nil {
		t.Errorf("%q, %v, want %q", stray, err, want)
	}
	e.finder.Self = left // as if this process were a session of the server that is observed
	if stray, err := e.Strays(); stray != "" || err != nil {
		t.Errorf("%q, %v, and only this process is elsewhere", stray, err)
	}
	e.finder.Self = os.Getpid()
	_ = cmd.Process.Kill() // what has left is an orphan then
	_ = cmd.Wait()
	if stray, err := e.Strays(); !strings.Contains(stray, want) || err != nil {
		t.Errorf("%q, %v of an orphan, want %q", stray, err, want)
	}
}

// TestStartedAgain: if the target was restarted while it was observed, in a group that was created again under the same
// name, it is not mistaken for the earlier one, because its counters started from 0.
func TestStartedAgain(t *testing.T) {
	g, other := group(t), group(t)
	cmd := exec.Command("sleep", "60")
	if err := g.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if err := started.Await(cmd.Process.Pid, "sleep"); err != nil {
		t.Fatal(err)
	}
	e := watched(t, g)
	if err := e.Refresh(); err != nil {
		t.Fatalf("all is as it was, and %v", err)
	}
	moveTo(t, other, cmd.Process.Pid)
	if err := errors.Join(os.Remove(e.Dir), os.Mkdir(e.Dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	moveTo(t, g, cmd.Process.Pid)
	if err := e.Refresh(); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "started again") {
		t.Errorf("%v of a group that was made again", err)
	}
}

// TestStraysOfUnit: a process that a service left in another group, in a separate session and without a parent, is
// recognized by the variable that systemd sets for all processes of the service.
func TestStraysOfUnit(t *testing.T) {
	g, other := group(t), group(t)
	cmd := exec.Command("sh", "-c", `(setsid sh -c 'echo $$; exec sleep 60 >/dev/null' &); exec sleep 60`)
	cmd.Env = append(os.Environ(), invocationID+"=0123456789abcdef")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	var left int
	if _, err := fmt.Fscan(out, &left); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(left, syscall.SIGKILL) })
	moveTo(t, other, left)
	e := watched(t, g)
	want := fmt.Sprintf("process %d (", left)
	if stray, err := e.Strays(); !strings.Contains(stray, want) || !strings.Contains(stray, other.Path()) || err != nil {
		t.Errorf("%q, %v, want %q in %s", stray, err, want, other.Path())
	}
}
