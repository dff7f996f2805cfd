package e2e

import (
	"strings"
	"testing"

	"tare/internal/results/analysis"
)

// TestTraceExec: the reference tracer delivers every exec of storms on all CPUs, and costs at most a third of what
// bpftrace does with the same fields.
func TestTraceExec(t *testing.T) {
	needsTime(t)
	needsRoot(t)
	leavesNothing(t)
	c, s := quickly(t, "trace-exec")
	traced := 0
	for _, tr := range c.Trials {
		e := tr.Events
		if e == nil || e.Generated == 0 || e.Generated != e.Counted || e.Missed != 0 {
			t.Fatalf("trial %d, %s: %+v", tr.Index, tr.Arm, e)
		}
		if tr.Arm == "exectrace" {
			traced++
			if *e.Delivered != e.Counted || *e.SaidLost != 0 {
				t.Errorf("trial %d: of %d execs %d were delivered, and %d lost by its own word", tr.Index, e.Counted, *e.Delivered,
					*e.SaidLost)
			}
		}
	}
	if traced == 0 {
		t.Fatal("no trial had a tracer")
	}
	storm := map[string]string{"execs.rate": "64000"}
	value := func(metric, arm string) float64 {
		e := s.Find(metric, arm, storm)
		if e == nil {
			t.Fatalf("%s has no %s", arm, metric)
		}
		return e.Value
	}
	if rss := value("rss_bytes", "exectrace"); rss >= 25e6 {
		t.Errorf("it has %.1f MB in memory", rss/1e6)
	}
	if !strings.Contains(s.Answers[0].Answer, "exectrace") ||
		!strings.Contains(s.Answers[0].Answer, "delivered every event.") {
		t.Errorf("answers: %+v", s.Answers)
	}
	if why, absent := s.Absent["bpftrace"]; absent {
		t.Logf("not compared with bpftrace: %s", why)
		return
	}
	ours, theirs := value("cpu_seconds_per_kiloevent", "exectrace"), value("cpu_seconds_per_kiloevent", "bpftrace")
	if ours > theirs/3 {
		t.Errorf("1,000 events take %.2g s of CPU time with exectrace and %.2g s with bpftrace", ours, theirs)
	}
	// No two storms of half a second are the same, so the lower end of the interval is compared with a third of
	// bpftrace's.
	ratio := func(arm string) *analysis.Interval {
		e := s.Find("throughput_per_second", arm, storm)
		if e == nil || e.Ratio == nil || e.Ratio.Hi == nil {
			t.Fatalf("%s has no throughput beside that without a tracer", arm)
		}
		return e.Ratio
	}
	if slow, slower := 1-*ratio("exectrace").Hi, 1-ratio("bpftrace").Value; slow > slower/3 {
		t.Errorf("a storm is at least %.1f %% slower with exectrace, and %.1f %% with bpftrace", 100*slow, 100*slower)
	}
}
