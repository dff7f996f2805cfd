package assertion

import (
	"math"
	"reflect"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		text, canonical string
		want            Assertion
	}{
		{"events_lost == 0", "events_lost == 0",
			Assertion{Metric: "events_lost", Op: Equal, Against: Value}},
		{" cpu_seconds_per_request<=+10% ", "cpu_seconds_per_request <= +10%",
			Assertion{Metric: "cpu_seconds_per_request", Op: AtMost, Against: Change, Bound: 0.1}},
		{"latency_p99_seconds <= +200us", "latency_p99_seconds <= +200us",
			Assertion{Metric: "latency_p99_seconds", Op: AtMost, Against: Difference, Bound: 200e-6}},
		{"latency_p99_seconds < -1.5 ms", "latency_p99_seconds < -1.5ms",
			Assertion{Metric: "latency_p99_seconds", Op: Below, Against: Difference, Bound: -1.5e-3}},
		{"memory_hard_bytes{component=agent} <= 50MB", "memory_hard_bytes{component=agent} <= 50MB",
			Assertion{Metric: "memory_hard_bytes", Component: "agent", Op: AtMost, Against: Value, Bound: 50e6}},
		{`map_bytes{ services = "1000" , arm=sized} <= 1MiB`, "map_bytes{arm=sized,services=1000} <= 1MiB",
			Assertion{Metric: "map_bytes", Arm: "sized", Level: map[string]string{"services": "1000"}, Op: AtMost,
				Against: Value, Bound: 1 << 20}},
		{"bpf_client_share <= 70%", "bpf_client_share <= 70%",
			Assertion{Metric: "bpf_client_share", Op: AtMost, Against: Value, Bound: 0.7}},
		{"bpf_client_share <= +0.02", "bpf_client_share <= +0.02",
			Assertion{Metric: "bpf_client_share", Op: AtMost, Against: Difference, Bound: 0.02}},
		{"bpf_client_share <= +2%", "bpf_client_share <= +2%",
			Assertion{Metric: "bpf_client_share", Op: AtMost, Against: Change, Bound: 0.02}},
		{"own_cpus < 0.5 CPU", "own_cpus < 0.5CPU",
			Assertion{Metric: "own_cpus", Op: Below, Against: Value, Bound: 0.5}},
		{"bpf_seconds_per_connection{} >= 1e3ns", "bpf_seconds_per_connection >= 1e3ns",
			Assertion{Metric: "bpf_seconds_per_connection", Op: AtLeast, Against: Value, Bound: 1e-6}},
		{"throughput_per_second > 1e4", "throughput_per_second > 1e4",
			Assertion{Metric: "throughput_per_second", Op: Above, Against: Value, Bound: 1e4}},
		{"map_bytes == 0", "map_bytes == 0", Assertion{Metric: "map_bytes", Op: Equal, Against: Value}},
	} {
		got, err := Parse(c.text)
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		if text := got.String(); text != c.canonical {
			t.Errorf("%s reads as %s, want %s", c.text, text, c.canonical)
		}
		got.written = ""
		if math.Abs(got.Bound-c.want.Bound) > 1e-12*math.Abs(c.want.Bound) {
			t.Errorf("%s: bound %g, want %g", c.text, got.Bound, c.want.Bound)
		}
		got.Bound = c.want.Bound
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", c.text, got, c.want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                                                "is not a metric",
		"events_lost":                                     "is not a metric",
		"events_lost = 0":                                 "is not a metric",
		"events_lost <= ":                                 "is not a metric",
		"a b <= 3":                                        "is not a metric",
		"events_lost{arm} == 0":                           `has "arm" in its braces, which is not NAME=VALUE`,
		"events_lost{arm=a,arm=b} == 0":                   `names "arm" twice`,
		"events_lost{arm=a == 0":                          "is not a metric",
		"memory_hard_bytes <= 50":                         "without a unit; memory_hard_bytes is in B, ",
		"memory_hard_bytes <= 50ms":                       "memory_hard_bytes is in B, kB, KiB, MB",
		"memory_hard_bytes <= 50 mb":                      "memory_hard_bytes is in B, ",
		"memory_hard_bytes <= 50%":                        "write +50%",
		"latency_p99_seconds <= some":                     "not a number with a unit",
		"latency_p99_seconds <= NaN":                      "not a number with a unit",
		"latency_p99_seconds <= 1e999s":                   "not a number",
		"latency_p99_seconds <= 1e308min":                 "too large",
		"latency_p99_seconds == +2ms":                     "exact difference",
		"events_lost <= 3MB":                              "plain numbers",
		"events_lost <= " + strings.Repeat("1", MostText): "bytes long",
	} {
		if a, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %+v, %v; want an error with %q", text, a, err, want)
		}
	}
}

func TestKeeps(t *testing.T) {
	for text, want := range map[string][3]bool{ // below the bound, on it, above it
		"events_lost <= 3": {true, true, false},
		"events_lost < 3":  {true, false, false},
		"events_lost >= 3": {false, true, true},
		"events_lost > 3":  {false, false, true},
		"events_lost == 3": {false, true, false},
	} {
		a, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := [3]bool{a.Keeps(2), a.Keeps(3), a.Keeps(4)}; got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
}

// Every assertion that parses can be formatted, and then parses as the same assertion.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"events_lost == 0", "cpu_seconds_per_request <= +10%", `a_bytes{arm=x,b="c d"} < 5.5e-3KiB`, "x{} > -3", "µ <= 3µs",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := Parse(text)
		if err != nil {
			return
		}
		if math.IsNaN(a.Bound) || math.IsInf(a.Bound, 0) {
			t.Fatalf("%q: bound %g", text, a.Bound)
		}
		again, err := Parse(a.String())
		if err != nil || !reflect.DeepEqual(a, again) {
			t.Fatalf("%q is written as %q, which reads as %+v, %v; not %+v", text, a.String(), again, err, a)
		}
	})
}
