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
	"tare/internal/subject/tracer"
)

// The load that makes events, and the subjects that trace them.

// storm is the rate of a load that goes as fast as it can.
const storm = "storm"

// execLoad is the load that execs.
var execLoad = &Kind{
	Name:    "exec",
	Summary: "execs of a tiny program; it knows exactly how many it made",
	Knobs: []Knob{
		{Name: "rate", Type: TypeNumber, Words: []string{storm}, Default: storm, Min: 0.1, Max: exec.MaxRate, Phrase: map[string]string{"": "at {} execs/s", storm: "in a storm"}, Doc: "execs per second of all workers, on an absolute schedule; `storm`: one after the other, as fast as they go"},
		{Name: "workers", Type: TypeCount, Min: 1, Max: 1024, Doc: "processes that exec, each on a CPU of its own as far as there are; as many as CPUs when left out"},
	},
	alone: true,
	execs: true,
	check: func(o Options) error {
		if o.float(countKnob.Name) > 1 {
			return errors.New(`the events of one load are counted: give it more "workers" instead of a "count"`)
		}
		return nil
	},
	command: func(site) []string { return []string{"load", "exec", "--role"} },
	flags: func(o Options) []string {
		rate := "--rate=" + o["rate"]
		if o["rate"] == storm {
			rate = "--storm"
		}
		flags := []string{rate}
		if n, ok := o["workers"]; ok {
			flags = append(flags, "--workers="+n)
		}
		return flags
	},
	holdsConnections: func(Options) bool { return false },
}

// The knobs that all tracers have. They are the engine's.
const (
	knobOptional = "optional"
	knobDrain    = "drain"
	knobLate     = "late-after"
)

// traceKnobs are the settings of a tracer, those of its own first.
func traceKnobs(own ...Knob) []Knob {
	return append(own,
		Knob{Name: knobDrain, Type: TypeDuration, Default: "3s", Max: 600, Doc: "longest time after the load in which what is still to come is waited for; what has not come then, nor when the tracer is told to end, is lost"},
		Knob{Name: knobLate, Type: TypeDuration, Default: "100ms", Max: 600, Doc: "what comes longer than this after the load's end is late"},
		Knob{Name: knobOptional, Type: TypeSwitch, Default: "false", Doc: "true: where its program is not installed, the run goes on without the arm and says so"},
	)
}

// readyAfterKnob is of tracers that cannot tell, or not for sure, when they see everything.
func readyAfterKnob(more string) Knob {
	return Knob{Name: "ready-after", Type: TypeDuration, Max: 600, Doc: "time until it sees every exec, " + more}
}

// traceSubjects are the tracers of the catalogue as subjects.
var traceSubjects = func() []*Kind {
	knobs := map[string][]Knob{
		"exectrace": {
			{Name: "output", Type: TypeWord, Default: "json", Words: []string{"json", "count"}, Doc: "a line of JSON for each exec, which are counted here; or `count`: totals only, and its own word for them"},
			{Name: "ring", Type: TypeBytes, Doc: "size of its ring buffer, a power of two; its own choice when left out, as for all of these"},
			{Name: "args", Type: TypeCount, Max: 16384, Doc: "bytes of the arguments of an exec that it delivers"},
			{Name: "latency", Type: TypeDuration, Min: 0.001, Max: 1, Doc: "longest time that an event stays in the ring before its process is woken"},
		},
		"bpftrace": {
			{Name: "pages", Type: TypeCount, Min: 1, Max: 1 << 20, Doc: "pages of its buffer, for each CPU (BPFTRACE_PERF_RB_PAGES); its own choice when left out"},
			{Name: "args", Type: TypeCount, Min: 1, Max: 128, Doc: "bytes of the arguments of an exec that it delivers; 64 when left out"},
		},
		"ig": {
			{Name: "image", Type: TypeText, Doc: "image of the gadget; `trace_exec:latest` when left out"},
			readyAfterKnob("of which it says nothing; 5s when left out"),
		},
		"tetragon": {
			{Name: "lib", Type: TypeText, Doc: "directory of its eBPF objects (--bpf-lib); its own choice when left out"},
			readyAfterKnob("after it has said that it listens; 1s when left out"),
		},
		"falco": {readyAfterKnob("after it has said that it opens its source; 3s when left out")},
		"command": {
			{Name: "command", Type: TypeText, Doc: "command line, in words as a shell cuts it, with `{cgroup_dir}`, `{cgroup_id}`, `{cgroup_path}` of the load's control group, `{dir}` for a directory of its own, `{port}` for a free port and `{self}` for tare itself"},
			{Name: "version", Type: TypeText, Doc: "command line that prints its version, for the record"},
			{Name: "ready", Type: TypeText, Doc: "regular expression of the line, on either output, by which it says that it sees every exec from now on"},
			readyAfterKnob("after that line where there is one; 0s when left out"),
			{Name: "lines", Type: TypeText, Doc: "what it delivers is counted by lines: regular expression of those that are an event each; empty: all"},
			{Name: "json", Type: TypeText, Doc: "or by a running total in lines of JSON: its path, keys with dots between"},
			{Name: "prometheus", Type: TypeText, Doc: "or by a metric: name and labels, such as `events_total{type=\"exec\"}`; all samples that match are added up"},
			{Name: "stream", Type: TypeWord, Words: tracer.Streams, Doc: "output on which the lines of the first two are; `stdout` when left out"},
			{Name: "lost-lines", Type: TypeText, Doc: "what it says it lost: regular expression with one group, a number; these are added up"},
			{Name: "lost-json", Type: TypeText, Doc: "or a running total, as `json`"},
			{Name: "lost-prometheus", Type: TypeText, Doc: "or a metric, as `prometheus`"},
			{Name: "lost-stream", Type: TypeWord, Words: tracer.Streams, Doc: "output on which the lines of the first two are; `stderr` when left out"},
			{Name: "url", Type: TypeText, Doc: "page of its metrics, which may have `{port}` in it"},
			{Name: "scope", Type: TypeWord, Words: tracer.Scopes, Doc: "whose execs it delivers: those in the load's control group, or all of the machine; `group` when left out"},
			{Name: "signal", Type: TypeWord, Words: tracer.StopSignals, Doc: "signal on which it delivers what it still has, and ends; `INT` when left out"},
			{Name: "stop", Type: TypeDuration, Min: 0.1, Max: 600, Doc: "time that it gets for that; 15s when left out"},
			{Name: "ask", Type: TypeWord, Words: tracer.AskSignals, Doc: "signal on which it says its running totals; none when left out"},
		},
	}
	var kinds []*Kind
	for i := range tracer.Catalogue {
		e := &tracer.Catalogue[i]
		kinds = append(kinds, &Kind{
			Name: e.Name, Summary: e.Summary, Knobs: traceKnobs(knobs[e.Name]...), traces: e,
			check: func(o Options) error {
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
