package profile

import (
	"cmp"
	"errors"
	"fmt"

	pprof "github.com/google/pprof/profile"

	"tare/internal/lib/known"
	"tare/internal/scale/host/ksym"
	"tare/internal/scale/ledger"
)

// OfLedger makes the profile of a window, with the CPU times and labels of groups from a ledger of the same window,
// and names of functions from the kernel. If the kernel hides its names, a comment in the profile says so.
func OfLedger(w *Window, l *ledger.Ledger) (*pprof.Profile, error) {
	table := ksym.Open()
	defer table.Close()
	return ofLedger(w, l, table.Resolve)
}

func ofLedger(w *Window, l *ledger.Ledger, kernel func([]uint64) ([]string, error)) (*pprof.Profile, error) {
	hidden := false
	names := func(addresses []uint64) ([]string, error) {
		names, err := kernel(addresses)
		if hidden = errors.Is(err, ksym.ErrHidden); hidden {
			return make([]string, len(addresses)), nil
		}
		return names, err
	}
	apart := l.Host.IRQTime != nil && *l.Host.IRQTime
	p, err := Build(w, NewFiles(names), groupsOf(l), apart)
	if err == nil && hidden {
		lacks := fmt.Sprintf("functions of the kernel have no names: %v", ksym.ErrHidden)
		if apart {
			lacks += "; interrupts cannot be recognised, and have a part of the CPU time of groups, which is without them"
		}
		p.Comments = append(p.Comments, lacks)
	}
	return p, err
}

// groupsOf returns the groups of a ledger, by path.
func groupsOf(l *ledger.Ledger) map[string]Group {
	tree, groups := ledger.NewTree(l.Cgroups), map[string]Group{}
	for i, own := range l.OwnCPU(tree) {
		g := &l.Cgroups[i]
		labels := map[string]string{"charge": string(g.Charge), "component": g.Component, "workload": g.Workload}
		if g.Name != nil {
			labels["namespace"], labels["pod"], labels["container"] = g.Name.Namespace, g.Name.Pod, g.Name.Container
			labels["unit"] = g.Name.Unit
		}
		is := Group{Seconds: known.As(own, func(ns int64) float64 { return float64(ns) / 1e9 }), Labels: labels,
			Alone: l.CountsCPUs(g)}
		if was, twice := groups[g.Path]; twice { // the group was removed and created again
			if is.Seconds = sumOfKnown(was.Seconds, is.Seconds); g.Vanished {
				is.Labels = was.Labels
			}
		}
		groups[g.Path] = is
	}
	return groups
}

// sumOfKnown returns the sum of the values that are known (unlike known.Sum), and nil if neither is.
func sumOfKnown(a, b *float64) *float64 {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	return new(*a + *b)
}
