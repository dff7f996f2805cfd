package meter

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"tare/internal/scale/ledger"
	"tare/test/busy"
	"tare/test/started"
)

// runVariable makes this test binary run an eBPF program for the duration that is the variable's value.
const runVariable = "TARE_TEST_RUN_PROGRAM" // see TestMain

// runProgram loads a program that runs for some microseconds, prints its id, and when a byte arrives runs it repeatedly
// for d of CPU time.
func runProgram(d time.Duration) error {
	p, err := busy.Load("tare_test_run")
	if err != nil {
		return fmt.Errorf("loading a program: %w", err)
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return fmt.Errorf("reading the program: %w", err)
	}
	id, _ := info.ID()
	fmt.Println(id)
	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadByte(); err != nil {
		return err
	}
	if err := runFor(p, d); err != nil {
		return err
	}
	fmt.Println("done")
	_, err = in.ReadByte() // the program lives until the window is closed
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// runFor runs a program repeatedly for d of this process's CPU time.
func runFor(p *ebpf.Program, d time.Duration) error {
	began, err := cpuTime()
	for now := began; err == nil && now < began+d; now, err = cpuTime() {
		if err := busy.Run(p, 200); err != nil {
			return fmt.Errorf("running the program: %w", err)
		}
	}
	return err
}

// cpuTime returns the CPU time of this process. Wall time would include time in which others ran.
func cpuTime() (time.Duration, error) {
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &at); err != nil {
		return 0, fmt.Errorf("reading this process's CPU time: %w", err)
	}
	return time.Duration(at.Nano()), nil
}

// runs weighs a program that another process runs for d of its CPU time, and returns the ledger and the program's row.
func runs(t *testing.T, o Options, d time.Duration) (*ledger.Ledger, ledger.Program) {
	t.Helper()
	m := meter(t, o)
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.Stderr = append(os.Environ(), runVariable+"="+d.String()), os.Stderr
	in, out := started.Piped(t, cmd)
	defer func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}()
	lines := bufio.NewScanner(out)
	var id uint32
	if !lines.Scan() {
		t.Fatal("the process that is to run a program has ended")
	}
	if _, err := fmt.Sscan(lines.Text(), &id); err != nil {
		t.Fatal(err)
	}
	l := ledgerOf(t, m, func() {
		if _, err := in.Write([]byte{1}); err != nil || !lines.Scan() {
			t.Errorf("the program was not run: %v", err)
		}
	})
	for _, p := range l.Programs {
		if p.ID == id {
			return l, p
		}
	}
	t.Fatalf("program %d is not in the ledger", id)
	return nil, ledger.Program{}
}

// Run time that could not be split is unknown, not 0: no group has an eBPF time of 0, the budget shows it as not split,
// and the hint names an option that would have split it. With enough samples it is split, and the groups have their
// parts.
func TestRunTimeThatIsNotSplit(t *testing.T) {
	const slow, fast = 19, 4999
	l, p := runs(t, Options{SampleHz: slow}, 60*time.Millisecond) // about 1 sample
	least := 0.01
	if testing.Short() {
		least = 1e-6 // an emulated processor may stand still for most of the time
	}
	if p.RunSeconds == nil || *p.RunSeconds < least {
		t.Fatalf("the program did not run: %+v", p)
	}
	hint := "--hz "
	if testing.Short() {
		// If the processor stood still for most of the window and counted that as run time, no rate is high enough.
		hint = "not split: "
	}
	if len(p.Shares) != 1 || p.Shares[0].Cgroup != nil || !strings.Contains(p.Shares[0].Note, hint) {
		t.Errorf("shares %+v: want one that could not be split, with a hint", p.Shares)
	}
	checkSplit(t, l)
	if ran, _ := p.RanSeconds(); l.CPU.BPFUnsplit == nil || *l.CPU.BPFUnsplit < ran-1e-9 {
		t.Errorf("%v s were not split, want %g", l.CPU.BPFUnsplit, ran)
	}
	checkTotal(t, l, p.ID)

	l, p = runs(t, Options{SampleHz: fast}, 60*time.Millisecond)
	// An emulated processor is not sampled that often.
	if (len(p.Shares) == 0 || p.Shares[0].Cgroup == nil) && !testing.Short() {
		t.Errorf("%d samples per second do not split %g s: %+v", fast, *p.RunSeconds, p.Shares)
	}
	checkSplit(t, l)
	checkTotal(t, l, p.ID)
}

// checkTotal charges one program to tare, and checks that the total is the run time that the kernel counted, however
// much of it was split.
func checkTotal(t *testing.T, l *ledger.Ledger, id uint32) {
	t.Helper()
	want := 0.0
	for i := range l.Programs {
		if p := &l.Programs[i]; p.ID == id {
			p.Charge = ledger.ChargeTare
			want, _ = p.RanSeconds()
		}
	}
	l.Settle()
	if l.Tare == nil || l.Tare.CPU == nil || math.Abs(*l.Tare.CPU-want) > 1e-9 {
		t.Errorf("tare in total: %+v, and the kernel counted %g s", l.Tare, want)
	}
}

// checkSplit compares the eBPF times in a ledger with the shares of its programs. The machine may have others.
func checkSplit(t *testing.T, l *ledger.Ledger) {
	t.Helper()
	split, unsplit := 0.0, 0.0
	for _, p := range l.Programs {
		if p.Own {
			continue // what the scale's own programs cost is in self
		}
		for _, s := range p.Shares {
			if s.Cgroup == nil {
				unsplit += s.Seconds * ranPart(&p)
			} else {
				split += s.Seconds * ranPart(&p)
			}
		}
	}
	if l.CPU.BPFUnsplit == nil || math.Abs(*l.CPU.BPFUnsplit-unsplit) > 1e-6 {
		t.Errorf("not split: %+v in the budget, %g s in the shares", l.CPU, unsplit)
	}
	for _, line := range l.CPU.Lines {
		if line.Name == ledger.LineBPF && (line.Method == ledger.MethodNone) != (split == 0) {
			t.Errorf("%g s were split and %g were not, and the line is %+v", split, unsplit, line)
		}
	}
	known := 0
	for _, c := range l.Cgroups {
		if c.BPFSeconds == nil {
			continue
		}
		known++
		if split == 0 {
			t.Errorf("nothing was split and %s has %g s of eBPF time", c.Path, *c.BPFSeconds)
		}
	}
	if split > 0 && known == 0 {
		t.Error("a part was split and no group has any")
	}
	if !l.CPU.Closes() {
		t.Errorf("the budget does not close: %+v", l.CPU)
	}
}
