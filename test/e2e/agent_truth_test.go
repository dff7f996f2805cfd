package e2e

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"gonum.org/v1/gonum/stat/distuv"

	"tare/internal/lib/stats/interval"
	"tare/internal/scale/attribution"
	"tare/internal/scale/host/bpf"
	"tare/internal/scale/ledger"
	"tare/test/busy"
	"tare/test/long"
)

// agentFor returns how long a long test of the agent runs: the duration in TARE_AGENT_FOR, such as 1h, or else 2.5
// minutes.
func agentFor(t *testing.T) time.Duration {
	t.Helper()
	s := os.Getenv("TARE_AGENT_FOR")
	if s == "" {
		return 150 * time.Second
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatalf("TARE_AGENT_FOR: %v", err)
	}
	return d
}

// plantedProgram is an eBPF program that two groups run, with the time for which each group has run it, by the kernel's
// count.
type plantedProgram struct {
	*ebpf.Program
	id   uint32
	ns   [2]int64
	name string
}

func (p *plantedProgram) stats(t *testing.T) (ns, runs int64) {
	t.Helper()
	s, err := p.Stats()
	if err != nil {
		t.Fatal(err)
	}
	return s.Runtime.Nanoseconds(), int64(s.RunCount)
}

func plantPrograms(t *testing.T, n int) []*plantedProgram {
	t.Helper()
	all := make([]*plantedProgram, n)
	for i := range all {
		name := fmt.Sprintf("planted_%d", i)
		p, err := busy.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		info, err := p.Info()
		if err != nil {
			t.Fatal(err)
		}
		id, _ := info.ID()
		all[i] = &plantedProgram{Program: p, id: uint32(id), name: name}
	}
	return all
}

// TestAgentTruth: under changing load, the lines of the CPU budget add up to the capacity at every scrape. The CPU time
// of groups and the run time of programs equal the kernel's own counters exactly, because neither runs during a scrape.
// Two groups that run a program in the ratio 3:1 are charged 3:1: about as many of the samples' confidence intervals
// hold the true ratio as their level of confidence promises.
func TestAgentTruth(t *testing.T) {
	leavesNothing(t)
	groups := makeTestGroups(t)
	var dirs, paths [2]string
	var workers [2]*worker
	for i := range workers {
		dirs[i], paths[i] = groups.make(t, fmt.Sprintf("payer-%d", i))
		workers[i] = startWorker(t, dirs[i])
	}
	burnerDir, burnerPath := groups.make(t, "burner")
	burner := startWorker(t, burnerDir)
	planted := plantPrograms(t, 20)
	a := startAgent(t).serving(t)

	type counters struct {
		scrape *scrape
		groups [3]int64
		ns     []int64
		runs   []int64
	}
	allDirs, allPaths := [3]string{dirs[0], dirs[1], burnerDir}, [3]string{paths[0], paths[1], burnerPath}
	read := func() (c counters) {
		c.scrape = a.scraped(t)
		for i, dir := range allDirs {
			c.groups[i] = groupUsage(t, dir)
		}
		for _, p := range planted {
			ns, runs := p.stats(t)
			c.ns, c.runs = append(c.ns, ns), append(c.runs, runs)
		}
		return c
	}
	first := read()
	last := first
	// A run takes a microsecond or more: eight rounds make about 100 samples of each program.
	const rounds = 8
	until := time.Now()
	if long.Enabled() {
		until = until.Add(agentFor(t))
	}
	for round := 0; round < rounds || time.Now().Before(until); round++ {
		if round%3 != 2 {
			burner.burn(t, time.Duration(round%5)*20*time.Millisecond)
		}
		for range 3 {
			for _, p := range planted {
				for i, runs := range [2]int{5400, 1800} {
					before, _ := p.stats(t)
					workers[i].do(t, "run %d %d", p.id, runs)
					after, _ := p.stats(t)
					p.ns[i] += after - before
				}
			}
		}
		now := read()
		now.scrape.check(t, last.scrape)
		for i, path := range allPaths {
			was, _ := last.scrape.sum("tare_group_cpu_seconds_total", "cgroup", path)
			is, n := now.scrape.sum("tare_group_cpu_seconds_total", "cgroup", path)
			if got, want := nanoseconds(is)-nanoseconds(was), now.groups[i]-last.groups[i]; got != want || n != 1 {
				t.Errorf("round %d: %s used %d ns by its counter, and the metric grew by %d (%d series)", round, path, want, got, n)
			}
		}
		for i, p := range planted {
			id := strconv.Itoa(int(p.id))
			was, _ := last.scrape.sum("tare_bpf_program_run_seconds_total", "id", id, "program", p.name)
			is, _ := now.scrape.sum("tare_bpf_program_run_seconds_total", "id", id, "program", p.name)
			if got, want := nanoseconds(is)-nanoseconds(was), now.ns[i]-last.ns[i]; got != want {
				t.Errorf("round %d: %s ran for %d ns by the kernel's count, and the metric grew by %d", round, p.name, want, got)
			}
			was, _ = last.scrape.sum("tare_bpf_program_runs_total", "id", id)
			is, _ = now.scrape.sum("tare_bpf_program_runs_total", "id", id)
			// If a signal interrupts the kernel in the middle of a series of runs, it starts the series again: the program then
			// ran somewhat more often than asked.
			if got, want := int64(is-was), now.runs[i]-last.runs[i]; got != want || want < 3*7200 {
				t.Errorf("round %d: %s ran %d times by the kernel's count, at least 21600 in truth, and the metric grew by %d",
					round, p.name, want, got)
			}
		}
		last = now
	}
	checkSplit31(t, last.scrape, planted, paths)
}

// TestAgentDuty: if the agent has run statistics on for 10 s of every 60, its run time for each of 20 programs is
// within the stated error of the true one about as often as that error promises. The test itself keeps run statistics
// on all the time, to know the true run times.
func TestAgentDuty(t *testing.T) {
	long.Test(t, "waits for five cycles of a minute: 6 minutes")
	leavesNothing(t)
	statistics, err := bpf.EnableStats()
	if err != nil {
		t.Skip("needs run statistics: ", err)
	}
	t.Cleanup(func() { _ = statistics.Close() })
	groups := makeTestGroups(t)
	dir, _ := groups.make(t, "payer")
	w := startWorker(t, dir)
	planted := plantPrograms(t, 20)
	a := startAgent(t, "--bpf-stats", "10s/60s").serving(t)

	// Each program runs a random number of times each second. Every other program does so only in bursts: at random, it
	// pauses for ten seconds at a time.
	const second, burst = 1500, 10 // the most runs in a second; length of a burst in seconds
	random := rand.New(rand.NewPCG(1, 6))
	bursts := make([]bool, len(planted))
	until := time.Now().Add(5*time.Minute + 20*time.Second)
	for at := 0; time.Now().Before(until); at++ {
		began := time.Now()
		for i, p := range planted {
			if (at+i)%burst == 0 {
				bursts[i] = random.IntN(2) == 0
			}
			if i%2 == 0 || bursts[i] {
				w.do(t, "run %d %d", p.id, 1+random.IntN(second))
			}
		}
		time.Sleep(time.Second - time.Since(began))
	}
	now := a.scraped(t)
	now.check(t, nil)
	inside, stated := 0, 0
	for _, p := range planted {
		id := strconv.Itoa(int(p.id))
		ran, _ := p.stats(t)
		truth := float64(ran) / 1e9
		got, _ := now.sum("tare_bpf_program_run_seconds_total", "id", id)
		margin, n := now.sum("tare_bpf_scaling_error_seconds", "id", id)
		if n == 0 {
			continue
		}
		stated++
		if math.Abs(got-truth) <= margin {
			inside++
		}
		t.Logf("%s ran for %.4f s, and the metric has %.4f +- %.4f s", p.name, truth, got, margin)
	}
	if stated != len(planted) {
		t.Errorf("%d of %d programs have a stated error", stated, len(planted))
	}
	if chance := (distuv.Binomial{N: float64(stated), P: 0.95}).CDF(float64(inside)); chance < 0.001 {
		t.Errorf("%d of %d programs are within the stated error of 95 %%", inside, stated)
	}
}

// TestAgentRules: the rules of the configuration apply both to the metrics and to the ledgers of windows.
func TestAgentRules(t *testing.T) {
	leavesNothing(t)
	groups := makeTestGroups(t)
	dir, path := groups.make(t, "charged")
	w := startWorker(t, dir)
	config := filepath.Join(t.TempDir(), "agent.yaml")
	rules := fmt.Sprintf("rules:\n- {charge: tare, component: planted, cgroup: %q}\n", path)
	if err := os.WriteFile(config, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	a := startAgent(t, "--config", config).serving(t)
	before := groupUsage(t, dir)
	answer := make(chan []byte, 1)
	go func() {
		_, body, _ := a.get("/v1/ledger?for=2s")
		answer <- body
	}()
	var body []byte
	for body == nil {
		w.burn(t, 10*time.Millisecond)
		select {
		case body = <-answer:
		default:
		}
	}
	used := groupUsage(t, dir) - before
	var l ledger.Ledger
	if err := json.Unmarshal(body, &l); err != nil {
		t.Fatalf("%v: %.200s", err, body)
	}
	found := slices.ContainsFunc(l.Components, func(c ledger.Component) bool {
		return c.Component == "planted" && c.CPUSeconds != nil && *c.CPUSeconds > 0
	})
	if !found {
		t.Errorf("the window does not have the component: %+v", l.Components)
	}
	now := a.scraped(t)
	got, n := now.sum("tare_component_cpu_seconds_total", "charge", "tare", "component", "planted")
	if n != 1 || nanoseconds(got) < used {
		t.Errorf("the component has %g s in %d series, and its group used %d ns", got, n, used)
	}
}

func nanoseconds(s float64) int64 { return int64(math.Round(s * 1e9)) }

// checkSplit31 checks how each program's time is split between the two groups against how long each group ran it.
func checkSplit31(t *testing.T, s *scrape, planted []*plantedProgram, paths [2]string) {
	t.Helper()
	inside, split := 0, 0
	off, variance := 0.0, 0.0
	for _, p := range planted {
		id := strconv.Itoa(int(p.id))
		big, _ := s.sum("tare_bpf_payer_seconds_total", "id", id, "cgroup", paths[0])
		all, _ := s.sum("tare_bpf_payer_seconds_total", "id", id)
		samples, _ := s.sum("tare_bpf_program_samples_total", "id", id)
		if samples < attribution.MinSamples {
			continue
		}
		split++
		truth := float64(p.ns[0]) / float64(p.ns[0]+p.ns[1])
		k := big / all * samples
		lo, hi := interval.Binomial(int(math.Round(k)), int(samples), 0.95)
		if lo <= truth && truth <= hi {
			inside++
		}
		off += k - truth*samples
		variance += samples * truth * (1 - truth)
		t.Logf("%s: the first group ran %.1f %% of it, and pays %.1f %% [%.1f, %.1f] by %g samples", p.name, 100*truth,
			100*big/all, 100*lo, 100*hi, samples)
	}
	if split < len(planted)*9/10 {
		t.Skipf("needs a machine whose processor is sampled: %d of %d programs have %d samples", split, len(planted),
			attribution.MinSamples)
	}
	// chance is the probability that at most this many intervals hold the truth, if each does so with probability 0.95.
	if chance := (distuv.Binomial{N: float64(split), P: 0.95}).CDF(float64(inside)); chance < 0.001 {
		t.Errorf("%d of %d intervals of 95 %% hold the truth", inside, split)
	}
	if z := off / math.Sqrt(variance); math.Abs(z) > 4 {
		t.Errorf("over all programs the first group pays %.1f standard errors too much", z)
	}
}
