package analysis

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"tare/internal/experiment/measured"
	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
	"tare/internal/lib/quantity"
)

// bought returns the usual definitions and those of a whole with two parts, of which one is recorded by component.
func bought() []metric.Definition {
	one := func(name, sum, part, of string) metric.Definition {
		return metric.Definition{
			Name: name, Unit: quantity.Bytes, Pool: metric.Mean, Rank: metric.RankMemory, How: "Given.", Needs: []metric.Need{},
			Family: "wares", Sum: sum, Part: part, PartOf: of,
		}
	}
	return append(measured.Definitions(), one("basket_bytes", "a basket holds {}", "", ""),
		one("fruit_bytes", "", "its own fruit", "basket_bytes"), one("bread_bytes", "", "bread", "basket_bytes"))
}

// TestSum: an answer adds up the parts of a whole, naming those of components and giving the others as differences. If
// one part is missing, it lists none.
func TestSum(t *testing.T) {
	values := func(arm string, _ factors) map[string]float64 {
		m := map[string]float64{"cpu_seconds_per_request": 20e-6, "basket_bytes": 5000, "fruit_bytes": 0, "bread_bytes": 5000}
		if arm == "proxy" {
			m["cpu_seconds_per_request"], m["basket_bytes"] = 50e-6, 12000
			m["fruit_bytes"], m["bread_bytes"] = 9000, 3000
		}
		return m
	}
	run, trials := made(bought(), nil, values)
	for i := range trials {
		if trials[i].Arm == "proxy" {
			trials[i].Components = map[string]map[string]float64{
				"right": {"fruit_bytes": 3000}, "left": {"fruit_bytes": 6000},
			}
		}
	}
	said := answersOf(t, run, trials)
	for _, want := range []string{
		// The difference is that of the pairs, and not 6.99, the difference of the two medians.
		"A basket holds 11.99 kB [", ", and 5.00 kB [", " in the baseline; paired by block, the difference is +7.00 kB [",
		"]: left 6.00 kB, right 3.00 kB, bread -1.998 kB [",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is not in: %s", want, said)
		}
	}
	noisy := slices.Clone(trials)
	for i := range noisy {
		noisy[i].Metrics = maps.Clone(noisy[i].Metrics)
		if sign := float64(noisy[i].Block%2*2 - 1); noisy[i].Arm == "proxy" {
			noisy[i].Metrics["basket_bytes"] += 20000 * sign
		}
	}
	if said := answersOf(t, run, noisy); !strings.Contains(said, "] (not resolved): left ") {
		t.Errorf("a difference that is not resolved: %s", said)
	}
	for i := range trials {
		trials[i].Components = nil
	}
	if said = answersOf(t, run, trials); !strings.Contains(said, "its own fruit +9") {
		t.Errorf("without components: %s", said)
	}
	run.Metrics = slices.DeleteFunc(run.Metrics, func(d metric.Definition) bool { return d.Name == "basket_bytes" })
	if said = answersOf(t, run, trials); strings.Contains(said, "in the baseline; ") {
		t.Errorf("parts of a whole that there is none of: %s", said)
	}
	run, trials = made(bought(), nil, values)
	for i := range trials {
		delete(trials[i].Metrics, "bread_bytes")
	}
	if said = answersOf(t, run, trials); strings.Contains(said, "A basket") {
		t.Errorf("one part is unknown, and the rest is no sum: %s", said)
	}
}

// TestOneTotal: if an answer has quoted a total, it names another total of the same kind so that the two cannot be
// confused.
func TestOneTotal(t *testing.T) {
	run, trials := made(measured.Definitions(), nil, func(arm string, _ factors) map[string]float64 {
		m := map[string]float64{
			"cpu_seconds_per_request": 20e-6, "busy_cpu_seconds_per_request": 25e-6, "app_cpu_seconds_per_request": 15e-6,
			"load_cpu_seconds_per_request": 5e-6, "kernel_cpu_seconds_per_request": 4e-6,
			"unexplained_cpu_seconds_per_request": 1e-6, "subject_cpu_seconds_per_request": 0,
		}
		if arm == "proxy" {
			m["cpu_seconds_per_request"], m["busy_cpu_seconds_per_request"] = 50e-6, 55e-6
			m["subject_cpu_seconds_per_request"] = 30e-6
		}
		return m
	})
	said := answersOf(t, run, trials)
	if !strings.Contains(said, "of CPU time per request. Counted with all the parts that follow, a request takes 55.0") {
		t.Error(said)
	}
}

// TestPerThousand: an answer gives a line with its fixed part and its slope. The largest level decides for how many
// units of the factor the slope is given, and the factor's phrase names the units.
func TestPerThousand(t *testing.T) {
	for _, c := range []struct {
		largest string
		want    string
	}{
		{"4000", ", and 0.1000 CPU [0.0999, 0.1001] more for every 1,000 requests/s"},
		{"400", ", and 0.01000 CPU [0.00999, 0.01001] more for every 100 requests/s"},
	} {
		levels := []factors{{"rate": "100"}, {"rate": "200"}, {"rate": c.largest}}
		run, trials := made(measured.Definitions(), levels, func(arm string, at factors) map[string]float64 {
			m := map[string]float64{"cpu_seconds_per_request": 20e-6, "subject_cpus": 0}
			if rate, _ := LevelNumber(at["rate"]); arm == "proxy" {
				m["cpu_seconds_per_request"], m["subject_cpus"] = 50e-6, 0.01+1e-4*rate
			}
			return m
		})
		run.Headline = []string{"subject_cpus"}
		run.Phrases = []record.Phrase{{Factor: "rate", Words: map[string]string{"": "at {} requests/s"}}}
		if said := answersOf(t, run, trials); !strings.Contains(said, c.want) {
			t.Errorf("%q is not in: %s", c.want, said)
		}
	}
}

// TestPerSecondOfAFactor: a line over durations says that its units are seconds.
func TestPerSecondOfAFactor(t *testing.T) {
	levels := []factors{{"every": "500ms"}, {"every": "1s"}, {"every": "1m"}}
	run, trials := made(measured.Definitions(), levels, func(arm string, at factors) map[string]float64 {
		every, _ := LevelNumber(at["every"])
		return map[string]float64{"memory_hard_bytes": map[string]float64{"proxy": 1e6 + 1e5*every}[arm]}
	})
	if said := answersOf(t, run, trials); !strings.Contains(said, " more for every 10 s of every)") {
		t.Error(said)
	}
}

// TestMissingBaseline: where the baseline lost a metric, the arm's value is not what the arm adds.
func TestMissingBaseline(t *testing.T) {
	run, trials := made(measured.Definitions(), nil, func(arm string, _ factors) map[string]float64 {
		return map[string]float64{"memory_hard_bytes": 9e6,
			"cpu_seconds_per_request": map[string]float64{"proxy": 50e-6}[arm] + 20e-6}
	})
	for i := range trials {
		if trials[i].Arm == record.Direct {
			trials[i].Validity = record.Validity{
				Reasons: []record.Reason{{Gate: "connections", Message: "few", Voids: []string{"memory_hard_bytes"}}},
			}
		}
	}
	if said := answersOf(t, run, trials); !strings.Contains(said, "; hard memory is 9.00 MB [") {
		t.Error(said)
	}
}
