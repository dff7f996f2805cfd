package oci

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/placement"
	"tare/internal/lib/fault"
	"tare/internal/lib/self"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/proc"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == ShimCommand {
		status, err := Shim(os.Args[2:])
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			status = 99
		}
		os.Exit(status)
	}
	os.Exit(m.Run())
}

// needsRunc returns runc, and skips the test if containers cannot be made.
func needsRunc(t *testing.T) (r Runtime, self string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: containers")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r, err = Find("runc", self, nil)
	if err != nil {
		t.Skip("needs runc: ", err)
	}
	return r, self
}

// job writes the job of a container that runs a shell command, and returns the path of the file and the job.
func job(t *testing.T, r Runtime, self, tree, shell string) (string, Job) {
	t.Helper()
	root, err := NewRoot(filepath.Join(t.TempDir(), "rootfs"), self)
	if err != nil {
		t.Fatal(err)
	}
	state, err := NewState(tree)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := RemoveState(context.Background(), tree); err != nil {
			t.Error(err)
		}
	})
	dir := filepath.Join(state, "one")
	j := Job{Container: Container{Runtime: r, Root: filepath.Join(dir, "state"), Bundle: dir, ID: tree + "-one"}}
	spec := Spec{Args: []string{"/bin/sh", "-c", shell}, Root: root.Dir, Cgroup: "/" + tree + "/" + j.Container.ID}
	if err := spec.Write(dir); err != nil {
		t.Fatal(err)
	}
	path, err := j.Write(dir)
	if err != nil {
		t.Fatal(err)
	}
	return path, j
}

// ended returns the name of a tree whose process has ended.
func ended(t *testing.T) string {
	t.Helper()
	c := exec.Command("true")
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("tare-oci-p%d-t1", c.Process.Pid)
}

// groupsOf returns the directories of control groups of a tree.
func groupsOf(t *testing.T, tree string) (found []string) {
	t.Helper()
	for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
		dirs, err := filepath.Glob(pattern + tree)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, dirs...)
	}
	return found
}

// TestShim: a container has the shim's streams, the shim exits with the container's status and records its times, and
// nothing is left.
func TestShim(t *testing.T) {
	r, self := needsRunc(t)
	tree := fmt.Sprintf("tare-shim-p%d-t1", os.Getpid())
	for name, c := range map[string]struct {
		shell, input, output string
		status               int
	}{
		"its words and its status": {"read x; echo got $x; exit 3", "this\n", "got this\n", 3},
		"the end of its input":     {"cat", "that", "that", 0},
		"it does not heed the end": {"cat; sleep 1000", "", "", 128 + 9},
	} {
		path, j := job(t, r, self, tree, c.shell)
		cmd := exec.Command(self, j.Args(path)...)
		var out, said bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(c.input), &out, &said
		err := cmd.Run()
		if cmd.ProcessState.ExitCode() != c.status || out.String() != c.output {
			t.Errorf("%s: %v, %q, %q", name, err, out.String(), said.String())
		}
		times, err := ReadTimes(filepath.Dir(path))
		all := []int64{times.Create, times.Created, times.Started, times.Exited, times.Deleted}
		if err != nil || !slices.IsSorted(all) || times.Create == 0 || times.PID == 0 {
			t.Errorf("%s: %+v, %v", name, times, err)
		}
		if times.Killed != (c.status > 128) {
			t.Errorf("%s: killed %v", name, times.Killed)
		}
		if s, err := j.Container.State(t.Context()); err == nil {
			t.Errorf("%s: it is %s after its end", name, s.Status)
		}
		left, err := RemoveState(t.Context(), tree)
		if err != nil || len(left) > 0 || len(groupsOf(t, tree)) > 0 {
			t.Errorf("%s: left %q and %q, %v", name, left, groupsOf(t, tree), err)
		}
	}
}

// TestShimForwards: a signal to the shim is forwarded to the container.
func TestShimForwards(t *testing.T) {
	r, self := needsRunc(t)
	tree := fmt.Sprintf("tare-signal-p%d-t1", os.Getpid())
	path, j := job(t, r, self, tree, "trap 'echo bye; exit 5' TERM; echo hello; while true; do sleep 0.1; done")
	cmd := exec.Command(self, j.Args(path)...)
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer input.Close()
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 64)
	if n, err := output.Read(buf); string(buf[:n]) != "hello\n" {
		t.Errorf("%q, %v", buf[:n], err)
	}
	for { // the shim can forward signals once the container has started
		if times, err := ReadTimes(filepath.Dir(path)); err != nil || times.Started > 0 {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	time.Sleep(50 * time.Millisecond)
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	n, err := output.Read(buf)
	if string(buf[:n]) != "bye\n" {
		t.Errorf("%q, %v", buf[:n], err)
	}
	if _ = cmd.Wait(); cmd.ProcessState.ExitCode() != 5 {
		t.Errorf("exit status %d", cmd.ProcessState.ExitCode())
	}
}

// TestClean: what a killed run left behind is removed, including the container; what belongs to a running run is not.
func TestClean(t *testing.T) {
	r, self := needsRunc(t)
	layout, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	tree := ended(t)
	path, j := job(t, r, self, tree, "sleep 1000")
	cmd := exec.Command(self, j.Args(path)...)
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer input.Close()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for {
		s, err := j.Container.State(t.Context())
		if err == nil && s.Status == "running" {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	s, err := j.Container.State(t.Context())
	if err != nil || s.Status != "running" {
		t.Fatalf("the container of a killed shim is %s, %v", s.Status, err)
	}
	owners := placement.NewOwners(layout)
	defer owners.Close()
	removed, err := Clean(owners)
	if err = errors.Join(err, CleanGroups(layout, owners)); err != nil ||
		!slices.Contains(removed, filepath.Join(StateDir, tree)) {
		t.Errorf("removed %q, %v", removed, err)
	}
	if _, err := os.Stat(filepath.Join(StateDir, tree)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its state: %v", err)
	}
	if left := groupsOf(t, tree); len(left) > 0 {
		t.Errorf("left %q", left)
	}
	if p, err := (proc.FS{}).Process(s.PID); err == nil && p.Alive() {
		t.Errorf("process %d still runs", s.PID)
	}
}

// TestCleanUnknown: if a runtime was killed while it created a container, the remains of the container are ended and
// removed, even though the runtime does not know the container.
func TestCleanUnknown(t *testing.T) {
	r, self := needsRunc(t)
	layout, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	tree := ended(t)
	_, j := job(t, r, self, tree, "sleep 1000")
	c := j.Container
	create := c.Runtime.command(c.Root, "create", "--bundle", c.Bundle, "--pid-file", c.pidFile(), c.ID)
	// The runtime must not inherit this test's streams, because the process that waits in the container would keep them
	// open.
	if err := exec.Command(create[0], create[1:]...).Run(); err != nil {
		t.Fatal(err)
	}
	pid, err := readPID(c.pidFile())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(c.Root); err != nil {
		t.Fatal(err)
	}
	if s, err := c.State(t.Context()); err == nil {
		t.Fatalf("the runtime still knows the container: %+v", s)
	}
	owners := placement.NewOwners(layout)
	defer owners.Close()
	if _, err := Clean(owners); err != nil {
		t.Error(err)
	}
	if p, err := (proc.FS{}).Process(pid); err == nil && p.Alive() {
		t.Errorf("process %d still waits for the container's start", pid)
		_ = proc.Kill(pid, func() bool { return true })
	}
	if err := CleanGroups(layout, owners); err != nil {
		t.Error(err)
	}
	if left := groupsOf(t, tree); len(left) > 0 {
		t.Errorf("left %q", left)
	}
}

// TestRoot: a program runs in a root file system with only the libraries that it is linked with.
func TestRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: chroot")
	}
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("needs bash: ", err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	root, err := NewRoot(filepath.Join(t.TempDir(), "rootfs"), self)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // a second time changes nothing
		if err := root.Add(bash); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(bash, "-c", "echo in; [ ! -e /usr/lib/os-release ] && exit 7")
	cmd.SysProcAttr = &unix.SysProcAttr{Chroot: root.Dir}
	out, err := cmd.Output()
	if string(out) != "in\n" || cmd.ProcessState.ExitCode() != 7 {
		t.Errorf("%q, %v", out, err)
	}
	if err := root.Add("/no/such/program"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a program that is not there: %v", err)
	}
}

// TestProbe: a working runtime passes; if a runtime refuses, the error quotes its message.
func TestProbe(t *testing.T) {
	r, self := needsRunc(t)
	if err := Probe(t.Context(), r, self, 0, nil); err != nil {
		t.Error(err)
	}
	script := filepath.Join(t.TempDir(), "refuses")
	text := "#!/bin/sh\necho 'time=\"now\" level=error msg=\"no \\\"cgroups\\\" here\"' >&2\nexit 1\n"
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	refuses, err := Find(script, self, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = Probe(t.Context(), refuses, self, 0, nil)
	if fault.CodeOf(err) != fault.Machine || !strings.HasSuffix(fmt.Sprint(err), `refuses run: no "cgroups" here`) {
		t.Errorf("%v", err)
	}
	if left := groupsOf(t, fmt.Sprintf("tare-probe-*-p%d-t*", os.Getpid())); len(left) > 0 {
		t.Errorf("left %q", left)
	}
}

// TestProbeHangs: a runtime whose commands hang blocks neither an interrupt nor the clean-up, and the processes that it
// started are ended.
func TestProbeHangs(t *testing.T) {
	_, self := needsRunc(t)
	defer func(was time.Duration) { commandTime = was }(commandTime)
	commandTime = 300 * time.Millisecond // deadline under test: of the commands that clean up
	dir := t.TempDir()
	script, pids := filepath.Join(dir, "hangs"), filepath.Join(dir, "pids")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nsleep 1000 &\necho $! >>"+pids+"\nwait\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	hangs, err := Find(script, self, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() { // interrupts it once the script has started
		defer cancel()
		for text := ""; text == "" && ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
			b, _ := os.ReadFile(pids)
			text = string(b)
		}
	}()
	if err := Probe(ctx, hangs, self, 0, nil); err == nil {
		t.Error("it works")
	}
	text, err := os.ReadFile(pids)
	if err != nil || len(text) == 0 {
		t.Fatalf("nothing was started: %v", err)
	}
	for pid := range strings.FieldsSeq(string(text)) {
		for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			status, err := os.ReadFile("/proc/" + pid + "/stat")
			if err != nil || strings.Contains(string(status), ") Z ") {
				break
			}
			if time.Now().After(end) {
				t.Errorf("process %s goes on", pid)
				break
			}
		}
	}
	if left := groupsOf(t, fmt.Sprintf("tare-probe-*-p%d-t*", os.Getpid())); len(left) > 0 {
		t.Errorf("left %q", left)
	}
}

// TestFind: for a runtime that is not installed, the error has the code fault.Machine and a hint about how to get it.
func TestFind(t *testing.T) {
	_, err := Find("no-such-runtime", "/bin/true", nil)
	if fault.CodeOf(err) != fault.Machine || fault.HintOf(err) == "" {
		t.Errorf("%v", err)
	}
	r, err := Find("microvm", "/usr/bin/tare", nil)
	if err != nil || !slices.Equal(r.command("/state", "state", "x"),
		[]string{"/usr/bin/tare", "microvm", "--root", "/state", "state", "x"}) {
		t.Errorf("%v, %v", r, err)
	}
}

// TestForeignState: files of another user at the paths of container state are not trusted: the programs that they name
// are not run, and no state is created there.
func TestForeignState(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to give files away")
	}
	const tree, nobody = "tare-x-p4100000-t1", 65534
	for _, c := range []struct {
		name  string
		harms func(base string) error
	}{
		{"the directory of all", func(base string) error { return os.Chown(base, nobody, nobody) }},
		{"the directory of a run", func(base string) error { return os.Chown(filepath.Join(base, tree), nobody, nobody) }},
		{"one where all may write", func(base string) error { return os.Chmod(filepath.Join(base, tree), 0o777) }},
		{"the directory of a container", func(base string) error {
			return os.Chown(filepath.Join(base, tree, "one"), nobody, nobody)
		}},
		{"a job", func(base string) error { return os.Chown(filepath.Join(base, tree, "one", jobFile), nobody, nobody) }},
		{"a link", func(base string) error {
			own, theirs := filepath.Join(base, tree), filepath.Join(base, "theirs")
			return errors.Join(os.Rename(own, theirs), os.Symlink(theirs, own))
		}},
		{"nothing", func(string) error { return nil }},
	} {
		t.Run(c.name, func(t *testing.T) {
			base := filepath.Join(t.TempDir(), "run")
			dir, err := newState(base, tree)
			if err != nil {
				t.Fatal(err)
			}
			ran := filepath.Join(t.TempDir(), "ran")
			evil := filepath.Join(t.TempDir(), "evil")
			if err := os.WriteFile(evil, []byte("#!/bin/sh\n: >"+ran+"\nexit 1\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			j := Job{Container: Container{Runtime: Runtime{Name: "runc", Argv: []string{evil}}, ID: "x", Root: dir}}
			if err := os.Mkdir(filepath.Join(dir, "one"), 0o711); err != nil {
				t.Fatal(err)
			}
			if _, err := j.Write(filepath.Join(dir, "one")); err != nil {
				t.Fatal(err)
			}
			if err := c.harms(base); err != nil {
				t.Fatal(err)
			}
			_, made := newState(base, tree)
			inside := c.name == "the directory of a container" || c.name == "a job" // newState does not check these
			if harmless := c.name == "nothing"; (made == nil) != (harmless || inside) {
				t.Errorf("state can be made there: %v", made)
			}
			_, removed := removeState(t.Context(), base, tree)
			if _, err := os.Stat(ran); (err == nil) != (c.name == "nothing") {
				t.Errorf("a program was run, as root: %v; %v", err == nil, removed)
			}
		})
	}
}

// TestStateMounted: what somebody has mounted in place of a tree's directory is not removed.
func TestStateMounted(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount")
	}
	const tree = "tare-test-mounted"
	base, elsewhere := t.TempDir(), t.TempDir()
	dir, err := newState(base, tree)
	if err != nil {
		t.Fatal(err)
	}
	kept := filepath.Join(elsewhere, "kept")
	if err := errors.Join(os.WriteFile(kept, nil, 0o600), unix.Mount(elsewhere, dir, "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	_, err = removeState(t.Context(), base, tree)
	if _, lost := os.Stat(kept); lost != nil || err == nil || !strings.Contains(err.Error(), "mounted on "+dir) {
		t.Error(lost, err)
	}
	if err := unix.Unmount(dir, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := removeState(t.Context(), base, tree); err != nil {
		t.Error(err)
	}
}

// TestJobOfADeadRun: a job contains a link to the binary of its run, which may lead to another program after the run's
// end. readJob replaces it.
func TestJobOfADeadRun(t *testing.T) {
	dir := t.TempDir()
	stale := Runtime{Name: "microvm", Argv: []string{"/tmp/tare-scratch-binary-1/tare", "microvm"}}
	if _, err := (Job{Container: Container{Runtime: stale, ID: "x"}}).Write(dir); err != nil {
		t.Fatal(err)
	}
	own, err := self.Path()
	if err != nil {
		t.Fatal(err)
	}
	if j, err := readJob(dir); err != nil || !slices.Equal(j.Container.Runtime.Argv, []string{own, "microvm"}) {
		t.Errorf("it would be removed by %q, %v", j.Container.Runtime.Argv, err)
	}
}
