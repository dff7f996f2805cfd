package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"tare/internal/analysis"
	"tare/internal/fault"
	"tare/internal/record"
	"tare/test/quiet"
)

// needsTime skips what does not fit into the time of make test, or needs a machine that nobody else uses meanwhile.
func needsTime(t *testing.T) {
	t.Helper()
	if os.Getenv("TARE_QUIET") == "" {
		t.Skip("needs a minute of a machine that nobody else uses: make experiments runs it")
	}
}

// quickly runs the short form of a built-in experiment, and gives its trials and its summary. A run that is invalid, as on a machine that
// does something else at the same time, must say why; the test is then skipped, for it could check nothing.
func quickly(t *testing.T, name string) (*record.Contents, *analysis.Summary) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "out")
	o := command{args: []string{"run", name, "--quick", "--out", dir}, timeout: 5 * time.Minute}.start(t).wait(t)
	if o.code != 0 && o.code != int(fault.Invalid) {
		t.Fatal(o)
	}
	c, err := record.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, record.SummaryFile))
	if err != nil {
		t.Fatal(err)
	}
	s := new(analysis.Summary)
	if err := json.Unmarshal(text, s); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s took %s", name, o.took.Round(time.Second))
	for _, a := range s.Answers {
		t.Log(a.Answer)
	}
	if o.code != 0 {
		if s.Valid || len(s.InvalidReasons) == 0 || !strings.Contains(o.stderr, s.InvalidReasons[0]) {
			t.Errorf("invalid without a reason: %s", o)
		}
		t.Skipf("needs a machine that does nothing else meanwhile; the run was invalid: %s", s.InvalidReasons[0])
	}
	if !s.Valid || len(s.Answers) == 0 {
		t.Errorf("no answer: %s", o)
	}
	return c, s
}

// runCounts holds the runs of the connect program, by the kernel's statistics, against the connections that the loads say they opened. The
// edges of the two windows are some milliseconds apart, and more on a machine that is full: hence rates, and their ratio over all trials.
func runCounts(t *testing.T, c *record.Contents) {
	t.Helper()
	var ratios []float64
	for _, tr := range c.Trials {
		if !tr.Validity.Valid {
			continue
		}
		runs, opened := 0.0, 0.0
		for _, p := range tr.Ledger.Programs {
			if p.Name == "km_connect4" && p.RunCount != nil {
				runs += float64(*p.RunCount) / tr.Ledger.Window.Seconds
			}
		}
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
	if len(ratios) == 0 {
		return // the run is invalid, and says so
	}
	slices.Sort(ratios)
	if m := ratios[len(ratios)/2]; m < 0.95 || m > 1.05 {
		t.Errorf("%.3f runs of the program for each connection, over %d trials: %.3f", m, len(ratios), ratios)
	}
}

// TestCPULimit: the experiment says that the limit is shared, and what it says of the limited groups is what their own files say. Where others
// take the CPU, the groups do not come up to their limit, and there is nothing to see.
func TestCPULimit(t *testing.T) {
	needsRoot(t)
	quiet.Wait(t, 3*time.Second, 30*time.Second)
	leavesNothing(t)
	files := watchUsage(t, "client")
	c, s := quickly(t, "ebpf-cpu-limit")
	seen := files()
	runCounts(t, c)
	var ratios []float64
	for _, tr := range c.Trials {
		got, ok := tr.Metrics["limited_cpus"]
		if !ok || !tr.Validity.Valid || tr.Attempt > 0 {
			continue
		}
		if want, watched := seen[tr.Index].cpus(tr.Ledger.Window.Start, tr.Ledger.Window.End); watched {
			ratios = append(ratios, got/want)
		}
	}
	if first := len(firstAttempts(c)); len(ratios) < first/2 {
		t.Fatalf("only %d of %d trials could be compared with the files", len(ratios), first)
	}
	slices.Sort(ratios)
	t.Logf("CPU of the limited groups, ledger to files: %.3f at the median of %d trials, %.3f to %.3f", ratios[len(ratios)/2], len(ratios), ratios[0], ratios[len(ratios)-1])
	if m := ratios[len(ratios)/2]; m < 0.95 || m > 1.05 {
		t.Errorf("the ledger has %.3f of the CPU time that the files have of the limited groups", m)
	}
	if s == nil {
		return
	}
	for _, a := range s.Answers {
		if !strings.Contains(a.Answer, "Yes: with sockops-10000, at a limit of 0.25 CPU") {
			t.Errorf("answer: %s", a.Answer)
		}
	}
	for _, e := range s.Estimates {
		if e.Metric == "limited_cpu_seconds_per_connection" && e.Arm != "kernelmesh" && e.Arm != record.AA && e.Arm != record.Direct && (e.Difference == nil || !e.Difference.Resolved) {
			t.Errorf("%s is not resolved at %v: %+v", e.Arm, e.Factors, e.Difference)
		}
	}
}

// usagePoint is the CPU time that groups had used, in seconds, at an instant.
type usagePoint struct {
	at   time.Time
	used float64
}

// usage is what the files of the groups of one trial said, in order of time.
type usage []usagePoint

// at gives the CPU time used until an instant, from the readings on either side of it, which must be near.
func (u usage) at(when time.Time) (float64, bool) {
	i, _ := slices.BinarySearchFunc(u, when, func(p usagePoint, t time.Time) int { return p.at.Compare(t) })
	if i == 0 || i == len(u) || u[i].at.Sub(u[i-1].at) > 40*time.Millisecond {
		return 0, false
	}
	before, after := u[i-1], u[i]
	part := when.Sub(before.at).Seconds() / after.at.Sub(before.at).Seconds()
	return before.used + part*(after.used-before.used), true
}

// cpus gives the CPUs used on average between two instants.
func (u usage) cpus(from, to time.Time) (float64, bool) {
	a, early := u.at(from)
	b, late := u.at(to)
	return (b - a) / to.Sub(from).Seconds(), early && late
}

// watchUsage follows the CPU time of the groups of a part, by their own files, until the function that it returns is called. That gives what
// was read, by trial.
func watchUsage(t *testing.T, part string) func() map[int]usage {
	t.Helper()
	points := map[int]usage{}
	stop, done := make(chan struct{}), make(chan struct{})
	trial := regexp.MustCompile(`/tare-trial-([0-9]+)-p`)
	look := func() {
		sum := map[int]float64{}
		from := time.Now()
		for _, pattern := range []string{"/sys/fs/cgroup/cpuacct/tare-trial-*/work/" + part + "*/cpuacct.usage", "/sys/fs/cgroup/tare-trial-*/work/" + part + "*/cpu.stat"} {
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
			}
		}
		took := time.Since(from)
		if took > 5*time.Millisecond {
			return // held up between the files: they do not belong together
		}
		for index, used := range sum {
			points[index] = append(points[index], usagePoint{from.Add(took / 2), used})
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

// TestSaturation: the programs' part of the machine is told at each level, beside a baseline without them.
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
	if !strings.Contains(s.Answers[0].Answer, "From connections 100 to connections 3000 the part of the machine") {
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
