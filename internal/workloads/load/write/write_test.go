package write

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/load"
	"tare/internal/experiment/load/running"
	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
	"tare/internal/lib/param"
)

// options returns the defaults with some settings, and a private directory of the test.
func options(t *testing.T, set param.Values) Options {
	t.Helper()
	v := param.Defaults(Settings)
	v["directory"] = t.TempDir()
	maps.Copy(v, set)
	o, err := OptionsOf(v)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func schedule(warmup, duration time.Duration) role.Schedule {
	return role.Schedule{Begin: pace.Now() + int64(5*time.Millisecond), Warmup: int64(warmup), Duration: int64(duration)}
}

// start makes a load that is closed when the test ends, and fails the test if anything is left of it.
func start(t *testing.T, o Options) *Load {
	t.Helper()
	l, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if left, err := os.ReadDir(o.Directory); len(left) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the load left %v, %v", left, err)
		}
	})
	return l
}

// adds fails the test if the numbers of a result do not add up.
func adds(t *testing.T, r *load.Result) {
	t.Helper()
	failed := int64(0)
	for _, n := range r.Errors {
		failed += n
	}
	if r.Sent > r.Intended || r.Done+failed+r.Unfinished != r.Sent || r.Late > r.Done || *r.Finished < r.Done-r.Late {
		t.Errorf("the writes do not add up: %+v", r)
	}
	inSlices := int64(0)
	for _, s := range r.Slices {
		inSlices += s.Done
	}
	if len(r.Slices) != load.Slices || inSlices != r.Done {
		t.Errorf("%d slices hold %d writes of %d", len(r.Slices), inSlices, r.Done)
	}
}

// TestOpen: with every kind of sync, the result counts every write of the window, and none of the warm-up.
func TestOpen(t *testing.T) {
	for _, sync := range []string{SyncNone, SyncFile, SyncData} {
		t.Run(sync, func(t *testing.T) {
			o := options(t, param.Values{
				"rate": "500", "arrivals": "constant", "workers": "2", "size": "1000", "sync": sync, "drain": "1m",
			})
			l := start(t, o)
			r, err := l.Run(t.Context(), schedule(40*time.Millisecond, 400*time.Millisecond))
			if err != nil {
				t.Fatal(err)
			}
			adds(t, r)
			in := float64(*r.Finished) // all of them, unless the disk is slow at an edge of the window
			if r.Intended != 200 || r.Done != 200 || len(r.Errors) > 0 || r.Counts[CountBytes] != 1000*in {
				t.Errorf("of 200 writes of 1000 bytes: %+v", r)
			}
			if r.Generator != Name || r.Mode != load.Open || r.Arrivals != "constant" || r.TargetRate != 500 ||
				r.Rate != in/0.4 || r.Seconds != 0.4 || r.Connections != 2 || r.CPUSeconds <= 0 || r.CPUs < 1 {
				t.Errorf("the result is %+v", r)
			}
			for _, name := range []string{load.Latency, load.Service, load.Lag, load.OwnLag} {
				if h, err := r.Histogram(name); err != nil || h == nil || h.TotalCount() != 200 {
					t.Errorf("the histogram %s: %v, %v", name, h, err)
				}
			}
		})
	}
}

// TestClosed: a load that goes as fast as it can begins its files again and again, and never holds more than its limit.
func TestClosed(t *testing.T) {
	const limit = 1 << 20
	l := start(t, options(t, param.Values{"mode": "closed", "workers": "1", "limit": "1048576"}))
	most, done := int64(0), make(chan struct{})
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		for {
			most = max(most, size(l.dir.Path()))
			select {
			case <-done:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	r, err := l.Run(t.Context(), schedule(0, 300*time.Millisecond))
	close(done)
	<-watching
	if err != nil {
		t.Fatal(err)
	}
	adds(t, r)
	if r.Mode != load.Closed || r.Arrivals != "" || r.Done == 0 || r.Intended != r.Sent || len(r.Errors) > 0 {
		t.Errorf("the result is %+v", r)
	}
	if h, err := r.Histogram(load.Lag); h != nil || err != nil {
		t.Errorf("a closed loop has a schedule: %v, %v", h, err)
	}
	if written := r.Counts[CountBytes]; most == 0 || most > limit || written > 4*limit && most < limit/2 {
		t.Errorf("%.0f bytes were written, and the files held %d at most; allowed are %d", written, most, limit)
	}
}

// size returns the total size of the files in a directory.
func size(dir string) (total int64) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			total += info.Size()
		}
	}
	return total
}

// TestContents: a file holds what was written, one write after the other.
func TestContents(t *testing.T) {
	l := start(t, options(t, param.Values{"rate": "1000", "workers": "1", "size": "100", "limit": "1200"}))
	w := l.workers[0]
	for range 5 { // three writes fill a file
		if f := w.put(); f.step != "" {
			t.Fatal(f)
		}
	}
	for name, want := range map[string]int{"0-0": 3, "0-1": 2} {
		text, err := os.ReadFile(filepath.Join(l.dir.Path(), name))
		if err != nil || string(text) != strings.Repeat(string(w.data), want) {
			t.Errorf("%s holds %d bytes, %v; want %d writes of 100", name, len(text), err, want)
		}
	}
}

// TestFull: a full disk shows in the errors by kind, and the load continues with the space of its oldest file.
func TestFull(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it mounts a small file system")
	}
	dir := t.TempDir()
	if err := unix.Mount("tare-test-write", dir, "tmpfs", 0, "size=128k"); err != nil {
		t.Skipf("needs to mount a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	for mode, set := range map[string]param.Values{"open": {"rate": "2000"}, "closed": {"mode": "closed"}} {
		t.Run(mode, func(t *testing.T) {
			set["directory"], set["workers"], set["drain"] = dir, "1", "1m"
			r, err := start(t, options(t, set)).Run(t.Context(), schedule(0, 300*time.Millisecond))
			if err != nil {
				t.Fatal(err)
			}
			adds(t, r)
			if r.Errors["write ENOSPC"] == 0 || r.Done == 0 {
				t.Errorf("on a disk of 128 KiB: %+v", r)
			}
		})
	}
}

// TestVanished: if the directory is removed, writes fail once the next file is needed, and closing the load is not an
// error.
func TestVanished(t *testing.T) {
	o := options(t, param.Values{
		"rate": "1000", "arrivals": "constant", "workers": "1", "limit": "32768", "drain": "1m",
	})
	l := start(t, o)
	if err := os.RemoveAll(o.Directory); err != nil {
		t.Fatal(err)
	}
	r, err := l.Run(t.Context(), schedule(0, 100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	adds(t, r)
	// A file holds two writes; the first was open.
	if want := map[string]int64{"open ENOENT": 98}; r.Done != 2 || !maps.Equal(r.Errors, want) {
		t.Errorf("%d writes were done and %v failed, want 2 and %v", r.Done, r.Errors, want)
	}
}

// TestTally: how a write is counted, by its times. The window is from 1000 to 2000, and the drain ends at 2500.
func TestTally(t *testing.T) {
	broken := failure{"write", unix.EIO}
	for _, c := range []struct {
		name                       string
		intended, sent, done, free int64
		f                          failure
		excused                    bool // the failure does not count
		want                       load.Tally
		unfinished                 int64
		ownLag                     int64
	}{
		{name: "in the window", intended: 1100, sent: 1100, done: 1200,
			want: load.Tally{Intended: 1, Sent: 1, Done: 1, Finished: 1}},
		{name: "at its begin", intended: 1000, sent: 1000, done: 1200,
			want: load.Tally{Intended: 1, Sent: 1, Done: 1, Finished: 1}},
		{name: "in the warm-up", intended: 999, sent: 1100, done: 1200, want: load.Tally{Finished: 1}},
		{name: "ended in the warm-up", intended: 900, sent: 900, done: 999},
		{name: "failed in the warm-up", intended: 900, sent: 900, done: 1200, f: broken, excused: true},
		{name: "at the end", intended: 2000, sent: 2000, done: 2100},
		{name: "late", intended: 1999, sent: 1999, done: 2000, want: load.Tally{Intended: 1, Sent: 1, Done: 1, Late: 1}},
		{name: "too late", intended: 1999, sent: 2400, done: 2501,
			want: load.Tally{Intended: 1, Sent: 1}, unfinished: 1, ownLag: 401},
		{name: "failed", intended: 1100, sent: 1100, done: 1200, f: broken, want: load.Tally{Intended: 1, Sent: 1}},
		{name: "behind another", intended: 1100, sent: 1350, done: 1400, free: 1300,
			want: load.Tally{Intended: 1, Sent: 1, Done: 1, Finished: 1}, ownLag: 50},
		{name: "by its own fault", intended: 1100, sent: 1350, done: 1400, free: 1000,
			want: load.Tally{Intended: 1, Sent: 1, Done: 1, Finished: 1}, ownLag: 250},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := &Load{warm: 1000, end: 2000, drained: 2500}
			l.arrivals = pace.NewSchedule(0, 1, pace.Constant, 0, 0, 1)
			w := &worker{load: l, count: load.NewTally(), failures: map[failure]int64{}, log: running.NewLog(1)}
			w.tally(c.intended, c.sent, c.done, c.free, c.f)
			got := w.count
			unfinished := got.Sent - got.Done - w.failures[broken]
			if got.Intended != c.want.Intended || got.Sent != c.want.Sent || got.Done != c.want.Done ||
				got.Late != c.want.Late || got.Finished != c.want.Finished || unfinished != c.unfinished {
				t.Errorf("it counts as %d %d %d %d %d %d", got.Intended, got.Sent, got.Done, got.Late, got.Finished, unfinished)
			}
			if n := w.failures[c.f]; (n == 1) != (c.f.step != "" && !c.excused) {
				t.Errorf("%d failures", n)
			}
			if got.Sent == 1 && got.OwnLag.Max() != c.ownLag {
				t.Errorf("the own lag is %d ns, want %d", got.OwnLag.Max(), c.ownLag)
			}
			if got.Done == 1 && (got.Latency.Max() != c.done-c.intended || got.Service.Max() != c.done-c.sent) {
				t.Errorf("latency %d, service %d", got.Latency.Max(), got.Service.Max())
			}
		})
	}
}

// TestNeverBegun: writes that are still due when the drain is over count as intended, and not as sent.
func TestNeverBegun(t *testing.T) {
	l := start(t, options(t, param.Values{"rate": "1000", "arrivals": "constant", "workers": "1", "drain": "0s"}))
	s := schedule(0, 100*time.Millisecond)
	s.Begin -= int64(time.Minute) // the window is long over
	l.begin, l.warm, l.end, l.drained = s.Begin, s.Begin, s.Begin+s.Duration, s.Begin+s.Duration
	l.arrivals = pace.NewSchedule(s.Begin, l.o.Rate, l.o.Arrivals, 1, 0, 1)
	if err := l.workers[0].run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c := l.workers[0].count; c.Intended != 100 || c.Sent != 0 || c.Done != 0 {
		t.Errorf("%d were intended, %d sent, %d done", c.Intended, c.Sent, c.Done)
	}
}

func TestFailureNames(t *testing.T) {
	for want, f := range map[string]failure{
		"write ENOSPC": {"write", unix.ENOSPC}, "write short": {step: "write"}, "fsync EIO": {"fsync", unix.EIO},
		"open 4095": {"open", 4095},
	} {
		if got := f.String(); got != want {
			t.Errorf("%+v is called %q, not %q", f, got, want)
		}
	}
}

func TestWrongUse(t *testing.T) {
	for _, c := range []struct {
		set  param.Values
		says string
	}{
		{param.Values{}, `needs a "rate"`},
		{param.Values{"mode": "closed", "rate": "5"}, `"rate" does not apply`},
		{param.Values{"rate": "5", "workers": "4", "limit": "65535"}, "are too few"},
		{param.Values{"rate": "5", "size": "1048576", "limit": "1048576"}, "are too few"},
	} {
		v := param.Defaults(Settings)
		maps.Copy(v, c.set)
		if _, err := OptionsOf(v); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: %v, want %q", c.set, err, c.says)
		}
	}
	o := options(t, param.Values{"rate": "5", "limit": "16384"})
	o.Workers = 2 // more than the limit has room for; only New checks this, because it may choose the number
	if _, err := New(o); fault.CodeOf(err) != fault.Usage || fault.HintOf(err) == "" {
		t.Errorf("too little room: %v", err)
	}
	o = options(t, param.Values{"rate": "5"})
	o.Directory = filepath.Join(o.Directory, "nowhere")
	if _, err := New(o); fault.CodeOf(err) != fault.Machine || fault.HintOf(err) == "" {
		t.Errorf("no directory: %v", err)
	}
	l := start(t, options(t, param.Values{"rate": "5"}))
	if _, err := l.Run(t.Context(), role.Schedule{}); fault.CodeOf(err) != fault.Usage {
		t.Errorf("no window: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Run(ctx, schedule(0, time.Hour)); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestRole: the messages ready, start, stalls, result and end, and an end that comes early. The files are removed in
// every case.
func TestRole(t *testing.T) {
	for _, early := range []string{"", "before the start", "while it runs"} {
		t.Run(early, func(t *testing.T) {
			o := options(t, param.Values{"rate": "1000", "workers": "2", "drain": "1m"})
			childIn, parentOut := io.Pipe()
			parentIn, childOut := io.Pipe()
			ended := make(chan error, 1)
			go func() {
				ended <- Run(context.Background(), o, role.NewConn(childIn, childOut))
				childOut.Close()
			}()
			parent := role.NewConn(parentIn, parentOut)
			var ready Ready
			if err := parent.Expect(role.Ready, &ready, nil); err != nil || ready.Workers != 2 || !ready.Stalls {
				t.Fatalf("ready: %+v, %v", ready, err)
			}
			if size(ready.Directory) != 0 || filepath.Dir(ready.Directory) != o.Directory {
				t.Errorf("it works in %s", ready.Directory)
			}
			s := schedule(0, 100*time.Millisecond)
			s.Stalls = true
			if early == "while it runs" {
				s.Duration = int64(time.Hour)
			}
			if early != "before the start" {
				if err := parent.Send(role.Start, s); err != nil {
					t.Fatal(err)
				}
			}
			if early == "" {
				stalls := role.Stalls{From: s.Begin, To: s.Begin + s.Duration}
				stalls.Spans = [][2]int64{{s.Begin + s.Duration/4, s.Begin + s.Duration*3/4}}
				if err := parent.Send(role.Halts, stalls); err != nil {
					t.Fatal(err)
				}
				var r load.Result
				if err := parent.Expect(role.Result, &r, nil); err != nil {
					t.Fatal(err)
				}
				run := r.Running
				if run == nil || run.Withheld != "" || run.Disturbed == 0 ||
					run.Undisturbed+run.Disturbed+run.Unwatched != r.Done {
					t.Errorf("with a stall in half of the window: %+v of %d writes", run, r.Done)
				}
			}
			parentOut.Close()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			if left, err := os.ReadDir(o.Directory); len(left) > 0 || err != nil {
				t.Errorf("it left %v, %v", left, err)
			}
		})
	}
}

// TestSettingsAreChecked: the defaults, with the settings that a spec must give, pass the checks.
func TestSettingsAreChecked(t *testing.T) {
	v := param.Defaults(Settings)
	v["rate"] = "100"
	if err := errors.Join((guest{}).Check(v), v.Check(Settings)); err != nil {
		t.Error(err)
	}
	if names := param.Names(Settings); slices.Contains(names, "count") || len(names) != 9 {
		t.Errorf("the settings are %v", names)
	}
}
