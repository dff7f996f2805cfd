package e2e

import (
	"regexp"
	"testing"

	"tare/internal/experiment/record"
)

// TestPush: the steps of a change, from the control plane to connections, come in the only order that is possible. In
// the store "snapshot", which promises it, connections see a change whole, and see it sooner than in "sized".
func TestPush(t *testing.T) {
	needsTime(t)
	needsRoot(t)
	leavesNothing(t)
	_, s := quickly(t, "config-push")
	at := map[string]string{"mesh.services": "1000", "push.what": "one"}
	value := func(metric, arm string) float64 {
		e := s.Find(metric, arm, at)
		if e == nil {
			t.Fatalf("%s has no %s", arm, metric)
		}
		return e.Value
	}
	for _, arm := range []string{record.Direct, "snapshot"} {
		steps := []string{"push_received_p50_seconds", "push_decoded_p50_seconds", "push_visible_p50_seconds",
			"push_acked_p50_seconds"}
		for i := range steps[1:] {
			if a, b := value(steps[i], arm), value(steps[i+1], arm); a <= 0 || a > b {
				t.Errorf("%s: %s %g s, %s %g s", arm, steps[i], a, steps[i+1], b)
			}
		}
		if sent, usable, whole := value("push_sent_p50_seconds", arm), value("push_usable_p50_seconds",
			arm), value("push_p50_seconds", arm); whole < max(sent, usable) {
			t.Errorf("%s: sent after %g s, usable %g s later, both %g s", arm, sent, usable, whole)
		}
		if usable, received := value("push_usable_p50_seconds", arm), value("push_received_p50_seconds",
			arm); usable < received {
			t.Errorf("%s: received after %g s, usable after %g s", arm, received, usable)
		}
	}
	if wrong := value("push_wrong_ratio", "snapshot"); wrong != 0 { // in sized, a connection can find half of a record
		t.Errorf("snapshot: %g of the connections got what is no endpoint of their service", wrong)
	}
	if refused := value("push_refused_ratio", "snapshot"); refused != 0 {
		t.Errorf("snapshot: %g of the connections were refused", refused)
	}
	// Records of the old endpoints are removed before those of the new ones are added.
	if refused := value("push_refused_ratio", record.Direct); refused == 0 {
		t.Error("sized: no connection was refused while a service's records were replaced")
	}
	if e := s.Find("push_visible_p50_seconds", "snapshot", at); !e.Difference.Resolved || e.Difference.Value >= 0 {
		t.Errorf("snapshot has changes in its maps after %g s: %+v from sized", e.Value, e.Difference)
	}
	for i, arm := range []string{`sized \(baseline\)`, "snapshot"} {
		want := regexp.MustCompile(`^A change of one service in a mesh of 1000 services, ` + arm +
			`: a new connection shows it [0-9.]+ .s .* after the control plane sent it, .* It is received after `)
		if i >= len(s.Answers) || !want.MatchString(s.Answers[i].Answer) {
			t.Errorf("answers: %+v", s.Answers)
		}
	}
}
