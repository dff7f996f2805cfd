package subject

import (
	"cmp"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
	"tare/internal/lib/known"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/ledger"
)

// The places where memory and CPU time are charged. Kubernetes looks only at the pod's group.
const (
	placePod      = "pod"      // the groups of the applications
	placeOverhead = "overhead" // processes that a runtime keeps outside of the pod, if a setting says so
	placeOutside  = "outside"  // shims, and other processes that a runtime starts elsewhere
	placeLoad     = "load"     // a load that is not in a sandbox
)

// places returns, for each place, the memory and CPU time charged there in the ledger of the window, and the resident
// memory and CPU time of each component's processes and threads there.
func (e *Evidence) places(l *ledger.Ledger) []record.Place {
	if l == nil || len(e.Sandboxes) == 0 {
		return nil
	}
	subject := ""
	for _, g := range topsOfSubject(l) {
		subject = g.Path
	}
	loads := measured.Topmost(l, func(g *ledger.Cgroup) bool {
		return g.Role == string(kind.Load) && !e.inPod(g.Path)
	})
	totals := map[string]*total{placePod: newTotal()}
	at := func(place string) *total {
		if totals[place] == nil {
			totals[place] = newTotal()
		}
		return totals[place]
	}
	for i := range l.Cgroups {
		g := &l.Cgroups[i]
		switch {
		case e.isPod(g.Path):
			at(placePod).add(g)
		case g.Path == subject:
			at(placeOutside).add(g)
		case slices.Contains(loads, g):
			at(placeLoad).add(g)
		case subject != "" && path.Dir(g.Path) == path.Join(subject, overheadComponent):
			at(placeOverhead).add(g)
		}
	}
	if overhead := totals[placeOverhead]; overhead != nil {
		at(placeOutside).less(overhead)
	}
	placeOf := func(group string) string {
		switch {
		case e.inPod(group):
			return placePod
		case subject != "" && cgroup.Within(group, path.Join(subject, overheadComponent)):
			return placeOverhead
		}
		return placeOutside
	}
	seconds := l.Window.Seconds
	var all []record.Place
	for _, name := range []string{placePod, placeOverhead, placeOutside, placeLoad} {
		t := totals[name]
		if t == nil {
			continue
		}
		p := record.Place{Name: name, HardBytes: t.hard, SoftBytes: t.soft, CPUs: perSecond(t.cpu, seconds)}
		if name == placePod {
			p.Kubernetes = t.working
		}
		for _, c := range Components {
			if part, is := e.placed(c, name, seconds, placeOf); is {
				p.Components = append(p.Components, part)
			}
		}
		all = append(all, p)
	}
	return all
}

func (e *Evidence) isPod(group string) bool {
	return slices.ContainsFunc(e.Sandboxes, func(s Sandbox) bool { return s.Cgroup == group })
}

func (e *Evidence) inPod(group string) bool {
	return slices.ContainsFunc(e.Sandboxes, func(s Sandbox) bool { return cgroup.Within(group, s.Cgroup) })
}

// placed returns the part of a component that is charged to a place. The second result is false if there is none.
func (e *Evidence) placed(component, place string, seconds float64, placeOf func(string) string) (
	c record.PlacedComponent, is bool) {
	bytes, cpu := new(float64), new(float64)
	for _, s := range e.Sandboxes {
		for _, p := range s.Processes {
			if p.Component != component {
				continue
			}
			if placeOf(p.MemoryCgroup) == place {
				is = true
				bytes = known.Sum(bytes, new(float64(p.own().PSS)))
			}
			here := placeOf(p.CPUCgroup) == place
			elsewhere := 0.0
			for group, v := range p.CPUElsewhere {
				if elsewhere += v; placeOf(group) == place {
					is = true
					cpu = known.Sum(cpu, &v)
				}
			}
			if here {
				is = true
				cpu = known.Sum(cpu, known.As(p.CPUSeconds, func(all float64) float64 { return max(0, all-elsewhere) }))
			}
		}
	}
	return record.PlacedComponent{Component: component, Bytes: bytes, CPUs: perSecond(cpu, seconds)}, is
}

// perSecond returns CPU seconds per second, or nil if one of the two is unknown.
func perSecond(cpu *float64, seconds float64) *float64 {
	if seconds <= 0 {
		return nil
	}
	return known.As(cpu, func(v float64) float64 { return v / seconds })
}

// total adds up the bytes and CPU seconds charged to some groups. A field is nil if one of the groups does not report
// it.
type total struct{ hard, soft, working, cpu *float64 }

func newTotal() *total { return &total{new(float64), new(float64), new(float64), new(float64)} }

func (t *total) add(g *ledger.Cgroup) {
	m := cmp.Or(g.Memory, &ledger.Memory{})
	bytes := func(n *int64) *float64 { return known.As(n, func(n int64) float64 { return float64(n) }) }
	t.hard = known.Sum(t.hard, bytes(m.Hard))
	t.soft = known.Sum(t.soft, bytes(m.Soft))
	t.working = known.Sum(t.working, bytes(workingSet(m)))
	t.cpu = known.Sum(t.cpu, g.CPUSeconds)
}

// less subtracts what is charged to a part of the groups. No difference becomes less than 0.
func (t *total) less(part *total) {
	less := func(all, part *float64) *float64 {
		return known.As(known.Sum(all, known.Minus(part)), func(v float64) float64 { return max(0, v) })
	}
	t.hard, t.soft = less(t.hard, part.hard), less(t.soft, part.soft)
	t.working, t.cpu = less(t.working, part.working), less(t.cpu, part.cpu)
}

// threadTimes returns the CPU time that each thread of a process has used: the first field of
// /proc/PID/task/TID/schedstat, in ns (Documentation/scheduler/sched-stats.rst). It leaves out threads that end in the
// meantime.
func threadTimes(pid int) map[int]time.Duration {
	paths, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid)) // cannot fail: the pattern is well-formed
	times := map[int]time.Duration{}
	for _, path := range paths {
		text, _ := os.ReadFile(path)
		ran, _, _ := strings.Cut(string(text), " ")
		tid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if ns, err := strconv.ParseInt(ran, 10, 64); err == nil {
			times[tid] = time.Duration(ns)
		}
	}
	return times
}

// threads returns the CPU times of all processes' threads, by process, if the runtime may put threads of one process
// into different groups, as a runtime of virtual machines does with an option. Otherwise it returns nil, because the
// times take one read for each thread.
func (j *joined) threads(found map[*sandboxed][]int) map[int]map[int]time.Duration {
	if j.plain() || j.part.Options.On(settingOnly) {
		return nil
	}
	all := map[int]map[int]time.Duration{}
	for _, pids := range found {
		for _, pid := range pids {
			all[pid] = threadTimes(pid)
		}
	}
	return all
}

// elsewhere returns, by group, the CPU seconds of those threads of a process that are charged to a different group than
// its first thread. It counts from an earlier call of threadTimes, whose result is before. It returns nil if there are
// no such threads, or if before is nil.
func elsewhere(r *cgroup.Resolver, p Process, before map[int]time.Duration) map[string]float64 {
	if before == nil {
		return nil
	}
	var used map[string]float64
	for tid, now := range threadTimes(p.PID) {
		group, err := r.Path(tid)
		if err != nil || group == p.CPUCgroup {
			continue
		}
		if used == nil {
			used = map[string]float64{}
		}
		used[group] += (now - before[tid]).Seconds()
	}
	return used
}
