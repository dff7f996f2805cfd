package analysis_test

import (
	"math"
	"runtime"
	"runtime/metrics"
	"strings"
	"testing"
	"time"

	"tare/internal/experiment/load"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
	"tare/internal/results/analysis"
	"tare/test/analysistest"
)

// TestCurves: a curve and an estimate of the same quantile have the same value, and are resolved alike.
func TestCurves(t *testing.T) {
	t.Parallel()
	truth := plain
	truth.Rates = []string{"500", "4000"}
	run, trials := analysistest.Quickstart(truth)
	trials = append(trials, trials[0]) // a second attempt, which does not count
	trials[len(trials)-1].Attempt = 1
	s := summarize(t, run, trials)
	curves := analysis.Curves(run, trials)
	if len(curves) != 6 || curves[0].Arm != record.Direct || curves[1].Arm != record.AA ||
		curves[0].Factors["rate"] != "500" || curves[5].Factors["rate"] != "4000" {
		t.Fatalf("%d curves: %+v", len(curves), curves)
	}
	compared := 0
	for _, c := range curves {
		for _, p := range c.Points {
			metric := map[float64]string{0.5: "latency_p50_seconds", 0.9: "latency_p90_seconds",
				0.99: "latency_p99_seconds"}[p.Q]
			if metric == "" {
				continue
			}
			e := s.Find(metric, c.Arm, c.Factors)
			if e == nil || e.Value != p.Value || *e.Lo != *p.Lo || *e.Hi != *p.Hi {
				t.Errorf("%s of %s at %v: %+v, and the estimate %+v", metric, c.Arm, c.Factors, p, e)
				continue
			}
			if (e.Difference == nil) != (p.Difference == nil) {
				t.Errorf("%s of %s at %v: the difference %+v, and of the estimate %+v", metric, c.Arm, c.Factors, p.Difference,
					e.Difference)
			} else if d := p.Difference; d != nil && (math.Abs(d.Value-e.Difference.Value) > 1e-12 ||
				d.Resolved != e.Difference.Resolved) {
				t.Errorf("%s of %s at %v: the difference %+v, and of the estimate %+v", metric, c.Arm, c.Factors, d, e.Difference)
			}
			if v, _ := s.Visible(metric, c.Factors); p.Visible == nil || math.Abs(*p.Visible-v) > 1e-12 {
				t.Errorf("%s at %v: visible %v, and for the summary %g", metric, c.Factors, p.Visible, v)
			}
			compared++
		}
	}
	if compared != 18 {
		t.Errorf("%d points were compared", compared)
	}
	if last := curves[0].Points[len(curves[0].Points)-1].Q; last >= 0.999 {
		t.Errorf("1000 requests in a trial, and a quantile of %g", last)
	}
}

// TestCurvesAreJudgedAsEstimates: the generator's lag and lost blocks leave a point of a curve unresolved, as they do
// the estimate of the same quantile, and with the same reason.
func TestCurvesAreJudgedAsEstimates(t *testing.T) {
	t.Parallel()
	lagging := plain
	lagging.ExtraLag = 20e-6
	many := plain
	many.Blocks = 40 // enough blocks for narrow intervals even if some are lost
	lost := func(tr record.Trial) bool { return tr.Arm == "candidate" && tr.Block < 9 }
	for _, c := range []struct {
		name, begins string
		truth        analysistest.Truth
		lost         func(record.Trial) bool
	}{
		{"lag", analysis.LagReason, lagging, nil},
		{"lost blocks", analysis.LossReason, many, lost},
	} {
		t.Run(c.name, func(t *testing.T) {
			run, trials := analysistest.Quickstart(c.truth)
			if c.lost != nil {
				trials = spoil(trials, c.lost, late(0.2))
			}
			s := summarize(t, run, trials)
			e := s.Find("latency_p50_seconds", "candidate", nil)
			if e == nil || !strings.HasPrefix(e.Difference.Unresolved, c.begins) {
				t.Fatalf("the estimate is %+v, and its difference %+v", e, e.Difference)
			}
			compared := 0
			for _, curve := range analysis.Curves(run, trials) {
				for _, p := range curve.Points {
					if curve.Arm != "candidate" || p.Q != 0.5 {
						continue
					}
					compared++
					if d := p.Difference; d.Resolved || d.Unresolved != e.Difference.Unresolved || d.Lost != e.Difference.Lost {
						t.Errorf("the curve has %+v\nthe estimate %+v", d, e.Difference)
					}
				}
			}
			if compared != 1 {
				t.Errorf("%d points were compared", compared)
			}
		})
	}
}

// TestEventSums: counts are added up exactly over valid trials, separately for each node; of the attempts at a trial,
// only the valid one counts.
func TestEventSums(t *testing.T) {
	clock := int64(-4e4)
	run := record.Run{Metrics: measured.Definitions()}
	var trials []record.Trial
	for block := range 3 {
		for _, at := range []string{"storm", "100"} {
			m := map[string]float64{"events_generated": 1000, "events_lost": float64(block),
				"sched_delay_max_seconds": 0.1 * float64(block)}
			if block == 0 {
				m["events_delivered"] = 1
			}
			own := &record.Trial{Metrics: map[string]float64{"events_generated": 500,
				"cpu_seconds_per_kiloevent": float64(1 + block)}}
			trials = append(trials, record.Trial{
				PlannedTrial: record.PlannedTrial{Block: block, Arm: "tracer", Factors: map[string]string{"rate": at}},
				Metrics:      m, Validity: record.Validity{Valid: block < 2},
				Nodes: []record.NodeTrial{{Name: "node-10", Failed: "it died"}, {Name: "node-2", Trial: own, ClockError: &clock}},
			})
		}
	}
	again := trials[0]
	again.Attempt, trials[0].Validity.Valid = 1, false
	trials = append(trials, again)
	sums := analysis.EventSums(run, trials)
	if len(sums) != 2 || sums[0].Factors["rate"] != "100" || sums[0].Trials != 2 || sums[0].Some["events_lost"] != 1 ||
		sums[0].Total["events_generated"] != 2000 || sums[0].Known["events_generated"] != 2 ||
		sums[0].Known["events_delivered"] != 1 {
		t.Errorf("%+v", sums)
	}
	if _, late := sums[0].Total["events_late"]; late {
		t.Error("what no trial counted has a sum")
	}
	nodes := analysis.NodeSums(run, trials)
	if len(nodes) != 4 || nodes[0].Node != "node-2" || nodes[1].Node != "node-10" || nodes[0].Trials != 2 ||
		nodes[1].Failed != 3 || nodes[2].Trials != 2 || nodes[3].Failed != 3 ||
		nodes[0].Total["events_generated"] != 1000 || *nodes[0].Cost != 1.5 || *nodes[0].Clock != 4e-5 ||
		nodes[1].Cost != nil {
		t.Errorf("%+v", nodes)
	}
	// If the arm's cost per event is unknown, as in a trial of an earlier version that ended with a queue, the costs of
	// its nodes are unknown, too.
	for i := range trials {
		if trials[i].Factors["rate"] == "100" {
			trials[i].Loads = map[string]load.Result{"execs": {Mode: load.Open, Intended: 500, Sent: 471, Done: 471}}
		}
	}
	nodes = analysis.NodeSums(run, trials)
	if nodes[0].Cost != nil || nodes[0].Total["events_generated"] != 1000 || nodes[2].Cost == nil {
		t.Errorf("with a queue: %+v", nodes)
	}
	if v, ok := analysis.Largest(trials, "sched_delay_max_seconds", "tracer", map[string]string{"rate": "storm"}); !ok ||
		v != 0.1 {
		t.Errorf("the longest wait of valid trials is %g, %t", v, ok)
	}
	if _, ok := analysis.Largest(trials, "sched_delay_max_seconds", "tracer", nil); ok {
		t.Error("there is a longest wait at a level that is not there")
	}
}

// TestCurvesKeepNoHistograms: only the quantiles of a trial are kept. With its histograms, a record of ten thousand
// trials would take gigabytes.
func TestCurvesKeepNoHistograms(t *testing.T) {
	run, few := analysistest.Quickstart(plain)
	var trials []record.Trial
	for len(trials) < 350 {
		for _, x := range few {
			x.Index, x.Block = len(trials), len(trials)/len(few)*len(few)+x.Block
			trials = append(trials, x)
		}
	}
	// These are the bytes in use at the last garbage collection. Bytes allocated since then do not count, because this
	// test may be delayed in between.
	inUse := func() uint64 {
		runtime.GC()
		live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		metrics.Read(live)
		return live[0].Value.Uint64()
	}
	before, most := inUse(), uint64(0)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			most = max(most, inUse())
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond): // a collection takes a CPU from the code under test
			}
		}
	}()
	curves := analysis.Curves(run, trials)
	close(stop)
	<-done
	if len(curves) == 0 {
		t.Fatal("no curves")
	}
	if held := int64(most) - int64(before); held > 32<<20 { // histograms would be 80 MiB
		t.Errorf("%d trials: %d MiB were held", len(trials), held>>20)
	}
}
