package spec

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"tare/internal/experiment/kind"
	"tare/internal/lib/fault"
	"tare/internal/lib/lists"
)

// LeaveOutAbsent removes the optional arms whose program is not installed on this machine, and returns the reason for
// each, by arm. A missing program of any other part is an error with the code Machine.
func (s *Spec) LeaveOutAbsent(ctx context.Context) (map[string]string, error) {
	absent := map[string]string{}
	for _, l := range s.Levels() {
		for _, sec := range s.At(l).Sections() {
			for name, p := range lists.ByKey(sec.Parts) {
				program, ok := p.Kind.(kind.Installed)
				if !ok || absent[name] != "" {
					continue
				}
				missing := program.Installed(ctx, p.Options)
				switch {
				case ctx.Err() != nil:
					return nil, context.Cause(ctx)
				case missing == nil:
				case sec.Name == "arms" && program.Optional(p.Options):
					absent[name] = fmt.Sprintf("%s; %s", missing, fault.HintOf(missing))
				default:
					return nil, cannotRun(sec, name, missing)
				}
			}
		}
	}
	if len(absent) == 0 {
		return nil, nil
	}
	maps.DeleteFunc(s.Arms, func(name string, _ *kind.Part) bool { return absent[name] != "" })
	s.dropIdleFactors()
	return absent, nil
}

// cannotRun returns the error for a part whose program is missing and which must not be left out.
func cannotRun(sec kind.Section, name string, missing error) error {
	what, hint := "part", fault.HintOf(missing)
	if sec.Name == "arms" {
		what, hint = "arm", hint+"; or write optional: true, and the run goes on without the arm"
	}
	return fault.Wrap(missing, fault.Machine, sec.Path(name), hint, "this machine cannot run the %s", what)
}

// dropIdleFactors removes factors that no longer set anything, because they would repeat every trial. From the cases of
// the other factors it removes the settings of parts that are gone, because with these the resolved spec would be
// refused when it is read again. It also removes both from Quick.
func (s *Spec) dropIdleFactors() {
	for i := range s.Factors {
		f := &s.Factors[i]
		f.paths = slices.DeleteFunc(slices.Clone(f.paths), func(p string) bool { _, ok := s.target(p); return !ok })
		f.cases = maps.Clone(f.cases)
		for level, sets := range f.cases {
			f.cases[level] = maps.Clone(sets)
			maps.DeleteFunc(f.cases[level], func(path, _ string) bool { return !slices.Contains(f.paths, path) })
		}
	}
	s.Factors = slices.DeleteFunc(s.Factors, func(f Factor) bool { return len(f.paths) == 0 })
	if s.Quick == nil {
		return
	}
	q := *s.Quick
	q.Arms = slices.DeleteFunc(slices.Clone(q.Arms), func(name string) bool { return s.Arms[name] == nil })
	q.Levels = maps.Clone(q.Levels)
	maps.DeleteFunc(q.Levels, func(name string, _ []string) bool {
		return !slices.ContainsFunc(s.Factors, func(f Factor) bool { return f.Name == name })
	})
	s.Quick = &q
}
