package e2e

import (
	"bytes"
	"cmp"
	"context"
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
	"syscall"
	"testing"
	"time"

	"kernel.org/pub/linux/libs/security/libcap/cap"

	"tare/internal/experiment/record"
	"tare/test/binary"
	"tare/test/owned"
	"tare/test/rights"
	"tare/test/schematest"
)

// bin is the path of the tare binary under test. TARE_BIN names another one.
var bin = os.Getenv("TARE_BIN")

func TestMain(m *testing.M) {
	if os.Getenv(workerVariable) != "" {
		if err := work(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) > 1 && os.Args[1] == plantedCommand {
		fmt.Fprintln(os.Stderr, plantedProxy(os.Args[2:]))
		os.Exit(1)
	}
	os.Exit(withBinary(m.Run))
}

func withBinary(run func() int) int {
	if bin != "" {
		return run()
	}
	dir, err := owned.TempDir("e2e")
	if err == nil {
		defer os.RemoveAll(dir)
		err = os.Chmod(dir, 0o755) // tests run the binary as other users too
	}
	if err == nil {
		bin, err = binary.Build(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return run()
}

// command is one start of tare.
type command struct {
	args    []string
	binary  string        // another binary than this tree's; this tree's when empty
	dir     string        // working directory; a fresh one when empty
	env     []string      // added to the test's own
	stdin   string        // nothing when empty
	user    uint32        // runs as this user and group; 0 is the test's own
	has     []cap.Value   // the only capabilities that the process can have; nil: the test's, or none as another user
	group   string        // directory of a control group of v2 to start in; the test's own when empty
	timeout time.Duration // until it is killed and the test fails; 5 minutes when 0
}

// output is the result of a command.
type output struct {
	stdout, stderr string
	code           int // exit code, -1 when a signal ended it
	took           time.Duration
}

// String formats the output for a test's failure.
func (o output) String() string {
	return fmt.Sprintf("exit code %d after %s\nstdout:\n%s\nstderr:\n%s", o.code, o.took, o.stdout, o.stderr)
}

// tare runs the binary with args to its end.
func tare(t *testing.T, args ...string) output {
	t.Helper()
	return command{args: args}.start(t).wait(t)
}

// process is a running tare. It is killed when its test ends.
type process struct {
	pid            int
	stdout, stderr buffer
	done           chan struct{} // closed at its end

	cmd     *exec.Cmd
	err     error
	took    time.Duration
	timeout time.Duration
	expired func() bool
}

// start starts tare.
func (c command) start(t *testing.T) *process {
	t.Helper()
	p := &process{done: make(chan struct{}), timeout: cmp.Or(c.timeout, 5*time.Minute)}
	ctx, cancel := context.WithTimeout(context.Background(), p.timeout)
	p.expired = func() bool { return errors.Is(ctx.Err(), context.DeadlineExceeded) }
	p.cmd = exec.CommandContext(ctx, cmp.Or(c.binary, bin), c.args...)
	p.cmd.Dir = cmp.Or(c.dir, t.TempDir())
	p.cmd.Env = append(os.Environ(), c.env...)
	p.cmd.Stdin = strings.NewReader(c.stdin)
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	// SIGQUIT makes a Go program print where it hangs; a few seconds later it is killed.
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGQUIT) }
	p.cmd.WaitDelay = 10 * time.Second
	// It dies with the test, also when the test is killed. The kernel ties that to the thread that started it: hence a
	// goroutine that keeps its thread until the end.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if c.user != 0 {
		p.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: c.user, Gid: c.user}
		for _, has := range c.has {
			p.cmd.SysProcAttr.AmbientCaps = append(p.cmd.SysProcAttr.AmbientCaps, uintptr(has))
		}
	}
	if c.group != "" {
		dir, err := os.Open(c.group)
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close() // the process is started before this function returns
		p.cmd.SysProcAttr.UseCgroupFD, p.cmd.SysProcAttr.CgroupFD = true, int(dir.Fd())
	}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer close(p.done)
		began := time.Now()
		var err error
		if c.user != 0 || c.has != nil {
			err = rights.Bound(c.has)
		}
		if err == nil {
			err = p.cmd.Start()
		}
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
		}
		p.took = time.Since(began)
	}()
	t.Cleanup(func() {
		cancel()
		<-p.done
	})
	if err := <-started; err != nil {
		t.Fatalf("starting tare %s: %v", strings.Join(c.args, " "), err)
	}
	p.pid = p.cmd.Process.Pid
	return p
}

// wait waits for the end of the process, and fails the test if that does not come in time. It accepts any exit code.
func (p *process) wait(t *testing.T) output {
	t.Helper()
	<-p.done
	o := output{stdout: p.stdout.String(), stderr: p.stderr.String(), code: p.cmd.ProcessState.ExitCode(), took: p.took}
	if p.expired() {
		t.Fatalf("%s did not end within %s: %s", p.cmd, p.timeout, o)
	}
	var exit *exec.ExitError
	if p.err != nil && !errors.As(p.err, &exit) {
		t.Fatalf("%s: %v: %s", p.cmd, p.err, o)
	}
	p.checkSchemas(t, o)
	return o
}

// checkSchemas checks the JSON that tare printed and recorded against the published schemas.
func (p *process) checkSchemas(t *testing.T, o output) {
	t.Helper()
	if text := strings.TrimSpace(o.stdout); strings.HasPrefix(text, "{") {
		if err := schematest.Check([]byte(text)); err != nil && !errors.Is(err, schematest.ErrNone) {
			t.Errorf("%s printed what no schema allows: %v", p.cmd, err)
		}
	}
	at := slices.Index(p.cmd.Args, "--out") + 1
	if at == 0 || at == len(p.cmd.Args) || !slices.Contains([]int{0, 4, 5}, o.code) {
		return
	}
	dir := p.cmd.Args[at]
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(p.cmd.Dir, dir)
	}
	for file, check := range map[string]func([]byte) error{
		record.RunFile: schematest.Check, record.SummaryFile: schematest.Check, record.TrialsFile: schematest.Lines,
	} {
		text, err := os.ReadFile(filepath.Join(dir, file))
		if len(text) == 0 || err != nil {
			continue // a run that ended before its first trial has not all of them
		}
		if err := check(text); err != nil {
			t.Errorf("%s wrote what no schema allows into %s: %v", p.cmd, file, err)
		}
	}
}

// signal sends a signal to tare alone, not to what it has started.
func (p *process) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatalf("sending %s to %s: %v", s, p.cmd, err)
	}
}

// waitFor waits until tare has printed text on standard output.
func (p *process) waitFor(t *testing.T, text string) {
	t.Helper()
	for !strings.Contains(p.stdout.String(), text) {
		select {
		case <-p.done:
			t.Fatalf("it ended before it printed %q: %s", text, p.wait(t))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// startTied starts a command that dies with this test, also when the test is killed. stop kills it and waits for its
// end.
func startTied(t *testing.T, c *exec.Cmd) (stop func()) {
	t.Helper()
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // the kernel ties the command's life to the thread that started it
	if err := c.Start(); err != nil {
		runtime.UnlockOSThread()
		t.Fatal(err)
	}
	return func() {
		_ = c.Process.Kill() // it may have ended
		_ = c.Wait()
		runtime.UnlockOSThread()
	}
}

// numberIn returns the number that a file of the kernel holds.
func numberIn(t *testing.T, path string) int {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// peakIn returns the largest memory that a process had, in bytes, from the text of its /proc/PID/status, or 0 if that
// does not say.
func peakIn(status []byte) int64 {
	_, after, _ := strings.Cut(string(status), "VmHWM:")
	var kib int64
	if _, err := fmt.Sscan(after, &kib); err != nil {
		return 0
	}
	return kib << 10
}

// buffer is a bytes.Buffer that can be read while it is written.
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

// firstAttempts returns the first attempt at each trial of a run. tare runs a trial again if the machine's noise
// spoiled it.
func firstAttempts(c *record.Contents) (trials []record.Trial) {
	for _, t := range c.Trials {
		if t.Attempt == 0 {
			trials = append(trials, t)
		}
	}
	return trials
}
