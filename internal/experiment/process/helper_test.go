package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"tare/internal/experiment/placement"
	"tare/internal/lib/fault"
	"tare/internal/lib/param"
	"tare/internal/scale/host/cgroup"
)

// TestMain lets the test binary enter a control group, as tare does when it executes itself.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == placement.EnterCommand {
		err := placement.Enter(os.Args[2:])
		fmt.Fprintln(os.Stderr, err)
		os.Exit(int(fault.CodeOf(err)))
	}
	os.Exit(m.Run())
}

func begin(c *exec.Cmd) error { return c.Start() }

// options returns the command for settings, with a free port.
func options(t *testing.T, v param.Values) Command {
	t.Helper()
	c, err := OptionsOf(v)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = c.At(Place{Dir: t.TempDir(), Port: freePort(t), Duration: 1500 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	return c
}

// shell returns a command that runs a shell script.
func shell(t *testing.T, script string) Command {
	t.Helper()
	return options(t, param.Values{"command": "sh -c " + quote(script), "ready-timeout": "30s"})
}

// ends collects the unexpected ends of a command, of which there is at most one.
type ends struct {
	mu  sync.Mutex
	all []error
	got chan struct{}
}

func newEnds() *ends { return &ends{got: make(chan struct{}, 16)} }

func (e *ends) add(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, err)
	e.got <- struct{}{}
}

// one waits for the end and returns its error.
func (e *ends) one(t *testing.T) error {
	t.Helper()
	select {
	case <-e.got:
	case <-time.After(time.Minute):
		t.Fatal("it does not end")
	}
	return e.all[0]
}

// none checks that a command did not end unexpectedly.
func (e *ends) none(t *testing.T) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.all) > 0 {
		t.Errorf("it ended by itself: %v", e.all)
	}
}

func start(t *testing.T, c Command) (*Running, *ends) {
	t.Helper()
	e := newEnds()
	r, err := Start(c, begin, e.add)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Kill)
	return r, e
}

// trees counts the trees of control groups, to give each a different name.
var trees atomic.Int64

// group creates a control group to start commands in.
func group(t *testing.T) *placement.Group {
	t.Helper()
	layout, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	tree, err := placement.NewTree(layout, fmt.Sprintf("command-%d", trees.Add(1)))
	if fault.CodeOf(err) == fault.Machine {
		t.Skipf("needs control groups that can be made: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.Close(); err != nil {
			t.Error(err)
		}
	})
	g, err := tree.Group("work", placement.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// dirOf returns the directory of a group in one of the hierarchies.
func dirOf(t *testing.T, g *placement.Group) string {
	t.Helper()
	layout, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	h, ok := layout.CPU()
	if !ok {
		t.Skip("needs control groups that count CPU time")
	}
	dir, ok := h.Dir(g.Path())
	if !ok {
		t.Fatalf("no directory for %s", g.Path())
	}
	return dir
}

// gonePID waits until a process has ended, because a killed process may not have ended yet.
func gonePID(t *testing.T, pid int) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			return
		}
	}
	t.Errorf("the process %d is left behind", pid)
}
