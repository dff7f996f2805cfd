package spec

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/measured"
	"tare/internal/lib/param"
)

// shortSpec is a small spec to which keys are added.
const shortSpec = `name: short
question: Does a trial work?
blocks: 1
warmup: 50ms
duration: 300ms
applications: {server: {kind: http}, other: {kind: http}}
loads:
  client: {kind: http, to: server, rate: 300, connections: 16, keepalive: false}
  held: {kind: http, to: other, mode: closed, connections: 2}
arms:
  kernelmesh: {subject: kernelmesh, steps: 10}
gates: {rate: 0.5, lag: 1s, generator_cpu: 1, errors: 0}
`

func mustParse(t testing.TB, text string) *Spec {
	t.Helper()
	s, err := Parse("test.yaml", []byte(text), testFeatures)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Defaults are used without conversion, so each must be what Canonical would return for it.
func TestSettingDefaultsAreCanonical(t *testing.T) {
	all := slices.Concat(timeSettings, []param.Setting{samplingSetting, repeatSetting, precisionSetting, untilSetting},
		kind.LimitSettings, measured.GateSettings)
	for _, role := range []kind.Role{kind.Application, kind.Load, kind.Subject} {
		for _, k := range kind.All(role) {
			all = append(all, k.About().Settings...)
		}
	}
	for _, k := range all {
		if k.Default == "" {
			continue
		}
		if c, err := k.Canonical(k.Default); err != nil || c != k.Default {
			t.Errorf("the default of %s is %q, canonical %q: %v", k.Name, k.Default, c, err)
		}
	}
}

func TestEndingKeys(t *testing.T) {
	s := mustParse(t, shortSpec+"precision: {target: 2%, metrics: [latency_p99_seconds, map_bytes]}\nuntil: "+
		"20m\nrepeat: 0.25\n")
	if s.Precision.Target != 0.02 || !slices.Equal(s.PreciseMetrics(), []string{"latency_p99_seconds", "map_bytes"}) ||
		s.Until != 20*time.Minute || s.Repeat != 0.25 {
		t.Errorf("%+v until %v repeat %g", s.Precision, s.Until, s.Repeat)
	}
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	again := mustParse(t, string(text))
	if !reflect.DeepEqual(again.Precision, s.Precision) || again.Until != s.Until || again.Repeat != s.Repeat {
		t.Errorf("the resolved spec has %+v until %v repeat %g", again.Precision, again.Until, again.Repeat)
	}
	plain := mustParse(t, shortSpec)
	if plain.Open() || plain.Repeat != 0.5 || plain.PreciseMetrics() != nil {
		t.Errorf("by default %+v, repeat %g", plain.Precision, plain.Repeat)
	}
	for text, want := range map[string]string{
		"precision: 0%":                                "must be at least 0.1%, not 0%",
		"precision: much":                              "must be a part, such as 5% or 0.05",
		"precision: {metrics: [map_bytes]}":            `"precision" has no "target"`,
		"precision: {target: 5%, metrics: [map_byte]}": `there is no metric "map_byte"; did you mean "map_bytes"?`,
		"precision: {target: 5%, of: x}":               `there is no key "of" in "precision"`,
		"until: 0s":                                    "must be at least 1s",
		"repeat: -1%":                                  "must be at least 0%",
	} {
		if _, err := Parse("test.yaml", []byte(shortSpec+text+"\n"), testFeatures); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestEndingOverrides(t *testing.T) {
	s := mustParse(t, shortSpec)
	if err := s.Apply(Overrides{Precision: "5%"}); err != nil || s.Precision.Target != 0.05 || s.Until != defaultUntil {
		t.Errorf("%v: %+v until %v", err, s.Precision, s.Until)
	}
	for _, m := range s.PreciseMetrics() {
		if strings.Contains(m, "_p99") || strings.Contains(m, "_max_") || strings.HasSuffix(m, "lost_share") {
			t.Errorf("%s decides when a run ends, and was not asked for", m)
		}
	}
	if !slices.Contains(s.PreciseMetrics(), "latency_p50_seconds") ||
		!slices.Contains(s.Headlines(), "latency_p99_seconds") {
		t.Errorf("precise %v, headlines %v", s.PreciseMetrics(), s.Headlines())
	}
	if rate := mustParse(t, goodSpec); slices.Contains(rate.Headlines(), "cpu_busy_share") != strings.Contains(goodSpec,
		"mode: closed") {
		t.Errorf("of a load at a fixed rate, the answer is said to speak of %v", rate.Headlines())
	}
	if err := s.Apply(Overrides{Until: 10 * time.Minute}); err != nil || s.Until != 10*time.Minute || s.Precision == nil {
		t.Errorf("%v: until %v", err, s.Until)
	}
	if err := s.Apply(Overrides{Blocks: 8}); err != nil || s.Open() {
		t.Errorf("%v: with a number of blocks it is still open", err)
	}
	for _, o := range []Overrides{{Blocks: 8, Precision: "5%"}, {Blocks: 8, Until: time.Minute}, {Precision: "500%"},
		{Until: -time.Second}} {
		if err := mustParse(t, shortSpec).Apply(o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
}

// TestStatistics: a spec can turn off the kernel's run statistics, and then the run time of programs is unknown, not 0.
func TestStatistics(t *testing.T) {
	if !mustParse(t, goodSpec).Statistics {
		t.Error("they are off where a spec says nothing")
	}
	off := mustParse(t, "statistics: false\n"+goodSpec)
	text, _ := json.Marshal(off)
	again, err := Parse("run.json", text, testFeatures)
	if err != nil || off.Statistics || again.Statistics {
		t.Errorf("%v, and again %v: %v", off.Statistics, again.Statistics, err)
	}
}
