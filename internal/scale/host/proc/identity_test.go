package proc

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// partEnv makes the test binary run as a helper in another namespace instead of running tests: it prints its identity,
// and then, for each identity that it reads, the fate of that process.
const partEnv = "TARE_TEST_IDENTITY"

func TestMain(m *testing.M) {
	part := os.Getenv(partEnv)
	if part == "" {
		os.Exit(m.Run())
	}
	if part == claimsMuch || part == claimsHidden {
		claimEnvironment(part)
		return
	}
	if part == "own proc" {
		err := errors.Join(unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount("proc", "/proc", "proc", 0, ""))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	id, err := FS{}.Identify()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(id.PID, id.Start, id.Namespace)
	for {
		var id Identity
		if _, err := fmt.Scan(&id.PID, &id.Start, &id.Namespace); err != nil {
			os.Exit(0)
		}
		_, fate := FS{}.Find(id)
		fmt.Println(int(fate))
	}
}

// Variants of a process that claims that its environment is elsewhere: in memory full of zeros, which takes no space,
// or in memory that cannot be read.
const (
	claimsMuch   = "much"
	claimsHidden = "hidden"
	claimed      = 1 << 30 // bytes
)

// claimEnvironment sets a false address for this process's environment, and waits for the end of its input.
func claimEnvironment(part string) {
	access := unix.PROT_READ
	if part == claimsHidden {
		access = unix.PROT_NONE
	}
	where, err := unix.Mmap(-1, 0, claimed, access, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		fmt.Println(err)
		return
	}
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		fmt.Println(err)
		return
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	field := func(n int) uint64 { // of proc_pid_stat(5)
		v, _ := strconv.ParseUint(fields[n-3], 10, 64)
		return v
	}
	at := uint64(uintptr(unsafe.Pointer(&where[0])))
	brk := field(47)
	m := struct { // struct prctl_mm_map of include/uapi/linux/prctl.h
		startCode, endCode, startData, endData, startBrk, brk, startStack, argStart, argEnd, envStart, envEnd, auxv uint64
		auxvSize, exe                                                                                               uint32
	}{
		field(26), field(27), field(45), field(46), brk, brk, field(28), field(48), field(49), at, at + claimed, 0, 0,
		^uint32(0),
	}
	err = unix.Prctl(unix.PR_SET_MM, unix.PR_SET_MM_MAP, uintptr(unsafe.Pointer(&m)), unsafe.Sizeof(m), 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("claimed")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// other is a process that knows its identity, and looks for other processes from within its namespaces.
type other struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   io.Writer
	out  *bufio.Reader
	self Identity
}

func startOther(t *testing.T, part string, flags uintptr, by ...string) *other {
	t.Helper()
	if part == "" {
		t.Fatal("without a part it would run the tests again")
	}
	argv := append(by, "/proc/self/exe")
	o := &other{t: t, cmd: exec.Command(argv[0], argv[1:]...)}
	if len(by) > 0 {
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		o.cmd.Args[len(argv)-1] = exe
	}
	o.cmd.Env = append(os.Environ(), partEnv+"="+part)
	o.cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: flags}
	o.cmd.Stderr = os.Stderr
	in, err1 := o.cmd.StdinPipe()
	out, err2 := o.cmd.StdoutPipe()
	if err := errors.Join(err1, err2, o.cmd.Start()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(o.kill)
	o.in, o.out = in, bufio.NewReader(out)
	o.read(&o.self.PID, &o.self.Start, &o.self.Namespace)
	return o
}

func (o *other) read(to ...any) {
	o.t.Helper()
	line, err := o.out.ReadString('\n')
	if _, err2 := fmt.Sscan(line, to...); err != nil || err2 != nil {
		o.t.Fatalf("the other process said %q: %v, %v", line, err, err2)
	}
}

func (o *other) find(id Identity) (fate Fate) {
	o.t.Helper()
	if _, err := fmt.Fprintln(o.in, id.PID, id.Start, id.Namespace); err != nil {
		o.t.Fatal(err)
	}
	o.read(&fate)
	return fate
}

func (o *other) kill() {
	_ = o.cmd.Process.Kill() // it may have been killed before
	_ = o.cmd.Wait()
}

func needsNamespaces(t *testing.T) (whole bool) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make namespaces")
	}
	_, whole = FS{}.view()
	return whole
}

// TestFind: Find never returns Ended for a live process, wherever it is called. For a dead one it returns Ended
// wherever the whole PID namespace of the process is visible.
func TestFind(t *testing.T) {
	whole := needsNamespaces(t)
	// from describes an observer, and what it finds when it looks for a process that is alive and then dead.
	type from struct {
		name        string
		look        func(Identity) Fate
		alive, dead Fate
	}
	here := func(id Identity) Fate { _, fate := FS{}.Find(id); return fate }
	inside := startOther(t, "own proc", unix.CLONE_NEWPID|unix.CLONE_NEWNS)
	foreign := startOther(t, "our proc", unix.CLONE_NEWPID) // its /proc shows our namespace
	if foreign.self.PID != 1 || inside.self.PID != 1 || inside.self.Namespace == foreign.self.Namespace {
		t.Fatalf("they are %+v and %+v", inside.self, foreign.self)
	}
	ifWhole := func(fate Fate) Fate { // the fate if all processes of the machine are visible, else Unknown
		if whole {
			return fate
		}
		return Unknown
	}
	for _, c := range []struct {
		name  string
		part  string
		flags uintptr
		froms []from
	}{
		{"of this namespace", "our proc", 0, []from{
			{"here", here, Running, Ended},
			{"a namespace below", inside.find, Unknown, Unknown},
			{"a namespace below with our /proc", foreign.find, Running, Ended},
		}},
		{"of a namespace below", "own proc", unix.CLONE_NEWPID | unix.CLONE_NEWNS, []from{
			{"here", here, Running, ifWhole(Ended)},
			{"the namespace beside it", inside.find, Unknown, Unknown},
			{"the namespace beside it with our /proc", foreign.find, Running, ifWhole(Ended)},
		}},
		{"of a namespace below with our /proc", "our proc", unix.CLONE_NEWPID, []from{
			{"here", here, Running, ifWhole(Ended)},
			{"the namespace beside it", inside.find, Unknown, Unknown},
		}},
	} {
		time.Sleep(50 * time.Millisecond) // so that it starts in another tick than the observers, which have the same PID
		o := startOther(t, c.part, c.flags)
		old := Identity{PID: o.self.PID, Start: o.self.Start} // as recorded by versions without namespaces
		for _, f := range c.froms {
			if fate := f.look(o.self); fate != f.alive {
				t.Errorf("a process %s, from %s: %v, want %v", c.name, f.name, fate, f.alive)
			}
			if fate := f.look(old); fate == Ended || whole && fate != f.alive {
				t.Errorf("a process %s, without a namespace, from %s: %v", c.name, f.name, fate)
			}
		}
		o.kill()
		for _, f := range c.froms {
			if fate := f.look(o.self); fate != f.dead {
				t.Errorf("a dead process %s, from %s: %v, want %v", c.name, f.name, fate, f.dead)
			}
			if fate := f.look(old); whole && fate != f.dead {
				t.Errorf("a dead process %s, without a namespace, from %s: %v, want %v", c.name, f.name, fate, f.dead)
			}
		}
	}
	// A process whose namespace no longer exists, and one that is not in its namespace, which does exist.
	for id, want := range map[Identity]Fate{
		{PID: 1, Start: inside.self.Start, Namespace: 1}:                                          ifWhole(Ended),
		{PID: 2, Start: inside.self.Start, Namespace: inside.self.Namespace}:                      Ended,
		{PID: os.Getpid(), Start: inside.self.Start, Namespace: inside.self.Namespace}:            Ended,
		{PID: inside.self.PID, Start: inside.self.Start + 1, Namespace: inside.self.Namespace}:    Ended,
		{PID: inside.cmd.Process.Pid, Start: inside.self.Start, Namespace: inside.self.Namespace}: Ended,
		{PID: inside.self.PID, Start: inside.self.Start, Namespace: inside.self.Namespace}:        Running,
		{PID: inside.self.PID, Start: inside.self.Start,
			Namespace: foreign.self.Namespace + 1<<40 /* none */}: ifWhole(Ended),
	} {
		if fate := here(id); fate != want {
			t.Errorf("%+v: %v, want %v", id, fate, want)
		}
	}
	if pid, fate := (FS{}).Find(inside.self); pid != inside.cmd.Process.Pid || fate != Running {
		t.Errorf("process %d is found as %d, %v", inside.cmd.Process.Pid, pid, fate)
	}
}

// TestFindZombie: Find returns Ended for a dead process that has not been waited for.
func TestFindZombie(t *testing.T) {
	o := startOther(t, "our proc", 0)
	if err := o.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		p, err := FS{}.Process(o.cmd.Process.Pid)
		if err != nil || time.Now().After(end) {
			t.Fatalf("%+v, %v", p, err)
		}
		if !p.Alive() {
			break
		}
	}
	if _, fate := (FS{}).Find(o.self); fate != Ended {
		t.Errorf("it is %v", fate)
	}
}

// TestFindInTimeNamespace: in a time namespace, the machine and so each process may seem to have started earlier.
func TestFindInTimeNamespace(t *testing.T) {
	needsNamespaces(t)
	if _, err := (FS{}).namespace("self", "time"); err != nil {
		t.Skipf("needs time namespaces, Linux 5.6: %v", err)
	}
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		t.Skipf("needs unshare, of util-linux: %v", err)
	}
	if text, err := exec.Command(unshare, "--time", "true").CombinedOutput(); err != nil {
		t.Skipf("needs an unshare that knows --time, of util-linux 2.36: %v: %.60s", err, text)
	}
	self, err := FS{}.Identify()
	if err != nil {
		t.Fatal(err)
	}
	o := startOther(t, "our proc", 0, unshare, "--time", "--boottime", "100000", "--fork", "--kill-child")
	if here, err := (FS{}).Process(o.self.PID); err != nil || here.Start == o.self.Start {
		t.Fatalf("%+v sees itself as this process does: %+v, %v", o.self, here, err)
	}
	if _, fate := (FS{}).Find(o.self); fate == Ended {
		t.Errorf("a process in a time namespace is found to have ended")
	}
	if fate := o.find(self); fate == Ended {
		t.Errorf("from a time namespace this process is found to have ended")
	}
}

func TestIdentityString(t *testing.T) {
	for id, want := range map[Identity]string{
		{12, 345, 0}:                   "p12-t345",
		{12, 345, InitialPIDNamespace}: "p12-t345",
		{12, 345, 4026532501}:          "n4026532501-p12-t345",
	} {
		if id.String() != want {
			t.Errorf("%+v is %s, want %s", id, id, want)
		}
	}
	if got := levelsIn([]byte("Name:\tx\nNSpid:\t7\t1\nVmRSS: 1 kB\n")); strings.Join(got, ",") != "7,1" {
		t.Errorf("%v", got)
	}
}
