package perf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tare/test/quiet"
	"tare/test/vm/guest"
)

func sampler(t testing.TB, o Options) *Sampler {
	t.Helper()
	if err := Sampling.Err(); err != nil {
		t.Skipf("needs sampling: %v", err)
	}
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// A thread that keeps one CPU busy in the kernel is seen about as often as the rate says, and only with times inside
// the enabled span. The timer that triggers samples follows the clock: if the hypervisor takes CPU time away, the
// thread is also sampled for the stolen time, so the bounds allow for that.
func TestSamplerSeesABusyThread(t *testing.T) {
	s := sampler(t, Options{})
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	tid := uint32(unix.Gettid())

	watch := quiet.Start(t)
	start := monotonic()
	if err := s.Enable(); err != nil {
		t.Fatal(err)
	}
	var before, after unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &before); err != nil {
		t.Fatal(err)
	}
	zero, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	defer zero.Close()
	for buf := make([]byte, 1<<20); monotonic() < start+int64(300*time.Millisecond); {
		if _, err := zero.Read(buf); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &after); err != nil {
		t.Fatal(err)
	}
	if err := s.Disable(); err != nil {
		t.Fatal(err)
	}
	end := monotonic()
	stolen := watch.Noise(t).Stolen
	mine, bad := 0, 0
	err = s.Drain(&Handler{Sample: func(p *Sample) {
		if p.Time < start || p.Time > end {
			bad++
		}
		if p.TID == tid {
			mine++
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	if bad > 0 {
		t.Errorf("%d samples lie outside the span in which sampling was on", bad)
	}
	if lost, _, err := s.Lost(); err != nil || lost > 0 {
		t.Errorf("%d records were lost (%v)", lost, err)
	}
	if testing.Short() {
		t.Skip("needs a real processor: an emulated one counts time in which it stood still as CPU time, and takes no " +
			"samples then")
	}
	ran := time.Duration(after.Stime.Nano() - before.Stime.Nano())
	atLeast := 0.7 * float64(ran) / float64(s.Period())
	atMost := 1.3 * (float64(ran) + stolen*1e9) / float64(s.Period())
	if got := float64(mine); got < atLeast || got > atMost {
		t.Errorf("thread ran %v in the kernel, %.2f s were stolen: got %v samples, want %.0f to %.0f",
			ran, stolen, got, atLeast, atMost)
	}
}

// A child process is announced with its parent, so its group is known even if it is gone when its samples are read.
func TestForksAreSeen(t *testing.T) {
	s := sampler(t, Options{})
	if err := s.Enable(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	var forked, exited bool
	err := s.Drain(&Handler{Task: func(e Task) {
		if int(e.PID) == cmd.Process.Pid {
			if e.Exit {
				exited = true
			} else if int(e.PPID) == os.Getpid() {
				forked = true
			}
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	if !forked || !exited {
		t.Errorf("child %d: fork seen %v, exit seen %v", cmd.Process.Pid, forked, exited)
	}
}

// Many drains of a small ring must neither lose nor repeat a record, wrapped ones included.
func TestDrainWrapsWithoutRepeats(t *testing.T) {
	s := sampler(t, Options{Hz: 4999, RingBytes: 16 << 10, NoCycles: true})
	if err := s.Enable(); err != nil {
		t.Fatal(err)
	}
	last := make(map[uint32]int64)
	n := 0
	h := &Handler{Sample: func(p *Sample) {
		n++
		if p.Time <= last[p.CPU] {
			t.Errorf("CPU %d: sample at %d after one at %d", p.CPU, p.Time, last[p.CPU])
		}
		last[p.CPU] = p.Time
	}}
	// How fast the rings fill depends on what runs: an idle CPU is not sampled.
	written, size := uint64(0), uint64(len(s.rings)*len(s.rings[0].data))
	for began := time.Now(); written <= size && time.Since(began) < time.Minute; {
		time.Sleep(2 * time.Millisecond)
		if err := s.Drain(h); err != nil {
			t.Fatal(err)
		}
		written = 0
		for _, r := range s.rings {
			written += r.head()
		}
	}
	if written <= size {
		t.Errorf("only %d bytes were written: the rings never wrapped", written)
	}
	if n == 0 {
		t.Error("no samples")
	}
}

// TestBlind: a CPU whose event was off for a while is reported as not sampled. A pause of this process between reading
// two rings is not mistaken for that.
func TestBlind(t *testing.T) {
	s := sampler(t, Options{})
	if len(s.rings) < 2 {
		t.Skip("needs two CPUs")
	}
	stopped := func() { time.Sleep(150 * time.Millisecond) }
	for _, r := range s.rings {
		if err := r.enable(); err != nil {
			t.Fatal(err)
		}
		stopped()
	}
	for _, between := range []func(){func() {}, stopped} {
		if cpus, err := s.blind(between); err != nil || len(cpus) > 0 {
			t.Errorf("CPUs %v were not sampled: %v", cpus, err)
		}
	}
	off := s.rings[1]
	if err := off.ioctl(unix.PERF_EVENT_IOC_DISABLE, "disabling"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	if cpus, err := s.Blind(); err != nil || !slices.Equal(cpus, []int{off.cpu}) {
		t.Errorf("CPUs %v were not sampled, want that of %d: %v", cpus, off.cpu, err)
	}
	if err := s.Enable(); err != nil {
		t.Fatal(err)
	}
	for _, r := range s.rings {
		stopped()
		if err := r.disable(); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(time.Second)
	if cpus, err := s.Blind(); err != nil || len(cpus) > 0 {
		t.Errorf("CPUs %v were not sampled while sampling was on: %v", cpus, err)
	}
}

// The records of other CPUs come from shared memory; whatever they contain must not crash the process.
func FuzzRecords(f *testing.F) {
	rec := func(typ uint32, body ...byte) []byte {
		b := binary.NativeEndian.AppendUint32(nil, typ)
		b = binary.NativeEndian.AppendUint16(b, 0)
		b = binary.NativeEndian.AppendUint16(b, uint16(headerSize+len(body)))
		return append(b, body...)
	}
	f.Add(rec(recordSample, make([]byte, 56)...))
	f.Add(rec(recordSample, append(make([]byte, 32), 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)...))
	f.Add(rec(recordFork, make([]byte, 48)...))
	f.Add(rec(recordKsymbol, append([]byte{0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 'b', 'p', 'f', 0},
		make([]byte, 28)...)...))
	f.Add(rec(recordBPFEvent, append([]byte{1, 0, 0, 0, 7, 0, 0, 0}, make([]byte, 32)...)...))
	f.Add([]byte{9, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		var s Sampler
		h := &Handler{Symbol: func(Symbol) {}, Program: func(ProgramEvent, []Symbol) {}, Task: func(Task) {}}
		_ = records(data, func(typ uint32, b []byte) (err error) {
			if typ != recordSample {
				return s.event(typ, b, h)
			}
			var smp Sample
			smp, s.chain, err = decodeSample(b, true, s.chain)
			if err == nil && len(smp.Chain) > len(b)/8 {
				t.Errorf("a record of %d bytes gave a chain of %d", len(b), len(smp.Chain))
			}
			return err
		})
	})
}

// BenchmarkDecode measures the cost of decoding one sample, with records that this machine's kernel wrote.
func BenchmarkDecode(b *testing.B) {
	s := sampler(b, Options{Hz: 4999})
	if err := s.Enable(); err != nil {
		b.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond)
	buf := s.rings[0].peek(s.rings[0].head())
	n := 0
	for b.Loop() {
		n = 0
		err := records(buf, func(typ uint32, body []byte) (err error) {
			if typ == recordSample {
				n++
				_, s.chain, err = decodeSample(body, s.cgroup, s.chain)
			}
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*max(n, 1)), "ns/sample")
}

func monotonic() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return ts.Nano()
}

// Samples lost by a full ring count in the window in which they were lost, even if no later record had room to report
// them, and not in the next. A kernel that does not count them (simulated by exact=false) reports them later.
func TestLostCountsInItsWindow(t *testing.T) {
	for _, exact := range []bool{true, false} {
		t.Run(fmt.Sprint("exact=", exact), func(t *testing.T) { testLost(t, exact) })
	}
}

func testLost(t *testing.T, exact bool) {
	s := sampler(t, Options{Hz: 4999, RingBytes: os.Getpagesize(), NoCycles: true})
	if exact && !s.ExactLost() {
		t.Skipf("needs PERF_FORMAT_LOST: %v", Losses.Err())
	}
	s.exact = exact
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	lost := func() uint64 {
		t.Helper()
		n, _, err := s.Lost()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	window := func(work func()) (samples int, losses uint64) {
		t.Helper()
		before := lost()
		if err := s.Enable(); err != nil {
			t.Fatal(err)
		}
		work()
		if err := s.Disable(); err != nil {
			t.Fatal(err)
		}
		if err := s.Drain(&Handler{Sample: func(*Sample) { samples++ }}); err != nil {
			t.Fatal(err)
		}
		return samples, lost() - before
	}
	zero, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	defer zero.Close()
	buf := make([]byte, 1<<20)
	burn := func() {
		var from unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &from); err != nil {
			t.Fatal(err)
		}
		var spent unix.Timespec
		for spent.Nano() < from.Nano()+int64(200*time.Millisecond) {
			if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &spent); err != nil {
				t.Fatal(err)
			}
			if _, err := zero.Read(buf); err != nil {
				t.Fatal(err)
			}
		}
	}
	samples, losses := window(burn)
	const most = 20 // windows: an emulated processor takes few samples, and an inexact count may come late
	for n := 1; losses == 0; n++ {
		if n == most {
			t.Fatalf("a ring of one page, and 200 ms with a sample every 200 us: %d samples, and none lost in %d windows",
				samples, most)
		}
		samples, losses = window(burn)
	}
	if !exact { // some may be reported later, if a small record had no room before
		return
	}
	if _, later := window(func() {}); later >= losses { // the machine may stall and lose some here too
		t.Errorf("%d lost, and %d in the next window, in which nothing was done", losses, later)
	}
}

// TestStormLosesNoSamples: with more new threads than a ring has room for records, a process that drains whenever Wait
// returns loses neither samples nor records. Without that, lost samples and lost records are counted separately, and a
// sampler without records of threads loses none.
func TestStormLosesNoSamples(t *testing.T) {
	guest.Slow(t)
	threads := 2000
	if testing.Short() {
		threads = 600 // on an emulated processor; a ring holds some 300 records of each CPU
	}
	gone := func(tid int) { // the record has been written by then: do_exit in the kernel releases a thread afterwards
		for dir := fmt.Sprintf("/proc/self/task/%d", tid); ; runtime.Gosched() {
			if _, err := os.Stat(dir); err != nil {
				return
			}
		}
	}
	storm := func() {
		for ended := 0; ended < threads; {
			tid := make(chan int)
			go func() {
				runtime.LockOSThread() // the thread ends with this goroutine
				tid <- unix.Gettid()
			}()
			if id := <-tid; id != os.Getpid() { // Go keeps the first thread of a process
				gone(id)
				ended++
			}
		}
	}
	run := func(o Options, storm func(s *Sampler, h *Handler)) (tasks int, samples, others uint64) {
		t.Helper()
		s := sampler(t, o)
		if !s.ExactLost() {
			t.Skipf("needs PERF_FORMAT_LOST: %v", Losses.Err())
		}
		h := &Handler{Task: func(Task) { tasks++ }}
		if err := s.Enable(); err != nil {
			t.Fatal(err)
		}
		storm(s, h)
		if err := errors.Join(s.Disable(), s.Drain(h)); err != nil {
			t.Fatal(err)
		}
		samples, others, err := s.Lost()
		if err != nil {
			t.Fatal(err)
		}
		return tasks, samples, others
	}
	small := Options{Hz: 199, RingBytes: 4 * os.Getpagesize(), NoCycles: true}
	tasks, _, others := run(small, func(*Sampler, *Handler) { storm() })
	if others == 0 || tasks == 0 {
		t.Errorf("without draining: %d records of threads, %d lost", tasks, others)
	}
	before, err := os.ReadDir("/proc/self/task") // Go may reuse these threads, whose starts are not recorded any more
	if err != nil {
		t.Fatal(err)
	}
	tasks, _, others = run(Options{Hz: small.Hz, RingBytes: 64 * small.RingBytes, NoCycles: true},
		func(s *Sampler, h *Handler) {
			over := make(chan struct{})
			go func() { defer s.Wake(); defer close(over); storm() }()
			for {
				if err := errors.Join(s.Wait(time.Hour), s.Drain(h)); err != nil { // it would time out otherwise
					t.Fatal(err)
				}
				select {
				case <-over:
					return
				default:
				}
			}
		})
	if tasks < 2*threads-len(before) || others > 0 {
		t.Errorf("drained as told: %d records of %d threads, %d lost", tasks, threads, others)
	}
	small.NoTasks = true
	if tasks, samples, others := run(small, func(*Sampler, *Handler) { storm() }); tasks > 0 || others > 0 {
		t.Errorf("without records of threads: %d, %d lost, and %d samples", tasks, others, samples)
	}
}
