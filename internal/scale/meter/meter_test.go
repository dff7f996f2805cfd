package meter

import (
	"context"
	"errors"
	"math"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/lib/pace"
	"tare/internal/scale/host/feature"
	"tare/internal/scale/host/perf"
	"tare/internal/scale/ledger"
)

func meter(t testing.TB, o Options) *Meter {
	t.Helper()
	o.Whole = true
	m, err := New(context.Background(), o)
	if errors.Is(err, feature.ErrMissing) {
		t.Skipf("needs a machine that can be weighed: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

func ledgerOf(t testing.TB, m *Meter, during func()) *ledger.Ledger {
	t.Helper()
	w, err := m.Open()
	if err != nil {
		t.Fatal(err)
	}
	during()
	l, err := w.Close()
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// burn keeps one CPU busy in user mode for some CPU time.
func burn(d time.Duration) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	start := pace.Clock(unix.CLOCK_THREAD_CPUTIME_ID)
	for pace.Clock(unix.CLOCK_THREAD_CPUTIME_ID)-start < int64(d) { //nolint:revive // burning CPU is the point
	}
}

// On a busy machine the parts add up to the capacity, little is unexplained, and this process's time is on the line
// self.
func TestBudgetOfABusyMachine(t *testing.T) {
	m := meter(t, Options{})
	const work = time.Second
	l := ledgerOf(t, m, func() { burn(work) })
	if !l.CPU.Closes() {
		t.Errorf("the parts do not sum to the capacity: %+v", l.CPU)
	}
	// On an emulated processor (-short), an interrupt on an idle CPU, which no counter includes, takes a hundred times as
	// long. Such a short window is also coarse: idle time is counted in ticks of 10 ms.
	if part := math.Abs(l.CPU.Unexplained) / l.CPU.Capacity; part > 0.05 && !testing.Short() {
		t.Errorf("%.1f %% is unexplained: %+v", 100*part, l.CPU)
	}
	for _, line := range l.CPU.Lines {
		if line.Name == ledger.LineSelf && (line.Seconds < work.Seconds() ||
			line.Seconds > 1.5*work.Seconds() && !testing.Short()) {
			t.Errorf("the scale burnt %v and its line says %v s", work, line.Seconds)
		}
	}
	if l.Self.CPUSeconds < work.Seconds() || l.Self.RSSBytes == 0 {
		t.Errorf("self: %+v", l.Self)
	}
}

// Windows of one meter are independent: each has its own time, samples and self cost.
func TestWindowsFollowEachOther(t *testing.T) {
	m := meter(t, Options{})
	for range 3 {
		l := ledgerOf(t, m, func() { burn(50 * time.Millisecond) })
		if l.Window.Seconds < 0.05 || l.Window.Seconds > 5 || !l.CPU.Closes() {
			t.Errorf("window %+v, cpu %+v", l.Window, l.CPU)
		}
		if l.Self.Samples == 0 && perf.Sampling.Err() == nil {
			t.Error("a window without samples")
		}
	}
	// Earlier work is not charged to a window. Reading its edges takes longer the more groups, programs and maps exist, of
	// which others may have thousands for a while.
	var took float64
	for range 15 {
		// On an emulated processor it takes ten times as long.
		if took = ledgerOf(t, m, func() {}).Self.CPUSeconds; took <= 0.1 || testing.Short() {
			return
		}
		time.Sleep(2 * time.Second)
	}
	t.Errorf("a window in which nothing was done is charged %v s of the scale's CPU time", took)
}

func TestOneWindowAtATime(t *testing.T) {
	m := meter(t, Options{SampleHz: -1})
	w, err := m.Open()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Open(); err == nil {
		t.Error("two windows are open")
	}
	if _, err := w.Close(); err != nil {
		t.Error(err)
	}
}

// A window is prepared by the time its first edge is due: the edge is never early, and except in windows in which this
// process was held up, it is late by less than the preparation took.
func TestOpenAt(t *testing.T) {
	m := meter(t, Options{})
	var late, readying time.Duration
	for range 20 {
		at := monotonic() + int64(2*mostAhead)
		w, err := m.OpenAt(context.Background(), at)
		if err != nil {
			t.Fatal(err)
		}
		late, readying = time.Duration(w.first.at-at), m.preparing+m.switching
		if _, err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if late < 0 {
			t.Fatalf("the first edge was read %v early", -late)
		}
		if late < readying {
			return
		}
	}
	t.Errorf("the first edge was read %v after it was due, and making the window ready took %v", late, readying)
}

// If the context ends before the first edge of a window, the meter is as it was before.
func TestOpenAtEnds(t *testing.T) {
	m := meter(t, Options{})
	cause := errors.New("the cause")
	for _, ready := range []bool{false, true} {
		if ready {
			m.preparing, m.switching = time.Minute, time.Minute // so that preparing starts as early as possible
		}
		at := int64(time.Minute)
		if ready {
			at = int64(2*mostAhead) - int64(100*time.Millisecond)
		}
		for try := range 5 { // on a machine that stands still for long enough, both times come at once
			ctx, end := context.WithCancelCause(context.Background())
			time.AfterFunc(300*time.Millisecond, func() { end(cause) })
			w, err := m.OpenAt(ctx, monotonic()+at)
			if errors.Is(err, cause) {
				break
			}
			if err != nil || try == 4 {
				t.Fatalf("ready %t: got error %v, want the context's cause", ready, err)
			}
			if _, err := w.CloseAt(t.Context(), monotonic()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if l := ledgerOf(t, m, func() { burn(10 * time.Millisecond) }); l.Window.Seconds <= 0 {
		t.Errorf("a window after that: %+v", l.Window)
	}
}

// A second meter of a process uses what the first measured, because it cannot measure the cost of statistics while they
// are on. It still works after the first is closed.
func TestMetersShare(t *testing.T) {
	var shared Shared
	t.Cleanup(shared.Close)
	first := meter(t, Options{Shared: &shared})
	if first.statsCost == nil {
		t.Skip("needs run statistics that nobody else has on")
	}
	second := meter(t, Options{Shared: &shared})
	looksDiffer := first.lookCost != nil && second.lookCost != first.lookCost // nil: disturbed, and repeated
	if second.statsCost != first.statsCost || looksDiffer {
		t.Errorf("statistics cost %v and %v, looks %v and %v", first.statsCost, second.statsCost, first.lookCost,
			second.lookCost)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	l := ledgerOf(t, second, func() { burn(20 * time.Millisecond) })
	if l.Self.StatsSeconds == nil || (l.Self.WitnessSeconds == nil) != (second.lookCost == nil) {
		t.Errorf("statistics cost %v s, looks %v s: %+v", l.Self.StatsSeconds, l.Self.WitnessSeconds, l.Warnings)
	}
}

// Without samples there are totals, and no invented shares.
func TestWithoutSamples(t *testing.T) {
	l := ledgerOf(t, meter(t, Options{SampleHz: -1}), func() { burn(20 * time.Millisecond) })
	for _, c := range l.Cgroups {
		if c.BPFSeconds != nil {
			t.Errorf("%s has eBPF time without samples", c.Path)
		}
	}
	for _, p := range l.Programs {
		for _, s := range p.Shares {
			if s.Method == ledger.Sampled && s.Cgroup != nil {
				t.Errorf("program %d was split without samples: %+v", p.ID, s)
			}
		}
	}
	if l.Host.Sampler != "" || l.Host.SamplerPeriod != nil {
		t.Errorf("a sampler is named: %+v", l.Host)
	}
}

// Without the kernel's run statistics, no run times are invented, the statistics are off, and the budget still closes.
func TestWithoutStatistics(t *testing.T) {
	m := meter(t, Options{NoStatistics: true})
	if m.stats != nil || m.statsCost != nil {
		t.Errorf("the statistics are on: %v, %v", m.stats, m.statsCost)
	}
	l := ledgerOf(t, m, func() { burn(20 * time.Millisecond) })
	for _, c := range l.Cgroups {
		if c.BPFSeconds != nil || c.BPFInsideSeconds != nil {
			t.Errorf("%s has eBPF time", c.Path)
		}
	}
	for _, p := range l.Programs {
		if p.RunCount != nil || p.RunSeconds != nil || p.NsPerRun != nil || len(p.Shares) > 0 {
			t.Errorf("program %d has run: %+v", p.ID, p)
		}
	}
	for _, line := range l.CPU.Lines {
		if line.Name == ledger.LineBPF {
			t.Errorf("the budget has a line for eBPF: %+v", line)
		}
	}
	for _, w := range l.Warnings {
		if w.Code == "program-unloaded" || w.Code == "stats-cost" {
			t.Errorf("warning %+v", w)
		}
	}
	if l.Self.BPFSeconds != nil || l.Self.StatsSeconds != nil || !l.CPU.Closes() {
		t.Errorf("self %+v, budget %+v", l.Self, l.CPU)
	}
}

// Closing a meter gives everything back: descriptors, and the kernel's run statistics.
func TestCloseGivesBack(t *testing.T) {
	count := func() int {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(fds)
	}
	cycle := func() {
		m, err := New(context.Background(), Options{Whole: true})
		if err != nil {
			t.Skipf("needs a machine that can be weighed: %v", err)
		}
		ledgerOf(t, m, func() {})
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
	cycle()
	before := count()
	cycle()
	if after := count(); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(maps), "[perf_event]") {
		t.Error("a sampling ring is still mapped")
	}
}

// BenchmarkWindow measures the cost of one window.
func BenchmarkWindow(b *testing.B) {
	m := meter(b, Options{})
	for b.Loop() {
		l := ledgerOf(b, m, func() { time.Sleep(time.Second) })
		b.ReportMetric(l.Self.CPUSeconds*1e3, "ms-CPU/window")
	}
}
