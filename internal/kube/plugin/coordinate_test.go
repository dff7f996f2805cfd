package plugin

import (
	"os"
	"path/filepath"
	"testing"

	"tare/internal/experiment/record"
	"tare/internal/kube/coordinator"
	"tare/internal/kube/pods"
	"tare/internal/lib/fault"
	"tare/internal/lib/self"
)

// TestStartedAgain: a coordinator that is started again during the run cannot go on with it, so the run is partial. One
// that is started again while the results wait to be fetched reports how the run ended.
func TestStartedAgain(t *testing.T) {
	o := &pods.Order{Version: self.Version + " " + self.Build(), Dir: t.TempDir()}
	if err := os.WriteFile(filepath.Join(o.Dir, record.TrialsFile), []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	again := func() error { return runOrder(t.Context(), o, coordinator.NewServer(o.Dir, func() {})) }
	if err := again(); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("during the run: %v", err)
	}
	for _, end := range []error{nil, fault.New(fault.Machine, "", "a hint", "no agent answers")} {
		coordinator.NewServer(o.Dir, func() {}).End(end)
		if err := again(); (err == nil) != (end == nil) || fault.CodeOf(err) != fault.CodeOf(end) {
			t.Errorf("after its end: %v, want %v", err, end)
		}
	}
	if err := os.WriteFile(filepath.Join(o.Dir, "end.json"), []byte(`{"inter`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := again(); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("after it ended while it wrote how: %v", err)
	}
}
