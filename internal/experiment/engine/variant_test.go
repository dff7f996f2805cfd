package engine

import (
	"testing"
	"time"

	"tare/internal/experiment/load"
)

// TestVariantTrials: the delay that one arm sets is in its requests, and not in those of the baseline. test/bench/noise
// shows how exact it is.
func TestVariantTrials(t *testing.T) {
	const spec = `name: planted
question: Is a planted delay seen?
blocks: 1
warmup: 20ms
duration: 3s
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
		// No request can be faster than its delay; some requests of the baseline must be faster than the planted delay.
		if shortest := time.Duration(h.Min()); shortest < least-least/100 ||
			tr.Arm != "slow" && shortest >= 200*time.Millisecond {
			t.Errorf("%s: the fastest request took %s, with a delay of %s", tr.Arm, shortest, least)
		}
	}
}
