package kind

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"tare/internal/experiment/load"
	"tare/internal/experiment/record"
	"tare/internal/lib/param"
)

// CountSetting is the setting of applications and loads for the number of copies of a part.
const CountSetting = "count"

// The groups inside the trial's group. WorkGroup holds the applications and the loads, each in a group of its name.
const (
	WorkGroup    = "work"
	SubjectGroup = "subject"
)

// EventMaker is a load whose pieces of work are not requests but events, which something else must deliver. Such a load
// starts thousands of processes, so the scheduler treats the groups of its trials as one if possible, and counters are
// read at a real-time priority.
type EventMaker interface {
	// Events returns how many events it made from its first to its last, and how many attempts failed.
	Events(*load.Result) (made, failed int64)
}

// Part is an application, a load or an arm's subject in an experiment.
type Part struct {
	Kind    Guest
	To      string // loads: the application to which it connects
	Options param.Values
	Limits  param.Values // limits of its control group; empty: none
}

// Name returns the name of its kind.
func (p *Part) Name() string { return p.Kind.About().Name }

// Settings returns the settings of its kind.
func (p *Part) Settings() []param.Setting { return p.Kind.About().Settings }

// Count returns how many copies of the part run.
func (p *Part) Count() int { return max(1, int(p.Options.Float(CountSetting))) }

// TakesTo reports whether the part, a load, can connect to an application.
func (p *Part) TakesTo() bool { return p.Kind.About().Protocol != "" }

// GoesTo reports whether the part, a load, connects to an application: because its spec names one, or because it must.
func (p *Part) GoesTo() bool {
	return p.To != "" || p.TakesTo() && !p.Kind.About().StandsAlone
}

// Works reports whether the part, a subject, does measured work itself.
func (p *Part) Works() bool { return p.Kind.About().Works.With(p.Options) }

// WorksAlone reports whether the part, a subject, does measured work without any load.
func (p *Part) WorksAlone() bool { return p.Kind.About().WorksAlone }

// RunsInside reports whether the part, a load, works where applications run.
func (p *Part) RunsInside() bool { return p.Kind.About().RunsInside.With(p.Options) }

// Varies reports whether the part is the baseline with other settings instead of a subject.
func (p *Part) Varies() bool {
	_, ok := p.Kind.(Variant)
	return ok
}

// TakesLimits reports whether limits can apply to the part, because Tare starts a process for it. An arm that is a
// variant runs the baseline's subject, and a subject that is installed in a cluster runs already.
func (p *Part) TakesLimits() bool {
	_, marked := p.Kind.(Marked)
	return !marked && !p.Varies()
}

// MakesEvents reports whether the part, a load, makes events.
func (p *Part) MakesEvents() bool {
	_, makes := p.Kind.(EventMaker)
	return makes
}

// Clone returns a copy whose options and limits can be changed.
func (p *Part) Clone() *Part {
	q := *p
	q.Options, q.Limits = p.Options.Clone(), p.Limits.Clone()
	return &q
}

// Setup holds the parts of an experiment and the settings of its trials.
type Setup struct {
	Applications map[string]*Part
	Loads        map[string]*Part
	Arms         map[string]*Part // without record.Direct and record.AA, which every experiment has
	Baseline     *Part            // the subject of record.Direct and record.AA; nil: none
	Gates        param.Values
	Warmup       time.Duration
	Duration     time.Duration
	Statistics   bool // the kernel counts runs and run time of eBPF programs
}

// Clone returns a copy whose parts can be changed.
func (s *Setup) Clone() Setup {
	c := *s
	for _, parts := range []*map[string]*Part{&c.Applications, &c.Loads, &c.Arms} {
		*parts = maps.Clone(*parts)
		for name, p := range *parts {
			(*parts)[name] = p.Clone()
		}
	}
	if s.Baseline != nil {
		c.Baseline = s.Baseline.Clone()
	}
	return c
}

// BoundsMemory reports whether a part has a memory limit, set on its control group or by the part itself.
func (s *Setup) BoundsMemory() bool {
	for _, sec := range s.Sections() {
		for _, p := range sec.Parts {
			if p.Limits.Float("memory") > 0 || p.Kind.About().BoundsMemory.With(p.Options) {
				return true
			}
		}
	}
	return false
}

// WorksByItself reports whether all arms do measured work without any load.
func (s *Setup) WorksByItself() bool {
	return s.Baseline != nil && !slices.ContainsFunc(s.Subjects(), func(p *Part) bool { return !p.WorksAlone() })
}

// NeedsNoApplication reports whether there are loads and none of them connects to an application.
func (s *Setup) NeedsNoApplication() bool {
	for _, p := range s.Loads {
		if p.GoesTo() {
			return false
		}
	}
	return len(s.Loads) > 0
}

// Of returns the subject that an arm weighs, or nil.
func (s *Setup) Of(arm string) *Part {
	part := s.Arms[arm]
	if arm == record.Direct || arm == record.AA || part != nil && part.Varies() {
		return s.Baseline
	}
	return part
}

// Subjects returns the subjects of all arms, without variants.
func (s *Setup) Subjects() []*Part {
	all := slices.DeleteFunc(slices.Collect(maps.Values(s.Arms)), (*Part).Varies)
	if s.Baseline != nil {
		all = append(all, s.Baseline)
	}
	return all
}

// CheckSubjects calls check for the subject of each arm and of the baseline, without variants, which run the
// baseline's subject. It returns the first error with the part's path. It is for SetupCheckers of loads that connect
// to the subject.
func (s *Setup) CheckSubjects(check func(*Part) error) error {
	for _, sec := range s.Sections() {
		if !sec.Weighs() {
			continue
		}
		for _, arm := range slices.Sorted(maps.Keys(sec.Parts)) {
			part := sec.Parts[arm]
			if part.Varies() {
				continue
			}
			if err := check(part); err != nil {
				return &ElsewhereError{Path: sec.Path(arm), Err: err}
			}
		}
	}
	return nil
}

// CheckServes checks that every arm has a subject that implements T. It is for SetupCheckers of a load that connects to
// the subject. The error contains the texts needs, which describes a T, such as "has a webhook", and lacks, which
// describes the subject at fault, such as "has none".
func CheckServes[T any](s *Setup, load, path, needs, lacks string) error {
	if s.Baseline == nil {
		return fmt.Errorf("a load of kind %s goes to the subject, and the baseline has none: give the spec a %q", load,
			BaselineKey)
	}
	return s.CheckSubjects(func(part *Part) error {
		if _, is := part.Kind.(T); !is {
			return fmt.Errorf("%s needs a subject that %s, and %s %s", path, needs, part.Name(), lacks)
		}
		return nil
	})
}

// SubjectVersions returns the versions of the programs that the arms weigh, by name. own is the version of subjects
// that are part of this binary.
func (s *Setup) SubjectVersions(ctx context.Context, own string) map[string]string {
	versions := map[string]string{}
	for _, p := range s.Subjects() {
		name, version := p.Name(), own
		if v, ok := p.Kind.(Versioned); ok {
			name, version = v.Version(ctx, p.Options, own)
		}
		if _, known := versions[name]; !known && name != "" {
			versions[name] = version
		}
	}
	return versions
}

// EventLoad returns the name of the load that makes events, or "".
func (s *Setup) EventLoad() string {
	for _, name := range slices.Sorted(maps.Keys(s.Loads)) {
		if s.Loads[name].MakesEvents() {
			return name
		}
	}
	return ""
}

// BaselineKey is the key of the baseline's subject in a spec.
const BaselineKey = "baseline"

// Section is the parts below one key of a spec. The baseline is a section with one part, which has no name.
type Section struct {
	Name  string
	Parts map[string]*Part
}

// Path returns the place of a part in a spec.
func (s Section) Path(name string) string {
	if name == "" {
		return s.Name
	}
	return s.Name + "." + name
}

// Weighs reports whether the section holds subjects.
func (s Section) Weighs() bool { return s.Name == "arms" || s.Name == BaselineKey }

// Sections returns all parts, by section.
func (s *Setup) Sections() []Section {
	all := []Section{{"applications", s.Applications}, {"loads", s.Loads}, {"arms", s.Arms}}
	if s.Baseline != nil {
		all = append(all, Section{BaselineKey, map[string]*Part{"": s.Baseline}})
	}
	return all
}
