package measured

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/ledger"
)

// Trim reduces the ledgers to the contents that a trial's record must have: the groups of the trial, the groups at the
// top of the hierarchy, observed groups, the programs that ran or belong to the subject, and the maps that these
// programs use, without the inner maps of a large pool. A machine can have thousands of each, and a run thousands of
// trials.
func (m *Measured) Trim() {
	for _, l := range m.ledgers() {
		m.trimOne(l)
	}
}

// ledgers returns the ledgers of the window and of the further readings.
func (m *Measured) ledgers() []*ledger.Ledger {
	return append([]*ledger.Ledger{m.Ledger}, slices.Collect(maps.Values(m.Further))...)
}

func (m *Measured) trimOne(l *ledger.Ledger) {
	l.Cgroups = slices.DeleteFunc(l.Cgroups, func(g ledger.Cgroup) bool {
		return !cgroup.Within(g.Path, m.Tree) && g.Role == "" && (g.Vanished || strings.Count(g.Path, "/") > 1)
	})
	trimNoise(l, m.Tree)
	of := *m
	of.Ledger = l
	keep := of.SubjectMaps()
	mine := map[uint32]bool{}
	if m.Subject != nil {
		for _, o := range m.Subject.Programs {
			mine[o.ID] = true
		}
	}
	l.Programs = slices.DeleteFunc(l.Programs, func(p ledger.Program) bool {
		if ran := p.RunCount != nil && *p.RunCount > 0; !ran && !mine[p.ID] {
			return true
		}
		for _, id := range p.MapIDs {
			keep[id] = true
		}
		return false
	})
	for i := range l.Maps {
		outer := &l.Maps[i]
		if len(outer.Inner) <= MaxInnerKept {
			continue
		}
		for _, id := range outer.Inner {
			delete(keep, id)
		}
		l.Warnings = append(l.Warnings, ledger.Warning{Code: "inner-maps", Message: fmt.Sprintf(
			"map %d (%s) holds %d maps, which are left out of the record; the metrics of the trial count them", outer.ID,
			outer.Name, len(outer.Inner))})
		outer.Inner = []uint32{}
	}
	l.Maps = slices.DeleteFunc(l.Maps, func(mp ledger.Map) bool { return !keep[mp.ID] })
}

// maxStallsKept is the largest number of stalls of each kind that a record lists: the longest ones. Loads have received
// all stalls.
const maxStallsKept = 256

// trimNoise removes times in which the trial's own processes held a CPU, which are not noise but the object of the
// measurement, and all but the longest stalls.
func trimNoise(l *ledger.Ledger, tree string) {
	n := l.Noise
	if n == nil {
		return
	}
	mine := ownGroup(l, tree)
	n.Occupied = slices.DeleteFunc(n.Occupied, func(s ledger.Stall) bool { return mine(s.Cgroup) })
	n.Stalls, n.StallsOmitted = longest(n.Stalls, n.StallsOmitted)
	n.Occupied, n.OccupiedMissed = longest(n.Occupied, n.OccupiedMissed)
}

func longest(stalls []ledger.Stall, omitted int) ([]ledger.Stall, int) {
	left := len(stalls) - maxStallsKept
	if left <= 0 {
		return stalls, omitted
	}
	slices.SortStableFunc(stalls, func(a, b ledger.Stall) int { return cmp.Compare(b.Seconds, a.Seconds) })
	stalls = stalls[:maxStallsKept:maxStallsKept]
	slices.SortStableFunc(stalls, func(a, b ledger.Stall) int { return cmp.Compare(a.From, b.From) })
	return stalls, omitted + left
}

// MaxInnerKept is the largest number of maps inside one map of maps that a record lists. If there are more, it lists
// none of them: a pool can have ten thousand, all alike.
const MaxInnerKept = 64
