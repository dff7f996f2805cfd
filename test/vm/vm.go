// Package vm boots a small virtual machine to test what the machine at hand cannot show: pure cgroup v2, cgroup v1
// alone, an older kernel, trampolines, an unprivileged user. The machine is Debian's cloud kernel (6.1, with BTF) on
// QEMU's own processor (TCG: no hardware help is needed), with a file system in memory that holds busybox and the tare
// binary. It reaches user space in about two seconds.
//
// TCG runs code ten to thirty times slower than the processor, and its clocks are correspondingly inexact: these
// machines show that something works, never how fast it is. For virtual machines in the virtual machine there is a
// kernel in user mode instead (usermode.go).
package vm

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/sandboxes/cpio"
	"tare/internal/sandboxes/microvm"
	"tare/test/binary"
	"tare/test/owned"
)

// CgroupMode is how the control group hierarchies are mounted.
type CgroupMode string

// The modes.
const (
	V2     CgroupMode = "v2"     // one hierarchy at /sys/fs/cgroup, cpu, memory and pids enabled for the root's children
	V1     CgroupMode = "v1"     // cpu, cpuacct, memory, pids, each at /sys/fs/cgroup/<controller>
	Hybrid CgroupMode = "hybrid" // as V1, and an empty v2 hierarchy at /sys/fs/cgroup/unified
	None   CgroupMode = "none"   // nothing mounted
)

// Options chooses the machine. The zero value is two processors, 1 GiB, cgroup v2, and five minutes until it is killed.
type Options struct {
	CPUs       int
	MemoryMiB  int
	Cmdline    string // added to the kernel's command line
	CgroupMode CgroupMode
	Files      map[string][]byte                // put into the machine, by absolute path, executable
	Containers bool                             // its root can be changed (pivot_root): runtimes can make containers
	UserMode   bool                             // a kernel in user mode and not QEMU, on one processor: usermode.go
	Timeout    time.Duration                    // for each start, less the time in which the emulator waits for a CPU
	Progress   func(format string, args ...any) // gets messages while the machine runs, as Printf would; may be nil
}

func (o Options) progress(format string, args ...any) {
	if o.Progress != nil {
		o.Progress(format, args...)
	}
}

// Result is the outcome of a script.
type Result struct {
	Output   string        // standard output, exactly
	Console  string        // the kernel's log and the script's standard error
	ExitCode int           // of the script
	Took     time.Duration // from the first start of the machine to its end
}

//go:embed init.sh
var initScript []byte

// ErrMissing is matched by the errors of Boot that say that this machine lacks QEMU, busybox or a kernel.
var ErrMissing = errors.New("'make test' fetches it")

// Run boots a machine, runs script in its shell as root with tare in the PATH, and returns the result. It skips the
// test if QEMU, busybox or a kernel is missing, and fails it if the machine does not run the script to its end.
func Run(t testing.TB, o Options, script string) Result {
	t.Helper()
	o.Progress = t.Logf
	r, err := Boot(o, script)
	if errors.Is(err, ErrMissing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatalf("%v\noutput so far:\n%s\nend of the console:\n%s", err, tail(r.Output), tail(r.Console))
	}
	return r
}

// Boot is Run outside of a test. If it returns an error, the result holds the output so far.
func Boot(o Options, script string) (Result, error) {
	kit, err := prepare()
	if err != nil {
		return Result{}, fmt.Errorf("preparing a virtual machine: %w", err)
	}
	dir, err := owned.TempDir("vm")
	if err != nil {
		return Result{}, fmt.Errorf("making the machine's directory: %w", err)
	}
	defer os.RemoveAll(dir)
	initramfs := filepath.Join(dir, "initramfs")
	if err := os.WriteFile(initramfs, slices.Concat(kit.base, overlay(o.Files, script)), 0o600); err != nil {
		return Result{}, fmt.Errorf("writing the machine's file system: %w", err)
	}
	began := time.Now()
	for range bootTries {
		err = boot(kit, o.withDefaults(), dir, initramfs)
		if !errors.Is(err, errNoBoot) && !errors.Is(err, errHung) {
			break
		}
		o.progress("starting the machine again: %v\n%s", err, complaint(readAll(filepath.Join(dir, "console"))))
	}
	port := readAll(filepath.Join(dir, "port"))
	r := Result{Output: port, Console: readAll(filepath.Join(dir, "console")), Took: time.Since(began)}
	if err != nil {
		return r, err
	}
	output, code, err := unframe(port)
	if err != nil {
		return r, err
	}
	r.Output, r.ExitCode = output, code
	return r, nil
}

// An emulated machine that shares its processors now and then hangs or panics (its timer seems not to work) in its
// first instructions, before our script has begun. That says nothing about what is tested, so it is started again.
const (
	bootTries = 3
	bootTime  = 60 * time.Second // a machine takes 2 to 3 seconds, and 10 were seen on a busy one
)

// Later, too, a machine was seen to stand still in the middle of a test that takes a second, where the same test passed
// before and after: a processor waits for another that never answers, and the script prints nothing for minutes. The
// kernel may go on to complain about it on the console, so what counts is what the script prints. Such a machine is
// started again; one that hangs for another reason hangs each time, and the test fails. Three machines run at a time,
// beside other work, so a test of a second may take many.
const silence = 150 * time.Second

// lockup is how long, in seconds, the guest's kernel may report a processor as stuck ("soft lockup - CPU#1 stuck for
// 279s!") before the machine counts as hung. No test keeps a processor busy for that long. Shorter lockups are caused
// by other work on the host, for which an emulated processor has to wait.
const lockup = 90

var errHung = errors.New("the machine hung")

// ofKernel matches a line of the kernel's log: "[  412.408900] rcu: ...".
var ofKernel = regexp.MustCompile(`(?m)^\[ *\d+\.\d+\] .*\n?`)

var stuck = regexp.MustCompile(`soft lockup - CPU#\d+ stuck for (\d+)s!`)

// hang returns why a machine counts as hung, or "" if it does not. It decides by how long the script has printed
// nothing, how long the emulator has waited for a CPU, and what the guest's kernel last said.
func hang(quiet, waited time.Duration, console string) string {
	for _, m := range stuck.FindAllStringSubmatch(console, -1) {
		if seconds, err := strconv.Atoi(m[1]); err == nil && seconds >= lockup+int(waited.Seconds()) {
			return "its kernel says: " + m[0]
		}
	}
	if quiet > silence {
		return fmt.Sprintf("its script printed nothing for %s", silence)
	}
	return ""
}

var errNoBoot = fmt.Errorf("the machine did not come up, %d times, each within %s", bootTries, bootTime)

// complaint returns what the guest's kernel said when it first found a processor stuck, with the stack, or "" if it
// never did.
func complaint(console string) string {
	at := stuck.FindStringIndex(console)
	if at == nil {
		return ""
	}
	lines := strings.SplitN(console[at[0]:], "\n", 51)
	return strings.Join(lines[:len(lines)-1], "\n")
}

func (o Options) withDefaults() Options {
	if o.CPUs == 0 {
		o.CPUs = 2
	}
	if o.MemoryMiB == 0 {
		o.MemoryMiB = 1024
	}
	if o.CgroupMode == "" {
		o.CgroupMode = V2
	}
	if o.Timeout == 0 {
		o.Timeout = 5 * time.Minute
	}
	return o
}

// Cmdline is the command line of kernels on emulated machines. The last two parameters leave out work that costs an
// emulated processor much and changes nothing that a test looks at: the thunks of indirect calls, which an emulated
// processor does not need, and the clearing of memory that the kernel is about to fill, which took a sixth of the
// kernel's time while programs were loaded.
const Cmdline = "console=ttyS0 panic=-1 loglevel=4 no_timer_check clocksource=hpet mitigations=off init_on_alloc=0"

// emulator returns the command that runs QEMU. One thread runs all processors in turn, and goes on to the next whenever
// one only waits (the instruction pause, as in the kernel's spin locks). With a thread for each, machines with two
// processors hung in most boots, even on a machine that did nothing else: "soft lockup - CPU#0 stuck for 104s!".
func emulator(ctx context.Context, k *kit, o Options, dir, initramfs string) *exec.Cmd {
	return exec.CommandContext(ctx, k.qemu,
		// q35 and not microvm: it has an HPET. The TSC is calibrated while the machine boots, and wrong by any factor
		// when this machine is busy then; the HPET is right always.
		"-M", "q35", "-accel", "tcg,thread=single", "-cpu", "max", "-nodefaults", "-no-user-config", "-display", "none",
		"-no-reboot",
		"-smp", strconv.Itoa(o.CPUs), "-m", strconv.Itoa(o.MemoryMiB),
		"-kernel", k.kernel, "-initrd", initramfs,
		"-chardev", "file,id=console,path="+filepath.Join(dir, "console"), "-device", "isa-serial,chardev=console",
		"-chardev", "file,id=port,path="+filepath.Join(dir, "port"), "-device", "isa-serial,chardev=port",
		"-append", Cmdline+" "+o.params())
}

// params returns the settings for init.sh, on the kernel's command line.
func (o Options) params() string {
	return fmt.Sprintf("tare_cgroups=%s tare_containers=%t %s", o.CgroupMode, o.Containers, o.Cmdline)
}

// boot runs the machine until it powers itself off, or until watch ends it.
func boot(k *kit, o Options, dir, initramfs string) error {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	cmd := emulator(ctx, k, o, dir, initramfs)
	if o.UserMode {
		var err error
		if cmd, err = userMode(ctx, o, dir, initramfs); err != nil {
			return err
		}
	}
	var stderr bytes.Buffer
	if cmd.Stderr == nil {
		cmd.Stderr = &stderr
	}
	// The machine dies with this process: the kernel kills it when the thread that started it ends, so that thread must
	// stay.
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Start()
	if err != nil {
		return fmt.Errorf("starting the machine: %w", err)
	}
	go watch(ctx, cancel, cmd.Process.Pid, o.Timeout, dir)
	err = cmd.Wait()
	o.progress("the emulator used %s of CPU time", cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())
	if why := context.Cause(ctx); why != nil {
		return why
	}
	if err != nil {
		return fmt.Errorf("running %s: %w\n%s", filepath.Base(cmd.Path), err, bytes.TrimSpace(stderr.Bytes()))
	}
	if printed(dir, "port") == 0 {
		return errNoBoot
	}
	return nil
}

// watch ends a machine that does not come up, hangs, or takes longer than atMost. Time in which the emulator waited for
// a CPU does not count, because that can be long beside other work.
func watch(ctx context.Context, end context.CancelCauseFunc, pid int, atMost time.Duration, dir string) {
	began := time.Now()
	size, since := 0, time.Duration(0)
	for tick := time.NewTicker(time.Second); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
		}
		waited := heldUp(pid)
		ran := time.Since(began) - waited
		console := readAll(filepath.Join(dir, "console"))
		up := printed(dir, "port")
		if now := len(ofKernel.ReplaceAllString(console, "")) + up; now != size {
			size, since = now, ran
		}
		switch why := hang(ran-since, waited, console); {
		case why != "":
			end(fmt.Errorf("%w: %s", errHung, why))
		case up == 0 && ran > min(bootTime, atMost):
			end(errNoBoot)
		case ran > atMost:
			end(fmt.Errorf("the machine was still running after %s", atMost))
		}
	}
}

// heldUp returns how long the emulator's threads have waited for a CPU of this machine: the longest time of one thread,
// from the second field of /proc/PID/task/TID/schedstat (Documentation/scheduler/sched-stats.rst).
func heldUp(pid int) (longest time.Duration) {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid)) // none if the process has ended
	for _, path := range threads {
		var ran, waited int64
		if _, err := fmt.Sscan(readAll(path), &ran, &waited); err == nil {
			longest = max(longest, time.Duration(waited))
		}
	}
	return longest
}

// printed returns how many bytes the machine has written to a file.
func printed(dir, file string) int {
	st, err := os.Stat(filepath.Join(dir, file))
	if err != nil {
		return 0
	}
	return int(st.Size())
}

// frame matches the output with the framing of init.sh. It finds the last end line, because the output may contain the
// same words, and may not end with a line feed.
var frame = regexp.MustCompile(`(?s)^tare-vm: begin\n(.*)tare-vm: end (\d+)\n$`)

func unframe(port string) (output string, exitCode int, err error) {
	m := frame.FindStringSubmatch(port)
	if m == nil {
		return "", 0, errors.New("the machine went down before its script had ended")
	}
	exitCode, err = strconv.Atoi(m[2])
	if err != nil {
		return "", 0, fmt.Errorf("reading the script's exit code: %w", err)
	}
	return m[1], exitCode, nil
}

func readAll(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// tail returns the last 60 lines.
func tail(s string) string {
	lines := strings.Split(s, "\n")
	return strings.Join(lines[max(0, len(lines)-60):], "\n")
}

// kit holds what every machine needs; it is prepared once for a test process.
type kit struct {
	qemu   string // path
	kernel string // path
	base   []byte // the file system, without the script and the files of one run
}

func missing(what string) error { return fmt.Errorf("needs %s; %w", what, ErrMissing) }

var prepare = sync.OnceValues(func() (*kit, error) {
	cache, err := binary.Cache()
	if err != nil {
		return nil, err
	}
	k := &kit{}
	if k.qemu, err = exec.LookPath("qemu-system-x86_64"); err != nil {
		return nil, missing("qemu-system-x86_64 (Debian package qemu-system-x86)")
	}
	if k.kernel, err = findKernel(cache); err != nil {
		return nil, err
	}
	busybox, applets, err := Busybox()
	if err != nil {
		return nil, err
	}
	dir, err := owned.TempDir("vm")
	if err != nil {
		return nil, fmt.Errorf("making a directory for the binary: %w", err)
	}
	defer os.RemoveAll(dir)
	path, err := binary.Build(dir)
	if err != nil {
		return nil, err
	}
	tare, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the binary: %w", err)
	}
	k.base = base(busybox, applets, tare)
	return k, nil
})

// findKernel returns the path of the kernel that TARE_VM_KERNEL names or, without that, of the newest kernel in the
// cache.
func findKernel(cache string) (string, error) {
	if k := os.Getenv("TARE_VM_KERNEL"); k != "" {
		return k, nil
	}
	found, err := filepath.Glob(filepath.Join(cache, "kernel", "vmlinuz-*"))
	if err != nil {
		return "", fmt.Errorf("looking for a kernel: %w", err)
	}
	if len(found) == 0 {
		return "", missing("a kernel in " + filepath.Join(cache, "kernel") + " (Debian package linux-image-cloud-amd64)")
	}
	microvm.NewestFirst(found)
	return found[0], nil
}

// Kernel finds the kernel of emulated machines, with its modules. The error matches ErrMissing if there is none.
func Kernel() (microvm.Kernel, error) {
	cache, err := binary.Cache()
	if err != nil {
		return microvm.Kernel{}, err
	}
	path, err := findKernel(cache)
	if err != nil {
		return microvm.Kernel{}, err
	}
	return microvm.FindKernel(path)
}

// Busybox returns a static busybox and the names of its applets. The error matches ErrMissing if there is none.
func Busybox() (program []byte, applets []string, err error) {
	const what = "a static busybox (Debian package busybox-static)"
	path, err := exec.LookPath("busybox")
	if err != nil {
		return nil, nil, missing(what)
	}
	if program, err = os.ReadFile(path); err != nil {
		return nil, nil, fmt.Errorf("reading busybox: %w", err)
	}
	if bytes.Contains(program, []byte("/ld-linux-x86-64.so.2\x00")) {
		return nil, nil, missing(what)
	}
	list, err := exec.Command(path, "--list").Output()
	if err != nil {
		return nil, nil, fmt.Errorf("asking busybox for its applets: %w", err)
	}
	return program, strings.Fields(string(list)), nil
}

// base returns the part of the file system that all machines share. It is not compressed: under TCG, unpacking costs
// more than copying.
func base(busybox []byte, applets []string, tare []byte) []byte {
	var a cpio.Archive
	for _, d := range []string{"dev", "proc", "sys", "run", "root"} {
		a.Dir(d, 0o755)
	}
	a.Dir("tmp", 0o777)
	a.File("bin/busybox", 0o755, busybox)
	for _, name := range applets {
		if name != "busybox" {
			a.Add("bin/"+name, cpio.Entry{Mode: unix.S_IFLNK | 0o777}, []byte("busybox"))
		}
	}
	a.File("bin/tare", 0o755, tare)
	a.File("init", 0o755, initScript)
	a.File("etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/tmp:/bin/sh\n"))
	a.File("etc/group", 0o644, []byte("root:x:0:\nnogroup:x:65534:\n"))
	a.File("etc/hosts", 0o644, []byte("127.0.0.1 localhost tare-vm\n"))
	return a.Bytes()
}

// overlay returns the part of the file system that only one run has: its files and its script.
func overlay(files map[string][]byte, script string) []byte {
	var a cpio.Archive
	for _, name := range slices.Sorted(maps.Keys(files)) {
		a.File(name, 0o755, files[name])
	}
	a.File("script", 0o755, []byte(script))
	return a.Bytes()
}

// Program returns the files of a dynamically linked program of this machine, to be put into a virtual machine: the
// program in /bin, and its libraries where its loader looks for them. The test is skipped if the program is missing.
func Program(t testing.TB, name string) map[string][]byte {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("needs %s", name)
	}
	from, err := linked(path)
	if err != nil {
		t.Fatal(err)
	}
	from["/bin/"+name] = path
	files, err := readFiles(from)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// linked returns the libraries of a program and its loader, by the paths at which the loader looks for them.
func linked(program string) (map[string]string, error) {
	// ldd prints "libelf.so.1 => /lib/x86_64-linux-gnu/libelf.so.1 (0x...)", and the loader without an arrow.
	list, err := exec.Command("ldd", program).Output()
	if err != nil {
		return nil, fmt.Errorf("finding the libraries of %s: %w", program, err)
	}
	from := map[string]string{}
	for word := range strings.FieldsSeq(string(list)) {
		if filepath.IsAbs(word) {
			from[word] = word
		}
	}
	return from, nil
}

// readFiles reads files for Options.Files: from holds the path on this machine by the path in the other.
func readFiles(from map[string]string) (files map[string][]byte, err error) {
	files = map[string][]byte{}
	for to, path := range from {
		if files[to], err = os.ReadFile(path); err != nil {
			return nil, fmt.Errorf("reading what goes into the machine: %w", err)
		}
	}
	return files, nil
}
