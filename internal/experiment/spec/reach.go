package spec

import (
	"strings"

	"tare/internal/lib/fault"
	"tare/internal/lib/lists"
	"tare/internal/lib/param"
)

// Reaches lists the settings, in order of path, that run commands, open files or connect to addresses that the guests
// would not use by themselves. It considers the values in the spec, every level of a factor and every arm that is a
// variant. Each entry says how it reaches further: "arms.agent.command (a command)".
func (s *Spec) Reaches() []string {
	reach := map[string]param.Reach{}
	look := func(t target, value string) {
		if r := t.setting.Reaches(value); r != param.ReachNothing {
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
		look(t, t.options[t.setting.Name])
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

// CheckReach returns an error with the code fault.Usage for a spec whose settings reach further than its guests do by
// themselves (see Reaches). The argument names the node that refuses the spec.
func (s *Spec) CheckReach(where string) error {
	all := s.Reaches()
	if len(all) == 0 {
		return nil
	}
	return fault.New(fault.Usage, where, "start its agent with --allow-commands if it may do as the coordinator's "+
		"specs say, or leave these settings out",
		"the spec has commands, files or addresses that a node does not accept from a coordinator: %s",
		strings.Join(all, ", "))
}
