package measured

import (
	"testing"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
	"tare/internal/experiment/record"
)

// TestPoolByAnswers: a node weighs as much in the cost of a request as it had requests answered in the window.
func TestPoolByAnswers(t *testing.T) {
	const name = "cpu_seconds_per_request"
	node := func(cost float64, r load.Result) record.NodeTrial {
		return record.NodeTrial{Trial: &record.Trial{Loads: map[string]load.Result{"client": r},
			Metrics: map[string]float64{name: cost}}}
	}
	m, _ := Find(name)
	slow := load.Result{Done: 20_000, Late: 15_000, Finished: new(int64(5000))}
	over := func(r load.Result) (float64, bool) {
		p := &Pool{Setup: &kind.Setup{}, Trial: &record.Trial{Nodes: []record.NodeTrial{
			node(1e-3, load.Result{Done: 15_000, Finished: new(int64(15_000))}), node(5e-3, r),
		}}}
		p.good = []*record.Trial{p.Trial.Nodes[0].Trial, p.Trial.Nodes[1].Trial}
		return p.Over(&m)
	}
	if v, ok := over(slow); !ok || v != 2e-3 {
		t.Errorf("%g (%v), want 2 ms", v, ok)
	}
	slow.Finished = nil
	if v, ok := over(slow); ok {
		t.Errorf("%g with a node whose answers in the window are unknown", v)
	}
}
