package subject

import (
	"os"
	"testing"
	"time"

	"tare/internal/scale/host/proc"
)

// TestReusedPID: what a process had used that has ended is not subtracted from the CPU time of one that has its PID.
func TestReusedPID(t *testing.T) {
	pid := os.Getpid()
	p, err := (proc.FS{}).Process(pid)
	if err != nil {
		t.Fatal(err)
	}
	found := map[*sandboxed][]int{{}: {pid}}
	for start, had := range map[uint64]bool{p.Start: true, p.Start - 1: false} {
		before := map[proc.Identity]time.Duration{{PID: pid, Start: start}: time.Hour}
		if got := cpuSince(found, before)[pid]; (got < 0) != had {
			t.Errorf("started at %d: %v s since 1h", start, got)
		}
	}
}
