package services

import (
	"testing"

	"tare/internal/experiment/kind"
)

// TestRegistered: loads of other protocols cannot use the mesh.
func TestRegistered(t *testing.T) {
	g := kind.Find(kind.Application, "mesh")
	if g == nil || g.About().Protocol != Protocol {
		t.Fatalf("found %v", g)
	}
	if _, ok := g.(kind.Player); !ok {
		t.Error("it has no process")
	}
}
