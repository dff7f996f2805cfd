package neighbour

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"tare/test/binary"
)

// Process is a neighbour that runs in a separate process.
type Process struct {
	cmd    *exec.Cmd
	ended  chan struct{}
	err    error // set before ended is closed
	stderr bytes.Buffer

	mu     sync.Mutex
	bursts []Burst
}

// Start builds the command and runs a neighbour beside a test, until Stop or the test's end. It returns after the first
// burst. On a machine that grants no real-time priority it skips the test, with that as the reason.
func Start(t testing.TB, o Options) *Process {
	t.Helper()
	path, err := Build(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	p, err := Launch(path, o)
	if err != nil {
		t.Skipf("needs a neighbour: %v", err)
	}
	t.Cleanup(func() { _ = p.Stop() })
	return p
}

// Build puts the command into dir and returns its path.
func Build(dir string) (string, error) {
	out := filepath.Join(dir, "neighbour")
	return out, binary.Program(out, "./test/neighbour")
}

// Launch starts the command at path, and returns after the first burst. The neighbour dies with this process.
func Launch(path string, o Options) (*Process, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	p := &Process{ended: make(chan struct{})}
	p.cmd = exec.Command(path, "-log", "-for", o.For.String(), "-part", strconv.FormatFloat(o.Part, 'g', -1, 64),
		"-seed", strconv.FormatUint(o.Seed, 10), "-shortest", o.Shortest.String(), "-longest", o.Longest.String())
	p.cmd.Stderr = &p.stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("starting the neighbour: %w", err)
	}
	started, first := make(chan error, 1), make(chan struct{})
	go func() {
		// The kernel sends the death signal when the thread that started the process ends, so that thread waits for the
		// process.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.ended)
		err := p.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		lines := bufio.NewScanner(stdout)
		for n := 0; lines.Scan(); n++ {
			var b Burst
			if err := json.Unmarshal(lines.Bytes(), &b); err != nil {
				p.err = fmt.Errorf("reading the log of the neighbour: %w", err)
				continue
			}
			p.mu.Lock()
			p.bursts = append(p.bursts, b)
			p.mu.Unlock()
			if n == 0 {
				close(first)
			}
		}
		if err := p.cmd.Wait(); err != nil && p.err == nil {
			p.err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(p.stderr.Bytes()))
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting the neighbour: %w", err)
	}
	select {
	case <-first:
	case <-p.ended:
		if p.err != nil {
			return nil, p.err
		}
	}
	return p, nil
}

// Stop ends the neighbour and waits for its end. It may be called again.
func (p *Process) Stop() error {
	select {
	case <-p.ended:
	default:
		_ = p.cmd.Process.Signal(syscall.SIGTERM) // fails only when it ended meanwhile
		<-p.ended
	}
	return p.err
}

// PID returns the ID of the neighbour's process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Bursts returns the bursts that have ended so far, those of each CPU in order. The last ones may be missing while the
// neighbour runs.
func (p *Process) Bursts() []Burst {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]Burst(nil), p.bursts...)
}

// Taken returns how many CPU seconds between two times (CLOCK_MONOTONIC, in nanoseconds) were within bursts, over all
// CPUs.
func Taken(bursts []Burst, from, to int64) float64 {
	var ns int64
	for _, b := range bursts {
		ns += max(0, min(b.To, to)-max(b.From, from))
	}
	return float64(ns) / 1e9
}
