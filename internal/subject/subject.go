// Package subject is the registry of the things that Tare weighs: mesh data planes, sandbox runtimes, tracers, config stores. Each is
// a package below this one, or a program of somebody else's; to an experiment it is a command line that it starts in a control group
// of its own. Nothing that is weighed runs inside the scale.
package subject

import (
	"maps"
	"slices"
	"sort"

	"tare/internal/fault"
	"tare/internal/near"
	"tare/internal/param"
)

// Subject is one kind of thing that Tare weighs.
type Subject struct {
	Name     string // as in arms and on the command line
	Summary  string // one line, for lists
	Settings []param.Setting
	// Start makes the command line. It is only called with values that the subject's settings can have.
	Start func(Place) Command
}

// Place is where and with what a subject is started.
type Place struct {
	Self         string       // path of the tare binary, for subjects that are a role of it
	CgroupDir    string       // the cgroup v2 directory whose processes the subject serves or watches
	ServicesFile string       // for mesh data planes: the services (package kernelmesh has the format); else empty
	XDS          string       // or the control plane that says what the services are, by its address
	Options      param.Values // of its settings
}

// Command is how to start a subject.
type Command struct {
	Argv []string // the program and its arguments
	Role bool     // speaks package role's protocol: ready comes by message, end of its standard input ends it
}

var registry = map[string]Subject{}

// Register adds a subject; for init functions. A name that is taken is a defect, and panics.
func Register(s Subject) {
	if _, taken := registry[s.Name]; taken {
		panic("subject " + s.Name + " registered twice")
	}
	registry[s.Name] = s
}

// All is every subject, by name.
func All() []Subject {
	all := make([]Subject, 0, len(registry))
	for _, s := range registry {
		all = append(all, s)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Name < all[j].Name })
	return all
}

// Lookup finds a subject by name. An unknown name is a *fault.Error of code Usage with the nearest one.
func Lookup(name string) (Subject, error) {
	s, ok := registry[name]
	if !ok {
		var names []string
		for _, s := range All() {
			names = append(names, s.Name)
		}
		return Subject{}, fault.New(fault.Usage, "", near.DidYouMean(name, names), "there is no subject %q", name)
	}
	return s, nil
}

// Command is the command line that starts the subject at a place. An option that it does not have, or a value that the
// option cannot take, is a *fault.Error of code Usage.
func (s Subject) Command(p Place) (Command, error) {
	values := param.Defaults(s.Settings)
	for _, name := range slices.Sorted(maps.Keys(p.Options)) {
		setting, ok := param.Find(s.Settings, name)
		if !ok {
			hint := near.DidYouMean(name, param.Names(s.Settings))
			return Command{}, fault.New(fault.Usage, "subject "+s.Name, hint, "there is no option %q", name)
		}
		var err error
		if values[name], err = setting.Canonical(p.Options[name]); err != nil {
			return Command{}, fault.New(fault.Usage, "subject "+s.Name, setting.Hint(), "%q %s", name, err)
		}
	}
	p.Options = values
	return s.Start(p), nil
}
