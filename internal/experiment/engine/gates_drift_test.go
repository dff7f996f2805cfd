package engine

import (
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tare/internal/experiment/load"
	"tare/internal/experiment/role"
	"tare/internal/lib/pace"
	loadhttp "tare/internal/workloads/load/http"
)

// TestDriftOfARealServer: a server that slows down in the middle of the window trips the gate, in open and in closed
// loop; one that is slow throughout does not.
func TestDriftOfARealServer(t *testing.T) {
	// Both are shorter than a slice of the window. They differ by more than what a machine adds if others hold its CPUs
	// for 50 ms at a time.
	const usual, slower = 20 * time.Millisecond, 120 * time.Millisecond
	for _, c := range []struct {
		name  string
		rate  float64
		after time.Duration
		says  string
	}{
		{"open, steady", 300, usual, ""},
		{"open, slowing down", 300, slower, "the median latency went from"},
		{"closed, steady", 0, usual, ""},
		{"closed, slowing down", 0, slower, "throughput went from"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			// Other work on the machine can stall a window or hide a change, so there are several attempts; with a broken gate,
			// all fail.
			for attempt := 1; ; attempt++ {
				says, r := driftOf(t, c.rate, usual, c.after)
				if c.says == "" && says == "" || c.says != "" && strings.Contains(says, c.says) {
					return
				}
				if attempt == 4 {
					t.Fatalf("says %q, want %q; slices %+v", says, c.says, r.Slices)
				}
			}
		})
	}
}

// driftOf puts load on a server that changes its delay in the middle of the window, and returns the gate's message and
// the result.
func driftOf(t *testing.T, rate float64, before, after time.Duration) (string, *load.Result) {
	t.Helper()
	s := role.Schedule{Warmup: 1e9, Duration: 4e9} // on a busy machine it takes a while to open all connections
	var change atomic.Int64                        // ns by pace.Now
	change.Store(math.MaxInt64)
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if pace.Now() < change.Load() {
			time.Sleep(before)
		} else {
			time.Sleep(after)
		}
	}))
	defer server.Close()
	g, err := loadhttp.Prepare(t.Context(), loadhttp.Options{Targets: []string{server.URL + "/"}, Arrivals: pace.Constant,
		Rate: rate, Connections: 64, KeepAlive: true})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	s.Begin = pace.Now() + 20e6
	change.Store(s.Begin + s.Warmup + s.Duration/2)
	r, err := g.Run(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	m := goodMeasurement(t)
	m.Loads = map[string]load.Result{"client": *r}
	for _, reason := range m.Judge() {
		if reason.Gate == "drift" {
			return reason.Message, r
		}
	}
	return "", r
}
