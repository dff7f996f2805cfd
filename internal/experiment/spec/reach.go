package spec

import (
	"strings"

	"tare/internal/lib/fault"
	"tare/internal/lib/lists"
	"tare/internal/lib/param"
)

// Reaches are the settings of all parts, in order of their paths, that reach further than the guests do by themselves:
// as the spec sets them, at any level of a factor, or by an arm that is a variant. Each says how:
// "arms.agent.command (a command)".
func (s *Spec) Reaches() []string {
	reach := map[string]param.Reach{}
	look := func(t target, value string) {
		if r := t.knob.Reaches(value); r != param.ReachNothing {
			reach[t.path] = r
		}
	}
	lookAll := func(values map[string]string) {
		for path, value := range values {
			if t, ok := s.target(path); ok {
				look(t, value)
			}
		}
	}
	for _, t := range s.targets() {
		look(t, t.options[t.knob.Name])
	}
	for _, f := range s.Factors {
		for _, level := range f.Levels {
			lookAll(f.sets(level))
		}
	}
	for _, arm := range s.AllArms() {
		if values, err := s.variants(arm); err == nil { // an error was reported when the spec was read
			lookAll(values)
		}
	}
	var all []string
	for path, r := range lists.ByKey(reach) {
		article := "a "
		if r == param.ReachAddress {
			article = "an "
		}
		all = append(all, path+" ("+article+string(r)+")")
	}
	return all
}

// CheckReach refuses a spec that reaches further than its guests do by themselves; where says who refuses it. Its error
// is of code fault.Usage.
func (s *Spec) CheckReach(where string) error {
	all := s.Reaches()
	if len(all) == 0 {
		return nil
	}
	return fault.New(fault.Usage, where, "start its agent with --allow-commands if it may do as the coordinator's "+
		"specs say, "+
		"or leave these settings out", "the spec names what a node may not run, open or connect to for a coordinator: %s",
		strings.Join(all, ", "))
}
