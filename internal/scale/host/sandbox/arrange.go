package sandbox

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"tare/internal/lib/quantity"
	"tare/internal/scale/host/cgroup"
)

// arrange finds the row of the table that describes the sandbox. hierarchy is the one that counts memory.
func (t *table) arrange(s *Sandbox, hierarchy string) {
	for i := range t.Rows {
		if r := &t.Rows[i]; r.holds(t, s, hierarchy) {
			s.Row, s.Title = r.Name, r.Title
			return
		}
	}
}

func (r *row) holds(t *table, s *Sandbox, hierarchy string) bool {
	is := func(want, have string) bool { return want == "" || want == have }
	if !is(r.Runtime, s.Runtime) || !is(r.Flavour, s.Flavour) || !is(r.Engine, s.Engine) || !is(r.Driver, s.Driver) ||
		!is(r.Hierarchy, hierarchy) || slices.Contains(r.EngineNot, s.Engine) ||
		r.Plain && !t.runtime(s.Runtime).Plain ||
		r.Pod != nil && *r.Pod != (s.Pod.UID != "") {
		return false
	}
	if r.OverheadDriver != "" && !slices.ContainsFunc(s.Groups, func(g *Group) bool {
		return g.Place == PlaceOverhead && strings.HasSuffix(g.Path, ".scope") == (r.OverheadDriver == "systemd")
	}) {
		return false
	}
	if r.Program != "" && !slices.ContainsFunc(s.Processes, func(p *Process) bool {
		return p.Component == VMM && p.Program == r.Program
	}) {
		return false
	}
	has := func(c Component) bool { return s.parts(c) != nil }
	if slices.ContainsFunc(r.Absent, has) || slices.ContainsFunc(r.Has, func(c Component) bool { return !has(c) }) {
		return false
	}
	return s.chargedTo(r.CPU, func(p part) Place { return p.cpu.Place }) &&
		s.chargedTo(r.Memory, func(p part) Place { return p.memory.Place })
}

// chargedTo reports whether every listed component exists, and all of its parts are at places listed for it.
func (s *Sandbox) chargedTo(where charged, at func(part) Place) bool {
	for c, places := range where {
		parts := s.parts(c)
		if parts == nil || slices.ContainsFunc(parts, func(p part) bool { return !slices.Contains(places, at(p)) }) {
			return false
		}
	}
	return true
}

// part is a process, or a thread with a different component.
type part struct {
	process     *Process
	thread      bool
	cpu, memory Location
}

// parts returns the processes and threads of a component. Kernel threads have no memory and are left out.
func (s *Sandbox) parts(c Component) (all []part) {
	for _, p := range s.Processes {
		if p.Kernel {
			continue
		}
		if p.Component == c {
			all = append(all, part{p, false, p.CPU, p.Memory})
		}
		for i := range p.Threads {
			if t := &p.Threads[i]; t.Component == c {
				all = append(all, part{p, true, t.CPU, t.Memory})
			}
		}
	}
	return all
}

// among reports whether a list contains a place; a nil list contains every place.
func among(some []Place, p Place) bool { return some == nil || slices.Contains(some, p) }

// Sizes returns the resident memory of a process in bytes, and its definition ("PSS"); false if it is unknown.
type Sizes func(*Process) (bytes uint64, definition string, known bool)

// Findings returns the findings about a sandbox in the order of the table, one for each code and component.
func (c *Census) Findings(s *Sandbox, sizes Sizes) []Finding {
	t := builtin()
	var found []Finding
	for i := range t.Findings {
		r := &t.Findings[i]
		if r.Hierarchy != "" && r.Hierarchy != c.Memory || r.Row != "" && r.Row != s.Row ||
			r.Pod != nil && *r.Pod != (s.Pod.UID != "") || r.EmptyGroups && len(s.Empty) == 0 ||
			r.Alone && s.runsApplication() {
			continue
		}
		var left *Group
		var leftBytes uint64
		if r.Left != "" {
			if left, leftBytes = s.leftover(r.Left, sizes); left == nil {
				continue
			}
		}
		for _, component := range r.Components {
			parts := slices.DeleteFunc(s.parts(component), func(p part) bool { return !r.concerns(p) })
			if len(parts) == 0 {
				continue
			}
			words := s.words(component, parts, sizes)
			if left != nil {
				words = append(words, "{left_group}", left.inWords(s), "{left_size}", bytesOf(leftBytes))
			}
			found = append(found, Finding{r.Code, strings.NewReplacer(words...).Replace(r.Says)})
		}
	}
	return found
}

// runsApplication reports whether the application, or what runs it, was found.
func (s *Sandbox) runsApplication() bool {
	return slices.ContainsFunc(s.Processes, func(p *Process) bool {
		return p.Component == Workload || p.Component == VMM || p.Component == Sentry
	})
}

// concerns reports whether a part is charged as the rule requires.
func (r *findingRule) concerns(p part) bool {
	if r.Any != nil && !slices.Contains(r.Any, p.cpu.Place) && !slices.Contains(r.Any, p.memory.Place) {
		return false
	}
	if p.thread && r.Any != nil && !slices.Contains(r.Any, p.cpu.Place) {
		return false
	}
	return among(r.CPU, p.cpu.Place) && among(r.Memory, p.memory.Place) && among(r.LeaderMemory, p.process.Memory.Place)
}

// words returns the replacements for the {names} in a finding's text.
func (s *Sandbox) words(c Component, parts []part, sizes Sizes) []string {
	var sum uint64
	size, definition := "size not read", ""
	counted := map[*Process]bool{}
	for _, p := range parts {
		if counted[p.process] {
			continue
		}
		counted[p.process] = true
		if bytes, by, known := sizes(p.process); known {
			sum, definition = sum+bytes, by
		}
	}
	if definition != "" {
		size = bytesOf(sum) + " " + definition
	}
	owner := "its pod"
	if s.Pod.UID == "" {
		owner = "the groups of its sandbox"
	}
	first := parts[0]
	return []string{
		"{sandbox}", s.label(), "{component}", ComponentName(c), "{size}", size, "{owner}", owner,
		"{cpu}", first.cpu.inWords(s), "{memory}", first.memory.inWords(s), "{empty}", strconv.Itoa(len(s.Empty)),
	}
}

func bytesOf(n uint64) string { return quantity.Value(float64(n), quantity.Bytes) }

// inWords returns a readable name of a group: the pod, the overhead group, the service.
func (l Location) inWords(s *Sandbox) string {
	base := l.Path[strings.LastIndexByte(l.Path, '/')+1:]
	switch l.Place {
	case PlaceRoot:
		return "the root group"
	case PlaceService:
		return base
	case PlaceOverhead:
		return shorten(strings.TrimPrefix(l.Path, "/"))
	case PlacePod, PlaceSandbox:
		if l.Inside && s.Pod.UID != "" {
			return "the pod"
		}
	case PlaceContainer:
		if l.Inside {
			return fmt.Sprintf("the group %s", shorten(base))
		}
	}
	return shorten(l.Path)
}

// label returns a readable id: short, with the name of the pod or container if known.
func (s *Sandbox) label() string {
	switch {
	case s.Pod.Name != "":
		return shorten(s.ID) + " (" + s.Pod.Namespace + "/" + s.Pod.Name + ")"
	case s.Name != "":
		return shorten(s.ID) + " (" + s.Name + ")"
	}
	return shorten(s.ID)
}

// shorten reduces a full id anywhere in a name to its first 12 digits, as engines print it.
func shorten(name string) string {
	const long, short = 64, 12
	run := 0
	for i := 0; i < len(name); i++ {
		c := name[i]
		if c >= '0' && c <= '9' || c >= 'a' && c <= 'f' {
			run++
		} else {
			run = 0
		}
		if run == long {
			return name[:i+1-long+short] + name[i+1:]
		}
	}
	return name
}

// ComponentName returns the name of a component for use in sentences.
func ComponentName(c Component) string {
	switch c {
	case VMM:
		return "VMM"
	case VCPU:
		return "vCPU threads"
	case Workload:
		return "application"
	}
	return string(c)
}

// leftoverBytes is the threshold from which a group holds noticeably more than its processes: page tables and kernel
// memory of small processes are below it.
const leftoverBytes = 8 << 20

// leftover finds a group of the given kind that holds noticeably more anonymous and shared memory than its processes,
// and returns the excess. It returns nil if there is none, or if the memory of one of the processes is unknown.
func (s *Sandbox) leftover(kind Place, sizes Sizes) (*Group, uint64) {
	for _, g := range s.Groups {
		if g.Place != kind || g.Reading == nil {
			continue
		}
		m := g.Reading.Memory
		if !m.Anon.OK || !m.Shmem.OK {
			continue
		}
		var accounted uint64
		for _, p := range s.Processes {
			if !cgroup.Within(p.Memory.Path, g.Path) {
				continue
			}
			bytes, _, known := sizes(p)
			if !known {
				return nil, 0 // unknown
			}
			accounted += bytes
		}
		if held := m.Anon.N + m.Shmem.N; held > accounted+leftoverBytes {
			return g, held - accounted
		}
	}
	return nil, 0
}
