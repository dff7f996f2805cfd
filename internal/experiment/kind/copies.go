package kind

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"tare/internal/lib/param"
)

// maxCopies bounds the count of a part: each copy is a process.
const maxCopies = 256

// CopySettings are settings that applications and loads have in addition to the settings of their kind.
var CopySettings = []param.Setting{{Name: CountSetting, Type: param.TypeCount, Default: "1", Max: maxCopies,
	Doc: "copies, each in its own control group, which divide rate, connections and limits evenly; 0, in a level of a " +
		"factor or a variant, leaves the part out"}}

// LimitSettings are the limits that a part can have (Part.TakesLimits).
var LimitSettings = []param.Setting{
	{Name: "cpus", Type: param.TypeNumber, Min: 0.01, Max: 4096,
		Doc: "CPUs that the group may use; 1 is one whole CPU"},
	{Name: "memory", Type: param.TypeBytes, Min: 4 << 20, Doc: "memory of the group"},
	{Name: "pin", Type: param.TypeCount, Min: 1, Max: 4096,
		Doc: "number, from 1, of the only CPU on which its process runs; wraps around on a machine with fewer CPUs"},
}

// LimitKeys returns LimitSettings with their keys below a part, such as limits.cpus.
func LimitKeys() []param.Setting {
	settings := slices.Clone(LimitSettings)
	for i := range settings {
		settings[i].Name = "limits." + settings[i].Name
	}
	return settings
}

// shared holds the options that the copies of a part divide among themselves. The value is true if a share need not be
// a whole number.
var shared = map[string]bool{"rate": true, "connections": false}

// CopyName returns the name of copy i, counted from 1, of a part. An only copy has the name of the part. Other names
// contain an underscore, so that no part of a spec can have them.
func CopyName(name string, i, of int) string {
	if of == 1 {
		return name
	}
	return name + "_" + strconv.Itoa(i)
}

// CheckCopies checks that each copy of a part gets a sufficient share of the options and limits that the copies divide,
// and that every copy of an application gets load.
func (s *Setup) CheckCopies(p *Part) error {
	n := p.Count()
	for _, k := range p.Settings() {
		if fraction, ok := shared[k.Name]; ok && !fraction && p.Options.Float(k.Name) < float64(n) {
			return fmt.Errorf("%q is of all %d copies together, and %s leaves some of them without any",
				k.Name, n, p.Options[k.Name])
		}
	}
	for _, k := range LimitSettings {
		if _, ok := p.Limits[k.Name]; ok && k.Name != "pin" && p.Limits.Float(k.Name)/float64(n) < k.Min {
			return fmt.Errorf("the limit %q is of all %d copies together, and each needs at least %s",
				k.Name, n, param.Number(k.Min))
		}
	}
	if to := s.Applications[p.To]; to != nil && to.Count() > n {
		return fmt.Errorf("%d copies of a load cannot reach %d copies of %q: each goes to one; give the load a %q of %d",
			n, to.Count(), p.To, CountSetting, to.Count())
	}
	return nil
}

// Copies returns the setup with every part whose count is above one replaced by its copies. Copy i of a load goes to
// copy i of its application, starting over if the load has more copies.
func (s *Setup) Copies() Setup { return s.replaced((*Part).Count, copyOf) }

// OnEach returns the setup with every part replaced by n copies, one for each of n nodes. Each has the options and the
// limits of the whole part.
func (s *Setup) OnEach(n int) Setup {
	return s.replaced(func(*Part) int { return n }, func(p *Part, _, _ int) *Part { return p.Clone() })
}

// replaced returns the setup with every part replaced by its copies, of which there are count(part).
func (s *Setup) replaced(count func(*Part) int, copyOf func(p *Part, i, n int) *Part) Setup {
	c := *s
	c.Applications, c.Loads = map[string]*Part{}, map[string]*Part{}
	for _, sec := range []struct{ from, into map[string]*Part }{
		{s.Applications, c.Applications}, {s.Loads, c.Loads},
	} {
		for _, name := range slices.Sorted(maps.Keys(sec.from)) {
			p := sec.from[name]
			for i, n := 0, count(p); i < n; i++ {
				q := copyOf(p, i, n)
				if to := s.Applications[p.To]; to != nil {
					q.To = CopyName(p.To, 1+i%count(to), count(to))
				}
				sec.into[CopyName(name, i+1, n)] = q
			}
		}
	}
	return c
}

// copyOf returns copy i, counted from 0, of n. It has an even share of the options and limits that the copies divide.
func copyOf(p *Part, i, n int) *Part {
	q := p.Clone()
	if n == 1 {
		return q
	}
	q.Options[CountSetting] = "1"
	for name, fraction := range shared {
		if _, ok := q.Options[name]; !ok {
			continue
		}
		if fraction {
			q.Options[name] = param.Number(p.Options.Float(name) / float64(n))
			continue
		}
		whole := int(p.Options.Float(name))
		part := whole / n
		if i < whole%n {
			part++
		}
		q.Options[name] = strconv.Itoa(part)
	}
	for _, name := range []string{"cpus", "memory"} {
		if _, ok := q.Limits[name]; ok {
			q.Limits[name] = param.Number(p.Limits.Float(name) / float64(n))
		}
	}
	return q
}
