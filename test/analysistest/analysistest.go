// Package analysistest makes runs whose true values are known, for tests of code that reads runs.
package analysistest

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/internal/experiment/load"
	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
	"tare/internal/lib/quantity"
	"tare/internal/scale/ledger"
)

// Truth describes a made run by its true values. Times are in seconds.
type Truth struct {
	Blocks int
	Rates  []string // levels of the factor "rate"; without any, the run has no such factor

	BPF      float64 // time in eBPF programs that the arm candidate adds to each connection
	Latency  float64 // time that the arm candidate adds to every quantile of latency
	Noise    float64 // standard deviation of latency from trial to trial
	Lag      float64 // of the load generator, in every arm
	ExtraLag float64 // additional lag of the load generator in the arm candidate
	MapBytes float64 // memory of eBPF maps in the arm candidate, in bytes

	Day uint64 // of the run, from 0; each day has different noise
}

// Quickstart makes a run of the arms direct, aa and candidate. The same truth gives the same run.
func Quickstart(truth Truth) (record.Run, []record.Trial) {
	rng := rand.New(rand.NewPCG(11, 17+truth.Day))
	started := time.Date(2026, 1, 2+int(truth.Day), 3, 4, 5, 0, time.UTC)
	run := record.Run{
		Schema: record.RunSchema, ID: "quickstart-" + started.Format("20060102-150405"), Experiment: "quickstart",
		Question: "What does an eBPF mesh data plane add to each new connection?",
		Spec:     json.RawMessage(`{"name":"quickstart"}`), Seed: 42, Blocks: truth.Blocks, Started: started,
		Version: "0.1.0", Build: "go1.26.0 abcdef0",
		Environment: record.Environment{
			Hostname: "node-1", Kernel: "6.18.0", Distro: "Debian GNU/Linux 12", CPUModel: "Example CPU", CPUs: 2,
			MemoryBytes: 8 << 30,
			Governor:    "performance", CgroupMode: "hybrid", Lockdown: "integrity", Clocksource: "kvm-clock", Virtual: "kvm",
			Subjects: map[string]string{"candidate": "0.1.0"},
		},
		Command: []string{"tare", "run", "quickstart", "--seed", "42"},
		Metrics: definitions(),
	}
	levels := []map[string]string{nil}
	if len(truth.Rates) > 0 {
		levels = nil
		for _, r := range truth.Rates {
			levels = append(levels, map[string]string{"rate": r})
		}
	}
	for block := range truth.Blocks {
		position := 0
		for _, l := range rng.Perm(len(levels)) {
			for _, a := range rng.Perm(3) {
				run.Plan = append(run.Plan, record.PlannedTrial{
					Index: len(run.Plan), Block: block, Position: position, Arm: []string{record.Direct, record.AA, "candidate"}[a],
					Factors: levels[l],
				})
				position++
			}
		}
	}
	var trials []record.Trial
	for _, p := range run.Plan {
		trials = append(trials, truth.trial(rng, p, started))
	}
	return run, trials
}

func (truth Truth) trial(rng *rand.Rand, p record.PlannedTrial, started time.Time) record.Trial {
	drift := 2e-6 * float64(p.Block)
	noise := truth.Noise * rng.NormFloat64()
	rate := 2000.0
	if r, ok := p.Factors["rate"]; ok {
		fmt.Sscan(r, &rate)
	}
	begin := started.Add(time.Duration(p.Index) * 3 * time.Second)
	t := record.Trial{
		Schema: record.TrialSchema, PlannedTrial: p, Started: begin, Ended: begin.Add(3 * time.Second),
		Ledger: &ledger.Ledger{
			Schema: ledger.Schema, Self: ledger.Self{CPUSeconds: 0.01, RSSBytes: 30 << 20},
			CPU: ledger.CPU{Capacity: 4, Idle: 2.5, Attributed: 1.48, Unexplained: 0.02},
		},
		Metrics: map[string]float64{
			"bpf_seconds_per_connection": 0,
			"cpu_seconds_per_connection": 55e-6 + drift/10 + 1e-6*rng.NormFloat64(),
			"cpu_seconds":                0.05 + 55e-6*rate + 1e-3*rng.NormFloat64(),
			"throughput_per_second":      rate * (1 - 0.0005*rng.Float64()),
		},
		Validity: record.Validity{Valid: true},
	}
	var bpf, latency, lag float64
	if p.Arm == "candidate" {
		bpf, latency, lag = truth.BPF, truth.Latency, truth.ExtraLag
		rng.NormFloat64() // an unused draw, which keeps the later draws at the values that tests expect
		t.Counts = map[string]record.Count{"bpf_client_share": {In: 71, Of: 100}}
		t.Metrics["map_bytes"] = truth.MapBytes
		t.Metrics["bpf_seconds_per_connection"] = bpf * (1 + 0.05*rng.NormFloat64())
	}
	n := int(2 * rate)
	h, lags := hdrhistogram.New(1, 60_000_000_000, 3), hdrhistogram.New(1, 60_000_000_000, 3)
	for i := range n {
		q := (float64(i) + 0.5) / float64(n)
		shape := 60e-6 - 40e-6*math.Log(1-q) // a shifted exponential, without sampling noise
		must(h.RecordValue(int64(1e9 * (shape + drift + noise + bpf + latency + lag + truth.Lag))))
		must(lags.RecordValue(int64(1e9 * (lag + truth.Lag))))
	}
	t.Loads = map[string]load.Result{"client": {
		Generator: "http", Mode: load.Open, Arrivals: "poisson", Seconds: 2, TargetRate: rate, Rate: rate, Intended: int64(n),
		Sent: int64(n), Done: int64(n),
		Histograms: map[string]string{load.Latency: encode(h), load.OwnLag: encode(lags)},
	}}
	return t
}

func encode(h *hdrhistogram.Histogram) string {
	b, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	must(err)
	return string(b)
}

// must panics on an error that only a mistake in this package can cause.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// definitions returns the definitions of the metrics that the made trials have.
func definitions() []metric.Definition {
	of := func(name string, rank int, better metric.Direction, pool metric.Pool, cost bool) metric.Definition {
		return metric.Definition{
			Name: name, Unit: quantity.UnitOf(name), Better: better, How: "It is made.", Rank: rank, Pool: pool, Cost: cost,
			Needs: []metric.Need{},
		}
	}
	all := []metric.Definition{
		of("bpf_seconds_per_connection", metric.RankBPF, metric.Lower, metric.PerConnection, true),
		of("bpf_client_share", metric.RankBPF, metric.Neither, metric.Counts, false),
		of("cpu_seconds", metric.RankCPU, metric.Lower, metric.Sum, true),
		of("cpu_seconds_per_connection", metric.RankCPU, metric.Lower, metric.PerConnection, true),
		of("throughput_per_second", metric.RankThroughput, metric.Higher, metric.Sum, false),
		of("map_bytes", metric.RankMemory, metric.Lower, metric.Mean, true),
	}
	for i, words := range map[int][2]string{0: {"bpf", "kernel time"}, 3: {"cpu", "CPU time"}} {
		all[i].Family, all[i].What, all[i].Per = words[0], words[1], "connection"
	}
	all[1].Family, all[2].Family = "bpf", "cpu"
	for _, q := range []struct {
		name string
		q    float64
	}{{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"p999", 0.999}} {
		d := of("latency_"+q.name+"_seconds", metric.RankLatency, metric.Lower, metric.Merged, false)
		d.Family, d.Histogram, d.Quantile, d.Headline = "latency", load.Latency, q.q, q.q != 0.9
		all = append(all, d)
	}
	return all
}
