package analysis_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/internal/experiment/load"
	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
	"tare/internal/lib/quantity"
	"tare/internal/results/analysis"
	"tare/internal/scale/ledger"
	"tare/test/analysistest"
)

var eighteen = analysistest.Truth{Blocks: 18, BPF: 3.1e-6, Latency: 9e-6, Noise: 0.5e-6}

func spoilLate(t *record.Trial) {
	t.Validity = record.Validity{Reasons: []record.Reason{{Gate: "lag", Seen: 2, Allowed: 1, Message: "late"}}}
}

// TestLosses: the losses of an arm are reported, and a difference that they could have made vanish is not resolved.
func TestLosses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		lose     int // number of lost trials of the candidate, of its 18
		again    int // how many of these were run again, and were valid then
		resolved bool
		bounded  bool
		beyond   bool
	}{
		{"none", 0, 0, true, true, false},
		{"one", 1, 0, true, true, false},
		{"two run again", 2, 2, true, true, false},
		{"three", 3, 0, false, false, false},
		{"twelve, and the twins none", 12, 0, false, false, true},
		{"twelve run again", 12, 12, false, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			run, trials := analysistest.Quickstart(eighteen)
			var again []record.Trial
			for i, lost := 0, 0; i < len(trials) && lost < c.lose; i++ {
				if trials[i].Arm != "candidate" {
					continue
				}
				if lost++; lost <= c.again {
					second := trials[i]
					second.Attempt = 1
					again = append(again, second)
				}
				spoilLate(&trials[i])
			}
			s := summarize(t, run, append(trials, again...))
			var d *analysis.Difference
			if e := s.Find("latency_p50_seconds", "candidate", nil); e != nil {
				d = e.Difference
			}
			if d == nil && (c.resolved || !c.beyond) {
				t.Fatal("no difference")
			}
			if d != nil { // if too many trials were lost, there may be no difference
				if d.Resolved != c.resolved || !c.resolved && !strings.HasPrefix(d.Unresolved, analysis.LossReason) {
					t.Errorf("resolved %t: %q", d.Resolved, d.Unresolved)
				}
				lost, repeated := c.lose-c.again, c.again // no trial of the twins was repeated
				if c.beyond {
					lost, repeated = c.lose, 0
				}
				if d.Lost != lost || d.LostRepeated != repeated {
					t.Errorf("%d lost, and %d that were repeated", d.Lost, d.LostRepeated)
				}
				if (d.WorstLo != nil) != c.bounded || (d.WorstHi != nil) != c.bounded {
					t.Errorf("worst case [%v, %v]", d.WorstLo, d.WorstHi)
				}
				if d.WorstLo != nil && (*d.WorstLo > *d.Lo || *d.WorstHi < *d.Hi) {
					t.Errorf("the worst case [%g, %g] is narrower than [%g, %g]", *d.WorstLo, *d.WorstHi, *d.Lo, *d.Hi)
				}
			}
			i := slices.IndexFunc(s.Losses, func(l analysis.Loss) bool {
				return l.Arm == "candidate" && slices.Contains(l.Metrics, "latency_p50_seconds")
			})
			if (i >= 0) != (c.lose > 0) {
				t.Fatalf("losses: %+v", s.Losses)
			}
			if i >= 0 {
				if l := s.Losses[i]; l.Planned != 18 || l.Lost != c.lose-c.again || l.Repeated != c.again ||
					l.By["lag"] != l.Lost || l.Beyond != c.beyond {
					t.Errorf("%+v", l)
				}
			}
			if warned := strings.Contains(strings.Join(s.Warnings, "\n"),
				"candidate lost more trials than its twins"); warned != c.beyond {
				t.Errorf("warnings: %q", s.Warnings)
			}
			if d := s.Find("latency_p50_seconds", record.AA, nil).Difference; d.Lost != 0 || len(d.Unresolved) == 0 {
				t.Errorf("the twin: %+v", d)
			}
		})
	}
}

// TestLossesAgree: Summary.Losses and Summary.Missing give the same number and reason for a metric that is missing.
func TestLossesAgree(t *testing.T) {
	t.Parallel()
	voids := func(gate string, cause ledger.Cause) record.Validity {
		return record.Validity{Reasons: []record.Reason{{Gate: gate, Cause: cause, Voids: []string{"latency_p50_seconds"}}}}
	}
	failed := record.Validity{Failed: "it died", Cause: ledger.Hypervisor}
	for _, c := range []struct {
		name          string
		first, second record.Validity
		by, gate      string
		cause         ledger.Cause
	}{
		{"to one gate, then to another", voids("drift", ledger.Hypervisor), voids("lag", ledger.Generator),
			"drift (hypervisor)", "drift", ledger.Hypervisor},
		{"it failed, then a gate", failed, voids("lag", ledger.Neighbour), "lag (neighbour)", "lag", ledger.Neighbour},
		{"a gate, then it failed", voids("lag", ledger.Neighbour), failed, "lag (neighbour)", "lag", ledger.Neighbour},
		{"it failed twice", failed, failed, "failed", "", ledger.Hypervisor},
	} {
		t.Run(c.name, func(t *testing.T) {
			run, trials := analysistest.Quickstart(eighteen)
			var again []record.Trial
			for i := range trials {
				if trials[i].Arm == "candidate" && trials[i].Block%3 != 0 {
					second := trials[i]
					second.Attempt, second.Validity = 1, c.second
					again = append(again, second)
					trials[i].Validity = c.first
				}
			}
			s := summarize(t, run, append(trials, again...))
			i := slices.IndexFunc(s.Losses, func(l analysis.Loss) bool {
				return slices.Contains(l.Metrics, "latency_p50_seconds")
			})
			k := slices.IndexFunc(s.Missing, func(m analysis.Missing) bool { return m.Metric == "latency_p50_seconds" })
			if i < 0 || k < 0 {
				t.Fatalf("losses %+v, missing %+v", s.Losses, s.Missing)
			}
			l, m := s.Losses[i], s.Missing[k]
			if l.Lost != 12 || l.By[c.by] != 12 || m.Lost != l.Lost || m.Trials != l.Planned || m.Gate != c.gate ||
				m.Cause != c.cause {
				t.Errorf("losses %+v, missing %+v", l, m)
			}
		})
	}
}

// TestWholeBlocks: a block in which others spoilt the trials of the arm and of both twins did not select values: it
// counts as a block that was not run. A block that an arm lost alone, or for another reason, does not.
func TestWholeBlocks(t *testing.T) {
	t.Parallel()
	late := func(cause ledger.Cause) record.Validity {
		return record.Validity{Reasons: []record.Reason{{Gate: "lag", Cause: cause, Voids: []string{"latency_p50_seconds"}}}}
	}
	failed := record.Validity{Failed: "it died", Cause: ledger.Hypervisor}
	everybody := []string{record.Direct, record.AA, "candidate"}
	type spoil struct {
		block    int
		arms     []string
		attempts []record.Validity
	}
	steal, neighbour := []record.Validity{late(ledger.Hypervisor)}, []record.Validity{late(ledger.Neighbour)}
	for _, c := range []struct {
		name        string
		spoil       []spoil
		lost, whole int
		resolved    bool
	}{
		{"one whole block", []spoil{{3, everybody, steal}}, 1, 1, true},
		{"two, by different others", []spoil{
			{3, everybody, steal}, {5, everybody[:2], neighbour}, {5, everybody[2:], steal},
		}, 2, 2, true},
		{"the arm alone", []spoil{{3, everybody[2:], steal}}, 1, 0, false},
		{"without the twin", []spoil{{3, []string{record.Direct, "candidate"}, steal}}, 1, 0, false},
		{"one whole, and the baseline alone in another", []spoil{{3, everybody, steal}, {7, everybody[:1], steal}}, 2,
			1, false},
		{"by the generator", []spoil{{3, everybody, []record.Validity{late(ledger.Generator)}}}, 1, 0, false},
		{"in the arm by nobody who is known", []spoil{
			{3, everybody[:2], steal}, {3, everybody[2:], []record.Validity{late("")}},
		}, 1, 0, false},
		{"in every attempt", []spoil{{3, everybody, append(neighbour, steal...)}}, 1, 1, true},
		{"in the arm by itself in its second attempt", []spoil{
			{3, everybody[:2], steal},
			{3, everybody[2:], []record.Validity{late(ledger.Hypervisor), late(ledger.Subject)}},
		}, 1, 0, false},
		{"in the arm for another reason as well", []spoil{
			{3, everybody[:2], steal},
			{3, everybody[2:], []record.Validity{{Reasons: slices.Concat(steal[0].Reasons, late(ledger.Subject).Reasons)}}},
		}, 1, 0, false},
		{"by failing", []spoil{{3, everybody, []record.Validity{failed}}}, 1, 0, false},
		{"by failing in the second attempt", []spoil{{3, everybody, []record.Validity{late(ledger.Hypervisor), failed}}}, 1,
			0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			truth := eighteen
			truth.Blocks = 10
			run, trials := analysistest.Quickstart(truth)
			var again []record.Trial
			for _, s := range c.spoil {
				for i := range trials {
					if trials[i].Block != s.block || !slices.Contains(s.arms, trials[i].Arm) {
						continue
					}
					for attempt, v := range s.attempts[1:] {
						another := trials[i]
						another.Attempt, another.Validity = attempt+1, v
						again = append(again, another)
					}
					trials[i].Validity = s.attempts[0]
				}
			}
			e := summarize(t, run, append(trials, again...)).Find("latency_p50_seconds", "candidate", nil)
			d := e.Difference
			if d.Lost != c.lost || d.LostWhole != c.whole || d.WorstLo != nil {
				t.Errorf("%d lost, %d whole, worst case from %v", d.Lost, d.LostWhole, d.WorstLo)
			}
			if d.Resolved != c.resolved || !c.resolved && !strings.HasPrefix(d.Unresolved, analysis.LossReason) {
				t.Errorf("resolved %t (%q)", d.Resolved, d.Unresolved)
			}
			if c.resolved && (d.RestLo == nil || *d.RestLo != *d.Lo || *d.RestHi != *d.Hi) || c.whole == 0 && d.RestLo != nil {
				t.Errorf("the worst case of the rest is %v to %v", d.RestLo, d.RestHi)
			}
			if said := strings.Contains(strings.Join(e.Notes, ""),
				"that this arm and both twins lost to"); said != (c.whole > 0) {
				t.Errorf("notes %q", e.Notes)
			}
		})
	}
}

// TestTwinWithoutInterval: a difference in memory without any noise is resolved although a twin lost a block and so has
// no interval.
func TestTwinWithoutInterval(t *testing.T) {
	run, trials := analysistest.Quickstart(analysistest.Truth{Blocks: 6, BPF: 3e-6, Noise: 1e-6})
	lost := false
	for i := range trials {
		trials[i].Metrics["memory_hard_bytes"] = 0
		switch {
		case trials[i].Arm == "candidate":
			trials[i].Metrics["memory_hard_bytes"] = 6.33e6 + 1e4*float64(i%9)
		case trials[i].Arm == record.AA && !lost:
			spoilLate(&trials[i])
			lost = true
		}
	}
	d := summarize(t, run, trials).Find("memory_hard_bytes", "candidate", nil).Difference
	if !d.Resolved || d.SmallestVisible == nil || *d.SmallestVisible != (*d.Hi-*d.Lo)/2 {
		t.Errorf("%+v", d)
	}
}

// TestVisibleIsOfTheArm: the smallest visible difference of an arm that is noisier than the twins is larger than
// theirs.
func TestVisibleIsOfTheArm(t *testing.T) {
	t.Parallel()
	run, trials := analysistest.Quickstart(eighteen)
	for i := range trials {
		trials[i].Metrics["own"] = 100 + float64(i%3)
		if trials[i].Arm == "candidate" {
			trials[i].Metrics["own"] = 110 + 10*float64(i%5)
		}
	}
	s := summarize(t, run, trials)
	twins, _ := s.Visible("own", nil)
	e := s.Find("own", "candidate", nil)
	if own := *e.Difference.SmallestVisible; own <= twins || own < (*e.Difference.Hi-*e.Difference.Lo)/2 {
		t.Errorf("visible %g, of the twins %g: %+v", own, twins, e.Difference)
	}
}

// TestDependentBlocks: blocks that resemble their neighbours count as fewer independent ones, so the interval is wider.
func TestDependentBlocks(t *testing.T) {
	t.Parallel()
	truth := eighteen
	truth.Blocks = 30
	width := func(period int) (float64, *analysis.Difference) {
		run, trials := analysistest.Quickstart(truth)
		for i := range trials {
			trials[i].Metrics["own"] = 100
			if trials[i].Arm != record.Direct {
				noise := float64(trials[i].Block/period*period*37%30) - 15 // the twins differ in each block, but not on average
				trials[i].Metrics["own"] += noise + 0.01*float64(i%7)
			}
		}
		d := summarize(t, run, trials).Find("own", "candidate", nil).Difference
		if d.Effective == nil {
			t.Fatalf("30 blocks do not say what they are worth: %+v", d)
		}
		return *d.Hi - *d.Lo, d
	}
	alone, a := width(1)
	together, b := width(5) // five blocks in a row share their noise
	if *a.Effective < 25 || *b.Effective > 15 || together < 1.4*alone {
		t.Errorf("independent: %.3g blocks, width %.3g; five alike: %.3g blocks, width %.3g", *a.Effective, alone,
			*b.Effective, together)
	}
}

// TestWithheldQuantile: a trial that is too slow to give a quantile counts as lost, and the summary says so.
func TestWithheldQuantile(t *testing.T) {
	t.Parallel()
	run, trials := analysistest.Quickstart(eighteen)
	i := slices.IndexFunc(trials, func(t record.Trial) bool { return t.Arm == "candidate" && t.Block == 3 })
	h := hdrhistogram.New(1, 60_000_000_000, 3)
	if err := h.RecordValues(500_000, 900); err != nil {
		t.Fatal(err)
	}
	l := trials[i].Loads["client"]
	l.Histograms = maps.Clone(l.Histograms)
	if err := l.SetHistogram(load.Latency, h); err != nil {
		t.Fatal(err)
	}
	trials[i].Loads = map[string]load.Result{"client": l}
	s := summarize(t, run, trials)
	e := s.Find("latency_p99_seconds", "candidate", nil)
	if e.Difference.Lost != 1 || e.N != 17 ||
		!strings.Contains(strings.Join(e.Notes, ""), "blocks without a value had too few samples") {
		t.Errorf("%d lost, notes %q", e.Difference.Lost, e.Notes)
	}
	if e := s.Find("latency_p50_seconds", "candidate", nil); e.Difference.Lost != 0 || len(e.Notes) != 0 {
		t.Errorf("900 samples carry a median: %d lost, notes %q", e.Difference.Lost, e.Notes)
	}
}

// TestClusteredShares: shares of samples differ between trials by more than chance would make independent samples
// differ, so their interval is computed over trials.
func TestClusteredShares(t *testing.T) {
	run, trials := analysistest.Quickstart(eighteen)
	for i := range trials {
		in := 3000 + 100*(trials[i].Block%3-1)
		if trials[i].Arm == "candidate" {
			in += 1000
		}
		trials[i].Counts = map[string]record.Count{"failed_connect_share": {In: in, Of: 10_000},
			"wrong_connect_share": {In: 0, Of: 10_000}}
	}
	s := summarize(t, run, trials)
	e := s.Find("failed_connect_share", "candidate", nil)
	if e.Trials != 18 || e.N != 180_000 || e.DesignEffect == nil || *e.DesignEffect < 2 {
		t.Errorf("%+v", e)
	}
	if d := e.Difference; d == nil || !d.Resolved || d.Value < 0.099 || d.Value > 0.101 || d.SmallestVisible == nil ||
		*d.SmallestVisible <= 0 {
		t.Errorf("%+v", d)
	}
	if d := s.Find("failed_connect_share", record.AA, nil).Difference; d.Resolved {
		t.Errorf("twins differ: %+v", d)
	}
	none := s.Find("wrong_connect_share", "candidate", nil)
	if none.Hi == nil || *none.Hi < 0.15 || *none.Hi > 0.16 || none.Difference.Resolved { // 1 - 0.05^(1/18)
		t.Errorf("none in 18 trials: %+v", none)
	}
}

// TestUnevenTrials: if trials differ in size more than twofold, or their counts come in bursts, a difference of pooled
// shares whose interval ends close to 0 is not resolved, and an assertion whose bound is close to that end is
// undecided.
func TestUnevenTrials(t *testing.T) {
	even := func(b int) record.Count { return record.Count{In: 2900 + 100*(b%3), Of: 10_000} }
	sizes := func(b int) record.Count {
		of := 10_000 + 6000*(b%3)
		return record.Count{In: of / 100 * (29 + b*7%3), Of: of}
	}
	bursts := func(b int) record.Count { return record.Count{In: 10 + 60*(b%3), Of: 10_000} }
	for _, c := range []struct {
		name   string
		count  func(block int) record.Count
		times  float64 // the candidate's share as a multiple of the others'
		bound  string
		uneven bool
		says   bool // whether the difference is resolved and the assertion fails
	}{
		{"even", even, 1.1, "32%", false, true},
		{"in size", sizes, 1.04, "31%", true, false},
		{"in size, far away", sizes, 2, "32%", true, true},
		{"in bursts", bursts, 2.5, "1%", true, false},
		{"in bursts, far away", bursts, 30, "1%", true, true},
	} {
		run, trials := analysistest.Quickstart(eighteen)
		run.Assert = []string{"failed_connect_share{arm=candidate} <= " + c.bound}
		for i, trial := range trials {
			n := c.count(trial.Block)
			if trial.Arm == "candidate" {
				n.In = int(c.times * float64(n.In))
			}
			trials[i].Counts = map[string]record.Count{"failed_connect_share": n}
		}
		s := summarize(t, run, trials)
		e, check := s.Find("failed_connect_share", "candidate", nil), s.Verdicts[0].Checks[0]
		said := strings.Contains(strings.Join(s.Warnings, "\n"), "differ so much in size or share")
		if said != c.uneven || len(e.Notes) > 0 != c.uneven {
			t.Errorf("%s: warned %t, notes %q", c.name, said, e.Notes)
		}
		if d := e.Difference; d.Resolved != c.says || check.Result == analysis.Fails != c.says {
			t.Errorf("%s: resolved %t: %q; %s: %q; %g [%g, %g]", c.name, d.Resolved, d.Unresolved, check.Result, check.Why,
				e.Value, *e.Lo, *e.Hi)
		}
	}
}

// TestModelByBlock: a model is fitted block by block.
func TestModelByBlock(t *testing.T) {
	t.Parallel()
	swept := plain
	swept.Rates = []string{"500", "1000", "2000", "4000"}
	run, trials := analysistest.Quickstart(swept)
	for i := range trials {
		trials[i].Metrics["curve"] = map[string]float64{"500": 23.6, "1000": 35.5, "2000": 69.6,
			"4000": 80}[trials[i].Factors["rate"]] * (1 + 0.05*float64(trials[i].Block%3))
		if trials[i].Block == 1 && trials[i].Factors["rate"] == "4000" {
			delete(trials[i].Metrics, "cpu_seconds")
		}
	}
	run.Metrics = append(run.Metrics, metric.Definition{Name: "curve", Unit: quantity.Count, Cost: true})
	models := summarize(t, run, trials).Models
	find := func(metric string) analysis.Model {
		return models[slices.IndexFunc(models,
			func(m analysis.Model) bool { return m.Metric == metric && m.Arm == "candidate" })]
	}
	if m := find("cpu_seconds"); m.Method != "least squares by block, t over blocks" || m.Blocks != 7 || !m.Linear {
		t.Errorf("%+v", m)
	}
	if m := find("curve"); m.Linear || m.Blocks != 8 {
		t.Errorf("%+v", m)
	}
}
