package exectrace

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
	"tare/internal/scale/host/cgroup"
)

// optionsVariable makes the test binary run as a tracer, with the Options in it, as JSON.
const optionsVariable = "TARE_TEST_EXECTRACE"

// beforeVariable says what that tracer must do first: one of the values below.
const beforeVariable = "TARE_TEST_EXECTRACE_BEFORE"

const (
	dropRights = "drop-rights"
	hideBTF    = "hide-btf" // hide the kernel's BTF, in a new mount namespace
	ownNode    = "own-node" // run in new PID and mount namespaces: mount /proc there
)

func TestMain(m *testing.M) {
	if text := os.Getenv(optionsVariable); text != "" {
		os.Exit(tracerMain(text))
	}
	os.Exit(m.Run())
}

func tracerMain(text string) int {
	var o Options
	err := json.Unmarshal([]byte(text), &o)
	switch os.Getenv(beforeVariable) {
	case dropRights:
		err = syscall.Setuid(65534)
	case hideBTF:
		err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		if err == nil {
			err = unix.Mount("none", "/sys/kernel/btf", "tmpfs", 0, "")
		}
	case ownNode:
		err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		if err == nil {
			err = unix.Mount("proc", "/proc", "proc", 0, "")
		}
	}
	if err != nil {
		panic(err)
	}
	// Signals are handled as in the command.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	tell := make(chan os.Signal, 1)
	signal.Notify(tell, unix.SIGUSR1)
	o.Tell = tell
	if err = Run(ctx, o, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintf(os.Stderr, "error: %v; %s\n", err, fault.HintOf(err))
	}
	return int(fault.CodeOf(err))
}

// buffer holds text that the tracer writes while the test reads it.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// lines returns the complete lines so far.
func (b *buffer) lines() []string {
	all := strings.Split(b.String(), "\n")
	return all[:len(all)-1]
}

// until waits until the condition holds.
func until(so func() bool) {
	for !so() {
		time.Sleep(time.Millisecond)
	}
}

// here is a tracer in this process.
type here struct {
	out, log buffer
	stop     context.CancelFunc
	ended    chan error
}

// trace starts a tracer in this process, and waits until it is attached.
func trace(t *testing.T, o Options) *here {
	t.Helper()
	h := &here{ended: make(chan error, 1)}
	ctx, stop := context.WithCancel(context.Background())
	h.stop = stop
	t.Cleanup(stop)
	go func() { h.ended <- Run(ctx, o, &h.out, &h.log) }()
	for !strings.Contains(h.log.String(), "exectrace: ready\n") {
		select {
		case err := <-h.ended:
			t.Fatalf("the tracer ended: %v\n%s", err, h.log.String())
		case <-time.After(time.Millisecond):
		}
	}
	return h
}

// end ends the tracer and returns its last statistics.
func (h *here) end(t *testing.T) Statistics {
	t.Helper()
	h.stop()
	if err := <-h.ended; err != nil {
		t.Fatalf("%v\n%s", err, h.log.String())
	}
	return lastStatistics(t, h.log.String())
}

// lastStatistics returns the last statistics in the log, and checks that they add up.
func lastStatistics(t *testing.T, log string) Statistics {
	t.Helper()
	var s Statistics
	for line := range strings.Lines(log) {
		if strings.HasPrefix(line, "{") {
			s = Statistics{}
			if err := json.Unmarshal([]byte(line), &s); err != nil {
				t.Fatalf("%v in %q", err, line)
			}
		}
	}
	if s.Event != "statistics" || s.Pending != 0 || s.Missed == nil || *s.Missed != 0 ||
		s.Lost != s.LostReserve+s.LostReader+s.LostOutput || s.Seen != s.Delivered+s.Lost {
		t.Errorf("statistics do not add up: %+v\n%s", s, log)
	}
	return s
}

// apart is a tracer as a separate process.
type apart struct {
	cmd      *exec.Cmd
	out, log buffer // out is used only if the test gave no file
}

// traceApart starts a tracer as a process. Its output goes to the file out or, if that is nil, to apart.out.
func traceApart(t *testing.T, o Options, out *os.File, before string) *apart {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	p := &apart{cmd: exec.Command("/proc/self/exe")}
	p.cmd.Env = append(os.Environ(), optionsVariable+"="+string(text), beforeVariable+"="+before)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	switch before {
	case hideBTF:
		p.cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
	case ownNode:
		p.cmd.SysProcAttr.Cloneflags, p.cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWPID, syscall.CLONE_NEWNS
	}
	runtime.LockOSThread() // the tracer dies with the thread that starts it, so that must be the test's
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.log
	if out != nil {
		p.cmd.Stdout = out
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait() // an error if the test has already waited
	})
	return p
}

// ready waits until the tracer is attached.
func (p *apart) ready() {
	until(func() bool { return strings.Contains(p.log.String(), "exectrace: ready\n") })
}

// wait waits for the end of the tracer, and returns its exit code.
func (p *apart) wait() int {
	_ = p.cmd.Wait() // the exit code is read below
	return p.cmd.ProcessState.ExitCode()
}

var groupNumber atomic.Int64

// newGroup makes a control group, and removes it after the test.
func newGroup(t *testing.T, above string) (dir string) {
	t.Helper()
	l, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	h, ok := l.V2()
	if !ok {
		t.Skip("needs cgroup v2")
	}
	if above == "" {
		above = h.Mount
	}
	dir = filepath.Join(above, fmt.Sprintf("tare-test-exectrace-%d-%d", os.Getpid(), groupNumber.Add(1)))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil && !os.IsNotExist(err) {
			t.Error(err)
		}
	})
	return dir
}

// code is the machine code of exit(0), by architecture.
var code = map[string][]byte{
	"amd64": {0x31, 0xff, 0xb8, 0x3c, 0, 0, 0, 0x0f, 0x05},                // xor edi, edi; mov eax, 60; syscall
	"arm64": {0, 0, 0x80, 0xd2, 0xa8, 0x0b, 0x80, 0xd2, 0x01, 0, 0, 0xd4}, // mov x0, 0; mov x8, 93; svc 0
}

// tiny makes a program that only exits: the smallest file that elf(5) allows. It has only one page, because tests make
// thousands of execs.
func tiny(t testing.TB, name string) string {
	t.Helper()
	machine := map[string]uint16{"amd64": 62, "arm64": 183}[runtime.GOARCH]
	text := code[runtime.GOARCH]
	if text == nil {
		t.Skip("needs amd64 or arm64")
	}
	const base, heads = 0x10000, 64 + 56
	le := binary.LittleEndian
	b := append([]byte("\x7fELF\x02\x01\x01"), make([]byte, 9)...)
	b = le.AppendUint16(b, 2) // executable
	b = le.AppendUint16(b, machine)
	b = le.AppendUint32(b, 1)
	b = le.AppendUint64(b, base+heads) // entry
	b = le.AppendUint64(b, 64)         // program headers
	b = le.AppendUint64(b, 0)          // sections
	b = le.AppendUint32(b, 0)
	for _, n := range []uint16{64, 56, 1, 0, 0, 0} {
		b = le.AppendUint16(b, n)
	}
	size := uint64(heads + len(text))
	b = le.AppendUint32(b, 1) // load
	b = le.AppendUint32(b, 5) // readable and executable
	for _, n := range []uint64{0, base, base, size, size, 0x1000} {
		b = le.AppendUint64(b, n)
	}
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { // other users must be able to execute the program
		t.Fatal(err)
	}
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, append(b, text...), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// generator makes execs in a control group. Each process is created in the group, so it makes only the one exec there.
type generator struct {
	program string
	group   *os.File // nil: the test's own group
	uid     uint32
	unshare uintptr // flags of unshare(2) for each process
}

func newGenerator(t testing.TB, program, dir string) *generator {
	t.Helper()
	g := &generator{program: program}
	if dir != "" {
		var err error
		if g.group, err = os.Open(dir); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { g.group.Close() })
	}
	return g
}

// exec makes one exec, waits for its end, and returns its process id.
func (g *generator) exec(argv ...string) (pid int, err error) {
	attr := &os.ProcAttr{Sys: &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: g.uid}, Unshareflags: g.unshare,
	}}
	if g.group != nil {
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(g.group.Fd())
	}
	p, err := os.StartProcess(g.program, argv, attr)
	if err != nil {
		return 0, err
	}
	state, err := p.Wait()
	if err == nil && !state.Success() {
		err = fmt.Errorf("%s: %s", g.program, state)
	}
	return p.Pid, err
}

// storm makes n execs, from two threads, each with its number as argument 1, counted from first.
func (g *generator) storm(t *testing.T, first, n int, more ...string) {
	t.Helper()
	var next atomic.Int64
	var work sync.WaitGroup
	for range 2 {
		work.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if _, err := g.exec(append([]string{"exec", strconv.Itoa(first + i)}, more...)...); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	work.Wait()
}

// delivery is an event decoded from the JSON output.
type delivery struct {
	Time       time.Time
	PID        int    `json:"pid"`
	PPID       int    `json:"ppid"`
	UID        uint32 `json:"uid"`
	Cgroup     string `json:"cgroup"`
	CgroupID   uint64 `json:"cgroup_id"`
	Comm       string
	Filename   string
	Args       []string
	Truncated  bool
	Unreadable bool
}

func deliveries(t *testing.T, lines []string) []delivery {
	t.Helper()
	all := make([]delivery, len(lines))
	for i, line := range lines {
		if err := json.Unmarshal([]byte(line), &all[i]); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
	}
	return all
}
