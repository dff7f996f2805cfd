package meter

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"reflect"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"tare/internal/lib/known"
	"tare/internal/scale/host/bpf"
	"tare/internal/scale/host/proc"
	"tare/internal/scale/ledger"
	"tare/test/busy"
)

// Windows that share their edges lose nothing: the sums over the windows of what a group and a program used equal the
// growth of their counters from the first edge to the last.
func TestNextSharesTheEdge(t *testing.T) {
	m := meter(t, Options{})
	p, id := planted(t)
	w, err := m.Open()
	if err != nil {
		t.Fatal(err)
	}
	first := w.first
	first.groups = maps.Clone(first.groups) // Next reuses the map
	runs := w.programs
	var sum struct {
		groups  map[string]int64
		runs    uint64
		ns      int64
		samples int
	}
	sum.groups = map[string]int64{}
	var end time.Time
	for i := range 8 {
		burn(20 * time.Millisecond)
		if err := busy.Run(p, 1000); err != nil {
			t.Fatal(err)
		}
		l, next, err := w.Next(i%3 == 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		if !end.IsZero() && !l.Window.Start.Equal(end) {
			t.Errorf("a window begins at %v, and the one before it ended at %v", l.Window.Start, end)
		}
		if !l.CPU.Closes() {
			t.Errorf("window %d does not close: %+v", i, l.CPU)
		}
		end, w = l.Window.End, next
		for _, g := range l.Cgroups {
			sum.groups[g.Path] += int64(math.Round(known.Or(g.CPUSeconds, 0) * 1e9))
		}
		sum.samples += l.Self.Samples
		found := program(l, id)
		if found == nil || found.RunCount == nil {
			t.Fatalf("window %d does not have the program: %+v", i, found)
		}
		sum.runs += *found.RunCount
		sum.ns += int64(math.Round(*found.RunSeconds * 1e9))
	}
	last := w.first
	for g, then := range last.groups {
		before, wasThere := first.groups[g]
		if want := int64(then.UsageNs.N - before.UsageNs.N); wasThere && sum.groups[g.Path] != want {
			t.Errorf("the windows have %d ns of %s, and its counter says %d", sum.groups[g.Path], g.Path, want)
		}
	}
	for key, then := range w.programs {
		if key.ID != id {
			continue
		}
		if want := then.RunCount - runs[key].RunCount; sum.runs != want || want != 8000 {
			t.Errorf("the windows have %d runs of the program, its counter says %d, and it ran 8000 times", sum.runs, want)
		}
		if want := int64(then.RunNs - runs[key].RunNs); sum.ns != want {
			t.Errorf("the windows have %d ns of the program, and its counter says %d", sum.ns, want)
		}
	}
	if m.sampler != nil && sum.samples == 0 {
		t.Error("no window has a sample")
	}
	if _, err := w.Close(); err != nil {
		t.Error(err)
	}
}

// Run statistics that are switched at the edge of two windows are on for all of the next one, however long it takes to
// read what is slow for the ledger of the last one.
func TestCountAtTheEdge(t *testing.T) {
	m := meter(t, Options{SampleHz: -1, NoWitness: true})
	p, id := planted(t)
	list := m.list
	m.list = func() (*bpf.Snapshot, error) { // is slow, and the program runs meanwhile
		if err := busy.Run(p, 1000); err != nil {
			t.Error(err)
		}
		return list()
	}
	w, err := m.Open()
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct {
		on   bool    // in the next window
		runs *uint64 // in this one
	}{{false, new(uint64(0))}, {true, nil}, {true, new(uint64(1000))}, {false, new(uint64(1000))}, {true, nil}} {
		var switching error
		l, next, err := w.Next(true, func() { switching = m.Count(c.on) })
		if err := errors.Join(err, switching); err != nil {
			t.Fatal(err)
		}
		w = next
		found := program(l, id)
		if found == nil || !reflect.DeepEqual(found.RunCount, c.runs) {
			t.Errorf("window %d: %+v", i, found)
		}
	}
	if _, err := w.Close(); err != nil {
		t.Error(err)
	}
}

func program(l *ledger.Ledger, id uint32) *ledger.Program {
	for i := range l.Programs {
		if l.Programs[i].ID == id {
			return &l.Programs[i]
		}
	}
	return nil
}

// A group that vanishes is forgotten after the window in which it vanished, and what it used stays with the group
// around it. A window in which reading failed is included in the next one.
func TestNextAfterGroupsAndErrors(t *testing.T) {
	m := meter(t, Options{SampleHz: -1})
	w, err := m.Open()
	if err != nil {
		t.Fatal(err)
	}
	groups := len(m.groups.Groups())
	for range 5 {
		dir := temporaryGroup(t)
		_, next, err := w.Next(true, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
		if _, next, err = next.Next(true, nil); err != nil {
			t.Fatal(err)
		}
		w = next
	}
	if now := len(m.groups.Groups()); now > groups+3 { // others come and go too
		t.Errorf("%d groups are kept, where there were %d", now, groups)
	}

	start := w.first.wall
	whole := m.fs
	m.fs = proc.FS{Root: t.TempDir()} // without /proc/stat
	if _, same, err := w.Next(false, nil); err == nil || same != w {
		t.Fatalf("with an error of the edge: window %p, before %p, error %v", same, w, err)
	}
	m.fs = whole
	l, next, err := w.Next(true, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !l.Window.Start.Equal(start) {
		t.Errorf("the window begins at %v, and its edge was at %v", l.Window.Start, start)
	}
	if err := next.Discard(); err != nil {
		t.Error(err)
	}
	l = ledgerOf(t, m, func() {})
	own := map[uint32]bool{}
	for _, p := range l.Programs {
		own[p.ID] = p.Own
	}
	for _, m := range l.Maps { // constants of the witness, which only its programs hold
		if m.Charge == "" && len(m.HeldBy) == 0 && len(m.UsedBy) > 0 && own[m.UsedBy[0]] {
			t.Errorf("a map of the scale's own programs is not its own: %+v", m)
		}
	}
	if !l.CPU.Closes() {
		t.Errorf("a window after one that was discarded does not close: %+v", l.CPU)
	}
}

// planted loads a program that runs on request.
func planted(t *testing.T) (p *ebpf.Program, id uint32) {
	t.Helper()
	p, err := busy.Load("tare_next")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	known, _ := info.ID()
	return p, uint32(known)
}

// temporaryGroup creates a control group in the hierarchy that counts CPU time.
func temporaryGroup(t *testing.T) string {
	t.Helper()
	dir, _ := cpuHierarchy(t).Dir(fmt.Sprintf("/tare-next-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skip("needs to make control groups: ", err)
	}
	t.Cleanup(func() { _ = os.Remove(dir) })
	return dir
}
