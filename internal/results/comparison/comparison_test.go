package comparison_test

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
	"tare/internal/results/analysis"
	"tare/internal/results/comparison"
	"tare/internal/scale/ledger"
	"tare/test/analysistest"
	"tare/test/long"
)

const p50 = "latency_p50_seconds"

// made returns one run for each of the latencies, in seconds, that the arm adds. The runs are on successive days.
func made(t *testing.T, from uint64, latencies ...float64) (sources []comparison.Source) {
	t.Helper()
	for i, latency := range latencies {
		run, trials := analysistest.Quickstart(analysistest.Truth{
			Blocks: 8, BPF: 3.1e-6, Latency: latency, Noise: 0.5e-6, MapBytes: 1.2e6, Day: from + uint64(i),
		})
		s, err := analysis.Summarize(run, trials)
		if err != nil {
			t.Fatal(err)
		}
		sources = append(sources, comparison.Source{Dir: run.ID, Run: run, Summary: s})
	}
	return sources
}

func changeOf(t *testing.T, c comparison.Comparison, metric string) comparison.Change {
	t.Helper()
	i := slices.IndexFunc(c.Changes, func(x comparison.Change) bool { return x.Metric == metric })
	if i < 0 {
		t.Fatalf("no change of %s", metric)
	}
	return c.Changes[i]
}

// TestCompare: each metric is on the scale that its baseline allows, and a planted change of latency is found whether
// the variance between runs is known from repeats or from the history.
func TestCompare(t *testing.T) {
	const slow, fast = 40e-6, 9e-6
	history := made(t, 20, slices.Repeat([]float64{fast}, 12)...)
	for name, c := range map[string]struct {
		old, new, history []comparison.Source
		between           comparison.Between
	}{
		"repeats": {made(t, 0, fast, fast, fast), made(t, 3, slow, slow, slow, slow, slow, slow), nil, comparison.Repeats},
		"history": {made(t, 0, fast), made(t, 1, slow), history, comparison.History},
	} {
		got := comparison.Compare(c.old, c.new, c.history)
		p50 := changeOf(t, got, "latency_p50_seconds")
		if p50.Scale != comparison.Ratio || p50.Between != c.between || !p50.Resolved || p50.Value < 0.15 ||
			p50.Value > 0.5 ||
			!(p50.New > p50.Old) {
			t.Errorf("%s: %+v", name, p50)
		}
		if cpu := changeOf(t, got, "cpu_seconds_per_connection"); cpu.Resolved || cpu.Lo == nil || *cpu.Lo > 0 ||
			*cpu.Hi < 0 {
			t.Errorf("%s: CPU time is the same: %+v", name, cpu)
		}
		bpf := changeOf(t, got, "bpf_seconds_per_connection")
		if bpf.Scale != comparison.Difference || bpf.Lo == nil || bpf.Resolved || bpf.Why == "" {
			t.Errorf("%s: %+v", name, bpf)
		}
		if got.Compared == 0 || got.Resolved == 0 || len(got.Old) != len(c.old) || len(got.History) != len(c.history) {
			t.Errorf("%s: %d compared, %d resolved, %d old", name, got.Compared, got.Resolved, len(got.Old))
		}
		if _, err := json.Marshal(got); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestLostTrials: a difference that each run leaves unresolved because of lost trials is not resolved by a comparison
// of the runs either. The comparison repeats the warnings of the summaries.
func TestLostTrials(t *testing.T) {
	runs := func(from uint64, latency float64, lost int) (sources []comparison.Source) {
		for day := range uint64(3) {
			run, trials := analysistest.Quickstart(analysistest.Truth{
				Blocks: 12, BPF: 3.1e-6, Latency: latency, Noise: 0.5e-6, Day: from + day,
			})
			for i := range trials {
				if trials[i].Arm == "candidate" && trials[i].Block < lost {
					trials[i].Validity = record.Validity{Reasons: []record.Reason{{
						Gate: "stall", Message: "it stalled", Voids: []string{"latency_p50_seconds"},
					}}}
				}
			}
			s, err := analysis.Summarize(run, trials)
			if err != nil {
				t.Fatal(err)
			}
			s.Warnings = append(s.Warnings, "something is odd")
			sources = append(sources, comparison.Source{Dir: run.ID, Run: run, Summary: s})
		}
		return sources
	}
	const less = 9e-6
	for _, c := range []struct {
		latency  float64 // of the new runs
		lost     int
		resolved bool
	}{{40e-6, 0, true}, {40e-6, 3, false}, {0, 3, false}} {
		got := comparison.Compare(runs(0, less, 0), runs(3, c.latency, c.lost), nil)
		p50 := changeOf(t, got, "latency_p50_seconds")
		if p50.Resolved != c.resolved || p50.Lo == nil || *p50.Lo <= 0 && *p50.Hi >= 0 ||
			!c.resolved && !strings.Contains(p50.Why, ": "+analysis.LossReason+": the 3 blocks without a value could") {
			t.Errorf("%d lost: %+v", c.lost, p50)
		}
		all := strings.Join(got.Warnings, "\n")
		if strings.Count(all, ": something is odd") != 6 ||
			strings.Contains(all, "; so not resolved: latency p50") == c.resolved {
			t.Errorf("%d lost: %q", c.lost, got.Warnings)
		}
	}
}

// TestMissing: an effect that the new runs lost entirely is named with the reason, and a change is not resolved if only
// some repeats have a value.
func TestMissing(t *testing.T) {
	run := func(day uint64, latency float64, lost int) comparison.Source {
		run, trials := analysistest.Quickstart(analysistest.Truth{
			Blocks: 12, BPF: 3.1e-6, Latency: latency, Noise: 0.5e-6, Day: day,
		})
		for i := range trials {
			if trials[i].Arm == "candidate" && trials[i].Block < lost {
				trials[i].Validity = record.Validity{Reasons: []record.Reason{{
					Gate: "rate", Cause: ledger.Subject, Message: "it did not keep up", Voids: []string{p50},
				}}}
			}
		}
		s, err := analysis.Summarize(run, trials)
		if err != nil {
			t.Fatal(err)
		}
		return comparison.Source{Dir: run.ID, Run: run, Summary: s}
	}
	old := []comparison.Source{run(0, 9e-6, 0), run(1, 9e-6, 0), run(2, 9e-6, 0)}
	for name, c := range map[string]struct {
		new      []comparison.Source
		without  int // new runs without a value
		compared bool
		why      string
	}{
		"all are there": {[]comparison.Source{run(3, 40e-6, 0), run(4, 40e-6, 0), run(5, 40e-6, 0)}, 0, true, ""},
		"all are lost": {[]comparison.Source{run(3, 40e-6, 12), run(4, 40e-6, 12), run(5, 40e-6, 12)}, 3, false,
			"12 of 12 trials were lost: the rate was not reached"},
		"all are withheld": {[]comparison.Source{run(3, 40e-6, 8), run(4, 40e-6, 8), run(5, 40e-6, 8)}, 3, false,
			"withheld: 8 of 12 trials were lost: the rate was not reached"},
		"one is withheld": {[]comparison.Source{run(3, 40e-6, 0), run(4, 40e-6, 8), run(5, 40e-6, 0)}, 1, true,
			"withheld: 8 of 12 trials were lost: the rate was not reached"},
	} {
		got := comparison.Compare(old, c.new, nil)
		i := slices.IndexFunc(got.Changes, func(x comparison.Change) bool { return x.Metric == p50 })
		if (i >= 0) != c.compared || i >= 0 && got.Changes[i].Resolved != (c.without == 0) {
			t.Errorf("%s: the changes are %+v", name, got.Changes)
		}
		m := lists.Find(got.Missing, func(m *comparison.Missing) bool { return m.Metric == p50 })
		if c.without == 0 {
			if m != nil {
				t.Errorf("%s: missing is %+v", name, m)
			}
			continue
		}
		if m == nil || !m.Headline || m.Arm != "candidate" || m.Compared != c.compared || len(m.In) != c.without ||
			!strings.HasPrefix(m.In[0].Why, c.why) {
			t.Errorf("%s: missing is %+v", name, m)
		}
	}
}

// later changes runs so that they measured p50 by the next rule.
func later(runs []comparison.Source) {
	for i := range runs {
		defined := slices.Clone(runs[i].Run.Metrics)
		lists.Find(defined, func(d *metric.Definition) bool { return d.Name == p50 }).Rule++
		runs[i].Run.Metrics = defined
	}
}

// lost returns a run whose candidate lost p50 in all trials.
func lost(run comparison.Source) comparison.Source {
	summary := *run.Summary
	summary.Estimates = slices.DeleteFunc(slices.Clone(summary.Estimates), func(e analysis.Estimate) bool {
		return e.Metric == p50 && e.Arm == "candidate"
	})
	summary.Missing = append(slices.Clone(summary.Missing), analysis.Missing{Metric: p50, Arm: "candidate",
		Factors: run.Summary.Estimates[0].Factors, Trials: 8, Lost: 8, Gate: "rate", Message: "it did not keep up"})
	run.Summary = &summary
	return run
}

// TestRules: values by an earlier rule are not compared with others, and the runs that have them are named.
func TestRules(t *testing.T) {
	old, new := made(t, 0, 9e-6, 9e-6, 9e-6), made(t, 3, 40e-6, 40e-6, 40e-6)
	changes := func(c comparison.Comparison) int {
		n := 0
		for _, x := range c.Changes {
			if x.Metric == p50 {
				n++
			}
		}
		return n
	}
	later(new)
	got := comparison.Compare(old, new, nil)
	m := lists.Find(got.Missing, func(m *comparison.Missing) bool { return m.Metric == p50 })
	if changes(got) != 0 || m == nil || m.Compared || len(m.In) != 3 || !strings.Contains(m.In[0].Why, "another way") {
		t.Errorf("changes %+v\nmissing %+v", got.Changes, m)
	}
	changeOf(t, got, "cpu_seconds_per_connection")
	for _, l := range comparison.Over(slices.Concat(old, new), 1).Lines {
		if n := len(l.Points); l.Metric == p50 && n != 3 || l.Metric != p50 && n != 6 {
			t.Errorf("%s has %d points", l.Metric, len(l.Points))
		}
	}
	// A run that measured by an earlier rule, or whose version lacks the metric, makes one repeat fewer, and the change is
	// still resolved: the reason has nothing to do with the values of the run.
	later(old[1:])
	without, assumed := slices.Clone(old), slices.Clone(old)
	without[0].Run.Metrics = slices.DeleteFunc(slices.Clone(old[0].Run.Metrics),
		func(d metric.Definition) bool { return d.Name == p50 })
	summary := *old[0].Summary
	without[0].Summary = &summary
	summary.Estimates = slices.DeleteFunc(slices.Clone(old[0].Summary.Estimates),
		func(e analysis.Estimate) bool { return e.Metric == p50 })
	assumed[0].Summary = &summary
	assumed[0].Run.Metrics = metric.Complete(nil, old[0].Run.Metrics)
	withheld := slices.Clone(old)
	withheld[0] = lost(old[0])
	for name, c := range map[string]struct {
		old []comparison.Source
		why string
	}{
		"an earlier rule":              {old, "it in another way"},
		"an earlier rule, and lost":    {withheld, "it in another way"},
		"without the metric":           {without, "did not measure it"},
		"without recorded definitions": {assumed, "did not measure it"},
	} {
		got := comparison.Compare(c.old, new, nil)
		change := changeOf(t, got, p50)
		m := lists.Find(got.Missing, func(m *comparison.Missing) bool { return m.Metric == p50 })
		if m == nil || !m.Compared || len(m.In) != 1 || !strings.Contains(m.In[0].Why, c.why) || !change.Resolved {
			t.Errorf("%s: %+v\nmissing %+v", name, change, m)
		}
	}
	later(old[:1])
	if got := comparison.Compare(old, new, made(t, 6, 9e-6, 9e-6, 9e-6)); changes(got) != 1 || len(got.Missing) > 0 {
		t.Errorf("by one rule: %d changes, missing %+v", changes(got), got.Missing)
	}
}

// TestRulesOfHistory: a history names the runs that it leaves out because they measured by an earlier rule. A later run
// that lost the metric does not outdate them. A comparison warns if its history measured by another rule.
func TestRulesOfHistory(t *testing.T) {
	runs := made(t, 0, 9e-6, 9e-6, 9e-6, 9e-6)
	later(runs[3:])
	for name, c := range map[string]struct {
		last    comparison.Source
		points  int
		leftOut []int
	}{
		"another rule":           {runs[3], 1, []int{0, 1, 2}},
		"another rule, but lost": {lost(runs[3]), 3, nil},
	} {
		for _, l := range comparison.Over(append(slices.Clone(runs[:3]), c.last), 1).Lines {
			if l.Metric == p50 && (len(l.Points) != c.points || !slices.Equal(l.LeftOut, c.leftOut)) {
				t.Errorf("%s: %d points, left out %d", name, len(l.Points), l.LeftOut)
			}
			if l.Metric != p50 && (len(l.Points) != 4 || l.LeftOut != nil) {
				t.Errorf("%s: %s has %d points, left out %d", name, l.Metric, len(l.Points), l.LeftOut)
			}
		}
	}
	// The runs that have the metric measured it by the same rule. The run that lost it makes them a selection, so the
	// change is not resolved.
	old, new := made(t, 4, 9e-6, 9e-6, 9e-6), made(t, 7, 40e-6, 40e-6, 40e-6)
	later(new[2:])
	new[2] = lost(new[2])
	if change := changeOf(t, comparison.Compare(old, new, nil), p50); change.Lo == nil || change.Resolved {
		t.Errorf("%+v", change)
	}
	// The history is by another rule.
	old, new = old[:1], new[:1]
	later(old)
	later(new)
	got := comparison.Compare(old, new, made(t, 10, 9e-6, 9e-6, 9e-6, 9e-6))
	if change := changeOf(t, got, p50); change.Between != comparison.Unknown ||
		changeOf(t, got, "cpu_seconds_per_connection").Between != comparison.History {
		t.Errorf("%+v", got.Changes)
	}
	const want = "the variance between runs leaves out 4 of 4 runs of the history, which measured these in another way: " +
		"latency p50 of candidate"
	if !slices.Contains(got.Warnings, want) {
		t.Errorf("no %q in %q", want, got.Warnings)
	}
}

// TestLevels: changes are in the order of their levels, as numbers.
func TestLevels(t *testing.T) {
	run := func(day uint64) []comparison.Source {
		run, trials := analysistest.Quickstart(analysistest.Truth{
			Blocks: 6, Rates: []string{"1000", "900", "90"}, BPF: 3.1e-6, Latency: 9e-6, Noise: 0.5e-6, Day: day,
		})
		s, err := analysis.Summarize(run, trials)
		if err != nil {
			t.Fatal(err)
		}
		return []comparison.Source{{Dir: run.ID, Run: run, Summary: s}}
	}
	var rates []string
	for _, x := range comparison.Compare(run(0), run(1), nil).Changes {
		if x.Metric == "cpu_seconds_per_connection" {
			rates = append(rates, x.Factors["rate"])
		}
	}
	if want := []string{"90", "900", "1000"}; !slices.Equal(rates, want) {
		t.Errorf("the rates are %q, want %q", rates, want)
	}
}

// TestNothingKnown: one run against one, without a history, has no verdict, however much it changed.
func TestNothingKnown(t *testing.T) {
	got := comparison.Compare(made(t, 0, 9e-6), made(t, 1, 40e-6), nil)
	for _, x := range got.Changes {
		if x.Lo != nil || x.Resolved || x.Between != comparison.Unknown || x.Why == "" {
			t.Errorf("%s: %+v", x.Metric, x)
		}
	}
	if len(got.Changes) == 0 || got.Compared != 0 {
		t.Errorf("%d changes, %d compared", len(got.Changes), got.Compared)
	}
}

// TestSameTwice: comparing repeats of the same thing resolves a change in at most one of twenty comparisons, even if
// the thing varies from day to day by more than the noise within a run.
func TestSameTwice(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	several := func(n int, varies float64) (all []float64) {
		for range n {
			all = append(all, 20e-6+varies*r.NormFloat64())
		}
		return all
	}
	for _, c := range long.Some(1, []struct {
		runs   int
		varies float64
	}{{2, 0}, {3, 4e-6}}) {
		compared, resolved, day := 0, 0, uint64(0)
		repeats, most := long.Repeat(10, 20), long.Repeat(3, 5)
		for range repeats {
			old, new := made(t, day, several(c.runs, c.varies)...), made(t, day+uint64(c.runs), several(c.runs, c.varies)...)
			day += 2 * uint64(c.runs)
			for _, x := range comparison.Compare(old, new, nil).Changes {
				if x.Metric == "latency_p50_seconds" || x.Metric == "cpu_seconds_per_connection" { // others depend on these
					if x.Lo != nil {
						compared++
					}
					if x.Resolved {
						resolved++
					}
				}
			}
		}
		// More than 5 of 40 have a chance of 1.4 % at 5 % each, and more than 3 of 20 one of 1.6 %.
		if compared != 2*repeats || resolved > most {
			t.Errorf("%d runs that vary by %g: %d of %d comparisons are resolved", c.runs, c.varies, resolved, compared)
		}
	}
}

// TestCompareMany: a run that is named twice counts once, the history is sorted, and impossible values spoil neither
// the comparison nor its JSON.
func TestCompareMany(t *testing.T) {
	old, new := made(t, 0, 9e-6, 9e-6), made(t, 2, 40e-6)
	once := comparison.Compare(old, new, nil)
	twice := comparison.Compare(slices.Concat(old, old), slices.Concat(new, new), nil)
	if !reflect.DeepEqual(once, twice) {
		t.Errorf("named twice:\n%+v\nonce:\n%+v", twice, once)
	}
	history := made(t, 10, 9e-6, 12e-6, 9e-6, 12e-6, 9e-6, 12e-6)
	inOrder := comparison.Compare(old[:1], new, history)
	shuffled := slices.Clone(history)
	slices.SortFunc(shuffled, func(a, b comparison.Source) int { return strings.Compare(b.Dir, a.Dir) })
	if got := comparison.Compare(old[:1], new, append(shuffled, history[2])); !reflect.DeepEqual(got, inOrder) {
		t.Errorf("out of order:\n%+v\nin order:\n%+v", got, inOrder)
	}
	// A run of the history whose baseline lost the metric does not change how the others are compared.
	for i := range history[0].Summary.Estimates {
		history[0].Summary.Estimates[i].Difference, history[0].Summary.Estimates[i].Ratio = nil, nil
	}
	if p50 := changeOf(t, comparison.Compare(old[:1], new, history),
		"latency_p50_seconds"); p50.Scale != comparison.Ratio {
		t.Errorf("with a lost baseline: %+v", p50)
	}
	hostile := made(t, 0, 9e-6)
	for i := range hostile[0].Summary.Estimates {
		if e := &hostile[0].Summary.Estimates[i]; e.Ratio != nil && e.Ratio.Lo != nil {
			e.Ratio.Value, *e.Ratio.Lo, *e.Ratio.Hi = 1e-200, 1e-201, 1e-199
		}
	}
	huge := made(t, 1, 9e-6)
	for i := range huge[0].Summary.Estimates {
		if e := &huge[0].Summary.Estimates[i]; e.Ratio != nil && e.Ratio.Lo != nil {
			e.Ratio.Value, *e.Ratio.Lo, *e.Ratio.Hi = 1e200, 1e199, 1e201
		}
	}
	if _, err := json.Marshal(comparison.Compare(hostile, huge, nil)); err != nil {
		t.Error(err)
	}
}

func TestMixed(t *testing.T) {
	runs := []record.Run{made(t, 0, 9e-6)[0].Run, made(t, 1, 9e-6)[0].Run}
	if what := comparison.Mixed(runs); what != "" {
		t.Errorf("repeats differ in %s", what)
	}
	runs[1].Environment.Subjects = map[string]string{"candidate": "0.2.0"}
	if what := comparison.Mixed(runs); what == "" {
		t.Error("two versions are taken for repeats")
	}
}

func TestApart(t *testing.T) {
	base := made(t, 0, 9e-6)[0].Run
	base.Spec = json.RawMessage(`{"name":"a","duration":"5s","arms":{"x":1},"blocks":6}`)
	for want, change := range map[string]func(*record.Run){
		"":                    func(r *record.Run) { r.ID, r.Seed, r.Blocks = "other", 1, 99 },
		"the experiment":      func(r *record.Run) { r.Experiment = "other" },
		"the baseline":        func(r *record.Run) { r.Baseline = "sized" },
		"the kernel":          func(r *record.Run) { r.Environment.Kernel = "6.1" },
		"the machine":         func(r *record.Run) { r.Environment.Hostname = "node-2" },
		"the CPU":             func(r *record.Run) { r.Environment.CPUs = 4 },
		"its memory":          func(r *record.Run) { r.Environment.MemoryBytes *= 2 },
		"the nodes":           func(r *record.Run) { r.Nodes = &record.Nodes{Count: 2} },
		"the spec: not known": func(r *record.Run) { r.Spec = nil },
		" ": func(r *record.Run) {
			r.Metrics = slices.Clone(r.Metrics)
			i := slices.IndexFunc(r.Metrics, func(d metric.Definition) bool { return d.Name == "cpu_seconds" })
			r.Metrics[i].Pool, r.Metrics[i].Rule = "mean", 1
		},
		"the definitions of cpu_seconds": func(r *record.Run) {
			r.Metrics = slices.Clone(r.Metrics)
			i := slices.IndexFunc(r.Metrics, func(d metric.Definition) bool { return d.Name == "cpu_seconds" })
			r.Metrics[i].Pool = "mean"
		},
		"the spec: duration": func(r *record.Run) {
			r.Spec = json.RawMessage(`{"name":"b","duration":"9s","arms":{"x":2},"blocks":7}`)
		},
		"the spec: loads": func(r *record.Run) {
			r.Spec = json.RawMessage(`{"name":"a","duration":"5s","arms":{"x":1},"blocks":6,"loads":{}}`)
		},
	} {
		other := base
		change(&other)
		got := strings.Join(comparison.Apart(base, other), "; ")
		if want = strings.TrimSpace(want); want == "" && got != "" || !strings.HasPrefix(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestClusters: runs in clusters are comparable if the nodes are the same machines, and only if that is known.
func TestClusters(t *testing.T) {
	of := func(nodes string) record.Run {
		r := made(t, 0, 9e-6)[0].Run
		r.Environment = record.Environment{Hostname: "cluster of 2 nodes", Kernel: "6.18.0", CPUs: 8}
		if nodes != "" {
			r.Environment.ClusterNodes = map[string]string{}
			for node := range strings.FieldsSeq(nodes) {
				name, machine, _ := strings.Cut(node, "=")
				r.Environment.ClusterNodes[name] = machine
			}
		}
		return r
	}
	for _, c := range []struct{ a, b, want string }{
		{"w1=A w2=B", "w2=B w1=A", ""},
		{"w1=A w2=B", "w1=A w2=C", "the machines of the cluster: w2"},
		{"w1=A w2=B", "w1=A w3=B", "the machines of the cluster: w2, w3"},
		{"w1=A w2=B", "w1=A w2=", "the machines of the cluster: w2"},
		{"w1=A w2=", "w1=A w2=", "the cluster: not known whether it is the same"},
		{"", "w1=A w2=B", "the cluster: not known whether it is the same"},
		{"w1=A w2=B", "", "the cluster: not known whether it is the same"},
		{"", "", "the cluster: not known whether it is the same"},
		{"1= 2= 3= 4= 5= 6=", "1=A 2=A 3=A 4=A 5=A 6=A", "the machines of the cluster: 1, 2, 3, 4, 2 more"},
	} {
		if got := strings.Join(comparison.Apart(of(c.a), of(c.b)), "; "); got != c.want {
			t.Errorf("%q and %q: %q, want %q", c.a, c.b, got, c.want)
		}
	}
}

// TestOver: the course of a metric has a point for each run and a shift where latency was planted to rise, and nowhere
// else.
func TestOver(t *testing.T) {
	sources := made(t, 0, slices.Concat(slices.Repeat([]float64{9e-6}, 8), slices.Repeat([]float64{40e-6}, 8))...)
	slices.Reverse(sources)
	course := comparison.Over(sources, 1)
	if len(course.Runs) != 16 || !course.Runs[0].Started.Before(course.Runs[15].Started) {
		t.Fatalf("%d runs", len(course.Runs))
	}
	for _, l := range course.Lines {
		planted := strings.HasPrefix(l.Metric, "latency_")
		if (len(l.Shifts) == 1) != planted || len(l.Shifts) > 1 {
			t.Errorf("%s of %s has the shifts %+v", l.Metric, l.Arm, l.Shifts)
		}
		for _, s := range l.Shifts {
			if s.Run < 7 || s.Run > 9 || !(s.After > s.Before) {
				t.Errorf("%s: %+v", l.Metric, s)
			}
		}
		for _, p := range l.Points {
			if math.IsNaN(p.Value) || p.Lo > p.Value || p.Hi < p.Value {
				t.Errorf("%s: %+v", l.Metric, p)
			}
		}
	}
}
