package engine

import (
	"strings"
	"testing"
	"time"

	"tare/internal/experiment/load"
	"tare/internal/experiment/record"
)

// TestVariant: an arm's settings hold for that arm alone, at each level of the factors.
func TestVariant(t *testing.T) {
	text := strings.NewReplacer("light: {subject: kernelmesh}", `light: {subject: variant, set: "server.delay=1.5ms, other.body=256"}`).Replace(goodSpec)
	s, err := Parse("s.yaml", []byte(text), testFeatures)
	if err != nil {
		t.Fatal(err)
	}
	level := s.At(Level{"rate": "500", "arms.*.steps": "10"})
	for arm, want := range map[string][2]string{record.Direct: {"1ms", "128"}, record.AA: {"1ms", "128"}, "heavy": {"1ms", "128"}, "light": {"1.5ms", "256"}} {
		c := level.As(arm)
		got := [2]string{c.Applications["server"].Options["delay"], c.Applications["other"].Options["body"]}
		if got != want || c.Loads["client"].Options["rate"] != "500" {
			t.Errorf("%s: delay and body are %v, want %v; the rate is %s", arm, got, want, c.Loads["client"].Options["rate"])
		}
	}
	if s.Of("light") != nil || s.Of("heavy") == nil || len(s.Subjects()) != 1 {
		t.Errorf("a variant of a baseline without a subject has %v", s.Of("light"))
	}
}

// TestVariantTrials: the delay that one arm sets is in its requests, and not in those of the baseline. How exact it is,
// test/bench/noise shows.
func TestVariantTrials(t *testing.T) {
	const spec = `name: planted
question: Is a planted delay seen?
blocks: 1
warmup: 20ms
duration: 400ms
applications: {server: {kind: http, delay: 1ms}}
loads: {client: {kind: http, to: server, rate: 100, connections: 8}}
arms: {slow: {subject: variant, set: server.delay=201ms}}
gates: {rate: 0, lag: 60s, drift: 1000, errors: 1}
`
	g := newGround(t)
	_, trials, err := g.run(t.Context(), mustParse(t, spec), quiet)
	if err != nil {
		t.Fatal(err)
	}
	if len(trials) != 3 {
		t.Fatalf("%d trials", len(trials))
	}
	for _, tr := range trials {
		r := tr.Loads["client"]
		h, err := r.Histogram(load.Latency)
		if err != nil || h == nil || h.TotalCount() == 0 {
			t.Fatalf("%s: %v, %v: %+v", tr.Arm, h, err, tr.Validity)
		}
		least := time.Millisecond
		if tr.Arm == "slow" {
			least = 201 * time.Millisecond
		}
		// No request can be faster than its delay; of the baseline some must be faster than the planted one.
		if shortest := time.Duration(h.Min()); shortest < least-least/100 || tr.Arm != "slow" && shortest >= 200*time.Millisecond {
			t.Errorf("%s: the fastest request took %s, with a delay of %s", tr.Arm, shortest, least)
		}
	}
}
