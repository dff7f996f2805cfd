package engine

import (
	"slices"
	"testing"

	"tare/internal/scale/ledger"
)

// TestBesides: of the groups of a ledger, those are found that used CPU time, did not exist before, and belong neither
// to this trial nor to another one, each once with what is in it.
func TestBesides(t *testing.T) {
	group := func(path string, seconds float64) ledger.Cgroup {
		return ledger.Cgroup{Path: path, CPUSeconds: &seconds}
	}
	l := &ledger.Ledger{Cgroups: []ledger.Cgroup{
		group("/", 9), group("/docker", 2), group("/docker/new", 1.5), group("/docker/new/inside", 1.25),
		group("/docker/old", 1), group("/system.slice/run-u1.service", 0.5), group("/tare-trial-1/subject", 0.4),
		group("/tare-trial-2/subject", 0.3), group("/observed/worker", 0.2), group("/idle", 0), {Path: "/unknown"},
	}}
	before := map[string]bool{"/": true, "/docker": true, "/docker/old": true, "/observed": true}
	want := []string{"/docker/new, which used 1.500 s of CPU time",
		"/system.slice/run-u1.service, which used 0.500 s of CPU time"}
	if got := besides(l, before, []string{"/tare-trial-1", "/observed"}); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
