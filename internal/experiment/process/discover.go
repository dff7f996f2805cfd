package process

import (
	"slices"
	"time"

	"tare/internal/scale/host/proc"
	"tare/internal/scale/ledger"
)

// Found holds what belongs to a command: its processes with their memory, and its eBPF programs and maps.
type Found struct {
	Processes []Process `json:"processes"`
	// RSS is the sum of the resident memory of the processes, in bytes, and RSSPeak the sum of their peaks. A page that
	// several of them share counts several times.
	RSS     uint64 `json:"rss_bytes"`
	RSSPeak uint64 `json:"rss_peak_bytes"`
	Objects
}

// Process is one process of a command.
type Process struct {
	PID  int    `json:"pid"`
	PPID int    `json:"ppid"`
	Comm string `json:"comm"`
	RSS  uint64 `json:"rss_bytes"`
	// Outside is true if it is outside the command's control group, whose counters therefore leave it out.
	Outside bool `json:"outside,omitempty"`
}

// Objects holds eBPF programs and maps of a command.
type Objects struct {
	Programs []Object `json:"programs"`
	Maps     []Object `json:"maps"`
	// Incomplete is true if some may be missing: a program or a map was held only by processes that have ended since the
	// ledger was read, and may have belonged to the command. Objects that existed before the command do not count.
	Incomplete bool `json:"-"`
	// Unheld holds the names of programs that may belong to an observed program, but no process holds them: they are
	// pinned, or attached for good. Existing.Found sets it.
	Unheld []string `json:"-"`
}

// Object is an eBPF program or map.
type Object struct {
	ID   uint32 `json:"id"`
	Name string `json:"name"`
	// Held is false if no process of the command holds the object: it was pinned, or left attached. That it belongs to
	// the command is then inferred.
	Held bool `json:"held"`
	// Replaced is true for a program that was unloaded inside the window, if the command loaded a newer one of the same
	// name and type in the window. That the old one belongs to the command is inferred from that.
	Replaced bool `json:"replaced,omitempty"`
}

// Discover finds the processes, programs and maps of a command. The argument inside holds the processes in the
// command's control group, and atEdge the processes that belonged to the command when the ledger was read. If whole is
// true, descendants of the processes in other groups belong to the command too. For a group that existed before the
// trial, whole must be false: a container runtime, for example, has many descendants that are no part of it. ObjectsOf
// says which programs and maps of the ledger belong to the command.
func Discover(f proc.FS, inside, atEdge []int, whole bool, l *ledger.Ledger, began time.Time) (Found, error) {
	all := inside
	if whole {
		all = WithDescendants(f, inside)
	}
	found := Found{Processes: []Process{}}
	for _, p := range stat(f, slices.Clone(all)) {
		if !p.Alive() {
			continue
		}
		now, peak, err := ResidentOf(f, []int{p.PID})
		if err != nil {
			return Found{}, err
		}
		found.Processes = append(found.Processes, Process{PID: p.PID, PPID: p.PPID, Comm: p.Comm, RSS: now,
			Outside: !slices.Contains(inside, p.PID)})
		found.RSS, found.RSSPeak = found.RSS+now, found.RSSPeak+peak
	}
	found.Objects = ObjectsOf(f, l, slices.Concat(all, atEdge), began)
	return found, nil
}

// clocks is the most by which the kernel's load time of a program may differ from the wall clock.
const clocks = 100 * time.Millisecond

// ObjectsOf returns the eBPF programs and maps in a ledger that belong to processes, which may have ended since:
//
//   - programs and maps that they hold, by a descriptor of the object, or of a link or a perf event;
//   - programs that were unloaded inside the window, if one of those programs has the same name and type and was
//     loaded later in the window;
//   - programs that no process holds and that were loaded since began: pinned in bpffs, or attached for good;
//   - maps that no process holds, if all their users are such programs, and maps inside such a map that no other
//     process holds.
//
// If began is zero, objects that no process holds are left out: other processes may have loaded them. Tare's own
// programs are never included.
func ObjectsOf(f proc.FS, l *ledger.Ledger, pids []int, began time.Time) Objects {
	o := Objects{Programs: []Object{}, Maps: []Object{}, Incomplete: orphaned(f, l, pids, began)}
	programs := map[uint32]bool{}
	for _, p := range l.Programs {
		held := holds(pids, p.Owners)
		loose := len(p.Owners) == 0 && !p.Unloaded && !began.IsZero() && p.LoadedAt != nil &&
			p.LoadedAt.After(began.Add(-clocks))
		if !p.Own && (held || loose) {
			programs[p.ID] = true
			o.Programs = append(o.Programs, Object{ID: p.ID, Name: p.Name, Held: held})
		}
	}
	for _, p := range replaced(l, programs) {
		o.Programs = append(o.Programs, Object{ID: p.ID, Name: p.Name, Replaced: true})
	}
	maps := map[uint32]bool{}
	for grown := true; grown; { // maps of maps can be found in any order
		grown = false
		for _, m := range l.Maps {
			if !maps[m.ID] && (holds(pids, m.HeldBy) || len(m.HeldBy) == 0 && used(m, programs, maps, l.Maps)) {
				maps[m.ID], grown = true, true
			}
		}
	}
	for _, m := range l.Maps {
		if maps[m.ID] {
			o.Maps = append(o.Maps, Object{ID: m.ID, Name: m.Name, Held: holds(pids, m.HeldBy)})
		}
	}
	return o
}

// orphaned reports whether there is a program or a map in a ledger that only processes outside pids held, all of which
// have ended. It leaves out programs that were loaded before began, and maps that such a program uses, because they
// belong to other processes.
func orphaned(f proc.FS, l *ledger.Ledger, pids []int, began time.Time) bool {
	older := map[uint32]bool{}
	for _, p := range l.Programs {
		older[p.ID] = p.LoadedAt != nil && p.LoadedAt.Before(began.Add(-clocks)) // never before a zero began
	}
	living := map[int]bool{}
	lives := func(o ledger.Owner) bool {
		if _, known := living[o.PID]; !known {
			living[o.PID] = len(alive(f, []int{o.PID})) > 0
		}
		return living[o.PID]
	}
	lost := func(holders []ledger.Owner) bool {
		return len(holders) > 0 && !holds(pids, holders) && !slices.ContainsFunc(holders, lives)
	}
	return slices.ContainsFunc(l.Programs, func(p ledger.Program) bool {
		return !p.Own && !older[p.ID] && lost(p.Owners)
	}) || slices.ContainsFunc(l.Maps, func(m ledger.Map) bool {
		return lost(m.HeldBy) && !slices.ContainsFunc(m.UsedBy, func(id uint32) bool { return older[id] })
	})
}

// replaced returns the programs that were unloaded inside the window of a ledger, if one of the given programs has the
// same name and type and was loaded later in the window.
func replaced(l *ledger.Ledger, programs map[uint32]bool) (old []ledger.Program) {
	for _, p := range l.Programs {
		by := func(q ledger.Program) bool {
			return programs[q.ID] && !q.Unloaded && q.Name == p.Name && q.Type == p.Type && p.LoadedAt != nil &&
				q.LoadedAt != nil && q.LoadedAt.After(*p.LoadedAt) && q.LoadedAt.After(l.Window.Start.Add(-clocks))
		}
		if p.Unloaded && !p.Own && !programs[p.ID] && p.Name != "" && slices.ContainsFunc(l.Programs, by) {
			old = append(old, p)
		}
	}
	return old
}

// unheld returns the names of the programs in a ledger that no process holds and that ran in its window, or may have.
// Those that container engines attach to the group of each container, to decide which devices it may open, are left
// out.
func unheld(l *ledger.Ledger) (names []string) {
	for _, p := range l.Programs {
		ran := p.RunCount == nil || *p.RunCount > 0
		if ran && !p.Own && len(p.Owners) == 0 && !p.Unloaded && p.Type != "cgroup_device" {
			names = append(names, p.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func holds(pids []int, holders []ledger.Owner) bool {
	return slices.ContainsFunc(holders, func(o ledger.Owner) bool { return slices.Contains(pids, o.PID) })
}

// used reports whether a map has users (programs or outer maps), and all of them belong to the command.
func used(m ledger.Map, programs, maps map[uint32]bool, all []ledger.Map) bool {
	users := 0
	for _, id := range m.UsedBy {
		if !programs[id] {
			return false
		}
		users++
	}
	for _, outer := range all {
		if !slices.Contains(outer.Inner, m.ID) {
			continue
		}
		if !maps[outer.ID] {
			return false
		}
		users++
	}
	return users > 0
}
