package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"tare/test/binary"
	"tare/test/long"
)

// ociRuntime is a runtime with runc's command line.
type ociRuntime struct {
	name string
	argv []string
	env  []string
}

// microvm is the runtime under test, with the kernel that test/setup fetched.
func microvm(t *testing.T) ociRuntime {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		t.Skip("needs QEMU (Debian package qemu-system-x86)")
	}
	cache, err := binary.Cache()
	if err != nil {
		t.Fatal(err)
	}
	kernels, _ := filepath.Glob(filepath.Join(cache, "kernel/vmlinuz-*"))
	modules, _ := filepath.Glob(filepath.Join(cache, "kernel/lib/modules/*"))
	if len(kernels) == 0 || len(modules) == 0 {
		t.Skip("needs a kernel with modules in " + cache + "/kernel; 'make test' fetches it")
	}
	return ociRuntime{"microvm", []string{bin, "microvm"},
		[]string{"TARE_MICROVM_KERNEL=" + slices.Max(kernels), "TARE_MICROVM_ACCEL=tcg"}}
}

// peers returns microvm and runc, which must behave alike.
func peers(t *testing.T) []ociRuntime {
	t.Helper()
	runc, err := exec.LookPath("runc")
	if err != nil {
		t.Skip("needs runc (Debian package runc)")
	}
	return []ociRuntime{{"runc", []string{runc}, nil}, microvm(t)}
}

// command returns one command of the runtime. It is killed if it takes 4 minutes.
func (r ociRuntime) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), r.argv[0], append(r.argv[1:], args...)...)
	cmd.Env = append(os.Environ(), r.env...)
	late := time.AfterFunc(4*time.Minute, func() { _ = cmd.Cancel() })
	t.Cleanup(func() { late.Stop() })
	return cmd
}

// run runs a command of the runtime, and returns what it printed and its exit code.
func (r ociRuntime) run(t *testing.T, args ...string) output {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := r.command(t, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	began := time.Now()
	if err := cmd.Run(); cmd.ProcessState == nil {
		t.Fatalf("%s %s: %v", r.name, strings.Join(args, " "), err)
	}
	return output{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode(), time.Since(began)}
}

// must runs a command that has to succeed.
func (r ociRuntime) must(t *testing.T, args ...string) string {
	t.Helper()
	o := r.run(t, args...)
	if o.code != 0 {
		t.Fatalf("%s %s: %s", r.name, strings.Join(args, " "), o)
	}
	return o.stdout
}

// mustNot runs a command that has to fail.
func (r ociRuntime) mustNot(t *testing.T, args ...string) output {
	t.Helper()
	o := r.run(t, args...)
	if o.code == 0 {
		t.Errorf("%s %s succeeded: %s", r.name, strings.Join(args, " "), o)
	}
	return o
}

// create creates a container whose output goes to a file, and returns the file's path. The runtime itself has that file
// as its output, as with containerd: a pipe would stay open for as long as the container lives.
func (r ociRuntime) create(t *testing.T, id, bundle string, more ...string) string {
	t.Helper()
	name := filepath.Join(bundle, "output-"+r.name)
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := r.command(t, append(append([]string{"create", "--bundle", bundle}, more...), id)...)
	cmd.Stdout, cmd.Stderr = f, f
	t.Cleanup(func() { r.remove(id) })
	if err := cmd.Run(); err != nil {
		said, _ := os.ReadFile(name)
		t.Fatalf("%s create: %v\n%s", r.name, err, said)
	}
	return name
}

// remove removes a container that a test may have left.
func (r ociRuntime) remove(id string) {
	cmd := exec.Command(r.argv[0], append(r.argv[1:], "delete", "--force", id)...)
	cmd.Env = append(os.Environ(), r.env...)
	_ = cmd.Run()
}

func (r ociRuntime) state(t *testing.T, id string) (s specs.State) {
	t.Helper()
	if err := json.Unmarshal([]byte(r.must(t, "state", id)), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// waitFor waits until a file holds a text.
func waitFor(t *testing.T, name, text string) {
	t.Helper()
	for range 1200 {
		if b, _ := os.ReadFile(name); strings.Contains(string(b), text) {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	b, _ := os.ReadFile(name)
	t.Fatalf("%q never came: %q", text, b)
}

// waitForSignal is waitFor for what a container writes on USR1. Once, beside much else, a microvm wrote nothing in a
// minute: a failure says whether it ran at all, and whether another signal got through.
func (r ociRuntime) waitForSignal(t *testing.T, id, name, text string) {
	t.Helper()
	defer func() {
		if !t.Failed() {
			return
		}
		used := func() string {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.state(t, id).Pid))
			if fields := strings.Fields(string(stat)); err == nil && len(fields) > 14 {
				return "user " + fields[13] + ", system " + fields[14]
			}
			return fmt.Sprint(err)
		}
		before := used()
		r.must(t, "kill", id, "USR1")
		time.Sleep(10 * time.Second)
		b, _ := os.ReadFile(name)
		t.Logf("ticks of its process: %s, and %s 10 s after a second signal; it wrote %q", before, used(), b)
	}()
	waitFor(t, name, text)
}

// await waits until a container has a status.
func (r ociRuntime) await(t *testing.T, id string, status specs.ContainerState) specs.State {
	t.Helper()
	var s specs.State
	for range 600 {
		if s = r.state(t, id); s.Status == status {
			return s
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("%s: %s is %s, not %s", r.name, id, s.Status, status)
	return s
}

// ociBundle makes a bundle with busybox, as 'runc spec' would, with a script for its shell. Its control groups are
// below the group of groupsOf.
func ociBundle(t *testing.T, id, script string, change func(*specs.Spec)) string {
	t.Helper()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Skip("needs a static busybox (Debian package busybox-static)")
	}
	dir := t.TempDir()
	rootfs := filepath.Join(dir, "rootfs")
	for _, d := range []string{"bin", "etc", "tmp", "proc", "sys", "dev"} {
		if err := os.MkdirAll(filepath.Join(rootfs, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// runc 1.1 gives the mount this mode, whatever its options say.
	if err := os.Chmod(filepath.Join(rootfs, "tmp"), 0o777|fs.ModeSticky); err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(rootfs, "bin/busybox"), program, 0o755); err != nil {
		t.Fatal(err)
	}
	list, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.FieldsSeq(string(list)) {
		if name != "busybox" {
			_ = os.Symlink("busybox", filepath.Join(rootfs, "bin", name))
		}
	}
	passwd := "root:x:0:0:root:/root:/bin/sh\nme:x:1000:1000::/home/me:/bin/sh\n"
	if err := os.WriteFile(filepath.Join(rootfs, "etc/passwd"), []byte(passwd), 0o644); err != nil {
		t.Fatal(err)
	}
	capabilities := []string{"CAP_KILL", "CAP_NET_BIND_SERVICE", "CAP_NET_RAW", "CAP_SETUID"}
	group := groupsOf(id)
	s := &specs.Spec{
		Version: "1.0.2",
		Process: &specs.Process{
			Args: []string{"sh", "-c", script}, Env: []string{"PATH=/bin", "FROM=the bundle"}, Cwd: "/tmp",
			Capabilities: &specs.LinuxCapabilities{Bounding: capabilities, Effective: capabilities, Permitted: capabilities},
		},
		Root:     &specs.Root{Path: "rootfs", Readonly: true},
		Hostname: "sandboxed",
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs",
				Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts",
				Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"}},
			{Destination: "/dev/shm", Type: "tmpfs", Source: "shm",
				Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=65536k"}},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
			{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs",
				Options: []string{"nosuid", "nodev", "mode=1777", "size=1024k"}},
		},
		Linux: &specs.Linux{
			CgroupsPath: group + "/" + id,
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
				{Type: specs.NetworkNamespace},
			},
		},
		Annotations: map[string]string{},
	}
	if change != nil {
		change(s)
	}
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeGroups(group) })
	return dir
}

// groupsOf returns the path of the control group that holds the groups of a container.
func groupsOf(id string) string { return "/" + id + "-groups" }

// removeGroups removes empty control groups of a test in every hierarchy.
func removeGroups(group string) {
	dirs, _ := filepath.Glob("/sys/fs/cgroup/*" + group)
	for _, top := range append(dirs, "/sys/fs/cgroup"+group) {
		var all []string
		_ = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				all = append(all, path)
			}
			return nil
		})
		for _, dir := range slices.Backward(all) {
			_ = os.Remove(dir)
		}
	}
}

// idOf returns an ID that no other test has.
func idOf(what string) string { return fmt.Sprintf("tare-test-%s-%d", what, os.Getpid()) }

// sandboxProcesses returns the processes of a sandbox by their names, the shim as "shim".
func sandboxProcesses(id string) map[string][]int {
	found := map[string][]int{}
	environs, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, name := range environs {
		env, _ := os.ReadFile(name)
		if !slices.Contains(strings.Split(string(env), "\x00"), "TARE_MICROVM=/run/tare-microvm/"+id) {
			continue
		}
		dir := filepath.Dir(name)
		pid, _ := strconv.Atoi(filepath.Base(dir))
		comm, err := os.ReadFile(filepath.Join(dir, "comm"))
		if err != nil {
			continue
		}
		what := strings.TrimSpace(string(comm))
		if line, _ := os.ReadFile(filepath.Join(dir, "cmdline")); strings.Contains(string(line), "\x00-id\x00"+id) {
			what = "shim"
		}
		found[what] = append(found[what], pid)
	}
	return found
}

// sandboxRemains returns everything of a sandbox that is on this machine.
func sandboxRemains(id string) (remains []string) {
	for what, pids := range sandboxProcesses(id) {
		remains = append(remains, fmt.Sprintf("processes %s %v", what, pids))
	}
	for _, pattern := range []string{
		"/run/tare-microvm/" + id, "/run/tare-microvm/,new-*-" + id, "/run/virtiofsd/*." + id + ".*",
	} {
		found, _ := filepath.Glob(pattern)
		remains = append(remains, found...)
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, id) && !strings.Contains(line, " /run/netns/") { // those belong to the test
			remains = append(remains, "mount "+line)
		}
	}
	loops, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, name := range loops {
		if file, _ := os.ReadFile(name); strings.Contains(string(file), id) {
			remains = append(remains, "loop device "+name)
		}
	}
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && (d.Name() == id || d.Name() == "kata_"+id) {
			remains = append(remains, path)
		}
		return nil
	})
	return remains
}

// TestMicrovmLifeCycle: the life of a container, as opencontainers/runtime-tools validates it (create, start, state,
// kill, killsig, delete, pidfile), is the same with runc and with microvm.
func TestMicrovmLifeCycle(t *testing.T) {
	t.Parallel()
	for _, r := range peers(t) {
		t.Run(r.name, func(t *testing.T) {
			id := idOf("life-" + r.name)
			script := `trap 'echo usr1' USR1; trap '' TERM; echo started; while :; do sleep 0.1; done`
			hooked := filepath.Join(t.TempDir(), "hooks")
			bundle := ociBundle(t, id, script, func(s *specs.Spec) {
				hook := func(name string) []specs.Hook {
					note := fmt.Sprintf(`echo %s $X $(grep -o '"status":"[a-z]*"') >>%s`, name, hooked)
					if name == "poststart" { // runc 1.1 still says "created" there
						note = fmt.Sprintf("echo %s $X >>%s", name, hooked)
					}
					return []specs.Hook{{Path: "/bin/sh", Args: []string{"sh", "-c", note}, Env: []string{"X=x", "PATH=/bin"}}}
				}
				s.Hooks = &specs.Hooks{
					CreateRuntime: hook("createRuntime"), Poststart: hook("poststart"), Poststop: hook("poststop"),
				}
				limit := int64(64 << 20)
				pids := int64(50)
				s.Linux.Resources = &specs.LinuxResources{
					Memory: &specs.LinuxMemory{Limit: &limit}, Pids: &specs.LinuxPids{Limit: &pids},
				}
			})
			pidFile := filepath.Join(bundle, "pid")
			r.mustNot(t, "state", id)
			r.mustNot(t, "start", id)
			r.mustNot(t, "delete", id)
			r.must(t, "delete", "--force", id)
			r.mustNot(t, "create", "--bundle", "/nonexistent", id)
			r.mustNot(t, "create", "--bundle", bundle, "../"+id)
			out := r.create(t, id, bundle, "--pid-file", pidFile)
			s := r.state(t, id)
			if s.Status != specs.StateCreated || s.ID != id || s.Bundle != bundle || s.Pid == 0 {
				t.Errorf("after create: %+v", s)
			}
			pid, err := os.ReadFile(pidFile)
			if err != nil || string(pid) != strconv.Itoa(s.Pid) || syscall.Kill(s.Pid, 0) != nil {
				t.Errorf("the pid file holds %q (%v) where the state's pid is %d", pid, err, s.Pid)
			}
			if b, _ := os.ReadFile(out); len(b) > 0 {
				t.Errorf("it ran before it was started: %q", b)
			}
			r.mustNot(t, "create", "--bundle", bundle, id)
			r.must(t, "start", id)
			waitFor(t, out, "started")
			if s := r.state(t, id); s.Status != specs.StateRunning || s.Pid == 0 {
				t.Errorf("after start: %+v", s)
			}
			if list := r.must(t, "list", "--quiet"); !slices.Contains(strings.Fields(list), id) {
				t.Errorf("list: %q", list)
			}
			r.mustNot(t, "start", id)
			r.mustNot(t, "delete", id)
			r.must(t, "kill", id, "USR1")
			r.waitForSignal(t, id, out, "usr1")
			r.must(t, "kill", id)
			r.mustNot(t, "kill", id, "MOON")
			if s := r.state(t, id); s.Status != specs.StateRunning {
				t.Errorf("after SIGTERM, which it ignores: %+v", s)
			}
			r.must(t, "kill", id, "KILL")
			if s := r.await(t, id, specs.StateStopped); r.name == "microvm" &&
				s.Annotations["io.tare.microvm.exit_code"] != "137" {
				t.Errorf("after SIGKILL: %+v", s)
			}
			r.mustNot(t, "kill", id, "TERM")
			r.mustNot(t, "start", id)
			r.must(t, "delete", id)
			r.mustNot(t, "state", id)
			const hooks = "createRuntime x \"status\":\"creating\"\npoststart x\n" +
				"poststop x \"status\":\"stopped\"\n"
			if ran, _ := os.ReadFile(hooked); string(ran) != hooks {
				t.Errorf("hooks:\n%s", ran)
			}
			if left := sandboxRemains(id); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
		})
	}
}

// what prints what a process finds in its container; where machines differ by nature it prints nothing.
const what = `
echo "args: $# $0 $1"
pwd; umask; id; hostname; echo "$FROM, $HOME"; echo pid $$
grep -E '^(Cap...|Groups|NoNewPrivs|Uid|Gid)' /proc/self/status | grep -v CapBnd
ulimit -n; cat /proc/self/oom_score_adj
for f in / /ro /tmp /proc/sys; do touch $f/x 2>/dev/null && echo "$f: writable" || echo "$f: read-only"; done
ls -l /dev | grep -v -E 'total|mqueue|shm|pts|core' | while read mode n user group a b rest; do
	echo "$mode $user $group $a $b ${rest##*[0-9] }"
done
ls -ld /dev/shm /tmp | cut -d' ' -f1
cut -d' ' -f2,3 /proc/mounts | grep -v -E '^/ |/sys/fs/cgroup' | sed -E 's/^(.bound|.bound-file|.ro) .*/\1 of the host/'
ls /masked; wc -c < /masked-file
cat /bound/file; touch /bound/y && echo bound; cat /bound-file
echo x > /dev/full 2>/dev/null || echo full; head -c 3 /dev/zero | wc -c
set -- /proc/[0-9]*; echo $#
ip -o link | grep -c lo: ; ip -o link | wc -l; ip -o -4 addr show lo | grep -o 127.0.0.1/8
cat /proc/sys/kernel/msgmax
echo to stderr >&2
exit 7`

// TestMicrovmLikeRunc: a process finds the same in a microvm as in a container of runc: arguments, directory,
// environment, user, capabilities, limits, devices, mounts, masked and read-only paths, bind mounts, its pid.
func TestMicrovmLikeRunc(t *testing.T) {
	t.Parallel()
	shared := t.TempDir()
	for name, text := range map[string]string{"file": "from the host\n", "single": "a file\n"} {
		if err := os.WriteFile(filepath.Join(shared, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(shared, 1000, 1000); err != nil {
		t.Fatal(err)
	}
	said := map[string]output{}
	for _, r := range peers(t) {
		id := idOf("like-" + r.name)
		bundle := ociBundle(t, id, "", func(s *specs.Spec) {
			p := s.Process
			p.Args = []string{"sh", "-c", what, "zero", "one two"}
			p.User = specs.User{UID: 1000, GID: 1000, AdditionalGids: []uint32{10, 20}}
			p.Cwd = "/tmp/a/b"
			p.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 123, Hard: 456}}
			p.NoNewPrivileges = true
			adj := 77
			p.OOMScoreAdj = &adj
			s.Linux.MaskedPaths = []string{"/masked", "/masked-file", "/nonexistent"}
			s.Linux.ReadonlyPaths = []string{"/ro", "/proc/sys", "/nonexistent"}
			s.Linux.Sysctl = map[string]string{"kernel.msgmax": "4321"}
			mode := fs.FileMode(0o640)
			s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/mine", Type: "c", Major: 1, Minor: 5, FileMode: &mode}}
			s.Mounts = append(s.Mounts,
				specs.Mount{Destination: "/bound", Type: "bind", Source: shared, Options: []string{"rbind", "rw"}},
				specs.Mount{Destination: "/bound-file", Type: "bind", Source: filepath.Join(shared, "single"),
					Options: []string{"bind", "ro"}})
		})
		rootfs := filepath.Join(bundle, "rootfs")
		for _, d := range []string{"masked/secret", "ro"} {
			if err := os.MkdirAll(filepath.Join(rootfs, d), 0o777); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(rootfs, "masked-file"), []byte("secret"), 0o666); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.remove(id) })
		o := r.run(t, "run", "--bundle", bundle, id)
		if o.code != 7 || strings.TrimSpace(o.stderr) != "to stderr" {
			t.Errorf("%s: %s", r.name, o)
		}
		said[r.name] = o
		if _, err := os.Stat(filepath.Join(shared, "y")); err != nil {
			t.Errorf("%s: what was written to a bind mount is not on the host", r.name)
		}
		_ = os.Remove(filepath.Join(shared, "y"))
		if left := sandboxRemains(id); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	}
	if a, b := said["runc"].stdout, said["microvm"].stdout; a != b {
		t.Errorf("runc:\n%s\nmicrovm:\n%s", a, b)
	}
}

// TestMicrovmStreams: the container gets standard input to its end and the signal that the runtime gets; output and
// errors come separately, and the exit code is the container's.
func TestMicrovmStreams(t *testing.T) {
	t.Parallel()
	r := microvm(t)
	id := idOf("streams")
	bundle := ociBundle(t, id, `trap 'exit 5' TERM; sha256sum; echo read >&2; while :; do sleep 0.1; done`, nil)
	input := make([]byte, 2<<20)
	for i := range input {
		input[i] = byte(rand.Uint32())
	}
	cmd := r.command(t, "run", "--bundle", bundle, id)
	t.Cleanup(func() { r.remove(id) })
	var stdout bytes.Buffer
	var stderr buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for range 2400 {
		if strings.Contains(stderr.String(), "read") {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if want := fmt.Sprintf("%x  -\n", sha256.Sum256(input)); cmd.ProcessState.ExitCode() != 5 || stdout.String() != want ||
		stderr.String() != "read\n" {
		t.Errorf("%v: %q, %q", cmd.ProcessState, stdout.String(), stderr.String())
	}
}

// TestMicrovmSharesToRead: not even virtiofsd can write what the bundle shares for reading, whatever the guest's kernel
// asks it to do.
func TestMicrovmSharesToRead(t *testing.T) {
	t.Parallel()
	r := microvm(t)
	id := idOf("reads")
	dir := t.TempDir()
	bundle := ociBundle(t, id, "true", func(s *specs.Spec) {
		s.Root.Readonly = true
		s.Mounts = append(s.Mounts,
			specs.Mount{Destination: "/tmp/read", Type: "bind", Source: dir, Options: []string{"rbind", "ro"}},
			specs.Mount{Destination: "/tmp/write", Type: "bind", Source: dir, Options: []string{"rbind", "rw"}})
	})
	r.create(t, id, bundle)
	daemons := sandboxProcesses(id)["virtiofsd"]
	if len(daemons) == 0 {
		t.Fatal("nothing is shared")
	}
	for _, pid := range daemons {
		mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
		if err != nil {
			t.Fatal(err)
		}
		readonly := map[string]bool{}
		for line := range strings.Lines(string(mounts)) {
			fields := strings.Fields(line) // of proc_pid_mountinfo(5): 5 is the place, 6 its options
			readonly[filepath.Base(fields[4])] = slices.Contains(strings.Split(fields[5], ","), "ro")
		}
		for name, want := range map[string]bool{"rootfs": true, "mount-0": true, "mount-1": false} {
			if is, there := readonly[name]; !there || is != want {
				t.Errorf("virtiofsd %d has %s: %v, for reading alone: %v", pid, name, there, is)
			}
		}
	}
	r.must(t, "delete", "--force", id)
	if left := sandboxRemains(id); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// TestMicrovmPacked: without virtiofsd the root is packed into the guest's memory. A container that was created but not
// started can be deleted, and has printed nothing. If its program does not exist, create fails.
func TestMicrovmPacked(t *testing.T) {
	long.Test(t, "a virtual machine whose root is in its memory: 20 s")
	t.Parallel()
	r := microvm(t)
	id := idOf("packed")
	bundle := ociBundle(t, id, "echo never", func(s *specs.Spec) {
		s.Annotations["io.tare.microvm.rootfs"] = "packed"
		s.Process.Args = []string{"nowhere"}
	})
	if o := r.mustNot(t, "create", "--bundle", bundle, id); !strings.Contains(o.stderr, `"nowhere"`) {
		t.Errorf("create: %s", o)
	}
	if left := sandboxRemains(id); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	bundle = ociBundle(t, id, "echo never", func(s *specs.Spec) { s.Annotations["io.tare.microvm.rootfs"] = "packed" })
	out := r.create(t, id, bundle)
	if s := r.state(t, id); s.Annotations["io.tare.microvm.rootfs"] != "packed" ||
		s.Annotations["io.tare.microvm.accel"] != "tcg" {
		t.Errorf("%+v", s)
	}
	if found := sandboxProcesses(id); len(found["virtiofsd"]) > 0 || len(found["shim"]) != 1 {
		t.Errorf("processes: %v", found)
	}
	r.must(t, "delete", id)
	if b, _ := os.ReadFile(out); len(b) > 0 {
		t.Errorf("a container that was never started: %q", b)
	}
	if left := sandboxRemains(id); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// TestMicrovmRefuses: what cannot be done is an error with a hint, before anything is made.
func TestMicrovmRefuses(t *testing.T) {
	t.Parallel()
	r := microvm(t)
	id := idOf("refuses")
	bundle := ociBundle(t, id, "true", nil)
	for _, c := range []struct {
		code int
		says string
		args []string
	}{
		{2, "terminal", []string{"create", "--bundle", bundle, "--console-socket", "/tmp/x", id}},
		{2, "systemd", []string{"--systemd-cgroup", "create", "--bundle", bundle, id}},
		{2, "memory", []string{"--memory", "1", "create", "--bundle", bundle, id}},
		{3, "apt-get install linux-image-cloud-amd64",
			[]string{"--kernel", "/nonexistent/vmlinuz-1", "create", "--bundle", bundle, id}},
		{2, "no such command", []string{"exec", id, "true"}},
	} {
		if o := r.run(t, c.args...); o.code != c.code || !strings.Contains(o.stderr, c.says) {
			t.Errorf("%q: want exit code %d with %q: %s", c.args, c.code, c.says, o)
		}
	}
	log := filepath.Join(t.TempDir(), "log")
	r.mustNot(t, "--log", log, "--log-format", "json", "start", id)
	var line struct{ Level, Msg string }
	if b, err := os.ReadFile(log); err != nil || json.Unmarshal(b, &line) != nil || line.Level != "error" ||
		line.Msg == "" {
		t.Errorf("the log: %q, %v", b, err)
	}
	if left := sandboxRemains(id); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// groupOf returns the control group of a task: with v1 in the hierarchy of the controller, otherwise in v2.
func groupOf(t *testing.T, task, controller string) string {
	t.Helper()
	b, err := os.ReadFile(task + "/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	group := ""
	for line := range strings.Lines(string(b)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if slices.Contains(strings.Split(parts[1], ","), controller) {
			return parts[2]
		}
		if parts[0] == "0" {
			group = parts[2]
		}
	}
	return group
}

// network makes a network namespace with an interface that is joined to one of this machine's, and returns the
// namespace's path.
func network(t *testing.T, name, here, there string) string {
	t.Helper()
	link := "tt" + strconv.Itoa(os.Getpid())
	for _, line := range []string{
		"netns add " + name, "link add " + link + " type veth peer name eth0 netns " + name,
		"addr add " + here + "/30 dev " + link, "link set " + link + " up",
		"-n " + name + " addr add " + there + "/30 dev eth0", "-n " + name + " link set eth0 up",
		"-n " + name + " route add default via " + here,
	} {
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v\n%s", line, err, out)
		}
	}
	t.Cleanup(func() {
		_ = exec.Command("ip", "link", "del", link).Run()
		_ = exec.Command("ip", "netns", "del", name).Run()
	})
	return "/run/netns/" + name
}

// inNetwork returns what a sandbox could have left in a network namespace.
func inNetwork(t *testing.T, name string) string {
	t.Helper()
	links, err := exec.Command("ip", "-n", name, "-o", "link").Output()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(string(links)) {
		names = append(names, strings.Fields(line)[1])
	}
	queues, err := exec.Command("ip", "netns", "exec", name, "tc", "qdisc").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(names, " ") + "\n" + string(queues)
}

// TestMicrovmPlaces: with sandbox_cgroup_only=false only the virtual CPUs are in the sandbox's group (cgroup v1), and
// all of the memory is charged to the overhead group; the guest has the network of the namespace.
func TestMicrovmPlaces(t *testing.T) {
	long.Test(t, "a virtual machine with a network: 15 s")
	t.Parallel()
	r := microvm(t)
	id := idOf("places")
	netns := network(t, id, "198.19.255.1", "198.19.255.2")
	before := inNetwork(t, id)
	bundle := ociBundle(t, id, `ip -o -4 addr show eth0; ip route; ping -c 1 198.19.255.1 >/dev/null && echo pong
		dd if=/dev/zero of=/dev/shm/x bs=1M count=8 2>/dev/null; echo ready; sleep 1000`, func(s *specs.Spec) {
		s.Linux.Namespaces[4].Path = netns
		group := filepath.Dir(s.Linux.CgroupsPath)
		s.Linux.CgroupsPath = "/pod/" + id
		maps.Copy(s.Annotations, map[string]string{
			"io.tare.microvm.sandbox_cgroup_only": "false", "io.tare.microvm.cgroup_root": group,
		})
	})
	out := r.create(t, id, bundle)
	r.must(t, "start", id)
	waitFor(t, out, "ready")
	if b, _ := os.ReadFile(out); !strings.Contains(string(b), " 198.19.255.2/30 ") ||
		!strings.Contains(string(b), "default via 198.19.255.1") ||
		!strings.Contains(string(b), "pong") {
		t.Errorf("the guest's network:\n%s", b)
	}
	if out, err := exec.Command("ping", "-c", "1", "-W", "20", "198.19.255.2").CombinedOutput(); err != nil {
		if _, missing := exec.LookPath("ping"); missing == nil {
			t.Errorf("the guest does not answer: %s", out)
		}
	}
	s := r.state(t, id)
	vmm := fmt.Sprintf("/proc/%d", s.Pid)
	overhead, sandbox := groupsOf(id)+"/kata_overhead/"+id, groupsOf(id)+"/pod/kata_"+id
	v1 := strings.HasPrefix(groupOf(t, vmm, "memory"), overhead)
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err == nil != v1 {
		t.Errorf("the virtual machine is in %s", groupOf(t, vmm, "memory"))
	}
	vcpus := 0
	tasks, _ := filepath.Glob(vmm + "/task/*")
	for _, task := range tasks {
		comm, _ := os.ReadFile(task + "/comm")
		want := sandbox
		if !strings.HasPrefix(string(comm), "CPU ") && v1 {
			want = overhead
		} else if v1 {
			vcpus++
		}
		if got := groupOf(t, task, "cpu"); got != want {
			t.Errorf("the thread %s is in %s, not %s", bytes.TrimSpace(comm), got, want)
		}
	}
	if v1 && vcpus != 1 {
		t.Errorf("%d virtual CPUs", vcpus)
	}
	for what, pids := range sandboxProcesses(id) {
		if len(pids) == 0 || what == "qemu-system-x86" {
			continue
		}
		for _, pid := range pids {
			if got := groupOf(t, fmt.Sprintf("/proc/%d", pid), "memory"); got != overhead {
				t.Errorf("%s is in %s", what, got)
			}
		}
	}
	if v1 {
		// As docs/sandbox-published.md reports of Kata: CPU time in the pod, memory in kata_overhead.
		inPod, inOverhead := charged(t, "memory"+sandbox+"/memory.usage_in_bytes"),
			charged(t, "memory"+overhead+"/memory.usage_in_bytes")
		cpu := charged(t, "cpuacct"+sandbox+"/cpuacct.usage")
		if inPod > 1<<20 || inOverhead < 50<<20 || cpu == 0 {
			t.Errorf("the pod's group has %d bytes and %d ns of CPU, the overhead group %d bytes", inPod, cpu, inOverhead)
		}
	}
	r.must(t, "delete", "--force", id)
	if left := sandboxRemains(id); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	if after := inNetwork(t, id); after != before {
		t.Errorf("the network namespace before:\n%s\nafter:\n%s", before, after)
	}
}

// TestMicrovmLeavesFilters: if another program filters the packets of the pod's interface, no sandbox is made, and that
// program's qdisc stays.
func TestMicrovmLeavesFilters(t *testing.T) {
	r := microvm(t)
	id := idOf("filters")
	netns := network(t, id, "198.19.254.1", "198.19.254.2")
	if out, err := exec.Command("tc", "-n", id, "qdisc", "add", "dev", "eth0", "clsact").CombinedOutput(); err != nil {
		t.Skipf("needs clsact: %v\n%s", err, out)
	}
	before := inNetwork(t, id)
	bundle := ociBundle(t, id, "true", func(s *specs.Spec) { s.Linux.Namespaces[4].Path = netns })
	t.Cleanup(func() { r.remove(id) })
	out, err := r.command(t, "create", "--bundle", bundle, id).CombinedOutput()
	const want = "another program filters the packets of the interface (qdisc clsact)"
	if err == nil || !strings.Contains(string(out), want) {
		t.Errorf("%v\n%s", err, out)
	}
	if after := inNetwork(t, id); after != before || !strings.Contains(after, "clsact") {
		t.Errorf("the network namespace before:\n%s\nafter:\n%s", before, after)
	}
}

func charged(t *testing.T, name string) int {
	t.Helper()
	return numberIn(t, "/sys/fs/cgroup/"+name)
}

// TestMicrovmKilled: whichever process of a sandbox is killed, and whenever, 'tare clean' removes the rest. TARE_KILLS
// is how often each is killed.
func TestMicrovmKilled(t *testing.T) {
	long.Test(t, "8 s and more: what a virtual machine consists of is killed")
	r := microvm(t)
	victims := long.Some(2, []string{"runtime", "shim", "qemu-system-x86", "virtiofsd"})
	times := 1
	if n, err := strconv.Atoi(os.Getenv("TARE_KILLS")); err == nil {
		times = n
	}
	id := idOf("killed")
	netns := network(t, id, "198.19.255.5", "198.19.255.6")
	before := inNetwork(t, id)
	bundle := ociBundle(t, id, "echo ready; sleep 1000", func(s *specs.Spec) {
		s.Linux.Namespaces[4].Path = netns
		group := filepath.Dir(s.Linux.CgroupsPath)
		s.Linux.CgroupsPath = "/pod/" + id
		maps.Copy(s.Annotations, map[string]string{
			"io.tare.microvm.sandbox_cgroup_only": "false", "io.tare.microvm.cgroup_root": group,
		})
	})
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	whole := time.Second // time until the container runs, as the last one took
	for i := range len(victims) * times {
		victim := victims[i%len(victims)]
		out, err := os.Create(filepath.Join(bundle, "output"))
		if err != nil {
			t.Fatal(err)
		}
		cmd := r.command(t, "run", "--bundle", bundle, id)
		cmd.Stdout, cmd.Stderr = out, out
		if victim == "runtime" {
			// A sandbox whose shim still runs counts as left over only if its run has ended.
			cmd.Env = append(cmd.Env, "TARE_RUN=tare-test-p2147483646-t1")
		}
		began := time.Now()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() {
			_ = cmd.Wait()
			close(ended)
		}()
		moment := time.Duration(random.Float64() * 1.1 * float64(whole))
		killed := 0
		for deadline := began.Add(4 * time.Minute); killed == 0; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("there was no %s to kill", victim)
			}
			b, _ := os.ReadFile(out.Name())
			running := strings.Contains(string(b), "ready")
			if running && i < 4 {
				whole = min(time.Since(began), time.Minute)
			}
			// The first four are killed once the container runs, the others at a random moment, or as soon as there is a victim.
			if i < 4 && !running || time.Since(began) < moment {
				continue
			}
			pids := []int{cmd.Process.Pid}
			if victim != "runtime" {
				pids = sandboxProcesses(id)[victim]
			}
			if len(pids) > 0 {
				killed = pids[random.IntN(len(pids))]
				_ = syscall.Kill(killed, syscall.SIGKILL)
			}
		}
		at := time.Since(began)
		<-ended // the runtime says what happened, and removes what it can
		_ = out.Close()
		if o := tare(t, "clean"); o.code != 0 {
			t.Errorf("tare clean: %s", o)
		}
		left := sandboxRemains(id)
		for range 100 { // a shim whose creator was killed takes its sandbox down by itself
			if len(left) == 0 {
				break
			}
			time.Sleep(100 * time.Millisecond)
			tare(t, "clean")
			left = sandboxRemains(id)
		}
		if len(left) > 0 {
			t.Errorf("%s (%d) killed after %s: left behind: %q", victim, killed, at, left)
		}
		if after := inNetwork(t, id); after != before {
			t.Errorf("%s killed after %s: the network namespace before:\n%s\nafter:\n%s", victim, at, before, after)
		}
		t.Logf("%s killed after %s", victim, at.Round(time.Millisecond))
	}
}

// TestMicrovmPanics: a guest whose kernel panics ends, and the error shows what the kernel printed.
func TestMicrovmPanics(t *testing.T) {
	long.Test(t, "a virtual machine that panics: 10 s")
	t.Parallel()
	r := microvm(t)
	id := idOf("panics")
	bundle := ociBundle(t, id, "echo c >/proc/sysrq-trigger; sleep 1000", nil)
	t.Cleanup(func() { r.remove(id) })
	if o := r.run(t, "run", "--bundle", bundle, id); o.code != 3 ||
		!strings.Contains(o.stderr, "QEMU ended; its kernel: ") {
		t.Errorf("run: %s", o)
	}
	if left := sandboxRemains(id); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}
