package probe

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"tare/internal/experiment/load"
	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
)

func schedule(warmup, duration time.Duration) role.Schedule {
	return role.Schedule{Begin: pace.Now() + int64(5*time.Millisecond), Warmup: int64(warmup), Duration: int64(duration)}
}

// run makes a probe, and runs it once it is ready, because starting it may take longer than a window.
func run(t *testing.T, o Options, warmup, duration time.Duration) (*Probe, *load.Result) {
	t.Helper()
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	r, err := p.Run(t.Context(), schedule(warmup, duration))
	if err != nil {
		t.Fatal(err)
	}
	return p, r
}

// TestEveryWakeUpCounts: the histogram has every wake-up of the window on every CPU, and none of the warm-up. Nothing
// counts as a request.
func TestEveryWakeUpCounts(t *testing.T) {
	p, r := run(t, Options{Interval: time.Millisecond}, 20*time.Millisecond, 100*time.Millisecond)
	h, err := r.Histogram(Delay)
	if err != nil || h == nil {
		t.Fatalf("histogram %v, %v", h, err)
	}
	if want := int64(100 * len(p.cpus)); h.TotalCount() != want {
		t.Errorf("%d wake-ups in 100 ms on %d CPUs, want %d", h.TotalCount(), len(p.cpus), want)
	}
	if h.Min() < 1 || r.Seconds != 0.1 || r.Generator != Generator || r.Mode != Mode || r.CPUs != float64(len(p.cpus)) ||
		r.CPUSeconds <= 0 {
		t.Errorf("shortest delay %d ns, %+v", h.Min(), r)
	}
	if r.Intended != 0 || r.Done != 0 || r.Opened != 0 || r.Rate != 0 {
		t.Errorf("a probe made requests: %+v", r)
	}
}

// TestHeldUp: while a process of a higher scheduling class holds a CPU, each delayed wake-up counts with the time that
// was left. The holder is a process with one thread, because the runtime would interrupt a goroutine.
func TestHeldUp(t *testing.T) {
	p, err := New(Options{Interval: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	s := schedule(0, 4*time.Second) // long enough for a busy machine to execute three programs and run the last
	held := make(chan time.Duration, 1)
	go func() {
		time.Sleep(50 * time.Millisecond)
		cmd := exec.Command("chrt", "-f", "1", "taskset", "-c", strconv.Itoa(p.cpus[0]), "dd", "if=/dev/zero", "of=/dev/null",
			"bs=64k", "count=60000")
		if err := cmd.Run(); err != nil {
			held <- 0
			return
		}
		held <- cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}()
	r, err := p.Run(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	took := <-held
	if took == 0 {
		t.Skip("needs chrt and real-time scheduling (CAP_SYS_NICE and a real-time budget in its control group)")
	}
	h, err := r.Histogram(Delay)
	if err != nil {
		t.Fatal(err)
	}
	late := int64(0) // held up for 10 ms or more
	for _, bar := range h.Distribution() {
		if bar.From >= int64(10*time.Millisecond) {
			late += bar.Count
		}
	}
	// The holder used some of its CPU time to start.
	if longest := time.Duration(h.Max()); longest < took/2 || late < took.Milliseconds()/2-10 {
		t.Errorf("a CPU was held for %v: the longest delay is %v, and %d are 10 ms or more", took, longest, late)
	}
	if want := int64(4000 * len(p.cpus)); h.TotalCount() != want {
		t.Errorf("%d wake-ups, want %d", h.TotalCount(), want)
	}
	t.Logf("held for %v: the longest delay is %v, %d are 10 ms or more", took, time.Duration(h.Max()), late)
}

func TestWrongUse(t *testing.T) {
	for _, interval := range []time.Duration{0, -1, MinInterval - 1, MaxInterval + 1} {
		if _, err := New(Options{Interval: interval}); fault.CodeOf(err) != fault.Usage || fault.HintOf(err) == "" {
			t.Errorf("an interval of %v: %v", interval, err)
		}
	}
	p, err := New(Options{Interval: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Run(t.Context(), role.Schedule{}); fault.CodeOf(err) != fault.Usage {
		t.Errorf("no window: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Run(ctx, schedule(0, time.Hour)); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestRole: the messages ready, start, result and end, and an end that comes early.
func TestRole(t *testing.T) {
	for _, early := range []string{"", "before the start", "while it runs"} {
		t.Run(early, func(t *testing.T) {
			childIn, parentOut := io.Pipe()
			parentIn, childOut := io.Pipe()
			ended := make(chan error, 1)
			go func() {
				ended <- Run(context.Background(), Options{Interval: time.Millisecond}, role.NewConn(childIn, childOut))
				childOut.Close()
			}()
			parent := role.NewConn(parentIn, parentOut)
			var ready Ready
			if err := parent.Expect(role.Ready, &ready, nil); err != nil || len(ready.CPUs) == 0 || ready.Interval != 0.001 {
				t.Fatalf("ready: %+v, %v", ready, err)
			}
			window := 20 * time.Millisecond
			if early == "while it runs" {
				window = time.Hour
			}
			if early != "before the start" {
				if err := parent.Send(role.Start, schedule(0, window)); err != nil {
					t.Fatal(err)
				}
			}
			if early == "" {
				var r load.Result
				if err := parent.Expect(role.Result, &r, nil); err != nil {
					t.Fatal(err)
				}
				if text, _ := json.Marshal(r); r.Histograms[Delay] == "" {
					t.Errorf("no delays in %s", text)
				}
			}
			parentOut.Close()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}
