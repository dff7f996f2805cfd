package measured

import (
	"testing"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
)

// TestPoolByAnswers: in the pooled cost of a request, a node has the weight of its answers in the window.
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

// execs is a load that generates events.
type execs struct{}

func (execs) About() kind.About { return kind.About{Name: "execs"} }

func (execs) Events(*load.Result) (made, failed int64) { return 0, 0 }

// TestPoolByExpectedEvents: a tracer's cost per expected event is pooled by the numbers of expected events, not of
// generated ones.
func TestPoolByExpectedEvents(t *testing.T) {
	m := &Metric{Definition: metric.Definition{Name: "cost", Pool: metric.PerExpected}}
	over := func(costs []float64, expected ...*int64) (float64, bool) {
		p := &Pool{Setup: &kind.Setup{Loads: map[string]*kind.Part{"execs": {Kind: execs{}}}}}
		for i, cost := range costs {
			p.good = append(p.good, &record.Trial{Metrics: map[string]float64{"cost": cost},
				Loads:  map[string]load.Result{"execs": {Done: 1000, Finished: new(int64(1000))}},
				Events: &record.Events{Generated: 1000, KernelCount: &record.KernelCount{Counted: 1000}, Expected: expected[i]}})
		}
		return p.Over(m)
	}
	// one second each, for 1,000 and for 10,000 events
	if v, ok := over([]float64{1, 0.1}, new(int64(1000)), new(int64(10_000))); !ok || v != 2.0/11 {
		t.Errorf("%g (%v), want %g", v, ok, 2.0/11)
	}
	if v, ok := over([]float64{0, 0}, nil, nil); !ok || v != 0 {
		t.Errorf("%g (%v) without a tracer, want 0", v, ok)
	}
}
