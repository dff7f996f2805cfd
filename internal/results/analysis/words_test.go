package analysis

import (
	"slices"
	"strings"
	"testing"

	"tare/internal/experiment/load"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
	"tare/internal/lib/quantity"
	"tare/internal/scale/ledger"
)

// made returns a run of 8 blocks with a baseline, its twin and an arm called proxy, whose values vary a little from
// block to block. If no levels are given, it has one level without factors.
func made(defined []metric.Definition, levels []factors,
	values func(arm string, at factors) map[string]float64) (record.Run, []record.Trial) {
	if len(levels) == 0 {
		levels = []factors{nil}
	}
	run := record.Run{Schema: record.RunSchema, Experiment: "mine", Question: "Which?", Blocks: 8, Metrics: defined}
	var trials []record.Trial
	for block := range run.Blocks {
		for _, at := range levels {
			for i, arm := range []string{record.Direct, record.AA, "proxy"} {
				p := record.PlannedTrial{Index: len(trials), Block: block, Position: i, Arm: arm, Factors: at}
				run.Plan = append(run.Plan, p)
				m := values(arm, at)
				for name := range m {
					m[name] *= 1 + 0.001*float64((block*7+i*3)%5-2)
				}
				trials = append(trials, record.Trial{
					Schema: record.TrialSchema, PlannedTrial: p, Metrics: m, Validity: record.Validity{Valid: true},
				})
			}
		}
	}
	return run, trials
}

// answersOf returns the answers of a run.
func answersOf(t *testing.T, run record.Run, trials []record.Trial) string {
	t.Helper()
	s, err := Summarize(run, trials)
	if err != nil || !s.Valid {
		t.Fatalf("%v, invalid for %q", err, s.InvalidReasons)
	}
	var all []string
	for _, a := range s.Answers {
		all = append(all, a.Answer)
	}
	return strings.Join(all, "\n")
}

// TestNamesMeanNothing: answers take what they say about a metric from its definition. Under other names, the same
// metrics get the same words.
func TestNamesMeanNothing(t *testing.T) {
	names := map[string]string{
		"latency_p50_seconds": "reply_middle_seconds", "latency_p99_seconds": "reply_slow_seconds",
		"latency_running_p50_seconds": "calm_reply_middle_seconds", "latency_running_p99_seconds": "calm_reply_slow_seconds",
		"connect_p50_seconds": "handshake_seconds", "connect_running_p50_seconds": "calm_handshake_seconds",
		"own_lag_p50_seconds": "delay_middle_seconds", "own_lag_running_p50_seconds": "calm_delay_middle_seconds",
		"bpf_seconds_per_connection": "programs_seconds_per_socket",
		"cpu_seconds_per_connection": "groups_seconds_per_socket",
		"cpu_seconds_per_request":    "groups_seconds_per_reply", "cpu_busy_share": "occupied_share",
		"memory_soft_bytes": "cached_bytes", "memory_peak_bytes": "topmost_bytes",
	}
	values := func(arm string, _ factors) map[string]float64 {
		more := 1.0
		if arm == "proxy" {
			more = 1.5
		}
		m := map[string]float64{}
		for name := range names {
			m[name] = 1e-3 * more
		}
		m["own_lag_p50_seconds"], m["own_lag_running_p50_seconds"] = 1e-9, 1e-9
		m["memory_soft_bytes"], m["memory_peak_bytes"] = 4e6*more, 5e6*more*more
		return m
	}
	renamed := func(name string) string {
		if other, known := names[name]; known {
			return other
		}
		return name
	}
	for _, c := range []struct {
		name      string
		disturbed int64
		voids     []string
	}{
		{"undisturbed", 0, nil},
		{"disturbed", 60_000, nil},
		{"without latency", 0, []string{"latency_p50_seconds", "latency_p99_seconds"}},
		{"disturbed, and without latency while it ran", 60_000,
			[]string{"latency_running_p50_seconds", "latency_running_p99_seconds"}},
		{"the tail is lost among all, and nobody speaks of them", 60_000, []string{"latency_p99_seconds"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			run, trials := made(measured.Definitions(), nil, values)
			run.Headline = slices.Collect(func(yield func(string) bool) {
				for _, d := range run.Metrics {
					if d.Headline && !yield(d.Name) {
						return
					}
				}
			})
			for i := range trials {
				trials[i].Loads = map[string]load.Result{
					"client": {Running: &load.Running{Disturbed: c.disturbed, Undisturbed: 100_000 - c.disturbed}},
				}
				if c.voids != nil {
					trials[i].Validity = record.Validity{
						Reasons: []record.Reason{{Gate: "lag", Message: "late", Cause: ledger.Hypervisor, Voids: c.voids}},
					}
				}
			}
			want := answersOf(t, run, trials)
			run.Metrics = slices.Clone(run.Metrics)
			for i := range run.Metrics {
				d := &run.Metrics[i]
				d.Name, d.Instead = renamed(d.Name), renamed(d.Instead)
			}
			for i := range run.Headline {
				run.Headline[i] = renamed(run.Headline[i])
			}
			for i := range trials {
				m := map[string]float64{}
				for name, v := range trials[i].Metrics {
					m[renamed(name)] = v
				}
				trials[i].Metrics = m
				for j := range trials[i].Validity.Reasons {
					r := &trials[i].Validity.Reasons[j]
					r.Voids = slices.Clone(r.Voids)
					for k := range r.Voids {
						r.Voids[k] = renamed(r.Voids[k])
					}
				}
			}
			got := answersOf(t, run, trials)
			for name, other := range names {
				got = strings.ReplaceAll(got, quantity.Label(other), quantity.Label(name))
			}
			if got != want || !strings.Contains(want, "kernel time per connection") {
				t.Errorf("under other names:\n%s\nand under their own:\n%s", got, want)
			}
		})
	}
}

// TestClause: for a metric that has a Clause, answers use the words of that clause, for every arm that has the metric,
// and state the difference if the value of the baseline is not 0.
func TestClause(t *testing.T) {
	cache := metric.Definition{
		Name: "guest_cache_bytes", Unit: quantity.Bytes, Better: metric.Lower, How: "It is read.", Rank: metric.RankMemory,
		Pool: metric.Mean, Needs: []metric.Need{}, Headline: true, Clause: "holds {} of page cache",
	}
	uses := metric.Definition{
		Name: "guest_cpus", Unit: quantity.CPUs, Better: metric.Lower, How: "It is read.", Rank: metric.RankCPU,
		Pool: metric.Sum, Needs: []metric.Need{}, Headline: true, Clause: "uses {} by itself",
	}
	quiet := uses
	quiet.Headline = false
	part := uses
	part.Rank, part.Clause = metric.RankOther, "of which {} are its own"
	for _, c := range []struct {
		name     string
		defined  []metric.Definition
		headline []string
		base     map[string]float64
		want     string
	}{
		{"the baseline has none", []metric.Definition{cache}, nil, nil, "proxy holds 2.998 MB [2.994, 3.006] of page cache."},
		{"the baseline has 0 of it", []metric.Definition{cache}, nil, map[string]float64{cache.Name: 0},
			"proxy holds 2.998 MB [2.994, 3.006] of page cache."},
		{"the baseline has less", []metric.Definition{cache}, nil, map[string]float64{cache.Name: 1e6},
			"proxy holds 2.998 MB [2.994, 3.006] of page cache, which is 2.00"},
		{"the baseline has as much", []metric.Definition{cache}, nil, map[string]float64{cache.Name: 3e6},
			"proxy holds 2.998 MB [2.994, 3.006] of page cache, no resolved difference (found in 80 %: "},
		{"in order of rank", []metric.Definition{cache, uses}, nil, nil,
			"proxy uses 0.03998 CPU [0.03992, 0.04008] by itself; holds 2.998 MB [2.994, 3.006] of page cache."},
		{"one that goes on with the one before", []metric.Definition{cache, part}, nil, nil,
			"proxy holds 2.998 MB [2.994, 3.006] of page cache, of which 0.03998 CPU [0.03992, 0.04008] are its own."},
		{"answers of the run do not speak of it", []metric.Definition{cache, uses}, []string{cache.Name}, nil,
			"proxy holds 2.998 MB [2.994, 3.006] of page cache."},
		{"no answer speaks of it", []metric.Definition{cache, quiet}, nil, nil,
			"proxy holds 2.998 MB [2.994, 3.006] of page cache."},
	} {
		t.Run(c.name, func(t *testing.T) {
			run, trials := made(append(c.defined, measured.Definitions()...), nil,
				func(arm string, _ factors) map[string]float64 {
					m := map[string]float64{"throughput_per_second": 1000}
					if arm == "proxy" {
						m[cache.Name], m[uses.Name] = 3e6, 0.04
						return m
					}
					for name, v := range c.base {
						m[name] = v
					}
					return m
				})
			run.Headline = c.headline
			got := answersOf(t, run, trials)
			if !strings.HasPrefix(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
			if n := strings.Count(got, "guest"); n != 0 {
				t.Errorf("it is named again: %q", got)
			}
		})
	}
}

// TestClauseAmongOthers: in an answer, the clause of a metric comes after memory and before other resolved differences,
// and other metrics of its family are not mentioned.
func TestClauseAmongOthers(t *testing.T) {
	own := metric.Definition{
		Name: "guest_cpus", Unit: quantity.CPUs, Rank: metric.RankCPU, Pool: metric.Sum, Needs: []metric.Need{},
		Headline: true, Family: "guest", Clause: "uses {} by itself",
	}
	kin := metric.Definition{
		Name: "guest_peak_cpus", Unit: quantity.CPUs, Rank: metric.RankCPU, Pool: metric.Sum, Needs: []metric.Need{},
		Family: "guest",
	}
	run, trials := made(append(measured.Definitions(), own, kin), nil, func(arm string, _ factors) map[string]float64 {
		more := 1.0
		if arm == "proxy" {
			more = 2
		}
		return map[string]float64{
			own.Name: 0.02 * more, kin.Name: 0.03 * more, "memory_hard_bytes": 1e6 * more, "start_seconds": 0.1 * more,
		}
	})
	got := answersOf(t, run, trials)
	last := -1
	for _, part := range []string{"hard memory", "; uses 0.03998 CPU [", ", which is 0.02001 CPU [", "start time"} {
		i := strings.Index(got, part)
		if i <= last {
			t.Errorf("%q is missing or not in its place: %s", part, got)
		}
		last = i
	}
	if strings.Contains(got, "guest") {
		t.Errorf("it is named again: %s", got)
	}
}

// TestClauseOfWhatIsSaid: a metric that every answer states is not stated again by its clause.
func TestClauseOfWhatIsSaid(t *testing.T) {
	hard, _ := measured.Find("memory_hard_bytes")
	hard.Clause = "keeps {} for good"
	defined := append(measured.Definitions(), hard.Definition)
	run, trials := made(defined, nil, func(arm string, _ factors) map[string]float64 {
		if arm == "proxy" {
			return map[string]float64{"memory_hard_bytes": 3e6}
		}
		return map[string]float64{"memory_hard_bytes": 0}
	})
	if got, want := answersOf(t, run, trials), "proxy holds 2.998 MB [2.994, 3.006] of hard memory."; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestCases: if the levels of a factor are different cases, answers name them by the factor's phrase, although each
// case has different metrics.
func TestCases(t *testing.T) {
	levels := []factors{{"case": "keepalive"}, {"case": "connections"}, {"case": "execs"}}
	run, trials := made(measured.Definitions(), levels, func(arm string, at factors) map[string]float64 {
		own, more := 0.0, 1.0
		if arm == "proxy" {
			own, more = 1, 1.2
		}
		m := map[string]float64{"memory_hard_bytes": 20e6 * own, "throughput_per_second": 1000}
		switch at["case"] {
		case "keepalive":
			m["bpf_seconds_per_request"], m["latency_p50_seconds"] = 2e-6*own, 90e-6*more
		case "connections":
			m["bpf_seconds_per_connection"], m["latency_p50_seconds"] = 7e-6*own, 130e-6*more
		case "execs":
			m["load_cpu_seconds_per_kiloevent"], m["events_generated"] = 0.8*more, 5000
		}
		return m
	})
	run.Phrases = []record.Phrase{{Factor: "case", Words: map[string]string{"": "under {}"}}}
	run.Headline = []string{"memory_hard_bytes", "throughput_per_second", "latency_p50_seconds"}
	for i := range trials {
		if c := trials[i].Factors["case"]; c == "connections" || c == "execs" {
			trials[i].Validity = record.Validity{Reasons: []record.Reason{
				{Gate: "rate", Message: "too slow", Cause: ledger.Unknown, Voids: []string{"throughput_per_second"}},
			}}
		}
	}
	got := answersOf(t, run, trials)
	for _, want := range []string{
		"Under keepalive: proxy adds 1.999 us", "of kernel time per request; p50 is 18.1 us",
		"Under connections: proxy adds 6.998 us", "of kernel time per connection; p50 is 26.1 us",
		"Under execs: proxy holds 19.99 MB [19.96, 20.04] of hard memory; load CPU per kiloevent is 161 ms",
		"throughput: not measured, the gate rate (too slow)",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("lacks %q:\n%s", want, got)
		}
	}
	s := &Summary{Phrases: run.Phrases}
	if got, want := s.AtAll(levels), "under keepalive, connections and execs"; got != want {
		t.Errorf("several levels are %q, want %q", got, want)
	}
	s.Phrases = []record.Phrase{{Factor: "n", Words: map[string]string{"": "on {} nodes"}}}
	if got, want := s.AtAll([]factors{{"n": "2"}, {"n": "4"}}), "on 2 nodes and on 4 nodes"; got != want {
		t.Errorf("several levels are %q, want %q", got, want)
	}
}

// TestClosedLoopIsNoSaturation: a closed loop alone does not make a run one about a full machine. It is one if a
// headline metric is meaningful only for such loads, and the machine is full.
func TestClosedLoopIsNoSaturation(t *testing.T) {
	for _, c := range []struct {
		name      string
		busy      float64
		headline  []string
		saturated bool
	}{
		{"a full machine that is asked about", 0.97,
			[]string{"bpf_cpu_share", "cpu_busy_share", "throughput_per_second"}, true},
		{"the machine has room", 0.4, []string{"bpf_cpu_share", "cpu_busy_share", "throughput_per_second"}, false},
		{"nobody asks about the machine", 0.97, []string{"throughput_per_second", "latency_p50_seconds"}, false},
	} {
		run, trials := made(measured.Definitions(), nil, func(arm string, _ factors) map[string]float64 {
			m := map[string]float64{
				"bpf_cpu_share": 0, "cpu_busy_share": c.busy, "throughput_per_second": 9000, "latency_p50_seconds": 90e-6,
				"bpf_seconds_per_connection": 0,
			}
			if arm == "proxy" {
				m["bpf_cpu_share"], m["throughput_per_second"], m["bpf_seconds_per_connection"] = 0.02, 8000, 3e-6
			}
			return m
		})
		run.Headline = c.headline
		for i := range trials {
			trials[i].Loads = map[string]load.Result{"client": {Mode: load.Closed}}
		}
		got := answersOf(t, run, trials)
		if strings.Contains(got, "The programs of proxy take") != c.saturated {
			t.Errorf("%s: %s", c.name, got)
		}
		if !c.saturated && !strings.Contains(got, "proxy adds 2.999 us") {
			t.Errorf("%s lacks what a connection costs: %s", c.name, got)
		}
	}
}
