package controlplane

import (
	"strings"
	"testing"

	"tare/internal/lib/pace"
)

// TestRefusals: refusals are logged, in bounded number and length.
func TestRefusals(t *testing.T) {
	r := newRefusals()
	a := Answer{Node: "p\x1b[2J1", TypeURL: "type.googleapis.com/envoy.config.cluster.v3.Cluster", Refused: "no"}
	if line, ok := r.line(a); line != `p\x1b[2J1 refuses Cluster: no` || !ok {
		t.Errorf("%q, %v", line, ok)
	}
	a.Refused = strings.Repeat("ü", refusalBytes)
	if line, ok := r.line(a); len(line) > refusalBytes+100 || !strings.HasSuffix(line, "ü...") || !ok {
		t.Errorf("%d bytes, %v", len(line), ok)
	}
	logged, asked := 0, 10*refusalsAtOnce
	for range asked {
		if _, ok := r.line(a); ok {
			logged++
		}
	}
	if logged < refusalsAtOnce-2 || logged == asked {
		t.Errorf("%d of %d are logged", logged, asked)
	}
	r.logged = pace.NewBucket(0, 1, 0)
	if line, _ := r.line(a); !strings.HasSuffix(line, " refusals before this one are not shown") {
		t.Errorf("%.100q...", line)
	}
}
