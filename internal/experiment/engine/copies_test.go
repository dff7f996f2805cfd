package engine

import (
	"testing"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
	"tare/internal/experiment/record"
	"tare/internal/scale/ledger"
)

// TestIdleCopy: if one copy of a load did nothing, neither metrics at a rate nor the cost of work are known, because
// the idle copy used CPU time too. The CPU time taken by others does not bound what one copy lost, so a trial that they
// disturbed is worth repeating.
func TestIdleCopy(t *testing.T) {
	const copies = 4
	lost := map[string]bool{"latency_p50_seconds": false, "memory_hard_bytes": false, "map_bytes": false}
	cost := map[string]bool{"latency_p50_seconds": false, "cpu_seconds_per_connection": false}
	for name, c := range map[string]struct {
		idle   int
		stolen float64 // of a capacity of 4 s
		gates  int
		cause  ledger.Cause
		stands map[string]bool
	}{
		"all work": {0, 0, 0, "",
			map[string]bool{"latency_p50_seconds": true, "cpu_seconds_per_connection": true, "memory_hard_bytes": true}},
		"one is idle":               {1, 0, 1, ledger.Subject, cost},
		"one, beside a stall":       {1, 0.1, 1, ledger.Hypervisor, cost},
		"all but one are idle":      {3, 0, 3, ledger.Subject, cost},
		"all are idle":              {4, 0, 4, ledger.Subject, lost},
		"all, beside a short stall": {4, 0.1, 4, ledger.Subject, lost},
	} {
		for _, mode := range []string{load.Closed, load.Open} {
			m := goodMeasurement(t)
			m.Ledger.CPU.Capacity, m.Ledger.CPU.Steal = 4, c.stolen
			m.Ledger.CPU.Lines = nil
			r := m.Loads["client"]
			r.Mode, r.Errors = mode, nil
			m.Loads = map[string]load.Result{}
			for i := range copies {
				of := r
				if i < c.idle {
					of.Done, of.Opened = 0, 0
				}
				m.Loads[kind.CopyName("client", i+1, copies)] = of
			}
			reasons := m.Judge()
			v := record.Validity{Valid: len(reasons) == 0, Reasons: reasons}
			if len(reasons) != c.gates {
				t.Fatalf("%s, %s: %d gates were tripped, want %d: %+v", name, mode, len(reasons), c.gates, reasons)
			}
			for _, r := range reasons {
				if r.Gate != "idle" || r.Cause != c.cause {
					t.Errorf("%s, %s: %s, by %s, want %s: %s", name, mode, r.Gate, r.Cause, c.cause, r.Message)
				}
			}
			for metric, want := range c.stands {
				if got := v.Stands(metric); got != want {
					t.Errorf("%s, %s: %s stands: %v, want %v (%+v)", name, mode, metric, got, want, reasons)
				}
			}
		}
	}
}
