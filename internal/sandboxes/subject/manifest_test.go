package subject

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"tare/internal/experiment/record"
	"tare/internal/scale/ledger"
)

// trialOf makes a trial of one sandbox.
func trialOf(t *testing.T, block int, arm, runtime string, memory, cpus float64) record.Trial {
	t.Helper()
	evidence, err := json.Marshal(Evidence{Runtime: runtime, ReadySeconds: 1, Sandboxes: []Sandbox{{Name: "one"}}})
	if err != nil {
		t.Fatal(err)
	}
	tr := record.Trial{Evidence: map[string]json.RawMessage{name: evidence},
		Metrics: map[string]float64{memoryMetric: memory, podCPUMetric: cpus, outsideCPUMetric: 0}}
	tr.Block, tr.Arm, tr.Validity.Valid = block, arm, true
	return tr
}

// TestManifest: the overhead is what an arm uses beyond the baseline of the same block. The largest value is declared,
// rounded up, and the stated percentile is the one that the number of trials supports.
func TestManifest(t *testing.T) {
	var trials []record.Trial
	for b := range 12 {
		base := float64(10<<20 + b<<20)
		trials = append(trials,
			trialOf(t, b, record.Direct, none, base, 0.1), trialOf(t, b, record.AA, none, base, 0.1),
			trialOf(t, b, "gVisor", "/usr/bin/runsc", base+20e6+float64(b)*1e5, 0.1+float64(b)/1e4))
	}
	again := trials[len(trials)-1]
	again.Attempt, again.Metrics = 1, map[string]float64{memoryMetric: 1e12, podCPUMetric: 99, outsideCPUMetric: 0}
	plain := trialOf(t, 3, "plain", none, 1e12, 99)
	made := guest{}.Produce(record.Run{ID: "x"}, append(slices.Clone(trials), again, plain))
	if len(made) != 1 || made[0].File != "runtimeclass-gvisor.yaml" ||
		!strings.Contains(made[0].Says, "75 % of sandboxes") || !strings.Contains(made[0].Text, "# 12 trials of gVisor,") {
		t.Fatalf("%+v", made)
	}
	var class struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Handler    string
		Metadata   struct{ Name string }
		Overhead   struct {
			PodFixed struct{ Memory, CPU string } `yaml:"podFixed"`
		}
	}
	if err := yaml.Unmarshal([]byte(made[0].Text), &class); err != nil {
		t.Fatal(err, made[0].Text)
	}
	want := fmt.Sprintf("%dMi", int(math.Ceil((20e6+11e5)/(1<<20))))
	if class.Kind != "RuntimeClass" || class.Handler != "runsc" || class.Overhead.PodFixed.Memory != want ||
		class.Overhead.PodFixed.CPU != "2m" {
		t.Errorf("%+v, want %s", class, want)
	}
}

// TestNoManifest: if the trials do not bound what a sandbox needs, the reason is given instead of an overhead. A trial
// whose attempts were all lost to other programs is left out.
func TestNoManifest(t *testing.T) {
	failed := func(why string, cause ledger.Cause) func(*record.Trial) {
		return func(t *record.Trial) {
			t.Validity, t.Metrics, t.Evidence = record.Validity{Failed: why, Cause: cause}, nil, nil
		}
	}
	voided := func(cause ledger.Cause) func(*record.Trial) {
		return func(t *record.Trial) {
			t.Validity = record.Validity{Reasons: []record.Reason{
				{Gate: "rate", Message: "too slow", Voids: []string{podCPUMetric}, Cause: cause},
				{Gate: "lag", Message: "late", Voids: []string{"latency"}, Cause: ledger.Unknown},
			}}
		}
	}
	for _, c := range []struct {
		name   string
		blocks int
		change func(*record.Trial) // changes one trial
		repeat func(*record.Trial) // changes the second attempt of that trial; nil: there is none
		says   string              // expected text instead of a manifest
		text   string              // expected text in the manifest
	}{
		{"a mean of two", 12, func(t *record.Trial) {
			var e Evidence
			_ = json.Unmarshal(t.Evidence[name], &e)
			e.Sandboxes = append(e.Sandboxes, Sandbox{Name: "two"})
			t.Evidence[name], _ = json.Marshal(e)
		}, nil, "a trial has 2 sandboxes", ""},
		{"killed at its limit", 12, failed("out of memory", ""), nil,
			"no value of 1 of 12 trials, which may have needed the most: failed: out of memory", ""},
		{"killed and went on", 12, func(t *record.Trial) {
			t.Warnings = []ledger.Warning{{Code: "out-of-memory", Message: "the trial went on"}}
		}, nil, "needed the most: the trial went on", ""},
		{"too slow", 12, voided(ledger.Subject), nil, "needed the most: rate: too slow", ""},
		{"too slow, for whatever reason", 12, voided(ledger.Unknown), failed("x", ledger.Neighbour), "rate: too slow", ""},
		{"too slow, and not the next time", 12, voided(ledger.Unknown), func(*record.Trial) {}, "", "# 12 trials of runc,"},
		{"disturbed", 12, voided(ledger.Neighbour), failed("x", ledger.Hypervisor), "",
			"# Left out: 1 trial lost to"},
		{"interrupted", 12, failed(record.Interrupted, ""), nil, "", "# 11 trials of runc,"},
		{"no metric", 12, func(t *record.Trial) { delete(t.Metrics, memoryMetric) }, nil,
			"sandbox_hard_bytes is not known", ""},
		{"too few", 4, func(*record.Trial) {}, nil, "4 trials are too few to bound what half of all sandboxes need", ""},
	} {
		var trials []record.Trial
		for b := range c.blocks {
			trials = append(trials, trialOf(t, b, record.Direct, none, 1e6, 0.1))
			runc := trialOf(t, b, "runc", "runc", 2e6, 0.2)
			if b == 3 {
				c.change(&runc)
			}
			if trials = append(trials, runc); b == 3 && c.repeat != nil {
				again := trialOf(t, b, "runc", "runc", 2e6, 0.2)
				again.Attempt = 1
				c.repeat(&again)
				trials = append(trials, again)
			}
		}
		made := guest{}.Produce(record.Run{}, trials)
		if len(made) != 1 || (made[0].Text == "") != (c.text == "") || !strings.Contains(made[0].Says, c.says) ||
			!strings.Contains(made[0].Text, c.text) {
			t.Errorf("%s: %+v, want %q or %q", c.name, made, c.says, c.text)
		}
	}
}

// TestBound: which percentile a number of measurements supports.
func TestBound(t *testing.T) {
	for n, want := range map[int]float64{0: 0, 4: 0, 5: 0.5, 10: 0.5, 11: 0.75, 28: 0.75, 29: 0.9, 59: 0.95} {
		if got, _ := bound(n); got != want {
			t.Errorf("%d trials vouch for %g, not %g", n, got, want)
		}
	}
}
