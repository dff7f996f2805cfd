package subject

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"tare/internal/experiment/record"
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
	tr.Block, tr.Arm = block, arm
	return tr
}

// TestManifest: the overhead is what an arm takes beyond the baseline of its own block; the largest is declared,
// rounded up; and the number of trials is enough for the stated percentile.
func TestManifest(t *testing.T) {
	var trials []record.Trial
	for b := range 12 {
		base := float64(10<<20 + b<<20)
		trials = append(trials,
			trialOf(t, b, record.Direct, none, base, 0.1), trialOf(t, b, record.AA, none, base, 0.1),
			trialOf(t, b, "gVisor", "/usr/bin/runsc", base+20e6+float64(b)*1e5, 0.1+float64(b)/1e4))
	}
	broken := trialOf(t, 3, "gVisor", "runsc", 1e12, 99)
	broken.Validity.Failed = "it failed"
	made := guest{}.Produce(record.Run{ID: "x"}, append(trials, broken))
	if len(made) != 1 || made[0].File != "runtimeclass-gvisor.yaml" ||
		!strings.Contains(made[0].Says, "75 % of sandboxes") {
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
	if made := (guest{}).Produce(record.Run{}, trials[:12]); len(made) != 0 {
		t.Errorf("of 4 trials: %+v", made)
	}
}

// TestBound: the percentile for which a number of measurements is enough.
func TestBound(t *testing.T) {
	for n, want := range map[int]float64{0: 0, 4: 0, 5: 0.5, 10: 0.5, 11: 0.75, 28: 0.75, 29: 0.9, 59: 0.95} {
		if got, _ := bound(n); got != want {
			t.Errorf("%d trials vouch for %g, not %g", n, got, want)
		}
	}
}
