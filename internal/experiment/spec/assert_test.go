package spec

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"tare/internal/lib/fault"
)

func TestAssertInASpec(t *testing.T) {
	s := mustParse(t, goodSpec+`assert:
  - latency_p99_seconds <= +200us
  - "memory_hard_bytes{arm=heavy, rate=1000.0, arms.*.steps=10} <= 50MB"
  - latency_p99_seconds<=+200us
`)
	want := []string{"latency_p99_seconds <= +200us", "memory_hard_bytes{arm=heavy,arms.*.steps=10,rate=1000} <= 50MB"}
	if got := s.Assertions(); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	resolved, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if again := mustParse(t, string(resolved)); !slices.Equal(again.Assertions(), want) {
		t.Errorf("the resolved spec has %q", again.Assertions())
	}
	if err := s.Apply(Overrides{Assert: []string{"map_bytes <= 1MB", want[0]}}); err != nil {
		t.Fatal(err)
	}
	if got := s.Assertions(); !slices.Equal(got, append(want, "map_bytes <= 1MB")) {
		t.Errorf("with one more: %q", got)
	}
}

func TestAssertRefused(t *testing.T) {
	for text, want := range map[string]string{
		"latency <= 3ms":                          `names the metric "latency", which does not exist`,
		"latency_p50_secnds <= 3ms":               `did you mean "latency_p50_seconds"`,
		"latency_p50_seconds{arm=hevy} <= 3ms":    `names the arm "hevy", which does not exist; did you mean "heavy"`,
		"latency_p50_seconds{rte=500} <= 3ms":     `names "rte", which is not a factor of the experiment`,
		"latency_p50_seconds{rate=501} <= 3ms":    `names rate "501", which is not one of its levels [500 1000]`,
		"latency_p50_seconds{arm=direct} <= +3ms": "compares the baseline with itself",
		"latency_p50_seconds <= 3":                "without a unit",
		"bpf_client_share <= +2%":                 "counted over all trials together",
		"bpf_client_share <= 5":                   "write 5%",
		"events_lost_share == 0":                  "counted over all trials together",
		"latency_p50_seconds":                     "is not a metric, an operator",
	} {
		_, err := Parse("test.yaml", []byte(goodSpec+"assert: ['"+text+"']\n"), testFeatures)
		if err == nil || fault.CodeOf(err) != fault.Usage || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "test.yaml:22:") || fault.HintOf(err) == "" {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
		s := mustParse(t, goodSpec)
		err = s.Apply(Overrides{Assert: []string{text}})
		if err == nil || fault.CodeOf(err) != fault.Usage || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "--assert") {
			t.Errorf("--assert %s: %v, want %q", text, err, want)
		}
	}
	for _, text := range []string{"assert: []", "assert: map_bytes <= 3MB", "assert: {a: b}"} {
		if _, err := Parse("test.yaml", []byte(goodSpec+text+"\n"), testFeatures); err == nil {
			t.Errorf("%s was taken", text)
		}
	}
}
