package meter

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/ledger"
)

// TestMemoryElsewhere: if processes of a group are in another group of the memory hierarchy, the group's CPU time is
// known and its memory is not, even if the memory hierarchy has a group with its name. The same applies to the groups
// above. If the processes are in the group in both hierarchies, its memory is known.
func TestMemoryElsewhere(t *testing.T) {
	m := meter(t, Options{SampleHz: -1, NoWitness: true})
	cpu := cpuHierarchy(t)
	memory, ok := m.layout.Controller("memory")
	if !ok || memory == cpu {
		t.Skip("needs a hierarchy of its own for memory, as of cgroup v1")
	}
	outer := fmt.Sprintf("/tare-test-memory-%d", os.Getpid())
	inner, beside := outer+"/inner", outer+"/beside"
	w, other := startWorker(t), startWorker(t)
	for _, h := range []*cgroup.Hierarchy{cpu, memory} {
		for _, path := range []string{outer, inner, beside} {
			dir, _ := h.Dir(path)
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Skip("needs to make control groups: ", err)
			}
			t.Cleanup(func() {
				if err := os.Remove(dir); err != nil {
					t.Error(err)
				}
			})
		}
		dir, _ := h.Dir(beside)
		other.join(t, dir+"/cgroup.procs")
	}
	t.Cleanup(func() { // before the groups are removed
		for _, w := range []*worker{w, other} {
			w.in.Close()
			_ = w.cmd.Wait()
		}
	})
	dir, _ := cpu.Dir(inner)
	w.join(t, dir+"/cgroup.procs")
	for _, elsewhere := range []bool{true, false} {
		if !elsewhere {
			dir, _ := memory.Dir(inner)
			w.join(t, dir+"/cgroup.procs")
		}
		l := ledgerOf(t, m, func() { w.work(t) })
		for _, path := range []string{outer, inner, beside} {
			i := slices.IndexFunc(l.Cgroups, func(g ledger.Cgroup) bool { return g.Path == path })
			if i < 0 || l.Cgroups[i].CPUSeconds == nil {
				t.Fatalf("%s: %+v", path, l.Cgroups[max(i, 0)])
			}
			if lacks := l.Cgroups[i].Memory == nil; lacks != (elsewhere && path != beside) {
				t.Errorf("elsewhere is %v: %s has the memory %+v", elsewhere, path, l.Cgroups[i].Memory)
			}
		}
		said := messageOf(l, "memory-elsewhere")
		who := fmt.Sprintf("%s is not known: process %d (sh)", outer, w.cmd.Process.Pid)
		if strings.Contains(said, who) != elsewhere {
			t.Errorf("elsewhere is %v: the warning is %q", elsewhere, said)
		}
	}
	m.elsewhere, m.lookEvery = map[string]string{inner: "as it was"}, time.Hour // as in a lean meter
	if err := m.lookElsewhere(); err != nil || m.elsewhere[inner] != "as it was" {
		t.Errorf("a lean meter has looked again: %v, %v", err, m.elsewhere)
	}
}
