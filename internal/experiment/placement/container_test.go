package placement

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/child"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/proc"
)

const (
	partEnv  = "TARE_TEST_PART"  // the part that is played inside the container
	flagsEnv = "TARE_TEST_FLAGS" // its private namespaces
	groupEnv = "TARE_TEST_GROUP" // the control group that it is in
)

// container is a process in private namespaces and a separate control group. It ends with the test.
type container struct {
	t     *testing.T
	cmd   *exec.Cmd // the process that started the container, and ends with it
	in    *bufio.Writer
	lines *bufio.Scanner
}

func startContainer(t *testing.T, l *cgroup.Layout, part string, flags uintptr) *container {
	t.Helper()
	group := fmt.Sprintf("tare-test-container-%d-%d", os.Getpid(), time.Now().UnixNano()%1e6)
	c := &container{t: t, cmd: exec.Command("/proc/self/exe")}
	for _, h := range hierarchies(l) {
		dir := filepath.Join(h.Mount, group)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := removeAll([]string{dir}, time.Now().Add(patience)); err != nil {
				t.Error(err)
			}
		})
	}
	c.cmd.Env = append(os.Environ(), helperEnv+"=container", partEnv+"="+part, flagsEnv+"="+strconv.Itoa(int(flags)),
		groupEnv+"="+group)
	c.cmd.Stderr = os.Stderr
	in, err1 := c.cmd.StdinPipe()
	out, err2 := c.cmd.StdoutPipe()
	if err := errors.Join(err1, err2, c.cmd.Start()); err != nil {
		t.Fatal(err)
	}
	c.in, c.lines = bufio.NewWriter(in), bufio.NewScanner(out)
	t.Cleanup(func() { c.kill(l, group) })
	return c
}

// kill kills the container, and the processes in its group.
func (c *container) kill(l *cgroup.Layout, group string) {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
	if err := child.EndAll(l.Members([]string{group}), func(pid int) bool { return inside(l, pid, group) },
		patience); err != nil {
		c.t.Error(err)
	}
}

// line returns the container's next line of output.
func (c *container) line() string {
	c.t.Helper()
	if !c.lines.Scan() {
		c.t.Fatalf("the container ended: %v", c.lines.Err())
	}
	return c.lines.Text()
}

// tell sends a command to the container, and returns its answer.
func (c *container) tell(words ...string) (r answer) {
	c.t.Helper()
	_, err := fmt.Fprintln(c.in, strings.Join(words, " "))
	if err := errors.Join(err, c.in.Flush()); err != nil {
		c.t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(c.line()), &r); err != nil {
		c.t.Fatal(err)
	}
	if r.Error != "" {
		c.t.Fatalf("in the container: %s", r.Error)
	}
	return r
}

// answer is the answer of a cleaner in a container.
type answer struct {
	Report
	Left  []Left
	Error string
	Tree  string
	PID   int
	Ended bool
}

// owned reads the output of an owner of a tree, and returns the tree's name.
func (c *container) owned() (tree string) {
	c.t.Helper()
	for line := c.line(); line != "ready"; line = c.line() {
		tree, _, _ = strings.Cut(line, " ")
	}
	return tree
}

// enterContainer enters the group and starts the part in new namespaces.
func enterContainer() int {
	runtime.LockOSThread() // the child dies when this thread ends
	l, err := cgroup.Discover(cgroup.Roots{})
	for _, h := range hierarchies(l) {
		err = errors.Join(err, cgroup.Write(filepath.Join(h.Mount, os.Getenv(groupEnv), "cgroup.procs"), "0"))
	}
	flags, err2 := strconv.Atoi(os.Getenv(flagsEnv))
	if err := errors.Join(err, err2); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), helperEnv+"="+os.Getenv(partEnv))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: uintptr(flags), Pdeathsig: unix.SIGKILL}
	if err := cmd.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return 1
}

// mountInside mounts /proc and the control groups as in a container.
func mountInside() {
	flags, _ := strconv.Atoi(os.Getenv(flagsEnv)) // enterContainer has read it
	err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	if flags&unix.CLONE_NEWPID != 0 {
		err = errors.Join(err, unix.Mount("proc", "/proc", "proc", 0, ""))
	}
	if flags&unix.CLONE_NEWCGROUP != 0 {
		l, err2 := cgroup.Discover(cgroup.Roots{})
		err = errors.Join(err, err2)
		for _, h := range hierarchies(l) {
			kind, options := "cgroup2", ""
			if !h.V2 {
				kind, options = "cgroup", strings.Join(h.Controllers, ",")
			}
			err = errors.Join(err, unix.Unmount(h.Mount, unix.MNT_DETACH), unix.Mount("none", h.Mount, kind, 0, options))
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// cleanInside executes the commands on its input, and replies to each line with an answer.
func cleanInside() int {
	l, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		return 1
	}
	var owner *exec.Cmd
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		words := strings.Fields(lines.Text())
		var a answer
		var err error
		switch words[0] {
		case "mark": // starts a process that is marked as of a tree
			var cmd *exec.Cmd
			if cmd, err = startMarked(words[1]); err == nil {
				go cmd.Wait() // it is killed
				a.PID = cmd.Process.Pid
			}
		case "own": // starts an owner of a tree
			owner = exec.Command("/proc/self/exe")
			owner.Env = append(os.Environ(), helperEnv+"=owner")
			out, err2 := owner.StdoutPipe()
			err = errors.Join(err2, owner.Start())
			said := bufio.NewScanner(out)
			for said.Scan() && said.Text() != "ready" {
				a.Tree, _, _ = strings.Cut(said.Text(), " ")
			}
		case "kill": // kills it
			err = owner.Process.Kill()
			_ = owner.Wait()
		case "judge":
			o := NewOwners(l)
			a.Ended = o.Ended(words[1], "it")
			a.Left = o.Left()
			o.Close()
		case "clean":
			o := NewOwners(l, words[1:]...)
			a.Report, err = o.Clean()
			a.Left = o.Left()
			o.Close()
		}
		if err != nil {
			a.Error = err.Error()
		}
		b, _ := json.Marshal(a)
		fmt.Println(string(b))
	}
	return 0
}

const (
	ownPIDs   = unix.CLONE_NEWPID | unix.CLONE_NEWNS
	ownGroups = unix.CLONE_NEWCGROUP | unix.CLONE_NEWNS
)

// TestCleanOutside: what an owner in a container has is kept while the owner lives, and removed once it has ended. The
// container has private PIDs, private control groups, or both.
func TestCleanOutside(t *testing.T) {
	l := machine(t)
	self, err := proc.FS{}.Identify()
	if err != nil {
		t.Fatal(err)
	}
	for name, flags := range map[string]uintptr{"pids": ownPIDs, "groups": ownGroups, "both": ownPIDs | ownGroups} {
		t.Run(name, func(t *testing.T) {
			c := startContainer(t, l, "owner in a container", flags)
			tree := c.owned()
			if id, _ := parseTreeName(tree); (id.Namespace != 0) != (flags&unix.CLONE_NEWPID != 0 || self.String()[0] == 'n') {
				t.Errorf("the tree is %s", tree)
			}
			stray, err := startMarked(tree)
			if err != nil {
				t.Fatal(err)
			}
			waited := make(chan error, 1)
			go func() { waited <- stray.Wait() }()
			defer func() { _ = stray.Process.Kill() }()

			o := NewOwners(l)
			r, err := o.Clean()
			o.Close()
			of := func(p Process) bool { return p.Tree == tree }
			if err != nil || slices.Contains(r.Trees, tree) || slices.ContainsFunc(r.Killed, of) || gone(stray.Process.Pid) {
				t.Errorf("what a living owner has was taken: %+v, %v", r, err)
			}
			if slices.ContainsFunc(o.Left(), func(l Left) bool { return l.Tree == tree }) {
				t.Errorf("it is seen from here, and left alone as if it was not: %+v", o.Left())
			}
			if flags&unix.CLONE_NEWCGROUP == 0 && (len(Others(l)) == 0 || len(traces(l, tree)) == 0) {
				t.Errorf("other runs are %v; of the tree there is %v", Others(l), traces(l, tree))
			}
			_ = c.cmd.Process.Kill()
			_ = c.cmd.Wait()
			eventually(t, "it has ended", func() bool {
				o := NewOwners(l)
				defer o.Close()
				return o.Ended(tree, "")
			})
			if _, err := Clean(l); err != nil {
				t.Error(err)
			}
			<-waited
			if left := traces(l, tree); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// TestCleanInside: Clean in a container keeps what belongs to a run outside or in another container, and reports it if
// it cannot see whether that run is alive. The remains of a run in the same container are removed.
func TestCleanInside(t *testing.T) {
	l := machine(t)
	living := newTree(t, l)
	beside := startContainer(t, l, "owner in a container", ownPIDs|ownGroups)
	besides := beside.owned()
	for name, flags := range map[string]uintptr{"pids": ownPIDs, "both": ownPIDs | ownGroups} {
		t.Run(name, func(t *testing.T) {
			c := startContainer(t, l, "cleaner in a container", flags)
			marked := map[string]int{}
			for _, tree := range []string{living.Name(), besides} {
				marked[tree] = c.tell("mark", tree).PID
			}
			r := c.tell("clean")
			for tree, pid := range marked {
				if slices.Contains(r.Trees, tree) || slices.ContainsFunc(r.Killed, func(p Process) bool { return p.Tree == tree }) {
					t.Errorf("what a living owner has was taken: %+v", r)
				}
				// The tree of this process, and its lock, can be seen if the control groups can.
				seen := tree == living.Name() && flags&unix.CLONE_NEWCGROUP == 0
				what := Left{What: fmt.Sprintf("process %d (sleep)", pid), Tree: tree}
				if slices.Contains(r.Left, what) == seen {
					t.Errorf("left alone are %+v; want %+v: %v", r.Left, what, !seen)
				}
			}
			if len(traces(l, living.Name())) != len(living.hs) {
				t.Error("the tree of this process was touched")
			}
			r = c.tell("clean", besides)
			if !slices.ContainsFunc(r.Killed, func(p Process) bool { return p.PID == marked[besides] }) {
				t.Errorf("told that a run has ended, it did %+v", r)
			}

			tree := c.tell("own").Tree
			if r := c.tell("clean"); slices.Contains(r.Trees, tree) {
				t.Errorf("what lives beside it was taken: %+v", r)
			}
			stray := c.tell("mark", tree).PID
			c.tell("kill")
			r = c.tell("clean")
			if !slices.Contains(r.Trees, tree) ||
				!slices.ContainsFunc(r.Killed, func(p Process) bool { return p.PID == stray }) {
				t.Errorf("what was left beside it is still there: %+v", r)
			}
			if r := c.tell("judge", tree); !r.Ended || len(r.Left) > 0 {
				t.Errorf("of a tree that is gone, it says %+v", r)
			}
		})
	}
}

// TestCleanOldNames: a tree whose name lacks the PID namespace of its owner counts as live while it is locked, wherever
// the owner is, and as dead if nobody holds the lock.
func TestCleanOldNames(t *testing.T) {
	l := machine(t)
	c := startContainer(t, l, "cleaner in a container", ownPIDs)
	self, err := proc.FS{}.Identify()
	if err != nil {
		t.Fatal(err)
	}
	for _, held := range []bool{true, false} {
		name := fmt.Sprintf("tare-test-old-p%d-t%d", self.PID, self.Start)
		for _, h := range hierarchies(l) {
			dir := filepath.Join(h.Mount, name)
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			defer os.Remove(dir)
			if held {
				f, err := hold(dir)
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
			}
		}
		if r := c.tell("judge", name); r.Ended == held || len(r.Left) > 0 {
			t.Errorf("held: %v; it says %+v", held, r)
		}
		for _, dir := range traces(l, name) {
			if err := os.Remove(dir); err != nil {
				t.Error(err)
			}
		}
	}
	if r := c.tell("judge", fmt.Sprintf("tare-test-gone-p%d-t%d", self.PID, self.Start)); r.Ended || len(r.Left) != 1 {
		t.Errorf("of a tree that is not seen, it says %+v", r)
	}
}

// TestCleanHidden: a tree whose lock is free is left alone if it contains processes that are not visible.
func TestCleanHidden(t *testing.T) {
	l := machine(t)
	c := startContainer(t, l, "cleaner in a container", ownPIDs)
	self, err := proc.FS{}.Identify() // visible to others as alive
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("tare-test-hidden-p%d-t%d", self.PID, self.Start)
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		for _, dir := range traces(l, name) {
			if err := removeAll([]string{dir}, time.Now().Add(patience)); err != nil {
				t.Error(err)
			}
		}
	}()
	for _, h := range hierarchies(l) {
		dir := filepath.Join(h.Mount, name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := cgroup.Write(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(cmd.Process.Pid)); err != nil {
			t.Fatal(err)
		}
	}
	r := c.tell("clean")
	if slices.Contains(r.Trees, name) || !slices.Contains(r.Left, Left{What: "the control groups", Tree: name}) ||
		len(traces(l, name)) != len(hierarchies(l)) {
		t.Errorf("%+v", r)
	}
}

func TestCheckEnded(t *testing.T) {
	l := machine(t)
	for name, good := range map[string]bool{newTree(t, l).Name(): false, "x": false, "tare-test-p2147483646-t1": true} {
		if err := CheckEnded(l, name); (err == nil) != good {
			t.Errorf("%s: %v", name, err)
		}
	}
}
