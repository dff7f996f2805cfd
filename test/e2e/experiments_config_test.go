package e2e

import (
	"strings"
	"testing"

	"tare/internal/experiment/record"
)

// TestConsistency: while configuration is replaced as fast as possible, no connection goes astray with the data plane's
// own store (snapshot), but some do with the store that removes records one by one (sized).
func TestConsistency(t *testing.T) {
	needsTime(t)
	needsRoot(t)
	leavesNothing(t)
	c, s := quickly(t, "config-consistency")
	for _, tr := range c.Trials {
		if tr.Counts["wrong_connect_share"].Of == 0 || tr.Metrics["replacements_per_second"] <= 0 {
			t.Errorf("%s: %d connections beside %g changes a second", tr.Arm, tr.Counts["wrong_connect_share"].Of,
				tr.Metrics["replacements_per_second"])
		}
	}
	at := map[string]string{}
	for _, metric := range []string{"wrong_connect_share", "failed_connect_share", "backward_connect_share"} {
		if e := s.Find(metric, "snapshot", at); e == nil || e.Value != 0 || e.N < 100_000 {
			t.Errorf("snapshot: %s is %+v", metric, e)
		}
		if e := s.Find(metric, record.Direct, at); e == nil || e.Value <= 0 || *e.Lo <= 0 {
			t.Errorf("sized: %s is %+v", metric, e)
		}
	}
	if e := s.Find("wrong_connect_share", "value", at); e == nil || e.Value != 0 {
		t.Errorf("value: %+v", e)
	}
	if e := s.Find("old_endpoint_max_seconds", record.Direct, at); e == nil || e.Value <= 0 {
		t.Errorf("old endpoints were never seen: %+v", e)
	}
	for i, want := range []string{"With snapshot every connection went to an endpoint of the old or the new set, and " +
		"none failed.", "sized (baseline) (whole per record): of ", "snapshot (whole per change): of "} {
		if i >= len(s.Answers) || !strings.Contains(s.Answers[i].Answer, want) {
			t.Errorf("answer %d lacks %q: %+v", i, want, s.Answers)
		}
	}
}

// TestPath: the programs' time for a connection is plausible with the baseline's store, and less with the two others,
// with 1 service and with 1,000.
func TestPath(t *testing.T) {
	needsTime(t)
	needsRoot(t)
	leavesNothing(t)
	_, s := quickly(t, "config-path")
	for _, services := range []string{"1", "1000"} {
		at := map[string]string{"*.services": services}
		base := s.Find("bpf_seconds_per_connection", record.Direct, at)
		if base == nil || base.Value < 20e-9 || base.Value > 100e-6 {
			t.Errorf("with %s services a connection takes %+v in sized", services, base)
			continue
		}
		for _, arm := range []string{"value", "snapshot"} {
			e := s.Find("bpf_seconds_per_connection", arm, at)
			if e == nil || e.Difference == nil || e.Difference.Value >= 0 {
				t.Errorf("%s with %s services: %+v; sized has %g", arm, services, e, base.Value)
			}
		}
	}
	if len(s.Answers) != 3 || !strings.Contains(s.Answers[1].Answer,
		"in the programs, less than with sized at every level") {
		t.Errorf("answers %+v", s.Answers)
	}
}
