package xds

import (
	"fmt"
	"testing"
	"time"
)

// Whether one resource has waited for long enough is found out without a look at all that wait: those of a large mesh
// become overdue at once.
func TestOverdue(t *testing.T) {
	g := newGraph(Options{Timeouts: Timeouts{Need: time.Second}}.withDefaults())
	needs := []Ref{{Clusters, "missing"}}
	for i := range 1000 {
		name := fmt.Sprint("listener ", i)
		g.want(Ref{Listeners, name}, &Resource{Name: name, Needs: needs})
	}
	hungry := g.hungry()
	if len(hungry) != 1000 || len(g.ready()) != 0 {
		t.Fatalf("%d resources wait and %d are ready, want 1000 and none", len(hungry), len(g.ready()))
	}
	one := Ref{Listeners, "listener 7"}
	if g.overdue(one, time.Second) || g.overdue(Ref{Listeners, "unknown"}, time.Hour) || g.overdue(needs[0], time.Hour) {
		t.Error("overdue before its time, or without being wanted")
	}
	if made := testing.AllocsPerRun(100, func() { g.overdue(one, 2*time.Second) }); made > 1 {
		t.Errorf("%v allocations to look at one of 1000", made)
	}
	for r := range hungry {
		if !g.overdue(r, 2*time.Second) {
			t.Fatalf("%v is not overdue", r)
		}
	}
	if n := len(g.ready()); n != 1000 || len(g.hungry()) != 0 {
		t.Errorf("%d resources are ready and %d wait, want 1000 and none", n, len(g.hungry()))
	}
}
