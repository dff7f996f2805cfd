package neighbour

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/scale/host/proc"
)

func TestPlan(t *testing.T) {
	for _, part := range []float64{0.1, 0.5, 0.9} {
		o, err := Options{For: time.Hour, Part: part, Seed: 7}.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		spans := plan(o, 0)
		var taken, last int64
		for _, s := range spans {
			if length := time.Duration(s.to - s.from); s.from < last || length > Longest ||
				length < Shortest && s.to != int64(o.For) {
				t.Fatalf("part %g: a burst from %d to %d after %d", part, s.from, s.to, last)
			}
			last = s.to
			taken += s.to - s.from
		}
		if got := float64(taken) / float64(o.For); got < part-0.01 || got > part+0.01 {
			t.Errorf("%.3f of the time is taken, not %g", got, part)
		}
		if !slices.Equal(spans, plan(o, 0)) {
			t.Error("the same seed gives another plan")
		}
		if slices.Equal(spans, plan(o, 1)) {
			t.Error("two CPUs have the same plan")
		}
	}
}

func TestOptionsOutOfRange(t *testing.T) {
	for _, o := range []Options{{For: -1}, {For: 48 * time.Hour}, {Part: 0.95}, {Part: -0.1}, {Shortest: time.Microsecond},
		{Longest: time.Millisecond},
		{Longest: 2 * time.Second}} {
		if _, err := o.withDefaults(); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
}

// TestTakesItsPart: the time in the log's bursts is the CPU time that the kernel charged to the neighbour, and on every
// CPU it is what was planned. Two things may come between: the hypervisor takes the CPU away during a burst (stolen),
// or another real-time task has it, such as a second neighbour's (waited). Neither is charged to the neighbour, and the
// kernel counts both.
func TestTakesItsPart(t *testing.T) {
	const part, whole = 0.5, 5 * time.Second
	cpus, before := machine(t)
	p := Start(t, Options{For: whole, Part: part, Seed: 3})
	var charged float64 // the last readings while it lived
	waited := map[int]float64{}
	for end := time.Now().Add(whole - 300*time.Millisecond); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		ran, delayed := schedstat(t, p.PID())
		charged = max(charged, ran)
		for cpu, d := range delayed {
			waited[cpu] = max(waited[cpu], d)
		}
	}
	bursts := p.Bursts()
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	_, after := machine(t)
	held := Taken(bursts, 0, 1<<62)
	stolen := after.Steal - before.Steal
	// A reading of the log and one of the kernel lie up to a burst of every CPU apart, and the planned part of so short
	// a time varies.
	slack := float64(cpus)*Longest.Seconds() + 0.02*held
	all := 0.0
	for _, w := range waited {
		all += w
	}
	if held < charged-slack || held > charged+stolen+all+slack {
		t.Errorf("by its log it held CPUs for %.3f s, by the kernel for %.3f s, with %.3f s stolen meanwhile and "+
			"%.3f s waited", held, charged, stolen, all)
	}
	o, _ := Options{For: whole, Part: part, Seed: 3}.withDefaults()
	for cpu := range cpus {
		var got, planned float64
		for _, b := range bursts {
			if b.CPU == cpu {
				got += b.Seconds()
				if b.Seconds() > Longest.Seconds()+stolen+waited[cpu]+0.001 {
					t.Errorf("a burst of %.1f ms on CPU %d", 1e3*b.Seconds(), cpu)
				}
			}
		}
		for _, s := range plan(o, cpu) {
			planned += float64(max(0, min(s.to, int64(whole-300*time.Millisecond))-s.from)) / 1e9
		}
		if got < planned-stolen-waited[cpu]-2*Longest.Seconds() || got > planned+stolen+waited[cpu]+2*Longest.Seconds() {
			t.Errorf("CPU %d was held for %.3f s, planned are %.3f s, with %.3f s stolen and %.3f s waited", cpu, got, planned,
				stolen, waited[cpu])
		}
	}
}

func TestEnds(t *testing.T) {
	path, err := Build(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Run("by a signal", func(t *testing.T) {
		p, err := Launch(path, Options{For: time.Hour})
		if err != nil {
			t.Skipf("needs a neighbour: %v", err)
		}
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
		if len(p.Bursts()) == 0 {
			t.Error("no burst is in its log")
		}
		gone(t, p.PID())
	})
	t.Run("after its time", func(t *testing.T) {
		p, err := Launch(path, Options{For: 200 * time.Millisecond})
		if err != nil {
			t.Skipf("needs a neighbour: %v", err)
		}
		<-p.ended
		if p.err != nil {
			t.Error(p.err)
		}
		gone(t, p.PID())
	})
	t.Run("with its parent", func(t *testing.T) {
		fifo := filepath.Join(t.TempDir(), "log")
		if err := syscall.Mkfifo(fifo, 0o600); err != nil {
			t.Fatal(err)
		}
		sh := exec.Command("sh", "-c", fmt.Sprintf("%s -for 1h -log >%s & echo $!; exec sleep 1000", path, fifo))
		out, err := sh.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := sh.Start(); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil {
			t.Fatal(err)
		}
		log, err := os.Open(fifo) // waits until it is written to
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		lines := bufio.NewScanner(log)
		if !lines.Scan() {
			_ = sh.Process.Kill()
			_ = sh.Wait()
			t.Skip("needs a neighbour: it ended by itself")
		}
		if err := sh.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = sh.Wait()
		for lines.Scan() { // until the neighbour has ended: if it stays, the time limit of go test ends this test
		}
		gone(t, pid)
	})
}

// gone fails the test if the process still runs after a second.
func gone(t *testing.T, pid int) {
	t.Helper()
	for range 100 { // its descriptors are closed a moment before the process ends
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(b), ") Z ") {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("process %d is still there", pid)
}

func machine(t *testing.T) (cpus int, s proc.Stat) {
	t.Helper()
	s, err := proc.FS{}.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return len(s.Online), s
}

// schedstat returns the CPU time of all threads of a process and, by CPU, the time in which the process's real-time
// threads could have run and did not, to the nanosecond (Documentation/scheduler/sched-stats.rst). Its other threads do
// not count, because they wait for the process's own bursts.
func schedstat(t *testing.T, pid int) (ran float64, waited map[int]float64) {
	t.Helper()
	waited = map[int]float64{}
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // it ended
		}
		var ns, delay float64
		if _, err := fmt.Sscan(string(b), &ns, &delay); err != nil {
			t.Fatalf("reading %s: %v", f, err)
		}
		ran += ns / 1e9
		stat, err := os.ReadFile(strings.TrimSuffix(f, "schedstat") + "stat")
		if err != nil {
			continue
		}
		// After the name in parentheses come the fields from the third on (proc_pid_stat(5)).
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		const processor, policy = 39 - 3, 41 - 3
		if fields[policy] != strconv.Itoa(unix.SCHED_FIFO) {
			continue
		}
		cpu, err := strconv.Atoi(fields[processor])
		if err != nil {
			t.Fatalf("reading the processor of a thread of process %d: %v", pid, err)
		}
		waited[cpu] += delay / 1e9
	}
	return ran, waited
}
