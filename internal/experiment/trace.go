package experiment

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"tare/internal/fault"
	"tare/internal/load/exec"
	"tare/internal/param"
	"tare/internal/subject/tracer"
)

// The load that makes events, and the subjects that trace them.

// execLoad is the load that execs.
var execLoad = &Kind{
	Name:     "exec",
	Summary:  "execs of a tiny program; it knows exactly how many it made",
	Settings: exec.Settings,
	alone:    true,
	execs:    true,
	check: func(o param.Values) error {
		if o.Float(countKnob.Name) > 1 {
			return errors.New(`the events of one load are counted: give it more "workers" instead of a "count"`)
		}
		return nil
	},
	command:          func(site) []string { return []string{"load", "exec", "--role"} },
	holdsConnections: func(param.Values) bool { return false },
}

// The knobs that all tracers have. They are the engine's.
const (
	knobOptional = "optional"
	knobDrain    = "drain"
	knobLate     = "late-after"
)

// traceKnobs are the settings that all tracers have, beside their own.
var traceKnobs = []param.Setting{
	{Name: knobDrain, Type: param.TypeDuration, Default: "3s", Max: 600,
		Doc: "longest time after the load in which what is still to come is waited for; what has not come then, nor when the " +
			"tracer is told to end, is lost"},
	{Name: knobLate, Type: param.TypeDuration, Default: "100ms", Max: 600,
		Doc: "what comes longer than this after the load's end is late"},
	{Name: knobOptional, Type: param.TypeSwitch, Default: "false",
		Doc: "true: where its program is not installed, the run goes on without the arm and says so"},
}

// traceSubjects are the tracers of the catalogue as subjects.
var traceSubjects = func() []*Kind {
	var kinds []*Kind
	for i := range tracer.Catalogue {
		e := &tracer.Catalogue[i]
		kinds = append(kinds, &Kind{
			Name: e.Name, Summary: e.Summary, Settings: slices.Concat(e.Settings, traceKnobs), traces: e,
			check: func(o param.Values) error {
				if _, err := e.Make(o); err != nil {
					return fmt.Errorf("a tracer of kind %s %w", e.Name, err)
				}
				return nil
			},
		})
	}
	return kinds
}()

// execs is the name of the load whose events are counted; empty where there is none.
func (s *Spec) execs() string {
	for _, name := range slices.Sorted(maps.Keys(s.Loads)) {
		if s.Loads[name].Kind.execs {
			return name
		}
	}
	return ""
}

// checkTraces sees that there is one load whose events are counted, where some arm is to trace them. The error reads on after the path.
func (s *Spec) checkTraces() (path string, err error) {
	loads := 0
	for _, name := range slices.Sorted(maps.Keys(s.Loads)) {
		if s.Loads[name].Kind.execs {
			if loads++; loads > 1 {
				return "loads." + name, fmt.Errorf(`a second load of kind %s: the events of one are counted; give that more "workers"`, execLoad.Name)
			}
		}
	}
	for _, sec := range s.sections() {
		for _, name := range slices.Sorted(maps.Keys(sec.parts)) {
			if p := sec.parts[name]; p.Kind.traces != nil && loads == 0 {
				return sec.path(name), fmt.Errorf("a tracer (%s) needs something to trace: give the spec a load of kind %s", p.Kind.Name, execLoad.Name)
			}
		}
	}
	return "", nil
}

// tracer is the tracer that the part describes, whose options have been checked.
func (p *Part) tracer() (*tracer.Tracer, error) {
	t, err := p.Kind.traces.Make(p.Options)
	if err != nil {
		return nil, fmt.Errorf("a tracer of kind %s %w", p.Kind.Name, err)
	}
	return t, nil
}

// LeaveOutAbsent takes those arms out of the spec whose program is not installed here and which may be missing, and says why, by arm. One
// that may not be missing is an error of code Machine.
func (s *Spec) LeaveOutAbsent() (map[string]string, error) {
	absent := map[string]string{}
	for _, l := range s.Levels() {
		c := s.At(l)
		for _, sec := range c.sections() {
			for _, name := range slices.Sorted(maps.Keys(sec.parts)) {
				p := sec.parts[name]
				if p.Kind.traces == nil || absent[name] != "" {
					continue
				}
				t, err := p.tracer()
				if err != nil {
					return nil, err
				}
				missing := t.Installed()
				switch {
				case missing == nil:
				case sec.name == "arms" && p.Options[knobOptional] == "true":
					absent[name] = fmt.Sprintf("%s; %s", missing, fault.MendOf(missing))
				default:
					return nil, fault.Wrap(missing, fault.Machine, sec.path(name), fault.MendOf(missing)+"; or write optional: true, and the run goes on without the arm", "this machine cannot run the arm")
				}
			}
		}
	}
	if len(absent) == 0 {
		return nil, nil
	}
	maps.DeleteFunc(s.Arms, func(name string, _ *Part) bool { return absent[name] != "" })
	// A factor that sets nothing any more would repeat every trial, and be refused when the resolved spec is read again.
	for i := range s.Factors {
		f := &s.Factors[i]
		f.paths = slices.DeleteFunc(slices.Clone(f.paths), func(p string) bool { _, ok := s.target(p); return !ok })
	}
	s.Factors = slices.DeleteFunc(s.Factors, func(f Factor) bool { return len(f.paths) == 0 })
	if s.Quick != nil {
		q := *s.Quick
		q.Arms = slices.DeleteFunc(slices.Clone(q.Arms), func(name string) bool { return s.Arms[name] == nil })
		q.Levels = maps.Clone(q.Levels)
		maps.DeleteFunc(q.Levels, func(name string, _ []string) bool {
			return !slices.ContainsFunc(s.Factors, func(f Factor) bool { return f.Name == name })
		})
		s.Quick = &q
	}
	return absent, nil
}

// SubjectVersions are the versions of what the arms weigh, by name: own is that of subjects which are roles of this binary.
func (s *Spec) SubjectVersions(ctx context.Context, own string) map[string]string {
	versions := map[string]string{}
	for _, p := range s.Subjects() {
		if p.Kind.traces == nil {
			versions[p.Kind.Name] = own
			continue
		}
		t, err := p.tracer()
		if err != nil {
			continue // it has been checked
		}
		name := p.Kind.Name
		if name == "command" && !t.Self() {
			name = filepath.Base(t.Argv[0])
		}
		switch _, known := versions[name]; {
		case known:
		case t.Self():
			versions[name] = own
		default:
			versions[name] = strings.TrimPrefix(t.VersionText(ctx), name+" ")
		}
	}
	return versions
}

// Bounds of waiting for counts.
const (
	stable     = 300 * time.Millisecond // a count that has not changed for so long is settled
	settleTime = 2 * time.Second        // before the load
	pollEvery  = 50 * time.Millisecond

	tracerTimeout = 2 * time.Minute // for it to be ready: some compile first, and may have a twentieth of a CPU to do it with
)
