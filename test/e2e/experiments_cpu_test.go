package e2e

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"tare/internal/experiment/record"
	"tare/internal/lib/fault"
	"tare/internal/lib/stats"
	"tare/internal/results/analysis"
	"tare/test/long"
	"tare/test/quiet"
)

// needsTime skips a test that takes too long for make test, or needs a machine without other work.
func needsTime(t *testing.T) {
	t.Helper()
	if os.Getenv("TARE_QUIET") == "" {
		t.Skip("needs a minute of a machine that nobody else uses: make experiments runs it")
	}
	quiet.Wait(t, 3*time.Second, 30*time.Second)
}

// quickly runs the short form of a built-in experiment, and returns its trials and its summary. An invalid run fails
// the test. TestBuiltIns, which make test runs, has forms that noise cannot make invalid.
func quickly(t *testing.T, name string) (*record.Contents, *analysis.Summary) {
	t.Helper()
	c, s := quick(t, name)
	if !s.Valid {
		t.Fatalf("the run is invalid: %s", s.InvalidReasons[0])
	}
	return c, s
}

// quick is like quickly, for tests that hold on any machine: it returns an invalid run too, for the test to judge.
func quick(t *testing.T, name string) (*record.Contents, *analysis.Summary) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "out")
	o := command{args: []string{"run", name, "--quick", "--out", dir}, timeout: 15 * time.Minute}.start(t).wait(t)
	if o.code != 0 && o.code != int(fault.Invalid) {
		t.Fatal(o)
	}
	c, err := record.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	s := readSummary(t, dir, o)
	t.Logf("%s took %s", name, o.took.Round(time.Second))
	for _, a := range s.Answers {
		t.Log(a.Answer)
	}
	if s.Valid != (o.code == 0) {
		t.Fatalf("valid: %v, with the exit code %d: %s", s.Valid, o.code, o)
	}
	if !s.Valid && (len(s.InvalidReasons) == 0 || !strings.Contains(o.stderr, s.InvalidReasons[0])) {
		t.Fatalf("invalid without a reason: %s", o)
	}
	if s.Valid && len(s.Answers) == 0 {
		t.Errorf("no answer: %s", o)
	}
	return c, s
}

// runCounts compares the runs of the connect program, by the kernel's statistics, with the connections that the loads
// say they opened. The edges of the two windows are some milliseconds apart, and more on a busy machine: hence it
// compares rates. The interval of the median ratio over all trials must overlap 0.95 to 1.05.
func runCounts(t *testing.T, c *record.Contents) {
	t.Helper()
	var ratios []float64
	for _, tr := range c.Trials {
		if !tr.Validity.Stands("bpf_seconds_per_connection") { // this metric is made from the same two counts
			continue
		}
		runs, opened := float64(programRuns(t, tr, "km_connect4"))/tr.Ledger.Window.Seconds, 0.0
		for _, l := range tr.Loads {
			opened += float64(l.Opened) / l.Seconds
		}
		switch {
		case tr.Arm == record.Direct || tr.Arm == record.AA:
			if runs > 0 {
				t.Errorf("trial %d, %s: the program ran, and nothing is attached", tr.Index, tr.Arm)
			}
		case opened > 0:
			ratios = append(ratios, runs/opened)
		}
	}
	m := stats.Median(ratios)
	if !m.HasInterval {
		t.Logf("%d trials are too few to hold the runs of the program against connections: %.3f", m.N, ratios)
		return
	}
	t.Logf("%.3f runs of the program for each connection [%.3f, %.3f], over %d trials", m.Value, m.Lo, m.Hi, m.N)
	if m.Hi < 0.95 || m.Lo > 1.05 {
		t.Errorf("the program and the loads have counted different connections: %.3f", ratios)
	}
}

// TestLimitedUsage: the CPU time that a trial reports for the groups with a limit equals that in the groups' own files,
// in the smallest form of the experiment.
func TestLimitedUsage(t *testing.T) {
	long.Test(t, "10 s: two blocks of an experiment whose application has a limit")
	needsRoot(t)
	leavesNothing(t)
	const name = "ebpf-cpu-limit"
	s := smallests[name]
	s.duration = "1s"
	dir := filepath.Join(t.TempDir(), "out")
	args := []string{"run", specFile(t, strings.Replace(s.spec(t, name), "blocks: 1\n", "blocks: 2\n", 1)), "--out", dir}
	files := watchUsage(t, "client")
	if o := (command{args: args, timeout: 5 * time.Minute}).start(t).wait(t); o.code != 0 {
		t.Fatal(o)
	}
	c, err := record.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	compareUsage(t, c, files())
}

// TestCPULimit holds on any machine that has the time for it. The CPU time that the experiment reports for the limited
// groups equals that in their own files. For each heavy program, the experiment either resolves what the groups are
// charged for a connection, or says how many trials were lost and why. It says that the limit is shared wherever it has
// the metrics for that. A noisy machine may withhold a part of this, never all of it.
func TestCPULimit(t *testing.T) {
	needsRoot(t)
	needsTime(t)
	leavesNothing(t)
	files := watchUsage(t, "client")
	c, s := quick(t, "ebpf-cpu-limit")
	compareUsage(t, c, files())
	runCounts(t, c)
	if !s.Valid {
		t.Fatalf("nothing can be told: %q", s.InvalidReasons)
	}
	resolved := 0
	for _, count := range []string{"1", "4"} {
		at := map[string]string{"client.count": count}
		for _, arm := range []string{"sockops-10000", "steps-65535"} {
			if chargeResolved(t, s, arm, at) {
				resolved++
			}
		}
		sharesLimit(t, s, "sockops-10000", at)
	}
	if resolved == 0 {
		t.Error("not one program's charge is resolved")
	}
}

// chargeResolved reports whether what an arm adds to the CPU time of a connection is resolved. The addition is tens of
// times the noise of any machine, so if it is not resolved, trials must have been lost, and the summary must say how
// many and why.
func chargeResolved(t *testing.T, s *analysis.Summary, arm string, at map[string]string) bool {
	t.Helper()
	const metric = "limited_cpu_seconds_per_connection"
	i := slices.IndexFunc(s.Estimates, func(e analysis.Estimate) bool {
		return e.Metric == metric && e.Arm == arm && maps.Equal(e.Factors, at)
	})
	if i >= 0 && s.Estimates[i].Withheld == "" {
		e := s.Estimates[i]
		if e.Difference != nil && e.Difference.Resolved {
			if e.Difference.Value <= 0 {
				t.Errorf("%s at %v: connections are charged %g s less with the program", arm, at, -e.Difference.Value)
			}
			return true
		}
		lost := e.Planned - e.Blocks
		for _, l := range s.Losses {
			if slices.Contains(l.Metrics, metric) && maps.Equal(l.Factors, at) {
				lost += l.Lost
			}
		}
		if lost == 0 || e.Difference == nil || e.Difference.Unresolved == "" {
			t.Errorf("%s is not resolved at %v, and no trial was lost: %+v", arm, at, e.Difference)
		}
		return false
	}
	m := slices.IndexFunc(s.Missing, func(m analysis.Missing) bool {
		return m.Metric == metric && m.Arm == arm && maps.Equal(m.Factors, at)
	})
	if m < 0 {
		t.Errorf("%s at %v: neither measured nor among what is missing", arm, at)
		return false
	}
	if m := s.Missing[m]; m.Lost == 0 || m.Lost > m.Trials || m.Message == "" || m.Cause == "" {
		t.Errorf("%s at %v is withheld without a cause: %+v", arm, at, m)
	}
	return false
}

// sharesLimit checks that an answer says that the limit is shared, if the summary has everything that this rests on.
func sharesLimit(t *testing.T, s *analysis.Summary, arm string, at map[string]string) {
	t.Helper()
	for _, metric := range []string{"bpf_seconds_per_connection", "limit_cpus", "limited_share", "limited_throttled_share",
		"limited_cpu_seconds_per_connection", "throughput_per_second"} {
		if e := s.Find(metric, arm, at); e == nil || e.Lo == nil && metric != "limit_cpus" {
			t.Logf("%s at %v: there is no answer to hold against, for %s is not told", arm, at, metric)
			return
		}
	}
	if e := s.Find("limited_cpu_seconds_per_connection", arm, at); e.Difference == nil || !e.Difference.Resolved {
		return // chargeResolved has judged that
	}
	// The gate "held" voids how much of their limit the groups used if they were not throttled, but not how often they
	// were throttled.
	if e := s.Find("limited_throttled_share", arm, at); *e.Lo < 0.5 {
		t.Logf("%s at %v: something else kept the groups from their limit: %+v", arm, at, e)
		return
	}
	want := "Application and programs share the limit: with " + arm + ", at a limit of 0.25 CPU"
	if !slices.ContainsFunc(s.Answers, func(a analysis.Answer) bool {
		return strings.Contains(a.Answer, "client.count "+at["client.count"]) && strings.Contains(a.Answer, want)
	}) {
		t.Errorf("no answer at %v says %q", at, want)
	}
}

// compareUsage compares the CPU time of the limited groups in the ledgers with that in the groups' files. A reading
// before an edge of the window and one after it bound what was charged at the edge, however far apart the two are.
func compareUsage(t *testing.T, c *record.Contents, seen map[int]usage) {
	t.Helper()
	first, compared, tight, outside := 0, 0, 0, 0
	for _, tr := range firstAttempts(c) {
		got, ok := tr.Metrics["limited_cpus"]
		if tr.Validity.Failed != "" || !ok {
			continue
		}
		first++
		w := tr.Ledger.Window
		lo, hi, watched := seen[tr.Index].within(w.Start, w.End)
		if !watched {
			continue
		}
		compared++
		used := got * w.Seconds
		if hi-lo < 0.1*used {
			tight++
		}
		if used < lo-1e-6 || used > hi+1e-6 {
			outside++
			t.Logf("trial %d, %s: the groups used %.4f s by the ledger, %.4f to %.4f s by their files", tr.Index, tr.Arm,
				used, lo, hi)
		}
	}
	t.Logf("%d of %d trials were compared with the files, %d of them to within 10 %%; %d lie outside", compared, first,
		tight, outside)
	if compared < first/2 || tight < max(1, first/16) {
		t.Errorf("only %d of %d trials could be compared with the files, and %d to within 10 %%", compared, first, tight)
	}
	// Counters are read within 8 ms of the edge, unless tare is held up in all of its four attempts.
	if outside > compared/10 {
		t.Errorf("in %d of %d trials the ledger has another CPU time of the limited groups than the files", outside, compared)
	}
}

// usagePoint is the CPU time that groups had used, in seconds, by files that were read between two instants.
type usagePoint struct {
	from, to time.Time
	used     float64
}

// usage is what the files of the groups of one trial said, in order of time.
type usage []usagePoint

// edgeTime is how long after an edge of its window the meter may read counters.
const edgeTime = 8 * time.Millisecond

// before and after return the least and the most that had been used at an instant; false if no reading bounds it.
func (u usage) before(when time.Time) (float64, bool) {
	i := sort.Search(len(u), func(i int) bool { return u[i].to.After(when) })
	if i == 0 {
		return 0, false
	}
	return u[i-1].used, true
}

func (u usage) after(when time.Time) (float64, bool) {
	i := sort.Search(len(u), func(i int) bool { return !u[i].from.Before(when) })
	if i == len(u) {
		return 0, false
	}
	return u[i].used, true
}

// within bounds the CPU time that was charged between two edges of a window.
func (u usage) within(start, end time.Time) (lo, hi float64, ok bool) {
	least, a := u.before(start)
	most, b := u.after(start.Add(edgeTime))
	last, c := u.before(end)
	end2, d := u.after(end.Add(edgeTime))
	return last - most, end2 - least, a && b && c && d
}

// watchUsage reads the CPU time of a part's control groups from their own files, again and again, until the returned
// function is called. That function returns the readings, by trial.
func watchUsage(t *testing.T, part string) func() map[int]usage {
	t.Helper()
	points, most := map[int]usage{}, map[int]int{}
	stop, done := make(chan struct{}), make(chan struct{})
	trial := regexp.MustCompile(`/tare-trial-([0-9]+)-p`)
	look := func() {
		// A group that does not exist yet, or no longer, would make the sum smaller, but CPU time never falls: readings of
		// fewer groups than the last one are left out.
		sum, groups := map[int]float64{}, map[int]int{}
		from := time.Now()
		for _, pattern := range []string{"/sys/fs/cgroup/cpuacct/tare-trial-*/work/" + part + "*/cpuacct.usage",
			"/sys/fs/cgroup/tare-trial-*/work/" + part + "*/cpu.stat"} {
			found, _ := filepath.Glob(pattern)
			for _, f := range found {
				text, err := os.ReadFile(f)
				if err != nil {
					continue // the trial has ended
				}
				m := trial.FindStringSubmatch(f)
				if m == nil {
					continue // a further attempt at a trial
				}
				index, _ := strconv.Atoi(m[1])
				sum[index] += usageSeconds(string(text))
				groups[index]++
			}
		}
		to := time.Now()
		for index, used := range sum {
			if groups[index] >= most[index] {
				most[index] = groups[index]
				points[index] = append(points[index], usagePoint{from, to, used})
			}
		}
	}
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
				look()
			}
		}
	}()
	end := sync.OnceFunc(func() { close(stop); <-done })
	t.Cleanup(end)
	return func() map[int]usage {
		end()
		return points
	}
}

// usageSeconds reads cpuacct.usage (nanoseconds) or cpu.stat.
func usageSeconds(text string) float64 {
	if ns, err := strconv.ParseFloat(strings.TrimSpace(text), 64); err == nil {
		return ns / 1e9
	}
	var us float64
	for line := range strings.Lines(text) {
		if _, err := fmt.Sscanf(line, "usage_usec %g", &us); err == nil {
			return us / 1e6
		}
	}
	return 0
}

// TestSaturation: the programs' part of the machine is reported at each level, beside a baseline without them.
func TestSaturation(t *testing.T) {
	needsRoot(t)
	leavesNothing(t)
	needsTime(t)
	c, s := quickly(t, "ebpf-saturation")
	runCounts(t, c)
	for _, tr := range c.Trials {
		if n := len(tr.Loads); tr.Validity.Failed == "" && n != 8 {
			t.Errorf("trial %d has %d loads", tr.Index, n)
		}
		connections := 0
		for _, l := range tr.Loads {
			connections += l.Connections
		}
		if want := tr.Factors["connections"]; tr.Validity.Failed == "" && strconv.Itoa(connections) != want {
			t.Errorf("trial %d asked for %d connections in all, and the level is %s", tr.Index, connections, want)
		}
	}
	if s == nil {
		return
	}
	if !strings.Contains(s.Answers[0].Answer, "The part of the machine that the programs of kernelmesh take goes from ") {
		t.Errorf("answer: %s", s.Answers[0].Answer)
	}
	for _, level := range []string{"100", "3000"} {
		i := slices.IndexFunc(s.Estimates, func(e analysis.Estimate) bool {
			return e.Metric == "bpf_cpu_share" && e.Arm == "kernelmesh" && e.Factors["connections"] == level
		})
		if i < 0 || s.Estimates[i].Difference == nil || !s.Estimates[i].Difference.Resolved {
			t.Errorf("the programs' part of the machine is not resolved at %s connections", level)
		}
	}
}

// TestUsageBounds: readings of the files bound what was charged between two edges, the further apart the looser, and
// always around the truth.
func TestUsageBounds(t *testing.T) {
	zero := time.Unix(1000, 0)
	at := func(ms int) time.Time { return zero.Add(time.Duration(ms) * time.Millisecond) }
	// The group uses 1 ms of CPU time in each 4 ms, and a reading takes 1 ms, in which the counter stands where it
	// stood at its start.
	read := func(every, until int) (u usage) {
		for ms := 0; ms <= until; ms += every {
			u = append(u, usagePoint{at(ms), at(ms + 1), float64(ms) / 4000})
		}
		return u
	}
	const truth = 0.1 // seconds of CPU time in 400 ms
	for _, c := range []struct {
		name   string
		u      usage
		ok     bool
		widest float64
	}{
		{"every 10 ms", read(10, 700), true, 0.02},
		{"every 100 ms", read(100, 700), true, 0.08},
		{"ends in the window", read(10, 400), false, 0},
		{"nothing", nil, false, 0},
		{"begins in the window", read(10, 700)[20:], false, 0},
	} {
		lo, hi, ok := c.u.within(at(105), at(505))
		if ok != c.ok || ok && (lo > truth || hi < truth || hi-lo > c.widest) {
			t.Errorf("%s: %.4f to %.4f s, %v; want %g within, at most %g wide: %v", c.name, lo, hi, ok, truth, c.widest, c.ok)
		}
	}
}
